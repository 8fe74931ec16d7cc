/* The storage tiers of this build, and what all of them need. A new one is a name in TIERS. */
#include "kvstore/redis_options.h"
#include "kvstore/tier.h"

#include <string.h>

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

sl_key sl_tier_fingerprint(sl_key model, uint32_t bits)
{
    const uint8_t text[] = {'b', 'i', 't', 's', (uint8_t)bits, (uint8_t)(bits >> 8)};

    return bits ? sl_hash_chain(model, text, sizeof text) : model;
}
