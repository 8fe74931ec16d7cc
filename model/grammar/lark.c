/*
 * CHOICE and GBNF in llguidance's form of Lark; see grammar.h.
 *
 * GBNF, as llama.cpp and SGLang's `ebnf` write it:
 *
 *   rules     name ::= alternative | alternative ...      a rule ends where the next "name ::=" begins
 *   items     "text"  [a-z]  [^a-z]  .  name  ( ... )     each with * + ? {n} {n,} {n,m} after it
 *   escapes   \n \r \t \\ \" \[ \] \- \^ \xNN \uNNNN \UNNNNNNNN
 *   # begins a comment up to the end of the line
 *
 * The text is read once from left to right and written as it is read: the time is linear in its bytes. Names are written with
 * small letters, because capital ones are terminals in Lark; different names stay different.
 */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/strbuf.h"
#include "model/grammar.h"

enum { NESTING_MAX = 64, REPEAT_MAX = 10000 };

typedef struct reader {
    const char *at, *end, *begin;
    sl_strbuf out;
    int depth;
    sl_err *err;
} reader;

static sl_status wrong(reader *r, const char *what)
{
    int line = 1;
    for (const char *c = r->begin; c < r->at; c++)
        line += *c == '\n';
    return sl_fail(r->err, SL_ERR_INVALID, "grammar, line %d: %s", line, what);
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Space, line ends and comments. */
static void skip(reader *r)
{
    while (r->at < r->end) {
        if (*r->at == '#')
            while (r->at < r->end && *r->at != '\n')
                r->at++;
        else if (strchr(" \t\r\n", *r->at) && *r->at)
            r->at++;
        else
            return;
    }
}

static size_t name_length(const reader *r)
{
    size_t n = 0;
    while (r->at + n < r->end && is_name(r->at[n]))
        n++;
    return n;
}

/* Whether a rule begins at the name of n bytes. */
static bool begins_rule(const reader *r, size_t n)
{
    const char *c = r->at + n;
    while (c < r->end && (*c == ' ' || *c == '\t'))
        c++;
    return r->end - c >= 3 && memcmp(c, "::=", 3) == 0;
}

static void write_name(reader *r, size_t n)
{
    if (n == 4 && memcmp(r->at, "root", 4) == 0) {
        sl_sb_str(&r->out, "start");
        r->at += n;
        return;
    }
    sl_sb_str(&r->out, "r_");
    for (; n > 0; n--, r->at++) {
        const char c = *r->at;
        if (c == '-' || c == '_' || (c >= 'A' && c <= 'Z'))
            sl_sb_char(&r->out, '_');
        sl_sb_char(&r->out, c == '-' ? '0' : c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c);
    }
}

/* ---- characters ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static sl_status read_hex(reader *r, int digits, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        const int d = r->at < r->end ? hex_digit(*r->at) : -1;
        if (d < 0)
            return wrong(r, "an escape has too few hexadecimal digits");
        *out = *out << 4 | (uint32_t)d;
    }
    return SL_OK;
}

/* The code point after a backslash. */
static sl_status read_escape(reader *r, uint32_t *out)
{
    static const char letters[] = "nrt\\\"[]-^'/";
    static const char values[] = "\n\r\t\\\"[]-^'/";
    if (r->at >= r->end)
        return wrong(r, "the text ends within an escape");
    const char c = *r->at++;
    const char *found = c ? strchr(letters, c) : NULL;
    if (found) {
        *out = (uint32_t)values[found - letters];
        return SL_OK;
    }
    if (c == 'x' || c == 'u' || c == 'U')
        return read_hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    return wrong(r, "an escape is not known");
}

/* One character of a literal or a class as a code point; the bytes of UTF-8 are kept together. */
static sl_status read_char(reader *r, uint32_t *out)
{
    unsigned char c = (unsigned char)*r->at++;
    if (c == '\\')
        return read_escape(r, out);
    const int more = c < 0x80 ? 0 : c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : -1;
    if (more < 0)
        return wrong(r, "a byte is not UTF-8");
    *out = more ? c & (0x3fu >> more) : c;
    for (int i = 0; i < more; i++, r->at++) {
        if (r->at >= r->end || ((unsigned char)*r->at & 0xc0) != 0x80)
            return wrong(r, "a byte is not UTF-8");
        *out = *out << 6 | ((unsigned char)*r->at & 0x3fu);
    }
    return SL_OK;
}

/* As an escape of the crate regex, which is understood inside and outside of classes. */
static sl_status write_code_point(reader *r, uint32_t c)
{
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return wrong(r, "a character is outside Unicode");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
        sl_sb_char(&r->out, (char)c);
    else
        sl_sb_printf(&r->out, "\\x{%x}", c);
    return SL_OK;
}

/* ---- items ---- */

static sl_status read_literal(reader *r)
{
    r->at++;
    if (r->at < r->end && *r->at == '"') {
        r->at++;
        sl_sb_str(&r->out, "\"\"");
        return SL_OK;
    }
    sl_sb_char(&r->out, '/');
    while (r->at < r->end && *r->at != '"') {
        uint32_t c;
        SL_TRY(read_char(r, &c));
        SL_TRY(write_code_point(r, c));
    }
    if (r->at >= r->end)
        return wrong(r, "a text in quotes does not end");
    r->at++;
    sl_sb_char(&r->out, '/');
    return SL_OK;
}

static sl_status read_range(reader *r)
{
    uint32_t first, last;
    SL_TRY(read_char(r, &first));
    SL_TRY(write_code_point(r, first));
    if (r->end - r->at < 2 || r->at[0] != '-' || r->at[1] == ']')
        return SL_OK;
    r->at++;
    SL_TRY(read_char(r, &last));
    if (last < first)
        return wrong(r, "a range of characters ends before it begins");
    sl_sb_char(&r->out, '-');
    return write_code_point(r, last);
}

static sl_status read_class(reader *r)
{
    r->at++;
    sl_sb_str(&r->out, "/[");
    if (r->at < r->end && *r->at == '^') {
        sl_sb_char(&r->out, '^');
        r->at++;
    }
    if (r->at < r->end && *r->at == ']')
        return wrong(r, "a class of characters is empty");
    while (r->at < r->end && *r->at != ']')
        SL_TRY(read_range(r));
    if (r->at >= r->end)
        return wrong(r, "a class of characters does not end");
    r->at++;
    sl_sb_str(&r->out, "]/");
    return SL_OK;
}

static sl_status read_number(reader *r, int32_t *out)
{
    if (r->at >= r->end || *r->at < '0' || *r->at > '9')
        return wrong(r, "braces want {n}, {n,} or {n,m}");
    for (*out = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
        *out = *out * 10 + (*r->at - '0');
        if (*out > REPEAT_MAX)
            return wrong(r, "a repetition exceeds 10000");
    }
    return SL_OK;
}

static sl_status read_braces(reader *r)
{
    int32_t least, most = -1;
    bool open = false;
    r->at++;
    SL_TRY(read_number(r, &least));
    if (r->at < r->end && *r->at == ',') {
        r->at++;
        open = r->at < r->end && *r->at == '}';
        if (!open)
            SL_TRY(read_number(r, &most));
    } else {
        most = least;
    }
    if (r->at >= r->end || *r->at != '}' || (!open && most < least))
        return wrong(r, "braces want {n}, {n,} or {n,m}");
    r->at++;
    if (open)
        sl_sb_printf(&r->out, "{%d,}", least);
    else
        sl_sb_printf(&r->out, "{%d,%d}", least, most);
    return SL_OK;
}

static sl_status read_repeats(reader *r)
{
    while (r->at < r->end) {
        if (*r->at == '*' || *r->at == '+' || *r->at == '?')
            sl_sb_char(&r->out, *r->at++);
        else if (*r->at == '{')
            SL_TRY(read_braces(r));
        else
            break;
    }
    return SL_OK;
}

static sl_status read_alternatives(reader *r);

static sl_status read_group(reader *r)
{
    if (++r->depth > NESTING_MAX)
        return wrong(r, "parentheses are nested too deeply");
    r->at++;
    sl_sb_char(&r->out, '(');
    SL_TRY(read_alternatives(r));
    if (r->at >= r->end || *r->at != ')')
        return wrong(r, "a parenthesis is not closed");
    r->at++;
    r->depth--;
    sl_sb_char(&r->out, ')');
    return SL_OK;
}

static sl_status read_item(reader *r)
{
    const size_t n = name_length(r);
    if (n > 0)
        write_name(r, n);
    else if (*r->at == '"')
        SL_TRY(read_literal(r));
    else if (*r->at == '[')
        SL_TRY(read_class(r));
    else if (*r->at == '(')
        SL_TRY(read_group(r));
    else if (*r->at == '.') {
        r->at++;
        sl_sb_str(&r->out, "/(?s:.)/");
    } else {
        return wrong(r, "want a text in quotes, a class of characters, a name or a parenthesis");
    }
    return read_repeats(r);
}

/* Whether the sequence ends here: an alternative, a parenthesis, the next rule, or the text's end follows. */
static bool at_end(const reader *r)
{
    if (r->at >= r->end || *r->at == '|' || *r->at == ')')
        return true;
    const size_t n = name_length(r);
    return n > 0 && begins_rule(r, n);
}

static sl_status read_alternatives(reader *r)
{
    for (;;) {
        skip(r);
        if (at_end(r))
            sl_sb_str(&r->out, "\"\"");
        while (!at_end(r)) {
            SL_TRY(read_item(r));
            sl_sb_char(&r->out, ' ');
            skip(r);
        }
        if (r->at >= r->end || *r->at != '|')
            return SL_OK;
        r->at++;
        sl_sb_str(&r->out, "| ");
    }
}

static sl_status read_rules(reader *r)
{
    for (skip(r); r->at < r->end; skip(r)) {
        const size_t n = name_length(r);
        if (n == 0 || !begins_rule(r, n))
            return wrong(r, "want a rule: name ::= ...");
        write_name(r, n);
        r->at = (const char *)memchr(r->at, '=', (size_t)(r->end - r->at)) + 1;
        sl_sb_str(&r->out, ": ");
        SL_TRY(read_alternatives(r));
        if (r->at < r->end && *r->at == ')')
            return wrong(r, "a parenthesis is closed that was not opened");
        sl_sb_char(&r->out, '\n');
    }
    return SL_OK;
}

/* ---- choices ---- */

static sl_status write_choices(const char *text, size_t len, sl_strbuf *out, sl_err *err)
{
    json_error_t why;
    sl_status st = SL_OK;
    json_t *list = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why), *item;
    size_t i;
    if (!list)
        return sl_fail(err, SL_ERR_INVALID, "choice: not JSON: %.200s", why.text);
    if (!json_is_array(list) || json_array_size(list) == 0)
        st = sl_fail(err, SL_ERR_INVALID, "choice: want a list of at least one text");
    sl_sb_str(out, "start: ");
    json_array_foreach(list, i, item)
    {
        if (!json_is_string(item) || json_string_length(item) == 0)
            st = sl_fail(err, SL_ERR_INVALID, "choice: entry %zu is no text, or an empty one", i);
        if (st != SL_OK)
            break;
        sl_sb_str(out, i ? " | " : "");
        sl_sb_json(out, json_string_value(item), json_string_length(item));
    }
    sl_sb_char(out, '\n');
    json_decref(list);
    return st;
}

sl_status sl_grammar_lark(sl_grammar_kind kind, const char *text, size_t len, char **out, sl_err *err)
{
    reader r = {.at = text, .begin = text, .end = text + len, .err = err};
    sl_status st = kind == SL_GRAMMAR_CHOICE ? write_choices(text, len, &r.out, err) : read_rules(&r);
    if (st == SL_OK && r.out.len == 0)
        st = sl_fail(err, SL_ERR_INVALID, "grammar: it has no rules");
    char *made = st == SL_OK ? sl_sb_take(&r.out) : NULL;
    if (st == SL_OK && !made)
        st = sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a grammar");
    if (st == SL_OK)
        *out = made;
    sl_sb_free(&r.out);
    return st;
}
