/*
 * Inside attn_mla.cu: the two warpgroups that multiply probabilities with rows, half of the output columns each, and
 * merge the parts of a list one after the other.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_VALUES_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_VALUES_CUH
#include "kernels/cuda/sm90/attn/attn_mla_impl.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ static inline void product_values(float (&o)[64], uint64_t a, uint64_t b, bool add, __half)
{
    sl_wgmma_n128_f16_mn(o, a, b, add);
}

__device__ static inline void product_values(float (&o)[64], uint64_t a, uint64_t b, bool add, __nv_bfloat16)
{
    sl_wgmma_n128_bf16_mn(o, a, b, add);
}

__device__ static inline void warp_arrive(uint64_t *b)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        sl_mbar_arrive(b);
}

/* o += probabilities times the rows of a stage. With fp8 rows the caller frees the stage as a whole, because the
 * fetching warps convert whole blocks and wait for a whole free stage. */
__device__ static inline void multiply_values(float (&o)[2][64], uint32_t rows_tile, uint64_t *, int b,
                                              __half)
{
    int wg = threadIdx.x >> 7;

    sl_wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; i++)
        product_values(o[i & 1], sl_desc_k(rows_tile + 8 * SL_TILE + i / 2 * 32),
                       sl_desc_mn(rows_tile + (wg * 4 + (i & 1) * 2) * SL_TILE + i / 2 * SL_TILE_16, SL_TILE),
                       b > 0 || i > 1, __half());
    sl_wgmma_finish();
}

/* With bf16 rows each quarter of the stage is freed as soon as its products are complete, so that its next rows can be
 * copied; the caller frees the last quarter. */
__device__ static inline void multiply_values(float (&o)[2][64], uint32_t rows_tile, uint64_t *empty, int b,
                                              __nv_bfloat16)
{
    uint32_t mine = rows_tile + (threadIdx.x >> 7) * 4 * SL_TILE;

    sl_wgmma_fence();
#pragma unroll
    for (int q = 0; q < QUARTERS; q++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            product_values(o[i], sl_desc_k(rows_tile + 8 * SL_TILE + q * 32),
                           sl_desc_mn(mine + i * 2 * SL_TILE + q * SL_TILE_16, SL_TILE), b > 0 || q > 0,
                           __nv_bfloat16());
        sl_wgmma_commit();
    }
    sl_wgmma_wait<3>();
    warp_arrive(&empty[0]);
    sl_wgmma_wait<2>();
    warp_arrive(&empty[1]);
    sl_wgmma_wait<1>();
    warp_arrive(&empty[2]);
    sl_wgmma_wait<0>();
}

/* for this thread's two heads: the factors of a part's merge, and 1 / the sum over all parts */
struct joint {
    float keep[2], take[2], inv[2];
};

__device__ static inline joint get_joint(const attn_shared *x, int slot)
{
    int h = FIRST_HEAD(threadIdx.x & 31);

    return {{x->keep[slot][h], x->keep[slot][h + 8]},
            {x->take[slot][h], x->take[slot][h + 8]},
            {x->inv[slot][h], x->inv[slot][h + 8]}};
}

/* Merges the part in o with the earlier parts, which are in device memory in the order of this thread's registers. */
__device__ static inline void merge_part(float (&o)[2][64], float *partial, const joint &x, int part,
                                         bool last)
{
    int wg = threadIdx.x >> 7;
    float4 *mine = (float4 *)partial + (int64_t)wg * 32 * 128 + (threadIdx.x & 127);

    if (part > 0) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            float4 v = __ldcg(mine + i * 128);
            o[i / 16][i % 16 * 4] = merge(v.x, x.keep[0], o[i / 16][i % 16 * 4], x.take[0]);
            o[i / 16][i % 16 * 4 + 1] = merge(v.y, x.keep[0], o[i / 16][i % 16 * 4 + 1], x.take[0]);
            o[i / 16][i % 16 * 4 + 2] = merge(v.z, x.keep[1], o[i / 16][i % 16 * 4 + 2], x.take[1]);
            o[i / 16][i % 16 * 4 + 3] = merge(v.w, x.keep[1], o[i / 16][i % 16 * 4 + 3], x.take[1]);
        }
    }
    if (last)
        return;
#pragma unroll
    for (int i = 0; i < 32; i++)
        __stcg(mine + i * 128, make_float4(o[i / 16][i % 16 * 4], o[i / 16][i % 16 * 4 + 1],
                                           o[i / 16][i % 16 * 4 + 2], o[i / 16][i % 16 * 4 + 3]));
}

/* Two neighbouring outputs. */
__device__ static inline void store_pair(const attn_work &w, int64_t at, float a, float b)
{
    *(float2 *)(w.p.o + at) = make_float2(a, b);
}

template <typename W>
__device__ static inline void store_output(const float (&o)[2][64], const W &w, const joint &x, int item)
{
    int lane = threadIdx.x & 31, wg = threadIdx.x >> 7, head = FIRST_HEAD(lane), h0 = item % w.groups * HEADS;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float inv = x.inv[r];
        int64_t out =
            ((int64_t)(item / w.groups) * w.p.heads + h0 + head + 8 * r) * LORA + wg * 256 + (lane & 3) * 2;
        if (h0 + head + 8 * r < w.p.heads)
#pragma unroll
            for (int j = 0; j < 32; j++)
                store_pair(w, out + j * 8, o[j / 16][j % 16 * 4 + r * 2] * inv,
                           o[j / 16][j % 16 * 4 + r * 2 + 1] * inv);
    }
}

__device__ static inline void store_tile(const float (&o)[2][64], float *tile)
{
    int lane = threadIdx.x & 31, wg = threadIdx.x >> 7, head = FIRST_HEAD(lane);

#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int j = 0; j < 32; j++)
            *(float2 *)(tile + (head + 8 * r) * OUT_LD + wg * 256 + j * 8 + (lane & 3) * 2) =
                make_float2(o[j / 16][j % 16 * 4 + r * 2], o[j / 16][j % 16 * 4 + r * 2 + 1]);
}

template <typename E, typename W>
__device__ static inline void value_blocks(uint8_t *smem, const W &w, attn_shared *x, bool some)
{
    uint32_t kv = sl_smem_addr(smem);
    int it = 0, ended = 0, step = w.parts > 1 ? w.items : (int)gridDim.x, head = FIRST_HEAD(threadIdx.x & 31);
    float o[2][64];
    joint how = {};

    for (int item = w.parts > 1 ? blockIdx.y : blockIdx.x; item < w.items && some; item += step) {
        bool last = false;
        for (int part = 0; !last; part++) {
            for (int b = 0; b < SPLIT && !last; b++, it++) {
                int at = it & 1;
                uint32_t rows_tile = kv + at * STAGE;
                sl_mbar_wait(&x->prob[at], it >> 1 & 1);
                sl_fence_async();
                last = x->last[at];
                float fix[2] = {x->fix[at][head], x->fix[at][head + 8]};
                if (b > 0 && __any_sync(0xffffffffu, fix[0] != 1.0f || fix[1] != 1.0f)) {
#pragma unroll
                    for (int i = 0; i < 128; i++)
                        o[i / 64][i % 64] *= fix[i / 2 % 2];
                }
                multiply_values(o, rows_tile, x->empty[at], b, E());
                if (last || b + 1 == SPLIT) { /* read the factors before their stage is freed */
                    sl_mbar_wait(&x->merge[ended & 1], ended >> 1 & 1);
                    how = get_joint(x, ended++ & 1);
                    __syncwarp();
                }
                if ((threadIdx.x & 31) == 0)
                    sl_mbar_arrive(&x->empty[at][QUARTERS - 1]);
            }
            if (w.parts == 1)
                merge_part(o, w.partial + (int64_t)blockIdx.x * PARTIAL, how, part, last);
        }
        if (w.parts == 1)
            store_output(o, w, how, item);
    }
    if (w.parts > 1) {
        sl_bar_sync(BAR_VALUES, 256);
        if (some)
            store_tile(o, (float *)smem);
    }
}

#endif

#endif
