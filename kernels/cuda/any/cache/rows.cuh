/*
 * Rows that are divided into blocks of tokens and by KV head (sl_row_view): the same lookups as kernels/cpu/place.h, for
 * kernels. Ops with a kernel of their own for rows of one token of all heads do not use this file there.
 */
#ifndef SL_KERNELS_CUDA_ANY_CACHE_ROWS_CUH
#define SL_KERNELS_CUDA_ANY_CACHE_ROWS_CUH

#include "kernels/cuda/common.cuh"

/* How rows are divided: sl_row_view's H, log2 of its B, and the hot and tail rows of one head. */
struct sl_rows {
    int heads, page_log2, hot, tail;
};

static inline sl_rows sl_rows_of(const sl_row_view *r)
{
    int heads = sl_row_lists(r);

    return {heads, SL_PAGE_LOG2 - r->block_log2, r->hot_rows / heads, r->tail_rows / heads};
}

/* Row of a block of one head in the page of its table, of the device pool or of the host; -1 without a page. */
__device__ static inline int64_t sl_pool_row(const sl_rows &s, int page, int block, int head)
{
    int in_page = block & ((1 << s.page_log2) - 1);

    return page < 0 ? -1 : (((int64_t)page << s.page_log2) + in_page) * s.heads + head;
}

/* First row of a hot slot; its tail rows follow its hot rows. */
__device__ static inline int64_t sl_slot_row(const sl_row_view &r, int slot)
{
    return r.hot_base + (int64_t)slot * (r.hot_rows + r.tail_rows);
}

/* Row `block` of the tail, counted from the slot's first row. */
__device__ static inline int sl_tail_row(const sl_row_view &r, const sl_rows &s, int block, int head)
{
    return r.hot_rows + block % s.tail * s.heads + head;
}

/* Where the row of a new token is, for one head: NULL where nothing is to be written. */
struct sl_new_row {
    uint8_t *device, *host;
};

/*
 * The row of token t, which is at pos of sequence seq. A row of the tail is left out if a later token of this step
 * takes it. Returns 0 or SL_DEVERR_*.
 */
__device__ static inline uint32_t sl_new_row_of(const sl_seq_tables &s, const sl_row_view &r,
                                                const sl_rows &shape, const sl_host_plane &plane, int t,
                                                int seq, int pos, int head, sl_new_row *out)
{
    int64_t entry = (int64_t)seq * s.ld + pos / SL_PAGE_TOKENS, row;
    int slot = s.hot_slot[seq], block = pos >> r.block_log2;

    *out = {NULL, NULL};
    if (plane.base) {
        int page = s.host_pages[entry], in_page = block & ((1 << shape.page_log2) - 1);
        if (page < 0)
            return SL_DEVERR_PAGE;
        out->host = plane.base + page * plane.page_stride + in_page * plane.row_stride + head * r.row_bytes;
    }
    if (slot < 0) {
        row = sl_pool_row(shape, s.row_pages[entry], block, head);
        if (row < 0)
            return SL_DEVERR_PAGE;
    } else {
        int64_t later = t + (((int64_t)block + shape.tail) << r.block_log2) - pos;
        if (shape.tail < 1)
            return SL_DEVERR_HOT_CAPACITY;
        if (later < s.n_tokens && s.token_seq[later] == seq)
            return 0;
        row = sl_slot_row(r, slot) + sl_tail_row(r, shape, block, head);
    }
    out->device = r.base + row * r.row_bytes;
    return 0;
}

#endif
