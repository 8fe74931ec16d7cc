/* Device code of points.h: one value of a key. */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_POINTS_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_POINTS_CUH

#include "kernels/cuda/any/cache/key_rows.cuh"
#include "kernels/cuda/any/select/points.h"

/* Channel i of the key of token s.first + point, of one KV head; 0 and a flag if its page does not exist. */
__device__ static inline float sl_point_value(const sl_points &s, const sl_key_rows &keys, int point,
                                              int head, int i, uint32_t *deverr)
{
    int token = s.first + point, page = s.keys.pages[token / SL_PAGE_TOKENS],
        row_head = keys.shape.heads > 1 ? head : 0;
    sl_key_at at = {NULL, keys.in_row > 1 ? head : 0};

    if (page < 0) {
        atomicOr(deverr, SL_DEVERR_PAGE);
        return 0;
    }
    if (keys.host.base)
        at.row = keys.host.base + page * keys.host.page_stride +
                 token % SL_PAGE_TOKENS * keys.host.row_stride + row_head * keys.rows.row_bytes;
    else
        at.row = keys.rows.base + sl_pool_row(keys.shape, page, token, row_head) * keys.rows.row_bytes;
    return sl_key_value(keys, at, i);
}

#endif
