/*
 * A request against mock workers: the ordinary path, and every state x {abort, prefill dies, decode dies, nothing
 * happens}. After each test the workers' books must be empty.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/router/harness.h"

static harness h;

static void setup(void)
{
    h_init(&h);
}

static void teardown(void)
{
    h_close(&h);
}

START_TEST(ordinary_stream)
{
    h_open_cluster(&h, 1, 1);
    client c = {0};
    h_ask(&h, &c, 100, 20);
    h_expect(&h, &c, 100, 20, 2000);
    ck_assert_int_eq(c.s[0].finish, SL_FINISH_LENGTH);
    ck_assert_uint_eq(c.s[0].completion_tokens, 20);
    ck_assert_uint_eq(c.s[0].prompt_tokens, 100);
    ck_assert_uint_eq(c.s[0].len, 20); /* byte tokens */
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h) && !h.r->requests.groups, 1000);
}
END_TEST

START_TEST(many_at_once)
{
    h_open_cluster(&h, 2, 2);
    enum { N = 40 };
    client *c = calloc(N, sizeof *c);
    for (int i = 0; i < N; i++) {
        h_ask(&h, &c[i], (size_t)(10 + i * 7), 12);
    }
    for (int i = 0; i < N; i++) {
        h_expect(&h, &c[i], (size_t)(10 + i * 7), 12, 5000);
        sl_group_release(c[i].group);
    }
    H_UNTIL(&h, h_clean(&h), 1000);
    free(c);
}
END_TEST

/* Holds the workers so that the request stays in the wanted state. */
static void reach(client *c, sl_request_state want)
{
    sl_request_spec s;
    if (want == SL_REQUEST_QUEUED) { /* no worker at all */
        h.o.model.max_context = 4096;
        h_open(&h);
    } else {
        h.mo.step_us = 5000;
        h_open_cluster(&h, 2, 2);
    }
    for (int i = 0; i < h.n; i++) {
        if (want == SL_REQUEST_RESERVING)
            sl_mock_knob(h.w[i])->hold = true;
        if (want == SL_REQUEST_PREFILLING)
            sl_mock_knob(h.w[i])->hold_commit = true;
    }
    h_spec(&s, 130, 30);
    h_submit(&h, c, &s);
    sl_request *g = h_request(c, 0);
    H_UNTIL(&h, g->state == want, 2000);
    if (want == SL_REQUEST_DECODING)
        H_UNTIL(&h, c->s[0].n >= 3, 2000);
    if (want == SL_REQUEST_PREFILLING)
        h_run(&h, 5);
}

static void let_all_go(void)
{
    for (int i = 0; i < h.n; i++) {
        sl_mock_knobs *k = sl_mock_knob(h.w[i]);
        k->hold = k->hold_commit = false;
    }
}

static const sl_request_state live_states[] = {SL_REQUEST_QUEUED, SL_REQUEST_RESERVING, SL_REQUEST_PREFILLING,
                                               SL_REQUEST_DECODING};

START_TEST(abort_in_every_state)
{
    client c = {0};
    reach(&c, live_states[_i]);
    sl_group_abort(c.group);
    sl_effects_run(h.r); /* as the loop does before it sleeps */
    ck_assert(h_done(&c));
    ck_assert_int_eq(c.s[0].finish, SL_FINISH_ABORT);
    ck_assert_int_eq(c.s[0].status, SL_ERR_CANCELLED);
    sl_group_release(c.group);
    h_run(&h, 20);
    let_all_go();
    H_UNTIL(&h, h_clean(&h), 2000);
}
END_TEST

START_TEST(release_cancels_in_every_state)
{
    client c = {0};
    reach(&c, live_states[_i]);
    sl_group_release(c.group);
    ck_assert_int_eq(c.s[0].ends, 0); /* the sink is not called after release */
    h_run(&h, 20);
    let_all_go();
    H_UNTIL(&h, h_clean(&h), 2000);
    ck_assert_ptr_null(h.r->requests.groups);
}
END_TEST

START_TEST(cancel_reaches_both_workers_in_one_turn)
{
    client c = {0};
    reach(&c, SL_REQUEST_PREFILLING);
    sl_group_release(c.group);
    uv_run(&h.r->loop, UV_RUN_NOWAIT);
    uint64_t aborts = 0;
    for (int i = 0; i < h.n; i++) {
        sl_mock_step(h.w[i]);
        aborts += sl_mock_count(h.w[i])->received[SL_MSG_ABORT];
    }
    ck_assert_uint_eq(aborts, 2);
    let_all_go();
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

/* Index of the mock that plays worker id. */
static int mock_of(uint32_t id)
{
    for (int i = 0; i < h.n; i++) {
        if (sl_mock_count(h.w[i])->worker_id == id)
            return i;
    }
    ck_abort_msg("no such worker");
    return -1;
}

START_TEST(death_in_every_state)
{
    sl_request_state state = live_states[1 + _i / 2];
    bool prefill = _i % 2;
    client c = {0};
    reach(&c, state);
    sl_request *g = h_request(&c, 0);
    int victim = mock_of(prefill ? g->attempt.prefill : g->attempt.decode);
    sl_mock_kill(h.w[victim]);
    h_run(&h, 10);
    let_all_go();
    h_expect(&h, &c, 130, 30, 5000);
    bool harmless = prefill && state == SL_REQUEST_DECODING; /* its work was done */
    ck_assert_uint_eq(g->attempt.n, harmless ? 1 : 2);
    h_release(&h, &c, 2000);
}
END_TEST

START_TEST(same_worker_again_when_it_is_the_only_one)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[0])->fail = 1;
    client c = {0};
    h_ask(&h, &c, 70, 5);
    h_expect(&h, &c, 70, 5, 2000);
    ck_assert_uint_eq(h_request(&c, 0)->attempt.n, 2);
    h_release(&h, &c, 1000);
}
END_TEST

START_TEST(other_worker_after_a_failure)
{
    h_open_cluster(&h, 2, 1);
    sl_mock_knob(h.w[0])->fail = 100;
    client c = {0};
    for (int i = 0; i < 4; i++) {
        h_ask(&h, &c, 70, 5);
        h_expect(&h, &c, 70, 5, 2000);
        ck_assert_uint_le(h_request(&c, 0)->attempt.n, 2);
        sl_group_release(c.group);
    }
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(retries_are_bounded)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->fail = 1000;
    client c = {0};
    h_ask(&h, &c, 70, 5);
    H_UNTIL(&h, h_done(&c), 5000);
    ck_assert_int_eq(c.s[0].status, SL_ERR_PEER);
    ck_assert_int_eq(c.s[0].finish, SL_FINISH_ERROR);
    ck_assert_uint_eq(h_request(&c, 0)->attempt.n, h.o.request.retries + 1);
    h_release(&h, &c, 1000);
}
END_TEST

START_TEST(final_failure_is_not_retried)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[_i])->fail_final = 1;
    client c = {0};
    h_ask(&h, &c, 70, 5);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].status, SL_ERR_INTERNAL);
    ck_assert_uint_eq(h_request(&c, 0)->attempt.n, 1);
    h_release(&h, &c, 1000);
}
END_TEST

START_TEST(deadline_ends_it)
{
    h_open_cluster(&h, 1, 1);
    h.r->o.request.stage_timeout_ms = h.r->o.request.timeout_ms = 60000; /* neither of the others ends it */
    sl_mock_knob(h.w[1])->hold = true;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 10);
    s.timeout_ms = 100;
    uint64_t t0 = sl_now_ns();
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_uint_ge(sl_now_ns() - t0, 100 * SL_MS);
    ck_assert_uint_lt(sl_now_ns() - t0, 20000 * SL_MS);
    ck_assert_int_eq(c.s[0].status, SL_ERR_DEADLINE);
    sl_group_release(c.group);
    h_run(&h, 10);
    sl_mock_knob(h.w[1])->hold = false;
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(stage_without_progress_is_retried_elsewhere)
{
    h.o.request.stage_timeout_ms = 400;
    h_open_cluster(&h, 2, 2);
    sl_mock_knob(h.w[_i])->hold = true; /* one prefill or one decode worker hangs */
    client c[2] = {{0}};
    sl_request_spec s;
    for (int i = 0; i < 2; i++) {
        h_spec(&s, 70, 10);
        h_submit(&h, &c[i], &s);
    }
    for (int i = 0; i < 2; i++) {
        h_expect(&h, &c[i], 70, 10, 5000);
        sl_group_release(c[i].group);
    }
    sl_mock_knob(h.w[_i])->hold = false;
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(no_workers_is_unavailable_in_time)
{
    h.o.model.max_context = 4096;
    h.o.request.stage_timeout_ms = 400;
    h_open(&h);
    client c = {0};
    h_ask(&h, &c, 70, 10);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].status, SL_ERR_PEER);
    sl_group_release(c.group);
}
END_TEST

/* Two places, n - 2 requests wait, and all run for longer than the test. The only decode worker is lost after wait_ms. */
static void lose_the_last(client *c, int n, uint32_t stage_timeout_ms, unsigned wait_ms)
{
    h.o.request.stage_timeout_ms = stage_timeout_ms;
    h.mo.max_batch = 1;
    h.mo.step_us = 50000;
    h_open_cluster(&h, 1, 1);
    for (int i = 0; i < n; i++)
        h_ask(&h, &c[i], 70, 60);
    h_run(&h, wait_ms);
    ck_assert_int_eq(h_request(&c[n - 1], 0)->state, SL_REQUEST_QUEUED);
    sl_mock_kill(h.w[1]);
}

/* What counts is since when the role has had no worker, not for how long a request has waited for its turn. */
START_TEST(queued_requests_wait_for_a_replacement)
{
    client c[3] = {{0}};
    lose_the_last(c, 3, 1500, 1600);
    h_run(&h, 150);
    for (int i = 0; i < 3; i++)
        ck_assert(!h_done(&c[i]));
    h.mo.step_us = 1000;
    h_add(&h, SL_ROLE_DECODE);
    for (int i = 0; i < 3; i++) {
        h_expect(&h, &c[i], 70, 60, 10000);
        sl_group_release(c[i].group);
    }
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(a_router_that_drains_does_not_wait_for_a_replacement)
{
    client c[3] = {{0}};
    lose_the_last(c, 3, 60000, 20);
    sl_router_stop(h.r);
    H_UNTIL(&h, h_done(&c[0]) && h_done(&c[1]) && h_done(&c[2]), 250);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(c[i].s[0].status, SL_ERR_PEER);
        sl_group_release(c[i].group);
    }
}
END_TEST

/* Each decode worker that gets this request dies at its tenth token. */
START_TEST(a_query_of_death_ends_and_its_neighbours_live)
{
    h.o.request.retries = 10;
    h.mo.step_us = 1000;
    h_open_cluster(&h, 1, 1);
    client c = {0}, other = {0};
    h_ask(&h, &c, 70, 40);
    h_ask(&h, &other, 80, 200);
    for (int deaths = 0; deaths < 3; deaths++) {
        sl_request *q = h_request(&c, 0);
        H_UNTIL(&h, q->state == SL_REQUEST_DECODING && sl_request_produced(q) >= 10 && q->attempt.decode,
                5000);
        if (deaths == 2) {
            ck_assert(q->deaths.alone);
            ck_assert_uint_eq(sl_member_find(h.r, q->attempt.decode)->account.requests, 1);
        }
        int at = h.n - 1;
        sl_mock_kill(h.w[at]);
        if (deaths < 2) {
            h_run(&h, 20);
            h_add(&h, SL_ROLE_DECODE);
        }
    }
    H_UNTIL(&h, h_done(&c), 1000);
    ck_assert_int_eq(c.s[0].status, SL_ERR_INTERNAL);
    h_add(&h, SL_ROLE_DECODE);
    h_expect(&h, &other, 80, 200, 10000);
    sl_group_release(c.group);
    sl_group_release(other.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(silent_worker_is_dead)
{
    h.mo.step_us = 2000;
    h_open_cluster(&h, 1, 2);
    client c = {0};
    h_ask(&h, &c, 70, 40);
    H_UNTIL(&h, c.s[0].n > 3, 2000);
    int victim = mock_of(h_request(&c, 0)->attempt.decode);
    h.r->o.link.dead_after_ms = 1000;
    sl_mock_knob(h.w[victim])->silent = true;
    h_expect(&h, &c, 70, 40, 5000);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.workers.failures[1]), 1);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.requests.resumes), 1);
    sl_group_release(c.group);
}
END_TEST

/* The last token came, the DONE did not: nothing is left to compute. */
START_TEST(death_before_done_is_no_restart)
{
    h_open_cluster(&h, 1, 1);
    h.r->o.link.dead_after_ms = 1500;
    sl_mock_knob(h.w[1])->die_at = 10;
    client c = {0};
    h_ask(&h, &c, 70, 10);
    h_expect(&h, &c, 70, 10, 2000);
    ck_assert_uint_eq(h_request(&c, 0)->attempt.n, 1);
    sl_group_release(c.group);
}
END_TEST

START_TEST(deaths_under_load_lose_nothing)
{
    h.mo.step_us = 300;
    h.o.request.retries = 6;
    h_open_cluster(&h, 2, 3);
    enum { N = 24 };
    client *c = calloc(N, sizeof *c);
    for (int i = 0; i < N; i++) {
        h_ask(&h, &c[i], (size_t)(65 + i), 60);
    }
    h_run(&h, 10);
    sl_mock_kill(h.w[0]);
    h_run(&h, 10);
    sl_mock_kill(h.w[2]);
    h_run(&h, 10);
    sl_mock_kill(h.w[3]);
    for (int i = 0; i < N; i++) {
        h_expect(&h, &c[i], (size_t)(65 + i), 60, 20000);
        sl_group_release(c[i].group);
    }
    H_UNTIL(&h, h_clean(&h), 2000);
    free(c);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {ordinary_stream, 0},
        {many_at_once, 0},
        {abort_in_every_state, 4},
        {release_cancels_in_every_state, 4},
        {cancel_reaches_both_workers_in_one_turn, 0},
        {death_in_every_state, 6},
        {same_worker_again_when_it_is_the_only_one, 0},
        {other_worker_after_a_failure, 0},
        {retries_are_bounded, 0},
        {final_failure_is_not_retried, 2},
        {deadline_ends_it, 0},
        {stage_without_progress_is_retried_elsewhere, 4},
        {no_workers_is_unavailable_in_time, 0},
        {queued_requests_wait_for_a_replacement, 0},
        {a_router_that_drains_does_not_wait_for_a_replacement, 0},
        {a_query_of_death_ends_and_its_neighbours_live, 0},
        {silent_worker_is_dead, 0},
        {death_before_done_is_no_restart, 0},
        {deaths_under_load_lose_nothing, 0},
    };
    return h_main("router/request", setup, teardown, cases, SL_COUNT(cases));
}
