/* Arbitrary bytes as a record of a shared store: only the record that was asked for, whole and undamaged, is accepted. */
#include <stdlib.h>
#include <string.h>

#include "kvstore/page_record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_tier_opts o = {.page_bytes = 64, .fingerprint = {1, 2}, .format = {3, 4}};
    uint8_t record[SL_PAGE_RECORD_BYTES + 64] = {0}, again[SL_PAGE_RECORD_BYTES];
    sl_page_record r;
    sl_key key = {5, 6};
    if (sl_page_record_verify(data, size, key, &o) && size != sizeof record)
        abort();
    memcpy(record, data, size < sizeof record ? size : sizeof record);
    uint32_t crc = sl_crc32c(0, record, SL_PAGE_RECORD_BYTES - 4); /* as a damaged program could write it */
    for (int i = 0; i < 4; i++)
        record[SL_PAGE_RECORD_BYTES - 4 + i] = (uint8_t)(crc >> (8 * i));
    if (sl_page_record_read(record, &r) == SL_OK) {
        sl_page_record_write(&r, again);
        sl_page_record back;
        if (sl_page_record_read(again, &back) != SL_OK || back.length != r.length || back.crc != r.crc ||
            !sl_key_eq(back.key, r.key))
            abort();
        if (sl_page_record_verify(record, sizeof record, key, &o) &&
            (!sl_key_eq(r.key, key) || r.length != o.page_bytes))
            abort();
    }
    /* A valid record with one changed byte is never accepted. */
    struct iovec span = {record, 64};
    sl_tier_page page = {&span, 1};
    uint8_t whole[SL_PAGE_RECORD_BYTES + 64];
    sl_page_record good = sl_page_record_of(&page, key, &o);
    sl_page_record_write(&good, whole);
    memcpy(whole + SL_PAGE_RECORD_BYTES, record, 64);
    if (!sl_page_record_verify(whole, sizeof whole, key, &o))
        abort();
    if (size >= 2 && data[1]) {
        whole[data[0] % sizeof whole] ^= data[1];
        if (sl_page_record_verify(whole, sizeof whole, key, &o))
            abort();
    }
    return 0;
}
