/* The storage tiers of this build, and what all of them need. A new one needs a row in both tables and a declaration in tier.h. */
#include "kvstore/tier.h"

#include <string.h>

static const sl_tier_ops *const registry[] = {
    &sl_tier_memory_ops,
    &sl_tier_disk_ops,
    &sl_tier_nixl_ops,
#ifdef SL_HAVE_HIREDIS
    &sl_tier_redis_ops,
#endif
};
static const char *const names[] = {"memory", "disk", "nixl",
#ifdef SL_HAVE_HIREDIS
                                    "redis",
#endif
                                    NULL};

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

static void check_length(size_t length, size_t page_bytes)
{
    SL_CHECK(length == page_bytes, "the spans of a page hold %zu bytes, not %zu", length, page_bytes);
}

void sl_tier_gather(const sl_tier_page *from, uint8_t *to, size_t page_bytes)
{
    size_t at = 0;
    for (int32_t i = 0; i < from->n_spans; i++) {
        SL_CHECK(from->spans[i].iov_len <= page_bytes - at, "the spans of a page hold more than %zu bytes",
                 page_bytes);
        memcpy(to + at, from->spans[i].iov_base, from->spans[i].iov_len);
        at += from->spans[i].iov_len;
    }
    check_length(at, page_bytes);
}

void sl_tier_scatter(const uint8_t *from, const sl_tier_page *to, size_t page_bytes)
{
    size_t at = 0;
    for (int32_t i = 0; i < to->n_spans; i++) {
        SL_CHECK(to->spans[i].iov_len <= page_bytes - at, "the spans of a page hold more than %zu bytes",
                 page_bytes);
        memcpy(to->spans[i].iov_base, from + at, to->spans[i].iov_len);
        at += to->spans[i].iov_len;
    }
    check_length(at, page_bytes);
}
