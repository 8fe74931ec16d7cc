/* Seals: every changed byte of a sealed page is found, in every layout; what a sample finds; unsealed pages. */
#include <string.h>

#include "kvstore/seal.h"
#include "tests/unit/kvstore/mla_geometry.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { LAYERS = 12, PAGES = 5 };

static sl_arena *arena;
static sl_seals *seals;

static void open_layout(sl_layout layout)
{
    bool has_indexer[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        has_indexer[l] = l % 3 != 2;
    sl_geometry g =
        mla_geometry((sl_key){1, 2}, layout, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, LAYERS, has_indexer);
    sl_arena_opts o = {.bytes = (uint64_t)(PAGES * g.page_bytes), .lock = SL_OFF, .numa_node = -1};
    sl_err err = {0};
    ck_assert_msg(sl_arena_create(&g, &o, &arena, &err) == SL_OK, "%s", err.text);
    uint64_t seed = 3;
    for (uint64_t i = 0; i < sl_arena_bytes(arena); i++)
        sl_arena_base(arena)[i] = (uint8_t)rnd(&seed);
    ck_assert_int_eq(sl_seals_create(arena, &seals), SL_OK);
}

static void close_all(void)
{
    sl_seals_destroy(seals);
    sl_arena_destroy(arena);
}

/* Some byte of the arena changes: exactly one page and layer differ from their seals. */
START_TEST(every_byte_counts)
{
    open_layout((sl_layout)_i);
    for (int32_t p = 0; p < PAGES; p++) {
        ck_assert_ptr_null(sl_seals_get(seals, p));
        ck_assert_int_eq(sl_seals_verify(seals, p, false), LAYERS); /* not sealed */
        sl_seals_make(seals, p);
        ck_assert_int_eq(sl_seals_verify(seals, p, false), 0);
    }
    uint64_t seed = 11 + (uint64_t)_i;
    for (int k = 0; k < 200; k++) {
        uint8_t *at = sl_arena_base(arena) + rnd(&seed) % sl_arena_bytes(arena);
        uint8_t bit = (uint8_t)(1 << rnd_below(&seed, 8));
        int bad = 0;
        *at ^= bit;
        for (int32_t p = 0; p < PAGES; p++)
            bad += sl_seals_verify(seals, p, false);
        ck_assert_int_eq(bad, 1);
        *at ^= bit;
    }
    close_all();
}
END_TEST

START_TEST(kept_checksums)
{
    uint32_t crc[LAYERS];
    open_layout(SL_LAYOUT_PAGE_FIRST);
    for (int32_t l = 0; l < LAYERS; l++)
        crc[l] = sl_arena_page_crc(arena, 2, l, SL_PAGE_TOKENS);
    sl_seals_keep(seals, 2, crc);
    ck_assert_mem_eq(sl_seals_get(seals, 2), crc, sizeof crc);
    ck_assert_int_eq(sl_seals_verify(seals, 2, false), 0);
    crc[7] ^= 1;
    sl_seals_keep(seals, 2, crc);
    ck_assert_int_eq(sl_seals_verify(seals, 2, false), 1);
    ck_assert_ptr_null(sl_seals_get(seals, 1));
    close_all();
}
END_TEST

/* A page that was overwritten is found by every sample, one changed byte by one sample in SL_SEAL_SAMPLE. */
START_TEST(samples)
{
    enum { TRIES = 2000 };
    open_layout(SL_LAYOUT_PAGE_FIRST);
    int64_t bytes = sl_arena_geometry(arena)->page_bytes;
    sl_seals_make(seals, 0);
    sl_seals_make(seals, 1);
    sl_arena_base(arena)[100] ^= 4; /* page 0, layer 0 */
    memset(sl_arena_base(arena) + bytes, 9, (size_t)bytes);
    int found = 0;
    for (int i = 0; i < TRIES; i++) {
        found += sl_seals_verify(seals, 0, true) != 0;
        ck_assert_int_ge(sl_seals_verify(seals, 1, true), 1);
    }
    ck_assert_int_gt(found, TRIES / SL_SEAL_SAMPLE / 2);
    ck_assert_int_lt(found, TRIES / SL_SEAL_SAMPLE * 2);
    close_all();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("seal");
    TCase *t = tcase_create("seal");
    tcase_add_loop_test(t, every_byte_counts, 0, 3);
    tcase_add_test(t, kept_checksums);
    tcase_add_test(t, samples);
    suite_add_tcase(s, t);
    return run_suite(s);
}
