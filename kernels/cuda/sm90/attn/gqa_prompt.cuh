/*
 * Inside gqa_prompt*.cu: attention of prompts, that is, dense causal attention of several adjacent tokens over bf16 or fp8
 * rows.
 *
 * The arithmetic is that of gqa_segments.cuh: a token gets the same output here, from a list of all blocks, and when it is
 * generated. What a row of queries gets does not depend on the other 63 rows that a warpgroup multiplies with it: these are the
 * query heads of one KV head, of as many adjacent tokens as fit. Two warpgroups share keys and values. One warp brings keys and
 * one brings values, by tensor copies, a page of 64 tokens at a time, from any division of rows (gqa_prompt.cu); of fp8 rows a
 * warpgroup does that and makes bf16 of them (gqa_prompt_bytes.cuh). The merged segments wait in shared memory (in device memory
 * with dimension 256). The warpgroups take turns at the tensor cores, so
 * that one computes weights while the other one multiplies. The first product of a segment does not add to the sum, in
 * place of zeros that are written to the registers: with those the compiler copied all sums once or twice in every step.
 * The products with the values run while the first half of the next weights is computed, see gqa_prompt_added(). Under the
 * rule of skip_factor a warp decides for its rows without waiting for the others, unless a group lies in two warps.
 *
 * Limit: 4 x dim operations for each pair of a query head and a token; a step of both warpgroups (128 tokens, dimension
 * 128) is 8.4 MFLOP, 1.04 us of one multiprocessor at its highest rate. Its keys and values are 64 KiB from the L2 cache.
 * Predicted: 520 TFLOP/s. Measured on an H200 (`cold --only gqa_attn,gqa_prompt`, 2,048 tokens after 6K to 62K): 510 to
 * 553, and 584 with rows of 16 tokens by KV head; 553 with dimension 256, 399 with 64. cuDNN in the same run: 592 to 605;
 * 652 and 452.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_PROMPT_CUH
#include <cuda.h>

#include "kernels/cuda/sm90/attn/gqa_segments.cuh"

#define ROWS 64      /* of queries, that a warpgroup multiplies */
#define MAX_STAGES 4 /* of the ring */

/* What follows from the head dimension. */
template <int DIM> struct gqa_prompt_size {
    static constexpr int STEP = gqa_step<DIM>::TOKENS;
    static constexpr int SIDE = STEP * DIM * 2; /* bytes of the keys of a step in shared memory */
    static constexpr int QUERIES = 2 * ROWS * DIM * 2;
    /* Merged segments of both warpgroups, in shared memory where they fit. */
    static constexpr int KEPT = DIM <= 128 ? 2 * ROWS * DIM * 4 : 0;
    static constexpr int STAGES = DIM == 64 ? 4 : 2;
    static constexpr int RING = QUERIES + KEPT;
    static constexpr int INFO = RING + STAGES * 2 * SIDE;
};

enum { PROMPT_THREADS = 384, PROMPT_BRING_REGS = 24, PROMPT_MULTIPLY_REGS = 240, PAGE_BOX = 64 * 128 };
enum { BAR_GROUP = 1, BAR_TURN = 3 }; /* named barriers, of two warpgroups each */

struct gqa_prompt_shared {
    uint64_t full_k[MAX_STAGES], full_v[MAX_STAGES], empty_k[MAX_STAGES], empty_v[MAX_STAGES];
    uint64_t tail; /* the values of a unit's last step have arrived, but not the zeros after them */
    alignas(16) uint32_t vote[2][2][4]; /* by parity of the step, warpgroup, warp; see gqa_vote() */
    uint4 group[2][ROWS];               /* the votes of the group of a row */
};

struct gqa_prompt_work {
    gqa_work g;
    const int32_t *tiles; /* the number n of tiles, then their first tokens and the number of all tokens */
    float
        *partial; /* merged segments of dimension 256, each thread's part where that thread finds it again */
    int32_t per;  /* tokens whose queries fill a warpgroup's rows */
};

/* A unit of work: one KV head of `count` adjacent tokens of a sequence from t on. */
struct gqa_unit {
    int64_t t;
    int count, kv_head;
};

__device__ static inline int gqa_units(const gqa_prompt_work &w)
{
    return w.tiles[0] * w.g.p.kv_heads;
}

/* The units with the longest lists come first: those are the last tokens of a sequence. */
__device__ static inline gqa_unit gqa_unit_at(const gqa_prompt_work &w, int i)
{
    const int32_t *first = w.tiles + (w.tiles[0] - i / w.g.p.kv_heads);

    return {first[0], first[1] - first[0], i % w.g.p.kv_heads};
}

/* Tokens before the unit's own ones that its list does not have, by one warp: what its tokens see ends that much earlier. */
__device__ static inline int gqa_gone(const gqa_prompt_work &w, const gqa_unit &u)
{
    int64_t last = u.t + u.count - 1;

    if (!w.g.p.prompt.of || w.g.p.prompt.of[last] < 0 || w.g.s.token_seq[last] < 0)
        return 0;
    return w.g.s.token_pos[last] + 1 - gqa_list_of(w.g, last, u.kv_head).n;
}

/* gqa_prompt_64.cu, gqa_prompt_128.cu, gqa_prompt_256.cu: the kernel for one head dimension. */
sl_status sl_cuda_gqa_prompt_64(sl_cuda *cu, const gqa_prompt_work *w, const CUtensorMap *map, sl_err *err);
sl_status sl_cuda_gqa_prompt_128(sl_cuda *cu, const gqa_prompt_work *w, const CUtensorMap *map, sl_err *err);
sl_status sl_cuda_gqa_prompt_256(sl_cuda *cu, const gqa_prompt_work *w, const CUtensorMap *map, sl_err *err);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* ---- the warp that brings keys and values ---- */

/* A step of a unit: which pages are its pages, and where they go. */
template <int DIM> struct gqa_box {
    static constexpr int COLUMNS = DIM / 64, PAGES = gqa_prompt_size<DIM>::STEP / 64, ALL = COLUMNS * PAGES;
    int column, page, block; /* this lane's box */
    bool mine;               /* whether the lane has a box of this step */
    uint32_t bytes;          /* of all boxes of one side */
};

/* The box of this lane in the step from token `at` on; ids: the pages of 32 consecutive numbers, one in each lane. */
template <int DIM>
__device__ static inline gqa_box<DIM> gqa_box_of(const gqa_prompt_work &w, int at, int end, int ids)
{
    typedef gqa_box<DIM> box;
    int lane = threadIdx.x & 31, left = max(end - at, 0), pages = min((left + 63) / 64, box::PAGES);
    box b = {lane % box::COLUMNS, lane / box::COLUMNS % box::PAGES, 0, false, 0};
    int id = __shfl_sync(0xffffffffu, ids, (at / 64 + b.page) & 31);

    b.mine = lane < box::ALL && b.page < pages;
    if (b.mine && id < 0) /* the copy engine makes it zeros */
        atomicOr(w.g.deverr, SL_DEVERR_PAGE);
    b.block = id < 0 ? -1 : id << (SL_PAGE_LOG2 - w.g.p.rows.block_log2);
    b.bytes = pages * box::COLUMNS * PAGE_BOX;
    return b;
}

/* Starts the copies of one side of a step (0: keys, 1: values) to the tiles at `to`. */
template <int DIM>
__device__ static inline void gqa_start_copies(const gqa_box<DIM> &b, const CUtensorMap *map, uint32_t to,
                                               int kv_head, int side, uint64_t *full)
{
    uint32_t bar = sl_smem_addr(full);

    if ((threadIdx.x & 31) == 0) {
        if (b.bytes > 0)
            sl_mbar_expect(bar, b.bytes);
        else
            sl_mbar_arrive(bar);
    }
    __syncwarp();
    if (b.mine)
        sl_copy_box5(to + b.column * (gqa_prompt_size<DIM>::STEP * 128) + b.page * PAGE_BOX, map,
                     b.column * 64, 0, kv_head, side, b.block, bar);
}

/* Zeros in place of the values after the first `rows` of a step: these may be of other sequences, or not finite. */
template <int DIM> __device__ static inline void gqa_clear_after(uint32_t to, int rows)
{
    const int step = gqa_prompt_size<DIM>::STEP, chunks = DIM / 8;

    for (int i = rows * chunks + (threadIdx.x & 31); i < step * chunks; i += 32) {
        int r = i / chunks, c = i % chunks;
        sl_store16_shared(to + c / 8 * (step * 128) + r * 128 + c % 8 * 16, make_uint4(0, 0, 0, 0));
    }
    sl_fence_async();
    __syncwarp();
}

/* Brings one side (0: keys, 1: values) of all steps. Each side has a warp: values are given back later than keys. */
template <int DIM>
__device__ static inline void gqa_prompt_bring(const gqa_prompt_work &w, const CUtensorMap *map,
                                               uint32_t smem, gqa_prompt_shared *x, int side)
{
    typedef gqa_prompt_size<DIM> size;
    int lane = threadIdx.x & 31, units = gqa_units(w), it = 0, tails = 0;
    uint64_t *full = side ? x->full_v : x->full_k, *empty = side ? x->empty_v : x->empty_k;

    for (int i = blockIdx.x; i < units; i += gridDim.x) {
        gqa_unit u = gqa_unit_at(w, i);
        gqa_list l = gqa_list_of(w.g, u.t + u.count - 1, u.kv_head);
        int pages = (l.n + 63) / 64, ids = -1, next = lane < pages ? gqa_page(l, lane) : -1;

        for (int at = 0; at < l.n || at == 0; at += size::STEP, it++) {
            int s = it % size::STAGES, round = it / size::STAGES, page = at / 64;
            uint32_t to = smem + size::RING + (s * 2 + side) * size::SIDE;
            bool part = side == 1 && l.n - at < size::STEP;

            if (page % 32 == 0) {
                ids = next;
                next = page + 32 + lane < pages ? gqa_page(l, page + 32 + lane) : -1;
            }
            gqa_box<DIM> b = gqa_box_of<DIM>(w, at, l.n, ids);

            if (round > 0)
                sl_mbar_wait(&empty[s], (round - 1) & 1);
            gqa_start_copies<DIM>(b, map, to, u.kv_head, side, part ? &x->tail : &full[s]);
            if (!part)
                continue;
            sl_mbar_wait(&x->tail, tails++ & 1);
            gqa_clear_after<DIM>(to, max(l.n - at, 0));
            if (lane == 0)
                sl_mbar_arrive(&full[s]);
        }
    }
}
#endif

#endif
