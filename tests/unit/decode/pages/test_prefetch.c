/*
 * Prefetch (decode/pages/prefetch.c): pages are loaded before RESERVE; what RESERVE does when they are not complete; everything is given
 * back when the request is cancelled.
 */
#include "tests/unit/decode/decode_double.h"
#include "tests/unit/run_suite.h"

static decode_double x;

/* A worker whose tier has the 3 full pages of the prompt of 200 tokens, and whose store is empty. */
static void open_with_pages(sl_cfg_prefetch policy)
{
    dd_opts o = dd_defaults();
    o.pages = 24;
    o.tier = true;
    dd_open(&x, &o);
    x.d->o.pages.prefetch = (sl_prefetch_opts){
        .policy = policy, .base_ms = 20, .ms_per_1024 = 10, .min_tokens = 64, .budget = 0.5};
    dd_reserve(&x, 1, 200, 1, 0, 0);
    dd_settle(&x);
    dd_expect(&x, SL_MSG_RESERVED, 1);
    dd_commit(&x, 1, DD_WRITER, 0);
    dd_settle(&x);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_expect(&x, SL_MSG_DONE, 1);
    sl_store_flush(x.d->role.store);
}

static uint64_t ended(sl_prefetch_end how)
{
    return dd_stats(&x).prefetch.ended[how];
}

static uint64_t hits(void)
{
    sl_cascade_stats s;
    sl_cascade_stats_get(sl_pages_cascade(x.d->pages), 0, &s);
    return s.hits;
}

/* Nothing is in use, in the store, in the tier or in the budget. */
static void close_empty(void)
{
    sl_tier_stats s;
    dd_settle(&x);
    sl_tier_get_stats(sl_cascade_tier_at(sl_pages_cascade(x.d->pages), 0), &s);
    ck_assert_uint_eq(s.leased, 0);
    ck_assert_int_eq(dd_stats(&x).prefetch.now, 0);
    ck_assert_int_eq(dd_stats(&x).prefetch.pages, 0);
    ck_assert_int_eq(sl_cascade_waiting(sl_pages_cascade(x.d->pages)), 0);
    dd_close(&x);
}

static void finish(uint64_t rid)
{
    dd_abort(&x, rid, SL_ERR_CANCELLED);
    dd_drained(&x, rid, DD_WRITER);
    x.seen = x.n_said;
}

START_TEST(in_time)
{
    open_with_pages((sl_cfg_prefetch)_i);
    dd_prefetch(&x, 2, 200, 0);
    dd_prefetch(&x, 2, 200, 0); /* again: nothing new */
    ck_assert_int_eq(dd_stats(&x).prefetch.now, 1);
    ck_assert_int_eq(dd_tickets(&x), 0);
    dd_settle(&x);
    dd_silent(&x);
    ck_assert_int_eq(dd_held(&x), 0); /* the pages are cached, and none is held */
    ck_assert_int_eq(dd_stats(&x).prefetch.pages, 0);
    dd_reserve(&x, 2, 200, 2, 0, 0);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 3); /* at once */
    ck_assert_uint_eq(ended(SL_PREFETCH_IN_TIME), 1);
    finish(2);
    close_empty();
}
END_TEST

START_TEST(best_effort_does_not_wait)
{
    open_with_pages(SL_CFG_PREFETCH_BEST_EFFORT);
    dd_prefetch(&x, 2, 200, 0);
    dd_reserve(&x, 2, 200, 2, 0, 0);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 0);
    ck_assert_uint_eq(ended(SL_PREFETCH_LATE), 1);
    finish(2);
    dd_settle(&x);
    dd_reserve(&x, 3, 200, 2, 0, 0); /* was not announced: its load begins now, and it waits */
    dd_silent(&x);
    dd_settle(&x);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 3)->matched, 3);
    finish(3);
    close_empty();
}
END_TEST

START_TEST(timeout_waits_for_a_time)
{
    open_with_pages(SL_CFG_PREFETCH_TIMEOUT);
    if (_i)
        dd_prefetch(&x, 2, 200, 0);
    uint64_t before = sl_now_ns();
    dd_reserve(&x, 2, 200, 2, 0, 0);
    dd_silent(&x);
    uint64_t due = dd_tick(&x, before);
    ck_assert_uint_ge(due, before + 20000000);
    ck_assert_uint_le(due, sl_now_ns() + 22000000); /* 20 ms, and 10 ms for each 1,024 tokens */
    dd_tick(&x, due);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 0);
    ck_assert_uint_eq(ended(SL_PREFETCH_LATE), (uint64_t)_i);
    finish(2);
    close_empty();
}
END_TEST

START_TEST(wait_complete_waits_for_all)
{
    open_with_pages(SL_CFG_PREFETCH_WAIT_COMPLETE);
    dd_prefetch(&x, 2, 200, 0);
    dd_reserve(&x, 2, 200, 2, 0, 0);
    dd_silent(&x);
    ck_assert_uint_eq(ended(SL_PREFETCH_LATE), 1);
    dd_settle(&x);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 3);
    ck_assert_uint_eq(hits(), 3); /* by the load that the prefetch had begun */
    finish(2);
    close_empty();
}
END_TEST

/* ABORT, the loss of the router, draining, and no RESERVE at all; before, during and after the load. */
START_TEST(cancel_gives_everything_back)
{
    for (int turns = 0; turns < 5; turns++) {
        open_with_pages(SL_CFG_PREFETCH_WAIT_COMPLETE);
        dd_prefetch(&x, 2, 200, 0);
        for (int i = 0; i < turns; i++) {
            dd_tick(&x, sl_now_ns());
            if (i == 2)
                dd_check(&x);
        }
        if (_i == 0) {
            dd_abort(&x, 2, SL_ERR_CANCELLED);
            dd_expect(&x, SL_MSG_DRAINED, 2);
        } else if (_i == 1) {
            dd_router_down(&x, DD_ROUTER);
        } else if (_i == 2) {
            x.d->role.draining = true;
        } else {
            dd_tick(&x, sl_now_ns() + 61000000000);
        }
        dd_settle(&x);
        ck_assert_uint_eq(ended(SL_PREFETCH_CANCELLED), 1);
        dd_silent(&x);
        close_empty();
    }
}
END_TEST

START_TEST(budget_and_threshold)
{
    open_with_pages(SL_CFG_PREFETCH_WAIT_COMPLETE);
    x.d->o.pages.prefetch.budget = 0.1; /* 2 pages of 24 */
    dd_prefetch(&x, 2, 200, 0);
    ck_assert_uint_eq(ended(SL_PREFETCH_SKIPPED), 1);
    ck_assert_int_eq(dd_stats(&x).prefetch.now, 0);
    x.d->o.pages.prefetch.budget = 0.5;
    x.d->o.pages.prefetch.min_tokens = 4 * 64;
    dd_prefetch(&x, 2, 200, 0);
    ck_assert_int_eq(dd_stats(&x).prefetch.now, 0);
    dd_reserve(&x, 2, 200, 2, 0, 0); /* not worth a load either */
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 0);
    finish(2);
    close_empty();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("prefetch");
    TCase *t = tcase_create("prefetch");
    tcase_add_loop_test(t, in_time, 0, 3);
    tcase_add_test(t, best_effort_does_not_wait);
    tcase_add_loop_test(t, timeout_waits_for_a_time, 0, 2);
    tcase_add_test(t, wait_complete_waits_for_all);
    tcase_add_loop_test(t, cancel_gives_everything_back, 0, 4);
    tcase_add_test(t, budget_and_threshold);
    suite_add_tcase(s, t);
    return run_suite(s);
}
