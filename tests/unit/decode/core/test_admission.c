/*
 * Admission alone (decode/core/admission.h), with a world that has a number of pages and a clock that the test sets: claims of
 * routers, places, the order of the queue, who makes room, what draining gives back, how many may wait for a load.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "decode/core/admission.h"
#include "decode/core/effects.h"
#include "kernels/params.h"
#include "tests/unit/run_suite.h"

enum { PAGE = SL_PAGE_TOKENS, A = 1, B = 2, WRITER = 5 };
static const uint64_t MS = 1000000;

static struct {
    sl_core c;
    int free_pages;
    bool loads;
    uint64_t now, rid;
    char said[64]; /* R reserved, F failed, X retracted, T tokens */
    char why[100];
    int n_said;
} x;

static int32_t tokens[64 * PAGE];

static void say(char what)
{
    if (x.n_said < (int)sizeof x.said - 1)
        x.said[x.n_said++] = what;
}

static void tell_reserved(void *ctx, sl_ticket *t)
{
    (void)ctx, (void)t;
    say('R');
}

static void tell_failed(void *ctx, const sl_ticket *t, sl_status st, bool retryable, const char *why)
{
    (void)ctx, (void)t, (void)st, (void)retryable;
    strncpy(x.why, why, sizeof x.why - 1);
    say('F');
}

static void tell_tokens(void *ctx, sl_ticket *t, int32_t first_index, const sl_msg_token *list, int32_t n)
{
    (void)ctx, (void)t, (void)first_index, (void)list, (void)n;
    say('T');
}

static void tell_retracted(void *ctx, sl_ticket *t, const char *why)
{
    (void)ctx, (void)t;
    strncpy(x.why, why, sizeof x.why - 1);
    say('X');
}

static void none(void *ctx, sl_ticket *t)
{
    (void)ctx, (void)t;
}

static void none_const(void *ctx, const sl_ticket *t)
{
    (void)ctx, (void)t;
}

static void none_publish(void *ctx, sl_ticket *t, int32_t rows)
{
    (void)ctx, (void)t, (void)rows;
}

static void release(void *ctx, sl_ticket *t)
{
    (void)ctx;
    x.free_pages += t->n_pages;
}

static int32_t missing(void *ctx, const sl_ticket *t)
{
    (void)ctx;
    return (t->n_tokens + PAGE - 1) / PAGE;
}

static int32_t available(void *ctx)
{
    (void)ctx;
    return x.free_pages;
}

static bool load(void *ctx, sl_ticket *t)
{
    (void)ctx, (void)t;
    return x.loads;
}

static sl_status lease(void *ctx, sl_ticket *t, sl_grant *out)
{
    int32_t n = missing(ctx, t);
    if (n > x.free_pages)
        return SL_ERR_EXHAUSTED;
    x.free_pages -= n;
    *out = (sl_grant){.n_pages = n};
    return SL_OK;
}

static void open_core(int pages, int max_batch, int max_waiting)
{
    memset(&x, 0, sizeof x);
    x.free_pages = pages;
    x.now = 5000 * MS;
    x.c.env = (sl_ticket_env){.vocab = 100, .max_context = 64 * PAGE, .quarantine_ms = 1000};
    x.c.world = (sl_world){.tell_reserved = tell_reserved,
                           .tell_failed = tell_failed,
                           .tell_prefilled = none_const,
                           .tell_tokens = tell_tokens,
                           .tell_retracted = tell_retracted,
                           .tell_drained = none_const,
                           .publish = none_publish,
                           .accepted = none_const,
                           .quarantined = none_const,
                           .close = none,
                           .leave = none,
                           .release = release,
                           .missing = missing,
                           .available = available,
                           .load = load,
                           .lease = lease};
    x.c.admission.o = (sl_admission_opts){max_batch, max_waiting};
    ck_assert_int_eq(sl_core_open(&x.c, NULL), SL_OK);
    sl_admission_session(&x.c, A, true);
    sl_admission_session(&x.c, B, true);
}

static sl_ticket *ask(uint32_t router, uint64_t rid, int pages, bool prompt)
{
    sl_ticket *t = sl_tickets_new(&x.c.tickets);
    t->rid = rid;
    t->attempt = 1;
    t->router = router;
    t->writer = prompt ? 0 : WRITER;
    t->n_prompt = t->n_tokens = pages * PAGE;
    t->tokens = tokens;
    t->sampling.max_tokens = 1000;
    sl_tickets_enter(&x.c.tickets, t);
    sl_admission_ask(&x.c, t, x.now);
    return t;
}

/* Whether it is granted; it ends at once. */
static bool granted(uint32_t router, uint64_t rid, int pages)
{
    sl_ticket *t = ask(router, rid, pages, true);
    bool yes = t->state == SL_TICKET_PROMPT;
    sl_core_event(&x.c, t, &(sl_ticket_event){.kind = SL_ON_ABORT, .now_ns = x.now});
    sl_tickets_sweep(&x.c.tickets);
    return yes;
}

/* A ticket that waits for a slot. */
static sl_ticket *waiting(int pages)
{
    sl_ticket *t = ask(A, ++x.rid, pages, true);
    sl_ticket_event stepped = {.kind = SL_ON_STEPPED, .now_ns = x.now},
                    computed = {.kind = SL_ON_COMPUTED, .now_ns = x.now};
    stepped.stepped.rows = t->n_tokens;
    sl_core_signal(&x.c, t, SL_ON_JOINED, x.now);
    sl_core_signal(&x.c, t, SL_ON_STEP, x.now);
    sl_core_event(&x.c, t, &stepped);
    ck_assert(sl_core_event(&x.c, t, &computed));
    ck_assert_int_eq(t->state, SL_TICKET_WAITING);
    return t;
}

static void close_core(int pages)
{
    sl_core_close(&x.c);
    ck_assert_int_eq(x.free_pages, pages);
}

/* A request is passed 16 times; of two claims the one that became due first counts; a claim ends when its request does not
 * ask again, with its router, and when it is granted. */
START_TEST(test_claims)
{
    open_core(4, 8, 8);
    sl_ticket *holds = ask(A, 50, 1, true);
    ck_assert(!granted(A, 1, 4) && !granted(B, 1, 4)); /* both leave a claim: a page is in use */
    for (int i = 0; i < 16; i++) {
        ck_assert(granted(B, 7, 1)); /* the claim of A counts those of B */
        x.now += MS;
    }
    ck_assert(!granted(B, 7, 1));
    ck_assert(!granted(A, 8, 1)); /* nothing else of its own router either */
    ck_assert(!granted(A, 1, 4)); /* it asks again: still too few */
    sl_core_event(&x.c, holds, &(sl_ticket_event){.kind = SL_ON_ABORT, .now_ns = x.now});
    ck_assert(!granted(B, 7, 1));
    if (_i == 0) {
        ck_assert(granted(A, 1, 4)); /* its turn */
    } else if (_i == 1) {
        sl_admission_session(&x.c, A, false);
    } else {
        x.now += 2100 * MS;
    }
    ck_assert(granted(B, 7, 1));
    close_core(4);
}
END_TEST

/* A router that was refused a place keeps one, for 2 s, against one that holds more. */
START_TEST(test_places)
{
    open_core(40, 2, 2);
    sl_ticket *t[4];
    for (uint64_t i = 0; i < 4; i++)
        t[i] = ask(A, 10 + i, 1, true);
    ck_assert(!granted(B, 1, 1));
    ck_assert_str_eq(x.why, "all decode slots and all places in the queue are in use");
    sl_core_event(&x.c, t[0], &(sl_ticket_event){.kind = SL_ON_ABORT, .now_ns = x.now});
    ck_assert(!granted(A, 20, 1));
    ck_assert(_i || granted(B, 1, 1));
    if (_i)
        x.now += 2100 * MS;
    ck_assert(granted(A, 20, 1));
    close_core(40);
}
END_TEST

/* Slots are given in the order in which tickets were verified; who was verified last makes room. */
START_TEST(test_queue)
{
    open_core(12, 2, 4);
    sl_ticket *first = waiting(2), *second = waiting(2), *third = waiting(2);
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_eq(sl_admission_next(&x.c), i ? second : first);
        sl_core_signal(&x.c, i ? second : first, SL_ON_JOINED, x.now);
    }
    ck_assert_ptr_null(sl_admission_next(&x.c)); /* no slot */
    sl_admission_make_room(&x.c, first, "no pages", 3, 12, x.now);
    ck_assert_int_eq(third->state, SL_TICKET_GONE);
    sl_admission_make_room(&x.c, first, "no pages", 3, 12, x.now);
    ck_assert_int_eq(second->state, SL_TICKET_GONE);
    sl_admission_make_room(&x.c, first, "no pages", 3, 12,
                           x.now); /* alone, and it would fit: it is not failed */
    ck_assert_int_eq(first->state, SL_TICKET_GONE);
    ck_assert_str_eq(x.why, "exhausted");
    sl_ticket *large = waiting(2);
    sl_core_signal(&x.c, large, SL_ON_JOINED, x.now);
    sl_admission_make_room(&x.c, large, "no pages", 13, 12, x.now);
    ck_assert_int_eq(large->state, SL_TICKET_GONE);
    ck_assert_str_eq(x.why, "no pages: this request does not fit even alone");
    close_core(12);
}
END_TEST

/* One page is kept for every running request; a worker without requests takes every prompt. */
START_TEST(test_room)
{
    open_core(6, 4, 4);
    sl_core_signal(&x.c, waiting(2), SL_ON_JOINED, x.now);
    ck_assert(!granted(A, 90, 4) && granted(A, 91, 3));
    close_core(6);
    open_core(6, 4, 4);
    ck_assert(granted(A, 90, 6) && !granted(A, 91, 7));
    close_core(6);
}
END_TEST

START_TEST(test_draining)
{
    open_core(20, 1, 8);
    sl_ticket *runs = waiting(1), *waits = waiting(1), *prompt = ask(A, 70, 1, true),
              *begun = ask(A, 71, 1, true), *lands = ask(A, 72, 1, false);
    sl_core_signal(&x.c, runs, SL_ON_JOINED, x.now);
    sl_core_signal(&x.c, begun, SL_ON_JOINED, x.now);
    x.c.admission.draining = true;
    sl_admission_give_back(&x.c, x.now);
    ck_assert_int_eq(waits->state, SL_TICKET_GONE);
    ck_assert_int_eq(prompt->state, SL_TICKET_GONE);
    ck_assert_int_eq(runs->state, SL_TICKET_RUNNING);
    ck_assert_int_eq(begun->state, SL_TICKET_PROMPT);
    ck_assert_int_eq(lands->state, SL_TICKET_LANDING);
    ck_assert(!granted(A, 73, 1));
    ck_assert_str_eq(x.why, "draining");
    close_core(20);
}
END_TEST

/* Of six requests that could wait for a load, four do: there are four places. */
START_TEST(test_loads)
{
    open_core(20, 2, 2);
    x.loads = true;
    int loading = 0;
    sl_ticket *first = NULL;
    for (uint64_t i = 0; i < 5; i++) {
        sl_ticket *t = ask(A, 30 + i, 1, true);
        loading += t->state == SL_TICKET_LOADING;
        first = first ? first : t;
    }
    ck_assert_int_eq(loading, 4);
    ck_assert_int_eq(sl_tickets_placed(&x.c.tickets), 1); /* the fifth was handled without its load */
    x.loads = false;
    x.now += 500 * MS;
    sl_admission_ask(&x.c, first, x.now);
    ck_assert_int_eq(first->state, SL_TICKET_PROMPT);
    ck_assert_uint_eq(first->granted_ns, x.now); /* the time of the load is not the prompt's */
    close_core(20);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("admission");
    TCase *c = tcase_create("admission");
    tcase_add_loop_test(c, test_claims, 0, 3);
    tcase_add_loop_test(c, test_places, 0, 2);
    tcase_add_test(c, test_queue);
    tcase_add_test(c, test_room);
    tcase_add_test(c, test_draining);
    tcase_add_test(c, test_loads);
    suite_add_tcase(s, c);
    return run_suite(s);
}
