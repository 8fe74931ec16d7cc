/*
 * The end of the main function of a test program: runs a suite, or several, and frees them. CK_VERBOSITY in the environment sets how
 * much libcheck prints; without it, one line for each failure and a summary.
 */
#ifndef TESTS_UNIT_RUN_SUITE_H
#define TESTS_UNIT_RUN_SUITE_H

#include <check.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RUN_SUITE_SANITIZED 1
#else
#define RUN_SUITE_SANITIZED 0
#endif

/*
 * Adds `n` variants of a test. Under a sanitizer, where each takes many times longer and finds faults of memory and not
 * of numbers, two of them at most. Which of them is the first changes from test to test, so that a program runs most of them
 * in some test.
 */
static inline void add_variants_(TCase *c, const TTest *test, int n)
{
    static int tests;
    int step = !RUN_SUITE_SANITIZED || n < 2 ? 1 : (n + 1) / 2;

    for (int i = tests++ % step; i < n; i += step)
        tcase_add_loop_test(c, test, i, i + 1);
}
#define add_variants(c, test, n) add_variants_(c, test, (int)(n))

/*
 * Adds every `step`-th of n variants, for tests of one program that run the same variants in many ways: the first changes
 * from test to test here, too. Under a sanitizer it is every fifth one of these.
 */
static inline void add_every(TCase *c, const TTest *test, int n, int step)
{
    static int tests;

    step *= RUN_SUITE_SANITIZED ? 5 : 1;
    for (int i = tests++ % step; i < n; i += step)
        tcase_add_loop_test(c, test, i, i + 1);
}

/* Both return what main returns: EXIT_SUCCESS if every test passed. */
static inline int run_suites(SRunner *runner)
{
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static inline int run_suite(Suite *suite)
{
    return run_suites(srunner_create(suite));
}

#endif
