/* fs_grep - "/fs/grep": lines that match (sandbox contract §5.12).
 *
 *   request  {"path":"/abs","pattern":"…","recursive":true,"ignore_case":false,
 *             "include_glob":[…],"exclude_glob":[…],"max_matches":10000,"max_line_bytes":4096}
 *   reply    {"matches":[{"content":"…","line":N,"path":"…"}…],"truncated":false}
 *
 * How it works: files come from fs_select.h in blocks of whole lines (lines.h). rx_scan looks
 * through a whole block for a place that may match; only the line there is looked at alone. So what
 * matches nothing costs one pass over the bytes. Line numbers are counted up to a match and no
 * further than needed.
 *
 * Not searched: binary files (NUL in the first LINES_BINARY_LOOK bytes), lines that are not UTF-8
 * or over LINES_LONG_MAX (both are counted). Ends early, with truncated true, at one match more
 * than max_matches and before the reply passes GREP_REPLY_MAX.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "agent/fs_error.h"
#include "agent/fs_job.h"
#include "agent/fs_reply.h"
#include "agent/fs_select.h"
#include "agent/lines.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "wire/rx.h"

#define GREP_REPLY_MAX (12u << 20)

#define DONE (-EALREADY) /* ends the walk: nothing more is wanted */

struct grep {
	struct rx *rx;
	uint64_t max_matches, max_line_bytes; /* 0: no limit */
	struct buf *reply;
	uint64_t matches;
	bool truncated;
	struct lines lines;
	struct buf path; /* of the file, as a JSON string; empty until it is needed */
};

/* --- one line --- */

static int cut_short(struct grep *g)
{
	g->truncated = true;
	return DONE;
}

static int add_content(struct grep *g, const char *line, size_t len)
{
	size_t cut = len;
	int r;

	if (!g->max_line_bytes || len <= g->max_line_bytes)
		return fs_reply_str(g->reply, line, len);
	for (cut = g->max_line_bytes; cut && ((unsigned char)line[cut] & 0xc0) == 0x80; cut--)
		;
	r = fs_reply_str(g->reply, line, cut);
	if (r < 0)
		return r;
	/* In front of the closing quote. */
	g->reply->len--;
	return buf_add_str(g->reply, "\xe2\x80\xa6\"");
}

static int add_match(
	struct grep *g, const struct fs_selected *f, uint64_t number, const char *line, size_t len)
{
	size_t before = g->reply->len;
	int r = 0;

	if (g->max_matches && g->matches == g->max_matches)
		return cut_short(g);
	if (!g->path.len)
		r = fs_reply_str(&g->path, f->path, f->path_len);
	if (r == 0)
		r = buf_add_str(g->reply, g->matches ? ",{\"content\":" : "{\"content\":");
	if (r == 0)
		r = add_content(g, line, len);
	if (r == 0)
		r = buf_printf(g->reply, ",\"line\":%" PRIu64 ",\"path\":", number);
	if (r == 0)
		r = buf_add(g->reply, g->path.data, g->path.len);
	if (r == 0)
		r = buf_add_str(g->reply, "}");
	if (r == -ENOBUFS || g->reply->len > GREP_REPLY_MAX) {
		g->reply->len = before;
		return cut_short(g);
	}
	g->matches += r == 0;
	return r;
}

/* --- blocks --- */

#define LANES(byte) (0x0101010101010101u * (uint64_t)(byte))

/* Eight bytes at a time: a lane of `sum` counts the line feeds of its column, which holds for 255
 * rounds. */
static uint64_t count_lines(const char *from, const char *to)
{
	uint64_t n = 0;

	while (to - from >= 8) {
		uint64_t sum = 0;

		for (unsigned i = 0; i < 255 && to - from >= 8; i++, from += 8) {
			uint64_t x, nonzero;

			memcpy(&x, from, 8);
			x ^= LANES('\n');
			nonzero = ((x & LANES(0x7f)) + LANES(0x7f)) | x;
			sum += ~nonzero >> 7 & LANES(1);
		}
		for (; sum; sum >>= 8)
			n += sum & 0xff;
	}
	for (; from < to; from++)
		n += *from == '\n';
	return n;
}

/* Searches whole lines; *number is that of the first one, and then of what follows, unless nothing
 * does. */
static int search_block(struct grep *g, const struct fs_selected *f, const char *block, size_t len,
	uint64_t *number)
{
	const char *end = block + len, *counted = block;
	size_t at = 0;

	while (at < len && rx_scan(g->rx, block, len, at, &at)) {
		const char *line = memrchr(block, '\n', at), *lf;
		size_t line_len;
		int r;

		line = line ? line + 1 : block;
		if (line == end)
			break;
		lf = memchr(block + at, '\n', len - at);
		line_len = (size_t)((lf ? lf : end) - line);
		at = (size_t)(line - block) + line_len + 1;
		if (lf && line_len && lf[-1] == '\r')
			line_len--;
		rx_line(g->rx, line, line_len);
		if (!utf8_valid(line, line_len) || !rx_find(g->rx, 0, NULL, 0))
			continue;
		*number += count_lines(counted, line);
		counted = line;
		r = add_match(g, f, *number, line, line_len);
		if (r < 0)
			return r;
	}
	if (!g->lines.eof)
		*number += count_lines(counted, end);
	return 0;
}

static int search_lines(struct grep *g, const struct fs_selected *f)
{
	uint64_t number = 1;
	int r = lines_is_binary(&g->lines);

	if (r != 0)
		return MIN(r, 0);
	for (;;) {
		const char *block;
		size_t len;

		if (fs_cancelled())
			return -ECANCELED;
		r = lines_next(&g->lines, &block, &len);
		if (r <= 0)
			return r;
		if (r == 2) {
			number++;
			continue;
		}
		r = search_block(g, f, block, len, &number);
		if (r < 0)
			return r;
	}
}

static int search_file(const struct fs_selected *f, void *user, struct err *e)
{
	struct grep *g = user;
	cleanup_fd int fd = -1;
	size_t size;
	int r;

	fd = fs_selected_open(f, &size);
	r = fd;
	if (fd >= 0) {
		lines_start(&g->lines, fd, size);
		buf_clear(&g->path);
		r = search_lines(g, f);
	}
	if (r == -ECANCELED)
		return fs_stop(e);
	/* Below the root, what cannot be read is passed over. */
	if (r >= 0 || (r != DONE && r != -ENOMEM && !f->is_root))
		return 0;
	return r == DONE ? r : fs_error(e, -r, "cannot search", f->path);
}

/* --- the request --- */

static int get_pattern(struct grep *g, json_object *req, struct err *e)
{
	const char *pattern;
	bool ignore_case = false;
	size_t len;

	if (fs_text_get(req, "pattern", &pattern, &len, e) < 0 ||
		fs_bool_get(req, "ignore_case", &ignore_case, e) < 0)
		return -EINVAL;
	return rx_new(pattern, len, ignore_case ? RX_IGNORE_CASE : 0, &g->rx, e);
}

static int search(struct grep *g, json_object *req, struct fs_select *s, struct err *e)
{
	int r = fs_select_init(s, req, e);

	if (r < 0)
		return r;
	if (json_get_u64(req, "max_matches", JSON_OPTIONAL, &g->max_matches, e) < 0 ||
		json_get_u64(req, "max_line_bytes", JSON_OPTIONAL, &g->max_line_bytes, e) < 0) {
		err_code(e, "S210");
		return -EINVAL;
	}
	r = get_pattern(g, req, e);
	if (r == 0)
		r = fs_select_check_recursive(s, e);
	if (r == 0)
		r = buf_add_str(g->reply, "{\"matches\":[");
	if (r == 0)
		r = fs_select_each(s, search_file, g, e);
	return r == DONE ? 0 : r;
}

int fs_grep(json_object *req, struct buf *reply, struct err *e)
{
	struct grep g = {.max_matches = 10000, .max_line_bytes = 4096, .reply = reply};
	struct fs_select s;
	int r;

	buf_init(&g.path, GREP_REPLY_MAX);
	r = search(&g, req, &s, e);
	if (r == 0)
		r = buf_printf(reply, "],\"truncated\":%s}", g.truncated ? "true" : "false");
	fs_select_done(&s);
	lines_done(&g.lines);
	buf_done(&g.path);
	rx_free(g.rx);
	return r;
}
