/*
 * SL_OP_SAMPLE restated with a full sort. It shares with the implementations the arithmetic of kernels/sample_math.h, which
 * tests/unit/model/test_sampler.c compares with the mathematical library: here the order, the cuts, the draw, the changes
 * and the faults are what is tested.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/sample_math.h"
#include "tests/unit/kernels/ref.h"

typedef struct token {
    float x, w;
    uint64_t mass;
    int32_t id;
} token;

static int best_first(const void *a, const void *b)
{
    const token *x = a, *y = b;

    if (x->x != y->x)
        return x->x < y->x ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    return ((const token *)a)->id < ((const token *)b)->id ? -1 : 1;
}

/* All tokens, best first, with their masses. */
static void weigh(token *t, const float *x, int32_t n, float inv_t)
{
    float max = -INFINITY;

    for (int32_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int32_t i = 0; i < n; i++) {
        float w = sl_sample_weight(x[i], max, inv_t);
        t[i] = (token){x[i], w, (uint64_t)nearbyint(ldexp((double)w, 40)), i};
    }
    qsort(t, (size_t)n, sizeof *t, best_first);
}

static uint64_t total_of(const token *t, int32_t n)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < n; i++)
        sum += t[i].mass;
    return sum;
}

/* How many of the sorted tokens top_p keeps. */
static int32_t reach(const token *t, int32_t n, uint64_t top_p)
{
    unsigned __int128 sum = 0, total = total_of(t, n);
    int32_t keep = 0;

    while (keep < n && (keep == 0 || sum << 32 < total * top_p))
        sum += t[keep++].mass;
    return keep;
}

static int32_t choose(const sl_sample_row *r, token *t, const float *x, int32_t n)
{
    uint64_t total, done = 0, target;
    int32_t keep = n, left = 0;

    weigh(t, x, n, r->inv_t == 0 ? 1 : r->inv_t);
    if (r->inv_t == 0 || r->top_k == 1)
        return t[0].id;
    if (r->top_k > 0 && r->top_k < keep)
        keep = r->top_k;
    if (r->top_p < (uint64_t)1 << 32)
        keep = reach(t, keep, r->top_p);
    for (int32_t i = 0; i < keep; i++)
        if (t[i].w >= r->min_p)
            t[left++] = t[i];
    qsort(t, (size_t)left, sizeof *t, by_id);
    total = total_of(t, left);
    target = (uint64_t)((unsigned __int128)sl_sample_random(r->seed, (uint64_t)r->position) * total >> 64);
    for (int32_t i = 0; i < left; i++) {
        done += t[i].mass;
        if (done > target)
            return t[i].id;
    }
    abort(); /* target < total */
}

static bool finite_enough(const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (isnan(x[i]) || x[i] == INFINITY)
            return false;
    return true;
}

static bool all_infinite(const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (x[i] != -INFINITY)
            return false;
    return true;
}

static bool count_token(sl_sample_list *l, int32_t id)
{
    int32_t at = 0;

    while (at < l->n && l->entry[at].id != id)
        at++;
    if (at == l->room)
        return false;
    if (at == l->n)
        l->entry[l->n++] = (sl_sample_entry){.id = id};
    l->entry[at].seen |= SL_SAMPLE_KNOWN;
    l->entry[at].seen += SL_SAMPLE_ONCE;
    return true;
}

static uint32_t sample(const sl_sample_row *r, const float *raw, int32_t n, token *t, float *x,
                       sl_sampled *out)
{
    if (!finite_enough(raw, n))
        return SL_SAMPLE_NOT_FINITE;
    if (all_infinite(raw, n))
        return SL_SAMPLE_ALL_INFINITE;
    memcpy(x, raw, (size_t)n * sizeof *x);
    for (int32_t k = 0; r->list && k < r->list->n; k++) {
        const sl_sample_entry *e = &r->list->entry[k];
        if (e->id >= 0 && e->id < n)
            x[e->id] = sl_sample_changed(raw[e->id], e, r);
    }
    for (int32_t i = 0; r->mask && i < n; i++)
        if (!(r->mask[i / 32] & 1u << i % 32))
            x[i] = -INFINITY;
    if (!finite_enough(x, n) || all_infinite(x, n))
        return SL_SAMPLE_NONE_LEFT;
    out->id = choose(r, t, x, n);
    if (r->list && r->track && !count_token(r->list, out->id))
        return SL_SAMPLE_LIST_FULL;
    if (r->n_logprobs < 0)
        return SL_SAMPLE_FINE;
    weigh(t, raw, n, 1);
    double log_total = sl_sample_log(total_of(t, n));
    out->logprob = sl_sample_logprob(raw[out->id], t[0].x, log_total);
    for (int32_t i = 0; i < r->n_logprobs && i < n && t[i].x > -INFINITY; i++)
        out->top[out->n_top++] = (sl_logprob){t[i].id, sl_sample_logprob(t[i].x, t[0].x, log_total)};
    return SL_SAMPLE_FINE;
}

void ref_sample(const void *params)
{
    const sl_sample_params *p = params;
    size_t n = (size_t)p->vocab;
    token *t = malloc(n * sizeof *t);
    float *x = malloc(n * sizeof *x);

    SL_CHECK(t && x, "out of memory");
    for (int32_t i = 0; i < p->n; i++) {
        const sl_sample_row *r = &p->rows[i];
        memset(&p->out[i], 0, sizeof p->out[i]);
        uint32_t fault = sample(r, p->logits + (int64_t)r->row * p->ld, p->vocab, t, x, &p->out[i]);
        if (fault)
            p->out[i] = (sl_sampled){.id = -1, .fault = fault};
        if (p->next)
            p->next[i] = fault ? 0 : p->out[i].id;
    }
    free(t);
    free(x);
}
