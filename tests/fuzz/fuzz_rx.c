/* rx: "flags byte, pattern\0text". Any pattern compiles or is refused with a reason; matches lie in
 * the line on borders of characters; rx_scan passes no matching line over. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "wire/rx.h"
#include "wire/rx_replace.h"

static void check_line(struct rx *rx, const char *line, size_t len)
{
	struct rx_template *t = rx_template_new(rx, "<$0|${1}>", 9, 0);
	struct rx_span s[3];
	size_t n = MIN(rx_groups(rx), ARRAY_LEN(s));
	struct buf out;
	bool found;

	rx_line(rx, line, len);
	found = rx_find(rx, 0, s, n);
	assert(found == rx_find(rx, 0, NULL, 0));
	for (size_t i = 0; found && i < n; i++) {
		if (s[i].start == RX_UNSET)
			continue;
		assert(s[i].start <= s[i].end && s[i].end <= len);
		assert(utf8_valid(line + s[i].start, s[i].end - s[i].start));
	}
	buf_init(&out, 1u << 20);
	assert((rx_replace(rx, t, line, len, false, &out) > 0) == found);
	assert(!out.len || utf8_valid(out.data, out.len));
	buf_done(&out);
	rx_template_free(t);
}

/* Does the line that begins at `from` match? */
static bool line_matches(struct rx *rx, const char *line, size_t len)
{
	if (len && line[len - 1] == '\r')
		len--;
	if (!utf8_valid(line, len))
		return false;
	check_line(rx, line, len);
	rx_line(rx, line, len);
	return rx_find(rx, 0, NULL, 0);
}

static void check_block(struct rx *rx, const char *block, size_t len)
{
	size_t next = 0; /* rx_scan's next place */
	bool more = rx_scan(rx, block, len, 0, &next);

	for (size_t from = 0; from < len;) {
		const char *lf = memchr(block + from, '\n', len - from);
		size_t end = lf ? (size_t)(lf - block) : len;

		if (line_matches(rx, block + from, end - from))
			assert(more && next <= end);
		from = end + 1;
		if (more && next < from)
			more = from < len && rx_scan(rx, block, len, from, &next);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_free char *text = xcalloc(1, size + 2);
	struct err e = ERR_INIT;
	struct rx *rx = NULL;
	const char *block;
	size_t len;

	if (size < 1 || size > 2000)
		return 0;
	memcpy(text, data + 1, size - 1);
	len = strlen(text);
	if (rx_new(text, len, data[0] & 3, &rx, &e) < 0) {
		assert(strcmp(e.code, "S217") == 0 && e.text[0]);
		return 0;
	}
	block = len + 1 < size ? text + len + 1 : "";
	check_block(rx, block, len + 1 < size ? size - len - 2 : 0);
	rx_free(rx);
	return 0;
}
