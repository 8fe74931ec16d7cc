/*
 * Turns what happens to requests into spans of traces (router/trace/). Each request has one open stage of the router, which changes
 * with its state; what workers say about their own work hangs below the stage in which they did it.
 *
 *     request ─┬─ read                     parsing and tokenizing
 *              ├─ queue                    until it is placed; again after every refusal or failure
 *              ├─ reserve ─── load         pages of the prefix come from storage tiers or other workers
 *              ├─ prefill ─┬─ prompt queue, compute, shipment
 *              │           └─ check        checksums of what arrived
 *              └─ decode ──┬─ join         until a step has room for it
 *                          └─ steps
 *
 * Durations are those of workers; where they end is when their message arrived here.
 */
#include <stdlib.h>
#include <string.h>

#include "router/core/core_impl.h"

typedef struct stages {
    int32_t stage, reserve, prefill, decode, steps; /* spans; stage: the open one */
    /* that this attempt's prefill worker was given; tokens may come before it says that it is done */
    size_t n_tokens;
    uint32_t n_workers;
    char workers[2][SL_TRACE_NAME]; /* of this attempt: prefill, decode */
    sl_role roles[2];
} stages;

struct sl_traced {
    sl_trace *trace;
    uint32_t left;    /* requests that have not ended */
    uint64_t sums[3]; /* output tokens, cached tokens, retries */
    stages at[];
};

static int32_t open_span(sl_traced *d, const sl_request *q, sl_span_kind kind, int32_t parent, int worker,
                         uint64_t begin)
{
    const stages *x = &d->at[q->index];
    int32_t i = worker < 0 ? sl_trace_open(d->trace, kind, parent, NULL, NULL, begin)
                           : sl_trace_open(d->trace, kind, parent, sl_role_name(x->roles[worker]),
                                           x->workers[worker], begin);
    sl_span *s = sl_trace_at(d->trace, i);
    if (s) {
        s->choice = q->index;
        s->attempt = q->attempt.n;
    }
    return i;
}

/* Work of a worker that has ended. */
static sl_span *add_work(sl_traced *d, const sl_request *q, sl_span_kind kind, int32_t parent, int worker,
                         uint64_t us, uint64_t end)
{
    uint64_t ns = us < end / 1000 ? us * 1000 : 0;
    int32_t i = open_span(d, q, kind, parent, worker, end - ns);
    sl_trace_close(d->trace, i, end, NULL);
    return sl_trace_at(d->trace, i);
}

/* ---- a call begins ---- */

sl_status sl_traced_open(sl_router *r, sl_err *err)
{
    const sl_traces_options o = {.to = r->o.traces, .model = r->o.model.served_name, .metrics = r->stats.m};
    return sl_traces_create(&o, &r->traces, err);
}

void sl_traced_begin(sl_router *r, sl_group *g, const sl_trace_context *context)
{
    uint64_t now = sl_now_ns();
    sl_traced *d = r->traces ? calloc(1, sizeof *d + g->n_requests * sizeof d->at[0]) : NULL;
    if (!d)
        return;
    d->trace = sl_trace_new(context, g->id, g->api, g->n_requests, g->start_ns);
    if (!d->trace) {
        free(d);
        return;
    }
    sl_traces_sample(r->traces, &d->trace->context);
    d->trace->rid = g->requests[0]->rid;
    d->left = g->n_requests;
    g->traced = d;
    int32_t read = sl_trace_open(d->trace, SL_SPAN_READ, -1, NULL, NULL, g->start_ns);
    sl_trace_close(d->trace, read, now, NULL);
    for (uint32_t i = 0; i < g->n_requests; i++) {
        sl_trace_at(d->trace, 0)->values[0] += g->requests[i]->n_prompt;
        d->at[i].stage = open_span(d, g->requests[i], SL_SPAN_QUEUE, -1, -1, now);
        d->at[i].reserve = d->at[i].prefill = d->at[i].decode = d->at[i].steps = -1;
    }
}

void sl_traced_free(sl_group *g)
{
    if (g->traced)
        sl_trace_unref(g->traced->trace);
    free(g->traced);
    g->traced = NULL;
}

/* ---- stages ---- */

static const char *why_it_ended(const sl_request_event *ev)
{
    switch (ev->kind) {
    case SL_EVENT_NO_ROOM:
        return "no room";
    case SL_EVENT_RETRACTED:
        return ev->retracted->damaged ? "retracted: damaged" : "retracted";
    case SL_EVENT_FAILED:
        return ev->failed.reason;
    case SL_EVENT_LOST:
        return ev->lost.decode ? "decode worker lost" : "prefill worker lost";
    case SL_EVENT_STALLED:
        return "no progress";
    case SL_EVENT_END:
        return ev->end.reason ? ev->end.reason : sl_status_name(ev->end.status);
    default:
        return NULL;
    }
}

static void remember_workers(sl_router *r, sl_traced *d, const sl_request *q)
{
    stages *x = &d->at[q->index];
    const uint32_t ids[2] = {q->attempt.prefill, q->attempt.decode};
    for (int i = 0; i < 2; i++) {
        const sl_member *w = sl_member_find(r, ids[i]);
        snprintf(x->workers[i], sizeof x->workers[i], "%s", w ? w->name : "lost");
        x->roles[i] = w ? (sl_role)w->role : SL_ROLE_BOTH;
    }
}

static void finish(sl_router *r, sl_group *g, const sl_request *q, const sl_request_event *ev)
{
    sl_traced *d = g->traced;
    bool failed = q->state == SL_REQUEST_FAILED;
    const char *why = failed ? why_it_ended(ev) : NULL;
    d->sums[0] += sl_request_sent(q);
    d->sums[1] += q->cached_tokens;
    d->sums[2] += q->retries;
    if (q->times.first_token_ns &&
        (!d->trace->first_token || q->times.first_token_ns < d->trace->first_token))
        d->trace->first_token = q->times.first_token_ns;
    if (failed || !d->trace->outcome) /* that of a failure, if there is one */
        d->trace->outcome = failed ? "failed" : "finished";
    if (failed && ev->kind == SL_EVENT_END && ev->end.status == SL_ERR_CANCELLED)
        d->trace->outcome = "cancelled";
    if (why)
        sl_trace_fail(d->trace, 0, why);
    if (--d->left)
        return;
    memcpy(&sl_trace_at(d->trace, 0)->values[1], d->sums, sizeof d->sums);
    sl_trace_close(d->trace, 0, ev->now_ns, NULL);
    sl_traces_add(r->traces, d->trace);
    d->trace = NULL;
    sl_traced_free(g);
}

/* Closes the stage of the former state and opens that of the new one. */
static void change(sl_router *r, sl_traced *d, const sl_request *q, const sl_request_event *ev)
{
    static const sl_span_kind kinds[] = {[SL_REQUEST_QUEUED] = SL_SPAN_QUEUE,
                                         [SL_REQUEST_RESERVING] = SL_SPAN_RESERVE,
                                         [SL_REQUEST_PREFILLING] = SL_SPAN_PREFILL,
                                         [SL_REQUEST_DECODING] = SL_SPAN_DECODE};
    stages *x = &d->at[q->index];
    const char *why = why_it_ended(ev);
    sl_trace_close(d->trace, x->steps, ev->now_ns, why);
    sl_trace_close(d->trace, x->stage, ev->now_ns, why);
    if (q->state == SL_REQUEST_RESERVING)
        remember_workers(r, d, q);
    if (sl_request_over(q))
        return;
    x->stage = open_span(d, q, kinds[q->state], -1, -1, ev->now_ns);
    if (q->state == SL_REQUEST_QUEUED)
        x->reserve = x->prefill = x->decode = x->steps = -1;
    if (q->state == SL_REQUEST_RESERVING)
        x->reserve = x->stage;
    if (q->state == SL_REQUEST_PREFILLING) {
        x->prefill = x->stage;
        x->n_tokens = q->n_tokens;
    }
    if (q->state == SL_REQUEST_DECODING)
        x->decode = x->stage;
}

/* ---- what workers say ---- */

static void on_prefilled(sl_traced *d, const sl_request *q, const sl_request_event *ev)
{
    const sl_msg_prefilled *m = ev->prefilled;
    const stages *x = &d->at[q->index];
    uint64_t end = ev->now_ns, ship = m->ship_us * 1000 < end ? m->ship_us * 1000 : 0, computed = end - ship;
    uint64_t began = m->compute_us * 1000 < computed ? computed - m->compute_us * 1000 : computed;
    add_work(d, q, SL_SPAN_PROMPT_QUEUE, x->prefill, 0, m->queue_us, began);
    sl_span *s = add_work(d, q, SL_SPAN_COMPUTE, x->prefill, 0, m->compute_us, computed);
    if (s) {
        s->values[0] = m->cached_tokens < x->n_tokens ? x->n_tokens - m->cached_tokens : 0;
        s->values[1] = m->cached_tokens;
    }
    if (x->roles[0] != SL_ROLE_PREFILL)
        return; /* a worker of role both ships nothing */
    s = add_work(d, q, SL_SPAN_SHIPMENT, x->prefill, 0, m->overlap_us + m->ship_us, end);
    if (s)
        s->values[0] = m->bytes;
}

static void on_done(sl_traced *d, const sl_request *q, const sl_msg_done *m)
{
    sl_span *s = sl_trace_at(d->trace, d->at[q->index].steps);
    if (!s)
        return;
    s->values[0] = m->hits;
    s->values[1] = m->misses;
    s->values[2] = m->swap_bytes;
}

void sl_traced_step(sl_router *r, sl_request *q, sl_request_state before, const sl_request_event *ev)
{
    sl_traced *d = q->group->traced;
    if (!d)
        return;
    if (ev->kind == SL_EVENT_PREFILLED)
        on_prefilled(d, q, ev);
    if (ev->kind == SL_EVENT_DONE)
        on_done(d, q, ev->done);
    if (q->state == before)
        return;
    sl_span *s = before == SL_REQUEST_DECODING ? sl_trace_at(d->trace, d->at[q->index].decode) : NULL;
    if (s)
        s->values[0] = sl_request_sent(q);
    change(r, d, q, ev);
    if (sl_request_over(q))
        finish(r, q->group, q, ev);
}

void sl_traced_joined(sl_router *r, const sl_member *w, const sl_msg_joined *m)
{
    sl_request *q = sl_request_find(r, m->rid);
    sl_traced *d = q ? q->group->traced : NULL;
    if (!d || q->attempt.n != m->attempt || q->attempt.decode != w->id || q->state != SL_REQUEST_DECODING)
        return;
    stages *x = &d->at[q->index];
    const sl_span *decode = sl_trace_at(d->trace, x->decode), *reserve = sl_trace_at(d->trace, x->reserve);
    uint64_t now = sl_now_ns();
    if (x->steps >= 0)
        return;
    if (reserve && m->load_us)
        add_work(d, q, SL_SPAN_LOAD, x->reserve, 1, m->load_us, reserve->end);
    if (decode && m->check_us)
        add_work(d, q, SL_SPAN_CHECK, x->prefill, 1, m->check_us, decode->begin);
    add_work(d, q, SL_SPAN_JOIN, x->decode, 1, m->wait_us, now);
    x->steps = open_span(d, q, SL_SPAN_STEPS, x->decode, 1, now);
}
