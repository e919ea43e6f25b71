#include "agent/control.h"

#include <string.h>

#include "agent/port.h"
#include "agent/poweroff.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "wire/json.h"

static struct {
	struct port port;
	bool started;
	void (*on_cmd)(enum control_cmd cmd, uint64_t grace_ms);
	char line[CONTROL_LINE_MAX];
	size_t len;
	bool overlong;
} control;

enum control_cmd control_parse(const char *line, size_t len, uint64_t *ret_grace_ms)
{
	cleanup_json json_object *o = NULL;
	const char *cmd;
	uint64_t grace = POWEROFF_GRACE_DEFAULT_MS;

	if (json_parse_object(line, len, &o, NULL) < 0 ||
		json_get_str(o, "cmd", JSON_REQUIRED, &cmd, NULL) < 0)
		return CONTROL_NONE;
	if (str_eq(cmd, "ack"))
		return CONTROL_ACK;
	if (!str_eq(cmd, "shutdown"))
		return CONTROL_NONE;
	/* A grace that cannot be read is no reason to stay up. */
	json_get_u64(o, "grace_ms", JSON_NULLABLE, &grace, NULL);
	*ret_grace_ms = grace;
	return CONTROL_SHUTDOWN;
}

static void take_line(void)
{
	uint64_t grace_ms = 0;
	enum control_cmd cmd = control.overlong
				       ? CONTROL_NONE
				       : control_parse(control.line, control.len, &grace_ms);

	control.len = 0;
	control.overlong = false;
	if (cmd != CONTROL_NONE)
		control.on_cmd(cmd, grace_ms);
}

static void on_bytes(struct port *p, const uint8_t *data, size_t len, void *user)
{
	for (size_t i = 0; i < len; i++) {
		if (data[i] == '\n')
			take_line();
		else if (control.len == sizeof(control.line))
			control.overlong = true;
		else
			control.line[control.len++] = (char)data[i];
	}
}

static const struct port_callbacks callbacks = {.on_bytes = on_bytes};

int control_start(uv_loop_t *loop, int fd, void (*on_cmd)(enum control_cmd cmd, uint64_t grace_ms))
{
	control.on_cmd = on_cmd;
	control.started = true;
	return port_start(&control.port, loop, fd, false, &callbacks, NULL);
}

static char *event_line(json_object *event)
{
	char *line = xasprintf("%s\n", json_text(event, NULL));

	json_object_put(event);
	return line;
}

static json_object *event_new(const char *name)
{
	json_object *o = json_object_new_object();

	json_add_str(o, "event", name);
	return o;
}

static void say(json_object *event)
{
	cleanup_free char *line = event_line(event);

	if (control.started)
		port_write(&control.port, line, strlen(line));
}

void control_say_ready(uint64_t boot_us)
{
	json_object *o = event_new("ready");

	json_add_u64(o, "boot_us", boot_us);
	say(o);
}

void control_say_phase(const char *phase)
{
	json_object *o = event_new("phase");

	json_add_str(o, "phase", phase);
	say(o);
}

void control_say_exit(int status)
{
	json_object *o = event_new("exit");

	json_add_i64(o, "status", status);
	say(o);
}

void control_say_failed(int fd, const char *message)
{
	/* An escaped byte may take six. */
	for (size_t max = CONTROL_EVENT_MAX;; max -= 16) {
		json_object *o = event_new("failed");
		cleanup_free char *line = NULL;

		json_add_strn(o, "message", message, utf8_cut(message, max));
		line = event_line(o);
		if (strlen(line) > CONTROL_EVENT_MAX)
			continue;
		port_write_full(fd, line, strlen(line), 1000);
		return;
	}
}
