/*
 * Reads of pages of another arena (worker/page_read.h): whatever the layouts on both sides are, the spans bring exactly the rows of
 * the pages that are read, also when a span is put back at any place.
 */
#include "worker/page_read.h"

#include "kvstore/arena.h"
#include "tests/unit/kvstore/mla_geometry.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { LAYERS = 3, PAGES = 12, PAGE = SL_PAGE_TOKENS };

static const sl_layout layouts[] = {SL_LAYOUT_LAYER_FIRST, SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_PAGE_HEAD};

static sl_arena *arena(sl_layout layout)
{
    static const bool has_indexer[LAYERS] = {true, false, true};
    sl_geometry g =
        mla_geometry((sl_key){1, 2}, layout, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, LAYERS, has_indexer);
    sl_arena_opts o = {.bytes = (uint64_t)(PAGES * g.page_bytes), .lock = SL_OFF, .numa_node = -1};
    sl_arena *a;
    ck_assert_int_eq(sl_arena_create(&g, &o, &a, NULL), SL_OK);
    memset(sl_arena_base(a), 0, sl_arena_bytes(a));
    return a;
}

START_TEST(the_rows_of_the_pages_arrive)
{
    sl_arena *here = arena(layouts[_i % 3]), *there = arena(layouts[_i / 3]);
    const sl_geometry *g = sl_arena_geometry(here);
    int32_t lpages[PAGES], first = 2, end = 9;
    uint32_t rpages[PAGES];
    uint64_t seed = 3 + (uint64_t)_i, bytes = 0, spans = 0;
    for (uint64_t i = 0; i < sl_arena_bytes(there); i++)
        sl_arena_base(there)[i] = (uint8_t)rnd(&seed);
    for (int32_t i = 0; i < PAGES; i++) {
        lpages[i] = (i * 5 + 1) % PAGES;
        rpages[i] = (uint32_t)(i * 7 + 3) % PAGES;
    }
    sl_page_map map = {.local = g,
                       .remote = sl_arena_geometry(there),
                       .local_base = sl_arena_base(here),
                       .remote_base = (uint64_t)(uintptr_t)sl_arena_base(there),
                       .local_n = PAGES,
                       .remote_n = PAGES,
                       .lpages = lpages,
                       .rpages = rpages};
    sl_page_read r = {0};
    sl_span s;
    ck_assert(!sl_page_read_next(&r, &s));
    sl_page_read_begin(&r, &map, first, end);
    while (sl_page_read_next(&r, &s)) {
        ck_assert(s.bytes > 0 && s.bytes <= SL_PAGE_READ_BYTES && !s.device);
        if (rnd_below(&seed, 3) == 0) {
            sl_span again;
            sl_page_read_hold(&r, &s);
            ck_assert(sl_page_read_next(&r, &again));
            ck_assert(again.local == s.local && again.remote == s.remote && again.bytes == s.bytes);
        }
        memcpy(s.local, (const void *)(uintptr_t)s.remote, (size_t)s.bytes);
        bytes += (uint64_t)s.bytes;
        spans++;
    }
    for (int32_t i = 0; i < PAGES; i++) {
        for (int32_t l = 0; l < LAYERS; l++) {
            bool same = sl_arena_page_crc(here, lpages[i], l, PAGE) ==
                        sl_arena_page_crc(there, (int32_t)rpages[i], l, PAGE);
            ck_assert_int_eq(same, i >= first && i < end);
        }
    }
    if (_i % 3 == _i / 3 &&
        layouts[_i % 3] != SL_LAYOUT_LAYER_FIRST) { /* a page is in one piece on both sides */
        uint64_t each = ((uint64_t)g->page_bytes + SL_PAGE_READ_BYTES - 1) / SL_PAGE_READ_BYTES;
        ck_assert_uint_eq(spans, each * (uint64_t)(end - first));
        ck_assert_uint_eq(bytes, (uint64_t)g->page_bytes * (uint64_t)(end - first));
    }
    sl_page_read_begin(&r, &map, first, end);
    ck_assert(sl_page_read_next(&r, &s));
    sl_page_read_stop(&r);
    ck_assert(!sl_page_read_next(&r, &s));
    sl_arena_destroy(here);
    sl_arena_destroy(there);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("page_read");
    TCase *t = tcase_create("page_read");
    tcase_add_loop_test(t, the_rows_of_the_pages_arrive, 0, 9);
    suite_add_tcase(s, t);
    return run_suite(s);
}
