/* What fs::grep costs over ripgrep -j1 on the same tree, taking turns, without any VM.
 *
 *   bench_grep [FOLDER [ROUNDS]]      default: /usr/include, 7
 *
 * Each turn is a process of its own for both: ours as the agent forks it for a call, reply
 * included; rg with its output read and thrown away. Prints one JSON line; ratio is the sum of our
 * medians over the sum of theirs. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/fs_job.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "wire/json.h"

#define ROUNDS_MAX 100

extern char **environ;

static const char *const PATTERNS[] = {"no such text", "struct", "return [a-z]+;", "\\bint\\b",
	"[A-Z]{12,}_[0-9]", "TODO|FIXME|XXX", "(?i)bitmap", "^#\\s*define\\s+\\w+$"};

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static _Noreturn void ours(const char *folder, const char *pattern, int out)
{
	json_object *req = json_object_new_object();
	struct err e = ERR_INIT;
	struct buf reply;

	buf_init(&reply, FS_REPLY_MAX);
	json_add_str(req, "path", folder);
	json_add_str(req, "pattern", pattern);
	json_add_u64(req, "max_matches", 0);
	if (fs_grep(req, &reply, &e) < 0 || fd_write_all(out, reply.data, reply.len) < 0) {
		fprintf(stderr, "bench_grep: %s\n", e.text);
		_exit(1);
	}
	_exit(0);
}

static pid_t start(bool rg, const char *folder, const char *pattern, int out)
{
	const char *argv[] = {"rg", "--no-config", "-j1", "--no-ignore", "--hidden", "-n",
		"--no-heading", "--color=never", "-e", pattern, folder, NULL};
	posix_spawn_file_actions_t fa;
	pid_t pid = -1;

	if (!rg) {
		pid = fork();
		if (pid == 0)
			ours(folder, pattern, out);
		return pid;
	}
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_adddup2(&fa, out, 1);
	if (posix_spawnp(&pid, "rg", &fa, NULL, (char *const *)argv, environ) != 0)
		pid = -1;
	posix_spawn_file_actions_destroy(&fa);
	return pid;
}

/* Milliseconds, or a negative number. */
static double run(bool rg, const char *folder, const char *pattern)
{
	static char trash[65536];
	double begin = now_ms();
	int fds[2], status;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -1;
	pid = start(rg, folder, pattern, fds[1]);
	close(fds[1]);
	while (pid > 0 && read(fds[0], trash, sizeof(trash)) > 0)
		;
	close(fds[0]);
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) ||
		WEXITSTATUS(status) > (rg ? 1 : 0))
		return -1;
	return now_ms() - begin;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *v, uint32_t n)
{
	qsort(v, n, sizeof(*v), compare);
	return v[n / 2];
}

int main(int argc, char **argv)
{
	const char *folder = argc > 1 ? argv[1] : "/usr/include";
	double sums[2] = {0}, times[2][ROUNDS_MAX];
	json_object *line = json_object_new_object(), *each = json_object_new_object();
	uint32_t rounds = 7;

	if (argc > 2 && (str_u32(argv[2], &rounds) < 0 || !rounds || rounds > ROUNDS_MAX)) {
		fprintf(stderr, "usage: bench_grep [FOLDER [ROUNDS]]\n");
		return 2;
	}
	for (size_t p = 0; p < ARRAY_LEN(PATTERNS); p++) {
		double medians[2];

		run(true, folder, PATTERNS[p]); /* into the page cache */
		for (uint32_t i = 0; i < rounds * 2; i++) {
			times[i % 2][i / 2] = run(i % 2, folder, PATTERNS[p]);
			if (times[i % 2][i / 2] < 0) {
				fprintf(stderr, "bench_grep: %s failed on %s\n",
					i % 2 ? "rg" : "fs::grep", folder);
				return 1;
			}
		}
		for (int k = 0; k < 2; k++) {
			medians[k] = median(times[k], rounds);
			sums[k] += medians[k];
		}
		json_object_object_add(
			each, PATTERNS[p], json_object_new_double(medians[0] / medians[1]));
	}
	json_add_str(line, "bench", "grep");
	json_object_object_add(line, "ratio", json_object_new_double(sums[0] / sums[1]));
	json_object_object_add(line, "target", json_object_new_double(1.5));
	json_add_str(line, "over", "ripgrep -j1");
	json_add_str(line, "folder", folder);
	json_object_object_add(line, "ours_ms", json_object_new_double(sums[0]));
	json_object_object_add(line, "rg_ms", json_object_new_double(sums[1]));
	json_object_object_add(line, "ratios", each);
	puts(json_text(line, NULL));
	json_object_put(line);
	return 0;
}
