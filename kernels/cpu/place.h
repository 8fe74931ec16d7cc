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

/* Writes first .. last to a list of room for `most` ids; returns how many ids there are then, or -1 when they do not fit. */
static inline int32_t sl_put_range(int32_t *ids, int32_t most, int32_t n, int32_t first, int32_t last)
{
    if (n < 0 || last - first >= most - n)
        return -1;
    for (int32_t i = first; i <= last; i++)
        ids[n++] = i;
    return n;
}

/* Ends a list of n ids, of which -1 says that they did not fit, with -1; bad: why a token has none. */
static inline uint32_t sl_list_end(int32_t *ids, int32_t most, int32_t n, uint32_t bad)
{
    for (int32_t i = bad || n < 0 ? 0 : n; i < most; i++)
        ids[i] = -1;
    return !bad && n < 0 ? SL_DEVERR_SELECTION : bad;
}

/* cos and sin of one position: [rope/2][2]. */
static inline const float *sl_cos_sin_at(const float *cos_sin, int32_t pos, int32_t rope)
{
    return rope ? cos_sin + (int64_t)pos * rope : cos_sin;
}

/* How the rows of a view are divided: sl_row_view's H, log2 of its B, and the hot and tail rows of one head. */
typedef struct sl_row_shape {
    int32_t heads, page_log2, hot, tail;
} sl_row_shape;

static inline sl_row_shape sl_row_shape_of(const sl_row_view *r)
{
    int32_t heads = sl_row_lists(r);

    _Static_assert(SL_PAGE_TOKENS == 1 << SL_PAGE_LOG2, "tokens of a page");
    return (sl_row_shape){heads, SL_PAGE_LOG2 - r->block_log2, r->hot_rows / heads, r->tail_rows / heads};
}

/* The entry of a block's page in a page table, and the block's number within the page. */
static inline int32_t sl_block_page(const sl_row_shape *s, int32_t block)
{
    return block >> s->page_log2;
}

static inline int32_t sl_block_in_page(const sl_row_shape *s, int32_t block)
{
    return block & ((1 << s->page_log2) - 1);
}

/* Row of a block of one head in the page of its table, of the device pool or of the host; -1 without a page. */
static inline int64_t sl_pool_row(const sl_row_shape *s, int32_t page, int32_t block, int32_t head)
{
    if (page < 0)
        return -1;
    return (((int64_t)page << s->page_log2) + sl_block_in_page(s, block)) * s->heads + head;
}

/* Row i of a hot slot; tail rows follow the hot rows. */
static inline int64_t sl_hot_row(const sl_row_view *r, int32_t slot, int64_t i)
{
    return r->hot_base + (int64_t)slot * ((int64_t)r->hot_rows + r->tail_rows) + i;
}

static inline int64_t sl_tail_row(const sl_row_view *r, const sl_row_shape *s, int32_t slot, int32_t block,
                                  int32_t head)
{
    return sl_hot_row(r, slot, r->hot_rows + (int64_t)(block % s->tail) * s->heads + head);
}

/* Device and host address of the row of token t, which is that of head 0: the rows of other heads follow it. dev is
 * NULL if later tokens of this step push the row out of the tail. */
static inline uint32_t sl_place_row(const sl_seq_tables *s, const sl_row_view *rows,
                                    const sl_host_plane *plane, int64_t t, uint8_t **dev, uint8_t **host)
{
    sl_row_shape shape = sl_row_shape_of(rows);
    sl_place at;
    uint32_t bad = sl_place_of(s, t, &at);
    int32_t block;
    int64_t row;

    if (bad)
        return bad;
    block = at.pos >> rows->block_log2;
    *dev = *host = NULL;
    if (plane->base) {
        int32_t page = s->host_pages[at.entry];

        if (page < 0)
            return SL_DEVERR_PAGE;
        *host = plane->base + page * plane->page_stride + sl_block_in_page(&shape, block) * plane->row_stride;
    }
    if (s->hot_slot[at.seq] < 0) {
        row = sl_pool_row(&shape, s->row_pages[at.entry], block, 0);
        if (row < 0)
            return SL_DEVERR_PAGE;
    } else {
        int64_t later = t + (((int64_t)block + shape.tail) << rows->block_log2) - at.pos;

        if (rows->tail_rows < 1)
            return SL_DEVERR_HOT_CAPACITY;
        if (later < s->n_tokens && s->token_seq[later] == at.seq)
            return 0;
        row = sl_tail_row(rows, &shape, s->hot_slot[at.seq], block, 0);
    }
    *dev = rows->base + row * rows->row_bytes;
    return 0;
}

#endif
