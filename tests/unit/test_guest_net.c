/* wire/guest_net: what the guest is told about its interface. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "wire/guest_net.h"
#include "wire/json.h"

static void test_default(void **state)
{
	struct guest_net n;
	cleanup_json json_object *four = NULL, *both = NULL;

	(void)state;
	guest_net_default(&n, false);
	four = guest_net_to_json(&n);
	assert_string_equal(json_text(four, NULL),
		"{\"address\":\"100.96.0.2\",\"prefix\":30,\"gateway\":\"100.96.0.1\","
		"\"dns\":\"100.96.0.1\",\"mtu\":1500}");
	guest_net_default(&n, true);
	both = guest_net_to_json(&n);
	assert_string_equal(json_text(both, NULL),
		"{\"address\":\"100.96.0.2\",\"prefix\":30,\"gateway\":\"100.96.0.1\","
		"\"dns\":\"100.96.0.1\",\"mtu\":1500,\"address6\":\"fd6d:7300::2\","
		"\"prefix6\":64,\"gateway6\":\"fd6d:7300::1\"}");
}

static void test_round_trip(void **state)
{
	(void)state;
	for (int with6 = 0; with6 < 2; with6++) {
		struct guest_net n, again;
		cleanup_json json_object *o = NULL;
		struct err e = ERR_INIT;

		memset(&again, 0xa5, sizeof(again));
		guest_net_default(&n, with6);
		o = guest_net_to_json(&n);
		assert_int_equal(guest_net_from_json(o, &again, &e), 0);
		assert_memory_equal(n.address, again.address, 4);
		assert_memory_equal(n.gateway, again.gateway, 4);
		assert_memory_equal(n.dns, again.dns, 4);
		assert_memory_equal(n.address6, again.address6, 16);
		assert_memory_equal(n.gateway6, again.gateway6, 16);
		assert_int_equal(again.has6, with6);
		assert_int_equal(again.prefix, 30);
		assert_int_equal(again.prefix6, with6 ? 64 : 0);
		assert_int_equal(again.mtu, 1500);
	}
}

#define FOUR "\"address\":\"10.0.0.2\",\"prefix\":24,\"gateway\":\"10.0.0.1\",\"dns\":\"10.0.0.3\","

static void test_refused(void **state)
{
	static const struct {
		const char *text, *why;
	} cases[] = {
		{"[]", "not an object"},
		{"{}", "address"},
		{"{" FOUR "\"mtu\":575}", "mtu: 575"},
		{"{" FOUR "\"mtu\":65536}", "mtu: 65536"},
		{"{" FOUR "\"mtu\":\"1500\"}", "mtu"},
		{"{" FOUR "\"mtu\":1500,\"x\":1}", "unknown member `x`"},
		{"{" FOUR "\"mtu\":1500,\"prefix6\":64}", "address6"},
		{"{" FOUR "\"mtu\":1500,\"address6\":\"fd00::2\",\"prefix6\":64}", "gateway6"},
		{"{" FOUR "\"mtu\":1000,\"address6\":\"fd00::2\",\"prefix6\":64,"
		 "\"gateway6\":\"fd00::1\"}",
			"mtu: 1000"},
		{"{" FOUR "\"mtu\":1500,\"address6\":\"fd00::2\",\"prefix6\":129,"
		 "\"gateway6\":\"fd00::1\"}",
			"prefix6: 129"},
		{"{" FOUR "\"mtu\":1500,\"address6\":\"10.0.0.2\",\"prefix6\":64,"
		 "\"gateway6\":\"fd00::1\"}",
			"no IPv6 address"},
		{"{\"address\":\"10.0.0\",\"prefix\":24,\"gateway\":\"10.0.0.1\","
		 "\"dns\":\"10.0.0.3\",\"mtu\":1500}",
			"address: 10.0.0 is no IPv4 address"},
		{"{\"address\":\"10.0.0.2\",\"prefix\":0,\"gateway\":\"10.0.0.1\","
		 "\"dns\":\"10.0.0.3\",\"mtu\":1500}",
			"prefix: 0"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_json json_object *o = NULL;
		struct guest_net n = {.mtu = 77};
		struct err e = ERR_INIT;

		assert_int_equal(json_parse(cases[i].text, strlen(cases[i].text), &o, NULL), 0);
		if (guest_net_from_json(o, &n, &e) >= 0 || !strstr(e.text, cases[i].why))
			fail_msg("%s: %s", cases[i].text, e.text);
		assert_int_equal(n.mtu, 77);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_default),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
