/*
 * Inside gqa_attn_tensor.cu: the warpgroup that walks the lists and fills the ring of steps. Every warp fetches a quarter
 * of a step's tokens: each lane knows where one of them is. bf16 rows are copied asynchronously; fp8 rows pass through
 * registers, where they become bf16, which is exact because their scales are powers of two. Tokens after the end of a
 * list are zeros.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_ATTN_FETCH_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_ATTN_FETCH_CUH
#include "kernels/cuda/sm90/attn/gqa_attn_tensor.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Where this lane's token is: bytes from the base of the rows to its key, or -1; with fp8 rows, its scales. */
struct gqa_place {
    int64_t at;
    float scale[2];
};

/* The place of token i, whose entry was loaded before. */
template <bool FP8>
__device__ static inline gqa_place gqa_find(const gqa_work &w, const gqa_list &l, int i, int end, int entry)
{
    gqa_place a = {-1, {0, 0}};
    int64_t row, slot;

    if (i >= end)
        return a;
    row = gqa_row(w, l, i, entry);
    if (row < 0) {
        atomicOr(w.deverr, SL_DEVERR_PAGE);
        return a;
    }
    slot = gqa_slot(w, l, i);
    a.at = row * w.p.rows.row_bytes + slot * w.p.dim * (FP8 ? 1 : 2);
    if (FP8) {
        const float *scales =
            (const float *)(w.p.rows.base + row * w.p.rows.row_bytes + 2 * (int64_t)w.slots * w.p.dim);
        a.scale[0] = scales[slot];
        a.scale[1] = scales[w.slots + slot];
    }
    return a;
}

__device__ static inline uint32_t gqa_pack(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);

    return *(uint32_t *)&v;
}

__device__ static inline uint32_t gqa_convert2(uint32_t two, float scale)
{
    float2 v = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)two, __NV_E4M3)));

    return gqa_pack(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale));
}

/* Copies one side (0: keys, 1: values) of this warp's tokens of a step to the tiles at `to`. */
template <int DIM, int STEP>
__device__ static inline void gqa_copy(const gqa_work &w, const gqa_place &a, uint32_t to, int side)
{
    const int chunks = DIM / 8, per = 32 / chunks,
              mine = STEP / 4; /* chunks of a token; tokens at a time; of a warp */
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, c = lane % chunks;
    const uint8_t *base = w.p.rows.base + side * (int64_t)w.slots * DIM * 2 + c * 16;

#pragma unroll
    for (int j = 0; j < mine; j += per) {
        int r = j + lane / chunks;
        int64_t at = __shfl_sync(0xffffffffu, a.at, r);

        sl_copy16(to + c / 8 * (STEP * 128) + sl_swizzle(warp * mine + r, c % 8), base + (at < 0 ? 0 : at),
                  at >= 0);
    }
}

/* The same for fp8 rows; eight loads are in flight. */
template <int DIM, int STEP>
__device__ static inline void gqa_convert(const gqa_work &w, const gqa_place &a, uint32_t to, int side)
{
    const int chunks = DIM / 8, per = 32 / chunks, mine = STEP / 4, batch = 8;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, c = lane % chunks;
    const uint8_t *base = w.p.rows.base + side * (int64_t)w.slots * DIM + c * 8;

#pragma unroll
    for (int j0 = 0; j0 < mine; j0 += per * batch) {
        uint2 v[batch];

#pragma unroll
        for (int u = 0; u < batch; u++) {
            int64_t at = __shfl_sync(0xffffffffu, a.at, j0 + u * per + lane / chunks);

            v[u] = at < 0 ? make_uint2(0, 0) : *(const uint2 *)(base + at);
        }
#pragma unroll
        for (int u = 0; u < batch; u++) {
            int r = j0 + u * per + lane / chunks;
            float scale = __shfl_sync(0xffffffffu, a.scale[side], r);

            sl_store16_shared(
                to + c / 8 * (STEP * 128) + sl_swizzle(warp * mine + r, c % 8),
                make_uint4(gqa_convert2(v[u].x & 0xffff, scale), gqa_convert2(v[u].x >> 16, scale),
                           gqa_convert2(v[u].y & 0xffff, scale), gqa_convert2(v[u].y >> 16, scale)));
        }
    }
}

template <int DIM, int STEP, bool FP8>
__device__ static inline void gqa_bring(const gqa_work &w, const gqa_place &a, uint32_t to, int side,
                                        uint64_t *full)
{
    if (FP8) {
        gqa_convert<DIM, STEP>(w, a, to, side);
        sl_fence_async();
        sl_mbar_arrive(full);
    } else {
        gqa_copy<DIM, STEP>(w, a, to, side);
        sl_mbar_arrive_copies(full);
    }
}

template <int DIM, int GROUPS, bool FP8>
__device__ static inline void gqa_fetch(const gqa_tensor_work &w, uint8_t *smem, gqa_shared *x)
{
    typedef gqa_size<DIM, GROUPS> size;
    const int step = size::STEP, mine = step / 4;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, units = gqa_units(w), it = 0;
    uint32_t ring = sl_smem_addr(smem) + size::QUERIES;

    for (int i = blockIdx.x; i < units; i += gridDim.x) {
        gqa_unit u = gqa_unit_at(w, i);
        gqa_list l = gqa_list_of(w.g, u.t + u.count - 1, u.kv_head);
        int first = w.parts > 1 ? u.part * SEGMENT : 0;
        int end = w.parts > 1 ? min(l.n, first + SEGMENT) : l.n, token = warp * mine + lane % mine;
        int entry = first + token < end ? gqa_entry(w.g, l, first + token) : -1;

        for (int at = first; at < end || at == first; at += step, it++) {
            int s = it % size::STAGES, round = it / size::STAGES;
            uint32_t to = ring + s * 2 * size::SIDE;
            gqa_place a = gqa_find<FP8>(w.g, l, at + token, end, entry);

            /* needed in the next round: its latency passes while this step is copied */
            entry = at + step + token < end ? gqa_entry(w.g, l, at + step + token) : -1;
            if (round > 0)
                sl_mbar_wait(&x->empty_k[s], (round - 1) & 1);
            if ((threadIdx.x & 127) == 0) {
                x->rows[s] = max(min(end - at, step), 0);
                x->last[s] = at + step >= end;
                sl_mbar_arrive(&x->full_k[s]);
            }
            gqa_bring<DIM, step, FP8>(w.g, a, to, 0, &x->full_k[s]);
            if (round > 0)
                sl_mbar_wait(&x->empty_v[s], (round - 1) & 1);
            gqa_bring<DIM, step, FP8>(w.g, a, to + size::SIDE, 1, &x->full_v[s]);
        }
    }
}
#endif

#endif
