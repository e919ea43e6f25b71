/* serve - the agent's HTTP/2 server: streams in, operations (op.h) out.
 *
 * A client that breaks HTTP/2 loses its streams and may begin again on the same port; nothing a
 * peer sends ends the agent.
 */
#pragma once

#include <stdbool.h>
#include <uv.h>

struct serve_config {
	int fd;			     /* the port iii.agent, or a socket; taken */
	bool is_socket;		     /* test mode: end of file ends the service */
	char *const *env;	     /* base environment of programs; borrowed */
	void (*on_lost)(void *user); /* sockets only */
	void *user;
};

int serve_start(uv_loop_t *loop, const struct serve_config *config);
/* Refuses new operations from now on: the guest is going down. */
void serve_close_doors(void);
/* Ends every operation and stops the handles. */
void serve_stop(void);

/* For the operations. */
uv_loop_t *serve_loop(void);
char *const *serve_base_env(void);
