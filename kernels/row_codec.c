/* See row_codec.h. */
#include "kernels/row_codec.h"

#include <string.h>

#include "kernels/cpu/vec.h"
#include "kernels/formats.h"

static const sl_row_codec codecs[] = {
    [SL_ROW_MLA_F32] = {.values = SL_F32, .rope = SL_F32, .align = 1},
    [SL_ROW_MLA_BF16] = {.values = SL_BF16, .rope = SL_BF16, .align = 1},
    [SL_ROW_MLA_FP8] = {.values = SL_F8_E4M3, .group = SL_FP8_GROUP, .rope = SL_BF16, .align = 1},
    [SL_ROW_GQA_F32] = {.by_head = true, .values = SL_F32, .align = SL_ROW_ALIGN},
    [SL_ROW_GQA_BF16] = {.by_head = true, .values = SL_BF16, .align = SL_ROW_ALIGN},
    [SL_ROW_GQA_FP8] = {.by_head = true,
                        .values = SL_F8_E4M3,
                        .group = SL_ROW_SCALE_HEAD,
                        .align = SL_ROW_ALIGN},
};

const sl_row_codec *sl_row_codec_of(sl_row_format f)
{
    return (size_t)f < SL_COUNT(codecs) ? &codecs[f] : NULL;
}

/* sl_dtype_bytes() of the types of latent rows, without a call for each row. */
static inline int64_t bytes_of(sl_dtype type, int64_t n)
{
    return type == SL_F32 ? 4 * n : type == SL_BF16 ? 2 * n : n;
}

/* Rows of latent formats need not be aligned to their values. */
static void store_plain(sl_dtype type, const float *x, int32_t n, uint8_t *at)
{
    if (type == SL_F32 || (uintptr_t)at % 2 == 0) {
        sl_store_f32(type, x, n, at, 0);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const uint16_t b = sl_f32_to_bf16(x[i]);
        memcpy(at + 2 * (size_t)i, &b, 2);
    }
}

static void load_plain(sl_dtype type, const uint8_t *at, int32_t n, float *x)
{
    if (type == SL_F32) {
        memcpy(x, at, 4 * (size_t)n);
        return;
    }
    if ((uintptr_t)at % 2 == 0) {
        sl_vec_load_bf16((const void *)at, n, x);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        uint16_t b;
        memcpy(&b, at + 2 * (size_t)i, 2);
        x[i] = sl_bf16_to_f32(b);
    }
}

void sl_row_store(const sl_row_codec *c, const float *x, int32_t n, int32_t group, uint8_t *at,
                  uint8_t *scales)
{
    if (c->group == SL_ROW_NO_SCALES) {
        store_plain(c->values, x, n, at);
        return;
    }
    for (int32_t i = 0; i < n; i += group, scales += 4) {
        const int32_t some = n - i < group ? n - i : group;
        const float s = sl_scale_row(sl_amax(x + i, some));
        sl_quant_e4m3(x + i, some, s, at + i);
        memcpy(scales, &s, 4);
    }
}

void sl_row_load(const sl_row_codec *c, const uint8_t *at, const uint8_t *scales, int32_t n, int32_t group,
                 float *x)
{
    if (c->group == SL_ROW_NO_SCALES) {
        load_plain(c->values, at, n, x);
        return;
    }
    for (int32_t i = 0; i < n; i += group, scales += 4) {
        const int32_t some = n - i < group ? n - i : group;
        float s;
        memcpy(&s, scales, 4);
        sl_vec_load_e4m3(at + i, some, x + i);
        for (int32_t j = i; j < i + some; j++)
            x[j] *= s;
    }
}

/* ---- latent rows ---- */

static int64_t scales_bytes(const sl_row_codec *c, int32_t lora)
{
    return c->group ? 4 * (((int64_t)lora + c->group - 1) / c->group) : 0;
}

int64_t sl_row_bytes(sl_row_format f, int32_t lora, int32_t rope)
{
    const sl_row_codec *c = sl_row_codec_of(f);

    if (!c || c->by_head)
        return 0;
    return bytes_of(c->values, lora) + scales_bytes(c, lora) + bytes_of(c->rope, rope);
}

void sl_row_encode(sl_row_format format, int32_t lora, int32_t rope, const float *values, uint8_t *row)
{
    const sl_row_codec *c = sl_row_codec_of(format);
    uint8_t *scales = row + bytes_of(c->values, lora);

    sl_row_store(c, values, lora, c->group, row, scales);
    store_plain(c->rope, values + lora, rope, scales + scales_bytes(c, lora));
}

void sl_row_decode(sl_row_format format, int32_t lora, int32_t rope, const uint8_t *row, float *values)
{
    const sl_row_codec *c = sl_row_codec_of(format);
    const uint8_t *scales = row + bytes_of(c->values, lora);

    sl_row_load(c, row, scales, lora, c->group, values);
    load_plain(c->rope, scales + scales_bytes(c, lora), rope, values + lora);
}
