/* See simulate.h: the cheapest sizes. */
#include <string.h>

#include "simulate/simulate.h"

enum { MOST_WORKERS = 64, GIB_SHIFT = 30, USELESS_MAX = 4 };
static const double GAIN = 0.002, SATURATED = 0.9;

double sl_sim_price(const sl_sim_opts *o)
{
    const sl_sim_costs *c = o->costs;
    uint64_t host = o->host_bytes ? o->host_bytes : o->cfg->kvstore.bytes;
    double gib = 1.0 / (1ull << GIB_SHIFT);
    return c->price.host_gib * (double)host * gib * o->decodes +
           c->price.disk_gib * (double)o->disk_bytes * gib * o->decodes + c->price.prefill * o->prefills +
           c->price.decode * o->decodes;
}

typedef struct searching {
    const sl_sim_search *how;
    int32_t runs;
    sl_err *err;
} searching;

static sl_status try(searching *x, const sl_sim_opts *o, sl_sim_result *r, bool *good)
{
    if (x->runs++ >= x->how->max_runs)
        return sl_fail(x->err, SL_ERR_EXHAUSTED, "not found within %d runs", x->how->max_runs);
    if (x->how->fits)
        SL_TRY(x->how->fits(x->how->fits_ctx, o, x->err));
    SL_TRY(sl_simulate(o, r, x->err));
    *good = r->goodput >= x->how->goodput;
    if (x->how->tried)
        x->how->tried(x->how->ctx, o, r, sl_sim_price(o), *good);
    return SL_OK;
}

/* n, and half as many more, in whole groups. */
static int32_t more(int32_t n, int32_t ranks)
{
    int32_t group = ranks > 1 ? ranks : 1;
    return n + ((n + 1) / 2 + group - 1) / group * group;
}

static int32_t fewer(int32_t n, int32_t ranks)
{
    int32_t group = ranks > 1 ? ranks : 1;
    return n - (n > 8 * group ? n / 8 / group : 1) * group;
}

/*
 * More workers until the target is reached: of the role whose target more requests miss, prefill for the first
 * token, decode for the others; and of the other role when that has gained nothing. How busy the workers are does
 * not tell which role to choose: a decode worker with one request is as busy as one with many. When neither role
 * gains anything, the time of single requests or the stores are the limit, and the search ends, unless the prefill
 * workers never rest: then a load that is far too high hides the gain.
 */
static sl_status grow(searching *x, sl_sim_opts *o, sl_sim_result *r)
{
    int32_t prefills = o->prefills, decodes = o->decodes, useless = 0;
    double best = -1;
    bool good = false, prefill = false;
    for (;;) {
        SL_TRY(try(x, o, r, &good));
        if (good)
            return SL_OK;
        bool gained = r->goodput > best + GAIN;
        useless = gained || r->prefill_busy > SATURATED ? 0 : useless + 1;
        best = r->goodput > best ? r->goodput : best;
        if (useless == USELESS_MAX)
            return sl_fail(
                x->err, SL_ERR_EXHAUSTED,
                "a goodput of %g is not reached: it stays at %.4f with more workers (%d prefill, %d decode); "
                "requests that are alone already miss the targets of time, or the stores are too small",
                x->how->goodput, best, o->prefills, o->decodes);
        prefill = !o->both && (gained ? r->ttft_missed >= r->itl_missed : !prefill);
        if (prefill)
            o->prefills = more(o->prefills, o->prefill_ranks);
        else
            o->decodes = more(o->decodes, o->decode_ranks);
        if (o->prefills > MOST_WORKERS * prefills || o->decodes > MOST_WORKERS * decodes)
            return sl_fail(x->err, SL_ERR_EXHAUSTED,
                           "a goodput of %g is not reached with %d prefill and %d decode workers",
                           x->how->goodput, o->prefills, o->decodes);
    }
}

/* One size smaller: 0 a prefill worker, 1 a decode worker, 2 half of the host memory, 3 half of the disk (below 16 GiB: none).
 * False: it cannot be. */
static bool smaller(sl_sim_opts *o, int32_t which)
{
    switch (which) {
    case 0:
        o->prefills = fewer(o->prefills, o->prefill_ranks);
        return o->prefills > 0;
    case 1:
        o->decodes = fewer(o->decodes, o->decode_ranks);
        return o->decodes > 0;
    case 2:
        o->host_bytes /= 2;
        return o->host_bytes > 0;
    default:
        o->disk_bytes = o->disk_bytes > 32ull << GIB_SHIFT ? o->disk_bytes / 2 : 0;
        return true;
    }
}

/* The change that saves most among those that have not failed from here; -1: none saves anything. */
static int32_t choose(const sl_sim_opts *o, const bool *failed)
{
    int32_t best = -1;
    double least = sl_sim_price(o);
    for (int32_t i = 0; i < 4; i++) {
        sl_sim_opts next = *o;
        if (failed[i] || !smaller(&next, i) || sl_sim_price(&next) >= least)
            continue;
        least = sl_sim_price(&next);
        best = i;
    }
    return best;
}

sl_status sl_sim_search_run(const sl_sim_opts *o, const sl_sim_search *s, sl_sim_opts *best,
                            sl_sim_result *result, sl_err *err)
{
    searching x = {.how = s, .err = err};
    bool failed[4] = {false};
    *best = *o;
    if (!best->host_bytes)
        best->host_bytes = o->cfg->kvstore.bytes;
    SL_TRY(grow(&x, best, result));
    for (int32_t i; (i = choose(best, failed)) >= 0;) {
        sl_sim_opts next = *best;
        sl_sim_result r;
        sl_err why = {""};
        bool good = false;
        smaller(&next, i);
        if (x.runs >= s->max_runs)
            break;
        x.err = &why;
        /* sizes that cannot be, for instance a store that does not hold the longest request, count as not good */
        failed[i] = try(&x, &next, &r, &good) != SL_OK || !good;
        if (failed[i])
            continue;
        *best = next;
        *result = r;
        memset(
            failed, 0,
            sizeof failed); /* what did not work before may work with these sizes: fewer workers, more memory each */
    }
    return SL_OK;
}
