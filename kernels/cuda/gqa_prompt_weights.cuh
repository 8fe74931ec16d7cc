/*
 * Inside gqa_prompt*.cu: how the scores of a step become weights under the rule of skip_factor. The rows of a warpgroup
 * vote on its tiles; what every row leaves out costs no exponential and no product with the values.
 */
#ifndef SL_KERNELS_CUDA_GQA_PROMPT_WEIGHTS_CUH
#define SL_KERNELS_CUDA_GQA_PROMPT_WEIGHTS_CUH
#include "kernels/cuda/gqa_prompt.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ALL_ROWS                                                                                             \
    0x33333333u /* the votes of all rows on the first tile; those on the second are 2 bits higher */

/* The bits in which row R of the warpgroup votes on the first tile: bit 4 (R % 8) + R % 16 / 8 of word R / 16. */
__device__ static inline uint4 gqa_vote_bits(int first, int count)
{
    uint32_t v[4] = {0, 0, 0, 0};

    for (int r = first; r < first + count; r++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] |= r / 16 == i ? 1u << (4 * (r % 8) + r % 16 / 8) : 0;
    return make_uint4(v[0], v[1], v[2], v[3]);
}

__device__ static inline bool gqa_voted(const uint4 &votes, const uint4 &bits, int tile)
{
    uint32_t s = 2 * tile;

    return (((bits.x & ~(votes.x >> s)) | (bits.y & ~(votes.y >> s)) | (bits.z & ~(votes.z >> s)) |
             (bits.w & ~(votes.w >> s)))) == 0;
}

/*
 * The rule of skip_factor for the tiles of a step: each row votes, and a tile is left out for a token if all rows of its
 * group want that. Scores of such tiles become -INFINITY, or stay undefined where all rows of the warpgroup leave the tile
 * out: the result has a bit for each of those. best: by row and tile the largest scaled score that is not left out.
 */
template <int ALL>
__device__ static inline uint32_t gqa_vote(float (&s)[ALL], gqa_row_state (&x)[2], float (&best)[2][ALL / 32],
                                           uint32_t *vote, const uint4 *group, int at, float scale, int bar)
{
    const int tiles = ALL / 32;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    uint32_t mine = 0, all, out = 0;

#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int j = 0; j < tiles; j++) {
            best[r][j] = __fmul_rn(gqa_largest<32>(s, j * 32, r), scale);
            mine |= x[r].head < 0 || best[r][j] - x[r].seen < x[r].below ? 1u << (r + 2 * j) : 0;
            x[r].seen = fmaxf(x[r].seen, best[r][j]);
        }
    mine = __ballot_sync(0xffffffffu, mine >> (lane & 3) & 1);
    if (lane == 0)
        vote[warp] = mine;
    sl_bar_sync(bar, 128);
    uint4 v = *(const uint4 *)vote;
    all = v.x & v.y & v.z & v.w;
#pragma unroll
    for (int j = 0; j < tiles; j++)
        out |= (all >> (2 * j) & ALL_ROWS) == ALL_ROWS ? 1u << j : 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (x[r].head < 0)
            continue;
        uint4 bits = group[warp * 16 + lane / 4 + 8 * r];
#pragma unroll
        for (int j = 0; j < tiles; j++) {
            bool leave = gqa_voted(v, bits, j);

            if (x[r].below > -INFINITY && at + j * GQA_TILE < x[r].limit)
                x[r].tiles++, x[r].out += leave;
            if (!leave)
                continue;
            best[r][j] = -INFINITY;
            if (out >> j & 1)
                continue;
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (i / 2 % 2 == r)
                    s[j * 32 + i] = -INFINITY;
        }
    }
    return __shfl_sync(0xffffffffu, out, 0);
}

/* gqa_soften() without the tiles in `out`, where the largest scores are known. A weight of 0 changes no sum, so the bits
 * are the same. */
template <int ALL>
__device__ static inline void gqa_soften_some(float (&s)[ALL], gqa_row_state (&x)[2],
                                              const float (&best)[2][ALL / 32], float scale, uint32_t out,
                                              float (&fix)[2])
{
    float safe[2], sum[2] = {0, 0}, more[2] = {0, 0};

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = x[r].m;

#pragma unroll
        for (int j = 0; j < ALL / 32; j++)
            top = fmaxf(top, best[r][j]);
        safe[r] = top == -INFINITY ? 0.0f : top;
        fix[r] = sl_exp2_approx(x[r].m - safe[r]);
        x[r].m = top;
    }
#pragma unroll
    for (int j = 0; j < ALL / 32; j++) {
        if (out >> j & 1)
            continue;
#pragma unroll
        for (int i = j * 8; i < j * 8 + 8; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float &a = s[i * 4 + r * 2], &b = s[i * 4 + r * 2 + 1];

                a = sl_exp2_approx(__fmaf_rn(a, scale, -safe[r]));
                b = sl_exp2_approx(__fmaf_rn(b, scale, -safe[r]));
                sum[r] = __fadd_rn(sum[r], a), more[r] = __fadd_rn(more[r], b);
            }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        x[r].l = __fmaf_rn(x[r].l, fix[r], __fadd_rn(sum[r], more[r]));
}
#endif

#endif
