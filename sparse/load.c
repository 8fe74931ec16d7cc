/* Strided copies of cached pages; see load.h. In most layouts the rows of a page are contiguous; in the others each
 * page is one copy. */
#include "sparse/load.h"

/* Length of the run of pages from i on whose numbers rise by one on both sides. */
static int32_t run_length(const int32_t *a, const int32_t *b, int32_t i, int32_t n)
{
    int32_t m = 1;
    while (i + m < n && a[i + m] == a[i] + m && b[i + m] == b[i] + m)
        m++;
    return m;
}

sl_status sl_load_pages(sl_backend *be, const sl_host_plane *host, uint8_t *device, int64_t device_stride,
                        int64_t bytes, const int32_t *host_pages, const int32_t *device_pages, int32_t n,
                        sl_err *err)
{
    for (int32_t i = 0; i < n;) {
        int32_t m = run_length(host_pages, device_pages, i, n);
        SL_TRY(sl_be_copy_2d(be, device + device_pages[i] * device_stride, (size_t)device_stride,
                             host->base + host_pages[i] * host->page_stride, (size_t)host->page_stride,
                             (size_t)bytes, (size_t)m, err));
        i += m;
    }
    return SL_OK;
}

/* n rows of one host page, from row `row` on, to dst. */
static sl_status load_part(sl_backend *be, const sl_coord_layer *l, uint8_t *dst, int32_t page, int32_t row,
                           int32_t n, sl_err *err)
{
    const sl_host_plane *h = &l->host_rows;
    const uint8_t *src = h->base + page * h->page_stride + row * h->row_stride;
    size_t width = (size_t)l->rows.row_bytes;
    return sl_be_copy_2d(be, dst, width, src, (size_t)h->row_stride, width, (size_t)n, err);
}

sl_status sl_load_rows(sl_backend *be, const sl_coord_layer *l, const int32_t *host_pages,
                       const int32_t *row_pages, int32_t n_tokens, sl_err *err)
{
    const int64_t page_bytes = SL_PAGE_TOKENS * l->rows.row_bytes;
    int32_t full = n_tokens / SL_PAGE_TOKENS, rest = n_tokens % SL_PAGE_TOKENS;
    if (l->host_rows.row_stride == l->rows.row_bytes) {
        SL_TRY(sl_load_pages(be, &l->host_rows, l->rows.base, page_bytes, page_bytes, host_pages, row_pages,
                             full, err));
    } else {
        for (int32_t i = 0; i < full; i++)
            SL_TRY(load_part(be, l, l->rows.base + row_pages[i] * page_bytes, host_pages[i], 0,
                             SL_PAGE_TOKENS, err));
    }
    if (rest)
        SL_TRY(load_part(be, l, l->rows.base + row_pages[full] * page_bytes, host_pages[full], 0, rest, err));
    return SL_OK;
}

sl_status sl_load_tail(sl_backend *be, const sl_coord_layer *l, const int32_t *host_pages, int32_t hot_slot,
                       int32_t n_tokens, sl_err *err)
{
    const sl_row_view *v = &l->rows;
    int64_t first = v->hot_base + (int64_t)hot_slot * (v->hot_rows + v->tail_rows) + v->hot_rows;
    int32_t pos = n_tokens > v->tail_rows ? n_tokens - v->tail_rows : 0;
    while (pos < n_tokens) {
        int32_t at = pos % v->tail_rows, row = pos % SL_PAGE_TOKENS, n = n_tokens - pos;
        if (n > v->tail_rows - at)
            n = v->tail_rows - at;
        if (n > SL_PAGE_TOKENS - row)
            n = SL_PAGE_TOKENS - row;
        SL_TRY(load_part(be, l, v->base + (first + at) * v->row_bytes, host_pages[pos / SL_PAGE_TOKENS], row,
                         n, err));
        pos += n;
    }
    return SL_OK;
}
