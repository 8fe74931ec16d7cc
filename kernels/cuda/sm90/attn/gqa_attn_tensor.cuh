/*
 * Inside gqa_attn_tensor.cu: the sizes of its tiles, the shared memory of a thread block, the units of work of a launch,
 * and how the results of two segments of a list are merged.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_ATTN_TENSOR_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_ATTN_TENSOR_CUH
#include "kernels/cuda/any/attn/gqa_attn.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

#define SEGMENT 512 /* tokens of a list that are added up by themselves, a multiple of every STEP */
#define ROWS 64     /* of queries, that a warpgroup multiplies */
#define MAX_STAGES 4
#define SMEM_TILES (225 * 1024)
#define LOG2E 1.4426950408889634f

/* What follows from the head dimension and from the number of multiplying warpgroups. The tokens that are added in one
 * step are the same for all numbers of warpgroups, because the bits depend on them. */
template <int DIM, int GROUPS> struct gqa_size {
    static constexpr int STEP = DIM == 256 ? 64 : 128;
    static constexpr int SIDE = STEP * DIM * 2; /* bytes of the keys of a step in shared memory */
    static constexpr int QUERIES = GROUPS * ROWS * DIM * 2;
    static constexpr int FIT = (SMEM_TILES - QUERIES) / (2 * SIDE);
    static constexpr int STAGES = FIT < MAX_STAGES ? FIT : MAX_STAGES;
    static constexpr int THREADS = 128 * (GROUPS + 1);
    static constexpr int INFO = QUERIES + STAGES * 2 * SIDE;
};

/* Arrivals of keys: every fetching thread, and one of them for the numbers that it stored; of values: every fetching
 * thread. The stage becomes empty by each multiplying warp. */
enum { KEY_ARRIVALS = 128 + 1, VALUE_ARRIVALS = 128, FETCH_REGS = 56, MULTIPLY_REGS = 224 };

struct gqa_shared {
    uint64_t full_k[MAX_STAGES], full_v[MAX_STAGES], empty_k[MAX_STAGES], empty_v[MAX_STAGES];
    int32_t rows[MAX_STAGES], last[MAX_STAGES]; /* tokens of the step; whether it is the unit's last one */
    alignas(16)
        uint8_t vote[2][2][ROWS]; /* by parity of the step and warpgroup: tiles that a row would leave out */
};

struct gqa_tensor_work {
    gqa_work g;
    const int32_t
        *tiles;     /* the number n of tiles, then their first tokens and the number of all tokens, or NULL */
    float *partial; /* see store_part() and merge_part() */
    int32_t parts;  /* 1, or the segments of a list, each of which is a unit */
    int32_t per;    /* tokens whose queries fill a warpgroup's rows */
};

/* gqa_attn_64.cu, gqa_attn_128.cu, gqa_attn_256.cu: the kernel for one head dimension, with 1 or 2 multiplying warpgroups. */
sl_status sl_cuda_gqa_launch_64(sl_cuda *cu, const gqa_tensor_work *w, int groups, int grid, sl_err *err);
sl_status sl_cuda_gqa_launch_128(sl_cuda *cu, const gqa_tensor_work *w, int groups, int grid, sl_err *err);
sl_status sl_cuda_gqa_launch_256(sl_cuda *cu, const gqa_tensor_work *w, int groups, int grid, sl_err *err);

/* gqa_prompt.cu: the units of w->tiles over bf16 rows, with the same bits. */
sl_status sl_cuda_gqa_prompt(sl_cuda *cu, const gqa_tensor_work *w, sl_err *err);

/* A unit of work: one KV head of `count` adjacent tokens of a sequence from t on; of split lists, one segment. */
struct gqa_unit {
    int64_t t;
    int count, kv_head, part;
};

__device__ static inline int gqa_units(const gqa_tensor_work &w)
{
    return (w.tiles ? w.tiles[0] : w.g.p.tokens * w.parts) * w.g.p.kv_heads;
}

/* The units with the longest lists come first: those are the last tokens of a sequence. */
__device__ static inline gqa_unit gqa_unit_at(const gqa_tensor_work &w, int i)
{
    int kv_head = i % w.g.p.kv_heads, rest = i / w.g.p.kv_heads;

    if (w.tiles) {
        const int32_t *first = w.tiles + (w.tiles[0] - rest);
        return {first[0], first[1] - first[0], kv_head, 0};
    }
    return {rest / w.parts, 1, kv_head, rest % w.parts};
}

/* Tokens before the unit's own ones that its list does not have, by one warp: what its tokens see ends that much earlier. */
__device__ static inline int gqa_gone(const gqa_tensor_work &w, const gqa_unit &u)
{
    int64_t last = u.t + u.count - 1;

    if (!w.g.p.prompt.of || w.g.p.prompt.of[last] < 0 || w.g.s.token_seq[last] < 0)
        return 0;
    return w.g.s.token_pos[last] + 1 - gqa_list_of(w.g, last, u.kv_head).n;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Adds segment (mc, lc) to (m, l): outputs are keep * old + take * new. */
__device__ static inline void gqa_merge_sums(float &m, float &l, float mc, float lc, float *keep, float *take)
{
    float top = fmaxf(m, mc), safe = top == -INFINITY ? 0.0f : top;

    *keep = sl_exp2_approx(m - safe);
    *take = sl_exp2_approx(mc - safe);
    l = __fmaf_rn(l, *keep, __fmul_rn(lc, *take));
    m = top;
}

__device__ static inline float gqa_merge(float old, float keep, float fresh, float take)
{
    return __fmaf_rn(old, keep, __fmul_rn(fresh, take));
}

/* The output of a row whose sum of weights is l. The zero makes -0 to +0, which a merge with nothing does too. */
__device__ static inline float gqa_output(float o, float l)
{
    return l > 0 ? __fadd_rn(__fmul_rn(o, __fdiv_rn(1.0f, l)), 0.0f) : 0.0f;
}

__device__ static inline void gqa_warp_arrive(uint64_t *b)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        sl_mbar_arrive(b);
}
#endif

#endif
