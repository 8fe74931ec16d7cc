/*
 * Little-endian writer and bounds-checked reader. Values are copied with memcpy, so they need no alignment. Counts are
 * compared with the bytes that are present before anything is allocated, so a wrong length cannot cost memory.
 */
#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire codec copies native integers");

enum { FIRST_CAPACITY = 256 };

void sl_wr_init(sl_wr *w)
{
    *w = (sl_wr){0};
}

void sl_wr_free(sl_wr *w)
{
    free(w->data);
    *w = (sl_wr){0};
}

static uint8_t *reserve(sl_wr *w, size_t n)
{
    if (w->bad)
        return NULL;
    if (n > SIZE_MAX / 4 - w->len) {
        w->bad = true;
        return NULL;
    }
    if (w->len + n > w->cap) {
        size_t cap = w->cap ? w->cap : FIRST_CAPACITY;
        while (cap < w->len + n)
            cap *= 2;
        uint8_t *data = realloc(w->data, cap);
        if (!data) {
            w->bad = true;
            return NULL;
        }
        w->data = data;
        w->cap = cap;
    }
    uint8_t *at = w->data + w->len;
    w->len += n;
    return at;
}

static void put(sl_wr *w, const void *bytes, size_t n)
{
    uint8_t *at = reserve(w, n);
    if (at && n)
        memcpy(at, bytes, n);
}

void sl_wr_u8(sl_wr *w, uint8_t v)
{
    put(w, &v, sizeof v);
}

void sl_wr_u16(sl_wr *w, uint16_t v)
{
    put(w, &v, sizeof v);
}

void sl_wr_u32(sl_wr *w, uint32_t v)
{
    put(w, &v, sizeof v);
}

void sl_wr_u64(sl_wr *w, uint64_t v)
{
    put(w, &v, sizeof v);
}

void sl_wr_i32(sl_wr *w, int32_t v)
{
    put(w, &v, sizeof v);
}

void sl_wr_f32(sl_wr *w, float v)
{
    put(w, &v, sizeof v);
}

static void put_counted(sl_wr *w, const void *bytes, size_t count, size_t elem)
{
    if (count > UINT32_MAX) {
        w->bad = true;
        return;
    }
    sl_wr_u32(w, (uint32_t)count);
    put(w, bytes, count * elem);
}

void sl_wr_blob(sl_wr *w, const void *bytes, size_t n)
{
    put_counted(w, bytes, n, 1);
}

void sl_wr_str(sl_wr *w, const char *s)
{
    put_counted(w, s, strlen(s), 1);
}

void sl_wr_i32s(sl_wr *w, const int32_t *v, size_t n)
{
    put_counted(w, v, n, sizeof *v);
}

void sl_wr_u32s(sl_wr *w, const uint32_t *v, size_t n)
{
    put_counted(w, v, n, sizeof *v);
}

sl_rd sl_rd_init(const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    return (sl_rd){.p = p, .end = n ? p + n : p};
}

static size_t left(const sl_rd *r)
{
    return (size_t)(r->end - r->p);
}

static const uint8_t *take(sl_rd *r, size_t n)
{
    if (r->bad || n > left(r)) {
        r->bad = true;
        return NULL;
    }
    const uint8_t *at = r->p;
    r->p = n ? at + n : at;
    return at;
}

static void get(sl_rd *r, void *out, size_t n)
{
    const uint8_t *at = take(r, n);
    if (at)
        memcpy(out, at, n);
}

uint8_t sl_rd_u8(sl_rd *r)
{
    uint8_t v = 0;
    get(r, &v, sizeof v);
    return v;
}

uint16_t sl_rd_u16(sl_rd *r)
{
    uint16_t v = 0;
    get(r, &v, sizeof v);
    return v;
}

uint32_t sl_rd_u32(sl_rd *r)
{
    uint32_t v = 0;
    get(r, &v, sizeof v);
    return v;
}

uint64_t sl_rd_u64(sl_rd *r)
{
    uint64_t v = 0;
    get(r, &v, sizeof v);
    return v;
}

int32_t sl_rd_i32(sl_rd *r)
{
    int32_t v = 0;
    get(r, &v, sizeof v);
    return v;
}

float sl_rd_f32(sl_rd *r)
{
    float v = 0;
    get(r, &v, sizeof v);
    return v;
}

const uint8_t *sl_rd_blob(sl_rd *r, size_t *n)
{
    uint32_t len = sl_rd_u32(r);
    const uint8_t *at = take(r, len);
    *n = r->bad ? 0 : len;
    return r->bad ? NULL : at;
}

void sl_rd_str(sl_rd *r, char *out, size_t cap)
{
    out[0] = '\0';
    size_t n;
    const uint8_t *at = sl_rd_blob(r, &n);
    if (r->bad)
        return;
    if (n >= cap || (n && memchr(at, 0, n))) {
        r->bad = true;
        return;
    }
    if (n)
        memcpy(out, at, n);
    out[n] = '\0';
}

/* Shared by both array readers: elements are 4 bytes wide. */
static void *get_words(sl_rd *r, size_t *n, size_t max)
{
    *n = 0;
    uint32_t count = sl_rd_u32(r);
    if (r->bad || count > max || count > left(r) / 4) {
        r->bad = true;
        return NULL;
    }
    if (!count)
        return NULL;
    void *words = malloc((size_t)count * 4);
    if (!words) {
        r->bad = true;
        return NULL;
    }
    get(r, words, (size_t)count * 4);
    *n = count;
    return words;
}

void sl_rd_i32s(sl_rd *r, int32_t **out, size_t *n, size_t max)
{
    *out = get_words(r, n, max);
}

void sl_rd_u32s(sl_rd *r, uint32_t **out, size_t *n, size_t max)
{
    *out = get_words(r, n, max);
}

sl_status sl_rd_done(const sl_rd *r)
{
    return !r->bad && r->p == r->end ? SL_OK : SL_ERR_CORRUPT;
}
