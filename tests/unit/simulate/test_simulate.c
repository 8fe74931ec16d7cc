/*
 * The simulator: hit rates against an independent LRU, times that can be computed by hand, conservation, and that equal
 * inputs give equal results.
 */
#include <stdlib.h>
#include <string.h>

#include "kvstore/page_key.h"
#include "kvstore/store.h"
#include "simulate/simulate.h"
#include "tests/unit/run_suite.h"

static sl_config cfg;
static sl_sim_costs costs;

/* Costs that are easy to compute with: 1 ms for each 64 tokens of prefill, 10 ms for each decode step. */
static const char simple[] = "message: {us: 0}\n"
                             "kv: {bytes_per_token: 1000}\n"
                             "prefill: {chunks: [64, 640], contexts: [0], step_ms: [1, 10]}\n"
                             "decode: {batches: [1], step_ms: [10]}\n"
                             "link: {gb_per_s: 1000}\n"
                             "disk: {read_gb_per_s: 10, write_gb_per_s: 10}\n"
                             "shared: {read_gb_per_s: 10, write_gb_per_s: 10, us: 100, bytes: 1e10}\n"
                             "checksum: {gb_per_s: 100}\n"
                             "price: {host_gib: 1, disk_gib: 0.1, prefill: 10, decode: 10}\n";

static void setup(void)
{
    sl_err err = {""};
    sl_log_init(SL_LOG_ERROR, false, "test");
    sl_config_init(&cfg);
    cfg.prefill.max_step_ms = 0;
    cfg.prefill.chunk_tokens = 640;
    cfg.decode.max_batch = 64;
    cfg.router.max_queue = 4096;
    ck_assert_msg(sl_sim_costs_parse(simple, strlen(simple), "simple", &costs, &err) == SL_OK, "%s",
                  err.text);
}

static sl_sim_opts options(const sl_sim_trace *t, uint64_t host_pages)
{
    cfg.kvstore.bytes = host_pages * 64 * 1000;
    return (sl_sim_opts){.cfg = &cfg,
                         .costs = &costs,
                         .trace = t,
                         .prefills = 1,
                         .decodes = 1,
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
    return r;
}

static void parse(const char *text, sl_sim_trace *t)
{
    sl_err err = {""};
    ck_assert_msg(sl_sim_trace_parse(text, strlen(text), "t", t, &err) == SL_OK, "%s", err.text);
}

static sl_sim_trace made(size_t n, double speed)
{
    sl_sim_trace t, out;
    sl_sim_scale how = {.speed = speed, .copies = 1};
    ck_assert(sl_sim_trace_make(n, 1, &t) == SL_OK);
    ck_assert(sl_sim_trace_scale(&t, &how, &out, NULL) == SL_OK);
    sl_sim_trace_free(&t);
    return out;
}

/* ---- hit rates ---- */

/* The same trace through the store itself, one page for each block: what fraction of the blocks matches. */
static double through_store(const sl_sim_trace *t, int32_t pages)
{
    static int32_t tokens[256 * 64 + 1];
    sl_store_opts o = {.n_pages = pages, .prefix_cache = true};
    sl_store *s;
    double hits = 0, all = 0;
    ck_assert(sl_store_create(&o, &s, NULL) == SL_OK);
    for (size_t i = 0; i < t->n; i++) {
        const sl_sim_request *q = &t->requests[i];
        int32_t n = (int32_t)q->n_blocks * 64;
        sl_lease *l;
        for (int32_t k = 0; k < n; k++)
            tokens[k] = (int32_t)t->ids[q->first + (uint32_t)k / 64];
        ck_assert(sl_store_lease(s, (sl_key){1, 1}, tokens, n + 1, &l) == SL_OK);
        hits += sl_lease_matched(l);
        all += q->n_blocks;
        sl_lease_publish(l, tokens, n);
        sl_lease_release(l, true);
    }
    sl_store_destroy(s);
    return hits / all;
}

static const struct {
    int32_t blocks;
    double hit_rate;
} known[] = {{5000, 0.110}, {10000, 0.211}, {20000, 0.287}, {50000, 0.355}, {180000, 0.366}};

START_TEST(store_has_the_hit_rate_of_an_lru)
{
    sl_sim_trace t;
    ck_assert(sl_sim_trace_make(12031, 1, &t) == SL_OK);
    double store = through_store(&t, known[_i].blocks), lru = sl_sim_lru(&t, (uint64_t)known[_i].blocks);
    ck_assert_msg(store > lru - 0.005 && store < lru + 0.005, "store %.4f, LRU %.4f", store, lru);
    ck_assert_msg(store > known[_i].hit_rate - 0.02 && store < known[_i].hit_rate + 0.02,
                  "%d blocks: %.3f, want %.3f", known[_i].blocks, store, known[_i].hit_rate);
    sl_sim_trace_free(&t);
}
END_TEST

START_TEST(cluster_has_the_hit_rate_of_an_lru)
{
    sl_sim_trace t = made(2000, 0.2);
    sl_sim_opts o = options(&t, 4000);
    cfg.kvstore.bytes = 400 * 64 * 1000; /* of the prefill worker: next to nothing */
    o.host_bytes = 4000 * 64 * 1000;
    sl_sim_result r = simulate(&o);
    ck_assert_uint_eq(r.finished, t.n);
    ck_assert_msg(r.block_hits > r.block_hits_lru - 0.03 && r.block_hits < r.block_hits_lru + 0.02,
                  "%.3f, LRU %.3f", r.block_hits, r.block_hits_lru);
    sl_sim_trace_free(&t);
}
END_TEST

/* ---- times ---- */

START_TEST(times_by_hand)
{
    sl_sim_trace t;
    /* 10 blocks of 64 tokens after scaling: one chunk of 640 tokens, 10 ms; then 9 steps of 10 ms */
    parse(
        "{\"timestamp\": 0, \"input_length\": 5120, \"output_length\": 80, \"hash_ids\": [0,1,2,3,4,5,6,7,8,9]}",
        &t);
    sl_sim_opts o = options(&t, 100);
    sl_sim_result r = simulate(&o);
    ck_assert_double_eq_tol(r.ttft_ms.max, 10,
                            0.7); /* and the rows on the link: 0.64 ms, while it computes */
    ck_assert_double_eq_tol(r.itl_ms.p50, 10, 0.1);
    ck_assert_double_eq_tol(r.seconds, 0.1, 0.002);
    ck_assert_double_eq_tol(r.output_tokens, 10, 0.01);
    ck_assert_double_eq_tol(r.tokens_computed, 640, 0.01);
    ck_assert_double_eq_tol(r.goodput, 1, 1e-9);
    o.itl_ms = 9;
    ck_assert_double_eq_tol(simulate(&o).goodput, 0, 1e-9);
    sl_sim_trace_free(&t);
}
END_TEST

START_TEST(second_prompt_is_found)
{
    sl_sim_trace t;
    parse(
        "{\"timestamp\": 0, \"input_length\": 5120, \"output_length\": 8, \"hash_ids\": [0,1,2,3,4,5,6,7,8,9]}\n"
        "{\"timestamp\": 1000, \"input_length\": 5120, \"output_length\": 8, \"hash_ids\": [0,1,2,3,4,5,6,7,8,11]}",
        &t);
    sl_sim_opts o = options(&t, 100);
    sl_sim_result r = simulate(&o);
    ck_assert_double_eq_tol(r.tokens_host, 9 * 64, 0.01);
    ck_assert_double_eq_tol(r.tokens_computed, 11 * 64, 0.01);
    ck_assert_double_eq_tol(r.block_hits, 9.0 / 20, 1e-6);
    ck_assert_double_eq_tol(r.block_hits_max, 9.0 / 20, 1e-6);
    sl_sim_trace_free(&t);
}
END_TEST

/* ---- larger ones ---- */

static double prompt_tokens(const sl_sim_result *r)
{
    return r->tokens_host + r->tokens_disk + r->tokens_shared + r->tokens_prefill_cache + r->tokens_computed;
}

START_TEST(equal_inputs_give_equal_results)
{
    sl_sim_trace t = made(400, 1);
    sl_sim_opts o = options(&t, 1000);
    o.prefills = o.decodes = 2;
    o.disk_bytes = 4000 * 64 * 1000;
    sl_sim_result a = simulate(&o), b = simulate(&o);
    a.real_seconds = b.real_seconds = 0;
    ck_assert_mem_eq(&a, &b, sizeof a);
    ck_assert_uint_eq(a.requests, a.finished + a.refused + a.failed);
    double tokens = 0;
    for (size_t i = 0; i < t.n; i++)
        tokens += (t.requests[i].input + 7) / 8;
    ck_assert_double_eq_tol(prompt_tokens(&a), tokens, 0.5);
    sl_sim_trace_free(&t);
}
END_TEST

START_TEST(disk_keeps_what_memory_does_not)
{
    sl_sim_trace t = made(1500, 0.3);
    sl_sim_opts o = options(&t, 700);
    cfg.kvstore.bytes = 400 * 64 * 1000;
    o.host_bytes = 1000 * 64 * 1000;
    sl_sim_result without = simulate(&o);
    o.disk_bytes = 100000ull * 64 * 1000;
    sl_sim_result with = simulate(&o);
    ck_assert(without.tokens_disk == 0 && with.tokens_disk > 0 && with.disk_pages > 0);
    ck_assert_msg(with.block_hits > with.block_hits_max - 0.03, "%.3f of %.3f", with.block_hits,
                  with.block_hits_max);
    ck_assert(with.tokens_computed < without.tokens_computed);
    sl_sim_trace_free(&t);
}
END_TEST

START_TEST(shared_store_serves_all_workers)
{
    sl_sim_trace t = made(800, 0.3);
    sl_sim_opts o = options(&t, 700);
    cfg.kvstore.bytes = 400 * 64 * 1000;
    memcpy(cfg.router.policy, "round_robin",
           sizeof "round_robin"); /* so that a prompt continues on another worker */
    o.host_bytes = 700 * 64 * 1000;
    o.decodes = 3;
    o.disk_bytes = 100000ull * 64 * 1000;
    sl_sim_result disks = simulate(&o);
    o.shared = true;
    sl_sim_result shared = simulate(&o);
    ck_assert(disks.tokens_shared == 0 && shared.tokens_shared > 0);
    ck_assert_msg(shared.block_hits > disks.block_hits + 0.05 &&
                      shared.block_hits > shared.block_hits_max - 0.03,
                  "%.3f, with disks only %.3f, at most %.3f", shared.block_hits, disks.block_hits,
                  shared.block_hits_max);
    sl_sim_trace_free(&t);
}
END_TEST

START_TEST(coarse_pages_are_nearly_the_same)
{
    sl_sim_trace t = made(300, 1);
    sl_sim_opts o = options(&t, 20000);
    o.length = 1;
    sl_sim_result fine = simulate(&o);
    o.page_tokens = 512;
    sl_sim_result coarse = simulate(&o);
    ck_assert_msg(coarse.block_hits > fine.block_hits - 0.02 && coarse.block_hits < fine.block_hits + 0.02,
                  "%.3f %.3f", coarse.block_hits, fine.block_hits);
    ck_assert_msg(coarse.ttft_ms.mean > 0.8 * fine.ttft_ms.mean &&
                      coarse.ttft_ms.mean < 1.2 * fine.ttft_ms.mean,
                  "%.1f %.1f", coarse.ttft_ms.mean, fine.ttft_ms.mean);
    ck_assert_double_eq_tol(coarse.itl_ms.p50, fine.itl_ms.p50, 0.5);
    sl_sim_trace_free(&t);
}
END_TEST

START_TEST(overload_is_refused_and_counted)
{
    sl_sim_trace t = made(300, 1000);
    sl_sim_opts o = options(&t, 2000);
    cfg.router.max_queue = 16;
    sl_sim_result r = simulate(&o);
    ck_assert(r.refused > 0);
    ck_assert_uint_eq(r.requests, r.finished + r.refused + r.failed);
    ck_assert(r.goodput < 1);
    sl_sim_trace_free(&t);
}
END_TEST

START_TEST(impossible_sizes_are_refused)
{
    sl_sim_trace t = made(50, 1);
    sl_sim_opts o = options(&t, 10);
    sl_sim_result r;
    sl_err err = {""};
    ck_assert_int_eq(sl_simulate(&o, &r, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "kvstore.bytes") != NULL, "%s", err.text);
    o = options(&t, 1000);
    o.length = 0.3;
    ck_assert_int_eq(sl_simulate(&o, &r, &err), SL_ERR_INVALID);
    sl_sim_trace_free(&t);
}
END_TEST

/* 2^24 tokens times 64 do not fit into the lengths of the simulation, which has 32 bits for them. */
START_TEST(too_long_requests_are_refused)
{
    sl_sim_request q = {.input = 1 << 24, .output = 1 << 24, .n_blocks = 1};
    uint32_t id = 0;
    sl_sim_trace t = {.n = 1, .requests = &q, .n_ids = 1, .ids = &id, .n_blocks = 1};
    sl_sim_opts o = options(&t, 1u << 29);
    sl_sim_result r;
    sl_err err = {""};
    o.length = 64;
    ck_assert_int_eq(sl_simulate(&o, &r, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "2147483649 tokens") != NULL, "%s", err.text);
}
END_TEST

/* The prefill worker has joined, and its WELCOME is in flight, when the disk of the decode worker is refused. */
START_TEST(a_start_that_fails_leaves_nothing)
{
    sl_sim_trace t = made(50, 1);
    sl_sim_opts o = options(&t, 1000);
    sl_sim_result r;
    sl_err err = {""};
    o.disk_bytes = 1;
    ck_assert_int_eq(sl_simulate(&o, &r, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "segment") != NULL, "%s", err.text);
    sl_sim_trace_free(&t);
}
END_TEST

START_TEST(search_finds_smaller_sizes)
{
    sl_sim_trace t = made(200, 1);
    sl_sim_opts o = options(&t, 4000), best;
    sl_sim_search how = {.goodput = 0.9, .max_runs = 40};
    sl_sim_result r;
    sl_err err = {""};
    o.prefills = o.decodes = 3;
    ck_assert_msg(sl_sim_search_run(&o, &how, &best, &r, &err) == SL_OK, "%s", err.text);
    ck_assert(r.goodput >= 0.9);
    ck_assert(sl_sim_price(&best) < sl_sim_price(&o));
    sl_sim_trace_free(&t);
}
END_TEST

static void count_run(void *ctx, const sl_sim_opts *o, const sl_sim_result *r, double price, bool good)
{
    (void)o;
    (void)r;
    (void)price;
    (void)good;
    ++*(int *)ctx;
}

/* No request can have its first token in 1 ms: the search ends soon, and says that workers do not help. */
START_TEST(search_gives_up_when_workers_do_not_help)
{
    sl_sim_trace t = made(100, 1);
    int runs = 0;
    sl_sim_opts o = options(&t, 4000), best;
    sl_sim_search how = {.goodput = 0.9, .max_runs = 60, .tried = count_run, .ctx = &runs};
    sl_sim_result r;
    sl_err err = {""};
    o.prefills = o.decodes = 3;
    o.ttft_ms = 1;
    ck_assert_int_eq(sl_sim_search_run(&o, &how, &best, &r, &err), SL_ERR_EXHAUSTED);
    ck_assert_msg(strstr(err.text, "more workers") != NULL, "%s", err.text);
    ck_assert_int_le(runs, 8);
    sl_sim_trace_free(&t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("simulate");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_loop_test(t, store_has_the_hit_rate_of_an_lru, 0, SL_COUNT(known));
    tcase_add_test(t, cluster_has_the_hit_rate_of_an_lru);
    tcase_add_test(t, times_by_hand);
    tcase_add_test(t, second_prompt_is_found);
    tcase_add_test(t, equal_inputs_give_equal_results);
    tcase_add_test(t, disk_keeps_what_memory_does_not);
    tcase_add_test(t, shared_store_serves_all_workers);
    tcase_add_test(t, coarse_pages_are_nearly_the_same);
    tcase_add_test(t, overload_is_refused_and_counted);
    tcase_add_test(t, impossible_sizes_are_refused);
    tcase_add_test(t, too_long_requests_are_refused);
    tcase_add_test(t, a_start_that_fails_leaves_nothing);
    tcase_add_test(t, search_finds_smaller_sizes);
    tcase_add_test(t, search_gives_up_when_workers_do_not_help);
    tcase_set_timeout(t, 300);
    suite_add_tcase(s, t);
    return run_suite(s);
}
