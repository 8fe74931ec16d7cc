/*
 * What workers say about a generation. A message counts only when rid, generation, sender and state fit;
 * otherwise it is dropped and counted. Tokens are checked against those already sent, so that a repeated or a
 * lost message can neither change a stream nor leave a hole in it.
 */
#include <stdlib.h>
#include <string.h>

#include "kvstore/page_key.h"
#include "router/core/request_impl.h"

static void on_reserved(sl_request *g, const sl_msg_reserved *m)
{
    sl_router *r = g->r;
    sl_member *p = sl_member_find(r, g->prefill), *d = sl_member_find(r, g->decode);
    size_t pages = (g->n_tokens + SL_KEY_PAGE_TOKENS - 1) / SL_KEY_PAGE_TOKENS;
    if (m->n_pages != pages || m->matched_pages > pages) {
        sl_request_retry(g, SL_ERR_CORRUPT, "decode worker reserved a wrong number of pages");
        return;
    }
    uint64_t now = sl_now_ns();
    sl_histogram_observe(r->stats.stage_reserve, (double)(now - g->stage_ns) / 1e9);
    g->state = SL_REQUEST_PREFILLING;
    g->stage_ns = now;
    g->ticket = m->ticket;
    sl_msg o = {.type = SL_MSG_PREFILL};
    o.prefill.rid = g->rid;
    o.prefill.attempt = g->attempt;
    o.prefill.ticket = m->ticket;
    o.prefill.decode_worker = d->id;
    memcpy(o.prefill.decode_addr, d->listen, sizeof o.prefill.decode_addr);
    o.prefill.decode_epoch = d->epoch;
    o.prefill.n_prompt = (uint32_t)g->n_prompt;
    o.prefill.tokens = g->tokens;
    o.prefill.n_tokens = g->n_tokens;
    o.prefill.matched_pages = m->matched_pages;
    o.prefill.pages = m->pages;
    o.prefill.n_pages = m->n_pages;
    o.prefill.deadline_ms = sl_request_remaining_ms(g, now);
    o.prefill.sampling = (sl_blob){g->sampling_wire.data, g->sampling_wire.len};
    o.prefill.pages_keys = sl_request_key_blob(g);
    g->prefill_sent = true;
    sl_router_link_send(p, &o);
}

static void on_prefilled(sl_request *g, const sl_msg_prefilled *m)
{
    sl_router *r = g->r;
    sl_member *p = sl_member_find(r, g->prefill);
    sl_request_settle_prefill(g, p);
    g->prefill_done = true;
    if (!g->cached_tokens && g->attempt == 1)
        g->cached_tokens = m->cached_tokens < g->n_prompt ? m->cached_tokens : (uint32_t)g->n_prompt;
    sl_histogram_observe(r->stats.stage_transfer, (double)m->ship_us / 1e6);
    for (size_t i = 0; p && i < g->n_keys; i++)
        sl_keyset_add(p->prefix, g->keys[i]);
    if (g->state == SL_REQUEST_PREFILLING) {
        uint64_t now = sl_now_ns();
        sl_histogram_observe(r->stats.stage_prefill, (double)(now - g->stage_ns) / 1e9);
        g->stage_ns = now;
    }
    sl_group_leader_ready(g);
    r->place_again = true;
}

static bool room_for(sl_request *g, size_t n)
{
    if (g->n_tokens + n <= g->cap)
        return true;
    size_t cap = g->cap * 2 > g->n_tokens + n ? g->cap * 2 : g->n_tokens + n + 64;
    int32_t *t = realloc(g->tokens, cap * sizeof *t);
    if (!t)
        return false;
    g->tokens = t;
    g->cap = cap;
    return true;
}

static void observe_tokens(sl_request *g, size_t n, uint64_t now)
{
    sl_router_stats *s = &g->r->stats;
    sl_counter_add(s->generated_tokens, n);
    if (!g->first_token_ns) {
        g->first_token_ns = now;
        sl_histogram_observe(s->ttft, (double)(now - g->group->start_ns) / 1e9);
        n--;
    }
    for (size_t i = 0; i < n; i++) /* several in one message: their share each */
        sl_histogram_observe(s->itl, (double)(now - g->last_token_ns) / 1e9 / (double)n);
    g->last_token_ns = now;
}

/* What is wrong with these tokens, or NULL. */
static const char *check_tokens(const sl_request *g, const sl_msg_tokens *m)
{
    uint32_t have = sl_request_produced(g);
    if (m->first_index > have)
        return "tokens are missing";
    for (size_t i = 0; i < m->n_tokens; i++) {
        int32_t id = m->tokens[i].id;
        if (id < 0 || (uint32_t)id >= g->r->cluster_vocab)
            return "token id outside the vocabulary";
        size_t at = m->first_index + i;
        if (at < have && g->tokens[g->n_prompt + at] != id)
            return "repeated token differs from the one sent before";
        if (at >= (size_t)g->sampling.max_tokens)
            return "more tokens than asked for";
    }
    return NULL;
}

static void on_tokens(sl_request *g, const sl_msg_tokens *m)
{
    const char *wrong = check_tokens(g, m);
    if (wrong) {
        sl_counter_add(g->r->stats.malformed, 1);
        sl_request_retry(g, SL_ERR_CORRUPT, wrong);
        return;
    }
    uint64_t now = sl_now_ns();
    if (g->state == SL_REQUEST_PREFILLING) {
        g->state = SL_REQUEST_DECODING;
        if (!g->prefill_done)
            sl_histogram_observe(g->r->stats.stage_prefill, (double)(now - g->stage_ns) / 1e9);
        sl_group_leader_ready(g);
    }
    g->stage_ns = now;
    size_t skip = sl_request_produced(g) - m->first_index;
    if (skip >= m->n_tokens)
        return; /* seen before */
    size_t n = m->n_tokens - skip;
    if (!room_for(g, n)) {
        sl_request_fail(g, SL_ERR_NO_MEMORY, "out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++)
        g->tokens[g->n_tokens++] = m->tokens[skip + i].id;
    observe_tokens(g, n, now);
    g->avoid_decode = g->avoid_prefill = 0;
    if (sl_output_tokens(g, m->tokens + skip, n) && !sl_request_over(g)) {
        sl_request_leave(g, SL_ERR_CANCELLED,
                         TELL_PREFILL | TELL_DECODE); /* a stop string: the worker cannot know */
        sl_request_finish(g, SL_FINISH_STOP);
    }
}

static void on_done(sl_request *g, const sl_msg_done *m)
{
    if (m->produced != sl_request_produced(g)) {
        sl_counter_add(g->r->stats.malformed, 1);
        sl_request_retry(g, SL_ERR_CORRUPT, "the worker's count of tokens differs");
        return;
    }
    if (m->finish != SL_FINISH_STOP && m->finish != SL_FINISH_LENGTH) {
        sl_request_again(g, SL_ERR_CANCELLED, "the worker gave the request up", TELL_PREFILL);
        return;
    }
    if (m->cached_tokens && g->attempt == 1 && m->cached_tokens <= g->n_prompt)
        g->cached_tokens = m->cached_tokens;
    if (m->matched_stop >= 0)
        g->matched_token = m->matched_stop;
    sl_request_leave(g, SL_OK, TELL_PREFILL);
    sl_request_finish(g, (sl_finish)m->finish);
}

static void on_retracted(sl_request *g)
{
    sl_log(SL_LOG_INFO, "router", "request_retracted", "rid=%016lx attempt=%u produced=%u", g->rid,
           g->attempt, sl_request_produced(g));
    g->avoid_decode = g->decode;
    sl_request_leave(g, SL_OK, TELL_PREFILL);
    if (sl_request_complete(g))
        sl_request_finish(g, g->matched_token >= 0 ? SL_FINISH_STOP : SL_FINISH_LENGTH);
    else
        sl_request_requeue(g, sl_now_ns());
}

/* The decode worker has no room: not a failure, wait for room there or elsewhere. */
static void on_full(sl_request *g, sl_member *w)
{
    uint64_t now = sl_now_ns();
    g->backoff = g->backoff ? g->backoff * 2 : BACKOFF_MIN_MS;
    if (g->backoff > BACKOFF_MAX_MS)
        g->backoff = BACKOFF_MAX_MS;
    w->blocked_until_ns = now + g->backoff * SL_MS;
    sl_request_leave(g, SL_OK, 0);
    sl_request_requeue(g, now);
}

static void on_failed(sl_request *g, sl_member *w, const sl_msg_failed *m)
{
    w->failures++;
    bool from_decode = w->id == g->decode;
    if (m->status == SL_ERR_EXHAUSTED && m->retryable && from_decode && g->state == SL_REQUEST_RESERVING) {
        on_full(g, w);
        return;
    }
    unsigned tell = from_decode ? TELL_PREFILL : TELL_DECODE;
    if (m->retryable) {
        sl_request_again(g, SL_ERR_PEER, m->reason, tell);
    } else {
        sl_request_leave(g, SL_ERR_CANCELLED, tell);
        sl_request_end(g, SL_FINISH_ERROR, m->status < 0 ? (sl_status)m->status : SL_ERR_INTERNAL, m->reason);
    }
}

/* A prefill worker has stopped writing for an attempt that is no more: its decode worker may recycle the
 * pages. */
static void relay_drained(sl_member *w, uint64_t rid, uint32_t attempt)
{
    for (sl_undrained **p = &w->r->drains; *p; p = &(*p)->next) {
        sl_undrained *d = *p;
        if (d->rid != rid || d->attempt != attempt || d->prefill != w->id)
            continue;
        sl_member *to = sl_member_find(w->r, d->decode);
        if (to) {
            sl_msg m = {.type = SL_MSG_DRAINED};
            m.id.rid = rid;
            m.id.attempt = attempt;
            sl_router_link_send(to, &m);
        }
        *p = d->next;
        free(d);
        return;
    }
}

static void identify(const sl_msg *m, uint64_t *rid, uint32_t *attempt)
{
    switch (m->type) {
    case SL_MSG_RESERVED:
        *rid = m->reserved.rid, *attempt = m->reserved.attempt;
        break;
    case SL_MSG_PREFILLED:
        *rid = m->prefilled.rid, *attempt = m->prefilled.attempt;
        break;
    case SL_MSG_FAILED:
        *rid = m->failed.rid, *attempt = m->failed.attempt;
        break;
    case SL_MSG_TOKENS:
        *rid = m->tokens.rid, *attempt = m->tokens.attempt;
        break;
    case SL_MSG_DONE:
        *rid = m->done.rid, *attempt = m->done.attempt;
        break;
    default:
        *rid = m->id.rid, *attempt = m->id.attempt;
        break;
    }
}

static bool fits(const sl_request *g, const sl_member *w, sl_msg_type type)
{
    bool decode = w->id == g->decode, prefill = w->id == g->prefill;
    switch (type) {
    case SL_MSG_RESERVED:
        return decode && g->state == SL_REQUEST_RESERVING;
    case SL_MSG_PREFILLED:
        return prefill && g->prefill_sent && !g->prefill_done;
    case SL_MSG_FAILED:
        return decode || (prefill && g->prefill_sent && !g->prefill_done);
    case SL_MSG_TOKENS:
        return decode && (g->state == SL_REQUEST_PREFILLING || g->state == SL_REQUEST_DECODING);
    case SL_MSG_DONE:
    case SL_MSG_RETRACTED:
        return decode && (g->state == SL_REQUEST_PREFILLING || g->state == SL_REQUEST_DECODING);
    default:
        return false;
    }
}

void sl_request_message(sl_member *w, const sl_msg *m)
{
    sl_router *r = w->r;
    uint64_t rid;
    uint32_t attempt;
    identify(m, &rid, &attempt);
    /* A prefill worker that had already finished when ABORT reached it says so with these. */
    if (m->type == SL_MSG_DRAINED || m->type == SL_MSG_PREFILLED || m->type == SL_MSG_FAILED)
        relay_drained(w, rid, attempt);
    if (m->type == SL_MSG_DRAINED)
        return;
    sl_request *g = sl_request_find(r, rid);
    if (!g || g->attempt != attempt || !fits(g, w, m->type)) {
        sl_counter_add(r->stats.stale, 1);
        sl_log(SL_LOG_DEBUG, "router", "message_dropped", "type=%s rid=%016lx attempt=%u worker=%s",
               sl_msg_type_name(m->type), rid, attempt, w->name);
        return;
    }
    switch (m->type) {
    case SL_MSG_RESERVED:
        on_reserved(g, &m->reserved);
        break;
    case SL_MSG_PREFILLED:
        on_prefilled(g, &m->prefilled);
        break;
    case SL_MSG_FAILED:
        on_failed(g, w, &m->failed);
        break;
    case SL_MSG_TOKENS:
        on_tokens(g, &m->tokens);
        break;
    case SL_MSG_DONE:
        on_done(g, &m->done);
        break;
    default:
        on_retracted(g);
        break;
    }
    if (r->place_again)
        sl_place_all(r);
}
