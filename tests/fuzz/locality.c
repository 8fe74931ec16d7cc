/* A text of /metrics as `sluice plan --locality` reads it: whatever is read gives a usable choice. */
#include <stdlib.h>

#include "engine/locality.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const sl_plan plan = {.width = 16,
                                 .hot_rows = 40,
                                 .tail_rows = 2,
                                 .row_bytes = 656,
                                 .index_page_device = 8448,
                                 .hot_rows_bytes = 42 * 656 * 5};
    enum { LAYERS = 5 };
    sl_locality m;
    sl_err err = {0};
    int32_t rows[LAYERS];
    if (sl_locality_read((const char *)data, size, LAYERS, &m, &err) != SL_OK) {
        if (!err.text[0])
            abort();
        return 0;
    }
    double share = sl_locality_swap_share(&m, 5e10);
    if (!(share >= 0 && share <= 1))
        abort();
    sl_locality_choose(&m, &plan, 4096, share, rows);
    for (int l = 0; l < LAYERS; l++)
        if (rows[l] != SL_HOT_RESIDENT && rows[l] < plan.width)
            abort();
    return 0;
}
