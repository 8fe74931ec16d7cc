/*
 * Failure stories (their numbers are those of the project's list of disaggregation failures). In each of them the
 * stream is right or the request fails with a reason, all pages become free again, and nothing hangs. cluster_stop()
 * checks pages and tickets of every worker.
 */
#include <stdio.h>

#include "tests/unit/run_suite.h"
#include "tests/unit/worker/cluster.h"

static cluster c;

static const sl_loopback_faults no_faults;

static cworker *prefill0(void)
{
    return cluster_worker(&c, SL_ROLE_PREFILL, 0);
}

static cworker *decode0(void)
{
    return cluster_worker(&c, SL_ROLE_DECODE, 0);
}

static req_state wanted_state;

static bool first_in_state(cluster *cl)
{
    return cl->req[0].state >= wanted_state;
}

static void until_first(req_state s)
{
    wanted_state = s;
    cluster_until(&c, first_in_state, 10, "first request gets going");
}

static bool first_has_failed(cluster *cl)
{
    return cl->req[0].attempts > 0;
}

static fake_runner *awaited;

static bool awaited_hangs(cluster *cl)
{
    (void)cl;
    return fake_hangs(awaited);
}

/*
 * The worker stands before its n-th step from now on: what follows happens in the middle of a request, on a busy
 * machine too.
 */
static void until_step(cworker *w)
{
    awaited = w->fake;
    cluster_until(&c, awaited_hangs, 20, "the worker to come to the step at which it is held");
}

static void goes_on(cworker *w)
{
    fake_hang(w->fake, false);
}

static bool both_drained(cluster *cl)
{
    return cl->req[0].got_drained_p && cl->req[0].got_drained_d;
}

/* Stories 1 and 17: puts are slow, the request is aborted during the transfer, and others need its pages at once. */
START_TEST(abort_with_writes_in_flight)
{
    cluster_opts o = cluster_defaults();
    o.decode_pages = 12;
    o.chunk_tokens = 64;
    o.times.prefill_layer_us = 2000;
    o.prefill_faults.delay_ns = 40000000;
    o.shipping = &sl_shipping_staging;
    o.times.drain_ms = 5000;
    cluster_start(&c, &o);
    fake_hang_at(prefill0()->fake, 6);
    creq *a = cluster_ask(&c, 600, 10, 1);
    until_step(prefill0());
    cluster_abort(&c, a, SL_ERR_CANCELLED);
    goes_on(prefill0());
    for (int i = 0; i < 3; i++)
        cluster_ask(&c, 500 + i, 30, 10 + (uint64_t)i);
    cluster_finish(&c, 40);
    cluster_until(&c, both_drained, 10,
                  "both workers to tell that nothing of the aborted request is in flight");
    cluster_stop(&c);
}
END_TEST

/* The writer does not receive the abort: its late COMMIT is dropped, and only then the pages become free. */
START_TEST(abort_that_the_writer_does_not_hear)
{
    cluster_opts o = cluster_defaults();
    o.decode_pages = 12;
    o.chunk_tokens = 64;
    o.times.prefill_layer_us = 3000;
    o.times.quarantine_ms = 20000;
    cluster_start(&c, &o);
    fake_hang_at(prefill0()->fake, 6);
    creq *a = cluster_ask(&c, 600, 10, 1);
    until_step(prefill0());
    sl_msg m = {.type = SL_MSG_ABORT};
    m.abort = (sl_msg_abort){a->rid, a->attempt, SL_ERR_CANCELLED};
    cluster_send(decode0(), &m);
    a->state = REQ_ABORTED;
    cluster_run_ms(&c, 20);
    goes_on(prefill0());
    cluster_ask(&c, 500, 10, 2);
    cluster_finish(&c, 30);
    cluster_wait_pages(&c, 0);
    cluster_stop(&c);
}
END_TEST

/* The writer hangs in the middle of the transfer: its connection is closed, then the pages become free. */
START_TEST(writer_hangs)
{
    cluster_opts o = cluster_defaults();
    o.n_prefill = 2;
    o.decode_pages = 24;
    o.chunk_tokens = 64;
    o.times.prefill_layer_us = 1000;
    o.times.quarantine_ms = 200;
    cluster_start(&c, &o);
    fake_hang_at(prefill0()->fake, 4);
    creq *a = cluster_ask(&c, 600, 10, 1);
    a->prefill = 0;
    until_step(prefill0());
    /* only the decode worker receives the abort, and the writer's engine hangs until the pages are free */
    sl_msg m = {.type = SL_MSG_ABORT};
    m.abort = (sl_msg_abort){a->rid, a->attempt, SL_ERR_CANCELLED};
    cluster_send(decode0(), &m);
    a->state = REQ_ABORTED;
    a->attempt += 1000; /* so that the test ignores later messages about this attempt */
    cluster_wait_pages(&c, 0);
    goes_on(prefill0());
    creq *b = cluster_ask(&c, 600, 10, 2);
    b->prefill = 1;
    cluster_finish(&c, 30);
    cluster_stop(&c);
}
END_TEST

/*
 * drain_ms: only a completion that never comes needs a short one; with it a worker that gets no processor for that long
 * fails too.
 */
static void recovers_from(sl_loopback_faults f, uint32_t drain_ms, sl_status expect)
{
    cluster_opts o = cluster_defaults();
    o.prefill_faults = f;
    o.shipping = &sl_shipping_staging; /* these are faults of puts */
    o.times.drain_ms = drain_ms;
    cluster_start(&c, &o);
    creq *a = cluster_ask(&c, 400, 30, 1);
    cluster_until(&c, first_has_failed, 20, "the first attempt to fail");
    ck_assert_msg(a->status == expect, "%s: %s", sl_status_name(a->status), a->reason);
    ck_assert_uint_eq(a->n_tokens, a->n_prompt); /* it produced no token */
    cworker_faults(prefill0(), no_faults);
    cluster_cut_all(&c); /* endpoints with faults are closed; new ones have none */
    cluster_finish(&c, 30);
    cluster_stop(&c);
}

/* Story 3: the transport damages or loses bytes but reports success. */
START_TEST(damaged_put)
{
    recovers_from((sl_loopback_faults){.damage_put = 5}, 10000, SL_ERR_CORRUPT);
}
END_TEST

START_TEST(lost_put)
{
    recovers_from((sl_loopback_faults){.lose_put = 7}, 10000, SL_ERR_CORRUPT);
}
END_TEST

/* Story 5: a completion that never comes. */
START_TEST(lost_completion)
{
    recovers_from((sl_loopback_faults){.lose_completion = 6}, 300, SL_ERR_TIMEOUT);
}
END_TEST

/* Story 10: single transfers fail. */
START_TEST(failing_put)
{
    recovers_from((sl_loopback_faults){.fail_op = 9}, 10000, SL_ERR_PEER);
}
END_TEST

/* Story 6: connections break repeatedly; attempts fail, but the worker continues. */
START_TEST(connection_dies)
{
    recovers_from((sl_loopback_faults){.die_after = 12}, 10000, SL_ERR_PEER);
}
END_TEST

/* Story 11: the page geometry of the two workers differs. */
START_TEST(geometry_differs)
{
    cluster_opts o = cluster_defaults();
    o.prefill_differs = true;
    o.prefill_rows = SL_ROW_MLA_BF16;
    cluster_start(&c, &o);
    creq *a = cluster_ask(&c, 100, 10, 1);
    a->max_attempts = 2;
    cluster_until(&c, cluster_idle, 20, "request fails");
    ck_assert_int_eq(a->state, REQ_FAILED);
    ck_assert_int_eq(a->status, SL_ERR_REFUSED);
    ck_assert_msg(strstr(a->reason, "rows: format differs: mla_fp8 here, mla_bf16 there") != NULL, "%s",
                  a->reason);
    cluster_stop(&c);
}
END_TEST

/* Story 15: a decode worker cannot be reached; the other requests continue. */
START_TEST(wrong_address)
{
    cluster_opts o = cluster_defaults();
    o.n_decode = 2;
    cluster_start(&c, &o);
    snprintf(decode0()->listen, sizeof decode0()->listen, "%s:1", c.fabric);
    creq *a = cluster_ask(&c, 200, 20, 1);
    a->decode = 0, a->max_attempts = 2;
    creq *b = cluster_ask(&c, 200, 20, 2);
    b->decode = 1;
    cluster_until(&c, cluster_idle, 20, "requests end");
    ck_assert_int_eq(a->state, REQ_FAILED);
    ck_assert_int_eq(b->state, REQ_DONE);
    cluster_check_stream(&c, b);
    cluster_stop(&c);
}
END_TEST

START_TEST(prefill_dies)
{
    cluster_opts o = cluster_defaults();
    o.n_prefill = 2;
    o.chunk_tokens = 64;
    o.times.prefill_layer_us = 2000;
    cluster_start(&c, &o);
    fake_hang_at(prefill0()->fake, 1 + 5 * _i);
    creq *a = cluster_ask(&c, 700, 30, 1);
    a->prefill = 0;
    until_step(prefill0());
    cworker_kill(prefill0());
    goes_on(prefill0());
    a->prefill = -1;
    cluster_finish(&c, 30);
    ck_assert_int_ge(a->attempts, 1);
    cworker_join(prefill0());
    cluster_wait_pages(&c, 0);
    cluster_stop(&c);
}
END_TEST

START_TEST(decode_dies)
{
    cluster_opts o = cluster_defaults();
    o.n_decode = 2;
    o.times.decode_layer_us = 1000;
    cluster_start(&c, &o);
    cworker *held = _i == 0
                        ? prefill0()
                        : decode0(); /* before the rows have arrived, or after the 2nd and the 60th token */
    fake_hang_at(held->fake, _i == 0 ? 1 : _i == 1 ? 2 : 60);
    creq *a = cluster_ask(&c, 300, 200, 1);
    a->decode = 0;
    creq *b = cluster_ask(&c, 200, 100, 2);
    b->decode = 1;
    until_step(held);
    cworker_kill(decode0());
    goes_on(held);
    a->decode = -1;
    cluster_finish(&c, 30);
    ck_assert_int_ge(a->attempts, 1);
    ck_assert_uint_eq(a->n_tokens, 500);
    cworker_join(decode0());
    cluster_stop(&c);
}
END_TEST

/* Stories 7 and 8: a worker that restarts repeatedly. */
START_TEST(prefill_restarts)
{
    cluster_opts o = cluster_defaults();
    o.times.prefill_layer_us = 2000;
    cluster_start(&c, &o);
    for (int k = 0; k < 5; k++) {
        creq *a = cluster_ask(&c, 400, 20, 50 + (uint64_t)k);
        for (int i = 0; i < 10 && a->state != REQ_PREFILLING; i++)
            cluster_run_ms(&c, 10);
        cworker_kill(prefill0());
        cworker_join(prefill0());
        cworker_start(&c, SL_ROLE_PREFILL, 0);
        cluster_finish(&c, 30);
    }
    cluster_stop(&c);
}
END_TEST

START_TEST(router_connection_breaks)
{
    cluster_opts o = cluster_defaults();
    o.times.prefill_layer_us = 3000;
    o.times.decode_layer_us = 1000;
    o.chunk_tokens = 64;
    cluster_start(&c, &o);
    for (int k = 0; k < 4; k++) {
        cluster_ask(&c, 500, 60, 10 * (uint64_t)k);
        cluster_ask(&c, 100, 60, 10 * (uint64_t)k + 1);
        cluster_run_ms(&c, 20 + 60 * k);
        cluster_cut_all(&c);
        cluster_finish(&c, 30);
    }
    cluster_wait_pages(&c, 0);
    cluster_stop(&c);
}
END_TEST

static uint64_t first_epoch;

static bool has_come_back(cluster *cl)
{
    return cluster_worker(cl, SL_ROLE_DECODE, 0)->epoch != first_epoch;
}

START_TEST(router_is_silent)
{
    cluster_opts o = cluster_defaults();
    o.times.dead_after_ms = 600;
    cluster_start(&c, &o);
    c.silent = true;
    first_epoch = decode0()->epoch;
    cluster_until(&c, has_come_back, 20, "the worker to give the session up and come back");
    c.silent = false;
    cluster_ask(&c, 100, 10, 1);
    cluster_finish(&c, 20);
    cluster_stop(&c);
}
END_TEST

static bool engine_is_old(cluster *cl)
{
    return cluster_worker(cl, SL_ROLE_DECODE, 0)->load.engine_age_ms >
           SL_ENGINE_PATIENCE * cl->o.times.dead_after_ms;
}

static bool engine_is_young(cluster *cl)
{
    return cluster_worker(cl, SL_ROLE_DECODE, 0)->load.engine_age_ms < 1000;
}

/* The engine's thread hangs, the heartbeats go on and tell it; after the router has ended the session, the worker does
 * not come back before its engine does. */
START_TEST(engine_hangs)
{
    cluster_opts o = cluster_defaults();
    o.times.dead_after_ms = 600;
    cluster_start(&c, &o);
    cluster_ask(&c, 100, 10, 1);
    cluster_finish(&c, 20);
    cluster_until(&c, engine_is_young, 10, "the heartbeats to tell that the engine turns");
    fake_hang(decode0()->fake, true);
    cluster_ask(&c, 100, 10, 2);
    first_epoch = decode0()->epoch;
    cluster_until(&c, engine_is_old, 20, "the heartbeats to tell that the engine hangs");
    ck_assert_uint_eq(decode0()->epoch, first_epoch);
    cluster_cut_all(&c);
    uint64_t until = sl_now_ns() + 1000000000u;
    while (sl_now_ns() < until)
        cluster_poll(&c, 5);
    ck_assert_uint_eq(decode0()->epoch, first_epoch);
    fake_hang(decode0()->fake, false);
    cluster_until(&c, has_come_back, 20, "the worker to come back with its engine");
    cluster_finish(&c, 20);
    cluster_stop(&c);
}
END_TEST

/* Story 22: the client leaves between the reservation and the prefill. */
static bool swallow_reserved(cluster *cl, cworker *w, const sl_msg *m)
{
    (void)cl;
    (void)w;
    return m->type == SL_MSG_RESERVED;
}

static bool decode_has_waiting(cluster *cl)
{
    return cluster_worker(cl, SL_ROLE_DECODE, 0)->load.waiting > 0;
}

START_TEST(cancel_in_the_gap)
{
    cluster_opts o = cluster_defaults();
    cluster_start(&c, &o);
    c.on_msg = swallow_reserved;
    creq *a = cluster_ask(&c, 600, 10, 1);
    until_first(REQ_RESERVING);
    cluster_until(&c, decode_has_waiting, 10, "the decode worker to tell that a request waits");
    cluster_abort(&c, a, SL_ERR_CANCELLED);
    c.on_msg = NULL;
    cluster_wait_pages(&c, 0);
    cluster_ask(&c, 600, 10, 2);
    cluster_finish(&c, 20);
    cluster_stop(&c);
}
END_TEST

/* No message follows a reservation: its deadline ends it. Its writer has never connected. */
START_TEST(reservation_expires)
{
    cluster_opts o = cluster_defaults();
    o.times.deadline_ms = 300;
    o.times.quarantine_ms = 200;
    cluster_start(&c, &o);
    c.on_msg = swallow_reserved;
    creq *a = cluster_ask(&c, 600, 10, 1);
    a->max_attempts = 1;
    until_first(REQ_RESERVING);
    cluster_until(&c, cluster_idle, 10, "the reservation to expire");
    ck_assert_int_eq(a->state, REQ_FAILED);
    ck_assert_int_eq(a->status, SL_ERR_DEADLINE);
    c.on_msg = NULL;
    cluster_wait_pages(&c, 0);
    c.o.times.deadline_ms = 20000;
    creq *b = cluster_ask(&c, 600, 10, 2); /* the first connection after a fence is refused once: retried */
    cluster_until(&c, cluster_idle, 20, "request ends");
    ck_assert_msg(b->state == REQ_DONE, "%s", b->reason);
    cluster_check_stream(&c, b);
    cluster_stop(&c);
}
END_TEST

/* Story 18: messages about attempts that have ended change nothing. */
START_TEST(late_messages)
{
    cluster_opts o = cluster_defaults();
    cluster_start(&c, &o);
    creq *a = cluster_ask(&c, 300, 10, 1);
    cluster_finish(&c, 20);
    uint32_t pages[5] = {0, 1, 2, 3, 4};
    sl_wr w;
    sl_wr_init(&w);
    sl_sampling_write(&w, &a->sampling);
    sl_msg m = {.type = SL_MSG_PREFILL};
    m.prefill = (sl_msg_prefill){.rid = a->rid,
                                 .attempt = a->attempt,
                                 .ticket = 1,
                                 .decode_worker = decode0()->id,
                                 .decode_epoch = decode0()->epoch,
                                 .n_prompt = 300,
                                 .tokens = a->tokens,
                                 .n_tokens = 300,
                                 .pages = pages,
                                 .n_pages = 5,
                                 .sampling = {w.data, w.len},
                                 .seed = a->seed};
    memcpy(m.prefill.decode_addr, decode0()->listen, sizeof m.prefill.decode_addr);
    cluster_send(prefill0(), &m); /* again: dropped */
    m.prefill.rid = 0x777;        /* a ticket that never was: computed, its COMMIT is dropped */
    m.prefill.matched_pages = 4;
    cluster_send(prefill0(), &m);
    m = (sl_msg){.type = SL_MSG_ABORT};
    m.abort = (sl_msg_abort){a->rid, a->attempt, SL_ERR_CANCELLED};
    cluster_send(prefill0(), &m);
    cluster_send(decode0(), &m);
    m = (sl_msg){.type = SL_MSG_DRAINED};
    m.id = (sl_msg_id){a->rid, 7};
    cluster_send(decode0(), &m);
    m.type = SL_MSG_RETRACTED; /* not for a worker */
    cluster_send(decode0(), &m);
    cluster_send(prefill0(), &m);
    sl_wr_free(&w);
    cluster_run_ms(&c, 200);
    cluster_ask(&c, 300, 10, 2);
    cluster_ask(&c, 333, 30, 3);
    cluster_finish(&c, 20);
    cluster_stop(&c);
}
END_TEST

int main(void)
{
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("faults");
    TCase *t = tcase_create("faults");
    tcase_set_timeout(t, 1000);
    tcase_add_test(t, abort_with_writes_in_flight);
    tcase_add_test(t, abort_that_the_writer_does_not_hear);
    tcase_add_test(t, writer_hangs);
    tcase_add_test(t, damaged_put);
    tcase_add_test(t, lost_put);
    tcase_add_test(t, lost_completion);
    tcase_add_test(t, failing_put);
    tcase_add_test(t, connection_dies);
    tcase_add_test(t, geometry_differs);
    tcase_add_test(t, wrong_address);
    tcase_add_loop_test(t, prefill_dies, 0, 3);
    tcase_add_loop_test(t, decode_dies, 0, 3);
    tcase_add_test(t, prefill_restarts);
    tcase_add_test(t, router_connection_breaks);
    tcase_add_test(t, router_is_silent);
    tcase_add_test(t, engine_hangs);
    tcase_add_test(t, cancel_in_the_gap);
    tcase_add_test(t, reservation_expires);
    tcase_add_test(t, late_messages);
    suite_add_tcase(s, t);
    return run_suite(s);
}
