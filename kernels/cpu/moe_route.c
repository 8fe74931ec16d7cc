/*
 * SL_OP_MOE_ROUTE: which experts a token chooses, and their weights. Simple selection loops are enough, because
 * there are few experts; strict comparison gives ties to the smaller index.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* Index of the largest v with taken == 0, NaN counting as -inf; the smallest index among equals. */
static int32_t largest(const float *v, const uint8_t *taken, int32_t n)
{
    int32_t best = -1;

    for (int32_t i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || v[i] > v[best] || (isnan(v[best]) && !isnan(v[i]))))
            best = i;
    return best;
}

static float group_score(const float *choice, int32_t n)
{
    float a = -INFINITY, b = -INFINITY; /* largest and second */

    for (int32_t i = 0; i < n; i++) {
        if (choice[i] > a) {
            b = a;
            a = choice[i];
        } else if (choice[i] > b) {
            b = choice[i];
        }
    }
    return n > 1 ? a + b : a;
}

/* Marks the experts of groups that are not among the best as taken, or gives them the choice 0. */
static void drop_groups(const sl_moe_route_params *p, float *choice, uint8_t *taken, float *scores,
                        uint8_t *kept)
{
    int32_t per = p->experts / p->groups;

    memset(kept, 0, (size_t)p->groups);
    for (int32_t g = 0; g < p->groups; g++)
        scores[g] = group_score(choice + g * per, per);
    for (int32_t i = 0; i < p->top_groups; i++)
        kept[largest(scores, kept, p->groups)] = 1;
    for (int32_t g = 0; g < p->groups; g++)
        if (!kept[g] && p->zero_refused)
            memset(choice + g * per, 0, sizeof(float) * (size_t)per);
        else if (!kept[g])
            memset(taken + g * per, 1, (size_t)per);
}

/* ln(1 + e^x) without overflow. */
static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

static void make_scores(const sl_moe_route_params *p, const float *logits, float *score)
{
    float top = logits[0], sum = 0;

    if (p->score == SL_ROUTE_SQRT_SOFTPLUS) {
        for (int32_t e = 0; e < p->experts; e++)
            score[e] = sqrtf(softplus(logits[e]));
        return;
    }
    if (p->score != SL_ROUTE_SOFTMAX) {
        for (int32_t e = 0; e < p->experts; e++)
            score[e] = 1.0f / (1.0f + expf(-logits[e]));
        return;
    }
    for (int32_t e = 0; e < p->experts; e++)
        top = fmaxf(top, logits[e]);
    for (int32_t e = 0; e < p->experts; e++)
        sum += score[e] = expf(logits[e] - top);
    for (int32_t e = 0; e < p->experts; e++)
        score[e] /= sum;
}

/* weights = those of the experts that are there already. */
static void weigh(const sl_moe_route_params *p, const float *score, const int32_t *experts, float *weights)
{
    float sum = 0;

    for (int32_t i = 0; i < p->top_k; i++)
        sum += weights[i] = score[experts[i]];
    for (int32_t i = 0; i < p->top_k; i++)
        weights[i] = (p->normalise ? weights[i] / sum : weights[i]) * p->scale;
}

/* The experts of the token's row in ascending order; false: its id or an expert does not exist. */
static bool look_up(const sl_moe_route_params *p, int64_t t, int32_t *out)
{
    const int32_t id = p->ids[t];

    if (id < 0 || id >= p->vocab)
        return false;
    for (int32_t i = 0; i < p->top_k; i++) {
        const int32_t e = p->table[(int64_t)id * p->top_k + i];
        int32_t at = i;

        if (e < 0 || e >= p->experts)
            return false;
        for (; at > 0 && out[at - 1] > e; at--)
            out[at] = out[at - 1];
        out[at] = e;
    }
    return true;
}

static void route(const sl_moe_route_params *p, int64_t t, float *score, uint8_t *taken)
{
    float *choice = score + p->experts, *groups = choice + p->experts,
          *weights = p->weights_out + t * p->top_k;
    uint8_t *kept = taken + p->experts, *chosen = kept + p->experts;
    int32_t *out = p->experts_out + t * p->top_k, n = 0;

    memset(taken, 0, (size_t)p->experts);
    memset(chosen, 0, (size_t)p->experts);
    for (int32_t e = 0; e < p->experts; e++)
        choice[e] = p->bias ? score[e] + p->bias[e] : score[e];
    if (p->groups > 1)
        drop_groups(p, choice, taken, groups, kept);
    for (int32_t i = 0; i < p->top_k; i++) {
        int32_t e = largest(choice, taken, p->experts);

        taken[e] = chosen[e] = 1;
    }
    for (int32_t e = 0; e < p->experts; e++)
        if (chosen[e])
            out[n++] = e;
    weigh(p, score, out, weights);
}

static uint32_t token(const void *arg, int64_t t, void *own)
{
    const sl_moe_route_params *p = arg;
    int32_t *out = p->experts_out + t * p->top_k;
    float *score = own;

    make_scores(p, p->logits + t * p->experts, score);
    if (!p->vocab)
        route(p, t, score, (uint8_t *)(score + 3 * (int64_t)p->experts));
    else if (look_up(p, t, out))
        weigh(p, score, out, p->weights_out + t * p->top_k);
    else
        return SL_DEVERR_ID;
    return 0;
}

static sl_status run_moe_route(sl_backend *be, const void *params, sl_err *err)
{
    const sl_moe_route_params *p = params;
    return sl_cpu_run(be, "moe_route", (size_t)p->experts * 15, p->tokens,
                      (int64_t)p->experts * (p->top_k + 20), token, p, err);
}

const sl_op_impl sl_cpu_moe_route = {.run = run_moe_route};
