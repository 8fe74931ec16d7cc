/* Sizes of scratch.h: of products, experts and attention, and what an op states. Those of selection are in scratch_select.c. */
#include "kernels/scratch.h"

#include "kernels/formats.h"

static int64_t up_to(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t up256(int64_t n)
{
    return up_to(n, 256) * 256;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ---- attention ---- */

int sl_gqa_parts(int sms, int64_t tokens, int kv_heads, int64_t list_tokens)
{
    const int64_t segments = up_to(list_tokens, SL_GQA_SEGMENT), lists = tokens * kv_heads,
                  whole = up_to(lists, sms) * segments, cut = up_to(lists * segments, sms);

    return 8 * whole > 9 * cut + 16 ? (int)segments : 1;
}

size_t sl_gqa_decode_scratch(int sms, int64_t tokens, int heads, int kv_heads, int dim, int64_t list_tokens)
{
    const int parts = sl_gqa_parts(sms, tokens, kv_heads, list_tokens);

    return parts > 1 ? (size_t)tokens * (size_t)heads * (size_t)parts * (size_t)(dim + 4) * 4 : 0;
}

size_t sl_gqa_prompt_tiles(int64_t tokens)
{
    return (size_t)up256((tokens + 2) * 4);
}

size_t sl_gqa_prompt_sums(int sms, int dim)
{
    return dim > 128 ? (size_t)sms * 2 * SL_GQA_PROMPT_ROWS * (size_t)dim * 4 : 0;
}

size_t sl_mla_scratch(int sms)
{
    return sizeof(float) * SL_MLA_HEADS * SL_MLA_LORA * (size_t)sms;
}

/* What work on the side stream leaves of the multiprocessors decides whether lists are cut, so all that it may leave count. */
static size_t gqa_attn(const sl_gpu *g, const sl_gqa_attn_params *p)
{
    const int64_t list = (int64_t)p->k << p->rows.block_log2;
    const int taken = g->exchange_sms_large > g->side_sms ? g->exchange_sms_large : g->side_sms;
    size_t most = 0;

    switch (sl_path_gqa_attn(g, p)) {
    case SL_GQA_PROMPT:
        return sl_gqa_prompt_tiles(p->tokens) + sl_gqa_prompt_sums(g->sms, p->dim);
    case SL_GQA_DECODE:
        for (int sms = g->sms; p->skip_factor <= 0 && sms > 0 && sms >= g->sms - taken; sms--)
            most = larger(most, sl_gqa_decode_scratch(sms, p->tokens, p->heads, p->kv_heads, p->dim, list));
        return most;
    default:
        return 0;
    }
}

static size_t sparse_attn(const sl_gpu *g, const sl_sparse_attn_params *p)
{
    return sl_path_sparse_attn(g, p) == SL_ATTN_TENSOR ? sl_mla_scratch(g->sms) : 0;
}

static size_t ring_attn(const sl_gpu *g, const sl_ring_attn_params *p)
{
    return sl_path_ring_attn(g, p) == SL_RING_TENSOR ? sl_mla_scratch(g->sms) : 0;
}

/* ---- products ---- */

size_t sl_linear_scratch(int64_t tokens, int64_t in, int64_t out)
{
    const int64_t padded = up_to(tokens, 4) * 4, groups = up_to(in, SL_LINEAR_GROUP);

    /* + 128: a copy reads up to 128 scales at once. */
    return (size_t)(up256(padded * in) + up256((groups * padded + 128) * 4) +
                    (padded == tokens ? 0 : padded * out * 2));
}

/* Of the layers of a chain; the library, which takes multiples of 4 tokens, may be one that a GPU does not have (lt.c). */
static size_t linear(const sl_gpu *g, const sl_linear_params *p)
{
    size_t most = 0;

    for (; p; p = p->next) {
        const sl_linear_path path = sl_path_linear(g, p);
        const bool library =
            path == SL_LINEAR_ONE_CHAIN || path == SL_LINEAR_LIBRARY || path == SL_LINEAR_SCALED;
        if (path == SL_LINEAR_NARROW && p->tokens <= SL_LINEAR_NARROW_FEW)
            most = larger(most, sl_linear_scratch(p->tokens, p->w.in, p->w.out));
        if (p->fp8_acts && sl_weight_takes_e4m3(&p->w))
            most = larger(most, sl_linear_scratch(p->tokens, p->w.in, library ? p->w.out : 0));
    }
    return most;
}

size_t sl_absorb_scratch(const sl_weight *w)
{
    return w->dtype == SL_BF16 ? 0 : (size_t)up256((int64_t)w->out * w->in * 2);
}

static size_t q_absorb(const sl_q_absorb_params *p)
{
    return sl_path_q_absorb(p) == SL_ABSORB_PLAIN ? 0 : sl_absorb_scratch(&p->kv_b);
}

static size_t v_up(const sl_v_up_params *p)
{
    return sl_path_v_up(p) == SL_ABSORB_PLAIN
               ? 0
               : sl_absorb_scratch(&p->kv_b) + (size_t)p->tokens * (size_t)p->heads * (size_t)p->lora * 2;
}

/* ---- experts ---- */

sl_moe_rows_size sl_moe_rows_size_of(int tile, int64_t tokens, int top_k, int experts, int64_t hidden,
                                     int64_t inter, int size)
{
    const int64_t pairs = tokens * top_k, least = pairs < experts ? pairs : experts;
    sl_moe_rows_size n = {.rows = pairs + 7 * least + tile,
                          .tiles = pairs < experts + pairs / tile ? pairs : experts + pairs / tile};

    n.ld = up_to(n.rows, 4) * 4;
    n.x = up256(n.rows * hidden * size), n.mid = up256(n.rows * inter * size);
    if (size == 1) { /* + tile: a copy reads the scales of a whole tile */
        n.xs = up256(n.ld * (hidden / SL_LINEAR_GROUP) * 4 + tile * 4);
        n.ms = up256(n.ld * (inter / SL_LINEAR_GROUP) * 4 + tile * 4);
    }
    n.bytes = (size_t)(n.x + n.mid + n.xs + n.ms + n.tiles * 16 + (n.rows + pairs + 1) * 4);
    return n;
}

size_t sl_moe_grouped_scratch(int64_t tokens, int top_k, int experts, int64_t hidden, int64_t inter, int size)
{
    const size_t wide = sl_moe_rows_size_of(SL_MOE_WIDE, tokens, top_k, experts, hidden, inter, size).bytes,
                 narrow =
                     sl_moe_rows_size_of(SL_MOE_NARROW, tokens, top_k, experts, hidden, inter, size).bytes;

    return larger(wide, narrow); /* the narrow tiles of tiny experts have the longer list */
}

/* p: of SL_OP_MOE, or what it would be asked for rows that arrived, all of which `tokens` counts. */
static size_t moe_rows(sl_moe_path path, const sl_moe_params *p)
{
    const bool wide = path == SL_MOE_GROUPED || path == SL_MOE_GROUPED_BF16,
               f8 = path == SL_MOE_FEW || path == SL_MOE_GROUPED ||
                    (path == SL_MOE_HALF && p->fp8_acts && sl_weight_takes_e4m3(p->gate));

    if (path == SL_MOE_PLAIN)
        return 0;
    return sl_moe_rows_size_of(wide ? SL_MOE_WIDE : SL_MOE_NARROW, p->tokens, p->top_k, p->experts, p->hidden,
                               p->inter, f8 ? 1 : 2)
        .bytes;
}

size_t sl_ep_lists_bytes(int64_t pairs)
{
    return (size_t)up256(pairs * 8);
}

size_t sl_ep_floats_bytes(int64_t pairs, int64_t hidden, int64_t inter)
{
    return (size_t)up256(pairs * (inter + hidden) * 4);
}

static size_t ep_experts(const sl_gpu *g, const sl_ep_experts_params *e)
{
    const sl_moe_params p = sl_ep_experts_as_moe(e);
    const sl_moe_path path = sl_path_ep_experts(g, e);
    const int64_t pairs = (int64_t)p.tokens * p.top_k;
    return sl_ep_lists_bytes(pairs) +
           (path == SL_MOE_PLAIN ? sl_ep_floats_bytes(pairs, p.hidden, p.inter) : moe_rows(path, &p));
}

size_t sl_ep_send_scratch(int32_t tokens, int32_t ranks)
{
    return tokens > 0 && tokens <= SL_EP_FUSED_TOKENS
               ? 0
               : ((size_t)tokens * (size_t)ranks + 1) * sizeof(int32_t);
}

size_t sl_ep_sum_scratch(int32_t tokens, int32_t top_k)
{
    return (size_t)tokens * (size_t)top_k * sizeof(int32_t);
}

/* ---- by op ---- */

size_t sl_op_scratch(const sl_gpu *g, sl_op op, const void *params)
{
    const sl_moe_params *moe = params;
    const sl_ep_send_params *send = params;
    const sl_ep_sum_params *sum = params;

    switch (op) {
    case SL_OP_LINEAR:
        return linear(g, params);
    case SL_OP_Q_ABSORB:
        return q_absorb(params);
    case SL_OP_V_UP:
        return v_up(params);
    case SL_OP_MOE:
        return moe_rows(sl_path_moe(g, moe, moe->tokens, moe->fp8_acts), moe);
    case SL_OP_EP_SEND:
        return sl_ep_send_scratch(send->tokens, send->layout.ranks);
    case SL_OP_EP_EXPERTS:
        return ep_experts(g, params);
    case SL_OP_EP_SUM:
        return sl_ep_sum_scratch(sum->tokens, sum->layout.top_k);
    case SL_OP_SPARSE_ATTN:
        return sparse_attn(g, params);
    case SL_OP_RING_ATTN:
        return ring_attn(g, params);
    case SL_OP_GQA_ATTN:
        return gqa_attn(g, params);
    default:
        return sl_select_scratch(op, params);
    }
}
