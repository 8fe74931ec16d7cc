/*
 * Runs the `sluice` program as a process, for the tests of the commands (tests/unit/cli) and of the benchmarks
 * (tests/unit/bench). The output of the last run is kept here. argv[1] of the test is the path of the program.
 */
#ifndef SL_TESTS_CLI_PROGRAM_H
#define SL_TESTS_CLI_PROGRAM_H

#include <check.h>
#include <stdbool.h>

/* The stdout of the last run, and also its stderr if run() was called with with_stderr. */
extern char output[1 << 20];

/* Runs `sluice args`; returns the exit status. with_stderr: stderr goes to output, else to the file of said(). */
int run(const char *args, bool with_stderr);
/* The end of the stderr of the last run without with_stderr. */
const char *said(void);
/* Runs `sluice args`, which must end with this status and print this text. */
void fails(const char *args, int status, const char *word);
/* The main function of a test program: runs the suite. */
int program_main(int argc, char **argv, Suite *suite);

#endif
