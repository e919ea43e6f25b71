/* schema - what the functions are called and what they take and give, as published on the bus.
 *
 * The data are the files schema/NAME.json; tools/gen-schema makes the table of them.
 */
#pragma once

#include <stddef.h>

struct schema {
	const char *name; /* without the adapter's prefix: "fs::ls" */
	const char *description;
	const char *request, *response; /* JSON */
};

extern const struct schema schemas[];
extern const size_t n_schemas;

const struct schema *schema_find(const char *name); /* NULL: none */
