/* run_options - the arguments of `sandbox-libkrun run`, checked. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "host/vm/vm.h"

struct run_options {
	const char *image, *lang, *code, *file, *workdir;
	char **env;  /* NAME=value of --env; owned */
	char **argv; /* the program form: PROGRAM ARGUMENT…; NULL for the code form */
	enum vm_backend_choice backend;
	uint64_t timeout_ms;
	uint64_t output_cap; /* bytes of each output; UINT64_MAX: all */
	uint32_t mem_mib, cpus;
	bool use_stdin, no_pull, quiet, network;
};

/* 0; 1 when the help was printed; -EINVAL when the call is wrong, which has been said on stderr.
 * Strings point into argv. Call run_options_done in every case. */
int run_options_parse(struct run_options *o, int argc, char **argv);
void run_options_done(struct run_options *o);
