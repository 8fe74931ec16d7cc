/* See device.h. */
#include "engine/device.h"

#include <string.h>

#include "engine/engine_impl.h"

void sl_engine_device_layers(const sl_engine *e, sl_device_layer *out)
{
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        const sl_coord_layer *y = &e->layers[l];
        out[l] = (sl_device_layer){.rows_by_index_page = y->resident};
        for (int32_t p = 0; p < e->geo.shape.n_planes; p++) {
            const sl_cache_plane *d = &e->geo.shape.planes[p];
            bool rows = p == SL_CACHE_ROWS;
            out[l].planes[p] = (sl_host_plane){.base = rows ? y->rows.base : y->planes[p].device,
                                               .page_stride = sl_cache_page_bytes(d),
                                               .row_stride = d->heads * sl_cache_unit_bytes(d)};
            out[l].bytes[p] = rows                  ? y->rows.hot_base * y->rows.row_bytes /* the pool */
                              : y->planes[p].device ? e->o.index_pages * y->planes[p].device_stride
                                                    : 0;
        }
    }
}

void sl_engine_device_pages(const sl_seq *s, int32_t *row_pages, int32_t *index_pages, int32_t n)
{
    const sl_engine *e = s->e;
    int64_t at = (int64_t)s->row * e->ld;
    SL_CHECK(n <= s->n_pages && s->hot_slot < 0, "%d of %d pages, hot slot %d", n, s->n_pages, s->hot_slot);
    memcpy(row_pages, e->host.row_pages + at, (size_t)n * sizeof *row_pages);
    memcpy(index_pages, e->host.index_pages + at, (size_t)n * sizeof *index_pages);
}
