/*
 * Thousands of random events against the requests of a worker (decode/core/): messages of two routers and of writers, late and
 * wrong ones, answers of the checker in any order, steps whose results come after their tickets have ended, damage, memory
 * that is exhausted, results whose messages come before everything else, a world that sends events from inside of its functions. The world counts and refuses what must never be:
 * pages that are released twice, or while somebody reads or may write them; a ticket that is told its end twice; an effect after
 * the last one.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "decode/core/admission.h"
#include "decode/core/effects.h"
#include "kernels/params.h"
#include "tests/unit/run_suite.h"

enum {
    PAGE = SL_PAGE_TOKENS,
    PAGES = 24,
    BATCH = 4,
    WAITING = 4,
    MOST = 6 * PAGE,
    EVENTS = 6000,
    JOBS = 4096,
    ROUTERS = 2
};

/* The driver's part of a ticket: what the world saw. */
typedef struct seen {
    sl_ticket t;
    int pages;
    bool leased, closed, over, told_reserved, told_end, told_drained, writer_done, was_running;
    int32_t told; /* tokens */
    int jobs, steps;
    int32_t tokens[MOST];
} seen;

typedef struct job {
    uint64_t number;
    sl_ticket_job job;
} job;

static struct {
    sl_core c;
    unsigned seed;
    int free_pages, live;
    uint64_t now, rid;
    job jobs[JOBS];
    int n_jobs;
    uint64_t fences[JOBS]; /* tickets whose writers are to be fenced */
    int n_fences;
    int depth, reserved, ended, released, freed;
    bool no_memory, nested;
} x;

static unsigned dice(unsigned n)
{
    x.seed = x.seed * 1664525u + 1013904223u;
    return (x.seed >> 8) % n;
}

static seen *of(const sl_ticket *t)
{
    seen *s = (seen *)(uintptr_t)t;
    ck_assert_msg(!s->over, "ticket %lu: an effect after its last one", t->number);
    return s;
}

static void random_event(void);

/* The simulated router acts inside of a message: events that borrow nothing. */
static void maybe_nested(void)
{
    if (!x.nested || x.depth > 2 || dice(8))
        return;
    x.depth++;
    random_event();
    x.depth--;
}

static void tell_reserved(void *ctx, sl_ticket *t)
{
    (void)ctx;
    seen *s = of(t);
    ck_assert(!s->told_reserved && s->leased);
    s->told_reserved = true;
    x.reserved++;
    maybe_nested();
}

/* One of FAILED, RETRACTED, DONE, once. */
static void told_end(sl_ticket *t)
{
    seen *s = of(t);
    ck_assert_msg(!s->told_end, "ticket %lu is told its end twice", t->number);
    s->told_end = true;
    x.ended++;
    maybe_nested();
}

static void tell_failed(void *ctx, const sl_ticket *t, sl_status st, bool retryable, const char *why)
{
    (void)ctx;
    (void)retryable;
    ck_assert(st != SL_OK && why && strlen(why) < 200);
    told_end((sl_ticket *)(uintptr_t)t);
}

static void tell_prefilled(void *ctx, const sl_ticket *t)
{
    (void)ctx;
    ck_assert(of(t)->told_reserved && !t->writer);
}

static void tell_tokens(void *ctx, sl_ticket *t, int32_t first_index, const sl_msg_token *list, int32_t n)
{
    (void)ctx;
    seen *s = of(t);
    ck_assert(!s->told_end && s->told_reserved);
    ck_assert_int_eq(first_index, s->told);
    for (int32_t i = 0; i < n; i++)
        ck_assert_int_eq(list[i].id, t->tokens[t->n_prompt + first_index + i]);
    s->told += n;
    maybe_nested();
}

static void tell_done(void *ctx, sl_ticket *t, sl_finish finish, int32_t matched)
{
    (void)ctx;
    (void)finish;
    (void)matched;
    ck_assert_int_eq(of(t)->told, sl_ticket_produced(t));
    told_end(t);
}

static void tell_retracted(void *ctx, sl_ticket *t, const char *why)
{
    (void)ctx;
    (void)why;
    told_end(t);
}

static void tell_drained(void *ctx, const sl_ticket *t)
{
    (void)ctx;
    seen *s = of(t);
    ck_assert_msg(!s->told_drained, "ticket %lu is told twice that it is drained", t->number);
    s->told_drained = true;
    maybe_nested();
}

/* What is no message comes when messages are not held up by it. */
static seen *work_of(const sl_ticket *t)
{
    ck_assert_msg(!x.c.holds, "ticket %lu: its pages are worked on before messages are sent", t->number);
    return of(t);
}

static bool check(void *ctx, sl_ticket *t, sl_ticket_job what, int32_t first, int32_t n,
                  const sl_msg_commit *commit)
{
    (void)ctx;
    ck_assert(work_of(t)->leased && first >= 0 && n >= 0 && first + n <= work_of(t)->pages);
    ck_assert(!commit == (what != SL_JOB_COMPARE));
    if ((x.no_memory && !dice(20)) || x.n_jobs == JOBS)
        return false;
    x.jobs[x.n_jobs++] = (job){t->number, what};
    work_of(t)->jobs++;
    return true;
}

static void publish(void *ctx, sl_ticket *t, int32_t rows)
{
    (void)ctx;
    ck_assert(work_of(t)->leased && rows <= t->n_tokens);
}

static void accepted(void *ctx, const sl_ticket *t)
{
    (void)ctx;
    ck_assert(work_of(t)->leased && !t->unverified && t->arrived);
}

static void quarantined(void *ctx, const sl_ticket *t)
{
    (void)ctx;
    ck_assert(work_of(t)->leased && t->writer);
}

static void fence(void *ctx, const sl_ticket *t)
{
    (void)ctx;
    work_of(t);
    if (x.n_fences < JOBS)
        x.fences[x.n_fences++] = t->number;
}

static void close_seq(void *ctx, sl_ticket *t)
{
    (void)ctx;
    seen *s = work_of(t);
    ck_assert_msg(!s->closed && !s->steps, "a sequence is closed twice, or while a step computes it");
    s->closed = true;
}

static void leave(void *ctx, sl_ticket *t)
{
    (void)ctx;
    ck_assert(!work_of(t)->leased);
}

static void release(void *ctx, sl_ticket *t)
{
    (void)ctx;
    seen *s = work_of(t);
    ck_assert_msg(s->leased, "ticket %lu: its pages are released twice", t->number);
    ck_assert_msg(s->closed && !s->jobs && !s->steps,
                  "ticket %lu: its pages are released while they are read", t->number);
    ck_assert_msg(!t->writer || s->writer_done,
                  "ticket %lu: its pages are released while its writer may write", t->number);
    s->leased = false;
    x.free_pages += s->pages;
    x.released++;
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
    (void)ctx;
    (void)t;
    return !dice(5);
}

static sl_status lease(void *ctx, sl_ticket *t, sl_grant *out)
{
    (void)ctx;
    seen *s = of(t);
    int n = (t->n_tokens + PAGE - 1) / PAGE;
    ck_assert(!s->leased);
    if (n > x.free_pages)
        return SL_ERR_EXHAUSTED;
    x.free_pages -= n;
    s->pages = n;
    s->leased = true;
    *out = (sl_grant){.n_pages = n, .matched = (int32_t)dice((unsigned)n)};
    out->verify = (int32_t)dice((unsigned)out->matched + 1);
    return SL_OK;
}

static void freed(sl_ticket *t)
{
    seen *s = (seen *)t;
    ck_assert(!s->leased && !s->jobs && !s->steps && t->state == SL_TICKET_GONE);
    x.freed++;
    x.live--;
}

/* ---- events ---- */

static sl_ticket *any(unsigned states)
{
    int n = 0;
    sl_ticket *chosen = NULL;
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&x.c.tickets, t, states));) {
        if (!dice((unsigned)++n))
            chosen = t;
    }
    return chosen;
}

static sl_ticket_event at(sl_ticket_event_kind kind)
{
    return (sl_ticket_event){.kind = kind, .now_ns = x.now};
}

static void reserve(void)
{
    sl_ticket *t = sl_tickets_new(&x.c.tickets);
    seen *s = (seen *)t;
    t->rid = ++x.rid;
    t->attempt = 1;
    t->router = 1 + dice(ROUTERS);
    t->writer = dice(3) ? 1 + dice(3) : 0;
    t->n_tokens = 1 + (int32_t)dice(MOST - 1);
    t->n_prompt = t->n_tokens - (int32_t)dice((unsigned)t->n_tokens);
    s->told = t->n_tokens - t->n_prompt;
    t->tokens = s->tokens;
    t->sampling.max_tokens = s->told + 1 + (int32_t)dice(3 * PAGE);
    t->deadline_ns = dice(2) ? x.now + dice(300) * 1000000ull : UINT64_MAX;
    x.live++;
    sl_tickets_enter(&x.c.tickets, t);
    sl_admission_ask(&x.c, t, x.now);
}

static void commit(sl_ticket *t)
{
    sl_msg_commit m = {.rid = t->rid,
                       .attempt = t->attempt,
                       .ticket = t->number + !dice(10),
                       .worker_id = t->writer + !dice(10),
                       .n_tokens = (uint32_t)(t->n_tokens + !dice(20)),
                       .first_page = (uint32_t)t->matched,
                       .n_crc = (size_t)(t->n_pages - t->matched) * 2};
    sl_ticket_event ev = at(SL_ON_COMMIT);
    ev.commit = &m;
    if (m.ticket == t->number && m.worker_id == t->writer)
        ((seen *)t)->writer_done = true;
    sl_core_event(&x.c, t, &ev);
}

static void checked(void)
{
    if (!x.n_jobs)
        return;
    int i = (int)dice((unsigned)x.n_jobs);
    job j = x.jobs[i];
    x.jobs[i] = x.jobs[--x.n_jobs];
    sl_ticket *t = sl_tickets_number(&x.c.tickets, j.number);
    ck_assert_msg(t != NULL, "a ticket is gone while the checker reads its pages");
    sl_ticket_event ev = at(SL_ON_CHECKED);
    ev.checked.job = j.job;
    ev.checked.of = 4;
    ev.checked.bad = j.job == SL_JOB_COMPARE && !dice(10);
    ev.checked.damaged = j.job == SL_JOB_VERIFY && !dice(10);
    if (ev.checked.damaged) {
        for (sl_ticket *o = NULL; (o = sl_tickets_next(&x.c.tickets, o, ~0u));) {
            if (o == t || !dice(4))
                sl_core_signal(&x.c, o, SL_ON_DAMAGED, x.now);
        }
    }
    ((seen *)t)->jobs--;
    ck_assert(sl_core_event(&x.c, t, &ev));
}

/* Gives every running request the page that its next row needs. */
static void grow(void)
{
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&x.c.tickets, t, SL_TICKETS_IN(RUNNING)));) {
        seen *s = (seen *)t;
        while (t->state == SL_TICKET_RUNNING && t->n_tokens > s->pages * PAGE) {
            if (x.free_pages) {
                x.free_pages--;
                s->pages++;
            } else {
                sl_admission_make_room(&x.c, t, "no pages", s->pages + 1, PAGES, x.now);
            }
        }
    }
}

/* One step: it begins, random events happen, it ends. */
static void step(void)
{
    uint64_t in[BATCH + WAITING];
    int n = 0;
    for (sl_ticket *t; (t = sl_admission_next(&x.c));)
        ck_assert(sl_core_signal(&x.c, t, SL_ON_JOINED, x.now));
    grow();
    unsigned computes = SL_TICKETS_IN(RUNNING) | SL_TICKETS_IN(PROMPT);
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&x.c.tickets, t, computes)) && n < BATCH + WAITING;) {
        if (t->state == SL_TICKET_PROMPT && !t->begun)
            sl_core_signal(&x.c, t, SL_ON_JOINED, x.now);
        if (t->state == SL_TICKET_PROMPT && t->rows == t->n_tokens)
            continue;
        ck_assert(sl_core_signal(&x.c, t, SL_ON_STEP, x.now));
        ((seen *)t)->steps++;
        in[n++] = t->number;
    }
    for (unsigned i = dice(4); i > 0 && n && x.depth < 2; i--) {
        x.depth += 2; /* but no second step */
        random_event();
        x.depth -= 2;
    }
    bool fails = !dice(50), holds = dice(2);
    if (holds)
        sl_core_hold(&x.c, true);
    for (int i = 0; i < n; i++) {
        sl_ticket *t = sl_tickets_number(&x.c.tickets, in[i]);
        ck_assert_msg(t != NULL, "a ticket is gone while a step computes its sequence");
        ((seen *)t)->steps--;
        bool prompt = t->state == SL_TICKET_PROMPT;
        int32_t left = t->n_tokens - t->rows;
        sl_ticket_event ev = at(SL_ON_STEPPED);
        ev.stepped.rows = prompt ? t->rows + 1 + (int32_t)dice((unsigned)left) : t->n_tokens;
        ev.stepped.status = fails ? SL_ERR_INTERNAL : SL_OK;
        ev.stepped.why = "step";
        ck_assert(sl_core_event(&x.c, t, &ev));
        sl_msg_token list[3] = {{.id = (int32_t)dice(50)}, {.id = 1}, {.id = 2}};
        sl_ticket_event tokens = at(prompt ? SL_ON_COMPUTED : SL_ON_TOKENS);
        if (prompt)
            tokens.computed.first = list[0];
        else
            tokens.tokens.list = list, tokens.tokens.n = 1;
        sl_core_event_to(&x.c, in[i], &tokens); /* of a ticket that has ended meanwhile: dropped */
    }
    if (holds)
        sl_core_hold(&x.c, false);
    ck_assert_uint_eq(x.c.held.n, 0);
}

static void drained(sl_ticket *t)
{
    sl_ticket_event ev = at(SL_ON_DRAINED);
    ev.drained.direct = dice(2);
    ev.drained.connected = dice(2);
    if (ev.drained.direct ||
        (t->state == SL_TICKET_QUARANTINE && !(t->why == SL_ERR_PEER && ev.drained.connected)))
        ((seen *)t)->writer_done = true;
    sl_core_event(&x.c, t, &ev);
}

static void fenced(void)
{
    if (!x.n_fences)
        return;
    sl_ticket *t = sl_tickets_number(&x.c.tickets, x.fences[--x.n_fences]);
    if (!t)
        return;
    uint32_t router = t->router, writer = t->writer;
    for (sl_ticket *o = NULL; (o = sl_tickets_next(&x.c.tickets, o, SL_TICKETS_IN(QUARANTINE)));) {
        if (o->router == router && o->writer == writer)
            ((seen *)o)->writer_done = true;
    }
    sl_core_fenced(&x.c, router, writer, x.now);
}

static void abort_one(sl_ticket *t)
{
    sl_ticket_event ev = at(SL_ON_ABORT);
    ev.abort_why = dice(2) ? SL_ERR_PEER : SL_ERR_CANCELLED;
    sl_core_event(&x.c, t, &ev);
}

/* Any event for any ticket, also when it makes no sense. */
static void nonsense(sl_ticket *t)
{
    static const sl_ticket_event_kind kinds[] = {SL_ON_LOAD,     SL_ON_JOINED, SL_ON_TOKENS,
                                                 SL_ON_COMPUTED, SL_ON_FENCED, SL_ON_DEADLINE};
    sl_ticket_event ev = at(kinds[dice(SL_COUNT(kinds))]);
    sl_ticket_state before = t->state;
    bool legal =
        (ev.kind == SL_ON_LOAD && before == SL_TICKET_LOADING) ||
        (ev.kind == SL_ON_JOINED && (before == SL_TICKET_WAITING || before == SL_TICKET_PROMPT)) ||
        (ev.kind == SL_ON_TOKENS && before == SL_TICKET_RUNNING) ||
        (ev.kind == SL_ON_COMPUTED && before == SL_TICKET_PROMPT) ||
        (ev.kind == SL_ON_FENCED && before == SL_TICKET_QUARANTINE) ||
        (ev.kind == SL_ON_DEADLINE && (before == SL_TICKET_LANDING || before == SL_TICKET_QUARANTINE));
    if (!legal)
        ck_assert_msg(!sl_core_event(&x.c, t, &ev) && t->state == before, "%s takes event %d",
                      sl_ticket_state_name(before), ev.kind);
}

static void random_event(void)
{
    sl_ticket *t;
    x.now += dice(20) * 1000000ull;
    switch (dice(16)) {
    case 0:
    case 1:
        reserve();
        break;
    case 2:
        if ((t = any(SL_TICKETS_IN(LOADING))))
            sl_admission_ask(&x.c, t, x.now);
        break;
    case 3:
    case 4:
        if (!x.c.performing && (t = any(SL_TICKETS_IN(LANDING) | SL_TICKETS_IN(QUARANTINE))))
            commit(t);
        break;
    case 5:
    case 6:
    case 7:
        checked();
        break;
    case 8:
        if (!x.depth)
            step();
        break;
    case 9:
        if (!dice(3) && (t = any(~0u)))
            abort_one(t);
        break;
    case 10:
        if ((t = any(SL_TICKETS_IN(LANDING) | SL_TICKETS_IN(QUARANTINE))))
            drained(t);
        break;
    case 11:
        fenced();
        break;
    case 12:
        sl_core_tick(&x.c, x.now);
        break;
    case 13: {
        sl_ticket_event ev = at(dice(2) ? SL_ON_PATROL : SL_ON_PAGES_ASK);
        if (ev.kind == SL_ON_PATROL)
            ev.patrol_most = 1 + (int32_t)dice(3);
        else
            ev.pages.n = (int32_t)dice(3);
        if ((t = any(~0u)))
            sl_core_event(&x.c, t, &ev);
        break;
    }
    case 14:
        if (!dice(60))
            sl_core_session_lost(&x.c, 1 + dice(ROUTERS), x.now);
        else if (!dice(10) && (t = any(~0u)))
            sl_core_fail(&x.c, t, SL_ERR_INTERNAL, true, "why", x.now);
        break;
    default:
        if ((t = any(~0u)))
            nonsense(t);
        break;
    }
    if (!x.depth)
        sl_tickets_sweep(&x.c.tickets);
}

static void mark_over(void)
{
    for (sl_ticket *t = x.c.tickets.first; t; t = t->next)
        ((seen *)t)->over = t->state == SL_TICKET_GONE;
}

static void check_counts(void)
{
    int count[SL_TICKET_STATES] = {0}, pages = 0, live = 0;
    for (sl_ticket *t = x.c.tickets.first; t; t = t->next) {
        const seen *s = (seen *)t;
        count[t->state]++;
        live++;
        pages += s->leased ? s->pages : 0;
        ck_assert_int_eq(s->leased, t->leased);
        ck_assert_int_eq((int)t->jobs, s->jobs);
        ck_assert_int_eq((int)t->steps, s->steps);
        if (t->state != SL_TICKET_GONE)
            ck_assert_ptr_eq(sl_tickets_find(&x.c.tickets, t->router, t->rid, t->attempt), t);
    }
    for (int s = 0; s < SL_TICKET_STATES; s++)
        ck_assert_int_eq(count[s], x.c.tickets.count[s]);
    ck_assert_int_eq(live, x.live);
    ck_assert_int_eq(pages + x.free_pages, PAGES);
    ck_assert_int_le(count[SL_TICKET_RUNNING], BATCH);
    ck_assert_int_le(sl_tickets_placed(&x.c.tickets), BATCH + WAITING);
}

static void open_core(unsigned seed, bool no_memory, bool nested)
{
    memset(&x, 0, sizeof x);
    x.seed = seed;
    x.free_pages = PAGES;
    x.no_memory = no_memory;
    x.nested = nested;
    x.now = 1;
    x.c.env = (sl_ticket_env){.layers = 2,
                              .vocab = 100,
                              .max_context = 10 * MOST,
                              .compare = seed % 3 != 0,
                              .seals = seed % 2,
                              .quarantine_ms = 50};
    x.c.world = (sl_world){.tell_reserved = tell_reserved,
                           .tell_failed = tell_failed,
                           .tell_prefilled = tell_prefilled,
                           .tell_tokens = tell_tokens,
                           .tell_done = tell_done,
                           .tell_retracted = tell_retracted,
                           .tell_drained = tell_drained,
                           .check = check,
                           .publish = publish,
                           .accepted = accepted,
                           .quarantined = quarantined,
                           .fence = fence,
                           .close = close_seq,
                           .leave = leave,
                           .release = release,
                           .missing = missing,
                           .available = available,
                           .load = load,
                           .lease = lease};
    x.c.tickets.bytes = sizeof(seen);
    x.c.tickets.free = freed;
    x.c.admission.o = (sl_admission_opts){BATCH, WAITING};
    ck_assert_int_eq(sl_core_open(&x.c, NULL), SL_OK);
    for (uint32_t r = 1; r <= ROUTERS; r++)
        sl_admission_session(&x.c, r, true);
}

/* Everybody goes: what is in flight comes back, and then every page is free and every ticket is gone. */
static void settle(void)
{
    for (sl_ticket *t = x.c.tickets.first; t; t = t->next)
        abort_one(t);
    for (int i = 0; i < 4 * JOBS && (x.n_jobs || x.c.tickets.first); i++) {
        checked();
        x.now += 1000000000ull;
        sl_core_tick(&x.c, x.now);
        while (x.n_fences)
            fenced();
        mark_over();
        sl_tickets_sweep(&x.c.tickets);
    }
    ck_assert_ptr_null(x.c.tickets.first);
    ck_assert_int_eq(x.free_pages, PAGES);
    ck_assert_int_eq(x.released, x.reserved);
    ck_assert_int_eq(x.live, 0);
}

START_TEST(test_script)
{
    open_core(12345u + 77u * (unsigned)_i, _i % 4 == 1, _i % 2);
    for (int i = 0; i < EVENTS; i++) {
        random_event();
        mark_over();
        if (i % 8 == 0)
            check_counts();
    }
    x.nested = x.no_memory = false;
    settle();
    ck_assert_int_gt(x.reserved, EVENTS / 100);
    ck_assert_int_gt(x.ended, EVENTS / 100);
    sl_core_close(&x.c);
}
END_TEST

/* A worker is closed with tickets in every state: all pages are released. */
START_TEST(test_close)
{
    open_core(99u + (unsigned)_i, false, false);
    for (int i = 0; i < 400; i++)
        random_event();
    x.n_jobs = 0;
    for (sl_ticket *t = x.c.tickets.first; t; t = t->next) {
        ((seen *)t)->jobs = ((seen *)t)->steps = 0;
        ((seen *)t)->writer_done = true;
    }
    x.c.tickets.free = NULL;
    sl_core_close(&x.c);
    ck_assert_int_eq(x.free_pages, PAGES);
}
END_TEST

/* The step's result comes after the router has ended the attempt. */
START_TEST(test_result_of_an_ended_ticket)
{
    open_core(1, false, false);
    sl_ticket *t = sl_tickets_new(&x.c.tickets);
    seen *s = (seen *)t;
    t->rid = t->attempt = t->router = 1;
    t->n_prompt = t->n_tokens = 2 * PAGE;
    t->tokens = s->tokens;
    t->sampling.max_tokens = 5;
    x.live++;
    sl_tickets_enter(&x.c.tickets, t);
    do
        sl_admission_ask(&x.c, t, x.now);
    while (t->state == SL_TICKET_LOADING);
    while (x.n_jobs)
        checked();
    ck_assert_int_eq(t->state, SL_TICKET_PROMPT);
    sl_core_signal(&x.c, t, SL_ON_JOINED, 1);
    sl_core_signal(&x.c, t, SL_ON_STEP, 1);
    s->steps = 1;
    abort_one(t);
    ck_assert_int_eq(t->state, SL_TICKET_ENDING);
    ck_assert(s->leased && !s->closed);
    s->steps = 0;
    sl_ticket_event ev = at(SL_ON_STEPPED);
    ev.stepped.rows = t->n_tokens;
    ck_assert(sl_core_event(&x.c, t, &ev));
    ck_assert(!s->leased && s->closed && t->state == SL_TICKET_GONE);
    ck_assert(!sl_core_event_to(&x.c, t->number, &(sl_ticket_event){.kind = SL_ON_COMPUTED}));
    sl_tickets_sweep(&x.c.tickets);
    sl_core_close(&x.c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("requests");
    TCase *c = tcase_create("scripts");
    tcase_set_timeout(c, 120);
    add_variants(c, test_script, 12);
    tcase_add_loop_test(c, test_close, 0, 10);
    tcase_add_test(c, test_result_of_an_ended_ticket);
    suite_add_tcase(s, c);
    return run_suite(s);
}
