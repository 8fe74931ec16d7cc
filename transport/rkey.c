/* Remote keys as bytes: magic, base, bytes, blob (with its length), CRC32C of all bytes before it; see base/wire.h. */
#include "transport/rkey.h"

#include <string.h>

#include "base/hash.h"
#include "base/wire.h"

enum { MAGIC = 0x314b5453 /* "STK1" */, CRC_BYTES = 4 };

sl_status sl_tp_rkey_wrap(uint64_t base, uint64_t bytes, const void *blob, size_t blob_bytes, void *buf,
                          size_t cap, size_t *len)
{
    sl_wr w;
    sl_wr_init(&w);
    sl_wr_u32(&w, MAGIC);
    sl_wr_u64(&w, base);
    sl_wr_u64(&w, bytes);
    sl_wr_blob(&w, blob, blob_bytes);
    if (!w.bad)
        sl_wr_u32(&w, sl_crc32c(0, w.data, w.len));
    sl_status st = w.bad ? SL_ERR_NO_MEMORY : w.len > cap ? SL_ERR_TOO_LARGE : SL_OK;
    if (st == SL_OK) {
        memcpy(buf, w.data, w.len);
        *len = w.len;
    }
    sl_wr_free(&w);
    return st;
}

sl_status sl_tp_rkey_unwrap(const void *buf, size_t len, sl_tp_rkey_view *out, sl_err *err)
{
    sl_tp_rkey_view v;
    sl_rd r = sl_rd_init(buf, len);
    uint32_t magic = sl_rd_u32(&r);
    v.base = sl_rd_u64(&r);
    v.bytes = sl_rd_u64(&r);
    v.blob = sl_rd_blob(&r, &v.blob_bytes);
    uint32_t crc = sl_rd_u32(&r);
    if (sl_rd_done(&r) != SL_OK || magic != MAGIC || v.blob_bytes == 0)
        return sl_fail(err, SL_ERR_CORRUPT, "not a remote key (%zu bytes)", len);
    if (crc != sl_crc32c(0, buf, len - CRC_BYTES))
        return sl_fail(err, SL_ERR_CORRUPT, "remote key: checksum differs");
    if (v.bytes == 0 || v.base + v.bytes < v.base)
        return sl_fail(err, SL_ERR_CORRUPT, "remote key: impossible range");
    *out = v;
    return SL_OK;
}
