/*
 * What the live page shows of single requests, clients and errors: copies of the router's state, and the ring of the last
 * errors. See core.h.
 */
#include <stdio.h>
#include <string.h>

#include "router/core/core_impl.h"

const char *sl_request_stage_name(int stage)
{
    static const char *const names[SL_REQUEST_STAGES] = {"queued", "reserving", "prefilling", "decoding"};
    return stage >= 0 && stage < SL_REQUEST_STAGES ? names[stage] : "?";
}

/* Puts the request into the list of the oldest ones, which is sorted by age; returns the new number of entries. */
static size_t keep_oldest(sl_request_info *list, size_t n, size_t cap, const sl_request *q, int stage)
{
    size_t at = n;
    while (at > 0 && list[at - 1].start_ns > q->times.start_ns)
        at--;
    if (at == cap)
        return n;
    if (n == cap)
        n--;
    memmove(&list[at + 1], &list[at], (n - at) * sizeof *list);
    list[at] = (sl_request_info){.stage = stage,
                                 .start_ns = q->times.start_ns,
                                 .prompt = (uint32_t)q->n_prompt,
                                 .cached = q->cached_tokens,
                                 .produced = sl_request_sent(q),
                                 .attempt = q->attempt.n,
                                 .prefill = q->attempt.prefill,
                                 .decode = q->attempt.decode};
    snprintf(list[at].id, sizeof list[at].id, "%s", q->group->id);
    snprintf(list[at].client, sizeof list[at].client, "%s", q->group->lane->client);
    return n + 1;
}

size_t sl_cluster_requests(const sl_router *r, sl_request_info *list, size_t cap,
                           uint32_t stages[SL_REQUEST_STAGES])
{
    size_t n = 0;
    _Static_assert(SL_REQUEST_QUEUED == 0 && SL_REQUEST_DECODING == SL_REQUEST_STAGES - 1,
                   "the stages are the states");
    memset(stages, 0, SL_REQUEST_STAGES * sizeof stages[0]);
    for (size_t b = 0; b < SL_REQUEST_BUCKETS; b++)
        for (const sl_request *q = r->requests.bucket[b]; q; q = q->hash_next) {
            if (q->state > SL_REQUEST_DECODING)
                continue;
            stages[q->state]++;
            n = keep_oldest(list, n, cap, q, (int)q->state);
        }
    return n;
}

size_t sl_cluster_clients(const sl_router *r, sl_client_info *list, size_t cap)
{
    size_t n = 0;
    for (const sl_lane *l = r->queue.lanes; l && n < cap; l = l->next) {
        if (!l->length && !l->active && !l->output_tokens)
            continue;
        list[n] = (sl_client_info){.queued = l->length, .active = l->active};
        snprintf(list[n].client, sizeof list[n].client, "%s", l->client);
        n++;
    }
    return n;
}

void sl_errors_add(sl_error_ring *ring, const char *id, const char *outcome, const char *reason)
{
    sl_error_info *e = &ring->at[ring->n++ % SL_COUNT(ring->at)];
    *e = (sl_error_info){.at_ns = sl_now_ns(), .outcome = outcome};
    snprintf(e->id, sizeof e->id, "%s", id);
    snprintf(e->reason, sizeof e->reason, "%s", reason ? reason : "");
}

size_t sl_cluster_errors(const sl_router *r, sl_error_info *list, size_t cap)
{
    const sl_error_ring *ring = &r->errors;
    size_t n = 0;
    for (uint64_t i = ring->n; i > 0 && n < cap && ring->n - i < SL_COUNT(ring->at); i--)
        list[n++] = ring->at[(i - 1) % SL_COUNT(ring->at)];
    return n;
}

sl_status sl_cluster_trace(const sl_router *r, const char *id, char **out)
{
    const sl_trace *t = sl_traces_find(r->traces, id);
    if (!t)
        return SL_ERR_NOT_FOUND;
    *out = sl_trace_chrome(t);
    return *out ? SL_OK : SL_ERR_NO_MEMORY;
}
