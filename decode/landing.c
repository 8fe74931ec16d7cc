/*
 * Landing: a ticket from RESERVE until its rows are verified (LANDING, CHECKING, WAITING). Engine thread.
 *
 * On a worker of role both a RESERVE that names no prefill worker begins a ticket whose prompt is computed here
 * (prompts.c), without COMMIT.
 *
 * RESERVE is granted or refused at once, unless it waits for pages of a storage tier first (loading.c). COMMIT says
 * that the writer has written everything; the checker thread then compares the checksums of the pages that arrived.
 * The pages that matched the prefix tree are verified from RESERVE on, concurrently with prefill (damage.c), except
 * those that were loaded for this request just before. When both answers are there the full pages are published and
 * the ticket waits for a slot. PAGES_ASK is the writer's question for the checksums of matched pages.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "decode/decode_impl.h"
#include "decode/room.h"

static const uint64_t MS = 1000000;
enum { PAGE = SL_PAGE_TOKENS };

/* ---- RESERVE ---- */

static sl_status check_reserve(sl_decode *d, const sl_msg_reserve *r, sl_sampling *sampling, sl_err *err)
{
    int64_t pages = ((int64_t)r->n_tokens + PAGE - 1) / PAGE;
    if (!r->prefill_worker && !d->o.prompts.chunk_tokens)
        return sl_fail(err, SL_ERR_INVALID,
                       "no prefill worker is named, and this worker computes no prompts");
    if ((int64_t)r->n_tokens >= d->o.role.runner->max_context)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%zu tokens leave no room in the context of %d", r->n_tokens,
                       d->o.role.runner->max_context);
    if (pages > sl_arena_pages(d->o.role.arena))
        return sl_fail(err, SL_ERR_TOO_LARGE, "%ld pages exceed the host store of %d (kvstore.bytes)",
                       (long)pages, sl_arena_pages(d->o.role.arena));
    for (size_t i = 0; i < r->n_tokens; i++) {
        if (r->tokens[i] < 0 || r->tokens[i] >= d->o.role.runner->vocab)
            return sl_fail(err, SL_ERR_INVALID, "token %zu is %d, the vocabulary has %d", i, r->tokens[i],
                           d->o.role.runner->vocab);
    }
    sl_rd rd = sl_rd_init(r->sampling.data, r->sampling.len);
    if (sl_sampling_read(&rd, sampling) != SL_OK)
        return sl_fail(err, SL_ERR_CORRUPT, "sampling parameters do not decode");
    sl_status st = sl_sampling_validate(sampling, d->o.role.runner->vocab, err);
    if (st != SL_OK)
        sl_sampling_free(sampling);
    return st;
}

static int32_t shared_tokens(const sl_decode *d, const sl_msg_reserve *r)
{
    return sl_runner_shared(d->o.role.runner, (int32_t)r->n_prompt, (int32_t)r->n_tokens);
}

static bool has_room(const sl_decode *d, const sl_msg_reserve *r)
{
    int32_t n = (int32_t)((r->n_tokens + PAGE - 1) / PAGE);
    int32_t matched = sl_store_match(d->role.store, r->seed, r->tokens, shared_tokens(d, r));
    return sl_decode_has_room(n - matched, d->tickets.n_running, sl_store_available(d->role.store),
                              d->tickets.n);
}

static sl_ticket *ticket_new(sl_decode *d, sl_wmsg *m, sl_sampling *sampling, sl_lease *lease)
{
    const sl_msg_reserve *r = &m->msg.reserve;
    sl_ticket *t = calloc(1, sizeof *t);
    int32_t cap = (int32_t)r->n_tokens + PAGE;
    int32_t *tokens = t ? malloc((size_t)cap * sizeof *tokens) : NULL;
    if (!tokens) {
        free(t);
        return NULL;
    }
    memcpy(tokens, r->tokens, r->n_tokens * sizeof *tokens);
    uint64_t now = sl_now_ns();
    *t = (sl_ticket){.state = r->prefill_worker ? TICKET_LANDING : TICKET_PROMPT,
                     .m = m,
                     .rid = r->rid,
                     .attempt = r->attempt,
                     .number = ++d->tickets.next_number,
                     .router = m->router,
                     .writer = r->prefill_worker,
                     .lease = lease,
                     .sampling = *sampling,
                     .tokens = tokens,
                     .n_tokens = (int32_t)r->n_tokens,
                     .cap = cap,
                     .n_prompt = (int32_t)r->n_prompt,
                     .pos = r->prefill_worker ? 0 : sl_lease_matched(lease) * PAGE,
                     .reserved_ns = now,
                     .prev = d->tickets.tail,
                     .deadline_ns = r->deadline_ms ? now + r->deadline_ms * MS : UINT64_MAX};
    *(t->prev ? &t->prev->next : &d->tickets.list) = t;
    d->tickets.tail = t;
    d->tickets.n++;
    return t;
}

static void answer_reserved(sl_decode *d, const sl_ticket *t)
{
    sl_msg m = {.type = SL_MSG_RESERVED};
    _Static_assert(sizeof(int32_t) == sizeof(uint32_t), "page numbers");
    m.reserved = (sl_msg_reserved){.rid = t->rid,
                                   .attempt = t->attempt,
                                   .ticket = t->number,
                                   .matched_pages = (uint32_t)sl_lease_matched(t->lease),
                                   .pages = (uint32_t *)(uintptr_t)sl_lease_pages(t->lease),
                                   .n_pages = (size_t)sl_lease_n_pages(t->lease)};
    sl_worker_tell_router(d->worker, t->router, &m);
    sl_log(SL_LOG_DEBUG, "decode", "reserved",
           "rid=%016" PRIx64 " attempt=%u ticket=%" PRIu64 " tokens=%d pages=%d matched=%d", t->rid,
           t->attempt, t->number, t->n_tokens, sl_lease_n_pages(t->lease), sl_lease_matched(t->lease));
}

/* At most as many requests wait for pages as there are places for tickets that are free; the others are handled without them. True:
 * it waits, and the list owns m. */
static bool wait_for_pages(sl_decode *d, sl_wmsg *m, uint64_t number)
{
    bool place = d->tickets.n + sl_pages_waiting(d->pages) < d->o.max_batch + d->o.max_waiting;
    sl_reserving *w = place ? calloc(1, sizeof *w) : NULL;
    if (!w || !sl_pages_wait(d->pages, number, m->router, &m->msg.reserve)) {
        free(w);
        return false;
    }
    *w = (sl_reserving){d->tickets.reserving, number, m};
    d->tickets.reserving = w;
    return true;
}

static void reserve(sl_decode *d, sl_wmsg *m, uint64_t number, const sl_pages_event *loaded)
{
    const sl_msg_reserve *r = &m->msg.reserve;
    sl_sampling sampling;
    sl_lease *lease = NULL;
    sl_err err = {0};
    if (sl_ticket_find(d, m->router, r->rid, r->attempt)) {
        sl_ticket_stale(d, "reserve", r->rid, r->attempt);
        goto drop;
    }
    sl_status st = check_reserve(d, r, &sampling, &err);
    if (st != SL_OK) {
        sl_ticket_tell_failed(d, m->router, r->rid, r->attempt, st, false, err.text);
        goto drop;
    }
    uint64_t now = sl_now_ns();
    const char *full = d->role.draining ? "draining"
                       : !sl_claims_place(d, m->router, r->rid, now)
                           ? "all decode slots and all places in the queue are in use"
                           : NULL;
    if (!full) {
        bool room = !sl_claims_bar(d, m->router, r->rid, now) && has_room(d, r);
        if (room && wait_for_pages(d, m, number)) {
            sl_sampling_free(&sampling);
            return;
        }
        room = room && sl_store_lease_part(d->role.store, r->tenant, r->seed, r->tokens, (int32_t)r->n_tokens,
                                           shared_tokens(d, r), &lease) == SL_OK;
        full = room ? NULL : "no host pages";
        if (!room)
            sl_claims_refused(d, m->router, r->rid, now);
    }
    if (full) {
        sl_counter_add(d->report.m.t_refused, 1);
        sl_ticket_tell_failed(d, m->router, r->rid, r->attempt, SL_ERR_EXHAUSTED, true, full);
        goto drop_sampling;
    }
    sl_ticket *t = ticket_new(d, m, &sampling, lease);
    if (!t) {
        sl_lease_release(lease, true);
        sl_ticket_tell_failed(d, m->router, r->rid, r->attempt, SL_ERR_NO_MEMORY, true, "out of memory");
        goto drop_sampling;
    }
    sl_claims_granted(d, m->router, r->rid, now);
    answer_reserved(d, t);
    int32_t verify = sl_pages_to_verify(loaded, sl_lease_matched(lease));
    t->unverified = verify && sl_checker_seals(&d->role.checker);
    if (t->unverified && !sl_patrol_verify(d, t, 0, verify, false))
        sl_ticket_failed(d, t, SL_ERR_NO_MEMORY, true, "out of memory");
    return;
drop_sampling:
    sl_sampling_free(&sampling);
drop:
    sl_wmsg_free(m);
}

void sl_landing_reserve(sl_decode *d, sl_wmsg *m)
{
    reserve(d, m, ++d->tickets.next_reserving, NULL);
}

/* Takes it out of the list. */
static sl_wmsg *unlist(sl_reserving **at)
{
    sl_reserving *w = *at;
    sl_wmsg *m = w->m;
    *at = w->next;
    free(w);
    return m;
}

void sl_landing_loaded(sl_decode *d, const sl_pages_event *ev)
{
    sl_reserving **at = &d->tickets.reserving;
    while (*at && (*at)->number != ev->number)
        at = &(*at)->next;
    SL_CHECK(*at, "no RESERVE waits with this number");
    reserve(d, unlist(at), ev->number, ev);
    for (at = &d->tickets.reserving; *at && (*at)->number != ev->number;)
        at = &(*at)->next;
    if (!*at)
        sl_pages_leave(d->pages, ev->number);
}

bool sl_landing_abort(sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt)
{
    sl_pages_aborted(d->pages, router, rid);
    for (sl_reserving **at = &d->tickets.reserving; *at; at = &(*at)->next) {
        const sl_msg_reserve *r = &(*at)->m->msg.reserve;
        if ((*at)->m->router != router || r->rid != rid || r->attempt != attempt)
            continue;
        sl_pages_leave(d->pages, (*at)->number);
        sl_wmsg_free(unlist(at));
        return true;
    }
    return false;
}

void sl_landing_router_down(sl_decode *d, const uint32_t *router)
{
    for (sl_reserving **at = &d->tickets.reserving; *at;) {
        if (router && (*at)->m->router != *router) {
            at = &(*at)->next;
            continue;
        }
        sl_pages_leave(d->pages, (*at)->number);
        sl_wmsg_free(unlist(at));
    }
}

/* ---- COMMIT ---- */

/* The shipped pages are verified, or the prompt was computed here; the check of the matched ones may still be in flight. */
static void arrived(sl_decode *d, sl_ticket *t)
{
    t->arrived = true;
    if (t->unverified)
        return;
    sl_counter_add(d->report.m.t_committed, 1);
    t->state = TICKET_WAITING;
    t->order = ++d->tickets.next_order;
    t->deadline_ns = UINT64_MAX; /* from now on the router has the deadline */
    t->sealed = sl_checker_seals(&d->role.checker) ? t->n_tokens / PAGE : 0;
    sl_lease_publish(t->lease, t->tokens, sl_runner_public(d->o.role.runner, t->n_prompt, t->n_tokens));
    sl_log(SL_LOG_DEBUG, "decode", "committed",
           "rid=%016" PRIx64 " attempt=%u ticket=%" PRIu64 " tokens=%d cached=%u wait_us=%" PRIu64, t->rid,
           t->attempt, t->number, t->n_tokens, t->cached_tokens, (sl_now_ns() - t->reserved_ns) / 1000);
    sl_batch_first_token(d, t);
}

static const char *check_commit(const sl_decode *d, const sl_ticket *t, const sl_msg_commit *c)
{
    size_t shipped = (size_t)(sl_lease_n_pages(t->lease) - sl_lease_matched(t->lease));
    if (c->n_tokens != (uint32_t)t->n_tokens)
        return "number of tokens differs";
    if (c->first_page != (uint32_t)sl_lease_matched(t->lease))
        return "first shipped page differs";
    if (c->n_crc != shipped * (size_t)d->geo->n_layers)
        return "number of checksums differs";
    if (c->first.id < 0 || c->first.id >= d->o.role.runner->vocab)
        return "first token is outside the vocabulary";
    return NULL;
}

/* How fast prompts become complete (pull_cost.h). */
static void measure_prefill(sl_decode *d, const sl_ticket *t)
{
    uint64_t now = sl_now_ns();
    sl_pages_prompt_took(d->pages, (int64_t)t->n_tokens - (int64_t)t->cached_tokens,
                         now > t->reserved_ns ? now - t->reserved_ns : 0);
}

void sl_landing_computed(sl_decode *d, sl_ticket *t)
{
    measure_prefill(d, t);
    t->state = TICKET_CHECKING;
    arrived(d, t);
}

/* The check owns m from now on. */
static void check_with(sl_decode *d, sl_ticket *t, sl_check *k, sl_wmsg *m)
{
    k->m = m;
    t->checks++;
    sl_checker_post(&d->role.checker, k);
}

void sl_landing_commit(sl_decode *d, sl_wmsg *m)
{
    const sl_msg_commit *c = &m->msg.commit;
    sl_ticket *t = sl_ticket_find(d, m->router, c->rid, c->attempt);
    bool fits = t && t->number == c->ticket && t->writer == c->worker_id && t->writer == m->worker_id;
    if (fits && t->state == TICKET_QUARANTINE) { /* too late, but it tells that the writer has finished */
        sl_ticket_stale(d, "commit", c->rid, c->attempt);
        sl_ticket_let_go(d, t);
        goto drop;
    }
    if (!fits || t->state != TICKET_LANDING) {
        sl_ticket_stale(d, "commit", c->rid, c->attempt);
        goto drop;
    }
    t->drained = true;
    const char *wrong = check_commit(d, t, c);
    if (wrong) {
        sl_ticket_failed(d, t, SL_ERR_CORRUPT, true, "COMMIT: %s", wrong);
        goto drop;
    }
    t->first = c->first;
    t->cached_tokens = c->cached_tokens;
    measure_prefill(d, t);
    t->state = TICKET_CHECKING;
    if (!d->o.role.verify_checksums && !sl_checker_seals(&d->role.checker)) {
        arrived(d, t);
        goto drop;
    }
    int32_t from = sl_lease_matched(t->lease);
    sl_check *k =
        sl_check_new(SL_CHECK_KEEP, sl_lease_pages(t->lease) + from, sl_lease_n_pages(t->lease) - from, t);
    if (k) {
        k->expect = c->crc;
        k->last_tokens = (t->n_tokens - 1) % PAGE + 1;
        k->compare = d->o.role.verify_checksums;
        check_with(d, t, k, m);
        return;
    }
    sl_ticket_failed(d, t, SL_ERR_NO_MEMORY, true, "out of memory");
drop:
    sl_wmsg_free(m);
}

static void answer_pages(sl_decode *d, const sl_wmsg *m, uint32_t *crc, size_t n)
{
    const sl_msg_pages_ask *a = &m->msg.pages_ask;
    sl_msg r = {.type = SL_MSG_PAGES_CRC};
    r.pages_crc =
        (sl_msg_pages_crc){.rid = a->rid, .attempt = a->attempt, .first = a->first, .crc = crc, .n_crc = n};
    sl_worker_tell_peer(d->worker, m->ep_serial, &r);
}

void sl_landing_pages_ask(sl_decode *d, sl_wmsg *m)
{
    const sl_msg_pages_ask *a = &m->msg.pages_ask;
    sl_ticket *t = sl_ticket_find(d, m->router, a->rid, a->attempt);
    bool fits = t && t->state == TICKET_LANDING && t->number == a->ticket && t->writer == m->worker_id &&
                (uint64_t)a->first + a->count <= (uint64_t)sl_lease_matched(t->lease);
    sl_check *k =
        fits ? sl_check_new(SL_CHECK_READ, sl_lease_pages(t->lease) + a->first, (int32_t)a->count, t) : NULL;
    if (k) {
        check_with(d, t, k, m);
        return;
    }
    sl_ticket_stale(d, "pages_ask", a->rid, a->attempt);
    answer_pages(d, m, NULL, 0);
    sl_wmsg_free(m);
}

/* The checker has compared the checksums of the pages that arrived. */
static void on_arrival_checked(sl_decode *d, sl_ticket *t, const sl_check *c)
{
    if (!c->bad) {
        arrived(d, t);
        return;
    }
    d->tickets.count.corrupt++;
    sl_counter_add(d->report.m.checksum, c->bad);
    sl_ticket_failed(d, t, SL_ERR_CORRUPT, true, "%zu of %zu checksums of the arrived pages are wrong",
                     c->bad, (size_t)c->n_pages * (size_t)d->geo->n_layers);
}

/* The checker has verified pages: those of the prefix that RESERVE has matched, or some for the patrol. */
static void on_pages_verified(sl_decode *d, sl_ticket *t, const sl_check *k, bool ended)
{
    if (!sl_patrol_verified(d, k) || ended || !t->unverified)
        return;
    t->unverified = false;
    if (t->arrived)
        arrived(d, t);
}

void sl_landing_checked(sl_decode *d, sl_check *k)
{
    if (sl_pages_checked(d->pages, k))
        return;
    sl_ticket *t = k->owner;
    bool ended = t->state == TICKET_ENDING || t->state == TICKET_QUARANTINE;
    t->checks--;
    switch (k->what) {
    case SL_CHECK_READ: /* answered in every state: the pages were pinned until now */
        answer_pages(d, k->m, k->crc, ended ? 0 : k->n_crc);
        break;
    case SL_CHECK_KEEP:
        if (!ended)
            on_arrival_checked(d, t, k); /* t was CHECKING and may be freed now */
        break;
    case SL_CHECK_VERIFY:
        on_pages_verified(d, t, k, ended); /* t may be freed now */
        break;
    case SL_CHECK_SEAL:
        break;
    }
    if (ended && t->state == TICKET_ENDING && !t->checks)
        sl_ticket_let_go(d, t);
    sl_check_free(k);
}
