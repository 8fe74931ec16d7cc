/*
 * Geometry and arena: in every layout the planes fill the arena without gap or overlap; the wire form gives the same
 * geometry again and is checked; an incompatible geometry is refused with the name of the field; checksums depend on
 * the contents and not on the layout; too little memory is an error with its reason.
 */
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "kvstore/arena.h"
#include "kvstore/sysmem.h"
#include "tests/unit/kvstore/test_kvstore.h"

static sl_geometry make_dims_geometry(sl_layout layout, sl_cache_dims dims, int layers, int indexers)
{
    bool has_indexer[SL_GEOMETRY_MAX_LAYERS] = {0};
    for (int l = 0; l < layers; l++)
        has_indexer[l] = l % 3 < indexers;
    sl_cache_shape shape;
    sl_geometry g;
    sl_geometry_opts o = {.fingerprint = {3, 4},
                          .layout = layout,
                          .shape = &shape,
                          .n_layers = layers,
                          .has_indexer = has_indexer};
    sl_err err = {0};
    ck_assert_msg(sl_cache_shape_make(&dims, &shape, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_geometry_make(&o, &g, &err) == SL_OK, "%s", err.text);
    return g;
}

static sl_geometry make_geometry(sl_layout layout, sl_row_format rows, sl_index_format index, int layers,
                                 int indexers)
{
    return make_dims_geometry(layout,
                              (sl_cache_dims){.rows = sl_row_format_of(rows),
                                              .index_format = index,
                                              .latent = 128,
                                              .rope = 16,
                                              .index_dim = indexers ? 32 : 0},
                              layers, indexers);
}

static void mark(uint8_t *map, int64_t at, int64_t n, int64_t size)
{
    ck_assert_int_ge(at, 0);
    ck_assert_int_le(at + n, size);
    for (int64_t i = at; i < at + n; i++)
        if (map[i]++) /* ck_assert writes a mark to disk each time: too slow per byte */
            ck_abort_msg("byte %ld is in two planes", (long)i);
}

START_TEST(planes_tile_the_arena)
{
    sl_layout layout = (sl_layout)(_i % 3);
    sl_geometry g =
        make_geometry(layout, (sl_row_format)(_i / 3 % 3), (sl_index_format)(_i / 9 % 2), 5, _i / 18);
    enum { PAGES = 3 };
    int64_t size = PAGES * g.page_bytes;
    uint8_t *map = calloc((size_t)size, 1);
    for (int l = 0; l < g.n_layers; l++) {
        sl_host_plane rows = sl_geometry_plane(&g, map, PAGES, l, SL_CACHE_ROWS);
        sl_host_plane index = sl_geometry_index_plane(&g, map, PAGES, l);
        ck_assert_int_eq(index.base != NULL, l % 3 < _i / 18);
        for (int p = 0; p < PAGES; p++) {
            for (int i = 0; i < SL_PAGE_TOKENS; i++)
                mark(map, rows.base - map + p * rows.page_stride + i * rows.row_stride,
                     sl_geometry_row_bytes(&g), size);
            if (index.base)
                mark(map, index.base - map + p * index.page_stride, sl_geometry_index_bytes(&g), size);
        }
    }
    for (int64_t i = 0; i < size; i++)
        if (map[i] != 1)
            ck_abort_msg("byte %ld is in no plane", (long)i);
    free(map);
}
END_TEST

/* Where the planes of MLA models lie, written out: stored and shipped pages depend on it. */
START_TEST(places_of_mla_planes)
{
    static const int64_t PAGES = 7, ROW = 128 + 4 + 2 * 16, INDEX = 64 * (32 + 4), ROWS = 64 * ROW;
    uint8_t *base = NULL;
    base += 4096;
    for (int layout = 0; layout < 3; layout++) {
        sl_geometry g = make_geometry((sl_layout)layout, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, 5, 2);
        int64_t page = 5 * ROWS + 4 * INDEX, before = 0, keys = 0; /* layers 0, 1, 3 and 4 have an indexer */
        ck_assert_int_eq(g.page_bytes, page);
        for (int l = 0; l < 5; l++) {
            const sl_host_plane want[3] = {{base + before, page, ROW},
                                           {base + PAGES * before, ROWS, ROW},
                                           {base + l * ROW, page, 5 * ROW}};
            sl_host_plane rows = sl_geometry_plane(&g, base, PAGES, l, SL_CACHE_ROWS);
            ck_assert_mem_eq(&rows, &want[layout], sizeof rows);
            before += ROWS;
            if (l == 2)
                continue;
            const uint8_t *at[3] = {base + before, base + PAGES * before, base + 5 * ROWS + keys};
            sl_host_plane index = sl_geometry_index_plane(&g, base, PAGES, l);
            ck_assert_ptr_eq(index.base, at[layout]);
            ck_assert_int_eq(index.page_stride, layout == SL_LAYOUT_LAYER_FIRST ? INDEX : page);
            before += INDEX, keys += INDEX;
        }
    }
}
END_TEST

START_TEST(v32_page_size)
{
    sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_MLA_FP8),
                       .index_format = SL_INDEX_OFFICIAL,
                       .latent = 512,
                       .rope = 64,
                       .index_dim = 128};
    sl_geometry g = make_dims_geometry(SL_LAYOUT_PAGE_FIRST, d, 61, 3);
    ck_assert_int_eq(sl_geometry_row_bytes(&g), 656);
    ck_assert_int_eq(sl_geometry_index_bytes(&g), 8448);
    ck_assert_int_eq(g.page_bytes, 3076352);
}
END_TEST

START_TEST(wire_form)
{
    sl_geometry g = make_geometry(SL_LAYOUT_PAGE_HEAD, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, 7, 2), back;
    sl_wr w;
    sl_wr_init(&w);
    sl_geometry_write(&g, &w);
    sl_err err = {0};
    ck_assert_msg(sl_geometry_read(w.data, w.len, &back, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(back.layout, g.layout);
    ck_assert_int_eq(back.page_bytes, g.page_bytes);
    ck_assert_mem_eq(&back, &g, sizeof g);
    ck_assert_int_eq(sl_geometry_compatible(&g, &back, &err), SL_OK);
    for (size_t n = 0; n < w.len; n++) {
        uint8_t *copy = malloc(n ? n : 1);
        memcpy(copy, w.data, n);
        ck_assert_int_eq(sl_geometry_read(copy, n, &back, &err), SL_ERR_CORRUPT);
        free(copy);
    }
    sl_wr_u8(&w, 0);
    ck_assert_int_eq(sl_geometry_read(w.data, w.len, &back, &err), SL_ERR_CORRUPT);
    sl_wr_free(&w);
}
END_TEST

START_TEST(differences_are_named)
{
    static const char *const names[] = {"n_layers",
                                        "rows: latent differs: 128 here, 129 there",
                                        "rows: rope",
                                        "rows: format differs: mla_fp8 here, mla_f32 there",
                                        "index: format differs: official here, plain there",
                                        "index: key",
                                        "layer 1: cache plane index",
                                        "fingerprint",
                                        "number of cache planes",
                                        "rows: heads",
                                        "index: unit_tokens",
                                        "index: stamp"};
    const sl_cache_dims dims = {.rows = sl_row_format_of(SL_ROW_MLA_FP8),
                                .index_format = SL_INDEX_OFFICIAL,
                                .latent = 128,
                                .rope = 16,
                                .index_dim = 32};
    for (int i = 0; i < (int)SL_COUNT(names); i++) {
        sl_cache_dims d = dims;
        d.latent += i == 1;
        d.rope += i == 2;
        d.rows = i == 3 ? sl_row_format_of(SL_ROW_MLA_F32) : d.rows;
        d.index_format = i == 4 ? SL_INDEX_PLAIN : d.index_format;
        d.index_dim += i == 5;
        sl_geometry a = make_dims_geometry(SL_LAYOUT_PAGE_FIRST, dims, 4, 2);
        sl_geometry b = make_dims_geometry(SL_LAYOUT_LAYER_FIRST, d, 4,
                                           2); /* a different layout is no reason to refuse */
        b.n_layers += i == 0;
        b.layer_class[1] ^= i == 6; /* the class of layer 2, which shares */
        b.fingerprint.lo += i == 7;
        b.shape.n_planes -= i == 8;
        b.shape.planes[0].heads += i == 9;
        b.shape.planes[1].unit_tokens = i == 10 ? 32 : 64;
        b.shape.planes[1].stamp += i == 11;
        sl_err err = {0};
        ck_assert_int_eq(sl_geometry_compatible(&a, &b, &err), SL_ERR_REFUSED);
        ck_assert_msg(strstr(err.text, names[i]) != NULL, "%s: %s", names[i], err.text);
    }
}
END_TEST

START_TEST(bad_fields)
{
    static const bool all[4] = {true, true, true, true};
    const sl_cache_dims dims = {
        .rows = sl_row_format_of(SL_ROW_MLA_F32), .latent = 128, .rope = 16, .index_dim = 32};
    sl_cache_shape good, s;
    sl_geometry g;
    ck_assert_int_eq(sl_cache_shape_make(&dims, &good, NULL), SL_OK);
    sl_geometry_opts fine = {.shape = &good, .n_layers = 2, .has_indexer = all}, o;
    ck_assert_int_eq(sl_geometry_make(&fine, &g, NULL), SL_OK);
    o = fine, o.n_layers = 0;
    ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_ERR_INVALID);
    o = fine, o.n_layers = SL_GEOMETRY_MAX_LAYERS + 1, o.has_indexer = NULL;
    ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_ERR_INVALID);
    o = fine, o.layout = (sl_layout)9;
    ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_ERR_INVALID);
    sl_cache_dims d = dims;
    d.latent = -1;
    ck_assert_int_eq(sl_cache_shape_make(&d, &s, NULL), SL_ERR_INVALID);
    d = dims, d.rope = 1025;
    ck_assert_int_eq(sl_cache_shape_make(&d, &s, NULL), SL_ERR_INVALID);
    d = dims, d.index_dim = -1;
    ck_assert_int_eq(sl_cache_shape_make(&d, &s, NULL), SL_ERR_INVALID);
    o = fine, o.shape = &s;
    static const int32_t units[] = {0, -64, 48, 96,
                                    SL_CACHE_UNIT_MAX + SL_PAGE_TOKENS}; /* neither fraction nor multiple */
    for (size_t i = 0; i < SL_COUNT(units); i++) {
        s = good, s.planes[1].unit_tokens = units[i];
        ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_ERR_INVALID);
    }
    s = good, s.planes[1].heads = 2; /* units by head need that scope */
    ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_ERR_INVALID);
    s = good, s.planes[1].name[0] = 0;
    ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_ERR_INVALID);
    s = good, s.planes[1] = s.planes[0];
    ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_ERR_INVALID);
    s = good, s.n_planes = SL_CACHE_PLANES + 1;
    ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_ERR_INVALID);
    s = good, s.planes[0].parts[0].count = 0;
    ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_ERR_INVALID);
    ck_assert_int_eq(sl_layout_find("layer_first")->layout, SL_LAYOUT_LAYER_FIRST);
    ck_assert_ptr_null(sl_layout_find("rows"));
    ck_assert_ptr_null(sl_layout_find(NULL));
    for (int i = 0; sl_layout_names()[i]; i++)
        ck_assert_str_eq(sl_layout_name(sl_layout_find(sl_layout_names()[i])->layout), sl_layout_names()[i]);
    ck_assert_str_eq(sl_layout_name((sl_layout)9), "?");
}
END_TEST

static sl_arena *make_arena(const sl_geometry *g, int pages)
{
    sl_arena *a = NULL;
    sl_err err = {0};
    sl_arena_opts o = {.bytes = (uint64_t)(pages * g->page_bytes) + 17, .lock = SL_AUTO, .numa_node = -1};
    ck_assert_msg(sl_arena_create(g, &o, &a, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(sl_arena_pages(a), pages);
    return a;
}

/* The same content in every layout. */
static void fill_page(sl_arena *a, int page, int n_tokens, uint8_t salt)
{
    const sl_geometry *g = sl_arena_geometry(a);
    for (int l = 0; l < g->n_layers; l++) {
        sl_host_plane r = sl_geometry_plane(g, sl_arena_base(a), sl_arena_pages(a), l, SL_CACHE_ROWS);
        for (int i = 0; i < n_tokens; i++) {
            for (int64_t b = 0; b < sl_geometry_row_bytes(g); b++)
                r.base[page * r.page_stride + i * r.row_stride + b] = (uint8_t)(salt + l * 31 + i * 7 + b);
        }
        sl_host_plane x = sl_geometry_index_plane(g, sl_arena_base(a), sl_arena_pages(a), l);
        for (int64_t b = 0; x.base && b < sl_geometry_index_bytes(g); b++)
            x.base[page * x.page_stride + b] = (uint8_t)(salt + l + b * 13);
    }
}

START_TEST(crc_is_of_content_not_layout)
{
    uint32_t first[2] = {0};
    for (int layout = 0; layout < 3; layout++) {
        sl_geometry g = make_geometry((sl_layout)layout, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, 4, 2);
        sl_arena *a = make_arena(&g, 4);
        fill_page(a, 2, SL_PAGE_TOKENS, 5);
        for (int l = 0; l < 2; l++) { /* layer 1 has an indexer, layer 2 none: both kinds */
            uint32_t crc = sl_arena_page_crc(a, 2, 1 + l, 40);
            if (layout == 0)
                first[l] = crc;
            ck_assert_uint_eq(crc, first[l]);
        }
        sl_host_plane r = sl_geometry_plane(&g, sl_arena_base(a), 4, 1, SL_CACHE_ROWS);
        sl_host_plane x = sl_geometry_index_plane(&g, sl_arena_base(a), 4, 1);
        uint8_t *row = r.base + 2 * r.page_stride, *block = x.base + 2 * x.page_stride;
        uint8_t *inside[] = {row, row + 39 * r.row_stride + sl_geometry_row_bytes(&g) - 1, block,
                             block + 40 * 32 - 1, block + 64 * 32 + 40 * 4 - 1};
        uint8_t *outside[] = {row + 40 * r.row_stride, block + 40 * 32, block + 64 * 32 + 40 * 4};
        for (size_t i = 0; i < SL_COUNT(inside); i++) {
            *inside[i] ^= 1;
            ck_assert_uint_ne(sl_arena_page_crc(a, 2, 1, 40), first[0]);
            *inside[i] ^= 1;
        }
        for (size_t i = 0; i < SL_COUNT(outside); i++)
            *outside[i] ^= 1;
        ck_assert_uint_eq(sl_arena_page_crc(a, 2, 1, 40), first[0]);
        ck_assert_uint_ne(sl_arena_page_crc(a, 2, 1, 41), first[0]);
        sl_arena_destroy(a);
    }
}
END_TEST

START_TEST(sizes_and_errors)
{
    sl_geometry g = make_geometry(SL_LAYOUT_PAGE_FIRST, SL_ROW_MLA_BF16, SL_INDEX_PLAIN, 3, 3);
    sl_arena *a = NULL;
    sl_err err = {0};
    sl_arena_opts o = {.bytes = (uint64_t)g.page_bytes - 1, .numa_node = -1};
    ck_assert_int_eq(sl_arena_create(&g, &o, &a, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "kvstore.bytes") != NULL, "%s", err.text);
    o.bytes = (uint64_t)1 << 46;
    g.page_bytes = 1 << 20; /* so that the page count fits */
    ck_assert_int_eq(sl_arena_create(&g, &o, &a, &err), SL_ERR_NO_MEMORY);
    ck_assert_msg(strstr(err.text, "available") && strstr(err.text, "kvstore.bytes"), "%s", err.text);
    o = (sl_arena_opts){.bytes = 8 << 20, .numa_node = 1000};
    ck_assert_int_eq(sl_arena_create(&g, &o, &a, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "NUMA node 1000") != NULL, "%s", err.text);
    ck_assert_ptr_null(a);
    sl_arena_destroy(NULL);
}
END_TEST

START_TEST(huge_pages_on_needs_them)
{
    if (sl_sysmem_huge_free() > 0)
        return; /* this machine has some: nothing to refuse */
    sl_geometry g = make_geometry(SL_LAYOUT_PAGE_FIRST, SL_ROW_MLA_BF16, SL_INDEX_PLAIN, 3, 3);
    sl_arena *a = NULL;
    sl_err err = {0};
    sl_arena_opts o = {.bytes = 8 << 20, .huge_pages = SL_ON, .numa_node = -1};
    ck_assert_int_eq(sl_arena_create(&g, &o, &a, &err), SL_ERR_NO_MEMORY);
    ck_assert_msg(strstr(err.text, "nr_hugepages") != NULL, "%s", err.text);
}
END_TEST

/* mlock beyond the limit: root may ignore the limit, then there is nothing to refuse. */
START_TEST(lock_switch)
{
    sl_geometry g = make_geometry(SL_LAYOUT_PAGE_FIRST, SL_ROW_MLA_BF16, SL_INDEX_PLAIN, 3, 3);
    struct rlimit none = {0, 0};
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    static char probe[8192];
    bool may = mlock(probe, sizeof probe) == 0;
    sl_arena *a = NULL;
    sl_err err = {0};
    sl_arena_opts o = {.bytes = 1 << 20, .lock = SL_ON, .numa_node = -1};
    sl_status st = sl_arena_create(&g, &o, &a, &err);
    ck_assert_int_eq(st, may ? SL_OK : SL_ERR_NO_MEMORY);
    if (!may)
        ck_assert_msg(strstr(err.text, "ulimit -l") != NULL, "%s", err.text);
    sl_arena_destroy(a);
    o.lock = SL_AUTO;
    ck_assert_int_eq(sl_arena_create(&g, &o, &a, &err), SL_OK);
    ck_assert(strstr(sl_arena_describe(a), may ? ", locked" : "not locked") != NULL);
    sl_arena_destroy(a);
    o.lock = SL_OFF;
    ck_assert_int_eq(sl_arena_create(&g, &o, &a, &err), SL_OK);
    ck_assert(strstr(sl_arena_describe(a), "not locked") != NULL);
    sl_arena_destroy(a);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("arena");
    TCase *t = tcase_create("arena");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, planes_tile_the_arena, 0, 72);
    tcase_add_test(t, places_of_mla_planes);
    tcase_add_test(t, v32_page_size);
    tcase_add_test(t, wire_form);
    tcase_add_test(t, differences_are_named);
    tcase_add_test(t, bad_fields);
    tcase_add_test(t, crc_is_of_content_not_layout);
    tcase_add_test(t, sizes_and_errors);
    tcase_add_test(t, huge_pages_on_needs_them);
    tcase_add_test(t, lock_switch);
    suite_add_tcase(s, t);
    return run_suite(s);
}
