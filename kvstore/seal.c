/* See seal.h. A flat table by page and layer, from calloc: the part of unused pages takes no memory. */
#include "kvstore/seal.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct sl_seals {
    const sl_arena *arena;
    int32_t n_layers;
    uint64_t random;
    uint32_t *crc; /* [pages][n_layers] */
    bool *sealed;  /* [pages] */
};

sl_status sl_seals_create(const sl_arena *arena, sl_seals **out)
{
    size_t pages = (size_t)sl_arena_pages(arena);
    sl_seals *s = calloc(1, sizeof *s);
    if (!s)
        return SL_ERR_NO_MEMORY;
    s->arena = arena;
    s->n_layers = sl_arena_geometry(arena)->n_layers;
    s->random = sl_now_ns() | 1;
    s->crc = calloc(pages * (size_t)s->n_layers, sizeof *s->crc);
    s->sealed = calloc(pages, sizeof *s->sealed);
    if (!s->crc || !s->sealed) {
        sl_seals_destroy(s);
        return SL_ERR_NO_MEMORY;
    }
    *out = s;
    return SL_OK;
}

void sl_seals_destroy(sl_seals *s)
{
    if (!s)
        return;
    free(s->crc);
    free(s->sealed);
    free(s);
}

static uint32_t *row(const sl_seals *s, int32_t page)
{
    SL_CHECK(page >= 0 && page < sl_arena_pages(s->arena), "page %d", page);
    return s->crc + (size_t)page * (size_t)s->n_layers;
}

void sl_seals_make(sl_seals *s, int32_t page)
{
    uint32_t *crc = row(s, page);
    for (int32_t l = 0; l < s->n_layers; l++)
        crc[l] = sl_arena_page_crc(s->arena, page, l, SL_PAGE_TOKENS);
    s->sealed[page] = true;
}

void sl_seals_keep(sl_seals *s, int32_t page, const uint32_t *crc)
{
    memcpy(row(s, page), crc, (size_t)s->n_layers * sizeof *crc);
    s->sealed[page] = true;
}

const uint32_t *sl_seals_get(const sl_seals *s, int32_t page)
{
    const uint32_t *crc = row(s, page);
    return s->sealed[page] ? crc : NULL;
}

/* xorshift64. Samples only have to read different layers at different times. */
static int32_t random_below(sl_seals *s, int32_t n)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (int32_t)(s->random % (uint64_t)n);
}

int32_t sl_seals_verify(sl_seals *s, int32_t page, bool sampled)
{
    const uint32_t *crc = sl_seals_get(s, page);
    int32_t bad = 0, step = 1, first = 0;
    if (!crc)
        return s->n_layers;
    if (sampled) {
        step = s->n_layers < SL_SEAL_SAMPLE ? s->n_layers : SL_SEAL_SAMPLE;
        first = random_below(s, step);
    }
    for (int32_t l = first; l < s->n_layers; l += step)
        bad += sl_arena_page_crc(s->arena, page, l, SL_PAGE_TOKENS) != crc[l];
    return bad;
}
