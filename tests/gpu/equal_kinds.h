/*
 * Inside equal.c: the kinds of models and algorithms that it compares, each with its own division of rows, and the
 * making of the model and of its host pages; and the options of the program. Kinds of grouped-query attention differ in
 * format, scope of the lists and block size, so that every division of rows is among them.
 */
#ifndef SL_TESTS_GPU_EQUAL_KINDS_H
#define SL_TESTS_GPU_EQUAL_KINDS_H

#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "model/synthetic.h"
#include "sparse/channels.h"
#include "tests/unit/sparse/select_params.h"

enum { LAYERS = 4, CHANNELS = 8, MOST_KV_HEADS = 8, STREAMS = 7 }; /* STREAMS: the maximum */

typedef struct kind {
    const char *name, *algorithm, *preset, *tiny;
    sl_row_format row;
    sl_layout layout;
    /* of the algorithm, in tokens; with --tiny an eighth; 0: it reads the whole context, or the model says */
    int32_t budget;
    int32_t steps, context; /* without --steps and --context, and without --tiny */
    bool shared;
    bool evicts; /* what it selects changes so much that hot rows are replaced within a few steps */
} kind;

/* One line for each kind. */
/* clang-format off */
static const kind kinds[] = {
    {"dsa", "dsa", "deepseek_v32", "tiny", SL_ROW_MLA_FP8, SL_LAYOUT_PAGE_FIRST, 0, 2100, 16400, false, true},
    {"quest", "quest", "llama3_8b", "tiny_llama", SL_ROW_GQA_BF16, SL_LAYOUT_PAGE_HEAD, 512, 1000, 6000, false, true},
    {"quest int8", "quest", "llama3_8b", "tiny_llama", SL_ROW_GQA_BF16, SL_LAYOUT_PAGE_HEAD, 512, 500, 6000, false, true},
    {"quest shared", "quest", "qwen3_8b", "tiny_llama", SL_ROW_GQA_FP8, SL_LAYOUT_LAYER_FIRST, 1024, 1000, 6000, true, true},
    {"double_sparsity", "double_sparsity", "qwen3_8b", "tiny_llama", SL_ROW_GQA_BF16, SL_LAYOUT_PAGE_FIRST, 512, 1000, 4000, false, true},
    {"snapkv", "snapkv", "llama3_8b", "tiny_llama", SL_ROW_GQA_FP8, SL_LAYOUT_LAYER_FIRST, 512, 1000, 4000, false, false},
    {"rocket_kv", "rocket_kv", "qwen3_8b", "tiny_llama", SL_ROW_GQA_BF16, SL_LAYOUT_PAGE_HEAD, 512, 1000, 4000, false, true},
    {"streaming_llm", "streaming_llm", "llama3_8b", "tiny_llama", SL_ROW_GQA_BF16, SL_LAYOUT_LAYER_FIRST, 512, 1000, 4000, false, false},
    {"dense", "dense", "llama3_8b", "tiny_llama", SL_ROW_GQA_FP8, SL_LAYOUT_PAGE_FIRST, 0, 1000, 4000, false, false},
    {"skip_softmax", "skip_softmax", "qwen3_8b", "tiny_llama", SL_ROW_GQA_BF16, SL_LAYOUT_LAYER_FIRST, 0, 1000, 4000, false, false},
    {"xattention", "xattention", "llama3_8b", "tiny_llama", SL_ROW_GQA_BF16, SL_LAYOUT_PAGE_FIRST, 0, 1000, 4000, false, false},
    {"cluster_kv", "cluster_kv", "llama3_8b", "tiny_llama", SL_ROW_GQA_BF16, SL_LAYOUT_PAGE_HEAD, 512, 1000, 4000, false, false},
    {"pq_cache", "pq_cache", "qwen3_8b", "tiny_llama", SL_ROW_GQA_FP8, SL_LAYOUT_LAYER_FIRST, 512, 1000, 4000, false, false},
};
/* clang-format on */

static inline int32_t budget_of(const kind *k, bool tiny)
{
    return tiny ? k->budget / 8 : k->budget;
}

/* Fills *t with distinct channels for every head, in of: LAYERS times MOST_KV_HEADS times CHANNELS values. */
static inline void some_channels(const sl_model_config *c, sl_channels *t, int32_t *of)
{
    int32_t heads = c->n_layers * c->attn.n_kv_heads;

    if (c->attn.n_kv_heads > MOST_KV_HEADS)
        abort();
    for (int32_t i = 0; i < heads * CHANNELS; i++)
        of[i] = (i % CHANNELS * (c->attn.v_head_dim / CHANNELS) + i / CHANNELS) % c->attn.v_head_dim;
    *t = (sl_channels){.n_layers = c->n_layers,
                       .kv_heads = c->attn.n_kv_heads,
                       .head_dim = c->attn.v_head_dim,
                       .count = CHANNELS,
                       .hash = 1,
                       .of = of};
}

/* Of cluster_kv, short so that many groups are completed: generated tokens that a list holds besides the budget. */
static inline int32_t window_of(const kind *k, bool tiny)
{
    return strcmp(k->algorithm, "cluster_kv") != 0 ? 0 : tiny ? 3 : 10;
}

/* channels: some_channels(), used by double_sparsity alone; the result refers to them. */
static inline sl_select_options select_of(const kind *k, const sl_algo_desc *a, bool tiny,
                                          const sl_channels *channels)
{
    int32_t budget = budget_of(k, tiny);
    const bool int8 = strcmp(k->name, "quest int8") == 0;
    select_params p = {.token_budget = budget,
                       .shared_lists = k->shared,
                       .bounds_typed = int8,
                       .bounds = int8 ? SL_I8 : SL_F32,
                       .stamp = 1};

    if (strcmp(k->algorithm, "double_sparsity") == 0)
        p.channels = channels, p.heavy_channels = CHANNELS;
    if (strcmp(k->algorithm, "snapkv") == 0)
        p.prompt_budget = budget / 2, p.output_tokens = budget / 2, p.window = 16;
    if (strcmp(k->algorithm, "rocket_kv") == 0)
        p.prompt_budget = 2 * budget, p.window = 16, p.retained_page = 4, p.top_pages = budget / 4,
        p.top_channels = tiny ? 8 : 96;
    if (strcmp(k->algorithm, "skip_softmax") == 0)
        p.skip_factor = tiny ? 100 : 1000;
    if (strcmp(k->algorithm, "xattention") == 0)
        p.list_mass = 0.5f;
    if (strcmp(k->algorithm, "cluster_kv") == 0)
        p.cluster_tokens = tiny ? 4 : 32, p.cluster_window = window_of(k, tiny), p.window_nlist = 3,
        p.niter = 5;
    if (strcmp(k->algorithm, "pq_cache") == 0)
        p.n_subbits = tiny ? 3 : 6, p.niter = 5, p.recent_ratio = 0.25f;
    return select_options(a, &p);
}

static inline sl_gates gates_of(const kind *k, bool tiny)
{
    return strcmp(k->algorithm, "streaming_llm") == 0
               ? (sl_gates){.sink_tokens = 4, .recent_tokens = budget_of(k, tiny) - 4}
               : (sl_gates){0};
}

/* Tokens of the longest selection. */
static inline int32_t longest_of(const kind *k, const sl_model_config *c, bool tiny, int32_t context)
{
    int32_t list = budget_of(k, tiny) + window_of(k, tiny);
    return c->index.topk > 0 ? c->index.topk : k->budget > 0 ? list : context;
}

static inline sl_status kind_config(const kind *k, bool tiny, sl_model_config *c, sl_err *err)
{
    SL_TRY(sl_synthetic_config(tiny ? k->tiny : k->preset, LAYERS, c, err));
    c->vocab_size = tiny ? 64 : 1024; /* few logits suffice: the head is not under test */
    if (c->index.topk == 0)
        return SL_OK;
    c->moe.n_routed = 16, c->moe.n_group = c->moe.topk_group = 1, c->moe.per_token = 4;
    for (int32_t l = 0; l < LAYERS; l++)
        c->layer_is_moe[l] = l > 0;
    return SL_OK;
}

/* Makes what the host page of a request holds of tokens first .. 63 of one layer NaN, in whatever way rows are divided. */
static inline void poison_page(const sl_geometry *g, const sl_host_plane *rows, int32_t page, int32_t first)
{
    const sl_cache_plane *p = &g->shape.planes[SL_CACHE_ROWS];
    sl_unit_walk w;
    sl_unit_run r;

    sl_unit_walk_init(&w, p, first, SL_PAGE_TOKENS, true, false);
    while (sl_unit_walk_next(&w, &r))
        memset(rows->base + page * rows->page_stride + r.unit * rows->row_stride +
                   r.head * sl_cache_unit_bytes(p) + r.at,
               0xff, (size_t)r.bytes);
}

typedef struct options {
    const char *backend, *kind;
    bool tiny;
    int32_t steps; /* in the long variants */
    int32_t streams, context;
    const char *variant; /* only the variants whose name contains this text, with all steps */
    uint64_t seed;
} options;

static inline bool parse(int argc, char **argv, options *o)
{
    *o = (options){.backend = "cpu", .kind = "dsa", .seed = 7, .streams = STREAMS, .variant = ""};
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--tiny") == 0)
            o->tiny = true;
        else if (!v)
            return false;
        else if (strcmp(argv[i], "--backend") == 0)
            o->backend = argv[++i];
        else if (strcmp(argv[i], "--kind") == 0)
            o->kind = argv[++i];
        else if (strcmp(argv[i], "--steps") == 0)
            o->steps = (int32_t)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            o->seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--streams") == 0)
            o->streams = (int32_t)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--context") == 0)
            o->context = (int32_t)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--variant") == 0)
            o->variant = argv[++i];
        else
            return false;
    }
    return o->streams > 1 && o->streams <= STREAMS && o->steps >= 0 && o->context >= 0;
}

/* The steps and the context of a kind, where the options do not say them: fewer steps follow prompts as long, so that
 * what the last of them select does not fit the hot rows. */
static inline bool set_lengths(options *o, const kind *k)
{
    if (o->steps == 0)
        o->steps = o->tiny ? 210 : k->steps;
    if (o->context == 0)
        o->context = o->steps + (o->tiny ? 400 : k->context - k->steps);
    return o->steps > 6 && o->steps <= 100000 && o->context > o->steps + 10;
}

#endif
