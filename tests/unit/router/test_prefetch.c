/*
 * Requests that wait are announced to the decode worker that will probably get them: when, how many, and how an announcement
 * ends. A request that reserves while its decode worker loads many pages is announced to its prefill worker.
 */
#include <string.h>

#include "kvstore/page_key.h"
#include "tests/unit/router/harness.h"

enum { PROMPT = 1000, PAGES = PROMPT / 64, PLACES = 2 };

static harness h;
static client busy[2 * PLACES], waits[8];
static int n_busy;

static void occupy(void)
{
    h_ask(&h, &busy[n_busy++], 100, 4);
    h_run(&h, 5);
}

/* The worker has the pages of the prompt on its disk. */
static void put_on_disk(int i, size_t prompt)
{
    sl_request_spec s;
    sl_key keys[PAGES + 1];
    sl_share_domain everybody;
    h_spec(&s, prompt, 1);
    ck_assert(sl_share_domain_of(SL_SHARE_ALL, "", "", 0, &everybody));
    size_t n = sl_page_keys(sl_share_seed(h.mo.fingerprint, &everybody), s.prompts->ids, prompt, keys);
    sl_request_spec_free(&s);
    for (size_t k = 0; k < n; k++)
        sl_directory_add(h.r->directory, sl_member_find(h.r, sl_mock_count(h.w[i])->worker_id)->place,
                         SL_MEDIUM_DISK, keys[k]);
}

static uint64_t received(int i, sl_msg_type type)
{
    return sl_mock_count(h.w[i])->received[type];
}

/* Two decode workers, each with PLACES requests that do not end until hold is cleared. */
static void start(bool prefetch)
{
    n_busy = 0;
    memset(busy, 0, sizeof busy);
    memset(waits, 0, sizeof waits);
    h_init(&h);
    h.o.placement.policy = "cache_aware";
    h.o.placement.prefetch = prefetch;
    h.mo.max_batch = 1;
    h_open_cluster(&h, 2, 2);
    sl_mock_knob(h.w[2])->hold = sl_mock_knob(h.w[3])->hold = true;
    for (int i = 0; i < 2 * PLACES; i++)
        occupy();
    ck_assert_uint_eq(received(2, SL_MSG_RESERVE) + received(3, SL_MSG_RESERVE), 2 * PLACES);
}

static void finish(void)
{
    sl_mock_knob(h.w[2])->hold = sl_mock_knob(h.w[3])->hold = false;
    for (int i = 0; i < n_busy; i++)
        h_release(&h, &busy[i], 2000);
    h_close(&h);
}

static void wait_for(int i, size_t prompt)
{
    h_ask(&h, &waits[i], prompt, 4);
    h_run(&h, 10);
}

static uint32_t announced(int i)
{
    return sl_member_find(h.r, sl_mock_count(h.w[i])->worker_id)->account.prefetches;
}

START_TEST(a_waiting_request_is_announced_where_its_pages_are)
{
    start(true);
    put_on_disk(3, PROMPT);
    wait_for(0, PROMPT);
    ck_assert_uint_eq(received(2, SL_MSG_PREFETCH), 0);
    ck_assert_uint_eq(received(3, SL_MSG_PREFETCH), 1);
    wait_for(1, 500); /* no worker has a page of this one */
    h_run(&h, 50);
    ck_assert_uint_eq(received(2, SL_MSG_PREFETCH) + received(3, SL_MSG_PREFETCH), 1);
    ck_assert_uint_eq(announced(3), 1);
    sl_group_release(waits[0].group); /* it ends while it waits */
    h_run(&h, 10);
    ck_assert_uint_eq(received(3, SL_MSG_ABORT), 1);
    ck_assert_uint_eq(announced(3), 0);
    sl_group_release(waits[1].group);
    h_run(&h, 10);
    ck_assert_uint_eq(received(2, SL_MSG_ABORT), 0);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.placement.prefetch_withdrawn), 1);
    finish();
}
END_TEST

/* RESERVE on the same worker ends it; when the request goes to another worker, it is withdrawn. */
START_TEST(placement_ends_it)
{
    int to = _i ? 2 : 3;
    start(true);
    put_on_disk(3, PROMPT);
    wait_for(0, PROMPT);
    ck_assert_uint_eq(received(3, SL_MSG_PREFETCH), 1);
    sl_mock_knob(h.w[to])->hold = false; /* here the places become free */
    H_UNTIL(&h, h_done(&waits[0]), 2000);
    ck_assert_int_eq(waits[0].s[0].status, SL_OK);
    ck_assert_uint_eq(received(3, SL_MSG_ABORT), (uint64_t)_i);
    ck_assert_uint_eq(announced(3), 0);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.placement.prefetch_used), (uint64_t)!_i);
    sl_group_release(waits[0].group);
    finish();
}
END_TEST

START_TEST(announcements_are_bounded_for_each_worker)
{
    start(true);
    for (int i = 0; i < 8; i++)
        put_on_disk(3, PROMPT - (size_t)i);
    for (int i = 0; i < 8; i++)
        wait_for(i, PROMPT - (size_t)i);
    ck_assert_uint_eq(received(3, SL_MSG_PREFETCH), 4);
    ck_assert_uint_eq(received(2, SL_MSG_PREFETCH), 0); /* it could load nothing */
    for (int i = 0; i < 8; i++)
        sl_group_release(waits[i].group);
    h_run(&h, 10);
    ck_assert_uint_eq(received(3, SL_MSG_ABORT), 4);
    ck_assert_uint_eq(announced(3), 0);
    finish();
}
END_TEST

START_TEST(a_lost_worker_is_forgotten)
{
    start(true);
    put_on_disk(3, PROMPT);
    wait_for(0, PROMPT);
    sl_member_lost(sl_member_find(h.r, sl_mock_count(h.w[3])->worker_id), SL_ERR_PEER, "test");
    sl_mock_kill(h.w[3]);
    sl_mock_knob(h.w[2])->hold = false;
    H_UNTIL(&h, h_done(&waits[0]), 2000);
    ck_assert_int_eq(waits[0].s[0].status, SL_OK);
    sl_group_release(waits[0].group);
    finish();
}
END_TEST

/* ---- LOADING: the prefill worker of a request that reserves ---- */

/* A prefill and a decode worker, of which the latter holds and says that it loads this many pages for the request. */
static void start_loading(uint32_t pages, bool prefetch)
{
    n_busy = 0;
    memset(waits, 0, sizeof waits);
    h_init(&h);
    h.o.placement.prefetch = prefetch;
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->hold = true;
    sl_mock_knob(h.w[1])->loading = pages;
    wait_for(0, PROMPT);
    H_UNTIL(&h, received(1, SL_MSG_RESERVE) == 1, 2000);
    h_run(&h, 10);
}

static void finish_loading(void)
{
    sl_mock_knob(h.w[1])->hold = false;
    h_run(&h, 10);
    h_close(&h);
}

START_TEST(the_prefill_worker_is_told_once)
{
    start_loading(PAGES, true);
    ck_assert_uint_eq(received(0, SL_MSG_PREFETCH), 1);
    const sl_msg_source *s = &sl_mock_count(h.w[0])->source;
    ck_assert_uint_eq(s->worker, sl_mock_count(h.w[1])->worker_id);
    ck_assert_uint_eq(s->pages, PAGES);
    ck_assert_str_ne(s->addr, "");
    sl_mock_knob(h.w[1])->hold = false;
    H_UNTIL(&h, h_done(&waits[0]), 2000);
    ck_assert_int_eq(waits[0].s[0].status, SL_OK);
    ck_assert_uint_eq(received(0, SL_MSG_PREFILL), 1);
    ck_assert_uint_eq(received(0, SL_MSG_ABORT), 0);
    sl_group_release(waits[0].group);
    finish_loading();
}
END_TEST

START_TEST(an_attempt_that_is_left_is_withdrawn)
{
    start_loading(3, true);
    ck_assert_uint_eq(received(0, SL_MSG_PREFETCH), 1);
    if (_i) { /* the decode worker dies */
        sl_member_lost(sl_member_find(h.r, sl_mock_count(h.w[1])->worker_id), SL_ERR_PEER, "test");
        sl_mock_kill(h.w[1]);
    } else {
        sl_group_release(waits[0].group);
    }
    H_UNTIL(&h, received(0, SL_MSG_ABORT) == 1, 2000);
    if (_i)
        sl_group_release(waits[0].group);
    ck_assert_uint_eq(received(0, SL_MSG_PREFILL), 0);
    finish_loading();
}
END_TEST

/* More pages than can be reused; and with kvstore.prefetch: off. */
START_TEST(nothing_is_told)
{
    start_loading(_i ? PAGES : PAGES + 1, !_i);
    ck_assert_uint_eq(received(0, SL_MSG_PREFETCH), 0);
    sl_group_release(waits[0].group);
    h_run(&h, 10);
    ck_assert_uint_eq(received(0, SL_MSG_ABORT), 0);
    finish_loading();
}
END_TEST

START_TEST(it_can_be_switched_off)
{
    start(false);
    put_on_disk(3, PROMPT);
    wait_for(0, PROMPT);
    h_run(&h, 30);
    ck_assert_uint_eq(received(2, SL_MSG_PREFETCH) + received(3, SL_MSG_PREFETCH), 0);
    sl_group_release(waits[0].group);
    finish();
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {a_waiting_request_is_announced_where_its_pages_are, 0},
        {placement_ends_it, 2},
        {announcements_are_bounded_for_each_worker, 0},
        {a_lost_worker_is_forgotten, 0},
        {it_can_be_switched_off, 0},
        {the_prefill_worker_is_told_once, 0},
        {an_attempt_that_is_left_is_withdrawn, 2},
        {nothing_is_told, 2},
    };
    return h_main("router/prefetch", NULL, NULL, cases, SL_COUNT(cases));
}
