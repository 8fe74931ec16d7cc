/*
 * Host pages of random contents, for benchmarks: valid for every plane of a cache. Rows are copied from a few
 * blocks of encoded random vectors. Keys and metadata by which is selected are random in every page, because equal ones
 * would give equal scores, which do not occur in a real cache: index keys, bounds (the largest value of a channel is
 * positive, the smallest negative; also as codes of int8) and labels. Metadata do not belong to the rows of the same tokens.
 *
 * After open, several threads may fill different pages.
 */
#ifndef SL_ENGINE_RANDOM_PAGES_H
#define SL_ENGINE_RANDOM_PAGES_H

#include "kvstore/arena.h"

typedef struct sl_random_pages {
    const sl_geometry *g; /* outlives this */
    uint8_t *units;       /* encoded units of the plane of rows */
} sl_random_pages;

/* SL_ERR_NO_MEMORY. */
sl_status sl_engine_random_pages_open(sl_random_pages *f, const sl_geometry *g, sl_err *err);
void sl_engine_random_pages_close(sl_random_pages *f);
/* Fills all planes of all layers of one page; the bits depend on the page's number alone. */
void sl_engine_random_pages_fill(const sl_random_pages *f, sl_arena *arena, int32_t page);

#endif
