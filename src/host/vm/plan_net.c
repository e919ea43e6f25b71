#include "host/vm/plan_net.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "wire/json.h"

void plan_net_done(struct plan_net *n)
{
	free(n->passt);
	free(n->ports);
	*n = (struct plan_net){0};
}

/* A name as the kernel gives it, that no program takes for an option. */
static bool is_interface(const char *s)
{
	if (*s == '-')
		return false;
	for (; *s; s++) {
		if (*s <= ' ' || *s == '/' || *s > '~')
			return false;
	}
	return true;
}

int plan_net_check(const struct plan_net *n, struct err *e)
{
	if (!n->passt || n->passt[0] != '/' || strlen(n->passt) >= PATH_MAX)
		return err_set(e, "S300", EINVAL, "net.passt: has to be an absolute path");
	if (n->interface[0] && !is_interface(n->interface))
		return err_set(e, "S300", EINVAL, "net.interface: no name of an interface");
	if (n->n_ports > PLAN_PORTS_MAX)
		return err_set(e, "S300", E2BIG, "net.ports: %zu, at most %d fit", n->n_ports,
			PLAN_PORTS_MAX);
	for (size_t i = 0; i < n->n_ports; i++) {
		if (n->ports[i] == 0)
			return err_set(e, "S300", EINVAL, "net.ports: 0 is no port");
	}
	return 0;
}

json_object *plan_net_to_json(const struct plan_net *n)
{
	json_object *o = json_object_new_object(), *ports = json_object_new_array();

	json_add_str(o, "passt", n->passt);
	json_add_str(o, "interface", n->interface);
	json_add_bool(o, "ipv6", n->ipv6);
	json_add_u64(o, "page_fd", (uint64_t)n->page_fd);
	for (size_t i = 0; i < n->n_ports; i++)
		json_object_array_add(ports, json_object_new_int(n->ports[i]));
	json_object_object_add(o, "ports", ports);
	return o;
}

static int read_ports(json_object *o, struct plan_net *ret, struct err *e)
{
	json_object *ports;
	int r = json_get_array(o, "ports", JSON_REQUIRED, &ports, e);
	size_t n;

	if (r < 0)
		return r;
	n = json_object_array_length(ports);
	if (n > PLAN_PORTS_MAX)
		return err_set(e, "", E2BIG, "ports: %zu, at most %d fit", n, PLAN_PORTS_MAX);
	ret->ports = xcalloc(n + 1, sizeof(*ret->ports));
	for (; ret->n_ports < n; ret->n_ports++) {
		json_object *p = json_object_array_get_idx(ports, ret->n_ports);
		int64_t v = json_object_is_type(p, json_type_int) ? json_object_get_int64(p) : 0;

		if (v < 1 || v > UINT16_MAX)
			return err_set(e, "", EINVAL, "ports: entry %zu is no port", ret->n_ports);
		ret->ports[ret->n_ports] = (uint16_t)v;
	}
	return 0;
}

static int read_members(json_object *o, struct plan_net *ret, struct err *e)
{
	static const char *const names[] = {"passt", "interface", "ipv6", "page_fd", "ports"};
	const char *passt, *interface;
	uint32_t fd;
	int r;

	if ((r = json_only_members(o, names, ARRAY_LEN(names), e)) < 0 ||
		(r = json_get_str(o, "passt", JSON_REQUIRED, &passt, e)) < 0 ||
		(r = json_get_str(o, "interface", JSON_REQUIRED, &interface, e)) < 0 ||
		(r = json_get_bool(o, "ipv6", JSON_REQUIRED, &ret->ipv6, e)) < 0 ||
		(r = json_get_u32(o, "page_fd", JSON_REQUIRED, &fd, e)) < 0)
		return r;
	if (strlen(interface) >= sizeof(ret->interface))
		return err_set(e, "", EINVAL, "interface: longer than %zu characters",
			sizeof(ret->interface) - 1);
	ret->passt = xstrdup(passt);
	memcpy(ret->interface, interface, strlen(interface) + 1);
	ret->page_fd = fd > INT_MAX ? -1 : (int)fd; /* plan_check refuses that, as others */
	return read_ports(o, ret, e);
}

int plan_net_from_json(json_object *o, struct plan_net *ret, struct err *e)
{
	int r = read_members(o, ret, e);

	if (r < 0)
		err_wrap(e, "net");
	return r;
}
