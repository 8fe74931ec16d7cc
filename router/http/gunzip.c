/*
 * See gunzip.h.
 */
#include "router/http/gunzip.h"

#include <stdlib.h>

#define ZLIB_CONST
#include <zlib.h>

enum {
    GZIP_ONLY = 15 + 16,  /* of inflateInit2(): a window of 32 KiB, with the head and the checksums of gzip */
    STATE_BYTES = 48000,  /* that zlib takes: the window, and 7 KiB */
    PIECE_BYTES = 16384,  /* between two looks at the guard */
    FEED_BYTES = 1 << 20, /* zlib counts its input in 32 bits */
    MEMBER_MIN = 18       /* head and end of a member */
};

typedef struct source {
    z_stream z;
    const char *next;
    size_t left;
} source;

static void feed(source *s)
{
    if (s->z.avail_in || !s->left)
        return;
    size_t n = s->left < FEED_BYTES ? s->left : FEED_BYTES;
    s->z.next_in = (const Bytef *)s->next;
    s->z.avail_in = (uInt)n;
    s->next += n;
    s->left -= n;
}

static sl_status damaged(const source *s, size_t members, sl_err *err)
{
    if (members && !s->z.total_out && s->z.total_in < MEMBER_MIN)
        return sl_fail(err, SL_ERR_INVALID, "the body has bytes after the end of its gzip data");
    return sl_fail(err, SL_ERR_INVALID, "the body is no valid gzip data: %s",
                   s->z.msg ? s->z.msg : "it cannot be inflated");
}

/* One call of zlib, which inflates `room` bytes at most. *more: there is more to do. */
static sl_status step(source *s, char *to, size_t room, size_t *members, bool *more, sl_err *err)
{
    feed(s);
    s->z.next_out = (Bytef *)to;
    s->z.avail_out = (uInt)room;
    int r = inflate(&s->z, Z_NO_FLUSH);
    bool empty = !s->z.avail_in && !s->left;
    if (r == Z_STREAM_END) {
        *more = !empty;
        if (*more && inflateReset(&s->z) != Z_OK)
            return sl_fail(err, SL_ERR_INTERNAL, "zlib: inflateReset");
        ++*members;
        return SL_OK;
    }
    if (r == Z_MEM_ERROR)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (r != Z_OK && r != Z_BUF_ERROR)
        return damaged(s, *members, err);
    if (empty && s->z.avail_out)
        return sl_fail(err, SL_ERR_INVALID, "the body ends before its gzip data does");
    return SL_OK;
}

/* Inflates everything, to `to`, which has *total + 1 bytes, or nowhere; *total: how much it is. */
static sl_status inflate_all(const char *in, size_t n, size_t most, char *to, const sl_guard *g,
                             size_t *total, sl_err *err)
{
    char scratch[PIECE_BYTES];
    source s = {.next = in, .left = n};
    size_t done = 0, members = 0;
    bool more = true;
    sl_status st = SL_OK;
    if (inflateInit2(&s.z, GZIP_ONLY) != Z_OK)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    while (more && !st) {
        size_t room = to && *total + 1 - done < PIECE_BYTES ? *total + 1 - done : PIECE_BYTES;
        st = sl_guard_check(g, err);
        if (!st)
            st = step(&s, to ? to + done : scratch, room, &members, &more, err);
        done += room - s.z.avail_out;
        if (!st && done > most)
            st = sl_fail(err, SL_ERR_TOO_LARGE,
                         "the body inflates to more than %zu bytes (router.max_body_bytes)", most);
    }
    inflateEnd(&s.z);
    *total = done;
    return st;
}

sl_status sl_gunzip(const char *in, size_t n, size_t most, sl_guard *g, char **out, size_t *len, sl_err *err)
{
    size_t total = 0, taken = 0;
    char *to = NULL;
    *out = NULL;
    *len = 0;
    SL_TRY(sl_guard_take(g, STATE_BYTES, err));
    sl_status st = inflate_all(in, n, most, NULL, g, &total, err);
    if (!st)
        st = sl_guard_take(g, total + 1, err);
    if (!st) {
        taken = total + 1;
        to = malloc(taken);
        st = to ? inflate_all(in, n, most, to, g, &total, err)
                : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    sl_guard_give(g, STATE_BYTES);
    if (st) {
        free(to);
        sl_guard_give(g, taken);
        return st;
    }
    to[total] = 0;
    *out = to;
    *len = total;
    return SL_OK;
}
