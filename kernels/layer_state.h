/*
 * A state of fixed size: what a layer keeps of a request, whatever its length (a recurrence, the last tokens of a convolution, a
 * ring, an open unit). A family describes it in parts, each with a type and a shape, as the ops that read and write it take
 * it; bytes, the place of each part and its alignment follow. Who owns the memory gives every sequence a slot
 * (sl_layer_memory of kernels/attn.h), and keeps, copies and snapshots states as bytes.
 *
 *   part                op (kernels/turns.c)      shape
 *   convolution         SL_OP_CONV                f32 [(taps - 1) * dilation][channels]
 *   recurrence          SL_OP_DELTA               f32 [value heads][key dim][value dim]
 *   last tokens         SL_OP_NGRAM               i32 [order - 1]
 *   open unit           SL_OP_POOL_APPEND         f32 [1, or 2 with gates][tokens][dim]
 *   ring                SL_OP_RING_STORE          bf16 or f32 [window][dim]
 *   open entry          SL_OP_ENTRIES_APPEND      f32 [3][dim], or [2 * rate][2][2 * dim]
 */
#ifndef SL_KERNELS_LAYER_STATE_H
#define SL_KERNELS_LAYER_STATE_H

#include "base/status.h"
#include "kernels/weight.h"

enum {
    SL_STATE_FORMAT = 16, /* bytes of the name of a format, and of a part */
    SL_STATE_NAME = 32,
    SL_STATE_PARTS = 4,
    SL_STATE_BYTES_MAX = 1 << 30,
    SL_STATE_ALIGN = 256,     /* of a state on the device */
    SL_STATE_PART_ALIGN = 16, /* the most that a part may ask for */
};

typedef struct sl_state_part {
    char name[SL_STATE_NAME]; /* for messages */
    sl_dtype dtype;
    int32_t align;    /* bytes, a power of two: where the part begins is a multiple */
    int64_t shape[3]; /* the outermost dimension first; 1 where there are fewer */
} sl_state_part;

/* bytes 0: nothing is kept. n_parts 0 with bytes: parts are not known, as of a state that another worker describes. */
typedef struct sl_layer_state {
    char format[SL_STATE_FORMAT]; /* contents of another format never match */
    uint64_t stamp;               /* as sl_cache_plane.stamp */
    int64_t bytes;
    int32_t n_parts;
    sl_state_part parts[SL_STATE_PARTS];
} sl_layer_state;

/* Adds a part after the others, at the next multiple of `align` bytes (0: of a value's size), and counts its bytes. A part too
 * many is counted in n_parts alone, which sl_layer_state_check_parts() refuses. */
void sl_layer_state_add(sl_layer_state *s, const char *name, sl_dtype dtype, int32_t align, int64_t a,
                        int64_t b, int64_t c);
/* Bytes of a part, and bytes from the beginning of the state to part i. Pure. */
int64_t sl_state_part_bytes(const sl_state_part *p);
int64_t sl_layer_state_at(const sl_layer_state *s, int32_t i);
/* SL_ERR_INVALID if the parts are impossible, or are not the bytes of the state; class: for the message. */
sl_status sl_layer_state_check_parts(const char *class, const sl_layer_state *s, sl_err *err);

#endif
