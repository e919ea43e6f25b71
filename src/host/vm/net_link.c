/* One VM's network in its supervisor.
 *
 * passt confines itself when it has started (its own user and mount namespaces, a system call
 * filter) and ends when its socket does, which is when this process ends in whatever way: its
 * parent-death signal is lost as soon as it changes its identity. What it gets is that socket, a
 * pipe for its words and no environment. Root's runs as a user of its own that owns nothing, where
 * such a number can be had; else as nobody.
 *
 * The firewall's list of the host's own addresses follows the host (net_hosts.h); a VM whose list
 * could not do so any more is ended.
 */
#include "host/vm/net_link.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/confine.h"
#include "host/vm/confine_priv.h"
#include "host/vm/net_hosts.h"
#include "host/vm/net_page.h"
#include "host/vm/net_relay.h"
#include "host/vm/tail.h"

/* Bursts of either side find room without a loss, as far as the host's limit allows. */
#define SOCKET_BUF (1 << 20)

/* A connection of the guest's is a descriptor of passt's, and so is every UDP port that it sends
 * from, which is then a port of the host: with more of them at a time passt refuses new ones. The
 * host has some 28000 ports to give out (ip_local_port_range). */
#define PASST_FILES_MAX 2048

#define MAP_MAX 65536 /* text of a map of ids */

enum {
	POLL_VMM,
	POLL_HELPER,
	POLL_HOSTS,
};

struct net_link {
	struct net_relay relay;
	struct net_hosts hosts;
	struct net_page *page;
	pid_t passt; /* 0: not there */
	char *label, *path;
	int words;
	struct tail tail; /* of what it said */
};

char **net_link_passt_args(const struct plan_net *p, int fd, uid_t uid)
{
	char number[16], user[16], **v = NULL;

	snprintf(number, sizeof(number), "%d", fd);
	strv_add_pair(&v, p->passt, NULL);
	strv_add_pair(&v, "--foreground", "--quiet");
	strv_add_pair(&v, "--fd", number);
	if (uid) {
		snprintf(user, sizeof(user), "%u", (unsigned)uid);
		strv_add_pair(&v, "--runas", user);
	}
	if (p->interface[0])
		strv_add_pair(&v, "--interface", p->interface);
	strv_add_pair(&v, "--mtu", "1500");
	strv_add_pair(&v, "--mac-addr", GUEST_NET_GATEWAY_MAC);
	strv_add_pair(&v, "--address", GUEST_NET_ADDRESS);
	strv_add_pair(&v, "--netmask", "30");
	strv_add_pair(&v, "--gateway", GUEST_NET_GATEWAY);
	strv_add_pair(&v, "--dns-forward", GUEST_NET_GATEWAY);
	if (p->ipv6) {
		strv_add_pair(&v, "--address", GUEST_NET_ADDRESS6);
		strv_add_pair(&v, "--gateway", GUEST_NET_GATEWAY6);
	} else {
		strv_add_pair(&v, "--ipv4-only", NULL);
	}
	/* Nobody connects to a guest. The rest is the relay's business, or nobody's. */
	strv_add_pair(&v, "--tcp-ports", "none");
	strv_add_pair(&v, "--udp-ports", "none");
	strv_add_pair(&v, "--no-dhcp", "--no-dhcpv6");
	strv_add_pair(&v, "--no-ndp", "--no-ra");
	strv_add_pair(&v, "--no-icmp", NULL);
	return v;
}

/* A map of user or group ids: "first here, first there, how many" a line. */
static bool map_has(const char *path, unsigned id)
{
	cleanup_free char *text = NULL;
	unsigned first, count;

	if (fd_slurp_at(AT_FDCWD, path, MAP_MAX, &text, NULL) < 0)
		return false;
	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (sscanf(line, "%u %*u %u", &first, &count) == 2 && id >= first &&
			id - first < count)
			return true;
	}
	return false;
}

/* Unique among the living, like the VMM's own; 0: passt shall look for itself. */
static uid_t own_uid(void)
{
	uid_t uid = CONFINE_UID_BASE + (uid_t)getpid() % CONFINE_UID_SPAN;

	if (geteuid() != 0 || !map_has("/proc/self/uid_map", uid) ||
		!map_has("/proc/self/gid_map", uid))
		return 0;
	return uid;
}

static _Noreturn void be_passt(const struct plan_net *p, int socket, int words, const pid_t parent)
{
	const int keep[] = {socket};
	char **argv = net_link_passt_args(p, socket, own_uid()), *env[] = {NULL};
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	sigset_t none;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	confine_files(PASST_FILES_MAX);
	if (getppid() != parent || null < 0 || dup2(null, 0) < 0 || dup2(words, 1) < 0 ||
		dup2(words, 2) < 0 || confine_fds(keep, ARRAY_LEN(keep), NULL) < 0)
		_exit(126);
	fd_set_cloexec(socket, false);
	signal(SIGPIPE, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execve(p->passt, argv, env);
	fprintf(stderr, "cannot run %s: %s\n", p->passt, err_str(errno));
	_exit(127);
}

static void set_room(int socket)
{
	const int size = SOCKET_BUF;

	setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

static int start_passt(struct net_link *n, const struct plan_net *p, struct err *e)
{
	cleanup_fd int far = -1, said = -1;
	const pid_t self = getpid();
	int s[2], w[2], r = fd_socketpair(s);

	if (r < 0)
		return err_set(e, "S300", -r, "cannot connect passt: %s", err_str(r));
	net_relay_set_helper(&n->relay, s[0]);
	far = s[1];
	set_room(s[0]);
	set_room(s[1]);
	if (pipe2(w, O_CLOEXEC) < 0)
		return err_set(e, "S300", errno, "cannot connect passt: %s", err_str(errno));
	n->words = w[0];
	said = w[1];
	fd_set_nonblock(n->words, true);
	n->path = xstrdup(p->passt);
	n->passt = fork();
	if (n->passt == 0)
		be_passt(p, far, said, self);
	if (n->passt < 0) {
		n->passt = 0;
		return err_set(e, "S300", errno, "cannot start passt: %s", err_str(errno));
	}
	return 0;
}

static int start(struct net_link *n, const struct plan_net *p, struct err *e)
{
	uint64_t seed = 0;
	int r = net_page_map(p->page_fd, &n->page, e), page_fd = p->page_fd;

	if (r < 0)
		return r;
	fd_close(&page_fd);
	if (getrandom(&seed, sizeof(seed), 0) < 0)
		return err_set(e, "S300", errno, "no random numbers: %s", err_str(errno));
	net_relay_init(&n->relay, n->page, p->ipv6, seed);
	for (size_t i = 0; i < p->n_ports; i++)
		netframe_policy_port(n->relay.policy, p->ports[i]);
	if ((r = net_hosts_open(&n->hosts, n->relay.policy, e)) < 0)
		return r;
	return start_passt(n, p, e);
}

int net_link_start(const struct plan *p, struct net_link **ret, struct err *e)
{
	struct net_link *n = xcalloc(1, sizeof(*n));
	int r;

	n->label = xstrdup(p->label);
	n->relay.vmm = n->relay.helper = n->hosts.fd = n->words = -1;
	r = start(n, &p->net, e);
	if (r < 0)
		net_link_free(n);
	else
		*ret = n;
	return r;
}

void net_link_free(struct net_link *n)
{
	if (!n)
		return;
	if (n->page)
		log_debug("the network's end",
			"vm=%s out_bytes=%" PRIu64 " in_bytes=%" PRIu64 " dropped=%" PRIu64
			" refused=%" PRIu64,
			n->label, n->page->out_bytes, n->page->in_bytes, n->page->dropped,
			n->page->refused);
	net_relay_done(&n->relay);
	if (n->passt > 0)
		kill(n->passt, SIGKILL);
	while (n->passt > 0 && waitpid(n->passt, NULL, 0) < 0 && errno == EINTR)
		;
	net_hosts_close(&n->hosts);
	fd_close(&n->words);
	net_page_unmap(n->page);
	free(n->label);
	free(n->path);
	free(n);
}

void net_link_set_vmm(struct net_link *n, int fd)
{
	set_room(fd);
	net_relay_set_vmm(&n->relay, fd);
}

int net_link_words(const struct net_link *n)
{
	return n->words;
}

size_t net_link_hear(struct net_link *n, void *dst, size_t size)
{
	ssize_t got = n->words < 0 ? 0 : read(n->words, dst, size);

	if (got > 0)
		tail_add(&n->tail, dst, (size_t)got);
	else if (got == 0 || (errno != EAGAIN && errno != EINTR))
		fd_close(&n->words);
	return got > 0 ? (size_t)got : 0;
}

void net_link_tail(const struct net_link *n, struct buf *out)
{
	tail_text(&n->tail, "passt", out);
}

/* A side that is not waited for is left out: that it has ended would wake the loop for ever. */
static struct pollfd side(int fd, short events)
{
	return (struct pollfd){.fd = events ? fd : -1, .events = events};
}

void net_link_polls(const struct net_link *n, struct pollfd ret[static NET_LINK_POLLS])
{
	ret[POLL_VMM] = side(n->relay.vmm, net_relay_vmm_events(&n->relay));
	ret[POLL_HELPER] = side(n->relay.helper, net_relay_helper_events(&n->relay));
	ret[POLL_HOSTS] = side(n->hosts.fd, POLLIN);
}

int net_link_move(struct net_link *n, const struct pollfd p[static NET_LINK_POLLS], uint64_t now_ms,
	struct err *e)
{
	enum net_relay_end end;
	int r;

	if (p[POLL_HOSTS].revents && (r = net_hosts_read(&n->hosts, n->relay.policy, e)) < 0)
		return r;
	if (!p[POLL_VMM].revents && !p[POLL_HELPER].revents)
		return 0;
	end = net_relay_move(&n->relay, now_ms, e);
	if (end == NET_RELAY_VMM_BROKEN) {
		err_wrap(e, "the VMM broke the protocol of its network");
		return -EPROTO;
	}
	if (end == NET_RELAY_HELPER_BROKEN) {
		err_wrap(e, "passt broke the protocol of the network");
		return -EPROTO;
	}
	return 0; /* whoever is gone ends, and is collected */
}

/* The lines that say something: an older passt tells of each line that syslog did not take. */
static void last_words(const struct net_link *n, char *dst, size_t size)
{
	static const char *const noise[] = {"passt: Failed to send", "passt: Don't run as root"};
	cleanup_buf struct buf text;
	char *rest, *line;

	dst[0] = '\0';
	buf_init(&text, 4 * VM_CONSOLE_TAIL);
	net_link_tail(n, &text);
	rest = (char *)text.data;
	while (rest && (line = strsep(&rest, "\n"))) {
		size_t used = strlen(dst);

		if (*line && !str_starts(line, noise[0]) && !str_starts(line, noise[1]))
			snprintf(dst + used, size - used, "%s%s", used ? "; " : "", line);
	}
}

bool net_link_ended(struct net_link *n, struct err *e)
{
	char words[1024], chunk[1024];
	int status;

	if (n->passt <= 0 || waitpid(n->passt, &status, WNOHANG) != n->passt)
		return false;
	n->passt = 0;
	while (net_link_hear(n, chunk, sizeof(chunk)))
		;
	last_words(n, words, sizeof(words));
	err_set(e, "S300", ENETDOWN, "the network helper (%s) ended by itself with %s %d%s%s",
		n->path, WIFSIGNALED(status) ? "signal" : "status",
		WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), *words ? ": " : "",
		words);
	return true;
}
