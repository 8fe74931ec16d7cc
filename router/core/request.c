/*
 * State machine of one generation.
 *
 *   QUEUED -> RESERVING -> PREFILLING -> DECODING -> FINISHED | FAILED
 *
 * Within an attempt (attempt) states only move forward; a new attempt begins in QUEUED with attempt + 1. A message
 * counts only when rid, attempt, sender and state fit, otherwise it is dropped and counted. Every state has a
 * deadline: the request's own, and stage_timeout_ms without progress of the worker that has to act.
 *
 * Leaving an attempt early (leave_attempt) tells everybody who knows of it: ABORT to the decode worker, and
 * to the prefill worker when it may still write. The decode worker keeps the landing pages until it hears
 * DRAINED, which we relay when the prefill worker says so, or say at once when no writer was started or it
 * has finished. For a writer that died nobody says DRAINED: ABORT carries SL_ERR_PEER and the decode worker
 * closes its own endpoint first.
 *
 * Recovery keeps prompt + produced tokens, so the next attempt continues at the same position with the same
 * random numbers.
 */
#include "router/core/request.h"

#include <stdlib.h>
#include <string.h>

#include "kvstore/page_key.h"
#include "router/core/request_impl.h"

enum { STAGE_HARD = 10 }; /* stage timeouts without own progress before others' progress stops counting */

const char *sl_request_state_name(sl_request_state s)
{
    static const char *const names[] = {"queued",   "reserving", "prefilling",
                                        "decoding", "finished",  "failed"};
    return (size_t)s < SL_COUNT(names) ? names[s] : "?";
}

sl_request *sl_request_find(sl_router *r, uint64_t rid)
{
    sl_request *g = r->bucket[rid % SL_REQUEST_BUCKETS];
    while (g && g->rid != rid)
        g = g->hash_next;
    return g;
}

uint32_t sl_request_produced(const sl_request *g)
{
    return (uint32_t)(g->n_tokens - g->n_prompt);
}

bool sl_request_over(const sl_request *g)
{
    return g->state == SL_REQUEST_FINISHED || g->state == SL_REQUEST_FAILED;
}

static void send_id(sl_member *w, sl_msg_type type, const sl_request *g)
{
    sl_msg m = {.type = type};
    m.id.rid = g->rid;
    m.id.attempt = g->attempt;
    sl_router_link_send(w, &m);
}

static void send_abort(sl_member *w, const sl_request *g, sl_status why)
{
    sl_msg m = {.type = SL_MSG_ABORT};
    m.abort.rid = g->rid;
    m.abort.attempt = g->attempt;
    m.abort.status = why < 0 ? why : SL_ERR_CANCELLED;
    sl_router_link_send(w, &m);
}

/* The prefill worker will answer ABORT with DRAINED; remember whom that concerns. */
static void expect_drained(sl_router *r, const sl_request *g)
{
    sl_undrained *d = calloc(1, sizeof *d);
    if (!d)
        return;
    d->rid = g->rid;
    d->attempt = g->attempt;
    d->prefill = g->prefill;
    d->decode = g->decode;
    d->next = r->drains;
    r->drains = d;
}

void sl_request_settle_prefill(sl_request *g, sl_member *p)
{
    if (p && !g->prefill_done) {
        p->placed--;
        p->placed_tokens -= g->placed_tokens < p->placed_tokens ? g->placed_tokens : p->placed_tokens;
    }
    g->placed_tokens = 0;
}

/* Ends the current attempt. tell: who still knows of it and must hear ABORT. */
void sl_request_leave(sl_request *g, sl_status why, unsigned tell)
{
    sl_router *r = g->r;
    if (!g->decode)
        return;
    sl_member *p = sl_member_find(r, g->prefill), *d = sl_member_find(r, g->decode);
    bool writer = g->prefill_sent && !g->prefill_done;
    if (d && tell & TELL_DECODE)
        send_abort(d, g, why);
    if (p && writer && tell & TELL_PREFILL) {
        send_abort(p, g, why);
        expect_drained(r, g);
    } else if (d && tell & TELL_DECODE && (p || !writer)) {
        send_id(d, SL_MSG_DRAINED, g); /* nobody writes: never started, finished, or its FAILED said so */
    }
    sl_request_settle_prefill(g, p);
    if (d)
        d->placed--;
    g->prefill = g->decode = 0;
    g->prefill_sent = g->prefill_done = false;
}

static void unhash(sl_request *g)
{
    sl_request **p = &g->r->bucket[g->rid % SL_REQUEST_BUCKETS];
    while (*p && *p != g)
        p = &(*p)->hash_next;
    if (*p)
        *p = g->hash_next;
}

/* The attempt has been left already. */
void sl_request_end(sl_request *g, sl_finish finish, sl_status st, const char *reason)
{
    if (sl_request_over(g))
        return;
    sl_router *r = g->r;
    if (g->in_queue)
        sl_queue_remove(g);
    g->state = st ? SL_REQUEST_FAILED : SL_REQUEST_FINISHED;
    unhash(g);
    r->active--;
    uint64_t now = sl_now_ns();
    const char *outcome = st ? sl_router_stats_outcome(st) : finish == SL_FINISH_LENGTH ? "length" : "stop";
    sl_router_stats_request(&r->stats, g->group->api, outcome);
    sl_counter_add(r->stats.cached_tokens, g->cached_tokens);
    sl_histogram_observe(r->stats.e2e, (double)(now - g->start_ns) / 1e9);
    if (g->first_token_ns)
        sl_histogram_observe(r->stats.stage_decode, (double)(now - g->first_token_ns) / 1e9);
    sl_log(
        SL_LOG_INFO, "router", "request_done",
        "rid=%016lx attempt=%u id=%s index=%u outcome=%s prompt=%zu cached=%u produced=%u retries=%u ms=%.1f "
        "reason=\"%s\"",
        g->rid, g->attempt, g->group->id, g->index, outcome, g->n_prompt, g->cached_tokens,
        sl_request_produced(g), g->retries, (double)(now - g->start_ns) / 1e6, reason ? reason : "");
    sl_group_leader_ready(g);
    sl_output_end(g, finish, st, reason ? reason : sl_status_name(st));
    r->place_again = true;
}

void sl_request_fail(sl_request *g, sl_status st, const char *reason)
{
    if (sl_request_over(g))
        return;
    sl_request_leave(g, st, TELL_PREFILL | TELL_DECODE);
    sl_request_end(g, st == SL_ERR_CANCELLED ? SL_FINISH_ABORT : SL_FINISH_ERROR, st, reason);
}

void sl_request_cancel(sl_request *g)
{
    sl_request_fail(g, SL_ERR_CANCELLED, "cancelled");
}

/* True when all tokens are there and only the DONE is missing. */
bool sl_request_complete(const sl_request *g)
{
    uint32_t n = sl_request_produced(g);
    return n && (n >= (uint32_t)g->sampling.max_tokens || g->matched_token >= 0);
}

void sl_request_finish(sl_request *g, sl_finish how)
{
    sl_request_end(g, how, SL_OK, NULL);
}

/* Back to the queue's front. The attempt has been left. */
void sl_request_requeue(sl_request *g, uint64_t now)
{
    g->state = SL_REQUEST_QUEUED;
    g->stage_ns = now;
    if (!g->in_queue)
        sl_queue_push(g, true);
    g->r->place_again = true;
}

void sl_request_again(sl_request *g, sl_status st, const char *reason, unsigned tell)
{
    sl_router *r = g->r;
    if (sl_request_over(g))
        return;
    sl_request_state was = g->state;
    uint32_t p = g->prefill, d = g->decode;
    sl_request_leave(g, st, tell);
    if (sl_request_complete(g)) {
        sl_request_finish(g, g->matched_token >= 0 ? SL_FINISH_STOP : SL_FINISH_LENGTH);
        return;
    }
    if (g->retries >= r->o.retries) {
        sl_request_end(g, SL_FINISH_ERROR, SL_ERR_PEER, reason);
        return;
    }
    g->retries++;
    if (was == SL_REQUEST_DECODING || (was == SL_REQUEST_PREFILLING && !(tell & TELL_DECODE)))
        g->avoid_decode = d;
    else
        g->avoid_prefill = p;
    sl_counter_add(was == SL_REQUEST_DECODING     ? r->stats.retry_decode
                   : was == SL_REQUEST_PREFILLING ? r->stats.retry_prefill
                                                  : r->stats.retry_reserve,
                   1);
    if (sl_request_produced(g))
        sl_counter_add(r->stats.resumes, 1);
    g->recoveries++;
    sl_log(SL_LOG_WARN, "router", "request_retry",
           "rid=%016lx attempt=%u state=%s produced=%u retry=%u reason=\"%s\"", g->rid, g->attempt,
           sl_request_state_name(was), sl_request_produced(g), g->retries, reason ? reason : "");
    uint64_t now = sl_now_ns();
    g->not_before_ns = g->retries > 1 ? now + (BACKOFF_MIN_MS << g->retries) * SL_MS : 0;
    sl_request_requeue(g, now);
}

void sl_request_retry(sl_request *g, sl_status st, const char *reason)
{
    sl_request_again(g, st, reason, TELL_PREFILL | TELL_DECODE);
}

/* ---- placing ---- */

static sl_status update_keys(sl_request *g)
{
    sl_router *r = g->r;
    size_t n = g->n_tokens / SL_KEY_PAGE_TOKENS;
    if (n > g->cap_keys) {
        size_t cap = n + 16;
        sl_key *k = realloc(g->keys, cap * sizeof *k);
        if (!k)
            return SL_ERR_NO_MEMORY;
        g->keys = k;
        g->cap_keys = cap;
    }
    if (!sl_key_eq(g->key_seed, r->fingerprint)) {
        g->key_seed = r->fingerprint;
        g->n_keys = 0;
    }
    for (; g->n_keys < n; g->n_keys++)
        g->keys[g->n_keys] = sl_page_key(g->n_keys ? g->keys[g->n_keys - 1] : r->fingerprint,
                                         g->tokens + g->n_keys * SL_KEY_PAGE_TOKENS);
    return SL_OK;
}

sl_status sl_request_keys(sl_request *g)
{
    return update_keys(g);
}

uint32_t sl_request_remaining_ms(const sl_request *g, uint64_t now)
{
    uint64_t ns = g->deadline_ns > now ? g->deadline_ns - now : 0;
    uint64_t ms = ns / SL_MS + 1;
    return ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}

/* Keys as they travel: lo then hi, little-endian, which is how they lie in memory on the machines we run on.
 */
sl_blob sl_request_key_blob(const sl_request *g)
{
    _Static_assert(sizeof(sl_key) == 16, "keys travel as 16 bytes");
    return (sl_blob){(const uint8_t *)g->keys, g->n_keys * sizeof(sl_key)};
}

void sl_request_place(sl_request *g, sl_member *p, sl_member *d, uint64_t now)
{
    sl_router *r = g->r;
    if (g->in_queue)
        sl_queue_remove(g);
    if (!g->attempt) {
        sl_histogram_observe(r->stats.queue, (double)(now - g->start_ns) / 1e9);
        sl_histogram_observe(r->stats.overhead, (double)(now - g->group->start_ns) / 1e9);
    }
    g->attempt++;
    g->prefill = p->id;
    g->decode = d->id;
    g->prefill_sent = g->prefill_done = false;
    g->placed_tokens = g->n_tokens;
    p->placed++;
    p->placed_tokens += g->placed_tokens;
    d->placed++;
    p->requests++;
    d->requests++;
    g->state = SL_REQUEST_RESERVING;
    g->stage_ns = now;
    sl_msg m = {.type = SL_MSG_RESERVE};
    m.reserve.rid = g->rid;
    m.reserve.attempt = g->attempt;
    m.reserve.prefill_worker = p->id;
    m.reserve.n_prompt = (uint32_t)g->n_prompt;
    m.reserve.tokens = g->tokens;
    m.reserve.n_tokens = g->n_tokens;
    m.reserve.deadline_ms = sl_request_remaining_ms(g, now);
    m.reserve.sampling = (sl_blob){g->sampling_wire.data, g->sampling_wire.len};
    m.reserve.pages_keys = sl_request_key_blob(g);
    sl_router_link_send(d, &m);
    sl_log(SL_LOG_INFO, "router", "request_placed",
           "rid=%016lx attempt=%u id=%s prefill=%s decode=%s tokens=%zu", g->rid, g->attempt, g->group->id,
           p->name, d->name, g->n_tokens);
}

/* ---- deaths and deadlines ---- */

void sl_requests_member_lost(sl_member *w)
{
    sl_router *r = w->r;
    for (sl_undrained **p = &r->drains; *p;) { /* nobody will answer, or nobody will listen */
        sl_undrained *d = *p;
        if (d->prefill == w->id || d->decode == w->id) {
            *p = d->next;
            free(d);
        } else {
            p = &d->next;
        }
    }
    for (sl_group *grp = r->groups; grp; grp = grp->next) {
        for (uint32_t i = 0; i < grp->n_gens; i++) {
            sl_request *g = grp->gens[i];
            if (sl_request_over(g) || !g->decode)
                continue;
            if (g->decode == w->id)
                sl_request_again(g, SL_ERR_PEER, "decode worker lost", TELL_PREFILL);
            else if (g->prefill == w->id && !g->prefill_done)
                sl_request_again(g, SL_ERR_PEER, "prefill worker lost", TELL_DECODE);
        }
    }
}

/* When the worker that has to act last got anywhere. */
static uint64_t last_progress(const sl_request *g, uint64_t now)
{
    uint64_t at = g->stage_ns;
    const sl_member *w = NULL;
    if (g->state == SL_REQUEST_PREFILLING && !g->prefill_done)
        w = sl_member_find(g->r, g->prefill);
    else if (g->state == SL_REQUEST_PREFILLING || g->state == SL_REQUEST_DECODING)
        w = sl_member_find(g->r, g->decode);
    if (w && w->progress_ns > at && now - at < STAGE_HARD * (uint64_t)g->r->o.stage_timeout_ms * SL_MS)
        at = w->progress_ns;
    return at;
}

static void check_deadlines(sl_request *g, uint64_t now)
{
    sl_router *r = g->r;
    if (now >= g->deadline_ns) {
        sl_request_fail(g, SL_ERR_DEADLINE, "the request's deadline passed");
        return;
    }
    uint64_t at = last_progress(g, now);
    if (now < at || now - at < r->o.stage_timeout_ms * SL_MS || g->held)
        return;
    if (g->state == SL_REQUEST_QUEUED) {
        if (!sl_members_count(r, SL_ROLE_PREFILL) || !sl_members_count(r, SL_ROLE_DECODE))
            sl_request_fail(g, SL_ERR_PEER, "no worker of one role for router.stage_timeout_ms");
    } else if (g->state == SL_REQUEST_RESERVING || g->state == SL_REQUEST_PREFILLING ||
               g->state == SL_REQUEST_DECODING) {
        sl_request_retry(g, SL_ERR_TIMEOUT, "no progress for router.stage_timeout_ms");
    }
}

void sl_requests_tick(sl_router *r, uint64_t now)
{
    for (sl_group *grp = r->groups; grp; grp = grp->next) {
        for (uint32_t i = 0; i < grp->n_gens; i++) {
            if (!sl_request_over(grp->gens[i]))
                check_deadlines(grp->gens[i], now);
        }
    }
}
