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
#include "tests/unit/run_suite.h"

static const sl_policy_opts opts = {0.3, 32, 1.5};

static uint64_t rnd(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return *s >> 33;
}

static void random_case(uint64_t *seed, sl_pick_request *req, sl_candidate *c, size_t *n)
{
    *n = 1 + rnd(seed) % 8;
    *req = (sl_pick_request){(uint32_t)(1 + rnd(seed) % 4096), rnd(seed)};
    for (size_t i = 0; i < *n; i++) {
        c[i] = (sl_candidate){.worker = (uint32_t)i + 1, .placed = (uint32_t)(rnd(seed) % 50)};
        c[i].running = (uint32_t)(rnd(seed) % 50);
        c[i].queued_tokens = rnd(seed) % 100000;
        c[i].total_pages = rnd(seed) % 2 ? 1000 : 0;
        c[i].free_pages = (uint32_t)(rnd(seed) % 1001);
        c[i].matched_tokens = (uint32_t)(rnd(seed) % (req->n_tokens + 1));
    }
}

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
        sl_pick_request req = {100, k};
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
        sl_pick_request req;
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
    ck_assert_int_eq(n_lines, 15);
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
    Suite *s = suite_create("router/policy");
    TCase *t = tcase_create("policy");
    tcase_add_loop_test(t, conformance, 0, 3);
    tcase_add_loop_test(t, spreads_equal_workers, 0, 3);
    tcase_add_test(t, least_load_is_least);
    tcase_add_test(t, unknown_policy);
    tcase_add_test(t, trace_replays);
    tcase_add_test(t, set_holds_what_was_added);
    tcase_add_test(t, set_forgets_the_oldest);
    tcase_add_test(t, set_random_against_a_list);
    tcase_add_test(t, match_counts_leading_keys);
    suite_add_tcase(s, t);
    return run_suite(s);
}
