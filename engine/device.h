/*
 * Where the cache of resident sequences lies on the device, for those who copy it from there (a prefill
 * worker whose rows leave by the device's copy engine). Constant for an engine, constant for an open sequence
 * whose pages do not change.
 *
 * Owns nothing. Threads: device_layers from any; device_pages from the engine's. What was read may be used on
 * other threads while the sequence is open; afterwards its device pages belong to others.
 */
#ifndef SL_ENGINE_DEVICE_H
#define SL_ENGINE_DEVICE_H

#include "engine/engine.h"

typedef struct sl_device_layer {
    sl_host_plane
        planes[SL_CACHE_PLANES]; /* by plane of the cache shape: device addresses, by device page; base NULL:
                                              the layer does not have it */
    int64_t bytes[SL_CACHE_PLANES]; /* of each pool, from its base */
    bool rows_by_index_page;        /* rows lie in the pages of the index pool, not of the row pool */
} sl_device_layer;

/* out[n_layers] */
void sl_engine_device_layers(const sl_engine *e, sl_device_layer *out);
/* Device pages of a resident sequence's first n pages: row_pages[n], index_pages[n]. */
void sl_engine_device_pages(const sl_seq *s, int32_t *row_pages, int32_t *index_pages, int32_t n);

#endif
