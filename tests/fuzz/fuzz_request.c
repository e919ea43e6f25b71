/* What a caller or an operator sends, as far as it is read: the decode rules, env, ids, paths,
 * modes, base64, command shapes, and the configuration. Any JSON text, or text that is none. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "host/api/command.h"
#include "host/api/config.h"
#include "host/api/reply.h"
#include "host/api/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_command(json_object *o)
{
	char **args = NULL, **argv = NULL, **words = NULL;
	const char *cmd = "";
	struct err e = ERR_INIT;

	if (request_str(o, "cmd", JSON_OPTIONAL, &cmd, &e) >= 0 &&
		request_strv(o, "args", &args, &e) >= 0 &&
		request_strv(o, "argv", &argv, &e) >= 0 &&
		command_argv(&(struct command){cmd, args, argv}, &words, &e) == 0)
		assert(words[0][0]);
	strv_free(args);
	strv_free(argv);
	strv_free(words);
}

static void read_env(json_object *o)
{
	char **env = NULL;
	struct err e = ERR_INIT;
	int r = request_env(o, &env, &e);

	assert((r < 0) == (e.text[0] != '\0'));
	for (size_t i = 0; env && env[i]; i++) {
		const char *equals = strchr(env[i], '=');

		assert(equals && equals > env[i]);
		/* One entry a name, in order. */
		assert(i == 0 || strcmp(env[i - 1], env[i]) != 0);
	}
	strv_free(env);
}

static void read_texts(json_object *o)
{
	struct err e = ERR_INIT;
	struct text t;
	uint32_t u32;
	uint64_t u64;
	bool flag;
	char id[37];

	if (request_id_text(o, &t, &e) > 0 && request_id(&t, id, &e) == 0)
		assert(strlen(id) == 36);
	if (request_text(o, "path", JSON_REQUIRED, &t, &e) > 0 &&
		request_guest_path("path", &t, &e) == 0)
		assert(t.s[0] == '/');
	if (request_text(o, "mode", JSON_NULLABLE, &t, &e) > 0 &&
		request_mode("mode", &t, &u32, &e) == 0)
		assert(u32 <= 07777);
	if (request_text(o, "stdin", JSON_NULLABLE, &t, &e) > 0) {
		uint8_t *bytes = NULL;
		size_t n;

		if (request_base64("stdin", &t, &bytes, &n, &e) == 0)
			assert(n <= t.len);
		free(bytes);
	}
	request_u32(o, "cpus", JSON_NULLABLE, &u32, &e);
	request_u64(o, "timeout_ms", JSON_NULLABLE, &u64, &e);
	request_bool(o, "wait", JSON_OPTIONAL, &flag, &e);
	if (e.text[0]) {
		json_object *reply = reply_failure_new(&(struct reply_failure){.e = &e});

		assert(json_object_object_length(reply) == 7);
		json_object_put(reply);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cleanup_json json_object *value = NULL, *o = NULL;
	struct config c;
	struct err e = ERR_INIT;

	if (json_parse((const char *)data, size, &value, &e) < 0)
		return 0;
	if (config_parse(value, &c, &e) == 0) {
		cleanup_free char *names = config_allowed_names(&c);

		assert(names);
		assert(c.max_exec_timeout_ms >= 1 && c.max_concurrent_exec_per_sandbox >= 1);
		assert(c.default_cpus >= CONFIG_CPUS_MIN);
		config_done(&c);
	} else {
		assert(e.text[0] && !strchr(e.text, '\n'));
	}
	if (request_object(value, &o, &e) < 0)
		return 0;
	read_command(o);
	read_env(o);
	read_texts(o);
	return 0;
}
