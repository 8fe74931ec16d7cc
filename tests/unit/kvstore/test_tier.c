/*
 * Conformance of storage tiers: every guarantee of kvstore/tier.h, run against every registered implementation.
 */
#include <string.h>
#include <time.h>

#include "kvstore/tier.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { BYTES = 4096, PAGES = 8 };

static sl_tier *tier;
static uint8_t content[32][BYTES], got[32][BYTES];
static sl_key keys[32];
static void *into[32];
static const void *from[32];

typedef struct answer {
    int calls;
    sl_status st;
    int32_t n;
} answer;

static void on_done(void *cookie, sl_status st, int32_t n)
{
    answer *a = cookie;
    *a = (answer){a->calls + 1, st, n};
}

static void open_tier(int i)
{
    sl_err err = {0};
    sl_tier_opts o = {.page_bytes = BYTES, .capacity_bytes = PAGES * BYTES + BYTES / 2};
    ck_assert_msg(sl_tier_at((size_t)i)->create(&o, &tier, &err) == SL_OK, "%s", err.text);
    uint64_t seed = 42;
    for (int p = 0; p < 32; p++) {
        keys[p] = (sl_key){rnd(&seed), rnd(&seed)};
        for (int b = 0; b < BYTES; b++)
            content[p][b] = (uint8_t)rnd(&seed);
        into[p] = got[p];
        from[p] = content[p];
    }
}

static int32_t wait_for(answer *a)
{
    ck_assert_int_eq(a->calls, 0); /* nothing completes inside the call */
    for (int i = 0; i < 1000 && !a->calls; i++)
        sl_tier_poll(tier);
    ck_assert_int_eq(a->calls, 1);
    ck_assert_int_eq(a->st, SL_OK);
    return a->n;
}

static int32_t set(int first, int n)
{
    answer a = {0};
    ck_assert_int_eq(sl_tier_batch_set(tier, keys + first, n, from + first, on_done, &a), SL_OK);
    return wait_for(&a);
}

static int32_t get(int first, int n)
{
    answer a = {0};
    memset(got, 0xee, sizeof got);
    ck_assert_int_eq(sl_tier_batch_get(tier, keys + first, n, into + first, on_done, &a), SL_OK);
    int32_t k = wait_for(&a);
    for (int i = 0; i < k; i++)
        ck_assert_mem_eq(got[first + i], content[first + i], BYTES);
    return k;
}

static int32_t exists(int first, int n, uint32_t lease_ms)
{
    answer a = {0};
    ck_assert_int_eq(sl_tier_batch_exists(tier, keys + first, n, lease_ms, on_done, &a), SL_OK);
    return wait_for(&a);
}

static int32_t erase(int first, int n)
{
    answer a = {0};
    ck_assert_int_eq(sl_tier_remove(tier, keys + first, n, on_done, &a), SL_OK);
    return wait_for(&a);
}

static sl_tier_stats stats(void)
{
    sl_tier_stats s;
    sl_tier_get_stats(tier, &s);
    return s;
}

START_TEST(what_was_set_is_got)
{
    open_tier(_i);
    ck_assert_int_eq(get(0, 3), 0);
    ck_assert_int_eq(set(0, 5), 5);
    ck_assert_int_eq(get(0, 5), 5);
    ck_assert_int_eq(get(3, 4), 2); /* 5 and 6 are not there */
    ck_assert_int_eq(exists(0, 8, 0), 5);
    ck_assert_int_eq(exists(5, 2, 0), 0);
    sl_tier_stats s = stats();
    ck_assert_uint_eq(s.pages, 5);
    ck_assert_uint_eq(s.bytes, 5 * BYTES);
    sl_tier_destroy(tier);
}
END_TEST

START_TEST(only_consecutive_hits_count)
{
    open_tier(_i);
    set(0, 6);
    ck_assert_int_eq(erase(2, 1), 1);
    ck_assert_int_eq(erase(2, 1), 0);
    ck_assert_int_eq(exists(0, 6, 0), 2);
    ck_assert_int_eq(get(0, 6), 2);
    ck_assert_int_eq(get(3, 3), 3);
    sl_tier_destroy(tier);
}
END_TEST

START_TEST(damage_ends_the_prefix)
{
    open_tier(_i);
    set(0, 6);
    ck_assert(sl_tier_at((size_t)_i)->damage(tier, keys[3]));
    ck_assert(!sl_tier_at((size_t)_i)->damage(tier, keys[9]));
    ck_assert_int_eq(get(0, 6), 3);
    ck_assert_uint_eq(stats().damaged, 1);
    ck_assert_int_eq(exists(0, 6, 0), 3); /* and the damaged page is not stored any more */
    ck_assert_int_eq(set(3, 1), 1);
    ck_assert_int_eq(get(0, 6), 6);
    sl_tier_destroy(tier);
}
END_TEST

START_TEST(eviction_takes_the_oldest)
{
    open_tier(_i);
    ck_assert_int_eq(set(0, PAGES), PAGES);
    ck_assert_int_eq(get(0, 2), 2); /* used again: 2 is the oldest now */
    ck_assert_int_eq(set(8, 2), 2);
    ck_assert_int_eq(exists(0, 2, 0), 2);
    ck_assert_int_eq(exists(2, 1, 0), 0);
    ck_assert_int_eq(exists(3, 1, 0), 0);
    ck_assert_int_eq(exists(4, 6, 0), 6);
    ck_assert_uint_eq(stats().pages, PAGES);
    ck_assert_uint_eq(stats().evictions, 2);
    sl_tier_destroy(tier);
}
END_TEST

START_TEST(leases_protect_until_they_end)
{
    open_tier(_i);
    set(0, PAGES);
    ck_assert_int_eq(exists(0, PAGES, 60000), PAGES);
    ck_assert_uint_eq(stats().leased, PAGES);
    ck_assert_int_eq(set(8, 2), 0); /* everything is leased: not stored, no error */
    ck_assert_int_eq(get(0, PAGES), PAGES);
    sl_tier_release(tier, keys, 3);
    ck_assert_int_eq(set(8, 4), 3);
    ck_assert_int_eq(get(3, 5), 5);
    sl_tier_release(tier, keys, 12);
    ck_assert_int_eq(exists(3, 5, 20), 5);
    nanosleep(&(struct timespec){0, 40000000}, NULL);
    ck_assert_uint_eq(stats().leased, 0);
    ck_assert_int_eq(set(12, 8), 8);
    ck_assert_int_eq(exists(3, 1, 0), 0);
    sl_tier_destroy(tier);
}
END_TEST

START_TEST(setting_again_changes_nothing)
{
    open_tier(_i);
    set(0, 2);
    const void *other[2] = {content[9], content[8]};
    answer a = {0};
    ck_assert_int_eq(sl_tier_batch_set(tier, keys, 2, other, on_done, &a), SL_OK);
    ck_assert_int_eq(wait_for(&a), 2);
    ck_assert_int_eq(get(0, 2), 2);
    ck_assert_uint_eq(stats().sets, 2);
    sl_tier_destroy(tier);
}
END_TEST

typedef struct order {
    int seen[4], n, id;
} order;

static order *shared;

static void on_ordered(void *cookie, sl_status st, int32_t n)
{
    (void)st;
    (void)n;
    shared->seen[shared->n++] = (int)(intptr_t)cookie;
}

START_TEST(in_order_and_cancelled_by_destroy)
{
    open_tier(_i);
    order o = {0};
    shared = &o;
    sl_tier_batch_set(tier, keys, 2, from, on_ordered, (void *)1);
    sl_tier_batch_get(tier, keys, 2, into, on_ordered, (void *)2);
    sl_tier_batch_exists(tier, keys, 2, 0, on_ordered, (void *)3);
    for (int i = 0; i < 1000 && o.n < 3; i++)
        sl_tier_poll(tier);
    ck_assert_int_eq(o.n, 3);
    ck_assert(o.seen[0] == 1 && o.seen[1] == 2 && o.seen[2] == 3);
    ck_assert_mem_eq(got[1], content[1], BYTES);
    answer a = {0};
    ck_assert_int_eq(sl_tier_batch_get(tier, keys, 0, into, on_done, &a), SL_ERR_INVALID);
    ck_assert_int_eq(sl_tier_batch_get(tier, keys, 2, into, on_done, &a), SL_OK);
    sl_tier_destroy(tier);
    ck_assert_int_eq(a.calls, 1);
    ck_assert_int_eq(a.st, SL_ERR_CANCELLED);
    sl_tier_destroy(NULL);
}
END_TEST

START_TEST(random_against_a_model)
{
    open_tier(_i);
    bool there[32] = {false};
    uint64_t seed = 99;
    for (int step = 0; step < 3000; step++) {
        int first = rnd_below(&seed, 6),
            n = 1 + rnd_below(&seed, 7 - first); /* never more than fit: no eviction */
        int run = 0;
        while (run < n && there[first + run])
            run++;
        switch (rnd_below(&seed, 4)) {
        case 0:
            ck_assert_int_eq(set(first, n), n);
            memset(there + first, true, (size_t)n);
            break;
        case 1:
            ck_assert_int_eq(get(first, n), run);
            break;
        case 2:
            ck_assert_int_eq(exists(first, n, 0), run);
            break;
        default:
            erase(first, n);
            memset(there + first, false, (size_t)n);
            break;
        }
    }
    sl_tier_destroy(tier);
}
END_TEST

START_TEST(bad_options)
{
    sl_err err = {0};
    sl_tier_opts o = {.page_bytes = BYTES, .capacity_bytes = BYTES - 1};
    ck_assert_int_eq(sl_tier_at((size_t)_i)->create(&o, &tier, &err), SL_ERR_INVALID);
    ck_assert_ptr_eq(sl_tier_find(sl_tier_at((size_t)_i)->name), sl_tier_at((size_t)_i));
    ck_assert_ptr_null(sl_tier_find("tape"));
    ck_assert_str_eq(sl_tier_names()[_i], sl_tier_at((size_t)_i)->name);
    ck_assert(!sl_tier_names()[_i + 1] == !sl_tier_at((size_t)_i + 1));
}
END_TEST

int main(void)
{
    int n = 0;
    while (sl_tier_at((size_t)n))
        n++;
    Suite *s = suite_create("tier");
    TCase *t = tcase_create("tier");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, what_was_set_is_got, 0, n);
    tcase_add_loop_test(t, only_consecutive_hits_count, 0, n);
    tcase_add_loop_test(t, damage_ends_the_prefix, 0, n);
    tcase_add_loop_test(t, eviction_takes_the_oldest, 0, n);
    tcase_add_loop_test(t, leases_protect_until_they_end, 0, n);
    tcase_add_loop_test(t, setting_again_changes_nothing, 0, n);
    tcase_add_loop_test(t, in_order_and_cancelled_by_destroy, 0, n);
    tcase_add_loop_test(t, random_against_a_model, 0, n);
    tcase_add_loop_test(t, bad_options, 0, n);
    suite_add_tcase(s, t);
    return run_suite(s);
}
