/*
 * Copying a string into a fixed field, cut where it does not fit. Pure.
 */
#ifndef SL_ROUTER_TEXT_H
#define SL_ROUTER_TEXT_H

#include <stddef.h>

static inline void sl_copy_text(char *out, size_t cap, const char *s)
{
    size_t n = 0;
    for (; n + 1 < cap && s[n]; n++)
        out[n] = s[n];
    out[n] = 0;
}

#endif
