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

/* A connection in the direction of its packets, or the other. */
static uint64_t hash_tcp(const struct netframe_flows *f, const struct packet *k, bool back)
{
	uint64_t h = mix(f->seed, k->v6 ? 6 : 4);
	uint16_t from = get16(k->l4), to = get16(k->l4 + 2);

	h = mix_address(h, back ? k->dst : k->src, k->v6);
	h = mix_address(h, back ? k->src : k->dst, k->v6);
	return mix(h, back ? (uint32_t)to << 16 | from : (uint32_t)from << 16 | to);
}

/* 0 is an empty slot. */
static uint32_t key_of(uint64_t h)
{
	return (uint32_t)(h >> 32) | 1;
}

static struct netframe_tcp *slot_of(struct netframe_flows *f, uint64_t h)
{
	return &f->tcp[h % NETFRAME_TCP_SLOTS];
}

/* Numbers wrap: what lies within half of their circle ahead is later. */
static bool is_after(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) > 0;
}

uint32_t netframe_flow_tcp(
	struct netframe_flows *f, const struct packet *k, uint32_t payload, uint8_t flags)
{
	uint64_t h = hash_tcp(f, k, false);
	struct netframe_tcp *t = slot_of(f, h);
	uint32_t seq = get32(k->l4 + 4), end = seq + payload;

	if (flags & TCP_SYN) {
		*t = (struct netframe_tcp){.key = key_of(h), .next = end + 1, .opening = true};
		return payload;
	}
	if (payload == 0)
		return 0;
	if (t->key != key_of(h))
		*t = (struct netframe_tcp){.key = key_of(h), .next = seq};
	if (!is_after(end, t->next))
		return 0;
	payload = end - t->next < payload ? end - t->next : payload;
	t->next = end;
	return payload;
}

/* --- ends of streams that come too early --- */

static struct netframe_held *find_held(struct netframe_flows *f, uint64_t flow)
{
	for (size_t i = 0; i < NETFRAME_HELD_MAX; i++) {
		if (f->held[i].flow == flow)
			return &f->held[i];
	}
	return NULL;
}

static void forget_held(struct netframe_flows *f, uint64_t flow)
{
	struct netframe_held *held = f->n_held ? find_held(f, flow) : NULL;

	if (!held)
		return;
	held->flow = 0;
	f->n_held--;
}

bool netframe_flow_hold(struct netframe_flows *f, const struct packet *k, uint32_t payload,
	const uint8_t *frame, size_t len)
{
	uint64_t h = hash_tcp(f, k, false);
	const struct netframe_tcp *t = slot_of(f, h);
	uint32_t seq = get32(k->l4 + 4);
	uint8_t flags = k->l4[13];
	struct netframe_held *held;

	if (flags & (TCP_SYN | TCP_RST))
		forget_held(f, h | 1);
	if ((flags & (TCP_SYN | TCP_FIN | TCP_RST)) != TCP_FIN)
		return false;
	/* Of a connection that was forgotten nothing is known, and it passes. */
	if (payload != 0 || t->key != key_of(h) || !t->heard || !is_after(seq, t->acked)) {
		forget_held(f, h | 1); /* one that is still there was the same end */
		return false;
	}
	held = find_held(f, h | 1);
	if (!held && (held = find_held(f, 0)))
		f->n_held++;
	if (held && len <= sizeof(held->frame)) {
		held->flow = h | 1;
		held->seq = seq;
		held->len = len;
		memcpy(held->frame, frame, len);
	}
	return true;
}

void netframe_flow_release(
	struct netframe_flows *f, const struct packet *k, struct netframe_result *ret)
{
	uint64_t h = hash_tcp(f, k, true);
	struct netframe_tcp *t = slot_of(f, h);
	uint32_t ack = get32(k->l4 + 8);
	struct netframe_held *held;

	if (k->l4[13] & TCP_RST)
		forget_held(f, h | 1);
	if (!(k->l4[13] & TCP_ACK) || t->key != key_of(h))
		return;
	if (!t->heard || is_after(ack, t->acked))
		t->acked = ack;
	t->heard = true;
	held = f->n_held ? find_held(f, h | 1) : NULL;
	if (!held || is_after(held->seq, t->acked))
		return;
	memcpy(ret->reply, held->frame, held->len);
	ret->reply_len = held->len;
	forget_held(f, h | 1);
}

bool netframe_flow_refused(struct netframe_flows *f, const struct packet *k, uint32_t *ret_ack)
{
	uint64_t h = hash_tcp(f, k, true);
	const struct netframe_tcp *t = slot_of(f, h);

	*ret_ack = t->next;
	return (k->l4[13] & (TCP_RST | TCP_ACK)) == TCP_RST && t->key == key_of(h) && t->opening &&
	       !t->heard;
}

/* --- UDP --- */

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
