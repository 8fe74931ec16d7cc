/* Bodies of the paths /cache/…: for every input a question that the message codec accepts, or an error with its reason. */
#include <stdlib.h>
#include <string.h>

#include "router/http/cache_query.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const sl_cache_action actions[] = {SL_CACHE_LIST, SL_CACHE_STATUS, SL_CACHE_VERIFY, SL_CACHE_DROP};
    sl_cache_query q;
    sl_err err = {0};
    if (!n)
        return 0;
    sl_status st = sl_cache_query_read(actions[data[0] % 4], (const char *)data + 1, n - 1, &q, &err);
    if (st != SL_OK) {
        if (!err.text[0])
            abort();
        return 0;
    }
    sl_msg m = {.type = SL_MSG_CACHE_ASK}, back;
    m.cache_ask = q.ask;
    sl_wr w;
    sl_wr_init(&w);
    sl_msg_encode(&m, &w);
    if (!q.worker[0] || w.bad || sl_msg_decode(w.data, w.len, &back, &err) != SL_OK)
        abort();
    sl_wr_free(&w);
    return 0;
}
