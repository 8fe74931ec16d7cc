/*
 * How the rows of each format are stored, as a table: a format is a line, and sizes, encoding, decoding and the parts of a cache
 * plane follow from it. A row has values (the latent part, or keys and values by head), then a float32 scale, a power of two, for
 * each group of them where the format has scales, then the RoPE part of a latent row.
 *
 * Kernels of a device decode the same bytes in code of their own, by format; what a new line needs there is the decoding of one tile.
 * Pure, any thread.
 */
#ifndef SL_KERNELS_ROW_CODEC_H
#define SL_KERNELS_ROW_CODEC_H

#include "kernels/params.h"

enum { SL_ROW_NO_SCALES = 0, SL_ROW_SCALE_HEAD = -1 };

typedef struct sl_row_codec {
    bool by_head;    /* keys and values of KV heads; false: a latent row */
    sl_dtype values; /* the type of what is stored */
    int32_t group;   /* values that share a scale, SL_ROW_NO_SCALES, or SL_ROW_SCALE_HEAD: those of a head */
    sl_dtype rope;   /* of the RoPE part of a latent row */
    int32_t align;   /* a row's bytes are a multiple; the rest is zeros. 1: they are not filled up */
} sl_row_codec;

/* NULL for a number that is no format. */
const sl_row_codec *sl_row_codec_of(sl_row_format f);

/* Stores n values in groups of `group` (the codec's, or a head) at `at`, their scales at `scales`; and reads them. */
void sl_row_store(const sl_row_codec *c, const float *x, int32_t n, int32_t group, uint8_t *at,
                  uint8_t *scales);
void sl_row_load(const sl_row_codec *c, const uint8_t *at, const uint8_t *scales, int32_t n, int32_t group,
                 float *x);

/* Of a row by head (kernels/gqa.h): where the keys or the values of some slots are in every row, looked up once for many rows: slot first, and those that follow
 * it at a distance of step slots. */
typedef struct sl_gqa_slots {
    const sl_row_codec *codec;
    int64_t at, scale_at; /* of slot first */
    int32_t dim, step;
} sl_gqa_slots;

sl_gqa_slots sl_gqa_slots_of(sl_row_format f, int32_t slots, int32_t dim, bool values, int32_t first,
                             int32_t step);
/* Decodes `count` of these slots of a row to out[count][dim]. */
void sl_gqa_slots_decode(const sl_gqa_slots *s, const uint8_t *row, int32_t count, float *out);

#endif
