/*
 * A decode worker: drives the product's machine of requests (decode/core/) in virtual time. Pages are leases of the product's store,
 * a load is a wait of its cascade, a step takes the time that the costs say and gives each running request one token.
 *
 * Tokens are told to the router in groups, the first token and the end at once, because a message for each token would take
 * most of the simulation's time; gaps between tokens are measured here. No rows are moved, so a writer that has been aborted
 * writes no more, and there is nothing to verify.
 */
#include <stdlib.h>

#include "model/sampler.h"
#include "simulate/sim_impl.h"

enum { TELL = 128, ROUTER = 1 };

static sl_sim_ticket *of(const sl_ticket *t)
{
    return sl_sim_ticket_of(t);
}

/* ---- messages ---- */

static void tell_reserved(void *ctx, sl_ticket *t)
{
    sl_msg m = {.type = SL_MSG_RESERVED};
    const sl_lease *lease = of(t)->lease;
    m.reserved = (sl_msg_reserved){.rid = t->rid,
                                   .attempt = t->attempt,
                                   .ticket = t->number,
                                   .matched_pages = (uint32_t)t->matched,
                                   .pages = (uint32_t *)(uintptr_t)sl_lease_pages(lease),
                                   .n_pages = (size_t)t->n_pages};
    sl_sim_tell(ctx, &m);
}

static void tell_failed(void *ctx, const sl_ticket *t, sl_status st, bool retryable, const char *why)
{
    (void)retryable, (void)why;
    sl_sim_tell_failed(ctx, t->rid, t->attempt, st);
}

static void tell_rest(sl_sim_worker *w, sl_ticket *t)
{
    sl_msg_token tokens[TELL] = {0};
    sl_msg m = {.type = SL_MSG_TOKENS};
    sl_sim_ticket *x = of(t);
    for (int32_t at = x->told; at < t->n_tokens; at = x->told) {
        int32_t n = t->n_tokens - at < TELL ? t->n_tokens - at : TELL;
        for (int32_t i = 0; i < n; i++)
            tokens[i].id = t->tokens[at + i];
        m.tokens = (sl_msg_tokens){.rid = t->rid,
                                   .attempt = t->attempt,
                                   .first_index = (uint32_t)(at - t->n_prompt),
                                   .tokens = tokens,
                                   .n_tokens = (size_t)n};
        x->told += n;
        sl_sim_tell(w, &m);
    }
}

static void tell_tokens(void *ctx, sl_ticket *t, int32_t first_index, const sl_msg_token *list, int32_t n)
{
    sl_sim_worker *w = ctx;
    sl_sim_ticket *x = of(t);
    (void)first_index, (void)list;
    w->decode.tokens_done += (uint64_t)n;
    if (x->last_ns)
        sl_sim_gap(&w->s->out, w->s->now_ns - x->last_ns);
    bool first = !x->last_ns;
    x->last_ns = w->s->now_ns;
    if (first || t->n_tokens - x->told == TELL)
        tell_rest(w, t);
}

static void tell_done(void *ctx, sl_ticket *t, sl_finish finish, int32_t matched)
{
    sl_msg m = {.type = SL_MSG_DONE};
    m.done = (sl_msg_done){.rid = t->rid,
                           .attempt = t->attempt,
                           .finish = (uint8_t)finish,
                           .matched_stop = matched,
                           .produced = (uint32_t)sl_ticket_produced(t),
                           .cached_tokens = t->cached_tokens};
    tell_rest(ctx, t);
    sl_sim_tell(ctx, &m);
}

static void tell_retracted(void *ctx, sl_ticket *t, const char *why)
{
    sl_sim_worker *w = ctx;
    sl_msg m = {.type = SL_MSG_RETRACTED};
    (void)why;
    m.retracted = (sl_msg_retracted){.rid = t->rid, .attempt = t->attempt, .safe = UINT32_MAX};
    w->s->out.retracted++;
    tell_rest(w, t);
    sl_sim_tell(w, &m);
}

/* Of role both. */
static void tell_prefilled(void *ctx, const sl_ticket *t)
{
    sl_msg m = {.type = SL_MSG_PREFILLED};
    m.prefilled = (sl_msg_prefilled){
        .rid = t->rid, .attempt = t->attempt, .cached_tokens = t->cached_tokens, .compute_us = 1};
    sl_sim_tell(ctx, &m);
}

static void no_message(void *ctx, const sl_ticket *t)
{
    (void)ctx, (void)t;
}

/* ---- pages ---- */

static bool no_check(void *ctx, sl_ticket *t, sl_ticket_job job, int32_t first, int32_t n,
                     const sl_msg_commit *commit)
{
    (void)ctx, (void)t, (void)job, (void)first, (void)n, (void)commit;
    return false; /* the environment asks for none */
}

static void publish(void *ctx, sl_ticket *t, int32_t rows)
{
    (void)ctx;
    sl_lease_publish(of(t)->lease, t->tokens, rows);
}

static void leave(void *ctx, sl_ticket *t)
{
    const sl_sim_worker *w = ctx;
    sl_cascade_leave(w->decode.cascade, &of(t)->wait);
}

static void close_seq(void *ctx, sl_ticket *t)
{
    sl_sim_worker *w = ctx;
    w->decode.device_used -= of(t)->device;
    of(t)->device = 0;
    sl_prompt_queue_end(&w->decode.prompts, &of(t)->prompt);
}

static void release(void *ctx, sl_ticket *t)
{
    (void)ctx;
    sl_lease_release(of(t)->lease, true);
    of(t)->lease = NULL;
}

static int32_t missing(void *ctx, const sl_ticket *t)
{
    const sl_sim_worker *w = ctx;
    int32_t matched = sl_store_match(w->decode.store, of(t)->m.reserve.seed, t->tokens, t->n_tokens);
    if (of(t)->host < 0)
        of(t)->host = matched;
    return sl_sim_pages(t->n_tokens) - matched;
}

static int32_t available(void *ctx)
{
    const sl_sim_worker *w = ctx;
    return sl_store_available(w->decode.store);
}

static bool load(void *ctx, sl_ticket *t)
{
    const sl_sim_worker *w = ctx;
    return w->decode.cascade &&
           sl_cascade_wait(w->decode.cascade, of(t)->m.reserve.seed, t->tokens, t->n_tokens, &of(t)->wait);
}

/* Pages that were loaded count for the disk, as far as it had hits, and then for the shared store. */
static void account(sl_sim_worker *w, const sl_ticket *t, int32_t matched)
{
    sl_sim_decode *d = &w->decode;
    sl_sim_outcome *o = &w->s->out;
    int32_t host = of(t)->host < matched ? of(t)->host : matched;
    double loaded = (double)(matched - host) * PAGE, disk = 0;
    if (t->n_tokens != t->n_prompt) /* it was retracted, and counted before */
        return;
    if (d->disk && loaded > 0) {
        sl_cascade_stats st;
        sl_cascade_stats_get(d->cascade, 0, &st);
        disk = d->shared ? (double)(st.hits - d->disk_hits) * PAGE : loaded;
        d->disk_hits = st.hits;
        disk = disk < loaded ? disk : loaded;
    }
    o->host += (double)host * PAGE;
    o->disk += disk;
    o->shared += loaded - disk;
}

static sl_status lease(void *ctx, sl_ticket *t, sl_grant *out)
{
    sl_sim_worker *w = ctx;
    sl_lease *l = NULL;
    SL_TRY(sl_store_lease(w->decode.store, of(t)->m.reserve.seed, t->tokens, t->n_tokens, &l));
    of(t)->lease = l;
    *out = (sl_grant){.n_pages = sl_lease_n_pages(l), .matched = sl_lease_matched(l)};
    account(w, t, out->matched);
    return SL_OK;
}

/* ---- the batch ---- */

/* Whether the device has memory for one more request. */
static bool joins(sl_sim_worker *w, sl_ticket *t)
{
    const sl_sim_costs *c = w->s->c;
    double left = t->sampling.max_tokens - sl_ticket_produced(t);
    double bytes = c->decode.bytes_per_request +
                   (t->n_tokens + (left < 0 ? 0 : left)) * w->s->per_token * c->decode.bytes_per_token;
    if (c->decode.device_bytes > 0 && w->decode.core.tickets.count[SL_TICKET_RUNNING] &&
        w->decode.device_used + bytes > c->decode.device_bytes)
        return false;
    of(t)->device = bytes;
    w->decode.device_used += bytes;
    return sl_core_signal(&w->decode.core, t, SL_ON_JOINED, w->s->now_ns);
}

/* Gives every running request the page that its next row needs. */
static void grow(sl_sim_worker *w)
{
    sl_core *c = &w->decode.core;
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&c->tickets, t, SL_TICKETS_IN(RUNNING)));) {
        while (t->state == SL_TICKET_RUNNING && t->n_tokens > sl_lease_n_pages(of(t)->lease) * PAGE &&
               sl_lease_grow(of(t)->lease, 1) != SL_OK)
            sl_admission_make_room(c, t, "no host pages", 1, INT64_MAX, w->s->now_ns);
    }
}

/* One token of each request of the batch. */
static void decoded(sl_sim_worker *w)
{
    sl_core *c = &w->decode.core;
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&c->tickets, t, ~SL_TICKETS_IN(GONE)));) {
        if (!t->steps || of(t)->prompt.take)
            continue;
        sl_msg_token token = {.id = SL_SIM_OUTPUT_TOKEN + (int32_t)(t->rid % SL_SIM_OUTPUT_TOKEN)};
        sl_ticket_event stepped = {.kind = SL_ON_STEPPED, .now_ns = w->s->now_ns},
                        tokens = {.kind = SL_ON_TOKENS, .now_ns = w->s->now_ns};
        stepped.stepped.rows = t->n_tokens;
        tokens.tokens.list = &token;
        tokens.tokens.n = 1;
        sl_core_event(c, t, &stepped);
        sl_core_event(c, t, &tokens); /* dropped, if it was aborted meanwhile */
    }
}

void sl_sim_decode_stepped(sl_sim_worker *w, uint64_t began_ns)
{
    sl_sim_decode *d = &w->decode;
    decoded(w);
    if (w->role == SL_ROLE_BOTH)
        sl_sim_prompts_stepped(w, d->decoding, (double)(w->s->now_ns - began_ns));
    d->decoding = 0;
}

double sl_sim_decode_step(sl_sim_worker *w)
{
    sl_sim *s = w->s;
    sl_sim_decode *d = &w->decode;
    double tokens = 0, ns = 0, joining = 0;
    for (sl_ticket *t; (t = sl_admission_next(&d->core)) && joins(w, t);)
        joining += s->c->decode.join_us * 1e3 + t->n_tokens * s->per_token * s->c->decode.join_ns_per_token;
    if (w->role == SL_ROLE_BOTH)
        sl_sim_prompts_admit(w);
    grow(w);
    sl_tickets_sweep(&d->core.tickets);
    d->decoding = d->core.tickets.count[SL_TICKET_RUNNING];
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&d->core.tickets, t, SL_TICKETS_IN(RUNNING)));) {
        tokens += t->n_tokens;
        sl_core_signal(&d->core, t, SL_ON_STEP, s->now_ns);
    }
    if (d->decoding) {
        /* a simulated token stands for per_token tokens, one after another */
        ns = joining + s->per_token * sl_sim_decode_ns(s->c, d->decoding, tokens * s->per_token);
        s->out.steps++;
        s->out.step_requests += (uint64_t)d->decoding;
        s->out.decode_ns += ns;
    }
    if (w->role == SL_ROLE_BOTH) {
        double prompts = sl_sim_prompts_step(w, d->decoding);
        s->out.prefill_ns += prompts;
        ns += prompts;
    }
    return ns;
}

/* ---- events ---- */

void sl_sim_decode_loaded(sl_cascade_waiter *wait)
{
    sl_sim_ticket *x = (sl_sim_ticket *)((char *)wait - offsetof(sl_sim_ticket, wait));
    sl_admission_ask(&x->w->decode.core, &x->t, x->w->s->now_ns);
    if (x->t.state == SL_TICKET_PROMPT)
        sl_sim_step(x->w);
}

void sl_sim_decode_reserve(sl_sim_worker *w, sl_msg *m)
{
    const sl_msg_reserve *r = &m->reserve;
    sl_core *c = &w->decode.core;
    sl_ticket *t = sl_tickets_new(&c->tickets);
    SL_CHECK(t, "out of memory");
    sl_rd rd = sl_rd_init(r->sampling.data, r->sampling.len);
    sl_status st = sl_sampling_read(&rd, &t->sampling);
    SL_CHECK(st == SL_OK, "the router sent unreadable sampling parameters");
    t->rid = r->rid;
    t->attempt = r->attempt;
    t->router = ROUTER;
    t->writer = r->prefill_worker;
    t->n_prompt = (int32_t)r->n_prompt;
    t->n_tokens = (int32_t)r->n_tokens;
    t->tokens = r->tokens;
    of(t)->w = w;
    of(t)->m = *m;
    of(t)->host = -1;
    of(t)->told = t->n_tokens;
    sl_tickets_enter(&c->tickets, t);
    sl_admission_ask(c, t, w->s->now_ns);
    if (t->state == SL_TICKET_PROMPT)
        sl_sim_step(w);
    sl_tickets_sweep(&c->tickets);
    sl_sim_pages_turn(w);
}

void sl_sim_decode_commit(sl_sim_worker *w, uint64_t rid, uint32_t attempt, uint32_t cached)
{
    sl_core *c = &w->decode.core;
    sl_ticket *t = sl_tickets_find(&c->tickets, ROUTER, rid, attempt);
    if (!t || t->state != SL_TICKET_LANDING)
        return;
    sl_msg_commit m = {.rid = rid,
                       .attempt = attempt,
                       .ticket = t->number,
                       .worker_id = t->writer,
                       .n_tokens = (uint32_t)t->n_tokens,
                       .first_page = (uint32_t)t->matched,
                       .cached_tokens = cached,
                       .first.id = SL_SIM_OUTPUT_TOKEN + (int32_t)(rid % SL_SIM_OUTPUT_TOKEN)};
    sl_core_event(c, t, &(sl_ticket_event){.kind = SL_ON_COMMIT, .now_ns = w->s->now_ns, .commit = &m});
    if (t->state == SL_TICKET_WAITING)
        sl_sim_step(w);
    sl_tickets_sweep(&c->tickets);
    sl_sim_pages_turn(w);
}

void sl_sim_decode_abort(sl_sim_worker *w, const sl_msg_abort *a)
{
    sl_core *c = &w->decode.core;
    sl_ticket *t = sl_tickets_find(&c->tickets, ROUTER, a->rid, a->attempt);
    sl_ticket_event abort_it = {
        .kind = SL_ON_ABORT, .now_ns = w->s->now_ns, .abort_why = (sl_status)a->status};
    if (!t)
        return;
    sl_core_event(c, t, &abort_it);
    if (t->state == SL_TICKET_QUARANTINE) /* no row is in flight */
        sl_core_signal(c, t, SL_ON_FENCED, w->s->now_ns);
    sl_tickets_sweep(&c->tickets);
    sl_sim_pages_turn(w);
}

/* ---- the worker ---- */

void sl_sim_decode_work(const sl_sim_worker *w, sl_msg_load *out)
{
    const sl_sim_decode *d = &w->decode;
    const int32_t *n = d->core.tickets.count;
    sl_store_stats st;
    sl_store_stats_get(d->store, &st);
    out->running = (uint32_t)n[SL_TICKET_RUNNING];
    out->waiting =
        (uint32_t)(n[SL_TICKET_LOADING] + n[SL_TICKET_LANDING] + n[SL_TICKET_PROMPT] + n[SL_TICKET_WAITING]);
    out->free_pages = (uint32_t)st.free;
    out->cached_pages = (uint32_t)st.cached;
    out->total_pages = (uint32_t)st.total;
}

void sl_sim_decode_load(const sl_sim_worker *w, sl_msg_load *out)
{
    const sl_sim_decode *d = &w->decode;
    sl_sim_decode_work(w, out);
    for (const sl_ticket *t = NULL; (t = sl_tickets_next(&d->core.tickets, t, SL_TICKETS_IN(LANDING)));)
        out->queued_tokens += (uint64_t)t->n_tokens;
    for (const sl_ticket *t = NULL; (t = sl_tickets_next(&d->core.tickets, t, SL_TICKETS_IN(PROMPT)));)
        out->queued_tokens += (uint64_t)(t->n_tokens - t->rows);
    out->prefill_rate = d->tokens_per_s;
    out->tokens_done = d->tokens_done;
    /* the router knows the small pages of the geometry that the workers announce */
    double rate = 1e9 * (double)w->s->geometry.page_bytes / w->s->page_bytes;
    out->disk_rate = d->disk ? (uint64_t)(w->s->c->disk.read_gb_per_s * rate) : 0;
    out->shared_rate = d->shared ? (uint64_t)(w->s->c->shared.read_gb_per_s * rate) : 0;
}

static void free_ticket(sl_ticket *t)
{
    sl_msg_free(&of(t)->m);
}

sl_status sl_sim_decode_open(sl_sim_worker *w, sl_err *err)
{
    sl_core *c = &w->decode.core;
    const sl_config *cfg = w->s->o.cfg;
    c->env = (sl_ticket_env){.vocab = INT32_MAX, .max_context = w->s->max_context};
    c->world = (sl_world){.ctx = w,
                          .tell_reserved = tell_reserved,
                          .tell_failed = tell_failed,
                          .tell_prefilled = tell_prefilled,
                          .tell_tokens = tell_tokens,
                          .tell_done = tell_done,
                          .tell_retracted = tell_retracted,
                          .tell_drained = no_message,
                          .check = no_check,
                          .publish = publish,
                          .accepted = no_message,
                          .quarantined = no_message,
                          .fence = no_message,
                          .close = close_seq,
                          .leave = leave,
                          .release = release,
                          .missing = missing,
                          .available = available,
                          .load = load,
                          .lease = lease};
    c->tickets.bytes = sizeof(sl_sim_ticket);
    c->tickets.free = free_ticket;
    c->admission.o = (sl_admission_opts){cfg->decode.max_batch, sl_config_max_waiting(&cfg->decode)};
    SL_TRY(sl_core_open(c, err));
    if (w->role == SL_ROLE_BOTH) {
        sl_prompt_queue_opts q = sl_sim_prompt_opts(w->s);
        w->decode.stall_ms = sl_stall_bound_ms(cfg->both.max_stall_ms, w->s->c->prefill.host);
        SL_TRY(sl_prompt_queue_open(&w->decode.prompts, &q, err));
    }
    return sl_sim_pages_open(w, err);
}

void sl_sim_decode_close(sl_sim_worker *w)
{
    sl_core_close(&w->decode.core);
    sl_prompt_queue_close(&w->decode.prompts);
    sl_sim_pages_close(w);
}
