/*
 * See host.h. Latent rows are copied from a few blocks of encoded random vectors. Index keys are random in every page,
 * because equal keys would give equal scores, which do not occur in a real cache.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/host.h"
#include "kernels/formats.h"
#include "kernels/synth.h"

enum { BLOCKS = 16, MAX_THREADS = 16 };

typedef struct filler {
    const sl_bench_host *h;
    const uint8_t *blocks; /* [BLOCKS][64] rows */
    int32_t first, end;    /* pages */
} filler;

static double seconds_since(uint64_t t0)
{
    return (double)(sl_now_ns() - t0) / 1e9;
}

/* The number of elements of a plane's part; 0 when the plane has no part of that name. */
static int32_t part_count(const sl_geometry *g, int32_t plane, const char *name)
{
    const sl_cache_plane *p = &g->shape.planes[plane];
    for (int32_t i = 0; i < p->n_parts; i++)
        if (strcmp(p->parts[i].name, name) == 0)
            return p->parts[i].count;
    return 0;
}

static uint8_t *make_blocks(const sl_geometry *g)
{
    const sl_row_format_desc *format = sl_row_format_find(g->shape.planes[SL_CACHE_ROWS].format);
    int32_t latent = part_count(g, SL_CACHE_ROWS, "latent"), rope = part_count(g, SL_CACHE_ROWS, "rope");
    int32_t width = latent + rope;
    uint8_t *blocks = malloc((size_t)(BLOCKS * SL_PAGE_TOKENS * sl_geometry_row_bytes(g)));
    float *row = malloc(sizeof(float) * (size_t)width);
    for (int64_t i = 0; blocks && row && i < BLOCKS * SL_PAGE_TOKENS; i++) {
        for (int32_t k = 0; k < width; k++)
            row[k] = sl_synth_uniform(SL_BENCH_SEED, (uint64_t)(i * width + k));
        sl_row_encode(format->format, latent, rope, row, blocks + i * sl_geometry_row_bytes(g));
    }
    free(row);
    return blocks;
}

/* Fills one index block: e4m3 bytes with absolute values below 2 and a constant scale, or float32. */
static void fill_index(const sl_geometry *g, uint8_t *at, uint64_t *state)
{
    int32_t plane = sl_cache_find(&g->shape, SL_PLANE_INDEX);
    int64_t keys = (int64_t)SL_PAGE_TOKENS * part_count(g, plane, "key");
    bool official = part_count(g, plane, "scale") > 0;
    for (int64_t i = 0; i < keys; i += official ? 8 : 1) {
        *state = *state * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t x = (*state ^ (*state >> 29)) & 0xbfbfbfbfbfbfbfbfull;
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

static void fill_page(const filler *f, int32_t page)
{
    const sl_geometry *g = sl_arena_geometry(f->h->arena);
    uint8_t *base = sl_arena_base(f->h->arena);
    int32_t n = sl_arena_pages(f->h->arena);
    for (int32_t l = 0; l < g->n_layers; l++) {
        sl_host_plane rows = sl_geometry_plane(g, base, n, l, SL_CACHE_ROWS),
                      index = sl_geometry_index_plane(g, base, n, l);
        uint64_t state = ((uint64_t)(uint32_t)page << 20 | (uint64_t)l) * 0x9e3779b97f4a7c15ull;
        const uint8_t *src =
            f->blocks + (int64_t)((page * 31 + l) % BLOCKS) * SL_PAGE_TOKENS * sl_geometry_row_bytes(g);
        memcpy(rows.base + page * rows.page_stride, src, (size_t)(SL_PAGE_TOKENS * sl_geometry_row_bytes(g)));
        if (index.base)
            fill_index(g, index.base + page * index.page_stride, &state);
    }
}

static void *fill_main(void *arg)
{
    const filler *f = arg;
    for (int32_t p = f->first; p < f->end; p++)
        fill_page(f, p);
    return NULL;
}

static sl_status fill_arena(const sl_bench_host *h, int threads, sl_err *err)
{
    uint8_t *blocks = make_blocks(sl_arena_geometry(h->arena));
    pthread_t ids[MAX_THREADS];
    filler parts[MAX_THREADS];
    int32_t pages = sl_arena_pages(h->arena), started = 0;
    threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    if (!blocks)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int i = 0; i < threads; i++) {
        parts[i] = (filler){.h = h,
                            .blocks = blocks,
                            .first = (int32_t)((int64_t)pages * i / threads),
                            .end = (int32_t)((int64_t)pages * (i + 1) / threads)};
        if (pthread_create(&ids[i], NULL, fill_main, &parts[i]) != 0)
            fill_main(&parts[i]), ids[i] = pthread_self();
        else
            started |= 1 << i;
    }
    for (int i = 0; i < threads; i++)
        if (started & 1 << i)
            pthread_join(ids[i], NULL);
    free(blocks);
    return SL_OK;
}

sl_status sl_bench_host_open(sl_bench_host *h, sl_local *l, const sl_local_opts *o, int threads, sl_err *err)
{
    uint64_t t0 = sl_now_ns();
    *h = (sl_bench_host){.be = l->be};
    SL_TRY(sl_local_open_store(l, o, err));
    h->arena = l->arena;
    h->populate_s = seconds_since(t0);
    t0 = sl_now_ns();
    SL_TRY(fill_arena(h, threads, err));
    h->fill_s = seconds_since(t0);
    t0 = sl_now_ns();
    SL_TRY(sl_be_host_register(l->be, sl_arena_base(h->arena), sl_arena_bytes(h->arena), err));
    h->readable = true;
    h->pin_s = seconds_since(t0);
    return SL_OK;
}

void sl_bench_host_close(sl_bench_host *h)
{
    if (h->readable)
        sl_be_host_unregister(h->be, sl_arena_base(h->arena));
    *h = (sl_bench_host){0};
}

sl_status sl_bench_host_pages(const sl_bench_host *h, bool shared, int32_t i, int32_t n, int32_t per_seq,
                              int32_t own, int32_t *pages, int32_t *sets, sl_err *err)
{
    int64_t have = sl_arena_pages(h->arena), common = per_seq - own, room = have - (int64_t)n * own;
    int64_t fit = common > 0 ? room / common : n;
    if (room < 0 || fit < 1 || (fit < n && !shared))
        return sl_fail(err, SL_ERR_EXHAUSTED,
                       "the host store of %lld pages holds %lld requests of %d pages, %d are wanted",
                       (long long)have, (long long)(have / per_seq), per_seq, n);
    *sets = fit < n ? (int32_t)fit : n;
    for (int32_t p = 0; p < per_seq; p++)
        pages[p] = (int32_t)(p < common ? (int64_t)n * own + (i % *sets) * common + p
                                        : (int64_t)i * own + (p - common));
    return SL_OK;
}
