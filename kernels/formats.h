/*
 * The bytes of cache rows and index keys, and the conversions that produce them. Host code only: it is used by the
 * CPU ops, by tests, and by code that reads or fills an arena page itself. A device backend must produce the same
 * bytes.
 *
 * Not here: norms, RoPE and Hadamard transforms (these belong to the ops), and addresses of pages (the caller
 * computes them; only the place of a key inside its 64-key block is known here). Pure functions, any thread.
 *
 * Lower bounds of the power-of-two scales (kernels/params.h): groups of activations, index keys and queries use
 * amax >= 1e-4 (sl_scale_act), latent rows use amax / 448 >= 1e-4 (sl_scale_row). The row format is that of
 * FlashMLA, everything else follows the official model code.
 */
#ifndef SL_KERNELS_FORMATS_H
#define SL_KERNELS_FORMATS_H

#include <string.h>

#include "kernels/params.h"

#define SL_FP8_GROUP 128 /* values that share a scale */

/* Groups of inputs of a weight that has groups. */
static inline int64_t sl_weight_groups(const sl_weight *w)
{
    return ((int64_t)w->in + w->group - 1) / w->group;
}

/* Groups of n values; the last may be short. */
static inline int32_t sl_fp8_groups(int32_t n)
{
    return n / SL_FP8_GROUP + (n % SL_FP8_GROUP != 0);
}

static inline uint32_t sl_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float sl_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline float sl_bf16_to_f32(uint16_t b)
{
    return sl_bits_f32((uint32_t)b << 16);
}

/* Round to nearest even; NaN stays a (quiet) NaN. */
static inline uint16_t sl_f32_to_bf16(float f)
{
    uint32_t u = sl_f32_bits(f);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* f rounded to bf16 and back. */
static inline float sl_round_bf16(float f)
{
    return sl_bf16_to_f32(sl_f32_to_bf16(f));
}

static inline float sl_round_act(float f, sl_dtype act)
{
    return act == SL_BF16 ? sl_round_bf16(f) : f;
}

float sl_f16_to_f32(uint16_t h);
/* e4m3 (fn: no infinities, 0x7f and 0xff are NaN). */
float sl_e4m3_to_f32(uint8_t b);
/* The 256 values of sl_e4m3_to_f32. */
const float *sl_e4m3_table(void);
/* Round to nearest even, saturating at 448; NaN gives 0x7f with the sign of the input. */
uint8_t sl_f32_to_e4m3(float f);

/* Power of two of an e8m0 code; NaN for 255. */
float sl_e8m0_to_f32(uint8_t b);
/* Multiplier of group g of output `row`; for weights with groups. */
float sl_weight_multiplier(const sl_weight *w, int64_t row, int64_t g);
/* Bytes of one multiplier of a group. */
size_t sl_scale_size(sl_scale_type t);

/* Smallest power of two >= t, from t's bits. t must be a normal positive float. */
float sl_pow2_ceil(float t);
/* Scale of a group with largest magnitude amax, for activations, index keys and index queries. NaN counts as
 * the floor. */
float sl_scale_act(float amax);
/* The same for latent rows. */
float sl_scale_row(float amax);
/* Largest |x[i]|, NaNs ignored; 0 when n is 0. */
float sl_amax(const float *x, int32_t n);
/* out[i] = e4m3(x[i] / s); s is a power of two. */
void sl_quant_e4m3(const float *x, int32_t n, float s, uint8_t *out);

/* Encodes one latent row of `format` from lora + rope floats (after norm and RoPE), and decodes it. */
void sl_row_encode(sl_row_format format, int32_t lora, int32_t rope, const float *values, uint8_t *row);
void sl_row_decode(sl_row_format format, int32_t lora, int32_t rope, const uint8_t *row, float *values);

/* Key number i (0..63) of a 64-key block. encode writes dim floats (official: after the Hadamard transform); decode
 * reads them and multiplies by the scale. */
void sl_index_key_encode(sl_index_format format, int32_t dim, const float *key, uint8_t *block, int32_t i);
void sl_index_key_decode(sl_index_format format, int32_t dim, const uint8_t *block, int32_t i, float *key);

/* Loads n elements of dtype as float32 (of a half-byte type `first` and n are even); stores float32 as act (SL_F32 or
 * SL_BF16). */
void sl_load_f32(sl_dtype dtype, const void *src, int64_t first, int64_t n, float *out);
void sl_store_f32(sl_dtype dtype, const float *src, int64_t n, void *dst, int64_t first);

/* Whether the values of w are what is stored: there are no multipliers. */
static inline bool sl_weight_plain(const sl_weight *w)
{
    return w->scale_type == SL_SCALE_BLOCKS && w->dtype != SL_F8_E4M3;
}

/* The values of row r of w as float32; round_act: those of a weight with multipliers are rounded to this dtype. */
void sl_weight_load_row(const sl_weight *w, int64_t r, sl_dtype round_act, float *out);

#endif
