/* hello - "/hello": who answers, and since when.
 *
 * HEAD {} ; END {"agent_version":"0.2.2","boot_us":N,"rss_kib":N}
 */
#include "agent/hello.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/op.h"
#include "base/str.h"

static struct {
	uint64_t boot_us;
	int statm_fd; /* kept open: a program may unmount /proc */
} hello = {.statm_fd = -1};

uint64_t hello_clock_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

void hello_ready(void)
{
	hello.boot_us = hello_clock_us();
	hello.statm_fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
}

uint64_t hello_boot_us(void)
{
	return hello.boot_us;
}

/* The second number of statm is resident pages. */
static uint64_t resident_kib(void)
{
	char text[128], *resident, *end;
	ssize_t n = pread(hello.statm_fd, text, sizeof(text) - 1, 0);
	uint64_t pages;

	if (n <= 0)
		return 0;
	text[n] = '\0';
	resident = strchr(text, ' ');
	end = resident ? strchr(resident + 1, ' ') : NULL;
	if (!end)
		return 0;
	*end = '\0';
	if (str_u64(resident + 1, &pages) < 0)
		return 0;
	return pages * ((uint64_t)sysconf(_SC_PAGESIZE) / 1024);
}

static int hello_start(struct op *o, json_object *head, void **ret_job, struct err *e)
{
	json_object *end = json_object_new_object();

	json_add_str(end, "agent_version", AGENT_VERSION);
	json_add_u64(end, "boot_us", hello.boot_us);
	json_add_u64(end, "rss_kib", resident_kib());
	op_finish(o, end);
	return 0;
}

const struct op_type op_hello = {
	.path = "/hello",
	.head_max = 4096,
	.start = hello_start,
};
