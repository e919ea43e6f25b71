/* The kernel's command line as the agent reads it. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "agent/cmdline.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct err e = ERR_INIT;
	struct cmdline c;

	if (cmdline_parse((const char *)data, size, &c, &e) < 0) {
		assert(e.text[0]);
		return 0;
	}
	assert(strlen(c.base) <= CMDLINE_SERIAL_MAX && strlen(c.upper) <= CMDLINE_SERIAL_MAX &&
		strlen(c.source) <= CMDLINE_SERIAL_MAX);
	/* A serial was given word for word. */
	if (c.base[0])
		assert(memmem(data, size, c.base, strlen(c.base)));
	if (c.source[0])
		assert(memmem(data, size, c.source, strlen(c.source)));
	return 0;
}
