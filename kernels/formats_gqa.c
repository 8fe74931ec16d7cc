/* Rows of grouped-query attention; see kernels/gqa.h. */
#include "kernels/gqa.h"

#include "kernels/cpu/vec.h"
#include "kernels/formats.h"

/* Bytes of an element of k and v; 0: not a format of these rows. */
static size_t element(sl_row_format f)
{
    switch (f) {
    case SL_ROW_GQA_F32:
        return 4;
    case SL_ROW_GQA_BF16:
        return 2;
    case SL_ROW_GQA_FP8:
        return 1;
    default:
        return 0;
    }
}

/* What the slots occupy of a row. */
static int64_t filled(sl_row_format f, int32_t slots, int32_t dim)
{
    int64_t values = 2 * (int64_t)slots * dim;
    return values * (int64_t)element(f) + (f == SL_ROW_GQA_FP8 ? 8 * (int64_t)slots : 0);
}

int64_t sl_gqa_row_bytes(sl_row_format f, int32_t slots, int32_t dim)
{
    return (filled(f, slots, dim) + SL_ROW_ALIGN - 1) / SL_ROW_ALIGN * SL_ROW_ALIGN;
}

/* One side of a row: `side` 0 is k, 1 is v. */
static void encode_side(sl_row_format f, int32_t slots, int32_t dim, int side, int32_t first, int32_t count,
                        const float *x, uint8_t *row)
{
    size_t n = (size_t)slots * (size_t)dim;
    uint8_t *at = row + ((size_t)side * n + (size_t)first * (size_t)dim) * element(f);
    if (f != SL_ROW_GQA_FP8) {
        sl_store_f32(f == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16, x, (int64_t)count * dim, at, 0);
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        const float *values = x + (size_t)i * (size_t)dim;
        float s = sl_scale_row(sl_amax(values, dim));
        sl_quant_e4m3(values, dim, s, at + (size_t)i * (size_t)dim);
        memcpy(row + 2 * n + 4 * ((size_t)side * (size_t)slots + (size_t)(first + i)), &s, 4);
    }
}

static void decode_side(sl_row_format f, int32_t slots, int32_t dim, int side, const uint8_t *row,
                        int32_t slot, float *out)
{
    size_t n = (size_t)slots * (size_t)dim;
    const uint8_t *at = row + ((size_t)side * n + (size_t)slot * (size_t)dim) * element(f);
    if (f != SL_ROW_GQA_FP8) {
        sl_load_f32(f == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16, at, 0, dim, out);
        return;
    }
    float s;
    memcpy(&s, row + 2 * n + 4 * ((size_t)side * (size_t)slots + (size_t)slot), 4);
    sl_vec_load_e4m3(at, dim, out);
    for (int32_t i = 0; i < dim; i++)
        out[i] *= s;
}

void sl_gqa_row_encode(sl_row_format f, int32_t slots, int32_t dim, int32_t first, int32_t count,
                       const float *k, const float *v, uint8_t *row)
{
    encode_side(f, slots, dim, 0, first, count, k, row);
    encode_side(f, slots, dim, 1, first, count, v, row);
    if (first == 0) {
        const int64_t at = filled(f, slots, dim);
        memset(row + at, 0, (size_t)(sl_gqa_row_bytes(f, slots, dim) - at));
    }
}

void sl_gqa_row_decode(sl_row_format f, int32_t slots, int32_t dim, const uint8_t *row, int32_t slot,
                       float *k, float *v)
{
    decode_side(f, slots, dim, 0, row, slot, k);
    decode_side(f, slots, dim, 1, row, slot, v);
}

void sl_gqa_key_decode(sl_row_format f, int32_t slots, int32_t dim, const uint8_t *row, int32_t slot,
                       float *k)
{
    decode_side(f, slots, dim, 0, row, slot, k);
}

void sl_gqa_value_decode(sl_row_format f, int32_t slots, int32_t dim, const uint8_t *row, int32_t slot,
                         float *v)
{
    decode_side(f, slots, dim, 1, row, slot, v);
}
