#include "host/vm/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "wire/json.h"

static const char *const ends[] = {
	[VM_END_CLEAN] = "clean",
	[VM_END_STOPPED] = "stopped",
	[VM_END_GUEST_CRASH] = "guest_crash",
	[VM_END_VMM_KILLED] = "vmm_killed",
	[VM_END_VMM_FAILED] = "vmm_failed",
	[VM_END_BOOT_TIMEOUT] = "boot_timeout",
	[VM_END_BOOT_LOST] = "boot_lost",
};

static const char *const phases[] = {
	[VM_PHASE_SYNC] = "sync",
	[VM_PHASE_SETUP] = "setup",
	[VM_PHASE_INSTALL] = "install",
	[VM_PHASE_RUN] = "run",
};

int control_feed(struct control_lines *l, const void *data, size_t len,
	int (*on_line)(char *line, size_t len, void *user), void *user)
{
	const char *p = data;

	while (len) {
		const char *nl = memchr(p, '\n', len);
		size_t piece = nl ? (size_t)(nl - p) : len;
		int r;

		if (buf_add(&l->partial, p, piece) < 0)
			return -EMSGSIZE;
		if (!nl)
			return 0;
		p += piece + 1;
		len -= piece + 1;
		/* An empty line in an empty buffer has no memory yet. */
		r = l->partial.len ? on_line((char *)l->partial.data, l->partial.len, user)
				   : on_line((char[]){'\0'}, 0, user);
		buf_clear(&l->partial);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Parses an object and hands out its `tag` member, the only one that every line has. */
static int parse_tagged(const char *line, size_t len, const char *tag, json_object **ret,
	const char **ret_word, struct err *e)
{
	int r = json_parse_object(line, len, ret, e);

	if (r == 0)
		r = json_get_str(*ret, tag, JSON_REQUIRED, ret_word, e);
	return r < 0 ? -EPROTO : 0;
}

/* The number of a process's exit status or signal. */
static int get_byte(json_object *o, const char *name, int *ret, struct err *e)
{
	uint32_t v;

	if (json_get_u32(o, name, JSON_REQUIRED, &v, e) < 0)
		return -EPROTO;
	if (v > 255)
		return err_set(e, "", EPROTO, "%s: %u is more than 255", name, v);
	*ret = (int)v;
	return 0;
}

static int copy_text(json_object *o, const char *name, char *dst, size_t size, struct err *e)
{
	const char *text;

	if (json_get_str(o, name, JSON_REQUIRED, &text, e) < 0)
		return -EPROTO;
	if (strlen(text) >= size)
		return err_set(e, "", EPROTO, "%s: longer than %zu bytes", name, size - 1);
	memcpy(dst, text, strlen(text) + 1);
	return 0;
}

/* The place of a word in a list. */
static int get_choice(json_object *o, const char *name, const char *const *words, size_t n,
	int *ret, struct err *e)
{
	const char *word;
	size_t i = 0;

	if (json_get_str(o, name, JSON_REQUIRED, &word, e) < 0)
		return -EPROTO;
	while (i < n && !str_eq(word, words[i]))
		i++;
	if (i == n)
		return err_set(e, "", EPROTO, "unknown %s %.40s", name, word);
	*ret = (int)i;
	return 0;
}

static int get_phase(json_object *o, enum vm_phase *ret, struct err *e)
{
	int i = 0;

	if (get_choice(o, "phase", phases, ARRAY_LEN(phases), &i, e) < 0)
		return -EPROTO;
	*ret = (enum vm_phase)i;
	return 0;
}

/* The guest's own words, as one line whatever they hold. */
static int copy_message(json_object *o, char *dst, size_t size, struct err *e)
{
	if (copy_text(o, "message", dst, size, e) < 0)
		return -EPROTO;
	for (char *p = dst; *p; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	}
	return 0;
}

int control_guest_parse(const char *line, size_t len, struct control_guest *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	const char *word;

	*ret = (struct control_guest){0};
	if (parse_tagged(line, len, "event", &o, &word, e) < 0)
		return -EPROTO;
	if (str_eq(word, "ready")) {
		ret->kind = CONTROL_GUEST_READY;
		return json_get_u64(o, "boot_us", JSON_REQUIRED, &ret->boot_us, e) < 0 ? -EPROTO
										       : 0;
	}
	if (str_eq(word, "exit")) {
		ret->kind = CONTROL_GUEST_EXIT;
		return get_byte(o, "status", &ret->status, e);
	}
	if (str_eq(word, "phase")) {
		ret->kind = CONTROL_GUEST_PHASE;
		return get_phase(o, &ret->phase, e);
	}
	if (str_eq(word, "failed")) {
		ret->kind = CONTROL_GUEST_FAILED;
		return copy_message(o, ret->message, sizeof(ret->message), e);
	}
	return err_set(e, "", EPROTO, "unknown event %.40s", word);
}

int control_cmd_parse(const char *line, size_t len, struct control_cmd *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	const char *word;

	*ret = (struct control_cmd){0};
	if (parse_tagged(line, len, "cmd", &o, &word, e) < 0)
		return -EPROTO;
	if (str_eq(word, "kill")) {
		ret->kind = CONTROL_CMD_KILL;
		return 0;
	}
	if (str_eq(word, "shutdown")) {
		ret->kind = CONTROL_CMD_SHUTDOWN;
		return json_get_u32(o, "grace_ms", JSON_REQUIRED, &ret->grace_ms, e) < 0 ? -EPROTO
											 : 0;
	}
	return err_set(e, "", EPROTO, "unknown command %.40s", word);
}

static int add_line(struct buf *out, json_object *o)
{
	size_t len;
	const char *text = json_text(o, &len);
	int r = buf_add(out, text, len);

	return r < 0 ? r : buf_add(out, "\n", 1);
}

int control_cmd_add(struct buf *out, const struct control_cmd *c)
{
	cleanup_json json_object *o = json_object_new_object();

	if (c->kind == CONTROL_CMD_KILL) {
		json_add_str(o, "cmd", "kill");
	} else {
		json_add_str(o, "cmd", "shutdown");
		json_add_u64(o, "grace_ms", c->grace_ms);
	}
	return add_line(out, o);
}

void control_event_done(struct control_event *ev)
{
	free(ev->tail);
	ev->tail = NULL;
}

static int parse_started(json_object *o, struct control_event *ev, struct err *e)
{
	int r = copy_text(o, "confined", ev->confined, sizeof(ev->confined), e);

	return r < 0 ? r : copy_text(o, "unconfined", ev->unconfined, sizeof(ev->unconfined), e);
}

static int parse_exited(json_object *o, struct control_event *ev, struct err *e)
{
	const char *why, *tail;
	int end = 0;

	ev->guest_status = -1;
	if (get_choice(o, "end", ends, ARRAY_LEN(ends), &end, e) < 0 ||
		json_get_str(o, "why", JSON_REQUIRED, &why, e) < 0 ||
		json_get_str(o, "tail", JSON_REQUIRED, &tail, e) < 0 ||
		get_byte(o, "signal", &ev->signal, e) < 0 ||
		get_byte(o, "status", &ev->status, e) < 0 ||
		(json_object_object_get(o, "guest_status") &&
			get_byte(o, "guest_status", &ev->guest_status, e) < 0))
		return -EPROTO;
	ev->end = (enum vm_end)end;
	err_set(&ev->why, "S300", EIO, "%s", why);
	ev->tail = xstrdup(tail);
	return 0;
}

int control_event_parse(const char *line, size_t len, struct control_event *ret, struct err *e)
{
	cleanup_json json_object *o = NULL;
	const char *word;

	*ret = (struct control_event){0};
	if (parse_tagged(line, len, "event", &o, &word, e) < 0)
		return -EPROTO;
	if (str_eq(word, "started")) {
		ret->kind = CONTROL_EVENT_STARTED;
		return parse_started(o, ret, e);
	}
	if (str_eq(word, "ready")) {
		ret->kind = CONTROL_EVENT_READY;
		return json_get_u64(o, "boot_us", JSON_REQUIRED, &ret->boot_us, e) < 0 ? -EPROTO
										       : 0;
	}
	if (str_eq(word, "phase")) {
		ret->kind = CONTROL_EVENT_PHASE;
		return get_phase(o, &ret->phase, e);
	}
	if (str_eq(word, "exited")) {
		ret->kind = CONTROL_EVENT_EXITED;
		return parse_exited(o, ret, e);
	}
	return err_set(e, "", EPROTO, "unknown event %.40s", word);
}

int control_event_add(struct buf *out, const struct control_event *ev)
{
	cleanup_json json_object *o = json_object_new_object();

	switch (ev->kind) {
	case CONTROL_EVENT_STARTED:
		json_add_str(o, "event", "started");
		json_add_str(o, "confined", ev->confined);
		json_add_str(o, "unconfined", ev->unconfined);
		break;
	case CONTROL_EVENT_READY:
		json_add_str(o, "event", "ready");
		json_add_u64(o, "boot_us", ev->boot_us);
		break;
	case CONTROL_EVENT_PHASE:
		json_add_str(o, "event", "phase");
		json_add_str(o, "phase", phases[ev->phase]);
		break;
	case CONTROL_EVENT_EXITED:
		json_add_str(o, "event", "exited");
		json_add_str(o, "end", ends[ev->end]);
		json_add_u64(o, "signal", (uint64_t)ev->signal);
		json_add_u64(o, "status", (uint64_t)ev->status);
		json_add_str(o, "why", ev->why.text);
		json_add_str(o, "tail", ev->tail ? ev->tail : "");
		if (ev->guest_status >= 0)
			json_add_u64(o, "guest_status", (uint64_t)ev->guest_status);
		break;
	}
	return add_line(out, o);
}
