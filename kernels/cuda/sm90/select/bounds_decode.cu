/*
 * Scores of bounds in 8 bits for decode: every bound is read once.
 *
 * A thread block has one token, some of its KV heads and every gridDim.x-th tile of 16 blocks (or more, for few heads).
 * One warp copies the bounds of a tile block by block with bulk copies, several tiles ahead; every other warp multiplies the
 * queries of one head. Rows in shared memory are an odd number of 16 bytes apart, so that 8 rows use all banks.
 *
 * Limit: 2 * d + 16 bytes per block and KV head. At 64K tokens, blocks of 16, 8 KV heads and d 128 they are 8.9 MB per request
 * and layer, 1.95 us at 4.58 TB/s; 120 requests take 234 us. A tile of 35 KB arrives in 1,760 clocks of a multiprocessor;
 * a warp needs about 150 instructions for its part, which is 300 clocks of each scheduler.
 */
#include "kernels/cuda/any/select/bounds_codes.cuh"

#define MOST_STAGES 8
#define TILES 16 /* of a thread block */

struct ring {
    int stage;
    uint32_t parity;
};

__device__ static inline void next(ring *r, int stages)
{
    if (++r->stage == stages)
        r->stage = 0, r->parity ^= 1;
}

/* One warp: copies the queries, then tile after tile. */
__device__ static void produce(const sl_bc_job &b, const sl_dot_token &at, int i, int head, int heads,
                               uint32_t rows_at, uint32_t queries_at, uint32_t full, uint32_t empty,
                               uint32_t ready)
{
    int lane = threadIdx.x & 31, rows = SL_BC_ROWS * b.row_sets, tiles = (at.n + rows - 1) / rows;
    uint32_t bytes = heads * b.unit;
    uint64_t once = sl_policy_evict_first();
    ring r = {0, 1};

    if (lane == 0) {
        sl_mbar_expect(ready, heads * b.record);
        sl_copy_bulk(queries_at, b.queries + ((int64_t)i * b.j.d.kv_heads + head) * b.record,
                     heads * b.record, ready);
    }
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const uint8_t *from[4];
        int count = 0;

#pragma unroll
        for (int k = 0; k < 4; k++) {
            int row = tile * rows + lane + 32 * k;
            bool in = lane + 32 * k < rows && row < at.n;
            from[k] = in ? sl_dots_row(b.j, at.pages, head, row) : NULL;
            count += __popc(__ballot_sync(0xffffffffu, from[k] != NULL));
        }
        sl_mbar_wait(empty + 8 * r.stage, r.parity);
        if (lane == 0)
            sl_mbar_expect(full + 8 * r.stage, count * bytes);
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (from[k])
                sl_copy_bulk(rows_at + (r.stage * rows + lane + 32 * k) * b.row_ld, from[k], bytes,
                             full + 8 * r.stage, once);
        next(&r, b.stages);
    }
}

/* The products of 16 rows, of which this lane's first one lies at `at`, with all queries of one head. */
template <int G>
__device__ static inline void multiply(const sl_bc_job &b, const uint8_t *at, const uint8_t *queries, int i,
                                       int head, int row, int n)
{
    const int dim = G * SL_BOUNDS_GROUP;
    int lane = threadIdx.x & 31;
    const uint8_t *mine = at + 4 * (lane & 3);
    const float *scales = (const float *)(queries + b.tiles * G * 256);
    uint4 low = *(const uint4 *)(at + 2 * dim), high = *(const uint4 *)(at + 8 * b.row_ld + 2 * dim);
    sl_bc_sum best = {-INFINITY, -INFINITY}, v;

    for (int t = 0; t < b.tiles; t++) {
        const uint2 *q = (const uint2 *)queries + t * G * 32 + lane;
        sl_bc_sum sum = {0, 0};

#pragma unroll
        for (int g = 0; g < G; g++) {
            const uint32_t a[4] = {*(const uint32_t *)(mine + 16 * g),
                                   *(const uint32_t *)(mine + 16 * g + 8 * b.row_ld),
                                   *(const uint32_t *)(mine + 16 * g + dim),
                                   *(const uint32_t *)(mine + 16 * g + dim + 8 * b.row_ld)};
            sl_bc_add(&sum, a, q[32 * g], sl_bc_scale(sl_bc_word(low, g / 4), g % 4),
                      sl_bc_scale(sl_bc_word(high, g / 4), g % 4));
        }
        sl_bc_finish(b, t, scales[SL_BC_QUERIES * t + (lane & 3)], sum, &v, &best);
        if (b.j.d.raw)
            sl_bc_put(b, i, head, t, row, n, v);
    }
    if (!b.j.d.raw)
        sl_bc_put_best(b, i, head, row, n, best);
}

template <int G> __global__ static void __launch_bounds__(288, 2) stream_kernel(sl_bc_job b)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ uint64_t bars[2 * MOST_STAGES + 1];
    int i = blockIdx.z, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, rows = SL_BC_ROWS * b.row_sets;
    int first = blockIdx.y * b.heads, heads = min(b.heads, b.j.d.kv_heads - first);
    uint32_t full = sl_smem_addr(bars), empty = full + 8 * MOST_STAGES, ready = empty + 8 * MOST_STAGES;
    const uint8_t *queries = smem + b.stages * rows * b.row_ld;
    sl_dot_token at;

    if (!sl_dots_token(b.j, i, &at))
        return;
    if (!b.j.d.raw && b.j.d.plus == 0 && blockIdx.x == 0 && threadIdx.x < heads)
        b.out[((int64_t)i * b.j.d.kv_heads + first + threadIdx.x) * b.j.d.ld_out + at.n] = 0;
    int tiles = (at.n + rows - 1) / rows;
    if (blockIdx.x >= tiles)
        return;
    if (threadIdx.x == 0) {
        for (int s = 0; s < b.stages; s++) {
            sl_mbar_init(full + 8 * s, 1);
            sl_mbar_init(empty + 8 * s, heads * b.row_sets);
        }
        sl_mbar_init(ready, 1);
        sl_mbar_init_fence();
    }
    __syncthreads();
    if (warp == b.heads * b.row_sets) {
        produce(b, at, i, first, heads, sl_smem_addr(smem), sl_smem_addr(queries), full, empty, ready);
        return;
    }
    int head = warp % b.heads, set = warp / b.heads;
    if (head >= heads)
        return;
    ring r = {0, 0};
    sl_mbar_wait(ready, 0);
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int in = SL_BC_ROWS * set + lane / 4;

        sl_mbar_wait(full + 8 * r.stage, r.parity);
        multiply<G>(b, smem + (r.stage * rows + in) * b.row_ld + head * b.unit, queries + head * b.record, i,
                    first + head, tile * rows + in, at.n);
        __syncwarp();
        if (lane == 0)
            sl_mbar_arrive(empty + 8 * r.stage);
        next(&r, b.stages);
    }
#endif
}

/* ---- launch ---- */

#define BLOCKS 2 /* of a multiprocessor */

/* How the work is divided: 8 warps with products, as many KV heads in a thread block as the records of queries allow. */
static size_t divide(const sl_cuda *cu, sl_bc_job *b)
{
    size_t room = cu->gpu.smem / BLOCKS - 1024, used;

    b->heads = b->j.d.kv_heads < 8 ? b->j.d.kv_heads : 8;
    for (;; b->heads = (b->heads + 1) / 2) {
        b->row_sets = 8 / b->heads;
        b->row_ld = b->heads * b->unit;
        b->row_ld += b->row_ld / 16 % 2 ? 0 : 16;
        used = (size_t)b->heads * b->record;
        size_t stage = (size_t)SL_BC_ROWS * b->row_sets * b->row_ld;
        if (b->heads > 1 && used + 2 * stage > room)
            continue;
        b->stages = used + 2 * stage > room ? 2 : (int)((room - used) / stage);
        b->stages = b->stages > MOST_STAGES ? MOST_STAGES : b->stages;
        return used + b->stages * stage;
    }
}

template <int G> static sl_status run(sl_cuda *cu, const sl_bc_job *b, size_t smem, sl_err *err)
{
    int tiles = sl_ceil_div(b->j.d.ld_out, SL_BC_ROWS * b->row_sets), splits = sl_ceil_div(tiles, TILES);

    dim3 grid(splits, sl_ceil_div(b->j.d.kv_heads, b->heads), b->j.d.token_count);
    return SL_LAUNCH(cu, stream_kernel<G>, (sl_launch{grid, (int)(32 * (b->heads * b->row_sets + 1)), smem}),
                     err, *b);
}

sl_status sl_cuda_bounds_stream(sl_cuda *cu, const sl_bc_job *job, sl_err *err)
{
    sl_bc_job b = *job;
    size_t smem = divide(cu, &b);

    if (smem + 1024 > cu->gpu.smem)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: queries of %d bytes exceed the shared memory",
                       b.record);
    return b.groups == 4   ? run<4>(cu, &b, smem, err)
           : b.groups == 8 ? run<8>(cu, &b, smem, err)
                           : run<16>(cu, &b, smem, err);
}
