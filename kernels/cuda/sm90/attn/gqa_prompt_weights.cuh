/*
 * Inside gqa_prompt*.cu: the queries of a unit, and how the scores of a step become weights: what a row does not see, the
 * rule of skip_factor, the running maximum and the sum of a segment. The rows of a warpgroup vote on its tiles; what every
 * row leaves out costs no exponential and no product with the values.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_WEIGHTS_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_WEIGHTS_CUH
#include "kernels/cuda/sm90/attn/gqa_prompt.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* One of the two rows of a thread, in a unit. */
struct gqa_row_state {
    int64_t head;      /* of all tokens' heads; -1: the row is empty */
    int limit;         /* tokens of the list that it sees */
    float below, seen; /* the rule of skip_factor, in powers of 2: the difference, the maximum so far */
    float m, l, all_m, all_l; /* maximum and this thread's share of the sum; of the merged segments */
    unsigned int tiles, out;  /* counts of the first head of a group */
};

/* The queries of a unit as tiles; empty rows are zero. */
template <int DIM>
__device__ static inline void gqa_load_queries(const gqa_prompt_work &w, const gqa_unit &u, uint8_t *tile,
                                               int wg)
{
    for (int i = threadIdx.x & 127; i < ROWS * DIM / 8; i += 128) {
        int r = i / (DIM / 8), c = i % (DIM / 8), token = wg * w.per + r / w.g.group;
        uint4 v = make_uint4(0, 0, 0, 0);

        if (r < w.per * w.g.group && token < u.count) {
            const float4 *q =
                (const float4 *)(w.g.p.q +
                                 ((u.t + token) * w.g.p.heads + u.kv_head * w.g.group + r % w.g.group) * DIM +
                                 8 * c);
            float4 a = q[0], b = q[1];

            v = make_uint4(gqa_pack(a.x, a.y), gqa_pack(a.z, a.w), gqa_pack(b.x, b.y), gqa_pack(b.z, b.w));
        }
        *(uint4 *)(tile + c / 8 * SL_TILE + sl_swizzle(r, c % 8)) = v;
    }
    sl_fence_async();
}

__device__ static inline gqa_row_state gqa_start_row(const gqa_prompt_work &w, const gqa_unit &u, int gone,
                                                     int wg, int r)
{
    int token = wg * w.per + r / w.g.group;
    gqa_row_state x = {-1, 0, -INFINITY, -INFINITY, -INFINITY, 0, -INFINITY, 0, 0, 0};

    if (r >= w.per * w.g.group || token >= u.count)
        return x;
    x.head = (u.t + token) * w.g.p.heads + u.kv_head * w.g.group + r % w.g.group;
    if (w.g.s.token_seq[u.t + token] >= 0)
        x.limit =
            (int)min((int64_t)w.g.s.token_pos[u.t + token] + 1, (int64_t)w.g.p.k << w.g.p.rows.block_log2) -
            gone;
    x.below = gqa_skip_below(w.g, u.t + token) * LOG2E;
    return x;
}

/* The largest of N scores of row r (0 or 1) of this thread and the three others that hold the row, from s[first] on. */
template <int N, int ALL> __device__ static inline float gqa_largest(const float (&s)[ALL], int first, int r)
{
    float best = -INFINITY;

#pragma unroll
    for (int j = 0; j < N / 4; j++)
        best = fmaxf(best, fmaxf(s[first + j * 4 + r * 2], s[first + j * 4 + r * 2 + 1]));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
    return fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
}

/* Scores of tokens that a row does not see become -INFINITY. */
template <int ALL> __device__ static inline void gqa_mask(float (&s)[ALL], const int (&left)[2])
{
    int c = (threadIdx.x & 3) * 2;

#pragma unroll
    for (int i = 0; i < ALL; i++)
        if (i / 4 * 8 + c + i % 2 >= left[i / 2 % 2])
            s[i] = -INFINITY;
}

/* ---- the rule of skip_factor ---- */

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
 * Adds the scores of a step, whose largest ones are `top`, to maximum and sum, and makes them weights; fix: the factor for the
 * output so far. Nothing is done for the tiles in `out`: a weight of 0 changes no sum. After the first tile it calls mid() with
 * sums that need all weights until then.
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
