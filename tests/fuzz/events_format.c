/*
 * The encoder of events: what it writes from any values is one complete msgpack object, with the number of events that it
 * says. The reader here knows the structure of msgpack only, from its specification.
 */
#include <stdlib.h>
#include <string.h>

#include "events/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t take(const uint8_t **p, const uint8_t *end, size_t n)
{
    uint64_t v = 0;
    if ((size_t)(end - *p) < n)
        abort();
    while (n--)
        v = v << 8 | *(*p)++;
    return v;
}

static void skip_bytes(const uint8_t **p, const uint8_t *end, uint64_t n)
{
    if ((uint64_t)(end - *p) < n)
        abort();
    *p += n;
}

/* Skips one object; returns the number of entries of an array, else 0. */
static uint64_t skip(const uint8_t **p, const uint8_t *end, int depth)
{
    uint64_t b = take(p, end, 1), n = 0, objects = 0;
    if (depth > 4)
        abort();
    if (b < 0x80 || b == 0xc0) { /* fixint, nil */
    } else if (b < 0x90) {       /* fixmap */
        objects = 2 * (b & 15);
    } else if (b < 0xa0) { /* fixarray */
        objects = n = b & 15;
    } else if (b < 0xc0) { /* fixstr */
        skip_bytes(p, end, b & 31);
    } else if (b == 0xcb) { /* float 64 */
        skip_bytes(p, end, 8);
    } else if (b >= 0xcc && b <= 0xcf) { /* uint */
        skip_bytes(p, end, (uint64_t)1 << (b - 0xcc));
    } else if (b == 0xd9) { /* str 8 */
        skip_bytes(p, end, take(p, end, 1));
    } else if (b == 0xdd) { /* array 32 */
        objects = n = take(p, end, 4);
    } else {
        abort();
    }
    while (objects--)
        skip(p, end, depth + 1);
    return n;
}

static uint32_t write_events(sl_wr *w, const uint8_t *data, size_t size)
{
    static int32_t tokens[300];
    char medium[300];
    uint32_t n = 0;
    for (size_t at = 0; at + 20 <= size && n < 100; at += 20, n++) {
        sl_events_form form = data[at] & 1 ? SL_EVENTS_ARRAY : SL_EVENTS_MAP;
        sl_events_block b = {
            .first = data[at] & 2, .tokens = tokens, .n_tokens = data[at + 1], .medium = medium};
        memcpy(&b.hash, data + at + 2, 8);
        memcpy(&b.parent, data + at + 10, 8);
        for (size_t i = 0; i < b.n_tokens; i++)
            memcpy(&tokens[i], data + at + i % 16, 4);
        memset(medium, 'm', sizeof medium);
        medium[data[at + 18] + data[at + 19] % 40] = 0;
        if (data[at] & 4)
            sl_events_write_removed(w, form, b.hash, medium);
        else if (data[at] & 8)
            sl_events_write_cleared(w, form);
        else
            sl_events_write_stored(w, form, &b);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_wr body, w;
    sl_wr_init(&body);
    sl_wr_init(&w);
    uint32_t n = write_events(&body, data, size);
    sl_events_write_head(&w, 1.5, n);
    for (size_t i = 0; i < body.len; i++)
        sl_wr_u8(&w, body.data[i]);
    sl_events_write_tail(&w, (int)size);
    const uint8_t *p = w.data, *end = w.data + w.len;
    if (take(&p, end, 1) != 0x93)
        abort();
    skip(&p, end, 0);
    if (skip(&p, end, 0) != n)
        abort();
    skip(&p, end, 0);
    if (p != end)
        abort();
    sl_wr_free(&body);
    sl_wr_free(&w);
    return 0;
}
