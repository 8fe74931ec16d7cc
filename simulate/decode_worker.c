/*
 * A decode worker: as decode/landing.c and decode/batch.c, in virtual time. A request is LOADING (its prefix continues in a
 * storage tier), then it holds a ticket: LANDING (the prefill worker computes) -> WAITING (no slot) -> RUNNING. In every step
 * each running request gets one token. When there is no page for the next one, the request that was verified last is
 * retracted.
 *
 * Tokens are told to the router in groups, the first token and the end at once, because a message for each token would take
 * most of the simulation's time; gaps between tokens are measured here.
 */
#include <stdlib.h>
#include <string.h>

#include "decode/room.h"
#include "model/sampler.h"
#include "simulate/sim_impl.h"

enum { TELL = 128, OUTPUT_TOKEN = 1 << 29 };

typedef enum { TICKET_LOADING, TICKET_LANDING, TICKET_WAITING, TICKET_RUNNING } ticket_state;

struct sl_sim_ticket {
    sl_cascade_waiter wait; /* first member */
    sl_sim_ticket *next, *prev;
    sl_sim_worker *w;
    sl_msg m; /* RESERVE; its tokens are those of the request and grow */
    ticket_state state;
    bool listed;
    int32_t host; /* pages that were in the host store when it came */
    sl_lease *lease;
    uint64_t number, order, last_ns;
    int32_t *tokens;
    int32_t n, cap, n_prompt, told, max_tokens;
    double device; /* bytes */
};

static void step(sl_sim_worker *w);
static void reserve(sl_sim_ticket *t);

static void unlist(sl_sim_ticket *t)
{
    sl_sim_decode *d = &t->w->decode;
    *(t->prev ? &t->prev->next : &d->tickets) = t->next;
    *(t->next ? &t->next->prev : &d->tickets_tail) = t->prev;
    t->prev = t->next = NULL;
    t->listed = false;
}

static void list(sl_sim_ticket *t)
{
    sl_sim_decode *d = &t->w->decode;
    t->prev = d->tickets_tail;
    t->next = NULL;
    *(t->prev ? &t->prev->next : &d->tickets) = t;
    d->tickets_tail = t;
    t->listed = true;
}

static void end(sl_sim_ticket *t)
{
    sl_sim_decode *d = &t->w->decode;
    if (t->listed)
        unlist(t);
    if (t->state == TICKET_LOADING)
        d->n_loading--;
    else
        d->n_tickets--;
    if (t->state == TICKET_RUNNING) {
        d->n_running--;
        d->device_used -= t->device;
    }
    sl_lease_release(t->lease, true);
    sl_msg_free(&t->m);
    free(t->tokens);
    free(t);
}

static sl_sim_ticket *find(const sl_sim_worker *w, uint64_t rid, uint32_t attempt)
{
    sl_sim_ticket *t = w->decode.tickets;
    while (t && (t->m.reserve.rid != rid || t->m.reserve.attempt != attempt))
        t = t->next;
    return t;
}

/* ---- tokens ---- */

static void tell_tokens(sl_sim_ticket *t)
{
    sl_msg_token tokens[TELL] = {0};
    sl_msg m = {.type = SL_MSG_TOKENS};
    for (int32_t at = t->told; at < t->n; at = t->told) {
        int32_t n = t->n - at < TELL ? t->n - at : TELL;
        for (int32_t i = 0; i < n; i++)
            tokens[i].id = t->tokens[at + i];
        m.tokens = (sl_msg_tokens){.rid = t->m.reserve.rid,
                                   .attempt = t->m.reserve.attempt,
                                   .first_index = (uint32_t)(at - t->n_prompt),
                                   .tokens = tokens,
                                   .n_tokens = (size_t)n};
        t->told += n;
        sl_sim_tell(t->w, &m);
    }
}

static void finish(sl_sim_ticket *t)
{
    sl_msg m = {.type = SL_MSG_DONE};
    m.done = (sl_msg_done){.rid = t->m.reserve.rid,
                           .attempt = t->m.reserve.attempt,
                           .finish = SL_FINISH_LENGTH,
                           .matched_stop = -1,
                           .produced = (uint32_t)(t->n - t->n_prompt)};
    tell_tokens(t);
    sl_sim_tell(t->w, &m);
    end(t);
}

/* Appends the next token. False: it was the last one, and the ticket has ended. */
static bool push(sl_sim_ticket *t)
{
    sl_sim *s = t->w->s;
    if (t->n == t->cap) {
        t->cap *= 2;
        t->tokens = realloc(t->tokens, (size_t)t->cap * sizeof *t->tokens);
        SL_CHECK(t->tokens, "out of memory");
    }
    t->tokens[t->n++] = OUTPUT_TOKEN + (int32_t)(t->m.reserve.rid % OUTPUT_TOKEN);
    t->w->decode.tokens_done++;
    if (t->last_ns)
        sl_sim_gap(&s->out, s->now_ns - t->last_ns);
    t->last_ns = s->now_ns;
    if (t->n - t->n_prompt < t->max_tokens && t->n < s->max_context)
        return true;
    finish(t);
    return false;
}

/* ---- RESERVE ---- */

static void refuse(sl_sim_ticket *t, sl_status st)
{
    sl_sim_tell_failed(t->w, t->m.reserve.rid, t->m.reserve.attempt, st);
    end(t);
}

static bool has_place(const sl_sim_worker *w)
{
    const sl_config *cfg = w->s->o.cfg;
    return w->decode.n_tickets + w->decode.n_loading < cfg->decode.max_batch + cfg->decode.max_waiting;
}

void sl_sim_decode_loaded(sl_cascade_waiter *wait)
{
    sl_sim_ticket *t = (sl_sim_ticket *)wait;
    reserve(t);
}

/* Pages that were loaded count for the disk, as far as it had hits, and then for the shared store. */
static void account(sl_sim_ticket *t)
{
    sl_sim_decode *d = &t->w->decode;
    sl_sim_outcome *o = &t->w->s->out;
    int32_t matched = sl_lease_matched(t->lease), host = t->host < matched ? t->host : matched;
    double loaded = (double)(matched - host) * PAGE, disk = 0;
    if (t->m.reserve.n_tokens != t->m.reserve.n_prompt) /* it was retracted, and counted before */
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

/* A ticket in state LOADING: waits for the tier, gets its pages, or is refused. */
static void reserve(sl_sim_ticket *t)
{
    sl_sim_worker *w = t->w;
    sl_sim_decode *d = &w->decode;
    const sl_msg_reserve *r = &t->m.reserve;
    int32_t n = (int32_t)r->n_tokens, matched = sl_store_match(d->store, r->seed, r->tokens, n);
    if (t->host < 0)
        t->host = matched;
    if (!sl_decode_has_room(sl_sim_pages(n) - matched, d->n_running, sl_store_available(d->store),
                            d->n_tickets)) {
        refuse(t, SL_ERR_EXHAUSTED);
        return;
    }
    if (d->cascade && sl_cascade_wait(d->cascade, r->seed, r->tokens, n, &t->wait))
        return;
    if (sl_store_lease(d->store, r->seed, r->tokens, n, &t->lease) != SL_OK) {
        refuse(t, SL_ERR_EXHAUSTED);
        return;
    }
    account(t);
    t->state = TICKET_LANDING;
    d->n_loading--;
    d->n_tickets++;
    t->number = ++d->next_number;
    sl_msg m = {.type = SL_MSG_RESERVED};
    m.reserved = (sl_msg_reserved){.rid = r->rid,
                                   .attempt = r->attempt,
                                   .ticket = t->number,
                                   .matched_pages = (uint32_t)sl_lease_matched(t->lease),
                                   .pages = (uint32_t *)(uintptr_t)sl_lease_pages(t->lease),
                                   .n_pages = (size_t)sl_lease_n_pages(t->lease)};
    sl_sim_tell(w, &m);
}

void sl_sim_decode_reserve(sl_sim_worker *w, sl_msg *m)
{
    const sl_msg_reserve *r = &m->reserve;
    sl_rd rd = sl_rd_init(r->sampling.data, r->sampling.len);
    sl_sampling sampling;
    if (!has_place(w) || sl_sampling_read(&rd, &sampling) != SL_OK) {
        sl_sim_tell_failed(w, r->rid, r->attempt, SL_ERR_EXHAUSTED);
        sl_msg_free(m);
        return;
    }
    sl_sim_ticket *t = calloc(1, sizeof *t);
    SL_CHECK(t, "out of memory");
    *t = (sl_sim_ticket){.w = w,
                         .m = *m,
                         .host = -1,
                         .n = (int32_t)r->n_tokens,
                         .cap = (int32_t)r->n_tokens + PAGE,
                         .n_prompt = (int32_t)r->n_prompt,
                         .max_tokens = sampling.max_tokens};
    t->told = t->n;
    sl_sampling_free(&sampling);
    t->tokens = malloc((size_t)t->cap * sizeof *t->tokens);
    SL_CHECK(t->tokens, "out of memory");
    memcpy(t->tokens, r->tokens, r->n_tokens * sizeof *t->tokens);
    w->decode.n_loading++;
    list(t);
    reserve(t);
    sl_sim_pages_turn(w);
}

void sl_sim_decode_commit(sl_sim_worker *w, uint64_t rid, uint32_t attempt)
{
    sl_sim_ticket *t = find(w, rid, attempt);
    if (!t || t->state != TICKET_LANDING)
        return;
    t->state = TICKET_WAITING;
    t->order = ++w->decode.next_order;
    sl_lease_publish(t->lease, t->tokens, t->n);
    if (push(t)) {
        tell_tokens(t);
        step(w);
    }
    sl_sim_pages_turn(w);
}

void sl_sim_decode_abort(sl_sim_worker *w, const sl_msg_abort *a)
{
    sl_sim_ticket *t = find(w, a->rid, a->attempt);
    if (!t)
        return;
    if (t->state == TICKET_LOADING && w->decode.cascade)
        sl_cascade_leave(w->decode.cascade, &t->wait);
    end(t);
    sl_sim_pages_turn(w);
}

/* ---- the batch ---- */

static sl_sim_ticket *youngest(const sl_sim_decode *d)
{
    sl_sim_ticket *best = NULL;
    for (sl_sim_ticket *t = d->tickets; t; t = t->next)
        if ((t->state == TICKET_RUNNING || t->state == TICKET_WAITING) && (!best || t->order > best->order))
            best = t;
    return best;
}

static void retract(sl_sim_ticket *t)
{
    sl_msg m = {.type = SL_MSG_RETRACTED};
    m.retracted =
        (sl_msg_retracted){.rid = t->m.reserve.rid, .attempt = t->m.reserve.attempt, .safe = UINT32_MAX};
    t->w->s->out.retracted++;
    tell_tokens(t);
    sl_sim_tell(t->w, &m);
    end(t);
}

/* Whether the device has memory for one more request. */
static bool joins(sl_sim_worker *w, sl_sim_ticket *t)
{
    const sl_sim_costs *c = w->s->c;
    double left = t->max_tokens - (t->n - t->n_prompt);
    t->device = c->decode.bytes_per_request +
                (t->n + (left < 0 ? 0 : left)) * w->s->per_token * c->decode.bytes_per_token;
    if (c->decode.device_bytes > 0 && w->decode.n_running &&
        w->decode.device_used + t->device > c->decode.device_bytes)
        return false;
    w->decode.device_used += t->device;
    t->state = TICKET_RUNNING;
    w->decode.n_running++;
    return true;
}

static void admit(sl_sim_worker *w)
{
    sl_sim_decode *d = &w->decode;
    while (d->n_running < w->s->o.cfg->decode.max_batch) {
        sl_sim_ticket *first = NULL;
        for (sl_sim_ticket *t = d->tickets; t; t = t->next)
            if (t->state == TICKET_WAITING && (!first || t->order < first->order))
                first = t;
        if (!first || !joins(w, first))
            return;
    }
}

/* Gives every running request the page that its next row needs. */
static void grow(sl_sim_worker *w)
{
    bool again = true;
    while (again) {
        again = false;
        for (sl_sim_ticket *t = w->decode.tickets; t && !again; t = t->next) {
            if (t->state != TICKET_RUNNING || t->n <= sl_lease_n_pages(t->lease) * PAGE)
                continue;
            if (sl_lease_grow(t->lease, 1) != SL_OK) {
                retract(youngest(&w->decode));
                again = true; /* the list has changed */
            }
        }
    }
}

static void on_step_end(void *arg, uint64_t number)
{
    sl_sim_worker *w = arg;
    (void)number;
    w->decode.stepping = false;
    for (sl_sim_ticket *t = w->decode.tickets, *next; t; t = next) {
        next = t->next;
        if (t->state != TICKET_RUNNING)
            continue;
        if (t->n % PAGE == 0)
            sl_lease_publish(t->lease, t->tokens, t->n);
        if (push(t) && t->n - t->told == TELL)
            tell_tokens(t);
    }
    step(w);
    sl_sim_pages_turn(w);
}

static void step(sl_sim_worker *w)
{
    sl_sim *s = w->s;
    sl_sim_decode *d = &w->decode;
    double tokens = 0;
    if (d->stepping)
        return;
    admit(w);
    grow(w);
    if (!d->n_running)
        return;
    for (const sl_sim_ticket *t = d->tickets; t; t = t->next)
        tokens += t->state == TICKET_RUNNING ? t->n : 0;
    /* a simulated token stands for per_token tokens, one after another */
    double ns = s->per_token * sl_sim_decode_ns(s->c, d->n_running, tokens * s->per_token);
    d->stepping = true;
    s->out.decode_ns += ns;
    s->out.steps++;
    s->out.step_requests += (uint64_t)d->n_running;
    sl_sim_after(s, ns, on_step_end, w, 0);
}

/* ---- the worker ---- */

void sl_sim_decode_work(const sl_sim_worker *w, sl_msg_load *out)
{
    const sl_sim_decode *d = &w->decode;
    sl_store_stats st;
    sl_store_stats_get(d->store, &st);
    out->running = (uint32_t)d->n_running;
    out->waiting = (uint32_t)(d->n_tickets - d->n_running + d->n_loading);
    out->free_pages = (uint32_t)st.free;
    out->cached_pages = (uint32_t)st.cached;
    out->total_pages = (uint32_t)st.total;
}

void sl_sim_decode_load(const sl_sim_worker *w, sl_msg_load *out)
{
    const sl_sim_decode *d = &w->decode;
    sl_sim_decode_work(w, out);
    for (const sl_sim_ticket *t = d->tickets; t; t = t->next)
        out->queued_tokens += t->state == TICKET_LANDING ? (uint64_t)t->n : 0;
    out->tokens_done = d->tokens_done;
    /* the router knows the small pages of the geometry that the workers announce */
    double rate = 1e9 * (double)w->s->geometry.page_bytes / w->s->page_bytes;
    out->disk_rate = d->disk ? (uint64_t)(w->s->c->disk.read_gb_per_s * rate) : 0;
    out->shared_rate = d->shared ? (uint64_t)(w->s->c->shared.read_gb_per_s * rate) : 0;
}

sl_status sl_sim_decode_open(sl_sim_worker *w, sl_err *err)
{
    return sl_sim_pages_open(w, err);
}

void sl_sim_decode_close(sl_sim_worker *w)
{
    sl_sim_decode *d = &w->decode;
    while (d->tickets) {
        if (d->tickets->state == TICKET_LOADING && d->cascade)
            sl_cascade_leave(d->cascade, &d->tickets->wait);
        end(d->tickets);
    }
    sl_sim_pages_close(w);
}
