/*
 * Quotas of tenants: rules and what is wrong with them, entries for tenants without a rule, and the host store (the disk:
 * test_disk_quota.c). Random operations on the store are compared with a restatement of the
 * rules of kvstore/quota.h that looks at every page.
 */
#include <stdio.h>
#include <string.h>

#include "kvstore/domain.h"
#include "kvstore/store_impl.h"
#include "tests/unit/kvstore/quota_rules.h"

static const sl_key seed = {1, 2};

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
                 {"* share=0.1", "is the first one"},
                 {"** share=0.1", "name"},
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

/* The rule of every other tenant: what it leaves out, and what rules after it leave out. */
START_TEST(the_first_rule_may_be_for_all)
{
    sl_quota_opts o = {.limit = 1};
    ck_assert_int_eq(sl_quota_add_rule(&o, "* share=0.5 limit=0.25", NULL), SL_ERR_INVALID);
    ck_assert_int_eq(sl_quota_add_rule(&o, "* share=0.125", NULL), SL_OK);
    ck_assert(o.share == 0.125 && o.limit == 1 && o.n_rules == 0);
    ck_assert_int_eq(sl_quota_add_rule(&o, "* limit=0.5", NULL), SL_ERR_INVALID);
    ck_assert_int_eq(sl_quota_add_rule(&o, "a limit=0.25", NULL), SL_OK);
    ck_assert(o.rules[0].share == 0.125 && o.rules[0].limit == 0.25 && o.limit == 1);
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

int main(void)
{
    Suite *s = suite_create("quota");
    TCase *c = tcase_create("quota");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, rules_are_read);
    tcase_add_test(c, wrong_rules_are_refused);
    tcase_add_test(c, the_first_rule_may_be_for_all);
    tcase_add_test(c, made_up_tenants_share_an_entry);
    tcase_add_test(c, a_flood_leaves_what_a_share_protects);
    tcase_add_test(c, a_limit_holds_although_there_is_room);
    tcase_add_test(c, running_requests_are_never_refused);
    tcase_add_test(c, shared_prefixes);
    tcase_add_test(c, the_overflow_of_the_table_has_one_quota);
    tcase_add_test(c, the_oldest_offers_follow_the_shares);
    tcase_add_loop_test(c, random_operations, 0, 6);
    suite_add_tcase(s, c);
    return run_suite(s);
}
