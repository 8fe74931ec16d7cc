/*
 * Conformance of storage tiers: every guarantee of kvstore/tier.h, run against every registered implementation, directly
 * and through a wrapper that injects faults (fault_tier.h). Pages are described by spans that are not contiguous, as in
 * an arena with the layout layer_first.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kvstore/tier.h"
#include "tests/unit/kvstore/fault_tier.h"
#include "tests/unit/kvstore/test_kvstore.h"
#include "tests/unit/kvstore/tier_impls.h"

enum { BYTES = TIER_PAGE_BYTES, PAGES = TIER_PAGES, KEYS = TIER_KEYS, SPANS = 4, MAX_N = KEYS };

static const size_t span_bytes[SPANS] = {656, 1500, 4, BYTES - 656 - 1500 - 4};
static sl_tier *tier;
static const sl_tier_ops *impl;
static int n_impls;
/* A span uses the first bytes of its row. */
static uint8_t content[SPANS][KEYS][BYTES], got[SPANS][KEYS][BYTES];
static struct iovec content_spans[KEYS][SPANS], got_spans[KEYS][SPANS];
static sl_key keys[KEYS];
static sl_tier_page into[KEYS], from[KEYS];

/* What the tier has said about each key: it left, this many times; and after how many answers it said so last. */
static int left[KEYS], left_after[KEYS], n_answers;

static void on_evicted(void *ctx, const sl_key *gone, int32_t n)
{
    ck_assert_ptr_eq(ctx, keys);
    for (int32_t i = 0; i < n; i++) {
        int k = 0;
        while (k < KEYS && !sl_key_eq(keys[k], gone[i]))
            k++;
        ck_assert_int_lt(k, KEYS);
        left[k]++;
        left_after[k] = n_answers;
    }
}

typedef struct answer {
    int calls;
    sl_status st;
    sl_status results[MAX_N];
    sl_tier_req req;
} answer;

static void on_done(sl_tier_req *req, sl_status st)
{
    answer *a = req->cookie;
    ck_assert_ptr_eq(req, &a->req);
    a->calls++;
    n_answers++;
    a->st = st;
}

static sl_tier_opts options(void)
{
    sl_tier_opts o = tier_impl_options(impl);
    o.evicted = on_evicted;
    o.evicted_ctx = keys;
    return o;
}

static void fill_pages(void)
{
    uint64_t seed = 42;
    for (int p = 0; p < KEYS; p++) {
        keys[p] = (sl_key){rnd(&seed), rnd(&seed)};
        for (int s = 0; s < SPANS; s++) {
            for (size_t b = 0; b < BYTES; b++)
                content[s][p][b] = (uint8_t)rnd(&seed);
            content_spans[p][s] = (struct iovec){content[s][p], span_bytes[s]};
            got_spans[p][s] = (struct iovec){got[s][p], span_bytes[s]};
        }
        into[p] = (sl_tier_page){got_spans[p], SPANS};
        from[p] = (sl_tier_page){content_spans[p], SPANS};
    }
}

/* Variants of a loop test: first every implementation alone, then each of them with delayed completions. */
static void open_tier(int i)
{
    sl_err err = {0};
    n_answers = 0;
    memset(left, 0, sizeof left);
    impl = tier_impl(i % n_impls);
    sl_tier_opts o = options();
    tier_impl_folder(impl);
    ck_assert_msg(sl_tier_open(impl, &o, &tier, &err) == SL_OK, "%s", err.text);
    if (i >= n_impls)
        tier = fault_tier_wrap(tier, &(faults){.delay_polls = 3});
    fill_pages();
}

static void close_tier(void)
{
    sl_tier_close(tier);
    tier_impl_remove(impl);
}

static void prepare(answer *a, sl_tier_op op, int first, int n)
{
    *a = (answer){.req = {.op = op, .n = n, .keys = keys + first, .done = on_done, .cookie = a}};
    a->req.pages = op == SL_TIER_SET ? from + first : into + first;
    a->req.results = a->results;
}

static void ask(answer *a, sl_tier_op op, int first, int n)
{
    prepare(a, op, first, n);
    ck_assert_int_eq(sl_tier_submit(tier, &a->req), SL_OK);
}

/* Waits on the descriptor, so an implementation that does not signal it hangs here until the limit of the test. */
static void wait_and_poll(void)
{
    struct pollfd p = {.fd = sl_tier_fd(tier), .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 20000), 1);
    sl_tier_poll(tier);
}

static void wait_end(answer *a)
{
    ck_assert_int_eq(a->calls, 0); /* nothing completes inside the call */
    while (!a->calls)
        wait_and_poll();
    ck_assert_int_eq(a->calls, 1);
}

static int32_t wait_for(answer *a)
{
    wait_end(a);
    ck_assert_int_eq(a->st, SL_OK);
    return sl_tier_prefix(&a->req);
}

static bool is_right(int page)
{
    for (int s = 0; s < SPANS; s++)
        if (memcmp(got[s][page], content[s][page], span_bytes[s]) != 0)
            return false;
    return true;
}

/* The number of pages that arrived; those are right, and no byte outside the spans was written. */
static int32_t check_got(const answer *a, int first)
{
    int32_t n = 0;
    for (int i = 0; i < a->req.n; i++)
        if (a->results[i] == SL_OK) {
            ck_assert(is_right(first + i));
            n++;
        }
    int outside = 0;
    for (int s = 0; s < SPANS; s++)
        for (int p = 0; p < KEYS; p++)
            outside += got[s][p][span_bytes[s]] != 0xee;
    ck_assert_int_eq(outside, 0);
    return n;
}

static int32_t set(int first, int n)
{
    answer a;
    ask(&a, SL_TIER_SET, first, n);
    return wait_for(&a);
}

static int32_t get(int first, int n)
{
    answer a;
    memset(got, 0xee, sizeof got);
    ask(&a, SL_TIER_GET, first, n);
    int32_t k = wait_for(&a);
    check_got(&a, first);
    return k;
}

static int32_t exists(int first, int n, uint32_t lease_ms)
{
    answer a;
    prepare(&a, SL_TIER_EXISTS, first, n);
    a.req.pages = NULL;
    a.req.lease_ms = lease_ms;
    ck_assert_int_eq(sl_tier_submit(tier, &a.req), SL_OK);
    return wait_for(&a);
}

static int32_t erase(int first, int n)
{
    answer a;
    ask(&a, SL_TIER_REMOVE, first, n);
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
    if (!impl->shared) { /* else the store counts what all its users have, once in a second */
        ck_assert_uint_eq(s.pages, 5);
        ck_assert_uint_eq(s.bytes, 5 * BYTES);
    }
    ck_assert_uint_eq(s.hits, 7);
    close_tier();
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
    close_tier();
}
END_TEST

START_TEST(damage_ends_the_prefix)
{
    open_tier(_i);
    set(0, 6);
    ck_assert(tier->ops->damage(tier, keys[3]));
    ck_assert(!tier->ops->damage(tier, keys[9]));
    ck_assert_int_eq(get(0, 6), 3);
    ck_assert_uint_eq(stats().damaged, 1);
    ck_assert_int_eq(exists(0, 6, 0), 3); /* and the damaged page is not stored any more */
    ck_assert_int_eq(set(3, 1), 1);
    ck_assert_int_eq(get(0, 6), 6);
    close_tier();
}
END_TEST

/* A shared store has its own size and rules; whether they hold is a test of that store (test_redis.c). */
static bool evicts_itself(void)
{
    if (impl->shared)
        close_tier();
    return !impl->shared;
}

START_TEST(eviction_takes_the_oldest)
{
    open_tier(_i);
    if (!evicts_itself())
        return;
    ck_assert_int_eq(set(0, PAGES), PAGES);
    ck_assert_int_eq(get(0, 2), 2); /* used again: 2 is the oldest now */
    answer a;
    prepare(&a, SL_TIER_GET, 2, 2);
    a.req.not_a_use = true; /* and remains it */
    ck_assert_int_eq(sl_tier_submit(tier, &a.req), SL_OK);
    wait_end(&a);
    ck_assert_int_eq(a.results[0], SL_OK);
    ck_assert_int_eq(set(8, 2), 2);
    ck_assert_int_eq(exists(0, 2, 0), 2);
    ck_assert_int_eq(exists(2, 1, 0), 0);
    ck_assert_int_eq(exists(3, 1, 0), 0);
    ck_assert_int_eq(exists(4, 6, 0), 6);
    ck_assert_uint_eq(stats().pages, PAGES);
    ck_assert_uint_eq(stats().evictions, 2);
    close_tier();
}
END_TEST

START_TEST(leases_protect_until_they_end)
{
    open_tier(_i);
    if (!evicts_itself())
        return;
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
    close_tier();
}
END_TEST

/* How often each key was reported as gone: 1 for these, 0 for all others. */
static void check_left(int first, int n)
{
    for (int k = 0; k < KEYS; k++)
        ck_assert_int_eq(left[k], k >= first && k < first + n);
}

/* A store that evicts by its own rules reports what it knows: the pages that it found damaged. */
START_TEST(what_leaves_is_reported)
{
    open_tier(_i);
    if (impl->shared) {
        set(0, 6);
        ck_assert(tier->ops->damage(tier, keys[4]));
        ck_assert_int_eq(get(4, 1), 0);
        check_left(4, 1);
        close_tier();
        return;
    }
    set(0, PAGES);
    check_left(0, 0);
    set(8, 3); /* 0, 1 and 2 make room */
    check_left(0, 3);
    erase(3, 1); /* the owner knows this */
    check_left(0, 3);
    ck_assert(tier->ops->damage(tier, keys[4]));
    ck_assert_int_eq(get(4, 1), 0);
    ck_assert_int_eq(left[4], 1);
    left[4] = 0;
    int before = n_answers;
    set(12, 4); /* two places are empty for this implementation, or none */
    set(0, 3);  /* they are back: what was said before about them is older than this answer */
    for (int k = 0; k < 3; k++)
        ck_assert(left[k] == 1 && left_after[k] < before);
    close_tier();
    for (int k = 12; k < 16; k++)
        ck_assert_int_eq(left[k], 0); /* nothing is reported at close */
}
END_TEST

START_TEST(a_list_has_every_page_once)
{
    open_tier(_i);
    if (!impl->list) {
        close_tier();
        return;
    }
    set(0, 7);
    erase(2, 1);
    for (int32_t part = 1; part < 9; part++) {
        int seen[KEYS] = {0}, total = 0;
        sl_key some[8];
        uint64_t cursor = 0;
        for (int32_t n; (n = sl_tier_list(tier, &cursor, some, part)) != 0; total += n) {
            ck_assert_int_le(n, part);
            for (int32_t i = 0; i < n; i++)
                for (int k = 0; k < KEYS; k++)
                    seen[k] += sl_key_eq(some[i], keys[k]);
        }
        ck_assert_int_eq(total, 6);
        for (int k = 0; k < 7; k++)
            ck_assert_int_eq(seen[k], k != 2);
    }
    close_tier();
}
END_TEST

START_TEST(setting_again_changes_nothing)
{
    open_tier(_i);
    set(0, 2);
    const sl_tier_page other[2] = {from[9], from[8]};
    answer a;
    prepare(&a, SL_TIER_SET, 0, 2);
    a.req.pages = other;
    ck_assert_int_eq(sl_tier_submit(tier, &a.req), SL_OK);
    ck_assert_int_eq(wait_for(&a), 2);
    ck_assert_int_eq(get(0, 2), 2);
    ck_assert_uint_eq(stats().sets, 2);
    close_tier();
}
END_TEST

typedef struct order {
    answer *seen[4];
    int n;
} order;

static order order_seen;

static void on_ordered(sl_tier_req *req, sl_status st)
{
    on_done(req, st);
    order_seen.seen[order_seen.n++] = req->cookie;
}

static void poll_until_ordered(int n)
{
    while (order_seen.n < n)
        wait_and_poll();
}

START_TEST(in_order_and_cancelled_by_close)
{
    open_tier(_i);
    static const sl_tier_op ops[3] = {SL_TIER_SET, SL_TIER_GET, SL_TIER_EXISTS};
    answer a[3];
    memset(&order_seen, 0, sizeof order_seen);
    memset(got, 0xee, sizeof got);
    for (int i = 0; i < 3; i++) {
        prepare(&a[i], ops[i], 0, 2);
        a[i].req.done = on_ordered;
        ck_assert_int_eq(sl_tier_submit(tier, &a[i].req), SL_OK);
        if (!impl->ordered)
            poll_until_ordered(i + 1); /* a request sees what completed before it was made */
    }
    poll_until_ordered(3);
    for (int i = 0; i < 3; i++) {
        ck_assert_ptr_eq(order_seen.seen[i], &a[i]);
        ck_assert_int_eq(sl_tier_prefix(&a[i].req), 2);
    }
    ck_assert(is_right(1));
    answer last = {.req = {.op = SL_TIER_GET, .n = 0, .keys = keys, .pages = into}};
    ck_assert_int_eq(sl_tier_submit(tier, &last.req), SL_ERR_INVALID);
    ask(&last, SL_TIER_GET, 0, 2);
    sl_tier_close(tier);
    ck_assert_int_eq(last.calls, 1);
    ck_assert_int_eq(last.st, SL_ERR_CANCELLED);
    sl_tier_close(NULL);
    tier_impl_remove(impl);
}
END_TEST

/* After done has run, the tier must not touch the buffers, whatever had begun. */
START_TEST(cancel_drains)
{
    open_tier(_i);
    ck_assert_int_eq(set(0, 6), 6);
    for (int round = 0; round < 20; round++) {
        answer a;
        memset(got, 0xee, sizeof got);
        ask(&a, SL_TIER_GET, 0, 6);
        for (int i = 0; i < round % 4 && !a.calls; i++)
            sl_tier_poll(tier);
        bool ended = a.calls == 1;
        if (!ended) {
            sl_tier_cancel(tier, &a.req);
            ck_assert_int_eq(a.calls, 0);
            wait_end(&a);
            ck_assert_int_eq(a.st, SL_ERR_CANCELLED);
        }
        for (int i = 0; i < 6; i++)
            ck_assert(a.results[i] == SL_OK || (!ended && a.results[i] == SL_ERR_CANCELLED));
        check_got(&a, 0);
        memset(got, 0xcd, sizeof got);
        memset(&a.req, 0xcd, sizeof a.req);
        for (int i = 0; i < 5; i++)
            sl_tier_poll(tier);
        size_t changed = 0;
        for (size_t i = 0; i < sizeof got; i++)
            changed += ((uint8_t *)got)[i] != 0xcd;
        ck_assert_uint_eq(changed, 0);
    }
    ck_assert_int_eq(get(0, 6), 6);
    close_tier();
}
END_TEST

START_TEST(one_missing_key_does_not_fail_the_others)
{
    open_tier(_i);
    answer a;
    set(0, 6);
    erase(1, 1);
    ck_assert(tier->ops->damage(tier, keys[4]));
    memset(got, 0xee, sizeof got);
    ask(&a, SL_TIER_GET, 0, 7);
    ck_assert_int_eq(wait_for(&a), 1);
    ck_assert_int_eq(check_got(&a, 0), 4);
    ck_assert_int_eq(a.results[1], SL_ERR_NOT_FOUND);
    ck_assert_int_eq(a.results[4], SL_ERR_CORRUPT);
    ck_assert_int_eq(a.results[6], SL_ERR_NOT_FOUND);
    sl_tier_health h;
    sl_tier_get_health(tier, &h);
    ck_assert_int_eq(h.state, SL_TIER_HEALTHY);
    ck_assert_str_eq(h.reason, "");
    close_tier();
}
END_TEST

/* Whatever is lost, cut short or damaged: a page that counts is right, and every request ends once. */
START_TEST(faults_never_give_a_wrong_page)
{
    static const faults kinds[] = {{.lose_every = 3},
                                   {.short_every = 4},
                                   {.damage_every = 5},
                                   {.delay_polls = 2, .lose_every = 7, .short_every = 5, .damage_every = 6}};
    for (size_t k = 0; k < SL_COUNT(kinds); k++) {
        open_tier(_i);
        tier = fault_tier_wrap(tier, &kinds[k]);
        uint64_t seed = 7 + k, arrived = 0;
        for (int step = 0; step < 300; step++) {
            answer a;
            int first = rnd_below(&seed, 6), n = 1 + rnd_below(&seed, 7 - first);
            ask(&a, SL_TIER_SET, first, n);
            ck_assert_int_eq(wait_for(&a), n);
            memset(got, 0xee, sizeof got);
            ask(&a, SL_TIER_GET, first, n);
            wait_for(&a);
            arrived += (uint64_t)check_got(&a, first);
        }
        ck_assert_uint_gt(arrived, 300);
        ck_assert(!kinds[k].damage_every || stats().damaged > 0);
        fault_tier_set(tier, &(faults){0});
        set(0, 7);
        ck_assert_int_eq(get(0, 7), 7);
        close_tier();
    }
}
END_TEST

START_TEST(death_ends_every_request)
{
    open_tier(_i);
    tier = fault_tier_wrap(tier, &(faults){.die_after = 2, .delay_polls = 2});
    answer a[4];
    for (int i = 0; i < 4; i++)
        ask(&a[i], i ? SL_TIER_GET : SL_TIER_SET, 0, 3);
    for (int i = 0; i < 4; i++)
        while (!a[i].calls)
            sl_tier_poll(tier);
    for (int i = 2; i < 4; i++)
        for (int k = 0; k < 3; k++)
            ck_assert_int_eq(a[i].results[k], SL_ERR_IO);
    sl_tier_health h;
    sl_tier_get_health(tier, &h);
    ck_assert_int_eq(h.state, SL_TIER_FAILED);
    ck_assert_str_ne(h.reason, "");
    close_tier();
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
    close_tier();
}
END_TEST

START_TEST(bad_options)
{
    sl_err err = {0};
    impl = tier_impl(_i);
    sl_tier_opts o = options();
    o.capacity_bytes = BYTES - 1;
    ck_assert_int_eq(sl_tier_open(impl, &o, &tier, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, impl->options && impl->shared ? ".bytes: " : "capacity"));
    tier_impl_remove(impl);
    ck_assert_ptr_eq(sl_tier_find(impl->name), impl);
    ck_assert_ptr_null(sl_tier_find("tape"));
    for (size_t i = 0; sl_tier_at(i) || sl_tier_names()[i]; i++)
        ck_assert_str_eq(sl_tier_names()[i], sl_tier_at(i)->name);
}
END_TEST

int main(void)
{
    const int n = n_impls = tier_impls_find();
    Suite *s = suite_create("tier");
    TCase *t = tcase_create("tier");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, what_was_set_is_got, 0, 2 * n);
    tcase_add_loop_test(t, only_consecutive_hits_count, 0, 2 * n);
    tcase_add_loop_test(t, damage_ends_the_prefix, 0, 2 * n);
    tcase_add_loop_test(t, eviction_takes_the_oldest, 0, 2 * n);
    tcase_add_loop_test(t, leases_protect_until_they_end, 0, 2 * n);
    tcase_add_loop_test(t, what_leaves_is_reported, 0, 2 * n);
    tcase_add_loop_test(t, a_list_has_every_page_once, 0, 2 * n);
    tcase_add_loop_test(t, setting_again_changes_nothing, 0, 2 * n);
    tcase_add_loop_test(t, in_order_and_cancelled_by_close, 0, 2 * n);
    tcase_add_loop_test(t, cancel_drains, 0, 2 * n);
    tcase_add_loop_test(t, one_missing_key_does_not_fail_the_others, 0, 2 * n);
    tcase_add_loop_test(t, random_against_a_model, 0, 2 * n);
    tcase_add_loop_test(t, faults_never_give_a_wrong_page, 0, 2 * n);
    tcase_add_loop_test(t, death_ends_every_request, 0, 2 * n);
    tcase_add_loop_test(t, bad_options, 0, n);
    suite_add_tcase(s, t);
    int code = run_suite(s);
    tier_impls_stop();
    return code;
}
