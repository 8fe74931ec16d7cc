/*
 * Bounds of blocks from the keys of new tokens: for each channel the largest and the smallest value, rounded outward to
 * the type of the bounds, with the bytes of the CPU backend. A thread owns two channels of one head of one block: it
 * takes the block's tokens of this step in their order and writes the bounds once, to the device and directly to the
 * pinned host arena. The thread blocks of other tokens of a block end immediately. Of int8, eight threads share an exponent.
 *
 * Limit: a step of decode reads one key per token and KV head and widens 2 * dim values, 4 KB for 8 heads of 128 in
 * bf16, so that it takes no longer than its launch. A chunk of 4,096 tokens reads 8.4 MB of keys, 2 us at 4.2 TB/s, and
 * writes 1 MB to the host, 19 us over the bus; each thread waits for 16 keys one after another, which takes about as
 * long.
 */
#include "kernels/cuda/any/cache/key_rows.cuh"

#define THREADS 128

struct bounds_pair { /* of two channels */
    float most[2], least[2];
};

/* The smallest bf16 value that is not below f, and the largest that is not above it. */
__device__ static inline uint32_t bf16_up(float f)
{
    uint32_t u = __float_as_uint(f);

    return (u >> 16) + (u >> 31 == 0 && (u & 0xffff) != 0);
}

__device__ static inline uint32_t bf16_down(float f)
{
    uint32_t u = __float_as_uint(f);

    return (u >> 16) + (u >> 31 == 1 && (u & 0xffff) != 0);
}

__device__ static inline float from_bf16(uint32_t code)
{
    return __uint_as_float(code << 16);
}

/* ---- int8; the same as in cpu/bound_codes.c ---- */

/* 2^e for -126 <= e <= 127. */
__device__ static inline float power(int e)
{
    return __uint_as_float((uint32_t)(e + 127) << 23);
}

__device__ static inline float code_of(float v)
{
    return fminf(fmaxf(v, -(float)SL_BOUNDS_CODE), (float)SL_BOUNDS_CODE);
}

/* Two codes, adjacent as in memory: the host is across a bus, where a warp should write whole words. */
__device__ static inline uint16_t two_codes(float a, float b)
{
    return (uint16_t)((uint32_t)(uint8_t)(int8_t)code_of(a) | (uint32_t)(uint8_t)(int8_t)code_of(b) << 8);
}

/* Two codes of each side, and by the first of eight threads the exponent of their 16 channels. */
__device__ static inline void store_codes(uint8_t *unit, int dim, int i, const bounds_pair &b, int exponent)
{
    float inverse = power(-exponent);

    *(uint16_t *)(unit + i) =
        two_codes(ceilf(__fmul_rn(b.most[0], inverse)), ceilf(__fmul_rn(b.most[1], inverse)));
    *(uint16_t *)(unit + dim + i) =
        two_codes(floorf(__fmul_rn(b.least[0], inverse)), floorf(__fmul_rn(b.least[1], inverse)));
    if (i % SL_BOUNDS_GROUP == 0)
        unit[2 * dim + i / SL_BOUNDS_GROUP] = (uint8_t)(exponent + 127);
    for (int e = dim / SL_BOUNDS_GROUP; i == 0 && e % 16; e++) /* up to whole 16 bytes */
        unit[2 * dim + e] = 0;
}

__device__ static inline void load_codes(const uint8_t *unit, int dim, int i, bounds_pair *b)
{
    float scale = power(unit[2 * dim + i / SL_BOUNDS_GROUP] - 127);

    for (int c = 0; c < 2; c++) {
        b->most[c] = ((const int8_t *)unit)[i + c] * scale;
        b->least[c] = ((const int8_t *)unit)[dim + i + c] * scale;
    }
}

/* The exponent of 16 channels, of which this thread and its seven neighbours have two each. */
__device__ static inline int exponent_of(const bounds_pair &b)
{
    uint32_t eight = 0xffu << (threadIdx.x & 24);
    float most =
        fmaxf(fmaxf(fabsf(b.most[0]), fabsf(b.most[1])), fmaxf(fabsf(b.least[0]), fabsf(b.least[1])));

    for (int far = 1; far < 8; far *= 2)
        most = fmaxf(most, __shfl_xor_sync(eight, most, far));
    int e = max((int)(__float_as_uint(most) >> 23) - 133, (int)SL_BOUNDS_LEAST);
    return e + (most > SL_BOUNDS_CODE * power(e));
}

/* ---- all types ---- */

__device__ static inline void widen(bounds_pair &b, int c, float k, bool first, bool narrow)
{
    if (first || k > b.most[c])
        b.most[c] = narrow ? from_bf16(bf16_up(k)) : k;
    if (first || k < b.least[c])
        b.least[c] = narrow ? from_bf16(bf16_down(k)) : k;
}

/* Two values from element i (even) of a unit. */
__device__ static inline void load_two(float *v, const uint8_t *unit, int i, bool narrow)
{
    if (narrow) {
        uint32_t both = *(const uint32_t *)(unit + 2 * i);
        v[0] = from_bf16(both & 0xffff);
        v[1] = from_bf16(both >> 16);
    } else {
        v[0] = ((const float *)unit)[i];
        v[1] = ((const float *)unit)[i + 1];
    }
}

__device__ static inline void store_two(uint8_t *unit, int i, const float *v, bool narrow)
{
    if (narrow) {
        *(uint32_t *)(unit + 2 * i) = __float_as_uint(v[0]) >> 16 | (__float_as_uint(v[1]) & 0xffff0000u);
    } else {
        ((float *)unit)[i] = v[0];
        ((float *)unit)[i + 1] = v[1];
    }
}

/* Whether token t is in the block of the token before it. */
__device__ static inline bool continues(const sl_seq_tables &s, int t, int block_log2)
{
    return t > 0 && s.token_seq[t] >= 0 && s.token_seq[t] == s.token_seq[t - 1] &&
           s.token_pos[t] >> block_log2 == s.token_pos[t - 1] >> block_log2;
}

/* Widens the bounds by the block's tokens before token t, which are in the same row. */
__device__ static inline void earlier_keys(bounds_pair &b, const sl_key_rows &keys, const sl_seq_tables &s,
                                           int t, int seq, int pos, int head, int i, bool narrow,
                                           uint32_t *deverr)
{
    int n = pos & ((1 << keys.rows.block_log2) - 1);
    sl_key_at at;
    uint32_t bad = sl_key_of(keys, s, t, seq, pos, head, &at);

    if (bad) {
        atomicOr(deverr, bad);
        return;
    }
    at.slot -= n * keys.in_row;
    for (int k = 0; k < n; k++, at.slot += keys.in_row)
        for (int c = 0; c < 2; c++)
            widen(b, c, sl_key_value(keys, at, i + c), k == 0, narrow);
}

__global__ static void __launch_bounds__(THREADS)
    bounds_append_kernel(sl_bounds_append_params p, sl_seq_tables s, sl_key_rows keys, int unit,
                         uint32_t *deverr)
{
    int log2 = p.rows.block_log2, mask = (1 << log2) - 1, t = blockIdx.x, seq, pos;
    int e = 2 * (blockIdx.y * THREADS + threadIdx.x), head = e / p.dim, i = e % p.dim;
    bool narrow = p.dtype == SL_BF16, codes = p.dtype == SL_I8, any = false;

    if (head >= p.heads || continues(s, t, log2) || !sl_token(&s, t, deverr, &seq, &pos))
        return;
    int64_t entry = (int64_t)seq * s.ld + pos / SL_PAGE_TOKENS;
    int page = s.index_pages[entry], host_page = p.host.base ? s.host_pages[entry] : 0;
    if (page < 0 || host_page < 0) {
        atomicOr(deverr, SL_DEVERR_PAGE);
        return;
    }
    int block = pos % SL_PAGE_TOKENS >> log2;
    uint8_t *device = p.base + page * p.page_stride + ((int64_t)block * p.heads + head) * unit;
    bounds_pair b = {};
    if ((pos & mask) && p.whole) {
        earlier_keys(b, keys, s, t, seq, pos, head, i, narrow, deverr);
    } else if ((pos & mask) && codes) {
        load_codes(device, p.dim, i, &b);
    } else if (pos & mask) {
        load_two(b.most, device, i, narrow);
        load_two(b.least, device, p.dim + i, narrow);
    }
    do {
        sl_key_at at;
        uint32_t bad = sl_key_of(keys, s, t, seq, pos, head, &at);
        if (bad) {
            atomicOr(deverr, bad);
            continue;
        }
        for (int c = 0; c < 2; c++)
            widen(b, c, sl_key_value(keys, at, i + c), (pos & mask) == 0, narrow);
        any = true;
    } while (++t < s.n_tokens && continues(s, t, log2) && (pos = s.token_pos[t], true));
    if (!any)
        return;
    uint8_t *host =
        p.host.base ? p.host.base + host_page * p.host.page_stride + block * p.host.row_stride + head * unit
                    : NULL;
    if (codes) {
        int exponent = exponent_of(b);
        store_codes(device, p.dim, i, b, exponent);
        if (host)
            store_codes(host, p.dim, i, b, exponent);
        return;
    }
    store_two(device, i, b.most, narrow);
    store_two(device, p.dim + i, b.least, narrow);
    if (host) {
        store_two(host, i, b.most, narrow);
        store_two(host, p.dim + i, b.least, narrow);
    }
}

static sl_status run_bounds_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_bounds_append_params *p = (const sl_bounds_append_params *)params;
    dim3 grid((unsigned)p->seqs->n_tokens, (unsigned)sl_ceil_div((int64_t)p->heads * p->dim / 2, THREADS));

    if (p->dim % 2)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: bounds_append: dim %d is odd", p->dim);
    return SL_LAUNCH(sl_cuda_of(be), bounds_append_kernel, (sl_launch{grid, THREADS}), err, *p, *p->seqs,
                     sl_key_rows_of(&p->rows, &p->host_rows, p->heads, p->dim, p->format),
                     (int)sl_bounds_unit_bytes(p->dim, p->dtype), sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_bounds_append = {.run = run_bounds_append};
