/*
 * The fields of a log line: a small printf that knows which parts of its output are trusted. The format is a literal
 * of the program; the text of %s and %c may be a client's, so it is escaped and quoted here once, instead of by every
 * caller. Numbers are left to snprintf.
 */
#include "base/log_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void sl_log_put(sl_log_text *t, const char *bytes, size_t n)
{
    t->full = t->full || n > t->cap - t->len;
    if (t->full)
        return;
    memcpy(t->buf + t->len, bytes, n);
    t->len += n;
}

void sl_log_put_run(sl_log_text *t, const char *bytes, size_t n)
{
    size_t room = t->cap - t->len;
    if (t->full)
        return;
    t->full = n > room;
    n = n > room ? room : n;
    memcpy(t->buf + t->len, bytes, n);
    t->len += n;
}

void sl_log_put_str(sl_log_text *t, const char *s)
{
    sl_log_put(t, s, strlen(s));
}

size_t sl_log_printable(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (u[0] < 0x80)
        return u[0] >= 0x20 && u[0] != 0x7f;
    size_t len = u[0] >= 0xf0 && u[0] < 0xf8 ? 4 : u[0] >= 0xe0 ? 3 : u[0] >= 0xc0 ? 2 : 0;
    if (len == 0 || u[0] >= 0xf8 || len > n)
        return 0;
    uint32_t c = u[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((u[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (u[i] & 0x3f);
    }
    bool valid = c >= least[len] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);
    return valid && c >= 0xa0 && c != 0x2028 && c != 0x2029 ? len : 0;
}

/* The number of leading characters that are written as they are: ASCII without controls, quotes and backslashes. */
static size_t plain_run(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && s[i] >= 0x20 && s[i] < 0x7f && s[i] != '"' && s[i] != '\\')
        i++;
    return i;
}

static void put_escaped(sl_log_text *t, const char *s, size_t n)
{
    for (size_t i = 0; i < n && !t->full;) {
        size_t run = plain_run(s + i, n - i);
        if (run) {
            sl_log_put_run(t, s + i, run);
            i += run;
            continue;
        }
        size_t len = sl_log_printable(s + i, n - i);
        char esc[8];
        if (s[i] == '"' || s[i] == '\\') {
            esc[0] = '\\', esc[1] = s[i];
            sl_log_put(t, esc, 2);
        } else if (len) {
            sl_log_put(t, s + i, len);
        } else {
            snprintf(esc, sizeof esc, "\\x%02x", (unsigned)(unsigned char)s[i]);
            sl_log_put(t, esc, 4);
        }
        i += len ? len : 1;
    }
}

/* Whether a value would not be read as one value unless it is quoted. */
static bool needs_quotes(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t len = sl_log_printable(s + i, n - i);
        if (!len || s[i] == ' ' || s[i] == '"' || s[i] == '\\')
            return true;
        i += len;
    }
    return n == 0;
}

static void put_value(sl_log_text *t, const char *s, size_t n, bool quoted)
{
    bool quote = !quoted && t->len > 0 && t->buf[t->len - 1] == '=' && needs_quotes(s, n);
    if (quote)
        sl_log_put(t, "\"", 1);
    put_escaped(t, s, n);
    if (quote)
        sl_log_put(t, "\"", 1);
}

/* One conversion. `spec` is its text with '*' replaced by numbers, `size` its length modifier ("", "l", "ll", "z"…). */
typedef struct conversion {
    char spec[40];
    char size[3];
    int precision; /* -1: none */
    char kind;
} conversion;

/* Reads the conversion after a '%' and returns the rest of the format. */
static const char *parse(const char *f, conversion *c, va_list *ap)
{
    char spec[sizeof c->spec] = "%";
    size_t n = 1;
    *c = (conversion){.precision = -1};
    for (; *f && strchr("-+ #0123456789.*", *f) && n < 16; f++) {
        if (*f == '*') {
            int v = va_arg(*ap, int);
            n += (size_t)snprintf(spec + n, 12, "%d", v);
            c->precision = spec[1] && strchr(spec, '.') ? v : c->precision;
        } else {
            spec[n++] = *f;
        }
    }
    const char *dot = strchr(spec, '.');
    if (dot && c->precision < 0)
        for (c->precision = 0; dot[1] >= '0' && dot[1] <= '9'; dot++)
            c->precision = c->precision * 10 + (dot[1] - '0');
    for (size_t i = 0; *f && strchr("hljzt", *f) && i < 2; i++)
        c->size[i] = spec[n++] = *f++;
    c->kind = spec[n++] = *f;
    memcpy(c->spec, spec, sizeof c->spec);
    return *f ? f + 1 : f;
}

static void put_integer(sl_log_text *t, const conversion *c, va_list *ap)
{
    char out[64];
    const char *z = c->size;
    if (!strcmp(z, "ll"))
        snprintf(out, sizeof out, c->spec, va_arg(*ap, long long));
    else if (!strcmp(z, "l"))
        snprintf(out, sizeof out, c->spec, va_arg(*ap, long));
    else if (!strcmp(z, "z"))
        snprintf(out, sizeof out, c->spec, va_arg(*ap, size_t));
    else if (!strcmp(z, "j"))
        snprintf(out, sizeof out, c->spec, va_arg(*ap, intmax_t));
    else if (!strcmp(z, "t"))
        snprintf(out, sizeof out, c->spec, va_arg(*ap, ptrdiff_t));
    else
        snprintf(out, sizeof out, c->spec, va_arg(*ap, int));
    sl_log_put_str(t, out);
}

static void put_conversion(sl_log_text *t, const conversion *c, bool quoted, va_list *ap)
{
    char out[400];
    switch (c->kind) {
    case '%':
        sl_log_put(t, "%", 1);
        return;
    case 's': {
        const char *s = va_arg(*ap, const char *);
        s = s ? s : "(null)";
        put_value(t, s, c->precision >= 0 ? strnlen(s, (size_t)c->precision) : strlen(s), quoted);
        return;
    }
    case 'c':
        out[0] = (char)va_arg(*ap, int);
        put_value(t, out, 1, quoted);
        return;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        put_integer(t, c, ap);
        return;
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
        snprintf(out, sizeof out, c->spec, va_arg(*ap, double));
        sl_log_put_str(t, out);
        return;
    case 'p':
        snprintf(out, sizeof out, "%p", va_arg(*ap, void *));
        sl_log_put_str(t, out);
        return;
    }
    /* An unknown conversion: the types of the arguments from here on are unknown, so none of them is read. */
    sl_log_put_str(t, "(format)");
    t->full = true;
}

void sl_log_fields(sl_log_text *t, const char *fmt, va_list args)
{
    bool quoted = false;
    va_list ap;
    va_copy(ap, args);
    while (*fmt && !t->full) {
        if (*fmt == '%') {
            conversion c;
            fmt = parse(fmt + 1, &c, &ap);
            put_conversion(t, &c, quoted, &ap);
            continue;
        }
        size_t run = strcspn(fmt, "%\\\"");
        if (run) {
            sl_log_put_run(t, fmt, run);
            fmt += run;
            continue;
        }
        quoted ^= *fmt == '"';
        if (*fmt == '\\' && fmt[1])
            sl_log_put(t, fmt++, 1);
        sl_log_put(t, fmt++, 1);
    }
    va_end(ap);
}
