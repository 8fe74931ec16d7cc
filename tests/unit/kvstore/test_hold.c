/*
 * Holds and the list of new pages (kvstore/store_hold.c): random leases, publications, drops and flushes while
 * random pages of the tree are held, and lists of the tree (store_list.c). No page that is held is ever given to a
 * lease, what is available can always be had, each page is offered once, and after the last hold every page is
 * free.
 */
#include <string.h>

#include "kvstore/store_impl.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { PAGES = 40, LEASES = 8, LONGEST = 6 };

static const sl_key seed = {5, 6};
static sl_store *store;
enum { NEW, USED, TIERS }; /* one tier of each kind */
static int held[PAGES];    /* its holds */
static int n_held;
static struct {
    sl_lease *l;
    int32_t tokens[LONGEST * PAGE];
    int n;
} leases[LEASES];

static void check(void)
{
    sl_err err = {0};
    ck_assert_msg(sl_store_check(store, &err) == SL_OK, "%s", err.text);
}

static void do_lease(uint64_t *r, int i)
{
    leases[i].n = 1 + rnd_below(r, LONGEST);
    int kind = 0;
    for (int p = 0; p < LONGEST; p++) {
        kind = kind * 3 + rnd_below(r, 2);
        for (int t = 0; t < PAGE; t++)
            leases[i].tokens[p * PAGE + t] = kind * 100 + t;
    }
    int available = sl_store_available(store);
    sl_status st = sl_store_lease(store, seed, leases[i].tokens, leases[i].n * PAGE, &leases[i].l);
    if (st != SL_OK) {
        ck_assert_int_eq(st, SL_ERR_EXHAUSTED);
        ck_assert_int_gt(leases[i].n, 0);
        ck_assert_int_lt(available, leases[i].n + LONGEST);
        leases[i].l = NULL;
        return;
    }
    for (int p = sl_lease_matched(leases[i].l); p < leases[i].n; p++)
        ck_assert(!held[sl_lease_pages(leases[i].l)[p]]);
}

static void do_hold(uint64_t *r)
{
    int32_t pages[4];
    int t = rnd_below(r, TIERS);
    int n =
        rnd_below(r, 2) ? sl_store_offers(store, t, pages, 4) : sl_store_oldest_offers(store, t, 8, pages, 4);
    for (int i = 0; i < n && n_held < PAGES / 2; i++) {
        sl_store_page p;
        if (!rnd_below(r, 8)) {
            sl_store_has(store, t, pages[i]);
            continue;
        }
        ck_assert_int_le(held[pages[i]], TIERS);
        sl_store_hold(store, t, pages[i], &p);
        ck_assert(sl_key_eq(p.key, sl_page_key(p.prev, p.tokens)) && sl_key_eq(p.seed, seed));
        held[pages[i]]++;
        n_held++;
    }
}

/* Lists the tree in parts; it must be what sl_store_walk() tells. Then one of its pages is held by a reader. */
static int n_walked;

static void count_walked(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    (void)ctx, (void)ev, (void)page;
    n_walked++;
}

static void do_list(uint64_t *r)
{
    sl_store_entry e[PAGES];
    int32_t cursor = 0, n = 0;
    bool seen[PAGES] = {false};
    while (cursor >= 0) {
        int32_t got = sl_store_list(store, &cursor, e + n, 1 + rnd_below(r, PAGES - n < 1 ? 1 : PAGES - n));
        for (int32_t i = n; i < n + got; i++) {
            int32_t before = 0;
            for (int32_t p = store->nodes[e[i].page].parent; p != NONE; p = store->nodes[p].parent)
                before++;
            ck_assert(!seen[e[i].page] && e[i].before == before);
            ck_assert(sl_key_eq(e[i].key, store->nodes[e[i].page].key) && sl_key_eq(e[i].seed, seed));
            ck_assert_int_eq(e[i].pinned, store->nodes[e[i].page].refs > 0);
            seen[e[i].page] = true;
        }
        n += got;
        if (n == PAGES)
            break;
    }
    n_walked = 0;
    ck_assert_int_eq(sl_store_walk(store, count_walked, NULL), SL_OK);
    ck_assert_int_eq(n, n_walked);
    int32_t page = n ? e[rnd_below(r, n)].page : 0;
    if (n && n_held < PAGES / 2 &&
        !held[page]) { /* so that a page has one hold of a reader and one of each tier at most */
        sl_store_hold_page(store, page);
        held[page]++;
        n_held++;
    }
}

static void do_unhold(uint64_t *r)
{
    for (int i = 0, page = rnd_below(r, PAGES); i < PAGES; i++, page = (page + 1) % PAGES) {
        if (held[page]) {
            sl_store_unhold(store, page);
            held[page]--;
            n_held--;
            return;
        }
    }
}

static void one(uint64_t *r)
{
    int i = rnd_below(r, LEASES), what = rnd_below(r, 100);
    if (what < 5)
        do_list(r);
    else if (what < 30)
        do_hold(r);
    else if (what < 50)
        do_unhold(r);
    else if (what == 50)
        sl_store_flush(store);
    else if (!leases[i].l)
        do_lease(r, i);
    else if (what < 75)
        sl_lease_publish(leases[i].l, leases[i].tokens, leases[i].n * PAGE);
    else if (what < 80)
        sl_lease_drop(leases[i].l, rnd_below(r, leases[i].n));
    else {
        sl_lease_release(leases[i].l, what < 97);
        leases[i].l = NULL;
    }
}

START_TEST(held_pages_are_not_given_away)
{
    uint64_t r = 7 + (uint64_t)_i;
    sl_store_opts o = {.n_pages = PAGES, .prefix_cache = true};
    ck_assert_int_eq(sl_store_create(&o, &store, NULL), SL_OK);
    ck_assert_int_eq(sl_store_add_tier(store, SL_OFFER_NEW), NEW);
    ck_assert_int_eq(sl_store_add_tier(store, SL_OFFER_USED), USED);
    for (int i = 0; i < 5000; i++) {
        one(&r);
        check();
    }
    for (int i = 0; i < LEASES; i++)
        sl_lease_release(leases[i].l, true);
    while (n_held)
        do_unhold(&r);
    check();
    sl_store_flush(store);
    sl_store_stats s;
    sl_store_stats_get(store, &s);
    ck_assert_int_eq(s.free, PAGES);
    ck_assert_int_eq(s.leaving, 0);
    sl_store_destroy(store);
}
END_TEST

START_TEST(new_pages_come_in_order)
{
    sl_store_opts o = {.n_pages = PAGES, .prefix_cache = true};
    int32_t tokens[5 * PAGE], pages[8];
    sl_lease *l;
    sl_store_page p;
    for (int i = 0; i < 5 * PAGE; i++)
        tokens[i] = i;
    ck_assert_int_eq(sl_store_create(&o, &store, NULL), SL_OK);
    ck_assert_int_eq(sl_store_add_tier(store, SL_OFFER_NEW), NEW);
    ck_assert_int_eq(sl_store_lease(store, seed, tokens, 5 * PAGE, &l), SL_OK);
    sl_lease_publish(l, tokens, 5 * PAGE);
    ck_assert_int_eq(sl_store_offers(store, NEW, pages, 8), 5);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(pages[i], sl_lease_pages(l)[i]);
    ck_assert_int_eq(sl_store_oldest_offers(store, NEW, 8, pages, 8), 0); /* they are pinned */
    sl_store_hold(store, NEW, sl_lease_pages(l)[4], &p);
    sl_lease_release(l, true);
    ck_assert_int_eq(sl_store_available(store), PAGES - 1);
    ck_assert_int_eq(sl_store_oldest_offers(store, NEW, 2, pages, 8),
                     1); /* the last is offered; the one before it is next */
    ck_assert_int_eq(sl_store_offers(store, NEW, pages, 8), 4);
    sl_store_unhold(store, 4);
    ck_assert_int_eq(sl_store_available(store), PAGES);
    check();
    sl_store_destroy(store);
}
END_TEST

/* A tier for pages that are used a second time, and one that is never offered anything. */
START_TEST(used_pages_are_offered)
{
    sl_store_opts o = {.n_pages = 5, .prefix_cache = true};
    int32_t tokens[6 * PAGE], pages[8];
    sl_lease *l, *m;
    sl_store_tier_stats st;
    for (int i = 0; i < 6 * PAGE; i++)
        tokens[i] = i;
    ck_assert_int_eq(sl_store_create(&o, &store, NULL), SL_OK);
    ck_assert_int_eq(sl_store_add_tier(store, SL_OFFER_NEVER), 0);
    ck_assert_int_eq(sl_store_add_tier(store, SL_OFFER_USED), 1);
    ck_assert_int_eq(sl_store_lease(store, seed, tokens, 4 * PAGE, &l), SL_OK);
    sl_lease_publish(l, tokens, 4 * PAGE);
    sl_lease_release(l, true);
    ck_assert_int_eq(sl_store_lease_pages(store, 0, seed, tokens, 3, &m), SL_OK); /* a load is no use */
    sl_lease_release(m, true);
    ck_assert_int_eq(sl_store_offers(store, 1, pages, 8), 0);
    ck_assert_int_eq(sl_store_lease(store, seed, tokens, 2 * PAGE + 1, &l), SL_OK);
    sl_lease_release(l, true);
    ck_assert_int_eq(sl_store_offers(store, 1, pages, 8), 2);
    sl_store_has(store, 1, pages[0]);
    check();
    ck_assert_int_eq(sl_store_lease(store, seed, tokens + 1, 5 * PAGE, &l), SL_OK); /* evicts all */
    sl_store_tier_stats_get(store, 1, &st);
    ck_assert_uint_eq(st.evicted_unoffered, 1);
    ck_assert_uint_eq(st.evicted_unused, 2);
    sl_store_tier_stats_get(store, 0, &st);
    ck_assert_uint_eq(st.evicted_unoffered + st.evicted_unused, 0);
    sl_lease_release(l, true);
    check();
    sl_store_destroy(store);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("hold");
    TCase *t = tcase_create("hold");
    tcase_set_timeout(t, 30);
    tcase_add_loop_test(t, held_pages_are_not_given_away, 0, 4);
    tcase_add_test(t, new_pages_come_in_order);
    tcase_add_test(t, used_pages_are_offered);
    suite_add_tcase(s, t);
    return run_suite(s);
}
