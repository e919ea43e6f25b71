/* The /init of sanitizer builds: the agent is then a dynamic program, and the sanitizers' runtime
 * reads /proc before main. This static one mounts /proc and becomes the agent. A report goes to the
 * console and ends the agent, hence the VM, whose last lines show it. */
#include <sys/mount.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	const char *const env[] = {
		/* The leak checker would trace PID 1. */
		"ASAN_OPTIONS=detect_leaks=0:abort_on_error=1",
		"UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:abort_on_error=1",
		NULL,
	};

	mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	execve("/agent", argv, (char *const *)env);
	return 1;
}
