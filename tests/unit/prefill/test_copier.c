/*
 * Batches of copies from device memory: whatever planes a layer has and wherever their pools lie, every copy stays within the pool
 * of one plane (a GPU refuses a copy that reaches across allocations), and the copies move what the spans say.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "prefill/copier.h"
#include "tests/unit/run_suite.h"

enum { PAGES = 12, MOST = 8, SPACE = 1 << 22 };

static uint8_t *device, *here, *there;
static sl_backend *be;

static uint32_t below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*seed >> 33) % n;
}

static void setup(void)
{
    const sl_backend_opts o = {.threads = 1};
    ck_assert_int_eq(sl_backend_create("cpu", &o, &be, NULL), SL_OK);
    device = malloc(SPACE), here = calloc(SPACE, 1), there = calloc(SPACE, 1);
    for (size_t i = 0; i < SPACE; i++)
        device[i] = (uint8_t)(i * 2654435761U >> 13);
}

static void teardown(void)
{
    free(device);
    free(here);
    free(there);
    sl_backend_destroy(be);
}

/* Planes of few sizes, so that ranges of two planes often have as many bytes. */
static sl_cache_plane draw_plane(uint64_t *r, int32_t i)
{
    static const int32_t units[] = {1, 1, 4, 16, 64, 128};
    const int32_t values = 8 << below(r, 3);
    sl_cache_plane p = {
        .role = i ? SL_PLANE_META : SL_PLANE_ROWS, .heads = 1, .n_parts = 1, .unit_tokens = 1};
    snprintf(p.name, sizeof p.name, "plane%d", i);
    p.parts[0] = (sl_cache_part){.name = "a", .dtype = SL_F32, .per = SL_PER_TOKEN, .count = values};
    if (i) {
        p.unit_tokens = units[below(r, (uint32_t)SL_COUNT(units))];
        p.parts[0].per = (sl_part_per)below(r, 3);
        if (below(r, 2))
            p.parts[p.n_parts++] =
                (sl_cache_part){.name = "b", .dtype = SL_F32, .per = SL_PER_OPEN_UNIT, .count = values};
    }
    return p;
}

static sl_geometry draw_geometry(uint64_t *r)
{
    sl_cache_shape shape = {.n_planes = 2 + (int32_t)below(r, 3)};
    sl_geometry g;
    sl_err err = {0};
    for (int32_t p = 0; p < shape.n_planes; p++)
        shape.planes[p] = draw_plane(r, p);
    sl_geometry_opts o = {.layout = (sl_layout)below(r, 3), .shape = &shape, .n_layers = 1};
    ck_assert_msg(sl_geometry_make(&o, &g, &err) == SL_OK, "%s", err.text);
    return g;
}

/* Pools one after the other in the space, often without a gap between them. */
static void place_pools(uint64_t *r, const sl_geometry *g, sl_device_layer *out)
{
    int64_t at = 256;
    *out = (sl_device_layer){.rows_by_index_page = below(r, 2) > 0};
    for (int32_t p = 0; p < g->shape.n_planes; p++) {
        const sl_cache_plane *plane = &g->shape.planes[p];
        const int64_t page = sl_cache_page_bytes(plane);
        out->planes[p] = (sl_host_plane){.base = device + at,
                                         .page_stride = page,
                                         .row_stride = plane->heads * sl_cache_unit_bytes(plane)};
        out->bytes[p] = PAGES * page;
        at += PAGES * page + 256 * (int64_t)below(r, 3);
    }
    ck_assert_int_le(at, SPACE);
}

static void within_a_pool(const sl_copy *k, const sl_device_layer *d, const sl_geometry *g)
{
    const uint8_t *end = k->src + (k->n - 1) * k->src_pitch + k->bytes;
    for (int32_t p = 0; p < g->shape.n_planes; p++)
        if (k->src >= d->planes[p].base && end <= d->planes[p].base + d->bytes[p])
            return;
    ck_abort_msg("a copy of %zu pieces of %zu bytes reaches across two pools", k->n, k->bytes);
}

static void draw_pages(uint64_t *r, int32_t *out)
{
    int32_t all[PAGES];
    for (int32_t i = 0; i < PAGES; i++)
        all[i] = i;
    for (int32_t i = 0; i < MOST; i++) {
        const int32_t k = i + (below(r, 2) ? 0 : (int32_t)below(r, (uint32_t)(PAGES - i)));
        out[i] = all[k];
        all[k] = all[i];
    }
}

static void put_page(int32_t *pages, int32_t i, int32_t page)
{
    for (int32_t k = 0; k < MOST; k++)
        if (pages[k] == page)
            pages[k] = pages[i];
    pages[i] = page;
}

/* Whole pages from the first of each pool to the last, on both sides: the end of a pool's range meets the next one's begin. */
static void from_edge_to_edge(int32_t *const pages[4], int32_t first, int32_t *end)
{
    *end = (*end + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS * SL_PAGE_TOKENS;
    for (int i = 0; i < 4; i++) {
        put_page(pages[i], first / SL_PAGE_TOKENS, 0);
        put_page(pages[i], *end / SL_PAGE_TOKENS - 1, PAGES - 1);
    }
}

static void send(const sl_copier_mail *m, const sl_device_layer *d, const sl_geometry *g)
{
    sl_err err = {0};
    for (int i = 0; i < m->n; i++)
        within_a_pool(&m->copy[i], d, g);
    ck_assert_msg(sl_copier_enqueue(be, m, &err) == SL_OK, "%s", err.text);
}

START_TEST(copies_stay_in_a_pool)
{
    uint64_t r = (uint64_t)_i;
    for (int round = 0; round < 40; round++) {
        const sl_geometry g = draw_geometry(&r);
        int32_t lp[MOST], rows[MOST], index[MOST], rp[MOST];
        sl_device_layer d;
        sl_pieces it;
        sl_span s;
        sl_copier_mail m = {.n = 0};
        draw_pages(&r, lp), draw_pages(&r, rows), draw_pages(&r, index), draw_pages(&r, rp);
        place_pools(&r, &g, &d);
        const int32_t first = 4 * (int32_t)below(&r, 30);
        int32_t end = first + 1 + (int32_t)below(&r, (uint32_t)(MOST * SL_PAGE_TOKENS - first));
        if (round % 3 == 0)
            from_edge_to_edge((int32_t *const[4]){lp, rows, index, rp}, first, &end);
        const sl_page_map map = {.local = &g,
                                 .remote = &g,
                                 .local_base = here,
                                 .remote_base = (uint64_t)(uintptr_t)there,
                                 .local_n = PAGES,
                                 .remote_n = PAGES,
                                 .lpages = lp,
                                 .rpages = (const uint32_t *)rp,
                                 .n_tokens = end,
                                 .dev = &d,
                                 .dev_rows = rows,
                                 .dev_index = index};
        ck_assert_int_le(PAGES * g.page_bytes, SPACE);
        for (sl_pieces_init(&it, &map, 0, first, end); sl_pieces_next(&it, &s);) {
            if (sl_copier_add(&m, &s, (uint8_t *)(uintptr_t)s.remote))
                continue;
            send(&m, &d, &g);
            m.n = 0;
            ck_assert(sl_copier_add(&m, &s, (uint8_t *)(uintptr_t)s.remote));
        }
        send(&m, &d, &g);
        for (sl_pieces_init(&it, &map, 0, first, end); sl_pieces_next(&it, &s);)
            ck_assert_int_eq(memcmp((void *)(uintptr_t)s.remote, s.local, (size_t)s.bytes), 0);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("copier");
    TCase *t = tcase_create("copier");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, copies_stay_in_a_pool, 0, 4);
    suite_add_tcase(s, t);
    return run_suite(s);
}
