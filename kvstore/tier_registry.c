/* The storage tiers of this build. A new one is a name in TIERS. */
#include <string.h>

#include "kvstore/redis_options.h"
#include "kvstore/tier.h"

/* In the order in which a worker asks them: the cheapest to read first. */
#ifdef SL_HAVE_HIREDIS
#define TIERS(X) X(memory) X(disk) X(nixl) X(redis)
#else
#define TIERS(X) X(memory) X(disk) X(nixl)
#endif
#define DECLARE(name) extern const sl_tier_ops sl_tier_##name##_ops;
#define ENTRY(name) &sl_tier_##name##_ops,
#define NAME(name) #name,

TIERS(DECLARE)
static const sl_tier_ops *const registry[] = {TIERS(ENTRY)};
static const char *const names[] = {TIERS(NAME) NULL};

static const sl_options *const absent[] = {
#ifndef SL_HAVE_HIREDIS
    &sl_redis_table,
#endif
    NULL};

const sl_options *const *sl_tier_absent(void)
{
    return absent;
}

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
