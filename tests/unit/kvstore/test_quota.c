/*
 * Quotas of tenants: rules and what is wrong with them, entries for tenants without a rule, the host store, the index of
 * the disk tier, and the disk tier over restarts. Random operations on the store are compared with a restatement of the
 * rules of kvstore/quota.h that looks at every page.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kvstore/disk_index.h"
#include "kvstore/domain.h"
#include "kvstore/store_impl.h"
#include "kvstore/tier.h"
#include "tests/unit/kvstore/test_kvstore.h"

static const sl_key seed = {1, 2};

/* Rules whose tenants have the numbers 1, 2, ... */
static sl_quota_opts rules(double share, double limit, int n, const char *const *texts)
{
    sl_quota_opts o = {.share = share, .limit = limit};
    sl_err err = {0};
    for (int i = 0; i < n; i++) {
        ck_assert_msg(sl_quota_add_rule(&o, texts[i], &err) == SL_OK, "%s", err.text);
        o.rules[i].tenant = (uint64_t)i + 1;
    }
    return o;
}
#define RULES(share, limit, ...)                                                                             \
    rules(share, limit, (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)),                  \
          (const char *const[]){__VA_ARGS__})

/* ---- rules and entries ---- */

START_TEST(rules_are_read)
{
    sl_quota_opts o = {.share = 0.1, .limit = 0.5};
    ck_assert_int_eq(sl_quota_add_rule(&o, "acme share=0.25 limit=1", NULL), SL_OK);
    ck_assert_int_eq(sl_quota_add_rule(&o, "batch  limit=0.125 share=0 ", NULL), SL_OK);
    ck_assert_int_eq(sl_quota_add_rule(&o, "plain", NULL), SL_OK);
    ck_assert_int_eq(o.n_rules, 3);
    ck_assert_str_eq(o.rules[0].name, "acme");
    ck_assert_uint_eq(o.rules[0].tenant, sl_tenant_id("acme"));
    ck_assert_double_eq(o.rules[0].share, 0.25);
    ck_assert_double_eq(o.rules[1].limit, 0.125);
    ck_assert_double_eq(o.rules[2].share, 0.1);
    ck_assert_double_eq(o.rules[2].limit, 0.5);
}
END_TEST

START_TEST(wrong_rules_are_refused)
{
    static const struct {
        const char *text, *word;
    } wrong[] = {{"", "name"},
                 {" share=1", "name"},
                 {"a/b", "name"},
                 {"a12345678901234567890123456789012", "name"},
                 {"a share=2", "share=2"},
                 {"a share=-1", "share=-1"},
                 {"a share=0x1", "share=0x1"},
                 {"a share=nan", "share=nan"},
                 {"a share=1e-3", "share=1e-3"},
                 {"a share=", "share="},
                 {"a share=0.5limit=1", "share=0.5limit=1"},
                 {"a bytes=5", "bytes=5"},
                 {"a share=0.5 limit=0.25", "larger"},
                 {"old", "twice"},
                 {"more share=0.6", "more than 1"}};
    sl_quota_opts o = {.limit = 1};
    ck_assert_int_eq(sl_quota_add_rule(&o, "old share=0.5", NULL), SL_OK);
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        sl_err err = {0};
        ck_assert_int_eq(sl_quota_add_rule(&o, wrong[i].text, &err), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, wrong[i].word), "%s: %s", wrong[i].text, err.text);
        ck_assert_int_eq(o.n_rules, 1);
    }
    for (int i = 1; i < SL_QUOTA_RULES; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        ck_assert_int_eq(sl_quota_add_rule(&o, name, NULL), SL_OK);
    }
    ck_assert_int_eq(sl_quota_add_rule(&o, "one-more", NULL), SL_ERR_INVALID);
}
END_TEST

/* One request of each of many made-up tenants: the table is full, the rules keep their entries, the others share one. */
START_TEST(made_up_tenants_share_an_entry)
{
    sl_quota q;
    sl_quota_opts o = RULES(0.1, 0.5, "a", "b share=0.2");
    sl_quota_init(&q, &o, 1000, SL_QUOTA_UNNAMED);
    for (uint64_t t = 100; t < 100 + SL_QUOTA_UNNAMED; t++)
        ck_assert_int_eq(sl_quota_enter(&q, t), (int)(4 + t - 100));
    for (uint64_t t = 5000; t < 6000; t++)
        ck_assert_int_eq(sl_quota_enter(&q, t), SL_QUOTA_OTHERS);
    ck_assert_int_eq(sl_quota_enter(&q, 1), 2);
    ck_assert_int_eq(sl_quota_enter(&q, 2), 3);
    ck_assert_int_eq(sl_quota_enter(&q, 103), 7); /* it has an entry already */
    ck_assert_int_eq(sl_quota_enter(&q, SL_QUOTA_SHARED_ID), SL_QUOTA_SHARED);
    ck_assert_int_eq(q.entries[3].share, 200);
    ck_assert_int_eq(q.entries[7].share, 100);
    sl_quota_leave(&q, 7);
    ck_assert_int_eq(sl_quota_enter(&q, 9999), SL_QUOTA_OTHERS); /* 103 has still one reference */
    sl_quota_leave(&q, 7);
    ck_assert_int_eq(sl_quota_enter(&q, 9999), 7);
    sl_quota_init(&q, NULL, 1000, SL_QUOTA_UNNAMED);
    ck_assert_int_eq(sl_quota_enter(&q, 77), SL_QUOTA_OTHERS);
    ck_assert_int_eq(sl_quota_n_uses(&q), 0);
}
END_TEST

/* ---- the host store ---- */

static sl_store *store;
static int evictions;

static void on_evicted(void *ctx, double unused_s, double age_s)
{
    (void)ctx;
    ck_assert(unused_s >= 0 && age_s >= unused_s);
    evictions++;
}

static void open_store(int pages, const sl_quota_opts *quota, sl_store_event_fn *event)
{
    sl_store_opts o = {
        .n_pages = pages, .prefix_cache = true, .quota = quota, .evicted = on_evicted, .event = event};
    evictions = 0;
    ck_assert_int_eq(sl_store_create(&o, &store, NULL), SL_OK);
}

static void check_store(void)
{
    sl_err err = {0};
    ck_assert_msg(sl_store_check(store, &err) == SL_OK, "%s", err.text);
}

/* Prompt number `what` of n pages, which begins with `shared` pages that all prompts begin with. */
static int32_t *prompt(int what, int shared, int n)
{
    static int32_t tokens[64 * PAGE];
    for (int i = 0; i < n * PAGE; i++)
        tokens[i] = i / PAGE < shared ? i : 1000 * (what + 1) + i;
    return tokens;
}

/* A request of the tenant that has ended. */
static void request(uint64_t tenant, int what, int shared, int n)
{
    sl_lease *l;
    int32_t *tokens = prompt(what, shared, n);
    ck_assert_int_eq(sl_store_lease_for(store, tenant, seed, tokens, n * PAGE, &l), SL_OK);
    sl_lease_publish(l, tokens, n * PAGE);
    sl_lease_release(l, true);
    check_store();
}

static int cached(int what, int shared, int n)
{
    return sl_store_match(store, seed, prompt(what, shared, n), n * PAGE + 1);
}

static sl_quota_use use_of(const char *name)
{
    sl_quota_use u[2 + SL_QUOTA_RULES];
    int n = sl_store_quota_uses(store, u);
    for (int i = 0; i < n; i++)
        if (!strcmp(u[i].name, name))
            return u[i];
    ck_abort_msg("no tenant %s", name);
}

START_TEST(a_flood_leaves_what_a_share_protects)
{
    sl_quota_opts o = RULES(0, 1, "quiet share=0.25");
    open_store(40, &o, NULL);
    request(1, 0, 0, 10); /* exactly its share */
    for (int i = 1; i < 50; i++)
        request(7, i, 0, 4);
    ck_assert_int_eq(cached(0, 0, 10), 10);
    ck_assert_int_eq(use_of("quiet").pages, 10);
    ck_assert_int_eq(use_of("other").pages, 30);
    ck_assert_uint_eq(use_of("quiet").evicted[SL_QUOTA_ROOM], 0);
    ck_assert_uint_eq(use_of("other").evicted[SL_QUOTA_ROOM], (uint64_t)evictions);
    request(1, 60, 0, 2); /* above its share, and its oldest page is the oldest of all */
    request(7, 61, 0, 4);
    ck_assert_int_eq(cached(0, 0, 10), 8);
    for (int i = 62; i < 80; i++)
        request(7, i, 0, 4);
    ck_assert_int_eq(use_of("quiet").pages, 10);
    sl_store_destroy(store);
}
END_TEST

START_TEST(a_limit_holds_although_there_is_room)
{
    sl_quota_opts o = RULES(0, 1, "batch limit=0.1", "never limit=0");
    open_store(100, &o, NULL);
    request(7, 0, 0, 5);
    for (int i = 1; i < 6; i++)
        request(1, i, 0, 4);
    ck_assert_int_eq(use_of("batch").pages, 10);
    ck_assert_uint_eq(use_of("batch").evicted[SL_QUOTA_LIMIT], 10);
    ck_assert_int_eq(cached(0, 0, 5), 5);
    ck_assert_int_eq(cached(5, 0, 4), 4);
    ck_assert_int_eq(cached(3, 0, 4), 2); /* the end of a prompt goes first */
    request(2, 9, 0, 6);
    ck_assert_int_eq(use_of("never").pages, 0);
    sl_store_destroy(store);
}
END_TEST

/* The pages of running requests are not counted: a tenant with a small limit may use the whole store. */
START_TEST(running_requests_are_never_refused)
{
    sl_quota_opts o = RULES(0, 1, "batch limit=0.1", "quiet share=0.5");
    open_store(20, &o, NULL);
    request(2, 0, 0, 10);
    sl_lease *l;
    int32_t *tokens = prompt(1, 0, 20);
    ck_assert_int_eq(sl_store_lease_for(store, 1, seed, tokens, 20 * PAGE, &l), SL_OK);
    sl_lease_publish(l, tokens, 20 * PAGE);
    check_store();
    ck_assert_int_eq(use_of("batch").pages, 20);
    sl_lease_release(l, true);
    check_store();
    ck_assert_int_eq(use_of("batch").pages, 2);
    sl_store_destroy(store);
}
END_TEST

/* A prefix that two tenants use belongs to neither and counts for neither, and a protected continuation protects it. */
START_TEST(shared_prefixes)
{
    sl_quota_opts o = RULES(0, 1, "a share=0.2 limit=0.4", "b limit=0.2");
    open_store(20, &o, NULL);
    request(1, 0, 3, 4);
    request(2, 1, 3, 4);
    ck_assert_int_eq(use_of("shared").pages, 3);
    ck_assert_int_eq(use_of("a").pages, 1);
    ck_assert_int_eq(use_of("b").pages, 1);
    for (int i = 2; i < 30; i++)
        request(7, i, 0, 5);
    ck_assert_int_eq(cached(0, 3, 4), 4); /* a is below its share, so its page and those before it stay */
    ck_assert_int_eq(cached(1, 3, 4), 3);
    sl_lease *l; /* its page leaves: the shared ones are not protected any more */
    ck_assert_int_eq(sl_store_lease_for(store, 1, seed, prompt(0, 3, 4), 4 * PAGE + 1, &l), SL_OK);
    ck_assert_int_eq(sl_lease_drop(l, 3), 1);
    sl_lease_release(l, true);
    check_store();
    for (int i = 30; i < 60; i++)
        request(7, i, 0, 5);
    ck_assert_int_eq(use_of("shared").pages, 0);
    sl_store_destroy(store);
}
END_TEST

/* Tenants beyond the table have the default limit together. */
START_TEST(the_overflow_of_the_table_has_one_quota)
{
    sl_quota_opts o = RULES(0, 0.01, "a share=0.2 limit=1");
    open_store(1000, &o, NULL);
    request(1, 0, 0, 20);
    for (int i = 1; i <= 400; i++)
        request(1000 + (uint64_t)i, i, 0, 1);
    ck_assert_int_eq(use_of("a").pages, 20);
    ck_assert_int_eq(use_of("other").pages, SL_QUOTA_UNNAMED + 10);
    sl_store_destroy(store);
}
END_TEST

static sl_key removed[16];
static int n_removed;

static void note_removed(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    (void)ctx;
    if (ev == SL_STORE_REMOVED)
        removed[n_removed++] = page->key;
}

/* What write_back is told to write next is what is evicted next. */
START_TEST(the_oldest_offers_follow_the_shares)
{
    sl_quota_opts o = RULES(0, 1, "quiet share=0.5");
    sl_key next[12];
    int32_t pages[12];
    sl_lease *l;
    open_store(20, &o, note_removed);
    n_removed = 0;
    int tier = sl_store_add_tier(store, SL_OFFER_NEW);
    request(1, 0, 0, 4);
    request(7, 1, 0, 4);
    request(1, 2, 0, 8); /* 12 pages: two above its share */
    ck_assert_int_eq(sl_store_oldest_offers(store, tier, 12, pages, 12), 12);
    for (int i = 0; i < 12; i++)
        next[i] = sl_store_describe(store, pages[i]).key;
    ck_assert_int_eq(sl_store_lease(store, seed, prompt(9, 0, 16), 16 * PAGE, &l), SL_OK);
    ck_assert_int_eq(n_removed, 12);
    ck_assert_mem_eq(next, removed, sizeof next);
    sl_lease_release(l, true);
    sl_store_destroy(store);
}
END_TEST

/* ---- the store against a restatement ---- */

enum { KINDS = 3, DEPTH = 5, PREFIXES = 364 /* (3^6 - 1) / 2 */, LEASES = 8, TENANTS = 6, SHARED = 0 };

typedef struct place {
    bool there;
    int refs, owner; /* owner: index of a tenant, SHARED: several */
    long stamp;
} place;

static struct {
    place e[PREFIXES];
    sl_key key[PREFIXES];
    struct {
        sl_lease *l;
        int tenant, kinds[DEPTH], n, n_path;
    } h[LEASES];
    long clock;
    int share[TENANTS], limit[TENANTS];
    int expected[64], n_expected; /* pages that leave in this order; -1: any that the rules allow */
} m;

static int prefix_of(const int *kinds, int n)
{
    int v = 0;
    for (int i = 0; i < n; i++)
        v = KINDS * v + 1 + kinds[i];
    return v;
}

static bool is_candidate(int v)
{
    if (!m.e[v].there || m.e[v].refs)
        return false;
    for (int k = 1; k <= KINDS; k++)
        if (KINDS * v + k < PREFIXES && m.e[KINDS * v + k].there)
            return false;
    return true;
}

static int used(int tenant)
{
    int n = 0;
    for (int v = 1; v < PREFIXES; v++)
        n += m.e[v].there && !m.e[v].refs && m.e[v].owner == tenant;
    return n;
}

/* The page of a tenant that is evicted for its limit: the oldest. */
static int oldest_of(int tenant)
{
    int best = 0;
    for (int v = 1; v < PREFIXES; v++)
        if (is_candidate(v) && m.e[v].owner == tenant && (!best || m.e[v].stamp < m.e[best].stamp))
            best = v;
    return best;
}

/* The store was full, and page v was chosen. */
static void check_choice(int v)
{
    bool above[TENANTS], any = false;
    ck_assert(is_candidate(v));
    for (int t = 0; t < TENANTS; t++)
        above[t] = used(t) > m.share[t];
    for (int w = 1; w < PREFIXES; w++)
        any |= is_candidate(w) && above[m.e[w].owner];
    ck_assert_int_eq(above[m.e[v].owner], any);
    for (int w = 1; w < PREFIXES; w++) {
        bool rival = is_candidate(w) && above[m.e[w].owner] == any && m.e[w].owner != SHARED;
        ck_assert_msg(!rival || m.e[v].stamp <= m.e[w].stamp, "page %d of %ld before page %d of %ld", v,
                      m.e[v].stamp, w, m.e[w].stamp);
    }
}

static void on_event(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    (void)ctx;
    if (ev != SL_STORE_REMOVED)
        return;
    int v = 1;
    while (v < PREFIXES && !sl_key_eq(m.key[v], page->key))
        v++;
    ck_assert_int_lt(v, PREFIXES);
    if (m.n_expected < 0) {
        check_choice(v);
        m.e[v].there = false;
        return;
    }
    ck_assert_int_gt(m.n_expected, 0);
    ck_assert_int_eq(m.expected[0], v);
    memmove(m.expected, m.expected + 1, (size_t)--m.n_expected * sizeof m.expected[0]);
}

static void fill(int32_t *tokens, const int *kinds, int n)
{
    for (int i = 0; i < n * PAGE; i++)
        tokens[i] = kinds[i / PAGE] * 1000 + i % PAGE;
}

static void model_use(int v, int tenant)
{
    if (m.e[v].owner != tenant)
        m.e[v].owner = SHARED;
}

static void do_lease(uint64_t *rng, int i)
{
    int32_t tokens[DEPTH * PAGE];
    int n = 1 + rnd_below(rng, DEPTH), tenant = 1 + rnd_below(rng, TENANTS - 1), match = 0;
    place before[DEPTH];
    for (int p = 0; p < DEPTH; p++)
        m.h[i].kinds[p] = rnd_below(rng, KINDS);
    fill(tokens, m.h[i].kinds, n);
    for (int v; match < n - 1 && m.e[v = prefix_of(m.h[i].kinds, match + 1)].there; match++) {
        before[match] = m.e[v];
        m.e[v].refs++;
        model_use(v, tenant);
    }
    m.n_expected = -1;
    sl_status st = sl_store_lease_for(store, (uint64_t)tenant, seed, tokens, n * PAGE, &m.h[i].l);
    for (int p = 0; p < match && st != SL_OK; p++)
        m.e[prefix_of(m.h[i].kinds, p + 1)] = before[p];
    m.h[i].tenant = tenant;
    m.h[i].n = n;
    m.h[i].n_path = match;
    if (st == SL_OK)
        ck_assert_int_eq(sl_lease_matched(m.h[i].l), match);
    else
        m.h[i].l = NULL;
}

static void do_publish(int i)
{
    int32_t tokens[DEPTH * PAGE];
    m.n_expected = 0;
    fill(tokens, m.h[i].kinds, m.h[i].n);
    sl_lease_publish(m.h[i].l, tokens, m.h[i].n * PAGE);
    for (; m.h[i].n_path < m.h[i].n; m.h[i].n_path++) {
        place *e = &m.e[prefix_of(m.h[i].kinds, m.h[i].n_path + 1)];
        if (!e->there)
            *e = (place){.there = true, .owner = m.h[i].tenant};
        model_use((int)(e - m.e), m.h[i].tenant);
        e->refs++;
    }
}

static void expect(int v)
{
    m.expected[m.n_expected++] = v;
    m.e[v].there = false;
}

static void do_release(int i, bool keep)
{
    m.n_expected = 0;
    for (int p = m.h[i].n_path; p > 0; p--) {
        int v = prefix_of(m.h[i].kinds, p), owner = m.e[v].owner;
        if (--m.e[v].refs)
            continue;
        m.e[v].stamp = ++m.clock;
        if (!keep && is_candidate(v))
            expect(v);
        else if (used(owner) > m.limit[owner])
            expect(oldest_of(owner));
    }
    sl_lease_release(m.h[i].l, keep);
    ck_assert_int_eq(m.n_expected, 0);
    m.h[i].l = NULL;
}

static void agree(void)
{
    check_store();
    for (int t = 0; t < TENANTS; t++) {
        int entry = t == SHARED ? SL_QUOTA_SHARED : sl_quota_enter(&store->quota, (uint64_t)t);
        ck_assert_int_eq((int)store->quota.entries[entry].used, used(t));
        if (t != SHARED)
            sl_quota_leave(&store->quota, entry);
    }
}

START_TEST(random_operations)
{
    static const int sizes[] = {12, 20, 60};
    uint64_t rng = 77 + (uint64_t)_i;
    int pages = sizes[_i % 3];
    sl_quota_opts o = RULES(0, 0.5, "a share=0.25", "b limit=0.1", "c share=0.2 limit=0.3");
    memset(&m, 0, sizeof m);
    open_store(pages, &o, on_event);
    for (int t = 0; t < TENANTS; t++) {
        int entry = t == SHARED ? SL_QUOTA_SHARED : sl_quota_enter(&store->quota, (uint64_t)t);
        m.share[t] = (int)store->quota.entries[entry].share;
        m.limit[t] = (int)store->quota.entries[entry].limit;
        if (t != SHARED)
            sl_quota_leave(&store->quota, entry);
    }
    for (int v = 1; v < PREFIXES; v++) {
        int32_t tokens[PAGE];
        fill(tokens, (int[]){(v - 1) % KINDS}, 1);
        m.key[v] = sl_page_key(v <= KINDS ? seed : m.key[(v - 1) / KINDS], tokens);
    }
    for (int step = 0; step < 1500; step++) {
        int op = rnd_below(&rng, 100), i = rnd_below(&rng, LEASES);
        if (!m.h[i].l)
            do_lease(&rng, i);
        else if (op < 50)
            do_publish(i);
        else
            do_release(i, op < 90);
        agree();
    }
    for (int i = 0; i < LEASES; i++)
        if (m.h[i].l)
            do_release(i, true);
    agree();
    ck_assert_int_gt(evictions, 20);
    sl_store_flush(store);
    check_store();
    ck_assert_int_eq(store->n_free, pages);
    sl_store_destroy(store);
}
END_TEST

/* ---- the index of the disk tier ---- */

enum { SLOTS = 4 };
static sl_disk_index ix;
static uint64_t batch, generation;

static void open_index(int segments, const sl_quota_opts *quota)
{
    sl_disk_store s = {.id = 1, .page_bytes = 100, .slots_per_segment = SLOTS};
    batch = generation = 1;
    ck_assert_int_eq(sl_disk_index_init(&ix, &s, (uint64_t)segments, quota), SL_OK);
}

static bool put(uint64_t tenant, uint64_t key)
{
    int64_t slot = sl_disk_index_claim(&ix, (sl_key){key, 1}, tenant, ++batch);
    if (slot < 0) {
        int64_t s = sl_disk_index_recycle(&ix, tenant, batch, 1, ++generation);
        if (s < 0)
            return false;
        sl_disk_index_open(&ix, s);
        slot = sl_disk_index_claim(&ix, (sl_key){key, 1}, tenant, batch);
    }
    ck_assert_int_ge(slot, 0);
    sl_disk_index_publish(&ix, slot);
    return true;
}

static int found(uint64_t from, int n)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        k += sl_disk_index_find(&ix, (sl_key){from + (uint64_t)i, 1}) >= 0;
    return k;
}

START_TEST(disk_shares_and_limits)
{
    sl_quota_opts o = RULES(0, 1, "quiet share=0.25", "batch limit=0.125", "never limit=0");
    open_index(16, &o);
    for (uint64_t i = 0; i < 16; i++) /* exactly its share: four segments */
        ck_assert(put(1, 1000 + i));
    for (uint64_t i = 0; i < 200; i++) {
        ck_assert(put(7, 2000 + i));
        ck_assert(put(2, 3000 + i));
    }
    ck_assert(!put(3, 4000));
    ck_assert_int_eq(found(1000, 16), 16);
    ck_assert_int_eq(found(3000, 200), 2 * SLOTS);
    ck_assert_int_eq(found(2000, 200), 10 * SLOTS);
    ck_assert_int_eq((int)ix.quota.uses[2].pages, 16);
    ck_assert_uint_gt(ix.quota.uses[3].evicted[SL_QUOTA_LIMIT], 0);
    for (uint64_t i = 16; i < 40; i++) /* above its share it takes from whoever is above his */
        ck_assert(put(1, 1000 + i));
    for (uint64_t i = 0; i < 400; i++)
        ck_assert(put(7, 5000 + i));
    ck_assert_int_eq(found(1000, 40), 16);
    sl_disk_index_free(&ix);
}
END_TEST

/* What a tenant has was used lately, and is in a segment that is not full: it is not the first to go. */
START_TEST(a_segment_that_is_not_full_is_not_older)
{
    sl_quota_opts o = {.limit = 1};
    open_index(16, &o);
    for (uint64_t i = 0; i < 60; i++)
        ck_assert(put(7, 2000 + i));
    ck_assert(put(8, 1000));
    for (uint64_t i = 60; i < 80; i++)
        ck_assert(put(7, 2000 + i));
    ck_assert_int_eq(found(1000, 1), 1);
    for (uint64_t i = 80; i < 180; i++)
        ck_assert(put(7, 2000 + i));
    ck_assert_int_eq(found(1000, 1), 0); /* but it ages */
    sl_disk_index_free(&ix);
}
END_TEST

/* ---- the disk tier over restarts ---- */

enum { BYTES = 10000, KEYS = 40, SEGMENT = 4096 + SLOTS * 4 * 4096 };

static char directory[64];
static sl_tier *tier;
static int aged;

static void on_aged(void *ctx, double unused_s, double age_s)
{
    (void)ctx;
    ck_assert(unused_s >= 0 && age_s >= unused_s);
    __atomic_add_fetch(&aged, 1, __ATOMIC_RELAXED);
}

static void open_tier(const sl_quota_opts *quota)
{
    sl_err err = {0};
    sl_tier_opts o = {.page_bytes = BYTES,
                      .capacity_bytes = 4096 + 8ull * SEGMENT,
                      .segment_bytes = SEGMENT,
                      .directory = directory,
                      .fingerprint = {1, 2},
                      .format = {3, 4},
                      .quota = quota,
                      .aged = on_aged};
    ck_assert_msg(sl_tier_open(&sl_tier_disk_ops, &o, &tier, &err) == SL_OK, "%s", err.text);
}

static void on_done(sl_tier_req *r, sl_status st)
{
    *(bool *)r->cookie = st == SL_OK;
}

/* Sets or looks for n pages of a tenant from this key on, one by one; returns how many succeeded. */
static int ask(sl_tier_op op, uint64_t tenant, uint64_t from, int n)
{
    static uint8_t content[BYTES];
    struct iovec span = {content, BYTES};
    sl_tier_page page = {&span, 1};
    int ok = 0;
    for (int i = 0; i < n; i++) {
        bool done = false;
        sl_key key = {from + (uint64_t)i, from};
        sl_status result;
        sl_tier_req r = {.op = op,
                         .n = 1,
                         .keys = &key,
                         .pages = &page,
                         .tenants = &tenant,
                         .results = &result,
                         .done = on_done,
                         .cookie = &done};
        ck_assert_int_eq(sl_tier_submit(tier, &r), SL_OK);
        while (!done) {
            struct pollfd p = {.fd = sl_tier_fd(tier), .events = POLLIN};
            ck_assert_int_eq(poll(&p, 1, 20000), 1);
            sl_tier_poll(tier);
        }
        ok += result == SL_OK;
    }
    return ok;
}

static int64_t pages_of(const char *name)
{
    sl_quota_use u[2 + SL_QUOTA_RULES];
    int n = sl_tier_quota_uses(tier, u);
    for (int i = 0; i < n; i++)
        if (!strcmp(u[i].name, name))
            return u[i].pages;
    return -1;
}

START_TEST(a_restart_keeps_the_tenants)
{
    char file[128];
    sl_quota_opts o = RULES(0, 1, "quiet share=0.25"), less = RULES(0, 1, "quiet limit=0.125"),
                  unnamed = {.share = 0.25, .limit = 1};
    snprintf(directory, sizeof directory, "build/quota-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(file, sizeof file, "%s/pages.sluice", directory);
    aged = 0;
    open_tier(&o);
    ck_assert_int_eq(ask(SL_TIER_SET, 1, 100, 8), 8);
    ck_assert_int_eq(ask(SL_TIER_SET, 7, 200, 30), 30);
    ck_assert_int_eq(pages_of("quiet"), 8);
    sl_tier_close(tier);
    open_tier(&o); /* it knows whose they are */
    ck_assert_int_eq(pages_of("quiet"), 8);
    ck_assert_int_eq(ask(SL_TIER_SET, 7, 300, 40), 40);
    ck_assert_int_eq(ask(SL_TIER_EXISTS, 1, 100, 8), 8);
    ck_assert_int_gt(aged, 30);
    sl_tier_close(tier);
    open_tier(&unnamed); /* no rule names it now: it is a tenant like others */
    ck_assert_int_eq(pages_of("quiet"), -1);
    ck_assert_int_eq(ask(SL_TIER_SET, 7, 400, 40), 40);
    ck_assert_int_eq(ask(SL_TIER_EXISTS, 1, 100, 8), 8);
    sl_tier_close(tier);
    open_tier(&less); /* one segment at most: the older one is given up at once */
    ck_assert_int_eq(pages_of("quiet"), 4);
    ck_assert_int_eq(ask(SL_TIER_EXISTS, 1, 104, 0) + ask(SL_TIER_EXISTS, 1, 100, 8), 4);
    sl_tier_close(tier);
    open_tier(NULL); /* and without quotas no tenant is protected */
    ck_assert_int_eq(ask(SL_TIER_SET, 7, 500, 40), 40);
    ck_assert_int_eq(ask(SL_TIER_EXISTS, 1, 100, 8), 0);
    sl_tier_close(tier);
    unlink(file);
    ck_assert_int_eq(rmdir(directory), 0);
}
END_TEST

/* A segment that a program without tenants has written has none, and a damaged number is none. */
START_TEST(a_segment_header_without_a_tenant)
{
    uint8_t block[SL_DISK_BLOCK];
    sl_disk_segment g = {.store_id = 1, .index = 2, .generation = 3, .sequence = 4, .tenant = 5}, out;
    sl_disk_segment_write(&g, block);
    ck_assert_int_eq(sl_disk_segment_read(block, &out), SL_OK);
    ck_assert_uint_eq(out.tenant, 5);
    for (int b = 52; b < 64; b++) {
        block[b] ^= 1;
        ck_assert_int_eq(sl_disk_segment_read(block, &out), SL_OK);
        ck_assert_uint_eq(out.tenant, 0);
        ck_assert_uint_eq(out.sequence, 4);
        block[b] ^= 1;
    }
    memset(block + 52, 0, 12);
    ck_assert_int_eq(sl_disk_segment_read(block, &out), SL_OK);
    ck_assert_uint_eq(out.tenant, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quota");
    TCase *c = tcase_create("quota");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, rules_are_read);
    tcase_add_test(c, wrong_rules_are_refused);
    tcase_add_test(c, made_up_tenants_share_an_entry);
    tcase_add_test(c, a_flood_leaves_what_a_share_protects);
    tcase_add_test(c, a_limit_holds_although_there_is_room);
    tcase_add_test(c, running_requests_are_never_refused);
    tcase_add_test(c, shared_prefixes);
    tcase_add_test(c, the_overflow_of_the_table_has_one_quota);
    tcase_add_test(c, the_oldest_offers_follow_the_shares);
    tcase_add_loop_test(c, random_operations, 0, 6);
    tcase_add_test(c, disk_shares_and_limits);
    tcase_add_test(c, a_segment_that_is_not_full_is_not_older);
    tcase_add_test(c, a_restart_keeps_the_tenants);
    tcase_add_test(c, a_segment_header_without_a_tenant);
    suite_add_tcase(s, c);
    return run_suite(s);
}
