/*
 * Messages about requests, and what connections, sessions, pages and the clock have to say to them: each becomes an event of a
 * ticket (decode/core/ticket.h). RESERVE becomes a ticket, which admission grants, refuses, or lets wait for pages.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "decode/run/run_impl.h"

static const uint64_t MS = 1000000;

void sl_run_stale(sl_run *r, const char *what, uint64_t rid, uint32_t attempt)
{
    r->st.stale++;
    sl_log(SL_LOG_DEBUG, "decode", "message_dropped", "type=%s rid=%016" PRIx64 " attempt=%u", what, rid,
           attempt);
}

/* ---- RESERVE ---- */

static sl_status check_reserve(sl_run *r, const sl_msg_reserve *m, sl_err *err)
{
    int64_t pages = sl_snapshot_place(r->snapshot, (int32_t)m->n_tokens, 0).n;
    if (!m->prefill_worker && !r->o.prompts.chunk_tokens)
        return sl_fail(err, SL_ERR_INVALID,
                       "no prefill worker is named, and this worker computes no prompts");
    if ((int64_t)m->n_tokens >= r->runner->max_context)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%zu tokens leave no room in the context of %d", m->n_tokens,
                       r->runner->max_context);
    if (pages > sl_arena_pages(r->arena))
        return sl_fail(err, SL_ERR_TOO_LARGE, "%ld pages exceed the host store of %d (kvstore.bytes)",
                       (long)pages, sl_arena_pages(r->arena));
    for (size_t i = 0; i < m->n_tokens; i++) {
        if (m->tokens[i] < 0 || m->tokens[i] >= r->runner->vocab)
            return sl_fail(err, SL_ERR_INVALID, "token %zu is %d, the vocabulary has %d", i, m->tokens[i],
                           r->runner->vocab);
    }
    return SL_OK;
}

static sl_status read_sampling(const sl_run *r, const sl_msg_reserve *m, sl_sampling *out, sl_err *err)
{
    sl_rd rd = sl_rd_init(m->sampling.data, m->sampling.len);
    if (sl_sampling_read(&rd, out) != SL_OK)
        return sl_fail(err, SL_ERR_CORRUPT, "sampling parameters do not decode");
    sl_status st = sl_sampling_validate(out, r->runner->vocab, err);
    if (st != SL_OK)
        sl_sampling_free(out);
    return st;
}

/* The ticket has r->m, sampling and constraint from now on. NULL: out of memory. */
static sl_ticket *new_ticket(sl_run *r, const sl_sampling *sampling, sl_constraint *constraint, uint64_t now)
{
    const sl_msg_reserve *m = &r->m->msg.reserve;
    sl_ticket *t = sl_tickets_new(&r->core.tickets);
    if (!t)
        return NULL;
    t->rid = m->rid;
    t->attempt = m->attempt;
    t->router = r->m->router;
    t->writer = m->prefill_worker;
    t->n_prompt = (int32_t)m->n_prompt;
    t->n_tokens = (int32_t)m->n_tokens;
    t->tokens = m->tokens;
    t->sampling = *sampling;
    t->deadline_ns = m->deadline_ms ? now + m->deadline_ms * MS : UINT64_MAX;
    sl_run_of(t)->m = r->m;
    sl_run_of(t)->at.asked = now;
    sl_run_of(t)->constraint = constraint;
    r->m = NULL;
    sl_tickets_enter(&r->core.tickets, t);
    return t;
}

static void ask(sl_run *r, sl_ticket *t, uint64_t now)
{
    r->core.admission.draining = r->role->draining;
    sl_admission_ask(&r->core, t, now);
}

static void on_reserve(sl_run *r)
{
    const sl_msg_reserve *m = &r->m->msg.reserve;
    uint64_t now = sl_now_ns();
    sl_sampling sampling;
    sl_err err = {0};
    if (sl_tickets_find(&r->core.tickets, r->m->router, m->rid, m->attempt)) {
        sl_run_stale(r, "reserve", m->rid, m->attempt);
        return;
    }
    sl_status st = check_reserve(r, m, &err);
    st = st != SL_OK ? st : read_sampling(r, m, &sampling, &err);
    if (st != SL_OK) {
        sl_run_tell_failed(r, r->m->router, m->rid, m->attempt, st, false, err.text);
        return;
    }
    sl_constraint *constraint = NULL;
    st = sl_constraint_open(r->role->constraints, &sampling, m->tokens + m->n_prompt,
                            m->n_tokens - m->n_prompt, &constraint);
    sl_ticket *t = st == SL_OK ? new_ticket(r, &sampling, constraint, now) : NULL;
    if (!t) {
        sl_constraint_close(constraint);
        sl_sampling_free(&sampling);
        sl_run_tell_failed(r, r->m->router, m->rid, m->attempt, SL_ERR_NO_MEMORY, true, "out of memory");
        return;
    }
    ask(r, t, now);
}

static void on_loaded(sl_run *r, const sl_pages_event *ev)
{
    sl_ticket *t = sl_tickets_number(&r->core.tickets, ev->number);
    if (!t || t->state != SL_TICKET_LOADING)
        return; /* it has ended */
    r->loaded = ev;
    ask(r, t, sl_now_ns());
    r->loaded = NULL;
    if (t->state != SL_TICKET_LOADING)
        sl_pages_leave(r->pages, ev->number);
}

/* ---- writers ---- */

/* How fast prompts become complete (pages/pull_cost.h). */
static void measure_prompt(sl_run *r, const sl_ticket *t, uint64_t now)
{
    sl_pages_prompt_took(r->pages, (int64_t)t->n_tokens - (int64_t)t->cached_tokens,
                         now > t->granted_ns ? now - t->granted_ns : 0);
}

static void on_commit(sl_run *r)
{
    const sl_wmsg *m = r->m;
    const sl_msg_commit *c = &m->msg.commit;
    sl_ticket *t = sl_tickets_find(&r->core.tickets, m->router, c->rid, c->attempt);
    sl_ticket_event ev = {.kind = SL_ON_COMMIT, .now_ns = sl_now_ns(), .commit = c};
    bool late = t && t->state == SL_TICKET_QUARANTINE;
    if (t)
        sl_run_of(t)->at.committed = ev.now_ns;
    if (t && sl_ticket_fits(t, c->ticket, m->worker_id))
        sl_draft_state_set(&sl_run_of(t)->hidden, c->hidden, (int32_t)c->n_tokens);
    if (!t || m->worker_id != c->worker_id || !sl_core_event(&r->core, t, &ev) || late)
        sl_run_stale(r, "commit", c->rid, c->attempt);
    else if (t->state == SL_TICKET_CHECKING || t->arrived)
        measure_prompt(r, t, ev.now_ns);
}

static void on_pages_ask(sl_run *r)
{
    const sl_wmsg *m = r->m;
    const sl_msg_pages_ask *a = &m->msg.pages_ask;
    sl_ticket *t = sl_tickets_find(&r->core.tickets, m->router, a->rid, a->attempt);
    sl_ticket_event ev = {.kind = SL_ON_PAGES_ASK, .now_ns = sl_now_ns()};
    bool fits =
        t && sl_ticket_fits(t, a->ticket, m->worker_id) && a->first <= INT32_MAX && a->count <= INT32_MAX;
    ev.pages.first = fits ? (int32_t)a->first : 0;
    ev.pages.n = fits ? (int32_t)a->count : 0;
    if (fits && sl_core_event(&r->core, t, &ev))
        return;
    sl_run_stale(r, "pages_ask", a->rid, a->attempt);
    sl_run_answer_pages(r, m, NULL, 0);
}

static bool is_connected(const sl_run *r, sl_writer writer)
{
    for (uint32_t i = 0; i < r->n_connected; i++) {
        if (sl_writer_eq(r->connected[i], writer))
            return true;
    }
    return r->n_connected == SL_RUN_WRITERS; /* the list is full, so this writer may be missing in it */
}

void sl_run_connected(sl_run *r, sl_writer writer)
{
    if (!is_connected(r, writer) && r->n_connected < SL_RUN_WRITERS)
        r->connected[r->n_connected++] = writer;
}

void sl_run_fenced(sl_run *r, sl_writer writer)
{
    r->st.fences++;
    for (uint32_t i = 0; i < r->n_connected; i++) {
        if (sl_writer_eq(r->connected[i], writer))
            r->connected[i--] = r->connected[--r->n_connected];
    }
    sl_core_fenced(&r->core, writer.router, writer.id, sl_now_ns());
}

static void on_drained(sl_run *r)
{
    const sl_wmsg *m = r->m;
    const sl_msg_id *id = &m->msg.id;
    sl_ticket *t = sl_tickets_find(&r->core.tickets, m->router, id->rid, id->attempt);
    sl_ticket_event ev = {.kind = SL_ON_DRAINED, .now_ns = sl_now_ns()};
    ev.drained.direct = m->worker_id != 0;
    bool other = t && ev.drained.direct && t->writer != m->worker_id;
    ev.drained.connected = t && is_connected(r, (sl_writer){t->router, t->writer});
    if (!t || other || t->state == SL_TICKET_ENDING)
        sl_run_stale(r, "drained", id->rid, id->attempt);
    else
        sl_core_event(&r->core, t, &ev);
}

/* ---- routers ---- */

static void on_abort(sl_run *r)
{
    const sl_msg_abort *a = &r->m->msg.abort;
    uint32_t router = r->m->router;
    sl_ticket *t = sl_tickets_find(&r->core.tickets, router, a->rid, a->attempt);
    sl_ticket_event ev = {.kind = SL_ON_ABORT, .now_ns = sl_now_ns(), .abort_why = (sl_status)a->status};
    if (!t || t->state == SL_TICKET_LOADING)
        sl_pages_aborted(r->pages, router, a->rid);
    if (!t) {
        sl_run_tell_drained(r, router, a->rid, a->attempt);
        return;
    }
    if (sl_ticket_has_place(t) && t->state != SL_TICKET_QUARANTINE && t->state != SL_TICKET_ENDING) {
        r->st.aborted++;
        sl_log(SL_LOG_DEBUG, "decode", "request_aborted", "rid=%016" PRIx64 " attempt=%u why=%s", t->rid,
               t->attempt, sl_status_name(ev.abort_why));
    }
    sl_core_event(&r->core, t, &ev);
}

void sl_run_router_up(sl_run *r, uint32_t router)
{
    sl_admission_session(&r->core, router, true);
}

void sl_run_router_down(sl_run *r, uint32_t router)
{
    sl_admission_session(&r->core, router, false);
    sl_core_session_lost(&r->core, router, sl_now_ns());
}

/* ---- all of them ---- */

void sl_run_msg(sl_run *r, sl_wmsg *m)
{
    r->m = m;
    switch (m->msg.type) {
    case SL_MSG_RESERVE:
        on_reserve(r);
        break;
    case SL_MSG_COMMIT:
        on_commit(r);
        break;
    case SL_MSG_PAGES_ASK:
        on_pages_ask(r);
        break;
    case SL_MSG_ABORT:
        on_abort(r);
        break;
    case SL_MSG_DRAINED:
        on_drained(r);
        break;
    default:
        sl_run_stale(r, sl_msg_type_name(m->msg.type), 0, 0);
        break;
    }
    if (r->m) /* else a ticket or a job of the checker has it */
        sl_wmsg_free(r->m);
    r->m = NULL;
}

void sl_run_pages_event(sl_run *r, const sl_pages_event *ev)
{
    if (ev->kind == SL_PAGES_LOADED)
        on_loaded(r, ev);
    else
        sl_run_damaged(r, ev->page, ev->dropped);
}

uint64_t sl_run_tick(sl_run *r, uint64_t now)
{
    uint64_t due = sl_core_tick(&r->core, now), patrol = sl_run_patrol(r, now);
    return patrol < due ? patrol : due;
}

void sl_run_turn(sl_run *r)
{
    sl_tickets_sweep(&r->core.tickets);
}

bool sl_run_idle(const sl_run *r)
{
    return !sl_tickets_placed(&r->core.tickets) && !r->core.tickets.count[SL_TICKET_LOADING];
}

/* ---- creation ---- */

static bool is_stop(const void *ctx, const sl_sampling *s, int32_t id)
{
    const sl_run *r = ctx;
    return sl_sampling_is_stop(s, r->role->sampler, id);
}

static void free_ticket(sl_ticket *t)
{
    sl_constraint_close(sl_run_of(t)->constraint);
    sl_scores_close(&sl_run_of(t)->scores);
    sl_draft_state_free(&sl_run_of(t)->hidden);
    sl_wmsg_free(sl_run_of(t)->m);
}

static sl_status allocate(sl_run *r, sl_err *err)
{
    size_t n = (size_t)r->o.max_batch + (size_t)(r->o.prompts.chunk_tokens ? r->o.prompts.max_requests : 0);
    for (int i = 0; i < SL_STEPS_IN_FLIGHT; i++) {
        sl_run_flight *f = &r->flight[i];
        f->parts = calloc(n, sizeof *f->parts);
        f->items = calloc(n, sizeof *f->items);
        f->samples = calloc(n * (1 + SL_DRAFTS_MAX), sizeof *f->samples);
        if (!f->parts || !f->items || !f->samples)
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    SL_TRY(sl_core_open(&r->core, err));
    SL_TRY(sl_drafts_open(r, err));
    r->depth = r->drafts.most ? 1 : r->depth;
    return sl_prompts_open(r, err);
}

sl_status sl_run_create(const sl_run_opts *o, const sl_run_worker *w, sl_run **out, sl_err *err)
{
    _Static_assert((int)SL_ADMISSION_ROUTERS >= (int)SL_WORKER_ROUTERS_MAX, "routers");
    sl_run *r = calloc(1, sizeof *r);
    if (!r)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_metrics *m = w->opts->worker.metrics;
    bool seals = sl_checker_seals(&w->role->checker);
    *r = (sl_run){.o = *o,
                  .role = w->role,
                  .runner = w->opts->runner,
                  .arena = w->opts->arena,
                  .geo = sl_arena_geometry(w->opts->arena),
                  .snapshot = sl_snapshot_pages(sl_arena_geometry(w->opts->arena)),
                  .verify_checksums = w->opts->verify_checksums,
                  .pages = w->pages};
    r->depth = r->runner->overlaps && !r->runner->group ? SL_STEPS_IN_FLIGHT : 1;
    sl_run_patrol_rate(r, w->opts->patrol_rate);
    r->core.env = (sl_ticket_env){.layers = r->geo->n_layers,
                                  .snapshot = r->snapshot,
                                  .vocab = r->runner->vocab,
                                  .max_context = r->runner->max_context,
                                  .compare = seals || r->verify_checksums,
                                  .seals = seals,
                                  .quarantine_ms = o->quarantine_ms,
                                  .is_stop = is_stop,
                                  .ctx = r};
    r->core.world = sl_run_world(r);
    r->stepped.clock = sl_host_clock();
    r->core.tickets.bytes = sizeof(sl_run_ticket);
    r->core.tickets.free = free_ticket;
    r->core.admission.o = (sl_admission_opts){o->max_batch, o->max_waiting};
    r->metrics.step = sl_metrics_histogram(m, "sluice_decode_step_seconds", NULL);
    r->metrics.batch = sl_metrics_histogram(m, "sluice_decode_batch_size", NULL);
    r->metrics.chunk =
        o->prompts.chunk_tokens ? sl_metrics_histogram(m, "sluice_prefill_chunk_seconds", NULL) : NULL;
    sl_status st = allocate(r, err);
    if (r->drafts.most)
        r->metrics.draft_check = sl_metrics_gauge(m, "sluice_draft_check_ratio", NULL);
    if (r->drafts.automatic)
        r->metrics.draft_rows = sl_metrics_gauge(m, "sluice_draft_rows_seconds", NULL);
    if (st != SL_OK)
        sl_run_destroy(r);
    else
        *out = r;
    return st;
}

void sl_run_threads(sl_run *r, sl_worker *w)
{
    r->worker = w;
}

void sl_run_destroy(sl_run *r)
{
    if (!r)
        return;
    sl_run_settle(r);
    sl_core_close(&r->core);
    sl_prompts_close(r);
    sl_drafts_close(r);
    for (int i = 0; i < SL_STEPS_IN_FLIGHT; i++) {
        free(r->flight[i].parts);
        free(r->flight[i].items);
        free(r->flight[i].samples);
        sl_scores_room_free(&r->flight[i].scored);
    }
    free(r);
}

/* ---- numbers ---- */

void sl_run_stats_get(const sl_run *r, sl_run_stats *out)
{
    const unsigned landing =
        SL_TICKETS_IN(LANDING) | SL_TICKETS_IN(CHECKING) | SL_TICKETS_IN(QUARANTINE) | SL_TICKETS_IN(ENDING);
    *out = r->st;
    for (int s = 0; s < SL_TICKET_STATES; s++)
        out->count[s] = r->core.tickets.count[s];
    out->tickets = sl_tickets_placed(&r->core.tickets);
    for (const sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, ~SL_TICKETS_IN(GONE)));) {
        out->prompts += t->state == SL_TICKET_PROMPT && t->begun;
        out->resident += sl_run_of(t)->resident;
        if (landing & 1u << t->state)
            out->landing_pages += t->n_pages - t->matched;
        if (t->state == SL_TICKET_LANDING)
            out->queued_tokens += (uint64_t)t->n_tokens;
        else if (t->state == SL_TICKET_PROMPT)
            out->queued_tokens += (uint64_t)(t->n_tokens - t->rows);
    }
}
