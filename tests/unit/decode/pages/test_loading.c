/*
 * Requests whose prefix is in a storage tier (decode/pages/loading.c): RESERVED is said when the pages are in the store, and what
 * ends a request while it waits ends its wait. The cascade itself is tested in tests/unit/kvstore/test_cascade.c.
 */
#include "tests/unit/decode/decode_double.h"
#include "tests/unit/run_suite.h"

static decode_double x;

/* A worker whose tier has the 3 full pages of the prompt of 200 tokens, and whose store is empty. */
static void open_with_pages(sl_cfg_verify verify)
{
    dd_opts o = dd_defaults();
    o.verify = verify;
    o.pages = 24;
    o.tier = true;
    dd_open(&x, &o);
    dd_reserve(&x, 1, 200, 1, 0, 0);
    dd_settle(&x); /* the tier has nothing */
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 1)->matched, 0);
    dd_commit(&x, 1, DD_WRITER, 0);
    dd_settle(&x);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_expect(&x, SL_MSG_DONE, 1);
    sl_store_flush(x.d->role.store);
}

static sl_cascade_stats stats(void)
{
    sl_cascade_stats s;
    sl_cascade_stats_get(sl_pages_cascade(x.d->pages), 0, &s);
    return s;
}

/* What the worker's heartbeat would tell now. */
static void report(void)
{
    const sl_report_opts o = {.role = &x.d->role,
                              .runner = &x.runner,
                              .n_layers = DD_LAYERS,
                              .cascade = sl_pages_cascade(x.d->pages)};
    sl_report_now now = {.pages = dd_stats(&x)};
    sl_report *r;
    ck_assert_int_eq(sl_report_create(&o, &r, NULL), SL_OK);
    sl_report_turn(r, &now);
    sl_report_destroy(r);
}

START_TEST(reserved_when_the_pages_are_there)
{
    open_with_pages(_i ? SL_CFG_VERIFY_ALWAYS : SL_CFG_VERIFY_OFF);
    dd_reserve(&x, 2, 200, 2, 0, 0);
    dd_reserve(&x, 3, 190, 2, 0, 0); /* waits for the same load; its third page is not full */
    dd_silent(&x);
    ck_assert_int_eq(dd_tickets(&x), 0);
    dd_settle(&x);
    ck_assert_uint_eq(stats().loads, 1);
    ck_assert_uint_eq(stats().hits, 3);
    report(); /* the router is told how fast the tier was */
    ck_assert_uint_gt(atomic_load(&x.d->role.load.shared_rate), 0);
    ck_assert_uint_eq(atomic_load(&x.d->role.load.disk_rate), 0);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 3);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 3)->matched, 2);
    dd_commit(&x, 2, DD_WRITER, 0);
    dd_check(&x);
    dd_expect(&x, SL_MSG_TOKENS, 2);
    dd_pages_ask(&x, 3, 0, 2); /* loaded pages have kept checksums */
    dd_check(&x);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_PAGES_CRC, 3)->n, 2 * DD_LAYERS);
    dd_abort(&x, 2, SL_ERR_CANCELLED);
    dd_abort(&x, 3, SL_ERR_CANCELLED);
    dd_expect(&x, SL_MSG_DRAINED, 2);
    dd_drained(&x, 3, DD_WRITER);
    dd_expect(&x, SL_MSG_DRAINED, 3);
    dd_settle(&x);
    dd_close(&x);
}
END_TEST

/* The load has compared their checksums just before; the next request's pages are verified as always. */
START_TEST(loaded_pages_are_not_verified_twice)
{
    open_with_pages(SL_CFG_VERIFY_ALWAYS);
    dd_reserve(&x, 2, 200, 2, 0, 0);
    for (int i = 0; i < 20; i++)
        dd_tick(&x, sl_now_ns());
    dd_silent(&x);
    ck_assert(dd_check_one(&x));
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 3);
    ck_assert(!dd_ticket(&x, 2)->unverified && !dd_check_one(&x));
    dd_reserve(&x, 3, 200, 2, 0, 0);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 3)->matched, 3);
    ck_assert(dd_ticket(&x, 3)->unverified && dd_check_one(&x));
    ck_assert(!dd_ticket(&x, 3)->unverified);
    for (uint64_t rid = 2; rid < 4; rid++) {
        dd_abort(&x, rid, SL_ERR_CANCELLED);
        dd_drained(&x, rid, DD_WRITER);
        dd_expect(&x, SL_MSG_DRAINED, rid);
    }
    dd_settle(&x);
    dd_close(&x);
}
END_TEST

START_TEST(abort_ends_the_wait)
{
    open_with_pages(SL_CFG_VERIFY_ALWAYS);
    dd_reserve(&x, 2, 200, 2, 0, 0);
    dd_abort(&x, 2, SL_ERR_CANCELLED);
    dd_expect(&x, SL_MSG_DRAINED, 2);
    dd_settle(&x);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

START_TEST(the_loss_of_the_router_ends_the_wait)
{
    open_with_pages(SL_CFG_VERIFY_ALWAYS);
    dd_reserve(&x, 2, 200, 2, 0, 0);
    sl_run_router_down(x.d->run, DD_ROUTER);
    dd_settle(&x);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

START_TEST(draining_refuses_what_waited)
{
    open_with_pages(SL_CFG_VERIFY_OFF);
    dd_reserve(&x, 2, 200, 2, 0, 0);
    x.d->role.draining = true;
    dd_settle(&x);
    const dd_said *s = dd_expect(&x, SL_MSG_FAILED, 2);
    ck_assert(s->retryable);
    ck_assert_int_eq(s->status, SL_ERR_EXHAUSTED);
    dd_close(&x);
}
END_TEST

/* As many wait as there are places; the next one is handled without the tier. */
START_TEST(waiting_is_bounded)
{
    open_with_pages(SL_CFG_VERIFY_OFF);
    for (uint64_t rid = 2; rid < 7; rid++)
        dd_reserve(&x, rid, 130, 2, 0, 0);
    ck_assert_int_eq(sl_pages_waiting(x.d->pages), 4);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 6)->matched, 0);
    dd_settle(&x);
    int reserved = 0, refused = 0;
    for (; x.seen < x.n_said; x.seen++) {
        reserved += x.said[x.seen].type == SL_MSG_RESERVED && x.said[x.seen].matched == 2;
        refused += x.said[x.seen].type == SL_MSG_FAILED && x.said[x.seen].retryable;
    }
    ck_assert_int_eq(reserved, 3);
    ck_assert_int_eq(refused, 1); /* its place was taken meanwhile; the router tries again */
    for (uint64_t rid = 2; rid < 7; rid++)
        dd_abort(&x, rid, SL_ERR_CANCELLED);
    for (uint64_t rid = 2; rid < 7; rid++)
        dd_drained(&x, rid, DD_WRITER);
    x.seen = x.n_said;
    dd_settle(&x);
    dd_close(&x);
}
END_TEST

static void hear(uint32_t router, size_t stored, uint32_t removed, bool cleared)
{
    const dd_said *s = dd_expect(&x, SL_MSG_KV_EVENTS, SL_MEDIUM_DISK);
    ck_assert_uint_eq(s->router, router);
    ck_assert_uint_eq(s->n, stored);
    ck_assert_uint_eq(s->matched, removed);
    ck_assert_int_eq(s->first_index, cleared);
}

/* A prompt of 3 full pages, computed and written to the tier. */
static void run_prompt(uint64_t rid, int seed)
{
    dd_reserve(&x, rid, 200, 1, seed, 0);
    dd_settle(&x);
    dd_expect(&x, SL_MSG_RESERVED, rid);
    dd_commit(&x, rid, DD_WRITER, 0);
    dd_settle(&x);
    dd_expect(&x, SL_MSG_TOKENS, rid);
    dd_expect(&x, SL_MSG_DONE, rid);
}

/* Routers are told what is on disk: all at the beginning of a session, then what is written and what is evicted. */
START_TEST(routers_know_what_is_on_disk)
{
    dd_opts o = dd_defaults();
    o.pages = 24;
    o.tier = o.local = true;
    o.tier_pages = 5;
    dd_open(&x, &o);
    dd_router_up(&x, DD_ROUTER);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_KV_EVENTS, SL_MEDIUM_HOST)->ticket, 1);
    hear(DD_ROUTER, 0, 0, true);
    run_prompt(1, 1);
    hear(DD_ROUTER, 3, 0, false);
    ck_assert_uint_eq(x.said[x.seen - 1].ticket, 3); /* numbers run over all media */
    run_prompt(2, 2);                                /* 3 more in 5 places: the oldest one goes */
    hear(DD_ROUTER, 0, 1, false);
    hear(DD_ROUTER, 3, 0, false);
    x.router = 2;
    dd_router_up(&x, 2);
    dd_expect(&x, SL_MSG_KV_EVENTS, SL_MEDIUM_HOST);
    hear(2, 0, 0, true);
    dd_settle(&x);
    hear(2, 5, 0, false);
    dd_silent(&x);
    dd_resync(&x, 2); /* a batch was lost */
    dd_expect(&x, SL_MSG_KV_EVENTS, SL_MEDIUM_HOST);
    hear(2, 0, 0, true);
    dd_settle(&x);
    hear(2, 5, 0, false);
    dd_router_down(&x, DD_ROUTER);
    dd_router_down(&x, 2);
    x.router = DD_ROUTER;
    run_prompt(3, 3); /* nothing is told */
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("loading");
    TCase *t = tcase_create("loading");
    tcase_add_loop_test(t, reserved_when_the_pages_are_there, 0, 2);
    tcase_add_test(t, loaded_pages_are_not_verified_twice);
    tcase_add_test(t, abort_ends_the_wait);
    tcase_add_test(t, the_loss_of_the_router_ends_the_wait);
    tcase_add_test(t, draining_refuses_what_waited);
    tcase_add_test(t, waiting_is_bounded);
    tcase_add_test(t, routers_know_what_is_on_disk);
    suite_add_tcase(s, t);
    return run_suite(s);
}
