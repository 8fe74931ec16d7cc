/*
 * Bounds in 8 bits (kernels/bounds.h) on the integer tensor cores: what the kernels for decode and for chunks of prompts
 * share. Sums of products of integers are exact, so that their order does not matter and the scores have the bits of the
 * CPU backend.
 *
 * One multiplication takes 16 blocks and one group of 16 channels: the 32 values of k are the group's max and its min. Its 8
 * columns are 4 queries of two digits each, high and low, of the quantized value 128 * high + low. Columns of positive
 * values meet max, those of negative values meet min.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_BOUNDS_CODES_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_BOUNDS_CODES_CUH

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/any/select/row_dots.cuh"

#define SL_BC_QUERIES 4 /* of one multiplication */
#define SL_BC_ROWS 16   /* of one multiplication */

struct sl_bc_job {
    sl_dots j;
    /* [token][kv_heads] records: for every tile of 4 queries and group the multiplication's operand b, [tiles][groups][32]
     * of uint2; then the queries' scales, [tiles][4]. */
    const uint8_t *queries;
    int groups, tiles, record, unit; /* the last two in bytes; unit: of one block and KV head */
    int heads, row_sets, stages,
        row_ld; /* of a thread block of the stream kernel: KV heads, 16 rows each, … */
    float *out; /* [token][kv_heads][ld], or with j.d.raw [token][heads][ld] */
};

/* For d 64, 128 and 256: the kernels for tokens of different sequences and for many tokens of one sequence. */
sl_status sl_cuda_bounds_stream(sl_cuda *cu, const sl_bc_job *b, sl_err *err);
sl_status sl_cuda_bounds_chunk(sl_cuda *cu, const sl_bc_job *b, sl_err *err);

/* The power of two of the exponent in byte k of a word. */
__device__ static inline float sl_bc_scale(uint32_t word, int k)
{
    uint32_t bits = k == 0 ? word << 23 : k == 1 ? word << 15 : k == 2 ? word << 7 : word >> 1;

    return __uint_as_float(bits & 0x7f800000u);
}

__device__ static inline uint32_t sl_bc_word(const uint4 &v, int k)
{
    return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}

/* Scores of a warp's 16 rows for 4 queries: lane l has rows l / 4 and l / 4 + 8 and query l % 4. */
struct sl_bc_sum {
    float low, high;
};

__device__ static inline void sl_bc_add(sl_bc_sum *sum, const uint32_t (&a)[4], uint2 b, float low,
                                        float high)
{
    int c[4];

    sl_mma_s8(c, a, b);
    sum->low = fmaf((float)(c[0] * 128 + c[1]), low, sum->low);
    sum->high = fmaf((float)(c[2] * 128 + c[3]), high, sum->high);
}

/* The largest value of the four lanes that have the queries of a row. */
__device__ static inline float sl_bc_join(float v)
{
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

/* Products of query 4 * tile + lane % 4 with the rows of sl_bc_sum, of head h of token i. */
__device__ static inline void sl_bc_put(const sl_bc_job &b, int i, int h, int tile, int row, int n,
                                        const sl_bc_sum &sum)
{
    int r = SL_BC_QUERIES * tile + (threadIdx.x & 3);
    float *out = b.out + ((int64_t)i * b.j.d.heads + (int64_t)h * b.j.group + r) * b.j.d.ld_out;

    if (r >= b.j.rows)
        return;
    if (row < n)
        out[row] = sum.low;
    if (row + 8 < n)
        out[row + 8] = sum.high;
}

/* The largest product of a KV head's queries, or the only one. */
__device__ static inline void sl_bc_put_best(const sl_bc_job &b, int i, int h, int row, int n,
                                             const sl_bc_sum &best)
{
    float *out = b.out + ((int64_t)i * b.j.d.kv_heads + h) * b.j.d.ld_out;
    float low = sl_bc_join(best.low), high = sl_bc_join(best.high);

    if (threadIdx.x & 3)
        return;
    if (row < n)
        out[row] = low;
    if (row + 8 < n)
        out[row + 8] = high;
}

/* Multiplies the finished sums by the query's scale; those of queries that do not exist become the least. */
__device__ static inline void sl_bc_finish(const sl_bc_job &b, int tile, float scale, const sl_bc_sum &sum,
                                           sl_bc_sum *v, sl_bc_sum *best)
{
    bool in = SL_BC_QUERIES * tile + (int)(threadIdx.x & 3) < b.j.rows;

    *v = {__fmul_rn(sum.low, scale), __fmul_rn(sum.high, scale)};
    if (in) {
        best->low = fmaxf(best->low, v->low);
        best->high = fmaxf(best->high, v->high);
    }
}

#endif
