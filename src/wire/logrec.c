#include "wire/logrec.h"

#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

#define CURSOR_MEMBER "{\"cursor\":"

/* A line is cut when this much of it is known: whether the character at the cut is whole can then
 * be seen, and "\r\n" behind a line of just LOGREC_RAW_MAX bytes still fits. */
#define HELD_MAX (LOGREC_RAW_MAX + 3)

/* --- characters --- */

/* How long the character is that begins with this byte; 0: none does. */
static size_t char_len(uint8_t lead)
{
	if (lead < 0x80)
		return 1;
	if (lead < 0xc2 || lead > 0xf4)
		return 0;
	return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Length of the valid character at p, or 0. */
static size_t valid_char(const char *p, size_t len)
{
	size_t n = char_len((uint8_t)*p);

	return n && n <= len && utf8_valid(p, n) ? n : 0;
}

/* --- encoding --- */

static char *put(char *at, const void *data, size_t len)
{
	memcpy(at, data, len);
	return at + len;
}

#define PUT(at, literal) put(at, literal, sizeof(literal) - 1)

static char *put_u64(char *at, uint64_t v)
{
	char digits[20];
	size_t n = sizeof(digits);

	do {
		digits[--n] = (char)('0' + v % 10);
		v /= 10;
	} while (v);
	return put(at, digits + n, sizeof(digits) - n);
}

static char *put_escaped(char *at, char c)
{
	static const char hex[] = "0123456789abcdef";

	switch (c) {
	case '"':
		return PUT(at, "\\\"");
	case '\\':
		return PUT(at, "\\\\");
	case '\t':
		return PUT(at, "\\t");
	case '\r':
		return PUT(at, "\\r");
	case '\n':
		return PUT(at, "\\n");
	default:
		at = PUT(at, "\\u00");
		*at++ = hex[((uint8_t)c >> 4) & 15];
		*at++ = hex[c & 15];
		return at;
	}
}

static bool is_plain(char c)
{
	uint8_t b = (uint8_t)c;

	return b >= 0x20 && b < 0x80 && c != '"' && c != '\\';
}

/* Needs room for six times the bytes. */
static char *put_text(char *at, const char *p, size_t len)
{
	const char *end = p + len;

	while (p < end) {
		const char *plain = p;
		size_t n;

		while (p < end && is_plain(*p))
			p++;
		at = put(at, plain, p - plain);
		if (p == end)
			break;
		if ((uint8_t)*p < 0x80) {
			at = put_escaped(at, *p++);
			continue;
		}
		n = valid_char(p, end - p);
		at = n ? put(at, p, n) : PUT(at, "\xef\xbf\xbd");
		p += n ? n : 1;
	}
	return at;
}

int logrec_encode(const struct logrec *r, struct buf *out)
{
	size_t most = 6 * r->len + (LOGREC_JSON_MAX - 6 * LOGREC_RAW_MAX);
	char *start = buf_room(out, most), *at = start;

	if (!start)
		return out->max - out->len < most ? -ENOBUFS : -ENOMEM;
	at = PUT(at, CURSOR_MEMBER);
	at = put_u64(at, r->cursor);
	at = PUT(at, ",\"ts_ms\":");
	at = put_u64(at, r->ts_ms);
	at = r->stream == LOG_HOST ? PUT(at, ",\"stream\":\"host\",\"line\":\"")
				   : PUT(at, ",\"stream\":\"console\",\"line\":\"");
	at = put_text(at, r->line, r->len);
	at = PUT(at, "\",\"instance\":");
	at = put_u64(at, r->instance);
	if (r->partial)
		at = PUT(at, ",\"partial\":true");
	*at++ = '}';
	buf_added(out, at - start);
	return 0;
}

int logrec_cursor(const char *json, size_t len, uint64_t *ret)
{
	const size_t member = sizeof(CURSOR_MEMBER) - 1;
	const char *p = json + member, *end = json + len;
	bool control = false;
	uint64_t v = 0;

	if (len <= member || memcmp(json, CURSOR_MEMBER, member) != 0 || json[len - 1] != '}')
		return -EINVAL;
	for (; p < end && *p >= '0' && *p <= '9'; p++) {
		if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
			__builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
			return -EINVAL;
	}
	if (p == json + member || *p != ',')
		return -EINVAL;
	for (size_t i = 0; i < len; i++)
		control |= (uint8_t)json[i] < 0x20;
	if (control || !utf8_valid(json, len))
		return -EINVAL;
	*ret = v;
	return 0;
}

/* --- splitting --- */

/* Where a line that is longer than LOGREC_RAW_MAX is cut: not behind the first bytes of a valid
 * character. */
static size_t cut_at(const char *p, size_t len)
{
	for (size_t back = 1; back <= 3; back++) {
		size_t at = LOGREC_RAW_MAX - back;

		if (valid_char(p + at, len - at) > back)
			return at;
	}
	return LOGREC_RAW_MAX;
}

/* Gives out what is too long for one record; returns how much that was. */
static size_t give_pieces(const char *p, size_t len, logrec_line line, void *user)
{
	size_t done = 0;

	while (len - done > LOGREC_RAW_MAX) {
		size_t n = cut_at(p + done, len - done);

		line(p + done, n, n, true, user);
		done += n;
	}
	return done;
}

/* A whole line, `len` bytes before the "\n". */
static void give_line(const char *p, size_t len, logrec_line line, void *user)
{
	size_t cr = len && p[len - 1] == '\r', done = give_pieces(p, len - cr, line, user);

	line(p + done, len - cr - done, len - done + 1, false, user);
}

/* Bytes without "\n". */
static void hold(struct logrec_splitter *s, const char *p, size_t len, logrec_line line, void *user)
{
	while (len) {
		size_t n = MIN(len, HELD_MAX - s->len), cut;

		memcpy(s->data + s->len, p, n);
		s->len += n;
		p += n;
		len -= n;
		if (s->len < HELD_MAX)
			return;
		cut = cut_at(s->data, s->len);
		line(s->data, cut, cut, true, user);
		s->open = true;
		s->len -= cut;
		memmove(s->data, s->data + cut, s->len);
	}
}

void logrec_split(
	struct logrec_splitter *s, const void *data, size_t len, logrec_line line, void *user)
{
	const char *p = data, *nl;

	for (; len && (nl = memchr(p, '\n', len)); len -= nl + 1 - p, p = nl + 1) {
		if (s->len == 0) {
			give_line(p, nl - p, line, user);
		} else {
			hold(s, p, nl - p, line, user);
			give_line(s->data, s->len, line, user);
			s->len = 0;
		}
		s->open = false;
	}
	hold(s, p, len, line, user);
}

/* Bytes at the end that may turn out to be part of "\r\n" or of a character. */
static size_t unsettled(const char *p, size_t len)
{
	if (len && p[len - 1] == '\r')
		return 1;
	for (size_t back = 1; back <= 3 && back <= len; back++) {
		uint8_t b = (uint8_t)p[len - back];

		if ((b & 0xc0) == 0x80)
			continue;
		return char_len(b) > back ? back : 0;
	}
	return 0;
}

void logrec_flush(struct logrec_splitter *s, enum logrec_flush how, logrec_line line, void *user)
{
	size_t len = s->len - (how == LOGREC_PAUSE ? unsettled(s->data, s->len) : 0), done;

	if (!len)
		return;
	done = give_pieces(s->data, len, line, user);
	line(s->data + done, len - done, len - done, true, user);
	s->open = true;
	s->len -= len;
	memmove(s->data, s->data + len, s->len);
}
