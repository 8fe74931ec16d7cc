/* What all storage tiers need; see tier.h. */
#include "kvstore/tier.h"

#include <string.h>

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
