/* See paths.h. Each function is the whole decision; the tables say the same in words. */
#include "kernels/paths.h"

sl_gpu sl_gpu_of(int cc, int sms, size_t smem)
{
    sl_gpu g = {.cc = cc, .sms = sms, .smem = smem, .wgmma = cc == 90, .bulk = cc >= 90, .early = cc >= 90};

    /* Of the 132 of an H200, for which they were measured: 4, 6, 16 and 64. */
    g.gather_sms = sms >= 66 ? sms / 33 : 2;
    g.side_sms = sms >= 44 ? sms / 22 & ~1 : 2;
    g.exchange_sms = sms >= 33 ? sms * 4 / 33 : 4;
    g.exchange_sms_large = sms >= 33 ? sms * 16 / 33 : 4;
    return g;
}

/* ---- products ---- */

static int64_t up_to(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

int sl_linear_ranges(const sl_weight *w)
{
    enum { OUTPUTS = 256, BLOCKS = 112, MOST = 8, LEAST_GROUPS = 7 };
    const int64_t groups = sl_dtype_bytes(w->dtype, w->in) / SL_LINEAR_GROUP, tiles = up_to(w->out, OUTPUTS);
    int n = 1;

    /* Doubled as long as there are at most BLOCKS blocks, and every range keeps LEAST_GROUPS groups. For eight ranges the
     * limit is half: fewer clusters of eight run at the same time (assumed, not measured). */
    while (n < MOST && tiles * n * 2 <= (n == 4 ? BLOCKS / 2 : BLOCKS) && groups >= n * 2 * LEAST_GROUPS)
        n *= 2;
    return n;
}

/* fp8 with a scale for each block of 128 x 128. */
static bool blocks(const sl_weight *w)
{
    return w->dtype == SL_F8_E4M3 && w->scale_type == SL_SCALE_BLOCKS;
}

/* The own kernels: fp8 by fp8, or bf16 by bf16, with whole groups of 128 bytes. */
static bool streams(const sl_gpu *g, const sl_linear_params *p)
{
    const int64_t bytes = sl_dtype_bytes(p->w.dtype, p->w.in);
    const bool f8 = blocks(&p->w) && p->fp8_acts && !p->w.acts_as_given,
               bf16 = p->w.dtype == SL_BF16 && p->ld_x % 8 == 0;

    if (!g->wgmma || p->act != SL_BF16 || (!f8 && !bf16) || bytes % SL_LINEAR_GROUP || bytes == 0)
        return false;
    return !f8 || up_to(bytes / SL_LINEAR_GROUP, sl_linear_ranges(&p->w)) <= SL_LINEAR_SCALES;
}

static bool library_takes(const sl_linear_params *p)
{
    return p->w.dtype == p->act && (p->act == SL_BF16 || p->out_dtype == SL_F32) && p->w.in % 8 == 0 &&
           p->ld_x % 8 == 0 && p->w.out % 8 == 0 && p->ld_out % 8 == 0;
}

static bool library_scales(const sl_gpu *g, const sl_linear_params *p)
{
    return g->wgmma && p->fp8_acts && blocks(&p->w) && !p->w.acts_as_given && p->w.in % 512 == 0 &&
           p->w.out % 8 == 0 && p->out_dtype == SL_BF16 && p->ld_out % 8 == 0;
}

static const sl_path linear_paths[] = {
    [SL_LINEAR_FEW] =
        {"stream", false, 0,
         "bf16 activations; bf16 weights, or fp8 weights with fp8 activations; inputs in whole groups of 128 "
         "bytes; up to 256 tokens"},
    [SL_LINEAR_MANY] = {"many", false, 0, "the same weights, more tokens"},
    [SL_LINEAR_ONE_CHAIN] =
        {"library, one chain", false, 0,
         "the same weights where the inputs are not cut into ranges, more than 256 tokens"},
    [SL_LINEAR_LIBRARY] = {"library", false, 1,
                           "weights and activations of one type, bf16 or f32; dimensions in multiples of 8"},
    [SL_LINEAR_SCALED] =
        {"library, block scales", false, 2,
         "fp8 weights and fp8 activations with more than 64 groups in a range, or f32 activations; inputs "
         "in multiples of 512"},
    [SL_LINEAR_NARROW] =
        {"narrow", false, 4,
         "f32 weights and bf16 activations, at most 256 outputs, inputs in multiples of 1,024"},
    [SL_LINEAR_PLAIN] = {"plain", true, 3, "everything else"},
};

/* Its partial sums, one float for 1,024 inputs of each output, must fit in sl_linear_scratch(): at most 256 outputs. */
static bool narrow(const sl_linear_params *p)
{
    return p->w.dtype == SL_F32 && !p->w.scale && p->act == SL_BF16 && p->w.out <= SL_LINEAR_NARROW_MOST &&
           p->w.in % 1024 == 0 && p->ld_x % 4 == 0;
}

sl_linear_path sl_path_linear(const sl_gpu *g, const sl_linear_params *p)
{
    if (streams(g, p)) {
        if (p->tokens <= SL_LINEAR_FEW_TOKENS)
            return SL_LINEAR_FEW;
        if (sl_linear_ranges(&p->w) == 1 && (library_takes(p) || library_scales(g, p)))
            return SL_LINEAR_ONE_CHAIN;
        return SL_LINEAR_MANY;
    }
    if (library_scales(g, p))
        return SL_LINEAR_SCALED;
    if (narrow(p))
        return SL_LINEAR_NARROW;
    return library_takes(p) ? SL_LINEAR_LIBRARY : SL_LINEAR_PLAIN;
}

static const sl_path absorb_paths[] = {
    [SL_ABSORB_LIBRARY] =
        {"library", false, 0,
         "bf16 activations; bf16 weights, or fp8 weights with inputs in multiples of 16; dimensions in "
         "multiples of 8"},
    [SL_ABSORB_PLAIN] = {"plain", true, 1, "everything else"},
};

static sl_absorb_path absorb(sl_dtype act, const sl_weight *w, int a, int b, int c)
{
    const bool fp8 = blocks(w) && w->in % 16 == 0;

    return act == SL_BF16 && (w->dtype == SL_BF16 || fp8) && a % 8 == 0 && b % 8 == 0 && c % 8 == 0
               ? SL_ABSORB_LIBRARY
               : SL_ABSORB_PLAIN;
}

sl_absorb_path sl_path_q_absorb(const sl_q_absorb_params *p)
{
    return absorb(p->act, &p->kv_b, p->nope, p->rope, p->lora);
}

sl_absorb_path sl_path_v_up(const sl_v_up_params *p)
{
    return absorb(p->act, &p->kv_b, p->nope, p->v, p->lora);
}

static const sl_path norm_paths[] = {
    [SL_NORM_WIDE] = {"wide", false, 0, "bf16 activations and weights, dim in multiples of 8 up to 8,192"},
    [SL_NORM_PLAIN] = {"plain", true, 1, "everything else"},
};

sl_norm_path sl_path_rmsnorm(const sl_rmsnorm_params *p)
{
    return !p->groups && p->act == SL_BF16 && p->weight_dtype == SL_BF16 && p->dim % 8 == 0 &&
                   p->ld_x % 8 == 0 && p->dim <= 8192
               ? SL_NORM_WIDE
               : SL_NORM_PLAIN;
}

/* ---- experts ---- */

static const sl_path moe_paths[] = {
    [SL_MOE_FEW] =
        {"stream", false, 0,
         "fp8 weights, fp8 and bf16 activations, dimensions in multiples of 128 up to 8,192, at most 1,024 "
         "experts; fewer than 24 tokens for each expert"},
    [SL_MOE_GROUPED] = {"grouped", false, 0, "the same weights, more tokens"},
    [SL_MOE_GROUPED_BF16] =
        {"grouped, bf16", false, 1,
         "bf16 weights and activations, hidden in multiples of 64, inter in multiples of 128, at most "
         "1,024 experts"},
    [SL_MOE_HALF] =
        {"stream, 4 bits", false, 2,
         "int4 in groups of 32, 64 or a multiple of 128, MXFP4, and NVFP4 with bf16 activations; bf16 "
         "activations, quantised or not; dimensions in multiples of 256, at most 1,024 experts"},
    [SL_MOE_PLAIN] = {"plain", true, 3, "everything else"},
};

/* Whether one kernel takes both weights in 4 bits. */
static bool same_half(const sl_weight *a, const sl_weight *b)
{
    return a->dtype == b->dtype && a->scale_type == b->scale_type && a->group == b->group &&
           a->acts_as_given == b->acts_as_given;
}

/* The forms that the stream of 4 bits takes. Inputs that are to be quantised, but arrived as they are, it does not. */
static bool half(const sl_moe_params *p, bool quantised)
{
    const sl_weight *w = p->gate;
    const bool a8 = p->fp8_acts && sl_weight_takes_e4m3(w);

    if (!same_half(w, p->up) || !same_half(w, p->down) || p->hidden % 256 || p->inter % 256 ||
        (a8 && !quantised))
        return false;
    if (w->dtype == SL_I4)
        return w->group != 16 && (w->scale_type == SL_SCALE_BF16 || w->scale_type == SL_SCALE_F32);
    return w->dtype == SL_F4_E2M1 && ((w->scale_type == SL_SCALE_E8M0 && w->group == 32) ||
                                      (w->scale_type == SL_SCALE_E4M3 && w->group == 16 && !a8));
}

/* All experts have the types of the first: sl_op_check() requires it. */
sl_moe_path sl_path_moe(const sl_gpu *g, const sl_moe_params *p, int64_t rows, bool quantised)
{
    const sl_dtype type = p->experts > 0 && p->gate ? p->gate->dtype : SL_F32;
    const int32_t most = SL_LINEAR_GROUP * SL_LINEAR_SCALES;

    if (!g->wgmma || p->act != SL_BF16 || p->experts < 1 || p->experts > SL_MOE_MOST_EXPERTS || !p->gate ||
        p->up->dtype != type || p->down->dtype != type)
        return SL_MOE_PLAIN;
    if (type == SL_BF16 && p->hidden % 64 == 0 && p->inter % SL_LINEAR_GROUP == 0)
        return SL_MOE_GROUPED_BF16;
    if (half(p, quantised))
        return SL_MOE_HALF;
    if (type == SL_F8_E4M3 && p->gate->scale_type == SL_SCALE_BLOCKS &&
        p->up->scale_type == SL_SCALE_BLOCKS && p->down->scale_type == SL_SCALE_BLOCKS && quantised &&
        p->hidden % SL_LINEAR_GROUP == 0 && p->inter % SL_LINEAR_GROUP == 0 && p->hidden <= most &&
        p->inter <= most)
        return rows * p->top_k >= (int64_t)SL_MOE_GROUPED_ROWS * p->experts ? SL_MOE_GROUPED : SL_MOE_FEW;
    return SL_MOE_PLAIN;
}

sl_moe_params sl_ep_experts_as_moe(const sl_ep_experts_params *e)
{
    const sl_ep_layout *l = &e->layout;

    return (sl_moe_params){.gate = e->gate,
                           .up = e->up,
                           .down = e->down,
                           .hidden = l->hidden,
                           .inter = e->inter,
                           .top_k = l->top_k,
                           .act = l->act,
                           .fp8_acts = e->fp8_acts,
                           .glu = e->glu,
                           .tokens = l->ranks * l->cap,
                           .experts = l->first[l->rank + 1] - l->first[l->rank]};
}

sl_moe_path sl_path_ep_experts(const sl_gpu *g, const sl_ep_experts_params *e)
{
    const sl_moe_params p = sl_ep_experts_as_moe(e);

    return sl_path_moe(g, &p, e->layout.cap, e->fp8_acts && e->layout.quantised);
}

static const sl_path route_paths[] = {
    [SL_ROUTE_256] = {"256 experts", false, 0,
                      "256 experts with sigmoid scores, at most 32 choices, no table"},
    [SL_ROUTE_PLAIN] = {"any", false, 0, "everything else"},
};

/* Enough experts must remain after the choice of groups, so that no excluded one (score -inf) is ever taken, where ties
 * would matter. */
sl_route_path sl_path_moe_route(const sl_moe_route_params *p)
{
    const int groups = p->groups > 1 ? p->groups : 1;

    if (p->experts != 256 || p->vocab || p->score != SL_ROUTE_SIGMOID || 32 % groups || p->top_k > 32)
        return SL_ROUTE_PLAIN;
    return p->groups <= 1 || p->top_groups * (p->experts / groups) >= p->top_k ? SL_ROUTE_256
                                                                               : SL_ROUTE_PLAIN;
}

/* ---- attention and its lists ---- */

static const sl_path attn_paths[] = {
    [SL_ATTN_TENSOR] = {"tensor cores", false, 0, "bf16 or fp8 rows of lora 512 and rope 64 or 0"},
    [SL_ATTN_PLAIN] = {"plain", true, 1, "everything else"},
};

sl_attn_path sl_path_sparse_attn(const sl_gpu *g, const sl_sparse_attn_params *p)
{
    return g->wgmma && p->lora == 512 && (p->rope == 64 || p->rope == 0) && p->format != SL_ROW_MLA_F32
               ? SL_ATTN_TENSOR
               : SL_ATTN_PLAIN;
}

static const sl_path ring_paths[] = {
    [SL_RING_TENSOR] = {"tensor cores", false, 0, "vectors of 512 values in bf16, bf16 activations"},
    [SL_RING_PLAIN] = {"plain", true, 1, "everything else up to 512 values"},
};

sl_ring_path sl_path_ring_attn(const sl_gpu *g, const sl_ring_attn_params *p)
{
    /* rows are read in pieces of 16 bytes */
    return g->wgmma && p->dim == 512 && p->act == SL_BF16 && p->entries.dtype == SL_BF16 &&
                   p->ring_stride % 16 == 0 && p->entries.page_stride % 16 == 0
               ? SL_RING_TENSOR
               : SL_RING_PLAIN;
}

static const sl_path gqa_paths[] = {
    [SL_GQA_DECODE] =
        {"decode", false, 0,
         "bf16 activations, bf16 or fp8 rows, head dimension 64, 128 or 256; a token per list or sequence"},
    [SL_GQA_PROMPT] = {"prompt", false, 0, "the same; several tokens of a sequence, all of its rows"},
    [SL_GQA_PLAIN] = {"plain", true, 1, "everything else"},
};

sl_gqa_path sl_path_gqa_attn(const sl_gpu *g, const sl_gqa_attn_params *p)
{
    if (!g->wgmma || p->act != SL_BF16 || p->format == SL_ROW_GQA_F32 ||
        (p->dim != 64 && p->dim != 128 && p->dim != 256) || p->heads / p->kv_heads > SL_GQA_MOST_GROUP)
        return SL_GQA_PLAIN;
    return p->seqs && p->tokens > p->seqs->n_seqs ? SL_GQA_PROMPT : SL_GQA_DECODE;
}

static const sl_path prompt_scores_paths[] = {
    [SL_PROMPT_SCORES_TENSOR] = {"tensor cores", false, 0, "bf16 rows, head dimension in multiples of 16"},
    [SL_PROMPT_SCORES_PLAIN] = {"plain", true, 1, "everything else"},
};

sl_prompt_scores_path sl_path_prompt_scores(const sl_gpu *g, const sl_prompt_scores_params *p)
{
    return p->format == SL_ROW_GQA_BF16 && p->dim % 16 == 0 && g->smem >= SL_PROMPT_SCORES_SMEM
               ? SL_PROMPT_SCORES_TENSOR
               : SL_PROMPT_SCORES_PLAIN;
}

static const sl_path scores_paths[] = {
    [SL_SCORES_TENSOR] = {"tensor cores", false, 0, "the official index format, dim 128, 32 or 64 heads"},
    [SL_SCORES_PLAIN] = {"plain", true, 1, "everything else, dim up to 256"},
};

sl_scores_path sl_path_index_scores(const sl_gpu *g, const sl_index_scores_params *p)
{
    return g->wgmma && p->format == SL_INDEX_OFFICIAL && p->dim == 128 &&
                   (p->heads == 32 || p->heads == 64) && p->index_page_stride % 16 == 0 &&
                   (int64_t)p->ld_scores / SL_PAGE_TOKENS * 256 < INT32_MAX
               ? SL_SCORES_TENSOR
               : SL_SCORES_PLAIN;
}

static const sl_path keys_paths[] = {
    [SL_KEYS_TILED] = {"tiles", false, 0,
                       "keys of a multiple of 32 values, in pages of a multiple of 16 bytes"},
    [SL_KEYS_PLAIN] = {"plain", true, 1, "everything else, as far as keys and queries fit in shared memory"},
};

static sl_keys_path keys_path(int32_t dim, int64_t page_stride)
{
    return dim % 32 == 0 && page_stride % 16 == 0 ? SL_KEYS_TILED : SL_KEYS_PLAIN;
}

sl_keys_path sl_path_pool_scores(const sl_pool_scores_params *p)
{
    return keys_path(p->dim, p->page_stride);
}

sl_keys_path sl_path_entry_scores(const sl_entry_scores_params *p)
{
    return keys_path(p->entries.dim, p->entries.page_stride);
}

static const sl_path query_paths[] = {
    [SL_QUERY_LANES] =
        {"lanes", false, 0,
         "the official index format, bf16 activations, dim 128, rope 64, heads in multiples of 4"},
    [SL_QUERY_PLAIN] = {"plain", true, 0, "everything else"},
};

sl_query_path sl_path_index_query(const sl_index_query_params *p)
{
    return p->format == SL_INDEX_OFFICIAL && p->act == SL_BF16 && p->dim == 128 && p->rope == 64 &&
                   p->heads % 4 == 0
               ? SL_QUERY_LANES
               : SL_QUERY_PLAIN;
}

/* ---- by op ---- */

const sl_path *sl_op_paths(sl_op op, int *n)
{
#define ROW(op, table)                                                                                       \
    case op:                                                                                                 \
        *n = (int)SL_COUNT(table);                                                                           \
        return table
    switch (op) {
        ROW(SL_OP_LINEAR, linear_paths);
        ROW(SL_OP_Q_ABSORB, absorb_paths);
        ROW(SL_OP_V_UP, absorb_paths);
        ROW(SL_OP_RMSNORM, norm_paths);
        ROW(SL_OP_MOE, moe_paths);
        ROW(SL_OP_EP_EXPERTS, moe_paths);
        ROW(SL_OP_MOE_ROUTE, route_paths);
        ROW(SL_OP_SPARSE_ATTN, attn_paths);
        ROW(SL_OP_RING_ATTN, ring_paths);
        ROW(SL_OP_GQA_ATTN, gqa_paths);
        ROW(SL_OP_PROMPT_SCORES, prompt_scores_paths);
        ROW(SL_OP_INDEX_SCORES, scores_paths);
        ROW(SL_OP_POOL_SCORES, keys_paths);
        ROW(SL_OP_ENTRY_SCORES, keys_paths);
        ROW(SL_OP_INDEX_QUERY, query_paths);
    default:
        *n = 0;
        return NULL;
    }
#undef ROW
}

const sl_path *sl_op_path(const sl_gpu *g, sl_op op, const void *params)
{
    const sl_moe_params *moe = params;

    switch (op) {
    case SL_OP_LINEAR:
        return &linear_paths[sl_path_linear(g, params)];
    case SL_OP_Q_ABSORB:
        return &absorb_paths[sl_path_q_absorb(params)];
    case SL_OP_V_UP:
        return &absorb_paths[sl_path_v_up(params)];
    case SL_OP_RMSNORM:
        return &norm_paths[sl_path_rmsnorm(params)];
    case SL_OP_MOE:
        return &moe_paths[sl_path_moe(g, moe, moe->tokens, moe->fp8_acts)];
    case SL_OP_EP_EXPERTS:
        return &moe_paths[sl_path_ep_experts(g, params)];
    case SL_OP_MOE_ROUTE:
        return &route_paths[sl_path_moe_route(params)];
    case SL_OP_SPARSE_ATTN:
        return &attn_paths[sl_path_sparse_attn(g, params)];
    case SL_OP_RING_ATTN:
        return &ring_paths[sl_path_ring_attn(g, params)];
    case SL_OP_GQA_ATTN:
        return &gqa_paths[sl_path_gqa_attn(g, params)];
    case SL_OP_PROMPT_SCORES:
        return &prompt_scores_paths[sl_path_prompt_scores(g, params)];
    case SL_OP_INDEX_SCORES:
        return &scores_paths[sl_path_index_scores(g, params)];
    case SL_OP_POOL_SCORES:
        return &keys_paths[sl_path_pool_scores(params)];
    case SL_OP_ENTRY_SCORES:
        return &keys_paths[sl_path_entry_scores(params)];
    case SL_OP_INDEX_QUERY:
        return &query_paths[sl_path_index_query(params)];
    default:
        return NULL;
    }
}
