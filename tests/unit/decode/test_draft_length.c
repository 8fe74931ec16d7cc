/*
 * How many tokens are drafted, for simulated workers: a step with k drafts costs what the case says, and drafts stand with the
 * probabilities that it says. Against every fixed length, the rule must be near the best one, and it must find back when the
 * costs or the requests change.
 */
#include <check.h>
#include <stdlib.h>

#include "decode/run/draft_length.h"
#include "tests/unit/run_suite.h"

enum { STEPS = 20000 };

static uint64_t dice;

static double roll(void)
{
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(dice >> 11) / 9007199254740992.0;
}

typedef struct world {
    double cost[SL_DRAFTS_MAX + 1], stands[SL_DRAFTS_MAX]; /* ns; of a draft, if those before it stood */
} world;

/* Tokens of a request in this step, with n drafts. */
static int32_t stood(const world *w, int32_t n)
{
    int32_t k = 0;
    while (k < n && roll() < w->stands[k])
        k++;
    return k;
}

/* Tokens per second with `fixed` drafts in every step; -1: with the rule. */
static double rate(const world *w, sl_draft_cost *c, sl_draft_seen *s, int32_t fixed)
{
    double tokens = 0, ns = 0;
    for (int i = 0; i < STEPS; i++) {
        bool plain = fixed < 0 && sl_draft_cost_turn(c);
        int32_t n = fixed >= 0 ? fixed : plain ? 0 : sl_draft_length(c, s, SL_DRAFTS_MAX);
        int32_t k = stood(w, n);
        double took = w->cost[n] * (0.9 + 0.2 * roll());
        if (n < 0 || n > SL_DRAFTS_MAX) /* ck_assert() reports every success to the parent process */
            ck_abort_msg("%d drafts", n);
        if (fixed < 0) {
            sl_draft_saw(s, n, k);
            sl_draft_cost_saw(c, n, took);
        }
        tokens += 1 + k, ns += took;
    }
    return tokens / ns;
}

static double best(const world *w)
{
    double most = 0;
    for (int32_t n = 0; n <= SL_DRAFTS_MAX; n++) {
        double r = rate(w, NULL, NULL, n);
        most = r > most ? r : most;
    }
    return most;
}

/* Of generated costs and probabilities, from "drafts are free" to "every draft costs a step". */
static world make(void)
{
    world w = {.cost = {1e6}};
    double adds = roll() * roll() * 1.2, falls = 0.5 + 0.5 * roll(), stands = roll();
    for (int32_t k = 0; k < SL_DRAFTS_MAX; k++) {
        w.cost[k + 1] = w.cost[k] + adds * 1e6 * (0.7 + 0.6 * roll());
        w.stands[k] = stands;
        stands *= falls;
    }
    return w;
}

START_TEST(near_the_best_length)
{
    dice = 1000 + (uint64_t)_i;
    world w = make();
    sl_draft_cost c = {0};
    sl_draft_seen s = {0};
    double got = rate(&w, &c, &s, -1), most = best(&w);
    ck_assert_msg(got > 0.93 * most,
                  "%.4g of %.4g tokens/s: costs %.2f %.2f %.2f %.2f, stand %.2f %.2f %.2f %.2f", got * 1e9,
                  most * 1e9, w.cost[1] / 1e6, w.cost[2] / 1e6, w.cost[3] / 1e6, w.cost[4] / 1e6, w.stands[0],
                  w.stands[1], w.stands[2], w.stands[3]);
    world other = make(); /* the same worker and request, later */
    got = rate(&other, &c, &s, -1), most = best(&other);
    ck_assert_msg(got > 0.93 * most, "after a change %.4g of %.4g tokens/s", got * 1e9, most * 1e9);
}
END_TEST

/* Every batch and context has a size, neighbours within a power share one, and longer ones never have a smaller one. */
START_TEST(sizes)
{
    static sl_draft_costs c;
    const sl_draft_cost *first = &c.of[0][0], *end = first + SL_DRAFT_BATCHES * SL_DRAFT_CONTEXTS;
    ck_assert(sl_draft_cost_of(&c, 64, 64 * 60000) == sl_draft_cost_of(&c, 127, 127 * 20000ll));
    ck_assert(sl_draft_cost_of(&c, 63, 63 * 60000) != sl_draft_cost_of(&c, 64, 64 * 60000));
    ck_assert(sl_draft_cost_of(&c, 1, 4095) == &c.of[0][0] && sl_draft_cost_of(&c, 1, 4096) == &c.of[0][1]);
    for (int32_t b = 0; b < 3000; b++)
        for (int64_t mean = 0; mean < 1 << 22; mean = 3 * mean + 1) {
            const sl_draft_cost *x = sl_draft_cost_of(&c, b, b * mean),
                                *more = sl_draft_cost_of(&c, b + 1, (b + 1) * mean);
            if (x < first || x >= end || more < x)
                ck_abort_msg("batch %d, context %ld", b, (long)mean);
        }
}
END_TEST

/* One request, while others come and go: alone drafts are nearly free, in the batch each costs a step. */
START_TEST(batches_that_change)
{
    const world alone = {.cost = {1e6, 1.05e6, 1.1e6, 1.15e6, 1.2e6}, .stands = {0.9, 0.8, 0.7, 0.6}},
                many = {.cost = {4e6, 8e6, 12e6, 16e6, 20e6}, .stands = {0.9, 0.8, 0.7, 0.6}};
    static sl_draft_costs c;
    sl_draft_seen s = {0};
    double tokens[2] = {0}, ns[2] = {0};
    dice = 5;
    for (int i = 0; i < STEPS; i++) {
        const int at = i / 20 % 2;
        const world *w = at ? &many : &alone;
        sl_draft_cost *own = sl_draft_cost_of(&c, at ? 64 : 1, at ? 64 * 9000 : 9000);
        int32_t n = sl_draft_cost_turn(own) ? 0 : sl_draft_length(own, &s, SL_DRAFTS_MAX), k = stood(w, n);
        sl_draft_saw(&s, n, k);
        sl_draft_cost_saw(own, n, w->cost[n]);
        tokens[at] += 1 + k, ns[at] += w->cost[n];
    }
    for (int at = 0; at < 2; at++) {
        double got = tokens[at] / ns[at], most = best(at ? &many : &alone);
        ck_assert_msg(got > 0.93 * most, "%s: %.4g of %.4g tokens/s", at ? "in the batch" : "alone",
                      got * 1e9, most * 1e9);
    }
}
END_TEST

/* Where nothing stands, drafts cost little more than their probes. */
START_TEST(off_where_it_does_not_pay)
{
    world w = {.cost = {1e6, 2e6, 3e6, 4e6, 5e6}};
    sl_draft_cost c = {0};
    sl_draft_seen s = {0};
    dice = 3;
    double got = rate(&w, &c, &s, -1);
    ck_assert_msg(got > 0.97e-6, "%.4g of 1000 tokens/s", got * 1e9);
    int32_t some = 0;
    for (int i = 0; i < 10 * SL_DRAFT_PROBE; i++) {
        int32_t n = sl_draft_length(&c, &s, SL_DRAFTS_MAX);
        ck_assert_int_le(n, 1);
        sl_draft_saw(&s, n, 0);
        some += n;
    }
    ck_assert_int_eq(some, 10);
    ck_assert_int_eq(sl_draft_length(&c, &s, 0), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("decode/draft_length");
    TCase *c = tcase_create("length");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, near_the_best_length, 0, 60);
    tcase_add_test(c, off_where_it_does_not_pay);
    tcase_add_test(c, sizes);
    tcase_add_test(c, batches_that_change);
    suite_add_tcase(s, c);
    return run_suite(s);
}
