/*
 * Safetensors headers: what is accepted must be consistent, every byte of every tensor must be readable, and every
 * name must be found by a search.
 */
#include <stdlib.h>
#include <string.h>

#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_err err = {0};
    sl_safetensors *st = NULL;
    if (sl_st_parse(data, size, "fuzz", &st, &err) != SL_OK) {
        if (st || strncmp(err.text, "fuzz: ", 6) != 0)
            abort();
        return 0;
    }
    size_t total = 0, header;
    unsigned sum = 0;
    for (size_t i = 0; i < sl_st_count(st); i++) {
        const sl_st_tensor *t = sl_st_at(st, i);
        size_t bytes = sl_st_dtype_bytes(t->dtype);
        for (int32_t d = 0; d < t->rank; d++)
            bytes *= (size_t)t->shape[d];
        for (size_t b = 0; b < t->bytes; b++)
            sum += ((const uint8_t *)t->data)[b];
        if (bytes != t->bytes || sl_st_find(st, t->name) != t)
            abort();
        total += bytes;
    }
    (void)sl_st_header(st, &header);
    if (8 + header + total != size || sum == 0xffffffffu)
        abort();
    sl_st_close(st);
    return 0;
}
