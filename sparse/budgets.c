/* Budgets by layer and KV head: reading, writing, and the limits of lists. See budgets.h. */
#include "sparse/budgets.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "sparse/algorithm.h"
#include "sparse/calibrated.h"

enum { MAX_LAYERS = 4096, MAX_HEADS = 1024, MAX_FILE = 64 << 20 };
#define MAX_SHARE 1e6

/* ---- tables ---- */

static size_t entries(const sl_budgets *b)
{
    return (size_t)b->n_layers * (size_t)b->kv_heads;
}

void sl_budgets_free(sl_budgets *b)
{
    if (!b)
        return;
    free((void *)(uintptr_t)b->share);
    free(b);
}

static sl_status table_new(const sl_algo_model *m, sl_budgets **out, sl_err *err)
{
    sl_budgets *b = calloc(1, sizeof *b);
    float *share = calloc((size_t)m->n_layers * (size_t)m->kv_heads, sizeof *share);
    if (!b || !share) {
        free(b);
        free(share);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    *b = (sl_budgets){.n_layers = m->n_layers, .kv_heads = m->kv_heads, .share = share};
    *out = b;
    return SL_OK;
}

/* ---- reading ---- */

static sl_status read_share(const json_t *v, const char *name, int32_t layer, int32_t head, float *out,
                            sl_err *err)
{
    const double x = json_is_number(v) ? json_number_value(v) : -1;
    if (json_is_string(v) && strcmp(json_string_value(v), "all") == 0) {
        *out = INFINITY;
        return SL_OK;
    }
    if (!(x >= 0 && x <= MAX_SHARE))
        return sl_fail(err, SL_ERR_INVALID, "%s.budgets[%d][%d]: want a number from 0 to %g, or \"all\"",
                       name, layer, head, MAX_SHARE);
    *out = (float)x;
    return SL_OK;
}

static sl_status read_shares(const json_t *doc, const char *name, sl_budgets *b, sl_err *err)
{
    const json_t *layers = json_object_get(doc, "budgets");
    float *share = (float *)(uintptr_t)b->share;
    if (!json_is_array(layers))
        return sl_fail(err, SL_ERR_INVALID, "%s.budgets: want a list for each layer", name);
    if (json_array_size(layers) != (size_t)b->n_layers)
        return sl_fail(err, SL_ERR_REFUSED, "%s.budgets: %zu layers, but the model has %d", name,
                       json_array_size(layers), b->n_layers);
    for (int32_t l = 0; l < b->n_layers; l++) {
        const json_t *heads = json_array_get(layers, (size_t)l);
        if (!json_is_array(heads) || json_array_size(heads) != (size_t)b->kv_heads)
            return sl_fail(err, json_is_array(heads) ? SL_ERR_REFUSED : SL_ERR_INVALID,
                           "%s.budgets[%d]: want a list of %d entries, one for each KV head", name, l,
                           b->kv_heads);
        for (int32_t h = 0; h < b->kv_heads; h++)
            SL_TRY(read_share(json_array_get(heads, (size_t)h), name, l, h, share++, err));
    }
    return SL_OK;
}

static sl_status check_sizes(const sl_algo_model *m, const char *name, sl_err *err)
{
    if (m->n_layers < 1 || m->n_layers > MAX_LAYERS || m->kv_heads < 1 || m->kv_heads > MAX_HEADS)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: %d layers of %d KV heads cannot have budgets of their own", name, m->n_layers,
                       m->kv_heads);
    return SL_OK;
}

static sl_status read_table(const json_t *doc, const char *name, const sl_algo_model *m, bool *said,
                            void **out, sl_err *err)
{
    sl_budgets *b = NULL;
    int64_t version = 0;
    *said = false;
    SL_TRY(check_sizes(m, name, err));
    if (!json_is_object(doc))
        return sl_fail(err, SL_ERR_INVALID, "%s: want an object", name);
    SL_TRY(sl_json_get_int(doc, name, "schema_version", 1, 1, &version, err));
    SL_TRY(sl_calibrated_model(doc, name, m, err));
    SL_TRY(table_new(m, &b, err));
    sl_status st = read_shares(doc, name, b, err);
    if (st == SL_OK) /* the last check, because it reads weights */
        st = sl_calibrated_weights(doc, name, m, said, err);
    if (st != SL_OK) {
        sl_budgets_free(b);
        return st;
    }
    const int32_t shape[] = {b->n_layers, b->kv_heads};
    b->hash = sl_hash_chain(sl_hash_chain((sl_key){0}, shape, sizeof shape), b->share,
                            entries(b) * sizeof *b->share)
                  .lo;
    *out = b;
    return SL_OK;
}

static bool same_table(const void *first, const void *second)
{
    const sl_budgets *a = first, *b = second;
    return a->hash == b->hash && a->n_layers == b->n_layers && a->kv_heads == b->kv_heads &&
           memcmp(a->share, b->share, entries(a) * sizeof *a->share) == 0;
}

static void free_table(void *table)
{
    sl_budgets_free(table);
}

static const sl_calibrated_kind kind = {
    .max_bytes = MAX_FILE, .read = read_table, .same = same_table, .free = free_table};

sl_status sl_budgets_load(const char *path, const sl_algo_model *m, const sl_budgets **out, sl_err *err)
{
    const void *table;
    SL_TRY(sl_calibrated_load(&kind, path, m, &table, err));
    *out = table;
    return SL_OK;
}

sl_status sl_budgets_parse(const char *text, size_t n, const char *name, const sl_algo_model *m,
                           sl_budgets **out, sl_err *err)
{
    void *table;
    SL_TRY(sl_calibrated_parse(&kind, text, n, name, m, &table, err));
    *out = table;
    return SL_OK;
}

sl_status sl_budgets_prepare(const char *path, const sl_algo_model *m, const sl_budgets **out,
                             uint64_t *content, sl_err *err)
{
    *out = NULL;
    if (!path[0] || m->kv_heads < 1) /* the latter is refused with the reason when the cache is shaped */
        return SL_OK;
    sl_status st = sl_budgets_load(path, m, out, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "budgets_path");
    const uint64_t both[] = {*content, (*out)->hash};
    *content = sl_hash_chain((sl_key){0}, both, sizeof both).lo;
    return SL_OK;
}

/* ---- writing ---- */

sl_status sl_budgets_write(const char *path, const sl_algo_model *m, const char *name, const char *method,
                           const float *share, sl_err *err)
{
    char part[4096];
    SL_TRY(check_sizes(m, path, err));
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part)
        return sl_fail(err, SL_ERR_INVALID, "%.200s: the path is too long", path);
    FILE *f = fopen(part, "w");
    if (!f)
        return sl_fail(err, SL_ERR_IO, "%s: %s", part, strerror(errno));
    fputs("{\n\"schema_version\": 1,\n", f);
    sl_calibrated_put(f, m, name);
    fprintf(f, "\"budget_method\": \"%s\",\n\"budgets\": [\n", method);
    for (int32_t l = 0; l < m->n_layers; l++)
        for (int32_t h = 0; h < m->kv_heads; h++) {
            const float x = share[(int64_t)l * m->kv_heads + h];
            fputs(h ? ", " : "[", f);
            if (isinf(x))
                fputs("\"all\"", f);
            else
                fprintf(f, "%.4g", (double)x);
            if (h + 1 == m->kv_heads)
                fprintf(f, "]%s\n", l + 1 < m->n_layers ? "," : "");
        }
    fputs("]\n}\n", f);
    bool bad = ferror(f) != 0;
    bad |= fclose(f) != 0;
    if (bad || rename(part, path) != 0) {
        sl_status st = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
        (void)remove(part);
        return st;
    }
    return SL_OK;
}

/* ---- limits ---- */

static int32_t units(float share, int32_t budget, int32_t least)
{
    const double n = isinf(share) ? INT32_MAX : floor((double)share * (double)budget + 0.5);
    return n >= INT32_MAX ? INT32_MAX : n > (double)least ? (int32_t)n : least;
}

int32_t sl_budgets_units(const sl_budgets *b, int32_t layer, int32_t head, int32_t budget, int32_t least)
{
    return b ? units(b->share[(int64_t)layer * b->kv_heads + head], budget, least) : budget;
}

int32_t sl_budgets_longest(const sl_budgets *b, int32_t layer, int32_t budget, int32_t least)
{
    int32_t most = least;
    if (!b)
        return budget;
    for (int32_t l = layer < 0 ? 0 : layer; l < (layer < 0 ? b->n_layers : layer + 1); l++)
        for (int32_t h = 0; h < b->kv_heads; h++) {
            const int32_t n = sl_budgets_units(b, l, h, budget, least);
            most = n > most ? n : most;
        }
    return most;
}

uint64_t sl_limits_bytes(const sl_budgets *b, int32_t lists)
{
    return b ? 4 * (uint64_t)b->n_layers * (uint64_t)lists : 0;
}

void sl_limits_close(sl_limits *l)
{
    if (l->be)
        sl_be_free(l->be, SL_MEM_DEVICE, l->of);
    *l = (sl_limits){0};
}

static float share_of(const sl_budgets *b, int32_t lists, int32_t layer, int32_t list)
{
    const float *of = b->share + (int64_t)layer * b->kv_heads;
    float sum = 0;
    if (lists == b->kv_heads)
        return of[list];
    for (int32_t h = 0; h < b->kv_heads; h++)
        sum += of[h];
    return sum / (float)b->kv_heads;
}

sl_status sl_limits_open(sl_limits *l, sl_backend *be, const sl_budgets *b, int32_t lists, int32_t budget,
                         int32_t least, sl_err *err)
{
    *l = (sl_limits){.be = be, .lists = lists};
    if (!b)
        return SL_OK;
    const size_t n = (size_t)b->n_layers * (size_t)lists;
    int32_t *of = calloc(n, sizeof *of);
    if (!of)
        return sl_fail(err, SL_ERR_NO_MEMORY, "budgets: out of memory");
    for (size_t i = 0; i < n; i++)
        of[i] = units(share_of(b, lists, (int32_t)(i / (size_t)lists), (int32_t)(i % (size_t)lists)), budget,
                      least);
    sl_status st = sl_be_alloc(be, SL_MEM_DEVICE, n * 4, (void **)&l->of, err);
    if (st == SL_OK)
        st = sl_be_copy(be, l->of, of, n * 4, err);
    if (st == SL_OK)
        st = sl_be_sync(be, err);
    free(of);
    if (st != SL_OK)
        sl_limits_close(l);
    return st;
}
