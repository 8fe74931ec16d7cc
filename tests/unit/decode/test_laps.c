/* Late tokens are logged, not more than once a second, and every step begins with no time counted. */
#include <check.h>

#include "base/log.h"
#include "decode/run/laps.h"
#include "tests/unit/run_suite.h"

static const uint64_t MS = 1000000;

START_TEST(late_tokens_are_logged_once_a_second)
{
    static const struct {
        uint64_t ended, at, logged;
        bool late;
    } cases[] = {
        {5000, 5003, 0, false},    {5000, 5004, 0, true},
        {5004, 5000, 0, false}, /* by the estimate of the clocks */
        {5000, 5010, 4011, false}, {5000, 5010, 4010, true},
        {5000, 9000, 1, true},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_laps l = {.at_ns = cases[i].at * MS, .logged_ns = cases[i].logged * MS};
        ck_assert_msg(sl_laps_late(&l, cases[i].ended * MS) == cases[i].late, "case %zu", i);
    }
    sl_laps l = {0};
    sl_laps_mark(&l, SL_LAP_OTHER);
    sl_laps_sent(&l, l.at_ns - 10 * MS);
    ck_assert_uint_eq(l.logged_ns, l.at_ns);
    for (int lap = 0; lap < SL_LAPS; lap++)
        ck_assert_uint_eq(l.ns[lap], 0); /* the next step begins */
}
END_TEST

START_TEST(time_is_that_of_the_laps)
{
    sl_laps l = {0};
    sl_laps_mark(&l, SL_LAP_OTHER); /* the first mark ends nothing */
    ck_assert_uint_eq(l.ns[SL_LAP_OTHER], 0);
    const uint64_t begin = l.at_ns;
    for (int i = 0; i < 100; i++)
        sl_laps_mark(&l, (sl_lap)(i % SL_LAPS));
    uint64_t sum = 0;
    for (int lap = 0; lap < SL_LAPS; lap++)
        sum += l.ns[lap];
    ck_assert_uint_eq(sum, l.at_ns - begin);
}
END_TEST

int main(void)
{
    sl_log_init(SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("decode/laps");
    TCase *t = tcase_create("laps");
    tcase_add_test(t, late_tokens_are_logged_once_a_second);
    tcase_add_test(t, time_is_that_of_the_laps);
    suite_add_tcase(s, t);
    return run_suite(s);
}
