/* verbs - the commands of the program, one file each (verb_NAME.c).
 *
 * Each gets its own argv (argv[0] is the verb) and returns the exit status of the process:
 * 0 done, 1 failed, 2 called wrongly; `run` and `call` have their own tables.
 */
#pragma once

int verb_run(int argc, char **argv);
int verb_image(int argc, char **argv);
int verb_doctor(int argc, char **argv);
int verb_serve(int argc, char **argv);
int verb_standalone(int argc, char **argv);
int verb_call(int argc, char **argv);

enum {
	EXIT_OK = 0,
	EXIT_FAILED = 1,
	EXIT_USAGE = 2,
};
