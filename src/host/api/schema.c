#include "host/api/schema.h"

#include "base/str.h"

const struct schema *schema_find(const char *name)
{
	for (size_t i = 0; i < n_schemas; i++)
		if (str_eq(schemas[i].name, name))
			return &schemas[i];
	return NULL;
}
