/*
 * Workers of role both in a router with mock workers: they get prompts without PREFILL and without a prefill worker, alone
 * and in a cluster that has pairs as well; what their failures, ABORT and lack of room cause; and that their accounts are
 * empty afterwards.
 */
#include "router/core/core_impl.h"
#include "tests/unit/router/harness.h"

static harness h;

static void setup(void)
{
    h_init(&h);
    h_open(&h);
}

static void teardown(void)
{
    h_close(&h);
}

static sl_member *member(int i)
{
    return sl_member_find(h.r, sl_mock_count(h.w[i])->worker_id);
}

static uint64_t received(int i, sl_msg_type type)
{
    return sl_mock_count(h.w[i])->received[type];
}

static void expect_empty(int i)
{
    const sl_member *w = member(i);
    ck_assert_uint_eq(w->account.requests, 0);
    ck_assert_uint_eq(w->account.tokens, 0);
    ck_assert_uint_eq(w->set_aside, 0);
}

static void ask(size_t n_prompt)
{
    client c = {0};
    h_ask(&h, &c, n_prompt, 20);
    h_expect(&h, &c, n_prompt, 20, 2000);
    h_release(&h, &c, 1000);
}

START_TEST(one_worker_serves)
{
    ck_assert(!sl_router_ready(h.r));
    int b = h_add(&h, SL_ROLE_BOTH);
    ck_assert(sl_router_ready(h.r));
    ask(200);
    ask(200);
    ck_assert_uint_eq(received(b, SL_MSG_RESERVE), 2);
    ck_assert_uint_eq(received(b, SL_MSG_PREFILL), 0);
    ck_assert_uint_eq(received(b, SL_MSG_DRAINED), 0);
    ck_assert_uint_eq(received(b, SL_MSG_ABORT), 0);
    expect_empty(b);
    uint32_t free_places, places;
    sl_places(h.r, &free_places, &places);
    ck_assert_uint_gt(places, 0);
    ck_assert_uint_eq(free_places, places);
}
END_TEST

/* Several requests at once: as many as it has places for, each counted once. */
START_TEST(each_request_counts_once)
{
    client c[4] = {0};
    int b = h_add(&h, SL_ROLE_BOTH);
    sl_mock_knob(h.w[b])->hold = true;
    for (size_t i = 0; i < SL_COUNT(c); i++)
        h_ask(&h, &c[i], 100 + i, 5);
    H_UNTIL(&h, received(b, SL_MSG_RESERVE) == SL_COUNT(c), 1000);
    ck_assert_uint_eq(member(b)->account.requests, SL_COUNT(c));
    ck_assert_uint_eq(member(b)->account.tokens, 100 + 101 + 102 + 103);
    sl_mock_knob(h.w[b])->hold = false;
    for (size_t i = 0; i < SL_COUNT(c); i++) {
        h_expect(&h, &c[i], 100 + i, 5, 2000);
        h_release(&h, &c[i], 1000);
    }
    expect_empty(b);
}
END_TEST

/* A request that is given up is aborted once, whatever it was doing, and no DRAINED of a writer is awaited. */
START_TEST(aborts)
{
    client c = {0};
    int b = h_add(&h, SL_ROLE_BOTH);
    sl_mock_knob(h.w[b])->hold = _i == 0;
    sl_mock_knob(h.w[b])->hold_commit = _i == 1;
    h_ask(&h, &c, 150, 1000);
    static const sl_request_state states[] = {SL_REQUEST_RESERVING, SL_REQUEST_PREFILLING,
                                              SL_REQUEST_DECODING};
    H_UNTIL(&h, h_request(&c, 0)->state == states[_i] && received(b, SL_MSG_RESERVE), 2000);
    sl_group_abort(c.group);
    sl_mock_knob(h.w[b])->hold = false;
    H_UNTIL(&h, h_done(&c) && received(b, SL_MSG_ABORT), 1000);
    h_release(&h, &c, 1000);
    ck_assert_uint_eq(received(b, SL_MSG_ABORT), 1);
    ck_assert_ptr_null(h.r->cluster.undrained);
    expect_empty(b);
}
END_TEST

/* Another worker of the role takes over what a lost one had, in every state. */
START_TEST(a_lost_worker_is_replaced)
{
    client c = {0};
    int b = h_add(&h, SL_ROLE_BOTH);
    sl_mock_knob(h.w[b])->hold = _i == 0;
    sl_mock_knob(h.w[b])->hold_commit = _i == 1;
    sl_mock_knob(h.w[b])->die_at = _i == 2 ? 5 : 0;
    h_ask(&h, &c, 150, 30);
    H_UNTIL(&h, _i == 2 ? c.s[0].n >= 5 : received(b, SL_MSG_RESERVE) > 0, 2000);
    h_add(&h, SL_ROLE_BOTH);
    sl_mock_kill(h.w[b]);
    h_expect(&h, &c, 150, 30, 3000);
    h_release(&h, &c, 1000);
    expect_empty(1);
}
END_TEST

/* A worker that fails a prompt is avoided by the next attempt; one without room is asked again. */
START_TEST(failures)
{
    int b = h_add(&h, SL_ROLE_BOTH), other = h_add(&h, SL_ROLE_BOTH);
    sl_mock_knob(h.w[b])->fail = sl_mock_knob(h.w[other])->fail = 1;
    ask(130);
    ck_assert_uint_eq(received(b, SL_MSG_RESERVE), 2 - (received(other, SL_MSG_RESERVE) == 2));
    ck_assert_uint_ge(received(other, SL_MSG_RESERVE), 1);
    sl_mock_knob(h.w[b])->full = sl_mock_knob(h.w[other])->full = 2;
    ask(140);
    expect_empty(b);
    expect_empty(other);
}
END_TEST

/* A cluster with a pair as well: the pair is served by PREFILL, the worker of role both is not, and a decode worker
 * without a prefill worker gets nothing. */
START_TEST(beside_a_pair)
{
    int b = h_add(&h, SL_ROLE_BOTH), d = h_add(&h, SL_ROLE_DECODE);
    for (int i = 0; i < 4; i++)
        ask(100);
    ck_assert_uint_eq(received(b, SL_MSG_RESERVE), 4);
    ck_assert_uint_eq(received(d, SL_MSG_RESERVE), 0);
    int p = h_add(&h, SL_ROLE_PREFILL);
    sl_mock_knob(h.w[b])->hold = true;
    client held = {0}, c = {0};
    h_ask(&h, &held, 90, 5);
    H_UNTIL(&h, received(b, SL_MSG_RESERVE) + received(d, SL_MSG_RESERVE) == 5, 1000);
    h_ask(&h, &c, 95, 5);
    h_run(&h, 10);
    sl_mock_knob(h.w[b])->hold = false;
    h_expect(&h, &held, 90, 5, 2000);
    h_expect(&h, &c, 95, 5, 2000);
    h_release(&h, &held, 1000);
    h_release(&h, &c, 1000);
    ck_assert_uint_gt(received(d, SL_MSG_RESERVE), 0);
    ck_assert_uint_eq(received(p, SL_MSG_PREFILL), received(d, SL_MSG_RESERVE));
    ck_assert_uint_eq(received(b, SL_MSG_PREFILL), 0);
    expect_empty(b);
    expect_empty(d);
    expect_empty(p);
}
END_TEST

/* Prompts that wait count on both sides: where more of them wait, no request goes. */
START_TEST(the_shorter_queue_of_prompts)
{
    int p = h_add(&h, SL_ROLE_PREFILL), d = h_add(&h, SL_ROLE_DECODE), b = h_add(&h, SL_ROLE_BOTH);
    h.r->queue.policy = _i / 2 ? &sl_policy_cache_aware : &sl_policy_least_load;
    h.r->queue.stay_s = 1e-6; /* decoding costs nothing */
    for (int i = 0; i < 4; i++) {
        client c = {0};
        member(_i % 2 ? p : b)->account.tokens += 50000;
        h_ask(&h, &c, 200 + (size_t)i, 20);
        h_expect(&h, &c, 200 + (size_t)i, 20, 2000);
        member(_i % 2 ? p : b)->account.tokens -= 50000;
        h_release(&h, &c, 1000);
    }
    ck_assert_uint_eq(received(b, SL_MSG_RESERVE), _i % 2 ? 4 : 0);
    ck_assert_uint_eq(received(d, SL_MSG_RESERVE), _i % 2 ? 0 : 4);
    expect_empty(p);
    expect_empty(b);
}
END_TEST

/* A request whose workers have died twice runs alone on a worker of the role, which then serves others again. */
START_TEST(a_suspect_runs_alone)
{
    client c = {0};
    uint32_t soon = h.mo.prefill_us;
    h.mo.prefill_us = 1000000000;
    for (int i = 0; i < 2; i++) {
        int b = h_add(&h, SL_ROLE_BOTH);
        if (!i)
            h_ask(&h, &c, 150, 30);
        H_UNTIL(&h, received(b, SL_MSG_RESERVE) && h_request(&c, 0)->state == SL_REQUEST_PREFILLING, 2000);
        sl_mock_kill(h.w[b]);
        H_UNTIL(&h, !sl_members_count(h.r, SL_ROLE_BOTH), 1000);
    }
    ck_assert(h_request(&c, 0)->deaths.alone);
    h.mo.prefill_us = soon;
    int last = h_add(&h, SL_ROLE_BOTH);
    h_expect(&h, &c, 150, 30, 3000);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.placement.set_aside_alone), 1);
    h_release(&h, &c, 1000);
    expect_empty(last);
    ask(70);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {one_worker_serves, 0},
        {each_request_counts_once, 0},
        {aborts, 3},
        {a_lost_worker_is_replaced, 3},
        {failures, 0},
        {beside_a_pair, 0},
        {the_shorter_queue_of_prompts, 4},
        {a_suspect_runs_alone, 0},
    };
    return h_main("router/both", setup, teardown, cases, SL_COUNT(cases));
}
