/*
 * Workers that leave while requests need them: the last of a role serves what was admitted, and is told LEAVE when it is
 * needed no more. Both orders of the signals, and all roles.
 */
#include <string.h>

#include "tests/unit/router/harness.h"

enum { N = 12 };

static harness h;
static client c[N];

static void setup(void)
{
    h_init(&h);
    memset(c, 0, sizeof c);
    h.mo.step_us = 1000;
    h.mo.max_batch = 2; /* most requests wait in the router */
}

static void teardown(void)
{
    h_close(&h);
}

static uint64_t told(int i)
{
    return sl_mock_count(h.w[i])->received[SL_MSG_LEAVE];
}

static sl_member *member(int i)
{
    return sl_member_find(h.r, sl_mock_count(h.w[i])->worker_id);
}

static void ask_all(void)
{
    for (int i = 0; i < N; i++)
        h_ask(&h, &c[i], (size_t)(70 + i), 10);
    h_run(&h, 5);
}

static void workers_leave(void)
{
    for (int i = 0; i < h.n; i++)
        sl_mock_knob(h.w[i])->draining = true;
    for (int i = 0; i < h.n; i++)
        H_UNTIL(&h, member(i)->state == SL_MEMBER_DRAINING, 2000);
}

static void expect_all(void)
{
    for (int i = 0; i < N; i++) {
        h_expect(&h, &c[i], (size_t)(70 + i), 10, 5000);
        sl_group_release(c[i].group);
    }
}

/* Everything gets SIGTERM: no accepted request is lost. _i: who is first; a host store that holds few of them. */
START_TEST(a_stop_of_everything_loses_nothing)
{
    h.mo.total_pages = _i & 2 ? 5 : 4096;
    if (_i & 4) {
        h_open(&h);
        h_add(&h, SL_ROLE_BOTH);
    } else {
        h_open_cluster(&h, 1, 2);
    }
    ask_all();
    if (_i & 1)
        sl_router_stop(h.r);
    workers_leave();
    h_run(&h, 50);
    if (!(_i & 1))
        sl_router_stop(h.r);
    expect_all();
    H_UNTIL(&h, h.r->life.stopping, 1000);
    ck_assert_int_eq(h.r->life.result, SL_OK);
}
END_TEST

/* One that was decoding is given back after all workers have said that they leave. */
START_TEST(a_retracted_stream_is_finished)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->retract_at = 5;
    ask_all();
    workers_leave();
    sl_router_stop(h.r);
    expect_all();
    H_UNTIL(&h, h.r->life.stopping, 1000);
}
END_TEST

/* The router stays: what it admitted before is served, what comes later waits for other workers. */
START_TEST(later_requests_wait_for_other_workers)
{
    h_open_cluster(&h, 1, 1);
    ask_all();
    workers_leave();
    ck_assert_uint_eq(told(0) + told(1), 0);
    client late = {0};
    h_ask(&h, &late, 64, 3);
    expect_all();
    H_UNTIL(&h, told(0) == 1 && told(1) == 1, 3000);
    ck_assert_int_eq(h_request(&late, 0)->state, SL_REQUEST_QUEUED);
    h_add(&h, SL_ROLE_PREFILL);
    h_add(&h, SL_ROLE_DECODE);
    h_expect(&h, &late, 64, 3, 2000);
    h_release(&h, &late, 1000);
}
END_TEST

/* With another worker of its role, or without requests, it may leave at once. */
START_TEST(one_that_is_not_needed_is_told_at_once)
{
    h_open_cluster(&h, 1, 2);
    if (_i)
        ask_all();
    h.mo.step_us = 100000;
    sl_mock_knob(h.w[1])->draining = true;
    if (_i) {
        H_UNTIL(&h, told(1), 900 / H_PATIENCE); /* less than the grace of the last one of a role */
        expect_all();
    } else {
        H_UNTIL(&h, told(1), 1000);
    }
    ck_assert_uint_eq(told(0) + told(2), 0);
}
END_TEST

START_TEST(a_timeout_of_the_drain_dismisses)
{
    h.o.drain_timeout_ms = 100;
    h_open_cluster(&h, 1, 1);
    for (int i = 0; i < 2; i++)
        sl_mock_knob(h.w[i])->hold = true;
    ask_all();
    workers_leave();
    sl_router_stop(h.r);
    H_UNTIL(&h, h_done(&c[N - 1]), 2000);
    ck_assert_int_eq(c[0].s[0].status, SL_ERR_PEER);
    H_UNTIL(&h, h.r->life.stopping, 2000);
    ck_assert_int_eq(h.r->life.result, SL_ERR_DEADLINE);
    for (int i = 0; i < N; i++)
        sl_group_release(c[i].group);
}
END_TEST

/* A thread of a worker that hangs is as bad as its engine. */
START_TEST(a_hung_thread_is_a_loss)
{
    h.o.link.dead_after_ms = 1000;
    h_open_cluster(&h, 1, 2);
    uint32_t most = 10 * h.o.link.dead_after_ms;
    sl_mock_knob(h.w[0])->copier_age_ms = sl_mock_knob(h.w[1])->checker_age_ms = most;
    h_run(&h, 100);
    ck_assert(member(0) && member(1) && member(2));
    sl_mock_knobs *k = sl_mock_knob(h.w[_i]);
    *(_i == 0 ? &k->copier_age_ms : &k->checker_age_ms) = most + 1;
    H_UNTIL(&h, !member(_i), 1000);
    ck_assert(member(1 - _i) && member(2));
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {a_stop_of_everything_loses_nothing, 8},    {a_retracted_stream_is_finished, 0},
        {later_requests_wait_for_other_workers, 0}, {one_that_is_not_needed_is_told_at_once, 2},
        {a_timeout_of_the_drain_dismisses, 0},      {a_hung_thread_is_a_loss, 2},
    };
    return h_main("router/leaving", setup, teardown, cases, SL_COUNT(cases));
}
