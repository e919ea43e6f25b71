/* console - what the agent says to the log of its VM. Few lines: failures of the boot,
 * and where a worker VM is. */
#pragma once

/* One line "agent: …" on the console. Control characters are replaced. */
void console_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Descriptors 0-2 from /dev/null, whatever the kernel gave us; the console is kept aside. */
void console_start(void);

/* The console for a program's output: a blocking descriptor above 2, so that a program waits where
 * the host is slow, and nothing is lost. The caller closes it. Negative errno. */
int console_open(void);
