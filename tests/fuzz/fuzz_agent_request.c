/* What the agent parses: the heads of operations, the environment frame, lines of iii.control, the
 * marker that a worker's disk brings. The first byte chooses. Whatever is taken must keep the
 * promises of its header. */
#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "agent/control.h"
#include "agent/env.h"
#include "agent/exec_request.h"
#include "agent/fs_path.h"
#include "agent/marker.h"
#include "base/mem.h"
#include "base/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void exec_head(json_object *head)
{
	struct exec_request r;
	struct err e = ERR_INIT;

	if (exec_request_parse(head, &r, &e) < 0) {
		assert(e.text[0] && e.code[0]);
		return;
	}
	assert(r.argv[0] && r.workdir[0] && r.deadline_ms > 0);
	cleanup_free char **env = env_merge(r.argv, r.env);
	for (size_t i = 0; env[i]; i++)
		assert(strchr(env[i], '=') && env[i][0] != '=');
	exec_request_done(&r);
}

static void fs_head(json_object *head)
{
	struct err e = ERR_INIT;
	const char *path;

	if (fs_path_get(head, "path", &path, &e) < 0)
		assert(str_eq(e.code, "S210"));
	else
		assert(path[0] == '/' && strlen(path) < PATH_MAX);
}

static void env_frame(const char *text, size_t len)
{
	struct env_frame f;
	struct err e = ERR_INIT;

	if (env_frame_parse(text, len, &f, &e) < 0) {
		assert(e.text[0]);
		return;
	}
	assert(strv_env_get(f.env, "PATH") && strv_env_get(f.env, "HOME") && f.hostname[0]);
	cleanup_free char **env = env_for_worker(f.env);
	assert(strv_env_get(env, "HOME")[0] == '/' && strv_env_get(env, "LANG"));
	if (f.has_worker)
		assert(f.worker.run[0] && f.worker.name[0]);
	if (f.has_net)
		assert(f.net.prefix <= 32 && f.net.prefix6 <= 128 && f.net.mtu);
	env_frame_done(&f);
}

static void marker(const char *text, size_t len)
{
	struct marker m;

	marker_parse(text, len, &m);
	assert(!m.setup[0] == !m.install[0]);
	assert(!m.setup[0] ||
		(strlen(m.setup) == WORKER_DIGEST_LEN && strlen(m.install) == WORKER_DIGEST_LEN));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_json json_object *head = NULL;
	const char *text = (const char *)data + 1;
	uint64_t grace_ms;

	if (!size--)
		return 0;
	if (data[0] == 'v')
		env_frame(text, size);
	else if (data[0] == 'c')
		control_parse(text, size, &grace_ms);
	else if (data[0] == 'm')
		marker(text, size);
	else if (json_parse_object(text, size, &head, NULL) == 0)
		(data[0] == 'f' ? fs_head : exec_head)(head);
	return 0;
}
