/*
 * The state machine of a generation against mock workers: the ordinary path, and every state x {abort,
 * prefill dies, decode dies, late and repeated messages}. After each test the workers' books must be empty.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/router/harness.h"

static harness h;

static void open_cluster(int prefills, int decodes)
{
    h_open(&h);
    for (int i = 0; i < prefills; i++)
        h_add(&h, SL_ROLE_PREFILL);
    for (int i = 0; i < decodes; i++)
        h_add(&h, SL_ROLE_DECODE);
}

static void setup(void)
{
    h_init(&h);
}

static void teardown(void)
{
    h_close(&h);
}

static uint64_t dropped(void)
{
    return sl_counter_value(h.r->stats.stale);
}

START_TEST(ordinary_stream)
{
    open_cluster(1, 1);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 100, 20);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    h_check_stream(&h, &c.s[0], 100, 20);
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
    open_cluster(2, 2);
    enum { N = 40 };
    client *c = calloc(N, sizeof *c);
    for (int i = 0; i < N; i++) {
        sl_request_spec s;
        h_spec(&s, (size_t)(10 + i * 7), 12);
        h_submit(&h, &c[i], &s);
    }
    for (int i = 0; i < N; i++) {
        H_UNTIL(&h, h_done(&c[i]), 5000);
        h_check_stream(&h, &c[i].s[0], (size_t)(10 + i * 7), 12);
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
        h.o.max_context = 4096;
        h_open(&h);
    } else {
        h.mo.step_us = 5000;
        open_cluster(2, 2);
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
    int victim = mock_of(prefill ? g->prefill : g->decode);
    sl_mock_kill(h.w[victim]);
    h_run(&h, 10);
    let_all_go();
    H_UNTIL(&h, h_done(&c), 5000);
    h_check_stream(&h, &c.s[0], 130, 30);
    bool harmless = prefill && state == SL_REQUEST_DECODING; /* its work was done */
    ck_assert_uint_eq(g->attempt, harmless ? 1 : 2);
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 2000);
}
END_TEST

START_TEST(same_worker_again_when_it_is_the_only_one)
{
    open_cluster(1, 1);
    sl_mock_knob(h.w[0])->fail = 1;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 5);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    h_check_stream(&h, &c.s[0], 70, 5);
    ck_assert_uint_eq(h_request(&c, 0)->attempt, 2);
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(other_worker_after_a_failure)
{
    open_cluster(2, 1);
    sl_mock_knob(h.w[0])->fail = 100;
    client c = {0};
    for (int i = 0; i < 4; i++) {
        sl_request_spec s;
        h_spec(&s, 70, 5);
        h_submit(&h, &c, &s);
        H_UNTIL(&h, h_done(&c), 2000);
        h_check_stream(&h, &c.s[0], 70, 5);
        ck_assert_uint_le(h_request(&c, 0)->attempt, 2);
        sl_group_release(c.group);
    }
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(retries_are_bounded)
{
    open_cluster(1, 1);
    sl_mock_knob(h.w[1])->fail = 1000;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 5);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 5000);
    ck_assert_int_eq(c.s[0].status, SL_ERR_PEER);
    ck_assert_int_eq(c.s[0].finish, SL_FINISH_ERROR);
    ck_assert_uint_eq(h_request(&c, 0)->attempt, h.o.retries + 1);
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(final_failure_is_not_retried)
{
    open_cluster(1, 1);
    sl_mock_knob(h.w[_i])->fail_final = 1;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 5);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].status, SL_ERR_INTERNAL);
    ck_assert_uint_eq(h_request(&c, 0)->attempt, 1);
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(full_worker_waits_and_does_not_count_as_failure)
{
    open_cluster(1, 1);
    sl_mock_knob(h.w[1])->full = 5;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 5);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 5000);
    h_check_stream(&h, &c.s[0], 70, 5);
    ck_assert_uint_eq(h_request(&c, 0)->retries, 0);
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(retracted_stream_goes_on)
{
    open_cluster(1, 2);
    sl_mock_knob(h.w[1])->retract_at = 7;
    sl_mock_knob(h.w[2])->retract_at = 9;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 25);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 3000);
    h_check_stream(&h, &c.s[0], 70, 25);
    ck_assert_uint_ge(h_request(&c, 0)->attempt, 2);
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(repeated_messages_change_nothing)
{
    open_cluster(1, 1);
    sl_mock_knob(h.w[0])->duplicate = true;
    sl_mock_knob(h.w[1])->duplicate = true;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 10);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    h_check_stream(&h, &c.s[0], 70, 10);
    ck_assert_uint_ge(dropped(), 2);
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(stale_and_foreign_messages_are_dropped)
{
    open_cluster(1, 1);
    sl_mock_knob(h.w[1])->stale = true;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 10);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    h_check_stream(&h, &c.s[0], 70, 10);
    h_run(&h, 5);
    ck_assert_uint_eq(dropped() + sl_counter_value(h.r->stats.malformed), 20); /* attempt 0 is malformed */
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(missing_token_is_recomputed)
{
    open_cluster(1, 2);
    sl_mock_knob(h.w[1])->skip_token = 4;
    sl_mock_knob(h.w[2])->skip_token = 0;
    client c = {0};
    sl_request_spec s;
    for (int i = 0; i < 2; i++) { /* whichever worker it starts on */
        h_spec(&s, 70, 10);
        h_submit(&h, &c, &s);
        H_UNTIL(&h, h_done(&c), 2000);
        h_check_stream(&h, &c.s[0], 70, 10);
        sl_group_release(c.group);
    }
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(wrong_count_at_the_end_is_no_answer)
{
    open_cluster(1, 1);
    sl_mock_knob(h.w[1])->wrong_count = true;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 10);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    h_check_stream(&h, &c.s[0], 70, 10); /* all tokens are here: it is complete by our own count */
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(deadline_ends_it)
{
    open_cluster(1, 1);
    h.o.stage_timeout_ms = 400;
    sl_mock_knob(h.w[1])->hold = true;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 10);
    s.timeout_ms = 100;
    uint64_t t0 = sl_now_ns();
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_uint_lt(sl_now_ns() - t0, 300 * SL_MS);
    ck_assert_int_eq(c.s[0].status, SL_ERR_DEADLINE);
    sl_group_release(c.group);
    h_run(&h, 10);
    sl_mock_knob(h.w[1])->hold = false;
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(stage_without_progress_is_retried_elsewhere)
{
    open_cluster(2, 2);
    sl_mock_knob(h.w[_i])->hold = true; /* one prefill or one decode worker hangs */
    client c[2] = {{0}};
    sl_request_spec s;
    for (int i = 0; i < 2; i++) {
        h_spec(&s, 70, 10);
        h_submit(&h, &c[i], &s);
    }
    for (int i = 0; i < 2; i++) {
        H_UNTIL(&h, h_done(&c[i]), 5000);
        h_check_stream(&h, &c[i].s[0], 70, 10);
        sl_group_release(c[i].group);
    }
    sl_mock_knob(h.w[_i])->hold = false;
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(no_workers_is_unavailable_in_time)
{
    h.o.max_context = 4096;
    h_open(&h);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 10);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].status, SL_ERR_PEER);
    sl_group_release(c.group);
}
END_TEST

START_TEST(silent_worker_is_dead)
{
    h.mo.step_us = 2000;
    open_cluster(1, 2);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 40);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, c.s[0].n > 3, 2000);
    int victim = mock_of(h_request(&c, 0)->decode);
    sl_mock_knob(h.w[victim])->silent = true;
    H_UNTIL(&h, h_done(&c), 5000);
    h_check_stream(&h, &c.s[0], 70, 40);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.worker_failures[1]), 1);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.resumes), 1);
    sl_group_release(c.group);
}
END_TEST

START_TEST(queue_is_bounded)
{
    h.o.max_queue = 3;
    h.mo.max_batch = 1; /* room for 2 placed requests */
    open_cluster(1, 1);
    sl_mock_knob(h.w[1])->hold = true;
    client c[6] = {{0}};
    sl_err err = {""};
    sl_status st = SL_OK;
    int n = 0;
    for (; n < 6 && !st; n++) {
        sl_request_spec s;
        h_spec(&s, 70, 4);
        st = h_try_submit(&h, &c[n], &s, &err);
        if (st)
            sl_request_spec_free(&s);
    }
    ck_assert_int_eq(st, SL_ERR_EXHAUSTED);
    ck_assert_int_eq(n, 6); /* two placed, three waiting, the sixth refused */
    sl_mock_knob(h.w[1])->hold = false;
    for (int i = 0; i < 5; i++) {
        H_UNTIL(&h, h_done(&c[i]), 5000);
        h_check_stream(&h, &c[i].s[0], 70, 4);
        sl_group_release(c[i].group);
    }
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(choices_wait_for_the_first_prefill)
{
    h.mo.prefill_us = 20000;
    open_cluster(1, 1);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 200, 6);
    s.n = 4;
    h_submit(&h, &c, &s);
    h_run(&h, 10);
    ck_assert_uint_eq(sl_mock_count(h.w[1])->received[SL_MSG_RESERVE], 1);
    H_UNTIL(&h, h_done(&c), 3000);
    for (int i = 0; i < 4; i++)
        h_check_stream(&h, &c.s[i], 200, 6);
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(choices_go_on_when_the_first_fails)
{
    open_cluster(1, 1);
    sl_mock_knob(h.w[0])->fail_final = 1;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 200, 6);
    s.n = 2;
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 3000);
    ck_assert_int_eq(c.s[0].status, SL_ERR_INTERNAL);
    h_check_stream(&h, &c.s[1], 200, 6);
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

static void release_in_sink(client *c, const sl_output *o)
{
    if (o->completion_tokens == 5)
        sl_group_release(c->group);
}

START_TEST(release_from_inside_the_sink)
{
    open_cluster(1, 1);
    client c = {.hook = release_in_sink};
    sl_request_spec s;
    h_spec(&s, 70, 30);
    s.n = 3;
    h_submit(&h, &c, &s);
    H_UNTIL(&h, !h.r->requests.active, 2000);
    ck_assert_int_eq(c.s[0].ends, 0);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(stop_string_ends_it_here_and_there)
{
    static const int32_t script[] = {'a', 'b', 'c', 'S', 'T', 'O', 'P', 'x', 'y'};
    h.mo.script = script;
    h.mo.n_script = SL_COUNT(script);
    open_cluster(1, 1);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 30);
    s.stops[s.n_stops++] = strdup("STOP");
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].finish, SL_FINISH_STOP);
    ck_assert_str_eq(c.s[0].matched, "STOP");
    ck_assert_uint_eq(c.s[0].len, 3);
    ck_assert_int_eq(memcmp(c.s[0].text, "abc", 3), 0);
    ck_assert_uint_eq(c.s[0].completion_tokens, 7);
    sl_group_release(c.group);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(held_back_text_comes_out_at_the_end)
{
    static const int32_t script[] = {'a', 'b', 'S', 'T', 'O'};
    h.mo.script = script;
    h.mo.n_script = SL_COUNT(script);
    open_cluster(1, 1);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 5);
    s.stops[s.n_stops++] = strdup("STOP");
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].finish, SL_FINISH_LENGTH);
    ck_assert_uint_eq(c.s[0].len, 5);
    ck_assert_int_eq(memcmp(c.s[0].text, "abSTO", 5), 0);
    sl_group_release(c.group);
}
END_TEST

START_TEST(stop_token_yields_no_text)
{
    static const int32_t script[] = {'a', 'b', 'q', 'z'};
    h.mo.script = script;
    h.mo.n_script = SL_COUNT(script);
    open_cluster(1, 1);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 30);
    int32_t id = 'q';
    sl_sampling_set_stop_ids(&s.sampling, &id, 1);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].finish, SL_FINISH_STOP);
    ck_assert_int_eq(c.s[0].matched_token, 'q');
    ck_assert_uint_eq(c.s[0].n, 3);
    ck_assert_uint_eq(c.s[0].len, 2);
    sl_group_release(c.group);
}
END_TEST

/* The last token came, the DONE did not: nothing is left to compute. */
START_TEST(death_before_done_is_no_restart)
{
    open_cluster(1, 1);
    sl_mock_knob(h.w[1])->die_at = 10;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 10);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    h_check_stream(&h, &c.s[0], 70, 10);
    ck_assert_uint_eq(h_request(&c, 0)->attempt, 1);
    sl_group_release(c.group);
}
END_TEST

START_TEST(deaths_under_load_lose_nothing)
{
    h.mo.step_us = 300;
    h.o.retries = 6;
    open_cluster(2, 3);
    enum { N = 24 };
    client *c = calloc(N, sizeof *c);
    for (int i = 0; i < N; i++) {
        sl_request_spec s;
        h_spec(&s, (size_t)(65 + i), 60);
        h_submit(&h, &c[i], &s);
    }
    h_run(&h, 10);
    sl_mock_kill(h.w[0]);
    h_run(&h, 10);
    sl_mock_kill(h.w[2]);
    h_run(&h, 10);
    sl_mock_kill(h.w[3]);
    for (int i = 0; i < N; i++) {
        H_UNTIL(&h, h_done(&c[i]), 20000);
        h_check_stream(&h, &c[i].s[0], (size_t)(65 + i), 60);
        sl_group_release(c[i].group);
    }
    H_UNTIL(&h, h_clean(&h), 2000);
    free(c);
}
END_TEST

START_TEST(admission_names_the_reason)
{
    open_cluster(1, 1);
    client c = {0};
    sl_err err = {""};
    sl_request_spec s;
    h_spec(&s, 0, 5);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "prompt"));
    sl_request_spec_free(&s);
    h_spec(&s, 4096, 5);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_TOO_LARGE);
    sl_request_spec_free(&s);
    h_spec(&s, 4000, 500);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_TOO_LARGE);
    ck_assert_ptr_nonnull(strstr(err.text, "max_tokens"));
    sl_request_spec_free(&s);
    h_spec(&s, 10, 5);
    s.prompts->ids[3] = 512;
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_INVALID);
    sl_request_spec_free(&s);
    h_spec(&s, 10, 0);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_INVALID);
    sl_request_spec_free(&s);
    ck_assert_uint_eq(h.r->requests.active, 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("router/gen");
    TCase *t = tcase_create("stream");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, ordinary_stream);
    tcase_add_test(t, many_at_once);
    tcase_add_loop_test(t, abort_in_every_state, 0, 4);
    tcase_add_loop_test(t, release_cancels_in_every_state, 0, 4);
    tcase_add_test(t, cancel_reaches_both_workers_in_one_turn);
    tcase_add_loop_test(t, death_in_every_state, 0, 6);
    tcase_add_test(t, same_worker_again_when_it_is_the_only_one);
    tcase_add_test(t, other_worker_after_a_failure);
    tcase_add_test(t, retries_are_bounded);
    tcase_add_loop_test(t, final_failure_is_not_retried, 0, 2);
    tcase_add_test(t, full_worker_waits_and_does_not_count_as_failure);
    tcase_add_test(t, retracted_stream_goes_on);
    tcase_add_test(t, repeated_messages_change_nothing);
    tcase_add_test(t, stale_and_foreign_messages_are_dropped);
    tcase_add_test(t, missing_token_is_recomputed);
    tcase_add_test(t, wrong_count_at_the_end_is_no_answer);
    tcase_add_test(t, deadline_ends_it);
    tcase_add_loop_test(t, stage_without_progress_is_retried_elsewhere, 0, 4);
    tcase_add_test(t, no_workers_is_unavailable_in_time);
    tcase_add_test(t, silent_worker_is_dead);
    tcase_add_test(t, queue_is_bounded);
    tcase_add_test(t, choices_wait_for_the_first_prefill);
    tcase_add_test(t, choices_go_on_when_the_first_fails);
    tcase_add_test(t, release_from_inside_the_sink);
    tcase_add_test(t, stop_string_ends_it_here_and_there);
    tcase_add_test(t, held_back_text_comes_out_at_the_end);
    tcase_add_test(t, stop_token_yields_no_text);
    tcase_add_test(t, death_before_done_is_no_restart);
    tcase_add_test(t, deaths_under_load_lose_nothing);
    tcase_add_test(t, admission_names_the_reason);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    SRunner *r = srunner_create(suite());
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
