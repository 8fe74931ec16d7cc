/*
 * Inside gqa_prompt*.cu: how the scores of a step become weights under the rule of skip_factor. The rows of a warpgroup
 * vote on its tiles; what every row leaves out costs no exponential and no product with the values.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_WEIGHTS_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_WEIGHTS_CUH
#include "kernels/cuda/sm90/attn/gqa_prompt.cuh"

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

/* The tiles of a step that all rows leave out. */
template <int TILES> __device__ static inline uint32_t gqa_left_out(const uint4 &votes)
{
    uint32_t all = votes.x & votes.y & votes.z & votes.w, out = 0;

#pragma unroll
    for (int j = 0; j < TILES; j++)
        out |= (all >> (2 * j) & ALL_ROWS) == ALL_ROWS ? 1u << j : 0;
    return __shfl_sync(0xffffffffu, out, 0);
}

/*
 * The rule of skip_factor for the tiles of a step: each row votes, and a tile is left out for a token if all rows of its
 * group want that. A warp decides alone for its rows; only if groups lie in two warps (bar is not 0) it waits for the
 * others. What all warps leave out is known at the next barrier, from `vote`. Scores of a tile that is left out become
 * -INFINITY, or stay undefined where all rows of the warp leave the tile out: the result has a bit for each of those.
 * own: of each row, the votes of its group in this warp. best: by row and tile the largest scaled score that is not left
 * out.
 */
template <int ALL>
__device__ static inline uint32_t gqa_vote(float (&s)[ALL], gqa_row_state (&x)[2], float (&best)[2][ALL / 32],
                                           uint32_t *vote, const uint4 *group, const uint32_t (&own)[2],
                                           int at, float scale, int bar)
{
    const int tiles = ALL / 32;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    uint32_t mine = 0, out;

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
    uint4 v = make_uint4(mine, mine, mine, mine);
    if (bar) {
        sl_bar_sync(bar, 128);
        v = *(const uint4 *)vote;
    }
    out = gqa_left_out<tiles>(v);
#pragma unroll
    for (int j = 0; j < tiles; j++) {
        bool leave[2];

#pragma unroll
        for (int r = 0; r < 2; r++) {
            leave[r] = bar ? gqa_voted(v, group[warp * 16 + lane / 4 + 8 * r], j)
                           : (own[r] & ~(mine >> (2 * j))) == 0;
            if (x[r].below > -INFINITY && at + j * GQA_TILE < x[r].limit)
                x[r].tiles++, x[r].out += leave[r];
            best[r][j] = leave[r] ? -INFINITY : best[r][j];
        }
        if ((out >> j & 1) || !__any_sync(0xffffffffu, leave[0] || leave[1]))
            continue;
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[j * 32 + i] = leave[i / 2 % 2] ? -INFINITY : s[j * 32 + i];
    }
    return out;
}

/* The largest scaled scores of a step that are not left out. */
template <int TILES> __device__ static inline void gqa_tops(const float (&best)[2][TILES], float (&top)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = best[r][0];
#pragma unroll
        for (int j = 1; j < TILES; j++)
            top[r] = fmaxf(top[r], best[r][j]);
    }
}

/*
 * gqa_soften() without the tiles in `out`, where the largest scores of the step are known. A weight of 0 changes no sum, so
 * the bits are the same. After the first tile it calls mid() with sums that need all weights until then.
 */
template <int ALL, class MID>
__device__ static inline void gqa_soften_some(float (&s)[ALL], gqa_row_state (&x)[2], const float (&top)[2],
                                              float scale, uint32_t out, float (&fix)[2], MID mid)
{
    float safe[2], sum[2] = {0, 0}, more[2] = {0, 0};

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = fmaxf(x[r].m, top[r]);

        safe[r] = m == -INFINITY ? 0.0f : m;
        fix[r] = sl_exp2_approx(x[r].m - safe[r]);
        x[r].m = m;
    }
#pragma unroll
    for (int j = 0; j < ALL / 32; j++) {
        if (!(out >> j & 1)) {
#pragma unroll
            for (int i = j * 16; i < j * 16 + 16; i++) {
                float &a = s[i * 2], &b = s[i * 2 + 1];

                a = sl_exp2_approx(__fmaf_rn(a, scale, -safe[i % 2]));
                b = sl_exp2_approx(__fmaf_rn(b, scale, -safe[i % 2]));
                sum[i % 2] = __fadd_rn(sum[i % 2], a), more[i % 2] = __fadd_rn(more[i % 2], b);
            }
        }
        if (j == 0)
            mid(fminf(fminf(sum[0], more[0]), fminf(sum[1], more[1])));
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        x[r].l = __fmaf_rn(x[r].l, fix[r], __fadd_rn(sum[r], more[r]));
}
#endif

#endif
