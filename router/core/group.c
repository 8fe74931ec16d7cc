/*
 * Groups: one client call and its requests. Makes the requests of an admitted call, ends them, and frees them when
 * their owner has released the group. If several requests have the same prompt, the first one starts; the others are
 * held until the prompt is in the cache, so that it is computed only once.
 */
#include <stdlib.h>
#include <string.h>

#include "router/core/core_impl.h"

static const uint64_t SEED_STEP = 0x9e3779b97f4a7c15ull; /* added to the seed for each further choice */

void sl_request_spec_init(sl_request_spec *s)
{
    memset(s, 0, sizeof *s);
    s->n = 1;
    s->api = "generate";
    sl_sampling_default(&s->sampling);
}

void sl_request_spec_free(sl_request_spec *s)
{
    for (size_t i = 0; i < s->n_prompts; i++)
        free(s->prompts[i].ids);
    free(s->prompts);
    for (size_t i = 0; i < s->n_stops; i++)
        free(s->stops[i]);
    sl_sampling_free(&s->sampling);
    sl_request_spec_init(s);
}

sl_status sl_request_spec_set_salt(sl_request_spec *s, const char *field, const char *salt, size_t n,
                                   sl_err *err)
{
    if (!n || n > sizeof s->cache_salt)
        return sl_fail(err, SL_ERR_INVALID, "%s: has 1 to %d bytes", field, SL_CACHE_SALT_MAX);
    memcpy(s->cache_salt, salt, n);
    s->n_cache_salt = n;
    return SL_OK;
}

static void request_free(sl_request *q)
{
    if (!q)
        return;
    sl_output_free(q);
    sl_sampling_free(&q->sampling);
    sl_wr_free(&q->sampling_wire);
    free(q->tokens);
    free(q->logprobs);
    free(q->keys.v);
    free(q);
}

static void group_free(sl_group *g)
{
    sl_traced_free(g);
    if (g->lane)
        g->lane->groups--;
    for (uint32_t i = 0; i < g->n_requests; i++)
        request_free(g->requests[i]);
    free(g->requests);
    free(g);
}

/* ---- making ---- */

static int32_t output_limit(const sl_router *r, const sl_request_spec *s, size_t n_prompt)
{
    int32_t left = r->cluster.max_context - (int32_t)n_prompt;
    if (s->has_max_tokens)
        return s->sampling.max_tokens;
    int32_t def = r->o.request.max_output_tokens_default;
    return def > 0 && def < left ? def : left;
}

static sl_status set_sampling(const sl_router *r, sl_request *q, const sl_request_spec *s, uint32_t choice,
                              sl_err *err)
{
    SL_TRY(sl_sampling_copy(&s->sampling, &q->sampling));
    q->sampling.max_tokens = output_limit(r, s, q->n_prompt);
    if (choice) /* the first one says it for all of its prompt */
        q->sampling.prompt_logprobs = 0;
    if (q->sampling.min_tokens > q->sampling.max_tokens)
        q->sampling.min_tokens = q->sampling.max_tokens;
    if (!s->has_seed)
        q->sampling.seed = sl_random_u64();
    else if (choice) /* the choices of one seed differ, but are reproducible */
        q->sampling.seed = s->sampling.seed + SEED_STEP * choice;
    sl_sampling_write(&q->sampling_wire, &q->sampling);
    return q->sampling_wire.bad ? sl_fail(err, SL_ERR_NO_MEMORY, "out of memory") : SL_OK;
}

/* The group owns the request from the start, so a failure leaves nothing to undo here. */
static sl_status make_request(sl_router *r, sl_group *g, const sl_request_spec *s, uint32_t index,
                              sl_err *err)
{
    const sl_prompt *p = &s->prompts[index / s->n];
    sl_request *q = calloc(1, sizeof *q);
    if (!q)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    g->requests[index] = q;
    g->n_requests++;
    q->group = g;
    q->index = index;
    q->keys.domain = g->domain;
    q->keys.fingerprint = g->fingerprint;
    q->keys.seed = g->seed;
    sl_wr_init(&q->sampling_wire);
    sl_sampling_default(&q->sampling);
    SL_TRY(sl_output_init(q, s, err));
    q->cap = p->n + 64;
    q->tokens = malloc(q->cap * sizeof *q->tokens);
    if (!q->tokens)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    memcpy(q->tokens, p->ids, p->n * sizeof *p->ids);
    q->n_prompt = q->n_tokens = p->n;
    uint32_t choice = index % s->n;
    SL_TRY(set_sampling(r, q, s, choice, err));
    q->held = choice > 0;
    q->rid = ++r->requests.next_rid;
    q->times.start_ns = q->times.stage_ns = g->start_ns;
    uint32_t ms =
        s->timeout_ms && s->timeout_ms < r->o.request.timeout_ms ? s->timeout_ms : r->o.request.timeout_ms;
    q->times.deadline_ns = q->times.start_ns + ms * SL_MS;
    return SL_OK;
}

static sl_status make_group(sl_router *r, const sl_request_spec *s, sl_group **out, sl_err *err)
{
    uint32_t n = (uint32_t)(s->n_prompts * s->n);
    sl_group *g = calloc(1, sizeof *g);
    if (g)
        g->requests = calloc(n, sizeof *g->requests);
    if (!g || !g->requests) {
        free(g);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    g->r = r;
    g->api = s->api;
    g->n_per_prompt = s->n;
    g->start_ns = s->arrival_ns ? s->arrival_ns : sl_now_ns();
    memcpy(g->id, s->id, sizeof g->id);
    g->fingerprint = r->cluster.fingerprint;
    g->tenant = s->tenant ? sl_tenant_id(s->client) : 0;
    if (!sl_router_share_find(&r->shares, r->o.placement.share, s->tenant ? s->client : "", s->cache_salt,
                              s->n_cache_salt, g->fingerprint, &g->domain, &g->seed)) {
        group_free(g);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < n; i++) {
        sl_status st = make_request(r, g, s, i, err);
        if (st) {
            group_free(g);
            return st;
        }
    }
    *out = g;
    return SL_OK;
}

static void enter(sl_router *r, sl_group *g)
{
    sl_request_table *t = &r->requests;
    g->next = t->groups;
    if (g->next)
        g->next->prev = g;
    t->groups = g;
    g->unfinished = g->n_requests;
    for (uint32_t i = 0; i < g->n_requests; i++) {
        sl_request *q = g->requests[i];
        sl_request **b = &t->bucket[q->rid % SL_REQUEST_BUCKETS];
        q->hash_next = *b;
        *b = q;
        t->active++;
        g->lane->active++;
        sl_queue_push(r, q, false);
        sl_counter_add(r->stats.requests.prompt_tokens, q->n_prompt);
    }
}

static void end_all(sl_group *g, sl_status st, const char *reason)
{
    for (uint32_t i = 0; i < g->n_requests; i++)
        sl_request_fail(g->r, g->requests[i], st, reason);
}

/* Takes the request from the tenant's limits, and sets weight and metrics of its lane. */
static sl_status take_from_account(sl_router *r, sl_lane *l, sl_request_spec *s, sl_err *err)
{
    const sl_tenant *t = sl_tenants_find(&r->tenants, s->client);
    if (!t)
        return SL_OK;
    uint64_t tokens = 0;
    for (size_t i = 0; i < s->n_prompts; i++)
        tokens += s->prompts[i].n;
    sl_metrics *m = r->stats.m;
    l->weight = t->weight;
    l->prompt_tokens = sl_metrics_counter(m, "sluice_tenant_tokens_total", SL_LABELS(t->name, "prompt"));
    l->output_tokens = sl_metrics_counter(m, "sluice_tenant_tokens_total", SL_LABELS(t->name, "output"));
    sl_status st = sl_account_take(&l->account, t, (uint32_t)(s->n_prompts * s->n), tokens, l->active,
                                   sl_now_ns(), &s->retry_after_s, err);
    const char *result = st ? "refused" : "accepted";
    sl_counter_add(sl_metrics_counter(m, "sluice_tenant_calls_total", SL_LABELS(t->name, result)), 1);
    if (!st)
        sl_counter_add(l->prompt_tokens, tokens);
    return st;
}

sl_status sl_group_submit(sl_router *r, sl_request_spec *s, sl_output_sink *sink, void *arg, sl_group **out,
                          sl_err *err)
{
    sl_group *g = NULL;
    SL_TRY(sl_router_admission_check(r, s, err));
    sl_lane *lane = sl_queue_lane(r, s->client, 1);
    if (!lane)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = sl_queue_check(r, lane, (uint32_t)(s->n_prompts * s->n), err);
    s->retry_after_s = st == SL_ERR_EXHAUSTED ? sl_cluster_retry_after_s(r) : 0;
    if (!st)
        st = take_from_account(r, lane, s, err);
    if (st == SL_ERR_EXHAUSTED)
        sl_router_stats_request(&r->stats, s->api, sl_router_stats_outcome(st));
    SL_TRY(st);
    SL_TRY(make_group(r, s, &g, err));
    g->lane = lane;
    lane->groups++;
    g->sink = sink;
    g->arg = arg;
    enter(r, g);
    sl_traced_begin(r, g, &s->trace);
    sl_queue_place(r);
    sl_log(SL_LOG_INFO, "router", "request_accepted",
           "rid=%016lx id=%s api=%s prompts=%zu n=%u tokens=%zu max_tokens=%d", g->requests[0]->rid, g->id,
           s->api, s->n_prompts, s->n, s->prompts[0].n, g->requests[0]->sampling.max_tokens);
    sl_request_spec_free(s);
    *out = g;
    return SL_OK;
}

/* ---- ending ---- */

void sl_group_abort(sl_group *g)
{
    end_all(g, SL_ERR_CANCELLED, "cancelled");
}

void sl_group_release(sl_group *g)
{
    if (!g || g->released)
        return;
    g->released = true;
    g->r->requests.released++;
    sl_group_abort(g);
}

void sl_groups_sweep(sl_router *r)
{
    sl_request_table *t = &r->requests;
    if (!t->released)
        return;
    for (sl_group *g = t->groups, *next; g; g = next) {
        next = g->next;
        if (!g->released)
            continue;
        if (g->prev)
            g->prev->next = g->next;
        else
            t->groups = g->next;
        if (g->next)
            g->next->prev = g->prev;
        group_free(g);
    }
    t->released = 0;
}

void sl_groups_free_all(sl_router *r)
{
    for (sl_group *g = r->requests.groups; g; g = g->next)
        sl_group_release(g);
    sl_effects_run(r);
    sl_groups_sweep(r);
}

/* ---- looking up, events for many ---- */

sl_group *sl_group_find(sl_router *r, const char *client, const char *id)
{
    for (sl_group *g = r->requests.groups; g; g = g->next) {
        if (!g->released && !strcmp(g->id, id) && (!client || !strcmp(g->lane->client, client)))
            return g;
    }
    return NULL;
}

const char *sl_group_id(const sl_group *g)
{
    return g->id;
}

uint32_t sl_group_unfinished(const sl_group *g)
{
    return g->unfinished;
}

sl_request *sl_request_find(sl_router *r, uint64_t rid)
{
    sl_request *q = r->requests.bucket[rid % SL_REQUEST_BUCKETS];
    while (q && q->rid != rid)
        q = q->hash_next;
    return q;
}

void sl_group_lead(sl_request *q, uint64_t now)
{
    sl_group *g = q->group;
    if (g->n_per_prompt < 2 || q->index % g->n_per_prompt || q->led)
        return;
    q->led = true;
    for (uint32_t i = 1; i < g->n_per_prompt && q->index + i < g->n_requests; i++) {
        sl_request *s = g->requests[q->index + i];
        if (!s->held)
            continue;
        s->times.stage_ns = now;
        sl_queue_unhold(g->r, s);
    }
}

void sl_requests_member_lost(sl_router *r, uint32_t member, bool died)
{
    sl_request_event ev = {.kind = SL_EVENT_LOST, .now_ns = sl_now_ns()};
    ev.lost.died = died;
    for (sl_group *g = r->requests.groups; g; g = g->next) {
        for (uint32_t i = 0; i < g->n_requests; i++) {
            sl_request *q = g->requests[i];
            ev.lost.decode = q->attempt.decode == member;
            if (ev.lost.decode || q->attempt.prefill == member)
                sl_request_apply(r, q, &ev);
        }
    }
}
