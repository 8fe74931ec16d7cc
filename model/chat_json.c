/*
 * JSON text as Python's json.dumps(ensure_ascii=False) writes it, because the models were trained on prompts made by
 * that function: ", " and ": " as separators, and for a float the shortest decimal number that reads back as the same
 * value.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/chat_impl.h"

void ct_add(ct_buf *b, const char *text, size_t len)
{
    if (b->bad)
        return;
    if (b->cap - b->n < len + 1) {
        b->bad = sl_guard_check(b->guard, NULL) ||
                 sl_guard_grow(b->guard, (void **)&b->p, &b->cap, b->n + len + 1, 1, NULL);
        if (b->bad)
            return;
    }
    if (len)
        memcpy(b->p + b->n, text, len);
    b->n += len;
    b->p[b->n] = '\0';
}

void ct_str(ct_buf *b, const char *text)
{
    ct_add(b, text, strlen(text));
}

void ct_escaped(ct_buf *b, const char *text, size_t len)
{
    static const char names[] = "btn?fr";
    size_t done = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        char esc[8] = {'\\', (char)c, 0};
        if (c >= 8 && c <= 13 && c != 11)
            esc[1] = names[c - 8];
        else if (c < 0x20)
            snprintf(esc, sizeof esc, "\\u%04x", c);
        ct_add(b, text + done, i - done);
        ct_str(b, esc);
        done = i + 1;
    }
    ct_add(b, text + done, len - done);
}

static void add_real(ct_buf *b, double x)
{
    char text[40];
    sl_py_float(x, text, sizeof text);
    ct_str(b, text);
}

static void add_string(ct_buf *b, const char *text, size_t len)
{
    ct_str(b, "\"");
    ct_escaped(b, text, len);
    ct_str(b, "\"");
}

/* indent: spaces per level, 0: all in one line. depth: the level of what is written. */
static void add_value(ct_buf *b, const json_t *value, int indent, int depth);

static void new_line(ct_buf *b, int indent, int depth)
{
    if (!indent)
        return;
    ct_str(b, "\n");
    for (int i = 0; i < indent * depth; i++)
        ct_str(b, " ");
}

static void add_object(ct_buf *b, const json_t *value, int indent, int depth)
{
    const char *key;
    json_t *v;
    bool first = true;
    ct_str(b, "{");
    json_object_foreach((json_t *)value, key, v)
    {
        ct_str(b, first ? "" : indent ? "," : ", ");
        new_line(b, indent, depth + 1);
        add_string(b, key, strlen(key));
        ct_str(b, ": ");
        add_value(b, v, indent, depth + 1);
        first = false;
    }
    if (!first)
        new_line(b, indent, depth);
    ct_str(b, "}");
}

static void add_array(ct_buf *b, const json_t *value, int indent, int depth)
{
    size_t i;
    json_t *v;
    ct_str(b, "[");
    json_array_foreach(value, i, v)
    {
        ct_str(b, !i ? "" : indent ? "," : ", ");
        new_line(b, indent, depth + 1);
        add_value(b, v, indent, depth + 1);
    }
    if (json_array_size(value))
        new_line(b, indent, depth);
    ct_str(b, "]");
}

static void add_value(ct_buf *b, const json_t *value, int indent, int depth)
{
    char number[32];
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        add_object(b, value, indent, depth);
        break;
    case JSON_ARRAY:
        add_array(b, value, indent, depth);
        break;
    case JSON_STRING:
        add_string(b, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        ct_str(b, number);
        break;
    case JSON_REAL:
        add_real(b, json_real_value(value));
        break;
    case JSON_TRUE:
        ct_str(b, "true");
        break;
    case JSON_FALSE:
        ct_str(b, "false");
        break;
    case JSON_NULL:
        ct_str(b, "null");
        break;
    }
}

void ct_json(ct_buf *b, const json_t *value)
{
    add_value(b, value, 0, 0);
}

void ct_json_indented(ct_buf *b, const json_t *value)
{
    add_value(b, value, 4, 0);
}

char *sl_chat_json_dumps(const json_t *value)
{
    ct_buf b = {0};
    ct_json(&b, value);
    if (b.bad) {
        free(b.p);
        return NULL;
    }
    return b.p;
}
