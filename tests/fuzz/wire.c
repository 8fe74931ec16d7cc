/*
 * The wire reader: the input is both a program (which field to read next) and the bytes to read. No read may pass the
 * end, whatever the program does, and what a reader accepts must be what a writer would have written.
 */
#include <stdlib.h>
#include <string.h>

#include "base/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads one field of this kind and, if the read succeeded, writes it again. */
static void step(uint8_t kind, sl_rd *r, sl_wr *w)
{
    char text[32];
    size_t n;
    int32_t *is = NULL;
    uint32_t *us = NULL;
    const uint8_t *blob;
    uint64_t v;
    switch (kind % 8) {
    case 0:
        v = sl_rd_u8(r);
        sl_wr_u8(w, (uint8_t)v);
        break;
    case 1:
        v = sl_rd_u16(r);
        sl_wr_u16(w, (uint16_t)v);
        break;
    case 2:
        v = sl_rd_u32(r);
        sl_wr_u32(w, (uint32_t)v);
        break;
    case 3:
        v = sl_rd_u64(r);
        sl_wr_u64(w, v);
        break;
    case 4:
        blob = sl_rd_blob(r, &n);
        sl_wr_blob(w, blob, n);
        break;
    case 5:
        sl_rd_str(r, text, sizeof text);
        sl_wr_str(w, text);
        break;
    case 6:
        sl_rd_i32s(r, &is, &n, 1000);
        sl_wr_i32s(w, is, n);
        break;
    default:
        sl_rd_u32s(r, &us, &n, 1000);
        sl_wr_u32s(w, us, n);
        break;
    }
    free(is);
    free(us);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 8)
        return 0;
    const uint8_t *in = data + 8;
    sl_rd r = sl_rd_init(in, size - 8);
    sl_wr w;
    sl_wr_init(&w);
    for (size_t i = 0; i < 64 && !r.bad; i++) {
        size_t before = w.len;
        step(data[i % 8] + (uint8_t)(i / 8), &r, &w);
        if (r.bad)
            w.len = before;
    }
    if (w.bad || w.len > size - 8 || memcmp(w.data ? w.data : in, in, w.len))
        abort();
    if (sl_rd_done(&r) == SL_OK && w.len != size - 8)
        abort();
    sl_wr_free(&w);
    return 0;
}
