/* The batch: which request joins when, which one is retracted when no page is free, what a failed step causes. */
#include "tests/unit/decode/decode_double.h"
#include "tests/unit/run_suite.h"

static decode_double x;
static dd_opts o;

static void step_says(int n, const uint64_t *rids)
{
    bool worked;
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    ck_assert(worked == (n > 0));
    for (int i = 0; i < n; i++)
        dd_expect(&x, SL_MSG_TOKENS, rids[i]);
}

static void end(uint64_t rid)
{
    dd_abort(&x, rid, SL_ERR_CANCELLED);
    dd_expect(&x, SL_MSG_DRAINED, rid);
}

/* In the order in which they were verified, not reserved; at most max_batch. */
START_TEST(join_in_order)
{
    o = dd_defaults();
    dd_open(&x, &o);
    dd_reserve(&x, 1, 70, 9, 1, 0);
    dd_expect(&x, SL_MSG_RESERVED, 1);
    dd_verified(&x, 2, 70, 9, 2);
    dd_verified(&x, 3, 70, 9, 3);
    dd_commit(&x, 1, DD_WRITER, 0);
    ck_assert(dd_checked(&x, 0));
    dd_expect(&x, SL_MSG_TOKENS, 1);
    step_says(2, (uint64_t[]){2, 3});
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_WAITING);
    end(2);
    step_says(2, (uint64_t[]){1, 3});
    end(3);
    step_says(1, (uint64_t[]){1});
    end(1);
    step_says(0, NULL);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

/* What a step makes for all requests of a router is one message, in the order of its effects; a step for requests of several routers
 * is one message for each. */
START_TEST(a_step_is_one_message)
{
    o = dd_defaults();
    dd_open(&x, &o);
    dd_verified(&x, 1, 70, 9, 1);
    dd_verified(&x, 2, 70, 9, 2);
    step_says(2, (uint64_t[]){1, 2});
    int before = x.batches;
    const uint64_t begins = sl_now_ns();
    step_says(2, (uint64_t[]){1, 2});
    ck_assert_int_eq(x.batches, before + 1);
    ck_assert_uint_eq(x.since.clock, sl_host_clock()); /* and says when the step ended */
    ck_assert(x.since.ns >= begins && x.since.ns <= sl_now_ns());
    end(1);
    step_says(1, (uint64_t[]){2});
    ck_assert_int_eq(x.batches, before + 2);
    end(2);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

static uint32_t jobs(void)
{
    return atomic_load(&x.d->role.checker.watch.jobs);
}

/* The tokens of a step leave before any work for its pages: seals of those that have become full, in the step in which all
 * requests fill one; the pages of a request that ends. */
START_TEST(tokens_leave_first)
{
    enum { N = 5 };
    o = dd_defaults();
    o.verify = _i ? SL_CFG_VERIFY_ALWAYS : SL_CFG_VERIFY_OFF;
    o.max_batch = o.max_seqs = N;
    o.pages = 64;
    o.overlaps = _i > 1;
    dd_open(&x, &o);
    for (int i = 0; i < N; i++)
        dd_verified(&x, 1 + (uint64_t)i, 70 + 2 * i, 80 - 2 * i, i); /* they end together */
    int sealed = 0, released = 0;
    for (bool worked = true; worked;) {
        const uint32_t before = jobs();
        const int free = sl_store_available(x.d->role.store), batches = x.batches;
        ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
        if (x.batches > batches) {
            ck_assert_uint_eq(x.jobs, before);
            ck_assert_int_le(x.available, free);
            released += sl_store_available(x.d->role.store) > x.available;
        }
        sealed += jobs() > before;
        x.n_said = x.seen = 0;
        dd_check(&x);
    }
    ck_assert_int_eq(sealed > 0, _i > 0);
    ck_assert_int_eq(released > 0, _i == 0); /* else after the last check */
    ck_assert_int_eq(dd_tickets(&x), 0);
    dd_close(&x);
}
END_TEST

static int pages_of_all(int n)
{
    int pages = 0;
    for (int i = 0; i < n; i++)
        pages += sl_lease_n_pages(dd_lease(&x, 1 + (uint64_t)i));
    return pages;
}

/* Requests of equal lengths need their pages in the same step, and get them in several turns before, if some lie unused. */
START_TEST(pages_come_a_few_in_a_turn)
{
    enum { N = 16, LEFT = 40 };
    o = dd_defaults();
    o.max_batch = o.max_seqs = N;
    o.pages = _i ? 6 * N : 3 * N + 2;
    dd_open(&x, &o);
    for (int i = 0; i < N; i++)
        dd_verified(&x, 1 + (uint64_t)i, 128 - LEFT, 300, i);
    ck_assert_int_eq(pages_of_all(N), 2 * N);
    int most = 0, turns_with = 0;
    for (int k = 1; k < LEFT + 5; k++) {
        const int before = pages_of_all(N);
        ck_assert_int_eq(dd_step(&x, &(bool){false}), SL_OK);
        const int more = pages_of_all(N) - before;
        most = more > most ? more : most;
        turns_with += more > 0;
        x.n_said = x.seen = 0;
        if (k < LEFT - 16)
            ck_assert_int_eq(more, 0);
    }
    ck_assert_int_eq(pages_of_all(N), 3 * N);
    ck_assert_int_eq(dd_counts(&x).retracted, 0);
    if (_i) {
        ck_assert_int_le(most, 1 + N / 8);
        ck_assert_int_ge(turns_with, 5);
    } else {
        ck_assert_int_eq(most, N); /* nothing is given to one that another may need */
    }
    for (int i = 0; i < N; i++)
        end(1 + (uint64_t)i);
    dd_close(&x);
}
END_TEST

/* A worker that drains continues requests that have a slot and returns those that wait for one to the router. */
START_TEST(draining_gives_back_what_waits)
{
    o = dd_defaults();
    dd_open(&x, &o);
    dd_verified(&x, 1, 70, 9, 1);
    dd_verified(&x, 2, 70, 9, 2);
    dd_verified(&x, 3, 70, 9, 3);
    step_says(2, (uint64_t[]){1, 2});
    x.d->role.draining = true;
    bool worked;
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    dd_expect(&x, SL_MSG_RETRACTED, 3);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_expect(&x, SL_MSG_TOKENS, 2);
    end(1);
    end(2);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

/* The device is full: a waiting request is tried again at each step; a request that is alone on the device fails. */
START_TEST(device_is_full)
{
    o = dd_defaults();
    dd_open(&x, &o);
    dd_verified(&x, 1, 70, 9, 1);
    step_says(1, (uint64_t[]){1});
    dd_verified(&x, 2, 70, 9, 2);
    x.fail_open = SL_ERR_EXHAUSTED;
    step_says(1, (uint64_t[]){1});
    ck_assert_int_eq(dd_ticket(&x, 2)->state, SL_TICKET_WAITING);
    step_says(2, (uint64_t[]){1, 2});
    end(1);
    end(2);
    dd_verified(&x, 3, 70, 9, 3);
    x.fail_open = SL_ERR_EXHAUSTED;
    step_says(0, NULL);
    const dd_said *s = dd_expect(&x, SL_MSG_FAILED, 3);
    ck_assert_int_eq(s->status, SL_ERR_EXHAUSTED);
    ck_assert(s->retryable);
    dd_close(&x);
}
END_TEST

/* Host pages run out: the request that was verified last is retracted, the first one continues. */
START_TEST(youngest_is_retracted)
{
    o = dd_defaults();
    o.pages = 4;
    dd_open(&x, &o);
    dd_verified(&x, 1, 127, 90, 1); /* 2 pages, a third after one more token */
    dd_verified(&x, 2, 60, 90, 2);  /* 1 page, a second after 4 more tokens */
    for (int i = 0; i < 4; i++)
        step_says(2, (uint64_t[]){1, 2});
    bool worked;
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    dd_expect(&x, SL_MSG_RETRACTED, 2);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    ck_assert_uint_eq(dd_counts(&x).retracted, 1);
    ck_assert_ptr_null(dd_ticket(&x, 2));
    end(1);
    dd_close(&x);
}
END_TEST

/* A request is alone and the store is too small for it: waiting could not help, so it is not retryable. */
START_TEST(alone_and_too_large)
{
    o = dd_defaults();
    o.pages = 2;
    dd_open(&x, &o);
    dd_verified(&x, 1, 127, 90, 1);
    step_says(1, (uint64_t[]){1});
    bool worked;
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    ck_assert(!worked);
    const dd_said *s = dd_expect(&x, SL_MSG_FAILED, 1);
    ck_assert_int_eq(s->status, SL_ERR_EXHAUSTED);
    ck_assert(!s->retryable);
    dd_close(&x);
}
END_TEST

/* A request is alone and the store is large enough, but a lease without a ticket holds pages: it is retracted and can
 * start again. */
START_TEST(alone_while_pages_are_held)
{
    o = dd_defaults();
    o.pages = 4;
    dd_open(&x, &o);
    dd_verified(&x, 1, 127, 90, 1);
    sl_lease *held;
    int32_t tokens[128] = {0};
    ck_assert_int_eq(sl_store_lease(x.d->role.store, dd_seed, tokens, 128, &held), SL_OK);
    ck_assert_int_eq(sl_lease_grow(held, 2 - sl_lease_n_pages(held)), SL_OK);
    step_says(1, (uint64_t[]){1});
    bool worked;
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    dd_expect(&x, SL_MSG_RETRACTED, 1);
    ck_assert_ptr_null(dd_ticket(&x, 1));
    sl_lease_release(held, false);
    dd_close(&x);
}
END_TEST

/* A failed step ends the requests in it. Only the loss of the device ends the worker. */
START_TEST(failed_steps)
{
    bool worked;
    o = dd_defaults();
    dd_open(&x, &o);
    dd_verified(&x, 1, 70, 9, 1);
    dd_verified(&x, 2, 70, 9, 2);
    x.fail_step = SL_ERR_UNSUPPORTED;
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    ck_assert(worked);
    ck_assert(dd_expect(&x, SL_MSG_FAILED, 1)->retryable);
    ck_assert(dd_expect(&x, SL_MSG_FAILED, 2)->retryable);
    dd_verified(&x, 3, 70, 9, 3);
    x.fail_step = SL_ERR_DEVICE;
    ck_assert_int_eq(dd_step(&x, &worked), SL_ERR_DEVICE);
    ck_assert_int_eq(dd_expect(&x, SL_MSG_FAILED, 3)->status, SL_ERR_DEVICE);
    dd_close(&x);
}
END_TEST

/* A request ends at the end of the context in the same way as at max_tokens. */
START_TEST(context_is_full)
{
    o = dd_defaults();
    o.max_context = 72;
    dd_open(&x, &o);
    dd_verified(&x, 1, 70, 90, 1);
    step_says(1, (uint64_t[]){1});
    ck_assert_int_eq(dd_expect(&x, SL_MSG_DONE, 1)->finish, SL_FINISH_LENGTH);
    dd_close(&x);
}
END_TEST

/* Pages that fill while it runs are found by the next request with the same beginning. */
START_TEST(produced_pages_are_reused)
{
    int32_t tokens[130];
    o = dd_defaults();
    dd_open(&x, &o);
    dd_verified(&x, 1, 120, 11, 1);
    for (int i = 0; i < 9; i++)
        step_says(1, (uint64_t[]){1});
    memcpy(tokens, dd_ticket(&x, 1)->tokens, sizeof tokens);
    ck_assert_int_eq(sl_store_match(x.d->role.store, dd_seed, tokens, 130), 2);
    step_says(1, (uint64_t[]){1});
    dd_expect(&x, SL_MSG_DONE, 1);
    ck_assert_int_eq(sl_store_match(x.d->role.store, dd_seed, tokens, 130), 2);
    dd_close(&x);
}
END_TEST

/* ---- two steps in flight ---- */

static void turns(int n)
{
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(dd_step(&x, &(bool){false}), SL_OK);
}

static void open_overlapped(int pages)
{
    o = dd_defaults();
    o.overlaps = true;
    o.pages = pages ? pages : o.pages;
    dd_open(&x, &o);
}

/* Tokens come one turn after their step was submitted; no step is begun for a token that the limit of the length excludes. */
START_TEST(a_length_is_known_in_time)
{
    open_overlapped(0);
    dd_verified(&x, 1, 70, 5, 1); /* and 4 more tokens */
    turns(1);
    dd_silent(&x);
    ck_assert_int_eq(x.d->run->n_flights, 1);
    for (int i = 0; i < 4; i++) {
        turns(1);
        dd_expect(&x, SL_MSG_TOKENS, 1);
    }
    ck_assert_int_eq(dd_expect(&x, SL_MSG_DONE, 1)->produced, 5);
    ck_assert_uint_eq(dd_counts(&x).steps, 4);
    ck_assert_int_eq(x.d->run->n_flights, 0);
    bool worked;
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    ck_assert(!worked);
    dd_close(&x);
}
END_TEST

/* What is cancelled while steps compute it is answered at once, gives no token any more, and keeps its sequence and pages until
 * the steps are over. */
START_TEST(a_cancelled_request_stays_until_its_steps_are_over)
{
    open_overlapped(0);
    dd_verified(&x, 1, 70, 50, 1);
    dd_verified(&x, 2, 70, 50, 2);
    turns(2);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_expect(&x, SL_MSG_TOKENS, 2);
    end(1);
    ck_assert_int_eq(fake_open_seqs(x.fake), 2);
    ck_assert_int_gt(dd_held(&x), 2);
    turns(1); /* its item is collected and dropped */
    dd_expect(&x, SL_MSG_TOKENS, 2);
    dd_silent(&x);
    ck_assert_int_eq(fake_open_seqs(x.fake), 1);
    ck_assert_int_eq(dd_held(&x), 2);
    end(2);
    turns(2);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

/* As youngest_is_retracted: the same request gives way, after the same number of tokens of the other, although steps were in
 * flight when the page was missing. */
START_TEST(room_is_made_when_no_step_is_in_flight)
{
    open_overlapped(4);
    dd_verified(&x, 1, 127, 90, 1);
    dd_verified(&x, 2, 60, 90, 2);
    turns(1);
    for (int i = 0; i < 4; i++) {
        turns(1);
        dd_expect(&x, SL_MSG_TOKENS, 1);
        dd_expect(&x, SL_MSG_TOKENS, 2);
    }
    turns(1); /* request 1 alone continues: request 2 has no page */
    if (x.d->run->n_flights)
        turns(1);
    for (int i = 0; i < 4 && dd_counts(&x).retracted == 0; i++)
        turns(1);
    ck_assert_uint_eq(dd_counts(&x).retracted, 1);
    ck_assert_ptr_null(dd_ticket(&x, 2));
    ck_assert_ptr_nonnull(dd_ticket(&x, 1));
    turns(2);
    dd_abort(&x, 1, SL_ERR_CANCELLED);
    turns(2);
    ck_assert_int_eq(dd_tickets(&x), 0);
    dd_close(&x);
}
END_TEST

static bool wants_rest;

static bool asks_for_rest(const void *impl)
{
    (void)impl;
    return wants_rest;
}

/* A runner that has work for an idle device gets no step before the tokens of the one in flight are told. */
START_TEST(tokens_come_before_a_rest)
{
    open_overlapped(0);
    x.runner.wants_rest = asks_for_rest;
    dd_verified(&x, 1, 70, 50, 1);
    turns(1);
    ck_assert_int_eq(x.d->run->n_flights, 1);
    wants_rest = true;
    turns(1);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    ck_assert_int_eq(x.d->run->n_flights, 0);
    turns(1); /* with none in flight it has its rest in the call */
    dd_silent(&x);
    ck_assert_int_eq(x.d->run->n_flights, 1);
    wants_rest = false;
    turns(1);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    ck_assert_int_eq(x.d->run->n_flights, 1);
    end(1);
    turns(2);
    dd_close(&x);
}
END_TEST

static sl_status broken_collect(void *impl, sl_err *err)
{
    (void)impl;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "the device has lost these steps");
}

/* A step that fails when it is collected takes the later one with it; one that cannot be submitted fails alone, and the one
 * before it still gives its tokens to no request. */
START_TEST(failed_steps_in_flight)
{
    open_overlapped(0);
    dd_verified(&x, 1, 70, 50, 1);
    turns(2);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    x.fail_submit = SL_ERR_UNSUPPORTED;
    turns(1);
    ck_assert(dd_expect(&x, SL_MSG_FAILED, 1)->retryable);
    turns(1);
    dd_silent(&x);
    ck_assert_int_eq(fake_open_seqs(x.fake), 0);
    dd_verified(&x, 2, 70, 50, 2);
    turns(1);
    fake_lose(x.fake);
    x.runner.collect = broken_collect;
    turns(1);
    ck_assert(dd_expect(&x, SL_MSG_FAILED, 2)->retryable);
    ck_assert_int_eq(x.d->run->n_flights, 0);
    ck_assert_int_eq(dd_tickets(&x), 0);
    dd_close(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("batch");
    TCase *t = tcase_create("batch");
    tcase_add_test(t, join_in_order);
    tcase_add_test(t, a_step_is_one_message);
    tcase_add_loop_test(t, tokens_leave_first, 0, 3);
    tcase_add_loop_test(t, pages_come_a_few_in_a_turn, 0, 2);
    tcase_add_test(t, draining_gives_back_what_waits);
    tcase_add_test(t, device_is_full);
    tcase_add_test(t, youngest_is_retracted);
    tcase_add_test(t, alone_and_too_large);
    tcase_add_test(t, alone_while_pages_are_held);
    tcase_add_test(t, failed_steps);
    tcase_add_test(t, context_is_full);
    tcase_add_test(t, produced_pages_are_reused);
    tcase_add_test(t, a_length_is_known_in_time);
    tcase_add_test(t, a_cancelled_request_stays_until_its_steps_are_over);
    tcase_add_test(t, room_is_made_when_no_step_is_in_flight);
    tcase_add_test(t, tokens_come_before_a_rest);
    tcase_add_test(t, failed_steps_in_flight);
    suite_add_tcase(s, t);
    return run_suite(s);
}
