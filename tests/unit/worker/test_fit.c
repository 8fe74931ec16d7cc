/* The error for what does not fit on a device: it says how much is missing and what would fit, which does fit. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint.h"
#include "model/model.h"
#include "model/sizes.h"
#include "tests/unit/run_suite.h"
#include "worker/fit.h"

static const uint64_t GIB = 1u << 30;

START_TEST(weights)
{
    sl_err err = {0};
    ck_assert_int_eq(
        sl_setup_fit_weights("the checkpoint's weights", 10 * GIB, SL_BF16, 11 * GIB, 16 * GIB, "GPU", &err),
        SL_OK);
    ck_assert_int_eq(
        sl_setup_fit_weights("the checkpoint's weights", 30 * GIB, SL_BF16, 20 * GIB, 24 * GIB, "GPU", &err),
        SL_ERR_DEVICE_MEMORY);
    ck_assert_msg(strstr(err.text, "30.00 GiB") && strstr(err.text, "GPU has 20.00 of 24.00 GiB free") &&
                      strstr(err.text, "10.00 GiB are missing") &&
                      strstr(err.text, "in fp8 it would take 15.00"),
                  "%s", err.text);
    ck_assert_int_eq(
        sl_setup_fit_weights("the checkpoint's weights", 30 * GIB, SL_F32, 20 * GIB, 24 * GIB, "GPU", &err),
        SL_ERR_DEVICE_MEMORY);
    ck_assert_msg(strstr(err.text, "in bf16 it would take 15.00"), "%s", err.text);
    ck_assert_int_eq(
        sl_setup_fit_weights("the checkpoint's weights", 70 * GIB, SL_F32, 20 * GIB, 24 * GIB, "GPU", &err),
        SL_ERR_DEVICE_MEMORY);
    ck_assert_msg(strstr(err.text, "in fp8 it would take 17.50"), "%s", err.text);
    ck_assert_int_eq(sl_setup_fit_weights("the checkpoint's weights", 90 * GIB, SL_F8_E4M3, 20 * GIB,
                                          24 * GIB, "GPU", &err),
                     SL_ERR_DEVICE_MEMORY);
    ck_assert_msg(strstr(err.text, "more than 91 GiB"), "%s", err.text);
    ck_assert_int_eq(sl_setup_fit_weights("the checkpoint's weights", 10 * GIB, SL_F8_E4M3, 5 * GIB, 24 * GIB,
                                          "GPU", &err),
                     SL_ERR_DEVICE_MEMORY);
    ck_assert_msg(strstr(err.text, "nothing else"), "%s", err.text);
    ck_assert_int_eq(
        sl_setup_fit_weights("the weights of rank 1 of 8", 10 * GIB, SL_BF16, 5 * GIB, 24 * GIB, "GPU", &err),
        SL_ERR_DEVICE_MEMORY);
    ck_assert_msg(strstr(err.text, "the weights of rank 1 of 8 take 10.00 GiB"), "%s", err.text);
    ck_assert_uint_gt(sl_checkpoint_file_bytes("models/tiny-v32"), 1 << 20);
    ck_assert_uint_eq(sl_checkpoint_file_bytes("models/none"), 0);
}
END_TEST

/* What is counted before loading is what is placed: the whole model, or a rank's experts and everything else. */
static void counted_as_loaded(const char *dir, int32_t rank, int32_t ranks, uint64_t whole)
{
    sl_backend *be;
    sl_model *m;
    sl_err err = {0};
    uint64_t counted = 0;
    sl_model_opts mo = {.act = SL_F32, .max_tokens = 8, .max_logit_rows = 1, .rank = rank, .ranks = ranks};
    ck_assert_int_eq(sl_backend_create("cpu", &(sl_backend_opts){.threads = 1}, &be, NULL), SL_OK);
    ck_assert_msg(sl_model_placed_bytes(dir, &mo, &counted, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_model_load(be, dir, &mo, &m, &err) == SL_OK, "%s", err.text);
    ck_assert_uint_eq(counted, sl_model_weight_bytes(m));
    ck_assert(ranks > 1 ? counted < whole : counted == whole || !whole);
    sl_model_destroy(m);
    sl_backend_destroy(be);
}

START_TEST(ranks_count_their_own_experts)
{
    sl_model_opts mo = {.act = SL_F32, .max_tokens = 8, .ranks = 1};
    sl_err err = {0};
    uint64_t whole = 0, parts = 0;
    ck_assert_int_eq(sl_model_placed_bytes("models/tiny-v32", &mo, &whole, &err), SL_OK);
    counted_as_loaded("models/tiny-v32", 0, 1, whole);
    for (int32_t r = 0; r < 3; r++) { /* 8 experts: 2, 3 and 3 */
        counted_as_loaded("models/tiny-v32", r, 3, whole);
        mo.rank = r, mo.ranks = 3;
        uint64_t mine;
        ck_assert_int_eq(sl_model_placed_bytes("models/tiny-v32", &mo, &mine, &err), SL_OK);
        parts += whole - mine;
    }
    sl_model_config *c = calloc(1, sizeof *c);
    sl_weight_bytes w;
    ck_assert_int_eq(sl_model_config_load("models/tiny-v32", c, &err), SL_OK);
    sl_model_weight_sizes(c, SL_F32, SL_F32, &w);
    ck_assert_uint_eq(parts,
                      2 * w.expert * (uint64_t)c->moe.n_routed); /* each expert is absent on two ranks */
    free(c);
    mo.rank = 0, mo.ranks = 9;
    ck_assert_int_eq(sl_model_placed_bytes("models/tiny-v32", &mo, &whole, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "9 ranks share 8 routed experts, every rank needs one"), "%s", err.text);
}
END_TEST

static sl_plan plan(uint64_t cache)
{
    return (sl_plan){.index_page_device = 1000,
                     .row_page_device = 9000,
                     .hot_rows_bytes = 50000,
                     .hot_meta_bytes = 500,
                     .cache_bytes = cache};
}

/* The number after `key ` in the text. */
static int32_t named(const char *text, const char *key)
{
    const char *fits = strstr(text, "What fits: "), *at = fits ? strstr(fits, key) : NULL;
    ck_assert_msg(at != NULL, "no %s in: %s", key, text);
    return (int32_t)strtol(at + strlen(key), NULL, 10);
}

static void try_it(uint64_t cache, sl_residency mode, int32_t seqs, int32_t context)
{
    sl_plan p = plan(cache);
    sl_engine_opts o = {0};
    sl_err err = {0};
    sl_status st = sl_setup_fit_pools(&p, mode, seqs, context, "decode.max_batch", &o, &err);
    ck_assert_int_eq(st, sl_plan_pools(&p, mode, seqs, context, &o, NULL));
    if (st == SL_OK)
        return;
    ck_assert_int_eq(st, SL_ERR_DEVICE_MEMORY);
    if (strstr(err.text, "not even one"))
        ck_assert(sl_plan_pools(&p, mode, 1, SL_PAGE_TOKENS, &o, NULL) != SL_OK);
    else if (strstr(err.text, "What fits: decode.max_batch 1 with"))
        ck_assert_int_eq(sl_plan_pools(&p, mode, 1, named(err.text, "model.max_context "), &o, NULL), SL_OK);
    else if (strstr(err.text, "What fits: decode.max_batch")) {
        int32_t n = named(err.text, "decode.max_batch ");
        ck_assert_int_eq(sl_plan_pools(&p, mode, n, context, &o, NULL), SL_OK);
        ck_assert(sl_plan_pools(&p, mode, n + 1, context, &o, NULL) != SL_OK); /* and it is the most */
    } else {
        int32_t n = named(err.text, "model.max_context ");
        ck_assert_int_eq(sl_plan_pools(&p, mode, seqs, n, &o, NULL), SL_OK);
        ck_assert(sl_plan_pools(&p, mode, seqs, n + SL_PAGE_TOKENS, &o, NULL) != SL_OK);
    }
}

START_TEST(pools)
{
    for (uint64_t cache = 500; cache < 50000000; cache = cache * 3 / 2) {
        for (int32_t seqs = 1; seqs <= 64; seqs *= 4) {
            try_it(cache, SL_RESIDENT, seqs, 65536);
            try_it(cache, SL_HIERARCHICAL, seqs, 65536);
            try_it(cache, SL_HIERARCHICAL, seqs, 100);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fit");
    TCase *t = tcase_create("fit");
    tcase_add_test(t, weights);
    tcase_add_test(t, ranks_count_their_own_experts);
    tcase_add_test(t, pools);
    suite_add_tcase(s, t);
    return run_suite(s);
}
