/*
 * Conformance of the shipments of prefetches (prefill/shipment_lease.c): from every state, on every path, with every event, a
 * prefetch ends once, says nothing to the router, ends its leases when no get is in flight, gives its pages back and is freed.
 */
#include <stdlib.h>
#include <unistd.h>

#include "kvstore/cascade.h"
#include "tests/unit/prefill/rig.h"
#include "tests/unit/run_suite.h"

typedef enum { P_WAITING, P_CONNECTING, P_LEASING, P_PULLING, P_HOLDING, P_DRAINING, P_OVER, P_STATES } place;

static const sl_ship_state state_of[P_STATES] = {SHIP_WAITING, SHIP_CONNECTING, SHIP_LEASING, SHIP_PULLING,
                                                 SHIP_HOLDING, SHIP_DRAINING,   SHIP_OVER};

/* A lease of n pages, which are fetched. */
static void fetch(int n)
{
    rig_lease(n, true);
    rig_tick();
    rig_complete_all(SL_OK);
    rig_tick();
}

static void finish(void)
{
    sl_ship_mail(r.p, sl_job_mail_of(r.job, PM_FINISH));
}

static void reach(place want)
{
    rig_begin_prefetch();
    rig_tick();
    if (want >= P_CONNECTING)
        rig_start(0);
    rig_tick();
    if (want >= P_LEASING) {
        rig_peer_up();
        rig_tick();
        ck_assert_int_eq(r.seen.lease_keys, RIG_AHEAD);
    }
    if (want == P_PULLING || want == P_DRAINING)
        rig_lease(2, true);
    rig_tick();
    if (want == P_DRAINING)
        finish();
    if (want == P_HOLDING || want == P_OVER) {
        fetch(2);
        ck_assert_int_eq(r.seen.lease_keys, RIG_AHEAD - 2);
        fetch(1);
    }
    rig_tick();
    if (want == P_OVER)
        finish();
    rig_tick();
    ck_assert_int_eq(r.job->ship.state, state_of[want]);
}

/* With copies into mapped memory nothing is in flight. */
static bool can_rest(place s, rig_path path)
{
    return path < RIG_DIRECT || (s != P_PULLING && s != P_DRAINING);
}

typedef enum {
    EV_FINISH,
    EV_ABORT,
    EV_PEER_LOST,
    EV_DEADLINE,
    EV_ROUTER_LOST,
    EV_GET_FAILS,
    EV_NEVER_COMPLETES,
    EV_NO_PAGE,
    EV_WRONG_PAGE,
    EV_STRAY,
    EVENTS
} event;

static void stray(void)
{
    uint64_t rid = r.job->rid;
    if (r.ep) {
        r.seen.lease += 7;
        rig_lease(1, true);
        r.seen.lease -= 7;
    }
    sl_wmsg *m = calloc(1, sizeof *m); /* the same PREFETCH again */
    m->msg.type = SL_MSG_PREFETCH;
    m->router = RIG_ROUTER;
    m->msg.prefetch = (sl_msg_prefetch){.rid = rid, .attempt = 1, .n_tokens = 1, .source.pages = 1};
    sl_ship_new(r.p, m);
    ck_assert(r.p->ships == r.job && !r.job->ship.next);
    finish();
}

static void peer_lost(void)
{
    rig_complete_all(SL_ERR_PEER);
    r.in_callback = true;
    if (r.ep && !r.close_asked)
        sl_peer_failed(r.p, r.ep, SL_ERR_PEER, "the peer died");
    r.in_callback = false;
}

static void happen(event ev)
{
    switch (ev) {
    case EV_FINISH:
        finish();
        break;
    case EV_ABORT:
        sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, r.job->attempt);
        break;
    case EV_PEER_LOST:
        peer_lost();
        break;
    case EV_NEVER_COMPLETES:
        finish();
        rig_tick(); /* and the time that gets have to drain ends */
        /* fall through */
    case EV_DEADLINE:
        r.now += (uint64_t)200 * 1000000000;
        rig_tick();
        break;
    case EV_ROUTER_LOST:
        sl_ship_router_down(r.p, RIG_ROUTER);
        break;
    case EV_GET_FAILS:
        if (r.n_ops)
            rig_complete(SL_ERR_IO);
        else
            sl_ship_fail(r.p, r.job, SL_ERR_PEER, true, "copy failed");
        break;
    case EV_NO_PAGE:
        rig_lease(0, true);
        rig_tick();
        ck_assert_int_eq(r.job->ship.state, SHIP_HOLDING);
        finish();
        break;
    case EV_WRONG_PAGE:
        rig_lease(2, false);
        break;
    case EV_STRAY:
        stray();
        break;
    case EVENTS:
        break;
    }
}

static bool makes_sense(event ev, place s)
{
    if (ev == EV_PEER_LOST)
        return s >= P_LEASING;
    return (ev != EV_NO_PAGE && ev != EV_WRONG_PAGE) || s == P_LEASING;
}

START_TEST(ends)
{
    for (int s = 0; s < P_STATES; s++) {
        for (int ev = 0; ev < EVENTS; ev++) {
            if (!can_rest((place)s, (rig_path)_i) || !makes_sense((event)ev, (place)s))
                continue;
            rig_open((rig_path)_i);
            reach((place)s);
            happen((event)ev);
            rig_settle();
            const rig_seen *e = &r.seen;
            ck_assert(e->told_end == 1 && e->freed == 1 && e->told_stop == 1);
            ck_assert(!e->prefilled && !e->failed && !e->commit && !e->peer_drained && !e->asked);
            ck_assert_int_eq(e->drained, ev == EV_ABORT); /* the answer to ABORT, which is never left out */
            if (r.ep && r.peer_up)                        /* every lease was ended, or was none */
                ck_assert_int_eq(e->leases, e->lease_ends + (ev == EV_NO_PAGE));
            rig_close();
        }
    }
}
END_TEST

/* Chunks of every size arrive in order, with the right bytes (the rig compares the checksums), and only arrived pages are told. */
START_TEST(fetches)
{
    for (int first = 1; first <= RIG_AHEAD; first++) {
        for (int own = 0; own < RIG_AHEAD - first; own++) {
            rig_open((rig_path)_i);
            rig_begin_prefetch();
            rig_start(own);
            rig_peer_up();
            rig_tick();
            ck_assert_int_eq(r.seen.lease_keys, RIG_AHEAD - own);
            fetch(first);
            ck_assert_int_eq(r.seen.chunk_pages, first);
            ck_assert_int_eq(r.seen.told_pulled, 0);
            if (own)
                rig_lease(0, true); /* the load ended early */
            else
                fetch(RIG_AHEAD - first);
            rig_tick();
            ck_assert_int_eq(r.seen.told_pulled, 1);
            ck_assert_int_eq(r.seen.chunk_pages, own ? first : RIG_AHEAD);
            finish();
            rig_settle();
            rig_close();
        }
    }
}
END_TEST

/* What the owner cannot mean is not used: more pages than asked for, pages outside of its store, another page, half a label. */
START_TEST(wrong_leases_are_refused)
{
    for (int how = 0; how < 4; how++) {
        rig_open((rig_path)_i);
        reach(P_LEASING);
        size_t bytes = sl_cascade_label_bytes(sl_arena_geometry(r.there));
        uint8_t *labels = calloc(4, bytes);
        sl_wmsg *m = calloc(1, sizeof *m);
        size_t n = how == 0 ? RIG_AHEAD + 1 : 1;
        m->msg.type = SL_MSG_LEASE;
        m->msg.lease =
            (sl_msg_lease){.lease = r.seen.lease, .n_pages = n, .labels = {labels, n * bytes - (how == 3)}};
        m->msg.lease.pages = calloc(n, sizeof(uint32_t));
        m->msg.lease.pages[0] = how == 1 ? 1000 : 0;
        r.in_callback = true;
        sl_peer_msg(r.p, r.ep, m);
        r.in_callback = false;
        free(labels);
        rig_settle();
        ck_assert(r.seen.chunk_pages == 0 && r.seen.failed == 0);
        ck_assert_int_eq(r.seen.lease_ends, 1);
        rig_close();
    }
}
END_TEST

/* The request of the same attempt is another shipment; ABORT ends both. */
START_TEST(the_request_is_another_shipment)
{
    rig_open((rig_path)_i);
    reach(P_HOLDING);
    sl_prefill_job *ahead = r.job;
    rig_seen seen = r.seen;
    sl_wmsg *m = calloc(1, sizeof *m);
    m->msg.type = SL_MSG_PREFILL;
    m->router = RIG_ROUTER;
    m->msg.prefill = (sl_msg_prefill){.rid = ahead->rid,
                                      .attempt = 1,
                                      .decode_worker = 2,
                                      .decode_addr = "rig:1",
                                      .decode_epoch = 7,
                                      .n_tokens = 1,
                                      .n_pages = 1};
    m->msg.prefill.tokens = calloc(1, sizeof(int32_t));
    m->msg.prefill.pages = calloc(1, sizeof(uint32_t));
    sl_ship_new(r.p, m);
    ck_assert(r.p->ships != ahead && r.p->ships->ship.next == ahead && !r.p->ships->prefetch);
    sl_ship_abort(r.p, RIG_ROUTER, ahead->rid, 1);
    rig_tick();
    ck_assert_int_eq(ahead->ship.state, SHIP_OVER);
    ck_assert_int_eq(r.p->ships->ship.state, SHIP_OVER);
    ck_assert_int_eq(r.seen.told_end, seen.told_end + 2);
    ck_assert_int_eq(r.seen.drained, 1);
    while (r.p->ships)
        sl_ship_mail(r.p, sl_job_mail_of(r.p->ships, PM_RELEASE));
    rig_close();
}
END_TEST

int main(void)
{
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("shipment_lease");
    TCase *t = tcase_create("shipment_lease");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, ends, RIG_FIRST_PATH, RIG_PATHS);
    tcase_add_loop_test(t, fetches, RIG_FIRST_PATH, RIG_PATHS);
    tcase_add_loop_test(t, wrong_leases_are_refused, RIG_FIRST_PATH, RIG_PATHS);
    tcase_add_loop_test(t, the_request_is_another_shipment, RIG_FIRST_PATH, RIG_PATHS);
    suite_add_tcase(s, t);
    return run_suite(s);
}
