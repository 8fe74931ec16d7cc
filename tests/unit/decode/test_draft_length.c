/*
 * How many tokens are drafted, for simulated workers: a step with k drafts costs what the case says, waits for the rows of its tokens
 * as long as the case's link says, and drafts stand with the probabilities that it says. Against every fixed length, the rule must be
 * near the best one, and it must find back when the costs, the requests or the link change. A slower link never makes drafts longer.
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
    double bytes, wait;                                    /* that a token misses; ns for a byte */
} world;

/* A worker of requests alone, of one size. */
typedef struct worker {
    sl_draft_costs costs;
    sl_draft_moved moved;
    int steps;
} worker;

static sl_draft_cost *only(worker *w)
{
    return &w->costs.of[0][0];
}

/* A step with n drafts has ended: every eighth is asked what they moved. */
static double step_ended(worker *k, const world *w, int32_t n, double rows_ns)
{
    const double waited = (1 + n) * w->bytes * w->wait, took = (w->cost[n] + waited) * (0.9 + 0.2 * roll());
    sl_draft_cost_saw(only(k), rows_ns, n, took);
    k->moved.tokens += 1 + (uint64_t)n;
    k->moved.bytes += (uint64_t)((1 + n) * w->bytes);
    k->moved.waited_ns += (uint64_t)waited;
    if (++k->steps % 8 == 0) {
        sl_draft_link_saw(&k->costs, only(k), &k->moved);
        k->moved = (sl_draft_moved){0};
    }
    return took;
}

/* Tokens of a request in this step, with n drafts. */
static int32_t stood(const world *w, int32_t n)
{
    int32_t k = 0;
    while (k < n && roll() < w->stands[k])
        k++;
    return k;
}

/* Tokens per second with `fixed` drafts in every step. */
static double fixed_rate(const world *w, int32_t fixed)
{
    double tokens = 0;
    for (int i = 0; i < STEPS; i++)
        tokens += 1 + stood(w, fixed);
    return tokens / (STEPS * (w->cost[fixed] + (1 + fixed) * w->bytes * w->wait));
}

/* With the rule, over this many steps. */
static double rate(const world *w, worker *k, sl_draft_seen *s, int steps)
{
    double tokens = 0, ns = 0;
    for (int i = 0; i < steps; i++) {
        const double rows_ns = sl_draft_rows_ns(&k->costs, only(k), 1);
        bool plain = sl_draft_cost_turn(only(k));
        int32_t n = plain ? 0 : sl_draft_length(only(k), rows_ns, s, SL_DRAFTS_MAX), right = stood(w, n);
        if (n < 0 || n > SL_DRAFTS_MAX) /* ck_assert() reports every success to the parent process */
            ck_abort_msg("%d drafts", n);
        sl_draft_saw(s, n, right);
        tokens += 1 + right;
        ns += step_ended(k, w, n, rows_ns);
    }
    return tokens / ns;
}

static double best(const world *w)
{
    double most = 0;
    for (int32_t n = 0; n <= SL_DRAFTS_MAX; n++) {
        double r = fixed_rate(w, n);
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
    if (roll() < 0.7) { /* else all rows are on the device */
        w.bytes = 1e3 + 1e6 * roll();
        w.wait = 3e6 * roll() * roll() / w.bytes; /* up to three times the plain step for a token */
    }
    return w;
}

static void near_best(const char *when, const world *w, worker *k, sl_draft_seen *s)
{
    double got = rate(w, k, s, STEPS), most = best(w);
    ck_assert_msg(
        got > 0.93 * most,
        "%s %.4g of %.4g tokens/s: costs %.2f %.2f %.2f %.2f, waits %.2f, stand %.2f %.2f %.2f %.2f", when,
        got * 1e9, most * 1e9, w->cost[1] / 1e6, w->cost[2] / 1e6, w->cost[3] / 1e6, w->cost[4] / 1e6,
        w->bytes * w->wait / 1e6, w->stands[0], w->stands[1], w->stands[2], w->stands[3]);
}

START_TEST(near_the_best_length)
{
    dice = 1000 + (uint64_t)_i;
    world w = make();
    worker k = {0};
    sl_draft_seen s = {0};
    near_best("first", &w, &k, &s);
    world other = make(); /* the same worker and request, later */
    near_best("after a change", &other, &k, &s);
    other.wait *= roll() < 0.5 ? 8 : 0.1;
    near_best("after a change of the link", &other, &k, &s);
}
END_TEST

/* A worker and a request with any history. */
static void history(worker *k, sl_draft_seen *s)
{
    for (int n = 1 + (int)(3 * roll()); n > 0; n--) {
        world w = make();
        rate(&w, k, s, (int)(300 * roll()));
    }
}

/* Drafts for the next step if the link has just been seen to take `wait` for a byte, and a token to miss `bytes`. */
static int32_t next_with(const worker *k, const sl_draft_seen *s, double wait, double bytes, int32_t batch,
                         int32_t most)
{
    worker at = *k;
    sl_draft_seen seen = *s;
    const sl_draft_moved m = {
        .tokens = 1000, .bytes = (uint64_t)(1000 * bytes), .waited_ns = (uint64_t)(1000 * bytes * wait)};
    for (int i = 0; i < 40; i++)
        sl_draft_link_saw(&at.costs, only(&at), &m);
    return sl_draft_length(only(&at), sl_draft_rows_ns(&at.costs, only(&at), batch), &seen, most);
}

START_TEST(a_slower_link_never_drafts_more)
{
    int fewer = 0;
    for (uint64_t c = 0; c < 2000; c++) {
        dice = 77 + c;
        worker k = {0};
        sl_draft_seen s = {0};
        history(&k, &s);
        const int32_t batch = 1 + (int32_t)(70 * roll()), most = 1 + (int32_t)(SL_DRAFTS_MAX * roll());
        const double bytes = 1 + 1e6 * roll();
        int32_t before = SL_DRAFTS_MAX, first = -1;
        for (double wait = 1e-4; wait < 1e4; wait *= 1 + 3 * roll()) {
            int32_t n = next_with(&k, &s, wait, bytes, batch, most);
            if (n > before)
                ck_abort_msg("case %d: %d drafts, and %d with %.3g ns for a byte", (int)c, before, n, wait);
            first = first < 0 ? n : first;
            before = n;
        }
        fewer += before < first;
        /* more rows are as a slower link; and without any the link is nothing */
        if (next_with(&k, &s, 1, 3 * bytes, batch, most) > next_with(&k, &s, 1, bytes, batch, most))
            ck_abort_msg("case %d: more drafts for more rows", (int)c);
        if (next_with(&k, &s, 1e-4, 0, batch, most) != next_with(&k, &s, 1e4, 0, batch, most))
            ck_abort_msg("case %d: the link matters with all rows on the device", (int)c);
    }
    ck_assert_int_gt(fewer, 200); /* else nothing was tried */
}
END_TEST

/* The link becomes slow, or fast again. The steps that see it are few, and those that are measured anew fewer still. */
START_TEST(the_link_changes)
{
    world w = {.cost = {1e6, 1.1e6, 1.2e6, 1.3e6, 1.4e6}, .stands = {0.85, 0.8, 0.75, 0.7}, .bytes = 1000};
    worker k = {0};
    sl_draft_seen s = {0};
    dice = 9;
    for (int turn = 0; turn < 6; turn++) {
        w.wait = turn % 2 ? 3000 : 30;
        rate(&w, &k, &s, 64); /* eight readings */
        double got = rate(&w, &k, &s, 2000), most = best(&w);
        ck_assert_msg(got > 0.9 * most, "turn %d: %.4g of %.4g tokens/s", turn, got * 1e9, most * 1e9);
        int32_t n = sl_draft_length(only(&k), sl_draft_rows_ns(&k.costs, only(&k), 1), &s, SL_DRAFTS_MAX);
        ck_assert_msg(turn % 2 ? n <= 2 : n >= 3, "turn %d: %d drafts", turn, n);
    }
}
END_TEST

/* Drafts stand as published layers have them, and four of them cost a fifth of a step: all four pay while rows are free. Where a step is
 * only the link, q tokens cost q times one of which fewer stand, so none pays; and in between the number only falls. */
START_TEST(from_free_rows_to_the_link_alone)
{
    const sl_draft_seen known = {.stands = {0.85f, 0.8f, 0.735f, 0.6f}, .n = {100, 100, 100, 100}};
    sl_draft_cost c = {0};
    int32_t before = SL_DRAFTS_MAX, lengths = 0;
    for (int32_t k = 0; k <= SL_DRAFTS_MAX; k++)
        sl_draft_cost_saw(&c, 0, k, 1e6 + 5e4 * k);
    for (double rows_ns = 0; rows_ns < 1e8; rows_ns = 1.2 * rows_ns + 1e3) {
        sl_draft_seen s = known;
        int32_t n = sl_draft_length(&c, rows_ns, &s, SL_DRAFTS_MAX);
        ck_assert(rows_ns > 0 || n == SL_DRAFTS_MAX);
        ck_assert_int_le(n, before);
        lengths += n < before;
        before = n;
    }
    ck_assert_int_eq(before, 0);
    ck_assert_int_ge(lengths, 3);
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
        int32_t n = sl_draft_cost_turn(own) ? 0 : sl_draft_length(own, 0, &s, SL_DRAFTS_MAX), k = stood(w, n);
        sl_draft_saw(&s, n, k);
        sl_draft_cost_saw(own, 0, n, w->cost[n]);
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
    worker c = {0};
    sl_draft_seen s = {0};
    dice = 3;
    double got = rate(&w, &c, &s, STEPS);
    ck_assert_msg(got > 0.97e-6, "%.4g of 1000 tokens/s", got * 1e9);
    int32_t some = 0;
    for (int i = 0; i < 10 * SL_DRAFT_PROBE; i++) {
        int32_t n = sl_draft_length(only(&c), 0, &s, SL_DRAFTS_MAX);
        ck_assert_int_le(n, 1);
        sl_draft_saw(&s, n, 0);
        some += n;
    }
    ck_assert_int_eq(some, 10);
    ck_assert_int_eq(sl_draft_length(only(&c), 0, &s, 0), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("decode/draft_length");
    TCase *c = tcase_create("length");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, near_the_best_length, 0, 60);
    tcase_add_test(c, a_slower_link_never_drafts_more);
    tcase_add_test(c, the_link_changes);
    tcase_add_test(c, from_free_rows_to_the_link_alone);
    tcase_add_test(c, off_where_it_does_not_pay);
    tcase_add_test(c, sizes);
    tcase_add_test(c, batches_that_change);
    suite_add_tcase(s, c);
    return run_suite(s);
}
