/*
 * Steps with drafts in the batch: whatever number is drafted, the stream of a request is that of steps of one token, at the end of
 * pages, at the limits of its length and of the context, and in batches. A runner that drafts the right token at four of five positions
 * stands for the model.
 */
#include "tests/unit/decode/decode_double.h"
#include "tests/unit/run_suite.h"

enum { MOST = 200, PROMPT = 40 };

static decode_double x;
static dd_opts o;

static void open_with(int drafts, int max_context)
{
    o = dd_defaults();
    o.drafts = drafts;
    o.max_context = max_context;
    o.overlaps = true; /* which drafts turn off */
    dd_open(&x, &o);
    ck_assert_int_eq(x.d->run->depth, drafts ? 1 : SL_STEPS_IN_FLIGHT);
}

/* The stream of a request without drafts. Its prompt's rows are those of an arena that was just made. */
static void reference(int n_prompt, int seed, int32_t *out, int n)
{
    bool worked = true;
    open_with(0, 1024);
    dd_verified(&x, 1, n_prompt, n + 8, seed);
    for (const sl_ticket *t = dd_ticket(&x, 1); worked && t; t = dd_ticket(&x, 1)) {
        int have = t->n_tokens - t->n_prompt;
        memcpy(out, t->tokens + t->n_prompt, (size_t)(have < n ? have : n) * sizeof *out);
        ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    }
    x.seen = x.n_said;
    dd_close(&x);
}

/* One step; the tokens that each of the running requests has are those of its stream. */
static bool step(const uint64_t *rids, int32_t want[][MOST], int n)
{
    bool worked;
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    for (int i = 0; i < n; i++) {
        const sl_ticket *t = dd_ticket(&x, rids[i]);
        for (int k = 0; t && k < t->n_tokens - t->n_prompt; k++)
            ck_assert_msg(t->tokens[t->n_prompt + k] == want[i][k], "request %d, token %d: %d, not %d", i, k,
                          t->tokens[t->n_prompt + k], want[i][k]);
        ck_assert(!t || t->rows <= t->n_tokens);
    }
    return worked;
}

/* The messages of a request so far: how many tokens it was given; *done: it has ended. */
static uint32_t told(uint64_t rid, bool *done)
{
    uint32_t tokens = 0;
    for (int i = 0; i < x.n_said; i++)
        if (x.said[i].rid == rid && x.said[i].type == SL_MSG_DONE)
            tokens = x.said[i].produced, *done = true;
    return tokens;
}

START_TEST(streams_and_limits)
{
    static const int lengths[] = {1, 2, 5, 6, 23, 24, 25, 89, 150};
    uint64_t wrong = 0;
    for (size_t c = 0; c < SL_COUNT(lengths); c++) {
        static int32_t want[2][MOST];
        const uint64_t rids[] = {1, 2};
        bool done[2] = {false};
        for (int i = 0; i < 2; i++)
            reference(PROMPT + 23 * i, 1 + i, want[i], lengths[c] + 3);
        open_with(_i, 1024);
        dd_verified(&x, 1, PROMPT, lengths[c] + 1, 1);
        dd_verified(&x, 2, PROMPT + 23, lengths[c] + 3, 2);
        int steps = 0;
        while (step(rids, want, 2))
            ck_assert_int_lt(steps++, 2 * MOST);
        ck_assert_int_eq((int)told(1, &done[0]), lengths[c] + 1);
        ck_assert_int_eq((int)told(2, &done[1]), lengths[c] + 3);
        ck_assert(done[0] && done[1]);
        sl_run_stats st = dd_counts(&x);
        if (_i > 0 && lengths[c] > 20) {
            ck_assert_int_lt(steps, lengths[c] + 3);
            ck_assert_uint_gt(st.accepted[0], 0);
            for (int k = 0; k < _i; k++)
                wrong += st.drafted[k] - st.accepted[k];
        }
        for (int k = 0; k < SL_DRAFTS_MAX; k++)
            ck_assert(k < _i || st.drafted[k] == 0);
        x.seen = x.n_said;
        dd_close(&x);
    }
    ck_assert_int_eq(wrong > 0, _i > 0);
}
END_TEST

/* The context ends the stream, and as many tokens are told as fit. */
START_TEST(context_is_full)
{
    static int32_t want[1][MOST];
    reference(PROMPT, 1, want[0], 50);
    open_with(4, PROMPT + 50);
    dd_verified(&x, 1, PROMPT, 200, 1);
    while (step((uint64_t[]){1}, want, 1))
        ;
    bool done = false;
    ck_assert_int_eq((int)told(1, &done), 50);
    ck_assert(done);
    x.seen = x.n_said;
    dd_close(&x);
}
END_TEST

/* Its pages, with the drafts that stand, are found by the next turn of the conversation. */
START_TEST(produced_pages_are_reused)
{
    static int32_t want[1][MOST];
    reference(PROMPT, 1, want[0], 130);
    open_with(4, 1024);
    dd_verified(&x, 1, PROMPT, 130, 1);
    while (step((uint64_t[]){1}, want, 1))
        ;
    x.seen = x.n_said;
    ck_assert_int_eq(dd_held(&x), 0);
    sl_store_stats store;
    sl_store_stats_get(x.d->role.store, &store);
    ck_assert_int_ge(store.cached, 2); /* 169 rows, of which the last few may not be counted */
    dd_close(&x);
}
END_TEST

/* The state of a COMMIT reaches the sequence, when it is that of its last token and of the runner's size. */
START_TEST(states_of_commits)
{
    static const struct {
        uint64_t tokens;
        size_t bytes;
        int set;
    } cases[] = {{PROMPT, 8, 1}, {PROMPT, 0, 0}, {PROMPT, 4, 0}, {PROMPT - 1, 8, 0}};
    for (size_t c = 0; c < SL_COUNT(cases); c++) {
        const uint64_t state = fake_hidden(cases[c].tokens);
        bool worked = true;
        open_with(2, 1024);
        x.hidden = (sl_blob){(const uint8_t *)&state, cases[c].bytes};
        dd_verified(&x, 1, PROMPT, 20, 1);
        ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
        ck_assert_int_eq(fake_hidden_set(x.fake), cases[c].set);
        while (worked)
            ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
        bool done = false;
        ck_assert_int_eq((int)told(1, &done), 20);
        x.seen = x.n_said;
        x.hidden = (sl_blob){0};
        dd_close(&x);
    }
}
END_TEST

/* Role both: a request whose prompt is computed, and that waits for the batch without a sequence, keeps its state. */
START_TEST(states_of_waiting_requests)
{
    bool worked = true;
    o = dd_defaults();
    o.drafts = 2, o.max_context = 1024, o.max_batch = 1, o.chunk = 64, o.prompts = 2;
    dd_open(&x, &o);
    for (uint64_t rid = 1; rid <= 3; rid++)
        dd_reserve_own(&x, rid, PROMPT, 20, (int)rid);
    while (worked)
        ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    bool done[3] = {false};
    for (uint64_t rid = 1; rid <= 3; rid++) {
        ck_assert_int_eq((int)told(rid, &done[rid - 1]), 20);
        ck_assert(done[rid - 1]);
    }
    ck_assert_int_ge(fake_hidden_set(x.fake), 1);
    x.seen = x.n_said;
    dd_close(&x);
}
END_TEST

/* The check at start: it sees noise, counts what is right, holds nothing afterwards, and changes no stream. */
START_TEST(check_of_a_fixed_text)
{
    static const struct {
        int drafts;
        bool noise;
        int least, most;
    } cases[] = {{0, false, -1, -1}, {2, false, 20, 31}, {-1, false, 20, 31}, {2, true, 0, 0}};
    for (size_t c = 0; c < SL_COUNT(cases); c++) {
        o = dd_defaults();
        o.drafts = cases[c].drafts, o.noise = cases[c].noise, o.max_context = 1024;
        dd_open(&x, &o);
        const int right = sl_drafts_check(x.d->run);
        ck_assert_msg(right >= cases[c].least && right <= cases[c].most, "case %zu: %d", c, right);
        ck_assert_int_eq(dd_held(&x), 0);
        ck_assert_int_eq(fake_open_seqs(x.fake), 0);
        sl_store_stats store;
        sl_store_stats_get(x.d->role.store, &store);
        ck_assert_int_eq(store.cached, 0);
        dd_close(&x);
        o.max_context = 60; /* which the text does not fit */
        dd_open(&x, &o);
        ck_assert_int_eq(sl_drafts_check(x.d->run), -1);
        dd_close(&x);
    }
}
END_TEST

/* A long answer with as many drafts as pay. After the first readings of the link: drafts, steps, and at last the wait for a token's rows. */
static double drafted_over(uint64_t row_bytes, double *drafts, double *steps)
{
    bool worked = true;
    o = dd_defaults();
    o.drafts = -1, o.max_context = 2048, o.pages = 64, o.row_bytes = row_bytes, o.row_wait_ns = 1000000000;
    dd_open(&x, &o);
    dd_verified(&x, 1, PROMPT, 900, 1);
    sl_run_stats before = {0}, after;
    while (worked) {
        ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
        after = dd_counts(&x);
        if (after.steps <= 40)
            before = after;
        x.n_said = 0; /* what was told is not read */
    }
    *steps = (double)(after.steps - before.steps), *drafts = 0;
    for (int k = 0; k < SL_DRAFTS_MAX; k++)
        *drafts += (double)(after.drafted[k] - before.drafted[k]);
    const double rows_ns = x.d->run->drafts.rows_ns;
    x.seen = x.n_said;
    dd_close(&x);
    return rows_ns;
}

/* What the runner has moved, and how long it says that steps have waited, decides how many tokens are drafted: of a link on which a byte
 * takes a second, no more than the probes. Without rows the same link is nothing. */
START_TEST(the_link_decides)
{
    double drafts, steps;
    ck_assert_double_eq(drafted_over(0, &drafts, &steps), 0);
    ck_assert_double_eq(drafted_over(1000, &drafts, &steps), 1e12);
    ck_assert_msg(drafts < 0.1 * steps, "%.0f drafts in %.0f steps", drafts, steps);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("decode/drafts");
    TCase *c = tcase_create("drafts");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, streams_and_limits, 0, 5);
    tcase_add_test(c, context_is_full);
    tcase_add_test(c, the_link_decides);
    tcase_add_test(c, check_of_a_fixed_text);
    tcase_add_test(c, states_of_commits);
    tcase_add_test(c, states_of_waiting_requests);
    tcase_add_test(c, produced_pages_are_reused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
