#include "wire/guest_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "wire/json.h"

#define MTU_MIN	 576 /* what every IPv4 host takes; IPv6 needs … */
#define MTU_MIN6 1280
#define MTU_MAX	 65535

void guest_net_mac(const char *text, uint8_t ret[static 6])
{
	unsigned b[6] = {0};

	sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5]);
	for (int i = 0; i < 6; i++)
		ret[i] = (uint8_t)b[i];
}

void guest_net_default(struct guest_net *n, bool with6)
{
	*n = (struct guest_net){.prefix = GUEST_NET_PREFIX, .mtu = GUEST_NET_MTU};
	inet_pton(AF_INET, GUEST_NET_ADDRESS, n->address);
	inet_pton(AF_INET, GUEST_NET_GATEWAY, n->gateway);
	inet_pton(AF_INET, GUEST_NET_GATEWAY, n->dns);
	if (!with6)
		return;
	n->has6 = true;
	n->prefix6 = GUEST_NET_PREFIX6;
	inet_pton(AF_INET6, GUEST_NET_ADDRESS6, n->address6);
	inet_pton(AF_INET6, GUEST_NET_GATEWAY6, n->gateway6);
}

static void add_address(json_object *o, const char *name, int family, const uint8_t *address)
{
	char text[INET6_ADDRSTRLEN];

	inet_ntop(family, address, text, sizeof(text));
	json_add_str(o, name, text);
}

json_object *guest_net_to_json(const struct guest_net *n)
{
	json_object *o = json_object_new_object();

	add_address(o, "address", AF_INET, n->address);
	json_add_u64(o, "prefix", n->prefix);
	add_address(o, "gateway", AF_INET, n->gateway);
	add_address(o, "dns", AF_INET, n->dns);
	json_add_u64(o, "mtu", n->mtu);
	if (n->has6) {
		add_address(o, "address6", AF_INET6, n->address6);
		json_add_u64(o, "prefix6", n->prefix6);
		add_address(o, "gateway6", AF_INET6, n->gateway6);
	}
	return o;
}

static int get_address(json_object *o, const char *name, int family, uint8_t *ret, struct err *e)
{
	const char *text;
	int r = json_get_str(o, name, JSON_REQUIRED, &text, e);

	if (r < 0)
		return r;
	if (inet_pton(family, text, ret) != 1)
		return err_set(e, "", EINVAL, "%s: %.64s is no IPv%d address", name, text,
			family == AF_INET ? 4 : 6);
	return 0;
}

static int get_number(
	json_object *o, const char *name, uint32_t min, uint32_t max, unsigned *ret, struct err *e)
{
	uint32_t v;
	int r = json_get_u32(o, name, JSON_REQUIRED, &v, e);

	if (r < 0)
		return r;
	if (v < min || v > max)
		return err_set(e, "", EINVAL, "%s: %u, but has to be %u to %u", name, v, min, max);
	*ret = v;
	return 0;
}

static int read_members(json_object *o, struct guest_net *n, struct err *e)
{
	static const char *const names[] = {
		"address", "prefix", "gateway", "dns", "mtu", "address6", "prefix6", "gateway6"};
	int r;

	if (!json_object_is_type(o, json_type_object))
		return err_set(e, "", EINVAL, "not an object");
	n->has6 = json_object_object_get_ex(o, "address6", NULL) ||
		  json_object_object_get_ex(o, "prefix6", NULL) ||
		  json_object_object_get_ex(o, "gateway6", NULL);
	if ((r = json_only_members(o, names, ARRAY_LEN(names), e)) < 0 ||
		(r = get_address(o, "address", AF_INET, n->address, e)) < 0 ||
		(r = get_number(o, "prefix", 1, 32, &n->prefix, e)) < 0 ||
		(r = get_address(o, "gateway", AF_INET, n->gateway, e)) < 0 ||
		(r = get_address(o, "dns", AF_INET, n->dns, e)) < 0 ||
		(r = get_number(o, "mtu", n->has6 ? MTU_MIN6 : MTU_MIN, MTU_MAX, &n->mtu, e)) < 0)
		return r;
	if (!n->has6)
		return 0;
	if ((r = get_address(o, "address6", AF_INET6, n->address6, e)) < 0 ||
		(r = get_number(o, "prefix6", 1, 128, &n->prefix6, e)) < 0)
		return r;
	return get_address(o, "gateway6", AF_INET6, n->gateway6, e);
}

int guest_net_from_json(json_object *o, struct guest_net *ret, struct err *e)
{
	struct guest_net n = {0};
	int r = read_members(o, &n, e);

	if (r < 0) {
		err_wrap(e, "net");
		return r;
	}
	*ret = n;
	return 0;
}
