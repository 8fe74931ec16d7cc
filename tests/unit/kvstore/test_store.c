/*
 * The store is compared with a simple model. Random operations (lease, grow, publish, release, flush) use pages
 * with few different contents; the model is a table with an entry for every possible prefix, which is searched
 * linearly. After each operation the invariants hold, the counts and the matches equal those of the model, matched
 * pages have the contents that were published for exactly that prefix, and an eviction takes the least recently used
 * leaf of the model.
 */
#include <string.h>

#include "kvstore/store_impl.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { KINDS = 3, DEPTH = 6, PREFIXES = 1093 /* (3^7 - 1) / 2 */, LEASES = 24 };

/* A prefix is numbered like a node of a complete ternary tree: root 0, child k of v is 3 v + 1 + k. */
typedef struct entry {
    bool there;
    int page, refs;
    long stamp; /* of the moment it was unpinned */
} entry;

typedef struct held {
    sl_lease *lease;
    int kinds[DEPTH + 2];  /* what each page is filled with */
    int n_pages, n_tokens; /* n_tokens: rows complete */
    int n_path;            /* pages pinned in the tree */
} held;

typedef struct model {
    entry e[PREFIXES];
    held h[LEASES];
    long clock;
    int total, stored, removed, cleared;
} model;

static const sl_key seed_a = {1, 2}, seed_b = {2, 1};
static sl_store *store;
static model m;

static int prefix_of(const int *kinds, int n)
{
    int v = 0;
    for (int i = 0; i < n; i++)
        v = 3 * v + 1 + kinds[i];
    return v;
}

static void fill(int32_t *tokens, const int *kinds, int n_pages)
{
    for (int i = 0; i < n_pages * PAGE; i++)
        tokens[i] = kinds[i / PAGE] * 1000 + i % PAGE;
}

static void on_event(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    ck_assert((ev == SL_STORE_CLEARED) == !page);
    ck_assert(!page || page->tokens);
    if (page)
        ck_assert(sl_key_eq(page->seed, seed_a));
    if (page && page->tokens)
        ck_assert(sl_key_eq(sl_page_key(page->prev, page->tokens), page->key));
    model *mm = ctx;
    mm->stored += ev == SL_STORE_STORED;
    mm->removed += ev == SL_STORE_REMOVED;
    mm->cleared += ev == SL_STORE_CLEARED;
}

static int model_cached(void)
{
    int n = 0;
    for (int v = 1; v < PREFIXES; v++)
        n += m.e[v].there && !m.e[v].refs;
    return n;
}

static bool model_has_child(int v)
{
    for (int k = 0; k < KINDS; k++) {
        if (3 * v + 1 + k < PREFIXES && m.e[3 * v + 1 + k].there)
            return true;
    }
    return false;
}

/* The unpinned leaf that was released longest ago. */
static int model_victim(void)
{
    int best = -1;
    for (int v = 1; v < PREFIXES; v++) {
        if (m.e[v].there && !m.e[v].refs && !model_has_child(v) &&
            (best < 0 || m.e[v].stamp < m.e[best].stamp))
            best = v;
    }
    return best;
}

/* Pages neither in the tree nor held privately. Private: every page of a lease that is not its own tree page.
 */
static int model_free(void)
{
    int used = 0;
    for (int v = 1; v < PREFIXES; v++)
        used += m.e[v].there;
    for (int i = 0; i < LEASES; i++) {
        held *h = &m.h[i];
        if (!h->lease)
            continue;
        for (int p = 0; p < h->n_pages; p++)
            used += p >= h->n_path || m.e[prefix_of(h->kinds, p + 1)].page != sl_lease_pages(h->lease)[p];
    }
    return m.total - used;
}

static void model_evict_for(int n, int free_before)
{
    for (int need = n - free_before; need > 0; need--) {
        int v = model_victim();
        ck_assert_int_ge(v, 1);
        m.e[v].there = false;
    }
}

static void model_unpin(int v)
{
    if (--m.e[v].refs == 0)
        m.e[v].stamp = ++m.clock;
}

static void agree(void)
{
    sl_err err = {0};
    ck_assert_msg(sl_store_check(store, &err) == SL_OK, "%s", err.text);
    sl_store_stats st;
    sl_store_stats_get(store, &st);
    ck_assert_int_eq(st.free + st.cached + st.held, st.total);
    ck_assert_int_eq(st.cached, model_cached());
    ck_assert_int_eq(st.free, model_free());
}

static void do_lease(uint64_t *seed)
{
    int i = rnd_below(seed, LEASES);
    held *h = &m.h[i];
    if (h->lease)
        return;
    int32_t tokens[DEPTH * PAGE];
    int n_pages = 1 + rnd_below(seed, DEPTH - 1);
    for (int p = 0; p < DEPTH; p++)
        h->kinds[p] = rnd_below(seed, KINDS);
    fill(tokens, h->kinds, DEPTH);
    int n_tokens = (n_pages - 1) * PAGE + 1 + rnd_below(seed, PAGE);
    int match = 0, unpinned = 0;
    while (match < (n_tokens - 1) / PAGE && m.e[prefix_of(h->kinds, match + 1)].there)
        unpinned += m.e[prefix_of(h->kinds, ++match)].refs == 0;
    int free_before = model_free(), room = free_before + model_cached() - unpinned;
    ck_assert_int_eq(sl_store_match(store, seed_a, tokens, n_tokens), match);
    sl_lease *l = NULL;
    sl_status st = sl_store_lease(store, seed_a, tokens, n_tokens, &l);
    if (n_pages - match > room) {
        ck_assert_int_eq(st, SL_ERR_EXHAUSTED);
        ck_assert_ptr_null(l);
        return;
    }
    ck_assert_int_eq(st, SL_OK);
    ck_assert_int_eq(sl_lease_matched(l), match);
    ck_assert_int_eq(sl_lease_n_pages(l), n_pages);
    for (int p = 0; p < match; p++) {
        entry *e = &m.e[prefix_of(h->kinds, p + 1)];
        ck_assert_int_eq(sl_lease_pages(l)[p], e->page);
        e->refs++;
    }
    model_evict_for(n_pages - match, free_before);
    h->lease = l;
    h->n_pages = n_pages;
    h->n_tokens = n_tokens;
    h->n_path = match;
}

static void do_publish(held *h)
{
    int32_t tokens[(DEPTH + 2) * PAGE];
    fill(tokens, h->kinds, h->n_pages);
    sl_lease_publish(h->lease, tokens, h->n_tokens);
    for (; h->n_path < h->n_tokens / PAGE; h->n_path++) {
        entry *e = &m.e[prefix_of(h->kinds, h->n_path + 1)];
        if (!e->there)
            *e = (entry){.there = true, .page = sl_lease_pages(h->lease)[h->n_path]};
        e->refs++;
    }
}

static void do_grow(uint64_t *seed, held *h)
{
    if (h->n_pages == DEPTH)
        return;
    int n = 1 + rnd_below(seed, DEPTH - h->n_pages), free_before = model_free();
    sl_status st = sl_lease_grow(h->lease, n);
    if (n > free_before + model_cached()) {
        ck_assert_int_eq(st, SL_ERR_EXHAUSTED);
        return;
    }
    ck_assert_int_eq(st, SL_OK);
    model_evict_for(n, free_before);
    for (int p = h->n_pages; p < h->n_pages + n; p++)
        h->kinds[p] = rnd_below(seed, KINDS);
    h->n_pages += n;
    h->n_tokens = h->n_pages * PAGE - rnd_below(seed, PAGE);
}

static void do_release(held *h, bool keep)
{
    for (int p = h->n_path; p > 0; p--) {
        int v = prefix_of(h->kinds, p);
        model_unpin(v);
        if (!keep && !m.e[v].refs && !model_has_child(v))
            m.e[v].there = false;
    }
    sl_lease_release(h->lease, keep);
    *h = (held){0};
}

static void run_random(uint64_t seed, int pages, int steps)
{
    memset(&m, 0, sizeof m);
    m.total = pages;
    sl_store_opts o = {.n_pages = pages, .prefix_cache = true, .event = on_event, .event_ctx = &m};
    ck_assert_int_eq(sl_store_create(&o, &store, NULL), SL_OK);
    for (int i = 0; i < steps; i++) {
        int op = rnd_below(&seed, 100);
        held *h = &m.h[rnd_below(&seed, LEASES)];
        if (op < 40)
            do_lease(&seed);
        else if (!h->lease)
            continue;
        else if (op < 65)
            do_publish(h);
        else if (op < 75)
            do_grow(&seed, h);
        else
            do_release(h, op < 95);
        agree();
    }
    for (int i = 0; i < LEASES; i++) {
        if (m.h[i].lease)
            do_release(&m.h[i], true);
    }
    agree();
    sl_store_flush(store);
    sl_store_stats st;
    sl_store_stats_get(store, &st);
    ck_assert_int_eq(st.free, pages);
    ck_assert_int_eq(m.cleared, 1);
    sl_store_destroy(store);
}

START_TEST(random_operations)
{
    static const int pages[] = {6, 13, 40, 100, 400};
    run_random(1000 + (uint64_t)_i, pages[_i % 5], 4000);
}
END_TEST

static sl_store *make(int pages, bool cache)
{
    sl_store *s;
    sl_store_opts o = {.n_pages = pages, .prefix_cache = cache};
    ck_assert_int_eq(sl_store_create(&o, &s, NULL), SL_OK);
    return s;
}

static void ok(sl_store *s)
{
    sl_err err = {0};
    ck_assert_msg(sl_store_check(s, &err) == SL_OK, "%s", err.text);
}

START_TEST(never_matches_the_whole_prompt)
{
    sl_store *s = make(10, true);
    int32_t t[3 * PAGE];
    fill(t, (int[]){0, 1, 2}, 3);
    sl_lease *l;
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, 2 * PAGE, &l), SL_OK);
    sl_lease_publish(l, t, 2 * PAGE);
    sl_lease_release(l, true);
    ck_assert_int_eq(sl_store_match(s, seed_a, t, 2 * PAGE), 1);
    ck_assert_int_eq(sl_store_match(s, seed_a, t, 2 * PAGE + 1), 2);
    ck_assert_int_eq(sl_store_match(s, seed_a, t, 1), 0);
    sl_store_destroy(s);
}
END_TEST

START_TEST(all_or_nothing)
{
    sl_store *s = make(4, true);
    int32_t t[6 * PAGE];
    fill(t, (int[]){0, 1, 2, 0, 1, 2}, 6);
    sl_lease *a, *b = NULL;
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, 3 * PAGE, &a), SL_OK);
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, 2 * PAGE, &b), SL_ERR_EXHAUSTED);
    ck_assert_ptr_null(b);
    ck_assert_int_eq(sl_lease_grow(a, 2), SL_ERR_EXHAUSTED);
    ck_assert_int_eq(sl_lease_n_pages(a), 3);
    ck_assert_int_eq(sl_lease_grow(a, 1), SL_OK);
    ok(s);
    sl_lease_release(a, true);
    ck_assert_int_eq(sl_store_available(s), 4);
    sl_lease_release(NULL, true);
    sl_store_destroy(s);
}
END_TEST

START_TEST(pinned_pages_are_not_evicted)
{
    sl_store *s = make(4, true);
    int32_t t[5 * PAGE], u[5 * PAGE];
    fill(t, (int[]){0, 0, 0, 0, 0}, 5);
    fill(u, (int[]){1, 1, 1, 1, 1}, 5);
    sl_lease *a, *b, *c = NULL;
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, 2 * PAGE, &a), SL_OK);
    sl_lease_publish(a, t, 2 * PAGE);
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, 2 * PAGE + 1, &b), SL_OK); /* shares both */
    ck_assert_int_eq(sl_lease_matched(b), 2);
    sl_lease_release(a, true);
    ck_assert_int_eq(sl_store_lease(s, seed_a, u, 2 * PAGE, &c), SL_ERR_EXHAUSTED); /* one page is left */
    ck_assert_int_eq(sl_lease_pages(b)[0], 0);
    sl_lease_release(b, true);
    ck_assert_int_eq(sl_store_lease(s, seed_a, u, 4 * PAGE, &c), SL_OK); /* evicts everything */
    ck_assert_int_eq(sl_store_match(s, seed_a, t, 3 * PAGE), 0);
    ok(s);
    sl_lease_release(c, true);
    sl_store_destroy(s);
}
END_TEST

START_TEST(duplicates_stay_private_and_continue_the_tree)
{
    sl_store *s = make(8, true);
    int32_t t[4 * PAGE];
    fill(t, (int[]){0, 1, 2, 0}, 4);
    sl_lease *a, *b;
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, 2 * PAGE, &a), SL_OK);
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, 3 * PAGE, &b), SL_OK); /* nothing published yet: no match */
    ck_assert_int_eq(sl_lease_matched(b), 0);
    sl_lease_publish(a, t, 2 * PAGE);
    sl_lease_publish(b, t, 3 * PAGE); /* two duplicates, then a child of a's page */
    ok(s);
    ck_assert_int_eq(sl_store_match(s, seed_a, t, 4 * PAGE), 3);
    sl_lease_release(a, true);
    ok(s);
    sl_lease_release(b, true);
    ok(s);
    sl_store_stats st;
    sl_store_stats_get(s, &st);
    ck_assert_int_eq(st.cached, 3);
    ck_assert_int_eq(st.free, 5);
    sl_store_destroy(s);
}
END_TEST

START_TEST(flush_detaches_pinned_pages)
{
    sl_store *s = make(8, true);
    int32_t t[4 * PAGE];
    fill(t, (int[]){0, 1, 2, 0}, 4);
    sl_lease *a, *b, *c;
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, 3 * PAGE, &a), SL_OK);
    sl_lease_publish(a, t, 2 * PAGE);
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, 3 * PAGE, &b), SL_OK);
    sl_store_flush(s);
    ok(s);
    ck_assert_int_eq(sl_store_match(s, seed_a, t, 3 * PAGE), 0);
    sl_lease_publish(a, t, 3 * PAGE); /* its first pages have left the tree, so it stays private */
    ck_assert_int_eq(sl_store_match(s, seed_a, t, 4 * PAGE), 0);
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, PAGE, &c), SL_OK);
    sl_lease_publish(c, t, PAGE);
    ok(s);
    sl_lease_release(a, true);
    sl_lease_release(b, false);
    ok(s);
    sl_lease_release(c, true);
    sl_store_stats st;
    sl_store_stats_get(s, &st);
    ck_assert_int_eq(st.cached, 1);
    ck_assert_int_eq(st.free, 7);
    sl_store_destroy(s);
}
END_TEST

START_TEST(without_prefix_cache)
{
    sl_store *s = make(4, false);
    int32_t t[2 * PAGE];
    fill(t, (int[]){0, 1}, 2);
    sl_lease *a;
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, 2 * PAGE, &a), SL_OK);
    sl_lease_publish(a, t, 2 * PAGE);
    sl_lease_release(a, true);
    ck_assert_int_eq(sl_store_match(s, seed_a, t, 2 * PAGE), 0);
    sl_store_stats st;
    sl_store_stats_get(s, &st);
    ck_assert_int_eq(st.free, 4);
    sl_store_destroy(s);
}
END_TEST

typedef struct walked {
    sl_key seen[16];
    int n;
} walked;

static void on_walk(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    walked *w = ctx;
    ck_assert_int_eq(ev, SL_STORE_STORED);
    ck_assert(sl_key_eq(page->seed, seed_a));
    bool known = sl_key_eq(page->prev, page->seed);
    ck_assert(sl_key_eq(sl_page_key(page->prev, page->tokens), page->key));
    for (int i = 0; i < w->n; i++)
        known |= sl_key_eq(w->seen[i], page->prev);
    ck_assert_msg(known, "child %d before its parent", w->n);
    w->seen[w->n++] = page->key;
}

START_TEST(walk_is_parents_first)
{
    sl_store *s = make(12, true);
    int32_t t[4 * PAGE];
    sl_lease *l;
    for (int k = 0; k < 3; k++) {
        fill(t, (int[]){0, k, 2, k}, 4);
        ck_assert_int_eq(sl_store_lease(s, seed_a, t, 4 * PAGE, &l), SL_OK);
        sl_lease_publish(l, t, 4 * PAGE);
        sl_lease_release(l, true);
    }
    walked w = {0};
    ck_assert_int_eq(sl_store_walk(s, on_walk, &w), SL_OK);
    ck_assert_int_eq(w.n, 10);
    sl_key keys[4];
    ck_assert_uint_eq(sl_page_keys(seed_a, t, 4 * PAGE + 0, keys), 4);
    ck_assert(sl_key_eq(w.seen[0], keys[0]));
    sl_store_destroy(s);
}
END_TEST

typedef struct removed {
    sl_key seen[16];
    int n;
} removed;

static void on_removed(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    removed *r = ctx;
    if (ev != SL_STORE_REMOVED)
        return;
    for (int i = 0; i < r->n; i++)
        ck_assert_msg(!sl_key_eq(r->seen[i], page->prev), "page %d is removed after its parent", r->n);
    r->seen[r->n++] = page->key;
}

/* Three prompts: the second shares page 0, the third pages 0 and 1 of the first. Dropping page 1 of the first takes
 * what continues it, held or not, and nothing else. */
START_TEST(drop_takes_the_subtree)
{
    removed r = {0};
    sl_store *s;
    sl_store_opts o = {.n_pages = 20, .prefix_cache = true, .event = on_removed, .event_ctx = &r};
    ck_assert_int_eq(sl_store_create(&o, &s, NULL), SL_OK);
    static const int kinds[3][4] = {{0, 1, 2, 2}, {0, 2, 1, 1}, {0, 1, 0, 0}};
    int32_t t[3][4 * PAGE];
    sl_lease *l[3], *again;
    for (int i = 0; i < 3; i++) {
        fill(t[i], kinds[i], 4);
        ck_assert_int_eq(sl_store_lease(s, seed_a, t[i], 4 * PAGE, &l[i]), SL_OK);
        sl_lease_publish(l[i], t[i], 3 * PAGE);
    }
    sl_lease_release(l[2], true);                /* its pages 2 and 3: cached and free */
    ck_assert_int_eq(sl_lease_drop(l[0], 3), 0); /* not published */
    ck_assert_int_eq(sl_lease_drop(l[0], 1), 3);
    ck_assert_int_eq(r.n, 3);
    ok(s);
    ck_assert_int_eq(sl_lease_drop(l[0], 1), 0); /* gone already */
    ck_assert_int_eq(sl_store_match(s, seed_a, t[0], 4 * PAGE), 1);
    ck_assert_int_eq(sl_store_match(s, seed_a, t[2], 4 * PAGE), 1);
    ck_assert_int_eq(sl_store_match(s, seed_a, t[1], 4 * PAGE), 3);
    sl_lease_publish(l[0], t[0], 4 * PAGE); /* it continues nothing that is in the tree */
    ck_assert_int_eq(sl_store_match(s, seed_a, t[0], 4 * PAGE), 1);
    ok(s);
    ck_assert_int_eq(sl_store_lease(s, seed_a, t[0], 4 * PAGE, &again),
                     SL_OK); /* computed again, while the old one is held */
    ck_assert_int_eq(sl_lease_matched(again), 1);
    sl_lease_publish(again, t[0], 4 * PAGE);
    ck_assert_int_eq(sl_store_match(s, seed_a, t[0], 4 * PAGE), 3);
    ok(s);
    sl_lease_release(l[0], true);
    sl_lease_release(again, true);
    ck_assert_int_eq(sl_store_match(s, seed_a, t[0], 4 * PAGE), 3);
    r.n = 0;
    ck_assert_int_eq(sl_lease_drop(l[1], 0),
                     6); /* the root of all: 3 and 3 pages, one of them shared, and the last */
    sl_lease_release(l[1], true);
    sl_store_stats st;
    sl_store_stats_get(s, &st);
    ck_assert_int_eq(st.free, 20);
    ok(s);
    sl_store_destroy(s);
}
END_TEST

/* Leases of different seeds share no page, and each continues to share with its own. */
START_TEST(seeds_keep_equal_tokens_apart)
{
    sl_store *s = make(12, true);
    int32_t t[3 * PAGE];
    fill(t, (int[]){0, 1, 2}, 3);
    sl_lease *a, *b, *again;
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, 3 * PAGE, &a), SL_OK);
    sl_lease_publish(a, t, 3 * PAGE);
    ck_assert_int_eq(sl_store_match(s, seed_b, t, 3 * PAGE), 0);
    ck_assert_int_eq(sl_store_lease(s, seed_b, t, 3 * PAGE, &b), SL_OK);
    ck_assert_int_eq(sl_lease_matched(b), 0);
    sl_lease_publish(b, t, 3 * PAGE);
    for (int i = 0; i < 3; i++)
        ck_assert_int_ne(sl_lease_pages(a)[i], sl_lease_pages(b)[i]);
    ok(s);
    ck_assert_int_eq(sl_store_lease(s, seed_b, t, 3 * PAGE, &again), SL_OK);
    ck_assert_int_eq(sl_lease_matched(again), 2);
    ck_assert_int_eq(sl_lease_pages(again)[0], sl_lease_pages(b)[0]);
    sl_lease_release(a, true);
    sl_lease_release(b, false);
    sl_lease_release(again, false);
    ck_assert_int_eq(sl_store_match(s, seed_a, t, 3 * PAGE), 2); /* the other's end changes nothing */
    ok(s);
    sl_store_destroy(s);
}
END_TEST

/* The key of a first page does not give its seed away to the other: found only with key, seed, parent and tokens. */
START_TEST(a_forged_key_is_not_enough)
{
    sl_store *s = make(4, true);
    int32_t t[PAGE];
    fill(t, (int[]){0}, 1);
    sl_lease *a;
    ck_assert_int_eq(sl_store_lease(s, seed_a, t, PAGE, &a), SL_OK);
    sl_lease_publish(a, t, PAGE);
    sl_key key = sl_page_key(seed_a, t);
    ck_assert_int_eq(sl_store_find(s, key, seed_a, NONE, t), sl_lease_pages(a)[0]);
    ck_assert_int_eq(sl_store_find(s, key, seed_b, NONE, t), NONE);
    sl_lease_release(a, true);
    sl_store_destroy(s);
}
END_TEST

START_TEST(page_keys_commit_to_the_prefix)
{
    int32_t a[2 * PAGE], b[2 * PAGE];
    fill(a, (int[]){0, 1}, 2);
    fill(b, (int[]){2, 1}, 2);
    sl_key ka[2], kb[2], other[2];
    ck_assert_uint_eq(sl_page_keys((sl_key){1, 1}, a, 2 * PAGE, ka), 2);
    ck_assert_uint_eq(sl_page_keys((sl_key){1, 1}, b, 2 * PAGE, kb), 2);
    ck_assert_uint_eq(sl_page_keys((sl_key){1, 2}, a, 2 * PAGE, other), 2);
    ck_assert(!sl_key_eq(ka[1], kb[1]));
    ck_assert(!sl_key_eq(ka[0], other[0]));
    ck_assert_uint_eq(sl_page_keys((sl_key){1, 1}, a, 2 * PAGE - 1, kb), 1);
    ck_assert(sl_key_eq(ka[0], kb[0]));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("store");
    TCase *t = tcase_create("store");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, random_operations, 0, 15);
    tcase_add_test(t, never_matches_the_whole_prompt);
    tcase_add_test(t, all_or_nothing);
    tcase_add_test(t, pinned_pages_are_not_evicted);
    tcase_add_test(t, duplicates_stay_private_and_continue_the_tree);
    tcase_add_test(t, flush_detaches_pinned_pages);
    tcase_add_test(t, without_prefix_cache);
    tcase_add_test(t, walk_is_parents_first);
    tcase_add_test(t, drop_takes_the_subtree);
    tcase_add_test(t, seeds_keep_equal_tokens_apart);
    tcase_add_test(t, a_forged_key_is_not_enough);
    tcase_add_test(t, page_keys_commit_to_the_prefix);
    suite_add_tcase(s, t);
    return run_suite(s);
}
