/* logrec: whatever comes in whatever pieces, the raw counts add up to it, each record is valid JSON
 * in valid UTF-8, and the records of a line put together again are the line. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "wire/json.h"
#include "wire/logrec.h"

struct all {
	uint64_t raw;
	struct buf bytes; /* of the records, with "\n" behind those that are not partial */
	struct buf text;  /* of their JSON */
};

static void on_line(const char *text, size_t len, size_t raw, bool partial, void *user)
{
	struct all *a = user;
	struct logrec r = {.cursor = a->raw + raw,
		.instance = 1,
		.stream = LOG_CONSOLE,
		.line = text,
		.len = len,
		.partial = partial};
	cleanup_json json_object *o = NULL;
	json_object *line = NULL;
	cleanup_buf struct buf json;
	uint64_t cursor = 0;

	assert(raw > 0 && len <= LOGREC_RAW_MAX);
	a->raw += raw;
	buf_add(&a->bytes, text, len);
	if (!partial)
		buf_add(&a->bytes, "\n", 1);
	buf_init(&json, LOGREC_JSON_MAX);
	assert(logrec_encode(&r, &json) == 0);
	assert(json_parse_object((char *)json.data, json.len, &o, NULL) == 0);
	assert(logrec_cursor((char *)json.data, json.len, &cursor) == 0 && cursor == r.cursor);
	assert(json_object_object_get_ex(o, "line", &line));
	buf_add(&a->text, json_object_get_string(line), json_object_get_string_len(line));
	if (!partial)
		buf_add(&a->text, "\n", 1);
}

/* What the text has to be: one U+FFFD for each byte of no valid character. */
static void repair(const struct buf *in, struct buf *out)
{
	for (size_t i = 0; i < in->len;) {
		size_t n = 1;

		while (n <= 4 && i + n <= in->len && !utf8_valid(in->data + i, n))
			n++;
		if (n <= 4 && i + n <= in->len)
			buf_add(out, in->data + i, n);
		else
			buf_add(out, "\xef\xbf\xbd", 3), n = 1;
		i += n;
	}
}

static void expect(const uint8_t *data, size_t size, struct buf *ret)
{
	for (size_t i = 0; i < size; i++) {
		if (data[i] != '\r' || i + 1 == size || data[i + 1] != '\n')
			buf_add(ret, data + i, 1);
	}
}

static void check(const uint8_t *data, size_t size, const struct all *a)
{
	cleanup_buf struct buf bytes, text;

	assert(a->raw == size);
	buf_init(&bytes, 64u << 20);
	buf_init(&text, 64u << 20);
	expect(data, size, &bytes);
	assert(bytes.len == a->bytes.len);
	assert(!bytes.len || memcmp(bytes.data, a->bytes.data, bytes.len) == 0);
	repair(&bytes, &text);
	assert(text.len == a->text.len);
	assert(!text.len || memcmp(text.data, a->text.data, text.len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct logrec_splitter s;
	struct all a = {0};
	size_t piece, repeat, lines = 1;
	struct buf in;

	if (size < 3)
		return 0;
	/* How large the pieces are, how often the rest comes (to get at long lines), and whether
	 * there is a pause after each piece. */
	piece = 1 + (size_t)data[0] * 33;
	repeat = 1 + data[1];
	/* So that long lines come often, and thousands of records, which are slow, seldom. */
	for (size_t i = 3; i < size; i++)
		lines += data[i] == '\n';
	repeat = MIN(repeat, 1 + 200 / lines);
	buf_init(&in, 4u << 20);
	for (size_t i = 0; i < repeat && in.len < MIN(piece * 128, (size_t)24 << 10); i++)
		buf_add(&in, data + 3, size - 3);
	buf_init(&a.bytes, 64u << 20);
	buf_init(&a.text, 64u << 20);
	memset(&s, 0, sizeof(s));
	for (size_t at = 0; at < in.len; at += piece) {
		logrec_split(&s, in.data + at, MIN(piece, in.len - at), on_line, &a);
		if (data[2] & 1)
			logrec_flush(&s, LOGREC_PAUSE, on_line, &a);
	}
	logrec_flush(&s, LOGREC_END, on_line, &a);
	assert(s.len == 0);
	check(in.data, in.len, &a);
	buf_done(&in);
	buf_done(&a.bytes);
	buf_done(&a.text);
	return 0;
}
