#include "host/host_ports.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/here.h"
#include "base/mem.h"
#include "base/str.h"
#include "wire/bus.h"

/* One bit a port: order and doubles take care of themselves. */
struct port_set {
	uint8_t bits[65536 / 8];
	size_t n;
};

static void add(struct port_set *s, uint32_t port)
{
	uint8_t bit = (uint8_t)(1u << (port % 8));

	s->n += !(s->bits[port / 8] & bit);
	s->bits[port / 8] |= bit;
}

static int read_port(const char *word, uint32_t *ret)
{
	uint32_t port;

	if (str_u32(word, &port) < 0 || port == 0 || port > UINT16_MAX)
		return -EINVAL;
	*ret = port;
	return 0;
}

/* "N" or "N-M", taken apart in place. */
static int add_word(struct port_set *s, char *word)
{
	char *dash = strchr(word, '-');
	uint32_t first, last;

	if (dash)
		*dash = '\0';
	if (read_port(word, &first) < 0)
		return -EINVAL;
	last = first;
	if (dash && (read_port(dash + 1, &last) < 0 || last < first))
		return -EINVAL;
	for (uint32_t port = first; port <= last; port++)
		add(s, port);
	return 0;
}

/* Commas between the words, blanks around them. */
static int add_list(struct port_set *s, const char *list)
{
	cleanup_free char *text = xstrdup(list);
	char *at = text, *word;

	if (strspn(list, " \t") == strlen(list))
		return 0;
	while ((word = strsep(&at, ","))) {
		size_t len;

		word += strspn(word, " \t");
		for (len = strlen(word); len && strchr(" \t", word[len - 1]); len--)
			;
		word[len] = '\0';
		if (add_word(s, word) < 0)
			return -EINVAL;
	}
	return 0;
}

/* A port of an engine elsewhere says nothing about the port of that number here. */
static void add_engine(struct port_set *s, const char *url)
{
	struct bus_url u;

	/* A URL that is none is refused where it is used. */
	if (!url || bus_url_parse(url, &u, NULL) < 0)
		return;
	if (here_find(u.host, strlen(u.host)) != HERE_NOT)
		add(s, u.port);
	bus_url_done(&u);
}

int host_ports_parse(
	const char *list, const char *engine_url, struct host_ports *ret, struct err *e)
{
	struct port_set s = {0};
	size_t n = 0;

	if (list && add_list(&s, list) < 0)
		return err_set(e, "", EINVAL,
			HOST_PORTS_ENV " must be ports and ranges of ports with commas between "
				       "them, such as 8080,9000-9010, not '%.200s'",
			list);
	add_engine(&s, engine_url);
	if (s.n > HOST_PORTS_MAX)
		return err_set(e, "", EINVAL,
			HOST_PORTS_ENV " names %zu ports; at most %d are taken", s.n,
			HOST_PORTS_MAX);
	ret->ports = xcalloc(s.n + 1, sizeof(*ret->ports));
	for (uint32_t port = 1; port <= UINT16_MAX; port++)
		if (s.bits[port / 8] & 1u << (port % 8))
			ret->ports[n++] = (uint16_t)port;
	ret->n = n;
	return 0;
}

int host_ports_from_env(const char *engine_url, struct host_ports *ret, struct err *e)
{
	return host_ports_parse(getenv(HOST_PORTS_ENV), engine_url, ret, e);
}

void host_ports_done(struct host_ports *p)
{
	free(p->ports);
	*p = (struct host_ports){0};
}
