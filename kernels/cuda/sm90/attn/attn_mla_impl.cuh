/*
 * Inside attn_mla.cu: the sizes of its tiles, the shared memory of a thread block, the work of a launch, and how the
 * results of two parts of a list are merged.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_IMPL_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_IMPL_CUH
#include "kernels/cuda/sm90/wgmma.cuh"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

#define HEADS 64
#define BLOCK 64
#define LORA 512
/* 64-column tiles of a row block; the last one holds the rope columns where rows have them, later the probabilities */
#define TILES 9
#define STAGE (TILES * SL_TILE)
/* quarters of a block, 16 rows each: with bf16 rows they are freed and filled one by one */
#define QUARTERS 4
#define SPLIT 16 /* blocks of rows in a part of the list */
#define MAX_PARTS 8
#define THREADS 512
#define OUT_LD 520 /* floats; in a cluster's merge the output tile occupies the memory of the two stages */
#define PARTIAL (HEADS * LORA) /* floats */

/* Registers per thread of the warpgroups by role: 128 + 64 + 2 * 160 = 4 * 128, what the launch gives to all. */
#define FETCH_REGS 128
#define SCORE_REGS 64
#define VALUE_REGS 160

/* Roles of the four warpgroups: 0 and 1 multiply probabilities with rows. */
enum { SCORE_GROUP = 2, FETCH_GROUP = 3 };

/* Arrivals that end a phase of the barriers in attn_shared. full: the copies of each fetching thread, and each fetching
 * warp for what it stored; empty: each warp of the two value warpgroups; prob and merge: each scoring warp. */
enum { FULL_ARRIVALS = 128 + 4, EMPTY_ARRIVALS = 8, SCORE_ARRIVALS = 4 };

/* Named barriers of the block: queries are loaded, among the scoring warps, among the value warps. */
enum { BAR_QUERY = 1, BAR_SCORES = 2, BAR_VALUES = 3 };

struct attn_shared {
    uint64_t full[2], empty[2][QUARTERS], prob[2], merge[2]; /* empty: with fp8 rows, the last */
    /* by stage: the number of valid rows of its block; whether it is the last block of its item */
    int32_t rows[2], last[2];
    float fix[2][HEADS]; /* the factor for the output so far, applied before this block is added */
    float keep[2][HEADS], take[2][HEADS], inv[2][HEADS]; /* the factors of a part's merge */
    float max[HEADS], sum[HEADS];                        /* this thread block's part, for the cluster */
    int32_t present;
    alignas(
        16) int32_t lists[4][4][16]; /* by fetching warp: physical rows of four blocks; not of attn_ring.cu */
    float part_keep[MAX_PARTS][HEADS], part_take[MAX_PARTS][HEADS], part_inv[HEADS];
};

#define SMEM_Q (2 * STAGE)
#define SMEM_INFO (SMEM_Q + STAGE)
#define SMEM_BYTES (SMEM_INFO + sizeof(attn_shared))

struct attn_work {
    using id = int32_t; /* a row of a list; negative: none */
    sl_sparse_attn_params p;
    float *partial;   /* [gridDim.x][PARTIAL], used with one thread block per item */
    int groups;       /* groups of heads */
    int items, parts; /* parts: thread blocks of a cluster; 1: one thread block per item */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* The first of the two heads of an item whose scores and outputs this thread holds; the second is eight further on.
 * They are the rows of the products: see sl_wgmma_* in ptx.cuh. A macro, because the kernel uses all registers
 * and spills more when this is a function. */
#define FIRST_HEAD(lane) ((threadIdx.x & 127) / 32 * 16 + (lane) / 4)

/* Adds part (mc, lc) to (m, l): outputs are keep * old + take * new. */
__device__ static inline void merge_sums(float &m, float &l, float mc, float lc, float *keep, float *take)
{
    float top = fmaxf(m, mc), safe = top == -INFINITY ? 0.0f : top;

    *keep = exp2f(m - safe);
    *take = exp2f(mc - safe);
    l = __fmaf_rn(l, *keep, __fmul_rn(lc, *take));
    m = top;
}

__device__ static inline float merge(float old, float keep, float fresh, float take)
{
    return __fmaf_rn(old, keep, __fmul_rn(fresh, take));
}

__device__ static inline float inverse(float l)
{
    return l == 0.0f ? 0.0f : 1.0f / l;
}

/* 1 / the sum of all parts, whose maximum is m, with the sink of this head of the model. m is in powers of two. */
template <typename W> __device__ static inline float inverse_with_sink(const W &w, int head, float m, float l)
{
    if (w.p.sinks && l != 0.0f && head < w.p.heads)
        l += exp2f(__fmaf_rn(w.p.sinks[head], 1.4426950408889634f, -m));
    return inverse(l);
}

#endif

#endif
