/*
 * Random pages of generated caches: every byte of the page is filled, none of its neighbours', and the bits follow from the page's
 * number. Shapes are all that rows, index keys (one for each token, for units of tokens, for blocks) and layouts can be together.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/random_pages.h"
#include "kernels/cache.h"
#include "tests/unit/run_suite.h"

enum { PAGES = 3, LAYERS = 3, MARK = 0xa5 };

static const struct {
    const char *rows;
    int32_t latent, rope, kv_heads, head_dim;
} kinds[] = {{"mla_f32", 24, 8, 0, 0}, {"mla_bf16", 32, 16, 0, 0}, {"mla_fp8", 512, 64, 0, 0},
             {"gqa_f32", 0, 0, 1, 20}, {"gqa_bf16", 0, 0, 3, 16},  {"gqa_fp8", 0, 0, 2, 64}};
static const struct {
    int32_t dim, unit, block;
    sl_index_format format;
} keys[] = {{0, 0, 0, SL_INDEX_PLAIN},  {16, 0, 0, SL_INDEX_PLAIN}, {128, 0, 0, SL_INDEX_OFFICIAL},
            {16, 4, 0, SL_INDEX_PLAIN}, {8, 16, 0, SL_INDEX_PLAIN}, {16, 0, 64, SL_INDEX_PLAIN}};
enum { KINDS = SL_COUNT(kinds), KEYS = SL_COUNT(keys), LAYOUTS = 3, CASES = KINDS * KEYS * LAYOUTS };

static bool make(int i, sl_geometry *g)
{
    const int kind = i % KINDS, key = i / KINDS % KEYS;
    static const bool indexers[LAYERS] = {true, false, true};
    sl_cache_dims d = {.rows = sl_row_format_find(kinds[kind].rows),
                       .index_format = keys[key].format,
                       .latent = kinds[kind].latent,
                       .rope = kinds[kind].rope,
                       .kv_heads = kinds[kind].kv_heads,
                       .query_heads = kinds[kind].kv_heads,
                       .head_dim = kinds[kind].head_dim,
                       .index_dim = keys[key].dim,
                       .index_heads = keys[key].dim ? 2 : 0,
                       .index_topk = keys[key].dim ? 64 : 0,
                       .index_unit = keys[key].unit,
                       .index_block = keys[key].block};
    sl_cache_shape shape;
    sl_err err = {""};
    sl_geometry_opts o = {.fingerprint = {1, 2},
                          .shape = &shape,
                          .n_layers = LAYERS,
                          .layout = (sl_layout)(i / (KINDS * KEYS)),
                          .has_indexer = keys[key].dim ? indexers : NULL};
    if (!d.rows || sl_cache_shape_make(&d, &shape, &err) != SL_OK)
        return false;
    ck_assert_msg(sl_geometry_make(&o, g, &err) == SL_OK, "%s", err.text);
    return true;
}

/* Marks what belongs to the page in `of`, a copy of the arena's bytes. */
static void mark_page(const sl_geometry *g, uint8_t *of, int32_t page)
{
    for (int32_t l = 0; l < g->n_layers; l++) {
        for (int32_t p = 0; p < g->shape.n_planes; p++) {
            const sl_host_plane h = sl_geometry_plane(g, of, PAGES, l, p);
            const sl_cache_plane *plane = &g->shape.planes[p];
            const int64_t unit = sl_cache_unit_bytes(plane);
            for (int32_t u = 0; h.base && u < sl_cache_page_units(plane); u++)
                memset(h.base + (int64_t)page * h.page_stride + (int64_t)(u / plane->heads) * h.row_stride +
                           (int64_t)(u % plane->heads) * unit,
                       1, (size_t)unit);
        }
    }
}

START_TEST(a_page_is_filled_and_nothing_else)
{
    sl_geometry g;
    sl_arena *arena;
    sl_random_pages f;
    sl_err err = {""};
    sl_arena_opts o = {.numa_node = -1, .huge_pages = SL_OFF, .lock = SL_OFF};
    if (!make(_i, &g))
        return; /* there is no such cache */
    o.bytes = PAGES * (uint64_t)g.page_bytes;
    ck_assert_msg(sl_arena_create(&g, &o, &arena, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(sl_arena_pages(arena), PAGES);
    ck_assert_int_eq(sl_engine_random_pages_open(&f, &g, &err), SL_OK);
    uint8_t *base = sl_arena_base(arena), *mine = calloc(1, o.bytes), *first = malloc(o.bytes);
    mark_page(&g, mine, 1);
    memset(base, MARK, o.bytes);
    sl_engine_random_pages_fill(&f, arena, 1);
    uint64_t at = 0;
    while (at < o.bytes && (mine[at] || base[at] == MARK))
        at++;
    ck_assert_msg(at == o.bytes, "byte %lu of %lu is not of the page", at, o.bytes);
    memcpy(first, base, o.bytes);
    memset(base, (uint8_t)~MARK, o.bytes);
    sl_engine_random_pages_fill(&f, arena, 1);
    for (at = 0; at < o.bytes && (!mine[at] || base[at] == first[at]); at++)
        ;
    ck_assert_msg(at == o.bytes, "byte %lu of %lu of the page was not filled", at, o.bytes);
    sl_engine_random_pages_close(&f);
    sl_arena_destroy(arena);
    free(mine);
    free(first);
}
END_TEST

START_TEST(most_shapes_exist)
{
    int n = 0;
    for (int i = 0; i < CASES; i++) {
        sl_geometry g;
        n += make(i, &g);
    }
    ck_assert_msg(n >= CASES / 2, "%d of %d", n, CASES);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("random pages");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, a_page_is_filled_and_nothing_else, 0, CASES);
    tcase_add_test(t, most_shapes_exist);
    suite_add_tcase(s, t);
    return run_suite(s);
}
