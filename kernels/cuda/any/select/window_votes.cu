/*
 * Votes of an observation window (kernels/window.h): the products of the window's queries with all keys before them
 * (row_dots.h), softmax of each query, and for each KV head the sum over window tokens and query heads, pooled over
 * neighbours. The products of a few window tokens at a time are kept in scratch memory. A thread owns a key and adds the
 * weights in double in the order of the CPU backend; its products have the bits of that backend. The votes therefore
 * differ from those of the CPU by the last bit at most, where an exponential or a sum of exponentials is rounded
 * differently, and the kept sets by ties within that.
 *
 * Limit, once per prompt and layer, with 32 window tokens, 32 query heads, 8 KV heads, d 128 and 64K tokens: 8.6e9
 * multiply-adds, 0.29 ms at 29.6e12 per second (0.4 ms at the rate of the resident kernel); 67e6 exponentials in double,
 * 0.2 ms; the products, 268 MB, are written twice and read three times, 0.32 ms at 4.2 TB/s without the L2 cache.
 */
#include "kernels/cuda/any/select/row_dots.cuh"

#define THREADS 256

/* sums[KV head][key] += the weights of the window tokens of j, in their order and within a token in that of query heads. */
__global__ static void __launch_bounds__(THREADS)
    votes_add_kernel(sl_row_dots d, const double *exps, int group, int keys, double *sums)
{
    int key = blockIdx.x * THREADS + threadIdx.x, head = blockIdx.y;
    double *at = sums + (int64_t)head * keys + key;

    if (key >= keys)
        return;
    double sum = d.token_first == 0 ? 0 : *at;
    for (int w = 0; w < d.token_count; w++)
        for (int g = 0; g < group; g++) {
            int64_t row = (int64_t)w * d.heads + head * group + g;
            sum += (double)d.out[row * d.ld_out + key] / exps[row];
        }
    *at = sum;
}

__global__ static void __launch_bounds__(THREADS)
    votes_pool_kernel(sl_window_votes_params p, int keys, const double *sums)
{
    int j = blockIdx.x * THREADS + threadIdx.x, head = blockIdx.y, half = p.kernel / 2;
    const double *sum = sums + (int64_t)head * keys;

    if (j >= keys)
        return;
    int from = j > half ? j - half : 0, to = j < keys - half ? j + half : keys - 1;
    double v = sum[from];
    for (int i = from + 1; i <= to; i++)
        v = p.pooling == SL_POOLING_AVG ? v + sum[i] : sum[i] > v ? sum[i] : v;
    p.votes[(int64_t)head * p.ld_votes + j] = (float)(p.pooling == SL_POOLING_AVG ? v / p.kernel : v);
}

/* The keys in rows of one token. */
static sl_row_dots window_keys(const sl_window_votes_params *p)
{
    int64_t size = sl_gqa_row_bytes(p->format, 1, 4) / 8; /* of a value */
    bool by_head = p->rows.heads > 0;
    sl_row_dots d = {};

    d.base = p->rows.base;
    d.row_stride = sl_row_lists(&p->rows) * p->rows.row_bytes;
    d.page_stride = SL_PAGE_TOKENS * d.row_stride;
    d.head_stride = by_head ? p->rows.row_bytes : p->dim * size;
    d.scale_at = by_head ? 2 * p->dim : 2 * (int64_t)p->kv_heads * p->dim;
    d.scale_stride = by_head ? p->rows.row_bytes : 4;
    d.page_log2 = SL_PAGE_LOG2;
    d.n = p->dim;
    d.type = p->format == SL_ROW_GQA_F32 ? SL_F32 : p->format == SL_ROW_GQA_BF16 ? SL_BF16 : SL_F8_E4M3;
    d.q = p->q;
    d.heads = p->heads, d.kv_heads = p->kv_heads, d.dim = p->dim;
    d.pages = p->row_pages;
    d.first_pos = p->tokens - p->window;
    d.plus = 1;
    d.lists = p->kv_heads;
    d.ld_out = (p->tokens + 3) / 4 * 4;
    d.raw = true;
    return d;
}

static sl_status run_window_votes(sl_backend *be, const void *params, sl_err *err)
{
    const sl_window_votes_params *p = (const sl_window_votes_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    sl_row_dots d = window_keys(p);
    const size_t each = sl_raw_scratch(d.heads, d.ld_out);
    const int keys = p->tokens - p->window, most = sl_slice_of(each, p->window);
    dim3 grid(sl_ceil_div(keys, THREADS), p->kv_heads);
    void *scratch;

    SL_TRY(sl_cuda_scratch(cu, sl_votes_sums(p->kv_heads, keys) + (size_t)most * each, &scratch, err));
    double *sums = (double *)scratch;
    double *exps = sums + (int64_t)p->kv_heads * keys; /* of each query */
    d.out = (float *)(exps + (int64_t)most * p->heads);
    for (int w = 0; w < p->window; w += most) {
        d.token_first = w;
        d.token_count = p->window - w < most ? p->window - w : most;
        SL_TRY(sl_cuda_row_dots(cu, &d, err));
        SL_TRY(sl_cuda_row_exp(cu, &d, p->scale, exps, err));
        SL_TRY(SL_LAUNCH(cu, votes_add_kernel, (sl_launch{grid, THREADS}), err, d, exps,
                         p->heads / p->kv_heads, keys, sums));
    }
    return SL_LAUNCH(cu, votes_pool_kernel, (sl_launch{grid, THREADS}), err, *p, keys, sums);
}

const sl_op_impl sl_cuda_window_votes = {.run = run_window_votes};
