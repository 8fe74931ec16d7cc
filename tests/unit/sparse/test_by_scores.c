/* What a backend without shared memory does not have is refused by name, before any memory is taken. */
#include "sparse/algorithms/by_scores.h"

#include <check.h>
#include <string.h>

#include "kernels/backend_impl.h"
#include "kernels/bounds.h"
#include "tests/unit/run_suite.h"

static const sl_algo_desc *const with_reduction[] = {&sl_algo_quest, &sl_algo_double_sparsity,
                                                     &sl_algo_cluster_kv};

START_TEST(union_is_refused_where_it_does_not_run)
{
    const sl_algo_desc *a = with_reduction[_i];
    sl_backend *be = NULL;
    sl_algo *out = NULL;
    sl_err err = {0};
    sl_algo_dims d = {0};
    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, NULL), SL_OK);
    be->caps &= ~(unsigned)SL_BE_UNIFIED; /* as a GPU */
    ck_assert_msg(sl_algo_select(a, "gqa_reduction=union", &d.cache.select, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(a->create(be, &d, &out, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, a->name) && strstr(err.text, "gqa_reduction union"), "%s", err.text);
    ck_assert_ptr_null(out);
    sl_backend_destroy(be);
}
END_TEST

START_TEST(every_other_reduction_runs_everywhere)
{
    sl_backend *be = NULL;
    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, NULL), SL_OK);
    for (int i = 0; sl_group_reduce_names()[i]; i++)
        ck_assert_int_eq(sl_reduction_check(be, "quest", i, 0.5, NULL), SL_OK);
    be->caps &= ~(unsigned)SL_BE_UNIFIED;
    for (int i = 0; sl_group_reduce_names()[i]; i++)
        ck_assert_int_eq(sl_reduction_check(be, "quest", i, 0, NULL),
                         strcmp(sl_group_reduce_names()[i], "union") == 0 ? SL_ERR_UNSUPPORTED : SL_OK);
    sl_backend_destroy(be);
}
END_TEST

START_TEST(lists_by_mass_are_refused_where_they_do_not_run)
{
    sl_backend *be = NULL;
    sl_algo *out = NULL;
    sl_algo_dims d = {0};
    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, NULL), SL_OK);
    be->caps &= ~(unsigned)SL_BE_UNIFIED;
    for (int i = 0; i < 2; i++) { /* cluster_kv has no such option */
        const sl_algo_desc *a = with_reduction[i];
        sl_err err = {0};
        ck_assert_int_eq(sl_algo_select(a, "gqa_reduction=softmax:list_mass=0.9", &d.cache.select, &err),
                         SL_OK);
        ck_assert_int_eq(a->create(be, &d, &out, &err), SL_ERR_UNSUPPORTED);
        ck_assert_msg(strstr(err.text, a->name) && strstr(err.text, "list_mass"), "%s", err.text);
    }
    sl_backend_destroy(be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("by_scores");
    TCase *t = tcase_create("reductions");
    tcase_add_loop_test(t, union_is_refused_where_it_does_not_run, 0, SL_COUNT(with_reduction));
    tcase_add_test(t, every_other_reduction_runs_everywhere);
    tcase_add_test(t, lists_by_mass_are_refused_where_they_do_not_run);
    suite_add_tcase(s, t);
    return run_suite(s);
}
