/*
 * A zip archive without compression (method "stored"), for sending a tokenizer's files. Small files only; no
 * zip64.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/wire.h"
#include "router/grpc/rpc.h"

enum { MAX_FILE = 64 << 20 };

typedef struct member {
    const char *name;
    uint32_t crc, size, offset;
} member;

/* CRC-32 of the zip format (IEEE, reflected). */
static uint32_t crc32_zip(const uint8_t *p, size_t n)
{
    uint32_t table[256], c = 0xffffffffu;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t v = i;
        for (int k = 0; k < 8; k++)
            v = v & 1 ? v >> 1 ^ 0xedb88320u : v >> 1;
        table[i] = v;
    }
    for (size_t i = 0; i < n; i++)
        c = table[(c ^ p[i]) & 255] ^ c >> 8;
    return ~c;
}

static void put(sl_wr *w, const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        sl_wr_u8(w, b[i]);
}

/* The fields that local and central headers share. */
static void put_common(sl_wr *w, const member *m)
{
    sl_wr_u16(w, 20);         /* version needed */
    sl_wr_u16(w, 0x0800);     /* UTF-8 names */
    sl_wr_u16(w, 0);          /* stored */
    sl_wr_u32(w, 0x00210000); /* 1980-01-01, so that equal files give equal archives */
    sl_wr_u32(w, m->crc);
    sl_wr_u32(w, m->size);
    sl_wr_u32(w, m->size);
    sl_wr_u16(w, (uint16_t)strlen(m->name));
    sl_wr_u16(w, 0);
}

/* SL_ERR_NOT_FOUND when there is no such file. */
static sl_status read_file(const char *dir, const char *name, const sl_guard *guard, sl_strbuf *out,
                           sl_err *err)
{
    char path[2048];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return sl_fail(err, SL_ERR_INVALID, "%s: path is too long", name);
    FILE *f = fopen(path, "rbe");
    if (!f)
        return errno == ENOENT ? SL_ERR_NOT_FOUND
                               : sl_fail(err, SL_ERR_IO, "cannot read %s: %s", name, strerror(errno));
    char buf[65536];
    size_t n;
    sl_status st;
    while (!(st = sl_guard_check(guard, err)) && (n = fread(buf, 1, sizeof buf, f)) > 0 &&
           out->len < MAX_FILE)
        sl_sb_append(out, buf, n);
    bool bad = ferror(f) || out->bad || out->len >= MAX_FILE;
    fclose(f);
    return st ? st : bad ? sl_fail(err, SL_ERR_IO, "cannot read all of %s", name) : SL_OK;
}

sl_status rpc_zip(const char *dir, const char *const *names, size_t n, const sl_guard *guard, uint8_t **out,
                  size_t *len, sl_err *err)
{
    sl_wr w;
    sl_wr_init(&w);
    member m[16];
    size_t k = 0;
    sl_status st = SL_OK;
    for (size_t i = 0; i < n && k < SL_COUNT(m) && !st; i++) {
        sl_strbuf text = {0};
        st = read_file(dir, names[i], guard, &text, err);
        if (st == SL_ERR_NOT_FOUND) {
            st = SL_OK;
        } else if (!st) {
            m[k] = (member){names[i], crc32_zip((uint8_t *)text.data, text.len), (uint32_t)text.len,
                            (uint32_t)w.len};
            sl_wr_u32(&w, 0x04034b50);
            put_common(&w, &m[k]);
            put(&w, names[i], strlen(names[i]));
            put(&w, text.data, text.len);
            k++;
        }
        sl_sb_free(&text);
    }
    uint32_t begin = (uint32_t)w.len;
    for (size_t i = 0; i < k; i++) {
        sl_wr_u32(&w, 0x02014b50);
        sl_wr_u16(&w, 20);
        put_common(&w, &m[i]);
        sl_wr_u16(&w, 0); /* comment, disk, attributes */
        sl_wr_u16(&w, 0);
        sl_wr_u16(&w, 0);
        sl_wr_u32(&w, 0);
        sl_wr_u32(&w, m[i].offset);
        put(&w, m[i].name, strlen(m[i].name));
    }
    uint32_t end = (uint32_t)w.len;
    sl_wr_u32(&w, 0x06054b50);
    sl_wr_u32(&w, 0);
    sl_wr_u16(&w, (uint16_t)k);
    sl_wr_u16(&w, (uint16_t)k);
    sl_wr_u32(&w, end - begin);
    sl_wr_u32(&w, begin);
    sl_wr_u16(&w, 0);
    if (!st && w.bad)
        st = sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (!st && !k)
        st = sl_fail(err, SL_ERR_NOT_FOUND, "no tokenizer files");
    if (st) {
        sl_wr_free(&w);
        return st;
    }
    *out = w.data;
    *len = w.len;
    return SL_OK;
}
