/*
 * Pieces between two arenas of any two layouts: applying the spans as copies moves exactly the tokens asked
 * for (every byte of them, no byte of others), and spans are as long as the layouts allow.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "worker/pieces.h"
#include "tests/unit/run_suite.h"

enum { PAGES = 6, TOKENS = 300, LAYERS = 4 };

static sl_geometry geometry(sl_layout layout, sl_index_format index)
{
    static const bool has_indexer[LAYERS] = {true, false, true, true};
    sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_MLA_FP8),
                       .index_format = index,
                       .latent = 128,
                       .rope = 16,
                       .index_dim = 32};
    sl_cache_shape shape;
    sl_geometry g;
    ck_assert_int_eq(sl_cache_shape_make(&d, &shape, NULL), SL_OK);
    sl_geometry_opts o = {.layout = layout, .shape = &shape, .n_layers = LAYERS, .has_indexer = has_indexer};
    ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_OK);
    return g;
}

typedef struct side {
    sl_geometry g;
    uint8_t *base;
} side;

static side make_side(sl_layout layout, sl_index_format index)
{
    side s = {.g = geometry(layout, index)};
    s.base = malloc((size_t)(PAGES * s.g.page_bytes));
    return s;
}

/* Every byte that belongs to a token in a layer: fn gets pointer and length, in the same order in every
 * layout. */
static void each_part(const side *s, const int32_t *pages, int32_t layer, int32_t token,
                      void (*fn)(void *ctx, uint8_t *at, int64_t n), void *ctx)
{
    int32_t page = pages[token / SL_PAGE_TOKENS], i = token % SL_PAGE_TOKENS;
    sl_host_plane r = sl_geometry_plane(&s->g, s->base, PAGES, layer, SL_CACHE_ROWS);
    sl_host_plane x = sl_geometry_index_plane(&s->g, s->base, PAGES, layer);
    fn(ctx, r.base + page * r.page_stride + i * r.row_stride, sl_geometry_row_bytes(&s->g));
    if (!x.base)
        return;
    bool official = sl_geometry_index_bytes(&s->g) == SL_PAGE_TOKENS * (32 + 4);
    int64_t key = official ? 32 : 4 * 32;
    fn(ctx, x.base + page * x.page_stride + i * key, key);
    if (official)
        fn(ctx, x.base + page * x.page_stride + SL_PAGE_TOKENS * key + 4 * i, 4);
}

typedef struct stamp {
    uint8_t value;
    bool check;
    long wrong;
} stamp;

static void on_part(void *ctx, uint8_t *at, int64_t n)
{
    stamp *s = ctx;
    for (int64_t i = 0; i < n; i++) {
        if (s->check)
            s->wrong += at[i] != (uint8_t)(s->value + i * 3);
        else
            at[i] = (uint8_t)(s->value + i * 3);
    }
}

static long count_wrong(const side *s, const int32_t *pages, int32_t first, int32_t end, int32_t layer)
{
    long wrong = 0;
    for (int32_t l = 0; l < LAYERS; l++) {
        for (int32_t t = 0; t < TOKENS; t++) {
            bool moved = l == layer && t >= first && t < end;
            stamp st = {.value = (uint8_t)(moved ? 1 + l * 50 + t : l * 7 + t + 100), .check = true};
            each_part(s, pages, l, t, on_part, &st);
            wrong += st.wrong;
        }
    }
    return wrong;
}

static int copy_spans(const side *l, const side *r, const int32_t *lp, const uint32_t *rp, int32_t layer,
                      int32_t first, int32_t end)
{
    sl_page_map map = {.local = &l->g,
                       .remote = &r->g,
                       .local_base = l->base,
                       .remote_base = (uint64_t)(uintptr_t)r->base,
                       .local_n = PAGES,
                       .remote_n = PAGES,
                       .lpages = lp,
                       .rpages = rp};
    sl_pieces it;
    sl_span s;
    int n = 0;
    sl_pieces_init(&it, &map, layer, first, end);
    for (; sl_pieces_next(&it, &s); n++)
        memcpy((void *)(uintptr_t)s.remote, s.local, (size_t)s.bytes);
    return n;
}

START_TEST(moves_exactly_these_tokens)
{
    static const int32_t ranges[][2] = {{0, 300},  {0, 64},  {64, 128},  {10, 20},  {60, 70},
                                        {64, 300}, {63, 65}, {299, 300}, {128, 256}};
    sl_index_format index = _i >= 9 ? SL_INDEX_PLAIN : SL_INDEX_OFFICIAL;
    side l = make_side((sl_layout)(_i % 3), index), r = make_side((sl_layout)(_i / 3 % 3), index);
    const int32_t lp[5] = {4, 1, 2, 5, 0};
    const uint32_t rp[5] = {0, 3, 4, 5, 2};
    const int32_t rp_signed[5] = {0, 3, 4, 5, 2};
    for (size_t k = 0; k < SL_COUNT(ranges); k++) {
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            for (int32_t ll = 0; ll < LAYERS; ll++) {
                for (int32_t t = 0; t < TOKENS; t++) {
                    stamp here = {.value = (uint8_t)(1 + ll * 50 + t)},
                          there = {.value = (uint8_t)(ll * 7 + t + 100)};
                    each_part(&l, lp, ll, t, on_part, &here);
                    each_part(&r, rp_signed, ll, t, on_part, &there);
                }
            }
            copy_spans(&l, &r, lp, rp, layer, ranges[k][0], ranges[k][1]);
            ck_assert_int_eq(count_wrong(&r, rp_signed, ranges[k][0], ranges[k][1], layer), 0);
        }
    }
    free(l.base);
    free(r.base);
}
END_TEST

START_TEST(spans_are_long)
{
    const int32_t lp[5] = {0, 1, 2, 3, 4};
    const uint32_t rp[5] = {1, 2, 3, 4, 5}, scattered[5] = {5, 3, 1, 0, 2};
    side a = make_side(SL_LAYOUT_PAGE_FIRST, SL_INDEX_OFFICIAL),
         b = make_side(SL_LAYOUT_PAGE_FIRST, SL_INDEX_OFFICIAL);
    /* a layer's slice of a page is one write */
    ck_assert_int_eq(copy_spans(&a, &b, lp, scattered, 0, 0, 256), 4);
    ck_assert_int_eq(copy_spans(&a, &b, lp, scattered, 1, 0, 256), 4);
    ck_assert_int_eq(copy_spans(&a, &b, lp, scattered, 0, 0, 32), 3); /* part of a page: rows, keys, scales */
    free(a.base);
    free(b.base);
    a = make_side(SL_LAYOUT_LAYER_FIRST, SL_INDEX_OFFICIAL),
    b = make_side(SL_LAYOUT_LAYER_FIRST, SL_INDEX_OFFICIAL);
    ck_assert_int_eq(copy_spans(&a, &b, lp, rp, 0, 0, 256), 2); /* neighbours: all rows, all index blocks */
    ck_assert_int_eq(copy_spans(&a, &b, lp, rp, 1, 0, 300), 1);
    free(a.base);
    free(b.base);
}
END_TEST

/* A plane of each kind, of which the device has the rows alone. */
static sl_geometry host_plane_geometry(void)
{
    static const bool has_indexer[LAYERS] = {false};
    sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_GQA_BF16),
                       .kv_heads = 2,
                       .head_dim = 16,
                       .index_format = SL_INDEX_PLAIN};
    sl_cache_shape shape;
    sl_geometry g;
    ck_assert_int_eq(sl_cache_shape_make(&d, &shape, NULL), SL_OK);
    shape.planes[shape.n_planes++] =
        (sl_cache_plane){.name = "kept",
                         .format = "gaps",
                         .role = SL_PLANE_META,
                         .scope = SL_SCOPE_KV_HEAD,
                         .host_only = true,
                         .heads = 2,
                         .unit_tokens = SL_PAGE_TOKENS,
                         .n_parts = 1,
                         .parts = {{.name = "gaps", .dtype = SL_I32, .per = SL_PER_OPEN_UNIT, .count = 9}}};
    sl_geometry_opts o = {
        .layout = SL_LAYOUT_LAYER_FIRST, .shape = &shape, .n_layers = LAYERS, .has_indexer = has_indexer};
    ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_OK);
    return g;
}

/* What was computed is read from device memory, but a plane that only host pages have is read from these. */
START_TEST(planes_of_host_pages_are_read_from_the_arena)
{
    sl_geometry g = host_plane_geometry();
    const size_t bytes = (size_t)(PAGES * g.page_bytes);
    uint8_t *host = malloc(bytes), *device = malloc(bytes), *there = calloc(bytes, 1);
    const int32_t lp[3] = {4, 1, 2}, dp[3] = {5, 3, 0};
    const uint32_t rp[3] = {0, 3, 5};
    const int32_t kept = g.shape.n_planes - 1;
    sl_device_layer dev[LAYERS] = {{.bytes = {0}}};
    sl_pieces it;
    sl_span s;
    int n[2] = {0, 0};
    memset(host, 'h', bytes);
    memset(device, 'd', bytes);
    for (int32_t l = 0; l < LAYERS; l++)
        dev[l].planes[SL_CACHE_ROWS] = sl_geometry_plane(&g, device, PAGES, l, SL_CACHE_ROWS);
    sl_page_map map = {.local = &g,
                       .remote = &g,
                       .local_base = host,
                       .remote_base = (uint64_t)(uintptr_t)there,
                       .local_n = PAGES,
                       .remote_n = PAGES,
                       .lpages = lp,
                       .rpages = rp,
                       .n_tokens = 150,
                       .dev = dev,
                       .dev_rows = dp,
                       .dev_index = dp};
    for (sl_pieces_init(&it, &map, 1, 0, 150); sl_pieces_next(&it, &s); n[s.device]++) {
        const uint8_t *base = s.device ? device : host;
        ck_assert_msg(s.local >= base && s.local + s.bytes <= base + bytes,
                      "a span of %s memory lies elsewhere", s.device ? "device" : "host");
        memcpy((void *)(uintptr_t)s.remote, s.local, (size_t)s.bytes);
    }
    ck_assert_msg(n[0] > 0 && n[1] > 0, "%d spans of host memory, %d of device memory", n[0], n[1]);
    const sl_host_plane rows = sl_geometry_plane(&g, there, PAGES, 1, SL_CACHE_ROWS),
                        gaps = sl_geometry_plane(&g, there, PAGES, 1, kept);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(rows.base[rp[i] * rows.page_stride], 'd');
    ck_assert_int_eq(gaps.base[rp[2] * gaps.page_stride], 'h'); /* the page of the prompt's end */
    free(host);
    free(device);
    free(there);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pieces");
    TCase *t = tcase_create("pieces");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, moves_exactly_these_tokens, 0, 18);
    tcase_add_test(t, spans_are_long);
    tcase_add_test(t, planes_of_host_pages_are_read_from_the_arena);
    suite_add_tcase(s, t);
    return run_suite(s);
}
