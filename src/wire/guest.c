#include "wire/guest.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"

void guest_rec_header(uint8_t dst[static GUEST_REC_HDR], enum guest_rec type, uint32_t len)
{
	dst[0] = type;
	dst[1] = len >> 24;
	dst[2] = len >> 16;
	dst[3] = len >> 8;
	dst[4] = len;
}

static bool is_json(enum guest_rec type)
{
	return type == GUEST_REC_HEAD || type == GUEST_REC_END;
}

int guest_rec_add(struct buf *out, enum guest_rec type, const void *payload, size_t len)
{
	uint8_t *dst;

	if (len > (is_json(type) ? GUEST_REC_JSON_MAX : GUEST_REC_DATA_MAX))
		return -EMSGSIZE;
	/* One piece of room for both parts: a full buffer must not keep a header without payload.
	 */
	dst = buf_room(out, GUEST_REC_HDR + len);
	if (!dst)
		return out->max - out->len < GUEST_REC_HDR + len ? -ENOBUFS : -ENOMEM;
	guest_rec_header(dst, type, len);
	if (len)
		memcpy(dst + GUEST_REC_HDR, payload, len);
	buf_added(out, GUEST_REC_HDR + len);
	return 0;
}

void guest_reader_init(struct guest_reader *r, enum guest_side side, size_t json_max,
	const struct guest_reader_callbacks *cb, void *user)
{
	assert(json_max <= GUEST_REC_JSON_MAX);
	*r = (struct guest_reader){.cb = cb, .user = user, .side = side, .json_max = json_max};
	buf_init(&r->json, json_max);
}

void guest_reader_done(struct guest_reader *r)
{
	buf_done(&r->json);
}

/* May a record of this type stand here? */
static bool type_is_legal(const struct guest_reader *r, uint8_t type)
{
	if (r->seen_end)
		return false;
	switch (type) {
	case GUEST_REC_HEAD:
		return !r->seen_head && !r->seen_data;
	case GUEST_REC_DATA:
		return r->side == GUEST_SIDE_HOST || r->seen_head;
	case GUEST_REC_OUT:
	case GUEST_REC_ERR:
	case GUEST_REC_END:
		return r->side == GUEST_SIDE_HOST;
	default:
		return false;
	}
}

/* The whole JSON text of the record is there. The buffer is taken out of the reader first, so that
 * its memory lives no longer than the callback. */
static int deliver_json(struct guest_reader *r)
{
	struct buf json = r->json;
	int rc;

	buf_init(&r->json, r->json_max);
	rc = r->cb->on_json(r->user, r->type, json.data ? (char *)json.data : "", json.len);
	buf_done(&json);
	return rc < 0 ? rc : 0;
}

static int begin_record(struct guest_reader *r)
{
	const uint8_t *h = r->hdr;
	uint32_t len = (uint32_t)h[1] << 24 | (uint32_t)h[2] << 16 | (uint32_t)h[3] << 8 | h[4];

	if (!type_is_legal(r, h[0]))
		return -EPROTO;
	r->type = h[0];
	if (len > (is_json(r->type) ? r->json_max : GUEST_REC_DATA_MAX))
		return -EPROTO;
	r->left = len;
	r->seen_head |= r->type == GUEST_REC_HEAD;
	r->seen_end |= r->type == GUEST_REC_END;
	r->seen_data |= !is_json(r->type);
	if (len == 0) {
		r->hdr_len = 0;
		return is_json(r->type) ? deliver_json(r) : 0;
	}
	return 0;
}

/* Takes up to `len` bytes of the current payload; returns how many, or an error. The text of a JSON
 * record grows as it arrives: its announced length alone reserves nothing. */
static ssize_t take_payload(struct guest_reader *r, const uint8_t *data, size_t len)
{
	size_t n = MIN(len, (size_t)r->left);
	int rc;

	r->left -= n;
	if (r->left == 0)
		r->hdr_len = 0;
	if (is_json(r->type)) {
		rc = buf_add(&r->json, data, n);
		if (rc == 0 && r->left == 0)
			rc = deliver_json(r);
	} else {
		rc = r->cb->on_bytes(r->user, r->type, data, n);
	}
	return rc < 0 ? rc : (ssize_t)n;
}

int guest_reader_feed(struct guest_reader *r, const uint8_t *data, size_t len)
{
	while (len > 0) {
		ssize_t n;

		if (r->hdr_len < GUEST_REC_HDR) {
			n = MIN(len, GUEST_REC_HDR - r->hdr_len);
			memcpy(r->hdr + r->hdr_len, data, n);
			r->hdr_len += n;
			if (r->hdr_len == GUEST_REC_HDR) {
				int rc = begin_record(r);

				if (rc < 0)
					return rc;
			}
		} else {
			n = take_payload(r, data, len);
			if (n < 0)
				return n;
		}
		data += n;
		len -= n;
	}
	return 0;
}

int guest_reader_eof(const struct guest_reader *r)
{
	/* hdr_len is 0 exactly between records. */
	if (r->hdr_len != 0)
		return -EPROTO;
	return (r->side == GUEST_SIDE_HOST ? r->seen_end : r->seen_head) ? 0 : -EPROTO;
}
