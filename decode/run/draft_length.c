/* See draft_length.h. */
#include "decode/run/draft_length.h"

/* Before anything is known: what a published MTP layer reaches at each place if the ones before it stood, and what verification of
 * one more token adds to a step. */
static const float STANDS = 0.8f;
static const double ADDS = 0.3;

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

bool sl_draft_cost_turn(sl_draft_cost *c)
{
    return c->steps++ % SL_DRAFT_PROBE == 0;
}

void sl_draft_cost_saw(sl_draft_cost *c, int32_t most, double ns)
{
    if (most <= 0) {
        c->plain_ns = c->plain_ns > 0 ? blend(c->plain_ns, ns, 8, 8) : ns;
        return;
    }
    if (most > SL_DRAFTS_MAX || c->plain_ns <= 0)
        return;
    double *r = &c->ratio[most];
    *r = *r > 0 ? blend(*r, ns / c->plain_ns, 8, 8) : ns / c->plain_ns;
}

/* What up to k drafts cost. Between and beyond the numbers that were measured, a line. */
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
        return at_low + (low > 0 ? (at_low - 1) / low : ADDS) * (k - low);
    return at_low + (c->ratio[high] - at_low) * (k - low) / (high - low);
}

int32_t sl_draft_length(const sl_draft_cost *c, sl_draft_seen *s, int32_t most)
{
    double worth = 1, tokens = 1, best = 1;
    int32_t n = 0;
    most = most < SL_DRAFTS_MAX ? most : SL_DRAFTS_MAX;
    for (int32_t k = 1; k <= most; k++) {
        worth *= s->n[k - 1] ? (double)s->stands[k - 1] : (double)STANDS;
        tokens += worth;
        double rate = tokens / ratio_of(c, k); /* tokens for the time of a plain step */
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
