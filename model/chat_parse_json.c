/*
 * Tool calls that are JSON objects: {"name": "f", "arguments": {…}}, also with "parameters" instead of "arguments".
 *
 * Models write the name first, so the call is known before its arguments arrive: strings among them are emitted as they
 * arrive, every other value when it is complete. An object with another order of its members waits for its end. The
 * JSON that is emitted is always complete and valid, whatever the model writes: what JSON does not allow in a string is
 * escaped, a value that is not JSON becomes a string, an argument that was cut off is left out.
 */
#include <string.h>

#include "base/json.h"
#include "model/chat_parse_impl.h"

/* ---- the beginning of an object ---- */

typedef enum { NO, YES, MORE } match; /* MORE: the text ended before it was decided */

typedef struct cursor {
    const char *at, *end;
} cursor;

typedef struct span {
    const char *p;
    size_t n;
} span;

static void skip_space(cursor *c)
{
    while (c->at < c->end && cp_is_space(*c->at))
        c->at++;
}

/* One character, after white space. */
static match sign(cursor *c, char what)
{
    skip_space(c);
    if (c->at == c->end)
        return MORE;
    return *c->at++ == what ? YES : NO;
}

/* A string without escapes, after white space. */
static match word(cursor *c, span *out)
{
    match m = sign(c, '"');
    if (m != YES)
        return m;
    out->p = c->at;
    for (; c->at < c->end; c->at++) {
        if (*c->at == '"') {
            out->n = (size_t)(c->at++ - out->p);
            return YES;
        }
        if (*c->at == '\\' || (unsigned char)*c->at < 0x20)
            return NO;
    }
    return MORE;
}

static bool equal(span s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

static bool names_arguments(span key)
{
    return equal(key, "arguments") || equal(key, "parameters");
}

/* An object that begins with another key is no call. */
static bool may_begin_call(span key)
{
    return names_arguments(key) || equal(key, "name") || equal(key, "type") || equal(key, "function") ||
           equal(key, "id");
}

typedef struct head {
    span name;
    size_t n;     /* bytes up to the first argument */
    bool foreign; /* with NO: the object is no call, however it continues */
} head;

/* {"name": "f", "arguments": { */
static match read_head(const char *text, size_t len, head *h)
{
    cursor c = {text, text + len};
    span key = {0};
    match m;
    h->foreign = false;
    if ((m = sign(&c, '{')) != YES || (m = word(&c, &key)) != YES)
        return m;
    h->foreign = !may_begin_call(key);
    if (!equal(key, "name"))
        return NO;
    if ((m = sign(&c, ':')) != YES || (m = word(&c, &h->name)) != YES)
        return m;
    if (h->name.n == 0)
        return NO;
    if ((m = sign(&c, ',')) != YES || (m = word(&c, &key)) != YES)
        return m;
    if (!names_arguments(key))
        return NO;
    if ((m = sign(&c, ':')) != YES || (m = sign(&c, '{')) != YES)
        return m;
    h->n = (size_t)(c.at - text);
    return YES;
}

/* ---- values ---- */

/* The end of the array or object that begins at pend[from]; 0: it has not arrived yet. */
static size_t find_end(sl_chat_parser *p, size_t from)
{
    json_scan *s = &p->scan;
    if (s->at < from)
        *s = (json_scan){.at = from};
    while (s->at < p->pend.n) {
        char c = p->pend.p[s->at++];
        if (s->escaped)
            s->escaped = false;
        else if (s->string && c == '\\')
            s->escaped = true;
        else if (c == '"')
            s->string = !s->string;
        else if (!s->string && (c == '{' || c == '['))
            s->depth++;
        else if (!s->string && (c == '}' || c == ']') && --s->depth == 0)
            return s->at;
        s->deepest = s->depth > s->deepest ? s->depth : s->deepest;
    }
    return 0;
}

/* The end of the number or literal that begins at pend[from]; 0: it has not arrived yet. */
static size_t find_scalar_end(const sl_chat_parser *p, size_t from)
{
    for (size_t i = from; i < p->pend.n; i++) {
        char c = p->pend.p[i];
        if (c == ',' || c == '}' || c == ']' || cp_is_space(c))
            return i;
    }
    return 0;
}

static void add_value(sl_chat_parser *p, const char *text, size_t len)
{
    json_t *v = p->scan.deepest > DEPTH_MAX
                    ? NULL
                    : json_loadb(text, len, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    if (v) {
        ct_add(&p->out, text, len);
    } else {
        ct_str(&p->out, "\"");
        ct_escaped(&p->out, text, len);
        ct_str(&p->out, "\"");
    }
    json_decref(v);
}

/* ---- states ---- */

static void consume(sl_chat_parser *p, size_t n)
{
    cp_consume(p, n);
    p->scan = (json_scan){0};
}

/* The text is not what was expected: from here on it is content. */
static progress give_up(sl_chat_parser *p)
{
    if (p->st == ST_MEMBER)
        cp_end_call(p);
    else if (p->st == ST_OBJECT && p->marked)
        cp_emit(p, SL_CHAT_CONTENT, p->syn->tools_open, strlen(p->syn->tools_open));
    p->scan = (json_scan){0};
    p->st = ST_CONTENT;
    p->trim_left = false;
    return MOVED;
}

/* NULL: not valid, or nested too deeply. */
static json_t *load(const char *text, size_t len, size_t flags)
{
    return sl_json_measure(text, len).depth > DEPTH_MAX ? NULL
                                                        : json_loadb(text, len, flags | JSON_ALLOW_NUL, NULL);
}

/* Emits the call of a whole object; false when it is not one. */
static bool emit_object(sl_chat_parser *p, const char *text, size_t len)
{
    json_t *o = p->scan.deepest > DEPTH_MAX ? NULL : json_loadb(text, len, JSON_ALLOW_NUL, NULL), *own = NULL;
    const json_t *f = ct_function(o), *args = json_object_get(f, "arguments");
    const char *name = json_string_value(json_object_get(f, "name"));
    size_t n = json_string_length(json_object_get(f, "name"));
    if (!args)
        args = json_object_get(f, "parameters");
    if (json_is_string(args)) /* some models write the arguments as the text of an object */
        args = own = load(json_string_value(args), json_string_length(args), 0);
    bool ok = n > 0 && n < HEADER_MAX && json_is_object(args);
    if (ok) {
        cp_begin_call(p, name, n);
        ct_json(&p->out, args);
        cp_emit_args(p);
        cp_emit(p, SL_CHAT_TOOL_END, "", 0);
    }
    json_decref(own);
    json_decref(o);
    return ok;
}

/* The object of a call that waits for its end. */
static progress run_whole_object(sl_chat_parser *p, size_t from, bool end)
{
    size_t to = find_end(p, from);
    p->by_end = !to && !end;
    if (!to && !end)
        return WAIT;
    if (!to || !emit_object(p, p->pend.p + from, to - from)) {
        p->plain =
            to ? to
               : p->pend.n; /* a call inside it would be read again up to the same end, and the next one */
        return give_up(p);
    }
    consume(p, to);
    p->st = ST_CLOSE;
    p->whole = true;
    return MOVED;
}

static progress run_object(sl_chat_parser *p, bool end)
{
    size_t from = 0;
    while (from < p->pend.n && cp_is_space(p->pend.p[from]))
        from++;
    if (from == p->pend.n && from < HEADER_MAX && !end)
        return WAIT;
    if (from == p->pend.n || from >= HEADER_MAX || p->pend.p[from] != '{')
        return give_up(p);
    if (p->by_end)
        return run_whole_object(p, from, end);
    size_t left = p->pend.n - from;
    head h = {0};
    match m = read_head(p->pend.p + from, left < HEADER_MAX ? left : HEADER_MAX, &h);
    if (m == MORE && left < HEADER_MAX && !end)
        return WAIT;
    if (m == NO && h.foreign)
        return give_up(p);
    if (m != YES)
        return run_whole_object(p, from, end);
    cp_begin_call(p, h.name.p, h.name.n);
    consume(p, from + h.n);
    p->st = ST_MEMBER;
    p->whole = false;
    return MOVED;
}

/* A member of the arguments: its key and the place of its value in pend. */
typedef struct member {
    size_t n_key, value; /* the key with its quotes begins at pend[0] */
} member;

/* "key": and the first character of the value. */
static match read_key(const sl_chat_parser *p, member *m)
{
    size_t i = 1;
    while (i < p->pend.n && p->pend.p[i] != '"')
        i += p->pend.p[i] == '\\' ? 2 : 1;
    if (i >= HEADER_MAX)
        return NO;
    if (i >= p->pend.n)
        return MORE;
    json_t *key = json_loadb(p->pend.p, i + 1, JSON_DECODE_ANY, NULL);
    if (!key)
        return NO;
    json_decref(key);
    m->n_key = i + 1;
    size_t most = p->pend.n < 2 * HEADER_MAX ? p->pend.n : 2 * HEADER_MAX;
    cursor c = {p->pend.p + m->n_key, p->pend.p + most};
    match colon = sign(&c, ':');
    if (colon != YES)
        return most < p->pend.n ? NO : colon;
    skip_space(&c);
    m->value = (size_t)(c.at - p->pend.p);
    return c.at < c.end ? YES : most < p->pend.n ? NO : MORE;
}

static void add_key(sl_chat_parser *p, const member *m)
{
    ct_str(&p->out, p->first_arg ? "{" : ", ");
    ct_add(&p->out, p->pend.p, m->n_key);
    ct_str(&p->out, ": ");
    p->first_arg = false;
}

/* The value of a member that is not a string. */
static progress run_value(sl_chat_parser *p, const member *m, bool end)
{
    char c = p->pend.p[m->value];
    bool nested = c == '{' || c == '[';
    size_t to = nested ? find_end(p, m->value) : find_scalar_end(p, m->value);
    size_t n = (to ? to : p->pend.n) - m->value;
    if (!nested && (n >= HEADER_MAX || to == m->value))
        return give_up(p);
    if (!to) {
        if (end)
            consume(p, p->pend.n);
        return WAIT;
    }
    add_key(p, m);
    add_value(p, p->pend.p + m->value, n);
    cp_emit_args(p);
    consume(p, to);
    return MOVED;
}

static progress run_member(sl_chat_parser *p, bool end)
{
    size_t n = 0;
    while (n < p->pend.n && (cp_is_space(p->pend.p[n]) || (p->pend.p[n] == ',' && !p->first_arg)))
        n++;
    if (n)
        consume(p, n);
    if (p->pend.n == 0)
        return WAIT;
    if (p->pend.p[0] == '}') {
        consume(p, 1);
        cp_end_call(p);
        p->st = ST_CLOSE;
        return MOVED;
    }
    member m = {0};
    match found = p->pend.p[0] == '"' ? read_key(p, &m) : NO;
    if (found == MORE && end)
        consume(p, p->pend.n);
    if (found != YES)
        return found == MORE ? WAIT : give_up(p);
    if (p->pend.p[m.value] != '"')
        return run_value(p, &m, end);
    add_key(p, &m);
    ct_str(&p->out, "\"");
    cp_emit_args(p);
    consume(p, m.value + 1);
    p->st = ST_TEXT;
    return MOVED;
}

/* ---- strings ---- */

/* The four hexadecimal digits of \uXXXX at text[0..len); -1: it is something else; -2: the text ends before its end. */
static int read_unit(const char *text, size_t len)
{
    int unit = 0;
    for (size_t i = 0; i < 6; i++) {
        if (i == len)
            return -2;
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (i < 2 ? c != "\\u"[i] : digit < 0)
            return -1;
        if (i >= 2)
            unit = unit * 16 + digit;
    }
    return unit;
}

/* \uXXXX, or the two of a surrogate pair; half a pair becomes U+FFFD. The bytes taken; 0: more text is needed. */
static size_t add_unit(sl_chat_parser *p, const char *text, size_t len, bool end)
{
    int unit = read_unit(text, len);
    if (unit == -2 && !end)
        return 0;
    if (unit < 0) {
        ct_str(&p->out, "\\\\");
        return 1;
    }
    if (unit < 0xD800 || unit > 0xDFFF) {
        ct_add(&p->out, text, 6);
        return 6;
    }
    int low = unit < 0xDC00 ? read_unit(text + 6, len - 6) : -1;
    if (low == -2 && !end)
        return 0;
    bool pair = low >= 0xDC00 && low <= 0xDFFF;
    if (pair)
        ct_add(&p->out, text, 12);
    else
        ct_str(&p->out, "\\ufffd");
    return pair ? 12 : 6;
}

/* What a backslash begins. The bytes taken; 0: more text is needed. */
static size_t add_escape(sl_chat_parser *p, const char *text, size_t len, bool end)
{
    if (len < 2)
        return 0;
    if (text[1] == 'u')
        return add_unit(p, text, len, end);
    if (strchr("\"\\/bfnrt", text[1]) && text[1]) {
        ct_add(&p->out, text, 2);
        return 2;
    }
    ct_str(&p->out, "\\\\");
    return 1;
}

static progress run_text(sl_chat_parser *p, bool end)
{
    size_t at = 0;
    while (at < p->pend.n && p->pend.p[at] != '"') {
        size_t from = at;
        while (at < p->pend.n && p->pend.p[at] != '"' && p->pend.p[at] != '\\')
            at++;
        ct_escaped(&p->out, p->pend.p + from, at - from);
        if (at == p->pend.n || p->pend.p[at] == '"')
            break;
        size_t n = add_escape(p, p->pend.p + at, p->pend.n - at, end);
        if (n == 0)
            break;
        at += n;
    }
    bool closed = at < p->pend.n && p->pend.p[at] == '"';
    if (closed || end)
        ct_str(&p->out, "\"");
    cp_emit_args(p);
    consume(p, closed ? at + 1 : end ? p->pend.n : at);
    if (!closed && !end)
        return WAIT;
    p->st = ST_MEMBER;
    return MOVED;
}

/* ---- after the arguments ---- */

/* The rest of the object, "}" and before it anything that is no argument, then the marker that closes the call. */
static progress run_close(sl_chat_parser *p, bool end)
{
    const char *close = p->syn->call_close;
    cp_skip_space(p);
    if (p->pend.n == 0)
        return WAIT;
    if (!p->whole) {
        p->whole = true;
        if (p->pend.p[0] == '}') {
            consume(p, 1);
            return MOVED;
        }
    }
    if (close && !end && cp_may_become(p, close))
        return WAIT;
    if (close && (cp_starts_with(p, close) || cp_may_become(p, close)))
        consume(p, cp_starts_with(p, close) ? strlen(close) : p->pend.n);
    else if (!close && (p->pend.p[0] == ';' || p->pend.p[0] == '{')) {
        consume(p, p->pend.p[0] == ';');
        p->marked = false;
        p->st = ST_OBJECT;
        return MOVED;
    }
    p->st = ST_CONTENT;
    p->trim_left = p->syn->trim;
    return MOVED;
}

progress cp_json_step(sl_chat_parser *p, bool end)
{
    switch (p->st) {
    case ST_OBJECT:
        return run_object(p, end);
    case ST_MEMBER:
        return run_member(p, end);
    case ST_TEXT:
        return run_text(p, end);
    default:
        return run_close(p, end);
    }
}
