/* control - the port iii.control: one JSON object a line, both ways.
 *
 *   agent -> host   {"event":"ready","boot_us":N}
 *                   {"event":"phase","phase":"sync|setup|install|run"}   worker VMs, after "ready"
 *                   {"event":"exit","status":N}          everything is on disk; power-off follows
 *                   {"event":"failed","message":"…"}     the boot cannot go on; power-off follows
 *   host -> agent   {"cmd":"shutdown","grace_ms":N}      see poweroff.h
 *                   {"cmd":"ack"}                        "exit" was read
 *
 * Lines that are not such objects, unknown commands and lines over CONTROL_LINE_MAX are ignored.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define CONTROL_LINE_MAX  4096 /* of the host; a longer line is thrown away whole */
#define CONTROL_EVENT_MAX 500  /* of ours; a longer message is cut (the host takes 512) */

/* What a line asks for. */
enum control_cmd {
	CONTROL_NONE,
	CONTROL_SHUTDOWN,
	CONTROL_ACK,
};

/* Reads one line. grace_ms is POWEROFF_GRACE_DEFAULT_MS when absent. */
enum control_cmd control_parse(const char *line, size_t len, uint64_t *ret_grace_ms);

/* Takes the open port. `on_cmd` is called for every command. */
int control_start(uv_loop_t *loop, int fd, void (*on_cmd)(enum control_cmd cmd, uint64_t grace_ms));

void control_say_ready(uint64_t boot_us);
void control_say_phase(const char *phase);
void control_say_exit(int status);
/* Before the loop runs, and therefore with waiting (at most a second): tells `fd` why. */
void control_say_failed(int fd, const char *message);
