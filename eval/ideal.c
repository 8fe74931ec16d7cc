/* See ideal.h. Keys of a step's sequence are decoded once, with the positions side by side, so that products are fast. */
#include "eval/ideal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/keys.h"
#include "sparse/algorithms/by_scores.h"
#include "sparse/algorithms/rows.h"

typedef struct ideal_options {
    int token_budget;
} ideal_options;

static const sl_option rows[] = {SL_ROW_TOKEN_BUDGET(ideal_options, "Tokens that a query reads.")};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "ideal",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = rows,
                                 .n = SL_COUNT(rows),
                                 .bytes = sizeof(ideal_options)};

typedef struct ideal {
    sl_algo base;
    sl_algo_dims dims;
    float *keys;            /* [kv_heads][dim][max_context] of one sequence; NULL until the first step */
    float *scores, *sorted; /* [max_context] */
    double *sums;           /* [max_context] */
} ideal;

static int32_t budget_of(const sl_cache_dims *d)
{
    ideal_options o;
    sl_algo_options(&table, d, &o);
    return o.token_budget;
}

static sl_selector ideal_selector(const sl_cache_dims *d)
{
    return (sl_selector){.unit_tokens = 1,
                         .block_tokens = 1,
                         .key = SL_KEY_STORED,
                         .score = SL_SCORE_RAW,
                         .scope = d->kv_heads > 0 ? SL_SCOPE_KV_HEAD : SL_SCOPE_REQUEST};
}

static int32_t ideal_width(const sl_algo_dims *d, int32_t dense_below)
{
    return sl_budget_width(d, budget_of(&d->cache), dense_below);
}

static uint64_t ideal_device_bytes(const sl_algo_dims *d)
{
    (void)d;
    return 0; /* its memory is the host's, which no plan counts */
}

static void ideal_destroy(sl_algo *a)
{
    ideal *s = (ideal *)a;
    if (!s)
        return;
    free(s->keys);
    free(s->scores);
    free(s->sorted);
    free(s->sums);
    free(s);
}

static sl_status ideal_create(const sl_algo_desc *desc, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    const size_t n = (size_t)d->max_context;
    ideal *s = calloc(1, sizeof *s);
    if (s) {
        *s = (ideal){.base.desc = desc, .dims = *d};
        s->scores = malloc(n * sizeof *s->scores);
        s->sorted = malloc(n * sizeof *s->sorted);
        s->sums = malloc(n * sizeof *s->sums);
    }
    if (!s || !s->scores || !s->sorted || !s->sums) {
        ideal_destroy(s ? &s->base : NULL);
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory for scores of %zu tokens", desc->name, n);
    }
    *out = &s->base;
    return SL_OK;
}

static sl_status create_exact(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    (void)be;
    return ideal_create(&sl_eval_exact_topk, d, out, err);
}

static sl_status create_random(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    (void)be;
    return ideal_create(&sl_eval_random, d, out, err);
}

/* ---- scores ---- */

static sl_status load_keys(ideal *s, const sl_eval_keys *k, int32_t token, int32_t n, sl_err *err)
{
    const int32_t ld = s->dims.max_context;
    float key[SL_EVAL_KEY_DIM];
    if (!s->keys)
        s->keys = malloc((size_t)k->kv_heads * (size_t)k->dim * (size_t)ld * sizeof *s->keys);
    if (!s->keys || k->dim > SL_EVAL_KEY_DIM)
        return sl_fail(err, SL_ERR_NO_MEMORY, "exact_topk: no room for keys of %d channels of %d tokens",
                       k->dim, ld);
    for (int32_t g = 0; g < k->kv_heads; g++)
        for (int32_t pos = 0; pos < n; pos++) {
            sl_eval_keys_load(k, token, g, pos, key);
            for (int32_t i = 0; i < k->dim; i++)
                s->keys[((int64_t)g * k->dim + i) * ld + pos] = key[i];
        }
    return SL_OK;
}

static void add_scaled(float *restrict to, const float *restrict from, float by, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        to[i] += by * from[i];
}

/* Adds the probabilities of one query head to the sums. */
static void add_head(ideal *s, const sl_eval_keys *k, int32_t token, int32_t kv_head, int32_t head, int32_t n)
{
    const int32_t ld = s->dims.max_context;
    const float *q = k->q + (((int64_t)token * k->kv_heads + kv_head) * k->heads + head) * k->dim;
    float most = -INFINITY;
    double all = 0;
    memset(s->scores, 0, (size_t)n * sizeof *s->scores);
    for (int32_t i = 0; i < k->dim; i++)
        add_scaled(s->scores, s->keys + ((int64_t)kv_head * k->dim + i) * ld, q[i] * k->scale, n);
    for (int32_t j = 0; j < n; j++)
        most = fmaxf(most, s->scores[j]);
    for (int32_t j = 0; j < n; j++)
        all += (double)(s->scores[j] = expf(s->scores[j] - most));
    for (int32_t j = 0; j < n; j++)
        s->sums[j] += (double)s->scores[j] / all;
}

/* list: of this token; all heads share the only one. */
static void score_exact(ideal *s, const sl_eval_keys *k, int32_t token, int32_t list, int32_t lists,
                        int32_t n)
{
    memset(s->sums, 0, (size_t)n * sizeof *s->sums);
    for (int32_t g = 0; g < k->kv_heads; g++)
        for (int32_t h = 0; (lists == 1 || g == list) && h < k->heads; h++)
            add_head(s, k, token, g, h, n);
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* A function of layer, list and positions alone, so that chunks and batches change nothing. */
static void score_random(ideal *s, int32_t layer, int32_t list, int32_t n)
{
    const uint64_t seed =
        mix(((uint64_t)layer << 44 | (uint64_t)list << 32 | (uint32_t)n) + 0x9e3779b97f4a7c15ull);
    for (int32_t j = 0; j < n; j++)
        s->sums[j] = (double)(mix(seed + 0x9e3779b97f4a7c15ull * (uint64_t)(j + 1)) >> 40);
}

/* ---- the best ---- */

/* The k-th largest of n values, which are rearranged. */
static float kth_largest(float *v, int32_t n, int32_t k)
{
    int32_t low = 0, high = n - 1;
    while (low < high) {
        const float pivot = v[low + (high - low) / 2];
        int32_t i = low, j = high;
        while (i <= j) {
            while (v[i] > pivot)
                i++;
            while (v[j] < pivot)
                j--;
            if (i <= j) {
                const float t = v[i];
                v[i++] = v[j], v[j--] = t;
            }
        }
        if (k - 1 <= j)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            break;
    }
    return v[k - 1];
}

/* Ascending ids of the k best of n sums; of equal ones the first. */
static void take_best(ideal *s, int32_t n, int32_t k, int32_t *ids)
{
    for (int32_t j = 0; j < n; j++)
        s->sorted[j] = s->scores[j] = (float)s->sums[j];
    const float least = k < n ? kth_largest(s->sorted, n, k) : -INFINITY;
    int32_t more = 0, got = 0;
    for (int32_t j = 0; j < n; j++)
        more += s->scores[j] > least;
    for (int32_t j = 0, equal = k - more; j < n && got < k; j++)
        if (s->scores[j] > least || (s->scores[j] == least && equal-- > 0))
            ids[got++] = j;
}

static void select_one(ideal *s, const sl_algo_call *call, const sl_eval_keys *k, int32_t token, int32_t list,
                       int32_t *ids)
{
    const int32_t n = call->attn->seqs->token_pos[token] + 1, budget = budget_of(&s->dims.cache);
    const int32_t all = n <= call->dense_below ? n : budget, most = all < call->k ? all : call->k;
    for (int32_t i = 0; i < call->k; i++)
        ids[i] = -1;
    if (s->base.desc == &sl_eval_random)
        score_random(s, call->attn->layer, list, n);
    else
        score_exact(s, k, token, list, call->lists, n);
    for (int32_t j = 0; j < n; j++)
        if (j < call->sinks || j >= n - call->recent)
            s->sums[j] = INFINITY;
    take_best(s, n, most < n ? most : n, ids);
}

static sl_status ideal_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                int32_t *ids, sl_err *err)
{
    ideal *s = (ideal *)a;
    const sl_seq_tables *t = call->attn->seqs;
    const sl_eval_keys k = sl_eval_keys_of(call->attn, call->rows, call->host_rows);
    for (int32_t i = 0, seq = -1; i < count; i++) {
        const int32_t token = first + i;
        if (t->token_seq[token] < 0)
            continue;
        if (a->desc == &sl_eval_exact_topk && t->token_seq[token] != seq) {
            int32_t last = t->token_pos[token];
            seq = t->token_seq[token];
            for (int32_t j = i; j < count; j++)
                if (t->token_seq[first + j] == seq && t->token_pos[first + j] > last)
                    last = t->token_pos[first + j];
            SL_TRY(load_keys(s, &k, token, last + 1, err));
        }
        for (int32_t l = 0; l < call->lists; l++)
            select_one(s, call, &k, token, l, ids + ((int64_t)i * call->lists + l) * call->k);
    }
    return SL_OK;
}

#define IDEAL(text, words, make)                                                                             \
    {                                                                                                        \
        .name = text, .description = words, .action = SL_ACTION_VISIBILITY, .budget_key = "token_budget",    \
        .options = &table, .host_only = true, .constant_k = true, .keeps_lists = true, .reads_rows = true,   \
        .prefix_reuse = true, .chunked_prefill = true, .disaggregation = true, .selector = ideal_selector,   \
        .width = ideal_width, .device_bytes = ideal_device_bytes, .create = make, .destroy = ideal_destroy,  \
        .retrieve = ideal_retrieve                                                                           \
    }

const sl_algo_desc sl_eval_exact_topk =
    IDEAL("exact_topk", "the tokens with the most attention", create_exact);
const sl_algo_desc sl_eval_random = IDEAL("random", "tokens at random", create_random);

sl_status sl_eval_ideal_select(const sl_algo_desc *algorithm, int32_t budget, sl_select_options *out,
                               sl_err *err)
{
    char text[48];
    snprintf(text, sizeof text, "token_budget=%d", budget);
    return sl_algo_select(algorithm, text, out, err);
}
