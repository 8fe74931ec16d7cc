/* Rows of grouped-query attention; see kernels/gqa.h. */
#include "kernels/gqa.h"

#include <string.h>

#include "kernels/row_codec.h"

static const sl_row_codec *codec_of(sl_row_format f)
{
    const sl_row_codec *c = sl_row_codec_of(f);

    return c && c->by_head ? c : NULL;
}

/* What the slots occupy of a row: keys, values, and their scales. */
static int64_t filled(const sl_row_codec *c, int32_t slots, int32_t dim)
{
    return sl_dtype_bytes(c->values, 2 * (int64_t)slots * dim) + (c->group ? 8 * (int64_t)slots : 0);
}

int64_t sl_gqa_row_bytes(sl_row_format f, int32_t slots, int32_t dim)
{
    const sl_row_codec *c = codec_of(f);

    return c ? (filled(c, slots, dim) + c->align - 1) / c->align * c->align : 0;
}

/* Where head `slot` of side 0, keys, or 1, values, begins in a row, and its scale. */
static int64_t head_at(const sl_row_codec *c, int32_t slots, int32_t dim, int side, int32_t slot)
{
    return sl_dtype_bytes(c->values, ((int64_t)side * slots + slot) * dim);
}

static int64_t scale_at(const sl_row_codec *c, int32_t slots, int32_t dim, int side, int32_t slot)
{
    return sl_dtype_bytes(c->values, 2 * (int64_t)slots * dim) + 4 * ((int64_t)side * slots + slot);
}

void sl_gqa_row_encode(sl_row_format f, int32_t slots, int32_t dim, int32_t first, int32_t count,
                       const float *k, const float *v, uint8_t *row)
{
    const sl_row_codec *c = codec_of(f);

    for (int side = 0; side < 2; side++)
        sl_row_store(c, side ? v : k, count * dim, dim, row + head_at(c, slots, dim, side, first),
                     row + scale_at(c, slots, dim, side, first));
    if (first == 0) {
        const int64_t at = filled(c, slots, dim);
        memset(row + at, 0, (size_t)(sl_gqa_row_bytes(f, slots, dim) - at));
    }
}

sl_gqa_slots sl_gqa_slots_of(sl_row_format f, int32_t slots, int32_t dim, bool values, int32_t first,
                             int32_t step)
{
    const sl_row_codec *c = codec_of(f);

    return (sl_gqa_slots){.codec = c,
                          .at = head_at(c, slots, dim, values, first),
                          .scale_at = scale_at(c, slots, dim, values, first),
                          .dim = dim,
                          .step = step};
}

void sl_gqa_slots_decode(const sl_gqa_slots *s, const uint8_t *row, int32_t count, float *out)
{
    const uint8_t *at = row + s->at, *scales = row + s->scale_at;
    const int32_t dim = s->dim;

    if (s->step == 1) { /* neighbours are one array */
        sl_row_load(s->codec, at, scales, count * dim, dim, out);
        return;
    }
    const int64_t bytes = sl_dtype_bytes(s->codec->values, (int64_t)s->step * dim);

    for (int32_t i = 0; i < count; i++, at += bytes, scales += 4 * (int64_t)s->step)
        sl_row_load(s->codec, at, scales, dim, dim, out + (int64_t)i * dim);
}

static void decode_side(sl_row_format f, int32_t slots, int32_t dim, bool values, const uint8_t *row,
                        int32_t slot, float *out)
{
    const sl_gqa_slots s = sl_gqa_slots_of(f, slots, dim, values, slot, 1);

    sl_gqa_slots_decode(&s, row, 1, out);
}

void sl_gqa_key_decode(sl_row_format f, int32_t slots, int32_t dim, const uint8_t *row, int32_t slot,
                       float *k)
{
    decode_side(f, slots, dim, false, row, slot, k);
}

void sl_gqa_value_decode(sl_row_format f, int32_t slots, int32_t dim, const uint8_t *row, int32_t slot,
                         float *v)
{
    decode_side(f, slots, dim, true, row, slot, v);
}

void sl_gqa_row_decode(sl_row_format f, int32_t slots, int32_t dim, const uint8_t *row, int32_t slot,
                       float *k, float *v)
{
    sl_gqa_key_decode(f, slots, dim, row, slot, k);
    sl_gqa_value_decode(f, slots, dim, row, slot, v);
}
