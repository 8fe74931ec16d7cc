/*
 * Loading of cached pages from the host planes to the device: runs of pages that are consecutive on both
 * sides are one strided copy. Enqueues only; the arrays of page numbers are host memory, read during the
 * call. Threads: the backend's.
 */
#ifndef SL_SPARSE_LOAD_H
#define SL_SPARSE_LOAD_H

#include "sparse/sparse.h"

/* A plane that is on the device whole: host page host_pages[i] to device page device_pages[i], i < n. `shape` is its
 * description in the cache shape. */
sl_status sl_load_plane(sl_backend *be, const sl_cache_plane *shape, const sl_algo_plane *plane,
                        const int32_t *host_pages, const int32_t *device_pages, int32_t n, sl_err *err);
/* The rows of tokens 0 .. n_tokens-1 of a resident sequence into the row pool. */
sl_status sl_load_rows(sl_backend *be, const sl_coord_layer *layer, const int32_t *host_pages,
                       const int32_t *row_pages, int32_t n_tokens, sl_err *err);
/* The rows of the newest blocks, as many as the tail of a hot slot has room for, into that tail. */
sl_status sl_load_tail(sl_backend *be, const sl_coord_layer *layer, const int32_t *host_pages,
                       int32_t hot_slot, int32_t n_tokens, sl_err *err);

#endif
