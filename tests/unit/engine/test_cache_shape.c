/*
 * A cache that no algorithm of this build has: rows by KV head in units of 16 tokens, because the selector selects
 * blocks of 16 tokens per KV head, and two planes of metadata of its own: bounds of each unit with a pooled key per
 * closed unit, and entries pooled over two pages with the state of the open pool. The selector is a double that exists
 * only here. Its planes go through geometry, wire form, checksums, piece spans and the plan, which know nothing of
 * them.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/plan.h"
#include "worker/pieces.h"
#include "tests/unit/run_suite.h"

enum { HEADS = 4, DIM = 8, UNIT = 16, POOL = 128, LAYERS = 3, PLANES = 3, PAGES = 5, TOKENS = 200 };

static int32_t bounds_planes(const sl_cache_dims *d, sl_cache_plane *out, int32_t most)
{
    ck_assert_int_ge(most, 2);
    *out = (sl_cache_plane){.name = "bounds",
                            .format = "double",
                            .stamp = 77,
                            .role = SL_PLANE_META,
                            .scope = SL_SCOPE_KV_HEAD,
                            .heads = d->kv_heads,
                            .unit_tokens = UNIT,
                            .n_parts = 3};
    out->parts[0] =
        (sl_cache_part){.name = "min", .dtype = SL_BF16, .per = SL_PER_OPEN_UNIT, .count = d->head_dim};
    out->parts[1] =
        (sl_cache_part){.name = "max", .dtype = SL_BF16, .per = SL_PER_OPEN_UNIT, .count = d->head_dim};
    out->parts[2] = (sl_cache_part){.name = "pool", .dtype = SL_F32, .per = SL_PER_CLOSED_UNIT, .count = 1};
    out[1] = (sl_cache_plane){.name = "entries",
                              .format = "double",
                              .role = SL_PLANE_META,
                              .scope = SL_SCOPE_REQUEST,
                              .heads = 1,
                              .unit_tokens = POOL,
                              .n_parts = 3};
    out[1].parts[0] = (sl_cache_part){.name = "raw", .dtype = SL_F8_E4M3, .count = 2};
    out[1].parts[1] = (sl_cache_part){.name = "state", .dtype = SL_F32, .per = SL_PER_OPEN_UNIT, .count = 3};
    out[1].parts[2] =
        (sl_cache_part){.name = "entry", .dtype = SL_BF16, .per = SL_PER_CLOSED_UNIT, .count = DIM};
    return 2;
}

static sl_selector bounds_selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = UNIT,
                         .block_tokens = UNIT,
                         .key = SL_KEY_BOUNDS,
                         .score = SL_SCORE_BOUND,
                         .scope = SL_SCOPE_KV_HEAD,
                         .force_first = 1,
                         .force_last = 1,
                         .force_open = true};
}

static int32_t bounds_width(const sl_algo_dims *d, int32_t dense_below)
{
    (void)dense_below;
    return d->max_context < 128 ? d->max_context : 128;
}

static uint64_t no_bytes(const sl_algo_dims *d)
{
    (void)d;
    return 0;
}

static const sl_algo_desc bounds = {.name = "bounds_double",
                                    .description = "a test's",
                                    .prefix_reuse = true,
                                    .chunked_prefill = true,
                                    .disaggregation = true,
                                    .selector = bounds_selector,
                                    .planes = bounds_planes,
                                    .width = bounds_width,
                                    .device_bytes = no_bytes};

static sl_cache_dims dims(void)
{
    return (sl_cache_dims){.rows = sl_row_format_of(SL_ROW_GQA_BF16), .kv_heads = HEADS, .head_dim = DIM};
}

/* Bytes of a segment, and segments of a page over all heads, by plane. */
enum { ROW_UNIT = 2 * UNIT * DIM * 2, META_UNIT = 2 * DIM * 2 + 4, UNITS = 64 / UNIT * HEADS };
enum { STATE = 3 * 4, ENTRY = DIM * 2, POOL_SEGMENT = 64 * 2 + STATE + ENTRY };
enum { PAGE_OF_LAYER = UNITS * (ROW_UNIT + META_UNIT) + POOL_SEGMENT };

static sl_geometry geometry(sl_layout layout)
{
    const sl_cache_dims d = dims();
    sl_cache_shape shape;
    sl_geometry g;
    sl_geometry_opts o = {.layout = layout, .shape = &shape, .n_layers = LAYERS};
    sl_err err = {0};
    ck_assert_msg(sl_algo_cache_shape(&bounds, &d, &shape, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_geometry_make(&o, &g, &err) == SL_OK, "%s", err.text);
    return g;
}

START_TEST(tiles_the_arena)
{
    sl_geometry g = geometry((sl_layout)_i);
    ck_assert_int_eq(g.shape.n_planes, PLANES);
    ck_assert_int_eq(sl_cache_unit_bytes(&g.shape.planes[0]), ROW_UNIT);
    ck_assert_int_eq(sl_cache_unit_bytes(&g.shape.planes[1]), META_UNIT);
    ck_assert_int_eq(sl_cache_unit_bytes(&g.shape.planes[2]), POOL_SEGMENT);
    ck_assert_int_eq(g.page_bytes, LAYERS * PAGE_OF_LAYER);
    int64_t size = PAGES * g.page_bytes, wrong = 0;
    uint8_t *map = calloc((size_t)size, 1);
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t p = 0; p < PLANES; p++) {
            sl_host_plane at = sl_geometry_plane(&g, map, PAGES, l, p);
            int64_t unit = sl_cache_unit_bytes(&g.shape.planes[p]), heads = g.shape.planes[p].heads;
            int64_t units = sl_cache_page_units(&g.shape.planes[p]);
            for (int64_t k = 0; k < PAGES * units * unit; k++) { /* page, unit, head, byte */
                int64_t u = k / unit, in_page = u % units;
                at.base[u / units * at.page_stride + in_page / heads * at.row_stride +
                        in_page % heads * unit + k % unit]++;
            }
        }
    for (int64_t i = 0; i < size; i++)
        wrong += map[i] != 1;
    ck_assert_int_eq(wrong, 0);
    free(map);
}
END_TEST

START_TEST(wire_form_carries_the_planes)
{
    sl_geometry g = geometry(SL_LAYOUT_PAGE_HEAD), back, other;
    sl_err err = {0};
    sl_wr w;
    sl_wr_init(&w);
    sl_geometry_write(&g, &w);
    ck_assert_msg(sl_geometry_read(w.data, w.len, &back, &err) == SL_OK, "%s", err.text);
    ck_assert_mem_eq(&back, &g, sizeof g);
    sl_wr_free(&w);
    other = g;
    other.shape.planes[1].stamp = 78; /* the selector was set up with other parameters */
    ck_assert_int_eq(sl_geometry_compatible(&g, &other, &err), SL_ERR_REFUSED);
    ck_assert_msg(strstr(err.text, "bounds: stamp") != NULL, "%s", err.text);
    other = g, other.shape.planes[2].unit_tokens = 64;
    ck_assert_int_eq(sl_geometry_compatible(&g, &other, &err), SL_ERR_REFUSED);
    ck_assert_msg(strstr(err.text, "entries: unit_tokens") != NULL, "%s", err.text);
    other = g, other.shape.n_planes = 1;
    ck_assert_int_eq(sl_geometry_compatible(&g, &other, &err), SL_ERR_REFUSED);
}
END_TEST

/* A value of a closed unit is zero in the pages of the unit that do not close it. */
static bool closes(const sl_cache_plane *plane, int32_t segment)
{
    return (segment + 1) * sl_cache_segment_tokens(plane) % plane->unit_tokens == 0;
}

/* The valid bytes of tokens 0 .. n - 1 of a layer, written or compared; head, segment and place decide the value. */
static int64_t each_byte(const sl_geometry *g, uint8_t *base, const int32_t *pages, int32_t layer, int32_t n,
                         int salt, bool write)
{
    int64_t wrong = 0;
    for (int32_t p = 0; p < PLANES; p++) {
        const sl_cache_plane *plane = &g->shape.planes[p];
        sl_host_plane at = sl_geometry_plane(g, base, PAGES, layer, p);
        const int32_t size = sl_cache_segment_tokens(plane), in_page = 64 / size;
        for (int32_t u = 0; u * size < n; u++)
            for (int32_t h = 0; h < plane->heads; h++) {
                uint8_t *unit = at.base + pages[u / in_page] * at.page_stride + u % in_page * at.row_stride +
                                h * sl_cache_unit_bytes(plane);
                int32_t have = n - u * size < size ? n - u * size : size;
                for (int32_t i = 0; i < plane->n_parts; unit += sl_cache_part_bytes(plane, i++)) {
                    const sl_cache_part *t = &plane->parts[i];
                    int64_t bytes = sl_cache_part_bytes(plane, i);
                    if (t->per == SL_PER_TOKEN)
                        bytes = bytes / size * have;
                    else if (t->per == SL_PER_CLOSED_UNIT && have < size)
                        bytes = 0;
                    bool zero = t->per == SL_PER_CLOSED_UNIT && !closes(plane, u);
                    for (int64_t b = 0; b < bytes; b++) {
                        uint8_t v = (uint8_t)(salt + layer * 11 + p * 29 + u * 5 + h * 3 + i * 17 + b);
                        v = zero ? 0 : v;
                        if (write)
                            unit[b] = v;
                        wrong += unit[b] != v;
                    }
                }
            }
    }
    return wrong;
}

START_TEST(checksum_is_of_content)
{
    static const int32_t pages[] = {3};
    uint32_t first = 0;
    for (int layout = 0; layout < 3; layout++) {
        sl_geometry g = geometry((sl_layout)layout);
        sl_arena *a;
        sl_err err = {0};
        sl_arena_opts o = {.bytes = (uint64_t)(PAGES * g.page_bytes), .lock = SL_OFF, .numa_node = -1};
        ck_assert_msg(sl_arena_create(&g, &o, &a, &err) == SL_OK, "%s", err.text);
        memset(sl_arena_base(a), 0xa0 + layout, sl_arena_bytes(a)); /* what is not valid differs by layout */
        each_byte(&g, sl_arena_base(a), pages, 1, 40, 0, true);
        uint32_t crc = sl_arena_page_crc(a, 3, 1, 40);
        first = layout ? first : crc;
        ck_assert_uint_eq(crc, first);
        sl_host_plane meta = sl_geometry_plane(&g, sl_arena_base(a), PAGES, 1, 1);
        uint8_t *open =
            meta.base + 3 * meta.page_stride + 2 * meta.row_stride + META_UNIT; /* unit 2, head 1 */
        open[2 * DIM * 2] ^= 1; /* the pooled key of a unit that is not closed */
        ck_assert_uint_eq(sl_arena_page_crc(a, 3, 1, 40), first);
        open[0] ^= 1; /* its lower bounds are valid */
        ck_assert_uint_ne(sl_arena_page_crc(a, 3, 1, 40), first);
        open[0] ^= 1;
        sl_host_plane pool = sl_geometry_plane(&g, sl_arena_base(a), PAGES, 1, 2);
        uint8_t *segment = pool.base + 3 * pool.page_stride;
        segment[64 * 2 + STATE] ^= 1; /* the entry: the page is not full */
        ck_assert_uint_eq(sl_arena_page_crc(a, 3, 1, 40), first);
        segment[64 * 2] ^= 1; /* the state of the open pool is valid */
        ck_assert_uint_ne(sl_arena_page_crc(a, 3, 1, 40), first);
        sl_arena_destroy(a);
    }
}
END_TEST

/* A request that is shipped range by range arrives whole, and no byte is sent twice. */
START_TEST(pieces_arrive_once)
{
    static const int32_t cuts[] = {0, 10, 16, 50, 64, 130, TOKENS}, lp[] = {4, 1, 2, 0},
                         rp_signed[] = {0, 3, 4, 1};
    static const uint32_t rp[] = {0, 3, 4, 1};
    sl_geometry l = geometry((sl_layout)(_i % 3)), r = geometry((sl_layout)(_i / 3));
    size_t size = (size_t)(PAGES * l.page_bytes);
    uint8_t *here = calloc(size, 1), *there = calloc(size, 1), *sent = calloc(size, 1);
    sl_page_map map = {.local = &l,
                       .remote = &r,
                       .local_base = here,
                       .remote_base = (uint64_t)(uintptr_t)there,
                       .local_n = PAGES,
                       .remote_n = PAGES,
                       .n_tokens = TOKENS,
                       .lpages = lp,
                       .rpages = rp};
    int64_t twice = 0, bytes = 0;
    for (size_t c = 0; c + 1 < SL_COUNT(cuts); c++)
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            sl_pieces it;
            sl_span s;
            each_byte(&l, here, lp, layer, cuts[c + 1], 7, true);
            sl_pieces_init(&it, &map, layer, cuts[c], cuts[c + 1]);
            while (sl_pieces_next(&it, &s)) {
                uint8_t *mark = sent + (s.remote - map.remote_base);
                memcpy((void *)(uintptr_t)s.remote, s.local, (size_t)s.bytes);
                bytes += s.bytes;
                for (int64_t b = 0; b < s.bytes; b++)
                    twice += mark[b]++;
            }
        }
    ck_assert_int_eq(twice, 0);
    const int64_t by_head =
        TOKENS * (2 * DIM * 2) + (TOKENS + UNIT - 1) / UNIT * (2 * DIM * 2) + TOKENS / UNIT * 4;
    const int64_t pooled = TOKENS * 2 + (TOKENS + 63) / 64 * STATE + TOKENS / 64 * ENTRY;
    ck_assert_int_eq(bytes, LAYERS * (HEADS * by_head + pooled));
    for (int32_t layer = 0; layer < LAYERS; layer++)
        ck_assert_int_eq(each_byte(&r, there, rp_signed, layer, TOKENS, 7, false), 0);
    free(here);
    free(there);
    free(sent);
}
END_TEST

/* Where a unit is closed: for units of a fraction of a page, of a page, and of several pages. */
START_TEST(units_are_found)
{
    static const struct {
        int32_t tokens, unit, page, segment;
    } c[] = {{1, 130, 2, 2}, {16, 0, 0, 0},  {16, 7, 1, 3}, {64, 5, 5, 0},
             {128, 0, 1, 0}, {128, 3, 7, 0}, {256, 1, 7, 0}};
    for (size_t i = 0; i < SL_COUNT(c); i++) {
        sl_cache_plane p = {.heads = 1, .unit_tokens = c[i].tokens};
        int32_t segment = -1;
        ck_assert_int_eq(sl_cache_unit_page(&p, c[i].unit, &segment), c[i].page);
        ck_assert_int_eq(segment, c[i].segment);
    }
}
END_TEST

START_TEST(the_plan_counts_the_planes)
{
    static sl_model_config cfg;
    cfg = (sl_model_config){.family = "llama",
                            .n_layers = LAYERS,
                            .max_context = 4096,
                            .vocab_size = 100,
                            .attn.n_kv_heads = HEADS,
                            .attn.v_head_dim = DIM};
    sl_plan_in in = {.cfg = &cfg,
                     .cache = sl_engine_cache_dims(&cfg, SL_ROW_GQA_BF16, SL_INDEX_PLAIN),
                     .algorithm = &bounds,
                     .hot_rows = 256,
                     .tail_rows = 32,
                     .max_step_tokens = 8,
                     .gpu_bytes = 1 << 30,
                     .host_bytes = 1 << 30};
    sl_plan p;
    sl_err err = {0};
    ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(p.row_bytes, ROW_UNIT);
    ck_assert_int_eq(p.width, 128);
    /* Metadata is on the device whole. */
    ck_assert_uint_eq(p.index_page_device, LAYERS * (UNITS * META_UNIT + POOL_SEGMENT));
    ck_assert_uint_eq(p.row_page_device, LAYERS * UNITS * ROW_UNIT);
    ck_assert_uint_eq(p.hot_rows_bytes, LAYERS * (256 + 32) / UNIT * HEADS * ROW_UNIT);
    ck_assert_int_eq(p.page_bytes, LAYERS * PAGE_OF_LAYER);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/cache_shape");
    TCase *t = tcase_create("cache_shape");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, tiles_the_arena, 0, 3);
    tcase_add_test(t, wire_form_carries_the_planes);
    tcase_add_test(t, checksum_is_of_content);
    tcase_add_loop_test(t, pieces_arrive_once, 0, 9);
    tcase_add_test(t, units_are_found);
    tcase_add_test(t, the_plan_counts_the_planes);
    suite_add_tcase(s, t);
    return run_suite(s);
}
