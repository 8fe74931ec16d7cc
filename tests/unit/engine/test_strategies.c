/*
 * Every strategy through the real engine, in one program: a suite for each, in the file of its name. Run from the
 * repository's root; CK_RUN_SUITE=engine/quest runs one.
 */
#include "strategies.h"
#include "tests/unit/run_suite.h"

int main(void)
{
    static Suite *(*const suites[])(void) = {
        gqa_suite,          streaming_llm_suite, quest_suite,      double_sparsity_suite,
        skip_softmax_suite, snapkv_suite,        rocket_kv_suite,  cluster_kv_suite,
        pq_cache_suite,     budgets_suite,       xattention_suite,
    };
    SRunner *runner = srunner_create(suites[0]());
    for (size_t i = 1; i < sizeof(suites) / sizeof(suites[0]); i++)
        srunner_add_suite(runner, suites[i]());
    return run_suites(runner);
}
