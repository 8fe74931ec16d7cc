/*
 * A string that grows: its capacity is doubled when necessary, and the text always ends with a NUL.
 */
#include "base/strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for n more bytes and the terminator. */
static bool grow(sl_strbuf *sb, size_t n)
{
    if (sb->bad || n > SIZE_MAX / 4 - sb->len) {
        sb->bad = true;
        return false;
    }
    if (sb->len + n + 1 <= sb->cap)
        return true;
    size_t cap = sb->cap ? sb->cap : 128;
    while (cap < sb->len + n + 1)
        cap *= 2;
    char *data = realloc(sb->data, cap);
    if (!data) {
        sb->bad = true;
        return false;
    }
    sb->data = data;
    sb->cap = cap;
    return true;
}

void sl_sb_append(sl_strbuf *sb, const char *bytes, size_t n)
{
    if (!grow(sb, n))
        return;
    if (n)
        memcpy(sb->data + sb->len, bytes, n);
    sb->len += n;
    sb->data[sb->len] = '\0';
}

void sl_sb_str(sl_strbuf *sb, const char *s)
{
    sl_sb_append(sb, s, strlen(s));
}

void sl_sb_char(sl_strbuf *sb, char c)
{
    sl_sb_append(sb, &c, 1);
}

void sl_sb_json(sl_strbuf *sb, const char *text, size_t n)
{
    static const char letters[] = {['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    sl_sb_char(sb, '"');
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        sl_sb_append(sb, text + from, i - from);
        from = i + 1;
        if (c >= 0x20)
            sl_sb_append(sb, (const char[]){'\\', (char)c}, 2);
        else if (c < sizeof letters && letters[c])
            sl_sb_append(sb, (const char[]){'\\', letters[c]}, 2);
        else
            sl_sb_printf(sb, "\\u%04X", c);
    }
    sl_sb_append(sb, text + from, n - from);
    sl_sb_char(sb, '"');
}

void sl_sb_printf(sl_strbuf *sb, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !grow(sb, (size_t)n)) {
        sb->bad = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(sb->data + sb->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    sb->len += (size_t)n;
}

char *sl_sb_take(sl_strbuf *sb)
{
    sl_sb_append(sb, "", 0);
    if (sb->bad) {
        sl_sb_free(sb);
        return NULL;
    }
    char *text = sb->data;
    *sb = (sl_strbuf){0};
    return text;
}

void sl_sb_free(sl_strbuf *sb)
{
    free(sb->data);
    *sb = (sl_strbuf){0};
}
