/* The boot, in order
 *
 *   1. /proc, /sys, /dev of the boot disk (an EROFS with this program and empty folders)
 *   2. the control port, so that every later failure can be told to the host
 *   3. base and upper disks by serial, overlay on /mnt/root (disk.c)
 *   4. the kernel's file systems inside it (mounts.c)
 *   5. that root moved over ours; what was mounted before stays beneath it, out of sight
 *   6. environment, hostname and time from the port iii.env; the network, if it names one
 *   7. after "ready" was said and before the first request is looked at, while the host is still
 *      taking that in: loopback up; limits; cgroups (main.c)
 *
 * Only steps without which nothing works are failures; the rest (hostname, clock, pid_max, lo) is
 * said on the console and left.
 */
#include "agent/init.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/cmdline.h"
#include "agent/console.h"
#include "agent/disk.h"
#include "agent/hello.h"
#include "agent/mounts.h"
#include "agent/net.h"
#include "agent/net_files.h"
#include "agent/port.h"
#include "base/fd.h"
#include "base/mem.h"

#define PORT_WAIT_MS 5000
#define ENV_WAIT_MS  10000
#define CMDLINE_MAX  65536

/* The clock is set when it is off by more than this. */
#define CLOCK_SLACK_NS 1000000000ll

static int mount_early(const char *type, const char *at, struct err *e)
{
	/* EBUSY: the kernel did it already (CONFIG_DEVTMPFS_MOUNT). */
	if (mount(type, at, type, MS_NOSUID, NULL) < 0 && errno != EBUSY)
		return err_set(e, "S300", errno, "cannot mount %s on %s of the boot disk: %s", type,
			at, err_str(errno));
	return 0;
}

static int read_cmdline(struct cmdline *ret, struct err *e)
{
	cleanup_free char *text = NULL;
	size_t len;
	int r = fd_slurp_at(AT_FDCWD, "/proc/cmdline", CMDLINE_MAX, &text, &len);

	if (r < 0)
		return err_set(e, "S300", -r, "cannot read /proc/cmdline: %s", err_str(r));
	return cmdline_parse(text, len, ret, e);
}

static int enter_root(struct err *e)
{
	if (chdir(DISK_ROOT) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
		chdir("/") < 0)
		return err_set(
			e, "S300", errno, "cannot make the overlay the root: %s", err_str(errno));
	return 0;
}

/* --- the environment frame --- */

static int read_env(int fd, struct env_frame *ret, struct err *e)
{
	uint8_t hdr[ENV_FRAME_HDR];
	cleanup_free char *json = NULL;
	uint32_t len;
	int r;

	r = port_read_full(fd, hdr, sizeof(hdr), ENV_WAIT_MS);
	if (r < 0)
		return err_set(e, "S300", -r, "nothing came on the port iii.env: %s", err_str(r));
	len = (uint32_t)hdr[0] << 24 | (uint32_t)hdr[1] << 16 | (uint32_t)hdr[2] << 8 | hdr[3];
	if (len > ENV_FRAME_MAX)
		return err_set(e, "S300", EMSGSIZE,
			"the frame on the port iii.env has %u bytes; at most %u are taken", len,
			ENV_FRAME_MAX);
	json = xmalloc((size_t)len + 1);
	r = port_read_full(fd, json, len, ENV_WAIT_MS);
	if (r < 0)
		return err_set(e, "S300", -r, "the frame on the port iii.env is cut short: %s",
			err_str(r));
	return env_frame_parse(json, len, ret, e);
}

/* The host stamps the frame when it starts the VM, so now is that time plus what has passed since.
 * The VMM's own start lies between the two and is not known: a clock that is ahead of the stamp by
 * no more than the uptime and the slack is right (it was set from an RTC). */
static void set_clock(uint64_t time_ns)
{
	struct timespec now, set;
	int64_t told = (int64_t)time_ns, up = (int64_t)hello_clock_us() * 1000, have;

	if (!time_ns || time_ns > (uint64_t)INT64_MAX / 2)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	have = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
	if (have >= told - CLOCK_SLACK_NS && have <= told + up + CLOCK_SLACK_NS)
		return;
	set.tv_sec = (told + up) / 1000000000;
	set.tv_nsec = (told + up) % 1000000000;
	if (clock_settime(CLOCK_REALTIME, &set) < 0)
		console_say("cannot set the clock: %s", err_str(errno));
}

/* --- the rest --- */

static void loopback_up(void)
{
	cleanup_fd int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &ifr) < 0)
		console_say("cannot bring lo up: %s", err_str(errno));
}

/* Small kernels start with 4096 pids, which a busy guest goes through in seconds. Such a kernel
 * (CONFIG_BASE_SMALL) takes 32768 at most, others the first number. */
static void raise_pid_max(void)
{
	static const char *const numbers[] = {"4194304", "32768"};
	int r = -ENOENT;

	for (size_t i = 0; i < ARRAY_LEN(numbers) && r < 0; i++) {
		cleanup_fd int fd = open("/proc/sys/kernel/pid_max", O_WRONLY | O_CLOEXEC);

		r = fd < 0 ? -errno : fd_write_all(fd, numbers[i], strlen(numbers[i]));
	}
	if (r < 0)
		console_say("cannot raise pid_max: %s", err_str(r));
}

static int open_ports(struct init_result *ret, struct err *e)
{
	ret->env_fd = port_open("iii.env", PORT_WAIT_MS, e);
	if (ret->env_fd < 0)
		return ret->env_fd;
	ret->agent_fd = port_open("iii.agent", PORT_WAIT_MS, e);
	return ret->agent_fd < 0 ? ret->agent_fd : 0;
}

int init_boot(struct init_result *ret, struct err *e)
{
	struct cmdline words;
	int r;

	*ret = (struct init_result){-1, -1, -1, -1, -1, "", {0}};
	r = mount_early("proc", "/proc", e);
	if (r == 0)
		r = mount_early("sysfs", "/sys", e);
	if (r == 0)
		r = mount_early("devtmpfs", "/dev", e);
	if (r == 0) {
		ret->control_fd = port_open("iii.control", PORT_WAIT_MS, e);
		r = MIN(ret->control_fd, 0);
	}
	if (r == 0)
		r = open_ports(ret, e);
	if (r == 0)
		r = read_cmdline(&words, e);
	if (r == 0)
		r = disk_mount_root(&words, &ret->upper_fd, e);
	if (r == 0)
		r = mounts_make(DISK_ROOT, &ret->cgroup_fd, e);
	if (r == 0)
		r = enter_root(e);
	if (r == 0)
		r = read_env(ret->env_fd, &ret->frame, e);
	if (r < 0)
		return r;
	if (sethostname(ret->frame.hostname, strlen(ret->frame.hostname)) < 0)
		console_say("cannot set the hostname: %s", err_str(errno));
	set_clock(ret->frame.time_ns);
	memcpy(ret->source, words.source, sizeof(ret->source));
	if (!ret->frame.has_net)
		return 0;
	return net_start(&ret->frame.net,
		ret->frame.has_worker ? NET_LOCALHOST_HOST : NET_LOCALHOST_GUEST,
		ret->frame.hostname, e);
}

/* Without a network the name localhost is all that programs look up. */
static void name_localhost(const char *hostname)
{
	cleanup_fd int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct err e = ERR_INIT;

	if (root >= 0 && net_files_write_local(root, hostname, &e) < 0)
		console_say("%s", e.text);
}

void init_finish(const struct init_result *boot)
{
	loopback_up();
	raise_pid_max();
	if (!boot->frame.has_net)
		name_localhost(boot->frame.hostname);
}
