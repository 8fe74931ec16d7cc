/* Traces: what is read, what is refused and why, scaling, and the made-up trace's statistics. */
#include <stdlib.h>
#include <string.h>

#include "simulate/costs.h"
#include "simulate/simulate.h"
#include "tests/unit/run_suite.h"

static const char good[] =
    "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [7, 9]}\n"
    "\n"
    "{\"timestamp\": 1000, \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [7, 4]}";

START_TEST(reads)
{
    sl_sim_trace t;
    sl_err err = {""};
    ck_assert_msg(sl_sim_trace_parse(good, strlen(good), "t", &t, &err) == SL_OK, "%s", err.text);
    ck_assert_uint_eq(t.n, 2);
    ck_assert_uint_eq(t.n_blocks, 3);
    ck_assert_int_eq(t.requests[0].input, 600);
    ck_assert_int_eq(t.requests[1].output, 1);
    ck_assert_uint_eq(t.requests[1].arrival_ns, 1000000000u);
    ck_assert_uint_eq(t.ids[t.requests[0].first], t.ids[t.requests[1].first]);
    ck_assert_uint_ne(t.ids[t.requests[0].first + 1], t.ids[t.requests[1].first + 1]);
    sl_sim_trace_free(&t);
}
END_TEST

static const struct {
    const char *text, *reason;
} bad[] = {
    {"", "t: has no requests"},
    {"\n\n", "t: has no requests"},
    {"garbage", "t:1:"},
    {"[]", "t:1: want an object"},
    {"{\"timestamp\": 0}", "t:1.input_length"},
    {"{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}", "t:1.timestamp"},
    {"{\"timestamp\": 0, \"input_length\": -5, \"output_length\": 1, \"hash_ids\": [1]}", "t:1.input_length"},
    {"{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}", "t:1.input_length"},
    {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": -1, \"hash_ids\": [1]}",
     "t:1.output_length"},
    {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1, 2]}",
     "t:1.hash_ids: has 2 numbers, want 1"},
    {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [-1]}", "t:1.hash_ids[0]"},
    {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [\"a\"]}",
     "t:1.hash_ids[0]"},
    {"{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1], \"x\": 2}",
     "t:1.x: unknown field"},
    {"{\"timestamp\": 0, \"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}",
     "t:1"},
    {"{\"timestamp\": 9, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}\n"
     "{\"timestamp\": 8, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}",
     "t:2.timestamp: 8 ms is before the 9 ms"},
};

START_TEST(refuses)
{
    sl_sim_trace t;
    sl_err err = {""};
    ck_assert_int_ne(sl_sim_trace_parse(bad[_i].text, strlen(bad[_i].text), "t", &t, &err), SL_OK);
    ck_assert_msg(strncmp(err.text, bad[_i].reason, strlen(bad[_i].reason)) == 0, "%s", err.text);
    ck_assert_ptr_null(t.requests);
}
END_TEST

START_TEST(scales)
{
    sl_sim_trace t, out;
    sl_err err = {""};
    ck_assert(sl_sim_trace_parse(good, strlen(good), "t", &t, &err) == SL_OK);
    sl_sim_scale how = {.speed = 2, .copies = 3, .seed = 5};
    ck_assert(sl_sim_trace_scale(&t, &how, &out, &err) == SL_OK);
    ck_assert_uint_eq(out.n, 6);
    ck_assert_uint_eq(out.n_blocks, 9);
    for (size_t i = 0; i < out.n; i++) {
        ck_assert(out.requests[i].arrival_ns <= 500000000u);
        ck_assert(!i || out.requests[i].arrival_ns >= out.requests[i - 1].arrival_ns);
    }
    double one = sl_sim_lru(&t, 0), three = sl_sim_lru(&out, 0);
    ck_assert(one > 0.24 && one < 0.26); /* one block of four; copies share nothing */
    ck_assert(three > one - 1e-9 && three < one + 1e-9);
    sl_sim_trace_free(&out);
    how = (sl_sim_scale){.speed = 1, .copies = 1, .max_requests = 1};
    ck_assert(sl_sim_trace_scale(&t, &how, &out, &err) == SL_OK);
    ck_assert_uint_eq(out.n, 1);
    sl_sim_trace_free(&out);
    sl_sim_trace_free(&t);
}
END_TEST

START_TEST(writes)
{
    sl_sim_trace t, again;
    sl_err err = {""};
    char *text = NULL;
    size_t n = 0;
    ck_assert(sl_sim_trace_make(200, 3, &t) == SL_OK);
    FILE *to = open_memstream(&text, &n);
    ck_assert(sl_sim_trace_write(&t, to) == SL_OK);
    fclose(to);
    ck_assert_msg(sl_sim_trace_parse(text, n, "again", &again, &err) == SL_OK, "%s", err.text);
    ck_assert_uint_eq(again.n, t.n);
    ck_assert_uint_eq(again.n_ids, t.n_ids);
    ck_assert_mem_eq(again.requests[150].first + again.ids, t.requests[150].first + t.ids,
                     t.requests[150].n_blocks * sizeof *t.ids);
    sl_sim_trace_free(&again);
    sl_sim_trace_free(&t);
    free(text);
}
END_TEST

/* The measured figures of Mooncake's conversation trace, which the made-up trace has to have. */
static const struct {
    uint64_t blocks;
    double hit_rate;
} curve[] = {{1000, 0.044}, {5000, 0.110}, {10000, 0.211}, {20000, 0.287}, {50000, 0.355}, {0, 0.366}};

START_TEST(made_up_like_the_real_one)
{
    sl_sim_trace t;
    ck_assert(sl_sim_trace_make(12031, (uint64_t)_i + 1, &t) == SL_OK);
    for (size_t i = 0; i < SL_COUNT(curve); i++) {
        double rate = sl_sim_lru(&t, curve[i].blocks);
        ck_assert_msg(rate > curve[i].hit_rate - 0.02 && rate < curve[i].hit_rate + 0.02,
                      "%lu blocks: %.3f, want %.3f", curve[i].blocks, rate, curve[i].hit_rate);
    }
    ck_assert(t.n_ids > 260000 && t.n_ids < 320000);
    sl_sim_trace_free(&t);
}
END_TEST

/* ---- costs ---- */

static const char costs[] = "kv: {bytes_per_token: 100}\n"
                            "prefill: {chunks: [10, 20], contexts: [0, 100], step_ms: [1, 2, 2, 4]}\n"
                            "decode: {batches: [1, 3], step_ms: [10, 20], ms_per_million_tokens: 1}\n"
                            "link: {gb_per_s: 1}\n";

START_TEST(costs_between_points)
{
    sl_sim_costs c;
    sl_err err = {""};
    ck_assert_msg(sl_sim_costs_parse(costs, strlen(costs), "c", &c, &err) == SL_OK, "%s", err.text);
    ck_assert_double_eq_tol(sl_sim_prefill_ns(&c, 10, 10, 0), 1e6, 1);
    ck_assert_double_eq_tol(sl_sim_prefill_ns(&c, 5, 5, 0), 1e6,
                            1); /* a small step takes the time of the smallest */
    ck_assert_double_eq_tol(sl_sim_prefill_ns(&c, 15, 15, 50), 2.25e6, 1);
    ck_assert_double_eq_tol(sl_sim_prefill_ns(&c, 20, 5, 100), 1e6, 1);  /* a quarter of the step */
    ck_assert_double_eq_tol(sl_sim_prefill_ns(&c, 10, 10, 200), 3e6, 1); /* beyond the last context */
    ck_assert_double_eq_tol(sl_sim_decode_ns(&c, 2, 1e6), 16e6, 1);
    ck_assert_double_eq_tol(sl_sim_decode_ns(&c, 5, 0), 30e6, 1);
    c.decode.step_ms.v[1] = 5; /* faster with three requests than with one: never less than no time */
    ck_assert(sl_sim_decode_ns(&c, 100, 0) == 0);
}
END_TEST

static const struct {
    const char *text, *reason;
} bad_costs[] = {
    {"", "c: kv.bytes_per_token is missing"},
    {"kv: [1]", "c:1: kv: want a map"},
    {"kv: {bytes_per_token: x}", "c:1: kv.bytes_per_token: want a number"},
    {"kv: {bytes_per_token: -1}", "c:1: kv.bytes_per_token: want a number"},
    {"kv: {bytes: 1}", "c:1: kv.bytes: unknown key"},
    {"kv: {bytes_per_token: 1, bytes_per_token: 2}", "c:1: kv.bytes_per_token: duplicate key"},
    {"link: {gb_per_s: .nan}", "c:1: link.gb_per_s: want a number"},
    {"kv: {bytes_per_token: 1}\nprefill: {chunks: [2, 1], contexts: [0], step_ms: [1, 1]}\n"
     "decode: {batches: [1], step_ms: [1]}\nlink: {gb_per_s: 1}",
     "c: prefill.chunks: 1 does not follow 2"},
    {"kv: {bytes_per_token: 1}\nprefill: {chunks: [1], contexts: [0], step_ms: [1, 1]}\n"
     "decode: {batches: [1], step_ms: [1]}\nlink: {gb_per_s: 1}",
     "c: prefill.step_ms: has 2 numbers, want 1"},
    {"a: b: c", "c:1: not valid YAML"},
};

START_TEST(costs_refused)
{
    sl_sim_costs c;
    sl_err err = {""};
    ck_assert_int_ne(sl_sim_costs_parse(bad_costs[_i].text, strlen(bad_costs[_i].text), "c", &c, &err),
                     SL_OK);
    ck_assert_msg(strncmp(err.text, bad_costs[_i].reason, strlen(bad_costs[_i].reason)) == 0, "%s", err.text);
}
END_TEST

START_TEST(costs_in_the_repository)
{
    sl_sim_costs c;
    sl_err err = {""};
    ck_assert_msg(sl_sim_costs_load("simulate/costs/h200-v32.yaml", &c, &err) == SL_OK, "%s", err.text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("trace");
    TCase *t = tcase_create("all");
    tcase_add_test(t, reads);
    tcase_add_loop_test(t, refuses, 0, SL_COUNT(bad));
    tcase_add_test(t, scales);
    tcase_add_test(t, writes);
    tcase_add_loop_test(t, made_up_like_the_real_one, 0, 3);
    tcase_add_test(t, costs_between_points);
    tcase_add_loop_test(t, costs_refused, 0, SL_COUNT(bad_costs));
    tcase_add_test(t, costs_in_the_repository);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return run_suite(s);
}
