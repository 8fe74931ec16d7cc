/*
 * Loading of cached pages from the host planes to the device: runs of pages that are consecutive on both
 * sides are one strided copy. Enqueues only; the arrays of page numbers are host memory, read during the
 * call. Threads: the backend's.
 */
#ifndef SL_SPARSE_LOAD_H
#define SL_SPARSE_LOAD_H

#include "sparse/sparse.h"

/* bytes per page from host page host_pages[i] to device + device_pages[i] * device_stride, i < n. */
sl_status sl_load_pages(sl_backend *be, const sl_host_plane *host, uint8_t *device, int64_t device_stride,
                        int64_t bytes, const int32_t *host_pages, const int32_t *device_pages, int32_t n,
                        sl_err *err);
/* Rows 0 .. n_tokens-1 of a resident sequence into the row pool. */
sl_status sl_load_rows(sl_backend *be, const sl_coord_layer *layer, const int32_t *host_pages,
                       const int32_t *row_pages, int32_t n_tokens, sl_err *err);
/* The newest min(n_tokens, tail_rows) rows into the tail of a hot slot. */
sl_status sl_load_tail(sl_backend *be, const sl_coord_layer *layer, const int32_t *host_pages,
                       int32_t hot_slot, int32_t n_tokens, sl_err *err);

#endif
