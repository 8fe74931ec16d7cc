/*
 * The simulator with workers of role both, and with groups whose ranks step together: times that can be computed by hand,
 * conservation, and what is refused.
 */
#include <string.h>

#include "simulate/simulate.h"
#include "tests/unit/run_suite.h"

static sl_config cfg;
static sl_sim_costs costs;

/* 1 ms for each 64 tokens of prefill, 10 ms for each decode step; what both have in common is 1 ms. */
static const char simple[] = "message: {us: 0}\n"
                             "group: {exchange_us: 2000}\n"
                             "kv: {bytes_per_token: 1000}\n"
                             "prefill: {chunks: [64, 640], contexts: [0], step_ms: [1, 10]}\n"
                             "decode: {batches: [1], step_ms: [10]}\n"
                             "link: {gb_per_s: 1000}\n"
                             "price: {host_gib: 1, disk_gib: 0.1, prefill: 10, decode: 10}\n";

static const char one[] = "{\"timestamp\": 0, \"input_length\": 5120, \"output_length\": 80, \"hash_ids\": "
                          "[0,1,2,3,4,5,6,7,8,9]}\n";
/* one, and 50 ms later, while it decodes, another prompt of 10 blocks */
static const char two[] = "{\"timestamp\": 0, \"input_length\": 5120, \"output_length\": 80, \"hash_ids\": "
                          "[0,1,2,3,4,5,6,7,8,9]}\n"
                          "{\"timestamp\": 50, \"input_length\": 5120, \"output_length\": 8, \"hash_ids\": "
                          "[10,11,12,13,14,15,16,17,18,19]}\n";

static void setup(void)
{
    sl_err err = {""};
    sl_log_init(SL_LOG_ERROR, false, "test");
    sl_config_init(&cfg);
    cfg.kvstore.bytes = 1000 * 64 * 1000;
    cfg.prefill.max_step_ms = 0;
    cfg.prefill.chunk_tokens = 640;
    cfg.both.max_stall_ms = 0;
    cfg.decode.max_batch = 64;
    cfg.router.max_queue = 4096;
    ck_assert_msg(sl_sim_costs_parse(simple, strlen(simple), "simple", &costs, &err) == SL_OK, "%s",
                  err.text);
}

static sl_sim_opts both(const sl_sim_trace *t, int32_t workers, int32_t ranks)
{
    return (sl_sim_opts){.cfg = &cfg,
                         .costs = &costs,
                         .trace = t,
                         .both = true,
                         .decodes = workers,
                         .decode_ranks = ranks,
                         .length = 0.125,
                         .page_tokens = 64,
                         .ttft_ms = 1000,
                         .itl_ms = 20};
}

static sl_sim_result simulate(const sl_sim_opts *o)
{
    sl_sim_result r;
    sl_err err = {""};
    ck_assert_msg(sl_simulate(o, &r, &err) == SL_OK, "%s", err.text);
    ck_assert_uint_eq(r.requests, r.finished + r.refused + r.failed);
    return r;
}

static sl_sim_result simulate_text(const char *text, int32_t workers, int32_t ranks)
{
    sl_sim_trace t;
    sl_err err = {""};
    ck_assert_msg(sl_sim_trace_parse(text, strlen(text), "t", &t, &err) == SL_OK, "%s", err.text);
    sl_sim_opts o = both(&t, workers, ranks);
    sl_sim_result r = simulate(&o);
    sl_sim_trace_free(&t);
    return r;
}

START_TEST(one_request_by_hand)
{
    sl_sim_result r = simulate_text(one, 1, 1);
    ck_assert_double_eq_tol(r.ttft_ms.max, 10, 0.1); /* no rows travel */
    ck_assert_double_eq_tol(r.itl_ms.p50, 10, 0.1);
    ck_assert_double_eq_tol(r.tpot_ms.p50, 10, 0.01);
    ck_assert_double_eq_tol(r.tokens_computed, 640, 0.01);
    ck_assert_double_eq_tol(r.prefill_busy, 0.1, 0.01); /* 10 of 100 ms */
    ck_assert_double_eq_tol(r.decode_busy, 0.9, 0.01);
}
END_TEST

/* A prompt in one piece adds its 10 ms, less what both read once, to one gap; with a bound of 3 ms it comes in pieces. */
START_TEST(a_prompt_holds_a_stream_back_as_far_as_it_may)
{
    sl_sim_result r = simulate_text(two, 1, 1);
    ck_assert_double_eq_tol(r.itl_ms.max, 19, 0.1);
    ck_assert_double_eq_tol(r.tpot_ms.max, 11, 0.01); /* 9 gaps, one of which has 9 ms more */
    cfg.both.max_stall_ms = 3;
    sl_sim_result bounded = simulate_text(two, 1, 1);
    ck_assert_msg(bounded.itl_ms.max > 10.5 && bounded.itl_ms.max < 13.5, "%.2f", bounded.itl_ms.max);
    ck_assert_msg(bounded.ttft_ms.max > r.ttft_ms.max, "%.2f, %.2f without a bound", bounded.ttft_ms.max,
                  r.ttft_ms.max);
}
END_TEST

START_TEST(a_cached_prefix_is_not_computed_again)
{
    static const char again[] =
        "{\"timestamp\": 0, \"input_length\": 5120, \"output_length\": 8, \"hash_ids\": [0,1,2,3,4,5,6,7,8,9]}\n"
        "{\"timestamp\": 900, \"input_length\": 5120, \"output_length\": 8, \"hash_ids\": [0,1,2,3,4,5,6,7,8,11]}\n";
    sl_sim_result r = simulate_text(again, 1, 1);
    ck_assert_double_eq_tol(r.tokens_host, 9 * 64, 0.01);
    ck_assert_double_eq_tol(r.tokens_computed, 11 * 64, 0.01);
    ck_assert_double_eq_tol(r.block_hits, 9.0 / 20, 1e-6);
}
END_TEST

/* The second request goes to the other rank, and its prompt of 30 ms makes the stream of the first wait. */
START_TEST(ranks_of_a_group_step_together)
{
    costs.prefill.step_ms.v[1] = 30;
    sl_sim_result alone = simulate_text(two, 2, 1), group = simulate_text(two, 2, 2);
    ck_assert_double_eq_tol(alone.itl_ms.max, 10, 0.1);
    ck_assert_double_eq_tol(group.itl_ms.max, 32, 0.1); /* and 2 ms of exchange */
    ck_assert_double_eq_tol(group.itl_ms.p50, 12, 0.1);
    ck_assert_double_eq_tol(alone.tokens_computed, group.tokens_computed, 0.01);
}
END_TEST

/* The first step of a request has what it takes to join the batch; the others have not. */
START_TEST(joining_is_part_of_the_first_step)
{
    costs.decode.join_us = 5000;
    costs.decode.join_ns_per_token = 1000;
    sl_sim_result r = simulate_text(one, 1, 1);
    ck_assert_double_eq_tol(r.itl_ms.max, 15.64, 0.1);
    ck_assert_double_eq_tol(r.itl_ms.p50, 10, 0.1);
    ck_assert_double_eq_tol(r.tpot_ms.p50, 10 + 5.64 / 9, 0.01);
}
END_TEST

static sl_sim_trace made(size_t n)
{
    sl_sim_trace t;
    ck_assert(sl_sim_trace_make(n, 1, &t) == SL_OK);
    return t;
}

static double prompts_of(const sl_sim_trace *t)
{
    double tokens = 0;
    for (size_t i = 0; i < t->n; i++)
        tokens += (t->requests[i].input + 7) / 8;
    return tokens;
}

static const struct {
    bool both;
    int32_t prefills, prefill_ranks, decodes, decode_ranks;
} shapes[] = {{true, 0, 0, 1, 0},  {true, 0, 0, 4, 0},  {true, 0, 0, 4, 2},
              {false, 2, 2, 2, 0}, {false, 2, 0, 4, 4}, {false, 4, 2, 4, 2}};

/* Every token of every prompt is found or computed, once, whatever the workers are; and equal inputs give equal results. */
START_TEST(nothing_is_lost)
{
    sl_sim_trace t = made(300);
    sl_sim_opts o = both(&t, shapes[_i].decodes, shapes[_i].decode_ranks);
    o.both = shapes[_i].both;
    o.prefills = shapes[_i].prefills;
    o.prefill_ranks = shapes[_i].prefill_ranks;
    sl_sim_result r = simulate(&o), again = simulate(&o);
    r.real_seconds = again.real_seconds = 0;
    ck_assert_mem_eq(&r, &again, sizeof r);
    ck_assert_uint_eq(r.finished, t.n);
    double found = r.tokens_host + r.tokens_prefill_cache + r.tokens_computed;
    ck_assert_msg(found > prompts_of(&t) - 0.5 && found < prompts_of(&t) + 0.5, "%.0f of %.0f", found,
                  prompts_of(&t));
    ck_assert(r.block_hits > 0 && r.prefill_busy > 0 && r.prefill_busy <= 1 && r.decode_busy <= 1);
    sl_sim_trace_free(&t);
}
END_TEST

static const struct {
    bool both;
    int32_t prefills, prefill_ranks, decodes, decode_ranks;
    const char *says;
} impossible[] = {{true, 1, 0, 1, 0, "next to workers of role both"},
                  {true, 0, 0, 0, 0, "at least one of each"},
                  {false, 0, 0, 1, 0, "at least one of each"},
                  {true, 0, 0, 3, 2, "3 both workers in groups of 2"},
                  {false, 3, 2, 2, 2, "3 prefill workers in groups of 2"},
                  {false, 2, 2, 5, 4, "5 decode workers in groups of 4"}};

START_TEST(impossible_workers_are_refused)
{
    sl_sim_trace t = made(20);
    sl_sim_opts o = both(&t, impossible[_i].decodes, impossible[_i].decode_ranks);
    sl_sim_result r;
    sl_err err = {""};
    o.both = impossible[_i].both;
    o.prefills = impossible[_i].prefills;
    o.prefill_ranks = impossible[_i].prefill_ranks;
    ck_assert_int_eq(sl_simulate(&o, &r, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, impossible[_i].says) != NULL, "%s", err.text);
    sl_sim_trace_free(&t);
}
END_TEST

/* Groups are bought as a whole, and role both never gets prefill workers. */
START_TEST(a_search_keeps_groups_whole)
{
    sl_sim_trace t = made(150);
    sl_sim_opts o = both(&t, 12, 4), best;
    sl_sim_search how = {.goodput = 0.5, .max_runs = 30};
    sl_sim_result r;
    sl_err err = {""};
    o.ttft_ms = 2000;
    o.itl_ms = 100;
    ck_assert_msg(sl_sim_search_run(&o, &how, &best, &r, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(best.prefills, 0);
    ck_assert_int_eq(best.decodes % 4, 0);
    ck_assert_int_lt(best.decodes, 12);
    sl_sim_trace_free(&t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("simulated roles");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, one_request_by_hand);
    tcase_add_test(t, a_prompt_holds_a_stream_back_as_far_as_it_may);
    tcase_add_test(t, a_cached_prefix_is_not_computed_again);
    tcase_add_test(t, ranks_of_a_group_step_together);
    tcase_add_test(t, joining_is_part_of_the_first_step);
    tcase_add_loop_test(t, nothing_is_lost, 0, SL_COUNT(shapes));
    tcase_add_loop_test(t, impossible_workers_are_refused, 0, SL_COUNT(impossible));
    tcase_add_test(t, a_search_keeps_groups_whole);
    tcase_set_timeout(t, 120);
    suite_add_tcase(s, t);
    return run_suite(s);
}
