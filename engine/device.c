/* See device.h. */
#include "engine/device.h"

#include <string.h>

#include "engine/engine_impl.h"

void sl_engine_device_layers(const sl_engine *e, sl_device_layer *out)
{
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        const sl_coord_layer *y = &e->layers[l];
        out[l] = (sl_device_layer){.rows = {.base = y->rows.base,
                                            .page_stride = SL_PAGE_TOKENS * y->rows.row_bytes,
                                            .row_stride = y->rows.row_bytes},
                                   .index = {.base = y->index_base, .page_stride = y->index_page_stride},
                                   .row_bytes = y->rows.hot_base * y->rows.row_bytes, /* the pool */
                                   .index_bytes = y->index_base ? e->o.index_pages * y->index_page_stride : 0,
                                   .rows_by_index_page = y->resident};
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
