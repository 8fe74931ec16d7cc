/*
 * UTF-8 scanning by the table of well-formed sequences: the first byte decides the length and the range of the second
 * byte.
 */
#include "model/tokenizer_utf8.h"

/* The length of a sequence by its first byte, and the range of its second byte; 0: no sequence begins with this
 * byte. */
static size_t lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0x80)
        return 1;
    if (c < 0xC2)
        return 0;
    if (c < 0xE0)
        return 2;
    if (c < 0xF0) {
        if (c == 0xE0)
            *lo = 0xA0;
        else if (c == 0xED)
            *hi = 0x9F;
        return 3;
    }
    if (c > 0xF4)
        return 0;
    if (c == 0xF0)
        *lo = 0x90;
    else if (c == 0xF4)
        *hi = 0x8F;
    return 4;
}

sl_utf8_kind sl_utf8_step(const unsigned char *p, size_t n, size_t *len)
{
    unsigned char lo, hi;
    size_t want = lead(p[0], &lo, &hi);
    if (want <= 1) {
        *len = 1;
        return want ? SL_UTF8_CHAR : SL_UTF8_BROKEN;
    }
    for (size_t i = 1; i < want; i++) {
        *len = i;
        if (i >= n)
            return SL_UTF8_PARTIAL;
        if (p[i] < lo || p[i] > hi)
            return SL_UTF8_BROKEN;
        lo = 0x80;
        hi = 0xBF;
    }
    *len = want;
    return SL_UTF8_CHAR;
}

size_t sl_utf8_valid_len(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t at = 0, len;
    while (at < n) {
        if (p[at] < 0x80) {
            at++;
            continue;
        }
        if (sl_utf8_step(p + at, n - at, &len) != SL_UTF8_CHAR)
            return at;
        at += len;
    }
    return n;
}

uint32_t sl_utf8_get(const unsigned char *p)
{
    if (p[0] < 0x80)
        return p[0];
    if (p[0] < 0xE0)
        return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
    if (p[0] < 0xF0)
        return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 |
           (p[3] & 0x3F);
}

size_t sl_utf8_put(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}
