/*
 * The registry of placement policies. Explicit: a new policy adds its name to POLICIES.
 */
#include "router/policies/policy.h"

#include <string.h>

#include "base/status.h"

#define POLICIES(X) X(round_robin) X(least_load) X(longest_prefix) X(cache_aware)
#define DECLARE(name) extern const sl_policy sl_policy_##name;
#define ENTRY(name) &sl_policy_##name,
#define NAME(name) #name,

POLICIES(DECLARE)
static const sl_policy *const policies[] = {POLICIES(ENTRY)};
static const char *const names[] = {POLICIES(NAME) NULL};

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
