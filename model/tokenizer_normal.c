/*
 * Normalizers (the Unicode forms, NFC and others) over a text of which some ranges are plain. A normalizer changes
 * lengths, so each plain range and each text between two of them is normalized by itself, and the ranges of the result
 * are kept. A character that would be composed across the border of a range stays in two parts.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/tokenizer_impl.h"

/* A normalized text and where its plain ranges are. */
typedef struct normal {
    char *text;
    size_t n, cap;
    sl_tok_range *plain; /* room for every range of the work, and one more */
    size_t n_plain;
} normal;

/* *out: malloc'ed, all normalizers applied, *n bytes. */
static sl_status normalize(tk_work *w, const char *text, size_t len, utf8proc_uint8_t **out, size_t *n)
{
    utf8proc_uint8_t *now = NULL;
    *n = len;
    for (size_t i = 0; i < w->t->n_norm; i++) {
        utf8proc_uint8_t *next = NULL;
        utf8proc_ssize_t rc = utf8proc_map(now ? now : (const utf8proc_uint8_t *)text, (utf8proc_ssize_t)*n,
                                           &next, (utf8proc_option_t)w->t->norm[i]);
        free(now);
        if (rc < 0)
            return rc == UTF8PROC_ERROR_NOMEM
                       ? SL_ERR_NO_MEMORY
                       : sl_fail(w->err, SL_ERR_INVALID, "normalizer: %s", utf8proc_errmsg(rc));
        now = next;
        *n = (size_t)rc;
    }
    *out = now;
    return SL_OK;
}

static bool reserve(normal *o, size_t n)
{
    if (n <= o->cap - o->n)
        return true;
    size_t cap = 2 * (o->n + n);
    char *text = realloc(o->text, cap);
    if (!text)
        return false;
    o->text = text;
    o->cap = cap;
    return true;
}

/* Appends text[0..len), which is inside one plain range or outside of all. */
static sl_status append(tk_work *w, normal *o, const char *text, size_t len, bool plain)
{
    utf8proc_uint8_t *piece = NULL;
    size_t n;
    if (!len)
        return SL_OK;
    SL_TRY(normalize(w, text, len, &piece, &n));
    bool ok = reserve(o, n);
    if (ok && n)
        memcpy(o->text + o->n, piece, n);
    free(piece);
    if (!ok)
        return SL_ERR_NO_MEMORY;
    if (plain && n)
        o->plain[o->n_plain++] = (sl_tok_range){o->n, o->n + n};
    o->n += n;
    return SL_OK;
}

static sl_status append_all(tk_work *w, normal *o, const char *text, size_t len)
{
    size_t at = (size_t)(text - w->base), end = at + len;
    for (size_t i = tk_plain_from(w, at); i < w->n_plain && w->plain[i].start < end; i++) {
        const sl_tok_range *r = &w->plain[i];
        size_t from = r->start > at ? r->start : at, to = r->end < end ? r->end : end;
        SL_TRY(append(w, o, w->base + at, from - at, false));
        SL_TRY(append(w, o, w->base + from, to - from, true));
        at = to;
    }
    return append(w, o, w->base + at, end - at, false);
}

sl_status tk_normalize(tk_work *w, const char *text, size_t len, tk_text_fn *then)
{
    const sl_tok_range *plain = w->plain;
    const char *base = w->base;
    size_t n_plain = w->n_plain;
    normal o = {.plain = malloc((n_plain + 1) * sizeof *o.plain)};
    sl_status st = o.plain ? append_all(w, &o, text, len) : SL_ERR_NO_MEMORY;
    if (st == SL_OK) {
        w->plain = o.plain;
        w->n_plain = o.n_plain;
        w->base = o.text;
        st = then(w, o.text, o.n);
        w->plain = plain;
        w->n_plain = n_plain;
        w->base = base;
    }
    free(o.text);
    free(o.plain);
    return st;
}
