/* The set of pages that were told (decode/pages/told.h) against a plain array, with hashes that collide. */
#include <string.h>

#include "decode/pages/told.h"
#include "tests/unit/chosen_keys.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { HASHES = 300, STEPS = 20000 };

START_TEST(against_an_array)
{
    uint64_t r = 11 + (uint64_t)_i;
    bool want[HASHES] = {false};
    size_t n = 0;
    sl_told t = {0};
    for (int step = 0; step < STEPS; step++) {
        int k = rnd_below(&r, HASHES);
        uint64_t hash = 2 + (uint64_t)k * (_i ? 1024 : 1); /* _i 1: all begin at few places */
        if (rnd_below(&r, 100) < (step / 2000 % 2 ? 30 : 60)) {
            ck_assert_int_eq(sl_told_add(&t, hash), !want[k]);
            n += !want[k];
            want[k] = true;
        } else {
            ck_assert_int_eq(sl_told_remove(&t, hash), want[k]);
            n -= want[k];
            want[k] = false;
        }
        ck_assert_uint_eq(t.n, n);
        int other = rnd_below(&r, HASHES);
        ck_assert_int_eq(sl_told_has(&t, 2 + (uint64_t)other * (_i ? 1024 : 1)), want[other]);
    }
    sl_told_clear(&t);
    ck_assert(!sl_told_has(&t, 2) && !sl_told_remove(&t, 2));
    ck_assert(sl_told_add(&t, 0) && sl_told_has(&t, 0) && !sl_told_add(&t, 0) && sl_told_remove(&t, 0));
    sl_told_clear(&t);
}
END_TEST

static void use(sl_key (*key)(uint64_t))
{
    sl_told t = {0};
    for (uint64_t i = 1; i <= CHOSEN_N; i++)
        ck_assert(sl_told_add(&t, key(i).lo));
    for (uint64_t i = 1; i <= CHOSEN_N; i++)
        ck_assert(sl_told_remove(&t, key(i).lo));
    sl_told_clear(&t);
}

START_TEST(chosen_keys_cost_what_others_do)
{
    chosen_check(use);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("told");
    TCase *t = tcase_create("told");
    tcase_add_loop_test(t, against_an_array, 0, 2);
    tcase_add_test(t, chosen_keys_cost_what_others_do);
    suite_add_tcase(s, t);
    return run_suite(s);
}
