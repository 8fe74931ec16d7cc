/* Bodies with Content-Encoding: gzip: for every input a text within the limit, for which memory was counted, or an error with its reason
 * and nothing held. */
#include <stdlib.h>

#include "router/http/gunzip.h"

enum { MOST = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    sl_guard g = {0};
    sl_err err = {""};
    char *out;
    size_t len;
    sl_status st = sl_gunzip((const char *)data, n, MOST, &g, &out, &len, &err);
    if (st ? out || g.held || !err.text[0] : !out || len > MOST || g.held != len + 1 || out[len])
        abort();
    free(out);
    return 0;
}
