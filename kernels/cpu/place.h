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

/* Device and host address of token t's row; dev is NULL if later tokens of this step push the row out of the tail. */
static inline uint32_t sl_place_row(const sl_seq_tables *s, const sl_row_view *rows,
                                    const sl_host_plane *plane, int64_t t, uint8_t **dev, uint8_t **host)
{
    sl_place at;
    uint32_t bad = sl_place_of(s, t, &at);
    int64_t row;

    if (bad)
        return bad;
    *dev = *host = NULL;
    if (plane->base) {
        int32_t page = s->host_pages[at.entry];

        if (page < 0)
            return SL_DEVERR_PAGE;
        *host = plane->base + page * plane->page_stride + at.pos % SL_PAGE_TOKENS * plane->row_stride;
    }
    if (s->hot_slot[at.seq] < 0) {
        row = sl_pool_row(s->row_pages[at.entry], at.pos);
        if (row < 0)
            return SL_DEVERR_PAGE;
    } else {
        int64_t later = t + rows->tail_rows;

        if (rows->tail_rows < 1)
            return SL_DEVERR_HOT_CAPACITY;
        if (later < s->n_tokens && s->token_seq[later] == at.seq)
            return 0;
        row = sl_tail_row(rows, s->hot_slot[at.seq], at.pos);
    }
    *dev = rows->base + row * rows->row_bytes;
    return 0;
}

#endif
