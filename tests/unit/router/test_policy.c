/*
 * Placement: one conformance suite for every policy, the promises of each policy, a recorded trace that must
 * give the same picks again, and the key set that cache_aware uses.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore/page_key.h"
#include "router/core/keyset.h"
#include "router/policies/policy.h"
#include "tests/unit/chosen_keys.h"
#include "tests/unit/run_suite.h"

static _Alignas(
    8) unsigned char opts[SL_POLICY_OPTIONS_BYTES]; /* those of longest_prefix: main sets the defaults */

static uint64_t rnd(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return *s >> 33;
}

static void random_case(uint64_t *seed, sl_pick_request *req, sl_candidate *c, size_t *n)
{
    *n = 1 + rnd(seed) % 8;
    *req = (sl_pick_request){
        .n_tokens = (uint32_t)(1 + rnd(seed) % 4096), .sequence = rnd(seed), .token_bytes = 40000};
    for (size_t i = 0; i < *n; i++) {
        c[i] = (sl_candidate){.worker = (uint32_t)i + 1, .placed = (uint32_t)(rnd(seed) % 50)};
        c[i].running = (uint32_t)(rnd(seed) % 50);
        c[i].queued_tokens = rnd(seed) % 100000;
        c[i].total_pages = rnd(seed) % 2 ? 1000 : 0;
        c[i].free_pages = (uint32_t)(rnd(seed) % 1001);
        c[i].matched_tokens = (uint32_t)(rnd(seed) % (req->n_tokens + 1));
        c[i].disk_tokens = (uint32_t)(rnd(seed) % 1000);
        c[i].peer_tokens = (uint32_t)(rnd(seed) % 1000);
        c[i].peer_rate = (double)(rnd(seed) % 3) * 1e9;
        c[i].request_s = (double)(rnd(seed) % 100) / 1e3;
    }
}

/* Ranks of a group: below the slowest rank all cost the same and the least loaded one is chosen, whichever holds a prefix
 * costs less; a group costs what its slowest rank costs; a rank that becomes the slowest one costs its own work. */
START_TEST(ranks_of_a_group)
{
    sl_pick_request req = {.n_tokens = 1000, .token_bytes = 40000};
    sl_candidate c[3] = {{.placed = 2, .slowest = 20, .request_s = 1},
                         {.placed = 10, .slowest = 20, .request_s = 1},
                         {.placed = 20, .slowest = 20, .request_s = 1}};
    double adds = 1 + 1000.0 / SL_CONTEXT_PER_REQUEST, compute = 1000.0 / SL_COST_PREFILL_RATE;
    ck_assert(fabs(sl_candidate_seconds(&req, &c[0]) - (20 - adds + compute)) < 1e-9);
    ck_assert(fabs(sl_candidate_seconds(&req, &c[0]) - sl_candidate_seconds(&req, &c[1])) < 1e-9);
    ck_assert(fabs(sl_candidate_seconds(&req, &c[2]) - (20 + compute)) < 1e-9);
    for (req.sequence = 0; req.sequence < 3; req.sequence++)
        ck_assert_uint_eq(sl_policy_cache_aware.pick(&opts, &req, c, 3), 0);
    c[1].matched_tokens = 640; /* no request waits longer for that */
    ck_assert_uint_eq(sl_policy_cache_aware.pick(&opts, &req, c, 3), 1);
    /* a single worker with 15 requests begins sooner than a rank with 2 whose group has one with 20 */
    c[1] = (sl_candidate){.placed = 15, .request_s = 1};
    ck_assert_uint_eq(sl_policy_cache_aware.pick(&opts, &req, c, 2), 1);
    /* contexts count as requests */
    c[0] = (sl_candidate){.placed = 2, .context_tokens = 3 * SL_CONTEXT_PER_REQUEST};
    c[1] = (sl_candidate){.placed = 4};
    ck_assert_uint_eq(sl_policy_least_load.pick(&opts, &req, c, 2), 1);
    ck_assert(fabs(sl_candidate_requests(&c[0]) - 5) < 1e-9);
}
END_TEST

START_TEST(conformance)
{
    const sl_policy *p = sl_policy_at((size_t)_i);
    ck_assert_ptr_nonnull(p);
    ck_assert_ptr_eq(sl_policy_find(p->name), p);
    ck_assert(p->description && *p->description);
    uint64_t seed = 1;
    for (int k = 0; k < 20000; k++) {
        sl_candidate c[8], copy[8];
        sl_pick_request req;
        size_t n;
        random_case(&seed, &req, c, &n);
        memcpy(copy, c, sizeof c);
        size_t i = p->pick(&opts, &req, c, n);
        ck_assert_uint_lt(i, n);
        ck_assert_uint_eq(p->pick(&opts, &req, copy, n), i); /* pure */
        ck_assert_int_eq(memcmp(c, copy, n * sizeof *c), 0);
    }
}
END_TEST

START_TEST(spreads_equal_workers)
{
    const sl_policy *p = sl_policy_at((size_t)_i);
    sl_candidate c[4];
    memset(c, 0, sizeof c);
    int hits[4] = {0};
    for (uint64_t k = 0; k < 400; k++) {
        sl_pick_request req = {.n_tokens = 100, .sequence = k};
        hits[p->pick(&opts, &req, c, 4)]++;
    }
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(hits[i], 100);
}
END_TEST

START_TEST(least_load_is_least)
{
    uint64_t seed = 7;
    for (int k = 0; k < 5000; k++) {
        sl_candidate c[8];
        sl_pick_request req;
        size_t n;
        random_case(&seed, &req, c, &n);
        size_t i = sl_policy_least_load.pick(&opts, &req, c, n);
        for (size_t j = 0; j < n; j++)
            ck_assert(sl_candidate_load(&c[i]) <= sl_candidate_load(&c[j]));
    }
}
END_TEST

START_TEST(unknown_policy)
{
    ck_assert_ptr_null(sl_policy_find("best"));
    ck_assert_ptr_null(sl_policy_at(99));
}
END_TEST

static char *strsep_word(char **text)
{
    char *w;
    while ((w = strsep(text, " ")) && !*w)
        ;
    return w;
}

static size_t parse_candidates(char *text, sl_candidate *c)
{
    size_t n = 0;
    for (char *t = strsep_word(&text); t; t = strsep_word(&text), n++) {
        memset(&c[n], 0, sizeof c[n]);
        ck_assert_int_eq(sscanf(t, "%u:%u:%lu:%u/%u:%u", &c[n].worker, &c[n].placed, &c[n].queued_tokens,
                                &c[n].free_pages, &c[n].total_pages, &c[n].matched_tokens),
                         6);
    }
    return n;
}

START_TEST(trace_replays)
{
    FILE *f = fopen("tests/unit/router/data/placements.trace", "r");
    ck_assert_msg(f != NULL, "run from the repository's root");
    char line[512];
    int n_lines = 0;
    while (fgets(line, sizeof line, f)) {
        char name[32], list[400];
        sl_pick_request req = {0};
        unsigned want;
        sl_candidate c[16];
        if (line[0] == '#')
            continue;
        ck_assert_int_eq(
            sscanf(line, "%31s %lu %u | %399[^|]| %u", name, &req.sequence, &req.n_tokens, list, &want), 5);
        size_t n = parse_candidates(list, c);
        const sl_policy *p = sl_policy_find(name);
        ck_assert_ptr_nonnull(p);
        unsigned got = c[p->pick(&opts, &req, c, n)].worker;
        ck_assert_msg(got == want, "picked %u: %s", got, line);
        n_lines++;
    }
    fclose(f);
    ck_assert_int_eq(n_lines, 21);
}
END_TEST

/* ---- cost ---- */

/* 40 KB for each token, so 25,000 tokens/s from a disk of 1 GB/s. */
START_TEST(the_cost_is_the_sum_of_its_parts)
{
    static const struct {
        uint32_t n, given;
        sl_candidate c;
        double seconds;
    } cases[] = {
        {10000, 0, {.prefill_rate = 2000}, 5},
        {10000, 0, {.prefill_rate = 0}, 2}, /* unknown: 5,000 tokens/s */
        {10000, 0, {.matched_tokens = 6000, .prefill_rate = 2000}, 2},
        {10000, 0, {.matched_tokens = 10000, .prefill_rate = 2000}, 0},
        {10000, 0, {.disk_tokens = 10000, .disk_rate = 4e9, .prefill_rate = 2000}, 0.1},
        {10000, 0, {.disk_tokens = 10000, .prefill_rate = 2000}, 0.4}, /* unknown: 1 GB/s */
        {10000, 0, {.shared_tokens = 5000, .shared_rate = 1e8, .prefill_rate = 2000}, 4.5},
        {10000, 0, {.peer_tokens = 10000, .peer_rate = 1e10, .prefill_rate = 2000}, 0.08}, /* twice */
        {10000, 0, {.peer_tokens = 10000, .peer_rate = 0, .prefill_rate = 2000}, 5},       /* it cannot */
        {10000,
         0,
         {.matched_tokens = 4000, .disk_tokens = 4000, .disk_rate = 1e9, .prefill_rate = 2000},
         1.16},
        {10000, 8000, {.matched_tokens = 4000, .prefill_rate = 2000}, 1}, /* the decode worker has more */
        {10000, 2000, {.matched_tokens = 4000, .prefill_rate = 2000}, 3},
        {0, 0, {.placed = 10, .request_s = 0.25}, 2.5},
        {0, 0, {.placed = 10, .running = 20, .waiting = 4, .request_s = 0.25}, 6},
        {0, 0, {.queued_tokens = 30000, .token_s = 1e-4}, 3},
        {0, 0, {.placed = 2, .free_pages = 10, .total_pages = 100, .request_s = 1}, 2 + 0.15 * 9},
    };
    sl_pick_request req = {.n_tokens = cases[_i].n, .token_bytes = 40000, .given_tokens = cases[_i].given};
    double got = sl_candidate_seconds(&req, &cases[_i].c);
    ck_assert_msg(fabs(got - cases[_i].seconds) < 1e-9, "%f, want %f", got, cases[_i].seconds);
}
END_TEST

/* What decides, in a prompt of 32,000 tokens (1.28 GB) with 64 places for requests that stay 12.8 s (0.2 s each). */
START_TEST(cache_aware_decides)
{
    enum { N = 32000 };
    static const struct {
        const char *what;
        sl_candidate a, b;
        unsigned want;
    } cases[] = {
        {"an idle worker recomputes: 6.4 s against 20 requests: 4 s",
         {.placed = 20, .matched_tokens = N},
         {.placed = 0},
         1},
        {"against 40 requests: 8 s", {.placed = 40, .matched_tokens = N}, {.placed = 0}, 2},
        {"a copy takes 2 x 0.128 s: the owner is 1 request ahead",
         {.placed = 5, .matched_tokens = N},
         {.placed = 4, .peer_tokens = N, .peer_rate = 1e10},
         1},
        {"2 requests ahead",
         {.placed = 6, .matched_tokens = N},
         {.placed = 4, .peer_tokens = N, .peer_rate = 1e10},
         2},
        {"its disk, 1.28 s, against 5 requests", {.placed = 5, .matched_tokens = N}, {.disk_tokens = N}, 1},
        {"its disk against 8 requests", {.placed = 8, .matched_tokens = N}, {.disk_tokens = N}, 2},
        {"a slow shared store is worse than computing",
         {.shared_tokens = N, .shared_rate = 1e8},
         {.placed = 1},
         2},
        {"equal work: the longer prefix", {.matched_tokens = 64}, {.matched_tokens = 128}, 2},
        {"equal prefixes: the less loaded",
         {.placed = 3, .matched_tokens = 64},
         {.placed = 2, .matched_tokens = 64},
         2},
        {"no memory left there",
         {.placed = 1, .matched_tokens = 640, .free_pages = 1, .total_pages = 1000},
         {.placed = 1, .free_pages = 900, .total_pages = 1000},
         2},
    };
    sl_candidate c[2] = {cases[_i].a, cases[_i].b};
    for (int i = 0; i < 2; i++) {
        c[i].worker = (uint32_t)i + 1;
        c[i].request_s = 0.2;
    }
    for (uint64_t turn = 0; turn < 4; turn++) {
        sl_pick_request req = {.n_tokens = N, .sequence = turn, .token_bytes = 40000};
        ck_assert_msg(c[sl_policy_cache_aware.pick(&opts, &req, c, 2)].worker == cases[_i].want, "%s",
                      cases[_i].what);
    }
}
END_TEST

/* Requests of one prefix come one after the other. While its owner can take them they go there; when each of them stays,
 * the prefix is copied to one worker after the other, to each of them once. */
START_TEST(a_hot_prefix_spreads_and_a_cold_one_does_not)
{
    enum { WORKERS = 4, N = 32000 };
    sl_candidate c[WORKERS];
    int copies = 0, at_owner = 0;
    for (uint32_t i = 0; i < WORKERS; i++)
        c[i] = (sl_candidate){.worker = i, .request_s = 0.2, .peer_rate = 1e10, .peer_tokens = i ? N : 0};
    c[0].matched_tokens = N;
    for (uint64_t k = 0; k < 200; k++) {
        sl_pick_request req = {.n_tokens = N, .sequence = k, .token_bytes = 40000};
        size_t i = sl_policy_cache_aware.pick(&opts, &req, c, WORKERS);
        at_owner += i == 0;
        copies += c[i].peer_tokens > 0;
        c[i].matched_tokens = N;
        c[i].peer_tokens = 0;
        c[i].placed += (uint32_t)_i; /* cold: each request ends before the next one comes */
    }
    ck_assert_int_eq(copies, _i ? WORKERS - 1 : 0);
    ck_assert_int_eq(at_owner, _i ? 50 : 200);
}
END_TEST

/* ---- key set ---- */

static sl_key key(uint64_t i)
{
    return sl_hash_chain((sl_key){0, 0}, &i, sizeof i);
}

START_TEST(set_holds_what_was_added)
{
    sl_keyset *s;
    ck_assert_int_eq(sl_keyset_create(10000, &s), SL_OK);
    for (uint64_t i = 0; i < 5000; i++) {
        sl_keyset_add(s, key(i));
        sl_keyset_add(s, key(i));
    }
    ck_assert_uint_eq(sl_keyset_count(s), 5000);
    for (uint64_t i = 0; i < 5000; i += 2)
        sl_keyset_remove(s, key(i));
    sl_keyset_remove(s, key(99999));
    ck_assert_uint_eq(sl_keyset_count(s), 2500);
    for (uint64_t i = 0; i < 5000; i++)
        ck_assert_int_eq(sl_keyset_has(s, key(i)), i % 2);
    ck_assert(!sl_keyset_has(s, (sl_key){0, 0}));
    sl_keyset_clear(s);
    ck_assert_uint_eq(sl_keyset_count(s), 0);
    ck_assert(!sl_keyset_has(s, key(1)));
    sl_keyset_destroy(s);
    sl_keyset_destroy(NULL);
}
END_TEST

static void use(sl_key (*key_of)(uint64_t))
{
    sl_keyset *s;
    ck_assert_int_eq(sl_keyset_create(CHOSEN_N, &s), SL_OK);
    for (uint64_t i = 1; i <= CHOSEN_N; i++)
        sl_keyset_add(s, key_of(i));
    ck_assert_uint_eq(sl_keyset_count(s), CHOSEN_N);
    sl_keyset_destroy(s);
}

START_TEST(chosen_keys_cost_what_others_do)
{
    chosen_check(use);
}
END_TEST

START_TEST(set_forgets_the_oldest)
{
    sl_keyset *s;
    ck_assert_int_eq(sl_keyset_create(100, &s), SL_OK);
    for (uint64_t i = 0; i < 1000; i++)
        sl_keyset_add(s, key(i));
    ck_assert_uint_eq(sl_keyset_count(s), 100);
    for (uint64_t i = 0; i < 1000; i++)
        ck_assert_int_eq(sl_keyset_has(s, key(i)), i >= 900);
    sl_keyset_destroy(s);
}
END_TEST

START_TEST(set_random_against_a_list)
{
    enum { KEYS = 64 };
    bool in[KEYS] = {false};
    sl_keyset *s;
    ck_assert_int_eq(sl_keyset_create(100000, &s), SL_OK);
    uint64_t seed = 3;
    for (int k = 0; k < 50000; k++) {
        uint64_t i = rnd(&seed) % KEYS;
        if (rnd(&seed) % 2)
            sl_keyset_add(s, key(i)), in[i] = true;
        else
            sl_keyset_remove(s, key(i)), in[i] = false;
        i = rnd(&seed) % KEYS;
        ck_assert_int_eq(sl_keyset_has(s, key(i)), in[i]);
    }
    sl_keyset_destroy(s);
}
END_TEST

START_TEST(match_counts_leading_keys)
{
    sl_keyset *s;
    ck_assert_int_eq(sl_keyset_create(100, &s), SL_OK);
    int32_t tokens[64 * 5 + 3];
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        tokens[i] = (int32_t)i;
    sl_key keys[5];
    ck_assert_uint_eq(sl_page_keys((sl_key){5, 6}, tokens, sizeof tokens / sizeof *tokens, keys), 5);
    sl_keyset_add(s, keys[0]);
    sl_keyset_add(s, keys[1]);
    sl_keyset_add(s, keys[3]);
    ck_assert_uint_eq(sl_keyset_match(s, keys, 5), 2);
    ck_assert_uint_eq(sl_keyset_match(s, keys, 0), 0);
    sl_keyset_destroy(s);
}
END_TEST

int main(void)
{
    sl_options_default(sl_policy_longest_prefix.options, opts);
    Suite *s = suite_create("router/policy");
    TCase *t = tcase_create("policy");
    tcase_add_test(t, ranks_of_a_group);
    tcase_add_loop_test(t, conformance, 0, 4);
    tcase_add_loop_test(t, spreads_equal_workers, 0, 4);
    tcase_add_test(t, least_load_is_least);
    tcase_add_test(t, unknown_policy);
    tcase_add_test(t, trace_replays);
    tcase_add_loop_test(t, the_cost_is_the_sum_of_its_parts, 0, 16);
    tcase_add_loop_test(t, cache_aware_decides, 0, 10);
    tcase_add_loop_test(t, a_hot_prefix_spreads_and_a_cold_one_does_not, 0, 2);
    tcase_add_test(t, set_holds_what_was_added);
    tcase_add_test(t, chosen_keys_cost_what_others_do);
    tcase_add_test(t, set_forgets_the_oldest);
    tcase_add_test(t, set_random_against_a_list);
    tcase_add_test(t, match_counts_leading_keys);
    suite_add_tcase(s, t);
    return run_suite(s);
}
