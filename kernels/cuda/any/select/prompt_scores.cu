/*
 * Scores of the pages before blocks of a prompt (sl_prompt_scores_params, kernels/gqa.h). A first kernel writes the products of
 * strips of queries with strips of keys to scratch memory, a second one their softmax, summed by page.
 *
 * A product of two strips is one of 16 * dim values, of which those of token r of the queries meet those of token 15 - r of the
 * keys. On tensor cores a thread block multiplies 64 strips of queries of one KV head (those of the group's heads of as many blocks
 * as fit) with 128 strips of keys, 2,048 tokens, token by token of the strips: for each of the 16 one slice of queries and one of
 * keys goes to shared memory. Everything else (f32 and fp8 rows, other dimensions) is multiplied by plain threads.
 *
 * Limit: 4 * dim operations for each pair of a query head and a token, divided by 32: at 64K tokens, 32 heads and d 128 these are
 * 1.1 TFLOP for a layer, where attention has 35. A thread block reads 0.5 MB of queries and as much of keys from the L2 cache,
 * together 33 GB, 7 ms at 5 TB/s. Measured: 26 ms for a layer and a prompt of 64K, H200 (docs/bench/h200-xattention-ttft.csv, --ops).
 */
#include "kernels/cuda/any/attn/gqa_attn.cuh"

enum {
    STRIP = SL_PROMPT_STRIP,
    STRIPS = SL_PAGE_TOKENS / STRIP,
    ROWS = 64,     /* strips of queries of a thread block */
    COLUMNS = 128, /* strips of keys */
    THREADS = 256,
    WARPS = THREADS / 32,
    PAD = 8 /* bf16 values after a row in shared memory */
};

struct scores_job {
    sl_prompt_scores_params p;
    gqa_work w;           /* of the same rows */
    const int32_t *first; /* of the slice */
    float *a, *scores;    /* [n][heads * STRIPS][ld], row h * STRIPS + m; [n][kv_heads][ld_scores] */
    int n, ld, group;
};

struct block_at {
    int t, seq, pos; /* of the first token; seq -1: there is none */
};

__device__ static inline block_at block_of(const scores_job &j, int i)
{
    block_at b = {0, -1, 0};
    int seq, pos;

    if (i >= j.n)
        return b;
    b.t = j.first[i];
    if (!sl_token(&j.w.s, b.t, j.w.deverr, &seq, &pos))
        return b;
    if (pos % SL_PAGE_TOKENS || (pos / SL_PAGE_TOKENS + 1) * STRIPS > j.ld) {
        atomicOr(j.w.deverr, SL_DEVERR_POS);
        return b;
    }
    b.seq = seq, b.pos = pos;
    return b;
}

__device__ static inline gqa_list list_at(const scores_job &j, const block_at &b, int kv_head)
{
    gqa_list l = {j.w.s.row_pages + (int64_t)b.seq * j.w.s.ld, NULL, kv_head, b.pos + SL_PAGE_TOKENS};
    return l;
}

/* The bytes of a token's key, or NULL without a page. */
__device__ static inline const uint8_t *key_at(const scores_job &j, const gqa_list &l, int token, int size)
{
    int64_t row = gqa_row(j.w, l, token, gqa_entry(j.w, l, token));

    if (row < 0) {
        atomicOr(j.w.deverr, SL_DEVERR_PAGE);
        return NULL;
    }
    return j.p.rows.base + row * j.p.rows.row_bytes + (int64_t)gqa_slot(j.w, l, token) * j.p.dim * size;
}

/* ---- products on tensor cores ---- */

__device__ static inline void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Row r of a thread block: block r / (STRIPS * group) of its blocks, then the head, then the strip. */
struct row_at {
    int block, head, strip;
};

__device__ static inline row_at row_of(int r, int group)
{
    return {r / (STRIPS * group), r / STRIPS % group, r % STRIPS};
}

/* Token r of the strips of queries, of blocks first .. first + count - 1, as bf16; zeros in the other rows. */
__device__ static void load_queries(const scores_job &j, const int *tokens, int count, int kv_head, int r,
                                    __nv_bfloat16 *to)
{
    const int dim = j.p.dim, pairs = dim / 2;

    for (int i = threadIdx.x; i < ROWS * pairs; i += THREADS) {
        int row = i / pairs, c = i % pairs * 2;
        row_at at = row_of(row, j.group);
        float2 v = make_float2(0, 0);
        if (at.block < count) {
            int64_t t = tokens[at.block] + at.strip * STRIP + r;
            v = *(const float2 *)(j.p.q + (t * j.p.heads + kv_head * j.group + at.head) * dim + c);
        }
        *(__nv_bfloat162 *)(to + row * (dim + PAD) + c) = __floats2bfloat162_rn(v.x, v.y);
    }
}

/* Token 15 - r of the strips of keys from `strip` on; zeros from strip `end` on. */
__device__ static void load_keys(const scores_job &j, const gqa_list &l, int strip, int end, int r,
                                 __nv_bfloat16 *to)
{
    const int dim = j.p.dim, chunks = dim / 8;

    for (int i = threadIdx.x; i < COLUMNS * chunks; i += THREADS) {
        int s = i / chunks, c = i % chunks * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (strip + s < end) {
            const uint8_t *key = key_at(j, l, (strip + s) * STRIP + STRIP - 1 - r, 2);
            v = key ? *(const uint4 *)(key + 2 * c) : v;
        }
        *(uint4 *)(to + s * (dim + PAD) + c) = v;
    }
}

/* Adds one token of the strips: 64 rows by the 16 columns of this warp. */
__device__ static void add_products(float (&sum)[4][2][4], const __nv_bfloat16 *q, const __nv_bfloat16 *k,
                                    int dim)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, ld = dim + PAD, g = lane / 4,
              c = lane % 4 * 2;

    for (int at = 0; at < dim; at += 16) {
        uint32_t b[2][2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const __nv_bfloat16 *row = k + (warp * 16 + n * 8 + g) * ld + at + c;
            b[n][0] = *(const uint32_t *)row, b[n][1] = *(const uint32_t *)(row + 8);
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const __nv_bfloat16 *row = q + (m * 16 + g) * ld + at + c, *low = row + 8 * ld;
            uint32_t a[4] = {*(const uint32_t *)row, *(const uint32_t *)low, *(const uint32_t *)(row + 8),
                             *(const uint32_t *)(low + 8)};
#pragma unroll
            for (int n = 0; n < 2; n++)
                multiply(sum[m][n], a, b[n]);
        }
    }
}

/* Writes what the strips see: strip m of a block that begins at strip s has the strips up to s + m. */
__device__ static void put_products(const scores_job &j, const float (&sum)[4][2][4], const int *begin,
                                    int first, int count, int kv_head, int strip)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            int row = m * 16 + lane / 4 + e / 2 % 2 * 8, n = e / 4;
            int column = strip + warp * 16 + n * 8 + lane % 4 * 2 + e % 2;
            row_at at = row_of(row, j.group);
            if (at.block >= count || column > begin[at.block] + at.strip)
                continue;
            int64_t to =
                ((int64_t)(first + at.block) * j.p.heads + kv_head * j.group + at.head) * STRIPS + at.strip;
            j.a[to * j.ld + column] = sum[m][n][e % 4];
        }
}

/* Blocks of one sequence at a time, because they share keys: almost always all of them. */
__global__ static void __launch_bounds__(THREADS)
    products_kernel(const __grid_constant__ scores_job j, int per)
{
    extern __shared__ __align__(16) __nv_bfloat16 smem[];
    __shared__ int tokens[ROWS], begin[ROWS];
    const int strip = blockIdx.x * COLUMNS, kv_head = blockIdx.y, from = blockIdx.z * per;
    __nv_bfloat16 *q = smem, *k = smem + ROWS * (j.p.dim + PAD);

    for (int done = 0; done < per && from + done < j.n;) {
        block_at b = block_of(j, from + done);
        int count = 0, end = 0;
        for (; done + count < per && from + done + count < j.n; count++) {
            block_at other = block_of(j, from + done + count);
            if (other.seq != b.seq)
                break;
            if (threadIdx.x == 0)
                tokens[count] = other.t, begin[count] = other.pos / STRIP;
            end = max(end, other.pos / STRIP + STRIPS);
        }
        if (b.seq >= 0 && strip < end) { /* the same for all threads */
            gqa_list l = list_at(j, b, kv_head);
            float sum[4][2][4] = {};
            for (int r = 0; r < STRIP; r++) {
                __syncthreads();
                load_queries(j, tokens, count, kv_head, r, q);
                load_keys(j, l, strip, end, r, k);
                __syncthreads();
                add_products(sum, q, k, j.p.dim);
            }
            put_products(j, sum, begin, from + done, count, kv_head, strip);
        }
        __syncthreads(); /* tokens are written again */
        done += count;
    }
}

/* ---- products by plain threads ---- */

__device__ static inline float key_value(const scores_job &j, const uint8_t *row, int slot, int c)
{
    int64_t n = (int64_t)j.w.slots * j.p.dim, i = (int64_t)slot * j.p.dim + c;

    if (j.p.format == SL_ROW_GQA_F32)
        return ((const float *)row)[i];
    if (j.p.format == SL_ROW_GQA_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)row)[i]);
    return __fmul_rn(sl_e4m3f(row[i]), ((const float *)(row + 2 * n))[slot]);
}

/* A warp for each product: strip blockIdx.x * WARPS + warp of the keys. */
__global__ static void __launch_bounds__(THREADS) plain_kernel(const __grid_constant__ scores_job j)
{
    const int strip = blockIdx.x * WARPS + (threadIdx.x >> 5), head = blockIdx.y, i = blockIdx.z,
              lane = threadIdx.x & 31;
    block_at b = block_of(j, i);
    gqa_list l = list_at(j, b, head / j.group);

    if (b.seq < 0 || strip > b.pos / STRIP + STRIPS - 1)
        return;
    for (int m = 0; m < STRIPS; m++) {
        float sum = 0;
        if (strip > b.pos / STRIP + m)
            continue;
        for (int r = 0; r < STRIP; r++) {
            int token = strip * STRIP + STRIP - 1 - r;
            int64_t row = gqa_row(j.w, l, token, gqa_entry(j.w, l, token));
            if (row < 0) {
                atomicOr(j.w.deverr, SL_DEVERR_PAGE);
                return;
            }
            const uint8_t *key = j.p.rows.base + row * j.p.rows.row_bytes;
            const float *q = j.p.q + ((int64_t)(b.t + m * STRIP + r) * j.p.heads + head) * j.p.dim;
            for (int c = lane; c < j.p.dim; c += 32)
                sum = fmaf(q[c], key_value(j, key, gqa_slot(j.w, l, token), c), sum);
        }
        sum = sl_warp_sum(sum);
        if (lane == 0)
            j.a[(((int64_t)i * j.p.heads + head) * STRIPS + m) * j.ld + strip] = sum;
    }
}

/* ---- softmax and sums ---- */

/* One thread block for a block of tokens and a KV head. */
__global__ static void __launch_bounds__(THREADS) sums_kernel(const __grid_constant__ scores_job j)
{
    __shared__ float tops[GQA_GROUP * STRIPS];
    __shared__ double sums[GQA_GROUP * STRIPS];
    const int i = blockIdx.y, kv_head = blockIdx.x, rows = j.group * STRIPS, lane = threadIdx.x & 31;
    const float scale = j.p.scale / STRIP;
    block_at b = block_of(j, i);

    if (b.seq < 0)
        return;
    const float *a = j.a + ((int64_t)i * j.p.heads + kv_head * j.group) * STRIPS * j.ld;
    for (int r = threadIdx.x >> 5; r < rows; r += WARPS) {
        int n = b.pos / STRIP + r % STRIPS + 1;
        float top = -INFINITY;
        double sum = 0;
        for (int s = lane; s < n; s += 32)
            top = fmaxf(top, a[(int64_t)r * j.ld + s]);
        top = sl_warp_max(top);
        for (int s = lane; s < n; s += 32)
            sum += (double)expf(__fmul_rn(scale, __fsub_rn(a[(int64_t)r * j.ld + s], top)));
        for (int o = 16; o > 0; o >>= 1)
            sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (lane == 0)
            tops[r] = top, sums[r] = sum;
    }
    __syncthreads();
    float *out = j.scores + ((int64_t)i * j.p.kv_heads + kv_head) * j.p.ld_scores;
    for (int page = threadIdx.x; page <= b.pos / SL_PAGE_TOKENS; page += THREADS) {
        float score = 0;
        for (int r = 0; r < rows; r++)
            for (int s = page * STRIPS; s < (page + 1) * STRIPS && s <= b.pos / STRIP + r % STRIPS; s++)
                score +=
                    (float)((double)expf(__fmul_rn(scale, __fsub_rn(a[(int64_t)r * j.ld + s], tops[r]))) /
                            sums[r]);
        out[page] = score;
    }
}

/* ---- launches ---- */

static sl_status products(sl_cuda *cu, const scores_job *j, sl_err *err)
{
    const size_t smem = (size_t)(ROWS + COLUMNS) * (size_t)(j->p.dim + PAD) * 2;

    if (j->p.format != SL_ROW_GQA_BF16 || j->p.dim % 16 || j->p.rows.row_bytes % 16 || smem > cu->gpu.smem)
        return SL_LAUNCH(cu, plain_kernel,
                         (sl_launch{dim3(sl_ceil_div(j->ld, WARPS), j->p.heads, j->n), THREADS}), err, *j);
    const int per = ROWS / (STRIPS * j->group);
    dim3 grid(sl_ceil_div(j->ld, COLUMNS), j->p.kv_heads, sl_ceil_div(j->n, per));
    return SL_LAUNCH(cu, products_kernel, (sl_launch{grid, THREADS, smem}), err, *j, per);
}

static sl_status run_prompt_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_prompt_scores_params *p = (const sl_prompt_scores_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    sl_gqa_attn_params rows = {};
    scores_job j = {};
    void *scratch;

    if (p->heads / p->kv_heads > GQA_GROUP)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cuda: prompt_scores: heads: a KV head has %d query heads, at most %d are possible",
                       p->heads / p->kv_heads, GQA_GROUP);
    rows.seqs = p->seqs, rows.rows = p->rows, rows.format = p->format;
    rows.heads = p->heads, rows.kv_heads = p->kv_heads, rows.dim = p->dim;
    j.p = *p, j.w = gqa_work_of(cu, &rows), j.group = j.w.group;
    j.ld = (p->max_pos / SL_PAGE_TOKENS + 1) * STRIPS;
    const size_t each = 4 * (size_t)p->heads * STRIPS * (size_t)j.ld, limit = (size_t)64 << 20;
    int most = (int)(limit / each < 1 ? 1 : limit / each);
    most = most < p->n ? most : p->n;
    SL_TRY(sl_cuda_scratch(cu, (size_t)most * each, &scratch, err));
    j.a = (float *)scratch;
    for (int done = 0; done < p->n; done += most) {
        j.n = p->n - done < most ? p->n - done : most;
        j.first = p->first + done;
        j.scores = p->scores + (int64_t)done * p->kv_heads * p->ld_scores;
        SL_TRY(products(cu, &j, err));
        SL_TRY(SL_LAUNCH(cu, sums_kernel, (sl_launch{dim3(p->kv_heads, j.n), THREADS}), err, j));
    }
    return SL_OK;
}

const sl_op_impl sl_cuda_prompt_scores = {.run = run_prompt_scores};
