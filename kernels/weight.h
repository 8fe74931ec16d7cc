/*
 * The types of values, and the description of a linear weight. A weight says itself how its values are stored and what they
 * are multiplied with, so an op takes every form, and kernels/paths.c says which kernel serves it.
 *
 * Plain structs of device pointers; ops own nothing. Pure functions, any thread.
 */
#ifndef SL_KERNELS_WEIGHT_H
#define SL_KERNELS_WEIGHT_H

#include "base/status.h"

/* The half-byte types come in pairs, the value with the even index in the low half: SL_I4 stores v + 8 for v from -8 to 7,
 * SL_F4_E2M1 a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6. They are types of weights only. */
typedef enum { SL_F32, SL_BF16, SL_F16, SL_F8_E4M3, SL_I32, SL_I8, SL_I4, SL_F4_E2M1 } sl_dtype;

/* How the multipliers of a weight's values are stored: for each block, or for each output and `group` inputs. */
typedef enum {
    SL_SCALE_BLOCKS, /* float32 [ceil(out/128)][ceil(in/128)]: F8. Weights of 16 and 32 bits have none */
    SL_SCALE_F32,    /* [out][ceil(in/group)], as the following ones */
    SL_SCALE_BF16,
    SL_SCALE_E8M0, /* 2^(byte - 127); 255 is NaN */
    SL_SCALE_E4M3, /* times `global` in float32 */
} sl_scale_type;

/*
 * A linear weight [out][in]. A value is its code times its multiplier in float32. Of a half-byte
 * type `in` is even, a row has in / 2 bytes, and the multipliers are those of groups. group: 16, 32, 64 or a multiple of
 * 128; a last group may be short.
 */
typedef struct sl_weight {
    const void *data;
    union {
        const float *scale;        /* of SL_SCALE_BLOCKS; NULL: none */
        const uint8_t *multiplier; /* of groups, in their type */
    };
    int32_t out, in;
    sl_dtype dtype;
    sl_scale_type scale_type;
    int32_t group;      /* inputs that share a multiplier; 0 with SL_SCALE_BLOCKS */
    float global;       /* of SL_SCALE_E4M3 */
    bool acts_as_given; /* its inputs are never quantised, whatever fp8_acts says */
} sl_weight;

static inline bool sl_weight_group_ok(int32_t group)
{
    return group == 16 || group == 32 || group == 64 || (group >= 128 && group % 128 == 0);
}

/* Whether fp8_acts applies to a weight: its values are products with e4m3 inputs without loss. */
static inline bool sl_weight_takes_e4m3(const sl_weight *w)
{
    return !w->acts_as_given && (w->dtype == SL_F8_E4M3 || w->dtype == SL_I4 || w->dtype == SL_F4_E2M1);
}

/* Whether one kernel serves both, apart from their shapes. */
static inline bool sl_weight_same_form(const sl_weight *a, const sl_weight *b)
{
    return a->dtype == b->dtype && a->scale_type == b->scale_type && a->group == b->group &&
           a->acts_as_given == b->acts_as_given;
}

#endif
