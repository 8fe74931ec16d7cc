/*
 * Guards: what is taken is held, what does not fit is refused and changes nothing, a stop is seen.
 */
#include <check.h>
#include <stdlib.h>

#include "base/guard.h"
#include "tests/unit/run_suite.h"

static bool at_most_1000(sl_guard *g, uint64_t bytes)
{
    if (bytes > g->held && bytes > 1000)
        return false;
    g->held = bytes;
    return true;
}

START_TEST(test_takes_and_gives)
{
    sl_guard g = {.hold = at_most_1000};
    sl_err err = {""};
    ck_assert_int_eq(sl_guard_take(&g, 900, &err), SL_OK);
    ck_assert_int_eq(sl_guard_take(&g, 101, &err), SL_ERR_EXHAUSTED);
    ck_assert(g.refused == 1001 && g.held == 900 && err.text[0]);
    g.most = 1000;
    ck_assert_int_eq(sl_guard_take(&g, 101, &err), SL_ERR_TOO_LARGE);
    sl_guard_give(&g, 500);
    ck_assert_int_eq(sl_guard_take(&g, 600, &err), SL_OK);
    sl_guard_give(&g, 5000);
    ck_assert_uint_eq(g.held, 0);
    ck_assert_int_eq(sl_guard_take(NULL, 1ull << 60, NULL), SL_OK);
}
END_TEST

START_TEST(test_an_array_grows_by_what_was_taken)
{
    sl_guard g = {.hold = at_most_1000};
    int *v = NULL;
    size_t cap = 0, before = 0;
    while (sl_guard_grow(&g, (void **)&v, &cap, cap + 1, sizeof *v, NULL) == SL_OK) {
        ck_assert_uint_gt(cap, before);
        ck_assert_uint_eq(g.held, cap * sizeof *v);
        v[cap - 1] = 1;
        before = cap;
    }
    ck_assert_uint_eq(cap, before);
    ck_assert_uint_le(g.held, 1000);
    free(v);
}
END_TEST

START_TEST(test_a_stop_is_seen)
{
    sl_guard g = {0};
    ck_assert_int_eq(sl_guard_check(&g, NULL), SL_OK);
    sl_guard_stop(&g);
    ck_assert_int_eq(sl_guard_check(&g, NULL), SL_ERR_CANCELLED);
    ck_assert_int_eq(sl_guard_check(NULL, NULL), SL_OK);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("guard");
    TCase *tc = tcase_create("guard");
    tcase_add_test(tc, test_takes_and_gives);
    tcase_add_test(tc, test_an_array_grows_by_what_was_taken);
    tcase_add_test(tc, test_a_stop_is_seen);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
