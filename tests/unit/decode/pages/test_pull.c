/*
 * The tier "workers" (decode/pages/pull.h) without threads: the test plays the transport thread and the owner. The guarantees of
 * kvstore/tier.h that a read-only tier has, and what this one adds: leases are ended once, pages of another layout arrive
 * right, nothing is asked of a worker that failed, and nothing is pulled that is computed faster.
 */
#include <poll.h>
#include <time.h>

#include "decode/pages/pull.h"
#include "kvstore/page_key.h"
#include "tests/unit/kvstore/mla_geometry.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { LAYERS = 3, PAGES = 12, KEYS = 8, LABEL = 40, MAX = 16 };

static sl_arena *here, *there;
static sl_tier *tier;
static sl_key keys[KEYS];
static sl_tier_source source;
static double prefill_rate;
static struct iovec spans[KEYS][64];
static uint8_t labels[KEYS][LABEL];
static sl_tier_page into[KEYS];
static sl_status results[MAX][KEYS];

/* The transport thread: what it has to do, and what it was told. */
static struct {
    sl_pull *asks[MAX];
    sl_pull_get *gets[MAX];
    int n_asks, n_gets, cancels, ends;
    uint64_t cancelled[MAX], ended[MAX];
    int n_damaged, damaged_first, damaged_count; /* of the last one */
    uint64_t damaged_lease;
} wire;

typedef struct answer {
    int calls;
    sl_status st;
    sl_tier_req req;
} answer;

static answer answers[MAX];

static void on_done(sl_tier_req *req, sl_status st)
{
    answer *a = req->cookie;
    a->calls++;
    a->st = st;
}

static void do_ask(void *ctx, sl_pull *p)
{
    (void)ctx;
    wire.asks[wire.n_asks++] = p;
}

static void do_get(void *ctx, sl_pull_get *g)
{
    (void)ctx;
    wire.gets[wire.n_gets++] = g;
}

static void do_cancel(void *ctx, uint64_t id)
{
    (void)ctx;
    wire.cancelled[wire.cancels++] = id;
}

static void do_end(void *ctx, const sl_pull *p)
{
    (void)ctx;
    ck_assert_ptr_null(p->gets);
    wire.ended[wire.ends++] = p->id;
}

static void do_damaged(void *ctx, const sl_pull *p, int32_t first, int32_t count)
{
    (void)ctx;
    wire.n_damaged++;
    wire.damaged_lease = p->id;
    wire.damaged_first = first;
    wire.damaged_count = count;
}

static double rate(void *ctx)
{
    (void)ctx;
    return prefill_rate;
}

static sl_arena *arena(sl_layout layout, uint8_t fill)
{
    static const bool has_indexer[LAYERS] = {true, false, true};
    sl_geometry g =
        mla_geometry((sl_key){1, 2}, layout, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, LAYERS, has_indexer);
    sl_arena_opts o = {.bytes = (uint64_t)(PAGES * g.page_bytes), .lock = SL_OFF, .numa_node = -1};
    sl_arena *a;
    ck_assert_int_eq(sl_arena_create(&g, &o, &a, NULL), SL_OK);
    memset(sl_arena_base(a), fill, sl_arena_bytes(a));
    return a;
}

/* Page i of the owner belongs to key i, page i + 2 of this worker is where it arrives. */
static void open_tier(sl_layout mine, sl_layout theirs, uint32_t lease_ms)
{
    sl_err err = {0};
    here = arena(mine, 0xee);
    there = arena(theirs, 0);
    uint64_t seed = 5;
    for (uint64_t i = 0; i < sl_arena_bytes(there); i++)
        sl_arena_base(there)[i] = (uint8_t)rnd(&seed);
    sl_pull_env env = {.arena = here,
                       .page_bytes = (size_t)sl_arena_geometry(here)->page_bytes,
                       .label_bytes = LABEL,
                       .lease_ms = lease_ms,
                       .min_pages = 1,
                       .ask = do_ask,
                       .get = do_get,
                       .cancel = do_cancel,
                       .end = do_end,
                       .damaged = do_damaged,
                       .prefill_rate = rate};
    ck_assert_msg(sl_pull_open(&env, &tier, &err) == SL_OK, "%s", err.text);
    memset(&wire, 0, sizeof wire);
    memset(labels, 0xee, sizeof labels);
    prefill_rate = 0;
    source = (sl_tier_source){
        .router = 1, .worker = 2, .epoch = 3, .pages = KEYS, .seed = {4, 4}, .address = "a:1"};
    int32_t n = sl_arena_n_spans(here);
    for (int i = 0; i < KEYS; i++) {
        keys[i] = (sl_key){rnd(&seed), rnd(&seed)};
        sl_arena_spans(here, i + 2, spans[i]);
        spans[i][n] = (struct iovec){labels[i], LABEL};
        into[i] = (sl_tier_page){spans[i], n + 1};
    }
}

static void close_tier(void)
{
    sl_tier_close(tier);
    sl_arena_destroy(here);
    sl_arena_destroy(there);
}

static void submit(int a, sl_tier_op op, int first, int n, bool with_source)
{
    answers[a] = (answer){.req = {.op = op,
                                  .n = n,
                                  .keys = keys + first,
                                  .pages = into + first,
                                  .lease_ms = op == SL_TIER_EXISTS ? 100 : 0,
                                  .source = with_source ? &source : NULL,
                                  .results = results[a],
                                  .done = on_done,
                                  .cookie = &answers[a]}};
    ck_assert_int_eq(sl_tier_submit(tier, &answers[a].req), SL_OK);
    ck_assert_int_eq(answers[a].calls, 0);
}

static sl_status ended(int a)
{
    struct pollfd p = {.fd = sl_tier_fd(tier), .events = POLLIN};
    ck_assert_int_eq(answers[a].calls, 0);
    ck_assert_int_eq(poll(&p, 1, 0), 1);
    sl_tier_poll(tier);
    ck_assert_int_eq(answers[a].calls, 1);
    ck_assert_int_eq(poll(&p, 1, 0), 0);
    return answers[a].st;
}

/* The owner grants the first n keys of question i. */
static void grant(int i, int n)
{
    sl_pull *p = wire.asks[i];
    ck_assert(p->away);
    p->status = SL_OK;
    p->granted = n;
    p->pages = n ? calloc((size_t)n, sizeof *p->pages) : NULL;
    p->labels = n ? calloc((size_t)n, LABEL) : NULL;
    for (int k = 0; k < n; k++) {
        int key = 0;
        while (!sl_key_eq(keys[key], p->keys[k]))
            key++;
        p->pages[k] = (uint32_t)key;
        memset(p->labels + k * LABEL, 'a' + key, LABEL);
    }
    sl_pull_asked(tier, p);
}

static void fail_ask(int i, sl_status st)
{
    wire.asks[i]->status = st;
    sl_pull_asked(tier, wire.asks[i]);
}

static void answer_get(int i, sl_status st)
{
    sl_pull_get *g = wire.gets[i];
    g->status = st;
    g->bytes = (uint64_t)g->n * (uint64_t)sl_arena_geometry(here)->page_bytes;
    g->ns = 1000000;
    sl_page_map map = {.local = sl_arena_geometry(here),
                       .remote = sl_arena_geometry(there),
                       .local_base = sl_arena_base(here),
                       .remote_base = (uint64_t)(uintptr_t)sl_arena_base(there),
                       .local_n = PAGES,
                       .remote_n = PAGES,
                       .lpages = g->local,
                       .rpages = g->remote};
    for (int32_t l = 0; st == SL_OK && l < LAYERS; l++) {
        sl_pieces it;
        sl_span s;
        sl_pieces_init(&it, &map, l, 0, g->n * SL_KEY_PAGE_TOKENS);
        while (sl_pieces_next(&it, &s))
            memcpy(s.local, (const void *)(uintptr_t)s.remote, (size_t)s.bytes);
    }
    sl_pull_got(tier, g);
}

static void arrived(int key)
{
    for (int32_t l = 0; l < LAYERS; l++)
        ck_assert_uint_eq(sl_arena_page_crc(here, key + 2, l, SL_KEY_PAGE_TOKENS),
                          sl_arena_page_crc(there, key, l, SL_KEY_PAGE_TOKENS));
    for (int i = 0; i < LABEL; i++)
        ck_assert_int_eq(labels[key][i], 'a' + key);
}

static sl_pull_stats stats(void)
{
    sl_pull_stats s;
    sl_pull_stats_get(tier, &s);
    return s;
}

START_TEST(pages_arrive)
{
    static const sl_layout layouts[3] = {SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_LAYER_FIRST, SL_LAYOUT_PAGE_HEAD};
    open_tier(layouts[_i / 3], layouts[_i % 3], 5000);
    submit(0, SL_TIER_EXISTS, 0, KEYS, true);
    ck_assert_int_eq(wire.n_asks, 1);
    ck_assert_uint_eq(wire.asks[0]->lease_ms, 5000);
    grant(0, 6);
    ck_assert_int_eq(ended(0), SL_OK);
    ck_assert_int_eq(sl_tier_prefix(&answers[0].req), 6);
    ck_assert_int_eq(results[0][6], SL_ERR_NOT_FOUND);
    ck_assert_int_eq(stats().leased_pages, 6);
    submit(1, SL_TIER_GET, 1, 3, false); /* two at the same time; the last page of the second is not leased */
    submit(2, SL_TIER_GET, 4, 3, false);
    ck_assert_int_eq(wire.n_gets, 2);
    answer_get(1, SL_OK);
    ck_assert_int_eq(ended(2), SL_OK);
    ck_assert_int_eq(sl_tier_prefix(&answers[2].req), 2);
    ck_assert_int_eq(results[2][2], SL_ERR_NOT_FOUND);
    answer_get(0, SL_OK);
    ck_assert_int_eq(ended(1), SL_OK);
    ck_assert_int_eq(sl_tier_prefix(&answers[1].req), 3);
    for (int k = 1; k < 6; k++)
        arrived(k);
    ck_assert_uint_eq(*sl_arena_base(here), 0xee); /* no key arrives in page 0 */
    sl_tier_release(tier, keys, KEYS);
    ck_assert_int_eq(wire.ends, 1);
    ck_assert(sl_pull_idle(tier));
    ck_assert_uint_eq(stats().pages, 5);
    ck_assert_uint_gt(stats().rate, 0);
    submit(3, SL_TIER_GET, 0, 1, false); /* a lease that has ended is a miss */
    ck_assert_int_eq(ended(3), SL_OK);
    ck_assert_int_eq(results[3][0], SL_ERR_NOT_FOUND);
    close_tier();
}
END_TEST

START_TEST(nothing_is_asked_without_a_source)
{
    open_tier(SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_PAGE_FIRST, 5000);
    submit(0, SL_TIER_EXISTS, 0, 3, false);
    ck_assert_int_eq(ended(0), SL_OK);
    source.pages = 0;
    submit(1, SL_TIER_EXISTS, 0, 3, true);
    ck_assert_int_eq(ended(1), SL_OK);
    submit(2, SL_TIER_SET, 0, 3, true);
    ck_assert_int_eq(ended(2), SL_OK);
    submit(3, SL_TIER_REMOVE, 0, 3, true);
    ck_assert_int_eq(ended(3), SL_OK);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(results[0][i], SL_ERR_NOT_FOUND);
        ck_assert_int_eq(results[1][i], SL_ERR_NOT_FOUND);
        ck_assert_int_eq(results[2][i], SL_ERR_UNSUPPORTED);
        ck_assert_int_eq(results[3][i], SL_ERR_NOT_FOUND); /* only tells owners, of which there is none */
    }
    source.pages = 2; /* no more is asked for than the source may have */
    submit(4, SL_TIER_EXISTS, 0, KEYS, true);
    ck_assert_int_eq(wire.n_asks, 1);
    ck_assert_int_eq(wire.asks[0]->n, 2);
    grant(0, 0);
    ck_assert_int_eq(ended(4), SL_OK);
    ck_assert_int_eq(sl_tier_prefix(&answers[4].req), 0);
    ck_assert_int_eq(wire.ends, 0);
    ck_assert(sl_pull_idle(tier));
    close_tier();
}
END_TEST

START_TEST(cancel_drains)
{
    open_tier(SL_LAYOUT_LAYER_FIRST, SL_LAYOUT_PAGE_FIRST, 5000);
    submit(0, SL_TIER_EXISTS, 0, 4, true);
    sl_tier_cancel(tier, &answers[0].req);
    ck_assert_int_eq(wire.cancels, 1);
    ck_assert_uint_eq(wire.cancelled[0], wire.asks[0]->id);
    if (_i)
        grant(0, 4); /* the answer was quicker: the lease is given back */
    else
        fail_ask(0, SL_ERR_CANCELLED);
    ck_assert_int_eq(ended(0), SL_ERR_CANCELLED);
    ck_assert_int_eq(wire.ends, _i);
    ck_assert(sl_pull_idle(tier));

    submit(1, SL_TIER_EXISTS, 0, 4, true);
    grant(1, 4);
    ck_assert_int_eq(ended(1), SL_OK);
    submit(2, SL_TIER_GET, 0, 4, false);
    sl_tier_cancel(tier, &answers[2].req);
    ck_assert_int_eq(sl_tier_poll(tier), 0); /* it is drained first */
    sl_tier_release(tier, keys, 4);          /* the lease lasts as long as a get is in flight */
    ck_assert_int_eq(wire.ends, _i);
    answer_get(0, _i ? SL_OK : SL_ERR_CANCELLED);
    ck_assert_int_eq(ended(2), SL_ERR_CANCELLED);
    ck_assert_int_eq(results[2][0], _i ? SL_OK : SL_ERR_CANCELLED);
    ck_assert_int_eq(wire.ends, _i + 1);
    ck_assert(sl_pull_idle(tier));
    submit(3, SL_TIER_EXISTS, 0, 4, true); /* a request that ends is no failure of the worker */
    ck_assert_int_eq(wire.n_asks, 3);
    grant(2, 0);
    ck_assert_int_eq(ended(3), SL_OK);
    close_tier();
}
END_TEST

/* Whatever is in flight when the transport thread has ended: every request ends once, and nothing is leaked. */
START_TEST(close_ends_everything)
{
    open_tier(SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_PAGE_FIRST, 5000);
    submit(0, SL_TIER_EXISTS, 0, 4, true);
    grant(0, 4);
    ck_assert_int_eq(ended(0), SL_OK);
    submit(1, SL_TIER_GET, 0, 2, false);
    submit(2, SL_TIER_GET, 2, 2, false);
    submit(3, SL_TIER_EXISTS, 4, 4, true);
    submit(4, SL_TIER_EXISTS, 4, 4, false);
    close_tier();
    for (int a = 1; a < 5; a++) {
        ck_assert_int_eq(answers[a].calls, 1);
        ck_assert_int_eq(answers[a].st, SL_ERR_CANCELLED);
    }
    ck_assert_int_eq(results[1][0], SL_ERR_CANCELLED);
    ck_assert_int_eq(results[3][3], SL_ERR_CANCELLED);
}
END_TEST

START_TEST(a_lease_is_given_back_before_its_time_ends)
{
    open_tier(SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_PAGE_FIRST, 550);
    submit(0, SL_TIER_EXISTS, 0, 2, true);
    submit(1, SL_TIER_EXISTS, 2, 2, true);
    grant(0, 2);
    grant(1, 2);
    sl_tier_poll(tier);
    submit(2, SL_TIER_GET, 2, 2, false); /* in flight: the second lease stays */
    ck_assert_int_eq(wire.n_gets, 1);
    nanosleep(&(struct timespec){0, 70000000}, NULL);
    sl_tier_poll(tier);
    ck_assert_int_eq(wire.ends, 1);
    ck_assert_uint_eq(wire.ended[0], 1);
    submit(3, SL_TIER_GET, 0, 2, false);
    ck_assert_int_eq(ended(3), SL_OK);
    ck_assert_int_eq(results[3][0], SL_ERR_NOT_FOUND);
    answer_get(0, SL_OK);
    ck_assert_int_eq(ended(2), SL_OK);
    ck_assert_int_eq(results[2][1], SL_OK);
    ck_assert_int_eq(wire.ends, 2);
    ck_assert(sl_pull_idle(tier));
    close_tier();
}
END_TEST

START_TEST(a_worker_that_failed_is_left_alone)
{
    open_tier(SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_PAGE_FIRST, 5000);
    submit(0, SL_TIER_EXISTS, 0, 4, true);
    if (_i) {
        grant(0, 4);
        ck_assert_int_eq(ended(0), SL_OK);
        submit(1, SL_TIER_GET, 0, 2, false);
        submit(2, SL_TIER_GET, 2, 2, false);
        answer_get(0, SL_ERR_PEER);
        ck_assert_int_eq(ended(1), SL_OK);
        ck_assert_int_eq(results[1][0], SL_ERR_IO);
        answer_get(1, SL_ERR_PEER);
        ck_assert_int_eq(ended(2), SL_OK);
        ck_assert_int_eq(results[2][1], SL_ERR_IO);
        sl_tier_release(tier, keys, 4);
    } else {
        fail_ask(0, SL_ERR_TIMEOUT);
        ck_assert_int_eq(ended(0), SL_OK);
        ck_assert_int_eq(results[0][0], SL_ERR_IO);
    }
    ck_assert_int_eq(wire.ends, 0); /* there is no connection to which a lease could belong */
    ck_assert(sl_pull_idle(tier));
    ck_assert_uint_eq(stats().misses[SL_PULL_PEER], 4);
    submit(3, SL_TIER_EXISTS, 0, 4, true);
    ck_assert_int_eq(ended(3), SL_OK);
    ck_assert_int_eq(wire.n_asks, 1);
    source.epoch = 4; /* another worker is asked */
    submit(4, SL_TIER_EXISTS, 0, 4, true);
    ck_assert_int_eq(wire.n_asks, 2);
    grant(1, 0);
    ck_assert_int_eq(ended(4), SL_OK);
    source.epoch = 3;
    nanosleep(&(struct timespec){1, 50000000}, NULL);
    submit(5, SL_TIER_EXISTS, 0, 4, true);
    ck_assert_int_eq(wire.n_asks, 3);
    grant(2, 0);
    ck_assert_int_eq(ended(5), SL_OK);
    sl_tier_health h;
    sl_tier_get_health(tier, &h);
    ck_assert_int_eq(h.state, SL_TIER_HEALTHY);
    close_tier();
}
END_TEST

START_TEST(the_owner_is_told_of_damage)
{
    open_tier(SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_PAGE_FIRST, 5000);
    submit(0, SL_TIER_EXISTS, 1, KEYS - 1, true);
    submit(1, SL_TIER_REMOVE, 2, 1, false); /* there is no lease yet */
    sl_tier_poll(tier);
    ck_assert_int_eq(wire.n_damaged, 0);
    grant(0, KEYS - 1);
    ck_assert_int_eq(ended(0), SL_OK);
    submit(2, SL_TIER_REMOVE, 2, 2, false);
    ck_assert_int_eq(wire.n_damaged, 1);
    ck_assert_uint_eq(wire.damaged_lease, wire.asks[0]->id);
    ck_assert_int_eq(wire.damaged_first, 1); /* key 2 is the second page of the lease */
    ck_assert_int_eq(wire.damaged_count, 2);
    ck_assert_int_eq(ended(2), SL_OK);
    ck_assert_int_eq(results[2][0], SL_ERR_NOT_FOUND);
    ck_assert_int_eq(results[2][1], SL_ERR_NOT_FOUND);
    sl_tier_release(tier, keys + 1, KEYS - 1);
    submit(3, SL_TIER_REMOVE, 2, 2, false);
    ck_assert_int_eq(wire.n_damaged, 1);
    sl_tier_poll(tier);
    close_tier();
}
END_TEST

START_TEST(what_is_computed_faster_is_not_pulled)
{
    open_tier(SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_PAGE_FIRST, 5000);
    prefill_rate = 1e9;
    submit(0, SL_TIER_EXISTS, 0, 4, true);
    ck_assert_int_eq(wire.n_asks, 1); /* no rate of the worker is known yet */
    grant(0, 4);
    ck_assert_int_eq(ended(0), SL_OK);
    submit(1, SL_TIER_GET, 0, 4, false);
    answer_get(0, SL_OK);
    ck_assert_int_eq(ended(1), SL_OK);
    sl_tier_release(tier, keys, 4);
    submit(2, SL_TIER_EXISTS, 0, 4, true);
    ck_assert_int_eq(ended(2), SL_OK);
    ck_assert_int_eq(wire.n_asks, 1);
    ck_assert_uint_eq(stats().misses[SL_PULL_COST], 4);
    prefill_rate = 10; /* 25 s for these pages */
    submit(3, SL_TIER_EXISTS, 0, 4, true);
    ck_assert_int_eq(wire.n_asks, 2);
    wire.asks[1]->lent = 1u << 30; /* but the owner lends to very many: the lease is given back at once */
    grant(1, 4);
    ck_assert_int_eq(ended(3), SL_OK);
    ck_assert_int_eq(sl_tier_prefix(&answers[3].req), 0);
    ck_assert_int_eq(wire.ends, 2);
    ck_assert(sl_pull_idle(tier));
    close_tier();
}
END_TEST

START_TEST(cost_rule)
{
    const uint64_t s = 1000000000;
    sl_pull_rate r = {0};
    ck_assert(sl_pull_rate_get(&r, 5 * s) == 0);
    sl_pull_rate_add(&r, 100, 5 * s);
    sl_pull_rate_add(&r, 0, 6 * s); /* no measurement */
    ck_assert(sl_pull_rate_get(&r, 5 * s) == 100);
    sl_pull_rate_add(&r, 200, 7 * s);
    ck_assert(sl_pull_rate_get(&r, 7 * s) == 125);
    ck_assert(sl_pull_rate_get(&r, 38 * s) == 0);
    /* 10 pages of 1 MB: 10 ms at 1 GB/s and 5 ms for the question, against 640 tokens. */
    sl_pull_cost c = {.pages = 10, .page_bytes = 1e6, .bytes_per_s = 1e9, .tokens_per_s = 640 / 0.016};
    ck_assert(sl_pull_is_cheaper(&c));
    c.tokens_per_s = 640 / 0.014;
    ck_assert(!sl_pull_is_cheaper(&c));
    c.ask_s = 0.001;
    ck_assert(sl_pull_is_cheaper(&c));
    c.lent = 10;
    ck_assert(!sl_pull_is_cheaper(&c));
    c.tokens_per_s = 0;
    ck_assert(sl_pull_is_cheaper(&c));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pull");
    TCase *t = tcase_create("pull");
    tcase_add_loop_test(t, pages_arrive, 0, 9);
    tcase_add_test(t, nothing_is_asked_without_a_source);
    tcase_add_loop_test(t, cancel_drains, 0, 2);
    tcase_add_test(t, close_ends_everything);
    tcase_add_test(t, a_lease_is_given_back_before_its_time_ends);
    tcase_add_loop_test(t, a_worker_that_failed_is_left_alone, 0, 2);
    tcase_add_test(t, the_owner_is_told_of_damage);
    tcase_add_test(t, what_is_computed_faster_is_not_pulled);
    tcase_add_test(t, cost_rule);
    suite_add_tcase(s, t);
    return run_suite(s);
}
