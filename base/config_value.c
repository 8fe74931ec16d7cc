/*
 * Values of the configuration: converts the text of a value to a field, for every type of row, and describes what a row
 * accepts. Defaults, files and `--set` use the same code. The names that a key of type SL_CFG_CHOICE accepts are those
 * of its registry, which is bound at start.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/config_impl.h"

enum {
    ITEM_MAX = SL_CFG_ITEM_BYTES + 1
}; /* bytes of one entry of a list; one more, so that what is too long stays so */

bool sl_cfg_is_list(const sl_cfg_row *row)
{
    return row->type == SL_CFG_INT_LIST || row->type == SL_CFG_ENUM_LIST || row->type == SL_CFG_STRING_LIST;
}

/* ---- choices ---- */

static const sl_config_choice *choices; /* see sl_config_bind: set once, before threads */

void sl_config_bind(const sl_config_choice *table)
{
    choices = table;
}

static const char *const *names_of(const sl_config_choice *table, const char *key)
{
    for (; table && table->key; table++)
        if (!strcmp(table->key, key))
            return table->names();
    return NULL;
}

const char *sl_config_unbound(const sl_config_choice *table)
{
    for (const sl_config_choice *c = table; c->key; c++) {
        const sl_cfg_row *row = sl_cfg_find(c->key);
        if (!row || row->type != SL_CFG_CHOICE)
            return c->key;
    }
    for (size_t i = 0; i < sl_cfg_nrows; i++)
        if (sl_cfg_rows[i].type == SL_CFG_CHOICE && !names_of(table, sl_cfg_rows[i].key))
            return sl_cfg_rows[i].key;
    return NULL;
}

/* ---- what a row accepts ---- */

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

const char *sl_cfg_describe(const sl_cfg_row *row, char *buf, size_t n)
{
    char names[256] = "", lo[32], hi[32];
    long long min = row->min, max = row->max;
    switch (row->type) {
    case SL_CFG_STRING:
        snprintf(buf, n, "text, at most %zu bytes", row->size - 1);
        break;
    case SL_CFG_INT:
        snprintf(buf, n, "integer, %lld to %lld", min, max);
        break;
    case SL_CFG_FLOAT:
        snprintf(buf, n, "number, %lld to %lld", min, max);
        break;
    case SL_CFG_SIZE:
        size_text((uint64_t)row->min, lo, sizeof lo);
        size_text((uint64_t)row->max, hi, sizeof hi);
        snprintf(buf, n, "bytes or KiB/MiB/GiB/TiB, %s to %s", lo, hi);
        break;
    case SL_CFG_BOOL:
        snprintf(buf, n, "true or false");
        break;
    case SL_CFG_INT_LIST:
        snprintf(buf, n, "list of integers, %lld to %lld", min, max);
        break;
    case SL_CFG_STRING_LIST:
        snprintf(buf, n, "list of texts, each at most %d bytes", SL_CFG_ITEM_BYTES - 1);
        break;
    case SL_CFG_ENUM:
    case SL_CFG_ENUM_LIST:
        join_names(row->names, names, sizeof names);
        snprintf(buf, n, "%s: %s", row->type == SL_CFG_ENUM ? "one of" : "list of", names);
        break;
    case SL_CFG_CHOICE:
        join_names(row->names, names, sizeof names);
        join_names(names_of(choices, row->key), names, sizeof names);
        snprintf(buf, n, "one of: %s", names);
        break;
    }
    return buf;
}

/* The error of every refused value: the value, unless it is secret, the reason, and what the row accepts. */
static sl_status reject(const sl_cfg_row *row, const char *text, const char *why, sl_err *err)
{
    char want[320];
    sl_cfg_describe(row, want, sizeof want);
    if (row->secret)
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

static sl_status parse_string(char *out, const sl_cfg_row *row, const char *text, sl_err *err)
{
    if (has_control(text))
        return reject(row, "", "has a control character", err);
    if (strlen(text) >= row->size)
        return reject(row, text, "is too long", err);
    memset(out, 0, row->size);
    memcpy(out, text, strlen(text));
    return SL_OK;
}

static sl_status parse_int(int *out, const sl_cfg_row *row, const char *text, sl_err *err)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || strchr(" \t+", text[0]))
        return reject(row, text, "is not an integer", err);
    if (errno == ERANGE || v < row->min || v > row->max)
        return reject(row, text, "is out of bounds", err);
    *out = (int)v;
    return SL_OK;
}

static sl_status parse_size(uint64_t *out, const sl_cfg_row *row, const char *text, sl_err *err)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (end == text || text[0] < '0' || text[0] > '9')
        return reject(row, text, "is not a size", err);
    if (errno == ERANGE)
        return reject(row, text, "is out of bounds", err);
    while (*end == ' ')
        end++;
    size_t unit = 0;
    while (*end && unit < SL_COUNT(units) && strcasecmp(end, units[unit]))
        unit++;
    if (unit == SL_COUNT(units))
        return reject(row, text, "is not a size", err);
    if (v > UINT64_MAX >> (10 * unit))
        return reject(row, text, "is out of bounds", err);
    v <<= 10 * unit;
    if (v < (uint64_t)row->min || v > (uint64_t)row->max)
        return reject(row, text, "is out of bounds", err);
    *out = v;
    return SL_OK;
}

static sl_status parse_float(double *out, const sl_cfg_row *row, const char *text, sl_err *err)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || text[strspn(text, "+-.0123456789eE")])
        return reject(row, text, "is not a number", err);
    if (v < (double)row->min || v > (double)row->max)
        return reject(row, text, "is out of bounds", err);
    *out = v;
    return SL_OK;
}

static sl_status parse_bool(bool *out, const sl_cfg_row *row, const char *text, sl_err *err)
{
    bool yes = !strcmp(text, "true"), no = !strcmp(text, "false");
    if (!yes && !no)
        return reject(row, text, "is not a boolean", err);
    *out = yes;
    return SL_OK;
}

static sl_status parse_enum(int *out, const sl_cfg_row *row, const char *text, sl_err *err)
{
    for (int i = 0; row->names[i]; i++) {
        if (!strcmp(row->names[i], text)) {
            *out = i;
            return SL_OK;
        }
    }
    return reject(row, text, "is not known", err);
}

static bool among(const char *const *names, const char *text)
{
    for (; names && *names; names++)
        if (!strcmp(*names, text))
            return true;
    return false;
}

/* A name in the form that registries use. Once the key is bound, the name must also exist. */
static sl_status parse_choice(char *out, const sl_cfg_row *row, const char *text, sl_err *err)
{
    const char *const *names = names_of(choices, row->key);
    size_t n = strlen(text);
    bool word = n && n < row->size && strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") == n &&
                strcmp(text, "null") != 0; /* in YAML it means that there is no value */
    if (!word || (names && !among(names, text) && !among(row->names, text)))
        return reject(row, text, "is not known", err);
    memset(out, 0, row->size);
    memcpy(out, text, n);
    return SL_OK;
}

/* The field of a row, by its offset. Enumerations have the size of an int, which a test checks for the whole table. */
static void *field_of(sl_config *cfg, const sl_cfg_row *row)
{
    return (char *)cfg + row->offset;
}

sl_status sl_cfg_parse(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err)
{
    void *field = field_of(cfg, row);
    switch (row->type) {
    case SL_CFG_STRING:
        return parse_string(field, row, text, err);
    case SL_CFG_INT:
        return parse_int(field, row, text, err);
    case SL_CFG_SIZE:
        return parse_size(field, row, text, err);
    case SL_CFG_FLOAT:
        return parse_float(field, row, text, err);
    case SL_CFG_BOOL:
        return parse_bool(field, row, text, err);
    case SL_CFG_ENUM:
        return parse_enum(field, row, text, err);
    case SL_CFG_CHOICE:
        return parse_choice(field, row, text, err);
    case SL_CFG_INT_LIST:
    case SL_CFG_ENUM_LIST:
    case SL_CFG_STRING_LIST:
        break;
    }
    return reject(row, text, "is not a list", err);
}

void sl_cfg_list_clear(sl_config *cfg, const sl_cfg_row *row)
{
    memset(field_of(cfg, row), 0, row->size);
}

static sl_status add_text(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err)
{
    int *n = field_of(cfg, row);
    char(*items)[SL_CFG_ITEM_BYTES] = (void *)(n + 1);
    size_t cap = (row->size - sizeof *n) / SL_CFG_ITEM_BYTES;
    if ((size_t)*n >= cap)
        return sl_fail(err, SL_ERR_TOO_LARGE, "more than %zu entries", cap);
    if (!text[0])
        return reject(row, text, "is empty", err);
    if (strlen(text) >= SL_CFG_ITEM_BYTES)
        return reject(row, text, "is too long", err);
    memcpy(items[(*n)++], text, strlen(text) + 1);
    return SL_OK;
}

sl_status sl_cfg_list_add(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err)
{
    if (row->type == SL_CFG_STRING_LIST)
        return add_text(cfg, row, text, err);
    int *list = field_of(cfg, row); /* {int n; int v[]} */
    size_t cap = row->size / sizeof(int) - 1;
    if ((size_t)list[0] >= cap)
        return sl_fail(err, SL_ERR_TOO_LARGE, "more than %zu entries", cap);
    int v;
    SL_TRY(row->type == SL_CFG_INT_LIST ? parse_int(&v, row, text, err) : parse_enum(&v, row, text, err));
    list[1 + list[0]++] = v;
    return SL_OK;
}

/* "a, b,c" or "[a, b]"; an empty text is an empty list. */
static sl_status parse_list(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err)
{
    sl_cfg_list_clear(cfg, row);
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
        SL_TRY(sl_cfg_list_add(cfg, row, item, err));
        if (comma && comma + 1 == end)
            return reject(row, "", "ends with a comma", err);
        text = comma ? comma + 1 : end;
    }
    return SL_OK;
}

sl_status sl_cfg_set_text(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err)
{
    return sl_cfg_is_list(row) ? parse_list(cfg, row, text, err) : sl_cfg_parse(cfg, row, text, err);
}
