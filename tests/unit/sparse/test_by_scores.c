/* Shares of attention as the end of a list: they need scores that are weights, on any backend. */
#include "sparse/algorithms/by_scores.h"

#include <check.h>
#include <string.h>

#include "kernels/bounds.h"
#include "tests/unit/run_suite.h"

START_TEST(a_share_needs_weights)
{
    for (int i = 0; sl_group_reduce_names()[i]; i++) {
        sl_err err = {0};
        const bool weights = strcmp(sl_group_reduce_names()[i], "softmax") == 0;
        ck_assert_int_eq(sl_algo_mass_check(0, i, &err), SL_OK);
        ck_assert_int_eq(sl_algo_mass_check(0.9, i, &err), weights ? SL_OK : SL_ERR_INVALID);
        ck_assert(weights || strstr(err.text, "list_mass 0.9"));
    }
}
END_TEST

/* Every algorithm with scores has the option, and those with a reduction refuse another one. */
START_TEST(every_algorithm_with_scores_has_it)
{
    static const sl_algo_desc *const with[] = {&sl_algo_quest, &sl_algo_double_sparsity, &sl_algo_cluster_kv,
                                               &sl_algo_pq_cache, &sl_algo_rocket_kv};
    for (size_t i = 0; i < SL_COUNT(with); i++) {
        sl_err err = {0};
        sl_select_options s;
        uint64_t content = 0;
        const bool reduces = sl_options_find(with[i]->options, "gqa_reduction") != NULL;
        const sl_algo_model m = {.architecture = "LlamaForCausalLM",
                                 .n_layers = 1,
                                 .n_heads = 2,
                                 .kv_heads = 0,
                                 .max_context = 4096};
        ck_assert_msg(sl_algo_select(with[i], "list_mass=0.5", &s, &err) == SL_OK, "%s: %s", with[i]->name,
                      err.text);
        ck_assert_ptr_nonnull(sl_options_find(with[i]->options, "budgets_path"));
        ck_assert_int_eq(with[i]->prepare(s.values, &m, &content, &err), reduces ? SL_ERR_INVALID : SL_OK);
        ck_assert(!reduces || strstr(err.text, "list_mass 0.5"));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("by_scores");
    TCase *t = tcase_create("shares");
    tcase_add_test(t, a_share_needs_weights);
    tcase_add_test(t, every_algorithm_with_scores_has_it);
    suite_add_tcase(s, t);
    return run_suite(s);
}
