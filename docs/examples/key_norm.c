/*
 * A plug-in that reads keys: `key_norm` takes the newest token and, for every KV head by itself, the tokens whose keys have the
 * smallest L2 norm (arXiv 2406.11430). It shows what dilated.c does not: one list for each KV head, and how an algorithm finds the key of a
 * token. docs/sparse-algorithms.md goes through both.
 *
 *   cc -shared -fPIC -O2 -I SLUICE -o key_norm.so key_norm.c
 *   sluice eval --model DIR --set sparse_attention.plugin=./key_norm.so --algorithms key_norm --budgets 64,256
 *
 * Norms are computed anew for every query, which is slow and simple. An algorithm that keeps them declares a plane (planes, update,
 * construct), as sparse/algorithms/double_sparsity.c does.
 */
#include <math.h>
#include <stdlib.h>

#include "base/options.h"
#include "kernels/gqa.h"
#include "sparse/plugin.h"

typedef struct norm_options {
    int token_budget;
} norm_options;

static const sl_option rows[] = {
    SL_OPTION(norm_options, token_budget, SL_OPTION_INT, SL_OPTION_PAGES | SL_OPTION_CONTEXT, "1024", 1,
              1 << 24, "Tokens that a query reads at most."),
};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "key_norm",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = rows,
                                 .n = sizeof rows / sizeof *rows,
                                 .bytes = sizeof(norm_options)};

extern const sl_algo_desc key_norm;

typedef struct ranked {
    float norm;
    int32_t pos;
} ranked;

typedef struct instance {
    sl_algo base; /* first */
    int32_t budget;
    ranked *order; /* [max_context] */
    float *key;    /* [head_dim] */
} instance;

static int32_t budget_of(const sl_cache_dims *d)
{
    norm_options o;
    sl_algo_options(&table, d, &o);
    return o.token_budget;
}

/* Lists of single tokens, one for each KV head. key: what units are scored by. */
static sl_selector selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = 1,
                         .block_tokens = 1,
                         .key = SL_KEY_STORED,
                         .score = SL_SCORE_RAW,
                         .scope = SL_SCOPE_KV_HEAD};
}

static int32_t width(const sl_algo_dims *d, int32_t dense_below)
{
    const int32_t budget = budget_of(&d->cache), most = budget > dense_below ? budget : dense_below;
    return most < d->max_context ? most : d->max_context;
}

static uint64_t device_bytes(const sl_algo_dims *d)
{
    (void)d;
    return 0;
}

static void destroy(sl_algo *a)
{
    instance *s = (instance *)a;
    if (!s)
        return;
    free(s->order);
    free(s->key);
    free(s);
}

static sl_status create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    instance *s = calloc(1, sizeof *s);
    (void)be;
    if (s) {
        *s = (instance){.base.desc = &key_norm, .budget = budget_of(&d->cache)};
        s->order = malloc((size_t)d->max_context * sizeof *s->order);
        s->key = malloc((size_t)d->cache.head_dim * sizeof *s->key);
    }
    if (!s || !s->order || !s->key) {
        destroy(s ? &s->base : NULL);
        return sl_fail(err, SL_ERR_NO_MEMORY, "key_norm: out of memory");
    }
    *out = &s->base;
    return SL_OK;
}

/*
 * The key of a KV head at a position of the sequence of step token t. All rows are in the host pages. With a scope of KV heads and
 * blocks of one token, a page has 64 positions, and each has a row for every KV head: slot 0 of this row has its key and value.
 */
static float norm_at(const sl_algo_call *call, int32_t t, int32_t head, int32_t pos, float *key)
{
    const sl_seq_tables *seqs = call->attn->seqs;
    const int32_t page = seqs->host_pages[(int64_t)seqs->token_seq[t] * seqs->ld + pos / SL_PAGE_TOKENS],
                  dim = call->attn->gqa.attn.dim;
    const uint8_t *row = call->host_rows.base + page * call->host_rows.page_stride +
                         pos % SL_PAGE_TOKENS * call->host_rows.row_stride + head * call->rows.row_bytes;
    double sum = 0;
    sl_gqa_key_decode(call->attn->gqa.attn.format, 1, dim, row, 0, key);
    for (int32_t i = 0; i < dim; i++)
        sum += (double)key[i] * (double)key[i];
    return (float)sqrt(sum);
}

static int by_norm(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->norm != y->norm ? (x->norm > y->norm) - (x->norm < y->norm)
                              : (x->pos > y->pos) - (x->pos < y->pos);
}

static int by_pos(const void *a, const void *b)
{
    return ((const ranked *)a)->pos - ((const ranked *)b)->pos;
}

static sl_status retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count, int32_t *ids,
                          sl_err *err)
{
    instance *s = (instance *)a;
    (void)err;
    for (int32_t i = 0; i < count * call->lists; i++, ids += call->k) {
        const int32_t t = first + i / call->lists, head = i % call->lists,
                      n = call->attn->seqs->token_pos[t] + 1;
        const int32_t most = n <= call->dense_below || n < s->budget ? n : s->budget,
                      k = most < call->k ? most : call->k;
        for (int32_t pos = 0; pos < n && call->attn->seqs->token_seq[t] >= 0; pos++)
            s->order[pos] = (ranked){pos == n - 1 ? -1 : norm_at(call, t, head, pos, s->key), pos};
        qsort(s->order, (size_t)n, sizeof *s->order, by_norm);
        qsort(s->order, (size_t)k, sizeof *s->order, by_pos); /* lists ascend */
        for (int32_t j = 0; j < call->k; j++)
            ids[j] = j < k && call->attn->seqs->token_seq[t] >= 0 ? s->order[j].pos : -1;
    }
    return SL_OK;
}

const sl_algo_desc key_norm = {
    .name = "key_norm",
    .description = "the newest token, and those whose keys have the smallest norms",
    .action = SL_ACTION_VISIBILITY,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .needs_kv_heads = true,
    .host_only = true,
    .keeps_lists = true,
    .constant_k = true,
    .reads_rows = true, /* rows of the step's tokens are there when lists are made */
    .budget_key = "token_budget",
    .options = &table,
    .selector = selector,
    .width = width,
    .device_bytes = device_bytes,
    .create = create,
    .destroy = destroy,
    .retrieve = retrieve};

static const sl_algo_desc *const algorithms[] = {&key_norm, NULL};
SL_PLUGIN(algorithms);
