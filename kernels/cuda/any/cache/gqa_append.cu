/*
 * New rows of grouped-query attention: keys (bias, norm, RoPE) and values (bias), encoded and written twice, to the row
 * on the device and directly to the pinned host arena. One warp per KV head of a token. A head's values are first
 * encoded in shared memory, so that both writes consist of whole words: 256 contiguous bytes for a key of 128 bf16.
 */
#include "kernels/cuda/any/attn/gqa_head.cuh"
#include "kernels/cuda/any/cache/rows.cuh"

/* One head of one token in its row, by slot: see the layout in kernels/gqa.h. */
struct head_slot {
    int slots, slot, element; /* element: bytes of a value */
    int filled, row_bytes;    /* what the slots occupy, and the whole row */
};

template <typename W> __device__ static inline void copy_words(uint8_t *to, const uint8_t *from, int bytes)
{
    for (int i = threadIdx.x & 31; i < bytes / (int)sizeof(W); i += 32)
        ((W *)to)[i] = ((const W *)from)[i];
}

/* By one warp; `from` is aligned to 16 bytes. */
__device__ static inline void copy_bytes(uint8_t *to, const uint8_t *from, int bytes)
{
    int align = (int)((uintptr_t)to | (uintptr_t)bytes);

    if (align % 8 == 0)
        copy_words<uint2>(to, from, bytes);
    else if (align % 4 == 0)
        copy_words<uint32_t>(to, from, bytes);
    else
        copy_words<uint8_t>(to, from, bytes);
}

/* Encodes v[dim] to bytes; returns the scale of gqa_fp8. */
__device__ static inline float encode(sl_row_format f, const float *v, int dim, uint8_t *bytes)
{
    int lane = threadIdx.x & 31;
    float amax = 0, s = 1;

    if (f == SL_ROW_GQA_FP8) {
        for (int i = lane; i < dim; i += 32)
            amax = fmaxf(amax, fabsf(v[i]));
        s = sl_scale_row_d(sl_warp_max(amax));
    }
    for (int i = lane; i < dim; i += 32) {
        if (f == SL_ROW_GQA_F32)
            ((float *)bytes)[i] = v[i];
        else if (f == SL_ROW_GQA_BF16)
            ((__nv_bfloat16 *)bytes)[i] = __float2bfloat16_rn(v[i]);
        else
            bytes[i] = sl_e4m3(v[i] / s);
    }
    __syncwarp();
    return s;
}

/* Writes an encoded side of a head (0: key, 1: value) to its place in a row. row may be NULL. */
__device__ static inline void put(uint8_t *row, const head_slot &h, int side, int dim, const uint8_t *bytes,
                                  float scale, sl_row_format f)
{
    int64_t n = (int64_t)h.slots * dim;

    if (!row)
        return;
    copy_bytes(row + (side * n + (int64_t)h.slot * dim) * h.element, bytes, dim * h.element);
    if (f == SL_ROW_GQA_FP8 && (threadIdx.x & 31) == 0)
        ((float *)(row + 2 * n))[side * h.slots + h.slot] = scale;
    if (side == 0 && h.slot == 0) /* the bytes that fill the row up */
        for (int i = h.filled + (threadIdx.x & 31); i < h.row_bytes; i += 32)
            row[i] = 0;
}

__global__ static void __launch_bounds__(32 * SL_GQA_WARPS)
    gqa_append_kernel(sl_gqa_append_params p, sl_seq_tables s, sl_rows shape, head_slot in, uint32_t *deverr)
{
    extern __shared__ __align__(16) uint8_t smem[];
    int warp = threadIdx.x >> 5, room = (p.dim * 4 + 15) / 16 * 16, seq, pos;
    int64_t i = (int64_t)blockIdx.x * SL_GQA_WARPS + warp;
    int t = (int)(i / p.heads), h = (int)(i % p.heads);
    float *v = (float *)(smem + 2 * warp * room);
    uint8_t *bytes = smem + (2 * warp + 1) * room;
    sl_new_row at;

    if (t >= s.n_tokens || !sl_token(&s, t, deverr, &seq, &pos))
        return;
    uint32_t bad = sl_new_row_of(s, p.rows, shape, p.host, t, seq, pos, shape.heads > 1 ? h : 0, &at);
    if (bad) {
        if ((threadIdx.x & 31) == 0)
            atomicOr(deverr, bad);
        return;
    }
    int in_row = p.rows.heads > 0 ? 1 : p.heads;
    in.slot = (pos & ((1 << p.rows.block_log2) - 1)) * in_row + (in_row > 1 ? h : 0);
    for (int side = 0; side < 2; side++) {
        const float *x = (side == 0 ? p.k : p.v) + i * p.dim;
        if (side == 0)
            sl_gqa_head(p.key, x, h, p.dim, pos, p.act, v);
        else
            sl_gqa_bias(x, p.v_bias ? p.v_bias + (int64_t)h * p.dim : NULL, p.dim, p.act, v);
        float scale = encode(p.format, v, p.dim, bytes);
        put(at.device, in, side, p.dim, bytes, scale, p.format);
        put(at.host, in, side, p.dim, bytes, scale, p.format);
        __syncwarp();
    }
}

static sl_status run_gqa_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gqa_append_params *p = (const sl_gqa_append_params *)params;
    size_t smem = 2 * SL_GQA_WARPS * (((size_t)p->dim * 4 + 15) / 16 * 16);
    int blocks = sl_ceil_div((int64_t)p->seqs->n_tokens * p->heads, SL_GQA_WARPS);
    head_slot in = {sl_gqa_row_slots(&p->rows, p->heads), 0,
                    p->format == SL_ROW_GQA_F32    ? 4
                    : p->format == SL_ROW_GQA_BF16 ? 2
                                                   : 1};

    in.row_bytes = (int)p->rows.row_bytes;
    in.filled = 2 * in.slots * p->dim * in.element + (p->format == SL_ROW_GQA_FP8 ? 8 * in.slots : 0);

    if (blocks > 0)
        SL_TRY(SL_LAUNCH(sl_cuda_of(be), gqa_append_kernel,
                         (sl_launch{blocks, (int)(32 * SL_GQA_WARPS), smem}), err, *p, *p->seqs,
                         sl_rows_of(&p->rows), in, sl_cuda_of(be)->deverr));
    return SL_OK;
}

const sl_op_impl sl_cuda_gqa_append = {.run = run_gqa_append};
