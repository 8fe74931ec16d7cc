/* See costs.h. */
#include "simulate/costs.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "base/yaml_depth.h"

enum { FILE_MAX_BYTES = 1 << 20 };

/* ---- the table ---- */

typedef enum { COST_REAL, COST_LIST, COST_BOOL } cost_kind;

typedef struct cost_key {
    const char *section, *name;
    cost_kind kind;
    size_t offset;
    double min, max;
    bool required;
} cost_key;

#define AT(field) offsetof(sl_sim_costs, field)

static const cost_key keys[] = {
    {"request", "us", COST_REAL, AT(request_us), 0, 1e9, false},
    {"request", "ns_per_token", COST_REAL, AT(request_ns_per_token), 0, 1e9, false},
    {"message", "us", COST_REAL, AT(message_us), 0, 1e9, false},
    {"group", "exchange_us", COST_REAL, AT(exchange_us), 0, 1e9, false},
    {"kv", "bytes_per_token", COST_REAL, AT(kv_bytes_per_token), 1, 1e9, true},
    {"prefill", "host", COST_BOOL, AT(prefill.host), 0, 1, false},
    {"prefill", "chunks", COST_LIST, AT(prefill.chunks), 1, 1e7, true},
    {"prefill", "contexts", COST_LIST, AT(prefill.contexts), 0, 1e8, true},
    {"prefill", "step_ms", COST_LIST, AT(prefill.step_ms), 1e-6, 1e7, true},
    {"decode", "batches", COST_LIST, AT(decode.batches), 1, 1e6, true},
    {"decode", "step_ms", COST_LIST, AT(decode.step_ms), 1e-6, 1e7, true},
    {"decode", "ms_per_million_tokens", COST_REAL, AT(decode.ms_per_million_tokens), 0, 1e6, false},
    {"decode", "device_bytes", COST_REAL, AT(decode.device_bytes), 0, 1e15, false},
    {"decode", "bytes_per_request", COST_REAL, AT(decode.bytes_per_request), 0, 1e12, false},
    {"decode", "bytes_per_token", COST_REAL, AT(decode.bytes_per_token), 0, 1e9, false},
    {"decode", "join_us", COST_REAL, AT(decode.join_us), 0, 1e9, false},
    {"decode", "join_ns_per_token", COST_REAL, AT(decode.join_ns_per_token), 0, 1e9, false},
    {"link", "gb_per_s", COST_REAL, AT(link.gb_per_s), 1e-6, 1e6, true},
    {"link", "us", COST_REAL, AT(link.us), 0, 1e9, false},
    {"disk", "read_gb_per_s", COST_REAL, AT(disk.read_gb_per_s), 0, 1e6, false},
    {"disk", "write_gb_per_s", COST_REAL, AT(disk.write_gb_per_s), 0, 1e6, false},
    {"disk", "us", COST_REAL, AT(disk.us), 0, 1e9, false},
    {"shared", "read_gb_per_s", COST_REAL, AT(shared.read_gb_per_s), 0, 1e6, false},
    {"shared", "write_gb_per_s", COST_REAL, AT(shared.write_gb_per_s), 0, 1e6, false},
    {"shared", "us", COST_REAL, AT(shared.us), 0, 1e9, false},
    {"shared", "bytes", COST_REAL, AT(shared_bytes), 0, 1e18, false},
    {"checksum", "gb_per_s", COST_REAL, AT(checksum_gb_per_s), 0, 1e6, false},
    {"price", "host_gib", COST_REAL, AT(price.host_gib), 0, 1e12, false},
    {"price", "disk_gib", COST_REAL, AT(price.disk_gib), 0, 1e12, false},
    {"price", "prefill", COST_REAL, AT(price.prefill), 0, 1e12, false},
    {"price", "decode", COST_REAL, AT(price.decode), 0, 1e12, false},
};

/* ---- reading ---- */

typedef struct walk {
    sl_sim_costs *out;
    yaml_document_t *doc;
    const char *name;
    size_t line_of[SL_COUNT(keys)]; /* where the key was set; 0: it is not set yet */
    sl_err *err;
} walk;

static size_t line(const yaml_node_t *node)
{
    return node->start_mark.line + 1;
}

static bool number(const yaml_node_t *node, const cost_key *k, double *out)
{
    char *end;
    if (!node || node->type != YAML_SCALAR_NODE || !node->data.scalar.length)
        return false;
    const char *text = (const char *)node->data.scalar.value;
    if (k->kind == COST_BOOL) {
        *out = !strcmp(text, "true");
        return *out > 0 || !strcmp(text, "false");
    }
    *out = strtod(text, &end);
    return end == text + node->data.scalar.length && isfinite(*out) && *out >= k->min && *out <= k->max;
}

static sl_status bad_number(walk *w, const yaml_node_t *at, const cost_key *k)
{
    if (k->kind == COST_BOOL)
        return sl_fail(w->err, SL_ERR_INVALID, "%s:%zu: %s.%s: want true or false", w->name, line(at),
                       k->section, k->name);
    return sl_fail(w->err, SL_ERR_INVALID, "%s:%zu: %s.%s: want %s from %g to %g", w->name, line(at),
                   k->section, k->name, k->kind == COST_LIST ? "a list of numbers" : "a number", k->min,
                   k->max);
}

static sl_status set_list(walk *w, const cost_key *k, const yaml_node_t *value, sl_sim_list *out)
{
    out->n = 0;
    if (value->type != YAML_SEQUENCE_NODE)
        return bad_number(w, value, k);
    for (yaml_node_item_t *it = value->data.sequence.items.start; it < value->data.sequence.items.top; it++) {
        const yaml_node_t *item = yaml_document_get_node(w->doc, *it);
        if (out->n == SL_SIM_POINTS)
            return sl_fail(w->err, SL_ERR_INVALID, "%s:%zu: %s.%s: more than %d numbers", w->name,
                           line(value), k->section, k->name, SL_SIM_POINTS);
        if (!number(item, k, &out->v[out->n++]))
            return bad_number(w, item ? item : value, k);
    }
    return out->n ? SL_OK : bad_number(w, value, k);
}

static sl_status set(walk *w, const yaml_node_t *at, const char *section, const char *name,
                     const yaml_node_t *value)
{
    size_t i = 0;
    while (i < SL_COUNT(keys) && (strcmp(keys[i].section, section) || strcmp(keys[i].name, name)))
        i++;
    if (i == SL_COUNT(keys))
        return sl_fail(w->err, SL_ERR_INVALID, "%s:%zu: %.40s.%.40s: unknown key", w->name, line(at), section,
                       name);
    const cost_key *k = &keys[i];
    if (w->line_of[i])
        return sl_fail(w->err, SL_ERR_INVALID, "%s:%zu: %s.%s: duplicate key, first set on line %zu", w->name,
                       line(at), section, name, w->line_of[i]);
    w->line_of[i] = line(at);
    void *field = (char *)w->out + k->offset;
    double v;
    if (k->kind == COST_LIST)
        return set_list(w, k, value, field);
    if (!number(value, k, &v))
        return bad_number(w, value, k);
    if (k->kind == COST_BOOL)
        *(bool *)field = v > 0;
    else
        *(double *)field = v;
    return SL_OK;
}

static sl_status walk_map(walk *w, const char *section, const yaml_node_t *map)
{
    if (map->type != YAML_MAPPING_NODE)
        return sl_fail(w->err, SL_ERR_INVALID, "%s:%zu: %.40s: want a map of keys", w->name, line(map),
                       section ? section : "top level");
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(w->doc, p->key);
        const yaml_node_t *value = yaml_document_get_node(w->doc, p->value);
        if (!key || !value || key->type != YAML_SCALAR_NODE)
            return sl_fail(w->err, SL_ERR_INVALID, "%s:%zu: keys must be plain words", w->name, line(map));
        const char *name = (const char *)key->data.scalar.value;
        SL_TRY(section ? set(w, key, section, name, value) : walk_map(w, name, value));
    }
    return SL_OK;
}

static sl_status check_rising(const walk *w, const sl_sim_list *l, const char *key)
{
    for (int32_t i = 1; i < l->n; i++)
        if (l->v[i] <= l->v[i - 1])
            return sl_fail(w->err, SL_ERR_INVALID, "%s: %s: %g does not follow %g; want rising numbers",
                           w->name, key, l->v[i], l->v[i - 1]);
    return SL_OK;
}

static sl_status check(walk *w)
{
    const sl_sim_costs *c = w->out;
    for (size_t i = 0; i < SL_COUNT(keys); i++)
        if (keys[i].required && !w->line_of[i])
            return sl_fail(w->err, SL_ERR_INVALID, "%s: %s.%s is missing", w->name, keys[i].section,
                           keys[i].name);
    SL_TRY(check_rising(w, &c->prefill.chunks, "prefill.chunks"));
    SL_TRY(check_rising(w, &c->prefill.contexts, "prefill.contexts"));
    SL_TRY(check_rising(w, &c->decode.batches, "decode.batches"));
    if (c->prefill.step_ms.n != c->prefill.chunks.n * c->prefill.contexts.n)
        return sl_fail(w->err, SL_ERR_INVALID,
                       "%s: prefill.step_ms: has %d numbers, want %d for %d chunks and %d contexts", w->name,
                       c->prefill.step_ms.n, c->prefill.chunks.n * c->prefill.contexts.n, c->prefill.chunks.n,
                       c->prefill.contexts.n);
    if (c->decode.step_ms.n != c->decode.batches.n)
        return sl_fail(w->err, SL_ERR_INVALID,
                       "%s: decode.step_ms: has %d numbers, want %d, one for each of decode.batches", w->name,
                       c->decode.step_ms.n, c->decode.batches.n);
    return SL_OK;
}

sl_status sl_sim_costs_parse(const char *text, size_t n, const char *name, sl_sim_costs *out, sl_err *err)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    sl_status st;
    memset(out, 0, sizeof *out);
    if (n > FILE_MAX_BYTES)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%s: larger than %d bytes", name, FILE_MAX_BYTES);
    SL_TRY(sl_yaml_check_depth(text, n, name, err));
    if (!yaml_parser_initialize(&parser))
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    if (!yaml_parser_load(&parser, &doc)) {
        st = sl_fail(err, SL_ERR_INVALID, "%s:%zu: not valid YAML: %s", name, parser.problem_mark.line + 1,
                     parser.problem ? parser.problem : "unknown problem");
    } else {
        const yaml_node_t *root = yaml_document_get_root_node(&doc);
        walk w = {.out = out, .doc = &doc, .name = name, .err = err};
        st = root ? walk_map(&w, NULL, root) : SL_OK;
        st = st == SL_OK ? check(&w) : st;
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&parser);
    return st;
}

sl_status sl_sim_costs_load(const char *path, sl_sim_costs *out, sl_err *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    char *text = malloc(FILE_MAX_BYTES + 1);
    sl_status st;
    if (!text) {
        st = sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", path);
    } else {
        size_t n = fread(text, 1, FILE_MAX_BYTES + 1, f);
        st = ferror(f) ? sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno))
                       : sl_sim_costs_parse(text, n, path, out, err);
    }
    free(text);
    fclose(f);
    return st;
}

/* ---- times ---- */

/* The place of x between the points: *i and the share of the way to the next one, which is above 1 after the last point. A
 * value before the first point counts as that point. */
static void locate(const sl_sim_list *l, double x, int32_t *i, double *share)
{
    *i = 0;
    *share = 0;
    if (l->n < 2 || x <= l->v[0])
        return;
    while (*i < l->n - 2 && x > l->v[*i + 1])
        ++*i;
    *share = (x - l->v[*i]) / (l->v[*i + 1] - l->v[*i]);
}

static double along(double a, double b, double share)
{
    return a + (b - a) * share;
}

double sl_sim_prefill_ns(const sl_sim_costs *c, double tokens, double n, double context)
{
    const sl_sim_list *ms = &c->prefill.step_ms;
    int32_t i, j, columns = c->prefill.contexts.n;
    double a, b;
    locate(&c->prefill.chunks, tokens, &i, &a);
    locate(&c->prefill.contexts, context, &j, &b);
    const double *row = &ms->v[i * columns + j], *next = c->prefill.chunks.n > 1 ? row + columns : row;
    int32_t right = columns > 1;
    double whole = along(along(row[0], row[right], b), along(next[0], next[right], b), a);
    return whole > 0 ? whole * 1e6 * n / tokens : 0;
}

double sl_sim_decode_ns(const sl_sim_costs *c, int32_t batch, double tokens)
{
    const sl_sim_list *ms = &c->decode.step_ms;
    int32_t i;
    double share;
    locate(&c->decode.batches, batch, &i, &share);
    double base = along(ms->v[i], ms->v[ms->n > 1 ? i + 1 : i], share);
    double whole = base + c->decode.ms_per_million_tokens * tokens / 1e6;
    return whole > 0 ? whole * 1e6 : 0; /* numbers that fall reach 0 after the last point */
}
