/* See draft_length.h. */
#include "decode/run/draft_length.h"

/* Before anything is known: what a published MTP layer reaches at each place if the ones before it stood, and what verification of
 * one more token adds to a step. */
static const float STANDS = 0.8f;
static const double ADDS = 0.3;

static const double LEAST_COMPUTED = 0.1; /* of a step's time, whatever it is said to have waited */

enum { KNOWN = 3 }; /* steps that this counts for */

/* The mean of what was seen lately, after `n` others. */
static double blend(double old, double seen, double n, double memory)
{
    return old + (seen - old) / (n < memory ? n + 1 : memory);
}

sl_draft_cost *sl_draft_cost_of(sl_draft_costs *c, int32_t batch, int64_t tokens)
{
    int32_t size = 0, context = 0;
    const int64_t mean = batch > 0 ? tokens / batch : 0;
    while (size < SL_DRAFT_BATCHES - 1 && batch >> (size + 1) > 0)
        size++;
    while (context < SL_DRAFT_CONTEXTS - 1 && mean >> (12 + 2 * context) > 0)
        context++;
    return &c->of[size][context];
}

void sl_draft_link_saw(sl_draft_costs *c, sl_draft_cost *of, const sl_draft_moved *m)
{
    if (!m->tokens)
        return;
    const double bytes = (double)m->bytes / (double)m->tokens;
    of->bytes = of->missed ? blend(of->bytes, bytes, 4, 4) : bytes;
    of->missed = true;
    c->bytes = bytes;
    if (!m->bytes) /* says nothing about the link */
        return;
    const double wait = (double)m->waited_ns / (double)m->bytes;
    c->wait_ns = c->waited ? blend(c->wait_ns, wait, 2, 2) : wait;
    c->waited = true;
}

double sl_draft_rows_ns(const sl_draft_costs *c, const sl_draft_cost *of, int32_t batch)
{
    return (of->missed ? of->bytes : c->bytes) * c->wait_ns * batch;
}

bool sl_draft_cost_turn(sl_draft_cost *c)
{
    return c->steps++ % SL_DRAFT_PROBE == 0;
}

void sl_draft_cost_saw(sl_draft_cost *c, double rows_ns, int32_t most, double ns)
{
    /* The wait is a mean of other steps, and this one may have had less: it has computed for some of its time. */
    const double computed = ns - rows_ns * (1 + most), least = ns * LEAST_COMPUTED;
    const double own = computed > least ? computed : least;
    if (most <= 0) {
        c->plain_ns = c->plain_ns > 0 ? blend(c->plain_ns, own, 8, 8) : own;
        return;
    }
    if (most > SL_DRAFTS_MAX || c->plain_ns <= 0)
        return;
    double *r = &c->ratio[most];
    *r = *r > 0 ? blend(*r, own / c->plain_ns, 8, 8) : own / c->plain_ns;
}

/* What computing up to k drafts costs. Between and beyond the numbers that were measured, a line. */
static double ratio_of(const sl_draft_cost *c, int32_t k)
{
    int32_t low = k, high = k;
    while (low > 0 && c->ratio[low] <= 0)
        low--;
    while (high <= SL_DRAFTS_MAX && c->ratio[high] <= 0)
        high++;
    const double at_low = low > 0 ? c->ratio[low] : 1;
    if (k == 0 || low == k)
        return at_low;
    if (high > SL_DRAFTS_MAX)
        return at_low + (low == 0 ? ADDS : at_low > 1 ? (at_low - 1) / low : 0) * (k - low);
    return at_low + (c->ratio[high] - at_low) * (k - low) / (high - low);
}

int32_t sl_draft_length(const sl_draft_cost *c, double rows_ns, sl_draft_seen *s, int32_t most)
{
    const double rows = c->plain_ns > 0 ? rows_ns / c->plain_ns : 0; /* of a token of each request */
    double worth = 1, tokens = 1, best = 1 / (1 + rows);
    int32_t n = 0;
    most = most < SL_DRAFTS_MAX ? most : SL_DRAFTS_MAX;
    for (int32_t k = 1; k <= most; k++) {
        worth *= s->n[k - 1] ? (double)s->stands[k - 1] : (double)STANDS;
        tokens += worth;
        /* tokens for the computing of a plain step */
        double rate = tokens / (ratio_of(c, k) + rows * (1 + k));
        if (rate > best)
            best = rate, n = k;
    }
    if (n < most && ++s->steps >= SL_DRAFT_PROBE)
        n++, s->steps = 0;
    return n;
}

void sl_draft_saw(sl_draft_seen *s, int32_t drafted, int32_t stood)
{
    for (int32_t k = 0; k < drafted && k <= stood && k < SL_DRAFTS_MAX; k++) {
        double old = s->n[k] ? (double)s->stands[k] : (double)STANDS;
        s->stands[k] = (float)blend(old, k < stood, KNOWN + (double)s->n[k], 32);
        s->n[k]++;
    }
}
