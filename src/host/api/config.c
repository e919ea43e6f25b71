#include "host/api/config.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/linkhash.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/image/catalog.h"
#include "wire/json.h"

static const char *const known_keys[] = {"auto_install", "image_allowlist",
	"default_idle_timeout_secs", "max_concurrent_sandboxes", "max_concurrent_exec_per_sandbox",
	"max_exec_timeout_ms", "default_cpus", "default_memory_mb", "per_image_caps",
	"custom_images"};

static void init(struct config *c)
{
	*c = (struct config){
		.auto_install = true,
		.default_idle_timeout_secs = 300,
		.max_concurrent_sandboxes = 32,
		.max_concurrent_exec_per_sandbox = 4,
		.max_exec_timeout_ms = 300000,
		.default_cpus = 1,
		.default_memory_mb = 512,
	};
}

void config_init_shipped(struct config *c)
{
	init(c);
	for (size_t i = 0; i < catalog_n_presets; i++)
		strv_add(&c->image_allowlist, catalog_presets[i].name);
}

void config_done(struct config *c)
{
	strv_free(c->image_allowlist);
	for (size_t i = 0; i < c->n_caps; i++)
		free(c->caps[i].image);
	free(c->caps);
	for (size_t i = 0; i < c->n_images; i++) {
		free(c->images[i].name);
		free(c->images[i].ref);
	}
	free(c->images);
	*c = (struct config){0};
}

/* --- reading --- */

static bool is_known(const char *key)
{
	for (size_t i = 0; i < ARRAY_LEN(known_keys); i++)
		if (str_eq(key, known_keys[i]))
			return true;
	return false;
}

static int read_cap(const char *image, json_object *value, struct config_cap *cap, struct err *e)
{
	*cap = (struct config_cap){.max_cpus = UINT32_MAX, .max_memory_mb = UINT32_MAX};
	if (!json_object_is_type(value, json_type_object))
		return err_set(
			e, "", EINVAL, "field `per_image_caps`: %s must be an object", image);
	if (json_get_u32(value, "max_cpus", JSON_NULLABLE, &cap->max_cpus, e) < 0 ||
		json_get_u32(value, "max_memory_mb", JSON_NULLABLE, &cap->max_memory_mb, e) < 0) {
		err_wrap(e, "field `per_image_caps`: %s", image);
		return -EINVAL;
	}
	cap->image = xstrdup(image);
	return 0;
}

static int read_caps(json_object *o, struct config *c, struct err *e)
{
	json_object *caps;
	int r = json_get_object(o, "per_image_caps", JSON_NULLABLE, &caps, e);

	if (r <= 0)
		return r;
	c->caps = xcalloc((size_t)json_object_object_length(caps) + 1, sizeof(*c->caps));
	json_object_object_foreach (caps, image, value) {
		/* A bare key of YAML: no ceilings. */
		if (!value)
			continue;
		r = read_cap(image, value, &c->caps[c->n_caps], e);
		if (r < 0)
			return r;
		c->n_caps++;
	}
	return 0;
}

static int check_custom(const char *name, json_object *value, struct err *e)
{
	if (!*name)
		return err_set(e, "", EINVAL, "field `custom_images`: a name is empty");
	if (catalog_preset_ref(name))
		return err_set(e, "", EINVAL,
			"field `custom_images`: %s is the name of a preset and cannot be given to "
			"another image",
			name);
	if (!json_object_is_type(value, json_type_string))
		return err_set(e, "", EINVAL,
			"field `custom_images`: %s must be an image reference (a string)", name);
	if (!json_object_get_string_len(value))
		return err_set(
			e, "", EINVAL, "field `custom_images`: the reference of %s is empty", name);
	if (strlen(json_object_get_string(value)) != (size_t)json_object_get_string_len(value))
		return err_set(e, "", EINVAL,
			"field `custom_images`: the reference of %s holds U+0000", name);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const struct config_image *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static int read_images(json_object *o, struct config *c, struct err *e)
{
	json_object *images;
	int r = json_get_object(o, "custom_images", JSON_NULLABLE, &images, e);

	if (r <= 0)
		return r;
	c->images = xcalloc((size_t)json_object_object_length(images) + 1, sizeof(*c->images));
	json_object_object_foreach (images, name, value) {
		r = check_custom(name, value, e);
		if (r < 0)
			return r;
		c->images[c->n_images++] = (struct config_image){
			xstrdup(name), xstrdup(json_object_get_string(value))};
	}
	qsort(c->images, c->n_images, sizeof(*c->images), by_name);
	return 0;
}

static int check_minimum(const char *key, uint32_t value, uint32_t min, struct err *e)
{
	if (value >= min)
		return 0;
	return err_set(e, "", EINVAL,
		"field `%s`: %" PRIu32 " is less than the minimum of %" PRIu32, key, value, min);
}

static int read_members(json_object *o, struct config *c, struct err *e)
{
	if (json_get_bool(o, "auto_install", JSON_NULLABLE, &c->auto_install, e) < 0 ||
		json_get_strv(o, "image_allowlist", JSON_NULLABLE, &c->image_allowlist, e) < 0 ||
		json_get_u64(o, "default_idle_timeout_secs", JSON_NULLABLE,
			&c->default_idle_timeout_secs, e) < 0 ||
		json_get_u32(o, "max_concurrent_sandboxes", JSON_NULLABLE,
			&c->max_concurrent_sandboxes, e) < 0 ||
		json_get_u32(o, "max_concurrent_exec_per_sandbox", JSON_NULLABLE,
			&c->max_concurrent_exec_per_sandbox, e) < 0 ||
		json_get_u64(o, "max_exec_timeout_ms", JSON_NULLABLE, &c->max_exec_timeout_ms, e) <
			0 ||
		json_get_u32(o, "default_cpus", JSON_NULLABLE, &c->default_cpus, e) < 0 ||
		json_get_u32(o, "default_memory_mb", JSON_NULLABLE, &c->default_memory_mb, e) < 0 ||
		check_minimum("default_cpus", c->default_cpus, CONFIG_CPUS_MIN, e) < 0 ||
		check_minimum("default_memory_mb", c->default_memory_mb, CONFIG_MEMORY_MB_MIN, e) <
			0 ||
		read_caps(o, c, e) < 0 || read_images(o, c, e) < 0)
		return -EINVAL;
	return 0;
}

static void warn_oddities(json_object *o, struct config *c)
{
	json_object_object_foreach (o, key, value) {
		(void)value;
		if (!is_known(key))
			log_warn("configuration key is not known and ignored", "key=%s",
				log_quote(key));
	}
	for (size_t i = 0; c->image_allowlist && c->image_allowlist[i]; i++) {
		if (!config_image_ref(c, c->image_allowlist[i]))
			log_warn("image_allowlist names an image that does not exist", "image=%s",
				log_quote(c->image_allowlist[i]));
	}
	if (!c->image_allowlist || !c->image_allowlist[0])
		log_warn("image_allowlist is empty: every create will be refused", "key=%s",
			"image_allowlist");
	if (c->max_concurrent_exec_per_sandbox == 0)
		log_warn("max_concurrent_exec_per_sandbox is 0, which means 1", "key=%s",
			"max_concurrent_exec_per_sandbox");
}

int config_parse(json_object *value, struct config *ret, struct err *e)
{
	struct config c;

	if (!json_object_is_type(value, json_type_object))
		return err_set(e, "", EINVAL,
			"configuration: the entry must be an object of keys and values");
	if (json_object_object_get_ex(value, "sandbox", NULL))
		return err_set(e, "", EINVAL,
			"configuration: the key `sandbox` is from an old version: move the keys "
			"below it to the top level");
	init(&c);
	if (read_members(value, &c, e) < 0) {
		config_done(&c);
		err_wrap(e, "configuration");
		return -EINVAL;
	}
	warn_oddities(value, &c);
	c.max_concurrent_exec_per_sandbox = MAX(c.max_concurrent_exec_per_sandbox, 1u);
	c.max_exec_timeout_ms = MAX(c.max_exec_timeout_ms, (uint64_t)1);
	*ret = c;
	return 0;
}

/* --- asking --- */

const char *config_image_ref(const struct config *c, const char *name)
{
	const char *preset = catalog_preset_ref(name);

	if (preset)
		return preset;
	for (size_t i = 0; i < c->n_images; i++)
		if (str_eq(name, c->images[i].name))
			return c->images[i].ref;
	return NULL;
}

bool config_image_allowed(const struct config *c, const char *name)
{
	if (!config_image_ref(c, name))
		return false;
	for (size_t i = 0; c->image_allowlist && c->image_allowlist[i]; i++)
		if (str_eq(name, c->image_allowlist[i]))
			return true;
	return false;
}

static void add_name(struct buf *out, const struct config *c, const char *name)
{
	if (!config_image_allowed(c, name))
		return;
	if (out->len)
		buf_add_str(out, ", ");
	buf_add_str(out, name);
}

char *config_allowed_names(const struct config *c)
{
	cleanup_buf struct buf out;

	buf_init(&out, ERR_TEXT_MAX);
	for (size_t i = 0; i < catalog_n_presets; i++)
		add_name(&out, c, catalog_presets[i].name);
	for (size_t i = 0; i < c->n_images; i++)
		add_name(&out, c, c->images[i].name);
	return out.len ? buf_steal(&out) : xstrdup("");
}

struct config_cap config_image_cap(const struct config *c, const char *name)
{
	for (size_t i = 0; i < c->n_caps; i++)
		if (str_eq(name, c->caps[i].image))
			return c->caps[i];
	return (struct config_cap){.max_cpus = UINT32_MAX, .max_memory_mb = UINT32_MAX};
}
