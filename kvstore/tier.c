/* The storage tiers of this build. A new one needs a row in both tables and a declaration in tier.h. */
#include "kvstore/tier.h"

#include <string.h>

static const sl_tier_ops *const registry[] = {&sl_tier_memory_ops};
static const char *const names[] = {"memory", NULL};

const sl_tier_ops *sl_tier_at(size_t i)
{
    return i < SL_COUNT(registry) ? registry[i] : NULL;
}

const sl_tier_ops *sl_tier_find(const char *name)
{
    for (size_t i = 0; name && i < SL_COUNT(registry); i++)
        if (strcmp(registry[i]->name, name) == 0)
            return registry[i];
    return NULL;
}

const char *const *sl_tier_names(void)
{
    return names;
}
