/* hello - "/hello" and the clock behind it. */
#pragma once

#include <stdint.h>

/* Microseconds since the kernel started. */
uint64_t hello_clock_us(void);
/* The agent serves from now on. Needs /proc. */
void hello_ready(void);
/* When that was. */
uint64_t hello_boot_us(void);
