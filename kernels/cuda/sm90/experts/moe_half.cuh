/*
 * Codes of 4 bits and their multipliers, as threads of moe_half.cu hold them: how eight codes of a word become operands of the
 * tensor cores with few instructions, and how multipliers are read ahead of their use. Internal to kernels/cuda.
 */
#ifndef SL_KERNELS_CUDA_SM90_EXPERTS_MOE_HALF_CUH
#define SL_KERNELS_CUDA_SM90_EXPERTS_MOE_HALF_CUH

#include "kernels/cuda/ptx_loads.cuh"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/sm90/ring.cuh"

#define K_STAGE 256 /* inputs of a stage: 128 bytes of codes */

/* How codes are converted. */
enum moe_codes { INT4, FP4 };

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/*
 * Eight codes as e4m3 values times a power of two (SHIFT), those of even inputs and those of odd ones. The bits of e4m3 below
 * 16 are a linear scale, so an int4 value is its sign and its magnitude; E2M1 has the same fields as e4m3, with shorter ones.
 */
template <moe_codes C> __device__ static inline void e4m3_of(uint32_t w, uint32_t &even, uint32_t &odd)
{
    if constexpr (C == FP4) {
        even = (w << 4 & 0x80808080u) | (w << 2 & 0x1c1c1c1cu);
        odd = (w & 0x80808080u) | (w >> 2 & 0x1c1c1c1cu);
    } else { /* code - 8: a code below 8 is negative, and its magnitude is (code ^ 7) + 1 */
        uint32_t minus = ~w & 0x88888888u, one = minus >> 3,
                 magnitude = ((w & 0x77777777u) ^ (minus - one)) + one;
        even = (magnitude & 0x0f0f0f0fu) | (minus << 4 & 0x80808080u);
        odd = (magnitude >> 4 & 0x0f0f0f0fu) | (minus & 0x80808080u);
    }
}

/* What takes the power of two back, once, from the sums. */
template <moe_codes C> __device__ static constexpr float unshift()
{
    return C == FP4 ? 64.0f : 512.0f;
}

/* The two codes of a byte as two bf16 values. */
template <moe_codes C> __device__ static inline __nv_bfloat162 bf16_of(uint32_t byte)
{
    uint32_t t = byte * 0x1001, v;

    if constexpr (C == INT4) { /* 128 + code is exact */
        v = (t & 0x000f000fu) | 0x43004300u;
        return __hsub2(*(__nv_bfloat162 *)&v, __float2bfloat162_rn(136.0f));
    } /* the fields of E2M1 in those of bf16 are the value times 2^-126, partly subnormal */
    v = (t << 6 & 0x01c001c0u) | (t << 12 & 0x80008000u);
    return __hmul2(*(__nv_bfloat162 *)&v, __float2bfloat162_rn(0x1p126f));
}

/*
 * The multipliers of the two rows of a thread for a stage of 256 inputs, as they are in memory. They
 * are read one stage before they are used: nothing waits for memory. UNITS products of equally many inputs make a stage, and
 * each has SETS groups; int4 with SETS = 1 may have longer groups.
 */
template <moe_codes C, int SETS, int UNITS> struct multipliers {
    static const int N = SETS * UNITS, WORDS = C == FP4 ? N / 4 : N;
    uint32_t v[2][WORDS];
    int shift[2]
             [SETS == 1 ? N : 1]; /* int4, SETS = 1: what moves a multiplier to the upper end of its word */
};

struct multiplier_rows {
    const uint8_t *base;
    uint32_t row[2];    /* the first multiplier of each row */
    int ratio;          /* SETS = 1: the products that share a multiplier */
    uint32_t magic;     /* 2^32 / ratio, rounded up; unused if that is 1 */
    bool wide, aligned; /* float32; to the words of a stage */
    sl_scale_type type;
};

template <int UNITS> __device__ static inline multiplier_rows rows_of(const sl_weight &w, int out)
{
    int groups = (w.in + w.group - 1) / w.group, ratio = max(w.group / (K_STAGE / UNITS), 1),
        first = out + (threadIdx.x >> 5 & 3) * 16 + (threadIdx.x & 31) / 4;
    multiplier_rows s = {w.multiplier,
                         {},
                         ratio,
                         0xffffffffu / ratio + 1,
                         w.scale_type == SL_SCALE_F32,
                         (uintptr_t)w.multiplier % 16 == 0,
                         w.scale_type};

#pragma unroll
    for (int i = 0; i < 2; i++) /* a box may end after the last row */
        s.row[i] = (uint32_t)min(first + 8 * i, w.out - 1) * groups;
    return s;
}

/* Not moved by the compiler to where they are used, as an ordinary load may be. */
template <int WORDS>
__device__ static inline void load_words(const uint8_t *at, bool aligned, int size, uint32_t *to)
{
    if (!aligned) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            to[i] = 0;
            for (int b = 0; b < 4; b += size)
                to[i] |= (size == 4   ? __ldg((const uint32_t *)at + i)
                          : size == 2 ? __ldg((const uint16_t *)at + 2 * i + b / 2)
                                      : __ldg(at + 4 * i + b))
                         << 8 * b;
        }
    } else if constexpr (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4)
            sl_constant_words(to[i], to[i + 1], to[i + 2], to[i + 3], at + 4 * i);
    } else {
#pragma unroll
        for (int i = 0; i < WORDS; i += 2)
            sl_constant_words(to[i], to[i + 1], at + 4 * i);
    }
}

template <moe_codes C, int SETS, int UNITS>
__device__ static inline void fetch(const multiplier_rows &s, int stage, multipliers<C, SETS, UNITS> &m)
{
    const int N = SETS * UNITS;

#pragma unroll
    for (int r = 0; r < 2; r++)
        if constexpr (C == FP4) {
            load_words<N / 4>(s.base + s.row[r] + stage * N, s.aligned, 1, m.v[r]);
        } else if constexpr (SETS > 1) {
            if (s.wide)
                load_words<N>(s.base + 4 * (int64_t)(s.row[r] + stage * N), s.aligned, 4, m.v[r]);
            else
                load_words<N / 2>(s.base + 2 * (int64_t)(s.row[r] + stage * N), s.aligned, 2, m.v[r]);
        } else { /* a word has the multiplier: one kind of load, so that none waits for another */
#pragma unroll
            for (int i = 0; i < N; i++) {
                uint32_t unit = stage * N + i;
                int64_t at = s.row[r] + (s.ratio == 1 ? unit : __umulhi(unit, s.magic));
                const uint8_t *byte = s.base + (at << (s.wide ? 2 : 1));
                m.shift[r][i] = s.wide ? 0 : 16 - 8 * (int)((uintptr_t)byte & 2);
                sl_constant_word(m.v[r][i], (uintptr_t)byte & ~(uintptr_t)3);
            }
        }
}

/* Multiplier i of the stage, of row r. */
template <moe_codes C, int SETS, int UNITS>
__device__ static inline float multiplier(const multiplier_rows &s, const multipliers<C, SETS, UNITS> &m,
                                          int r, int i)
{
    if constexpr (C == FP4) {
        uint32_t b = m.v[r][i / 4] >> i % 4 * 8 & 255;
        return s.type == SL_SCALE_E8M0 ? sl_e8m0f(b) : sl_e4m3f((uint8_t)b);
    } else if constexpr (SETS > 1) {
        uint32_t two = m.v[r][i / 2];
        return __uint_as_float(s.wide ? m.v[r][i] : i % 2 ? two & 0xffff0000u : two << 16);
    } else {
        return __uint_as_float(m.v[r][i] << m.shift[r][i] & (s.wide ? ~0u : 0xffff0000u));
    }
}
#endif

#endif
