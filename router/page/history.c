/* See history.h. */
#include "router/page/history.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 48, COLUMNS = 9 };

static const char *const columns[COLUMNS] = {
    "output_tokens_per_s", "prompt_tokens_per_s", "running",   "waiting",     "ttft_p50_s",
    "ttft_p99_s",          "itl_p50_s",           "itl_p99_s", "cached_share"};

const char *const sl_history_outcomes[SL_HISTORY_OUTCOMES] = {"rejected", "invalid",   "failed",
                                                              "deadline", "cancelled", "data_loss"};

typedef struct sample {
    float v[COLUMNS]; /* negative: nothing was measured */
    uint32_t errors[SL_HISTORY_OUTCOMES];
} sample;

/* Cumulative values at the last sample. */
typedef struct seen {
    uint64_t ttft[BUCKETS], itl[BUCKETS], output, prompt, cached, errors[SL_HISTORY_OUTCOMES];
} seen;

struct sl_history {
    uint64_t at_ns; /* of the newest sample, 0: none */
    size_t n, next;
    seen last;
    sample ring[SL_HISTORY_STEPS];
};

sl_history *sl_history_create(void)
{
    return calloc(1, sizeof(sl_history));
}

void sl_history_free(sl_history *h)
{
    free(h);
}

double sl_history_quantile(double q, const uint64_t *counts, const double *bounds, size_t n)
{
    uint64_t total = 0, below = 0;
    for (size_t i = 0; i <= n; i++)
        total += counts[i];
    if (!total || !n)
        return -1;
    const double rank = q * (double)total;
    for (size_t i = 0; i < n; i++) {
        if ((double)(below + counts[i]) >= rank && counts[i]) {
            const double low = i ? bounds[i - 1] : 0, part = (rank - (double)below) / (double)counts[i];
            return low + (bounds[i] - low) * (part > 0 ? part : 0);
        }
        below += counts[i];
    }
    return bounds[n - 1]; /* beyond the last bound: at least this */
}

/* The two quantiles of what was observed since *last, which is brought up to date. */
static void latency(const sl_histogram *h, uint64_t *last, float *p50, float *p99)
{
    uint64_t now[BUCKETS], since[BUCKETS];
    const double *bounds = NULL;
    const size_t n = sl_histogram_read(h, now, BUCKETS, &bounds);
    *p50 = *p99 = -1;
    for (size_t i = 0; n && i <= n; i++) {
        since[i] = now[i] - last[i];
        last[i] = now[i];
    }
    if (!n)
        return;
    *p50 = (float)sl_history_quantile(0.5, since, bounds, n);
    *p99 = (float)sl_history_quantile(0.99, since, bounds, n);
}

static uint64_t grown(uint64_t now, uint64_t *last)
{
    uint64_t by = now - *last;
    *last = now;
    return by;
}

static uint64_t ended(sl_router_stats *s, const char *outcome)
{
    static const char *const apis[] = {"chat", "completions", "generate"};
    uint64_t n = 0;
    for (size_t i = 0; i < SL_COUNT(apis); i++)
        n += sl_counter_value(sl_metrics_counter(s->m, "sluice_requests_total", SL_LABELS(apis[i], outcome)));
    return n;
}

static void take(sl_history *h, sl_router_stats *s, double seconds, sample *out)
{
    uint64_t output = grown(sl_counter_value(s->requests.generated_tokens), &h->last.output);
    uint64_t prompt = grown(sl_counter_value(s->requests.prompt_tokens), &h->last.prompt);
    uint64_t cached = grown(sl_counter_value(s->requests.cached_tokens), &h->last.cached);
    out->v[0] = (float)((double)output / seconds);
    out->v[1] = (float)((double)prompt / seconds);
    out->v[2] = (float)sl_gauge_value(s->loop.running);
    out->v[3] = (float)sl_gauge_value(s->loop.waiting);
    latency(s->requests.ttft, h->last.ttft, &out->v[4], &out->v[5]);
    latency(s->requests.itl, h->last.itl, &out->v[6], &out->v[7]);
    out->v[8] = prompt ? (float)((double)cached / (double)prompt) : -1;
    if (out->v[8] > 1) /* prompts are counted when they are admitted, what was cached when they end */
        out->v[8] = 1;
    for (int i = 0; i < SL_HISTORY_OUTCOMES; i++)
        out->errors[i] = (uint32_t)grown(ended(s, sl_history_outcomes[i]), &h->last.errors[i]);
}

void sl_history_tick(sl_history *h, sl_router_stats *s, uint64_t now)
{
    if (h->at_ns && now - h->at_ns < SL_HISTORY_STEP_S * 1000000000ull)
        return;
    sample *out = &h->ring[h->next];
    take(h, s, h->at_ns ? (double)(now - h->at_ns) / 1e9 : 1, out);
    const bool first = !h->at_ns;
    h->at_ns = now;
    if (first) /* it only says where counting begins */
        return;
    h->next = (h->next + 1) % SL_HISTORY_STEPS;
    h->n += h->n < SL_HISTORY_STEPS;
}

static const sample *nth(const sl_history *h, size_t i)
{
    return &h->ring[(h->next + SL_HISTORY_STEPS - h->n + i) % SL_HISTORY_STEPS];
}

json_t *sl_history_json(const sl_history *h, uint64_t now)
{
    json_t *o = json_pack("{s:i, s:f}", "step_s", SL_HISTORY_STEP_S, "age_s",
                          h->at_ns ? (double)(now - h->at_ns) / 1e9 : 0.0);
    for (int c = 0; c < COLUMNS; c++) {
        json_t *list = json_array();
        for (size_t i = 0; i < h->n; i++) {
            const float v = nth(h, i)->v[c];
            json_array_append_new(list,
                                  v < 0 ? json_null() : json_real((double)(int64_t)((double)v * 1e6) / 1e6));
        }
        json_object_set_new(o, columns[c], list);
    }
    return o;
}

json_t *sl_history_errors(const sl_history *h)
{
    json_t *o = json_object();
    for (int e = 0; e < SL_HISTORY_OUTCOMES; e++) {
        uint64_t n = 0;
        for (size_t i = 0; i < h->n; i++)
            n += nth(h, i)->errors[e];
        json_object_set_new(o, sl_history_outcomes[e], json_integer((json_int_t)n));
    }
    return o;
}
