/*
 * A page as it is kept in a store that does not belong to this process: a header of SL_PAGE_RECORD_BYTES bytes, then the page.
 * The header names the page, its length and its CRC32C, and has a checksum of its own, so a reader can prove that what it
 * got is complete and is what it asked for before one byte is used. All numbers are little-endian.
 *
 * Also the name under which such a record is kept. It contains the format version, the identity of model, numeric
 * convention and page geometry, so clusters of other models or geometries never meet in one store.
 *
 * Pure functions, any thread; reading accepts arbitrary bytes (tests/fuzz/page_record.c).
 */
#ifndef SL_KVSTORE_PAGE_RECORD_H
#define SL_KVSTORE_PAGE_RECORD_H

#include "kvstore/tier.h"

enum { SL_PAGE_RECORD_BYTES = 96, SL_PAGE_RECORD_VERSION = 1, SL_PAGE_NAME_BYTES = 128 };

typedef struct sl_page_record {
    sl_key key, fingerprint, format;
    uint64_t length; /* of the page */
    uint32_t crc;    /* of the page */
} sl_page_record;

void sl_page_record_write(const sl_page_record *r, uint8_t header[SL_PAGE_RECORD_BYTES]);
/* SL_ERR_CORRUPT: not such a header, or damaged, or of another format version. */
sl_status sl_page_record_read(const uint8_t header[SL_PAGE_RECORD_BYTES], sl_page_record *out);

/* The record of this page as it is in memory: computes the checksum over its spans, which is one pass over the page. */
sl_page_record sl_page_record_of(const sl_tier_page *page, sl_key key, const sl_tier_opts *o);
/* Whether these n bytes, header and page, are a whole, undamaged record of this key. Nothing may be copied before. */
bool sl_page_record_verify(const uint8_t *bytes, size_t n, sl_key key, const sl_tier_opts *o);

/*
 * "PREFIX:1:FFFFFFFF…:GGGG…:" - what the names of all pages of one model and geometry begin with; page names add the key,
 * 32 hexadecimal digits. At most SL_PAGE_NAME_BYTES with its end, for a prefix of at most SL_PAGE_PREFIX_MAX characters.
 */
enum { SL_PAGE_PREFIX_MAX = 24 };
void sl_page_name_stem(const char *prefix, const sl_tier_opts *o, char separator,
                       char out[SL_PAGE_NAME_BYTES]);
/* 32 hexadecimal digits and the end. */
void sl_page_name_key(sl_key key, char out[33]);

#endif
