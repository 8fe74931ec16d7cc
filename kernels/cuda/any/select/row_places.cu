/*
 * Places of scores in the order of each query (SL_GROUP_UNION): a stable radix sort of one row of raw products (row_dots.h) by
 * one thread block, four bits at a time, after which every product is replaced by minus its place.
 *
 * A thread has neighbouring items and counts their digits in a column of its own; the counts of all threads, summed digit by digit,
 * say where its items go, so that equal keys keep their order. Stability is what gives equal scores to the smaller block.
 *
 * Limit: eight passes, each of which reads and writes 8 bytes of every item in the L2 cache. It is for a reduction that
 * docs/strategies.md does not recommend, and simple rather than fast. Not measured.
 */
#include "kernels/cuda/any/select/row_dots.cuh"
#include "kernels/cuda/any/select/select.cuh"

#define THREADS 256
#define DIGITS 16

/* Each of n = DIGITS * THREADS counts becomes the sum of those before it. */
__device__ static void sum_before(int *counts)
{
    __shared__ int warps[THREADS / 32];
    int first = threadIdx.x * DIGITS, mine = 0, lane = threadIdx.x & 31;

    for (int i = 0; i < DIGITS; i++)
        mine += counts[first + i];
    int before = sl_warp_prefix(mine);
    if (lane == 31)
        warps[threadIdx.x >> 5] = before;
    __syncthreads();
    before -= mine;
    for (int w = 0; w < (int)(threadIdx.x >> 5); w++)
        before += warps[w];
    for (int i = 0; i < DIGITS; i++) {
        int count = counts[first + i];
        counts[first + i] = before;
        before += count;
    }
    __syncthreads();
}

__global__ static void __launch_bounds__(THREADS) places_kernel(sl_dots j, uint2 *space)
{
    __shared__ int counts[DIGITS * THREADS]; /* [digit][thread] */
    int64_t row = (int64_t)blockIdx.y * j.d.heads + blockIdx.x;
    float *x = j.d.out + row * j.d.ld_out;
    uint2 *from = space + row * 2 * j.d.ld_out, *to = from + j.d.ld_out;
    sl_dot_token at;

    if (!sl_dots_token(j, blockIdx.y, &at))
        return;
    int each = (at.n + THREADS - 1) / THREADS, first = min((int)threadIdx.x * each, at.n),
        end = min(first + each, at.n);
    for (int i = first; i < end; i++) /* the complement: the largest score is first */
        from[i] = make_uint2(~sl_order_key(x[i]), (uint32_t)i);
    for (int shift = 0; shift < 32; shift += 4) {
        for (int d = 0; d < DIGITS; d++)
            counts[d * THREADS + threadIdx.x] = 0;
        for (int i = first; i < end; i++)
            counts[(from[i].x >> shift & (DIGITS - 1)) * THREADS + threadIdx.x]++;
        __syncthreads();
        sum_before(counts);
        for (int i = first; i < end; i++)
            to[counts[(from[i].x >> shift & (DIGITS - 1)) * THREADS + threadIdx.x]++] = from[i];
        __syncthreads(); /* also makes the items visible to the whole block */
        uint2 *swap = from;
        from = to, to = swap;
    }
    for (int i = first; i < end; i++)
        x[from[i].y] = (float)-i;
}

/* The best of a list's query heads; to: as in sl_cuda_row_add(). */
__global__ static void __launch_bounds__(THREADS) best_kernel(sl_dots j, float *to, int lists, int ld)
{
    int i = blockIdx.z, list = blockIdx.y, b = blockIdx.x * THREADS + threadIdx.x, per = j.d.heads / lists;
    float score = -INFINITY;
    sl_dot_token at;

    if (!sl_dots_token(j, i, &at))
        return;
    float *out = to + ((int64_t)i * lists + list) * ld;
    if (b == at.n && j.d.plus == 0)
        out[b] = 0;
    if (b >= at.n)
        return;
    for (int h = list * per; h < (list + 1) * per; h++)
        score = fmaxf(score, j.d.out[((int64_t)i * j.d.heads + h) * j.d.ld_out + b]);
    out[b] = score;
}

sl_status sl_cuda_row_places(sl_cuda *cu, const sl_row_dots *raw, void *space, sl_err *err)
{
    return SL_LAUNCH(cu, places_kernel, (sl_launch{dim3(raw->heads, raw->token_count), THREADS}), err,
                     sl_dots_of(cu, raw), (uint2 *)space);
}

sl_status sl_cuda_row_best(sl_cuda *cu, const sl_row_dots *raw, int lists, int ld, float *to, sl_err *err)
{
    dim3 grid(sl_ceil_div(ld, THREADS), lists, raw->token_count);

    return SL_LAUNCH(cu, best_kernel, (sl_launch{grid, THREADS}), err, sl_dots_of(cu, raw), to, lists, ld);
}
