/* What `auto` resolves to on either kind of device, and that every name of the registries is taken as it is. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/choose.h"
#include "kernels/backend.h"
#include "tests/unit/run_suite.h"

enum { APART = SL_BE_ASYNC | SL_BE_GRAPHS };

START_TEST(auto_depends_on_the_device)
{
    static const char *const texts[] = {"auto", NULL};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        sl_evict_policy p;
        sl_layout l;
        ck_assert_int_eq(sl_choose_policy(texts[i], SL_BE_UNIFIED, &p, NULL), SL_OK);
        ck_assert_int_eq(sl_choose_layout(texts[i], SL_BE_UNIFIED, &l, NULL), SL_OK);
        ck_assert_int_eq(p, SL_EVICT_LRU);
        ck_assert_int_eq(l, SL_LAYOUT_PAGE_FIRST);
        ck_assert_int_eq(sl_choose_policy(texts[i], APART, &p, NULL), SL_OK);
        ck_assert_int_eq(sl_choose_layout(texts[i], APART, &l, NULL), SL_OK);
        ck_assert_int_eq(p, SL_EVICT_CLOCK);
        ck_assert_int_eq(l, SL_LAYOUT_LAYER_FIRST);
    }
}
END_TEST

START_TEST(a_name_is_taken_on_every_device)
{
    static const unsigned devices[] = {SL_BE_UNIFIED, APART};
    for (size_t d = 0; d < SL_COUNT(devices); d++) {
        for (const char *const *n = sl_evict_policy_names(); *n; n++) {
            sl_evict_policy p;
            ck_assert_int_eq(sl_choose_policy(*n, devices[d], &p, NULL), SL_OK);
            ck_assert_str_eq(sl_evict_policy_name(p), *n);
        }
        for (const char *const *n = sl_layout_names(); *n; n++) {
            sl_layout l;
            ck_assert_int_eq(sl_choose_layout(*n, devices[d], &l, NULL), SL_OK);
            ck_assert_str_eq(sl_layout_name(l), *n);
        }
    }
}
END_TEST

START_TEST(auto_algorithm_depends_on_the_model)
{
    const sl_model_config indexed = {.index_topk = 16}, other = {.n_kv_heads = 2};
    const sl_algo_desc *a = NULL;
    static const char *const texts[] = {"auto", NULL};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        ck_assert_int_eq(sl_choose_algorithm(texts[i], &indexed, &a, NULL), SL_OK);
        ck_assert_ptr_eq(a, &sl_algo_dsa);
        ck_assert_int_eq(sl_choose_algorithm(texts[i], &other, &a, NULL), SL_OK);
        ck_assert_ptr_eq(a, &sl_algo_dense);
    }
    for (const char *const *n = sl_algo_names(); *n; n++) {
        ck_assert_int_eq(sl_choose_algorithm(*n, &other, &a, NULL), SL_OK);
        ck_assert_str_eq(a->name, *n);
    }
}
END_TEST

START_TEST(unknown_names_are_refused)
{
    sl_err err = {0};
    sl_evict_policy p = SL_EVICT_CLOCK;
    sl_layout l = SL_LAYOUT_PAGE_HEAD;
    ck_assert_int_eq(sl_choose_policy("fifo", 0, &p, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "lru, clock"));
    ck_assert_int_eq(sl_choose_layout("column", 0, &l, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "page_first"));
    const sl_algo_desc *a = &sl_algo_dense;
    const sl_model_config cfg = {.index_topk = 16};
    ck_assert_int_eq(sl_choose_algorithm("nothing", &cfg, &a, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "dsa, dense"));
    ck_assert_ptr_eq(a, &sl_algo_dense);
    ck_assert_int_eq(p, SL_EVICT_CLOCK);
    ck_assert_int_eq(l, SL_LAYOUT_PAGE_HEAD);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("choose");
    TCase *t = tcase_create("choose");
    tcase_add_test(t, auto_depends_on_the_device);
    tcase_add_test(t, a_name_is_taken_on_every_device);
    tcase_add_test(t, auto_algorithm_depends_on_the_model);
    tcase_add_test(t, unknown_names_are_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
