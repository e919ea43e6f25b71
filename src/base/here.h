/* here - whether the host of a URL is this machine. */
#pragma once

#include <stddef.h>

enum here {
	HERE_NOT,
	HERE_LOOPBACK, /* reached from this machine alone: localhost, 127/8, ::1, 0.0.0.0, :: */
	HERE_ADDRESS,  /* by an address of one of its interfaces */
};

/* From the text alone, as resolvers read it: "127.1", "LocalHost.", "[::ffff:127.0.0.1]"; with or
 * without brackets. HERE_NOT for other names. */
enum here here_literal(const char *host, size_t len);
/* The same; a name is looked up, which may take as long as the resolver does. */
enum here here_find(const char *host, size_t len);
