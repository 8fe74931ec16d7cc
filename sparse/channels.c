/* Tables of channels: reading, checks, the list of loaded tables, and writing. See channels.h. */
#include "sparse/channels.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "sparse/calibrated.h"

enum { MAX_LAYERS = 4096, MAX_HEADS = 1024, MAX_DIM = 1024, MAX_FILE = 256 << 20, WHERE = 512 };

/* ---- tables ---- */

static sl_status table_new(const sl_algo_model *m, int32_t count, sl_channels **out, sl_err *err)
{
    const size_t n = (size_t)m->n_layers * (size_t)m->kv_heads * (size_t)count;
    sl_channels *c = calloc(1, sizeof *c);
    int32_t *of = calloc(n, sizeof *of);
    if (!c || !of) {
        free(c);
        free(of);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    *c = (sl_channels){
        .n_layers = m->n_layers, .kv_heads = m->kv_heads, .head_dim = m->head_dim, .count = count, .of = of};
    *out = c;
    return SL_OK;
}

void sl_channels_free(sl_channels *c)
{
    if (!c)
        return;
    free((void *)(uintptr_t)c->of);
    free(c);
}

static int32_t *channels_at(const sl_channels *c, int32_t layer, int32_t head)
{
    return (int32_t *)(uintptr_t)c->of + ((int64_t)layer * c->kv_heads + head) * c->count;
}

static void make_hash(sl_channels *c)
{
    const int32_t shape[] = {c->n_layers, c->kv_heads, c->head_dim, c->count};
    const size_t n = (size_t)c->n_layers * (size_t)c->kv_heads * (size_t)c->count;
    sl_key k = sl_hash_chain((sl_key){0}, shape, sizeof shape);
    c->hash = sl_hash_chain(k, c->of, n * sizeof *c->of).lo;
}

/* ---- lists ---- */

/* The list of one head: at least `count` distinct channels, of which the first `count` go to out. `where`: of the
 * list, in errors. */
static sl_status read_list(const json_t *list, const char *where, int32_t head_dim, int32_t count,
                           int32_t *out, sl_err *err)
{
    bool seen[MAX_DIM] = {false};
    if (!json_is_array(list))
        return sl_fail(err, SL_ERR_INVALID, "%s: want a list of channels for each head", where);
    if (json_array_size(list) < (size_t)count)
        return sl_fail(err, SL_ERR_INVALID, "%s: %zu channels, %d are needed", where, json_array_size(list),
                       count);
    if (json_array_size(list) > (size_t)head_dim)
        return sl_fail(err, SL_ERR_REFUSED, "%s: %zu channels, but the model's head_dim is %d", where,
                       json_array_size(list), head_dim);
    for (int32_t i = 0; i < count; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        const json_int_t ch = json_is_integer(v) ? json_integer_value(v) : -1;
        if (ch < 0 || ch >= head_dim || seen[ch])
            return sl_fail(err, SL_ERR_INVALID, "%s: entry %d is no channel in 0..%d, or it is listed twice",
                           where, i, head_dim - 1);
        seen[ch] = true;
        out[i] = (int32_t)ch;
    }
    return SL_OK;
}

/* The lists of one layer, which must be `heads`. */
static sl_status check_heads(const json_t *lists, const char *where, int32_t heads, sl_err *err)
{
    if (!json_is_array(lists))
        return sl_fail(err, SL_ERR_INVALID, "%s: want a list of channels for each head", where);
    if (json_array_size(lists) != (size_t)heads)
        return sl_fail(err, SL_ERR_REFUSED, "%s: %zu heads, but the model has %d", where,
                       json_array_size(lists), heads);
    return SL_OK;
}

/* ---- our form ---- */

/* What was measured: of keys alone, or of queries and keys. Channels of values say nothing about products. */
static sl_status check_type(const json_t *doc, const char *name, sl_err *err)
{
    const char *type = "qk";
    SL_TRY(sl_json_opt_string(doc, name, "channel_type", &type, err));
    if (strcmp(type, "qk") != 0 && strcmp(type, "k") != 0)
        return sl_fail(err, SL_ERR_REFUSED,
                       "%s.channel_type: \"%.64s\", but keys are selected by channels of type qk or k", name,
                       type);
    return SL_OK;
}

static sl_status read_ours(const json_t *doc, const char *name, const sl_algo_model *m, sl_channels **out,
                           sl_err *err)
{
    json_t *layers = NULL;
    int64_t version = 0, count = 0;
    SL_TRY(sl_json_get_int(doc, name, "schema_version", 1, 1, &version, err));
    SL_TRY(sl_calibrated_model(doc, name, m, err));
    SL_TRY(check_type(doc, name, err));
    SL_TRY(sl_json_get_int(doc, name, "heavy_channels", 1, m->head_dim, &count, err));
    SL_TRY(sl_json_get_object(doc, name, "channels", &layers, err));
    if (json_object_size(layers) != (size_t)m->n_layers)
        return sl_fail(err, SL_ERR_REFUSED, "%s.channels: %zu layers, but the model has %d", name,
                       json_object_size(layers), m->n_layers);
    SL_TRY(table_new(m, (int32_t)count, out, err));
    for (int32_t l = 0; l < m->n_layers; l++) {
        char key[16], where[WHERE];
        snprintf(key, sizeof key, "%d", l);
        snprintf(where, sizeof where, "%.400s.channels.%s", name, key);
        const json_t *lists = json_object_get(layers, key);
        SL_TRY(check_heads(lists, where, m->kv_heads, err));
        for (int32_t h = 0; h < m->kv_heads; h++)
            SL_TRY(read_list(json_array_get(lists, (size_t)h), where, m->head_dim, (int32_t)count,
                             channels_at(*out, l, h), err));
    }
    return SL_OK;
}

/* ---- SGLang's older form ---- */

static const json_t *older_layer(const json_t *doc, int32_t layer, const char *which, char *key)
{
    snprintf(key, 64, "model.layers.%d.self_attn.%s_proj", layer, which);
    return json_object_get(doc, key);
}

typedef struct ranked {
    int32_t channel, ranks;
} ranked;

static int by_ranks(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->ranks != y->ranks ? (x->ranks > y->ranks) - (x->ranks < y->ranks)
                                : (x->channel > y->channel) - (x->channel < y->channel);
}

/* The order of the channels of one KV head from the lists of `group` heads. */
static sl_status join_heads(const json_t *lists, const char *where, int32_t first, int32_t group,
                            int32_t head_dim, int32_t *out, sl_err *err)
{
    ranked all[MAX_DIM];
    int32_t one[MAX_DIM];
    for (int32_t i = 0; i < head_dim; i++)
        all[i] = (ranked){.channel = i};
    for (int32_t h = first; h < first + group; h++) {
        SL_TRY(read_list(json_array_get(lists, (size_t)h), where, head_dim, head_dim, one, err));
        for (int32_t i = 0; i < head_dim; i++)
            all[one[i]].ranks += i;
    }
    qsort(all, (size_t)head_dim, sizeof *all, by_ranks);
    for (int32_t i = 0; i < head_dim; i++)
        out[i] = all[i].channel;
    return SL_OK;
}

static sl_status read_older(const json_t *doc, const char *name, const sl_algo_model *m, sl_channels **out,
                            sl_err *err)
{
    char key[64], where[WHERE];
    const char *which = older_layer(doc, 0, "qk", key) ? "qk" : "k";
    const int32_t heads = which[0] == 'q' ? m->n_heads : m->kv_heads, group = heads / m->kv_heads;
    if (older_layer(doc, m->n_layers, which, key))
        return sl_fail(err, SL_ERR_REFUSED, "%s.%s: exists, but the model has %d layers", name, key,
                       m->n_layers);
    SL_TRY(table_new(m, m->head_dim, out, err));
    for (int32_t l = 0; l < m->n_layers; l++) {
        const json_t *lists = older_layer(doc, l, which, key);
        if (!lists)
            return sl_fail(err, SL_ERR_REFUSED, "%s.%s: is missing, but the model has %d layers", name, key,
                           m->n_layers);
        snprintf(where, sizeof where, "%.400s.%s", name, key);
        SL_TRY(check_heads(lists, where, heads, err));
        for (int32_t h = 0; h < m->kv_heads; h++)
            SL_TRY(join_heads(lists, where, h * group, group, m->head_dim, channels_at(*out, l, h), err));
    }
    return SL_OK;
}

/* ---- loading ---- */

static sl_status check_sizes(const sl_algo_model *m, const char *name, sl_err *err)
{
    if (m->n_layers < 1 || m->n_layers > MAX_LAYERS || m->kv_heads < 1 || m->kv_heads > MAX_HEADS ||
        m->head_dim < 1 || m->head_dim > MAX_DIM || m->n_heads < 1 || m->n_heads % m->kv_heads)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: %d layers, %d heads, %d KV heads and head_dim %d cannot have calibrated channels",
                       name, m->n_layers, m->n_heads, m->kv_heads, m->head_dim);
    return SL_OK;
}

static sl_status read_table(const json_t *doc, const char *name, const sl_algo_model *m, bool *said,
                            void **out, sl_err *err)
{
    char key[64];
    sl_channels *c = NULL;
    *said = false;
    SL_TRY(check_sizes(m, name, err));
    if (!json_is_object(doc))
        return sl_fail(err, SL_ERR_INVALID, "%s: want an object", name);
    bool older = older_layer(doc, 0, "qk", key) || older_layer(doc, 0, "k", key);
    sl_status st = (older ? read_older : read_ours)(doc, name, m, &c, err);
    if (st == SL_OK && !older) /* the last check, because it reads weights */
        st = sl_calibrated_weights(doc, name, m, said, err);
    if (st != SL_OK) {
        sl_channels_free(c);
        return st;
    }
    make_hash(c);
    *out = c;
    return SL_OK;
}

static bool same_table(const void *first, const void *second)
{
    const sl_channels *a = first, *b = second;
    const size_t n = (size_t)a->n_layers * (size_t)a->kv_heads * (size_t)a->count * sizeof *a->of;
    return a->hash == b->hash && a->n_layers == b->n_layers && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->count == b->count && memcmp(a->of, b->of, n) == 0;
}

static void free_table(void *table)
{
    sl_channels_free(table);
}

static const sl_calibrated_kind kind = {
    .max_bytes = MAX_FILE, .read = read_table, .same = same_table, .free = free_table};

sl_status sl_channels_load(const char *path, const sl_algo_model *m, const sl_channels **out, sl_err *err)
{
    const void *table;
    SL_TRY(sl_calibrated_load(&kind, path, m, &table, err));
    *out = table;
    return SL_OK;
}

sl_status sl_channels_parse(const char *text, size_t n, const char *name, const sl_algo_model *m,
                            sl_channels **out, sl_err *err)
{
    void *table;
    SL_TRY(sl_calibrated_parse(&kind, text, n, name, m, &table, err));
    *out = table;
    return SL_OK;
}

/* ---- writing ---- */

/* The channels of one head, the most important first. */
static void rank_channels(const double *importance, int32_t head_dim, int32_t *out)
{
    for (int32_t i = 0; i < head_dim; i++) {
        int32_t at = i;
        for (; at > 0 && importance[out[at - 1]] < importance[i]; at--)
            out[at] = out[at - 1];
        out[at] = i;
    }
}

static void write_table(FILE *f, const sl_algo_model *m, const char *name, const char *type, int64_t tokens,
                        const double *importance)
{
    int32_t order[MAX_DIM];
    fputs("{\n\"schema_version\": 1,\n", f);
    sl_calibrated_put(f, m, name);
    fprintf(f, "\"heavy_channels\": %d,\n\"channel_type\": \"%s\",\n\"tokens\": %lld,\n", m->head_dim, type,
            (long long)tokens);
    fputs("\"channels\": {\n", f);
    for (int32_t l = 0; l < m->n_layers; l++) {
        fprintf(f, "\"%d\": [", l);
        for (int32_t h = 0; h < m->kv_heads; h++) {
            rank_channels(importance + ((int64_t)l * m->kv_heads + h) * m->head_dim, m->head_dim, order);
            for (int32_t i = 0; i < m->head_dim; i++)
                fprintf(f, "%s%d", i ? ", " : h ? ", [" : "[", order[i]);
            fputc(']', f);
        }
        fprintf(f, "]%s\n", l + 1 < m->n_layers ? "," : "");
    }
    fputs("}\n}\n", f);
}

sl_status sl_channels_write(const char *path, const sl_algo_model *m, const char *name, const char *type,
                            int64_t tokens, const double *importance, sl_err *err)
{
    char part[4096];
    SL_TRY(check_sizes(m, path, err));
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part)
        return sl_fail(err, SL_ERR_INVALID, "%.200s: the path is too long", path);
    FILE *f = fopen(part, "w");
    if (!f)
        return sl_fail(err, SL_ERR_IO, "%s: %s", part, strerror(errno));
    write_table(f, m, name, type, tokens, importance);
    bool bad = ferror(f) != 0;
    bad |= fclose(f) != 0;
    if (bad || rename(part, path) != 0) {
        sl_status st = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
        (void)remove(part);
        return st;
    }
    return SL_OK;
}
