/* control - the lines that the daemon, __vm-boot and the guest say to each other.
 *
 *   daemon -> boot   {"cmd":"shutdown","grace_ms":N}  {"cmd":"kill"}
 *   boot -> daemon   {"event":"started","confined":"user pid …","unconfined":"landlock (…) …"}
 *                    {"event":"ready","boot_us":N}  {"event":"phase","phase":"install"}
 *                    {"event":"exited","end":"clean","signal":N,"status":N,"why":"…","tail":"…",
 *                     "guest_status":N}                  the last one when the guest said "exit"
 *   guest -> boot    {"event":"ready","boot_us":N}  {"event":"exit","status":N}     (iii.control)
 *                    {"event":"phase","phase":"sync|setup|install|run"}   after "ready", forward
 * only
 *                    {"event":"failed","message":"…"}    instead of "ready"
 *   boot -> guest    {"cmd":"shutdown","grace_ms":N}  {"cmd":"ack"}
 *
 * One JSON object a line, ended by \n. "exited" is the last line of boot; a VM that could not be
 * started says it without "started" before. The guest's lines are hostile: short, strictly read,
 * and counted; a breach costs the VM, never the supervisor.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "host/vm/vm.h"

#define CONTROL_GUEST_LINE_MAX 512	    /* bytes; longer is a breach of protocol */
#define CONTROL_GUEST_COUNT    64	    /* lines in a VM's life; more is a breach of protocol */
#define CONTROL_BOOT_LINE_MAX  (128u << 10) /* two tails and a reason, every byte escaped */
#define CONTROL_LAYERS_MAX     512	    /* text of "confined" and of "unconfined" */
#define CONTROL_TAIL_MAX       (16u << 10)  /* text of "tail" */

#define CONTROL_GUEST_ACK "{\"cmd\":\"ack\"}\n"

/* Splits a stream into lines. Zeroed and buf_init'ed with the longest line by its user. */
struct control_lines {
	struct buf partial; /* its ceiling is the longest line allowed */
};

/* Calls on_line for every whole line of `data` (without \n, NUL-terminated; it may be changed).
 * 0; a negative value of on_line ends it at once; -EMSGSIZE for a line over the ceiling. */
int control_feed(struct control_lines *l, const void *data, size_t len,
	int (*on_line)(char *line, size_t len, void *user), void *user);

enum control_guest_kind {
	CONTROL_GUEST_READY,
	CONTROL_GUEST_EXIT,
	CONTROL_GUEST_PHASE,
	CONTROL_GUEST_FAILED, /* the agent cannot bring the guest up, and ends it */
};

struct control_guest {
	enum control_guest_kind kind;
	uint64_t boot_us;		      /* READY */
	int status;			      /* EXIT: 0..255 */
	enum vm_phase phase;		      /* PHASE */
	char message[CONTROL_GUEST_LINE_MAX]; /* FAILED: one line of text */
};

/* A line from the guest. -EPROTO with the reason. */
int control_guest_parse(const char *line, size_t len, struct control_guest *ret, struct err *e);

enum control_cmd_kind {
	CONTROL_CMD_SHUTDOWN,
	CONTROL_CMD_KILL,
};

struct control_cmd {
	enum control_cmd_kind kind;
	uint32_t grace_ms; /* SHUTDOWN */
};

int control_cmd_parse(const char *line, size_t len, struct control_cmd *ret, struct err *e);
int control_cmd_add(struct buf *out, const struct control_cmd *c);

enum control_event_kind {
	CONTROL_EVENT_STARTED,
	CONTROL_EVENT_READY,
	CONTROL_EVENT_PHASE,
	CONTROL_EVENT_EXITED,
};

struct control_event {
	enum control_event_kind kind;
	/* STARTED: the layers of confinement that hold, and those that the host refused (confine.h)
	 */
	char confined[CONTROL_LAYERS_MAX], unconfined[CONTROL_LAYERS_MAX];
	uint64_t boot_us;    /* READY: kernel start to agent ready by the guest's own clock */
	enum vm_phase phase; /* PHASE */
	/* EXITED */
	enum vm_end end;
	int signal, status;
	int guest_status; /* as in struct vm_exit */
	struct err why;
	char *tail; /* owned: control_event_done */
};

void control_event_done(struct control_event *ev);
int control_event_parse(const char *line, size_t len, struct control_event *ret, struct err *e);
int control_event_add(struct buf *out, const struct control_event *ev);
