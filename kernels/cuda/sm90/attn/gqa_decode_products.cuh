/*
 * Inside gqa_decode.cu: what a multiplying warp has of a unit, and its products: queries by keys, weights by values, of bf16 rows
 * and of fp8 rows, whose values become bf16 in registers.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_DECODE_PRODUCTS_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_DECODE_PRODUCTS_CUH
#include "kernels/cuda/sm90/attn/gqa_decode_fetch.cuh"
#include "kernels/cuda/ptx.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* What a warp has of a unit. */
template <int DIM, int MODE> struct dec_walk {
    typedef dec_size<DIM, MODE> size;
    static constexpr int TOKENS = size::STEP / DEC_WARPS; /* whose scores a warp computes */
    static constexpr int COLS = DIM / DEC_WARPS;          /* of the output */
    uint32_t q[DIM / 16][4];
    float s[TOKENS / 8][4], o[COLS / 8][4];
    float m[2], fix[2], l; /* maximum of two heads, factor for the output so far; share of a sum of weights */
    float all_o[COLS / 8][4], all_m[2], all_l; /* of the merged segments */
    float below, seen[2];    /* the rule of skip_factor, in powers of 2: the difference, the maximum so far */
    unsigned int tiles, out; /* tiles of the unit, and those that are left out */
    dec_shared<DIM> *x;
    uint32_t ring;
    float scale;
    int lane, warp, it; /* it: number of the step in the ring */

    __device__ int stage() const
    {
        return it % size::STAGES;
    }
    __device__ uint32_t side(int i) const
    {
        return ring + (stage() * 2 + i) * size::SIDE;
    }
    __device__ void wait(uint64_t *full) const
    {
        sl_mbar_wait(&full[stage()], it / size::STAGES & 1);
    }
};

template <int N> __device__ static inline void dec_clear(float (&v)[N][4])
{
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            v[j][e] = 0;
}

/* ---- queries ---- */

/* Eight values of a unit's queries: piece i of all heads of the group. */
__device__ static inline void dec_load_piece(const dec_work &w, const dec_unit &u, int i, float4 (&v)[2])
{
    const float4 *q =
        (const float4 *)(w.g.p.q + (u.t * w.g.p.heads + (int64_t)u.kv_head * w.g.group) * w.g.p.dim);

    v[0] = q[2 * i], v[1] = q[2 * i + 1];
}

/*
 * Of fp8 keys a thread receives four adjacent values of k at a time, where the product wants two and, eight further on,
 * two more. So the queries are laid out in the same other order of each sixteen: values 4 q and 4 q + 1 at 2 q, values
 * 4 q + 2 and 4 q + 3 at 8 + 2 q.
 */
template <int DIM, int MODE>
__device__ static inline void dec_store_piece(dec_shared<DIM> *x, int i, const float4 (&v)[2])
{
    uint8_t *row = x->q[i / (DIM / 8)];
    int c = i % (DIM / 8);

    if (MODE == DEC_BYTES) {
        uint8_t *to = row + c / 2 * 32 + c % 2 * 8;

        *(uint2 *)to = make_uint2(gqa_pack(v[0].x, v[0].y), gqa_pack(v[1].x, v[1].y));
        *(uint2 *)(to + 16) = make_uint2(gqa_pack(v[0].z, v[0].w), gqa_pack(v[1].z, v[1].w));
        return;
    }
    *(uint4 *)(row + c * 16) = make_uint4(gqa_pack(v[0].x, v[0].y), gqa_pack(v[0].z, v[0].w),
                                          gqa_pack(v[1].x, v[1].y), gqa_pack(v[1].z, v[1].w));
}

/* The address that a lane passes to sl_ldmatrix() for 16 rows of 32 bytes. */
__device__ static inline uint32_t dec_operand(const void *rows, int pitch, int lane)
{
    return sl_smem_addr(rows) + (lane & 15) * pitch + (lane >> 4) * 16;
}

template <int DIM, int MODE> __device__ static inline void dec_load_queries(dec_walk<DIM, MODE> &y)
{
    uint32_t at = dec_operand(y.x->q, sizeof y.x->q[0], y.lane);

#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        sl_ldmatrix(y.q[i], at + i * 32);
}

/* ---- fp8 ---- */

/* Two of the four e4m3 values in v as bf16, exactly: the bytes that `which` names (of __byte_perm(v, 0, which)) come to
 * the upper halves, where sign, exponent and fraction are moved to their places in a bf16; what is then wrong is the
 * exponent's bias, by a factor of 2^120. The scales of fp8 rows are applied to scores and weights. (A byte 0x7f, which
 * no row contains, is 480 here.) */
__device__ static inline uint32_t dec_bf16(uint32_t v, uint32_t which)
{
    uint32_t x = __byte_perm(v, 0, which), r = (x >> 4 & 0x07f007f0) | (x & 0x80008000);
    __nv_bfloat162 y = *(__nv_bfloat162 *)&r, f;

    r = 0x7b807b80; /* 2^120, twice */
    f = *(__nv_bfloat162 *)&r;
    y = __hmul2(y, f);
    return *(uint32_t *)&y;
}

/* The scores of the warp's tokens, times the scales of their keys. */
template <int DIM, int MODE> __device__ static inline void dec_multiply_key_bytes(dec_walk<DIM, MODE> &y)
{
    const int step = dec_size<DIM, MODE>::STEP, tokens = dec_walk<DIM, MODE>::TOKENS;
    /* four matrices, each 16 of k for eight tokens: two of k for each of two blocks of tokens, or four for one block */
    const int blocks = tokens / 8, per = 4 / blocks;
    int r = y.warp * tokens + (blocks == 2 ? y.lane / 16 * 8 : 0) + y.lane % 8;
    int c = blocks == 2 ? y.lane / 8 % 2 : y.lane / 8;
    uint32_t at = y.side(0);

#pragma unroll
    for (int i = 0; i < DIM / 16; i += per) {
        uint32_t k[4];

        sl_ldmatrix(k, at + dec_byte<DIM, step>(r, i + c));
#pragma unroll
        for (int j = 0; j < blocks; j++)
#pragma unroll
            for (int n = 0; n < per; n++)
                sl_mma_bf16(y.s[j], y.q[i + n], dec_bf16(k[j * per + n], 0x1404),
                            dec_bf16(k[j * per + n], 0x3424));
    }
    const float *scale = y.x->scale[y.stage()][0] + y.warp * tokens + y.lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < blocks; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            y.s[j][e] = __fmul_rn(y.s[j][e], scale[j * 8 + e % 2]);
}

/* The first of the columns of the output in y.o[j][e] of this lane. Of fp8 values a thread receives two adjacent columns
 * at a time, so the even columns of 16 are one block of y.o, and the odd ones the next. */
template <int DIM, int MODE>
__device__ static inline int dec_column(const dec_walk<DIM, MODE> &y, int j, int e)
{
    int b = y.warp * (DIM / DEC_WARPS / 8) + j;

    return MODE == DEC_BYTES ? b / 2 * 16 + y.lane % 4 * 4 + e % 2 * 2 + b % 2
                             : b * 8 + y.lane % 4 * 2 + e % 2;
}

/* Adds the weighted values to the warp's columns, except those of the tiles in `out`; the weights contain the scales of the
 * values. */
template <int DIM, int MODE>
__device__ static inline void dec_multiply_value_bytes(dec_walk<DIM, MODE> &y, uint32_t out)
{
    const int step = dec_size<DIM, MODE>::STEP, blocks = dec_walk<DIM, MODE>::COLS / 8;
    uint32_t p_at = dec_operand(y.x->p, sizeof y.x->p[0], y.lane), v_at = y.side(1);

#pragma unroll
    for (int i = 0; i < step / 16; i += 2) {
        uint32_t p[2][4];

        if (out >> (i * 16 / GQA_TILE) & 1)
            continue;
        sl_ldmatrix(p[0], p_at + i * 32);
        sl_ldmatrix(p[1], p_at + (i + 1) * 32);
#pragma unroll
        for (int j = 0; j < (blocks + 1) / 2; j++) { /* chunks of 16 columns, or half of one */
            int b = y.warp * blocks + j * 2;
            uint32_t v[4];

            sl_ldmatrix_trans(v, v_at + dec_byte<DIM, step>(i * 16 + y.lane, b / 2));
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    if (blocks == 1 && odd != b % 2)
                        continue;
                    uint32_t which = odd ? 0x3414 : 0x2404;
                    sl_mma_bf16(y.o[blocks == 1 ? 0 : j * 2 + odd], p[n], dec_bf16(v[2 * n], which),
                                dec_bf16(v[2 * n + 1], which));
                }
        }
    }
}

/* ---- bf16 ---- */

/* The scores of the warp's tokens. */
template <int DIM, int MODE> __device__ static inline void dec_multiply_keys(dec_walk<DIM, MODE> &y)
{
    const int step = dec_size<DIM, MODE>::STEP, tokens = dec_walk<DIM, MODE>::TOKENS;
    /* four matrices: two of k for each of two blocks of eight tokens, or four of k for one block */
    const int blocks = tokens / 8, per = 2 / blocks;
    int r = y.warp * tokens + (blocks == 2 ? y.lane / 16 * 8 : 0) + y.lane % 8;
    int c = blocks == 2 ? y.lane / 8 % 2 : y.lane / 8;
    uint32_t at = y.side(0);

#pragma unroll
    for (int i = 0; i < DIM / 16; i += per) {
        uint32_t k[4];

        sl_ldmatrix(k, at + i / 4 * (step * 128) + sl_swizzle(r, i % 4 * 2 + c));
#pragma unroll
        for (int j = 0; j < 2; j++)
            sl_mma_bf16(y.s[blocks == 2 ? j : 0], y.q[blocks == 2 ? i : i + j], k[2 * j], k[2 * j + 1]);
    }
}

/* Adds the weighted values to the warp's columns, except those of the tiles in `out`. */
template <int DIM, int MODE>
__device__ static inline void dec_multiply_values(dec_walk<DIM, MODE> &y, uint32_t out)
{
    const int step = dec_size<DIM, MODE>::STEP, blocks = dec_walk<DIM, MODE>::COLS / 8;
    const int wide = blocks < 2 ? 1 : 2,
              per = 2 / wide; /* blocks of columns, and of 16 tokens, of four matrices */
    uint32_t p_at = dec_operand(y.x->p, sizeof y.x->p[0], y.lane), v_at = y.side(1);
    int r = wide == 2 ? y.lane % 16 : y.lane;

#pragma unroll
    for (int i = 0; i < step / 16; i += per) {
        uint32_t p[2][4];

        if (out >> (i * 16 / GQA_TILE) & 1)
            continue;
#pragma unroll
        for (int n = 0; n < per; n++)
            sl_ldmatrix(p[n], p_at + (i + n) * 32);
#pragma unroll
        for (int j = 0; j < blocks; j += wide) {
            int c = y.warp * blocks + j + (wide == 2 ? y.lane / 16 : 0);
            uint32_t v[4];

            sl_ldmatrix_trans(v, v_at + c / 8 * (step * 128) + sl_swizzle(i * 16 + r, c % 8));
#pragma unroll
            for (int n = 0; n < 2; n++)
                sl_mma_bf16(y.o[wide == 2 ? j + n : j], p[wide == 2 ? 0 : n], v[2 * n], v[2 * n + 1]);
        }
    }
}
#endif

#endif
