/* Strided copies of cached pages; see load.h. In most layouts the rows of a page, and the units of another plane, are
 * contiguous; in the others each page is one copy. */
#include "sparse/load.h"

/* Length of the run of pages from i on whose numbers rise by one on both sides. */
static int32_t run_length(const int32_t *a, const int32_t *b, int32_t i, int32_t n)
{
    int32_t m = 1;
    while (i + m < n && a[i + m] == a[i] + m && b[i + m] == b[i] + m)
        m++;
    return m;
}

/* bytes per page from host page host_pages[i] to device + device_pages[i] * device_stride, i < n. */
static sl_status load_pages(sl_backend *be, const sl_host_plane *host, uint8_t *device, int64_t device_stride,
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

sl_status sl_load_plane(sl_backend *be, const sl_cache_plane *shape, const sl_algo_plane *plane,
                        const int32_t *host_pages, const int32_t *device_pages, int32_t n, sl_err *err)
{
    const sl_host_plane *h = &plane->host;
    const int64_t bytes = sl_cache_page_bytes(shape), unit = shape->heads * sl_cache_unit_bytes(shape);
    if (unit == bytes || h->row_stride == unit)
        return load_pages(be, h, plane->device, plane->device_stride, bytes, host_pages, device_pages, n,
                          err);
    for (int32_t i = 0; i < n; i++)
        SL_TRY(sl_be_copy_2d(be, plane->device + device_pages[i] * plane->device_stride, (size_t)unit,
                             h->base + host_pages[i] * h->page_stride, (size_t)h->row_stride, (size_t)unit,
                             (size_t)(bytes / unit), err));
    return SL_OK;
}

/* The rows of all heads of one block are contiguous on both sides; their bytes, and the number of blocks of a page. */
static int64_t block_bytes(const sl_coord_layer *l)
{
    return sl_row_lists(&l->rows) * l->rows.row_bytes;
}

static int32_t page_blocks(const sl_coord_layer *l)
{
    return SL_PAGE_TOKENS >> l->rows.block_log2;
}

/* n blocks of one host page, from block `block` on, to dst. */
static sl_status load_part(sl_backend *be, const sl_coord_layer *l, uint8_t *dst, int32_t page, int32_t block,
                           int32_t n, sl_err *err)
{
    const sl_host_plane *h = &l->host_rows;
    const uint8_t *src = h->base + page * h->page_stride + block * h->row_stride;
    size_t width = (size_t)block_bytes(l);
    return sl_be_copy_2d(be, dst, width, src, (size_t)h->row_stride, width, (size_t)n, err);
}

sl_status sl_load_rows(sl_backend *be, const sl_coord_layer *l, const int32_t *host_pages,
                       const int32_t *row_pages, int32_t n_tokens, sl_err *err)
{
    const int64_t page_bytes = page_blocks(l) * block_bytes(l);
    int32_t full = n_tokens / SL_PAGE_TOKENS;
    int32_t rest = sl_blocks_for(n_tokens % SL_PAGE_TOKENS, l->rows.block_log2);
    if (l->host_rows.row_stride == block_bytes(l)) {
        SL_TRY(load_pages(be, &l->host_rows, l->rows.base, page_bytes, page_bytes, host_pages, row_pages,
                          full, err));
    } else {
        for (int32_t i = 0; i < full; i++)
            SL_TRY(load_part(be, l, l->rows.base + row_pages[i] * page_bytes, host_pages[i], 0,
                             page_blocks(l), err));
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
    int32_t tail = v->tail_rows / sl_row_lists(v), end = sl_blocks_for(n_tokens, v->block_log2);
    int32_t block = end > tail ? end - tail : 0;
    while (block < end) {
        int32_t at = block % tail, in_page = block % page_blocks(l), n = end - block;
        if (n > tail - at)
            n = tail - at;
        if (n > page_blocks(l) - in_page)
            n = page_blocks(l) - in_page;
        SL_TRY(load_part(be, l, v->base + first * v->row_bytes + at * block_bytes(l),
                         host_pages[block / page_blocks(l)], in_page, n, err));
        block += n;
    }
    return SL_OK;
}
