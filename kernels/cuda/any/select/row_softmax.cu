/*
 * Reductions that need all products of a query: softmax over the rows that a token sees, summed over the query heads of
 * a list. The products are stored in scratch memory (row_dots.h); one kernel replaces those of each query by their
 * exponentials and sums these, another adds the weights of a list's queries in the order of the CPU backend.
 *
 * exp is computed in double and rounded once, and sums are double, so that a weight differs from that of the CPU backend
 * by the last bit at most, and rarely. The order of a sum depends on the number of rows only.
 *
 * Limit: the products are written twice and read three times. Per KV head with g = 4 they are 16 bytes per row of 512 (a
 * bound of d 128) or 64 (a label of 32 channels in bf16); slices of SL_SCRATCH_SLICE stay in the L2 cache for the most part.
 */
#include "kernels/cuda/any/select/row_dots.cuh"

#define EXP_THREADS 512
#define ADD_THREADS 256

/* As expf of the CPU backend, up to the last bit. */
__device__ static inline float weight(float x, float top, float scale)
{
    return (float)exp((double)__fmul_rn(scale, __fsub_rn(x, top)));
}

__global__ static void __launch_bounds__(EXP_THREADS) exp_kernel(sl_dots j, float scale, double *sums)
{
    __shared__ float tops[EXP_THREADS / 32];
    int64_t row = (int64_t)blockIdx.y * j.d.heads + blockIdx.x;
    float *x = j.d.out + row * j.d.ld_out;
    float top = -INFINITY;
    double sum = 0;
    sl_dot_token at;

    if (!sl_dots_token(j, blockIdx.y, &at))
        return;
    for (int i = threadIdx.x; i < at.n; i += EXP_THREADS)
        top = fmaxf(top, x[i]);
    top = sl_warp_max(top);
    if ((threadIdx.x & 31) == 0)
        tops[threadIdx.x >> 5] = top;
    __syncthreads();
    for (int w = 0; w < EXP_THREADS / 32; w++)
        top = fmaxf(top, tops[w]);
    for (int i = threadIdx.x; i < at.n; i += EXP_THREADS)
        sum += x[i] = weight(x[i], top, scale);
    sum = sl_block_sum(sum);
    if (threadIdx.x == 0)
        sums[row] = sum;
}

/* j.d: the raw products; to: where the scores go. */
__global__ static void __launch_bounds__(ADD_THREADS)
    add_kernel(sl_dots j, const double *sums, float *to, int lists, int ld)
{
    int i = blockIdx.z, list = blockIdx.y, b = blockIdx.x * ADD_THREADS + threadIdx.x,
        per = j.d.heads / lists;
    sl_dot_token at;
    float score = 0;

    if (!sl_dots_token(j, i, &at))
        return;
    float *out = to + ((int64_t)i * lists + list) * ld;
    if (b == at.n && j.d.plus == 0)
        out[b] = 0;
    if (b >= at.n)
        return;
    for (int h = list * per; h < (list + 1) * per; h++) {
        int64_t row = (int64_t)i * j.d.heads + h;
        float v = (float)((double)j.d.out[row * j.d.ld_out + b] / sums[row]);
        score = h == list * per ? v : __fadd_rn(score, v);
    }
    out[b] = score;
}

sl_status sl_cuda_row_exp(sl_cuda *cu, const sl_row_dots *d, float scale, double *sums, sl_err *err)
{
    return SL_LAUNCH(cu, exp_kernel, (sl_launch{dim3(d->heads, d->token_count), EXP_THREADS}), err,
                     sl_dots_of(cu, d), scale, sums);
}

sl_status sl_cuda_row_add(sl_cuda *cu, const sl_row_dots *raw, const double *sums, int lists, int ld,
                          float *to, sl_err *err)
{
    dim3 grid(sl_ceil_div(ld, ADD_THREADS), lists, raw->token_count);

    return SL_LAUNCH(cu, add_kernel, (sl_launch{grid, ADD_THREADS}), err, sl_dots_of(cu, raw), sums, to,
                     lists, ld);
}

/* A slice of a reduction that needs all products of a query: raw says where they go. */
static sl_status whole_slice(sl_cuda *cu, const sl_row_dots *raw, float scale, double *sums, void *space,
                             const sl_row_dots *d, float *to, sl_err *err)
{
    SL_TRY(sl_cuda_row_dots(cu, raw, err));
    if (space) {
        SL_TRY(sl_cuda_row_places(cu, raw, space, err));
        return sl_cuda_row_best(cu, raw, d->lists, d->ld_out, to, err);
    }
    SL_TRY(sl_cuda_row_exp(cu, raw, scale, sums, err));
    return sl_cuda_row_add(cu, raw, sums, d->lists, d->ld_out, to, err);
}

sl_status sl_cuda_group_scores(sl_cuda *cu, const sl_row_dots *d, sl_group_reduce reduce, float scale,
                               sl_err *err)
{
    const bool by_place = reduce == SL_GROUP_UNION, whole = by_place || reduce == SL_GROUP_SOFTMAX;
    const size_t codes = d->type == SL_I8 ? sl_digits_scratch(d->heads, d->kv_heads, d->dim, d->lists,
                                                              d->ld_out, reduce == SL_GROUP_MEAN)
                                          : 0,
                 places = by_place ? sl_places_scratch(d->heads, d->ld_out) : 0,
                 each = sl_group_scratch(reduce, d->heads, d->ld_out, codes);
    sl_row_dots raw = *d;
    void *scratch;

    if (d->token_count < 1)
        return SL_OK;
    raw.mean = reduce == SL_GROUP_MEAN;
    if (each == 0)
        return sl_cuda_row_dots(cu, &raw, err);
    const int most = sl_slice_of(each, d->token_count);
    SL_TRY(sl_cuda_scratch(cu, (size_t)most * each, &scratch, err));
    uint8_t *space = (uint8_t *)scratch + (size_t)most * codes;
    double *sums = (double *)(space + (size_t)most * places);
    raw.scratch = scratch;
    raw.raw = whole;
    for (int done = 0; done < d->token_count; done += most) {
        float *to = d->out + (int64_t)done * d->lists * d->ld_out;
        raw.token_first = d->token_first + done;
        raw.token_count = d->token_count - done < most ? d->token_count - done : most;
        raw.out = whole ? (float *)(sums + (int64_t)most * d->heads) : to;
        SL_TRY(whole ? whole_slice(cu, &raw, scale, sums, by_place ? space : NULL, d, to, err)
                     : sl_cuda_row_dots(cu, &raw, err));
    }
    return SL_OK;
}
