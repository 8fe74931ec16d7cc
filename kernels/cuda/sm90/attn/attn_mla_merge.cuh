/*
 * Inside attn_mla.cu: the merge when the thread blocks of a cluster have computed the parts of a list concurrently;
 * the parts are read through distributed shared memory.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_MERGE_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_MERGE_CUH
#include "kernels/cuda/sm90/attn/attn_mla_impl.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* The factors that merge the parts, by the same steps that end_part() takes in turn. Returns how many parts exist. */
template <typename W>
__device__ static inline int cluster_factors(cg::cluster_group &cl, attn_shared *x, const W &w)
{
    int n = 1, parts = w.parts;

    while (n < parts && *cl.map_shared_rank(&x->present, n))
        n++;
    if (threadIdx.x < HEADS) {
        int h = threadIdx.x;
        float m = *cl.map_shared_rank(&x->max[h], 0), l = *cl.map_shared_rank(&x->sum[h], 0);
        for (int c = 1; c < n; c++)
            merge_sums(m, l, *cl.map_shared_rank(&x->max[h], c), *cl.map_shared_rank(&x->sum[h], c),
                       &x->part_keep[c][h], &x->part_take[c][h]);
        x->part_inv[h] = inverse_with_sink(w, (int)blockIdx.y % w.groups * HEADS + h, m, l);
    }
    sl_bar_sync(BAR_VALUES, 256);
    return n;
}

/* Four neighbouring outputs. */
__device__ static inline void store_four(const attn_work &w, int64_t at, float4 v)
{
    *(float4 *)(w.p.o + at) = v;
}

template <typename W>
__device__ static inline void cluster_merge(cg::cluster_group &cl, const float *tile, attn_shared *x,
                                            const W &w)
{
    int parts = cluster_factors(cl, x, w), item = blockIdx.y, h0 = item % w.groups * HEADS,
        heads = min(HEADS, w.p.heads - h0);
    int64_t out = ((int64_t)(item / w.groups) * w.p.heads + h0) * LORA;

    for (int base = (int)cl.block_rank() * 256 + threadIdx.x; base < heads * (LORA / 4);
         base += w.parts * 256 * 8) {
        float4 a[8];
#pragma unroll
        for (int u = 0; u < 8; u++) {
            int i = base + u * w.parts * 256, h = i / (LORA / 4);
            a[u] = h < heads ? cl.map_shared_rank((const float4 *)tile, 0)[h * (OUT_LD / 4) + i % (LORA / 4)]
                             : make_float4(0, 0, 0, 0);
        }
        for (int c = 1; c < parts; c++) {
            float4 v[8];
#pragma unroll
            for (int u = 0; u < 8; u++) {
                int i = base + u * w.parts * 256, h = min(i / (LORA / 4), heads - 1);
                v[u] = cl.map_shared_rank((const float4 *)tile, c)[h * (OUT_LD / 4) + i % (LORA / 4)];
            }
#pragma unroll
            for (int u = 0; u < 8; u++) {
                int h = min((base + u * w.parts * 256) / (LORA / 4), heads - 1);
                float keep = x->part_keep[c][h], take = x->part_take[c][h];
                a[u].x = merge(a[u].x, keep, v[u].x, take), a[u].y = merge(a[u].y, keep, v[u].y, take);
                a[u].z = merge(a[u].z, keep, v[u].z, take), a[u].w = merge(a[u].w, keep, v[u].w, take);
            }
        }
#pragma unroll
        for (int u = 0; u < 8; u++) {
            int i = base + u * w.parts * 256, h = i / (LORA / 4);
            if (h < heads) {
                float inv = x->part_inv[h];
                store_four(w, out + h * LORA + 4 * (i % (LORA / 4)),
                           make_float4(a[u].x * inv, a[u].y * inv, a[u].z * inv, a[u].w * inv));
            }
        }
    }
}

#endif

#endif
