/* The state machine of a ticket (decode/decode_impl.h), state by state: what changes it, which messages are sent,
 * when pages become free. */
#include "tests/unit/decode/decode_double.h"
#include "tests/unit/run_suite.h"

static decode_double x;

static void open_with(void (*change)(dd_opts *o))
{
    dd_opts o = dd_defaults();
    if (change)
        change(&o);
    dd_open(&x, &o);
}

static void no_verify(dd_opts *o)
{
    o->no_verify = true;
}

/* A ticket of 130 tokens, 3 pages, in a state from LANDING to RUNNING. */
static void reach(uint64_t rid, sl_ticket_state state)
{
    bool worked;
    dd_reserve(&x, rid, 130, 50, (int)rid, 0);
    dd_expect(&x, SL_MSG_RESERVED, rid);
    if (state >= SL_TICKET_CHECKING)
        dd_commit(&x, rid, DD_WRITER, 0);
    if (state >= SL_TICKET_WAITING) {
        ck_assert(dd_checked(&x, 0));
        dd_expect(&x, SL_MSG_TOKENS, rid);
    }
    if (state >= SL_TICKET_RUNNING) {
        ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
        dd_expect(&x, SL_MSG_TOKENS, rid);
    }
    ck_assert_int_eq(dd_ticket(&x, rid)->state, state);
}

START_TEST(from_reserve_to_done)
{
    bool worked;
    open_with(NULL);
    dd_reserve(&x, 1, 130, 3, 0, 0);
    const dd_said *s = dd_expect(&x, SL_MSG_RESERVED, 1);
    ck_assert_uint_eq(s->n, 3);
    ck_assert_uint_eq(s->matched, 0);
    ck_assert_int_eq(dd_held(&x), 3);
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_LANDING);
    dd_commit(&x, 1, DD_WRITER, 0);
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_CHECKING);
    dd_silent(&x); /* no token from rows that are not verified */
    ck_assert(dd_checked(&x, 0));
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_TOKENS, 1)->first_index, 0);
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_WAITING);
    ck_assert_int_eq(x.n_joined, 0);
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    ck_assert(worked);
    ck_assert_int_eq(x.n_joined, 1);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_TOKENS, 1)->first_index, 1);
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_RUNNING);
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_TOKENS, 1)->first_index, 2);
    s = dd_expect(&x, SL_MSG_DONE, 1);
    ck_assert_int_eq(s->finish, SL_FINISH_LENGTH);
    ck_assert_uint_eq(s->produced, 3);
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    ck_assert(!worked);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

/* LANDING: the writer may still write; the pages are held until it is known to have stopped. */
START_TEST(abort_while_landing)
{
    open_with(NULL);
    reach(1, SL_TICKET_LANDING);
    dd_abort(&x, 1, SL_ERR_CANCELLED);
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_QUARANTINE);
    dd_silent(&x);
    dd_abort(&x, 1, SL_ERR_CANCELLED); /* a second ABORT has no effect */
    dd_drained(&x, 1, DD_WRITER + 1);  /* the DRAINED of another writer does not count */
    ck_assert_int_eq(dd_held(&x), 3);
    dd_drained(&x, 1, DD_WRITER);
    dd_expect(&x, SL_MSG_DRAINED, 1);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

/* The writer has drained before the ABORT: the pages are free at once. */
START_TEST(drained_before_the_abort)
{
    open_with(NULL);
    reach(1, SL_TICKET_LANDING);
    dd_drained(&x, 1, DD_WRITER);
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_LANDING);
    dd_silent(&x);
    dd_abort(&x, 1, SL_ERR_CANCELLED);
    dd_expect(&x, SL_MSG_DRAINED, 1);
    dd_close(&x);
}
END_TEST

/* After COMMIT the writer writes no more: the answer is immediate, the pages wait for the checker. */
START_TEST(abort_while_checking)
{
    open_with(NULL);
    reach(1, SL_TICKET_CHECKING);
    dd_abort(&x, 1, SL_ERR_CANCELLED);
    dd_expect(&x, SL_MSG_DRAINED, 1);
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_ENDING);
    ck_assert_int_eq(dd_held(&x), 3);
    dd_abort(&x, 1, SL_ERR_CANCELLED);
    ck_assert(dd_checked(&x, 0));
    dd_silent(&x); /* no token of a request that was given up */
    dd_close(&x);
}
END_TEST

START_TEST(abort_while_waiting_and_running)
{
    open_with(NULL);
    reach(1, SL_TICKET_WAITING);
    dd_abort(&x, 1, SL_ERR_CANCELLED);
    dd_expect(&x, SL_MSG_DRAINED, 1);
    reach(2, SL_TICKET_RUNNING);
    ck_assert_int_eq(dd_running(&x), 1);
    dd_abort(&x, 2, SL_ERR_CANCELLED);
    dd_expect(&x, SL_MSG_DRAINED, 2);
    dd_abort(&x, 3, SL_ERR_CANCELLED); /* an unknown attempt: there are no pages to drain */
    dd_expect(&x, SL_MSG_DRAINED, 3);
    dd_close(&x);
}
END_TEST

/* The deadline ends a reservation, but a timeout alone frees no page: the fence does. */
START_TEST(deadline_then_fence)
{
    open_with(NULL);
    dd_reserve(&x, 1, 130, 5, 0, 10000);
    dd_expect(&x, SL_MSG_RESERVED, 1);
    sl_ticket *t = dd_ticket(&x, 1);
    uint64_t due = sl_run_tick(x.d->run, t->deadline_ns - 1);
    ck_assert_uint_eq(due, t->deadline_ns);
    dd_silent(&x);
    sl_run_tick(x.d->run, t->deadline_ns);
    const dd_said *s = dd_expect(&x, SL_MSG_FAILED, 1);
    ck_assert_int_eq(s->status, SL_ERR_DEADLINE);
    ck_assert(s->retryable);
    ck_assert_int_eq(t->state, SL_TICKET_QUARANTINE);
    due = sl_run_tick(x.d->run, t->due_ns - 1);
    ck_assert_uint_eq(due, t->due_ns);
    ck_assert_int_eq(x.fences, 0);
    uint64_t first = t->due_ns;
    sl_run_tick(x.d->run, first);
    ck_assert_int_eq(x.fences, 1);
    ck_assert_uint_eq(x.fenced.id, DD_WRITER);
    ck_assert_uint_eq(x.fenced.router, DD_ROUTER);
    ck_assert_uint_gt(t->due_ns, 0); /* asked again while there is no answer */
    sl_run_tick(x.d->run, t->due_ns);
    ck_assert_int_eq(x.fences, 2);
    ck_assert_int_eq(dd_held(&x), 3);
    sl_run_fenced(x.d->run, (sl_writer){DD_ROUTER, DD_WRITER + 1});
    ck_assert_int_eq(dd_held(&x), 3);
    sl_run_fenced(x.d->run, (sl_writer){DD_ROUTER, DD_WRITER});
    dd_expect(&x, SL_MSG_DRAINED, 1);
    dd_close(&x);
}
END_TEST

/* A COMMIT that comes too late says that its writer has flushed: it ends the quarantine, and counts as stale. */
START_TEST(late_commit_ends_quarantine)
{
    open_with(NULL);
    reach(1, SL_TICKET_LANDING);
    dd_abort(&x, 1, SL_ERR_CANCELLED);
    dd_commit(&x, 1, DD_WRITER + 1, 0);
    ck_assert_int_eq(dd_held(&x), 3);
    dd_commit(&x, 1, DD_WRITER, 0);
    ck_assert_int_eq(dd_tickets(&x), 0);
    ck_assert_uint_eq(dd_counts(&x).stale, 2);
    dd_close(&x);
}
END_TEST

/* DRAINED that the router relays for a writer that it has lost counts only when that writer has no connection here. */
START_TEST(relayed_drained)
{
    open_with(NULL);
    reach(1, SL_TICKET_LANDING);
    sl_run_connected(x.d->run, (sl_writer){DD_ROUTER, DD_WRITER});
    dd_abort(&x, 1, SL_ERR_PEER);
    dd_drained_relayed(&x, 1);
    ck_assert_int_eq(dd_held(&x), 3);
    sl_run_fenced(x.d->run, (sl_writer){DD_ROUTER, DD_WRITER}); /* its connection is closed */
    dd_expect(&x, SL_MSG_DRAINED, 1);
    reach(2, SL_TICKET_LANDING);
    dd_abort(&x, 2, SL_ERR_PEER);
    dd_drained_relayed(&x, 2);
    dd_expect(&x, SL_MSG_DRAINED, 2);
    reach(3, SL_TICKET_LANDING); /* given up for another reason: the writer's DRAINED, relayed */
    sl_run_connected(x.d->run, (sl_writer){DD_ROUTER, DD_WRITER});
    dd_abort(&x, 3, SL_ERR_CANCELLED);
    dd_drained_relayed(&x, 3);
    dd_expect(&x, SL_MSG_DRAINED, 3);
    dd_close(&x);
}
END_TEST

START_TEST(wrong_commits)
{
    open_with(NULL);
    reach(1, SL_TICKET_LANDING);
    dd_commit(&x, 1, DD_WRITER + 1, 0); /* not its writer */
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_LANDING);
    ck_assert_uint_eq(dd_counts(&x).stale, 1);
    dd_commit(&x, 1, DD_WRITER, 1);
    const dd_said *s = dd_expect(&x, SL_MSG_FAILED, 1);
    ck_assert_int_eq(s->status, SL_ERR_CORRUPT);
    ck_assert(s->retryable);
    /* at once: a COMMIT, right or wrong, says that all puts are flushed */
    ck_assert_int_eq(dd_tickets(&x), 0);
    reach(2, SL_TICKET_CHECKING);
    dd_commit(&x, 2, DD_WRITER, 0); /* a second one */
    ck_assert_uint_eq(dd_counts(&x).stale, 2);
    ck_assert(dd_checked(&x, 1));
    ck_assert_int_eq(dd_expect(&x, SL_MSG_FAILED, 2)->status, SL_ERR_CORRUPT);
    ck_assert_uint_eq(dd_counts(&x).corrupt, 1);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

static void refused(uint64_t rid, sl_status st, bool retryable)
{
    const dd_said *s = dd_expect(&x, SL_MSG_FAILED, rid);
    ck_assert_int_eq(s->status, st);
    ck_assert_int_eq(s->retryable, retryable);
}

START_TEST(refused_reservations)
{
    open_with(NULL);
    dd_reserve(&x, 1, 1024, 5, 0, 0);
    refused(1, SL_ERR_TOO_LARGE, false); /* no room for a token in the context of 1024 */
    dd_reserve(&x, 2, 10, 0, 0, 0);
    refused(2, SL_ERR_INVALID, false); /* max_tokens 0 */
    for (uint64_t rid = 3; rid < 7; rid++)
        reach(rid, SL_TICKET_LANDING);
    dd_reserve(&x, 3, 130, 5, 0, 0); /* that attempt is here already */
    ck_assert_uint_eq(dd_counts(&x).stale, 1);
    dd_reserve(&x, 7, 10, 5, 0, 0);
    refused(7, SL_ERR_EXHAUSTED, true); /* max_batch + max_waiting tickets */
    for (uint64_t rid = 3; rid < 7; rid++) {
        dd_drained(&x, rid, DD_WRITER);
        dd_abort(&x, rid, SL_ERR_CANCELLED);
        dd_expect(&x, SL_MSG_DRAINED, rid);
    }
    x.d->role.draining = true;
    dd_reserve(&x, 8, 10, 5, 0, 0);
    refused(8, SL_ERR_EXHAUSTED, true);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

START_TEST(no_host_pages)
{
    open_with(NULL);
    dd_reserve(&x, 1, 900, 5, 0, 0); /* 15 of 16 pages */
    dd_expect(&x, SL_MSG_RESERVED, 1);
    dd_reserve(&x, 2, 100, 5, 1, 0);
    refused(2, SL_ERR_EXHAUSTED, true);
    dd_drained(&x, 1, DD_WRITER);
    dd_abort(&x, 1, SL_ERR_CANCELLED);
    dd_close(&x);
}
END_TEST

/* Pages of a prompt that was here before are matched; their checksums are answered while the ticket lands. */
START_TEST(asks_for_matched_pages)
{
    open_with(NULL);
    dd_verified(&x, 1, 200, 1, 0);
    dd_expect(&x, SL_MSG_DONE, 1);
    dd_reserve(&x, 2, 200, 5, 0, 0);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 3);
    dd_pages_ask(&x, 2, 0, 3);
    dd_silent(&x);
    ck_assert(dd_checked(&x, 0));
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_PAGES_CRC, 2)->n, 3 * DD_LAYERS);
    dd_pages_ask(&x, 2, 1, 3); /* beyond the matched ones */
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_PAGES_CRC, 2)->n, 0);
    dd_pages_ask(&x, 2, 0, 2);
    dd_abort(&x, 2, SL_ERR_CANCELLED);
    dd_drained(&x, 2, DD_WRITER);
    dd_expect(&x, SL_MSG_DRAINED, 2);
    ck_assert_int_eq(dd_ticket(&x, 2)->state, SL_TICKET_ENDING);
    dd_pages_ask(&x, 2, 0, 2);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_PAGES_CRC, 2)->n, 0);
    ck_assert(dd_checked(&x, 0));
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_PAGES_CRC, 2)->n, 0);
    dd_close(&x);
}
END_TEST

/* Without verification, COMMIT is handled while the checker still reads pages for PAGES_ASK: the request may be done
 * before that has ended. */
START_TEST(done_while_pages_are_read)
{
    open_with(no_verify);
    dd_reserve(&x, 1, 200, 1, 0, 0);
    dd_expect(&x, SL_MSG_RESERVED, 1);
    dd_commit(&x, 1, DD_WRITER, 0);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_expect(&x, SL_MSG_DONE, 1);
    dd_reserve(&x, 2, 200, 1, 0, 0);
    dd_expect(&x, SL_MSG_RESERVED, 2);
    dd_pages_ask(&x, 2, 0, 3);
    dd_commit(&x, 2, DD_WRITER, 0);
    dd_expect(&x, SL_MSG_TOKENS, 2);
    dd_expect(&x, SL_MSG_DONE, 2);
    ck_assert_int_eq(dd_ticket(&x, 2)->state, SL_TICKET_ENDING);
    ck_assert_int_eq(dd_held(&x), 4);
    ck_assert(dd_checked(&x, 0));
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_PAGES_CRC, 2)->n, 0);
    dd_close(&x);
}
END_TEST

/* Loss of the router ends every ticket; writers that may still write are fenced at the next tick. */
START_TEST(router_is_lost)
{
    open_with(NULL);
    reach(1, SL_TICKET_RUNNING);
    reach(2, SL_TICKET_WAITING);
    reach(3, SL_TICKET_CHECKING);
    reach(4, SL_TICKET_LANDING);
    sl_run_router_down(x.d->run, DD_ROUTER);
    ck_assert_int_eq(dd_tickets(&x), 2);
    ck_assert_int_eq(dd_ticket(&x, 3)->state, SL_TICKET_ENDING);
    ck_assert_int_eq(dd_ticket(&x, 4)->state, SL_TICKET_QUARANTINE);
    ck_assert(dd_checked(&x, 0));
    sl_run_tick(x.d->run, sl_now_ns());
    ck_assert_int_eq(x.fences, 1);
    sl_run_fenced(x.d->run, (sl_writer){DD_ROUTER, DD_WRITER});
    dd_expect(&x, SL_MSG_DRAINED, 4);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

/* Two routers that use the same numbers for their requests and writers: what one says, and its loss, touches its own
 * tickets only. The other's request decodes to its end, and everything that is said goes to the router it is for. */
START_TEST(two_routers)
{
    const uint32_t other = DD_ROUTER + 1;
    open_with(NULL);
    dd_reserve(&x, 1, 100, 3, 1, 0);
    dd_expect(&x, SL_MSG_RESERVED, 1);
    x.router = other;
    dd_reserve(&x, 1, 130, 3, 2, 0);
    ck_assert_uint_ne(dd_expect(&x, SL_MSG_RESERVED, 1)->ticket, 0);
    dd_reserve(&x, 2, 70, 3, 3, 0);
    dd_expect(&x, SL_MSG_RESERVED, 2);
    dd_abort(&x, 1, SL_ERR_CANCELLED);
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_QUARANTINE);
    sl_run_router_down(x.d->run, other);
    sl_run_tick(x.d->run, sl_now_ns());
    ck_assert_int_eq(x.fences, 2);
    ck_assert_uint_eq(x.fenced.router, other);

    x.router = DD_ROUTER;
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_LANDING);
    dd_commit(&x, 1, DD_WRITER, 0);
    ck_assert(dd_checked(&x, 0));
    dd_expect(&x, SL_MSG_TOKENS, 1);

    x.router = other; /* the writer's connection of the lost router is closed; that of the other one stays */
    ck_assert_int_eq(dd_tickets(&x), 3);
    sl_run_fenced(x.d->run, (sl_writer){other, DD_WRITER});
    dd_expect(&x, SL_MSG_DRAINED, 1);
    dd_expect(&x, SL_MSG_DRAINED, 2);
    x.router = DD_ROUTER;
    ck_assert_int_eq(dd_tickets(&x), 1);
    for (int i = 0; i < 2; i++) {
        bool worked;
        ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
        ck_assert(worked);
        dd_expect(&x, SL_MSG_TOKENS, 1);
    }
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_DONE, 1)->produced, 3);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

static void wide(dd_opts *o)
{
    o->max_waiting = 8;
}

/* A prompt of one router needs all pages, and short requests of another one take every page that comes free: after
 * 16 of them it is its turn, although the other router still asks. */
START_TEST(a_long_prompt_is_not_passed_for_ever)
{
    const uint32_t other = DD_ROUTER + 1;
    open_with(wide);
    sl_run_router_up(x.d->run, DD_ROUTER);
    sl_run_router_up(x.d->run, other);
    uint64_t running = 0, next = 100, passed = 0;
    x.router = other;
    dd_verified(&x, running = next++, 60, 3, 1);
    for (bool turn = false; !turn; passed++) {
        ck_assert_uint_le(passed, 20);
        x.router = DD_ROUTER;
        dd_reserve(&x, 1, 64 * 16 - 10, 3, 2, 0);
        ck_assert_int_eq(dd_expect(&x, SL_MSG_FAILED, 1)->status, SL_ERR_EXHAUSTED);
        x.router = other;
        dd_reserve(&x, next, 60, 3, 3, 0);
        turn = x.said[x.seen].type == SL_MSG_FAILED;
        if (turn)
            break;
        dd_expect(&x, SL_MSG_RESERVED, next);
        dd_abort(&x, running, SL_ERR_CANCELLED); /* one ends, another one has its pages already */
        dd_expect(&x, SL_MSG_DRAINED, running);
        dd_commit(&x, running = next++, DD_WRITER, 0);
        ck_assert(dd_checked(&x, 0));
        dd_expect(&x, SL_MSG_TOKENS, running);
    }
    ck_assert_uint_eq(passed, 16);
    ck_assert_int_eq(dd_expect(&x, SL_MSG_FAILED, next)->status, SL_ERR_EXHAUSTED);
    dd_abort(&x, running, SL_ERR_CANCELLED);
    dd_expect(&x, SL_MSG_DRAINED, running);
    dd_reserve(&x, next, 60, 3, 3, 0); /* all pages are free, but they are set aside */
    dd_expect(&x, SL_MSG_FAILED, next);
    x.router = DD_ROUTER;
    dd_reserve(&x, 1, 64 * 16 - 10, 3, 2, 0);
    dd_expect(&x, SL_MSG_RESERVED, 1);
    dd_abort(&x, 1, SL_ERR_CANCELLED);
    dd_drained(&x, 1, DD_WRITER);
    dd_expect(&x, SL_MSG_DRAINED, 1);
    x.router = other; /* nothing is set aside any more */
    dd_reserve(&x, next, 60, 3, 3, 0);
    dd_expect(&x, SL_MSG_RESERVED, next);
    dd_abort(&x, next, SL_ERR_CANCELLED);
    dd_drained(&x, next, DD_WRITER);
    dd_expect(&x, SL_MSG_DRAINED, next);
    dd_close(&x);
}
END_TEST

static uint32_t held_by(uint32_t router)
{
    uint32_t n = 0;
    for (const sl_ticket *t = x.d->run->core.tickets.first; t; t = t->next)
        n += t->router == router && sl_ticket_has_place(t);
    return n;
}

/* Asks for a place for that router; true: it got one. */
static bool place(uint32_t router, uint64_t rid)
{
    x.router = router;
    dd_reserve(&x, rid, 10, 3, 3, 0);
    bool got = x.said[x.seen].type == SL_MSG_RESERVED;
    dd_expect(&x, got ? SL_MSG_RESERVED : SL_MSG_FAILED, rid);
    return got;
}

/* One router holds all places and asks for each again as soon as it is free, before the other one can know: the other
 * one gets every second place all the same, and none is unused when it stops asking. */
START_TEST(a_router_does_not_keep_all_places)
{
    const uint32_t full = DD_ROUTER, late = DD_ROUTER + 1;
    open_with(wide);
    uint64_t next = 1, oldest = 1;
    sl_run_router_up(x.d->run, full);
    sl_run_router_up(x.d->run, late);
    for (int i = 0; i < 10; i++)
        ck_assert(place(full, next++));
    for (int i = 0; i < 5; i++) {
        ck_assert(!place(late, 100 + (uint64_t)i));
        x.router = full;
        dd_abort(&x, oldest, SL_ERR_CANCELLED);
        dd_drained(&x, oldest, DD_WRITER);
        dd_expect(&x, SL_MSG_DRAINED, oldest++);
        ck_assert(!place(full, next)); /* it is first, and is refused */
        ck_assert(place(late, 100 + (uint64_t)i));
    }
    ck_assert_uint_eq(held_by(full), 5);
    ck_assert_uint_eq(held_by(late), 5);
    ck_assert(!place(late, 200)); /* it asks for more than its half */
    x.router = full;
    dd_abort(&x, oldest, SL_ERR_CANCELLED);
    dd_drained(&x, oldest, DD_WRITER);
    dd_expect(&x, SL_MSG_DRAINED, oldest++);
    ck_assert(!place(late, 200) && place(full, next++));
    /* one of the late router ends, and it does not ask again: a place is kept for 2 s, not longer */
    x.router = late;
    dd_abort(&x, 100, SL_ERR_CANCELLED);
    dd_drained(&x, 100, DD_WRITER);
    dd_expect(&x, SL_MSG_DRAINED, 100);
    ck_assert(!place(full, next));
    x.d->run->core.admission.routers[1].place_asked_ns -= (uint64_t)2100 * 1000000;
    ck_assert(place(full, next++));
    for (const sl_ticket *t = x.d->run->core.tickets.first; t; t = t->next) {
        uint64_t rid = t->rid;
        if (!sl_ticket_has_place(t))
            continue;
        x.router = t->router;
        dd_abort(&x, rid, SL_ERR_CANCELLED);
        dd_drained(&x, rid, DD_WRITER);
        dd_expect(&x, SL_MSG_DRAINED, rid);
    }
    dd_close(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tickets");
    TCase *t = tcase_create("tickets");
    tcase_add_test(t, from_reserve_to_done);
    tcase_add_test(t, abort_while_landing);
    tcase_add_test(t, drained_before_the_abort);
    tcase_add_test(t, abort_while_checking);
    tcase_add_test(t, abort_while_waiting_and_running);
    tcase_add_test(t, deadline_then_fence);
    tcase_add_test(t, late_commit_ends_quarantine);
    tcase_add_test(t, relayed_drained);
    tcase_add_test(t, wrong_commits);
    tcase_add_test(t, refused_reservations);
    tcase_add_test(t, no_host_pages);
    tcase_add_test(t, asks_for_matched_pages);
    tcase_add_test(t, done_while_pages_are_read);
    tcase_add_test(t, router_is_lost);
    tcase_add_test(t, two_routers);
    tcase_add_test(t, a_long_prompt_is_not_passed_for_ever);
    tcase_add_test(t, a_router_does_not_keep_all_places);
    suite_add_tcase(s, t);
    return run_suite(s);
}
