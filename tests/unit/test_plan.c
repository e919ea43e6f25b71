/* host/vm/plan: the frame survives the way, and nothing else passes for one; the lines of
 * host/vm/control likewise. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/vm/control.h"
#include "host/vm/plan.h"
#include "host/vm/tail.h"

static const char good_text[] =
	"{\"label\":\"sb-1.a_b\",\"backend\":\"krun\",\"vmm\":\"/lib/libkrun.so.1\",\"vcpus\":2,"
	"\"mem_mib\":512,\"boot_timeout_ms\":30000,\"tsc_khz\":0,\"kernel_fd\":6,"
	"\"kernel_format\":\"elf\",\"hostname\":\"sandbox\",\"env\":[\"A=b\",\"C=\"],\"disks\":["
	"{\"role\":\"boot\",\"fd\":7,\"serial\":\"boot\",\"readonly\":true,\"throwaway\":false},"
	"{\"role\":\"base\",\"fd\":8,\"serial\":\"12\",\"readonly\":true,\"throwaway\":false},"
	"{\"role\":\"upper\",\"fd\":9,\"serial\":\"13\",\"readonly\":false,\"throwaway\":true}]}";

#define JOB                                                                                        \
	"{\"name\":\"web\",\"kind\":\"local\",\"setup\":null,\"install\":null,\"run\":\"x\","      \
	"\"setup_digest\":\"\",\"install_digest\":\"\",\"source_digest\":\"\","                    \
	"\"memory_max_bytes\":0,\"nofile\":65536}"
#define SOURCE                                                                                     \
	"{\"role\":\"source\",\"fd\":10,\"serial\":\"14\",\"readonly\":true,\"throwaway\":false}"

static const char worker_text[] =
	"{\"label\":\"wvm-1\",\"backend\":\"krun\",\"vmm\":\"/lib/libkrun.so.1\",\"vcpus\":2,"
	"\"mem_mib\":512,\"boot_timeout_ms\":30000,\"tsc_khz\":0,\"kernel_fd\":6,"
	"\"kernel_format\":\"elf\",\"hostname\":\"web\",\"env\":[],\"disks\":["
	"{\"role\":\"boot\",\"fd\":7,\"serial\":\"boot\",\"readonly\":true,\"throwaway\":false},"
	"{\"role\":\"base\",\"fd\":8,\"serial\":\"12\",\"readonly\":true,\"throwaway\":false},"
	"{\"role\":\"upper\",\"fd\":9,\"serial\":\"13\",\"readonly\":false,\"throwaway\":false}"
	"," SOURCE "],\"log_fd\":15,\"worker\":" JOB ",\"nested_virt\":true,\"hyperthreads\":true}";

#define NET                                                                                        \
	"{\"passt\":\"/usr/bin/passt\",\"interface\":\"eth0\",\"ipv6\":true,\"page_fd\":14,"       \
	"\"ports\":[49134,1,65535]}"

/* The good text with a network. */
static char *net_text(void)
{
	return xasprintf("%.*s,\"net\":" NET "}", (int)strlen(good_text) - 1, good_text);
}

static void decode(const char *text, struct plan *p)
{
	struct err e = ERR_INIT;

	if (plan_decode(text, strlen(text), p, &e) < 0)
		fail_msg("%s", e.text);
}

static void test_decode(void **state)
{
	cleanup_plan struct plan p;

	(void)state;
	decode(good_text, &p);
	assert_string_equal(p.label, "sb-1.a_b");
	assert_string_equal(p.backend, "krun");
	assert_string_equal(p.vmm, "/lib/libkrun.so.1");
	assert_int_equal(p.vcpus, 2);
	assert_int_equal(p.kernel_fd, 6);
	assert_int_equal(p.kernel_format, PLAN_KERNEL_ELF);
	assert_int_equal(strv_len(p.env), 2);
	assert_string_equal(p.env[1], "C=");
	assert_int_equal(p.n_disks, 3);
	assert_string_equal(p.disks[2].role, "upper");
	assert_int_equal(p.disks[2].fd, 9);
	assert_false(p.disks[2].readonly);
	assert_true(p.disks[2].throwaway);
}

/* What is written is what was read, also through a descriptor. */
static void round_trip(const char *text)
{
	cleanup_plan struct plan p, q;
	cleanup_buf struct buf a = {0}, b = {0};
	cleanup_fd int fd = -1;

	q = (struct plan){0};
	decode(text, &p);
	buf_init(&a, PLAN_FRAME_MAX + 4);
	buf_init(&b, PLAN_FRAME_MAX + 4);
	assert_int_equal(plan_encode(&p, &a, NULL), 0);
	fd = fd_sealed("frame", a.data, a.len);
	assert_true(fd >= 0);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	assert_int_equal(plan_read(fd, &q, NULL), 0);
	assert_int_equal(plan_encode(&q, &b, NULL), 0);
	assert_int_equal(a.len, b.len);
	assert_memory_equal(a.data, b.data, a.len);
}

static void test_round_trip(void **state)
{
	(void)state;
	round_trip(good_text);
	round_trip(worker_text);
}

static void test_net(void **state)
{
	cleanup_plan struct plan p;
	cleanup_buf struct buf out = {0};
	cleanup_free char *text = net_text();

	(void)state;
	round_trip(text);
	decode(text, &p);
	assert_string_equal(p.net.passt, "/usr/bin/passt");
	assert_string_equal(p.net.interface, "eth0");
	assert_true(p.net.ipv6);
	assert_int_equal(p.net.page_fd, 14);
	assert_int_equal(p.net.n_ports, 3);
	assert_int_equal(p.net.ports[2], 65535);
	/* What the guest is told. */
	buf_init(&out, 4096);
	assert_int_equal(plan_env_frame(&p, 5, &out, NULL), 0);
	assert_non_null(strstr((char *)out.data + PLAN_FRAME_HDR,
		",\"net\":{\"address\":\"100.96.0.2\",\"prefix\":30,"));
	assert_non_null(strstr((char *)out.data + PLAN_FRAME_HDR, "\"gateway6\":"));
	assert_null(strstr((char *)out.data + PLAN_FRAME_HDR, "passt"));
	p.net.ipv6 = false;
	buf_clear(&out);
	assert_int_equal(plan_env_frame(&p, 5, &out, NULL), 0);
	assert_null(strstr((char *)out.data + PLAN_FRAME_HDR, "\"gateway6\":"));
}

static void test_worker(void **state)
{
	cleanup_plan struct plan p, sandbox;
	cleanup_buf struct buf out = {0};

	(void)state;
	decode(worker_text, &p);
	decode(good_text, &sandbox);
	assert_int_equal(p.log_fd, 15);
	assert_non_null(p.worker);
	assert_true(p.nested_virt && p.hyperthreads);
	assert_true(plan_has_kept_disk(&p));
	assert_int_equal(sandbox.log_fd, 0);
	assert_null(sandbox.worker);
	assert_false(sandbox.nested_virt || sandbox.hyperthreads);
	assert_false(plan_has_kept_disk(&sandbox));
	buf_init(&out, 4096);
	assert_int_equal(plan_env_frame(&p, 5, &out, NULL), 0);
	assert_string_equal((char *)out.data + PLAN_FRAME_HDR,
		"{\"env\":[],\"hostname\":\"web\",\"time_ns\":5,\"worker\":" JOB "}");
	buf_clear(&out);
	assert_int_equal(plan_cmdline(&p, "reboot=k", &out, NULL), 0);
	assert_non_null(strstr((char *)out.data, " iii.upper=13 iii.source=14"));
}

/* Each of these differs from the good text in one place. */
struct bad_case {
	const char *old, *new, *says;
};

static void refuse(const char *good, const struct bad_case *c)
{
	cleanup_plan struct plan p;
	const char *at = strstr(good, c->old);
	cleanup_free char *text = NULL;
	struct err e = ERR_INIT;

	assert_non_null(at);
	text = xasprintf("%.*s%s%s", (int)(at - good), good, c->new, at + strlen(c->old));
	if (plan_decode(text, strlen(text), &p, &e) == 0)
		fail_msg("%s was taken", c->new);
	if (!strstr(e.text, c->says))
		fail_msg("%s: \"%s\" does not name %s", c->new, e.text, c->says);
	assert_string_equal(e.code, "S300");
}

static void refuse_all(const char *good, const struct bad_case *cases, size_t n)
{
	for (size_t i = 0; i < n; i++)
		refuse(good, &cases[i]);
}

static void test_bad(void **state)
{
	static const struct bad_case cases[] = {
		{"\"label\":\"sb-1.a_b\"", "\"label\":\"\"", "label"},
		{"\"label\":\"sb-1.a_b\"", "\"label\":\"a b\"", "label"},
		{"\"label\":\"sb-1.a_b\"", "\"label\":1", "label"},
		{"\"label\":\"sb-1.a_b\",", "", "label"},
		{"\"label\":\"sb-1.a_b\"", "\"label\":\"a\",\"label\":\"b\"", "two members"},
		{"\"vcpus\":2", "\"vcpus\":0", "vcpus"},
		{"\"vcpus\":2", "\"vcpus\":65", "vcpus"},
		{"\"vcpus\":2", "\"vcpus\":-1", "vcpus"},
		{"\"vcpus\":2", "\"vcpus\":2.5", "vcpus"},
		{"\"mem_mib\":512", "\"mem_mib\":63", "mem_mib"},
		{"\"boot_timeout_ms\":30000", "\"boot_timeout_ms\":0", "boot_timeout_ms"},
		{"\"vmm\":\"/lib/libkrun.so.1\"", "\"vmm\":\"\"", "vmm"},
		{"\"kernel_fd\":6", "\"kernel_fd\":5", "kernel_fd"},
		{"\"kernel_fd\":6", "\"kernel_fd\":16", "kernel_fd"},
		{"\"kernel_fd\":6", "\"kernel_fd\":7", "twice"},
		{"\"kernel_format\":\"elf\"", "\"kernel_format\":\"bz\"", "kernel_format"},
		{"\"fd\":8", "\"fd\":9", "twice"},
		{"\"fd\":8", "\"fd\":4294967303", "fd"},
		{"\"role\":\"boot\"", "\"role\":\"root\"", "boot"},
		{"\"role\":\"upper\"", "\"role\":\"base\"", "told apart"},
		{"\"serial\":\"13\"", "\"serial\":\"12\"", "told apart"},
		{"\"serial\":\"13\"", "\"serial\":\"1,file=/etc/shadow\"", "serial"},
		{"\"serial\":\"13\"", "\"serial\":\"123456789012345678901\"", "serial"},
		{"\"hostname\":\"sandbox\"", "\"hostname\":\"a/b\"", "hostname"},
		{"\"hostname\":\"sandbox\"", "\"hostname\":null", "hostname"},
		{"\"hostname\"", "\"kernel_args\":\"a -- b\",\"hostname\"", "kernel_args"},
		{"\"hostname\"", "\"kernel_args\":\"iii.base=1\",\"hostname\"", "kernel_args"},
		{"\"hostname\"", "\"kernel_args\":\"a\\nb\",\"hostname\"", "kernel_args"},
		{"\"A=b\"", "\"=b\"", "NAME=value"},
		{"\"A=b\"", "\"Ab\"", "NAME=value"},
		{"\"A=b\"", "7", "env"},
		{"\"tsc_khz\":0", "\"tsc_khz\":0,\"extra\":1", "extra"},
		{"\"throwaway\":true", "\"throwaway\":true,\"path\":\"/x\"", "path"},
		{"\"throwaway\":true", "\"throwaway\":1", "throwaway"},
		{"]}", "]}x", ""},
		{"]}", "]", ""},
	};

	(void)state;
	refuse_all(good_text, cases, ARRAY_LEN(cases));
}

static void test_bad_worker(void **state)
{
	static const struct bad_case cases[] = {
		{"\"log_fd\":15", "\"log_fd\":5", "log_fd"},
		{"\"log_fd\":15", "\"log_fd\":16", "log_fd"},
		{"\"log_fd\":15", "\"log_fd\":null", "log_fd"},
		{"\"log_fd\":15", "\"log_fd\":9", "twice"},
		{"\"log_fd\":15", "\"log_fd\":\"15\"", "log_fd"},
		{"," SOURCE, "", "source"},
		{"\"worker\":" JOB ",", "", "source"},
		{"\"worker\":" JOB, "\"worker\":null", "worker"},
		{"\"worker\":" JOB, "\"worker\":[]", "worker"},
		{"\"run\":\"x\"", "\"run\":\"\"", "worker: run"},
		{"\"nofile\":65536", "\"nofile\":65536,\"x\":1", "worker: unknown member"},
		{"\"serial\":\"14\",\"readonly\":true", "\"serial\":\"14\",\"readonly\":false",
			"source"},
		{"\"nested_virt\":true", "\"nested_virt\":1", "nested_virt"},
		{"\"hyperthreads\":true", "\"hyperthreads\":null", "hyperthreads"},
	};

	(void)state;
	refuse_all(worker_text, cases, ARRAY_LEN(cases));
}

static void test_bad_net(void **state)
{
	static const struct bad_case cases[] = {
		{"/usr/bin/passt", "passt", "net.passt"},
		{"/usr/bin/passt", "", "net.passt"},
		{"\"eth0\"", "\"-t\"", "net.interface"},
		{"\"eth0\"", "\"a b\"", "net.interface"},
		{"\"eth0\"", "\"../x\"", "net.interface"},
		{"\"eth0\"", "\"abcdefghijklmnop\"", "net: interface"},
		{"\"eth0\"", "0", "net: "},
		{"\"page_fd\":14", "\"page_fd\":16", "net.page_fd"},
		{"\"page_fd\":14", "\"page_fd\":5", "net.page_fd"},
		{"\"page_fd\":14", "\"page_fd\":9", "twice"},
		{"\"page_fd\":14", "\"page_fd\":4294967295", "page_fd"},
		{"\"ipv6\":true", "\"ipv6\":1", "ipv6"},
		{"\"ipv6\":true,", "", "ipv6"},
		{"[49134,", "[0,", "ports: entry 0"},
		{"[49134,", "[65536,", "ports: entry 0"},
		{"[49134,", "[\"22\",", "ports: entry 0"},
		{"[49134,", "[-1,", "ports: entry 0"},
		{"[49134,", "[22.0,", "ports: entry 0"},
		{"\"net\":{", "\"net\":{\"x\":1,", "unknown member `x`"},
		{"\"net\":" NET, "\"net\":null", "net"},
		{"\"net\":" NET, "\"net\":true", "net"},
	};
	cleanup_free char *text = net_text();

	(void)state;
	refuse_all(text, cases, ARRAY_LEN(cases));
}

static int read_bytes(const void *data, size_t len, struct err *e)
{
	cleanup_plan struct plan p;
	cleanup_fd int fd = fd_sealed("frame", data, len);

	assert_true(fd >= 0);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	return plan_read(fd, &p, e);
}

static void test_read_bad(void **state)
{
	uint8_t frame[sizeof(good_text) + 8] = {
		0, 0, (sizeof(good_text) - 1) >> 8, (sizeof(good_text) - 1) & 255};
	size_t len = 4 + sizeof(good_text) - 1;
	struct err e = ERR_INIT;

	(void)state;
	memcpy(frame + 4, good_text, sizeof(good_text) - 1);
	assert_int_equal(read_bytes(frame, len, &e), 0);
	assert_int_equal(read_bytes("", 0, &e), -EINVAL);
	assert_non_null(strstr(e.text, "no plan"));
	assert_int_equal(read_bytes(frame, 3, &e), -EINVAL);
	assert_int_equal(read_bytes(frame, len - 1, &e), -EINVAL);
	assert_int_equal(read_bytes(frame, len + 1, &e), -EINVAL);
	assert_non_null(strstr(e.text, "behind"));
	frame[0] = 0x7f;
	assert_int_equal(read_bytes(frame, len, &e), -EINVAL);
	assert_non_null(strstr(e.text, "too large"));
}

static void test_env_limit(void **state)
{
	cleanup_plan struct plan p;
	cleanup_buf struct buf out = {0};
	struct err e = ERR_INIT;
	char *big;

	(void)state;
	decode(good_text, &p);
	buf_init(&out, PLAN_FRAME_MAX + 4);
	big = xmalloc(PLAN_FRAME_MAX);
	memset(big, 'x', PLAN_FRAME_MAX - 1);
	big[1] = '=';
	big[PLAN_FRAME_MAX - 1] = '\0';
	strv_add(&p.env, big);
	free(big);
	assert_int_equal(plan_encode(&p, &out, &e), -E2BIG);
	assert_non_null(strstr(e.text, "environment"));
	for (int i = 0; i < PLAN_ENV_MAX; i++)
		strv_add(&p.env, "A=");
	assert_int_equal(plan_check(&p, &e), -E2BIG);
}

static void test_cmdline(void **state)
{
	cleanup_plan struct plan p;
	cleanup_buf struct buf out = {0};
	char *long_first = xmalloc(3000);

	(void)state;
	decode(good_text, &p);
	buf_init(&out, 4096);
	assert_int_equal(plan_cmdline(&p, "reboot=k", &out, NULL), 0);
	assert_string_equal((char *)out.data,
		"reboot=k console=hvc0 quiet root=/dev/vda ro rootfstype=erofs init=/init panic=-1 "
		"iii.base=12 iii.upper=13");
	snprintf(p.kernel_args, sizeof(p.kernel_args), "loglevel=7");
	assert_int_equal(plan_check(&p, NULL), 0);
	buf_clear(&out);
	assert_int_equal(plan_cmdline(&p, "reboot=k", &out, NULL), 0);
	assert_non_null(strstr((char *)out.data, " iii.upper=13 loglevel=7"));
	memset(long_first, 'x', 2999);
	long_first[2999] = '\0';
	buf_clear(&out);
	assert_int_equal(plan_cmdline(&p, long_first, &out, NULL), -E2BIG);
	free(long_first);
}

static void test_serial(void **state)
{
	cleanup_fd int fd = fd_sealed("x", "y", 1);
	char serial[PLAN_SERIAL_MAX + 1], want[64];
	struct stat st;

	(void)state;
	assert_int_equal(fstat(fd, &st), 0);
	snprintf(want, sizeof(want), "%llu%llu%llu", (unsigned long long)st.st_dev,
		(unsigned long long)st.st_rdev, (unsigned long long)st.st_ino);
	want[20] = '\0';
	assert_int_equal(plan_serial(fd, serial, NULL), 0);
	assert_string_equal(serial, want);
	assert_int_equal(plan_serial(-1, serial, NULL), -EBADF);
}

static void test_env_frame(void **state)
{
	cleanup_plan struct plan p;
	cleanup_buf struct buf out = {0};
	static const char want[] =
		"{\"env\":[\"A=b\",\"C=\"],\"hostname\":\"sandbox\",\"time_ns\":5}";

	(void)state;
	decode(good_text, &p);
	buf_init(&out, 4096);
	assert_int_equal(plan_env_frame(&p, 5, &out, NULL), 0);
	assert_int_equal(out.len, 4 + sizeof(want) - 1);
	assert_int_equal(out.data[3], sizeof(want) - 1);
	assert_memory_equal(out.data + 4, want, sizeof(want) - 1);
}

/* --- control lines --- */

static void test_guest_lines(void **state)
{
	static const char *const bad[] = {"", "x", "[]", "{}", "{\"event\":\"ready\"}",
		"{\"event\":\"ready\",\"boot_us\":-1}", "{\"event\":\"exit\"}",
		"{\"event\":\"exit\",\"status\":256}", "{\"event\":\"exit\",\"status\":\"0\"}",
		"{\"event\":\"failed\"}", "{\"event\":\"failed\",\"message\":3}",
		"{\"event\":\"phase\"}", "{\"event\":\"phase\",\"phase\":\"start\"}",
		"{\"event\":\"phase\",\"phase\":3}", "{\"event\":\"boo\"}", "{\"event\":1}",
		"{\"event\":\"ready\",\"boot_us\":1}x", "{\"cmd\":\"kill\"}"};
	struct control_guest g;
	static const char ready[] = "{\"event\":\"ready\",\"boot_us\":77}",
			  phase[] = "{\"event\":\"phase\",\"phase\":\"install\"}",
			  left[] = "{\"event\":\"exit\",\"status\":3}",
			  failed[] = "{\"event\":\"failed\",\"message\":\"no\\n\\u001bdisk\"}";

	(void)state;
	assert_int_equal(control_guest_parse(ready, sizeof(ready) - 1, &g, NULL), 0);
	assert_int_equal(g.kind, CONTROL_GUEST_READY);
	assert_int_equal(g.boot_us, 77);
	assert_int_equal(control_guest_parse(phase, sizeof(phase) - 1, &g, NULL), 0);
	assert_int_equal(g.kind, CONTROL_GUEST_PHASE);
	assert_int_equal(g.phase, VM_PHASE_INSTALL);
	assert_int_equal(control_guest_parse(left, sizeof(left) - 1, &g, NULL), 0);
	assert_int_equal(g.kind, CONTROL_GUEST_EXIT);
	assert_int_equal(g.status, 3);
	assert_int_equal(control_guest_parse(failed, sizeof(failed) - 1, &g, NULL), 0);
	assert_int_equal(g.kind, CONTROL_GUEST_FAILED);
	assert_string_equal(g.message, "no??disk");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		if (control_guest_parse(bad[i], strlen(bad[i]), &g, NULL) != -EPROTO)
			fail_msg("%s was taken", bad[i]);
	}
}

static void test_commands(void **state)
{
	const struct control_cmd in[] = {{CONTROL_CMD_SHUTDOWN, 1500}, {CONTROL_CMD_KILL, 0}};
	struct control_cmd c;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(in); i++) {
		cleanup_buf struct buf line = {0};

		buf_init(&line, 100);
		assert_int_equal(control_cmd_add(&line, &in[i]), 0);
		assert_int_equal(line.data[line.len - 1], '\n');
		assert_int_equal(control_cmd_parse((char *)line.data, line.len - 1, &c, NULL), 0);
		assert_int_equal(c.kind, in[i].kind);
		assert_int_equal(c.grace_ms, in[i].grace_ms);
	}
	assert_int_equal(control_cmd_parse("{\"cmd\":\"shutdown\"}", 18, &c, NULL), -EPROTO);
	assert_int_equal(control_cmd_parse("{\"cmd\":\"x\"}", 11, &c, NULL), -EPROTO);
}

/* Even the longest report fits in a line. */
static void test_report(void **state)
{
	struct control_event in = {.kind = CONTROL_EVENT_EXITED,
				     .end = VM_END_VMM_KILLED,
				     .signal = 9,
				     .status = 255},
			     out;
	cleanup_buf struct buf line = {0};

	(void)state;
	memset(in.why.text, '"', sizeof(in.why.text) - 1);
	in.tail = xmalloc(CONTROL_TAIL_MAX + 1);
	memset(in.tail, '\n', CONTROL_TAIL_MAX);
	in.tail[CONTROL_TAIL_MAX] = '\0';
	buf_init(&line, CONTROL_BOOT_LINE_MAX);
	assert_int_equal(control_event_add(&line, &in), 0);
	assert_ptr_equal(memchr(line.data, '\n', line.len), line.data + line.len - 1);
	assert_int_equal(control_event_parse((char *)line.data, line.len - 1, &out, NULL), 0);
	assert_int_equal(out.end, VM_END_VMM_KILLED);
	assert_int_equal(out.signal, 9);
	assert_int_equal(out.status, 255);
	assert_string_equal(out.why.text, in.why.text);
	assert_string_equal(out.tail, in.tail);
	control_event_done(&in);
	control_event_done(&out);
}

/* The guest's own status is there or not; a phase arrives as it was said. */
static void test_events(void **state)
{
	static const int statuses[] = {-1, 0, 7, 255};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
		struct control_event in = {.kind = CONTROL_EVENT_EXITED,
					     .end = VM_END_STOPPED,
					     .guest_status = statuses[i]},
				     out;
		cleanup_buf struct buf line = {0};

		buf_init(&line, CONTROL_BOOT_LINE_MAX);
		assert_int_equal(control_event_add(&line, &in), 0);
		assert_int_equal(
			control_event_parse((char *)line.data, line.len - 1, &out, NULL), 0);
		assert_int_equal(out.guest_status, statuses[i]);
		control_event_done(&out);
	}
	for (int i = VM_PHASE_SYNC; i <= VM_PHASE_RUN; i++) {
		struct control_event in = {.kind = CONTROL_EVENT_PHASE, .phase = (enum vm_phase)i},
				     out;
		cleanup_buf struct buf line = {0};

		buf_init(&line, CONTROL_BOOT_LINE_MAX);
		assert_int_equal(control_event_add(&line, &in), 0);
		assert_int_equal(
			control_event_parse((char *)line.data, line.len - 1, &out, NULL), 0);
		assert_int_equal(out.kind, CONTROL_EVENT_PHASE);
		assert_int_equal(out.phase, i);
	}
}

static int collect_line(char *line, size_t len, void *user)
{
	struct buf *all = user;

	assert_int_equal(line[len], '\0');
	if (str_eq(line, "stop"))
		return -ECANCELED;
	return buf_printf(all, "<%s>", line);
}

static void test_started(void **state)
{
	struct control_event in = {.kind = CONTROL_EVENT_STARTED,
				     .confined = "user pid",
				     .unconfined = "landlock (Function not implemented)"},
			     out;
	static const char no_list[] = "{\"event\":\"started\",\"confined\":\"x\"}";
	cleanup_buf struct buf line = {0}, long_line = {0};
	struct err e = ERR_INIT;

	(void)state;
	buf_init(&line, CONTROL_BOOT_LINE_MAX);
	buf_init(&long_line, CONTROL_BOOT_LINE_MAX);
	assert_int_equal(control_event_add(&line, &in), 0);
	assert_int_equal(control_event_parse((char *)line.data, line.len - 1, &out, NULL), 0);
	assert_int_equal(out.kind, CONTROL_EVENT_STARTED);
	assert_string_equal(out.confined, in.confined);
	assert_string_equal(out.unconfined, in.unconfined);
	assert_int_equal(control_event_parse(no_list, strlen(no_list), &out, &e), -EPROTO);
	assert_non_null(strstr(e.text, "unconfined"));
	buf_printf(&long_line, "{\"event\":\"started\",\"unconfined\":\"\",\"confined\":\"%*s\"}",
		CONTROL_LAYERS_MAX, "x");
	assert_int_equal(
		control_event_parse((char *)long_line.data, long_line.len, &out, &e), -EPROTO);
	assert_non_null(strstr(e.text, "confined"));
}

static void test_feed(void **state)
{
	static const char text[] = "one\n\ntwo\nthree";
	struct control_lines l;
	struct buf all;

	(void)state;
	buf_init(&l.partial, 8);
	for (size_t piece = 1; piece < sizeof(text); piece++) {
		buf_init(&all, 100);
		for (size_t at = 0; at < sizeof(text) - 1; at += piece)
			assert_int_equal(
				control_feed(&l, text + at, MIN(piece, sizeof(text) - 1 - at),
					collect_line, &all),
				0);
		assert_int_equal(control_feed(&l, "\n", 1, collect_line, &all), 0);
		assert_string_equal((char *)all.data, "<one><><two><three>");
		buf_done(&all);
	}
	buf_init(&all, 100);
	assert_int_equal(control_feed(&l, "12345678\n", 9, collect_line, &all), 0);
	assert_int_equal(control_feed(&l, "stop\nx\n", 7, collect_line, &all), -ECANCELED);
	assert_int_equal(control_feed(&l, "123456789", 9, collect_line, &all), -EMSGSIZE);
	buf_done(&all);
	buf_done(&l.partial);
}

/* --- tail --- */

static char *tail_of(const struct tail *t)
{
	cleanup_buf struct buf out = {0};

	buf_init(&out, CONTROL_TAIL_MAX);
	tail_text(t, "c", &out);
	return out.len ? buf_steal(&out) : xstrdup("");
}

static void check_tail(struct tail *t, const char *want)
{
	cleanup_free char *text = tail_of(t);

	assert_string_equal(text, want);
}

static void test_tail(void **state)
{
	struct tail t = {0};

	(void)state;
	check_tail(&t, "");
	tail_add(&t, "a\r\nb\x1b[2J\xff\n", 10);
	check_tail(&t, "c: a\nc: b?[2J?\n");
	tail_add(&t, "\n\n", 2);
	check_tail(&t, "c: a\nc: b?[2J?\n");
	tail_add(&t, "end", 3);
	check_tail(&t, "c: a\nc: b?[2J?\nc: \nc: \nc: end\n");
}

static void test_tail_overflow(void **state)
{
	struct tail t = {0};
	cleanup_free char *text = NULL, *big = xmalloc(1 << 20);
	size_t lines = 0;

	(void)state;
	for (int i = 0; i < 100000; i++) {
		char line[32];
		int n = snprintf(line, sizeof(line), "line %d\n", i);

		tail_add(&t, line, (size_t)n);
	}
	text = tail_of(&t);
	for (const char *p = text; (p = strchr(p, '\n')); p++)
		lines++;
	assert_int_equal(lines, VM_CONSOLE_LINES + 1);
	assert_non_null(strstr(text, "bytes before this]\nc: line 99968\n"));
	assert_non_null(strstr(text, "c: line 99999\n"));
	free(text);
	/* One endless line is cut in front. */
	memset(big, 'x', 1 << 20);
	tail_add(&t, big, 1 << 20);
	text = tail_of(&t);
	assert_non_null(strstr(text, "bytes before this]\nc: xxxx"));
	assert_true(strlen(text) < VM_CONSOLE_TAIL + 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decode),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_worker),
		cmocka_unit_test(test_net),
		cmocka_unit_test(test_bad_net),
		cmocka_unit_test(test_bad_worker),
		cmocka_unit_test(test_read_bad),
		cmocka_unit_test(test_env_limit),
		cmocka_unit_test(test_cmdline),
		cmocka_unit_test(test_serial),
		cmocka_unit_test(test_env_frame),
		cmocka_unit_test(test_guest_lines),
		cmocka_unit_test(test_commands),
		cmocka_unit_test(test_report),
		cmocka_unit_test(test_events),
		cmocka_unit_test(test_started),
		cmocka_unit_test(test_feed),
		cmocka_unit_test(test_tail),
		cmocka_unit_test(test_tail_overflow),
	};

	return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
