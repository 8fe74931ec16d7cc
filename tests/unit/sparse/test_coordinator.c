/*
 * The coordinator's own tasks: refusing what cannot work, sinks, recent window, length gate, dense layers, sharing
 * of selections across dense layers, errors of the life cycle, abandoned steps and counters.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "tests/unit/run_suite.h"

static rig_opts base_opts(void)
{
    return (rig_opts){
        .algorithm = "dsa", .row_format = SL_ROW_MLA_F32, .index_format = SL_INDEX_PLAIN, .tail_rows = 4};
}

static void feed(rig *r, int seq, int32_t n, int32_t chunk)
{
    while (n > 0) {
        int32_t m = n < chunk ? n : chunk;
        rig_step(r, &seq, &m, 1);
        n -= m;
    }
}

/* Refused with this status, and the reason names `word`. */
static void refused(const rig_opts *o, sl_status want, const char *word)
{
    sl_err err = {0};
    ck_assert_int_eq(rig_try(o, &err), want);
    ck_assert_msg(strstr(err.text, word) != NULL, "\"%s\" does not say %s", err.text, word);
}

START_TEST(refuses_what_cannot_work)
{
    rig_opts o = base_opts();
    ck_assert_int_eq(rig_try(&o, NULL), SL_OK);
    o.algorithm = "nothing";
    refused(&o, SL_ERR_NOT_FOUND, "dsa, dense");
    o = base_opts(), o.hot_slots = 1, o.hot_rows = RIG_TOPK - 1;
    refused(&o, SL_ERR_INVALID, "hot_rows 23");
    o.hot_rows = RIG_TOPK;
    ck_assert_int_eq(rig_try(&o, NULL), SL_OK);
    o.tail_rows = 0;
    refused(&o, SL_ERR_INVALID, "tail_rows");
    o = base_opts(), o.hot_slots = 1, o.hot_rows = SL_HOT_ROWS_MAX + 1;
    refused(&o, SL_ERR_TOO_LARGE, "65535");
    o = base_opts(), o.hot_slots = 1, o.hot_rows = 64, o.min_tokens = 100;
    refused(&o, SL_ERR_INVALID, "100 tokens");
    o = base_opts(), o.hot_slots = 1, o.hot_rows = 64, o.n_dense = 1, o.dense_layers[0] = 2;
    refused(&o, SL_ERR_UNSUPPORTED, "dense layers");
    o.hot_rows = RIG_CONTEXT;
    ck_assert_int_eq(rig_try(&o, NULL), SL_OK);
    o.dense_layers[0] = RIG_LAYERS;
    refused(&o, SL_ERR_INVALID, "layer 4");
    o = base_opts(), o.algorithm = "dense", o.hot_slots = 1, o.hot_rows = 64;
    refused(&o, SL_ERR_UNSUPPORTED, "whole context");
    o = base_opts(), o.sinks = 20, o.recent = 5;
    refused(&o, SL_ERR_INVALID, "index_topk 24");
    o = base_opts(), o.sinks = -1;
    refused(&o, SL_ERR_INVALID, "sink_tokens -1");
}
END_TEST

/* Each set of gates against the naive restatement, resident; then hierarchical against resident. */
START_TEST(gates_hold)
{
    static const struct {
        int32_t sinks, recent, min_tokens;
    } gates[] = {{4, 0, 0}, {0, 7, 0}, {3, 9, 0}, {1, 23, 0}, {0, 0, 90}, {2, 5, 64}, {0, 0, 10}};
    rig_opts o = base_opts();
    o.sinks = gates[_i].sinks, o.recent = gates[_i].recent, o.min_tokens = gates[_i].min_tokens;
    o.share = _i % 2, o.hot_slots = RIG_HOT_SLOTS;
    rig *r = rig_create(&o);
    rig_open(r, 3, 6, false, 0);
    feed(r, 3, 160, 50);
    for (int32_t pos = 0; pos < 160; pos++)
        rig_check(r, 3, pos);
    rig_copy_pages(r, 0, r, 3, 20);
    rig_open(r, 0, 6, true, 20);
    feed(r, 0, 140, 1);
    rig_same(rig_seq_at(r, 3), rig_seq_at(r, 0), 0, 160);
    rig_close(r, 0), rig_close(r, 3);
    rig_destroy(r);
}
END_TEST

/* Dense layers attend to everything; a shared layer after one still uses the dense layer's own selection. */
START_TEST(dense_layers)
{
    static const int32_t sets[][2] = {{0, 1}, {0, 2}, {1, 3}, {3, 0}};
    rig_opts o = base_opts();
    o.share = true, o.n_dense = 2, o.dense_layers[0] = sets[_i][0], o.dense_layers[1] = sets[_i][1];
    o.workspace = 40000;
    rig *r = rig_create(&o);
    rig_open(r, 0, 12, false, 0);
    feed(r, 0, 150, 40);
    for (int32_t pos = 0; pos < 150; pos += 3)
        rig_check(r, 0, pos);
    rig_close(r, 0);
    rig_destroy(r);
}
END_TEST

/* With hot rows for the whole context, dense layers work hierarchically too. */
START_TEST(dense_layers_hierarchical)
{
    rig_opts o = base_opts();
    o.n_dense = 1, o.dense_layers[0] = 1, o.hot_slots = 1;
    rig *r = rig_create(&o);
    rig_open(r, 3, 12, false, 0);
    feed(r, 3, 100, 40);
    rig_copy_pages(r, 0, r, 3, 30);
    rig_open(r, 0, 12, true, 30);
    feed(r, 0, 70, 1);
    rig_same(rig_seq_at(r, 3), rig_seq_at(r, 0), 0, 100);
    rig_close(r, 0), rig_close(r, 3);
    rig_destroy(r);
}
END_TEST

/* A step that is aborted in the middle: none of its results may be used afterwards. */
START_TEST(aborted_steps_leave_no_trace)
{
    rig_opts o = base_opts();
    o.hot_slots = RIG_HOT_SLOTS, o.no_poison = _i;
    rig *r = rig_create(&o);
    rig_open(r, 3, 30, false, 0);
    feed(r, 3, 150, 50);
    rig_copy_pages(r, 0, r, 3, 70);
    rig_open(r, 0, 30, true, 70);
    for (int i = 0; i < 80; i++) {
        int seq = 0;
        int32_t one = 1;
        for (int layers = i % 5; layers > 0; layers--) {
            rig_seq_at(r, 0)->content = 1000 + (uint32_t)i; /* another token than the one that stays */
            rig_half_step(r, &seq, &one, 1, layers - 1);
            sl_coord_step_abort(rig_coord(r));
            rig_seq_at(r, 0)->content = 30;
        }
        rig_step(r, &seq, &one, 1);
    }
    rig_same(rig_seq_at(r, 3), rig_seq_at(r, 0), 0, 150);
    rig_close(r, 0), rig_close(r, 3);
    rig_destroy(r);
}
END_TEST

START_TEST(life_cycle_errors)
{
    rig_opts o = base_opts();
    o.hot_slots = 2;
    rig *r = rig_create(&o);
    sl_coord *c = rig_coord(r);
    sl_err err = {0};
    rig_open(r, 0, 1, true, 0);
    sl_coord_request q = {.seq = 0, .hot_slot = 0};
    ck_assert_int_eq(sl_coord_request_begin(c, &q, &err), SL_ERR_INVALID); /* in use */
    q.seq = RIG_SEQS;
    ck_assert_int_eq(sl_coord_request_begin(c, &q, &err), SL_ERR_INVALID);
    q.seq = 1, q.hot_slot = 2;
    ck_assert_int_eq(sl_coord_request_begin(c, &q, &err), SL_ERR_INVALID); /* no such slot */
    q.hot_slot = 1, q.n_cached = RIG_CONTEXT + 1;
    ck_assert_int_eq(sl_coord_request_begin(c, &q, &err), SL_ERR_TOO_LARGE);
    rig_open(r, 1, 2, false, 0); /* the refused requests changed nothing */
    sl_coord_run two = {0, 2}, twice[] = {{1, 1}, {1, 1}}, closed = {2, 1}, none = {1, 0},
                 many = {1, RIG_MAX_STEP + 1};
    ck_assert_int_eq(sl_coord_step_begin(c, &two, 1, &err), SL_ERR_UNSUPPORTED); /* hierarchical: one token */
    ck_assert_int_eq(sl_coord_step_begin(c, twice, 2, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_coord_step_begin(c, &closed, 1, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_coord_step_begin(c, &none, 1, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_coord_step_begin(c, &many, 1, &err), SL_ERR_TOO_LARGE);
    feed(r, 1, RIG_CONTEXT, 150);
    sl_coord_run more = {1, 1};
    ck_assert_int_eq(sl_coord_step_begin(c, &more, 1, &err), SL_ERR_TOO_LARGE); /* full */
    q = (sl_coord_request){.seq = 0, .hot_slot = 1};
    ck_assert_int_eq(sl_coord_request_spill(c, &q, &err), SL_ERR_INVALID); /* is hierarchical */
    rig_close(r, 0), rig_close(r, 1);
    rig_destroy(r);
}
END_TEST

START_TEST(counters_add_up)
{
    rig_opts o = base_opts();
    o.hot_slots = 2, o.hot_rows = 40;
    rig *r = rig_create(&o);
    uint64_t rows = 0;
    for (int round = 0; round < 2; round++) {
        uint64_t mine = 0;
        rig_open(r, 0, 3, true, 0);
        rig_open(r, 1, 4, true, 0);
        for (int i = 0; i < 100; i++) {
            rig_step(r, (const int[]){0, 1}, (const int32_t[]){1, 1}, 2);
            mine += (uint64_t)(i + 1 < RIG_TOPK ? i + 1 : RIG_TOPK) * RIG_LAYERS;
        }
        sl_coord_counters layers[RIG_LAYERS], one;
        rows += 2 * mine;
        ck_assert_int_eq(sl_coord_counters_get(rig_coord(r), layers, 1, &one, NULL), SL_OK);
        ck_assert_uint_eq(one.hits + one.misses + one.tail_hits, mine);
        ck_assert_uint_gt(one.misses, one.evictions); /* the first ones found free rows */
        uint64_t all = 0;
        for (int l = 0; l < RIG_LAYERS; l++)
            all += layers[l].hits + layers[l].misses + layers[l].tail_hits;
        ck_assert_uint_eq(all, rows);
        rig_close(r, 0), rig_close(r, 1);
    }
    rig_destroy(r);
}
END_TEST

/* A double of dsa with a plane of its own: what the coordinator gives to construct. */
static int constructed, with_index;

static int32_t double_planes(const sl_cache_dims *d, sl_cache_plane *out, int32_t most)
{
    (void)d;
    MUST(most >= 1);
    *out =
        (sl_cache_plane){.name = "double",
                         .role = SL_PLANE_META,
                         .heads = 1,
                         .unit_tokens = 16,
                         .n_parts = 1,
                         .parts = {{.name = "mean", .dtype = SL_F32, .per = SL_PER_OPEN_UNIT, .count = 3}}};
    return 1;
}

static sl_status double_construct(sl_algo *a, const sl_algo_pages *p, sl_err *err)
{
    MUST(p->host_rows.base && p->n_tokens == 100 && p->n_pages == 2);
    constructed++;
    with_index += p->planes[RIG_INDEX].device != NULL;
    return sl_algo_dsa.construct(a, p, err);
}

START_TEST(construct_gets_the_rows_of_every_layer)
{
    sl_algo_desc with_plane = sl_algo_dsa;
    with_plane.planes = double_planes, with_plane.construct = double_construct;
    rig_opts o = base_opts();
    o.share = true, o.desc = &with_plane;
    sl_cache_shape shape;
    sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_MLA_F32), .latent = 32, .index_dim = 16};
    ck_assert_int_eq(sl_algo_cache_shape(&with_plane, &d, &shape, NULL), SL_OK);
    ck_assert_int_eq(shape.n_planes, 3);
    ck_assert_int_eq(sl_cache_find_name(&shape, "double"), 2);
    ck_assert_int_eq(sl_cache_page_bytes(&shape.planes[2]), 4 * 12);
    rig *r = rig_create(&o);
    int seq = 0, n = 100;
    rig_open(r, 0, 1, false, 0);
    rig_step(r, &seq, &n, 1);
    rig_close(r, 0);
    constructed = with_index = 0;
    rig_open(r, 0, 1, false, 100);
    ck_assert_int_eq(constructed, RIG_LAYERS);
    ck_assert_int_eq(with_index, RIG_LAYERS / 2);
    rig_close(r, 0);
    rig_destroy(r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sparse/coordinator");
    TCase *c = tcase_create("coordinator");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, refuses_what_cannot_work);
    tcase_add_loop_test(c, gates_hold, 0, 7);
    tcase_add_loop_test(c, dense_layers, 0, 4);
    tcase_add_test(c, dense_layers_hierarchical);
    tcase_add_test(c, construct_gets_the_rows_of_every_layer);
    tcase_add_loop_test(c, aborted_steps_leave_no_trace, 0, 2);
    tcase_add_test(c, life_cycle_errors);
    tcase_add_test(c, counters_add_up);
    suite_add_tcase(s, c);
    return run_suite(s);
}
