/* What is measured: gaps between tokens as a histogram, the rest from the calls. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "simulate/sim_impl.h"

static const double GAP_MIN_NS = 1000, GAP_STEP = 1.01;

void sl_sim_gap(sl_sim_outcome *o, uint64_t ns)
{
    static double per_ln; /* buckets per unit of the natural logarithm */
    if (per_ln == 0)
        per_ln = 1 / log(GAP_STEP);
    double x = (double)ns / GAP_MIN_NS;
    int32_t i = x > 1 ? (int32_t)(log(x) * per_ln) : 0;
    o->gaps[i < SL_SIM_GAPS ? i : SL_SIM_GAPS - 1]++;
    o->n_gaps++;
    o->gap_sum_ns += (double)ns;
    o->gap_max_ns = (double)ns > o->gap_max_ns ? (double)ns : o->gap_max_ns;
}

static double gap_at(const sl_sim_outcome *o, double share)
{
    uint64_t want = (uint64_t)(share * (double)o->n_gaps), seen = 0;
    for (int32_t i = 0; i < SL_SIM_GAPS; i++) {
        seen += o->gaps[i];
        if (seen > want)
            return GAP_MIN_NS * pow(GAP_STEP, i + 0.5);
    }
    return o->gap_max_ns;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at(const double *v, size_t n, double share)
{
    return n ? v[(size_t)(share * (double)(n - 1) + 0.5)] : 0;
}

/* Sorts v. */
static sl_sim_percentiles percentiles(double *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    qsort(v, n, sizeof *v, by_value);
    return (sl_sim_percentiles){at(v, n, 0.5), at(v, n, 0.9), at(v, n, 0.99), at(v, n, 1),
                                n ? sum / (double)n : 0};
}

static sl_sim_each each_of(const sl_sim *s, size_t i)
{
    const sl_sim_call *c = &s->out.calls[i];
    sl_sim_each e = {.request = i, .ok = !c->refused && !c->failed};
    if (!e.ok)
        return e;
    e.ttft_ms = (double)(c->first_ns - c->start_ns) / 1e6;
    if (c->tokens > 1)
        e.tpot_ms = (double)(c->end_ns - c->first_ns) / 1e6 / ((c->tokens - 1) * s->per_token);
    e.cached_tokens = c->cached * s->per_token;
    return e;
}

static void summarize_calls(const sl_sim *s, sl_sim_result *out)
{
    const sl_sim_outcome *o = &s->out;
    double *ttft = malloc((2 * s->o.trace->n + 1) * sizeof *ttft), *tpot = ttft + s->o.trace->n;
    double good = 0, last = 0, late = 0, slow = 0;
    size_t n = 0, n_tpot = 0;
    SL_CHECK(ttft, "out of memory");
    for (size_t i = 0; i < s->o.trace->n; i++) {
        const sl_sim_call *c = &o->calls[i];
        const sl_sim_each e = each_of(s, i);
        if (s->o.each)
            s->o.each(s->o.each_ctx, &e);
        out->refused += c->refused;
        out->failed += c->failed;
        if (!e.ok) {
            late++;
            continue;
        }
        good += e.ttft_ms <= s->o.ttft_ms && e.tpot_ms <= s->o.itl_ms;
        late += e.ttft_ms > s->o.ttft_ms;
        slow += e.tpot_ms > s->o.itl_ms;
        ttft[n++] = e.ttft_ms;
        if (c->tokens > 1)
            tpot[n_tpot++] = e.tpot_ms;
        out->output_tokens += c->tokens * s->per_token;
        last = (double)c->end_ns > last ? (double)c->end_ns : last;
    }
    out->requests = s->o.trace->n;
    out->finished = n;
    out->goodput = good / (double)s->o.trace->n;
    out->ttft_missed = late / (double)s->o.trace->n;
    out->itl_missed = slow / (double)s->o.trace->n;
    out->seconds = (last - (double)s->start_ns) / 1e9;
    out->ttft_ms = percentiles(ttft, n);
    out->tpot_ms = percentiles(tpot, n_tpot);
    free(ttft);
}

static void summarize_workers(const sl_sim *s, sl_sim_result *out)
{
    double ns = out->seconds * 1e9, disk = 0;
    for (int32_t i = s->o.prefills; i < s->n_workers; i++) {
        const sl_sim_decode *d = &s->workers[i].decode;
        sl_store_stats st;
        sl_tier_stats ts;
        sl_store_stats_get(d->store, &st);
        out->host_evictions += st.evictions;
        disk += d->disk_busy.read_ns + d->disk_busy.write_ns;
        if (!d->disk)
            continue;
        sl_tier_get_stats(d->disk, &ts);
        out->disk_pages += ts.pages;
        out->disk_evictions += ts.evictions;
        out->disk_written_bytes += (double)ts.bytes_written;
    }
    if (!(ns > 0))
        return;
    int32_t computing = s->o.both ? s->o.decodes : s->o.prefills;
    out->prefill_busy = s->out.prefill_ns / ns / computing;
    out->link_busy = s->out.link_ns / ns / computing;
    out->decode_busy = s->out.decode_ns / ns / s->o.decodes;
    out->disk_busy = disk / ns / s->o.decodes;
    out->shared_busy = (s->shared_busy.read_ns + s->shared_busy.write_ns) / ns;
}

void sl_sim_summarize(const sl_sim *s, sl_sim_result *out)
{
    const sl_sim_outcome *o = &s->out;
    double k = s->per_token, ms = 1e6 * k;
    summarize_calls(s, out);
    summarize_workers(s, out);
    out->itl_ms = (sl_sim_percentiles){.p50 = gap_at(o, 0.5) / ms,
                                       .p90 = gap_at(o, 0.9) / ms,
                                       .p99 = gap_at(o, 0.99) / ms,
                                       .max = o->gap_max_ns / ms,
                                       .mean = o->n_gaps ? o->gap_sum_ns / (double)o->n_gaps / ms : 0};
    out->tokens_host = o->host * k;
    out->tokens_disk = o->disk * k;
    out->tokens_shared = o->shared * k;
    out->tokens_prefill_cache = o->prefill_cache * k;
    out->tokens_computed = o->computed * k;
    out->block_hits = o->blocks > 0 ? o->block_hits / o->blocks : 0;
    out->batch = o->steps ? (double)o->step_requests / (double)o->steps : 0;
    out->retracted = o->retracted;
    uint64_t blocks =
        (uint64_t)((double)s->o.host_bytes / s->page_bytes * PAGE / s->block) * (uint64_t)s->o.decodes;
    out->block_hits_lru = sl_sim_lru(s->o.trace, blocks ? blocks : 1);
    out->block_hits_max = sl_sim_lru(s->o.trace, 0);
}
