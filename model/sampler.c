/*
 * Sampling of one token. Only tokens that can be drawn are sorted: logits are counted in buckets by their distance from
 * the largest one, then as many buckets as top_k, top_p or min_p can reach are gathered, and the few candidates in them
 * are sorted.
 *
 * Every sum has a fixed order (model/sampler_math.h) and of equal logits the smaller id comes first, so equal logits,
 * parameters, history and position give the same token.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/sampler.h"
#include "model/sampler_math.h"

enum { BUCKETS = 2048, BLOCK = 1024 };
/* Below this temperature the weight of every token but the best one is 0 in float32. */
#define GREEDY_BELOW 1e-4f
/* Buckets per unit of logit difference: 2048 of them cover differences up to 64; the last one has all larger ones. */
#define BUCKETS_PER_UNIT 32.0f

struct sl_sampler {
    int32_t vocab;
    int32_t *eos;
    size_t n_eos;
    float *logits;  /* copy with biases and penalties */
    float *weights; /* exp of the scaled logits */
    sm_cand *cand, *tmp;
    uint32_t *stamp; /* by token: the last call (epoch) in which it was seen */
    uint32_t *count; /* by token: how often it is in the output; valid if stamp is the current epoch */
    uint32_t epoch;
    uint32_t bucket_n[BUCKETS];
    double bucket_mass[BUCKETS];
};

sl_status sl_sampler_create(int32_t vocab, const int32_t *eos_ids, size_t n_eos, sl_sampler **out)
{
    if (vocab <= 0)
        return SL_ERR_INVALID;
    size_t n = (size_t)vocab;
    sl_sampler *sp = calloc(1, sizeof *sp);
    if (!sp)
        return SL_ERR_NO_MEMORY;
    sp->vocab = vocab;
    sp->n_eos = n_eos;
    sp->eos = malloc((n_eos + 1) * sizeof *sp->eos);
    sp->logits = malloc(n * sizeof *sp->logits);
    sp->weights = malloc(n * sizeof *sp->weights);
    sp->cand = malloc(n * sizeof *sp->cand);
    sp->tmp = malloc(n * sizeof *sp->tmp);
    sp->stamp = calloc(n, sizeof *sp->stamp);
    sp->count = calloc(n, sizeof *sp->count);
    if (!sp->eos || !sp->logits || !sp->weights || !sp->cand || !sp->tmp || !sp->stamp || !sp->count) {
        sl_sampler_destroy(sp);
        return SL_ERR_NO_MEMORY;
    }
    if (n_eos)
        memcpy(sp->eos, eos_ids, n_eos * sizeof *eos_ids);
    *out = sp;
    return SL_OK;
}

void sl_sampler_destroy(sl_sampler *sp)
{
    if (!sp)
        return;
    free(sp->eos);
    free(sp->logits);
    free(sp->weights);
    free(sp->cand);
    free(sp->tmp);
    free(sp->stamp);
    free(sp->count);
    free(sp);
}

bool sl_sampling_is_stop(const sl_sampling *s, const sl_sampler *sp, int32_t id)
{
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == id)
            return true;
    }
    for (size_t i = 0; !s->ignore_eos && i < sp->n_eos; i++) {
        if (sp->eos[i] == id)
            return true;
    }
    return false;
}

/* ---- changes to the logits ---- */

static bool in_vocab(const sl_sampler *sp, int32_t id)
{
    return id >= 0 && id < sp->vocab;
}

static void forbid(sl_sampler *sp, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (in_vocab(sp, ids[i]))
            sp->logits[ids[i]] = -INFINITY;
    }
}

/* Whether this is the first time that this call sees the token. */
static bool fresh(sl_sampler *sp, int32_t id)
{
    if (!in_vocab(sp, id) || sp->stamp[id] == sp->epoch)
        return false;
    sp->stamp[id] = sp->epoch;
    sp->count[id] = 0;
    return true;
}

static void repeat_penalty(sl_sampler *sp, const sl_sampling *s, int32_t id)
{
    float *l = &sp->logits[id];
    if (s->repetition_penalty != 1.0f)
        *l = *l > 0 ? *l / s->repetition_penalty : *l * s->repetition_penalty;
}

static void next_epoch(sl_sampler *sp)
{
    if (++sp->epoch == 0) {
        memset(sp->stamp, 0, (size_t)sp->vocab * sizeof *sp->stamp);
        sp->epoch = 1;
    }
}

static void penalize(sl_sampler *sp, const sl_sampling *s, const sl_history *h)
{
    next_epoch(sp);
    for (size_t i = 0; i < h->n_output; i++) {
        int32_t id = h->output[i];
        if (fresh(sp, id))
            repeat_penalty(sp, s, id);
        if (in_vocab(sp, id))
            sp->count[id]++;
    }
    for (size_t i = 0; s->repetition_penalty != 1.0f && i < h->n_prompt; i++) {
        if (fresh(sp, h->prompt[i]))
            repeat_penalty(sp, s, h->prompt[i]);
    }
    for (size_t i = 0; i < h->n_output; i++) {
        int32_t id = h->output[i];
        if (!in_vocab(sp, id) || sp->count[id] == 0)
            continue;
        sp->logits[id] -= s->frequency_penalty * (float)sp->count[id] + s->presence_penalty;
        sp->count[id] = 0; /* once per token */
    }
}

/* The logits to draw from: the caller's, or a changed copy. */
static const float *effective(sl_sampler *sp, const float *logits, const sl_sampling *s, const sl_history *h)
{
    bool penalties =
        s->frequency_penalty != 0.0f || s->presence_penalty != 0.0f || s->repetition_penalty != 1.0f;
    bool held_open = h->n_output < (size_t)s->min_tokens && (s->n_stop_ids || (sp->n_eos && !s->ignore_eos));
    if (!penalties && !held_open && s->n_bias == 0)
        return logits;
    memcpy(sp->logits, logits, (size_t)sp->vocab * sizeof *logits);
    for (uint32_t i = 0; i < s->n_bias; i++) {
        if (in_vocab(sp, s->bias[i].id))
            sp->logits[s->bias[i].id] += s->bias[i].bias;
    }
    if (held_open) {
        forbid(sp, s->stop_ids, s->n_stop_ids);
        if (!s->ignore_eos)
            forbid(sp, sp->eos, sp->n_eos);
    }
    if (penalties)
        penalize(sp, s, h);
    return sp->logits;
}

/* ---- choice ---- */

static int32_t first_equal(const float *x, size_t n, float value)
{
    for (size_t i = 0; i < n; i++) {
        if (x[i] == value)
            return (int32_t)i;
    }
    return -1;
}

/* Draws among all tokens, in order of id. */
static int32_t draw_all(const float *w, size_t n, double total, double u)
{
    double target = u * total, done = 0;
    int32_t last = -1;
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t len = n - at < BLOCK ? n - at : BLOCK;
        double sum = sm_sum(w + at, len);
        if (done + sum > target || at + BLOCK >= n) {
            for (size_t i = at; i < at + len; i++) {
                if (w[i] > 0)
                    last = (int32_t)i;
                done += (double)w[i];
                if (done > target && w[i] > 0)
                    return last;
            }
            if (at + BLOCK >= n)
                break;
            continue; /* rounding: the sum by lanes reached the target, the sum in sequence did not */
        }
        done += sum;
    }
    for (size_t i = n; last < 0 && i-- > 0;) {
        if (w[i] > 0)
            last = (int32_t)i;
    }
    return last;
}

static uint32_t bucket_of(float max, float x)
{
    float d = (max - x) * BUCKETS_PER_UNIT;
    return d < (float)(BUCKETS - 1) ? (uint32_t)d : BUCKETS - 1;
}

static void fill_buckets(sl_sampler *sp, const float *x, float max)
{
    memset(sp->bucket_n, 0, sizeof sp->bucket_n);
    memset(sp->bucket_mass, 0, sizeof sp->bucket_mass);
    for (int32_t i = 0; i < sp->vocab; i++) {
        uint32_t b = bucket_of(max, x[i]);
        sp->bucket_n[b]++;
        sp->bucket_mass[b] += (double)sp->weights[i];
    }
}

/* The last of the buckets that together have at least n tokens and at least this mass. */
static uint32_t last_bucket(const sl_sampler *sp, size_t n, double mass)
{
    size_t have = 0;
    double m = 0;
    for (uint32_t b = 0; b < BUCKETS; b++) {
        have += sp->bucket_n[b];
        m += sp->bucket_mass[b];
        if (have >= n && m >= mass)
            return b;
    }
    return BUCKETS - 1;
}

static size_t gather(sl_sampler *sp, const float *x, float max, uint32_t last)
{
    size_t n = 0;
    for (int32_t i = 0; i < sp->vocab; i++) {
        if (bucket_of(max, x[i]) <= last && x[i] > -INFINITY)
            sp->cand[n++] = (sm_cand){x[i], sp->weights[i], i};
    }
    sm_sort(sp->cand, n, sp->tmp);
    return n;
}

/* How many of the n sorted candidates the truncation keeps; 0: all of them together do not reach top_p. */
static size_t truncate(const sl_sampler *sp, const sl_sampling *s, size_t n, bool by_k, double total)
{
    if (by_k && n > (size_t)s->top_k)
        n = (size_t)s->top_k;
    if (s->top_p < 1.0f) {
        double sum = 0, enough;
        for (size_t i = 0; by_k && i < n; i++)
            sum += (double)sp->cand[i].weight;
        enough = (double)s->top_p * (by_k ? sum : total);
        size_t keep = 0;
        for (sum = 0; keep < n && sum < enough; keep++)
            sum += (double)sp->cand[keep].weight;
        if (sum < enough)
            return 0;
        n = keep ? keep : 1;
    }
    while (n > 1 && sp->cand[n - 1].weight < s->min_p)
        n--;
    return n;
}

static int32_t draw_sorted(const sm_cand *c, size_t n, double u)
{
    double total = 0, done = 0;
    for (size_t i = 0; i < n; i++)
        total += (double)c[i].weight;
    double target = u * total;
    for (size_t i = 0; i < n; i++) {
        done += (double)c[i].weight;
        if (done > target)
            return c[i].id;
    }
    return c[0].id; /* not reached: u < 1 and the best weight is 1 */
}

static int32_t draw_truncated(sl_sampler *sp, const sl_sampling *s, const float *x, float max, double total,
                              double u)
{
    bool by_k = s->top_k > 0 && s->top_k < sp->vocab;
    fill_buckets(sp, x, max);
    uint32_t last = BUCKETS - 1;
    if (by_k) /* whole buckets with at least top_k tokens; truncate() counts exactly */
        last = last_bucket(sp, (size_t)s->top_k, 0);
    else if (s->top_p < 1.0f)
        last = last_bucket(sp, 1, (double)s->top_p * total);
    else /* min_p alone: a token further below the best one is cut; 2 more buckets allow for rounding */
        last = bucket_of(max, max + s->temperature * logf(s->min_p)) + 2;
    size_t n = gather(sp, x, max, last), keep = truncate(sp, s, n, by_k, total);
    if (keep == 0) { /* rounding: the sum by buckets reached top_p, the sum in sequence did not */
        n = gather(sp, x, max, BUCKETS - 1);
        keep = truncate(sp, s, n, by_k, total);
        if (keep == 0)
            keep = n;
    }
    return draw_sorted(sp->cand, keep, u);
}

static int32_t choose(sl_sampler *sp, const sl_sampling *s, const float *x, float max, uint64_t position)
{
    size_t n = (size_t)sp->vocab;
    if (s->temperature < GREEDY_BELOW || s->top_k == 1)
        return first_equal(x, n, max);
    double total = sm_weights(x, n, max, 1.0f / s->temperature, sp->weights);
    double u = sl_sample_uniform(s->seed, position);
    bool truncated = (s->top_k > 0 && s->top_k < sp->vocab) || s->top_p < 1.0f || s->min_p > 0.0f;
    return truncated ? draw_truncated(sp, s, x, max, total, u) : draw_all(sp->weights, n, total, u);
}

/* ---- logprobs ---- */

static uint32_t best_of(const float *x, int32_t vocab, uint32_t n, sl_logprob *top)
{
    uint32_t have = 0;
    for (int32_t i = 0; i < vocab && n; i++) {
        if (have == n ? !(x[i] > top[n - 1].logprob) : !(x[i] > -INFINITY))
            continue;
        uint32_t at = have < n ? have++ : n - 1;
        for (; at > 0 && top[at - 1].logprob < x[i]; at--)
            top[at] = top[at - 1];
        top[at] = (sl_logprob){i, x[i]};
    }
    return have;
}

static void logprobs(sl_sampler *sp, const float *logits, float max, const sl_sampling *s, sl_sampled *out)
{
    double lse = (double)max + log(sm_weights(logits, (size_t)sp->vocab, max, 1.0f, sp->weights));
    out->logprob = (float)((double)logits[out->id] - lse);
    out->n_top = best_of(logits, sp->vocab, (uint32_t)s->n_logprobs, out->top);
    for (uint32_t i = 0; i < out->n_top; i++)
        out->top[i].logprob = (float)((double)out->top[i].logprob - lse);
}

sl_status sl_sample(sl_sampler *sp, const float *logits, const sl_sampling *s, const sl_history *h,
                    uint64_t position, sl_sampled *out, sl_err *err)
{
    bool bad;
    size_t n = (size_t)sp->vocab;
    float raw_max = sm_max(logits, n, &bad);
    if (bad || raw_max == -INFINITY)
        return sl_fail(err, SL_ERR_CORRUPT, "position %llu: %s", (unsigned long long)position,
                       bad ? "a logit is NaN or infinite" : "every logit is -inf");
    const float *x = effective(sp, logits, s, h);
    float max = x == logits ? raw_max : sm_max(x, n, &bad);
    if (bad || max == -INFINITY)
        return sl_fail(err, SL_ERR_INVALID,
                       "position %llu: logit_bias, penalties and min_tokens leave no token",
                       (unsigned long long)position);
    sl_sampled got = {.id = choose(sp, s, x, max, position)};
    if (s->n_logprobs >= 0)
        logprobs(sp, logits, raw_max, s, &got);
    *out = got;
    return SL_OK;
}
