/*
 * Inside the loader of weights: what its three files share. weights.c walks the tables of a family, weights_linear.c finds
 * the tensors of one weight in whichever form they are stored, weights_place.c puts bytes where the backend reads them.
 *
 * A placement is one contiguous piece of a file and the pointer that will point to it when it is placed. A fused tensor of
 * experts has many placements.
 */
#ifndef SL_MODEL_WEIGHTS_IMPL_H
#define SL_MODEL_WEIGHTS_IMPL_H

#include "model/weights.h"

#define SL_F8_BLOCK 128 /* of F8 scales */

typedef struct sl_placement {
    const void *src;
    size_t bytes, align; /* in the file; of one value */
    size_t items;        /* > 0: convert this many values of `from` to `to`, F32 or BF16 */
    sl_dtype from, to;
    float plus;            /* added to each value that is converted to F32 */
    sl_weight weight;      /* its data are in the file; of a whole weight that is converted, else empty */
    const sl_row_map *map; /* or NULL; then rows of the result and bytes of a row of the file */
    int64_t rows;
    size_t row_bytes;
    const void **dst;
} sl_placement;

typedef struct sl_loader {
    sl_backend *be;
    sl_checkpoint *ck;
    const sl_model_config *c;
    const sl_model_opts *o;
    sl_weights *w;
    sl_err *err;
    sl_placement *places;
    size_t n, cap;
    float **made; /* scales that had to be converted to find a weight; until the load ends */
    size_t n_made;
    bool elsewhere;                /* what is bound now belongs to another rank: checked, not placed */
    bool to_bf16;                  /* quantised weights that are bound now are converted to BF16 at load */
    int32_t expert;                /* of what is bound now, as in sl_ck_tensor */
    struct sl_bound_table *tables; /* until the load ends */
    size_t n_tables;
} sl_loader;

/* ---- weights_table.c ---- */

/* Finds and checks the table of a layer whose sizes and offsets are bound. */
sl_status sl_bind_table(sl_loader *l, const sl_table_spec *s, int32_t layer);
/* Puts the rows of all tables where the backend reads them: they stay in the files where it can, else they are copied into host
 * memory of the backend. */
sl_status sl_weights_place_tables(sl_loader *l);
void sl_end_tables(sl_loader *l);
void sl_free_tables(sl_weights *w);

/* ---- weights_linear.c ---- */

/* A [rows][cols] linear weight of any form. name: of its tensor in plain form, which ends with ".weight". quantised: 8 and 4
 * bits are allowed. */
sl_status sl_bind_matrix(sl_loader *l, const char *name, int64_t rows, int64_t cols, bool quantised,
                         sl_weight *out);
sl_status sl_bind_vector(sl_loader *l, const char *name, int64_t n, sl_weight *out);
/* Values in the shape of these dimensions, as float32 with `plus` added. */
sl_status sl_bind_floats(sl_loader *l, const char *name, const int64_t *dims, int32_t rank, float plus,
                         sl_weight *out);
/* n whole numbers of 64 bits. */
sl_status sl_bind_longs(sl_loader *l, const char *name, int64_t n, sl_weight *out);
/* A table of numbers of routed experts, as int32 (SL_K_EXPERTS). */
sl_status sl_bind_expert_ids(sl_loader *l, const char *name, int64_t rows, int64_t cols, sl_weight *out);
/* One of the two fused expert tensors, [experts][parts * rows][cols], cut into its experts and parts. */
sl_status sl_bind_fused(sl_loader *l, const char *name, int parts, int64_t rows, int64_t cols,
                        sl_weight *const *outs);
/* Whether another rank of the group holds routed expert e. */
bool sl_is_elsewhere(const sl_loader *l, int32_t e);

/* ---- weights_place.c ---- */

/* Will place `bytes` of values of `align` bytes at *dst. */
sl_status sl_place(sl_loader *l, const void *src, size_t bytes, size_t align, const void **dst);
/* Will place a weight whose data and multipliers are in the file; *out becomes its description. */
sl_status sl_weights_place_one(sl_loader *l, const sl_weight *stored, sl_weight *out);
/* Bytes of a placement on the device. */
size_t sl_placed_bytes(const sl_placement *p);
sl_status sl_weights_place_all(sl_loader *l);

#endif
