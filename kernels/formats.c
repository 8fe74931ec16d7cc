/*
 * Conversions and encodings of kernels/formats.h. Everything works on bit patterns, so the bytes do not depend on
 * compiler flags or rounding modes. Only tables and simple loops are used: encoding happens once per new token.
 */
#include "kernels/formats.h"

#include "base/status.h"
#include "kernels/cpu/vec.h"

/* M8: the eight values (8 + m) * u of one exponent, with sign s. HALF: the 128 values of one sign. */
#define M8(s, u) s 8 * u, s 9 * u, s 10 * u, s 11 * u, s 12 * u, s 13 * u, s 14 * u, s 15 * u
#define HALF(s)                                                                                              \
    s 0.0f, s 0x1p-9f, s 0x2p-9f, s 0x3p-9f, s 0x4p-9f, s 0x5p-9f, s 0x6p-9f, s 0x7p-9f, M8(s, 0x1p-9f),     \
        M8(s, 0x1p-8f), M8(s, 0x1p-7f), M8(s, 0x1p-6f), M8(s, 0x1p-5f), M8(s, 0x1p-4f), M8(s, 0x1p-3f),      \
        M8(s, 0x1p-2f), M8(s, 0x1p-1f), M8(s, 0x1p0f), M8(s, 0x1p1f), M8(s, 0x1p2f), M8(s, 0x1p3f),          \
        M8(s, 0x1p4f), s 256.0f, s 288.0f, s 320.0f, s 352.0f, s 384.0f, s 416.0f, s 448.0f,                 \
        s __builtin_nanf("")
static const float e4m3_values[256] = {HALF(+), HALF(-)};

const float *sl_e4m3_table(void)
{
    return e4m3_values;
}

float sl_e4m3_to_f32(uint8_t b)
{
    return e4m3_values[b];
}

uint8_t sl_f32_to_e4m3(float f)
{
    uint32_t u = sl_f32_bits(f), sign = (u >> 24) & 0x80u, mag = u & 0x7fffffffu;

    if (mag > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (mag >= 0x43e00000u) /* 448 */
        return (uint8_t)(sign | 0x7eu);
    if (mag < 0x3c800000u) {
        /* Below 2^-6 codes are multiples of 2^-9; after adding 2^14 the mantissa holds exactly that multiple. */
        float magic = sl_bits_f32(mag) + 16384.0f;

        return (uint8_t)(sign | (sl_f32_bits(magic) - sl_f32_bits(16384.0f)));
    }
    /* Keeps 3 bits of the mantissa, rounded to nearest even; a carry moves to the exponent. */
    mag += 0x7ffffu + ((mag >> 20) & 1u);
    return (uint8_t)(sign | ((mag >> 20) - ((127u - 7u) << 3)));
}

float sl_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 1023u;

    if (e == 31)
        return sl_bits_f32(sign | 0x7f800000u | m << 13);
    if (e == 0) {
        float v = (float)m * 0x1p-24f;

        return sign ? -v : v;
    }
    return sl_bits_f32(sign | (e + 112u) << 23 | m << 13);
}

float sl_pow2_ceil(float t)
{
    uint32_t u = sl_f32_bits(t), e = u >> 23;

    return sl_bits_f32((e + ((u & 0x7fffffu) != 0)) << 23);
}

float sl_scale_act(float amax)
{
    return sl_pow2_ceil((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f));
}

float sl_scale_row(float amax)
{
    float t = amax * (1.0f / 448.0f);

    return sl_pow2_ceil(t > 1e-4f ? t : 1e-4f);
}

float sl_amax(const float *x, int32_t n)
{
    float amax = 0;

    for (int32_t i = 0; i < n; i++) {
        float a = sl_bits_f32(sl_f32_bits(x[i]) & 0x7fffffffu);

        amax = a > amax ? a : amax;
    }
    return amax;
}

void sl_quant_e4m3(const float *x, int32_t n, float s, uint8_t *out)
{
    float inv = 1.0f / s; /* exact: s is a power of two */

    for (int32_t i = 0; i < n; i++)
        out[i] = sl_f32_to_e4m3(x[i] * inv);
}

/* ---- sizes ---- */

static const uint8_t half_bytes[] = {
    [SL_F32] = 8, [SL_BF16] = 4, [SL_F16] = 4, [SL_F8_E4M3] = 2,
    [SL_I32] = 8, [SL_I8] = 2,   [SL_I4] = 1,  [SL_F4_E2M1] = 1,
};

size_t sl_dtype_size(sl_dtype d)
{
    return (size_t)d < SL_COUNT(half_bytes) ? half_bytes[d] / 2 : 0;
}

int64_t sl_dtype_bytes(sl_dtype d, int64_t n)
{
    return (size_t)d < SL_COUNT(half_bytes) ? n * half_bytes[d] / 2 : 0;
}

size_t sl_scale_size(sl_scale_type t)
{
    return t == SL_SCALE_F32 || t == SL_SCALE_BLOCKS ? 4 : t == SL_SCALE_BF16 ? 2 : 1;
}

int64_t sl_index_block_bytes(sl_index_format f, int32_t dim)
{
    return f == SL_INDEX_OFFICIAL ? SL_PAGE_TOKENS * ((int64_t)dim + 4) : SL_PAGE_TOKENS * (int64_t)dim * 4;
}

size_t sl_topk_hint_bytes(int32_t token_count, int32_t ld_scores)
{
    /* cuda needs most: a word for every 8 scores, each row padded to a multiple of 16 bytes */
    if (token_count <= 0 || ld_scores <= 0)
        return 0;
    return (size_t)token_count * (((size_t)ld_scores + 31) / 32) * 16;
}

size_t sl_moe_workspace_bytes(int32_t tokens, int32_t hidden, int32_t inter, int32_t experts, int32_t top_k)
{
    size_t rows, row, total;

    if (tokens <= 0 || hidden <= 0 || inter <= 0 || experts <= 0 || top_k <= 0)
        return 0;
    /* Per (token, choice): gate | up | product | input | result as float32, quantised copies and their
     * scales, an index. */
    row = 4 * (3 * (size_t)inter + 2 * (size_t)hidden) + (size_t)inter + (size_t)hidden + 64 +
          4 * (size_t)(sl_fp8_groups(inter) + sl_fp8_groups(hidden));
    if (__builtin_mul_overflow((size_t)tokens, (size_t)top_k, &rows) ||
        __builtin_mul_overflow(rows, row, &total) ||
        __builtin_add_overflow(total, 256 * (size_t)experts + 65536, &total))
        return 0;
    return total;
}

/* ---- index keys ---- */

void sl_index_key_encode(sl_index_format format, int32_t dim, const float *key, uint8_t *block, int32_t i)
{
    if (format == SL_INDEX_PLAIN) {
        memcpy(block + 4 * (size_t)dim * (size_t)i, key, 4 * (size_t)dim);
        return;
    }
    float s = sl_scale_act(sl_amax(key, dim));

    sl_quant_e4m3(key, dim, s, block + (size_t)dim * (size_t)i);
    memcpy(block + (size_t)dim * SL_PAGE_TOKENS + 4 * (size_t)i, &s, 4);
}

void sl_index_key_decode(sl_index_format format, int32_t dim, const uint8_t *block, int32_t i, float *key)
{
    if (format == SL_INDEX_PLAIN) {
        memcpy(key, block + 4 * (size_t)dim * (size_t)i, 4 * (size_t)dim);
        return;
    }
    float s;

    memcpy(&s, block + (size_t)dim * SL_PAGE_TOKENS + 4 * (size_t)i, 4);
    for (int32_t d = 0; d < dim; d++)
        key[d] = e4m3_values[block[(size_t)dim * (size_t)i + (size_t)d]] * s;
}

/* ---- half bytes, and multipliers of groups ---- */

static const float half_values[2][16] = {
    {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
    {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6},
};

float sl_e8m0_to_f32(uint8_t b)
{
    /* 2^-127 is not a normal number */
    return sl_bits_f32(b == 255 ? 0x7fc00000u : b ? (uint32_t)b << 23 : 0x400000u);
}

float sl_weight_multiplier(const sl_weight *w, int64_t row, int64_t g)
{
    const int64_t i = row * sl_weight_groups(w) + g;
    uint16_t half;
    float f;

    switch (w->scale_type) {
    case SL_SCALE_BF16:
        memcpy(&half, w->multiplier + 2 * i, 2);
        return sl_bf16_to_f32(half);
    case SL_SCALE_E8M0:
        return sl_e8m0_to_f32(w->multiplier[i]);
    case SL_SCALE_E4M3:
        return sl_e4m3_to_f32(w->multiplier[i]) * w->global;
    default:
        memcpy(&f, w->multiplier + 4 * i, 4);
        return f;
    }
}

/* ---- arrays ---- */

void sl_load_f32(sl_dtype dtype, const void *src, int64_t first, int64_t n, float *out)
{
    const uint8_t *at = (const uint8_t *)src + sl_dtype_bytes(dtype, first);

    switch (dtype) {
    case SL_F32:
        memcpy(out, at, 4 * (size_t)n);
        break;
    case SL_BF16:
        sl_vec_load_bf16((const void *)at, n, out);
        break;
    case SL_F16:
        for (int64_t i = 0; i < n; i++)
            out[i] = sl_f16_to_f32(((const uint16_t *)(const void *)at)[i]);
        break;
    case SL_F8_E4M3:
        sl_vec_load_e4m3(at, n, out);
        break;
    case SL_I32:
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)((const int32_t *)(const void *)at)[i];
        break;
    case SL_I8:
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)(int8_t)at[i];
        break;
    case SL_I4:
    case SL_F4_E2M1:
        for (int64_t i = 0; i < n; i++)
            out[i] = half_values[dtype == SL_F4_E2M1][at[i / 2] >> (i % 2 * 4) & 15];
        break;
    }
}

void sl_store_f32(sl_dtype dtype, const float *src, int64_t n, void *dst, int64_t first)
{
    if (dtype == SL_F32) {
        memcpy((float *)dst + first, src, 4 * (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)dst)[first + i] = sl_f32_to_bf16(src[i]);
}

void sl_weight_load_row(const sl_weight *w, int64_t r, sl_dtype round_act, float *out)
{
    sl_load_f32(w->dtype, w->data, r * w->in, w->in, out);
    if (w->scale_type != SL_SCALE_BLOCKS) {
        for (int64_t g = 0; g < sl_weight_groups(w); g++) {
            const float m = sl_weight_multiplier(w, r, g);

            for (int64_t i = g * w->group; i < w->in && i < (g + 1) * w->group; i++)
                out[i] = sl_round_act(out[i] * m, round_act);
        }
        return;
    }
    if (sl_weight_plain(w))
        return;
    const float *scale = w->scale + r / SL_FP8_GROUP * sl_fp8_groups(w->in);

    for (int32_t i = 0; i < w->in; i++)
        out[i] = sl_round_act(out[i] * scale[i / SL_FP8_GROUP], round_act);
}
