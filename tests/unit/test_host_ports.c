/* host_ports: what the operator may write, and when the engine's port is one of this host. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/host_ports.h"

/* The ports as a text, or "-" for a refusal. */
static char *parsed(const char *list, const char *url)
{
	struct host_ports p;
	struct err e = ERR_INIT;
	char *text = xstrdup("");
	int r = host_ports_parse(list, url, &p, &e);

	if (r < 0) {
		assert_int_equal(r, -EINVAL);
		assert_non_null(strstr(e.text, HOST_PORTS_ENV));
		free(text);
		return xstrdup("-");
	}
	for (size_t i = 0; i < p.n; i++) {
		char *longer = xasprintf("%s%s%u", text, i ? " " : "", p.ports[i]);

		free(text);
		text = longer;
	}
	host_ports_done(&p);
	return text;
}

static void lists(void **state)
{
	static const struct {
		const char *list, *url, *wanted;
	} cases[] = {
		{NULL, NULL, ""},
		{"", NULL, ""},
		{" ", NULL, ""},
		{"8080", NULL, "8080"},
		{"8080,9000-9003", NULL, "8080 9000 9001 9002 9003"},
		{" 9 , 7-8 ,7", NULL, "7 8 9"},
		{"65535,1", NULL, "1 65535"},
		{"5-5", NULL, "5"},
		{"1-1024", "ws://10.9.9.9:1", NULL},
		{"0", NULL, "-"},
		{"65536", NULL, "-"},
		{"9-8", NULL, "-"},
		{"1-2000", NULL, "-"},
		{"1-", NULL, "-"},
		{"-1", NULL, "-"},
		{"1-2-3", NULL, "-"},
		{"80,", NULL, "-"},
		{",80", NULL, "-"},
		{"80 81", NULL, "-"},
		{"http", NULL, "-"},
		{"+80", NULL, "-"},
		{NULL, "ws://127.0.0.1:49134", "49134"},
		{NULL, "ws://127.9.9.9:1/p?q", "1"},
		{NULL, "ws://localhost", "80"},
		{NULL, "wss://LOCALHOST", "443"},
		{NULL, "ws://[::1]:7", "7"},
		{NULL, "ws://0.0.0.0:7", "7"},
		{NULL, "ws://127.1:7", "7"},
		{NULL, "ws://localhost.:7", "7"},
		{NULL, "ws://[::ffff:127.0.0.1]:7", "7"},
		{NULL, "ws://engine.example:7", ""},
		{NULL, "ws://192.0.2.1:7", ""},
		{NULL, "no url", ""},
		{"7,8", "ws://localhost:8", "7 8"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_free char *got = parsed(cases[i].list, cases[i].url);

		if (cases[i].wanted && !str_eq(got, cases[i].wanted))
			fail_msg("%s %s: %s, wanted %s", cases[i].list, cases[i].url, got,
				cases[i].wanted);
		assert_true(cases[i].wanted || str_starts(got, "1 2 3 "));
	}
}

/* It has an address here, or the resolver of this host does not know it. */
static void own_name(void **state)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *all = NULL;
	char name[256] = "";
	cleanup_free char *url = NULL, *got = NULL;

	assert_int_equal(gethostname(name, sizeof(name) - 1), 0);
	if (getaddrinfo(name, NULL, &hints, &all) != 0)
		skip();
	freeaddrinfo(all);
	url = xasprintf("ws://%s:7", name);
	got = parsed(NULL, url);
	assert_string_equal(got, "7");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists),
		cmocka_unit_test(own_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
