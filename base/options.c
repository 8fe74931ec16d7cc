/*
 * Options, see options.h: converts the text of a value to a field, for every type, and describes what an option accepts.
 * Defaults, files, `--set` and flags use the same code. The names that an option of type SL_OPTION_CHOICE accepts are those
 * of its registry, which is bound at start.
 */
#include "base/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/wire.h"

enum {
    ITEM_MAX = SL_OPTION_ITEM_BYTES + 1
}; /* one more than an entry of a list, so that what is too long stays so */

bool sl_option_is_list(const sl_option *o)
{
    return o->type == SL_OPTION_INTS || o->type == SL_OPTION_ENUMS || o->type == SL_OPTION_TEXTS;
}

/* ---- names ---- */

static const sl_config_choice *choices; /* see sl_options_bind: set once, before threads */

void sl_options_bind(const sl_config_choice *table)
{
    choices = table;
}

static const char *const *bound_names(const char *key)
{
    for (const sl_config_choice *c = choices; c && c->key; c++)
        if (!strcmp(c->key, key))
            return c->names();
    return NULL;
}

const char *const *sl_option_names(const sl_option *o)
{
    return o->list ? o->list() : o->names;
}

/* ---- what an option accepts ---- */

/* Appends to a list of names. */
static void join_names(const char *const *names, char *buf, size_t n)
{
    size_t len = strlen(buf);
    for (; names && *names && len < n; names++)
        len += (size_t)snprintf(buf + len, n - len, "%s%s", len ? ", " : "", *names);
}

static void size_text(uint64_t v, char *buf, size_t n)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    while (v && v % 1024 == 0 && u + 1 < SL_COUNT(units)) {
        v /= 1024;
        u++;
    }
    snprintf(buf, n, "%llu%s", (unsigned long long)v, units[u]);
}

const char *sl_option_describe(const sl_option *o, char *buf, size_t n)
{
    char names[256] = "", lo[32], hi[32];
    long long min = o->min, max = o->max;
    switch (o->type) {
    case SL_OPTION_TEXT:
        snprintf(buf, n, "text, at most %zu bytes", o->size - 1);
        break;
    case SL_OPTION_INT:
        snprintf(buf, n, "%s%sinteger, %lld to %lld", o->names ? o->names[0] : "", o->names ? " or " : "",
                 min, max);
        break;
    case SL_OPTION_FLOAT:
        snprintf(buf, n, "number, %lld to %lld", min, max);
        break;
    case SL_OPTION_SIZE:
        size_text((uint64_t)o->min, lo, sizeof lo);
        size_text((uint64_t)o->max, hi, sizeof hi);
        snprintf(buf, n, "bytes, as 4096, 64K or 64KiB, %s to %s", lo, hi);
        break;
    case SL_OPTION_BOOL:
        snprintf(buf, n, "true or false");
        break;
    case SL_OPTION_INTS:
        snprintf(buf, n, "list of integers, %lld to %lld", min, max);
        break;
    case SL_OPTION_TEXTS:
        snprintf(buf, n, "list of texts, each at most %d bytes", SL_OPTION_ITEM_BYTES - 1);
        break;
    case SL_OPTION_ENUM:
    case SL_OPTION_ENUMS:
        join_names(sl_option_names(o), names, sizeof names);
        snprintf(buf, n, "%s: %s", o->type == SL_OPTION_ENUM ? "one of" : "list of", names);
        break;
    case SL_OPTION_CHOICE:
        join_names(o->names, names, sizeof names);
        join_names(bound_names(o->name), names, sizeof names);
        snprintf(buf, n, "one of: %s", names);
        break;
    }
    return buf;
}

/* The error of every refused value: the value, unless it is secret, the reason, and what the o accepts. */
static sl_status reject(const sl_option *o, const char *text, const char *why, sl_err *err)
{
    char want[320];
    sl_option_describe(o, want, sizeof want);
    if ((o->flags & SL_OPTION_SECRET))
        return sl_fail(err, SL_ERR_INVALID, "value %s (want %s)", why, want);
    return sl_fail(err, SL_ERR_INVALID, "\"%.64s%s\" %s (want %s)", text, strlen(text) > 64 ? "..." : "", why,
                   want);
}

/* Whether UTF-8 text has a character that YAML cannot represent or treats as the end of a line: C0, DEL, C1, U+2028,
 * U+2029, U+FFFE, U+FFFF. Such a value would not be the same after a dump. */
static bool has_control(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0))
            return true;
        if (*p == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9))
            return true;
        if (*p == 0xef && p[1] == 0xbf && p[2] >= 0xbe)
            return true;
    }
    return false;
}

static sl_status parse_string(char *out, const sl_option *o, const char *text, sl_err *err)
{
    if (has_control(text))
        return reject(o, "", "has a control character", err);
    if (strlen(text) >= o->size)
        return reject(o, text, "is too long", err);
    memset(out, 0, o->size);
    memcpy(out, text, strlen(text));
    return SL_OK;
}

static sl_status parse_int(int *out, const sl_option *o, const char *text, sl_err *err)
{
    char *end;
    if (o->names && strcmp(text, o->names[0]) == 0) {
        *out = 0;
        return SL_OK;
    }
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || strchr(" \t+", text[0]))
        return reject(o, text, "is not an integer", err);
    if (errno == ERANGE || v < o->min || v > o->max)
        return reject(o, text, "is out of bounds", err);
    *out = (int)v;
    return SL_OK;
}

/* Number with an optional unit; false: it is none. *shift: log2 of the unit. */
static bool split_bytes(const char *text, long double *number, int *shift)
{
    static const char letters[] = "kmgtp";
    size_t digits = strspn(text, "0123456789");
    char *end;
    if (!digits)
        return false;
    *number = strtold(text, &end);
    digits += text[digits] == '.' ? 1 + strspn(text + digits + 1, "0123456789") : 0;
    if (end != text + digits || end[-1] == '.')
        return false;
    while (*end == ' ')
        end++;
    const char *unit = *end ? strchr(letters, *end | 0x20) : NULL;
    *shift = unit ? 10 * (int)(unit - letters + 1) : 0;
    end += unit != NULL;
    return !*end || !strcasecmp(end, unit ? "ib" : "b");
}

bool sl_parse_bytes(const char *text, uint64_t *out)
{
    long double v;
    int shift;
    if (!split_bytes(text, &v, &shift))
        return false;
    v *= (long double)(1ull << shift);
    if (v > (long double)UINT64_MAX || v != floorl(v))
        return false;
    *out = (uint64_t)v;
    return true;
}

static sl_status parse_size(uint64_t *out, const sl_option *o, const char *text, sl_err *err)
{
    long double number;
    int shift;
    uint64_t v;
    if (!split_bytes(text, &number, &shift))
        return reject(o, text, "is not a size", err);
    if (!sl_parse_bytes(text, &v) || v < (uint64_t)o->min || v > (uint64_t)o->max)
        return reject(o, text, "is out of bounds", err);
    *out = v;
    return SL_OK;
}

static sl_status parse_float(double *out, const sl_option *o, const char *text, sl_err *err)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || text[strspn(text, "+-.0123456789eE")])
        return reject(o, text, "is not a number", err);
    if (v < (double)o->min || v > (double)o->max)
        return reject(o, text, "is out of bounds", err);
    *out = v + 0.0; /* -0 becomes 0, which is the same value and must have the same stamp */
    return SL_OK;
}

static sl_status parse_bool(bool *out, const sl_option *o, const char *text, sl_err *err)
{
    bool yes = !strcmp(text, "true"), no = !strcmp(text, "false");
    if (!yes && !no)
        return reject(o, text, "is not a boolean", err);
    *out = yes;
    return SL_OK;
}

static sl_status parse_enum(int *out, const sl_option *o, const char *text, sl_err *err)
{
    const char *const *names = sl_option_names(o);
    for (int i = 0; names[i]; i++) {
        if (!strcmp(names[i], text)) {
            *out = i;
            return SL_OK;
        }
    }
    return reject(o, text, "is not known", err);
}

static bool among(const char *const *names, const char *text)
{
    for (; names && *names; names++)
        if (!strcmp(*names, text))
            return true;
    return false;
}

/* A name in the form that registries use. Once the key is bound, the name must also exist. */
static sl_status parse_choice(char *out, const sl_option *o, const char *text, sl_err *err)
{
    const char *const *names = bound_names(o->name);
    size_t n = strlen(text);
    bool word = n && n < o->size && strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") == n &&
                strcmp(text, "null") != 0; /* in YAML it means that there is no value */
    if (!word || (names && !among(names, text) && !among(o->names, text)))
        return reject(o, text, "is not known", err);
    memset(out, 0, o->size);
    memcpy(out, text, n);
    return SL_OK;
}

/* The field of a o, by its offset. Enumerations have the size of an int, which a test checks for the whole table. */
static void *field_of(void *values, const sl_option *o)
{
    return (char *)values + o->offset;
}

sl_status sl_option_parse(void *values, const sl_option *o, const char *text, sl_err *err)
{
    void *field = field_of(values, o);
    switch (o->type) {
    case SL_OPTION_TEXT:
        return parse_string(field, o, text, err);
    case SL_OPTION_INT:
        return parse_int(field, o, text, err);
    case SL_OPTION_SIZE:
        return parse_size(field, o, text, err);
    case SL_OPTION_FLOAT:
        return parse_float(field, o, text, err);
    case SL_OPTION_BOOL:
        return parse_bool(field, o, text, err);
    case SL_OPTION_ENUM:
        return parse_enum(field, o, text, err);
    case SL_OPTION_CHOICE:
        return parse_choice(field, o, text, err);
    case SL_OPTION_INTS:
    case SL_OPTION_ENUMS:
    case SL_OPTION_TEXTS:
        break;
    }
    return reject(o, text, "is not a list", err);
}

void sl_option_clear(void *values, const sl_option *o)
{
    memset(field_of(values, o), 0, o->size);
}

static sl_status add_text(void *values, const sl_option *o, const char *text, sl_err *err)
{
    int *n = field_of(values, o);
    char(*items)[SL_OPTION_ITEM_BYTES] = (void *)(n + 1);
    size_t cap = (o->size - sizeof *n) / SL_OPTION_ITEM_BYTES;
    if ((size_t)*n >= cap)
        return sl_fail(err, SL_ERR_TOO_LARGE, "more than %zu entries", cap);
    if (!text[0])
        return reject(o, text, "is empty", err);
    if (strlen(text) >= SL_OPTION_ITEM_BYTES)
        return reject(o, text, "is too long", err);
    memcpy(items[(*n)++], text, strlen(text) + 1);
    return SL_OK;
}

sl_status sl_option_add(void *values, const sl_option *o, const char *text, sl_err *err)
{
    if (o->type == SL_OPTION_TEXTS)
        return add_text(values, o, text, err);
    int *list = field_of(values, o); /* {int n; int v[]} */
    size_t cap = o->size / sizeof(int) - 1;
    if ((size_t)list[0] >= cap)
        return sl_fail(err, SL_ERR_TOO_LARGE, "more than %zu entries", cap);
    int v;
    SL_TRY(o->type == SL_OPTION_INTS ? parse_int(&v, o, text, err) : parse_enum(&v, o, text, err));
    list[1 + list[0]++] = v;
    return SL_OK;
}

/* "a, b,c" or "[a, b]"; an empty text is an empty list. */
static sl_status parse_list(void *values, const sl_option *o, const char *text, sl_err *err)
{
    sl_option_clear(values, o);
    size_t n = strlen(text);
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    const char *end = text + n;
    while (text < end) {
        const char *comma = memchr(text, ',', (size_t)(end - text));
        const char *stop = comma ? comma : end;
        const char *a = text, *b = stop;
        while (a < b && *a == ' ')
            a++;
        while (b > a && b[-1] == ' ')
            b--;
        char item[ITEM_MAX];
        snprintf(item, sizeof item, "%.*s", (int)(b - a < ITEM_MAX ? b - a : ITEM_MAX - 1), a);
        SL_TRY(sl_option_add(values, o, item, err));
        if (comma && comma + 1 == end)
            return reject(o, "", "ends with a comma", err);
        text = comma ? comma + 1 : end;
    }
    return SL_OK;
}

sl_status sl_option_set(void *values, const sl_option *o, const char *text, sl_err *err)
{
    return sl_option_is_list(o) ? parse_list(values, o, text, err) : sl_option_parse(values, o, text, err);
}

/* ---- tables ---- */

void sl_options_default(const sl_options *t, void *values)
{
    memset(values, 0, t->bytes);
    for (size_t i = 0; i < t->n; i++) {
        sl_err err = {0};
        sl_status st = sl_option_set(values, &t->rows[i], t->rows[i].dflt, &err);
        SL_CHECK(!st, "default of %s.%s: %s", t->section, t->rows[i].name, err.text);
    }
}

const sl_option *sl_options_find(const sl_options *t, const char *name)
{
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->rows[i].name, name))
            return &t->rows[i];
    return NULL;
}

sl_status sl_options_set(const sl_options *t, void *values, const char *name, const char *text, sl_err *err)
{
    const sl_option *o = sl_options_find(t, name);
    if (!o)
        return sl_fail(err, SL_ERR_INVALID, "%.64s: %s does not have this option", name, t->name);
    sl_status st = sl_option_set(values, o, text, err);
    return st ? sl_fail_in(err, st, "%s", name) : SL_OK;
}

sl_status sl_options_read(const sl_options *t, void *values, const char *text, sl_err *err)
{
    enum { MOST = 512 };
    while (*text) {
        char name[MOST];
        size_t n = strcspn(text, ":"), eq = strcspn(text, "=");
        if (n >= sizeof name || eq >= n)
            return sl_fail(err, SL_ERR_INVALID, "\"%.64s\": want name=value", text);
        memcpy(name, text, n);
        name[n] = name[eq] = '\0';
        SL_TRY(sl_options_set(t, values, name, name + eq + 1, err));
        text += n + (text[n] == ':');
    }
    return SL_OK;
}

double sl_options_number(const sl_options *t, const void *values, const char *name)
{
    const sl_option *o = sl_options_find(t, name);
    SL_CHECK(o, "%s has no option %s", t->name, name);
    const char *field = (const char *)values + o->offset;
    switch (o->type) {
    case SL_OPTION_SIZE:
        return (double)*(const uint64_t *)(const void *)field;
    case SL_OPTION_FLOAT:
        return *(const double *)(const void *)field;
    case SL_OPTION_BOOL:
        return *(const bool *)(const void *)field;
    default:
        return *(const int *)(const void *)field;
    }
}

static void stamp_value(const sl_option *o, const void *field, sl_wr *w)
{
    const int *list = field;
    switch (o->type) {
    case SL_OPTION_TEXT:
    case SL_OPTION_CHOICE:
        sl_wr_str(w, field);
        return;
    case SL_OPTION_INT:
    case SL_OPTION_ENUM:
        sl_wr_i32(w, list[0]);
        return;
    case SL_OPTION_SIZE:
        sl_wr_u64(w, *(const uint64_t *)field);
        return;
    case SL_OPTION_FLOAT:
        sl_wr_blob(w, field, sizeof(double));
        return;
    case SL_OPTION_BOOL:
        sl_wr_u8(w, *(const bool *)field);
        return;
    case SL_OPTION_INTS:
    case SL_OPTION_ENUMS:
        sl_wr_i32s(w, list + 1, (size_t)list[0]);
        return;
    case SL_OPTION_TEXTS:
        sl_wr_i32(w, list[0]);
        for (int i = 0; i < list[0]; i++)
            sl_wr_str(w, ((const char(*)[SL_OPTION_ITEM_BYTES])(const void *)(list + 1))[i]);
        return;
    }
}

void sl_options_stamp(const sl_options *t, const void *values, sl_wr *w)
{
    for (size_t i = 0; i < t->n; i++) {
        if (!(t->rows[i].flags & SL_OPTION_PAGES))
            continue;
        sl_wr_str(w, t->rows[i].name);
        stamp_value(&t->rows[i], (const char *)values + t->rows[i].offset, w);
    }
}
