/*
 * Pages that one decode worker reads from the host store of another (decode/pages/pull.h, lend.c, decode/link/owners.c), with every thread of
 * the workers: a prompt that decode 0 has is sent to decode 1 with decode 0 as its source. In each failure the stream is
 * right, the request ends, and cluster_stop() finds no page that is held on either side.
 */
#include <stdio.h>

#include "tests/unit/run_suite.h"
#include "tests/unit/worker/cluster.h"

enum { TOKENS = 400, PAGES = TOKENS / SL_PAGE_TOKENS };

static cluster c;

static cworker *decode(int i)
{
    return cluster_worker(&c, SL_ROLE_DECODE, i);
}

static cluster_opts options(void)
{
    cluster_opts o = cluster_defaults();
    o.n_decode = 2;
    o.pull = true;
    o.times.quarantine_ms = 400; /* gets that do not complete end after this time */
    o.times.pull_timeout_ms = 20000;
    return o;
}

/* The prompt is on decode 0, and decode 1 has its connection to the prefill worker. */
static void start(const cluster_opts *o)
{
    cluster_start(&c, o);
    creq *a = cluster_ask(&c, TOKENS, 5, 1);
    a->decode = 0;
    creq *b = cluster_ask(&c, 100, 5, 2);
    b->decode = 1;
    cluster_finish(&c, 20);
}

/* The same prompt for decode 1. */
static creq *again(void)
{
    creq *r = cluster_ask(&c, TOKENS, 20, 1);
    r->decode = 1;
    r->source = 0;
    r->source_pages = PAGES;
    return r;
}

static void stop_with(uint64_t least_pulled, uint64_t most_pulled)
{
    cluster_stop(&c);
    ck_assert_uint_ge(c.pulled, least_pulled);
    ck_assert_uint_le(c.pulled, most_pulled);
    ck_assert_int_eq(c.leases_left, 0);
}

/* Every combination of layouts: what the one has is not computed for the other. */
START_TEST(pulled_and_not_computed)
{
    static const sl_layout layouts[3] = {SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_LAYER_FIRST, SL_LAYOUT_PAGE_HEAD};
    cluster_opts o = options();
    o.decode_layout = layouts[_i / 3];
    o.second_decode_layout = &layouts[_i % 3];
    o.no_prefill_cache = true;
    start(&o);
    creq *r = again();
    cluster_finish(&c, 20);
    ck_assert_uint_eq(r->matched_pages, PAGES);
    ck_assert_uint_eq(r->cached_tokens, PAGES * SL_PAGE_TOKENS);
    creq *s = cluster_ask(&c, TOKENS, 5, 1); /* a longer answer of the same prompt: from its own store now */
    s->decode = 1;
    s->source = 0;
    s->source_pages = PAGES;
    cluster_finish(&c, 20);
    ck_assert_uint_eq(s->matched_pages, PAGES);
    stop_with(PAGES, PAGES);
}
END_TEST

/* The same over UCX, in one process: with TCP the owner's transport thread takes part in each get. */
START_TEST(pulled_over_ucx)
{
    cluster_opts o = options();
    o.transport = "ucx";
    o.shipping = &sl_shipping_staging;
    o.second_decode_layout = _i ? &(sl_layout){SL_LAYOUT_LAYER_FIRST} : NULL;
    o.no_prefill_cache = true;
    start(&o);
    creq *r = again();
    cluster_finish(&c, 20);
    ck_assert_uint_eq(r->matched_pages, PAGES);
    stop_with(PAGES, PAGES);
}
END_TEST

static bool prefetched(cluster *cl)
{
    (void)cl;
    return decode(1)->load.cached_pages >= PAGES + 100 / SL_PAGE_TOKENS;
}

/* The router announces the request while it waits (PREFETCH names decode 0): its pages are read before RESERVE comes, which
 * names no source. Cancelled instead, at any moment, it leaves nothing (cluster_stop looks). */
START_TEST(prefetched_before_the_request)
{
    cluster_opts o = options();
    o.no_prefill_cache = true;
    start(&o);
    if (_i == 1)
        cworker_faults(decode(1), (sl_loopback_faults){.delay_ns = 50000000});
    cluster_run_ms(&c, 20);
    sl_msg m = {.type = SL_MSG_PREFETCH}, abort = {.type = SL_MSG_ABORT};
    m.prefetch =
        (sl_msg_prefetch){.rid = 4711,
                          .attempt = 1,
                          .tokens = c.req[0].tokens,
                          .n_tokens = TOKENS,
                          .seed = c.req[0].seed,
                          .source = {.worker = decode(0)->id, .epoch = decode(0)->epoch, .pages = PAGES}};
    memcpy(m.prefetch.source.addr, decode(0)->listen, sizeof m.prefetch.source.addr);
    cluster_send(decode(1), &m);
    if (_i) {
        abort.abort = (sl_msg_abort){4711, 1, SL_ERR_CANCELLED};
        cluster_run_ms(&c, _i == 1 ? 120 : 0);
        cluster_send(decode(1), &abort);
        cworker_faults(decode(1), (sl_loopback_faults){0});
        stop_with(0, PAGES);
        return;
    }
    cluster_until(&c, prefetched, 20, "the pages of the prompt in the cache of decode 1");
    creq *r = again();
    r->source = -1;
    cluster_finish(&c, 20);
    ck_assert_uint_eq(r->matched_pages, PAGES);
    stop_with(PAGES, PAGES);
}
END_TEST

/* Without a source, with one that does not have the pages, or with the epoch of an earlier session, everything is computed. */
START_TEST(advice_that_is_wrong)
{
    cluster_opts o = options();
    start(&o);
    creq *r = again();
    if (_i == 0)
        r->source = -1;
    else if (_i == 1)
        r->source_epoch_off = 1;
    else
        r->seed = (sl_key){77, 78}; /* another domain: the keys differ, and so does the seed */
    cluster_finish(&c, 20);
    ck_assert_uint_eq(r->matched_pages, 0);
    stop_with(0, 0);
}
END_TEST

/* Story 4: the owner dies, hangs, or loses its connection while its pages are read. */
START_TEST(owner_fails)
{
    static const sl_loopback_faults faults[] = {
        {.die_after = 5},       /* in the middle of the gets, or of the greeting with encryption */
        {.fail_op = 3},         /* one get fails */
        {.lose_completion = 2}, /* gets that never complete: closed by force after quarantine_ms */
        {.delay_ns = 2000000},
    };
    cluster_opts o = options();
    o.second_decode_layout = &(sl_layout){SL_LAYOUT_LAYER_FIRST}; /* many gets */
    start(&o);
    cworker_faults(decode(1), faults[_i]);
    cluster_run_ms(&c, 20);
    creq *r = again();
    cluster_finish(&c, 30);
    ck_assert_int_eq(r->state, REQ_DONE);
    ck_assert_uint_eq(r->matched_pages, _i == 3 ? PAGES : 0);
    cworker_faults(decode(1), (sl_loopback_faults){0});
    stop_with(_i == 3 ? PAGES : 0, _i == 3 ? PAGES : 0);
}
END_TEST

/* One of the two is killed while gets are in flight; the other one has all its pages back. */
START_TEST(killed_while_reading)
{
    cluster_opts o = options();
    start(&o);
    cworker_faults(decode(1), (sl_loopback_faults){
                                  .delay_ns = 150000000}); /* greeting, lease and gets take their time */
    cluster_run_ms(&c, 20);
    creq *r = again();
    cluster_run_ms(&c, 100 + 150 * (_i / 2));
    cworker_kill(decode(_i % 2));
    if (_i % 2)
        r->decode = 0;
    cluster_finish(&c, 30);
    ck_assert_int_eq(r->state, REQ_DONE);
    cworker_join(decode(_i % 2));
    stop_with(0, PAGES);
}
END_TEST

/* A byte of a page of the owner changes after it was complete: it is found after it has arrived, and computed. The owner is
 * told, verifies its pages, and drops those that are damaged. */
START_TEST(damaged_at_the_owner)
{
    cluster_opts o = options();
    start(&o);
    sl_arena *a = decode(0)->arena;
    int32_t changed = 0;
    for (int32_t p = 0; p < PAGES; p++, changed++) /* the first pages of the store are those of the prompt */
        sl_arena_base(a)[p * sl_arena_geometry(a)->page_bytes + 100] ^= 0x10;
    creq *r = again();
    cluster_finish(&c, 30);
    ck_assert_uint_eq(r->matched_pages, 0);
    for (int32_t p = 0; p < changed; p++)
        sl_arena_base(a)[p * sl_arena_geometry(a)->page_bytes + 100] ^= 0x10;
    stop_with(0, PAGES);
    ck_assert_uint_eq(c.damaged_decode, PAGES);
}
END_TEST

/* The cache of the owner is emptied while its pages are lent; it drains; the session with the router ends. */
START_TEST(the_owner_changes_meanwhile)
{
    cluster_opts o = options();
    start(&o);
    cworker_faults(decode(1), (sl_loopback_faults){.delay_ns = 100000000});
    cluster_run_ms(&c, 20);
    creq *r = again();
    cluster_run_ms(&c, 150);
    if (_i == 0)
        cluster_send(decode(0), &(sl_msg){.type = SL_MSG_FLUSH_CACHE});
    else if (_i == 1)
        __atomic_store_n(&decode(0)->stop, 1, __ATOMIC_RELAXED);
    else
        cluster_cut_all(&c);
    cluster_finish(&c, 30);
    ck_assert_int_eq(r->state, REQ_DONE);
    stop_with(0, PAGES);
}
END_TEST

/* Both pull from each other, many requests at once, with little memory: no deadlock, nothing lost. */
START_TEST(both_ways_at_once)
{
    cluster_opts o = options();
    o.decode_pages = 40;
    o.no_prefill_cache = true;
    cluster_start(&c, &o);
    for (int round = 0; round < 4; round++) {
        for (int k = 0; k < 8; k++) {
            creq *r = cluster_ask(&c, 330, 4, 100 + (uint64_t)k % 5);
            r->decode = (k + round) % 2;
            r->source = 1 - r->decode;
            r->source_pages = 5;
        }
        cluster_finish(&c, 60);
    }
    stop_with(1, 1000);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pulls");
    TCase *t = tcase_create("pulls");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, pulled_and_not_computed, 0, 9);
    if (sl_transport_find("ucx"))
        tcase_add_loop_test(t, pulled_over_ucx, 0, 2);
    tcase_add_loop_test(t, prefetched_before_the_request, 0, 3);
    tcase_add_loop_test(t, advice_that_is_wrong, 0, 3);
    tcase_add_loop_test(t, owner_fails, 0, 4);
    tcase_add_loop_test(t, killed_while_reading, 0, 6);
    tcase_add_test(t, damaged_at_the_owner);
    tcase_add_loop_test(t, the_owner_changes_meanwhile, 0, 3);
    tcase_add_test(t, both_ways_at_once);
    suite_add_tcase(s, t);
    return run_suite(s);
}
