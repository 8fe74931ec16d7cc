/*
 * Inside gqa_prompt*.cu: the warpgroup that brings fp8 rows into the ring of steps. A warp brings a quarter of a step's tokens,
 * each lane knows where one of them is; values pass through registers, where they become bf16. Loads are in flight while what
 * was loaded before them is converted, and while the warp waits for its place. Tokens after the end of a list are zeros.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_BYTES_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_BYTES_CUH
#include "kernels/cuda/sm90/attn/gqa_prompt.cuh"

/* Registers of a thread that brings, and of one that multiplies. */
enum { BYTES_BRING_REGS = 56, BYTES_MULTIPLY_REGS = 224 };

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* How a warp divides its tokens of a step: chunks of eight values, tokens at a time, tokens, loads of a lane for a half. */
template <int DIM> struct gqa_bytes {
    static constexpr int CHUNKS = DIM / 8, PER = 32 / CHUNKS, MINE = gqa_step<DIM>::TOKENS / 4,
                         N = MINE / PER / 2;
};

/* Where this lane's token is: bytes from the base of the rows to its key, or -1; the scales of its key and its value. */
struct gqa_place {
    int64_t at;
    float scale[2];
};

/* The place of token i, whose entry was loaded before. */
__device__ static inline gqa_place gqa_find(const gqa_work &w, const gqa_list &l, int i, int entry)
{
    gqa_place a = {-1, {0, 0}};

    if (i >= l.n)
        return a;
    int64_t row = gqa_row(w, l, i, entry), slot = gqa_slot(w, l, i);
    if (row < 0) {
        atomicOr(w.deverr, SL_DEVERR_PAGE);
        return a;
    }
    const uint8_t *base = w.p.rows.base + row * w.p.rows.row_bytes;
    const float *scales = (const float *)(base + 2 * (int64_t)w.slots * w.p.dim);
    a.at = row * w.p.rows.row_bytes + slot * w.p.dim;
    a.scale[0] = scales[slot], a.scale[1] = scales[w.slots + slot];
    return a;
}

/* Load j of a lane, of part `part` of a step: keys are parts 0 and 1, values 2 and 3; each is half of this warp's tokens. */
template <int DIM>
__device__ static inline uint2 gqa_load_bytes(const gqa_work &w, const gqa_place &a, int lane, int part,
                                              int j)
{
    typedef gqa_bytes<DIM> size;
    int64_t at = __shfl_sync(0xffffffffu, a.at, (part % 2 * size::N + j) * size::PER + lane / size::CHUNKS);

    if (at < 0)
        return make_uint2(0, 0);
    return *(const uint2 *)(w.p.rows.base + part / 2 * (int64_t)w.slots * DIM + lane % size::CHUNKS * 8 + at);
}

__device__ static inline uint32_t gqa_convert2(uint32_t two, float scale)
{
    float2 v = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)two, __NV_E4M3)));

    return gqa_pack(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale));
}

/* Stores that load as bf16; to: the step's tiles of the side. */
template <int DIM>
__device__ static inline void gqa_store_bytes(uint2 v, const gqa_place &a, int lane, int part, int j,
                                              uint32_t to)
{
    typedef gqa_bytes<DIM> size;
    int warp = threadIdx.x >> 5 & 3, c = lane % size::CHUNKS,
        r = (part % 2 * size::N + j) * size::PER + lane / size::CHUNKS;
    float scale = __shfl_sync(0xffffffffu, a.scale[part / 2], r);

    sl_store16_shared(to + c / 8 * (gqa_step<DIM>::TOKENS * 128) + sl_swizzle(warp * size::MINE + r, c % 8),
                      make_uint4(gqa_convert2(v.x & 0xffff, scale), gqa_convert2(v.x >> 16, scale),
                                 gqa_convert2(v.y & 0xffff, scale), gqa_convert2(v.y >> 16, scale)));
}

/* Brings all steps: every thread of the warpgroup. A part's loads are replaced, one by one, by those of the next part. */
template <int DIM>
__device__ static inline void gqa_prompt_convert(const gqa_prompt_work &w, uint32_t smem,
                                                 gqa_prompt_shared *x)
{
    typedef gqa_prompt_size<DIM> size;
    const int mine = gqa_bytes<DIM>::MINE, step = size::STEP;
    int token = (threadIdx.x >> 5 & 3) * mine + (threadIdx.x & 31) % mine, units = gqa_units(w), it = 0;
    uint2 v[gqa_bytes<DIM>::N];

    for (int i = blockIdx.x; i < units; i += gridDim.x) {
        gqa_unit u = gqa_unit_at(w, i);
        gqa_list l = gqa_list_of(w.g, u.t + u.count - 1, u.kv_head);
        gqa_place next = gqa_find(w.g, l, token, token < l.n ? gqa_entry(w.g, l, token) : -1);
        int entry = step + token < l.n ? gqa_entry(w.g, l, step + token) : -1;

#pragma unroll
        for (int j = 0; j < gqa_bytes<DIM>::N; j++)
            v[j] = gqa_load_bytes<DIM>(w.g, next, threadIdx.x & 31, 0, j);
        for (int at = 0; at < l.n || at == 0; at += step, it++) {
            int s = it % size::STAGES, round = it / size::STAGES;
            const gqa_place a = next;
            int lane = threadIdx.x & 31;

            asm volatile(
                ""
                : "+r"(lane)); /* or what follows from it is kept in registers, which there are not */

#pragma unroll
            for (int part = 0; part < 4; part++) {
                const int side = part / 2;

                if (part == 3) {
                    next = gqa_find(w.g, l, at + step + token, entry);
                    entry = at + 2 * step + token < l.n ? gqa_entry(w.g, l, at + 2 * step + token) : -1;
                }
                if (part % 2 == 0 && round > 0)
                    sl_mbar_wait(side ? &x->empty_v[s] : &x->empty_k[s], (round - 1) & 1);
#pragma unroll
                for (int j = 0; j < gqa_bytes<DIM>::N; j++) {
                    gqa_store_bytes<DIM>(v[j], a, lane, part, j,
                                         smem + size::RING + (s * 2 + side) * size::SIDE);
                    v[j] = gqa_load_bytes<DIM>(w.g, part == 3 ? next : a, lane, (part + 1) % 4, j);
                }
                if (part % 2) {
                    sl_fence_async();
                    sl_mbar_arrive(side ? &x->full_v[s] : &x->full_k[s]);
                }
            }
        }
    }
}
#endif

#endif
