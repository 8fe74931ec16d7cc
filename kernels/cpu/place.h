/*
 * Where a token is: lookups in sl_seq_tables with the checks that only running code can make. Inline helpers
 * of the CPU backend's cache ops.
 */
#ifndef SL_KERNELS_CPU_PLACE_H
#define SL_KERNELS_CPU_PLACE_H

#include "kernels/backend_impl.h"

typedef struct sl_place {
    int32_t seq, pos;
    int64_t entry; /* of pos's page in a page table */
} sl_place;

#define SL_PLACE_NONE (1u << 31) /* a padding token: it has no place */

/* 0, SL_PLACE_NONE, or SL_DEVERR_SEQ / POS. */
static inline uint32_t sl_place_of(const sl_seq_tables *s, int64_t t, sl_place *out)
{
    int32_t seq = s->token_seq[t], pos = s->token_pos[t];

    if (seq == -1)
        return SL_PLACE_NONE;
    if (seq < 0 || seq >= s->n_seqs)
        return SL_DEVERR_SEQ;
    if (pos < 0 || pos / SL_PAGE_TOKENS >= s->ld)
        return SL_DEVERR_POS;
    out->seq = seq;
    out->pos = pos;
    out->entry = (int64_t)seq * s->ld + pos / SL_PAGE_TOKENS;
    return 0;
}

/* cos and sin of one position: [rope/2][2]. */
static inline const float *sl_cos_sin_at(const float *cos_sin, int32_t pos, int32_t rope)
{
    return rope ? cos_sin + (int64_t)pos * rope : cos_sin;
}

/* Physical row of a token of a resident sequence: page of its table, or -1. */
static inline int64_t sl_pool_row(int32_t page, int32_t pos)
{
    return page < 0 ? -1 : (int64_t)page * SL_PAGE_TOKENS + pos % SL_PAGE_TOKENS;
}

/* Physical row of LRU index i of a hot slot; tail rows follow the hot rows. */
static inline int64_t sl_hot_row(const sl_row_view *r, int32_t slot, int64_t i)
{
    return r->hot_base + (int64_t)slot * ((int64_t)r->hot_rows + r->tail_rows) + i;
}

static inline int64_t sl_tail_row(const sl_row_view *r, int32_t slot, int32_t pos)
{
    return sl_hot_row(r, slot, (int64_t)r->hot_rows + pos % r->tail_rows);
}

#endif
