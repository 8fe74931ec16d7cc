/* Inside model/: one block of device memory is divided into buffers. */
#ifndef SL_MODEL_CARVE_H
#define SL_MODEL_CARVE_H

#include <stddef.h>
#include <stdint.h>

/* Divides a block into aligned buffers. base NULL: only adds up the sizes, and the buffers are NULL. */
typedef struct sl_carve {
    uint8_t *base;
    size_t at;
} sl_carve;

/* The next buffer, of rows * cols values of `size` bytes. */
void *sl_carve_take(sl_carve *k, int64_t rows, int64_t cols, size_t size);

#endif
