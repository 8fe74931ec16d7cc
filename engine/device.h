/*
 * Where the cache of resident sequences lies on the device, for code that copies it from there (a prefill worker
 * that ships rows directly from device memory). The addresses are constant for an engine; the pages are constant
 * for an open sequence to which no pages are added.
 *
 * Owns nothing. Threads: sl_engine_device_layers() any; sl_engine_device_pages() the engine's. Other threads may
 * use the results while the sequence is open; afterwards its device pages may belong to other sequences.
 */
#ifndef SL_ENGINE_DEVICE_H
#define SL_ENGINE_DEVICE_H

#include "engine/engine.h"

typedef struct sl_device_layer {
    /* By plane of the cache shape: device addresses, by device page. base NULL: the layer does not have the plane. */
    sl_host_plane planes[SL_CACHE_PLANES];
    int64_t bytes[SL_CACHE_PLANES]; /* of each pool, from its base */
    bool rows_by_index_page;        /* rows lie in the pages of the index pool, not of the row pool */
} sl_device_layer;

/* out[n_layers] */
void sl_engine_device_layers(const sl_engine *e, sl_device_layer *out);
/* Device pages of a resident sequence's first n pages: row_pages[n], index_pages[n]. */
void sl_engine_device_pages(const sl_seq *s, int32_t *row_pages, int32_t *index_pages, int32_t n);

#endif
