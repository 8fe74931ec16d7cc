/* The order of prompts: shortest first, short steps, ageing, and that nothing is lost. */
#include <check.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/params.h"
#include "prefill/order.h"
#include "tests/unit/run_suite.h"

enum { CHUNK = 512, PAGE = SL_PAGE_TOKENS };

static void start(sl_prefill_turn *t, const int32_t *left, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        t[i] = (sl_prefill_turn){.left = left[i]};
}

START_TEST(nothing_and_one)
{
    ck_assert_int_eq(sl_prefill_order(NULL, 0, CHUNK), 0);
    sl_prefill_turn t = {.left = 2000};
    ck_assert_int_eq(sl_prefill_order(&t, 1, CHUNK), CHUNK);
    t.left = 30;
    ck_assert_int_eq(sl_prefill_order(&t, 1, CHUNK), 30);
    ck_assert_int_eq(t.passed, 0);
}
END_TEST

START_TEST(short_ones_first_in_a_short_step)
{
    sl_prefill_turn t[5];
    start(t, (int32_t[]){8000, 8000, 64, 8000, 30}, 5);
    ck_assert_int_eq(sl_prefill_order(t, 5, CHUNK), 64 + 30 + (CHUNK / 2 - 94) / PAGE * PAGE);
    ck_assert_int_eq(t[2].take, 64);
    ck_assert_int_eq(t[4].take, 30);
    ck_assert(t[0].take > 0 && !t[1].take && !t[3].take); /* of equal ones the oldest */
    ck_assert_int_eq(t[1].passed, 94);
    ck_assert_int_eq(t[3].passed, 30);
}
END_TEST

START_TEST(many_short_ones_fill_the_chunk)
{
    sl_prefill_turn t[20];
    for (int i = 0; i < 20; i++)
        t[i] = (sl_prefill_turn){.left = 64};
    ck_assert_int_eq(sl_prefill_order(t, 20, CHUNK), CHUNK);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(t[i].take, i < 8 ? 64 : 0);
}
END_TEST

START_TEST(whole_pages_unless_it_ends)
{
    sl_prefill_turn t[2];
    start(t, (int32_t[]){1000, 1100}, 2);
    sl_prefill_order(t, 2, 500);
    ck_assert_int_eq(t[0].take, 448);
    ck_assert_int_eq(t[1].take, 52); /* less than a page is left */
}
END_TEST

/* A short prompt arrives before every step: the long one still ends within the bound. */
START_TEST(a_long_prompt_ends)
{
    sl_prefill_turn t[2];
    start(t, (int32_t[]){8000, CHUNK}, 2);
    int64_t younger = 0;
    int steps = 0;
    while (t[0].left) {
        int32_t used = sl_prefill_order(t, 2, CHUNK);
        ck_assert(used > 0 && used <= CHUNK);
        ck_assert_int_eq(used, t[0].take + t[1].take);
        younger += t[1].take;
        t[0].left -= t[0].take;
        t[1].left -= t[1].take;
        if (!t[1].left)
            t[1] = (sl_prefill_turn){.left = CHUNK};
        steps++;
    }
    ck_assert_int_le(younger, SL_PREFILL_PASSED_CHUNKS * CHUNK + 8000 + 2 * CHUNK);
    ck_assert_int_le(steps, SL_PREFILL_PASSED_CHUNKS + 2 * 8000 / CHUNK + 2);
}
END_TEST

/* Random sets: the bound of the step, the bounds of every share, and that something is computed. */
START_TEST(shares_are_within_bounds)
{
    uint32_t seed = 7 + (uint32_t)_i;
    for (int round = 0; round < 200; round++) {
        sl_prefill_turn t[12];
        int32_t n = 1 + round % 12, chunk = 1 + (int32_t)(seed % 700), sum = 0;
        for (int32_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            t[i] =
                (sl_prefill_turn){.left = 1 + (int32_t)(seed >> 20), .passed = (int64_t)(seed >> 10 & 8191)};
        }
        int32_t used = sl_prefill_order(t, n, chunk);
        for (int32_t i = 0; i < n; i++) {
            ck_assert(t[i].take >= 0 && t[i].take <= t[i].left);
            sum += t[i].take;
        }
        ck_assert_int_eq(sum, used);
        ck_assert(used > 0 && used <= chunk);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("prefill/order");
    TCase *c = tcase_create("all");
    tcase_add_test(c, nothing_and_one);
    tcase_add_test(c, short_ones_first_in_a_short_step);
    tcase_add_test(c, many_short_ones_fill_the_chunk);
    tcase_add_test(c, whole_pages_unless_it_ends);
    tcase_add_test(c, a_long_prompt_ends);
    tcase_add_loop_test(c, shares_are_within_bounds, 0, 8);
    suite_add_tcase(s, c);
    return run_suite(s);
}
