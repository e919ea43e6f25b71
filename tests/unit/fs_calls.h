/* fs_calls - file operations of the agent called in this process, on real folders. */
#pragma once

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/fs_job.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/path.h"
#include "wire/json.h"

/* A new folder below `base` (NULL: $TMPDIR or /tmp); the caller frees the name. */
static inline char *new_folder(const char *base)
{
	const char *tmp = base ? base : getenv("TMPDIR");
	char *path = xasprintf("%s/fs-ops.XXXXXX", tmp ? tmp : "/tmp");

	assert_non_null(mkdtemp(path));
	return path;
}

static inline void remove_folder(char *path)
{
	struct err e = ERR_INIT;
	json_object *req = json_object_new_object();
	struct buf reply;

	buf_init(&reply, FS_REPLY_MAX);
	json_add_str(req, "path", path);
	json_add_bool(req, "recursive", true);
	if (fs_rm(req, &reply, &e) < 0)
		fail_msg("%s", e.text);
	json_object_put(req);
	buf_done(&reply);
	free(path);
}

static inline char *in(const char *folder, const char *name)
{
	return path_join(folder, name);
}

static inline void put_bytes(const char *path, const void *data, size_t len)
{
	cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0 || fd_write_all(fd, data, len) < 0)
		fail_msg("cannot write %s", path);
}

/* folder/name with this text. */
static inline void put(const char *folder, const char *name, const char *text)
{
	cleanup_free char *path = in(folder, name);

	put_bytes(path, text, strlen(text));
}

static inline void make(const char *folder, const char *name)
{
	cleanup_free char *path = in(folder, name);

	if (mkdir(path, 0755) < 0)
		fail_msg("cannot make %s", path);
}

static inline void drop(const char *folder, const char *name)
{
	cleanup_free char *path = in(folder, name);

	if (unlink(path) < 0)
		fail_msg("cannot remove %s", path);
}

static inline void make_link(const char *folder, const char *name, const char *target)
{
	cleanup_free char *path = in(folder, name);

	if (symlink(target, path) < 0)
		fail_msg("cannot make the link %s", path);
}

/* Is the content of folder/name this text? */
static inline void holds(const char *folder, const char *name, const char *text)
{
	cleanup_free char *path = in(folder, name), *got = NULL;
	size_t len;

	if (fd_slurp_at(AT_FDCWD, path, 64u << 20, &got, &len) < 0)
		fail_msg("cannot read %s", path);
	if (len != strlen(text) || memcmp(got, text, len) != 0)
		fail_msg("%s holds \"%s\", not \"%s\"", path, got, text);
}

static inline bool exists(const char *folder, const char *name)
{
	cleanup_free char *path = in(folder, name);
	struct stat st;

	return lstat(path, &st) == 0;
}

static inline struct stat look_at(const char *folder, const char *name)
{
	cleanup_free char *path = in(folder, name);
	struct stat st;

	if (lstat(path, &st) < 0)
		fail_msg("cannot look at %s", path);
	return st;
}

/* --- calls --- */

/* The request is JSON with ' for " and @ for `dir`. */
static inline json_object *request(const char *dir, const char *text)
{
	struct err e = ERR_INIT;
	json_object *o = NULL;
	struct buf b;

	buf_init(&b, 1u << 20);
	for (; *text; text++) {
		if (*text == '@')
			buf_add_str(&b, dir);
		else
			buf_add(&b, *text == '\'' ? "\"" : text, 1);
	}
	if (json_parse_object((char *)b.data, b.len, &o, &e) < 0)
		fail_msg("%s: %s", (char *)b.data, e.text);
	buf_done(&b);
	return o;
}

/* The reply, which must be valid JSON; the caller puts it back. */
static inline json_object *call_ok(fs_run run, const char *dir, const char *text)
{
	cleanup_json json_object *req = request(dir, text);
	struct err e = ERR_INIT;
	json_object *o = NULL;
	struct buf reply;

	buf_init(&reply, FS_REPLY_MAX);
	if (run(req, &reply, &e) < 0)
		fail_msg("%s: %s %s", text, e.code, e.text);
	if (json_parse_object((char *)reply.data, reply.len, &o, &e) < 0)
		fail_msg("%s: reply %.200s: %s", text, (char *)reply.data, e.text);
	buf_done(&reply);
	return o;
}

/* Is the reply this text (with ' for " and @ for dir)? */
static inline void replies(fs_run run, const char *dir, const char *text, const char *wanted)
{
	cleanup_json json_object *got = call_ok(run, dir, text), *want = request(dir, wanted);

	if (strcmp(json_text(got, NULL), json_text(want, NULL)) != 0)
		fail_msg("%s: %s instead of %s", text, json_text(got, NULL), json_text(want, NULL));
}

/* Fails with this code, and a message that contains `says`. */
static inline void fails(
	fs_run run, const char *dir, const char *text, const char *code, const char *says)
{
	cleanup_json json_object *req = request(dir, text);
	struct err e = ERR_INIT;
	struct buf reply;

	buf_init(&reply, FS_REPLY_MAX);
	if (run(req, &reply, &e) >= 0)
		fail_msg("%s: succeeded", text);
	if (strcmp(e.code, code) != 0 || !strstr(e.text, says))
		fail_msg("%s: %s \"%s\" instead of %s \"%s\"", text, e.code, e.text, code, says);
	buf_done(&reply);
}
