/* See carve.h. */
#include "model/carve.h"

#define ALIGN 256

void *sl_carve_take(sl_carve *k, int64_t rows, int64_t cols, size_t size)
{
    void *p = k->base ? k->base + k->at : NULL;
    k->at += ((size_t)rows * (size_t)cols * size + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}
