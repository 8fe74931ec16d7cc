/* See env.h. */
#include "decode/pages/env.h"

#include <inttypes.h>

#include "base/log.h"

void sl_pages_stale(sl_pages_env *e, const char *what, uint64_t id)
{
    e->stale++;
    sl_log(SL_LOG_DEBUG, "decode", "message_dropped", "type=%s id=%016" PRIx64, what, id);
}

int sl_pages_places_n(const sl_pages_env *e)
{
    return 1 + (e->cascade ? sl_cascade_n_tiers(e->cascade) : 0);
}

const char *sl_pages_places_name(const sl_pages_env *e, int place)
{
    return place ? sl_cascade_tier_at(e->cascade, place - 1)->ops->name : "host";
}

bool sl_pages_places_can_list(const sl_pages_env *e, int place)
{
    return !place || sl_cascade_tier_at(e->cascade, place - 1)->ops->list;
}

bool sl_pages_places_local(const sl_pages_env *e, int tier)
{
    const sl_tier_ops *ops = sl_cascade_tier_at(e->cascade, tier)->ops;
    return ops->persistent && ops->list;
}
