/*
 * The end of the main function of a test program: runs a suite and frees it. CK_VERBOSITY in the environment sets how
 * much libcheck prints; without it, one line for each failure and a summary.
 */
#ifndef TESTS_UNIT_RUN_SUITE_H
#define TESTS_UNIT_RUN_SUITE_H

#include <check.h>
#include <stdlib.h>

/* Returns what main returns: EXIT_SUCCESS if every test passed. */
static inline int run_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
