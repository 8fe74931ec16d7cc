/*
 * Runs the `sluice` program from outside, for the tests of the commands (tests/unit/cli) and of the benchmarks
 * (tests/unit/bench). One process per run; the result of the last run is kept here. argv[1] of the test is the program.
 */
#ifndef SL_TESTS_CLI_PROGRAM_H
#define SL_TESTS_CLI_PROGRAM_H

#include <check.h>
#include <stdbool.h>

/* What the last run wrote to stdout, and to stderr too if it was wanted. */
extern char output[1 << 20];

/* Runs `sluice args`, stderr too when wanted; returns the exit status. */
int run(const char *args, bool with_stderr);
/* The end of what the last run without its stderr wrote there. */
const char *said(void);
/* The run ends with this status and says this word. */
void fails(const char *args, int status, const char *word);
/* main of a test: runs the suite. */
int program_main(int argc, char **argv, Suite *suite);

#endif
