/* wire/netframe: frames of a guest that wants to reach what it must not.
 *
 * The input is a list of frames, each a byte of direction and a length (2 bytes) in front. Whatever
 * they are: nothing is read beyond a frame, and what passes from the guest is an IP packet in one
 * piece with its source, and neither goes to the loopback, nor to a port of the host that is not in
 * the list. The check reads the frame anew, byte by byte, as a careless receiver would.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire/netframe.h"

#define PORT 49134

static struct netframe_policy policy;

static void check_passed4(const uint8_t *ip, size_t len)
{
	size_t hdr = (ip[0] & 15) * 4u;
	const uint8_t *d = ip + 16;
	bool gateway, host, dns;
	unsigned port;

	assert(len >= 28 && hdr >= 20 && hdr + 8 <= len);
	assert(memcmp(ip + 12, "\144\140\0\2", 4) == 0);
	assert((ip[6] & 0x3f) == 0 && ip[7] == 0);
	assert(ip[9] == 6 || ip[9] == 17);
	assert(d[0] != 0 && d[0] != 127 && d[0] < 224 && !(d[0] == 169 && d[1] == 254));
	gateway = memcmp(d, "\144\140\0\1", 4) == 0;
	host = memcmp(d, "\300\0\2\2", 4) == 0;
	port = ip[hdr + 2] * 256u + ip[hdr + 3];
	dns = gateway && ip[9] == 17 && port == 53;
	assert((!gateway && !host) || port == PORT || dns);
}

static void check_passed6(const uint8_t *ip, size_t len)
{
	static const uint8_t own[16] = {0xfd, 0x6d, 0x73, [15] = 2},
			     router[16] = {0xfd, 0x6d, 0x73, [15] = 1},
			     machine[16] = {0x20, 1, 0x0d, 0xb8, [15] = 2}, zero[10];
	const uint8_t *d = ip + 24;
	bool gateway = memcmp(d, router, 16) == 0, host = memcmp(d, machine, 16) == 0, dns;
	unsigned port;

	assert(len >= 48 && (ip[6] == 6 || ip[6] == 17));
	assert(memcmp(ip + 8, own, 16) == 0);
	assert(d[0] != 0xff && memcmp(d, zero, 8) != 0);
	/* 6to4 and NAT64 of the loopback and of link-local addresses. */
	assert(!(d[0] == 0x20 && d[1] == 2 && (d[2] == 127 || (d[2] == 169 && d[3] == 254))));
	assert(!(memcmp(d, "\0\144\377\233\0\0\0\0\0\0\0\0", 12) == 0 && d[12] == 127));
	assert(!(d[0] == 0xfe && (d[1] & 0xc0) == 0x80));
	port = ip[42] * 256u + ip[43];
	dns = gateway && ip[6] == 17 && port == 53;
	assert((!gateway && !host) || port == PORT || dns);
}

static void check_passed(const uint8_t *f, size_t len)
{
	assert(memcmp(f + 6, "\2\155\163\0\0\2", 6) == 0);
	if (f[12] == 8 && f[13] == 0)
		check_passed4(f + 14, len - 14);
	else if (f[12] == 0x86 && f[13] == 0xdd)
		check_passed6(f + 14, len - 14);
	else
		assert(!"no IP");
}

static void check(
	enum netframe_dir dir, const uint8_t *f, size_t len, const struct netframe_result *r)
{
	bool reply = r->verdict == NETFRAME_ANSWER || r->verdict == NETFRAME_REFUSE;
	bool held = dir == NETFRAME_TO_GUEST && r->verdict == NETFRAME_PASS && r->reply_len;

	assert(r->reply_len <= NETFRAME_REPLY_MAX && (reply || held) == (r->reply_len > 0));
	assert(r->payload <= len);
	assert(r->verdict == NETFRAME_PASS || r->payload == 0);
	assert(dir == NETFRAME_FROM_GUEST || r->verdict != NETFRAME_REFUSE);
	/* In place of what the helper sent: a reset that says what it is for. */
	if (dir == NETFRAME_TO_GUEST && reply)
		assert(r->reply_len >= 54 && r->reply[r->reply_len - 7] == 0x14);
	/* What was held back was a frame that may pass. */
	if (held)
		check_passed(r->reply, r->reply_len);
	if (r->verdict == NETFRAME_PASS && dir == NETFRAME_FROM_GUEST)
		check_passed(f, len);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static const uint8_t v4[4] = {192, 0, 2, 2}, v6[16] = {0x20, 1, 0x0d, 0xb8, [15] = 2};
	struct netframe_host hosts[2];

	(void)argc;
	(void)argv;
	netframe_policy_init(&policy, true);
	netframe_policy_port(&policy, PORT);
	netframe_host_set(&hosts[0], false, v4, 32);
	netframe_host_set(&hosts[1], true, v6, 128);
	netframe_policy_hosts(&policy, hosts, 2);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct netframe_flows *flows = calloc(1, sizeof(*flows));

	while (size >= 3) {
		enum netframe_dir dir = data[0] & 1 ? NETFRAME_TO_GUEST : NETFRAME_FROM_GUEST;
		size_t len = data[1] * 256u + data[2];
		struct netframe_result r;
		uint8_t *exact;

		data += 3;
		size -= 3;
		len = len < size ? len : size;
		/* Of just that size, so that a byte too far is seen. */
		exact = malloc(len + !len);
		memcpy(exact, data, len);
		netframe_judge(&policy, flows, dir, exact, len, &r);
		check(dir, exact, len, &r);
		free(exact);
		data += len;
		size -= len;
	}
	free(flows);
	return 0;
}
