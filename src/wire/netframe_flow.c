#include <string.h>

#include "wire/netframe_priv.h"

/* Not for adversaries with time: the seed is unknown to them, and what they could reach is a wrong
 * count or, with 64 bits guessed, one datagram to a guest that has asked for none. */
static uint64_t mix(uint64_t h, uint64_t word)
{
	h = (h ^ word) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 29;
}

static uint64_t mix_address(uint64_t h, const uint8_t *a, bool v6)
{
	for (size_t i = 0; i < (v6 ? 16u : 4u); i += 4)
		h = mix(h, get32(a + i));
	return h;
}

/* A connection in one direction. */
static uint64_t hash_tcp(const struct netframe_flows *f, const struct packet *k)
{
	uint64_t h = mix(f->seed, k->v6 ? 6 : 4);

	h = mix_address(h, k->src, k->v6);
	h = mix_address(h, k->dst, k->v6);
	return mix(h, get32(k->l4));
}

uint32_t netframe_flow_tcp(
	struct netframe_flows *f, const struct packet *k, uint32_t payload, uint8_t flags)
{
	uint64_t h = hash_tcp(f, k);
	struct netframe_tcp *t = &f->tcp[h % NETFRAME_TCP_SLOTS];
	uint32_t key = (uint32_t)(h >> 32) | 1; /* 0 is an empty slot */
	uint32_t seq = get32(k->l4 + 4), end = seq + payload;

	if (flags & TCP_SYN) {
		*t = (struct netframe_tcp){.key = key, .next = end + 1};
		return payload;
	}
	if (payload == 0)
		return 0;
	if (t->key != key)
		*t = (struct netframe_tcp){.key = key, .next = seq};
	/* Numbers wrap: what lies within half of their circle ahead is new. */
	if ((int32_t)(end - t->next) <= 0)
		return 0;
	payload = (uint32_t)(end - t->next) < payload ? end - t->next : payload;
	t->next = end;
	return payload;
}

static uint64_t hash_udp(const struct netframe_flows *f, bool v6, const uint8_t *far_address,
	const uint8_t *far_port, const uint8_t *own_port)
{
	uint64_t h = mix(f->seed, v6 ? 106 : 104);

	h = mix_address(h, far_address, v6);
	h = mix(h, (uint64_t)get16(far_port) << 16 | get16(own_port));
	return mix(h, 0) | 1; /* 0 is an empty slot */
}

/* Looks for a key and makes it the last used. */
static bool find_udp(uint64_t *set, uint64_t key)
{
	size_t i = 0;

	while (i < NETFRAME_UDP_WAYS && set[i] != key)
		i++;
	if (i == NETFRAME_UDP_WAYS)
		return false;
	memmove(set + 1, set, i * sizeof(*set));
	set[0] = key;
	return true;
}

void netframe_flow_udp_sent(struct netframe_flows *f, const struct packet *k)
{
	uint64_t key = hash_udp(f, k->v6, k->dst, k->l4 + 2, k->l4);
	uint64_t *set = f->udp[(key >> 1) % NETFRAME_UDP_SETS];

	if (find_udp(set, key))
		return;
	memmove(set + 1, set, (NETFRAME_UDP_WAYS - 1) * sizeof(*set));
	set[0] = key;
}

bool netframe_flow_udp_known(struct netframe_flows *f, const struct packet *k)
{
	uint64_t key = hash_udp(f, k->v6, k->src, k->l4, k->l4 + 2);

	return find_udp(f->udp[(key >> 1) % NETFRAME_UDP_SETS], key);
}
