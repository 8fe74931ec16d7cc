/*
 * JSON helpers. A getter finds a member, checks its type and its bounds, and describes a failure in one sentence. The
 * writer follows the documented behaviour of Python's json.dumps and float.__repr__; tests compare it with the output
 * of CPython.
 */
#include "base/json.h"

#include "base/strbuf.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parsing ---- */

enum {
    /* Memory of jansson for a value in an array, for a container, and for a member of an object. */
    VALUE_BYTES = 48,
    CONTAINER_BYTES = 160,
    MEMBER_BYTES = 112,
    /* A string is copied once, and the buffer in which it was read is up to twice as long. */
    TEXT_COPIES = 3
};

sl_json_cost sl_json_measure(const char *text, size_t n)
{
    sl_json_cost c = {.bytes = (uint64_t)TEXT_COPIES * n};
    unsigned depth = 0;
    bool string = false;
    for (size_t i = 0; i < n; i++) {
        char ch = text[i];
        if (string) {
            i += ch == '\\';
            string = ch != '"';
        } else if (ch == '"') {
            string = true;
        } else if (ch == '[' || ch == '{') {
            depth++;
            c.depth = depth > c.depth ? depth : c.depth;
            c.bytes += CONTAINER_BYTES;
        } else if (ch == ']' || ch == '}') {
            depth -= depth > 0;
        } else if (ch == ',') {
            c.bytes += VALUE_BYTES;
        } else if (ch == ':') {
            c.bytes += MEMBER_BYTES;
        }
    }
    return c;
}

typedef struct reader {
    const sl_guard *guard;
    const char *text;
    size_t n, at;
} reader;

/* What the library asks for, a KiB each time; -1 ends the text, and is reported as such by the library. */
static size_t read_more(void *buffer, size_t most, void *arg)
{
    reader *r = arg;
    size_t n = r->n - r->at < most ? r->n - r->at : most;
    if (sl_guard_check(r->guard, NULL))
        return (size_t)-1;
    memcpy(buffer, r->text + r->at, n);
    r->at += n;
    return n;
}

sl_status sl_json_parse_guarded(const sl_guard *g, const char *text, size_t n, const char *name, json_t **out,
                                sl_err *err)
{
    const size_t flags = JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    reader r = {g, text, n, 0};
    json_error_t je;
    json_t *v = g ? json_load_callback(read_more, &r, flags, &je) : json_loadb(text, n, flags, &je);
    if (!v) {
        SL_TRY(sl_guard_check(g, err));
        if (json_error_code(&je) == json_error_out_of_memory)
            return sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", name);
        return sl_fail(err, SL_ERR_INVALID, "%s:%d:%d: not valid JSON: %s", name, je.line, je.column,
                       je.text);
    }
    *out = v;
    return SL_OK;
}

sl_status sl_json_parse(const char *text, size_t n, const char *name, json_t **out, sl_err *err)
{
    return sl_json_parse_guarded(NULL, text, n, name, out, err);
}

sl_status sl_json_load(const char *path, size_t max_bytes, json_t **out, sl_err *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    sl_strbuf sb = {0};
    char chunk[16384];
    sl_status st = SL_OK;
    size_t n;
    while (!st && (n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        sl_sb_append(&sb, chunk, n);
        if (sb.len > max_bytes)
            st = sl_fail(err, SL_ERR_TOO_LARGE, "%s: larger than %zu bytes", path, max_bytes);
        else if (sb.bad)
            st = sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    if (!st && ferror(f))
        st = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    fclose(f);
    if (!st)
        st = sl_json_parse(sb.data ? sb.data : "", sb.len, path, out, err);
    sl_sb_free(&sb);
    return st;
}

/* ---- getters ---- */

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "nothing";
}

static sl_status missing(const char *where, const char *key, sl_err *err)
{
    return sl_fail(err, SL_ERR_INVALID, "%s.%s: is missing", where, key);
}

static sl_status wrong(const char *where, const char *key, const char *want, const json_t *got, sl_err *err)
{
    return sl_fail(err, SL_ERR_INVALID, "%s.%s: want %s, got %s", where, key, want, type_name(got));
}

/* The member, or NULL when missing or null. */
static json_t *member(const json_t *obj, const char *key)
{
    json_t *v = json_object_get(obj, key);
    return json_is_null(v) ? NULL : v;
}

sl_status sl_json_opt_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max,
                          int64_t *out, sl_err *err)
{
    const json_t *v = member(obj, key);
    if (!v)
        return SL_OK;
    int64_t n;
    double d = json_real_value(v);
    if (json_is_integer(v))
        n = json_integer_value(v);
    else if (json_is_real(v) && d == floor(d) && fabs(d) < 9e15)
        n = (int64_t)d;
    else
        return wrong(where, key, "an integer", v, err);
    if (n < min || n > max)
        return sl_fail(err, SL_ERR_INVALID, "%s.%s: %lld is out of bounds (%lld to %lld)", where, key,
                       (long long)n, (long long)min, (long long)max);
    *out = n;
    return SL_OK;
}

sl_status sl_json_opt_double(const json_t *obj, const char *where, const char *key, double min, double max,
                             double *out, sl_err *err)
{
    const json_t *v = member(obj, key);
    if (!v)
        return SL_OK;
    if (!json_is_number(v))
        return wrong(where, key, "a number", v, err);
    double d = json_number_value(v);
    if (!(d >= min && d <= max))
        return sl_fail(err, SL_ERR_INVALID, "%s.%s: %g is out of bounds (%g to %g)", where, key, d, min, max);
    *out = d;
    return SL_OK;
}

sl_status sl_json_opt_bool(const json_t *obj, const char *where, const char *key, bool *out, sl_err *err)
{
    const json_t *v = member(obj, key);
    if (!v)
        return SL_OK;
    if (!json_is_boolean(v))
        return wrong(where, key, "a boolean", v, err);
    *out = json_is_true(v);
    return SL_OK;
}

sl_status sl_json_opt_string(const json_t *obj, const char *where, const char *key, const char **out,
                             sl_err *err)
{
    const json_t *v = member(obj, key);
    if (!v)
        return SL_OK;
    if (!json_is_string(v))
        return wrong(where, key, "a string", v, err);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return sl_fail(err, SL_ERR_INVALID, "%s.%s: has a NUL character", where, key);
    *out = json_string_value(v);
    return SL_OK;
}

sl_status sl_json_opt_array(const json_t *obj, const char *where, const char *key, json_t **out, sl_err *err)
{
    json_t *v = member(obj, key);
    if (!v)
        return SL_OK;
    if (!json_is_array(v))
        return wrong(where, key, "an array", v, err);
    *out = v;
    return SL_OK;
}

sl_status sl_json_opt_object(const json_t *obj, const char *where, const char *key, json_t **out, sl_err *err)
{
    json_t *v = member(obj, key);
    if (!v)
        return SL_OK;
    if (!json_is_object(v))
        return wrong(where, key, "an object", v, err);
    *out = v;
    return SL_OK;
}

sl_status sl_json_get_int(const json_t *obj, const char *where, const char *key, int64_t min, int64_t max,
                          int64_t *out, sl_err *err)
{
    return member(obj, key) ? sl_json_opt_int(obj, where, key, min, max, out, err) : missing(where, key, err);
}

sl_status sl_json_get_string(const json_t *obj, const char *where, const char *key, const char **out,
                             sl_err *err)
{
    return member(obj, key) ? sl_json_opt_string(obj, where, key, out, err) : missing(where, key, err);
}

sl_status sl_json_get_array(const json_t *obj, const char *where, const char *key, json_t **out, sl_err *err)
{
    return member(obj, key) ? sl_json_opt_array(obj, where, key, out, err) : missing(where, key, err);
}

sl_status sl_json_get_object(const json_t *obj, const char *where, const char *key, json_t **out, sl_err *err)
{
    return member(obj, key) ? sl_json_opt_object(obj, where, key, out, err) : missing(where, key, err);
}

/* ---- Python's repr() of a float ---- */

/* Adds one to the last digit of d.ddde+xx. False: the carry would need one more digit before the first. */
static bool next_decimal(char *text)
{
    for (char *p = strchr(text, 'e') - 1; p >= text; p--) {
        if (*p == '.')
            continue;
        if (*p < '9') {
            ++*p;
            return true;
        }
        *p = '0';
    }
    return false;
}

/*
 * The fewest significant digits that read back as v >= 0: the digits without a point, and the decimal exponent of the
 * first digit. The distance between doubles is twice as large above a power of two as below it; so at a power of two
 * the next larger decimal may read back as v although the nearest one does not.
 */
static int shortest_digits(double v, char digits[24], int *exponent)
{
    char text[40], up[40];
    /* Of a normal number, the form of 15 digits is the shortest one followed by zeros, if any form of up to 15 digits
     * reads back as it. */
    for (int precision = v < DBL_MIN ? 0 : DBL_DIG - 1; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, v);
        if (strtod(text, NULL) == v)
            break;
        memcpy(up, text, sizeof up);
        if (next_decimal(up) && strtod(up, NULL) == v) {
            memcpy(text, up, sizeof text);
            break;
        }
    }
    char *e = strchr(text, 'e');
    *exponent = (int)strtol(e + 1, NULL, 10);
    int n = 0;
    for (const char *p = text; p < e; p++)
        if (*p != '.')
            digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = '\0';
    return n;
}

void sl_py_float(double v, char *buf, size_t n)
{
    if (isnan(v) || isinf(v)) {
        snprintf(buf, n, "%s", isnan(v) ? "NaN" : v > 0 ? "Infinity" : "-Infinity");
        return;
    }
    char d[24];
    int exp10, len = shortest_digits(fabs(v), d, &exp10);
    const char *sign = signbit(v) ? "-" : "";
    if (exp10 < -4 || exp10 >= 16)
        snprintf(buf, n, "%s%c%s%se%c%02d", sign, d[0], len > 1 ? "." : "", d + 1, exp10 < 0 ? '-' : '+',
                 abs(exp10));
    else if (exp10 < 0)
        snprintf(buf, n, "%s0.%.*s%s", sign, -exp10 - 1, "0000", d);
    else if (len <= exp10 + 1)
        snprintf(buf, n, "%s%s%.*s.0", sign, d, exp10 + 1 - len, "0000000000000000");
    else
        snprintf(buf, n, "%s%.*s.%s", sign, exp10 + 1, d, d + exp10 + 1);
}
