/* See rowsum.h. */
#include "kernels/rowsum.h"

#include <string.h>

static uint32_t value(const uint8_t *at, uint32_t i)
{
    uint32_t w[4];
    memcpy(w, at, sizeof w);
    return sl_rowsum_value(w[0], w[1], w[2], w[3], i);
}

uint32_t sl_rowsum(const void *part, size_t n)
{
    const uint8_t *at = part;
    const uint32_t whole = (uint32_t)(n / 16);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < whole; i++)
        sum += value(at + 16 * (size_t)i, i);
    if (n % 16) {
        uint8_t last[16] = {0};
        memcpy(last, at + 16 * (size_t)whole, n % 16);
        sum += value(last, whole);
    }
    return sl_rowsum_end(sum);
}
