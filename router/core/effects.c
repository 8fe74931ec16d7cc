/*
 * Carries out the effects of steps. Each kind of effect has up to two parts: `book` changes the router's own tables
 * (queue, accounts of members, request table) at once, so that the next decision sees the change; `perform` sends a
 * message or calls a sink, later and in order, from the loop. A sink may submit, abort and release, which only appends
 * effects to the list.
 */
#include <stdlib.h>
#include <string.h>

#include "router/core/core_impl.h"

enum { FIRST_CAP = 1024 };

/* ---- RESERVE ---- */

static void book_reserve(sl_router *r, sl_request *q, const sl_effect *e)
{
    sl_member *p = sl_member_find(r, e->prefill), *d = sl_member_find(r, e->decode);
    sl_queue_remove(r, q);
    if (q->prefetch.decode)
        sl_prefetch_end(r, q, e->decode, q->attempt.n);
    if (q->attempt.n == 1) {
        r->queue.first_picks++;
        sl_queue_charge(q, q->n_prompt);
    }
    p->account.tokens += q->attempt.placed_tokens;
    d->account.requests++;
    q->attempt.placed_context = q->n_tokens;
    d->account.context += q->attempt.placed_context;
    d->requests++;
    if (p == d) /* role both */
        return;
    p->account.requests++;
    p->requests++;
}

static void perform_reserve(sl_router *r, sl_request *q, const sl_effect *e)
{
    sl_member *p = sl_member_find(r, e->prefill), *d = sl_member_find(r, e->decode);
    if (!d)
        return;
    sl_msg m = {.type = SL_MSG_RESERVE};
    m.reserve.rid = q->rid;
    m.reserve.attempt = e->attempt;
    m.reserve.prefill_worker = e->prefill == e->decode ? 0 : e->prefill;
    m.reserve.n_prompt = (uint32_t)q->n_prompt;
    m.reserve.tokens = q->tokens;
    m.reserve.n_tokens = q->n_tokens;
    m.reserve.deadline_ms = sl_request_remaining_ms(q, sl_now_ns());
    m.reserve.sampling = (sl_blob){q->sampling_wire.data, q->sampling_wire.len};
    m.reserve.seed = q->keys.seed;
    m.reserve.tenant = q->group->tenant;
    const sl_member *source = sl_member_find(r, q->attempt.source);
    if (source)
        sl_placement_source(source, q->attempt.source_pages, &m.reserve.source);
    sl_router_link_send(d, &m);
    sl_log(SL_LOG_DEBUG, "router", "request_placed",
           "rid=%016lx attempt=%u id=%s prefill=%s decode=%s tokens=%zu", q->rid, e->attempt, q->group->id,
           p ? p->name : "lost", d->name, q->n_tokens);
}

/* ---- PREFILL, SETTLE ---- */

/*
 * The decode worker has reserved pages, so the workers that were kept free for the request may serve others again. A
 * request that runs alone, because workers have died while they worked on it, keeps them.
 */
static void book_prefill(sl_router *r, sl_request *q, const sl_effect *e)
{
    (void)e;
    q->aside.refused_at = 0;
    q->prefetch.prefill = 0; /* PREFILL ends it */
    sl_placement_fetched(r, q);
    if (!q->deaths.alone)
        sl_aside_release(r, q, false);
}

static void perform_prefill(sl_router *r, sl_request *q, const sl_effect *e)
{
    sl_member *p = sl_member_find(r, e->prefill), *d = sl_member_find(r, e->decode);
    if (!p || !d || p == d) /* a worker of role both began when it reserved the pages */
        return;
    sl_msg m = {.type = SL_MSG_PREFILL};
    m.prefill.rid = q->rid;
    m.prefill.attempt = e->attempt;
    m.prefill.ticket = q->attempt.ticket;
    m.prefill.decode_worker = d->id;
    memcpy(m.prefill.decode_addr, d->listen, sizeof m.prefill.decode_addr);
    m.prefill.decode_epoch = d->epoch;
    m.prefill.n_prompt = (uint32_t)q->n_prompt;
    m.prefill.tokens = q->tokens;
    m.prefill.n_tokens = q->n_tokens;
    m.prefill.matched_pages = e->landing.matched_pages;
    m.prefill.pages = (uint32_t *)e->landing.pages;
    m.prefill.n_pages = e->landing.n_pages;
    m.prefill.deadline_ms = sl_request_remaining_ms(q, sl_now_ns());
    m.prefill.sampling = (sl_blob){q->sampling_wire.data, q->sampling_wire.len};
    m.prefill.seed = q->keys.seed;
    sl_router_link_send(p, &m);
}

/* The prompt is no longer part of the prefill member's load. */
static void discharge_prefill(sl_member *p, const sl_effect *e, uint64_t tokens)
{
    p->account.requests -= e->prefill != e->decode;
    p->account.tokens -= tokens < p->account.tokens ? tokens : p->account.tokens;
}

/* The prompt is computed, and its pages are in the prefill member's cache: the policy may count on them. */
static void book_settle(sl_router *r, sl_request *q, const sl_effect *e)
{
    sl_member *p = sl_member_find(r, e->prefill);
    r->queue.dirty = true;
    sl_aside_release(r, q, true);
    if (!p)
        return;
    discharge_prefill(p, e, e->placed_tokens);
    for (size_t i = 0; p->prefix && i < q->keys.n; i++)
        sl_keyset_add(p->prefix, q->keys.v[i]);
}

/* ---- BLOCK, LEAVE, REQUEUE, FOLLOW ---- */

/* The decode member has refused because it has no room: it gets no request until e->until_ns. */
static void book_block(sl_router *r, sl_request *q, const sl_effect *e)
{
    sl_member *d = sl_member_find(r, e->decode);
    if (!d)
        return;
    d->blocked_until_ns = e->until_ns;
    sl_aside_refused(r, q, d);
}

static void book_leave(sl_router *r, sl_request *q, const sl_effect *e)
{
    sl_member *p = sl_member_find(r, e->prefill), *d = sl_member_find(r, e->decode);
    sl_placement_fetched(r, q);
    if (q->prefetch.prefill)
        sl_prefetch_leave(r, q, e->attempt);
    if (!e->leave.why && e->leave.tell && q->attempt.placed_ns)
        sl_estimate_stayed(r, sl_now_ns() - q->attempt.placed_ns);
    if (e->leave.tell || e->leave.why) /* otherwise it was refused and waits for pages */
        sl_aside_release(r, q, false);
    if (p && e->leave.writer != SL_WRITER_DONE)
        discharge_prefill(p, e, e->leave.placed_tokens);
    if (d) {
        d->account.requests--;
        d->account.context -= q->attempt.placed_context;
    }
}

static void send_abort(sl_member *w, const sl_effect *e)
{
    sl_msg m = {.type = SL_MSG_ABORT};
    m.abort.rid = e->request->rid;
    m.abort.attempt = e->attempt;
    m.abort.status = e->leave.why < 0 ? e->leave.why : SL_ERR_CANCELLED;
    sl_router_link_send(w, &m);
}

static void perform_leave(sl_router *r, sl_request *q, const sl_effect *e)
{
    sl_member *p = sl_member_find(r, e->prefill), *d = sl_member_find(r, e->decode);
    bool writing = e->leave.writer == SL_WRITER_ACTIVE;
    if (d && e->leave.tell & SL_TELL_DECODE)
        send_abort(d, e);
    if (e->prefill == e->decode)
        return; /* role both: it has no writer */
    if (p && writing && e->leave.tell & SL_TELL_PREFILL) {
        send_abort(p, e);
        sl_undrained_expect(r, q->rid, e->attempt, e->prefill, e->decode);
    } else if (d && e->leave.tell & SL_TELL_DECODE && (p || !writing)) {
        /* No worker writes to the pages: no writer was started, or it has finished, or its FAILED said so. */
        sl_msg m = {.type = SL_MSG_DRAINED};
        m.id.rid = q->rid;
        m.id.attempt = e->attempt;
        sl_router_link_send(d, &m);
    }
}

static void book_requeue(sl_router *r, sl_request *q, const sl_effect *e)
{
    (void)e;
    q->prefetch.considered = false;
    if (!q->list)
        sl_queue_push(r, q, true);
    r->queue.dirty = true;
}

static void book_follow(sl_router *r, sl_request *q, const sl_effect *e)
{
    (void)r;
    (void)e;
    sl_group_lead(q, sl_now_ns());
}

/* ---- EMIT, END ---- */

static sl_output output_of(const sl_router *r, const sl_request *q, size_t text_at, size_t text_len)
{
    const sl_strbuf *text = &r->effects.text;
    return (sl_output){.index = q->index,
                       .text = text->bad || !text->data ? NULL : text->data + text_at,
                       .text_len = text->bad ? 0 : text_len,
                       .matched_token = -1,
                       .prompt_tokens = (uint32_t)q->n_prompt,
                       .completion_tokens = sl_request_sent(q),
                       .cached_tokens = q->cached_tokens};
}

static void book_emit(sl_router *r, sl_request *q, const sl_effect *e)
{
    sl_lane *l = q->group->lane;
    if (e->emit.scores) /* of the prompt, which was charged when it was placed */
        return;
    sl_queue_charge(q, e->emit.n_tokens);
    l->account.tokens -= (double)e->emit.n_tokens;
    if (l->output_tokens)
        sl_counter_add(l->output_tokens, e->emit.n_tokens);
    if (q->aside.decode && !q->deaths.alone) /* it is no longer a suspect */
        sl_aside_release(r, q, false);
}

static void perform_emit(sl_router *r, sl_request *q, const sl_effect *e)
{
    if (q->group->released)
        return;
    sl_output o = output_of(r, q, e->emit.text_at, e->emit.text_len);
    *(e->emit.scores ? &o.scores : &o.tokens) = e->emit.tokens;
    *(e->emit.scores ? &o.n_scores : &o.n_tokens) = e->emit.n_tokens;
    q->group->sink(q->group->arg, q->group, &o);
}

static void unhash(sl_request_table *t, sl_request *q)
{
    sl_request **p = &t->bucket[q->rid % SL_REQUEST_BUCKETS];
    while (*p && *p != q)
        p = &(*p)->hash_next;
    if (*p)
        *p = q->hash_next;
}

static void observe_end(sl_router *r, const sl_request *q, const sl_effect *e)
{
    uint64_t now = sl_now_ns();
    sl_status st = e->end.status;
    const char *outcome = st ? sl_router_stats_outcome(st) : sl_finish_name(e->end.finish);
    sl_router_stats_request(&r->stats, q->group->api, outcome);
    if (st)
        sl_errors_add(&r->errors, q->group->id, outcome, e->end.reason);
    sl_counter_add(r->stats.requests.cached_tokens, q->cached_tokens);
    sl_histogram_observe(r->stats.requests.e2e, (double)(now - q->times.start_ns) / 1e9);
    if (q->times.first_token_ns)
        sl_histogram_observe(r->stats.requests.decode, (double)(now - q->times.first_token_ns) / 1e9);
    sl_log(
        SL_LOG_INFO, "router", "request_done",
        "rid=%016lx attempt=%u id=%s index=%u outcome=%s prompt=%zu cached=%u produced=%u retries=%u ms=%.1f "
        "reason=\"%s\"",
        q->rid, q->attempt.n, q->group->id, q->index, outcome, q->n_prompt, q->cached_tokens,
        sl_request_sent(q), q->retries, (double)(now - q->times.start_ns) / 1e6,
        e->end.reason ? e->end.reason : "");
}

static void book_end(sl_router *r, sl_request *q, const sl_effect *e)
{
    sl_queue_remove(r, q);
    if (q->prefetch.decode)
        sl_prefetch_end(r, q, 0, q->attempt.n + 1);
    sl_aside_release(r, q, false);
    unhash(&r->requests, q);
    r->requests.active--;
    q->group->lane->active--;
    r->queue.dirty = true;
    observe_end(r, q, e);
}

static void perform_end(sl_router *r, sl_request *q, const sl_effect *e)
{
    q->group->unfinished--;
    if (q->group->released)
        return;
    sl_output o = output_of(r, q, e->end.text_at, e->end.text_len);
    o.finished = true;
    o.finish = e->end.finish;
    o.status = e->end.status;
    o.error = e->end.reason ? e->end.reason : sl_status_name(e->end.status);
    o.matched_token = q->text.matched ? -1 : q->matched_token;
    o.matched_stop = q->text.matched;
    q->group->sink(q->group->arg, q->group, &o);
}

/* ---- the executor ---- */

typedef void effect_fn(sl_router *r, sl_request *q, const sl_effect *e);

static const struct {
    effect_fn *book, *perform;
} kinds[SL_EFFECT_COUNT] = {
    [SL_EFFECT_RESERVE] = {book_reserve, perform_reserve},
    [SL_EFFECT_PREFILL] = {book_prefill, perform_prefill},
    [SL_EFFECT_SETTLE] = {book_settle, NULL},
    [SL_EFFECT_BLOCK] = {book_block, NULL},
    [SL_EFFECT_LEAVE] = {book_leave, perform_leave},
    [SL_EFFECT_REQUEUE] = {book_requeue, NULL},
    [SL_EFFECT_FOLLOW] = {book_follow, NULL},
    [SL_EFFECT_EMIT] = {book_emit, perform_emit},
    [SL_EFFECT_END] = {book_end, perform_end},
};

sl_status sl_effects_init(sl_router *r)
{
    sl_effects *fx = &r->effects;
    fx->piece = malloc(sl_detok_bound(r->model.tok) + 1);
    fx->list = malloc(FIRST_CAP * sizeof *fx->list);
    fx->cap = fx->list ? FIRST_CAP : 0;
    return fx->piece && fx->list ? SL_OK : SL_ERR_NO_MEMORY;
}

void sl_effects_free(sl_router *r)
{
    free(r->effects.list);
    free(r->effects.piece);
    sl_sb_free(&r->effects.text);
}

/* Without memory for an effect the process ends: a lost effect would leave pages reserved and a client waiting without
 * end, and the step that made it cannot be undone. */
static void keep(sl_effects *fx, const sl_effect *e)
{
    if (fx->n == fx->cap) {
        sl_effect *list = realloc(fx->list, 2 * fx->cap * sizeof *list);
        SL_CHECK(list, "out of memory for %zu effects", 2 * fx->cap);
        fx->list = list;
        fx->cap *= 2;
    }
    fx->list[fx->n++] = *e;
}

bool sl_request_apply(sl_router *r, sl_request *q, const sl_request_event *ev)
{
    sl_effects *fx = &r->effects;
    const sl_request_env env = {.model = &r->model,
                                .vocab = r->cluster.vocab,
                                .retries = r->o.request.retries,
                                .stats = &r->stats,
                                .text = &fx->text,
                                .piece = fx->piece};
    sl_step step;
    sl_request_state before = q->state;
    if (!sl_request_step(&env, q, ev, &step))
        return false;
    sl_traced_step(r, q, before, ev);
    for (size_t i = 0; i < step.n; i++) {
        const sl_effect *e = &step.list[i];
        if (kinds[e->kind].book)
            kinds[e->kind].book(r, q, e);
        if (kinds[e->kind].perform)
            keep(fx, e);
    }
    return true;
}

void sl_request_fail(sl_router *r, sl_request *q, sl_status st, const char *reason)
{
    sl_request_event ev = {.kind = SL_EVENT_END, .now_ns = sl_now_ns()};
    ev.end.status = st;
    ev.end.reason = reason;
    sl_request_apply(r, q, &ev);
}

bool sl_effects_pending(const sl_router *r)
{
    return r->effects.n > 0 || r->queue.dirty;
}

static void perform_all(sl_router *r)
{
    sl_effects *fx = &r->effects;
    while (fx->at < fx->n) {
        sl_effect e = fx->list[fx->at++]; /* a copy: a sink may add effects and move the list */
        kinds[e.kind].perform(r, e.request, &e);
    }
    fx->at = fx->n = 0;
    if (fx->text.bad)
        sl_sb_free(&fx->text);
    fx->text.len = 0;
}

void sl_effects_run(sl_router *r)
{
    while (sl_effects_pending(r)) {
        perform_all(r);
        if (r->queue.dirty)
            sl_queue_place(r);
    }
}
