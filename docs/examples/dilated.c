/*
 * A plug-in with a strategy of its own: `dilated` reads the newest tokens, and of everything before them as many as the budget leaves, at
 * equal distances. docs/sparse-algorithms.md goes through it.
 *
 *   cc -shared -fPIC -O2 -I SLUICE -o dilated.so dilated.c
 *
 *   sparse_attention: {plugin: ./dilated.so, algorithm: dilated, token_budget: 256, near_percent: 50}
 *
 * It has no metadata, so a list follows from the position alone; it writes lists with the CPU, so it runs where device memory is
 * host memory (host_only). An algorithm for GPUs writes scores with the ops of kernels/ops.h and selects with SL_OP_TOPK instead:
 * sampled.c is one, and sparse/algorithms/quest.c one with metadata.
 */
#include <stdlib.h>

#include "base/options.h"
#include "sparse/plugin.h"

typedef struct dilated_options {
    int token_budget, near_percent;
} dilated_options;

/* Keys of sparse_attention. What lists depend on changes the rows of deeper layers: SL_OPTION_PAGES. */
static const sl_option rows[] = {
    SL_OPTION(dilated_options, token_budget, SL_OPTION_INT, SL_OPTION_PAGES | SL_OPTION_CONTEXT, "1024", 1,
              1 << 24, "Tokens that a query reads at most."),
    SL_OPTION(dilated_options, near_percent, SL_OPTION_INT, SL_OPTION_PAGES, "50", 1, 100,
              "Part of these that are the newest tokens; the others are at equal distances."),
};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "dilated",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = rows,
                                 .n = sizeof rows / sizeof *rows,
                                 .bytes = sizeof(dilated_options)};

extern const sl_algo_desc dilated;

typedef struct instance {
    sl_algo base; /* first */
    dilated_options o;
} instance;

static dilated_options options_of(const sl_cache_dims *d)
{
    dilated_options o;
    sl_algo_options(&table, d, &o);
    return o;
}

/* Lists of single tokens, which all heads share. */
static sl_selector selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = 1, .block_tokens = 1, .scope = SL_SCOPE_REQUEST};
}

static int32_t width(const sl_algo_dims *d, int32_t dense_below)
{
    const int32_t budget = options_of(&d->cache).token_budget,
                  most = budget > dense_below ? budget : dense_below;
    return most < d->max_context ? most : d->max_context;
}

static sl_status check(const sl_algo_dims *d, const struct sl_gates *gates, sl_err *err)
{
    (void)d;
    return !gates->sink_tokens && !gates->recent_tokens
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID,
                         "dilated: sink_tokens and recent_tokens are not read; set near_percent");
}

static uint64_t device_bytes(const sl_algo_dims *d)
{
    (void)d;
    return 0;
}

static sl_status create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    instance *s = calloc(1, sizeof *s);
    (void)be;
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "dilated: out of memory");
    *s = (instance){.base.desc = &dilated, .o = options_of(&d->cache)};
    *out = &s->base;
    return SL_OK;
}

static void destroy(sl_algo *a)
{
    free(a);
}

/* The k ids of a query that can see n tokens, ascending. */
static void fill(const dilated_options *o, int32_t n, int32_t k, int32_t *ids)
{
    int32_t near = (int32_t)((int64_t)k * o->near_percent / 100);
    near = k == n ? n : near < 1 ? 1 : near;
    for (int32_t i = 0; i < k - near; i++)
        ids[i] = (int32_t)((int64_t)i * (n - near) / (k - near));
    for (int32_t i = 0; i < near; i++)
        ids[k - near + i] = n - near + i;
}

static sl_status retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count, int32_t *ids,
                          sl_err *err)
{
    const dilated_options *o = &((const instance *)a)->o;
    (void)err;
    for (int32_t i = 0; i < count; i++, ids += call->k) {
        const int32_t n = call->attn->seqs->token_pos[first + i] + 1; /* tokens that the query sees */
        const int32_t most = n <= call->dense_below || n < o->token_budget ? n : o->token_budget,
                      k = most < call->k ? most : call->k;
        fill(o, n, k, ids);
        for (int32_t j = k; j < call->k; j++)
            ids[j] = -1;
    }
    return SL_OK;
}

const sl_algo_desc dilated = {.name = "dilated",
                              .description = "the newest tokens, and others at equal distances",
                              .action = SL_ACTION_VISIBILITY,
                              .prefix_reuse = true,
                              .chunked_prefill = true,
                              .disaggregation = true,
                              .host_only = true,
                              .keeps_lists = true,
                              .constant_k = true,
                              .budget_key = "token_budget",
                              .options = &table,
                              .selector = selector,
                              .check = check,
                              .width = width,
                              .device_bytes = device_bytes,
                              .create = create,
                              .destroy = destroy,
                              .retrieve = retrieve};

static const sl_algo_desc *const algorithms[] = {&dilated, NULL};
SL_PLUGIN(algorithms);
