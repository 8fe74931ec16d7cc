/*
 * Log-probabilities of a prompt over gRPC: which requests ask for them, are refused or are served as if they asked for none; and what is
 * kept of them, for every place that they begin at, in parts of every size: the tokens from this place on, in order, and once. Their memory
 * is in the budget from the moment that they come.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "router/grpc/generate.h"
#include "sglang_scheduler.pb-c.h"
#include "tests/unit/router/harness.h"
#include "tests/unit/run_suite.h"

enum { PROMPT = 9, TOP = 2 };

static harness h;

static void setup(void)
{
    h_init(&h);
    h.o.front.max_request_bytes = 1 << 20;
    h_open(&h);
}

static void teardown(void)
{
    h_close(&h);
}

/* ---- requests ---- */

static const struct {
    int32_t from, top;
    bool wanted, stream;
    sl_status st;
    int32_t asked; /* sl_sampling.prompt_logprobs */
    const char *reason;
} requests[] = {
    {0, 0, true, false, SL_OK, 0, ""},
    {-1, 0, true, false, SL_OK, 0, ""},
    {0, 0, true, true, SL_OK, 0, ""},
    {-1, 3, true, true, SL_OK, 0, ""},
    {1, 0, false, true, SL_OK, 0, ""}, /* no log-probabilities at all */
    {1, 0, true, false, SL_OK, 1, ""},
    {1, 20, true, false, SL_OK, 21, ""},
    {PROMPT - 1, 5, true, false, SL_OK, 6, ""},
    {PROMPT, 0, true, false, SL_ERR_INVALID, 0, "the prompt has 9 tokens"},
    {INT32_MAX, 0, true, false, SL_ERR_INVALID, 0, "the prompt has 9 tokens"},
    {-2, 0, true, false, SL_ERR_INVALID, 0, "must be -1 or more"},
    {INT32_MIN, 0, true, false, SL_ERR_INVALID, 0, "must be -1 or more"},
    {1, 0, true, true, SL_ERR_UNSUPPORTED, 0, "need stream false"},
    {1, 21, true, false, SL_ERR_INVALID, 0, "top_logprobs_num: must be 0 to 20"},
};

static sl_status read_one(size_t i, sl_request_spec *s, sl_guard *guard, sl_err *err)
{
    uint32_t ids[PROMPT] = {0};
    Sglang__Grpc__Scheduler__TokenizedInput t = SGLANG__GRPC__SCHEDULER__TOKENIZED_INPUT__INIT;
    Sglang__Grpc__Scheduler__GenerateRequest q = SGLANG__GRPC__SCHEDULER__GENERATE_REQUEST__INIT;
    t.n_input_ids = PROMPT;
    t.input_ids = ids;
    q.tokenized = &t;
    q.return_logprob = requests[i].wanted;
    q.logprob_start_len = requests[i].from;
    q.top_logprobs_num = requests[i].top;
    q.stream = requests[i].stream;
    sl_request_spec_init(s);
    return generate_read(h.r, &q, s, 0, guard, err);
}

START_TEST(who_asks)
{
    sl_request_spec s;
    sl_err err = {""};
    const sl_status st = read_one((size_t)_i, &s, NULL, &err);
    ck_assert_msg(st == requests[_i].st && strstr(err.text, requests[_i].reason), "%d: %s", st, err.text);
    if (!st)
        ck_assert_int_eq(s.sampling.prompt_logprobs, requests[_i].asked);
    sl_request_spec_free(&s);
}
END_TEST

static bool always(sl_guard *g, uint64_t bytes)
{
    (void)g, (void)bytes;
    return true;
}

/* From both sides of what the whole budget is. */
START_TEST(what_never_fits_is_refused)
{
    enum { ASKS = 6 }; /* of requests[]: from the second token on, 20 others each */
    const uint64_t need = (PROMPT - 1) * generate_score_bytes(20);
    for (uint64_t less = 0; less < 2; less++) {
        sl_guard guard = {.hold = always, .most = need - less};
        sl_request_spec s;
        sl_err err = {""};
        ck_assert_int_eq(read_one(ASKS, &s, &guard, &err), less ? SL_ERR_TOO_LARGE : SL_OK);
        ck_assert(!less || strstr(err.text, "router.max_request_bytes"));
        sl_request_spec_free(&s);
    }
}
END_TEST

/* ---- what is kept ---- */

static uint64_t held(void)
{
    return __atomic_load_n(&sl_router_shared(h.r)->budget.held, __ATOMIC_RELAXED);
}

static sl_msg_token score(uint32_t at)
{
    return (sl_msg_token){.id = 100 + (int32_t)at,
                          .logprob = at == 3 ? -INFINITY : -(float)at,
                          .n_top = TOP,
                          .top_ids = {(int32_t)at, 7},
                          .top_logprobs = {-0.5f, -(float)at}};
}

/* All of a prompt of n tokens, at most `part` in one output. */
static sl_status give(generation *g, uint32_t n, uint32_t part)
{
    for (uint32_t at = 1; at < n; at += part) {
        sl_msg_token list[64];
        sl_output o = {.scores = list, .matched_token = -1, .prompt_tokens = n};
        for (; o.n_scores < part && at + o.n_scores < n; o.n_scores++)
            list[o.n_scores] = score(at + (uint32_t)o.n_scores);
        sl_status st = generate_keep(g, &o);
        if (st)
            return st;
    }
    return SL_OK;
}

static void check_kept(const generation *g, uint32_t n, uint32_t from)
{
    const token_list *p = &g->out->prompt;
    ck_assert_uint_eq(p->n, from ? n - from : 0);
    ck_assert_uint_eq(g->out->out.n, 0);
    for (uint32_t i = 0; i < p->n; i++) {
        const sl_msg_token want = score(from + i);
        ck_assert_uint_eq(p->ids[i], (uint32_t)want.id);
        ck_assert_float_eq(p->logprobs[i], from + i == 3 ? -9999.0f : want.logprob);
        ck_assert(!g->top || p->tops[i].top_ids[0] == want.top_ids[0]);
    }
    ck_assert_uint_eq(g->held, p->cap * generate_score_bytes(g->top));
}

/* Every place, also none, parts of every size, with and without others. */
START_TEST(the_tokens_from_a_place_on)
{
    enum { N = 40 };
    rpc_call call = {.r = h.r};
    for (uint32_t from = 0; from < N; from++) {
        for (uint32_t part = 1; part <= N; part++) {
            generation g = {
                .call = &call, .logprobs = true, .top = part % 2 * TOP, .n = 1, .first_scored = from};
            g.out = calloc(1, sizeof *g.out);
            const uint64_t before = held();
            ck_assert_int_eq(give(&g, N, part), SL_OK);
            check_kept(&g, N, from);
            ck_assert_uint_eq(held() - before, g.held);
            generate_free_outputs(&g);
            ck_assert_uint_eq(held(), before);
        }
    }
}
END_TEST

/* A prompt of more than the budget ends in an error, with no more held than there is. */
START_TEST(the_budget_bounds_them)
{
    rpc_call call = {.r = h.r};
    generation g = {.call = &call, .logprobs = true, .top = TOP, .n = 1, .first_scored = 1};
    g.out = calloc(1, sizeof *g.out);
    ck_assert_int_eq(give(&g, 1 << 20, 64), SL_ERR_EXHAUSTED);
    ck_assert_uint_gt(g.out->prompt.n, 100);
    ck_assert_uint_le(held(), h.o.front.max_request_bytes);
    generate_free_outputs(&g);
    ck_assert_uint_eq(held(), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("grpc generate");
    TCase *t = tcase_create("log-probabilities of a prompt");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, who_asks, 0, (int)SL_COUNT(requests));
    tcase_add_test(t, what_never_fits_is_refused);
    tcase_add_test(t, the_tokens_from_a_place_on);
    tcase_add_test(t, the_budget_bounds_them);
    suite_add_tcase(s, t);
    return run_suite(s);
}
