/*
 * The registry of placement policies. Explicit: a new policy adds its name here.
 */
#include "router/policies/policy.h"

#include <string.h>

#include "base/status.h"

static const sl_policy *const policies[] = {&sl_policy_round_robin, &sl_policy_least_load,
                                            &sl_policy_longest_prefix, &sl_policy_cache_aware};
static const char *const names[] = {"round_robin", "least_load", "longest_prefix", "cache_aware", NULL};

const char *const *sl_policy_names(void)
{
    return names;
}

const sl_policy *sl_policy_at(size_t i)
{
    return i < SL_COUNT(policies) ? policies[i] : NULL;
}

const sl_policy *sl_policy_find(const char *name)
{
    for (size_t i = 0; i < SL_COUNT(policies); i++) {
        if (!strcmp(policies[i]->name, name))
            return policies[i];
    }
    return NULL;
}
