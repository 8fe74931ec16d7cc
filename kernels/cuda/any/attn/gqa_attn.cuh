/*
 * Inside gqa_attn*.cu: the work of a launch, and where the tokens are that a query attends to. A list is a sequence of
 * tokens 0, 1, ..: those of its rows in their order, or with sl_seq_tables the positions 0..pos of a sequence.
 */
#ifndef SL_KERNELS_CUDA_ANY_ATTN_GQA_ATTN_CUH
#define SL_KERNELS_CUDA_ANY_ATTN_GQA_ATTN_CUH
#include "kernels/cuda/common.cuh"
#include "kernels/gqa.h"

#define GQA_GROUP 16 /* the most query heads of a KV head */
#define GQA_TILE 64  /* the tokens of a tile: the unit of the rule of skip_factor */

struct gqa_work {
    sl_gqa_attn_params p;
    sl_seq_tables s; /* *p.seqs, if p.seqs is not NULL */
    uint32_t *deverr;
    int32_t group, lists, heads,
        slots; /* query heads of a KV head; lists of a token; heads and slots of a row */
};

static inline gqa_work gqa_work_of(const sl_cuda *cu, const sl_gqa_attn_params *p)
{
    gqa_work w = {};

    w.p = *p;
    if (p->seqs)
        w.s = *p->seqs;
    w.deverr = cu->deverr;
    w.group = p->heads / p->kv_heads;
    w.lists = sl_row_lists(&p->rows);
    w.heads = sl_gqa_row_heads(&p->rows, p->kv_heads);
    w.slots = sl_gqa_row_slots(&p->rows, p->kv_heads);
    return w;
}

__device__ static inline int gqa_position(const gqa_work &w, int64_t t)
{
    return w.p.seqs ? w.s.token_pos[t] : w.p.pos[t];
}

/* The list of a token and a KV head. */
struct gqa_list {
    /* Entries of phys and ids; or the sequence's pages and NULL, or the numbers of those that are attended to. */
    const int32_t *rows, *blocks;
    int32_t kv_head, n; /* n: number of tokens */
};

/* The number of entries of a list, by one warp, all lanes of which receive it. */
__device__ static inline int gqa_entries(const int32_t *phys, int k)
{
    int lane = threadIdx.x & 31, low = 0, high = k; /* entries below low exist, those from high on do not */

    while (low < high) {
        int step = (high - low + 31) / 32, i = low + lane * step;
        uint32_t on = __ballot_sync(0xffffffffu, i < high && phys[i] >= 0);
        int found = __popc(on);

        if (found == 0)
            return low;
        high = min(high, low + found * step);
        low += (found - 1) * step + 1;
    }
    return low;
}

/* The list of token t, by one warp. */
__device__ static inline gqa_list gqa_list_of(const gqa_work &w, int64_t t, int kv_head)
{
    int64_t list = t * w.lists + (w.lists > 1 ? kv_head : 0);
    gqa_list l = {w.p.phys + list * w.p.ld_ids, w.p.ids + list * w.p.ld_ids, kv_head, 0};
    int log2 = w.p.rows.block_log2, entries;

    if (w.p.seqs) {
        int seq, pos;

        if (!sl_token(&w.s, (int)t, w.deverr, &seq, &pos))
            return l;
        l.rows = w.s.row_pages + (int64_t)seq * w.s.ld;
        l.blocks = NULL;
        l.n = (int)min((int64_t)pos + 1, (int64_t)w.p.k << log2);
        if (w.p.prompt.of &&
            w.p.prompt.of[t] >= 0) { /* its pages one after the other, up to the token's own place */
            l.blocks =
                w.p.prompt.pages + ((int64_t)w.p.prompt.of[t] * w.p.kv_heads + kv_head) * w.p.prompt.ld;
            entries = gqa_entries(l.blocks, w.p.prompt.ld);
            l.n = max((entries << SL_PAGE_LOG2) - (SL_PAGE_TOKENS - 1 - (pos & (SL_PAGE_TOKENS - 1))), 0);
        }
        return l;
    }
    entries = gqa_entries(l.rows, w.p.k);
    l.n = entries << log2;
    if (log2 && entries) { /* of the last block, the tokens that are not after pos */
        int64_t left = (int64_t)w.p.pos[t] + 1 - ((int64_t)l.blocks[entries - 1] << log2);

        l.n += (int)max(min(left, (int64_t)1 << log2), (int64_t)0) - (1 << log2);
    }
    return l;
}

/* Page i of a list with sl_seq_tables. */
__device__ static inline int gqa_page(const gqa_list &l, int i)
{
    return l.rows[l.blocks ? l.blocks[i] : i];
}

/* The entry of token i of the list: a row, or with sl_seq_tables a page; -1: there is none. */
__device__ static inline int gqa_entry(const gqa_work &w, const gqa_list &l, int i)
{
    if (w.p.seqs)
        return gqa_page(l, i >> SL_PAGE_LOG2);
    return l.rows[i >> w.p.rows.block_log2];
}

/* The row that holds token i of the list, of which this is the entry; -1: its page does not exist. */
__device__ static inline int64_t gqa_row(const gqa_work &w, const gqa_list &l, int i, int entry)
{
    int log2 = w.p.rows.block_log2;

    if (!w.p.seqs || entry < 0)
        return entry;
    return (((int64_t)entry << (SL_PAGE_LOG2 - log2)) + ((i & (SL_PAGE_TOKENS - 1)) >> log2)) * w.lists +
           (w.lists > 1 ? l.kv_head : 0);
}

/* The slot of token i of the list in its row. */
__device__ static inline int gqa_slot(const gqa_work &w, const gqa_list &l, int i)
{
    return (i & ((1 << w.p.rows.block_log2) - 1)) * w.heads + (w.heads > 1 ? l.kv_head : 0);
}

/* ln of the share of the largest weight below which a tile of token t is left out; -INFINITY: none is. */
__device__ static inline float gqa_skip_below(const gqa_work &w, int64_t t)
{
    if (w.p.skip_factor <= 0)
        return -INFINITY;
    float seen = (float)gqa_position(w, t) + 1;
    if (gqa_position(w, t) < w.p.skip_from || seen <= w.p.skip_factor)
        return -INFINITY;
    return logf(w.p.skip_factor / seen);
}

/* gqa_attn_plain.cu: every format, head dimension up to 512, float32 throughout. */
sl_status sl_cuda_gqa_plain(sl_cuda *cu, const sl_gqa_attn_params *p, sl_err *err);
/* gqa_prompt.cu: several tokens of a sequence. */
sl_status sl_cuda_gqa_prompt(sl_cuda *cu, const sl_gqa_attn_params *p, sl_err *err);
/* gqa_decode.cu: one query token of every list or sequence. */
sl_status sl_cuda_gqa_decode(sl_cuda *cu, const sl_gqa_attn_params *p, sl_err *err);

#endif
