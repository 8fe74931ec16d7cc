/* Numbers in little-endian order in headers that are kept outside of a process. `bytes` is 1 to 8. Pure functions, any thread. */
#ifndef SL_BASE_LE_H
#define SL_BASE_LE_H

#include <stddef.h>
#include <stdint.h>

static inline void sl_le_put(uint8_t *at, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static inline uint64_t sl_le_take(const uint8_t *at, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++)
        v |= (uint64_t)at[i] << (8 * i);
    return v;
}

#endif
