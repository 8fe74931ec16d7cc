/*
 * Keys of cached rows, for the ops that make metadata from them (bounds_append.cu, labels_append.cu): where the rows of
 * a new token are, and one value of a key. The same lookups as kernels/cpu/bounds.c.
 */
#ifndef SL_KERNELS_CUDA_ANY_CACHE_KEY_ROWS_CUH
#define SL_KERNELS_CUDA_ANY_CACHE_KEY_ROWS_CUH

#include "kernels/cuda/any/cache/rows.cuh"

/* Rows of keys on the device and in the host arena, and how they are divided. */
struct sl_key_rows {
    sl_row_view rows;
    sl_host_plane host;
    sl_rows shape;
    int heads, in_row, slots, dim; /* KV heads; heads in a row; slots of a row */
    sl_row_format format;
};

static inline sl_key_rows sl_key_rows_of(const sl_row_view *rows, const sl_host_plane *host, int heads,
                                         int dim, sl_row_format format)
{
    return {
        *rows, *host, sl_rows_of(rows), heads, sl_gqa_row_heads(rows, heads), sl_gqa_row_slots(rows, heads),
        dim,   format};
}

/* One key: its row, and its slot in the row. */
struct sl_key_at {
    const uint8_t *row;
    int slot;
};

/* The key of one head of token t. The row is that of the device, or that of the host if the device has none. Returns 0
 * or SL_DEVERR_*. */
__device__ static inline uint32_t sl_key_of(const sl_key_rows &k, const sl_seq_tables &s, int t, int seq,
                                            int pos, int head, sl_key_at *out)
{
    int row_head = k.shape.heads > 1 ? head : 0;
    sl_new_row at = {NULL, NULL};

    if (k.rows.base) {
        uint32_t bad = sl_new_row_of(s, k.rows, k.shape, k.host, t, seq, pos, row_head, &at);
        if (bad)
            return bad;
    } else {
        int page = s.host_pages[(int64_t)seq * s.ld + pos / SL_PAGE_TOKENS];
        int in_page = (pos >> k.rows.block_log2) & ((1 << k.shape.page_log2) - 1);
        if (page >= 0)
            at.host = k.host.base + page * k.host.page_stride + in_page * k.host.row_stride +
                      row_head * k.rows.row_bytes;
    }
    out->row = at.device ? at.device : at.host;
    out->slot = (pos & ((1 << k.rows.block_log2) - 1)) * k.in_row + (k.in_row > 1 ? head : 0);
    return out->row ? 0 : SL_DEVERR_PAGE;
}

/* Value i of the key. The scales of e4m3 rows are powers of two, so the product is exact. */
__device__ static inline float sl_key_value(const sl_key_rows &k, const sl_key_at &at, int i)
{
    int64_t v = (int64_t)at.slot * k.dim + i;

    if (k.format == SL_ROW_GQA_F32)
        return ((const float *)at.row)[v];
    if (k.format == SL_ROW_GQA_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)at.row)[v]);
    const float *scales = (const float *)(at.row + 2 * (int64_t)k.slots * k.dim);
    return __fmul_rn(sl_e4m3f(at.row[v]), scales[at.slot]);
}

#endif
