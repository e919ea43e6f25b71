/* main - picks the verb. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/config.h"
#include "host/verbs.h"
#include "host/vm/boot.h"
#include "host/worker/token.h"

static const char help_text[] =
	"Usage: sandbox-libkrun COMMAND [OPTION]…\n"
	"\n"
	"Runs code you don't trust in a small virtual machine of its own.\n"
	"\n"
	"Commands:\n"
	"  run         run a piece of code or a program in a fresh VM and print what it prints\n"
	"  image       get, list and remove the images that VMs boot from\n"
	"  doctor      say what this host can do, and what to install or change\n"
	"  serve       join an iii engine and serve its sandboxes (also without any command, when\n"
	"              III_URL is set)\n"
	"  standalone  the same with a small engine of its own, for trying\n"
	"  call        call a function on an engine and print the reply\n"
	"\n"
	"Options:\n"
	"  --version   print the version and leave\n"
	"  --help      print this text and leave; 'COMMAND --help' tells more\n"
	"\n"
	"First steps:\n"
	"  sandbox-libkrun doctor\n"
	"  sandbox-libkrun image pull python\n"
	"  sandbox-libkrun run --image python --lang python --code 'print(6*7)'\n";

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
} verbs[] = {
	{"run", verb_run}, {"image", verb_image}, {"doctor", verb_doctor}, {"serve", verb_serve},
	{"standalone", verb_standalone}, {"call", verb_call},
	{"__vm-boot", vm_boot_main}, /* the supervisor of one VM; started by vm.c only */
};

/* Started with 0, 1 or 2 closed, the next descriptors opened would take their numbers, and what is
 * meant for a stream would go into a disk or a socket. */
static void open_missing_streams(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	fd_close(&fd);
}

int main(int argc, char **argv)
{
	token_take();
	open_missing_streams();
	log_init(LOG_WARN);
	/* Engines start their workers without arguments. */
	if (argc < 2 && getenv("III_URL"))
		return verb_serve(argc, argv);
	if (argc < 2) {
		fputs(help_text, stderr);
		return EXIT_USAGE;
	}
	if (str_eq(argv[1], "--help") || str_eq(argv[1], "-h") || str_eq(argv[1], "help")) {
		fputs(help_text, stdout);
		return EXIT_OK;
	}
	if (str_eq(argv[1], "--version")) {
		puts("sandbox-libkrun " SANDBOX_VERSION);
		return EXIT_OK;
	}
	for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
		if (str_eq(argv[1], verbs[i].name))
			return verbs[i].run(argc - 1, argv + 1);
	fprintf(stderr,
		"sandbox-libkrun: there is no command '%s'; 'sandbox-libkrun --help' lists them\n",
		argv[1]);
	return EXIT_USAGE;
}
