/* See msg_batch.h. */
#include "base/msg_batch.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)SL_MSG_TYPE_COUNT <= (int)SL_MSG_BATCH, "the type of a batch is no other type");

enum { HEAD = 2 + 16, LENGTH = 4 };

bool sl_msg_batch_add(sl_msg_batch *b, const sl_msg *m)
{
    sl_wr one;
    size_t before = b->w.len;
    sl_wr_init(&one);
    sl_msg_encode(m, &one);
    if (!b->n) {
        sl_wr_u8(&b->w, SL_MSG_BATCH);
        sl_wr_u8(&b->w, SL_MSG_VERSION);
        sl_wr_u64(&b->w, b->since.clock);
        sl_wr_u64(&b->w, b->since.ns);
    }
    if (!one.bad)
        sl_wr_blob(&b->w, one.data, one.len);
    bool ok = !one.bad && !b->w.bad;
    sl_wr_free(&one);
    b->n += ok;
    if (!ok) {
        b->w.len = before;
        b->w.bad = false;
    }
    return ok;
}

sl_msg_bytes sl_msg_batch_take(sl_msg_batch *b)
{
    sl_msg_bytes out = {SL_MSG_BATCH, b->w.data, b->w.len, b->since.ns};
    if (b->n == 1 && !b->since.ns) {
        out.n -= HEAD + LENGTH;
        memmove(out.data, out.data + HEAD + LENGTH, out.n);
        out.id = out.data[0];
    }
    *b = (sl_msg_batch){.since = b->since};
    return out;
}

void sl_msg_batch_free(sl_msg_batch *b)
{
    sl_wr_free(&b->w);
    *b = (sl_msg_batch){0};
}

sl_status sl_msg_batch_open(const void *bytes, size_t n, sl_rd *r, sl_stamp *since, sl_err *err)
{
    *r = sl_rd_init(bytes, n);
    const uint8_t type = sl_rd_u8(r), version = sl_rd_u8(r);
    const uint64_t clock = sl_rd_u64(r), ns = sl_rd_u64(r);
    if (since)
        *since = (sl_stamp){clock, ns};
    if (r->bad || type != SL_MSG_BATCH || version != SL_MSG_VERSION)
        return sl_fail(err, SL_ERR_CORRUPT, "no batch of messages of version %d", SL_MSG_VERSION);
    return SL_OK;
}

bool sl_msg_batch_next(sl_rd *r, const uint8_t **msg, size_t *n)
{
    if (r->bad || r->p == r->end)
        return false;
    *msg = sl_rd_blob(r, n);
    return !r->bad;
}
