/* The small MLA geometry that tests of several rooms use: latent 128, RoPE 16, index keys of 32 values. */
#ifndef SL_TEST_MLA_GEOMETRY_H
#define SL_TEST_MLA_GEOMETRY_H

#include "kvstore/arena.h"

/* has_indexer: [n_layers]. Panics on an error, because its arguments are constants. */
static inline sl_geometry mla_geometry(sl_key fingerprint, sl_layout layout, sl_row_format rows,
                                       sl_index_format index, int32_t n_layers, const bool *has_indexer)
{
    sl_cache_dims d = {
        .rows = sl_row_format_of(rows), .index_format = index, .latent = 128, .rope = 16, .index_dim = 32};
    sl_cache_shape shape;
    sl_geometry g;
    sl_geometry_opts o = {.fingerprint = fingerprint,
                          .layout = layout,
                          .shape = &shape,
                          .n_layers = n_layers,
                          .has_indexer = has_indexer};
    SL_CHECK(sl_cache_shape_make(&d, &shape, NULL) == SL_OK, "shape");
    SL_CHECK(sl_geometry_make(&o, &g, NULL) == SL_OK, "geometry");
    return g;
}

#endif
