/*
 * The message codec: arbitrary bytes decode or are refused; what decodes is encoded to bytes that decode to the same
 * message again.
 */
#include <stdlib.h>
#include <string.h>

#include "base/msg_batch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_msg m, again;
    sl_err err = {0};
    sl_rd r;
    const uint8_t *part;
    size_t n, sum = 0;
    if (sl_msg_batch_open(data, size, &r, NULL, &err) == SL_OK) {
        for (; sl_msg_batch_next(&r, &part, &n); sum += n)
            if (sl_msg_decode(part, n, &m, &err) == SL_OK)
                sl_msg_free(&m);
        if (sum > size)
            abort();
    }
    if (sl_msg_decode(data, size, &m, &err) != SL_OK)
        return 0;
    sl_wr w, w2;
    sl_wr_init(&w);
    sl_wr_init(&w2);
    sl_msg_encode(&m, &w);
    if (w.bad || sl_msg_decode(w.data, w.len, &again, &err) != SL_OK)
        abort();
    sl_msg_encode(&again, &w2);
    if (w2.len != w.len || memcmp(w2.data, w.data, w.len))
        abort();
    sl_msg_free(&again);
    sl_msg_free(&m);
    sl_wr_free(&w);
    sl_wr_free(&w2);
    return 0;
}
