/*
 * Conformance of the shipment machine (prefill/shipment.h): from every state, on every path, with every event that can
 * end it, a shipment ends once, answers the router once, gives its pages back when nothing is in flight any more, and
 * frees its memory.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/prefill/rig.h"
#include "tests/unit/run_suite.h"

enum { STATES = SHIP_OVER + 1 };

static void layers(int32_t n)
{
    for (int32_t l = 0; l < n; l++)
        rig_layer(l, 0, RIG_TOKENS);
}

/* The copier is another thread, so its batches come back at any time. */
static void until_state(sl_ship_state want)
{
    for (int i = 0; i < rig_patience() && r.job->ship.state != want; i++) {
        rig_tick();
        if (r.path == RIG_COPIER && r.job->ship.state != want)
            usleep(100);
    }
    ck_assert_msg(r.job->ship.state == want, "it is %s and should be %s",
                  sl_ship_state_name(r.job->ship.state), sl_ship_state_name(want));
}

static void complete_up_to_flush(void)
{
    while (r.n_ops && r.op[0].kind != OP_FLUSH)
        rig_complete(SL_OK);
}

/* Brings a new shipment into a state and leaves it there. deadline_ms 0: none. */
static void reach(sl_ship_state want, uint32_t deadline_ms)
{
    rig_begin(want == SHIP_PULLING ? RIG_PULLED : 0, deadline_ms);
    rig_tick();
    if (want >= SHIP_CONNECTING)
        rig_start(0);
    if (want >= SHIP_PULLING)
        rig_peer_up();
    if (want >= SHIP_SENDING)
        layers(want == SHIP_SENDING ? 1 : RIG_LAYERS);
    if (want == SHIP_FLUSHING || want == SHIP_OVER)
        rig_finish();
    rig_tick();
    if (want == SHIP_OVER)
        rig_complete_all(SL_OK);
    if (want == SHIP_FLUSHING)
        complete_up_to_flush();
    if (want == SHIP_DRAINING)
        sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
    until_state(want);
}

/* With copies into mapped memory, nothing is in flight, so the machine does not stay in some of the states. */
static bool can_rest(sl_ship_state s, rig_path path)
{
    if (s == SHIP_LEASING || s == SHIP_HOLDING) /* of prefetches: test_shipment_lease.c */
        return false;
    return path < RIG_DIRECT || !(s == SHIP_FLUSHING || s == SHIP_DRAINING);
}

/* ---- events ---- */

typedef enum {
    EV_ABORT,
    EV_ABORT_AFTER_FAILURE,
    EV_PEER_LOST,
    EV_DEADLINE,
    EV_ROUTER_LOST,
    EV_ENGINE_FAILS,
    EV_OPERATION_FAILS,
    EV_FLUSH_FAILS,
    EV_FLUSH_REFUSED,
    EV_POST_REFUSED,
    EV_FULL,
    EV_NEVER_COMPLETES,
    EV_DAMAGED_PULL,
    EV_STRAY_MESSAGES,
    EVENTS
} event;

static void peer_lost(void)
{
    rig_complete_all(SL_ERR_PEER); /* as the transport does it: pending operations first, then `failed` */
    r.in_callback = true;
    if (r.ep && !r.close_asked)
        sl_peer_failed(r.p, r.ep, SL_ERR_PEER, "the peer died");
    r.in_callback = false;
}

static void flush_fails(sl_ship_state s)
{
    if (s == SHIP_SENDING) {
        rig_layer(1, 0, RIG_TOKENS);
        rig_layer(2, 0, RIG_TOKENS);
        rig_finish();
        rig_tick();
    }
    complete_up_to_flush();
    rig_tick();
    if (r.n_ops)
        rig_complete(SL_ERR_PEER);
    peer_lost();
}

/* The endpoint is breaking: posts of this kind are refused. Where none is posted, the shipment is aborted. */
static void refused(rig_op_kind kind, sl_ship_state s)
{
    r.refuse = SL_ERR_PEER;
    r.refused = kind;
    if (s == SHIP_SENDING) {
        rig_layer(1, 0, RIG_TOKENS);
        rig_layer(2, 0, RIG_TOKENS);
        rig_finish();
        rig_tick();
        ck_assert_int_eq(r.job->ship.ending.cause, SHIP_FAILED);
    }
    if (r.job->ship.state < SHIP_DRAINING && !sl_ship_ends(r.job))
        sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
    rig_complete_all(SL_OK);
    rig_tick();
    r.refuse = SL_OK;
}

static void stray_messages(void)
{
    uint64_t rid = r.job->rid;
    if (r.ep && r.job->ship.state != SHIP_PULLING)
        rig_pages_crc(true);
    sl_wmsg *m = calloc(1, sizeof *m); /* the same PREFILL again */
    m->msg.type = SL_MSG_PREFILL;
    m->router = RIG_ROUTER;
    m->msg.prefill = (sl_msg_prefill){.rid = rid, .attempt = 1, .n_tokens = 1};
    sl_ship_new(r.p, m);
    ck_assert(r.p->ships == r.job && !r.job->ship.next);
}

static void deadline(void)
{
    r.now += (uint64_t)100 * 1000000000;
    rig_tick();
}

static void happen(event ev, sl_ship_state s)
{
    switch (ev) {
    case EV_ABORT_AFTER_FAILURE:
        sl_ship_fail(r.p, r.job, SL_ERR_DEVICE, true, "made to fail");
        sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
        break;
    case EV_ABORT:
        sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
        break;
    case EV_PEER_LOST:
        peer_lost();
        break;
    case EV_DEADLINE:
        deadline();
        break;
    case EV_ROUTER_LOST:
        sl_ship_router_down(r.p, RIG_ROUTER);
        break;
    case EV_ENGINE_FAILS:
        r.job->failure.status = SL_ERR_DEVICE;
        r.job->failure.retryable = true;
        sl_ship_mail(r.p, sl_job_mail_of(r.job, PM_FAIL));
        break;
    case EV_OPERATION_FAILS:
        if (r.n_ops)
            rig_complete(SL_ERR_IO);
        else
            sl_ship_fail(r.p, r.job, SL_ERR_PEER, true, "copy failed");
        break;
    case EV_FLUSH_FAILS:
        flush_fails(s);
        break;
    case EV_FLUSH_REFUSED:
    case EV_POST_REFUSED:
        refused(ev == EV_FLUSH_REFUSED ? OP_FLUSH : OP_PUT, s);
        break;
    case EV_FULL:
        r.full = true;
        sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
        for (int i = 0; i < 5; i++) {
            rig_complete_all(SL_OK);
            rig_tick();
        }
        r.full = false;
        break;
    case EV_NEVER_COMPLETES:
        sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
        rig_tick();
        deadline(); /* drain_ms: the connection is closed by force, unless nothing is in flight */
        ck_assert(r.close_asked || r.seen.told_end);
        break;
    case EV_DAMAGED_PULL:
        rig_pages_crc(false);
        rig_complete_all(SL_OK);
        rig_tick();
        ck_assert(r.seen.told_pulled == 1 && !rig_pulled_right());
        sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
        break;
    case EV_STRAY_MESSAGES:
        stray_messages();
        sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
        break;
    case EVENTS:
        break;
    }
}

/* Copies into mapped memory are neither flushed nor refused by a transport. */
static bool makes_sense(event ev, sl_ship_state s, rig_path path)
{
    if (path >= RIG_DIRECT && (ev == EV_FLUSH_FAILS || ev == EV_FLUSH_REFUSED || ev == EV_POST_REFUSED))
        return false;
    if (ev == EV_PEER_LOST || ev == EV_FLUSH_FAILS)
        return s >= SHIP_PULLING;
    return ev != EV_DAMAGED_PULL || s == SHIP_PULLING;
}

/* Checks what is true of every end. */
static void check_ending(event ev, sl_ship_state s)
{
    const rig_seen *e = &r.seen;
    int answers = e->prefilled + e->failed + e->drained;
    bool late = s == SHIP_OVER; /* it had answered before the event came; an abort is answered by DRAINED */
    ck_assert_msg(e->told_end == 1 && e->freed == 1, "END was told %d times", e->told_end);
    ck_assert_int_le(e->told_stop, 1);
    ck_assert_int_le(e->told_pulled, 1);
    ck_assert_int_eq(e->told_stop, e->prefilled == 0);
    ck_assert_int_eq(e->commit, e->prefilled);
    if (e->commit)
        ck_assert(e->commit_ok);
    if (!late)
        ck_assert_msg(answers <= 1 && e->prefilled == 0, "state %s, event %d: %d answers, %d PREFILLED",
                      sl_ship_state_name(s), ev, answers, e->prefilled);
    else
        ck_assert_int_eq(e->prefilled, 1);
    /* The only case without an answer: aborted, and the connection was lost with puts that no flush covered. */
    if (!late && answers == 0)
        ck_assert(r.path < RIG_DIRECT && e->peer_drained == 0);
    if (r.ep && r.peer_up && !late)
        ck_assert_int_eq(e->peer_drained, 1);
    if (ev == EV_DEADLINE && !late && s != SHIP_DRAINING) {
        ck_assert_int_eq(e->failed, 1);
        ck_assert_int_eq(e->why.status, SL_ERR_DEADLINE);
    }
}

static void every_event_in_every_state(rig_path path)
{
    for (int s = SHIP_WAITING; s < STATES; s++) {
        for (int ev = 0; ev < EVENTS; ev++) {
            if (!can_rest((sl_ship_state)s, path) || !makes_sense((event)ev, (sl_ship_state)s, path))
                continue;
            rig_open(path);
            reach((sl_ship_state)s, ev == EV_DEADLINE ? 50000 : 0);
            happen((event)ev, (sl_ship_state)s);
            rig_settle();
            check_ending((event)ev, (sl_ship_state)s);
            rig_close();
        }
    }
}

START_TEST(ends)
{
    every_event_in_every_state((rig_path)_i);
}
END_TEST

/* ---- shipments that succeed ---- */

static void ship(uint32_t matched, int32_t own)
{
    bool up = r.ep != NULL;
    rig_begin(matched, 0);
    rig_start(own);
    if (!up)
        rig_peer_up();
    rig_tick();
    if (matched > (uint32_t)own) {
        rig_complete_all(SL_OK);
        rig_tick();
        ck_assert_int_eq(r.seen.asked, 1);
        rig_pages_crc(true);
        rig_tick();
        ck_assert(r.seen.told_pulled == 1 && rig_pulled_right());
        own = (int32_t)matched;
    }
    for (int32_t first = own * SL_PAGE_TOKENS; first < RIG_TOKENS; first += 50) {
        for (int32_t l = 0; l < RIG_LAYERS; l++) {
            rig_layer(l, first, first + 50 < RIG_TOKENS ? first + 50 : RIG_TOKENS);
            rig_tick();
        }
    }
    rig_finish();
    rig_settle();
    ck_assert(r.seen.prefilled == 1 && r.seen.commit == 1 && r.seen.commit_ok);
    ck_assert(r.seen.failed == 0 && r.seen.drained == 0 && r.seen.told_stop == 0);
}

/* By one connection, one after the other: all computed, all pulled, part from the own cache. */
START_TEST(ships)
{
    rig_open((rig_path)_i);
    ship(0, 0);
    ship(RIG_PULLED, 0);
    ship(0, 2);
    ship(3, 3);
    ck_assert_int_eq(r.seen.hello, 1);
    rig_close();
}
END_TEST

/* Pieces that come while the connection is still being made, and FINISH with them, are shipped when it is up. */
START_TEST(finished_before_the_peer_is_up)
{
    rig_open((rig_path)_i);
    rig_begin(0, 0);
    rig_start(0);
    layers(RIG_LAYERS);
    rig_finish();
    rig_tick();
    ck_assert_int_eq(r.job->ship.state, SHIP_CONNECTING);
    rig_peer_up();
    rig_settle();
    ck_assert(r.seen.prefilled == 1 && r.seen.commit_ok);
    rig_close();
}
END_TEST

/* Damaged pages are not used: the engine is told, computes these tokens, and their rows are shipped. */
START_TEST(a_damaged_pull_is_computed)
{
    rig_open((rig_path)_i);
    rig_begin(RIG_PULLED, 0);
    rig_start(0);
    rig_peer_up();
    rig_tick();
    rig_complete_all(SL_OK);
    until_state(SHIP_PULLING);
    rig_pages_crc(false);
    rig_tick();
    ck_assert(r.seen.told_pulled == 1 && !rig_pulled_right());
    layers(RIG_LAYERS); /* of all tokens: what the decode worker has is left out */
    rig_finish();
    rig_settle();
    ck_assert(r.seen.prefilled == 1 && r.seen.commit_ok);
    rig_close();
}
END_TEST

/* Each page is a chunk: the engine is told of a page when it has arrived, not earlier, in the order of the prompt, whatever completes
 * first; PULLED comes after the last get, also when the decode worker does not hold the pages any more. */
static void one_by_one(bool backwards, bool answer, bool held)
{
    int told = 0;
    rig_open(RIG_STAGING);
    r.p->o.pull_chunk_bytes = 1;
    rig_begin(3, 0);
    rig_start(0);
    rig_peer_up();
    rig_tick();
    ck_assert_int_eq(r.seen.asked, 1);
    if (answer)
        rig_pages_crc(true);
    while (r.n_ops) {
        if (backwards) {
            rig_op last = r.op[r.n_ops - 1];
            memmove(r.op + 1, r.op, (size_t)(r.n_ops - 1) * sizeof last);
            r.op[0] = last;
        }
        rig_complete(SL_OK);
        rig_tick();
        ck_assert_int_ge(r.seen.chunk_pages, told);
        told = r.seen.chunk_pages;
        ck_assert(!r.seen.told_pulled || !r.n_ops);
        if (!answer || backwards)
            ck_assert(told == 0 || !r.n_ops);
    }
    if (!answer) {
        ck_assert_int_eq(r.seen.told_pulled, 0);
        if (held)
            rig_pages_crc(true);
        else
            rig_no_pages_crc();
        rig_tick();
    }
    ck_assert_int_eq(r.seen.told_pulled, 1);
    ck_assert_int_eq(rig_pulled_right(), held);
    ck_assert_int_eq(r.seen.chunks, held ? 3 : 0);
    layers(RIG_LAYERS);
    rig_finish();
    rig_settle();
    ck_assert(r.seen.prefilled == 1 && r.seen.commit_ok);
    rig_close();
}

START_TEST(pulled_page_by_page)
{
    one_by_one(_i == 1, _i < 2, _i < 3);
}
END_TEST

/* The decode worker does not hold the pages any more: no further get is posted, and the engine waits for those in flight. */
START_TEST(a_lost_ticket_ends_the_pull)
{
    rig_open(RIG_STAGING);
    r.p->o.pull_chunk_bytes = 1;
    rig_begin(3, 0);
    rig_start(0);
    r.full = true;
    rig_peer_up();
    rig_tick();
    ck_assert_int_eq(r.n_ops, 0);
    r.full = false;
    rig_no_pages_crc();
    rig_tick();
    ck_assert(r.n_ops == 0 && r.seen.told_pulled == 1 && !r.job->pull_ok);
    layers(RIG_LAYERS);
    rig_finish();
    rig_settle();
    ck_assert(r.seen.prefilled == 1 && r.seen.commit_ok);
    rig_close();
}
END_TEST

/* A full transport delays the operations but loses none; the flush, too, is posted when there is room. */
START_TEST(full_transport)
{
    rig_open(RIG_STAGING);
    rig_begin(0, 0);
    rig_start(0);
    rig_peer_up();
    layers(RIG_LAYERS);
    rig_finish();
    for (int i = 0; r.job->ship.state != SHIP_FLUSHING; i++) {
        ck_assert_int_lt(i, 5000);
        r.full = i % 3 != 0;
        if (r.n_ops > 2)
            rig_complete(SL_OK);
        rig_tick();
    }
    r.full = false;
    rig_settle();
    ck_assert(r.seen.prefilled == 1 && r.seen.commit_ok);
    rig_close();
}
END_TEST

/* COMMIT waits for the flush, and the flush's completion alone is not enough while a put is in flight. */
START_TEST(commit_waits_for_everything)
{
    rig_open(RIG_STAGING);
    reach(SHIP_FLUSHING, 0);
    ck_assert_int_eq(r.n_ops, 1);
    ck_assert_int_eq(r.op[0].kind, OP_FLUSH);
    for (int i = 0; i < 5; i++)
        rig_tick();
    ck_assert_int_eq(r.seen.commit, 0);
    rig_settle();
    ck_assert(r.seen.commit == 1 && r.seen.commit_ok);
    rig_close();
}
END_TEST

/* An abort with puts in flight: DRAINED comes after they have completed and a flush has covered them. */
START_TEST(drained_is_not_said_early)
{
    rig_open(RIG_STAGING);
    reach(SHIP_SENDING, 0);
    ck_assert_int_gt(r.n_ops, 0);
    sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
    rig_tick();
    ck_assert(r.seen.told_stop == 1 && r.seen.drained == 0);
    rig_complete_all(SL_OK);
    rig_tick();
    ck_assert(r.n_ops == 1 && r.op[0].kind == OP_FLUSH && r.seen.drained == 0);
    rig_complete(SL_OK);
    rig_tick();
    ck_assert(r.seen.drained == 1 && r.seen.peer_drained == 1);
    rig_settle();
    sl_ship_abort(r.p, RIG_ROUTER, 12345, 1); /* nothing is left of this request: it is drained */
    ck_assert_int_eq(r.seen.drained, 2);
    rig_close();
}
END_TEST

/* The loss of another router ends nothing of this one's shipments. */
START_TEST(another_router_touches_nothing)
{
    rig_open(RIG_STAGING);
    reach(SHIP_SENDING, 0);
    sl_ship_router_down(r.p, RIG_ROUTER + 1);
    rig_tick();
    ck_assert_int_eq(r.job->ship.state, SHIP_SENDING);
    ck_assert_int_eq(r.job->ship.ending.cause, SHIP_NOT_ENDING);
    sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
    rig_settle();
    rig_close();
}
END_TEST

/* Lost with puts that no flush covers: the router is not told DRAINED; the decode worker's fence decides. */
START_TEST(unknown_puts_are_not_called_drained)
{
    rig_open(RIG_STAGING);
    reach(SHIP_SENDING, 0);
    sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
    rig_tick();
    peer_lost();
    rig_settle();
    ck_assert(r.seen.drained == 0 && r.seen.failed == 0 && r.seen.told_end == 1);
    rig_close();
}
END_TEST

/* A connection that is never made ends by time, and a request without a deadline does not wait for it for ever. */
START_TEST(a_connection_that_is_never_made_ends)
{
    rig_open(RIG_STAGING);
    reach(SHIP_CONNECTING, 0);
    r.now += (uint64_t)5 * 1000000000;
    rig_tick();
    ck_assert_int_eq(r.job->ship.ending.cause, SHIP_NOT_ENDING);
    r.now += (uint64_t)6 * 1000000000;
    rig_tick();
    ck_assert_int_eq(r.job->ship.ending.cause, SHIP_FAILED);
    ck_assert_int_eq(r.job->ship.ending.status, SL_ERR_TIMEOUT);
    rig_closed();
    rig_settle();
    ck_assert(r.seen.failed == 1 && r.seen.told_end == 1);
    rig_close();
}
END_TEST

int main(void)
{
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("shipment");
    TCase *t = tcase_create("shipment");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, ends, RIG_FIRST_PATH, RIG_PATHS);
    tcase_add_loop_test(t, ships, RIG_FIRST_PATH, RIG_PATHS);
    tcase_add_loop_test(t, finished_before_the_peer_is_up, RIG_FIRST_PATH, RIG_PATHS);
    tcase_add_loop_test(t, a_damaged_pull_is_computed, RIG_FIRST_PATH, RIG_PATHS);
    tcase_add_loop_test(t, pulled_page_by_page, 0, 4);
    tcase_add_test(t, a_lost_ticket_ends_the_pull);
    tcase_add_test(t, full_transport);
    tcase_add_test(t, commit_waits_for_everything);
    tcase_add_test(t, drained_is_not_said_early);
    tcase_add_test(t, another_router_touches_nothing);
    tcase_add_test(t, unknown_puts_are_not_called_drained);
    tcase_add_test(t, a_connection_that_is_never_made_ends);
    suite_add_tcase(s, t);
    return run_suite(s);
}
