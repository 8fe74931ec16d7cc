/*
 * Snapshots in lists of pages and in the prefix tree, for generated requests: the parts of a list neither overlap nor leave a gap,
 * stops of a prompt come in order and end with it, and snapshots that were published are found, pinned and evicted as the contract
 * says, next to a restatement that keeps a set of positions. What is in a snapshot is in tests/unit/engine/test_snapshots.c. About
 * 1 s.
 */
#include <string.h>

#include "kvstore/snapshot.h"
#include "tests/unit/kvstore/test_kvstore.h"

/* ck_assert reports every success to the parent process; this is for inner loops. */
#define MUST(cond)                                                                                           \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            ck_abort_msg("%s", #cond);                                                                       \
    } while (0)

enum { PAGE = SL_PAGE_TOKENS, PAGES = 40, TEXT = 12 * PAGE };

static const sl_key seed = {7, 8};

START_TEST(lists_have_no_gaps)
{
    uint64_t x = 5;
    for (int i = 0; i < 4000; i++) {
        const int32_t s = rnd_below(&x, 4) ? 1 + rnd_below(&x, 70) : 0, n = 1 + rnd_below(&x, 20 * PAGE);
        const int32_t matched = rnd_below(&x, (n - 1) / PAGE + 1);
        const sl_snapshot_places p = sl_snapshot_place(s, n, matched);
        int32_t at = (n + PAGE - 1) / PAGE;
        ck_assert_int_eq(p.pages, at);
        ck_assert_int_eq(p.end, s ? at : -1);
        at += s;
        const bool keeps = s && (n - 1) / PAGE > matched;
        ck_assert_int_eq(p.kept, keeps ? at : -1);
        at += keeps ? s : 0;
        ck_assert(!keeps || (p.kept_tokens % PAGE == 0 && p.kept_tokens < n && p.kept_tokens + PAGE >= n));
        ck_assert_int_eq(p.written, at);
        ck_assert_int_eq(p.prefix, s && matched ? at : -1);
        at += matched ? s : 0;
        ck_assert_int_eq(p.n, at);
        ck_assert_int_le(p.n, sl_snapshot_most_pages(s, n));
    }
}
END_TEST

START_TEST(stops_come_in_order)
{
    uint64_t x = 6;
    for (int i = 0; i < 4000; i++) {
        const int32_t s = rnd_below(&x, 4) ? 1 + rnd_below(&x, 9) : 0, n = 1 + rnd_below(&x, 60 * PAGE);
        int32_t last = 0, before = 0, count = 0;
        for (int32_t pos = rnd_below(&x, n); pos < n; count++) {
            const int32_t next = sl_snapshot_stop(s, n, pos);
            MUST(next > pos && next <= n && (next == n || (s && next % PAGE == 0)));
            MUST(rnd_below(&x, 8) || sl_snapshot_stop(s, n, pos + rnd_below(&x, next - pos)) == next);
            before = last, last = pos = next;
        }
        MUST(last == n && (s || count == 1));
        MUST(!s || before == 0 || n - before <= PAGE);
        MUST(!s || count <= n / (2 * s * PAGE) +
                                2); /* they take half as much memory as the pages, and the last two */
    }
}
END_TEST

/* ---- in the tree ---- */

typedef struct world {
    sl_store *store;
    sl_geometry geo;
    int32_t texts[3][TEXT];
} world;

static void open_world(world *w, int32_t snapshot)
{
    const sl_store_opts so = {.n_pages = PAGES, .prefix_cache = true};
    ck_assert_int_eq(sl_store_create(&so, &w->store, NULL), SL_OK);
    w->geo = (sl_geometry){.page_bytes = 1000, .state_bytes = snapshot * 1000 - SL_SNAPSHOT_HEADER};
    ck_assert_int_eq(sl_snapshot_pages(&w->geo), snapshot);
    uint64_t x = 9;
    for (int t = 0; t < 3; t++) /* they have their first pages in common */
        for (int32_t i = 0; i < TEXT; i++)
            w->texts[t][i] = i < t * 3 * PAGE ? w->texts[t - 1][i] : (int32_t)rnd_below(&x, 1000);
}

static void close_world(world *w)
{
    sl_err err = {0};
    sl_store_stats s;
    sl_store_stats_get(w->store, &s);
    ck_assert_int_eq(s.held, 0);
    ck_assert_msg(sl_store_check(w->store, &err) == SL_OK, "%s", err.text);
    sl_store_destroy(w->store);
}

/* A request that computes n tokens and makes a snapshot after `at` of them. False: there was no room. */
static bool compute(world *w, const int32_t *text, int32_t n, int32_t at)
{
    const int32_t s = sl_snapshot_pages(&w->geo);
    sl_lease *l = NULL, *snap = NULL;
    if (sl_store_lease_for(w->store, 3, seed, text, n, &l) != SL_OK)
        return false;
    const bool room = sl_snapshot_room(w->store, s, 3, seed, &snap) == SL_OK;
    sl_lease_publish(l, text, n);
    if (room)
        sl_snapshot_publish(snap, l, text, at);
    sl_lease_release(l, true);
    return room;
}

START_TEST(positions_are_found_and_pinned)
{
    world w;
    uint64_t x = 11 + (uint64_t)_i;
    const int32_t s = 1 + _i;
    open_world(&w, s);
    for (int i = 0; i < 600; i++) {
        const int32_t *text = w.texts[rnd_below(&x, 3)];
        const int32_t n = PAGE + 1 + rnd_below(&x, TEXT - PAGE - 1),
                      at = PAGE * (1 + rnd_below(&x, n / PAGE));
        sl_lease *l = NULL;
        if (compute(&w, text, n, at)) {
            const int32_t found = sl_snapshot_find(w.store, &w.geo, seed, text, at + 1);
            MUST(found == at);
            MUST(sl_snapshot_find(w.store, &w.geo, seed, text, at) < at);
            MUST(sl_snapshot_lease(w.store, s, 3, seed, text, at, &l) == SL_OK);
            MUST(sl_lease_n_pages(l) == at / PAGE + s && sl_lease_matched(l) == sl_lease_n_pages(l));
            /* Pinned: whatever else is computed, it stays. */
            for (int k = 0; k < 3; k++)
                compute(&w, w.texts[rnd_below(&x, 3)], PAGE + rnd_below(&x, TEXT - PAGE), PAGE);
            MUST(sl_snapshot_find(w.store, &w.geo, seed, text, at + 1) == at);
            sl_lease_release(l, true);
        }
        const int32_t longest = sl_snapshot_find(w.store, &w.geo, seed, text, TEXT);
        MUST(longest % PAGE == 0 && longest <= sl_store_match(w.store, seed, text, TEXT) * PAGE);
        for (int32_t q = PAGE; q < TEXT; q += PAGE) { /* a position is found exactly if it can be leased */
            const sl_status st = sl_snapshot_lease(w.store, s, 3, seed, text, q, &l);
            MUST(st == SL_OK || st == SL_ERR_NOT_FOUND);
            MUST((st == SL_OK) == (sl_snapshot_find(w.store, &w.geo, seed, text, q + 1) == q));
            if (st == SL_OK)
                sl_lease_release(l, true);
        }
        MUST(sl_store_check(w.store, NULL) == SL_OK);
    }
    close_world(&w);
}
END_TEST

/* A snapshot whose pages have left the tree is given up, and its own pages are free. */
START_TEST(nothing_to_follow)
{
    world w;
    sl_lease *l = NULL, *snap = NULL;
    sl_store_stats s;
    const int32_t *text = w.texts[0], n = 3 * PAGE;
    open_world(&w, 2);
    ck_assert_int_eq(sl_store_lease_for(w.store, 0, seed, text, n, &l), SL_OK);
    ck_assert_int_eq(sl_snapshot_room(w.store, 2, 0, seed, &snap), SL_OK);
    sl_snapshot_publish(snap, l, text, n); /* not published yet */
    ck_assert_int_eq(sl_snapshot_find(w.store, &w.geo, seed, text, TEXT), 0);
    sl_lease_publish(l, text, n);
    ck_assert_int_eq(sl_snapshot_room(w.store, 2, 0, seed, &snap), SL_OK);
    if (_i)
        sl_store_flush(w.store);
    else
        ck_assert_int_eq(sl_lease_drop(l, 1), 2);
    sl_snapshot_publish(snap, l, text, n);
    ck_assert_int_eq(sl_snapshot_find(w.store, &w.geo, seed, text, TEXT), 0);
    sl_lease_release(l, true);
    sl_store_stats_get(w.store, &s);
    ck_assert_int_eq(s.free, PAGES - (_i ? 0 : 1));
    ck_assert_int_eq(sl_snapshot_lease(w.store, 2, 0, seed, text, n, &l), SL_ERR_NOT_FOUND);
    ck_assert_int_eq(sl_snapshot_room(w.store, PAGES + 1, 0, seed, &snap), SL_ERR_EXHAUSTED);
    close_world(&w);
}
END_TEST

/* Two requests that make the same snapshot: one stays. */
START_TEST(twins)
{
    world w;
    sl_store_stats s;
    open_world(&w, 2);
    for (int i = 0; i < 3; i++)
        ck_assert(compute(&w, w.texts[0], 3 * PAGE, 2 * PAGE));
    sl_store_stats_get(w.store, &s);
    ck_assert_int_eq(s.cached, 3 + 2);
    close_world(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("snapshot");
    TCase *t = tcase_create("snapshot");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, lists_have_no_gaps);
    tcase_add_test(t, stops_come_in_order);
    tcase_add_loop_test(t, positions_are_found_and_pinned, 0, 4);
    tcase_add_loop_test(t, nothing_to_follow, 0, 2);
    tcase_add_test(t, twins);
    suite_add_tcase(s, t);
    return run_suite(s);
}
