/* Arbitrary bytes as the geometry that peers send: what is accepted is complete, and encodes and decodes again. */
#include <stdlib.h>

#include "kvstore/arena.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_geometry g, back;
    sl_err err = {0};
    if (sl_geometry_read(data, size, &g, &err) != SL_OK)
        return 0;
    sl_wr w;
    sl_wr_init(&w);
    sl_geometry_write(&g, &w);
    if (g.page_bytes <= 0 || sl_geometry_read(w.data, w.len, &back, &err) != SL_OK || w.len != size ||
        sl_geometry_compatible(&g, &back, &err) != SL_OK)
        abort();
    sl_wr_free(&w);
    return 0;
}
