/* See row_sums.h. One anonymous mapping, with huge pages where there are any: a device looks up few addresses then. The part of
 * pages that were never used takes no memory before a device pins it. */
#include "kvstore/row_sums.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/rowsum.h"

struct sl_row_sums {
    const sl_arena *arena;
    int64_t per_page; /* checksums of a page in one layer */
    uint64_t bytes;
    uint32_t *base; /* [layers that have rows][pages][per_page] */
};

static int64_t per_page(const sl_geometry *g)
{
    return sl_cache_page_units(&g->shape.planes[SL_CACHE_ROWS]) * sl_rowsum_parts(sl_geometry_row_bytes(g));
}

/* The number of layers before this one that have rows. */
static int32_t before(const sl_geometry *g, int32_t layer)
{
    int32_t n = 0;
    for (int32_t l = 0; l < layer; l++)
        n += sl_geometry_has(g, l, SL_CACHE_ROWS);
    return n;
}

uint64_t sl_row_sums_bytes(const sl_geometry *g, int64_t n_pages)
{
    return (uint64_t)(n_pages * before(g, g->n_layers) * per_page(g)) * sizeof(uint32_t);
}

sl_status sl_row_sums_create(const sl_arena *arena, sl_row_sums **out, sl_err *err)
{
    const sl_geometry *g = sl_arena_geometry(arena);
    sl_row_sums *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "checksums of rows: out of memory");
    s->arena = arena;
    s->per_page = per_page(g);
    s->bytes = sl_row_sums_bytes(g, sl_arena_pages(arena));
    if (!s->bytes)
        s->bytes = sizeof *s->base; /* no layer has rows: a mapping must not be empty */
    void *p = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        free(s);
        return sl_fail(err, SL_ERR_NO_MEMORY,
                       "cannot map %.0f MiB for the checksums of rows: %s; lower kvstore.bytes, or set "
                       "kvstore.verify to always",
                       (double)sl_row_sums_bytes(g, sl_arena_pages(arena)) / (1 << 20), strerror(errno));
    }
    s->base = p;
    (void)madvise(p, s->bytes, MADV_HUGEPAGE);
    *out = s;
    return SL_OK;
}

void sl_row_sums_destroy(sl_row_sums *s)
{
    if (!s)
        return;
    munmap(s->base, s->bytes);
    free(s);
}

void *sl_row_sums_base(const sl_row_sums *s)
{
    return s->base;
}

uint64_t sl_row_sums_size(const sl_row_sums *s)
{
    return s->bytes;
}

static uint32_t *of_page(const sl_row_sums *s, int32_t layer, int32_t page)
{
    int64_t place = before(sl_arena_geometry(s->arena), layer);
    return s->base + (place * sl_arena_pages(s->arena) + page) * s->per_page;
}

const uint32_t *sl_row_sums_layer(const sl_row_sums *s, int32_t layer)
{
    return sl_geometry_has(sl_arena_geometry(s->arena), layer, SL_CACHE_ROWS) ? of_page(s, layer, 0) : NULL;
}

/* A device or another thread may read a checksum while it is written: it sees the old one or the new one. */
static void put(uint32_t *to, uint32_t sum)
{
    __atomic_store_n(to, sum, __ATOMIC_RELAXED);
}

static uint32_t *make_row(const uint8_t *row, int64_t bytes, uint32_t *to)
{
    for (int64_t at = 0; at < bytes; at += SL_ROWSUM_PART)
        put(to++, sl_rowsum(row + at, (size_t)(bytes - at < SL_ROWSUM_PART ? bytes - at : SL_ROWSUM_PART)));
    return to;
}

void sl_row_sums_make(sl_row_sums *s, int32_t page)
{
    const sl_geometry *g = sl_arena_geometry(s->arena);
    const sl_cache_plane *p = &g->shape.planes[SL_CACHE_ROWS];
    const int64_t bytes = sl_geometry_row_bytes(g);
    for (int32_t l = 0; l < g->n_layers; l++) {
        if (!sl_geometry_has(g, l, SL_CACHE_ROWS))
            continue;
        sl_host_plane at =
            sl_geometry_plane(g, sl_arena_base(s->arena), sl_arena_pages(s->arena), l, SL_CACHE_ROWS);
        const uint8_t *first = at.base + page * at.page_stride;
        uint32_t *to = of_page(s, l, page);
        for (int32_t u = 0; u < sl_cache_page_units(p); u++)
            to = make_row(first + u / p->heads * at.row_stride + u % p->heads * bytes, bytes, to);
    }
}

void sl_row_sums_forget(sl_row_sums *s, const int32_t *pages, int32_t n)
{
    const sl_geometry *g = sl_arena_geometry(s->arena);
    for (int64_t i = 0; i < (int64_t)n * g->n_layers; i++) {
        int32_t l = (int32_t)(i % g->n_layers);
        if (!sl_geometry_has(g, l, SL_CACHE_ROWS))
            continue;
        uint32_t *of = of_page(s, l, pages[i / g->n_layers]);
        for (int64_t k = 0; k < s->per_page; k++)
            put(of + k, 0);
    }
}
