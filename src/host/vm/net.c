#include "host/vm/net.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/vm/child.h"
#include "host/vm/lib.h"

/* Text of a routing table that is read: some 30000 routes. That of IPv4 has the default routes
 * first; behind as many of IPv6 none is looked for. */
#define ROUTES_MAX   (4u << 20)
#define ROUTE_UP     0x1
#define ROUTE_REJECT 0x200

/* Interface, destination, gateway, flags, …, mask. */
static bool is_default4(const char *line, char *interface)
{
	unsigned long to, mask;
	unsigned flags;

	return sscanf(line, "%15s %lx %*s %x %*s %*s %*s %lx", interface, &to, &flags, &mask) ==
		       4 &&
	       to == 0 && mask == 0 && (flags & (ROUTE_UP | ROUTE_REJECT)) == ROUTE_UP;
}

/* Destination, its length, source, its length, gateway, metric, two counts, flags, interface. */
static bool is_default6(const char *line, char *interface)
{
	unsigned len;
	unsigned long flags;

	return sscanf(line, "%*32s %x %*s %*s %*s %*s %*s %*s %lx %15s", &len, &flags, interface) ==
		       3 &&
	       len == 0 && (flags & (ROUTE_UP | ROUTE_REJECT)) == ROUTE_UP &&
	       !str_eq(interface, "lo");
}

bool net_default_route(const char *text, bool v6, char ret_interface[static IF_NAMESIZE])
{
	for (const char *line = text; line; line = strchr(line, '\n')) {
		char interface[IF_NAMESIZE] = "";

		line += *line == '\n';
		if (v6 ? is_default6(line, interface) : is_default4(line, interface)) {
			memcpy(ret_interface, interface, IF_NAMESIZE);
			return true;
		}
	}
	return false;
}

static bool has_default_route(const char *path, bool v6, char interface[static IF_NAMESIZE])
{
	FILE *list = fopen(path, "re");
	cleanup_free char *line = NULL;
	size_t size = 0, sum = 0;
	bool found = false;
	ssize_t n;

	while (list && !found && sum < ROUTES_MAX && (n = getline(&line, &size, list)) > 0) {
		sum += (size_t)n;
		found = net_default_route(line, v6, interface);
	}
	if (list)
		fclose(list);
	return found;
}

/* An option that came in August 2024. */
#define NEW_OPTION "map-host-loopback"
#define ASK_MS	   5000

static int say_help(int out, void *path)
{
	char *argv[] = {path, (char *)"--help", NULL}, *env[] = {NULL};

	if (dup2(out, STDOUT_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0)
		return 1;
	execve(path, argv, env);
	return 1;
}

bool net_passt_is_old(const char *passt)
{
	char help[32768] = "";

	/* Its status differs between versions; one that says nothing is not called old. */
	child_run(say_help, (char *)passt, ASK_MS, help, sizeof(help));
	return *help && !strstr(help, NEW_OPTION);
}

void net_facts_get(struct net_facts *ret)
{
	char interface4[IF_NAMESIZE] = "";

	*ret = (struct net_facts){.passt = lib_find_helper(NET_PASST, "passt")};
	ret->route4 = has_default_route("/proc/net/route", false, interface4);
	ret->route6 = has_default_route("/proc/net/ipv6_route", true, ret->interface);
	if (ret->route4)
		ret->interface[0] = '\0';
}

void net_facts_done(struct net_facts *f)
{
	free(STEAL(f->passt));
}

int net_facts_check(const struct net_facts *f, struct err *e)
{
	const char *given = getenv(NET_PASST);

	if (!f->passt && given && *given)
		return err_set(e, "S300", ENOENT,
			"networking needs passt, and " NET_PASST
			"=%s is no program's absolute path",
			given);
	if (!f->passt)
		return err_set(e, "S300", ENOENT,
			"networking needs the program passt, which is not in PATH: install the "
			"package passt (Debian: apt install passt), or name it with " NET_PASST
			"=FILE");
	if (!f->route4 && !f->route6)
		return err_set(e, "S300", ENETUNREACH,
			"networking needs a default route, and this host has none, neither for "
			"IPv4 nor for IPv6: connect it, or set one (ip route add default …), or "
			"start without network");
	return 0;
}
