/* What selects; see oracle_methods.h. */
#include "tests/unit/sparse/oracle_methods.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/labels.h"
#include "kernels/retained.h"
#include "kernels/synth.h"
#include "kernels/window.h"
#include "tests/unit/sparse/oracle_rig.h"

enum { KV = ORACLE_KV, GROUP = ORACLE_GROUP, HEADS = ORACLE_HEADS, DIM = ORACLE_DIM, BLOCK_LOG2 = 4 };
enum { CHANNELS = 32, KERNEL = 5 };

/* ---- strategies ---- */

enum { SHARED = 16 }; /* + the reduction: one list for all KV heads */

static sl_status run_quest(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    oracle_rig r = oracle_rig_make(in, BLOCK_LOG2, err);
    const int64_t page = (SL_PAGE_TOKENS >> BLOCK_LOG2) * KV * sl_bounds_unit_bytes(DIM, SL_BF16);
    const int32_t lists = arg & SHARED ? 1 : KV, ld = sl_blocks_for(in->d->n, BLOCK_LOG2),
                  k = in->budget >> BLOCK_LOG2;
    sl_bounds_append_params a = {.seqs = &r.all,
                                 .rows = r.rows,
                                 .base = oracle_put(&r, NULL, (size_t)(r.n_pages * page)),
                                 .page_stride = page,
                                 .heads = KV,
                                 .dim = DIM,
                                 .format = SL_ROW_GQA_BF16,
                                 .dtype = SL_BF16};
    oracle_run_op(&r, SL_OP_BOUNDS_APPEND, &a);
    sl_bounds_scores_params s = {.q = oracle_put(&r, in->d->q, sizeof(float) * HEADS * DIM),
                                 .seqs = &r.last,
                                 .base = a.base,
                                 .page_stride = page,
                                 .scores = oracle_put(&r, NULL, sizeof(float) * (size_t)(lists * ld)),
                                 .token_count = 1,
                                 .heads = HEADS,
                                 .kv_heads = KV,
                                 .dim = DIM,
                                 .lists = lists,
                                 .block_log2 = BLOCK_LOG2,
                                 .ld_scores = ld,
                                 .reduce = (sl_group_reduce)(arg % SHARED),
                                 .scale = 1 / sqrtf(DIM),
                                 .dtype = SL_BF16};
    oracle_run_op(&r, SL_OP_BOUNDS_SCORES, &s);
    sl_topk_params t = {.scores = s.scores,
                        .seqs = &r.last,
                        .ids = oracle_put(&r, NULL, sizeof(int32_t) * (size_t)(lists * k)),
                        .token_count = 1,
                        .k = k,
                        .ld_scores = ld,
                        .ld_ids = k,
                        .sinks = 1,
                        .recent = 1,
                        .lists = lists,
                        .block_log2 = BLOCK_LOG2};
    oracle_run_op(&r, SL_OP_TOPK, &t);
    oracle_take(&r, t.ids, lists, k, BLOCK_LOG2, out);
    return oracle_done(&r);
}

typedef struct channel {
    double value;
    int32_t of;
} channel;

static int by_value(const void *a, const void *b)
{
    double x = ((const channel *)a)->value, y = ((const channel *)b)->value;
    return (x < y) - (x > y);
}

/* The channels of each KV head with the largest mean of |q * k|, a token with itself. */
static void calibrate(const oracle_data *d, int32_t *out)
{
    for (int32_t v = 0; v < KV; v++) {
        channel c[DIM] = {0};

        for (int32_t i = 0; i < DIM; i++)
            c[i].of = i;
        for (int32_t s = 0; s < ORACLE_SAMPLES; s++)
            for (int32_t g = 0; g < GROUP; g++)
                for (int32_t i = 0; i < DIM; i++) {
                    const float q = d->sample[((int64_t)s * HEADS + v * GROUP + g) * DIM + i];
                    c[i].value += fabs((double)(q * d->k[((int64_t)d->sample_pos[s] * KV + v) * DIM + i]));
                }
        qsort(c, DIM, sizeof *c, by_value);
        for (int32_t i = 0; i < CHANNELS; i++)
            out[v * CHANNELS + i] = c[i].of;
    }
}

static sl_status run_labels(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    oracle_rig r = oracle_rig_make(in, 0, err);
    const int64_t page = KV * sl_labels_unit_bytes(CHANNELS, SL_BF16);
    const int32_t n = in->d->n;
    int32_t channels[KV * CHANNELS];

    calibrate(in->d, channels);
    sl_labels_append_params a = {.seqs = &r.all,
                                 .rows = r.rows,
                                 .base = oracle_put(&r, NULL, (size_t)(r.n_pages * page)),
                                 .page_stride = page,
                                 .channels = oracle_put(&r, channels, sizeof channels),
                                 .heads = KV,
                                 .dim = DIM,
                                 .count = CHANNELS,
                                 .format = SL_ROW_GQA_BF16,
                                 .dtype = SL_BF16};
    oracle_run_op(&r, SL_OP_LABELS_APPEND, &a);
    sl_labels_scores_params s = {.q = oracle_put(&r, in->d->q, sizeof(float) * HEADS * DIM),
                                 .seqs = &r.last,
                                 .base = a.base,
                                 .page_stride = page,
                                 .channels = a.channels,
                                 .scores = oracle_put(&r, NULL, sizeof(float) * (size_t)(KV * n)),
                                 .token_count = 1,
                                 .heads = HEADS,
                                 .kv_heads = KV,
                                 .dim = DIM,
                                 .count = CHANNELS,
                                 .lists = KV,
                                 .ld_scores = n,
                                 .reduce = (sl_group_reduce)arg,
                                 .scale = 1 / sqrtf(DIM),
                                 .dtype = SL_BF16};
    oracle_run_op(&r, SL_OP_LABELS_SCORES, &s);
    sl_topk_params t = {.scores = s.scores,
                        .seqs = &r.last,
                        .ids = oracle_put(&r, NULL, sizeof(int32_t) * (size_t)(KV * in->budget)),
                        .token_count = 1,
                        .k = in->budget,
                        .ld_scores = n,
                        .ld_ids = in->budget,
                        .lists = KV};
    oracle_run_op(&r, SL_OP_TOPK, &t);
    oracle_take(&r, t.ids, KV, in->budget, 0, out);
    return oracle_done(&r);
}

static sl_status run_window(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    oracle_rig r = oracle_rig_make(in, 0, err);
    const int32_t prompt = in->d->n - 1, kept = in->budget - ORACLE_WINDOW - 1, prompts[2] = {prompt, kept};
    sl_kept_lists_params l = {.seqs = &r.last,
                              .prompts = oracle_put(&r, prompts, sizeof prompts),
                              .kept = oracle_vote(&r, prompt, KERNEL, (sl_pooling)arg, kept),
                              .ids = oracle_put(&r, NULL, sizeof(int32_t) * (size_t)(KV * in->budget)),
                              .token_count = 1,
                              .lists = KV,
                              .ld_kept = kept,
                              .ld_ids = in->budget,
                              .window = ORACLE_WINDOW};
    oracle_run_op(&r, SL_OP_KEPT_LISTS, &l);
    oracle_take(&r, l.ids, KV, in->budget, 0, out);
    return oracle_done(&r);
}

/* ---- what they are compared with ---- */

static void take_best(const double *p, int32_t n, int32_t budget, uint8_t *out)
{
    channel *c = malloc(sizeof *c * (size_t)n);

    SL_CHECK(c, "out of memory");
    for (int32_t t = 0; t < n; t++)
        c[t] = (channel){p[t], t};
    qsort(c, (size_t)n, sizeof *c, by_value);
    for (int32_t i = 0; i < budget; i++)
        out[c[i].of] = 1;
    free(c);
}

static sl_status run_best(const oracle_input *in, int32_t per_kv, uint8_t *out, sl_err *err)
{
    const int32_t n = in->d->n;
    double *sum = calloc((size_t)n, sizeof *sum);
    (void)err;

    SL_CHECK(sum, "out of memory");
    for (int32_t h = 0; h < HEADS; h++) {
        if (!per_kv) {
            take_best(in->p + (int64_t)h * n, n, in->budget, out + (int64_t)h * n);
            continue;
        }
        for (int32_t t = 0; t < n; t++)
            sum[t] = (h % GROUP ? sum[t] : 0) + in->p[(int64_t)h * n + t];
        for (int32_t g = 0; h % GROUP == GROUP - 1 && g < GROUP; g++)
            take_best(sum, n, in->budget, out + (int64_t)(h - g) * n);
    }
    free(sum);
    return SL_OK;
}

static sl_status run_streaming(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    const int32_t n = in->d->n;
    (void)arg;
    (void)err;

    for (int32_t h = 0; h < HEADS; h++)
        for (int32_t t = 0; t < n; t++)
            out[(int64_t)h * n + t] = t < ORACLE_SINKS || t >= n - in->budget + ORACLE_SINKS;
    return SL_OK;
}

static sl_status run_random(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    const int32_t n = in->d->n;
    (void)arg;
    (void)err;

    for (int32_t h = 0; h < HEADS; h++)
        for (int32_t i = 0, left = in->budget; left > 0; i++) {
            uint8_t *at =
                out + (int64_t)h * n + sl_synth_hash(in->seed, (uint64_t)h << 32 | (uint64_t)i) % (uint32_t)n;
            left -= !*at;
            *at = 1;
        }
    return SL_OK;
}

const oracle_method oracle_methods[] = {
    {.name = "oracle per query head", .run = run_best},
    {.name = "oracle per KV head", .run = run_best, .arg = true},
    {.name = "streaming_llm", .run = run_streaming},
    {.name = "random", .run = run_random},
#define QUEST .run = run_quest, .ops = true, .newest = true
    {.name = "quest max", QUEST, .arg = SL_GROUP_MAX, .exact = true, .mass = 0.9, .needles = 0.9},
    {.name = "quest mean", QUEST, .arg = SL_GROUP_MEAN, .exact = true, .mass = 0.9, .needles = 0.9},
    {.name = "quest softmax", QUEST, .arg = SL_GROUP_SOFTMAX, .mass = 0.9, .needles = 0.9},
    {.name = "quest union", QUEST, .arg = SL_GROUP_UNION, .exact = true, .mass = 0.9, .needles = 0.9},
    {.name = "quest mean, shared list", QUEST, .arg = SL_GROUP_MEAN + SHARED, .exact = true, .needles = 0.8},
#define LABELS .run = run_labels, .ops = true, .mass = 0.9, .needles = 0.9
    {.name = "double_sparsity max", LABELS, .arg = SL_GROUP_MAX, .exact = true},
    {.name = "double_sparsity softmax", LABELS, .arg = SL_GROUP_SOFTMAX},
    {.name = "double_sparsity union", LABELS, .arg = SL_GROUP_UNION, .exact = true},
#define WINDOW .run = run_window, .ops = true, .window = true, .needles = 0.9
    {.name = "snapkv avgpool 5", WINDOW, .arg = SL_POOLING_AVG},
    {.name = "snapkv maxpool 5", WINDOW, .arg = SL_POOLING_MAX},
/*
 * Floors of these three, about 0.9 of what they have in the short run and with six seeds (--full), whichever is less. As a
 * share of the oracle per KV head, the mass with six seeds is 0.90, 0.80 and 0.80; of the 256 heaviest tokens 0.35, 0.55 and
 * 0.45, in the short run 0.25 for rocket_kv, whose list has half as many; of the needles 1.00, 0.44 and 0.40. cluster_kv's
 * needles lie in clusters with 80 other tokens, and in the short run 0.12 are found, hardly more than by chance; so none are
 * required.
 *
 * The description with which the strategies' definitions came has 0.76 and 0.65 of the needles for the last two,
 * with a generator of the same structure whose strengths it does not say. oracle_restated.py restates this generator
 * and both definitions in float64 with numpy: 0.46 and 0.38 with six seeds, so the code does what the definitions
 * say. What the definitions leave open does not explain the difference either (three seeds, 0.38 and 0.29 as they
 * are): lists for every query head 0.36 and 0.30, random first centroids 0.50 and 0.25, clusters of 40 tokens 0.42,
 * a quarter of the list for the newest tokens 0.33. Stronger needles do: 24 instead of 16 gives 0.62 and 0.42, and
 * 32 gives 0.75 and 0.62. So the generators differ, and these are its floors.
 */
#define ROCKET .run = oracle_run_rocket, .ops = true, .window = true, .mass = 0.8, .top = 0.2, .needles = 0.9
    {.name = "rocket_kv e5m2", ROCKET, .arg = SL_KT_E5M2},
    {.name = "rocket_kv bf16", ROCKET, .arg = SL_KT_BF16},
#define CLUSTERS                                                                                             \
    .run = oracle_run_clusters, .ops = true, .newest = true, .exact = true, .mass = 0.72, .top = 0.4
    {.name = "cluster_kv max", CLUSTERS, .arg = SL_GROUP_MAX},
    {.name = "cluster_kv union", CLUSTERS, .arg = SL_GROUP_UNION},
#define CODES .run = oracle_run_codes, .ops = true, .newest = true, .mass = 0.72, .top = 0.35, .needles = 0.35
    {.name = "pq_cache 2x6", CODES},
    {0},
};
