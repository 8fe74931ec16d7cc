/*
 * Workers that are set aside for one request: they are released when no page comes back, whatever the worker answers.
 */
#include <string.h>

#include "tests/unit/router/harness.h"

enum { STAGE_MS = 300 };

static harness h;

static void setup(void)
{
    h_init(&h);
    h.o.request.stage_timeout_ms = STAGE_MS;
    h.mo.total_pages = 24;
    h.mo.step_us = 200;
}

static void teardown(void)
{
    h_close(&h);
}

static sl_member *member(int i)
{
    return sl_member_find(h.r, sl_mock_count(h.w[i])->worker_id);
}

/* Makes small requests until the big one has ended, as a busy service does. Returns how many ended well. */
static int serve_until_done(client *big, uint64_t ms)
{
    client small[4];
    int served = 0;
    uint64_t end = sl_now_ns() + ms * SL_MS;
    for (int i = 0; i < 4; i++)
        h_ask(&h, memset(&small[i], 0, sizeof *small), 64, 4);
    while (!h_done(big) && sl_now_ns() < end) {
        h_turn(&h);
        for (int i = 0; i < 4; i++) {
            if (!h_done(&small[i]))
                continue;
            served += small[i].s[0].status == SL_OK;
            sl_group_release(small[i].group);
            h_turn(&h);
            h_ask(&h, memset(&small[i], 0, sizeof *small), 64, 4);
        }
    }
    for (int i = 0; i < 4; i++)
        sl_group_release(small[i].group);
    return served;
}

/* One worker refuses it for ever. It was set aside for the request, and the other one could serve it all the time. */
START_TEST(pages_that_never_come_back_do_not_hold_it)
{
    h_open_cluster(&h, 1, 2);
    for (int i = 1; i <= 2; i++) /* until one is set aside for it */
        sl_mock_knob(h.w[i])->leaked = 11;
    client big = {0};
    h_ask(&h, &big, 1000, 4);
    sl_request *q = h_request(&big, 0);
    for (int i = 0; !q->aside.decode; i++) {
        client c = {0};
        ck_assert_int_lt(i, 1000);
        h_ask(&h, &c, 64, 1);
        h_run(&h, 5);
        sl_group_release(c.group);
    }
    int own = q->aside.decode == member(1)->id ? 1 : 2, other = 3 - own;
    sl_mock_knob(h.w[other])->leaked = 0;
    uint64_t since = sl_now_ns();
    ck_assert_int_gt(serve_until_done(&big, 20000), 0);
    h_check_stream(&h, &big.s[0], 1000, 4);
    ck_assert_uint_ge(sl_now_ns() - since, (STAGE_MS / 2) * SL_MS); /* it had its chance */
    ck_assert_uint_eq(sl_mock_count(h.w[own])->jobs, 0);
    ck_assert_uint_eq(member(own)->set_aside, 0);
    sl_group_release(big.group);
}
END_TEST

/* The only worker: others are served while it waits, and it is served when there are pages. */
START_TEST(others_are_served_meanwhile)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->leaked = 11; /* of 24 */
    client big = {0};
    h_ask(&h, &big, 1000, 4); /* 16 pages */
    int served = serve_until_done(&big, 2500);
    ck_assert_msg(served > 10, "%d were served", served);
    ck_assert_uint_ge(sl_counter_value(h.r->stats.placement.set_aside_pages), 1);
    sl_mock_knob(h.w[1])->leaked = 0;
    h_expect(&h, &big, 1000, 4, 5000);
    ck_assert_uint_eq(member(1)->set_aside, 0);
    h_release(&h, &big, 1000);
}
END_TEST

/* Pages that come back, however slowly, are progress: it keeps the worker longer than the stage's time. */
START_TEST(pages_that_come_back_are_progress)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->full = UINT32_MAX;
    client big = {0};
    h_ask(&h, &big, 1000, 4);
    sl_request *q = h_request(&big, 0);
    H_UNTIL(&h, q->aside.refused_at, 2000);
    sl_member *d = member(1);
    h.r->queue.picks += 100; /* others pass it */
    H_UNTIL(&h, q->aside.decode, 2000);
    ck_assert_uint_eq(q->aside.decode, d->id);
    for (int i = 0; i < 6; i++) {
        q->aside.pages = 0; /* as if LOAD had told of one page more than ever */
        h_run(&h, STAGE_MS / 2);
        ck_assert_uint_eq(q->aside.decode, d->id);
    }
    H_UNTIL(&h, q->aside.decode == 0, 2000);
    ck_assert_uint_eq(q->avoid_decode, d->id);
    sl_group_release(big.group);
}
END_TEST

/* A suspect waits for a worker on which a request does not end; another one has become empty. */
START_TEST(a_suspect_chooses_again)
{
    h_open_cluster(&h, 1, 2);
    client c = {0};
    member(1)->account.requests++;
    member(2)->account.requests += 2;
    h.mo.step_us = 0;
    sl_mock_knob(h.w[0])->hold = true;
    h_ask(&h, &c, 100, 4);
    sl_request *q = h_request(&c, 0);
    H_UNTIL(&h, q->state != SL_REQUEST_QUEUED, 2000);
    q->deaths.alone = true;
    sl_request_event ev = {.kind = SL_EVENT_STALLED, .now_ns = sl_now_ns()};
    sl_request_apply(h.r, q, &ev);
    q->deaths.alone = true;
    sl_mock_knob(h.w[0])->hold = false;
    H_UNTIL(&h, q->aside.decode, 2000);
    ck_assert_uint_eq(q->aside.decode, member(1)->id);
    member(2)->account.requests -= 2;
    h_expect(&h, &c, 100, 4, 5000);
    member(1)->account.requests--;
    h_release(&h, &c, 1000);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {pages_that_never_come_back_do_not_hold_it, 0},
        {others_are_served_meanwhile, 0},
        {pages_that_come_back_are_progress, 0},
        {a_suspect_chooses_again, 0},
    };
    return h_main("router/aside", setup, teardown, cases, SL_COUNT(cases));
}
