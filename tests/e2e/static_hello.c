/* The only file of an image that has nothing else: no shell, no /proc, no C library to load. */
#include <stdio.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv)
{
	char cwd[256];

	printf("cwd=%s uid=%u gid=%u\n", getcwd(cwd, sizeof(cwd)) ? cwd : "?", getuid(), getgid());
	for (int i = 1; i < argc; i++)
		printf("arg=%s\n", argv[i]);
	for (char **e = environ; *e; e++)
		printf("env=%s\n", *e);
	return 0;
}
