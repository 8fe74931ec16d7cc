/*
 * Scores of index keys for the queries of many heads, in float32: score = sum over heads of weight * relu(query . key). For
 * SL_OP_POOL_SCORES and SL_OP_ENTRY_SCORES; where the keys are, a caller says by a struct with at().
 *
 * A thread block walks over tiles of 4096 / H keys of one token, all at multiples of that, so a score does not depend on the step.
 * The tile's products with H heads at a time are 4 x 4 of each thread, over 32 dimensions that are in shared memory, transposed
 * (sl_path_pool_scores() has the shapes). Heads are added four by four in a thread, and the threads' sums in their order.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_KEY_SCORES_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_KEY_SCORES_CUH

#include "kernels/cuda/common.cuh"

#define KEY_THREADS 256
#define KEY_DIMS 32
#define KEY_BLOCKS 512 /* of a token, at most */

struct sl_key_queries {
    const float *q, *weights; /* of the token: [heads][dim]; [heads] or NULL */
    int heads, dim;
    float scale;
};

template <int H> struct sl_key_tile {
    enum { KEYS = 4096 / H };
    /* of 32 dimensions: value k of key u at keys[k][u ^ 4 * (k / 4 % 8)], which spreads what a warp stores over the banks */
    float keys[KEY_DIMS][KEYS];
    float q[KEY_DIMS][H];
};

/* Four values of a key, from dimension d on; dtype: SL_F32 or SL_BF16. */
__device__ static inline float4 sl_four_of(const uint8_t *key, int d, sl_dtype dtype)
{
    if (dtype == SL_F32)
        return *(const float4 *)(key + 4 * (int64_t)d);
    uint2 raw = *(const uint2 *)(key + 2 * (int64_t)d);
    float2 a = __bfloat1622float2(*(__nv_bfloat162 *)&raw.x),
           b = __bfloat1622float2(*(__nv_bfloat162 *)&raw.y);
    return make_float4(a.x, a.y, b.x, b.y);
}

/* Dimensions d0 .. d0 + 31 of the tile's keys and of heads h0 .. h0 + H - 1; what does not exist is zero. */
template <int H, typename K>
__device__ static void sl_load_key_tile(sl_key_tile<H> &x, const K &keys, const sl_key_queries &p, int first,
                                        int n, int h0, int d0)
{
    for (int i = threadIdx.x; i < sl_key_tile<H>::KEYS * 8; i += KEY_THREADS) {
        int u = i / 8, d = i % 8 * 4, to = u ^ 4 * (i % 8);
        const uint8_t *key = first + u < n ? keys.at(first + u) : NULL;
        float4 v = key ? sl_four_of(key, d0 + d, keys.dtype) : make_float4(0, 0, 0, 0);
        x.keys[d][to] = v.x, x.keys[d + 1][to] = v.y, x.keys[d + 2][to] = v.z, x.keys[d + 3][to] = v.w;
    }
    for (int i = threadIdx.x; i < KEY_DIMS * H; i += KEY_THREADS) {
        int h = i / KEY_DIMS, d = i % KEY_DIMS;
        x.q[d][h] = h0 + h < p.heads ? p.q[(int64_t)(h0 + h) * p.dim + d0 + d] : 0;
    }
}

/* dots[i][j] += head 4 * hg + i . key 4 * ug + j over the loaded dimensions. */
template <int H>
__device__ static inline void sl_multiply_key_tile(float (&dots)[4][4], const sl_key_tile<H> &x, int hg,
                                                   int ug)
{
#pragma unroll 8
    for (int k = 0; k < KEY_DIMS; k++) {
        float4 a = *(const float4 *)&x.q[k][4 * hg], b = *(const float4 *)&x.keys[k][4 * (ug ^ (k >> 2 & 7))];
        const float q[4] = {a.x, a.y, a.z, a.w}, key[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                dots[i][j] = fmaf(q[i], key[j], dots[i][j]);
    }
}

/* Scores of the first n keys of a token, to out. All threads of the block take part. */
template <int H, typename K>
__device__ static void sl_key_scores(sl_key_tile<H> &x, const K &keys, const sl_key_queries &p, int n,
                                     float *out)
{
    constexpr int KEYS = sl_key_tile<H>::KEYS, UG = KEYS / 4;
    int ug = threadIdx.x % UG, hg = threadIdx.x / UG;
    float(*part)[KEYS] = x.keys; /* [H / 4][KEYS], after the products */

    for (int first = (int)blockIdx.y * KEYS; first < n; first += (int)gridDim.y * KEYS) {
        float sums[4] = {};
        for (int h0 = 0; h0 < p.heads; h0 += H) {
            float dots[4][4] = {};
            for (int d0 = 0; d0 < p.dim; d0 += KEY_DIMS) {
                __syncthreads();
                sl_load_key_tile<H>(x, keys, p, first, n, h0, d0);
                __syncthreads();
                sl_multiply_key_tile<H>(dots, x, hg, ug);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int h = h0 + 4 * hg + i;
                float w = h >= p.heads ? 0.0f : p.weights ? p.weights[h] : 1.0f;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sums[j] = fmaf(fmaxf(dots[i][j], 0.0f), w, sums[j]);
            }
        }
        __syncthreads();
        *(float4 *)&part[hg][4 * ug] = make_float4(sums[0], sums[1], sums[2], sums[3]);
        __syncthreads();
        for (int u = threadIdx.x; u < KEYS && first + u < n; u += KEY_THREADS) {
            float sum = part[0][u];
            for (int g = 1; g < H / 4; g++)
                sum += part[g][u];
            out[first + u] = sum * p.scale;
        }
    }
}

/* Launches f<H>(): H heads at a time, 16, 32 or 64, by their number. */
#define SL_KEY_HEADS(heads, f) ((heads) <= 16 ? f<16> : (heads) <= 32 ? f<32> : f<64>)

static inline dim3 sl_key_grid(int tokens, int heads, int most_keys)
{
    int tiles = sl_ceil_div(most_keys, heads <= 16 ? 256 : heads <= 32 ? 128 : 64);
    return dim3((unsigned)tokens, (unsigned)(tiles < KEY_BLOCKS ? tiles : KEY_BLOCKS));
}

#endif
