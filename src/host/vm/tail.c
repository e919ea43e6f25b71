#include "host/vm/tail.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

void tail_add(struct tail *t, const void *data, size_t len)
{
	const char *p = data;

	/* Only the last ring-full can survive. */
	if (len > sizeof(t->ring)) {
		t->total += len - sizeof(t->ring);
		p += len - sizeof(t->ring);
		len = sizeof(t->ring);
	}
	while (len) {
		size_t at = t->total % sizeof(t->ring), n = MIN(len, sizeof(t->ring) - at);

		memcpy(t->ring + at, p, n);
		t->total += n;
		p += n;
		len -= n;
	}
}

/* The ring in order, harmless to print. */
static size_t unroll(const struct tail *t, char dst[static VM_CONSOLE_TAIL + 1])
{
	size_t len = MIN(t->total, sizeof(t->ring));

	for (size_t i = 0; i < len; i++) {
		char c = t->ring[(t->total - len + i) % sizeof(t->ring)];

		dst[i] = (c >= 0 && c < ' ' && c != '\n' && c != '\t' && c != '\r') || c == 0x7f
				 ? '?'
				 : c;
	}
	while (len && (dst[len - 1] == '\n' || dst[len - 1] == '\r'))
		len--;
	dst[len] = '\0';
	utf8_scrub(dst);
	return len;
}

void tail_text(const struct tail *t, const char *name, struct buf *out)
{
	char text[VM_CONSOLE_TAIL + 1], *first, *line, *next;
	size_t len = unroll(t, text), lines = 1;

	if (len == 0)
		return;
	first = text + len;
	while (first > text && (first[-1] != '\n' || lines++ < VM_CONSOLE_LINES))
		first--;
	if (t->total > sizeof(t->ring) && first == text && (next = strchr(text, '\n')))
		first = next + 1; /* its beginning is lost */
	if (first > text || t->total > sizeof(t->ring))
		buf_printf(out, "%s: [%" PRIu64 " bytes before this]\n", name,
			t->total - (uint64_t)(text + len - first));
	for (line = first; line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		line[strcspn(line, "\r")] = '\0';
		buf_printf(out, "%s: %s\n", name, line);
	}
}
