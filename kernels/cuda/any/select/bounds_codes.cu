/*
 * Scores of bounds in 8 bits (bounds_codes.cuh): the queries as integers, which of the two kernels runs, and the joining
 * of KV heads that share a list. Which kernel runs changes the time only.
 */
#include "kernels/cuda/any/select/bounds_codes.cuh"

#define WARPS 4 /* of a thread block of the queries' kernel */
#define THREADS 256

/* Channel c of query r of the token; see sl_dots_query, without its parts. */
__device__ static inline float value_of(const sl_dots &j, int token, int head, int r, int c)
{
    const float *q = j.d.q + ((int64_t)token * j.d.heads + (int64_t)head * j.group) * j.d.dim + c;
    float v = 0;

    if (!j.d.mean)
        return q[(int64_t)r * j.d.dim];
    for (int h = 0; h < j.group; h++)
        v = __fadd_rn(v, q[(int64_t)h * j.d.dim]);
    return __fdiv_rn(v, (float)j.group);
}

__device__ static inline int whole(float v, float scale)
{
    const float most = (float)(1 << SL_BOUNDS_DIGITS);

    return (int)fminf(fmaxf(rintf(__fmul_rn(v, scale)), -most), most);
}

/* The digit of v in a column: high or low, of the positive or of the negative values. */
__device__ static inline uint32_t digit(float v, float scale, bool low, bool positive)
{
    int q = whole(v, scale), high = (q + 64) >> 7;

    return (q > 0) == positive ? (uint32_t)(low ? q - 128 * high : high) & 0xff : 0;
}

/* One warp for 4 queries of one head of one token: lane l has column l / 4 and channels 4 (l % 4) .. + 3 of each group. */
__global__ static void __launch_bounds__(32 * WARPS) queries_kernel(sl_bc_job b, uint8_t *records)
{
    const sl_row_dots &d = b.j.d;
    int64_t job = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31, tile = (int)(job % b.tiles), head = (int)(job / b.tiles % d.kv_heads);
    int64_t i = job / b.tiles / d.kv_heads;
    int r = SL_BC_QUERIES * tile + lane / 8, token = d.token_first + (int)i;
    float most = 0;

    if (i >= d.token_count)
        return;
    uint8_t *record = records + (i * d.kv_heads + head) * b.record;
    uint2 *to = (uint2 *)record + tile * b.groups * 32 + lane;
    bool has = r < b.j.rows;
    for (int c = 4 * (lane & 3); has && c < d.dim; c += SL_BOUNDS_GROUP)
        for (int k = 0; k < 4; k++)
            most = fmaxf(most, fabsf(value_of(b.j, token, head, r, c + k)));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    int exponent = max((int)(__float_as_uint(most) >> 23) - 126, (int)SL_BOUNDS_LEAST_QUERY);
    float scale = __uint_as_float((uint32_t)(127 + SL_BOUNDS_DIGITS - exponent) << 23);
    for (int g = 0; g < b.groups; g++) {
        uint2 w = {0, 0};
        for (int k = 0; has && k < 4; k++) {
            float v = value_of(b.j, token, head, r, SL_BOUNDS_GROUP * g + 4 * (lane & 3) + k);
            w.x |= digit(v, scale, lane & 4, true) << 8 * k;
            w.y |= digit(v, scale, lane & 4, false) << 8 * k;
        }
        to[32 * g] = w;
    }
    if (lane % 8 == 0)
        ((float *)(record + b.tiles * b.groups * 256))[r] =
            has ? __uint_as_float((uint32_t)(127 - SL_BOUNDS_DIGITS + exponent) << 23) : 0;
}

/* The scores of one list from those of all KV heads. */
__global__ static void __launch_bounds__(THREADS) join_kernel(sl_dots j, const float *each)
{
    int i = blockIdx.y, b = blockIdx.x * THREADS + threadIdx.x;
    const float *from = each + (int64_t)i * j.d.kv_heads * j.d.ld_out + b;
    sl_dot_token at;

    if (!sl_dots_token(j, i, &at) || b > at.n || b >= j.d.ld_out)
        return;
    float score = from[0];
    for (int h = 1; h < j.d.kv_heads; h++)
        score = sl_dots_join(j, score, from[(int64_t)h * j.d.ld_out]);
    j.d.out[(int64_t)i * j.d.ld_out + b] = score;
}

/* For other dimensions, and where there are no bulk copies: one thread per block of tokens. */
__global__ static void __launch_bounds__(THREADS) plain_kernel(sl_bc_job b)
{
    const sl_row_dots &d = b.j.d;
    int row = blockIdx.x * THREADS + threadIdx.x, head = blockIdx.y, i = blockIdx.z;
    const float *scales =
        (const float *)(b.queries + ((int64_t)i * d.kv_heads + head + 1) * b.record) - 4 * b.tiles;
    float best = 0;
    sl_dot_token at;

    if (!sl_dots_token(b.j, i, &at) || row > at.n || row >= d.ld_out)
        return;
    const uint8_t *unit = row < at.n ? sl_dots_row(b.j, at.pages, head, row) : NULL;
    for (int r = 0; unit && r < b.j.rows; r++) {
        float sum = 0;
        for (int g = 0; g < b.groups; g++) {
            int part = 0;
            for (int c = SL_BOUNDS_GROUP * g; c < SL_BOUNDS_GROUP * (g + 1); c++) {
                int q = whole(value_of(b.j, d.token_first + i, head, r, c), 1 / scales[r]);
                part += q * (int8_t)unit[q > 0 ? c : d.dim + c];
            }
            sum = fmaf((float)part, __uint_as_float((uint32_t)unit[2 * d.dim + g] << 23), sum);
        }
        sum = __fmul_rn(sum, scales[r]);
        best = r == 0 ? sum : fmaxf(best, sum);
        if (d.raw)
            b.out[((int64_t)i * d.heads + (int64_t)head * b.j.group + r) * d.ld_out + row] = sum;
    }
    if (!d.raw && (unit || row == at.n))
        b.out[((int64_t)i * d.kv_heads + head) * d.ld_out + row] = best;
}

/* ---- launches ---- */

static sl_bc_job job_of(const sl_row_dots *d)
{
    sl_bc_job b = {};
    int queries = d->mean ? 1 : d->heads / d->kv_heads;

    b.groups = sl_ceil_div(d->dim, SL_BOUNDS_GROUP);
    b.tiles = sl_ceil_div(queries, SL_BC_QUERIES);
    b.record = (int)sl_digits_bytes(d->heads, d->kv_heads, d->dim, d->mean);
    b.unit = (int)sl_bounds_unit_bytes(d->dim, SL_I8);
    return b;
}

/* Whether KV heads are joined by a kernel of their own. */
static bool joined(const sl_row_dots *d)
{
    return !d->raw && d->lists < d->kv_heads;
}

static sl_status products(sl_cuda *cu, const sl_bc_job *b, sl_err *err)
{
    const sl_row_dots *d = &b->j.d;
    dim3 grid(sl_ceil_div(d->ld_out, THREADS), d->kv_heads, d->token_count);

    if (cu->gpu.bulk && (d->dim == 64 || d->dim == 128 || d->dim == 256))
        return d->token_count > b->j.s.n_seqs ? sl_cuda_bounds_chunk(cu, b, err)
                                              : sl_cuda_bounds_stream(cu, b, err);
    return SL_LAUNCH(cu, plain_kernel, (sl_launch{grid, THREADS}), err, *b);
}

sl_status sl_cuda_bound_codes(sl_cuda *cu, const sl_row_dots *d, sl_err *err)
{
    sl_bc_job b = job_of(d);
    int64_t warps = (int64_t)d->token_count * d->kv_heads * b.tiles;
    uint8_t *records = (uint8_t *)d->scratch;

    b.j = sl_dots_job(cu, d);
    b.queries = records;
    b.out = joined(d) ? (float *)(records + (int64_t)d->token_count * d->kv_heads * b.record) : d->out;
    SL_TRY(SL_LAUNCH(cu, queries_kernel, (sl_launch{dim3(sl_ceil_div(warps, WARPS)), (int)(32 * WARPS)}), err,
                     b, records));
    SL_TRY(products(cu, &b, err));
    if (!joined(d))
        return SL_OK;
    return SL_LAUNCH(cu, join_kernel,
                     (sl_launch{dim3(sl_ceil_div(d->ld_out, THREADS), d->token_count), THREADS}), err, b.j,
                     b.out);
}
