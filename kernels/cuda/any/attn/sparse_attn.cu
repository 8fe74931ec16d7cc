/*
 * Sparse MLA over selected rows, in blocks of 64 rows in list order with a running maximum.
 *
 * Plain path: every row format, any number of heads and any width, float32 throughout; one thread block per token
 * and 8 heads. Rows are decoded into shared memory 16 at a time, once for the scores and once for the values.
 */
#include "kernels/cuda/common.cuh"

#define HEADS 8
#define BLOCK 64
#define SUB 16
#define SLICE 32768 /* tokens of a launch */
#define THREADS 256
#define COLS_MAX 4 /* lora <= THREADS * COLS_MAX */

__device__ static float row_value(const uint8_t *row, int i, const sl_sparse_attn_params &p)
{
    if (p.format == SL_ROW_MLA_F32)
        return ((const float *)row)[i];
    if (p.format == SL_ROW_MLA_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)row)[i]);
    int groups = (p.lora + 127) / 128;
    if (i >= p.lora)
        return __bfloat162float(((const __nv_bfloat16 *)(row + p.lora + 4 * groups))[i - p.lora]);
    return __fmul_rn(sl_e4m3f(row[i]), ((const float *)(row + p.lora))[i / 128]);
}

/* Loads rows from n0 on of the list into rows[SUB][d]; rows that do not exist become zeros. */
__device__ static void load_rows(float *rows, const int32_t *phys, int n0, int n, int d,
                                 const sl_sparse_attn_params &p)
{
    __syncthreads();
    for (int i = threadIdx.x; i < SUB * d; i += THREADS) {
        int r = n0 + i / d;
        rows[i] = r < n ? row_value(p.rows.base + phys[r] * p.rows.row_bytes, i % d, p) : 0.0f;
    }
    __syncthreads();
}

__device__ static int list_length(const int32_t *phys, int k)
{
    __shared__ int n;

    if (threadIdx.x == 0)
        n = k;
    __syncthreads();
    for (int i = threadIdx.x; i < k; i += THREADS)
        if (phys[i] < 0)
            atomicMin(&n, i);
    __syncthreads();
    return n;
}

__global__ static void __launch_bounds__(THREADS) plain_attn_kernel(sl_sparse_attn_params p)
{
    extern __shared__ float smem[];
    __shared__ float prob[HEADS][BLOCK], top[HEADS], sum[HEADS], fix[HEADS];
    int d = p.lora + p.rope, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t t = blockIdx.y;
    int h0 = blockIdx.x * HEADS, nh = min(HEADS, p.heads - h0);
    float *q = smem, *rows = smem + HEADS * d, acc[COLS_MAX][HEADS] = {};
    const int32_t *phys = p.phys + t * p.ld_ids;
    int n = list_length(phys, min(p.k, p.ld_ids));

    for (int i = threadIdx.x; i < nh * d; i += THREADS)
        q[i] = p.ql[(t * p.heads + h0) * d + i];
    if (threadIdx.x < HEADS) {
        top[threadIdx.x] = -INFINITY;
        sum[threadIdx.x] = 0;
    }
    for (int b = 0; b < n; b += BLOCK) {
        for (int s = 0; s < BLOCK && b + s < n; s += SUB) {
            load_rows(rows, phys, b + s, n, d, p);
            for (int i = warp; i < nh * SUB; i += THREADS / 32) {
                int h = i / SUB, r = i % SUB;
                float dot = 0;
                for (int c = lane; c < d; c += 32)
                    dot = fmaf(q[h * d + c], rows[r * d + c], dot);
                dot = sl_warp_sum(dot);
                if (lane == 0)
                    prob[h][s + r] = b + s + r < n ? dot * p.scale : -INFINITY;
            }
        }
        __syncthreads();
        int m = min(BLOCK, n - b);
        if (warp < nh) { /* one warp per head: THREADS / 32 == HEADS */
            float a = lane < m ? prob[warp][lane] : -INFINITY,
                  c = lane + 32 < m ? prob[warp][lane + 32] : -INFINITY;
            float best = fmaxf(top[warp], sl_warp_max(fmaxf(a, c)));
            a = lane < m ? expf(a - best) : 0.0f;
            c = lane + 32 < m ? expf(c - best) : 0.0f;
            prob[warp][lane] = a;
            prob[warp][lane + 32] = c;
            float total = sl_warp_sum(a + c);
            if (lane == 0) {
                fix[warp] = expf(top[warp] - best);
                sum[warp] = sum[warp] * fix[warp] + total;
                top[warp] = best;
            }
        }
        __syncthreads();
        for (int j = 0; j < COLS_MAX; j++)
            for (int h = 0; h < HEADS; h++)
                acc[j][h] *= h < nh ? fix[h] : 0.0f;
        for (int s = 0; s < m; s += SUB) {
            load_rows(rows, phys, b + s, n, d, p);
            for (int r = 0; r < SUB && s + r < m; r++)
                for (int j = 0; j < COLS_MAX; j++) {
                    int c = threadIdx.x + j * THREADS;
                    float v = c < p.lora ? rows[r * d + c] : 0.0f;
                    for (int h = 0; h < HEADS; h++)
                        acc[j][h] = fmaf(h < nh ? prob[h][s + r] : 0.0f, v, acc[j][h]);
                }
        }
        __syncthreads();
    }
    if (p.sinks && n && (int)threadIdx.x < nh)
        sum[threadIdx.x] += expf(p.sinks[h0 + threadIdx.x] - top[threadIdx.x]);
    __syncthreads();
    for (int j = 0; j < COLS_MAX; j++) {
        int c = threadIdx.x + j * THREADS;
        for (int h = 0; h < HEADS; h++)
            if (c < p.lora && h < nh)
                p.o[(t * p.heads + h0 + h) * p.lora + c] = n ? acc[j][h] / sum[h] : 0.0f;
    }
}

/* The call for n tokens from t0 on. */
static sl_sparse_attn_params slice_of(const sl_sparse_attn_params *p, int t0, int n)
{
    sl_sparse_attn_params q = *p;

    q.ql += (int64_t)t0 * p->heads * (p->lora + p->rope);
    q.phys += (int64_t)t0 * p->ld_ids;
    q.o += (int64_t)t0 * p->heads * p->lora;
    q.tokens = n;
    return q;
}

static sl_status run_sparse_attn(sl_backend *be, const void *params, sl_err *err)
{
    const sl_sparse_attn_params *p = (const sl_sparse_attn_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    size_t smem = (size_t)(HEADS + SUB) * (p->lora + p->rope) * sizeof(float);

    if (sl_path_sparse_attn(&cu->gpu, p) == SL_ATTN_TENSOR)
        return sl_for_slices(p->tokens, SLICE, [&](int t0, int n) {
            sl_sparse_attn_params q = slice_of(p, t0, n);
            return sl_cuda_attn_mla(cu, &q, err);
        });
    if (p->lora > THREADS * COLS_MAX)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: sparse_attn: lora %d is too wide", p->lora);
    return sl_for_slices(p->tokens, SLICE, [&](int t0, int n) {
        return SL_LAUNCH(cu, plain_attn_kernel,
                         (sl_launch{dim3(sl_ceil_div(p->heads, HEADS), n), THREADS, smem}), err,
                         slice_of(p, t0, n));
    });
}

const sl_op_impl sl_cuda_sparse_attn = {.run = run_sparse_attn};
