/*
 * Leases by key (kvstore/store_keys.c): the leading keys of a chain that are in the tree are pinned with everything before
 * them, another seed never gets a page, and eviction, flush and drop leave the pages of the lease in place.
 */
#include <string.h>

#include "kvstore/disk_index.h"
#include "kvstore/store_impl.h"
#include "kvstore/tier.h"
#include "tests/unit/chosen_keys.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { PAGES = 12, FULL = 5 };

static const sl_key seed = {5, 6}, other = {7, 8};
static sl_store *store;
static int32_t tokens[FULL * PAGE + 1];
static sl_key keys[FULL + 1];

static void check(void)
{
    sl_err err = {0};
    ck_assert_msg(sl_store_check(store, &err) == SL_OK, "%s", err.text);
}

/* A store whose tree has the FULL pages of one prompt, unpinned. */
static void open_store(void)
{
    sl_lease *l;
    sl_store_opts o = {.n_pages = PAGES, .prefix_cache = true};
    ck_assert_int_eq(sl_store_create(&o, &store, NULL), SL_OK);
    for (int i = 0; i < FULL * PAGE + 1; i++)
        tokens[i] = i * 3;
    sl_page_keys(seed, tokens, FULL * PAGE, keys);
    keys[FULL] = (sl_key){1, 1};
    ck_assert_int_eq(sl_store_lease(store, seed, tokens, FULL * PAGE, &l), SL_OK);
    sl_lease_publish(l, tokens, FULL * PAGE);
    sl_lease_release(l, true);
}

static void close_store(void)
{
    sl_store_stats st;
    sl_store_stats_get(store, &st);
    ck_assert_int_eq(st.held, 0);
    ck_assert_int_eq(st.leases, 0);
    check();
    sl_store_destroy(store);
}

START_TEST(the_leading_keys_are_leased)
{
    open_store();
    for (int from = 0; from < FULL; from++) {
        int32_t first = -1;
        sl_lease *l;
        ck_assert_int_eq(sl_store_lease_keys(store, seed, keys + from, FULL + 1 - from, &first, &l), SL_OK);
        ck_assert_int_eq(first, from);
        ck_assert_int_eq(sl_lease_n_pages(l), FULL);
        for (int i = 0; i < FULL; i++) {
            sl_store_page p = sl_store_describe(store, sl_lease_pages(l)[i]);
            ck_assert(sl_key_eq(p.key, keys[i]) && sl_key_eq(p.prev, i ? keys[i - 1] : seed));
            ck_assert_mem_eq(p.tokens, tokens + i * PAGE, PAGE * sizeof *tokens);
        }
        check();
        sl_lease_release(l, true);
    }
    int32_t first;
    sl_lease *l;
    ck_assert_int_eq(sl_store_lease_keys(store, seed, keys + 1, 2, &first, &l), SL_OK);
    ck_assert_int_eq(sl_lease_n_pages(l), 3); /* the one before them, and these two */
    sl_lease_release(l, true);
    close_store();
}
END_TEST

START_TEST(another_seed_or_key_gets_nothing)
{
    open_store();
    int32_t first;
    sl_lease *l;
    const sl_key gap[2] = {keys[0], keys[2]};
    ck_assert_int_eq(sl_store_lease_keys(store, other, keys, FULL, &first, &l), SL_ERR_NOT_FOUND);
    ck_assert_int_eq(sl_store_lease_keys(store, seed, keys + FULL, 1, &first, &l), SL_ERR_NOT_FOUND);
    ck_assert_int_eq(sl_store_lease_keys(store, seed, gap, 2, &first, &l), SL_OK);
    ck_assert_int_eq(sl_lease_n_pages(l), 1); /* keys[2] does not continue keys[0] */
    sl_lease_release(l, true);
    close_store();
}
END_TEST

/* Neither eviction nor the end of the tree gives the pages of a lease to others. */
START_TEST(leased_pages_stay)
{
    open_store();
    int32_t first, more[PAGES * PAGE];
    sl_lease *l, *big;
    ck_assert_int_eq(sl_store_lease_keys(store, seed, keys + 2, 2, &first, &l), SL_OK);
    for (int i = 0; i < PAGES * PAGE; i++)
        more[i] = 1000 + i;
    ck_assert_int_eq(sl_store_lease(store, seed, more, (PAGES - 4) * PAGE, &big), SL_OK); /* evicts page 4 */
    for (int i = 0; i < PAGES - 4; i++)
        for (int k = 0; k < 4; k++)
            ck_assert_int_ne(sl_lease_pages(big)[i], sl_lease_pages(l)[k]);
    sl_store_flush(store);
    check();
    sl_lease *none;
    ck_assert_int_eq(sl_store_lease(store, seed, more, PAGE, &none), SL_ERR_EXHAUSTED);
    ck_assert_int_eq(sl_store_lease_keys(store, seed, keys, 1, &first, &none), SL_ERR_NOT_FOUND);
    sl_lease_release(big, false);
    sl_lease_release(l, true);
    close_store();
}
END_TEST

/* ---- chosen keys ---- */

static void use_disk_index(sl_key (*key)(uint64_t))
{
    enum { SLOTS = 1000 };
    sl_disk_index ix;
    const sl_disk_store of = {.page_bytes = 4096, .slots_per_segment = SLOTS};
    ck_assert_int_eq(sl_disk_index_init(&ix, &of, CHOSEN_N / SLOTS + 1, NULL), SL_OK);
    for (uint64_t i = 1; i <= CHOSEN_N; i++)
        sl_disk_index_adopt(&ix, (int64_t)i - 1, key(i), i);
    for (uint64_t i = 1; i <= CHOSEN_N; i++)
        ck_assert_int_ge(sl_disk_index_find(&ix, key(i)), 0);
    sl_disk_index_free(&ix);
}

/* The leases of a store look for keys that clients have chosen, found or not. */
static void use_store(sl_key (*key)(uint64_t))
{
    sl_store *s;
    const sl_store_opts o = {.n_pages = CHOSEN_N, .prefix_cache = true};
    ck_assert_int_eq(sl_store_create(&o, &s, NULL), SL_OK);
    for (int32_t i = 1; i <= CHOSEN_N; i++)
        sl_store_enter(s, sl_store_take_page(s), &(sl_node){.key = key((uint64_t)i), .parent = -1}, tokens);
    sl_store_destroy(s);
}

START_TEST(chosen_keys_cost_what_others_do)
{
    chosen_check(_i ? use_store : use_disk_index);
}
END_TEST

/* Tiers hold pages of one model and of one kind of bits: every two of them have different fingerprints. */
START_TEST(fingerprints_of_bits_differ)
{
    const uint32_t bits[] = {0, 80, 86, 89, 90, 100, 103, 120, 90 + 256};
    sl_key all[2 * SL_COUNT(bits)];
    for (size_t i = 0; i < SL_COUNT(all); i++) {
        all[i] = sl_tier_fingerprint(i % 2 ? seed : other, bits[i / 2]);
        for (size_t j = 0; j < i; j++)
            ck_assert(!sl_key_eq(all[i], all[j]));
    }
    ck_assert(sl_key_eq(sl_tier_fingerprint(seed, 0), seed)); /* pages that CPUs wrote before are found */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("keys");
    TCase *t = tcase_create("keys");
    tcase_add_test(t, the_leading_keys_are_leased);
    tcase_add_test(t, another_seed_or_key_gets_nothing);
    tcase_add_test(t, leased_pages_stay);
    tcase_add_test(t, fingerprints_of_bits_differ);
    tcase_add_loop_test(t, chosen_keys_cost_what_others_do, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
