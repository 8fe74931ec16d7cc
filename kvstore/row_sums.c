/* See row_sums.h. One anonymous mapping, with huge pages where there are any: a device looks up few addresses then. The part of
 * pages that were never used takes no memory before a device pins it. */
#include "kvstore/row_sums.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/rowsum.h"

enum { ROWS, BLOCKS, KINDS };

/* Those of one plane of a layer. plane -1: there are none. */
typedef struct place {
    int32_t plane;
    int64_t first, per_page; /* checksums before them; of a page */
} place;

struct sl_row_sums {
    const sl_arena *arena;
    uint64_t bytes;
    uint32_t *base;
    place of[][KINDS]; /* [n_layers] */
};

static bool can_be_rows(const sl_cache_plane *p)
{
    return p->role == SL_PLANE_BLOCKS && p->heads == 1 && p->unit_tokens <= SL_PAGE_TOKENS &&
           sl_cache_unit_bytes(p) % SL_ROW_ALIGN == 0;
}

static int32_t plane_of(const sl_geometry *g, int32_t layer, int kind)
{
    if (kind == ROWS)
        return sl_geometry_has(g, layer, SL_CACHE_ROWS) ? SL_CACHE_ROWS : -1;
    for (int32_t p = 0; p < g->shape.n_planes; p++)
        if (g->shape.planes[p].role == SL_PLANE_BLOCKS && sl_geometry_has(g, layer, p))
            return can_be_rows(&g->shape.planes[p]) ? p : -1;
    return -1;
}

static int64_t per_page(const sl_cache_plane *p)
{
    return sl_cache_page_units(p) * sl_rowsum_parts(sl_cache_unit_bytes(p));
}

/* Returns the number of checksums. of: NULL, or where each plane's begin. */
static int64_t place_all(const sl_geometry *g, int64_t n_pages, place (*of)[KINDS])
{
    int64_t n = 0;
    for (int32_t i = 0; i < g->n_layers * KINDS; i++) {
        place x = {.plane = plane_of(g, i / KINDS, i % KINDS), .first = n};
        x.per_page = x.plane < 0 ? 0 : per_page(&g->shape.planes[x.plane]);
        n += n_pages * x.per_page;
        if (of)
            of[i / KINDS][i % KINDS] = x;
    }
    return n;
}

uint64_t sl_row_sums_bytes(const sl_geometry *g, int64_t n_pages)
{
    return (uint64_t)place_all(g, n_pages, NULL) * sizeof(uint32_t);
}

sl_status sl_row_sums_create(const sl_arena *arena, sl_row_sums **out, sl_err *err)
{
    const sl_geometry *g = sl_arena_geometry(arena);
    sl_row_sums *s = calloc(1, sizeof *s + (size_t)g->n_layers * sizeof *s->of);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "checksums of rows: out of memory");
    s->arena = arena;
    s->bytes = (uint64_t)place_all(g, sl_arena_pages(arena), s->of) * sizeof *s->base;
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

/* NULL: this layer has none of this kind. */
static uint32_t *of_page(const sl_row_sums *s, int32_t layer, int kind, int32_t page)
{
    const place *x = &s->of[layer][kind];
    return x->plane < 0 ? NULL : s->base + x->first + page * x->per_page;
}

const uint32_t *sl_row_sums_layer(const sl_row_sums *s, int32_t layer)
{
    return of_page(s, layer, ROWS, 0);
}

const uint32_t *sl_row_sums_blocks(const sl_row_sums *s, int32_t layer)
{
    return of_page(s, layer, BLOCKS, 0);
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
    for (int32_t i = 0; i < g->n_layers * KINDS; i++) {
        const int32_t l = i / KINDS, plane = s->of[l][i % KINDS].plane;
        if (plane < 0)
            continue;
        const sl_cache_plane *p = &g->shape.planes[plane];
        const int64_t bytes = sl_cache_unit_bytes(p);
        sl_host_plane at = sl_geometry_plane(g, sl_arena_base(s->arena), sl_arena_pages(s->arena), l, plane);
        const uint8_t *first = at.base + page * at.page_stride;
        uint32_t *to = of_page(s, l, i % KINDS, page);
        for (int32_t u = 0; u < sl_cache_page_units(p); u++)
            to = make_row(first + u / p->heads * at.row_stride + u % p->heads * bytes, bytes, to);
    }
}

void sl_row_sums_forget(sl_row_sums *s, const int32_t *pages, int32_t n)
{
    const int32_t places = sl_arena_geometry(s->arena)->n_layers * KINDS;
    for (int64_t i = 0; i < (int64_t)n * places; i++) {
        const int32_t at = (int32_t)(i % places);
        uint32_t *of = of_page(s, at / KINDS, at % KINDS, pages[i / places]);
        for (int64_t k = 0; k < s->of[at / KINDS][at % KINDS].per_page; k++)
            put(of + k, 0);
    }
}
