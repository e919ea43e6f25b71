/* host/vm/control: the guest's lines. The first byte says in pieces of what size they come; however
 * that is, the same lines are seen, and no line is longer than allowed. */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "host/vm/control.h"
#include "host/vm/tail.h"

#define LINE_MAX_ 64 /* smaller than the real one, so that the fuzzer reaches it */

struct seen {
	size_t lines, taken;
	uint64_t sum;
};

static int on_line(char *line, size_t len, void *user)
{
	struct seen *s = user;
	struct control_guest g;
	struct control_cmd c;
	struct control_event ev;
	struct err e = ERR_INIT;

	assert(len <= LINE_MAX_ && line[len] == '\0');
	s->lines++;
	for (size_t i = 0; i < len; i++)
		s->sum = s->sum * 31 + (uint8_t)line[i];
	if (control_guest_parse(line, len, &g, &e) == 0) {
		assert(g.status >= 0 && g.status <= 255);
		assert(strlen(g.message) < sizeof(g.message));
		s->taken++;
	} else {
		assert(e.text[0]);
	}
	control_cmd_parse(line, len, &c, &e);
	if (control_event_parse(line, len, &ev, &e) == 0 && ev.kind == CONTROL_EVENT_EXITED) {
		cleanup_buf struct buf again = {0};

		buf_init(&again, CONTROL_BOOT_LINE_MAX);
		assert(control_event_add(&again, &ev) == 0);
	}
	control_event_done(&ev);
	return 0;
}

static int feed(const uint8_t *data, size_t size, size_t piece, struct seen *s)
{
	struct control_lines l;
	int r = 0;

	buf_init(&l.partial, LINE_MAX_);
	for (size_t at = 0; at < size && r == 0; at += piece)
		r = control_feed(&l, data + at, MIN(piece, size - at), on_line, s);
	assert(l.partial.len <= LINE_MAX_);
	buf_done(&l.partial);
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_buf struct buf text = {0};
	static struct tail t;
	struct seen whole = {0}, pieces = {0};
	int r;

	if (size == 0)
		return 0;
	r = feed(data + 1, size - 1, SIZE_MAX / 2, &whole);
	assert(r == 0 || r == -EMSGSIZE);
	assert(feed(data + 1, size - 1, (size_t)data[0] + 1, &pieces) == r);
	assert(memcmp(&whole, &pieces, sizeof(whole)) == 0);
	/* The same bytes on the console. */
	t = (struct tail){0};
	tail_add(&t, data, size);
	buf_init(&text, CONTROL_TAIL_MAX);
	tail_text(&t, "c", &text);
	for (size_t i = 0; i < text.len; i++)
		assert(text.data[i] >= ' ' || text.data[i] == '\n' || text.data[i] == '\t');
	return 0;
}
