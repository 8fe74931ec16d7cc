/* What a turn was long with: times by name, the sleep of the loop, more kinds than there is room for. */
#include <check.h>
#include <stdlib.h>

#include "base/status.h"
#include "router/work.h"

static const char A[] = "a", B[] = "b", SLEEPS[] = "callbacks";

START_TEST(times_are_added_by_name)
{
    sl_work w = {0};
    uint64_t ns;
    ck_assert_str_eq(sl_work_most(&w, &ns), "");
    ck_assert_uint_eq(ns, 0);
    ck_assert_ptr_null(sl_work_enter(&w, A, 100));
    ck_assert_ptr_eq(sl_work_enter(&w, B, 130), A);
    ck_assert_ptr_eq(sl_work_enter(&w, A, 180), B);
    ck_assert_ptr_eq(sl_work_enter(&w, NULL, 205), A);
    ck_assert_ptr_eq(sl_work_most(&w, &ns), A); /* twice: 30 and 25 against 50 */
    ck_assert_uint_eq(ns, 55);
    sl_work_enter(&w, B, 1000); /* nothing was done until then */
    sl_work_reset(&w, 1010);
    ck_assert_str_eq(sl_work_most(&w, &ns), "");
    sl_work_enter(&w, NULL, 1012);
    ck_assert_ptr_eq(sl_work_most(&w, &ns), B); /* of this turn alone */
    ck_assert_uint_eq(ns, 2);
}
END_TEST

START_TEST(sleep_is_no_work)
{
    sl_work w = {0};
    uint64_t ns;
    sl_work_enter(&w, SLEEPS, 0);
    sl_work_enter(&w, A, 1000);
    sl_work_enter(&w, NULL, 1010);
    sl_work_slept(&w, SLEEPS, 995);
    ck_assert_ptr_eq(sl_work_most(&w, &ns), A);
    sl_work_slept(&w, SLEEPS, 995); /* more than there was */
    ck_assert_ptr_eq(sl_work_most(&w, &ns), A);
    ck_assert_uint_eq(ns, 10);
}
END_TEST

START_TEST(many_kinds_fit)
{
    static const char names[3 * SL_WORK_KINDS];
    sl_work w = {0};
    uint64_t ns, all = 0;
    for (unsigned i = 0; i < SL_COUNT(names); i++)
        sl_work_enter(&w, &names[i], 10 * i);
    sl_work_enter(&w, NULL, 10 * SL_COUNT(names));
    for (unsigned i = 0; i < w.n; i++)
        all += w.at[i].ns;
    ck_assert_uint_eq(w.n, SL_WORK_KINDS);
    ck_assert_uint_eq(all, 10 * SL_COUNT(names));
    ck_assert_ptr_eq(sl_work_most(&w, &ns), &names[SL_WORK_KINDS - 1]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("router/work");
    TCase *t = tcase_create("work");
    tcase_add_test(t, times_are_added_by_name);
    tcase_add_test(t, sleep_is_no_work);
    tcase_add_test(t, many_kinds_fit);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
