/*
 * Scores of bounds in 8 bits for chunks of prompts: a thread block has 128 blocks of one KV head and up to 64 tokens. Each
 * of 8 warps keeps the bounds of 16 blocks in registers while the queries of the tokens pass through shared memory.
 *
 * Limit: 8 multiplications of 16 x 8 x 32 for 16 blocks of d 128, a KV head with up to 4 queries, and a token. A chunk of 2,048
 * tokens at 64K has 33.5 million of them, 0.07 ms at the rate of the tensor cores; with about 84 instructions of a warp
 * for the eight of them it is 0.38 ms.
 */
#include "kernels/cuda/any/select/bounds_codes.cuh"

#define WARPS 8
#define TOKENS 64 /* of a thread block */
#define EACH 4    /* tokens of a stage */
#define STAGES 4

struct chunk_group {
    const int32_t *pages[TOKENS];
    int n[TOKENS];
};

template <int G> struct chunk_rows {
    uint32_t a[G][4];
    float low[G], high[G];
};

template <int G>
__device__ static inline void load_rows(const sl_bc_job &b, const int32_t *pages, int head, int row, int n,
                                        chunk_rows<G> *out)
{
    const int dim = G * SL_BOUNDS_GROUP;
    const uint8_t *low = row < n ? sl_dots_row(b.j, pages, head, row) : NULL,
                  *high = row + 8 < n ? sl_dots_row(b.j, pages, head, row + 8) : NULL;
    uint4 e0 = low ? *(const uint4 *)(low + 2 * dim) : make_uint4(0, 0, 0, 0),
          e1 = high ? *(const uint4 *)(high + 2 * dim) : make_uint4(0, 0, 0, 0);

#pragma unroll
    for (int g = 0; g < G; g++) {
        int at = 16 * g + 4 * (threadIdx.x & 3);

        out->a[g][0] = low ? *(const uint32_t *)(low + at) : 0;
        out->a[g][1] = high ? *(const uint32_t *)(high + at) : 0;
        out->a[g][2] = low ? *(const uint32_t *)(low + dim + at) : 0;
        out->a[g][3] = high ? *(const uint32_t *)(high + dim + at) : 0;
        out->low[g] = sl_bc_scale(sl_bc_word(e0, g / 4), g % 4);
        out->high[g] = sl_bc_scale(sl_bc_word(e1, g / 4), g % 4);
    }
}

template <int G>
__device__ static inline void token_scores(const sl_bc_job &b, const chunk_rows<G> &rows,
                                           const uint8_t *queries, int i, int head, int row, int n)
{
    int lane = threadIdx.x & 31;
    const float *scales = (const float *)(queries + b.tiles * G * 256);
    sl_bc_sum best = {-INFINITY, -INFINITY}, v;

    for (int t = 0; t < b.tiles; t++) {
        const uint2 *q = (const uint2 *)queries + t * G * 32 + lane;
        sl_bc_sum sum = {0, 0};

#pragma unroll
        for (int g = 0; g < G; g++)
            sl_bc_add(&sum, rows.a[g], q[32 * g], rows.low[g], rows.high[g]);
        sl_bc_finish(b, t, scales[SL_BC_QUERIES * t + (lane & 3)], sum, &v, &best);
        if (b.j.d.raw)
            sl_bc_put(b, i, head, t, row, n, v);
    }
    if (!b.j.d.raw)
        sl_bc_put_best(b, i, head, row, n, best);
}

/* The queries of the tokens, EACH at a time. */
__device__ static void send_queries(const sl_bc_job &b, int base, int count, int head, uint32_t to,
                                    uint32_t full, uint32_t empty)
{
    for (int t = 0; t < count; t += EACH) {
        int stage = t / EACH % STAGES, some = min(EACH, count - t);

        sl_mbar_wait(empty + 8 * stage, (t / EACH / STAGES & 1) ^ 1);
        sl_mbar_expect(full + 8 * stage, some * b.record);
        for (int k = 0; k < some; k++)
            sl_copy_bulk(to + (stage * EACH + k) * b.record,
                         b.queries + ((int64_t)(base + t + k) * b.j.d.kv_heads + head) * b.record, b.record,
                         full + 8 * stage);
    }
}

template <int G> __global__ static void __launch_bounds__(32 * WARPS + 32) chunk_kernel(sl_bc_job b)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ chunk_group g;
    __shared__ uint64_t bars[2 * STAGES];
    uint32_t full = sl_smem_addr(bars), empty = full + 8 * STAGES;
    int base = blockIdx.z * TOKENS, head = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int count = min(TOKENS, b.j.d.token_count - base), first = SL_BC_ROWS * (blockIdx.x * WARPS + warp);
    int row = first + lane / 4, most = 0;

    if (threadIdx.x < count) {
        sl_dot_token at = {NULL, 0};
        bool on = sl_dots_token(b.j, base + threadIdx.x, &at);
        g.pages[threadIdx.x] = on ? at.pages : NULL;
        g.n[threadIdx.x] = on ? at.n : 0;
        most = on ? at.n : 0;
        if (on && !b.j.d.raw && b.j.d.plus == 0 && blockIdx.x == 0)
            b.out[((int64_t)(base + threadIdx.x) * b.j.d.kv_heads + head) * b.j.d.ld_out + at.n] = 0;
    }
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            sl_mbar_init(full + 8 * s, 1);
            sl_mbar_init(empty + 8 * s, WARPS);
        }
        sl_mbar_init_fence();
    }
    if (!__syncthreads_or(most > SL_BC_ROWS * WARPS * (int)blockIdx.x))
        return;
    if (warp == WARPS) {
        if (lane == 0)
            send_queries(b, base, count, head, sl_smem_addr(smem), full, empty);
        return;
    }
    chunk_rows<G> rows;
    const int32_t *pages = NULL;
    for (int t = 0; t < count; t++) {
        int turn = t / EACH, stage = turn % STAGES;

        if (t % EACH == 0)
            sl_mbar_wait(full + 8 * stage, turn / STAGES & 1);
        if (g.n[t] > first) {
            if (g.pages[t] != pages) { /* the rows of a run of tokens of one sequence */
                int n = 0;
                pages = g.pages[t];
                for (int u = t; u < count && g.pages[u] == pages; u++)
                    n = max(n, g.n[u]);
                load_rows<G>(b, pages, head, row, n, &rows);
            }
            token_scores<G>(b, rows, smem + (stage * EACH + t % EACH) * b.record, base + t, head, row,
                            g.n[t]);
        }
        __syncwarp();
        if (lane == 0 && (t % EACH == EACH - 1 || t == count - 1))
            sl_mbar_arrive(empty + 8 * stage);
    }
#endif
}

/* ---- launch ---- */

template <int G> static sl_status run(sl_cuda *cu, const sl_bc_job *b, sl_err *err)
{
    size_t smem = (size_t)STAGES * EACH * b->record;
    dim3 grid(sl_ceil_div(b->j.d.ld_out, SL_BC_ROWS * WARPS), b->j.d.kv_heads,
              sl_ceil_div(b->j.d.token_count, TOKENS));

    if (smem + 4096 > cu->gpu.smem)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: queries of %d bytes exceed the shared memory",
                       b->record);
    return SL_LAUNCH(cu, chunk_kernel<G>, (sl_launch{grid, (int)(32 * WARPS + 32), smem}), err, *b);
}

sl_status sl_cuda_bounds_chunk(sl_cuda *cu, const sl_bc_job *b, sl_err *err)
{
    return b->groups == 4 ? run<4>(cu, b, err) : b->groups == 8 ? run<8>(cu, b, err) : run<16>(cu, b, err);
}
