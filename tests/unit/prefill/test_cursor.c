/* The ship cursor: pieces in order, layer by layer, spans held back, and what is left. */
#include <check.h>
#include <stdlib.h>

#include "prefill/cursor.h"
#include "tests/unit/kvstore/mla_geometry.h"
#include "tests/unit/run_suite.h"

enum { LAYERS = 4, PAGES = 8, TOKENS = 300 };

static sl_geometry geo;
static uint8_t *here, *there;
static sl_page_map map;
static const int32_t lp[5] = {4, 1, 2, 6, 0};
static const uint32_t rp[5] = {0, 3, 4, 5, 2};

static void setup(void)
{
    static const bool has_indexer[LAYERS] = {true, false, true, true};
    geo = mla_geometry((sl_key){0}, SL_LAYOUT_LAYER_FIRST, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, LAYERS,
                       has_indexer);
    here = malloc((size_t)(PAGES * geo.page_bytes));
    there = malloc((size_t)(PAGES * geo.page_bytes));
    map = (sl_page_map){.local = &geo,
                        .remote = &geo,
                        .local_base = here,
                        .remote_base = (uint64_t)(uintptr_t)there,
                        .local_n = PAGES,
                        .remote_n = PAGES,
                        .lpages = lp,
                        .rpages = rp};
}

static void teardown(void)
{
    free(here);
    free(there);
}

static int64_t bytes_of(int32_t layer, int32_t first, int32_t end)
{
    sl_pieces it;
    sl_span s;
    int64_t bytes = 0;
    sl_pieces_init(&it, &map, layer, first, end);
    while (sl_pieces_next(&it, &s))
        bytes += s.bytes;
    return bytes;
}

static int64_t take_layer(sl_ship_cursor *c)
{
    sl_span s;
    int64_t bytes = 0;
    sl_cursor_walk(c, &map);
    while (sl_cursor_next(c, &s))
        bytes += s.bytes;
    return bytes;
}

START_TEST(empty)
{
    sl_ship_cursor c = {0};
    sl_span s;
    ck_assert(sl_cursor_done(&c) && !sl_cursor_open_layer(&c) && !sl_cursor_next(&c, &s));
    sl_cursor_clear(&c);
    ck_assert(sl_cursor_done(&c));
    sl_cursor_free(&c);
}
END_TEST

START_TEST(pieces_in_order_layer_by_layer)
{
    sl_ship_cursor c = {0};
    ck_assert_int_eq(sl_cursor_push(&c, &(sl_piece){.end_layer = LAYERS, .end = 128}), SL_OK);
    ck_assert_int_eq(
        sl_cursor_push(&c,
                       &(sl_piece){.layer = 2, .end_layer = 3, .first = 128, .end = 300, .computed = true}),
        SL_OK);
    for (int32_t l = 0; l < LAYERS; l++) {
        ck_assert(!sl_cursor_done(&c) && sl_cursor_open_layer(&c));
        ck_assert(c.layer == l && !c.piece.computed);
        ck_assert_int_eq(take_layer(&c), bytes_of(l, 0, 128));
    }
    ck_assert(!sl_cursor_done(&c) && sl_cursor_open_layer(&c));
    ck_assert(c.layer == 2 && c.piece.computed);
    ck_assert_int_eq(take_layer(&c), bytes_of(2, 128, 300));
    ck_assert(sl_cursor_done(&c) && !sl_cursor_open_layer(&c));
    sl_cursor_free(&c);
}
END_TEST

START_TEST(a_held_span_comes_first_and_counts)
{
    sl_ship_cursor c = {0};
    sl_span s, again;
    int64_t bytes = 0;
    ck_assert_int_eq(sl_cursor_push(&c, &(sl_piece){.end_layer = 1, .first = 10, .end = 290}), SL_OK);
    ck_assert(sl_cursor_open_layer(&c));
    sl_cursor_walk(&c, &map);
    for (int i = 0; sl_cursor_next(&c, &s); i++) {
        if (i % 2 == 0) { /* the whole span, or its rest */
            sl_cursor_hold(&c, &s);
            ck_assert(!sl_cursor_done(&c) && sl_cursor_next(&c, &again));
            ck_assert(again.local == s.local && again.remote == s.remote && again.bytes == s.bytes);
        } else if (s.bytes > 1) {
            const sl_span rest = sl_pieces_rest(s, 1);
            sl_cursor_hold(&c, &rest);
            s.bytes = 1;
        }
        bytes += s.bytes;
    }
    ck_assert_int_eq(bytes, bytes_of(0, 10, 290));
    ck_assert(sl_cursor_done(&c));
    sl_cursor_free(&c);
}
END_TEST

/* More pieces than fit at first, pushed and taken in turn: none is lost, none comes twice. */
START_TEST(queue_grows_and_is_used_again)
{
    sl_ship_cursor c = {0};
    int32_t pushed = 0, taken = 0;
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 7 + round; i++, pushed++) {
            sl_piece q = {
                .layer = pushed % LAYERS, .end_layer = pushed % LAYERS + 1, .first = pushed, .end = pushed};
            ck_assert_int_eq(sl_cursor_push(&c, &q), SL_OK);
        }
        for (int i = 0; i < 5 + round && sl_cursor_open_layer(&c); i++, taken++)
            ck_assert(c.piece.first == taken && c.layer == taken % LAYERS);
    }
    for (; sl_cursor_open_layer(&c); taken++)
        ck_assert_int_eq(c.piece.first, taken);
    ck_assert_int_eq(pushed, taken);
    ck_assert(sl_cursor_done(&c));
    sl_cursor_free(&c);
}
END_TEST

START_TEST(clear_forgets)
{
    sl_ship_cursor c = {0};
    sl_span s;
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(sl_cursor_push(&c, &(sl_piece){.end_layer = LAYERS, .end = TOKENS}), SL_OK);
    ck_assert(sl_cursor_open_layer(&c));
    sl_cursor_walk(&c, &map);
    ck_assert(sl_cursor_next(&c, &s));
    sl_cursor_hold(&c, &s);
    sl_cursor_clear(&c);
    ck_assert(sl_cursor_done(&c) && !sl_cursor_next(&c, &s) && !sl_cursor_open_layer(&c));
    ck_assert_int_eq(sl_cursor_push(&c, &(sl_piece){.end_layer = 1, .end = 64}), SL_OK);
    ck_assert(sl_cursor_open_layer(&c));
    ck_assert_int_eq(take_layer(&c), bytes_of(0, 0, 64));
    sl_cursor_free(&c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cursor");
    TCase *t = tcase_create("cursor");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, empty);
    tcase_add_test(t, pieces_in_order_layer_by_layer);
    tcase_add_test(t, a_held_span_comes_first_and_counts);
    tcase_add_test(t, queue_grows_and_is_used_again);
    tcase_add_test(t, clear_forgets);
    suite_add_tcase(s, t);
    return run_suite(s);
}
