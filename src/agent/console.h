/* console - what the agent says to the log of its VM. Few lines: failures of the boot. */
#pragma once

/* One line "agent: …" on the console. Control characters are replaced. */
void console_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Descriptors 0-2 from /dev/null, whatever the kernel gave us; the console is kept aside. */
void console_start(void);
