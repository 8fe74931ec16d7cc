/*
 * The suites of the engine's attention strategies, one for each entry of the registry that selects, and one for dense
 * attention over KV heads. test_strategies.c runs them in one program.
 */
#ifndef SL_TEST_ENGINE_STRATEGIES_H
#define SL_TEST_ENGINE_STRATEGIES_H

#include <check.h>

Suite *gqa_suite(void);
Suite *streaming_llm_suite(void);
Suite *quest_suite(void);
Suite *double_sparsity_suite(void);
Suite *skip_softmax_suite(void);
Suite *snapkv_suite(void);
Suite *rocket_kv_suite(void);
Suite *cluster_kv_suite(void);
Suite *pq_cache_suite(void);
Suite *budgets_suite(void);
Suite *xattention_suite(void);

#endif
