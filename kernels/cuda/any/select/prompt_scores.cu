/*
 * Scores of the pages before blocks of a prompt (sl_prompt_scores_params, kernels/gqa.h), of f32 and fp8 rows and of dimensions that
 * are not a multiple of 16 (sl_path_prompt_scores()). Here a first kernel writes the products of strips of queries with strips
 * of keys to scratch memory, a warp for each, and a second one their softmax, summed by page. bf16 rows: prompt_scores_tensor.cu.
 */
#include "kernels/cuda/any/select/prompt_scores.cuh"

/* The slice, and its products in scratch memory: [n][heads * STRIPS][ld], row h * STRIPS + m. */
struct plain_job {
    scores_job s;
    float *a;
    int ld;
};

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
__global__ static void __launch_bounds__(THREADS) plain_kernel(const __grid_constant__ plain_job plain)
{
    const scores_job &j = plain.s;
    const int strip = blockIdx.x * WARPS + (threadIdx.x >> 5), head = blockIdx.y, i = blockIdx.z,
              lane = threadIdx.x & 31;
    block_at b = block_of(j, i);
    gqa_list l = list_of(j, b.seq, head / j.group);

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
            plain.a[(((int64_t)i * j.p.heads + head) * STRIPS + m) * plain.ld + strip] = sum;
    }
}

/* ---- softmax and sums ---- */

/* One thread block for a block of tokens and a KV head. */
__global__ static void __launch_bounds__(THREADS) sums_kernel(const __grid_constant__ plain_job plain)
{
    const scores_job &j = plain.s;
    __shared__ float tops[GQA_GROUP * STRIPS];
    __shared__ double sums[GQA_GROUP * STRIPS];
    const int i = blockIdx.y, kv_head = blockIdx.x, rows = j.group * STRIPS, lane = threadIdx.x & 31;
    const float scale = j.p.scale / STRIP;
    block_at b = block_of(j, i);

    if (b.seq < 0)
        return;
    const float *a = plain.a + ((int64_t)i * j.p.heads + kv_head * j.group) * STRIPS * plain.ld;
    for (int r = threadIdx.x >> 5; r < rows; r += WARPS) {
        int n = b.pos / STRIP + r % STRIPS + 1;
        float top = -INFINITY;
        double sum = 0;
        for (int s = lane; s < n; s += 32)
            top = fmaxf(top, a[(int64_t)r * plain.ld + s]);
        top = sl_warp_max(top);
        for (int s = lane; s < n; s += 32)
            sum += (double)expf(__fmul_rn(scale, __fsub_rn(a[(int64_t)r * plain.ld + s], top)));
        for (int o = 16; o > 0; o >>= 1)
            sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (lane == 0)
            tops[r] = top, sums[r] = sum;
    }
    __syncthreads();
    float *out = j.p.scores + ((int64_t)i * j.p.kv_heads + kv_head) * j.p.ld_scores;
    for (int page = threadIdx.x; page <= b.pos / SL_PAGE_TOKENS; page += THREADS) {
        float score = 0;
        for (int r = 0; r < rows; r++)
            for (int s = page * STRIPS; s < (page + 1) * STRIPS && s <= b.pos / STRIP + r % STRIPS; s++)
                score +=
                    (float)((double)expf(__fmul_rn(scale, __fsub_rn(a[(int64_t)r * plain.ld + s], tops[r]))) /
                            sums[r]);
        out[page] = score;
    }
}

/* ---- launches ---- */

static sl_status run_plain(sl_cuda *cu, const scores_job *of, sl_err *err)
{
    plain_job j = {*of, NULL, of->pages * STRIPS};
    const int all = of->p.n;
    const size_t each = sl_prompt_plain_scratch(of->p.heads, of->pages);
    const int most = sl_slice_of(each, all);
    void *scratch;

    SL_TRY(sl_cuda_scratch(cu, (size_t)most * each, &scratch, err));
    j.a = (float *)scratch;
    return sl_for_slices(all, most, [&](int first, int count) {
        j.s.n = count, j.s.p.first = of->p.first + first;
        j.s.p.scores = of->p.scores + (int64_t)first * of->p.kv_heads * of->p.ld_scores;
        SL_TRY(SL_LAUNCH(cu, plain_kernel,
                         (sl_launch{dim3(sl_ceil_div(j.ld, WARPS), j.s.p.heads, count), THREADS}), err, j));
        return SL_LAUNCH(cu, sums_kernel, (sl_launch{dim3(j.s.p.kv_heads, count), THREADS}), err, j);
    });
}

static sl_status run_prompt_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_prompt_scores_params *p = (const sl_prompt_scores_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    sl_gqa_attn_params rows = {};
    scores_job j = {};

    if (p->heads / p->kv_heads > GQA_GROUP)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cuda: prompt_scores: heads: a KV head has %d query heads, at most %d are possible",
                       p->heads / p->kv_heads, GQA_GROUP);
    rows.seqs = p->seqs, rows.rows = p->rows, rows.format = p->format;
    rows.heads = p->heads, rows.kv_heads = p->kv_heads, rows.dim = p->dim;
    j.p = *p, j.w = gqa_work_of(cu, &rows), j.group = j.w.group;
    j.pages = p->max_pos / SL_PAGE_TOKENS + 1;
    return sl_path_prompt_scores(&cu->gpu, p) == SL_PROMPT_SCORES_TENSOR
               ? sl_cuda_prompt_scores_tensor(cu, j, err)
               : run_plain(cu, &j, err);
}

const sl_op_impl sl_cuda_prompt_scores = {.run = run_prompt_scores};
