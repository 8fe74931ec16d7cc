/*
 * Wire codec: little-endian, fixed order, blobs with their length before them. All messages are written and read with
 * it.
 *
 * A writer appends to a buffer that it owns. A reader reads borrowed bytes and never beyond their end: the first read
 * that fails sets `bad`, and every later read returns 0, so a decoder reads all its fields and checks sl_rd_done()
 * once. Threads: a writer or reader belongs to one thread. Ownership: sl_wr owns its buffer until sl_wr_free(); blobs
 * of a reader point into its input.
 */
#ifndef SL_BASE_WIRE_H
#define SL_BASE_WIRE_H

#include "base/status.h"

typedef struct sl_wr {
    uint8_t *data;
    size_t len, cap;
    bool bad; /* out of memory */
} sl_wr;

typedef struct sl_rd {
    const uint8_t *p, *end;
    bool bad;
} sl_rd;

void sl_wr_init(sl_wr *w);
void sl_wr_free(sl_wr *w);
void sl_wr_u8(sl_wr *w, uint8_t v);
void sl_wr_u16(sl_wr *w, uint16_t v);
void sl_wr_u32(sl_wr *w, uint32_t v);
void sl_wr_u64(sl_wr *w, uint64_t v);
void sl_wr_i32(sl_wr *w, int32_t v);
void sl_wr_f32(sl_wr *w, float v);
/* u32 length, then the bytes. */
void sl_wr_blob(sl_wr *w, const void *bytes, size_t n);
void sl_wr_str(sl_wr *w, const char *s);
/* u32 count, then n i32/u32 values. */
void sl_wr_i32s(sl_wr *w, const int32_t *v, size_t n);
void sl_wr_u32s(sl_wr *w, const uint32_t *v, size_t n);

sl_rd sl_rd_init(const void *bytes, size_t n);
uint8_t sl_rd_u8(sl_rd *r);
uint16_t sl_rd_u16(sl_rd *r);
uint32_t sl_rd_u32(sl_rd *r);
uint64_t sl_rd_u64(sl_rd *r);
int32_t sl_rd_i32(sl_rd *r);
float sl_rd_f32(sl_rd *r);
/* Returns a pointer into the input and its length; NULL and 0 when bad. */
const uint8_t *sl_rd_blob(sl_rd *r, size_t *n);
/* Copies a string of at most cap-1 bytes into out, NUL-terminated; longer, or with an embedded NUL, is bad.
 */
void sl_rd_str(sl_rd *r, char *out, size_t cap);
/* Reads a u32 count (at most max, and no more than the bytes left allow) and a malloc'ed array; *out NULL if
 * count 0 or bad. */
void sl_rd_i32s(sl_rd *r, int32_t **out, size_t *n, size_t max);
void sl_rd_u32s(sl_rd *r, uint32_t **out, size_t *n, size_t max);
/* SL_OK if every read succeeded and nothing is left over; else SL_ERR_CORRUPT. */
sl_status sl_rd_done(const sl_rd *r);

#endif
