/* The order of prompts: shortest first, short steps, ageing, that nothing is lost, and that steps end in time. */
#include <check.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/params.h"
#include "worker/order.h"
#include "worker/pace.h"
#include "tests/unit/run_suite.h"

enum { CHUNK = 512, PAGE = SL_PAGE_TOKENS };

/* Without a limit of time. */
static int32_t order(sl_order_turn *t, int32_t n, int32_t chunk)
{
    return sl_order_prompts(t, n, &(sl_order_limit){.tokens = chunk, .min_tokens = 1});
}

static void start(sl_order_turn *t, const int32_t *left, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        t[i] = (sl_order_turn){.left = left[i]};
}

START_TEST(nothing_and_one)
{
    ck_assert_int_eq(order(NULL, 0, CHUNK), 0);
    sl_order_turn t = {.left = 2000};
    ck_assert_int_eq(order(&t, 1, CHUNK), CHUNK);
    t.left = 30;
    ck_assert_int_eq(order(&t, 1, CHUNK), 30);
    ck_assert_int_eq(t.passed, 0);
}
END_TEST

START_TEST(short_ones_first_in_a_short_step)
{
    sl_order_turn t[5];
    start(t, (int32_t[]){8000, 8000, 64, 8000, 30}, 5);
    ck_assert_int_eq(order(t, 5, CHUNK), 64 + 30 + (CHUNK / 2 - 94) / PAGE * PAGE);
    ck_assert_int_eq(t[2].take, 64);
    ck_assert_int_eq(t[4].take, 30);
    ck_assert(t[0].take > 0 && !t[1].take && !t[3].take); /* of equal ones the oldest */
    ck_assert_int_eq(t[1].passed, 94);
    ck_assert_int_eq(t[3].passed, 30);
}
END_TEST

START_TEST(many_short_ones_fill_the_chunk)
{
    sl_order_turn t[20];
    for (int i = 0; i < 20; i++)
        t[i] = (sl_order_turn){.left = 64};
    ck_assert_int_eq(order(t, 20, CHUNK), CHUNK);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(t[i].take, i < 8 ? 64 : 0);
}
END_TEST

START_TEST(whole_pages_unless_it_ends)
{
    sl_order_turn t[2];
    start(t, (int32_t[]){1000, 1100}, 2);
    order(t, 2, 500);
    ck_assert_int_eq(t[0].take, 448);
    ck_assert_int_eq(t[1].take, 52); /* less than a page is left */
}
END_TEST

/* A short prompt arrives before every step: the long one still ends within the bound. */
START_TEST(a_long_prompt_ends)
{
    sl_order_turn t[2];
    start(t, (int32_t[]){8000, CHUNK}, 2);
    int64_t younger = 0;
    int steps = 0;
    while (t[0].left) {
        int32_t used = order(t, 2, CHUNK);
        ck_assert(used > 0 && used <= CHUNK);
        ck_assert_int_eq(used, t[0].take + t[1].take);
        younger += t[1].take;
        t[0].left -= t[0].take;
        t[1].left -= t[1].take;
        if (!t[1].left)
            t[1] = (sl_order_turn){.left = CHUNK};
        steps++;
    }
    ck_assert_int_le(younger, SL_ORDER_PASSED_CHUNKS * CHUNK + 8000 + 2 * CHUNK);
    ck_assert_int_le(steps, SL_ORDER_PASSED_CHUNKS + 2 * 8000 / CHUNK + 2);
}
END_TEST

/* Random sets: the bound of the step, the bounds of every share, and that something is computed. */
START_TEST(shares_are_within_bounds)
{
    uint32_t seed = 7 + (uint32_t)_i;
    for (int round = 0; round < 200; round++) {
        sl_order_turn t[12];
        int32_t n = 1 + round % 12, chunk = 1 + (int32_t)(seed % 700), sum = 0;
        for (int32_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            t[i] = (sl_order_turn){.left = 1 + (int32_t)(seed >> 20), .passed = (int64_t)(seed >> 10 & 8191)};
        }
        int32_t used = order(t, n, chunk);
        for (int32_t i = 0; i < n; i++) {
            ck_assert(t[i].take >= 0 && t[i].take <= t[i].left);
            sum += t[i].take;
        }
        ck_assert_int_eq(sum, used);
        ck_assert(used > 0 && used <= chunk);
    }
}
END_TEST

/* ---- the time of a step ---- */

enum { BOUND_MS = 20, MIN = 4 };

static const sl_order_limit bounded = {.tokens = CHUNK, .ns = BOUND_MS * 1e6, .min_tokens = MIN};

START_TEST(a_step_ends_in_time)
{
    sl_order_turn t[2] = {{.left = 8000, .token_ns = 4e6}, {.left = 7000, .token_ns = 0.15e6}};
    ck_assert_int_eq(sl_order_prompts(t, 1, &bounded), 5);
    ck_assert_int_eq(sl_order_prompts(t + 1, 1, &bounded), 128); /* 133 would fit: whole pages */
    t[0].token_ns = 30e6;
    ck_assert_int_eq(sl_order_prompts(t, 1, &bounded), MIN);
    t[0].left = 2;
    ck_assert_int_eq(sl_order_prompts(t, 1, &bounded), 2);
}
END_TEST

/* The long one gets what is left of half a step, in time: 64 tokens of 0.1 ms leave 3.6 ms of 10. */
START_TEST(a_short_step_is_short_in_time)
{
    sl_order_turn t[2] = {{.left = 8000, .token_ns = 1e6}, {.left = 64, .token_ns = 0.1e6}};
    ck_assert_int_eq(sl_order_prompts(t, 2, &bounded), 64 + 3);
    ck_assert_int_eq(t[1].take, 64);
    t[1].token_ns = 0.16e6; /* more than half a step: nothing is added */
    ck_assert_int_eq(sl_order_prompts(t, 2, &bounded), 64);
}
END_TEST

/* Aged prompts never take the whole step, and are never without a token. */
START_TEST(aged_and_shortest_share_the_time)
{
    int64_t aged = (int64_t)SL_ORDER_PASSED_CHUNKS * CHUNK;
    sl_order_turn t[2] = {{.left = 8000, .token_ns = 2e6, .passed = aged}, {.left = 64, .token_ns = 0.25e6}};
    sl_order_prompts(t, 2, &bounded);
    ck_assert_int_eq(t[0].take, 5);
    ck_assert_int_eq(t[1].take, 40);
    t[0].token_ns = 100e6;
    sl_order_prompts(t, 2, &bounded);
    ck_assert_int_eq(t[0].take, MIN);
    ck_assert_int_eq(t[1].take, 40);
}
END_TEST

/* A machine whose steps take 1 ms, and 0.15 ms for each token and 0.5 us for each token of its context. */
static double step_ns(const sl_order_turn *t, const int32_t *pos, int32_t n)
{
    double ns = 1e6;
    for (int32_t i = 0; i < n; i++)
        ns += t[i].take * (0.15e6 + 500.0 * pos[i]);
    return ns;
}

/* One step by the pace that was measured so far. Returns the time that it takes; pos advances. */
static double run_step(sl_pace *pace, sl_order_turn *t, int32_t *pos, int32_t n)
{
    sl_pace_part part[8];
    int32_t parts = 0;
    for (int32_t i = 0; i < n; i++)
        t[i].token_ns = sl_pace_token_ns(pace, pos[i]);
    ck_assert_int_gt(sl_order_prompts(t, n, &bounded), 0);
    double ns = step_ns(t, pos, n);
    for (int32_t i = 0; i < n; i++) {
        if (t[i].take)
            part[parts++] = (sl_pace_part){pos[i], pos[i] + t[i].take};
        pos[i] += t[i].take;
        t[i].left -= t[i].take;
    }
    sl_pace_measured(pace, part, parts, ns);
    return ns;
}

static int32_t shortest_left(const sl_order_turn *t, int32_t n)
{
    int32_t left = INT32_MAX;
    for (int32_t i = 0; i < n; i++)
        left = t[i].left < left ? t[i].left : left;
    return left;
}

/*
 * Four prompts of 8,000 tokens, and in every 20th step a prompt of 64 tokens arrives: after the first steps no step is
 * longer than the bound by more than a quarter, and each short prompt ends in the step that it arrives in,
 * if it has the fewest tokens and no long prompt is aged.
 */
START_TEST(steps_keep_the_bound_at_every_context)
{
    sl_pace pace;
    sl_err err = {0};
    ck_assert_int_eq(sl_pace_init(&pace, 8192, 1e6, &err), SL_OK); /* a guess that is far from right */
    sl_order_turn t[5];
    int32_t pos[5] = {0}, n = 4, steps = 0;
    start(t, (int32_t[]){8000, 8000, 8000, 8000}, 4);
    const int32_t aged = 20 * SL_ORDER_PASSED_CHUNKS * CHUNK / 64; /* no prompt is aged before this step */
    double ns = 0, tokens_ns = 0;
    while (n > 0) {
        bool arrives = ++steps % 20 == 0 && steps <= aged && shortest_left(t, n) > 64;
        if (arrives) {
            t[n] = (sl_order_turn){.left = 64};
            pos[n++] = 0;
        }
        double took = run_step(&pace, t, pos, n);
        ck_assert_msg(steps < 10 || took < 1.25 * BOUND_MS * 1e6, "step %d: %.1f ms", steps, took / 1e6);
        ns += took;
        tokens_ns += took - 1e6;
        if (arrives)
            ck_assert_msg(!t[--n].left, "step %d: %d left, %.3f ms a token", steps, t[n].left,
                          t[n].token_ns / 1e6);
        for (int32_t i = 0; i < n; i++) {
            if (!t[i].left) {
                n--;
                memmove(&t[i], &t[i + 1], (size_t)(n - i) * sizeof t[0]);
                memmove(&pos[i], &pos[i + 1], (size_t)(n - i) * sizeof pos[0]);
                i--;
            }
        }
    }
    ck_assert_msg(ns < 1.08 * tokens_ns, "the steps' own time: %.3f", ns / tokens_ns);
    sl_pace_free(&pace);
}
END_TEST

static double next_ns(sl_order_bound *b, bool short_prompt)
{
    sl_order_limit limit = {.ns = 0};
    sl_order_bound_next(b, short_prompt, &limit);
    return limit.ns;
}

START_TEST(steps_are_short_while_short_prompts_arrive)
{
    sl_order_bound b = {.ns = 200, .short_ns = 100};
    ck_assert(next_ns(&b, false) == 200);
    ck_assert(next_ns(&b, true) == 100);
    for (int i = 1; i < SL_ORDER_SHORT_STEPS; i++)
        ck_assert(next_ns(&b, false) == 100);
    ck_assert(next_ns(&b, false) == 200);
}
END_TEST

/* A short prompt has a step for itself although an aged one is there; with short prompts in every step, every second one is
 * shared. */
START_TEST(a_short_prompt_defers_the_aged)
{
    sl_order_bound b = {.ns = 20e6, .short_ns = 20e6};
    for (int i = 0; i < 6; i++) {
        sl_order_limit limit = bounded;
        sl_order_turn t[] = {{.left = 8000, .token_ns = 5e6, .passed = 1 << 20},
                             {.left = 64, .token_ns = 0.1e6}};
        sl_order_bound_next(&b, true, &limit);
        sl_order_prompts(t, 2, &limit);
        ck_assert_int_eq(t[1].take, 64);
        ck_assert_msg(i % 2 ? t[0].take >= 2 : t[0].take == 0, "step %d: %d tokens of the aged one", i,
                      t[0].take);
    }
    sl_order_limit limit = bounded;
    sl_order_bound_next(&b, false, &limit);
    ck_assert(!limit.defer_aged);
}
END_TEST

/* A step of a long prompt takes four times as long as estimated, and two tokens of a short prompt are in it. */
START_TEST(a_small_share_is_corrected_little)
{
    sl_pace pace;
    sl_err err = {0};
    const sl_pace_part both[] = {{4096, 4106}, {0, 2}};
    ck_assert_int_eq(sl_pace_init(&pace, 8192, 1e6, &err), SL_OK);
    sl_pace_measured(&pace, &(sl_pace_part){0, 64}, 1, 64 * 0.1e6);
    for (int i = 0; i < 40; i++)
        sl_pace_measured(&pace, &both[0], 1, 10 * 2e6);
    for (int i = 0; i < 4; i++)
        sl_pace_measured(&pace, both, 2, 10 * 8e6);
    ck_assert(sl_pace_token_ns(&pace, 4096) > 7e6);
    ck_assert_double_eq_tol(sl_pace_token_ns(&pace, 0), 0.1e6, 0.01e6);
    sl_pace_free(&pace);
}
END_TEST

/* Random prompts and limits: a prompt that does not end gets whole units, a step computes something, and bounds hold but for the first
 * unit. */
START_TEST(units_are_never_divided)
{
    uint64_t seed = 11 + (uint64_t)_i;
    for (int round = 0; round < 2000; round++) {
        sl_order_turn t[6];
        int32_t sum = 0;
        const int32_t n = 1 + round % 6;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const sl_order_limit l = {.tokens = PAGE + (int32_t)(seed >> 40) % 700,
                                  .ns = seed >> 33 & 1 ? 1e6 * (double)(seed >> 50 & 255) : 0,
                                  .min_tokens = 1 + (int32_t)(seed >> 35 & 15),
                                  .unit = PAGE,
                                  .defer_aged = seed >> 34 & 1};
        for (int32_t i = 0; i < n; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            t[i] = (sl_order_turn){.left = 1 + (int32_t)(seed >> 45) % 2000,
                                   .token_ns = seed >> 60 & 1 ? 1e5 : 0,
                                   .passed = seed >> 61 & 1 ? 1 << 20 : 0};
        }
        const int32_t all = sl_order_prompts(t, n, &l);
        ck_assert_int_gt(all, 0);
        ck_assert_int_le(all, l.tokens);
        for (int32_t i = 0; i < n; i++) {
            ck_assert_msg(t[i].take == t[i].left || t[i].take % PAGE == 0, "round %d: %d of %d", round,
                          t[i].take, t[i].left);
            sum += t[i].take;
        }
        ck_assert_int_eq(sum, all);
    }
}
END_TEST

START_TEST(the_rate_follows_the_last_steps)
{
    sl_pace_rate r = {0};
    ck_assert_uint_eq(sl_pace_rate_add(&r, 100, 1e9), 100);
    for (int i = 0; i < 1000; i++)
        sl_pace_rate_add(&r, 500, 1e9);
    ck_assert_uint_ge(sl_pace_rate_add(&r, 500, 1e9), 499);
    ck_assert_uint_gt(sl_pace_rate_add(&r, 5000, 1e9), 600); /* one step of about 32 */
    ck_assert_uint_lt(sl_pace_rate_add(&r, 0, 0), 700);
    r = (sl_pace_rate){0};
    ck_assert_uint_eq(sl_pace_rate_add(&r, 10, 0), 1); /* a clock without resolution says nothing */
}
END_TEST

/* A context that was never measured: not estimated as faster than attention over its whole length can be. */
START_TEST(an_unknown_context_is_estimated_with_care)
{
    sl_pace pace;
    sl_err err = {0};
    ck_assert_int_eq(sl_pace_init(&pace, 65536, 1e6, &err), SL_OK);
    ck_assert_double_eq_tol(sl_pace_token_ns(&pace, 0), 1e6, 1);
    ck_assert_double_eq_tol(sl_pace_token_ns(&pace, 2 * SL_PACE_SPAN), 3e6, 1);
    sl_pace_measured(&pace, &(sl_pace_part){0, 10}, 1, 10 * 1e6);
    for (int i = 0; i < 40; i++)
        sl_pace_measured(&pace, &(sl_pace_part){SL_PACE_SPAN, SL_PACE_SPAN + 10}, 1, 10 * 5e6);
    ck_assert_double_eq_tol(sl_pace_token_ns(&pace, SL_PACE_SPAN + 7), 5e6, 100);
    ck_assert_double_eq_tol(sl_pace_token_ns(&pace, 3 * SL_PACE_SPAN), 10e6, 200);
    ck_assert_double_eq_tol(sl_pace_token_ns(&pace, 0), 1e6, 1);
    ck_assert(sl_pace_token_ns(&pace, 1 << 30) > 0); /* beyond the longest context: the last one's */
    sl_pace_free(&pace);
}
END_TEST

/* A step during which the process did not run changes the estimate by a bounded factor, and is soon forgotten. */
START_TEST(one_pause_does_not_count_for_long)
{
    sl_pace pace;
    sl_err err = {0};
    const sl_pace_part part = {0, 100};
    ck_assert_int_eq(sl_pace_init(&pace, 1000, 7e6, &err), SL_OK);
    sl_pace_measured(&pace, &part, 1, 1e8); /* the first step replaces the guess */
    ck_assert_double_eq_tol(sl_pace_token_ns(&pace, 0), 1e6, 1);
    sl_pace_measured(&pace, &part, 1, 1e13);
    ck_assert(sl_pace_token_ns(&pace, 0) < 3e6);
    for (int i = 0; i < 5; i++)
        sl_pace_measured(&pace, &part, 1, 1e8);
    ck_assert_double_eq_tol(sl_pace_token_ns(&pace, 0), 1e6, 0.1e6);
    sl_pace_measured(&pace, &part, 1, 0); /* a clock without resolution says nothing */
    ck_assert_double_eq_tol(sl_pace_token_ns(&pace, 0), 1e6, 0.1e6);
    sl_pace_free(&pace);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("worker/order");
    TCase *c = tcase_create("all");
    tcase_add_test(c, nothing_and_one);
    tcase_add_test(c, short_ones_first_in_a_short_step);
    tcase_add_test(c, many_short_ones_fill_the_chunk);
    tcase_add_test(c, whole_pages_unless_it_ends);
    tcase_add_test(c, a_long_prompt_ends);
    tcase_add_loop_test(c, shares_are_within_bounds, 0, 8);
    tcase_add_test(c, a_step_ends_in_time);
    tcase_add_test(c, a_short_step_is_short_in_time);
    tcase_add_test(c, aged_and_shortest_share_the_time);
    tcase_add_test(c, steps_keep_the_bound_at_every_context);
    tcase_add_test(c, steps_are_short_while_short_prompts_arrive);
    tcase_add_test(c, a_short_prompt_defers_the_aged);
    tcase_add_test(c, a_small_share_is_corrected_little);
    add_variants(c, units_are_never_divided, 2);
    tcase_add_test(c, the_rate_follows_the_last_steps);
    tcase_add_test(c, an_unknown_context_is_estimated_with_care);
    tcase_add_test(c, one_pause_does_not_count_for_long);
    suite_add_tcase(s, c);
    return run_suite(s);
}
