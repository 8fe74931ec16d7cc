/* See page_record.h. Header: magic (8), version (4), zero (4), key, fingerprint, format (16 each), length (8), crc (4),
 * zeros, and in the last 4 bytes the CRC32C of all before them. */
#include "kvstore/page_record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/le.h"

#define MAGIC 0x6567615072536c53u /* "SlSrPage" */
enum { CRC_AT = SL_PAGE_RECORD_BYTES - 4, LENGTH_AT = 64, PAGE_CRC_AT = 72 };

static void put_key(uint8_t *at, sl_key k)
{
    sl_le_put(at, k.lo, 8);
    sl_le_put(at + 8, k.hi, 8);
}

static sl_key take_key(const uint8_t *at)
{
    return (sl_key){sl_le_take(at, 8), sl_le_take(at + 8, 8)};
}

void sl_page_record_write(const sl_page_record *r, uint8_t h[SL_PAGE_RECORD_BYTES])
{
    memset(h, 0, SL_PAGE_RECORD_BYTES);
    sl_le_put(h, MAGIC, 8);
    sl_le_put(h + 8, SL_PAGE_RECORD_VERSION, 4);
    put_key(h + 16, r->key);
    put_key(h + 32, r->fingerprint);
    put_key(h + 48, r->format);
    sl_le_put(h + LENGTH_AT, r->length, 8);
    sl_le_put(h + PAGE_CRC_AT, r->crc, 4);
    sl_le_put(h + CRC_AT, sl_crc32c(0, h, CRC_AT), 4);
}

sl_status sl_page_record_read(const uint8_t h[SL_PAGE_RECORD_BYTES], sl_page_record *out)
{
    if (sl_le_take(h, 8) != MAGIC || sl_le_take(h + 8, 4) != SL_PAGE_RECORD_VERSION ||
        sl_le_take(h + CRC_AT, 4) != sl_crc32c(0, h, CRC_AT))
        return SL_ERR_CORRUPT;
    *out = (sl_page_record){.key = take_key(h + 16),
                            .fingerprint = take_key(h + 32),
                            .format = take_key(h + 48),
                            .length = sl_le_take(h + LENGTH_AT, 8),
                            .crc = (uint32_t)sl_le_take(h + PAGE_CRC_AT, 4)};
    return SL_OK;
}

sl_page_record sl_page_record_of(const sl_tier_page *page, sl_key key, const sl_tier_opts *o)
{
    sl_page_record r = {.key = key, .fingerprint = o->fingerprint, .format = o->format};
    for (int32_t i = 0; i < page->n_spans; i++) {
        r.crc = sl_crc32c(r.crc, page->spans[i].iov_base, page->spans[i].iov_len);
        r.length += page->spans[i].iov_len;
    }
    SL_CHECK(r.length == o->page_bytes, "the spans of a page hold %" PRIu64 " bytes, not %zu", r.length,
             o->page_bytes);
    return r;
}

bool sl_page_record_verify(const uint8_t *bytes, size_t n, sl_key key, const sl_tier_opts *o)
{
    sl_page_record r;
    return n == SL_PAGE_RECORD_BYTES + o->page_bytes && sl_page_record_read(bytes, &r) == SL_OK &&
           r.length == o->page_bytes && sl_key_eq(r.key, key) && sl_key_eq(r.fingerprint, o->fingerprint) &&
           sl_key_eq(r.format, o->format) &&
           sl_crc32c(0, bytes + SL_PAGE_RECORD_BYTES, o->page_bytes) == r.crc;
}

void sl_page_name_stem(const char *prefix, const sl_tier_opts *o, char separator,
                       char out[SL_PAGE_NAME_BYTES])
{
    char fingerprint[33], format[33];
    sl_page_name_key(o->fingerprint, fingerprint);
    sl_page_name_key(o->format, format);
    snprintf(out, SL_PAGE_NAME_BYTES, "%.*s%c%d%c%s%c%s%c", SL_PAGE_PREFIX_MAX, prefix, separator,
             SL_PAGE_RECORD_VERSION, separator, fingerprint, separator, format, separator);
}

void sl_page_name_key(sl_key key, char out[33])
{
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, key.hi, key.lo);
}
