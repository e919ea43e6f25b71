#include "host/image/catalog.h"

#include "host/api/api_priv.h"

static void add_row(json_object *rows, const struct config *c, const char *kind, const char *name,
	const char *ref)
{
	json_object *row;

	if (!config_image_allowed(c, name))
		return;
	row = reply_object();
	json_add_str(row, "kind", kind);
	json_add_str(row, "name", name);
	json_add_str(row, "oci_ref", ref);
	reply_append(rows, row);
}

/* Presets in their fixed order, then the operator's images by name; what may not boot is left out.
 */
void api_catalog_list(struct api *a, struct bus_call *c, json_object *request)
{
	const struct config *config = a->config;
	json_object *reply = reply_object(), *rows = reply_array();

	(void)request;
	for (size_t i = 0; i < catalog_n_presets; i++)
		add_row(rows, config, "preset", catalog_presets[i].name, catalog_presets[i].ref);
	for (size_t i = 0; i < config->n_images; i++)
		add_row(rows, config, "custom", config->images[i].name, config->images[i].ref);
	reply_add(reply, "images", rows);
	reply_ok(c, reply);
}
