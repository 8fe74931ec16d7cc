/* See pace.h. */
#include "worker/pace.h"

#include <stdlib.h>

/*
 * A measurement moves an estimate by half of the difference, and counts as at most 4 times too slow or too fast: a
 * step during which the process did not run says nothing about the next one. Only the first measurement replaces the
 * guess as a whole.
 */
static const double STEP = 0.5, LARGEST = 4;

sl_status sl_pace_init(sl_pace *p, int32_t max_context, double guess_ns, sl_err *err)
{
    *p = (sl_pace){.n = max_context / SL_PACE_SPAN + 1, .guess_ns = guess_ns};
    p->span = calloc((size_t)p->n, sizeof *p->span);
    return p->span ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
}

void sl_pace_free(sl_pace *p)
{
    free(p->span);
    *p = (sl_pace){0};
}

static int32_t span_of(const sl_pace *p, int32_t pos)
{
    int32_t i = pos / SL_PACE_SPAN;
    return i < p->n ? i : p->n - 1;
}

static double estimate(const sl_pace *p, int32_t i)
{
    int32_t known = i;
    while (known > 0 && p->span[known].token_ns <= 0)
        known--;
    double ns = p->span[known].token_ns > 0 ? p->span[known].token_ns : p->guess_ns;
    return ns * (i + 1) / (known + 1);
}

double sl_pace_token_ns(const sl_pace *p, int32_t pos)
{
    return estimate(p, span_of(p, pos));
}

static double within(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* All shares and estimates are taken before the first correction, because estimates build on each other. */
void sl_pace_measured(sl_pace *p, const sl_pace_part *part, int32_t n, double ns)
{
    double expected = 0;
    for (int32_t i = 0; i < n; i++)
        expected += (part[i].end - part[i].first) * sl_pace_token_ns(p, part[i].first);
    if (expected <= 0 || ns <= 0)
        return;
    double error = ns / expected - 1;
    if (p->measured)
        error = STEP * (within(error + 1, 1 / LARGEST, LARGEST) - 1);
    for (int32_t i = 0; i < n; i++) {
        int32_t at = span_of(p, part[i].first);
        p->span[at].share += (part[i].end - part[i].first) * estimate(p, at) / expected;
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t at = span_of(p, part[i].first);
        p->span[at].token_ns = estimate(p, at);
    }
    for (int32_t i = 0; i < n; i++) { /* several prompts of one span: one correction */
        sl_pace_span *s = &p->span[span_of(p, part[i].first)];
        if (s->share > 0)
            s->token_ns *= 1 + error * (p->measured ? s->share : 1);
        s->share = 0;
    }
    p->measured = true;
}

uint32_t sl_pace_rate_add(sl_pace_rate *r, double tokens, double ns)
{
    static const double KEEP = 1 - 1.0 / 32;
    r->tokens = r->tokens * KEEP + tokens;
    r->ns = r->ns * KEEP + ns;
    double rate = r->ns > 0 ? r->tokens * 1e9 / r->ns : 0;
    return rate < 1 ? 1 : rate > UINT32_MAX ? UINT32_MAX : (uint32_t)rate;
}
