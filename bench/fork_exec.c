/* fork_exec N PROGRAM - what fork, exec and wait of a program cost here, N times, with nothing
 * else.
 *
 * Prints the least and the median in microseconds. Static and small, so that fork has nothing to
 * copy: the hardest yardstick for an exec that also crosses the VM's border.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/str.h"

#define ROUNDS_MAX 100000

static long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int compare(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	static long took[ROUNDS_MAX];
	uint32_t n;

	if (argc != 3 || str_u32(argv[1], &n) < 0 || n < 1 || n > ROUNDS_MAX)
		return 2;
	for (uint32_t i = 0; i < n; i++) {
		long start = now_us();
		int status;
		pid_t pid = fork();

		if (pid == 0) {
			execl(argv[2], argv[2], NULL);
			_exit(127);
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			return 1;
		took[i] = now_us() - start;
	}
	qsort(took, n, sizeof(took[0]), compare);
	printf("%ld %ld\n", took[0], took[n / 2]);
	return 0;
}
