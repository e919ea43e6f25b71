/* wire/guest: records cut at every place, illegal orders, limits. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "wire/guest.h"

/* Writes down what the reader reports as text: "H{…} d:abc o:… E{…} ", pieces of one record joined.
 */
struct seen {
	struct buf text;
	enum guest_rec last;
	int fail_json, fail_bytes; /* what the callbacks return */
	size_t pieces;
};

static int on_json(void *user, enum guest_rec type, const char *text, size_t len)
{
	struct seen *s = user;

	assert_non_null(text);
	assert_int_equal(text[len], '\0');
	buf_add_str(&s->text, type == GUEST_REC_HEAD ? "|H" : "|E");
	buf_add(&s->text, text, len);
	s->last = type;
	return s->fail_json;
}

static int on_bytes(void *user, enum guest_rec type, const uint8_t *data, size_t len)
{
	struct seen *s = user;

	assert_true(len > 0);
	if (s->last != type)
		buf_add_str(&s->text,
			type == GUEST_REC_DATA ? "|d" : (type == GUEST_REC_OUT ? "|o" : "|e"));
	buf_add(&s->text, data, len);
	s->last = type;
	s->pieces++;
	return s->fail_bytes;
}

static const struct guest_reader_callbacks callbacks = {on_json, on_bytes};

static void seen_init(struct seen *s)
{
	*s = (struct seen){0};
	buf_init(&s->text, 1 << 20);
	buf_add_str(&s->text, "");
}

/* The records of a spec like "H{} D:abc O E{}": letter, payload up to the next blank. */
static void build(struct buf *b, const char *spec)
{
	buf_init(b, 1 << 20);
	while (*spec) {
		static const char letters[] = "?HDOXE";
		const char *end = strchrnul(spec, ' ');
		enum guest_rec type = strchr(letters, *spec) - letters;

		assert_int_equal(guest_rec_add(b, type, spec + 1, end - spec - 1), 0);
		spec = *end ? end + 1 : end;
	}
}

static void reads_the_same_wherever_it_is_cut(void **state)
{
	static const struct {
		enum guest_side side;
		const char *spec, *want;
	} cases[] = {
		{GUEST_SIDE_AGENT, "H{\"a\":1} Dabc Ddef", "|H{\"a\":1}|dabcdef"},
		{GUEST_SIDE_AGENT, "H{} D Dx D", "|H{}|dx"},
		{GUEST_SIDE_HOST, "Oout Xerr Omore E{\"exit_code\":0}",
			"|oout|eerr|omore|E{\"exit_code\":0}"},
		{GUEST_SIDE_HOST, "H{\"size\":3} Dabc E{}", "|H{\"size\":3}|dabc|E{}"},
		{GUEST_SIDE_HOST, "E{}", "|E{}"},
		{GUEST_SIDE_HOST, "H E", "|H|E"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup_buf struct buf in = {0};

		build(&in, cases[i].spec);
		/* Two cuts at every pair of places, hence also byte by byte around each border. */
		for (size_t a = 0; a <= in.len; a++) {
			for (size_t b = a; b <= in.len; b++) {
				struct guest_reader r;
				struct seen s;

				seen_init(&s);
				guest_reader_init(&r, cases[i].side, 4096, &callbacks, &s);
				assert_int_equal(guest_reader_feed(&r, in.data, a), 0);
				assert_int_equal(guest_reader_feed(&r, in.data + a, b - a), 0);
				assert_int_equal(guest_reader_feed(&r, in.data + b, in.len - b), 0);
				assert_string_equal((char *)s.text.data, cases[i].want);
				assert_int_equal(guest_reader_eof(&r), 0);
				guest_reader_done(&r);
				buf_done(&s.text);
			}
		}
	}
}

static int run(enum guest_side side, const char *spec, bool *ret_eof_ok)
{
	cleanup_buf struct buf in = {0};
	struct guest_reader r;
	struct seen s;
	int rc;

	build(&in, spec);
	seen_init(&s);
	guest_reader_init(&r, side, 4096, &callbacks, &s);
	rc = guest_reader_feed(&r, in.data, in.len);
	*ret_eof_ok = rc == 0 && guest_reader_eof(&r) == 0;
	guest_reader_done(&r);
	buf_done(&s.text);
	return rc;
}

/* Every sequence of up to four records, judged by the grammar written the other way round: as the
 * language of legal words instead of as flags. */
static bool legal_prefix(enum guest_side side, const char *w)
{
	if (side == GUEST_SIDE_AGENT) {
		if (*w && *w++ != 'H')
			return false;
		return w[strspn(w, "D")] == '\0';
	}
	if (*w == 'H')
		w++;
	w += strspn(w, "DOX");
	return *w == '\0' || (w[0] == 'E' && w[1] == '\0');
}

static void takes_legal_orders_only(void **state)
{
	static const char letters[] = "HDOXE";

	for (int side = GUEST_SIDE_AGENT; side <= GUEST_SIDE_HOST; side++) {
		for (unsigned n = 0; n < 5 * 5 * 5 * 5; n++) {
			char word[5] = "", spec[32] = "";
			unsigned v = n;
			bool eof_ok, complete;

			for (unsigned k = 0; k < 4; k++, v /= 5) {
				word[k] = letters[v % 5];
				word[k + 1] = '\0';
				spec[3 * k] = word[k];
				spec[3 * k + 1] = 'x';
				spec[3 * k + 2] = '\0';
				assert_int_equal(run(side, spec, &eof_ok),
					legal_prefix(side, word) ? 0 : -EPROTO);
				complete = side == GUEST_SIDE_AGENT ? word[0] == 'H'
								    : strchr(word, 'E') != NULL;
				assert_int_equal(eof_ok, legal_prefix(side, word) && complete);
				spec[3 * k + 2] = ' ';
			}
		}
	}
}

static void refuses_unknown_types(void **state)
{
	for (unsigned t = 0; t < 256; t++) {
		uint8_t hdr[GUEST_REC_HDR] = {t};
		struct guest_reader r;
		struct seen s;

		seen_init(&s);
		guest_reader_init(&r, GUEST_SIDE_HOST, 64, &callbacks, &s);
		assert_int_equal(guest_reader_feed(&r, hdr, sizeof(hdr)),
			t >= GUEST_REC_HEAD && t <= GUEST_REC_END ? 0 : -EPROTO);
		guest_reader_done(&r);
		buf_done(&s.text);
	}
}

static void end_of_stream_inside_a_record_is_a_breach(void **state)
{
	cleanup_buf struct buf in = {0};

	build(&in, "H{} Dabc E{}");
	for (size_t cut = 0; cut < in.len; cut++) {
		struct guest_reader r;
		struct seen s;

		seen_init(&s);
		guest_reader_init(&r, GUEST_SIDE_HOST, 64, &callbacks, &s);
		assert_int_equal(guest_reader_feed(&r, in.data, cut), 0);
		assert_int_equal(guest_reader_eof(&r), -EPROTO);
		guest_reader_done(&r);
		buf_done(&s.text);
	}
}

static int feed_header(enum guest_rec type, uint32_t len, size_t json_max)
{
	uint8_t hdr[GUEST_REC_HDR];
	struct guest_reader r;
	struct seen s;
	int rc;

	guest_rec_header(hdr, type, len);
	seen_init(&s);
	guest_reader_init(&r, GUEST_SIDE_HOST, json_max, &callbacks, &s);
	rc = guest_reader_feed(&r, hdr, sizeof(hdr));
	/* An announced length reserves nothing. */
	assert_null(r.json.data);
	guest_reader_done(&r);
	buf_done(&s.text);
	return rc;
}

static void announced_sizes_have_limits(void **state)
{
	assert_int_equal(feed_header(GUEST_REC_HEAD, 100, 100), 0);
	assert_int_equal(feed_header(GUEST_REC_HEAD, 101, 100), -EPROTO);
	assert_int_equal(feed_header(GUEST_REC_END, 101, 100), -EPROTO);
	assert_int_equal(feed_header(GUEST_REC_END, GUEST_REC_JSON_MAX, GUEST_REC_JSON_MAX), 0);
	assert_int_equal(
		feed_header(GUEST_REC_END, GUEST_REC_JSON_MAX + 1, GUEST_REC_JSON_MAX), -EPROTO);
	assert_int_equal(feed_header(GUEST_REC_OUT, GUEST_REC_DATA_MAX, 100), 0);
	assert_int_equal(feed_header(GUEST_REC_OUT, GUEST_REC_DATA_MAX + 1, 100), -EPROTO);
	assert_int_equal(feed_header(GUEST_REC_DATA, UINT32_MAX, 100), -EPROTO);
	assert_int_equal(feed_header(GUEST_REC_ERR, 1u << 31, 100), -EPROTO);
}

static void payload_of_the_full_size_arrives(void **state)
{
	cleanup_free uint8_t *big = xmalloc(GUEST_REC_DATA_MAX);
	cleanup_buf struct buf in = {0};
	struct guest_reader r;
	struct seen s;

	memset(big, 'x', GUEST_REC_DATA_MAX);
	buf_init(&in, 1 << 20);
	assert_int_equal(guest_rec_add(&in, GUEST_REC_DATA, big, GUEST_REC_DATA_MAX), 0);
	seen_init(&s);
	guest_reader_init(&r, GUEST_SIDE_HOST, 64, &callbacks, &s);
	for (size_t i = 0; i < in.len; i += 1000)
		assert_int_equal(guest_reader_feed(&r, in.data + i, MIN(1000, in.len - i)), 0);
	assert_int_equal(s.text.len, GUEST_REC_DATA_MAX + 2);
	assert_true(s.pieces >= GUEST_REC_DATA_MAX / 1000);
	guest_reader_done(&r);
	buf_done(&s.text);
}

static void writer_has_limits(void **state)
{
	cleanup_free uint8_t *big = xcalloc(1, GUEST_REC_JSON_MAX + 1);
	cleanup_buf struct buf out = {0};

	buf_init(&out, SIZE_MAX / 2);
	assert_int_equal(
		guest_rec_add(&out, GUEST_REC_DATA, big, GUEST_REC_DATA_MAX + 1), -EMSGSIZE);
	assert_int_equal(
		guest_rec_add(&out, GUEST_REC_END, big, GUEST_REC_JSON_MAX + 1), -EMSGSIZE);
	assert_int_equal(out.len, 0);
	assert_int_equal(guest_rec_add(&out, GUEST_REC_END, big, GUEST_REC_JSON_MAX), 0);
	buf_done(&out);

	buf_init(&out, 10);
	assert_int_equal(guest_rec_add(&out, GUEST_REC_OUT, "123456", 6), -ENOBUFS);
	assert_int_equal(out.len, 0);
	assert_int_equal(guest_rec_add(&out, GUEST_REC_OUT, "12345", 5), 0);
	assert_memory_equal(out.data,
		"\x03\0\0\0\x05"
		"12345",
		10);
}

static void callbacks_can_stop_it(void **state)
{
	cleanup_buf struct buf in = {0};
	struct guest_reader r;
	struct seen s;

	build(&in, "H{} Dabc E{}");
	seen_init(&s);
	s.fail_json = -ENOSPC;
	guest_reader_init(&r, GUEST_SIDE_HOST, 64, &callbacks, &s);
	assert_int_equal(guest_reader_feed(&r, in.data, in.len), -ENOSPC);
	assert_string_equal((char *)s.text.data, "|H{}");
	guest_reader_done(&r);
	buf_done(&s.text);

	seen_init(&s);
	s.fail_bytes = -ECANCELED;
	guest_reader_init(&r, GUEST_SIDE_HOST, 64, &callbacks, &s);
	assert_int_equal(guest_reader_feed(&r, in.data, in.len), -ECANCELED);
	assert_string_equal((char *)s.text.data, "|H{}|dabc");
	guest_reader_done(&r);
	buf_done(&s.text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_the_same_wherever_it_is_cut),
		cmocka_unit_test(takes_legal_orders_only),
		cmocka_unit_test(refuses_unknown_types),
		cmocka_unit_test(end_of_stream_inside_a_record_is_a_breach),
		cmocka_unit_test(announced_sizes_have_limits),
		cmocka_unit_test(payload_of_the_full_size_arrives),
		cmocka_unit_test(writer_has_limits),
		cmocka_unit_test(callbacks_can_stop_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
