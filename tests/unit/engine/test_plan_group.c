/*
 * The plan of a rank of a group: the weights that it counts are those that a loaded model has, uneven splits count the
 * largest rank, the exchange buffers follow their definition, ranks of a host share its memory, and what is needed when
 * a request does not fit is enough and not more.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/plan_group.h"
#include "kernels/ep.h"
#include "model/sizes.h"
#include "model/synthetic.h"
#include "tests/unit/run_suite.h"

#define GIB (1ull << 30)
#define DEVICE (139 * GIB)
#define HOST (1536 * GIB)

static sl_model_config cfg; /* DeepSeek-V3.2 */

static void setup(void)
{
    sl_err err = {0};
    ck_assert_msg(sl_synthetic_config("deepseek_v32", 0, &cfg, &err) == SL_OK, "%s", err.text);
}

static sl_plan_group group_of(int32_t ranks, int32_t per_host)
{
    return (sl_plan_group){.ranks = ranks,
                           .ranks_per_host = per_host,
                           .stored = SL_F8_E4M3,
                           .act = SL_BF16,
                           .host_bytes = HOST,
                           .given_weights = UINT64_MAX};
}

static sl_plan_in input(void)
{
    return (sl_plan_in){.cfg = &cfg,
                        .cache = sl_engine_cache_dims(&cfg, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL),
                        .algorithm = &sl_algo_dsa,
                        .max_step_tokens = 512,
                        .reserve_bytes = DEVICE / 16,
                        .gpu_bytes = DEVICE};
}

static void make(sl_plan_group *g, sl_plan_in *in, sl_plan *p)
{
    sl_err err = {0};
    *in = input();
    ck_assert_msg(sl_plan_group_make(g, in, p, &err) == SL_OK, "%s", err.text);
}

/* A loaded model reports bytes as they are stored. grown: what its F8 kv_b takes more on the device as BF16. */
START_TEST(weights_are_those_of_a_loaded_model)
{
    static const struct {
        const char *dir;
        sl_dtype act;
        uint64_t grown;
    } cases[] = {{"tests/golden/model/ds-yarn", SL_F32, 0},
                 {"models/tiny-v32", SL_F32, 0},
                 {"tests/golden/model/glm-share", SL_F32, 0},
                 {"tests/golden/model/ds-fp8", SL_BF16, 3 * 256 * 136}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_backend_opts bo = {.threads = 1};
        sl_model_opts o = {.act = cases[i].act, .max_tokens = 8, .max_logit_rows = 1};
        sl_backend *be;
        sl_model *m;
        sl_dtype stored;
        sl_weight_bytes w;
        sl_err err = {0};
        ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, &err), SL_OK);
        ck_assert_int_eq(sl_model_stored_dtype(cases[i].dir, &stored, &err), SL_OK);
        ck_assert_msg(sl_model_load(be, cases[i].dir, &o, &m, &err) == SL_OK, "%s", err.text);
        const sl_model_config *c = sl_model_get_config(m);
        sl_model_weight_sizes(c, stored, cases[i].act, &w);
        ck_assert_uint_eq(w.replicated + (uint64_t)c->moe.n_routed * w.expert,
                          sl_model_weight_bytes(m) + cases[i].grown);
        sl_model_destroy(m);
        sl_backend_destroy(be);
    }
}
END_TEST

/* A synthetic model has the published form: F8 with scales, BF16 elsewhere. Rank r of 2 has half of the experts. */
START_TEST(weights_are_those_of_a_synthetic_model)
{
    for (int32_t ranks = 1; ranks <= 2; ranks++) {
        sl_backend_opts bo = {.threads = 1};
        sl_model_opts o = {
            .act = SL_BF16, .index_format = SL_INDEX_OFFICIAL, .max_tokens = 8, .max_logit_rows = 1};
        sl_synthetic_opts so = {.ranks = ranks, .seed = 1};
        sl_model_config c;
        sl_backend *be;
        sl_model *m;
        sl_weight_bytes w;
        sl_err err = {0};
        ck_assert_int_eq(sl_synthetic_config("tiny", 0, &c, &err), SL_OK);
        ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, &err), SL_OK);
        ck_assert_msg(sl_model_synthetic(be, &c, &o, &so, &m, &err) == SL_OK, "%s", err.text);
        sl_model_weight_sizes(&c, SL_F8_E4M3, SL_BF16, &w);
        ck_assert_uint_eq(w.replicated + (uint64_t)(c.moe.n_routed / ranks) * w.expert,
                          sl_model_weight_bytes(m));
        sl_model_destroy(m);
        sl_backend_destroy(be);
    }
}
END_TEST

START_TEST(experts_are_divided)
{
    static const struct {
        int32_t ranks, experts;
    } cases[] = {{1, 256}, {2, 128}, {3, 86}, {7, 37}, {8, 32}, {64, 4}};
    sl_weight_bytes w;
    sl_plan_in in;
    sl_plan p;
    sl_model_weight_sizes(&cfg, SL_F8_E4M3, SL_BF16, &w);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_plan_group g = group_of(cases[i].ranks, 1);
        int32_t first[SL_COMM_RANKS_MAX + 1];
        make(&g, &in, &p);
        sl_ep_split(256, g.ranks, first);
        ck_assert_int_eq(g.experts, cases[i].experts);
        ck_assert_int_eq(first[g.rank + 1] - first[g.rank], g.experts);
        ck_assert_uint_eq(g.replicated_bytes, w.replicated);
        ck_assert_uint_eq(in.weight_bytes, w.replicated + (uint64_t)g.experts * w.expert);
    }
}
END_TEST

/* 8 ranks, 512 tokens: rows of 7168 bf16 and 8 ids out and in, 8 results of 7168 bf16 for each out and in, and
 * counts. */
START_TEST(exchange_buffers_are_counted)
{
    sl_plan_group g = group_of(8, 8), alone = group_of(1, 1);
    sl_plan_in in;
    sl_plan p;
    make(&g, &in, &p);
    ck_assert_uint_eq(g.exchange_bytes,
                      2ull * 8 * 512 * (7168 * 2 + 8 * 4) + 2ull * 8 * 512 * 8 * 7168 * 2 + 4 * 256);
    ck_assert_uint_eq(g.window_bytes, 2ull * SL_COMM_WINDOW_BYTES);
    ck_assert_uint_eq(p.cache_bytes, DEVICE - in.weight_bytes - in.reserve_bytes - p.fixed_bytes -
                                         g.exchange_bytes - g.window_bytes);
    make(&alone, &in, &p);
    ck_assert_uint_eq(alone.exchange_bytes + alone.window_bytes, 0);
}
END_TEST

START_TEST(ranks_of_a_host_share_its_memory)
{
    sl_plan_group all = group_of(8, 8), half = group_of(8, 4);
    sl_plan_in in;
    sl_plan p, q;
    make(&all, &in, &p);
    ck_assert_uint_eq(in.host_bytes, HOST / 8);
    make(&half, &in, &q);
    ck_assert_uint_eq(in.host_bytes, HOST / 4);
    ck_assert_int_eq(q.host_pages / 2, p.host_pages);
}
END_TEST

/* Four devices are too few for V3.2. The number of ranks that is said to be needed holds a request, one less does not;
 * and so do the bytes. */
START_TEST(needs_are_enough_and_not_more)
{
    sl_plan_group g = group_of(4, 4);
    sl_plan_in in;
    sl_plan p;
    sl_plan_need n;
    sl_err err = {0};
    g.host_bytes = 4 * GIB;
    make(&g, &in, &p);
    ck_assert_int_eq(p.rows[2].hierarchical_batch, 0);
    ck_assert_int_eq(sl_plan_group_need(&in, &p, &p.rows[2], &n, &err), SL_OK);
    ck_assert_int_gt(n.ranks, 4);
    ck_assert_int_lt(n.ranks, 64);
    ck_assert_uint_gt(n.device_bytes, 0);
    ck_assert_uint_eq(n.host_bytes, 4 * p.rows[2].host_bytes - 4 * GIB);
    for (int32_t less = 0; less < 2; less++) {
        sl_plan_group larger = group_of(n.ranks - less, 4);
        sl_plan_in with;
        sl_plan q;
        make(&larger, &with, &q);
        ck_assert_int_eq(q.rows[2].hierarchical_gpu > 0, !less);
    }
    for (uint64_t less = 0; less < 2; less++) {
        in.gpu_bytes = DEVICE + n.device_bytes - less;
        ck_assert_int_eq(sl_plan_make(&in, &p, &err), SL_OK);
        ck_assert_int_eq(p.rows[2].hierarchical_gpu, less ? 0 : 1);
    }
}
END_TEST

START_TEST(given_weights_count_instead)
{
    sl_plan_group g = group_of(4, 4);
    sl_plan_in in;
    sl_plan p;
    sl_plan_need n;
    sl_err err = {0};
    g.given_weights = 200 * GIB;
    make(&g, &in, &p);
    ck_assert_uint_eq(in.weight_bytes, 200 * GIB);
    ck_assert_int_eq(sl_plan_group_need(&in, &p, &p.rows[0], &n, &err), SL_OK);
    ck_assert_int_eq(n.ranks, 0);
    char *text = sl_plan_text(&in, &p);
    ck_assert(strstr(text, "more ranks alone do not help") != NULL);
    free(text);
}
END_TEST

START_TEST(impossible_groups_are_refused)
{
    static const struct {
        int32_t ranks, per_host;
    } cases[] = {{0, 1}, {65, 1}, {8, 0}, {8, 9}};
    sl_plan_in in = input();
    sl_plan p;
    sl_err err = {0};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_plan_group g = group_of(cases[i].ranks, cases[i].per_host);
        ck_assert_int_eq(sl_plan_group_make(&g, &in, &p, &err), SL_ERR_INVALID);
    }
    sl_plan_group g = group_of(9, 9);
    cfg.moe.n_routed = 8;
    ck_assert_int_eq(sl_plan_group_make(&g, &in, &p, &err), SL_ERR_INVALID);
    ck_assert(strstr(err.text, "9 ranks share 8 routed experts") != NULL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/plan_group");
    TCase *t = tcase_create("plan_group");
    tcase_set_timeout(t, 100);
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, weights_are_those_of_a_loaded_model);
    tcase_add_test(t, weights_are_those_of_a_synthetic_model);
    tcase_add_test(t, experts_are_divided);
    tcase_add_test(t, exchange_buffers_are_counted);
    tcase_add_test(t, ranks_of_a_host_share_its_memory);
    tcase_add_test(t, needs_are_enough_and_not_more);
    tcase_add_test(t, given_weights_count_instead);
    tcase_add_test(t, impossible_groups_are_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
