/*
 * Arguments of the form ARG_NAMED, which MiniMax-M3 writes: the key k and a text are *<k>text*</k>, where * is the special
 * token CT_M3. An object is such tags inside of each other, an array is tags with the name "item". The model writes no
 * types: the schema of the function says whether 12 is a number or a text, at every depth, and whether nothing at all is
 * an empty object, an empty array or an empty text.
 */
#include <string.h>

#include "model/chat_parse_impl.h"

enum { N_TOKEN = sizeof CT_M3 - 1 };

/* ---- the end of an argument ---- */

/* pend[at..) is the token, "<", slash ("/" or ""), the current key and ">": 1. It may become it: -1. Neither: 0. */
static int is_tag(const sl_chat_parser *p, size_t at, const char *slash)
{
    const struct {
        const char *text;
        size_t n;
    } parts[] = {{CT_M3 "<", N_TOKEN + 1}, {slash, strlen(slash)}, {p->key.p, p->key.n}, {">", 1}};
    for (size_t i = 0; i < SL_COUNT(parts); i++) {
        size_t left = p->pend.n - at, n = parts[i].n < left ? parts[i].n : left;
        if (n && memcmp(p->pend.p + at, parts[i].text, n) != 0)
            return 0;
        if (n < parts[i].n)
            return -1;
        at += n;
    }
    return 1;
}

/* Where the token begins in pend[from..); the place where it may begin; or pend.n. */
static size_t next_token(const sl_chat_parser *p, size_t from)
{
    const char *hit = cp_find(p, from, CT_M3);
    return hit ? (size_t)(hit - p->pend.p) : p->pend.n - cp_open_tail(p, CT_M3);
}

const char *cp_named_end(sl_chat_parser *p, bool nested)
{
    size_t at = nested ? p->scanned : 0;
    for (;; at += N_TOKEN) {
        at = next_token(p, at);
        int close = is_tag(p, at, "/"), open = nested ? is_tag(p, at, "") : 0;
        if (close < 0 || open < 0)
            break; /* also at the end of pend */
        if (close && p->open-- == 0)
            return p->pend.p + at;
        p->open += open;
    }
    p->scanned = at;
    return NULL;
}

size_t cp_named_tail(const sl_chat_parser *p)
{
    size_t at = 0;
    while ((at = next_token(p, at)) < p->pend.n && is_tag(p, at, "/") >= 0)
        at += N_TOKEN;
    return p->pend.n - (at < p->pend.n ? at : p->pend.n);
}

/* ---- its value ---- */

typedef struct reader {
    const json_t *root; /* of the references in the schemas */
    const char *at, *end;
    ct_buf *out;
    int depth;
} reader;

static bool skip(reader *r, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n) != 0)
        return false;
    r->at += n;
    return true;
}

static void skip_space(reader *r)
{
    while (r->at < r->end && cp_is_space(*r->at))
        r->at++;
}

/* A tag that opens or, with slash, closes an element: its name. */
static bool tag(reader *r, bool slash, const char **name, size_t *n)
{
    const char *from = r->at;
    if (skip(r, slash ? CT_M3 "</" : CT_M3 "<")) {
        const char *stop = memchr(r->at, '>', (size_t)(r->end - r->at));
        *name = r->at;
        *n = stop ? (size_t)(stop - r->at) : 0;
        if (*n && **name != '/' && !memchr(*name, '<', *n)) {
            r->at = stop + 1;
            return true;
        }
    }
    r->at = from;
    return false;
}

static bool read_value(reader *r, const json_t *schema);

/* The elements at r->at, which are the members of an object or, when all have the name "item", those of an array. */
static bool read_elements(reader *r, const json_t *schema, bool array)
{
    const char *name, *closed;
    size_t n, n_closed;
    bool first = true;
    ct_str(r->out, array ? "[" : "{");
    for (skip_space(r); tag(r, false, &name, &n); skip_space(r)) {
        if (array && (n != 4 || memcmp(name, "item", 4) != 0))
            return false;
        ct_str(r->out, first ? "" : ", ");
        if (!array) {
            ct_str(r->out, "\"");
            ct_escaped(r->out, name, n);
            ct_str(r->out, "\": ");
        }
        if (!read_value(r, array ? ct_items(r->root, schema) : ct_member(r->root, schema, name, n)))
            return false;
        if (!tag(r, true, &closed, &n_closed) || n_closed != n || memcmp(name, closed, n) != 0)
            return false;
        first = false;
    }
    ct_str(r->out, array ? "]" : "}");
    return true;
}

/* Text up to the next tag, or nothing. */
static void read_leaf(reader *r, unsigned types)
{
    const char *stop = memmem(r->at, (size_t)(r->end - r->at), CT_M3, N_TOKEN);
    size_t n = (size_t)((stop ? stop : r->end) - r->at);
    if (n == 0 && !(types & CT_STRING) && types & (CT_OBJECT | CT_ARRAY))
        ct_str(r->out, types & CT_OBJECT ? "{}" : "[]");
    else
        cp_add_value(r->out, r->at, n, types);
    r->at += n;
}

/* A value up to the tag that closes it, or to the end. False: it is none; what was written is to be taken back. */
static bool read_value(reader *r, const json_t *schema)
{
    const char *from = r->at, *name;
    size_t n;
    unsigned types = ct_types(r->root, schema);
    skip_space(r);
    bool elements = tag(r, false, &name, &n);
    r->at = from;
    if (!elements) {
        read_leaf(r, types);
        return true;
    }
    if (++r->depth > DEPTH_MAX)
        return false;
    bool item = n == 4 && memcmp(name, "item", 4) == 0;
    bool array = item && (types & CT_ARRAY || !(types & CT_OBJECT));
    bool ok = read_elements(r, schema, array);
    r->depth--;
    return ok;
}

void cp_add_nested(sl_chat_parser *p, const char *text, size_t len)
{
    size_t before = p->out.n;
    reader r = {.root = p->parameters, .at = text, .end = text + len, .out = &p->out};
    const json_t *schema = p->parameters ? ct_member(p->parameters, p->parameters, p->key.p, p->key.n) : NULL;
    bool ok = read_value(&r, schema);
    skip_space(&r);
    if (ok && r.at == r.end)
        return;
    p->out.n = before;
    ct_str(&p->out, "\"");
    ct_escaped(&p->out, text, len);
    ct_str(&p->out, "\"");
}
