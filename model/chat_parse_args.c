/*
 * The arguments of a tool call that is written with tags. String arguments are emitted as they arrive. Other arguments
 * wait for their end, because a value that is not valid JSON becomes a string.
 */
#include <string.h>

#include "base/json.h"
#include "model/chat_parse_impl.h"

/* ---- the tag of an argument ---- */

/* The types that the schema of the current call's function allows for an argument. */
static unsigned schema_types(const sl_chat_parser *p, const char *key, size_t len)
{
    return p->parameters ? ct_property_types(p->parameters, key, len) : CT_ANY;
}

/* types: those that the argument may have; a string is emitted while it arrives. */
static void begin_value(sl_chat_parser *p, const char *key, size_t len, unsigned types)
{
    bool string = types == CT_STRING;
    p->types = types;
    p->value_begins = p->syn->args == ARG_EQUALS;
    ct_str(&p->out, p->first_arg ? "{\"" : ", \"");
    ct_escaped(&p->out, key, len);
    ct_str(&p->out, string ? "\": \"" : "\": ");
    p->first_arg = false;
    p->scanned = 0;
    p->open = 0;
    p->st = string ? ST_STRING : ST_JSON;
    cp_emit_args(p);
}

/* <｜DSML｜parameter name="k" string="true|false"> */
static progress attributes(sl_chat_parser *p, bool end)
{
    const char *stop = cp_find(p, 0, "\">"), *key, *string;
    size_t n, n_string;
    if (!stop)
        return cp_incomplete(p, true, end);
    size_t head = (size_t)(stop - p->pend.p) + 2;
    if (cp_too_long(head) || !cp_attribute(p->pend.p, head, " name=\"", &key, &n))
        return cp_give_up(p);
    bool typed = cp_attribute(p->pend.p, head, " string=\"", &string, &n_string);
    begin_value(p, key, n, typed && n_string == 4 && memcmp(string, "true", 4) == 0 ? CT_STRING : CT_ANY);
    cp_consume(p, head);
    return MOVED;
}

/* <arg_key>k</arg_key> <arg_value> */
static progress pairs(sl_chat_parser *p, bool end)
{
    const ct_syntax *s = p->syn;
    const char *close = cp_find(p, 0, s->key_close);
    if (!close)
        return cp_incomplete(p, true, end);
    const char *key = p->pend.p + strlen(s->arg_open);
    size_t at = (size_t)(close - p->pend.p) + strlen(s->key_close);
    while (at < p->pend.n && cp_is_space(p->pend.p[at]))
        at++;
    size_t rest = p->pend.n - at, most = strlen(s->value_open);
    if (memcmp(p->pend.p + at, s->value_open, rest < most ? rest : most) != 0)
        return cp_give_up(p);
    if (rest < most)
        return cp_incomplete(p, true, end);
    if (cp_too_long(at + most))
        return cp_give_up(p);
    size_t n = (size_t)(close - key);
    begin_value(p, key, n, schema_types(p, key, n));
    cp_consume(p, at + most);
    return MOVED;
}

/* The key up to ">" after arg_open; ARG_NAMED remembers the tag that closes it. */
static progress named(sl_chat_parser *p, bool end)
{
    size_t open = strlen(p->syn->arg_open);
    const char *stop = cp_find(p, open, ">");
    if (!stop)
        return cp_incomplete(p, true, end);
    const char *key = p->pend.p + open;
    size_t n = (size_t)(stop - key), head = open + n + 1;
    if (cp_too_long(head) || n == 0 || key[0] == '/' || memchr(key, '<', n))
        return cp_give_up(p);
    begin_value(p, key, n, schema_types(p, key, n));
    p->key.n = 0;
    ct_add(&p->key, key, n);
    cp_consume(p, head);
    return MOVED;
}

progress cp_argument(sl_chat_parser *p, bool end)
{
    switch (p->syn->args) {
    case ARG_ATTRIBUTES:
        return attributes(p, end);
    case ARG_PAIRS:
        return pairs(p, end);
    case ARG_EQUALS:
    case ARG_NAMED:
        break;
    }
    return named(p, end);
}

/* ---- values ---- */

/* ARG_EQUALS: the line break after the tag belongs to the tag. False: it is not known yet whether there is one. */
static bool begin_line(sl_chat_parser *p, bool end)
{
    if (!p->value_begins)
        return true;
    if (p->pend.n == 0 && !end)
        return false;
    if (p->pend.n && p->pend.p[0] == '\n')
        cp_consume(p, 1);
    p->value_begins = false;
    return true;
}

/* pend[0..n) is followed by the tag that closes the value, or may be: without the line break that belongs to the tag. */
static size_t before_line(const sl_chat_parser *p, size_t n)
{
    return p->syn->args == ARG_EQUALS && n && p->pend.p[n - 1] == '\n' ? n - 1 : n;
}

typedef struct value_end {
    bool found;
    size_t n;     /* bytes of pend that belong to the value whatever comes */
    size_t taken; /* found: bytes up to the end of the tag that closes it */
} value_end;

/* now: what belongs to the value is wanted even if its end has not come. */
static value_end find_end(sl_chat_parser *p, bool now)
{
    const char *close = p->syn->value_close;
    size_t size = close ? strlen(close) : sizeof CT_M3 - 1 + p->key.n + 3,
           back = p->scanned < size ? p->scanned : size;
    const char *hit = close ? cp_find(p, p->scanned - back, close) : cp_named_end(p, p->st == ST_JSON);
    if (close)
        p->scanned = p->pend.n;
    if (!hit && !now)
        return (value_end){.found = false};
    size_t n =
        hit ? (size_t)(hit - p->pend.p) : p->pend.n - (close ? cp_open_tail(p, close) : cp_named_tail(p));
    return (value_end){hit != NULL, before_line(p, n), hit ? n + size : 0};
}

progress cp_string(sl_chat_parser *p, bool end)
{
    if (!begin_line(p, end))
        return WAIT;
    value_end e = find_end(p, true);
    ct_escaped(&p->out, p->pend.p, e.n);
    if (e.found || end)
        ct_str(&p->out, "\"");
    cp_emit_args(p);
    if (!e.found && !end) {
        cp_consume(p, e.n);
        p->scanned = 0;
        return WAIT;
    }
    cp_consume(p, e.found ? e.taken : p->pend.n);
    p->st = ST_CALL;
    return MOVED;
}

/* How Python writes what JSON writes otherwise; NULL: it does not. Only where a string is not allowed. */
static const char *python_word(const char *text, size_t len, unsigned types)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < SL_COUNT(words) && !(types & CT_STRING); i++) {
        if (len == strlen(words[i][0]) && memcmp(text, words[i][0], len) == 0)
            return words[i][1];
    }
    return NULL;
}

void cp_add_value(ct_buf *out, const char *text, size_t len, unsigned types)
{
    size_t from = 0, to = len;
    while (from < to && cp_is_space(text[from]))
        from++;
    while (to > from && cp_is_space(text[to - 1]))
        to--;
    const char *word = python_word(text + from, to - from, types);
    bool deep = !word && sl_json_measure(text + from, to - from).depth > DEPTH_MAX;
    json_t *v = deep || word ? NULL
                             : json_loadb(text + from, to - from,
                                          JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    bool copied = v && (ct_type_of(v) & types || !(types & CT_STRING));
    json_decref(v);
    if (word) {
        ct_str(out, word);
    } else if (copied) {
        ct_add(out, text + from, to - from);
    } else {
        ct_str(out, "\"");
        ct_escaped(out, text, len);
        ct_str(out, "\"");
    }
}

progress cp_value(sl_chat_parser *p, bool end)
{
    if (!begin_line(p, end))
        return WAIT;
    value_end e = find_end(p, end);
    if (!e.found && !end)
        return WAIT;
    const char *text = p->pend.p ? p->pend.p : "";
    if (p->syn->args == ARG_NAMED)
        cp_add_nested(p, text, e.n);
    else
        cp_add_value(&p->out, text, e.n, p->types);
    cp_emit_args(p);
    cp_consume(p, e.found ? e.taken : p->pend.n);
    p->st = ST_CALL;
    return MOVED;
}
