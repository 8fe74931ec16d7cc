/* See config_choices.h. */
#include "cli/config_choices.h"

#include "engine/choose.h"
#include "events/events.h"
#include "kernels/backend.h"
#include "kernels/cache.h"
#include "kvstore/arena.h"
#include "kvstore/tier.h"
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
    {"kvstore.layout", sl_layout_names},
    {"cluster.shipping", sl_shipping_names},
    {"router.policy", sl_policy_names},
    {"router.chat_template", sl_chat_format_names},
    {NULL, NULL},
};

enum { MAX_PARTS = 64 };

const sl_options *const *sl_cli_parts(void)
{
    static const sl_options *parts[MAX_PARTS + 1];
    size_t n = 0;
    if (parts[0])
        return parts;
    for (const sl_algo_desc *const *a = sl_algo_registry(); *a && n < MAX_PARTS; a++)
        if ((*a)->options)
            parts[n++] = (*a)->options;
    for (size_t i = 0; sl_tier_at(i) && n < MAX_PARTS; i++)
        if (sl_tier_at(i)->options)
            parts[n++] = sl_tier_at(i)->options;
    for (const sl_options *const *t = sl_tier_absent(); *t && n < MAX_PARTS; t++)
        parts[n++] = *t;
    for (size_t i = 0; sl_policy_at(i) && n < MAX_PARTS; i++)
        if (sl_policy_at(i)->options)
            parts[n++] = sl_policy_at(i)->options;
    SL_CHECK(n < MAX_PARTS, "more than %d tables of options", MAX_PARTS - 1);
    parts[n] = &sl_events_table;
    return parts;
}
