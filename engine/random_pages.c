/* Implementation of random_pages.h. */
#include "engine/random_pages.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/bounds.h"
#include "kernels/cache.h"
#include "kernels/formats.h"
#include "kernels/gqa.h"
#include "kernels/synth.h"

enum { BLOCKS = 16 /* different pages of rows */, SEED = 20261 };

/* The number of elements of a plane's part; 0 when the plane has no part of that name. */
static int32_t part_count(const sl_geometry *g, int32_t plane, const char *name)
{
    const sl_cache_plane *p = &g->shape.planes[plane];
    for (int32_t i = 0; i < p->n_parts; i++)
        if (strcmp(p->parts[i].name, name) == 0)
            return p->parts[i].count;
    return 0;
}

/* ---- rows ---- */

static void random_values(float *v, int64_t n, uint64_t from)
{
    for (int64_t i = 0; i < n; i++)
        v[i] = sl_synth_uniform(SEED, from + (uint64_t)i);
}

/* A unit with keys and values by head. In a part the vectors are adjacent, so only the scales, of which a slot has one,
 * say how long a vector is. */
static void encode_heads(const sl_geometry *g, sl_row_format format, float *v, uint8_t *out)
{
    const int32_t tokens = g->shape.planes[SL_CACHE_ROWS].unit_tokens;
    const int32_t count = part_count(g, SL_CACHE_ROWS, "k"), scales = part_count(g, SL_CACHE_ROWS, "scale_k");
    const int32_t slots = tokens * (scales > 0 ? scales : 1), dim = count * tokens / slots;
    sl_gqa_row_encode(format, slots, dim, 0, slots, v, v + (int64_t)slots * dim, out);
}

static void encode_unit(const sl_geometry *g, const sl_row_format_desc *d, float *v, uint8_t *out)
{
    if (d->attn == SL_ATTN_GQA)
        encode_heads(g, d->format, v, out);
    else
        sl_row_encode(d->format, part_count(g, SL_CACHE_ROWS, "latent"), part_count(g, SL_CACHE_ROWS, "rope"),
                      v, out);
}

/* Units of all heads of a page. */
static int64_t units_of_page(const sl_geometry *g)
{
    return sl_cache_page_units(&g->shape.planes[SL_CACHE_ROWS]);
}

sl_status sl_engine_random_pages_open(sl_random_pages *f, const sl_geometry *g, sl_err *err)
{
    const sl_cache_plane *p = &g->shape.planes[SL_CACHE_ROWS];
    const sl_row_format_desc *d = sl_row_format_find(p->format);
    const int64_t n = BLOCKS * units_of_page(g), bytes = sl_cache_unit_bytes(p);
    int64_t width = 0;
    for (int32_t i = 0; i < p->n_parts; i++)
        width += (int64_t)p->parts[i].count * p->unit_tokens;
    *f = (sl_random_pages){.g = g, .units = malloc((size_t)(n * bytes))};
    float *v = malloc(sizeof *v * (size_t)width);
    for (int64_t i = 0; f->units && v && i < n; i++) {
        random_values(v, width, (uint64_t)(i * width));
        encode_unit(g, d, v, f->units + i * bytes);
    }
    bool full = f->units && v;
    free(v);
    if (full)
        return SL_OK;
    sl_engine_random_pages_close(f);
    return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
}

void sl_engine_random_pages_close(sl_random_pages *f)
{
    free(f->units);
    f->units = NULL;
}

static uint8_t *unit_at(const sl_host_plane *h, const sl_cache_plane *p, int32_t page, int32_t unit)
{
    return h->base + (int64_t)page * h->page_stride + (int64_t)(unit / p->heads) * h->row_stride +
           (int64_t)(unit % p->heads) * sl_cache_unit_bytes(p);
}

static void fill_rows(const sl_random_pages *f, const sl_host_plane *h, int32_t page, int32_t layer)
{
    const sl_cache_plane *p = &f->g->shape.planes[SL_CACHE_ROWS];
    const int64_t n = units_of_page(f->g), bytes = sl_cache_unit_bytes(p);
    const uint8_t *src = f->units + (int64_t)((page * 31 + layer) % BLOCKS) * n * bytes;
    for (int32_t i = 0; i < n; i++)
        memcpy(unit_at(h, p, page, i), src + i * bytes, (size_t)bytes);
}

/* ---- keys and metadata ---- */

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state ^ (*state >> 29);
}

/* Fills one index block: e4m3 bytes with absolute values below 2 and a constant scale, or float32. */
static void fill_index(const sl_geometry *g, int32_t plane, uint8_t *at, uint64_t *state)
{
    int64_t keys = (int64_t)SL_PAGE_TOKENS * part_count(g, plane, "key");
    bool official = part_count(g, plane, "scale") > 0;
    for (int64_t i = 0; i < keys; i += official ? 8 : 1) {
        uint64_t x = next(state) & 0xbfbfbfbfbfbfbfbfull;
        float f = (float)(int32_t)(x >> 32) * 0x1p-31f;
        if (official)
            memcpy(at + i, &x, 8);
        else
            memcpy(at + 4 * i, &f, 4);
    }
    float scale = 0x1p-3f;
    for (int32_t i = 0; official && i < SL_PAGE_TOKENS; i++)
        memcpy(at + keys + 4 * i, &scale, 4);
}

/* One part of metadata: absolute values in [0.5, 1), of either sign, or of that sign which the part's name demands. */
static void fill_part(const sl_cache_plane *p, int32_t part, uint8_t *at, uint64_t *state)
{
    const bool largest = strcmp(p->parts[part].name, "max") == 0, wide = p->parts[part].dtype == SL_F32;
    const bool least = strcmp(p->parts[part].name, "min") == 0;
    const int64_t bytes = sl_cache_part_bytes(p, part);
    const uint64_t sign = wide ? 0x8000000080000000ull : 0x8000800080008000ull;
    const uint64_t one = wide ? 0x3f0000003f000000ull : 0x3f003f003f003f00ull;
    for (int64_t i = 0; i < bytes; i += 8) {
        uint64_t x = next(state) & (wide ? 0x807fffff807fffffull : 0x807f807f807f807full);
        x = one | (largest ? x & ~sign : least ? x | sign : x);
        memcpy(at + i, &x, (size_t)(bytes - i < 8 ? bytes - i : 8));
    }
}

/* Bounds of int8: codes from 64 on, the smallest ones negative and odd, and exponents next to each other, with zeros after
 * those of the last channels. */
static void fill_codes(const sl_cache_plane *p, int32_t part, uint8_t *at, uint64_t *state)
{
    const int64_t bytes = sl_cache_part_bytes(p, part), groups = p->parts[0].count / SL_BOUNDS_GROUP;
    const bool least = strcmp(p->parts[part].name, "min") == 0;
    if (strcmp(p->parts[part].name, "exponent") == 0) {
        for (int64_t i = 0; i < bytes; i++)
            at[i] = i < groups ? (uint8_t)(119 + (next(state) >> 40 & 1)) : 0;
        return;
    }
    for (int64_t i = 0; i < bytes; i += 8) {
        const uint64_t x =
            (next(state) & 0x3f3f3f3f3f3f3f3full) | (least ? 0x8181818181818181ull : 0x4040404040404040ull);
        memcpy(at + i, &x, (size_t)(bytes - i < 8 ? bytes - i : 8));
    }
}

static void fill_meta(const sl_cache_plane *p, const sl_host_plane *h, int32_t page, uint64_t *state)
{
    for (int32_t i = 0; i < sl_cache_page_units(p); i++) {
        uint8_t *at = unit_at(h, p, page, i);
        for (int32_t k = 0; k < p->n_parts; k++) {
            if (p->parts[k].dtype == SL_I8)
                fill_codes(p, k, at, state);
            else
                fill_part(p, k, at, state);
            at += sl_cache_part_bytes(p, k);
        }
    }
}

void sl_engine_random_pages_fill(const sl_random_pages *f, sl_arena *arena, int32_t page)
{
    const sl_geometry *g = f->g;
    for (int32_t l = 0; l < g->n_layers; l++) {
        uint64_t state = ((uint64_t)(uint32_t)page << 20 | (uint64_t)l) * 0x9e3779b97f4a7c15ull;
        for (int32_t p = 0; p < g->shape.n_planes; p++) {
            sl_host_plane h = sl_geometry_plane(g, sl_arena_base(arena), sl_arena_pages(arena), l, p);
            if (!h.base)
                continue;
            if (p == SL_CACHE_ROWS)
                fill_rows(f, &h, page, l);
            else if (g->shape.planes[p].role == SL_PLANE_INDEX &&
                     g->shape.planes[p].unit_tokens == SL_PAGE_TOKENS)
                fill_index(g, p, h.base + (int64_t)page * h.page_stride, &state);
            else
                fill_meta(&g->shape.planes[p], &h, page, &state);
        }
    }
}
