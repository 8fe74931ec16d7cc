/*
 * Values: text to field for every type of row, `--set`, defaults, the nearest known key, and the rules that
 * span keys. Knows nothing of YAML (config_yaml.c) and writes no documents (config_doc.c).
 */
#include "base/config_impl.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { KEY_MAX = 128 };

const sl_cfg_row *sl_cfg_find(const char *key)
{
    for (size_t i = 0; i < sl_cfg_nrows; i++)
        if (!strcmp(sl_cfg_rows[i].key, key))
            return &sl_cfg_rows[i];
    return NULL;
}

bool sl_cfg_is_list(const sl_cfg_row *row)
{
    return row->type == SL_CFG_INT_LIST || row->type == SL_CFG_ENUM_LIST;
}

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* Edits (insert, delete, replace) between two keys, both shorter than KEY_MAX. */
static size_t edits(const char *a, const char *b)
{
    size_t row[KEY_MAX + 1], nb = strlen(b);
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[nb];
}

const char *sl_cfg_nearest(const char *key)
{
    const char *best = NULL, *tail = strrchr(key, '.');
    tail = tail ? tail + 1 : key;
    if (strlen(key) >= KEY_MAX || !key[0])
        return NULL;
    size_t best_cost = strlen(key) / 2 + 1;
    for (size_t i = 0; i < sl_cfg_nrows; i++) {
        const char *known = sl_cfg_rows[i].key;
        size_t cost, na = strlen(key), nb = strlen(known);
        if (!strcmp(tail, strchr(known, '.') + 1))
            cost = 1; /* right name, wrong or missing section */
        else if ((na > nb ? na - nb : nb - na) >= best_cost)
            continue; /* the difference in length alone is too much */
        else
            cost = edits(key, known);
        if (cost < best_cost) {
            best_cost = cost;
            best = known;
        }
    }
    return best;
}

/* Appends to a list of names. */
static void join_names(const char *const *names, char *buf, size_t n)
{
    size_t len = strlen(buf);
    for (; names && *names && len < n; names++)
        len += (size_t)snprintf(buf + len, n - len, "%s%s", len ? ", " : "", *names);
}

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

/* The one way to say no: the value (unless secret) and what would be right. */
static sl_status reject(const sl_cfg_row *row, const char *text, const char *why, sl_err *err)
{
    char want[320];
    sl_cfg_describe(row, want, sizeof want);
    if (row->secret)
        return sl_fail(err, SL_ERR_INVALID, "value %s (want %s)", why, want);
    return sl_fail(err, SL_ERR_INVALID, "\"%.64s%s\" %s (want %s)", text, strlen(text) > 64 ? "..." : "", why,
                   want);
}

/* Does UTF-8 text have what YAML cannot hold or takes for the end of a line? C0, DEL, C1, U+2028, U+2029,
 * U+FFFE, U+FFFF: such a value would not be the same after a dump. */
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

/* A name as registries have them; which of them exist is known when the key is bound. */
static sl_status parse_choice(char *out, const sl_cfg_row *row, const char *text, sl_err *err)
{
    const char *const *names = names_of(choices, row->key);
    size_t n = strlen(text);
    bool word = n && n < row->size && strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") == n &&
                strcmp(text, "null") != 0; /* YAML's word for nothing */
    if (!word || (names && !among(names, text) && !among(row->names, text)))
        return reject(row, text, "is not known", err);
    memset(out, 0, row->size);
    memcpy(out, text, n);
    return SL_OK;
}

/* Fields are reached through the row's offset; enumerations are int-sized (checked by a test over the table).
 */
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
        break;
    }
    return reject(row, text, "is not a list", err);
}

void sl_cfg_list_clear(sl_config *cfg, const sl_cfg_row *row)
{
    memset(field_of(cfg, row), 0, row->size);
}

sl_status sl_cfg_list_add(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err)
{
    int *list = field_of(cfg, row); /* {int n; int v[]} */
    size_t cap = row->size / sizeof(int) - 1;
    if ((size_t)list[0] >= cap)
        return sl_fail(err, SL_ERR_TOO_LARGE, "more than %zu entries", cap);
    int v;
    sl_status st =
        row->type == SL_CFG_INT_LIST ? parse_int(&v, row, text, err) : parse_enum(&v, row, text, err);
    if (st)
        return st;
    list[1 + list[0]++] = v;
    return SL_OK;
}

/* "a, b,c" or "[a, b]"; empty text is the empty list. */
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
        char item[KEY_MAX];
        snprintf(item, sizeof item, "%.*s", (int)(b - a < KEY_MAX ? b - a : KEY_MAX - 1), a);
        sl_status st = sl_cfg_list_add(cfg, row, item, err);
        if (st)
            return st;
        if (comma && comma + 1 == end)
            return reject(row, "", "ends with a comma", err);
        text = comma ? comma + 1 : end;
    }
    return SL_OK;
}

static sl_status set_text(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err)
{
    return sl_cfg_is_list(row) ? parse_list(cfg, row, text, err) : sl_cfg_parse(cfg, row, text, err);
}

void sl_config_init(sl_config *cfg)
{
    memset(cfg, 0, sizeof *cfg);
    for (size_t i = 0; i < sl_cfg_nrows; i++) {
        sl_err err = {0};
        sl_status st = set_text(cfg, &sl_cfg_rows[i], sl_cfg_rows[i].dflt, &err);
        SL_CHECK(!st, "default of %s: %s", sl_cfg_rows[i].key, err.text);
    }
}

sl_status sl_config_set(sl_config *cfg, const char *assignment, sl_err *err)
{
    const char *eq = strchr(assignment, '=');
    if (!eq)
        return sl_fail(err, SL_ERR_INVALID, "--set %.64s: want key=value", assignment);
    char key[KEY_MAX];
    int klen = eq - assignment < KEY_MAX ? (int)(eq - assignment) : KEY_MAX - 1;
    snprintf(key, sizeof key, "%.*s", klen, assignment);
    const sl_cfg_row *row = sl_cfg_find(key);
    if (!row) {
        const char *near = sl_cfg_nearest(key);
        return sl_fail(err, SL_ERR_INVALID, "--set %s: unknown key%s%s%s", key, near ? "; did you mean " : "",
                       near ? near : "", near ? "?" : "");
    }
    json_t *text = json_string(eq + 1); /* jansson checks the encoding, as libyaml does for files */
    if (!text)
        return sl_fail(err, SL_ERR_INVALID, "--set %s: the value is not valid UTF-8", key);
    json_decref(text);
    sl_status st = set_text(cfg, row, eq + 1, err);
    return st ? sl_fail_in(err, st, "--set %s", key) : SL_OK;
}

const char *sl_config_enum_name(const char *key, int value)
{
    const sl_cfg_row *row = sl_cfg_find(key);
    if (!row || (row->type != SL_CFG_ENUM && row->type != SL_CFG_ENUM_LIST))
        return NULL;
    for (int i = 0; row->names[i]; i++)
        if (i == value)
            return row->names[i];
    return NULL;
}

/* Last component of model.path, without trailing slashes; "." and "" stay unnamed. */
static void name_after_path(sl_config *cfg)
{
    const char *path = cfg->model.path;
    size_t end = strlen(path);
    while (end && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start && path[start - 1] != '/')
        start--;
    if (end == start || !strncmp(path + start, ".", end - start))
        snprintf(cfg->model.served_name, sizeof cfg->model.served_name, "%s", "model");
    else
        snprintf(cfg->model.served_name, sizeof cfg->model.served_name, "%.*s", (int)(end - start),
                 path + start);
}

enum { SECRET_MIN = 16 }; /* characters of the cluster's secret */

/* The first line of a file that holds a secret. */
static sl_status read_first_line(const char *key, const char *path, char line[SL_CFG_NAME_BYTES + 1],
                                 sl_err *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return sl_fail(err, SL_ERR_IO, "%s: %s: %s", key, path, strerror(errno));
    bool got = fgets(line, SL_CFG_NAME_BYTES + 1, f) != NULL;
    fclose(f);
    line[got ? strcspn(line, "\r\n") : 0] = '\0';
    if (!line[0])
        return sl_fail(err, SL_ERR_INVALID, "%s: %s: its first line is empty", key, path);
    return SL_OK;
}

static sl_status read_api_key(sl_config *cfg, sl_err *err)
{
    const char *path = cfg->router.api_key_file;
    char line[SL_CFG_NAME_BYTES + 1] = "";
    SL_TRY(read_first_line("router.api_key_file", path, line, err));
    sl_status st = sl_cfg_parse(cfg, sl_cfg_find("router.api_key"), line, err);
    return st ? sl_fail_in(err, st, "router.api_key_file: %s", path) : SL_OK;
}

static sl_status read_cluster_secret(sl_config *cfg, sl_err *err)
{
    char line[SL_CFG_NAME_BYTES + 1] = "";
    const char *path = cfg->cluster.secret_file;
    SL_TRY(read_first_line("cluster.secret_file", path, line, err));
    size_t n = strlen(line);
    if (n < SECRET_MIN || n >= sizeof cfg->cluster.secret)
        return sl_fail(
            err, SL_ERR_INVALID,
            "cluster.secret_file: %s: its first line has %zu characters, want %d to %zu (openssl rand -hex "
            "32 makes a good one)",
            path, n, SECRET_MIN, sizeof cfg->cluster.secret - 1);
    memcpy(cfg->cluster.secret, line, n + 1);
    return SL_OK;
}

static sl_status check_roles(const sl_config *cfg, sl_err *err)
{
    int count[3] = {0};
    if (!cfg->cluster.roles.n)
        return SL_OK;
    for (int i = 0; i < cfg->cluster.roles.n; i++)
        count[cfg->cluster.roles.v[i]]++;
    if (count[SL_ROLE_ROUTER] != 1)
        return sl_fail(err, SL_ERR_INVALID, "cluster.roles: has %d routers, want exactly one",
                       count[SL_ROLE_ROUTER]);
    if (!count[SL_ROLE_PREFILL] || !count[SL_ROLE_DECODE])
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster.roles: needs at least one prefill and one decode worker");
    return SL_OK;
}

sl_status sl_config_finish(sl_config *cfg, sl_err *err)
{
    if (!cfg->model.served_name[0] && cfg->model.path[0])
        name_after_path(cfg);
    if (cfg->router.api_key_file[0]) {
        if (cfg->router.api_key[0])
            return sl_fail(err, SL_ERR_INVALID, "router.api_key and router.api_key_file are both set");
        sl_status st = read_api_key(cfg, err);
        if (st)
            return st;
    }
    if (cfg->cluster.secret_file[0])
        SL_TRY(read_cluster_secret(cfg, err));
    if (!cfg->router.tls_cert[0] != !cfg->router.tls_key[0])
        return sl_fail(err, SL_ERR_INVALID, "router.tls_cert and router.tls_key: set both or neither");
    if (cfg->cluster.dead_after_ms < 2 * cfg->cluster.heartbeat_ms)
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster.dead_after_ms (%d) must be at least twice cluster.heartbeat_ms (%d)",
                       cfg->cluster.dead_after_ms, cfg->cluster.heartbeat_ms);
    if (cfg->router.http_port && cfg->router.http_port == cfg->router.grpc_port &&
        !strcmp(cfg->router.http_host, cfg->router.grpc_host))
        return sl_fail(err, SL_ERR_INVALID, "router.http_port and router.grpc_port are both %d",
                       cfg->router.http_port);
    return check_roles(cfg, err);
}
