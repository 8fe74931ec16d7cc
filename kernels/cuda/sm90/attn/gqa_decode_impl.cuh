/*
 * Inside gqa_decode*.cu: decode attention over keys and values, one query token of every list. The sizes of its ring in
 * shared memory, its units of work, and what its two sides share.
 *
 * A unit is the list of one KV head of one token, or one segment of SEGMENT tokens of that list. Its sums do not depend on
 * any other unit. With the rule of skip_factor a unit is a whole list, because the rule needs the maximum of all earlier tokens.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_DECODE_IMPL_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_DECODE_IMPL_CUH
#include "kernels/cuda/sm90/attn/gqa_segments.cuh"
#include "kernels/cuda/maps.h"

#define DEC_STAGES 6 /* at most */

/* How rows reach the ring. */
typedef enum {
    DEC_BOXES,  /* bf16: boxes of the copy engine, each of several tokens of a row or of a page */
    DEC_COPIES, /* bf16: copies of 16 bytes by four warps, for rows of fewer than 8 tokens anywhere */
    DEC_BYTES,  /* fp8: the same copies; those who multiply make bf16 of them */
} dec_mode;

enum { DEC_WARPS = 8, DEC_MULTIPLIERS = 32 * DEC_WARPS }; /* that multiply */

template <int DIM, int MODE> struct dec_size {
    static constexpr int STEP = gqa_step<DIM>::TOKENS;
    static constexpr int SIDE = STEP * DIM * (MODE == DEC_BYTES ? 1 : 2); /* bytes of the keys of a step */
    static constexpr int FIT = 206 * 1024 / (2 * SIDE);
    static constexpr int STAGES = FIT < DEC_STAGES ? FIT : DEC_STAGES;
    static constexpr int INFO = STAGES * 2 * SIDE; /* where dec_shared begins */
    static constexpr int THREADS = DEC_MULTIPLIERS + (MODE == DEC_BOXES ? 32 : 128);
    /* Arrivals that complete keys and values: that of the thread that starts the boxes; or of every fetching thread,
     * and with keys of the one that stores rows and last. */
    static constexpr int KEYS = MODE == DEC_BOXES ? 1 : 128 + 1;
    static constexpr int VALUES = MODE == DEC_BOXES ? 1 : 128;
};

template <int DIM> struct dec_shared {
    static constexpr int STEP = gqa_step<DIM>::TOKENS;
    uint64_t full_k[DEC_STAGES], full_v[DEC_STAGES], empty_k[DEC_STAGES], empty_v[DEC_STAGES];
    int32_t rows[DEC_STAGES], last[DEC_STAGES]; /* tokens of the step; whether it is the unit's last one */
    /* By query head, 16 of them. Rows are longer than what they hold, so that no two of eight rows share a bank. */
    alignas(16) uint8_t q[GQA_GROUP][DIM * 2 + 16];  /* queries, bf16 */
    alignas(16) uint8_t p[GQA_GROUP][STEP * 2 + 16]; /* weights of a step, bf16 */
    alignas(16) float weight[GQA_GROUP][STEP + 8];   /* the same, not rounded */
    alignas(16) float most[GQA_GROUP][DEC_WARPS];    /* the largest score of each warp's tokens */
    float l[GQA_GROUP];                              /* sums of weights at the end of a unit */
    alignas(16) float scale[DEC_STAGES][2][STEP];    /* of fp8 rows: of keys and values, by token */
};

/* Where boxes lie in the map of all rows, in which a line holds `pitch` bytes. Box `side` of the `box` tokens of row r
 * begins at byte x0 + kv_head * head_x + side * side_x of line r * row_y + side * side_y. */
struct dec_boxes {
    int32_t box; /* tokens of a box: those of a row, or of a page */
    int32_t row_y, side_y, side_x, head_x;
};

struct dec_work {
    gqa_work g;
    float *partial; /* [T][heads][parts]: DIM sums, maximum, sum of weights, two unused; read if parts > 1 */
    int32_t parts;  /* units of a list: 1, or its segments */
    dec_boxes b;
};

struct dec_unit {
    int64_t t;
    int kv_head, part;
};

__device__ static inline int dec_units(const dec_work &w)
{
    return w.g.p.tokens * w.parts * w.g.p.kv_heads;
}

__device__ static inline dec_unit dec_unit_at(const dec_work &w, int i)
{
    int rest = i / w.g.p.kv_heads;

    return {rest / w.parts, i % w.g.p.kv_heads, rest % w.parts};
}
#endif
