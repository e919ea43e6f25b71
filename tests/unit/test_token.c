/* token: taken out of the environment without a trace, compared without a hint. */
#include <fcntl.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/worker/token.h"

#define OUTPUT_MAX (1u << 20)
#define MASK	   0x5a

extern char **environ;

/* "canary-7d1f0c2b", so masked that this program's own memory does not hold it. */
static const unsigned char masked[] = {'c' ^ MASK, 'a' ^ MASK, 'n' ^ MASK, 'a' ^ MASK, 'r' ^ MASK,
	'y' ^ MASK, '-' ^ MASK, '7' ^ MASK, 'd' ^ MASK, '1' ^ MASK, 'f' ^ MASK, '0' ^ MASK,
	'c' ^ MASK, '2' ^ MASK, 'b' ^ MASK};

static bool has_canary(const uint8_t *p, size_t len)
{
	for (size_t i = 0; i + sizeof(masked) <= len; i++) {
		size_t k = 0;

		while (k < sizeof(masked) && (p[i + k] ^ MASK) == masked[k])
			k++;
		if (k == sizeof(masked))
			return true;
	}
	return false;
}

static void take(const char *value)
{
	static char entry[512];

	snprintf(entry, sizeof(entry), TOKEN_ENV "=%s", value);
	assert_int_equal(putenv(entry), 0);
	token_take();
	assert_null(getenv(TOKEN_ENV));
	assert_true(str_eq(entry, TOKEN_ENV "="));
}

static void only_the_token_matches(void **state)
{
	cleanup_free char *longer = xcalloc(1, 100001);

	take("secret");
	assert_true(token_set());
	assert_true(token_matches("secret"));
	assert_true(token_matches("secret"));
	assert_false(token_matches("Secret"));
	assert_false(token_matches("secre"));
	assert_false(token_matches("secrett"));
	assert_false(token_matches("secret "));
	assert_false(token_matches(""));
	assert_false(token_matches(NULL));
	memset(longer, 's', 100000);
	assert_false(token_matches(longer));
}

static void without_a_token_nobody_is_let_in(void **state)
{
	take("");
	assert_false(token_set());
	assert_false(token_matches(""));
	assert_false(token_matches("x"));
	assert_false(token_matches(NULL));
	unsetenv(TOKEN_ENV);
	token_take();
	assert_false(token_set());
	assert_false(token_matches(""));
	assert_false(token_matches("secret"));
}

static void a_new_token_replaces_the_old_one(void **state)
{
	take("one");
	take("two");
	assert_false(token_matches("one"));
	assert_true(token_matches("two"));
}

/* --- a program that was started with a canary --- */

/* Looks through the heap and the stack, where environment and copies of it would be. */
static bool memory_has_canary(void)
{
	cleanup_fd int mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	bool found = false;

	while (maps && fgets(line, sizeof(line), maps)) {
		unsigned long from, to;
		cleanup_free uint8_t *copy = NULL;
		ssize_t n;

		if ((!strstr(line, "[heap]") && !strstr(line, "[stack]")) ||
			sscanf(line, "%lx-%lx", &from, &to) != 2)
			continue;
		copy = xmalloc(to - from);
		n = fd_pread_full(mem, copy, to - from, from);
		found = found || (n > 0 && has_canary(copy, (size_t)n));
	}
	if (maps)
		fclose(maps);
	return found;
}

/* Prints its own environment as others see it, then that of a child. 3: the memory has it. */
static int canary_child(bool taken)
{
	const char *argv[] = {"sh", "-c", "cat /proc/self/environ /proc/$PPID/environ; env", NULL};
	cleanup_free char *text = NULL;
	size_t len = 0;
	int status;
	pid_t pid;

	if (taken)
		token_take();
	if (taken && memory_has_canary())
		return 3;
	if (fd_slurp_at(AT_FDCWD, "/proc/self/environ", OUTPUT_MAX, &text, &len) < 0 ||
		fd_write_all(STDOUT_FILENO, text, len) < 0)
		return 4;
	if (posix_spawnp(&pid, "sh", NULL, NULL, (char **)argv, environ) != 0 ||
		waitpid(pid, &status, 0) != pid || status != 0)
		return 5;
	if (taken) {
		char offered[sizeof(masked) + 1] = "";

		for (size_t i = 0; i < sizeof(masked); i++)
			offered[i] = (char)(masked[i] ^ MASK);
		return token_matches(offered) ? 0 : 6;
	}
	return 0;
}

/* Runs this program as canary_child and returns its output. */
static void run_child(const char *mode, struct buf *out)
{
	char canary[sizeof(masked) + 1] = "", first[64], second[64];
	char *argv[] = {(char *)"test_token", (char *)mode, NULL};
	char *env[] = {(char *)"BEFORE=kept-1", first, second, (char *)"AFTER=kept-2",
		(char *)"PATH=/usr/bin:/bin", (char *)"ASAN_OPTIONS=detect_leaks=0", NULL};
	posix_spawn_file_actions_t fa;
	int pipefd[2], status;
	pid_t pid;

	for (size_t i = 0; i < sizeof(masked); i++)
		canary[i] = (char)(masked[i] ^ MASK);
	snprintf(first, sizeof(first), TOKEN_ENV "=%s", canary);
	snprintf(second, sizeof(second), TOKEN_ENV "=%s-again", canary);
	assert_int_equal(pipe2(pipefd, O_CLOEXEC), 0);
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, pipefd[1], STDOUT_FILENO);
	assert_int_equal(posix_spawn(&pid, "/proc/self/exe", &fa, NULL, argv, env), 0);
	posix_spawn_file_actions_destroy(&fa);
	close(pipefd[1]);
	buf_init(out, OUTPUT_MAX);
	for (;;) {
		void *room = buf_room(out, 4096);
		ssize_t n = room ? read(pipefd[0], room, 4096) : -1;

		if (n <= 0)
			break;
		buf_added(out, (size_t)n);
	}
	close(pipefd[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_non_null(memmem(out->data, out->len, "kept-1", 6));
	assert_non_null(memmem(out->data, out->len, "kept-2", 6));
}

static void no_process_shows_it(void **state)
{
	struct buf out;

	run_child("take", &out);
	assert_false(has_canary(out.data, out.len));
	buf_done(&out);
	/* And the test would have seen it. */
	run_child("keep", &out);
	assert_true(has_canary(out.data, out.len));
	buf_done(&out);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_the_token_matches),
		cmocka_unit_test(without_a_token_nobody_is_let_in),
		cmocka_unit_test(a_new_token_replaces_the_old_one),
		cmocka_unit_test(no_process_shows_it),
	};

	if (argc > 1)
		return canary_child(str_eq(argv[1], "take"));
	return cmocka_run_group_tests_name("token", tests, NULL, NULL);
}
