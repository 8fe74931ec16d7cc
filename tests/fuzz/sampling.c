/* Sampling parameters in the wire format: arbitrary bytes are refused or read, and what was read is written as the
 * same bytes. */
#include <stdlib.h>
#include <string.h>

#include "model/sampler.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_sampling s;
    sl_rd r = sl_rd_init(data, size);
    if (sl_sampling_read(&r, &s) != SL_OK)
        return 0;
    sl_wr w;
    sl_wr_init(&w);
    sl_sampling_write(&w, &s);
    if (w.bad || w.len > size || memcmp(w.data, data, w.len) != 0)
        abort();
    sl_err err = {{0}};
    if (sl_sampling_validate(&s, 1000, &err) != SL_OK && !err.text[0])
        abort();
    sl_wr_free(&w);
    sl_sampling_free(&s);
    return 0;
}
