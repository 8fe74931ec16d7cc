/*
 * Scores of the pages before blocks of a prompt (sl_prompt_scores_params, kernels/gqa.h), of bf16 rows, on tensor cores.
 *
 * The products of strips are a product of matrices: a row for each strip of queries of a KV head, a column for each strip of its keys,
 * and 16 * dim values of k, token by token of the strips (token r of the queries meets token 15 - r of the keys). A first kernel rounds
 * the queries to bf16, so that both sides can be copied as they are. The second one computes tiles of 128 rows by 128 columns:
 * steps of 64 values of k go through three stages of shared memory, copies of two steps ahead of the products. What is
 * needed of a product is its part in the softmax, and never the product itself: a warp has 32 columns, eight pages, of its rows, and
 * writes for each row the largest product and the sums of exp() by page, relative to it: 9 values instead of 32. The third kernel
 * brings them to one maximum and adds them up by page.
 *
 * A score's bits depend on its strips alone: all values of k are added in one order, columns are divided at fixed places, and rows do
 * not meet before the third kernel, which adds those of a block.
 *
 * Limit: 4 * dim operations for each pair of a query head and a token, divided by 32: at 64K tokens, 32 heads and d 128 these are
 * 1.1 TFLOP for a layer. A tile brings 32 KiB from the L2 cache for each 2.1 MFLOP, 350 TFLOP/s at 5.5 TB/s, and reads shared memory at
 * about half of its rate. Thread blocks with the same keys run next to each other, so that the device memory reads
 * each key once for a chunk. Predicted: 300 TFLOP/s, 4 to 5 ms for a layer and a prompt of 64K with the two small kernels. Measured: 7.1
 * ms, where tiles of 64 rows without stages took 26 (docs/bench/h200-xattention-ttft.csv, --ops).
 */
#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/any/select/prompt_scores.cuh"

enum {
    ROWS = 128,    /* strips of queries of a thread block */
    COLUMNS = 128, /* strips of keys */
    STEP = 64,     /* values of k */
    STAGES = 3,
    SIDE =
        128 * STEP * 2, /* bytes of one side of a stage: rows of 128 bytes, swizzled as in sm90/wgmma.cuh */
    COPIES = 128 * (STEP / 8) / THREADS, /* of 16 bytes, of a thread, a side and a stage */
    SEGMENT = SL_STRIP_SEGMENT,          /* columns of a warp */
    MOST_BLOCKS = ROWS / STRIPS
};

/* The slice, and what the kernels leave in scratch memory. A row is (block * heads + head) * STRIPS + strip. */
struct tensor_job {
    scores_job s;
    __nv_bfloat16 *q;   /* [rows][STRIP][dim] */
    float *sums, *tops; /* [rows][pages], [rows][segments] */
    int segments, per;  /* of a row; blocks of a tile */
};

/* Thread block (i, head): the 64 queries of a block and head. */
__global__ static void __launch_bounds__(THREADS) round_kernel(const __grid_constant__ tensor_job j)
{
    const int i = blockIdx.x, head = blockIdx.y, dim = j.s.p.dim, pairs = dim / 2;
    const block_at b = block_of(j.s, i);

    if (b.seq < 0)
        return;
    const float *from = j.s.p.q + ((int64_t)b.t * j.s.p.heads + head) * dim;
    __nv_bfloat16 *to = j.q + ((int64_t)i * j.s.p.heads + head) * SL_PAGE_TOKENS * dim;
    for (int k = threadIdx.x; k < SL_PAGE_TOKENS * pairs; k += THREADS) {
        const int r = k / pairs, c = k % pairs * 2;
        const float2 v = *(const float2 *)(from + (int64_t)r * j.s.p.heads * dim + c);
        *(__nv_bfloat162 *)(to + r * dim + c) = __floats2bfloat162_rn(v.x, v.y);
    }
}

/* ---- tiles of products ---- */

/* Row r of a tile: block r / (STRIPS * group) of its blocks, then the head, then the strip. */
struct row_at {
    int block, head, strip;
};

__device__ static inline row_at row_of(int r, int group)
{
    return {r / (STRIPS * group), r / STRIPS % group, r % STRIPS};
}

__device__ static inline int64_t row_number(const tensor_job &j, int from, int kv_head, const row_at &at)
{
    return ((int64_t)(from + at.block) * j.s.p.heads + kv_head * j.s.group + at.head) * STRIPS + at.strip;
}

/* What a thread copies: chunk `chunk` of 16 bytes of token r of the strips, of every 32nd row and column. */
struct copies {
    gqa_list l;
    int q[COPIES];       /* where its rows are, in chunks of 16 bytes, or -1 */
    int page[COPIES];    /* entries of its columns' pages, or -1 */
    int strip, r, chunk; /* strip: of its first column */
};

__device__ static inline copies copies_of(const tensor_job &j, int from, int kv_head, int seq, int strip,
                                          int end)
{
    copies c = {list_of(j.s, seq, kv_head), {}, {}, strip + (int)threadIdx.x / 8, 0, (int)threadIdx.x % 8};
    const int chunks = j.s.p.dim / 8;

#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const row_at at = row_of(threadIdx.x / 8 + i * (THREADS / 8), j.s.group);
        const int mine = c.strip + i * (THREADS / 8);
        c.q[i] = at.block < j.per && from + at.block < j.s.n
                     ? (int)row_number(j, from, kv_head, at) * STRIP * chunks + c.chunk
                     : -1;
        c.page[i] = mine < end ? gqa_entry(j.s.w, c.l, mine * STRIP) : -1;
        if (mine < end && c.page[i] < 0)
            atomicOr(j.s.w.deverr, SL_DEVERR_PAGE);
    }
    for (; c.chunk >= chunks; c.chunk -= chunks)
        c.r++;
    return c;
}

/* Starts the copies of the next step to the stage at `to`; zeros where there is nothing. */
__device__ static inline void copy_step(const tensor_job &j, copies &c, uint32_t to)
{
    const int row = threadIdx.x / 8, chunks = j.s.p.dim / 8;
    const uint32_t at = to + row * 128 + ((threadIdx.x % 8 ^ (row & 7)) << 4);

#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const uint32_t down = i * (THREADS / 8) * 128;
        const int token = (c.strip + i * (THREADS / 8)) * STRIP + STRIP - 1 - c.r;
        const int64_t in = gqa_row(j.s.w, c.l, token, c.page[i]) * j.s.p.rows.row_bytes +
                           ((int64_t)gqa_slot(j.s.w, c.l, token) * j.s.p.dim + c.chunk * 8) * 2;
        sl_copy16(at + down, j.q + 8 * (int64_t)max(c.q[i], 0), c.q[i] >= 0);
        sl_copy16(at + SIDE + down, c.page[i] < 0 ? j.s.p.rows.base : j.s.p.rows.base + in, c.page[i] >= 0);
        if (c.q[i] >= 0)
            c.q[i] += STEP / 8;
    }
    for (c.chunk += STEP / 8; c.chunk >= chunks; c.chunk -= chunks)
        c.r++;
}

/* Adds a stage: the 64 rows of this warp's half by its 32 columns. */
__device__ static inline void add_step(float (&sum)[4][4][4], uint32_t stage)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, turn = lane & 7;
    const uint32_t q = stage + (warp / 4 * 64 + (lane >> 3 & 1) * 8 + turn) * 128,
                   k = stage + SIDE + (warp % 4 * SEGMENT + (lane >> 4) * 8 + turn) * 128;

#pragma unroll
    for (int s = 0; s < STEP / 16; s++) {
        uint32_t b[2][4], a[4][4];
#pragma unroll
        for (int n = 0; n < 2; n++)
            sl_ldmatrix(b[n], k + n * 16 * 128 + ((2 * s + (lane >> 3 & 1) ^ turn) << 4));
#pragma unroll
        for (int m = 0; m < 4; m++)
            sl_ldmatrix(a[m], q + m * 16 * 128 + ((2 * s + (lane >> 4) ^ turn) << 4));
#pragma unroll
        for (int i = 0; i < 16; i++)
            sl_mma_bf16(sum[i / 4][i % 4], a[i / 4], b[i % 4 / 2][i % 2 * 2], b[i % 4 / 2][i % 2 * 2 + 1]);
    }
}

/* The softmax of one row of a warp, whose 32 columns begin at `column` and of which it sees those up to `last`. The four lanes of
 * a row call it together; v: this lane's products, two of each eight columns. Rows that do not exist have number -1. */
__device__ static inline void put_row(const tensor_job &j, float (&v)[4][2], int64_t row, int column,
                                      int last)
{
    const int quad = threadIdx.x & 3;
    const float scale = j.s.p.scale / STRIP;
    float top = -INFINITY;

#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            v[n][e] = column + n * 8 + quad * 2 + e <= last ? v[n][e] : -INFINITY;
            top = fmaxf(top, v[n][e]);
        }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const bool some = row >= 0 && column <= last;
    if (some && quad == 0)
        j.tops[row * j.segments + column / SEGMENT] = top;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float sum =
            expf(__fmul_rn(scale, __fsub_rn(v[n][0], top))) + expf(__fmul_rn(scale, __fsub_rn(v[n][1], top)));
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        const int page = column / STRIPS + n * 2 + quad / 2;
        if (some && quad % 2 == 0 && page * STRIPS <= last)
            j.sums[row * j.s.pages + page] = sum;
    }
}

/* Blocks done .. done + count - 1 of the tile, all of one sequence; begin: their first strips. */
__device__ static inline void tile(const tensor_job &j, uint32_t smem, const int *begin, int from, int done,
                                   int count, int seq, int kv_head, int strip)
{
    const int steps = STRIP * j.s.p.dim / STEP, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float sum[4][4][4] = {};
    int end = 0;

    for (int i = 0; i < count; i++)
        end = max(end, begin[done + i] + STRIPS);
    if (strip >= end)
        return;
    copies c = copies_of(j, from, kv_head, seq, strip, end);
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps)
            copy_step(j, c, smem + i * 2 * SIDE);
        __pipeline_commit();
    }
    for (int i = 0; i < steps; i++) {
        __pipeline_wait_prior(STAGES - 2);
        __syncthreads(); /* step i has arrived, and step i - 1 is no longer read */
        if (i + STAGES - 1 < steps)
            copy_step(j, c, smem + (i + STAGES - 1) % STAGES * 2 * SIDE);
        __pipeline_commit();
        add_step(sum, smem + i % STAGES * 2 * SIDE);
    }
    __syncthreads(); /* the next blocks use the stages from the first one on */
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int low = 0; low < 2; low++) {
            const row_at at = row_of(warp / 4 * 64 + m * 16 + low * 8 + lane / 4, j.s.group);
            const bool mine = at.block >= done && at.block < done + count;
            float v[4][2];
#pragma unroll
            for (int n = 0; n < 4; n++)
                v[n][0] = sum[m][n][2 * low], v[n][1] = sum[m][n][2 * low + 1];
            put_row(j, v, mine ? row_number(j, from, kv_head, at) : -1, strip + warp % 4 * SEGMENT,
                    mine ? begin[at.block] + at.strip : -1);
        }
}

/* Thread block (x, KV head): blocks x % tiles * per on, columns from x / tiles * COLUMNS on. Blocks of one sequence at a time,
 * because they share keys: almost always all of them. */
__global__ static void __launch_bounds__(THREADS, 2)
    tiles_kernel(const __grid_constant__ tensor_job j, int tiles)
{
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ int seqs[MOST_BLOCKS], begin[MOST_BLOCKS];
    const int from = blockIdx.x % tiles * j.per, strip = blockIdx.x / tiles * COLUMNS;

    if (threadIdx.x < j.per) {
        const block_at b = block_of(j.s, from + threadIdx.x);
        seqs[threadIdx.x] = b.seq, begin[threadIdx.x] = b.pos / STRIP;
    }
    __syncthreads();
    for (int done = 0, count; done < j.per; done += count) {
        const int seq = seqs[done];
        for (count = 1; done + count < j.per && seqs[done + count] == seq;)
            count++;
        if (seq >= 0)
            tile(j, sl_smem_addr(smem), begin, from, done, count, seq, blockIdx.y, strip);
    }
}

/* ---- sums ---- */

/* Thread block (KV head, block): the scores of the pages. */
__global__ static void __launch_bounds__(THREADS) pages_kernel(const __grid_constant__ tensor_job j)
{
    __shared__ float top[GQA_GROUP * STRIPS], share[GQA_GROUP * STRIPS];
    const int kv_head = blockIdx.x, i = blockIdx.y, rows = j.s.group * STRIPS, lane = threadIdx.x & 31;
    const float scale = j.s.p.scale / STRIP;
    const block_at b = block_of(j.s, i);
    const int pages = b.pos / SL_PAGE_TOKENS + 1, in = SEGMENT / STRIPS;

    if (b.seq < 0)
        return;
    const int64_t first = ((int64_t)i * j.s.p.heads + kv_head * j.s.group) * STRIPS;
    const float *sums = j.sums + first * j.s.pages, *tops = j.tops + first * j.segments;
    for (int r = threadIdx.x >> 5; r < rows; r += WARPS) {
        const float *segment = tops + (int64_t)r * j.segments;
        float most = -INFINITY, sum = 0;
        for (int s = lane; s <= (pages - 1) / in; s += 32)
            most = fmaxf(most, segment[s]);
        most = sl_warp_max(most);
        for (int page = lane; page < pages; page += 32)
            sum += sums[(int64_t)r * j.s.pages + page] *
                   expf(__fmul_rn(scale, __fsub_rn(segment[page / in], most)));
        sum = sl_warp_sum(sum);
        if (lane == 0)
            top[r] = most, share[r] = 1 / sum;
    }
    __syncthreads();
    float *out = j.s.p.scores + ((int64_t)i * j.s.p.kv_heads + kv_head) * j.s.p.ld_scores;
    for (int page = threadIdx.x; page < pages; page += THREADS) {
        float score = 0;
        for (int r = 0; r < rows; r++)
            score = fmaf(sums[(int64_t)r * j.s.pages + page] * share[r],
                         expf(__fmul_rn(scale, __fsub_rn(tops[(int64_t)r * j.segments + page / in], top[r]))),
                         score);
        out[page] = score;
    }
}

/* ---- launches ---- */

static_assert(STAGES * 2 * SIDE == SL_PROMPT_SCORES_SMEM, "what the choice of the path asks for");

sl_status sl_cuda_prompt_scores_tensor(sl_cuda *cu, scores_job s, sl_err *err)
{
    const sl_prompt_scores_params *p = &s.p;
    tensor_job j = {s};
    const int all = s.p.n;
    j.segments = sl_ceil_div(s.pages * STRIPS, SEGMENT), j.per = ROWS / (STRIPS * s.group);
    const sl_prompt_space x = sl_prompt_space_of(p->heads, p->dim, s.pages);
    const int most = sl_slice_of(x.q + x.sums + x.tops, all);
    void *scratch;

    SL_TRY(sl_cuda_scratch(cu, (size_t)most * (x.q + x.sums + x.tops), &scratch, err));
    j.sums = (float *)scratch;
    j.tops = (float *)((uint8_t *)scratch + (size_t)most * x.sums);
    j.q = (__nv_bfloat16 *)((uint8_t *)scratch + (size_t)most * (x.sums + x.tops));
    return sl_for_slices(all, most, [&](int first, int count) {
        j.s.n = count, j.s.p.first = s.p.first + first;
        j.s.p.scores = s.p.scores + (int64_t)first * s.p.kv_heads * s.p.ld_scores;
        const int tiles = sl_ceil_div(count, j.per), columns = sl_ceil_div(j.s.pages * STRIPS, COLUMNS);
        SL_TRY(SL_LAUNCH(cu, round_kernel, (sl_launch{dim3(count, j.s.p.heads), THREADS}), err, j));
        SL_TRY(SL_LAUNCH(cu, tiles_kernel,
                         (sl_launch{dim3(tiles * columns, j.s.p.kv_heads), THREADS, SL_PROMPT_SCORES_SMEM}),
                         err, j, tiles));
        return SL_LAUNCH(cu, pages_kernel, (sl_launch{dim3(j.s.p.kv_heads, count), THREADS}), err, j);
    });
}
