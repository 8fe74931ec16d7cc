/* See config_choices.h. */
#include "cli/config_choices.h"

#include "engine/choose.h"
#include "kernels/backend.h"
#include "kernels/cache.h"
#include "kvstore/arena.h"
#include "model/chat.h"
#include "router/policies/policy.h"
#include "sparse/algorithm.h"
#include "transport/transport.h"
#include "worker/shipping.h"

const sl_config_choice sl_cli_choices[] = {
    {"model.indexer", sl_index_format_names},
    {"model.row_format", sl_row_format_names},
    {"backend.name", sl_backend_names},
    {"sparse_attention.algorithm", sl_algo_names},
    {"sparse_attention.policy", sl_evict_policy_names},
    {"sparse_attention.list_scope", sl_list_scope_names},
    {"sparse_attention.gqa_reduction", sl_group_reduce_names},
    {"sparse_attention.bounds_dtype", sl_bounds_dtype_names},
    {"sparse_attention.klabel_dtype", sl_label_dtype_names},
    {"sparse_attention.pooling", sl_pooling_names},
    {"sparse_attention.kt_cache_dtype", sl_kt_type_names},
    {"kvstore.layout", sl_layout_names},
    {"cluster.transport", sl_transport_names},
    {"cluster.shipping", sl_shipping_names},
    {"router.policy", sl_policy_names},
    {"router.chat_template", sl_chat_format_names},
    {NULL, NULL},
};
