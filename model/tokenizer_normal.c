/*
 * Normalizers (the Unicode forms, NFC and others) over a text of which some ranges are plain. A normalizer changes
 * lengths, so each plain range and each text between two of them is normalized by itself, and the ranges of the result
 * are kept. A character that would be composed across the border of a range stays in two parts.
 *
 * utf8proc has the tables, decomposes characters and composes them. The canonical order of combining marks is made here:
 * utf8proc exchanges neighbours until a run of marks is sorted, which takes n * n steps for a run of n. Marks are sorted
 * by a number of 8 bits, and equal ones keep their order, so counting them is enough and linear.
 *
 * A text is normalized in pieces, which end before a character that begins a piece in any case, because it is neither
 * moved nor composed with what is before it. The memory of a piece, and so that of a text without long runs of marks, is
 * small.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/tokenizer_impl.h"
#include "model/tokenizer_utf8.h"

enum {
    PIECE = 4096, /* characters, and what follows until a piece can end */
    /* Characters that the longest decomposition of one character has, and some more: utf8proc writes beyond none of
     * them. */
    DECOMPOSED = 32,
    CLASSES = 256,
    SHORT_RUN = 16
};

/* Characters whose order is being made. */
typedef struct chars {
    utf8proc_int32_t *v;
    size_t n, cap;
} chars;

/* A normalized text and where its plain ranges are. */
typedef struct normal {
    char *text;
    size_t n, cap;
    sl_tok_range *plain; /* room for every range of the work, and one more */
    size_t n_plain, cap_plain;
    chars piece, sorted;
} normal;

static uint8_t class_of(utf8proc_int32_t c)
{
    return (uint8_t)utf8proc_get_property(c)->combining_class;
}

/* ---- canonical order ---- */

/* Insertion keeps the order of equal classes, and is quicker than counting for a few marks. */
static void sort_short(utf8proc_int32_t *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        utf8proc_int32_t c = v[i];
        uint8_t k = class_of(c);
        size_t at = i;
        for (; at > 0 && class_of(v[at - 1]) > k; at--)
            v[at] = v[at - 1];
        v[at] = c;
    }
}

static sl_status sort_long(tk_work *w, normal *o, utf8proc_int32_t *v, size_t n)
{
    size_t first[CLASSES + 1] = {0};
    SL_TRY(sl_guard_grow(w->guard, (void **)&o->sorted.v, &o->sorted.cap, n, sizeof *v, w->err));
    for (size_t i = 0; i < n; i++)
        first[class_of(v[i]) + 1]++;
    for (int k = 1; k <= CLASSES; k++)
        first[k] += first[k - 1];
    for (size_t i = 0; i < n; i++)
        o->sorted.v[first[class_of(v[i])]++] = v[i];
    memcpy(v, o->sorted.v, n * sizeof *v);
    return SL_OK;
}

/* Sorts each run of characters with a class other than 0. */
static sl_status order(tk_work *w, normal *o)
{
    utf8proc_int32_t *v = o->piece.v;
    for (size_t i = 0, end; i < o->piece.n; i = end) {
        end = i + 1;
        if (!class_of(v[i]))
            continue;
        while (end < o->piece.n && class_of(v[end]))
            end++;
        if (end - i <= SHORT_RUN)
            sort_short(v + i, end - i);
        else
            SL_TRY(sort_long(w, o, v + i, end - i));
    }
    return SL_OK;
}

/* ---- pieces ---- */

/* Whether a piece may begin with this character of the text. Below U+0300 nothing is a mark, and nothing is composed with
 * what precedes it, in no form; so are ideographs and whole syllables of Hangul. */
static bool may_begin(utf8proc_int32_t c)
{
    return c < 0x300 || (c >= 0x3400 && c < 0xA000) || (c >= 0xAC00 && c < 0xD7A4);
}

static sl_status utf8proc_failed(const tk_work *w, utf8proc_ssize_t rc)
{
    return rc == UTF8PROC_ERROR_NOMEM
               ? SL_ERR_NO_MEMORY
               : sl_fail(w->err, SL_ERR_INVALID, "normalizer: %s", utf8proc_errmsg(rc));
}

static sl_status reserve(tk_work *w, normal *o, size_t n)
{
    return sl_guard_grow(w->guard, (void **)&o->text, &o->cap, o->n + n, 1, w->err);
}

/* Normalizes the piece and appends it. */
static sl_status end_piece(tk_work *w, normal *o, utf8proc_option_t options)
{
    SL_TRY(sl_guard_check(w->guard, w->err));
    SL_TRY(order(w, o));
    SL_TRY(reserve(w, o, 4 * o->piece.n + 1));
    utf8proc_ssize_t n = utf8proc_normalize_utf32(o->piece.v, (utf8proc_ssize_t)o->piece.n, options);
    if (n < 0)
        return utf8proc_failed(w, n);
    for (utf8proc_ssize_t i = 0; i < n; i++)
        o->n += sl_utf8_put((uint32_t)o->piece.v[i], o->text + o->n);
    o->piece.n = 0;
    return SL_OK;
}

static sl_status add_char(tk_work *w, normal *o, utf8proc_int32_t c, utf8proc_option_t options)
{
    chars *p = &o->piece;
    int unused = 0;
    SL_TRY(sl_guard_grow(w->guard, (void **)&p->v, &p->cap, p->n + DECOMPOSED, sizeof *p->v, w->err));
    utf8proc_ssize_t n = utf8proc_decompose_char(c, p->v + p->n, DECOMPOSED, options, &unused);
    if (n < 0 || n > DECOMPOSED)
        return utf8proc_failed(w, n < 0 ? n : UTF8PROC_ERROR_OVERFLOW);
    p->n += (size_t)n;
    return SL_OK;
}

/* Appends the form of the text, which is valid UTF-8, to o. */
static sl_status add_form(tk_work *w, normal *o, const char *text, size_t len, utf8proc_option_t options)
{
    for (size_t at = 0, n; at < len; at += n) {
        utf8proc_int32_t c = (utf8proc_int32_t)sl_utf8_get((const unsigned char *)text + at);
        n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        if (o->piece.n >= PIECE && may_begin(c))
            SL_TRY(end_piece(w, o, options));
        SL_TRY(add_char(w, o, c, options));
    }
    return end_piece(w, o, options);
}

/* Appends text with all normalizers applied. */
static sl_status normalize(tk_work *w, normal *o, const char *text, size_t len)
{
    size_t begin = o->n, n_norm = w->t->n_norm;
    for (size_t i = 0; i < n_norm; i++) {
        utf8proc_option_t options = (utf8proc_option_t)w->t->norm[i];
        if (i == 0) {
            SL_TRY(add_form(w, o, text, len, options));
            continue;
        }
        size_t n = o->n - begin; /* the form before, from which the next one is made */
        SL_TRY(sl_guard_take(w->guard, n, w->err));
        char *before = malloc(n + 1);
        if (!before)
            return SL_ERR_NO_MEMORY;
        memcpy(before, o->text + begin, n);
        o->n = begin;
        sl_status st = add_form(w, o, before, n, options);
        free(before);
        sl_guard_give(w->guard, n);
        SL_TRY(st);
    }
    return SL_OK;
}

/* ---- ranges ---- */

/* Appends text[0..len), which is inside one plain range or outside of all. */
static sl_status append(tk_work *w, normal *o, const char *text, size_t len, bool plain)
{
    size_t from = o->n;
    if (!len)
        return SL_OK;
    SL_TRY(normalize(w, o, text, len));
    if (!plain || o->n == from)
        return SL_OK;
    SL_TRY(
        sl_guard_grow(w->guard, (void **)&o->plain, &o->cap_plain, o->n_plain + 1, sizeof *o->plain, w->err));
    o->plain[o->n_plain++] = (sl_tok_range){from, o->n};
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

static void free_normal(tk_work *w, normal *o)
{
    sl_guard_give(w->guard, o->cap + o->cap_plain * sizeof *o->plain +
                                (o->piece.cap + o->sorted.cap) * sizeof *o->piece.v);
    free(o->text);
    free(o->plain);
    free(o->piece.v);
    free(o->sorted.v);
}

sl_status tk_normalize(tk_work *w, const char *text, size_t len, tk_text_fn *then)
{
    const sl_tok_range *plain = w->plain;
    const char *base = w->base;
    size_t n_plain = w->n_plain;
    normal o = {0};
    sl_status st = reserve(w, &o, 1);
    if (st == SL_OK)
        st = append_all(w, &o, text, len);
    if (st == SL_OK) {
        w->plain = o.plain;
        w->n_plain = o.n_plain;
        w->base = o.text;
        st = then(w, o.text, o.n);
        w->plain = plain;
        w->n_plain = n_plain;
        w->base = base;
    }
    free_normal(w, &o);
    return st;
}
