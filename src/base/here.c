#include "base/here.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define NAME_MAX_LEN 255 /* RFC 1035 §2.3.4 */

static bool same_address(const struct sockaddr *sa, int family, const void *address)
{
	if (!sa || sa->sa_family != family)
		return false;
	if (family == AF_INET)
		return memcmp(&((const struct sockaddr_in *)sa)->sin_addr, address, 4) == 0;
	return memcmp(&((const struct sockaddr_in6 *)sa)->sin6_addr, address, 16) == 0;
}

static enum here of_interface(int family, const void *address)
{
	struct ifaddrs *all = NULL;
	bool found = false;

	if (getifaddrs(&all) < 0)
		return HERE_NOT;
	for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next)
		found = same_address(i->ifa_addr, family, address);
	freeifaddrs(all);
	return found ? HERE_ADDRESS : HERE_NOT;
}

static enum here of_address4(const struct in_addr *a)
{
	uint32_t ip = ntohl(a->s_addr);

	return ip >> 24 == 127 || ip == 0 ? HERE_LOOPBACK : of_interface(AF_INET, a);
}

static enum here of_address6(const struct in6_addr *a)
{
	struct in_addr mapped;

	if (IN6_IS_ADDR_LOOPBACK(a) || IN6_IS_ADDR_UNSPECIFIED(a))
		return HERE_LOOPBACK;
	if (!IN6_IS_ADDR_V4MAPPED(a))
		return of_interface(AF_INET6, a);
	memcpy(&mapped, a->s6_addr + 12, sizeof(mapped));
	return of_address4(&mapped);
}

/* A name or address without brackets. */
static enum here of_text(const char *host, bool lookup)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *all = NULL;
	enum here ret = HERE_NOT;
	struct in6_addr a6;
	struct in_addr a4;

	if (strcasecmp(host, "localhost") == 0 || strcasecmp(host, "localhost.") == 0)
		return HERE_LOOPBACK;
	if (inet_aton(host, &a4))
		return of_address4(&a4);
	if (inet_pton(AF_INET6, host, &a6) == 1)
		return of_address6(&a6);
	if (!lookup || getaddrinfo(host, NULL, &hints, &all) != 0)
		return HERE_NOT;
	for (const struct addrinfo *i = all; i && ret != HERE_LOOPBACK; i = i->ai_next) {
		enum here one = HERE_NOT;

		if (i->ai_family == AF_INET)
			one = of_address4(&((const struct sockaddr_in *)i->ai_addr)->sin_addr);
		else if (i->ai_family == AF_INET6)
			one = of_address6(&((const struct sockaddr_in6 *)i->ai_addr)->sin6_addr);
		ret = one == HERE_NOT ? ret : one;
	}
	freeaddrinfo(all);
	return ret;
}

static enum here find(const char *host, size_t len, bool lookup)
{
	char text[NAME_MAX_LEN + 1];

	if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
		host++;
		len -= 2;
	}
	if (len == 0 || len > NAME_MAX_LEN)
		return HERE_NOT;
	memcpy(text, host, len);
	text[len] = '\0';
	return of_text(text, lookup);
}

enum here here_literal(const char *host, size_t len)
{
	return find(host, len, false);
}

enum here here_find(const char *host, size_t len)
{
	return find(host, len, true);
}
