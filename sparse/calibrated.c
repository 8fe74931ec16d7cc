/* What every calibration file says of its model. See calibrated.h. */
#include "sparse/calibrated.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"

static sl_status same_number(const json_t *doc, const char *name, const char *key, int32_t mine, bool must,
                             sl_err *err)
{
    int64_t v = mine;
    SL_TRY((must ? sl_json_get_int : sl_json_opt_int)(doc, name, key, 0, INT32_MAX, &v, err));
    if (v != mine)
        return sl_fail(err, SL_ERR_REFUSED,
                       "%s.%s: %lld, but the model has %d: it is the calibration of another model", name, key,
                       (long long)v, mine);
    return SL_OK;
}

sl_status sl_calibrated_model(const json_t *doc, const char *name, const sl_algo_model *m, sl_err *err)
{
    const char *arch = NULL, *indexing = "global_kv_head_id";
    SL_TRY(sl_json_get_string(doc, name, "model_arch", &arch, err));
    if (strcmp(arch, m->architecture) != 0)
        return sl_fail(err, SL_ERR_REFUSED,
                       "%s.model_arch: %.64s, but the model is %s: it is the calibration of another model",
                       name, arch, m->architecture);
    SL_TRY(same_number(doc, name, "num_layers", m->n_layers, true, err));
    SL_TRY(same_number(doc, name, "num_heads", m->n_heads, true, err));
    SL_TRY(same_number(doc, name, "num_kv_heads", m->kv_heads, true, err));
    SL_TRY(same_number(doc, name, "head_dim", m->head_dim, true, err));
    SL_TRY(same_number(doc, name, "hidden_size", m->hidden_size, false, err));
    SL_TRY(same_number(doc, name, "vocab_size", m->vocab_size, false, err));
    SL_TRY(sl_json_opt_string(doc, name, "indexing", &indexing, err));
    if (strcmp(indexing, "global_kv_head_id") != 0)
        return sl_fail(err, SL_ERR_INVALID, "%s.indexing: \"%.64s\", want \"global_kv_head_id\"", name,
                       indexing);
    return SL_OK;
}

sl_status sl_calibrated_weights(const json_t *doc, const char *name, const sl_algo_model *m, bool *said,
                                sl_err *err)
{
    const char *text = NULL;
    char mine[20];
    SL_TRY(sl_json_opt_string(doc, name, "model_print", &text, err));
    if (!text)
        return SL_OK;
    *said = true;
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return sl_fail(err, SL_ERR_INVALID, "%s.model_print: \"%.64s\", want 16 hexadecimal digits", name,
                       text);
    const uint64_t print = m->print ? m->print(m->print_ctx) : 0;
    snprintf(mine, sizeof mine, "%016llx", (unsigned long long)print);
    if (print && strcmp(text, mine) != 0)
        return sl_fail(
            err, SL_ERR_REFUSED,
            "%s.model_print: %s, but the weights of the model have %s: it is the calibration of another model or fine-tune; "
            "`sluice calibrate` makes one for these weights",
            name, text, mine);
    return SL_OK;
}

void sl_calibrated_put(FILE *f, const sl_algo_model *m, const char *name)
{
    json_t *quoted = json_string(name);
    char *model = quoted ? json_dumps(quoted, JSON_ENCODE_ANY) : NULL;
    fprintf(
        f,
        "\"model_arch\": \"%s\",\n\"model\": %s,\n\"num_layers\": %d,\n\"num_heads\": %d,\n\"num_kv_heads\": %d,\n"
        "\"head_dim\": %d,\n\"hidden_size\": %d,\n\"vocab_size\": %d,\n\"indexing\": \"global_kv_head_id\",\n",
        m->architecture, model ? model : "null", m->n_layers, m->n_heads, m->kv_heads, m->head_dim,
        m->hidden_size, m->vocab_size);
    free(model);
    json_decref(quoted);
    const uint64_t print = m->print ? m->print(m->print_ctx) : 0;
    if (print)
        fprintf(f, "\"model_print\": \"%016llx\",\n", (unsigned long long)print);
}

/* ---- loading ---- */

typedef struct loaded {
    struct loaded *next;
    const sl_calibrated_kind *kind;
    void *table;
} loaded;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static loaded *all; /* under the lock */

/* The loaded table with the contents of t, which is freed if it is not needed. NULL: out of memory. */
static const void *keep(const sl_calibrated_kind *k, void *t)
{
    loaded *n = malloc(sizeof *n);
    const void *kept = NULL;
    pthread_mutex_lock(&lock);
    for (const loaded *l = all; l && !kept; l = l->next)
        if (l->kind == k && k->same(l->table, t))
            kept = l->table;
    if (!kept && n) {
        *n = (loaded){.next = all, .kind = k, .table = t};
        all = n, n = NULL;
        kept = t;
    }
    pthread_mutex_unlock(&lock);
    free(n);
    if (kept != t)
        k->free(t);
    return kept;
}

sl_status sl_calibrated_load(const sl_calibrated_kind *k, const char *path, const sl_algo_model *m,
                             const void **out, sl_err *err)
{
    json_t *doc = NULL;
    void *t = NULL;
    bool said = false;
    SL_TRY(sl_json_load(path, k->max_bytes, &doc, err));
    sl_status st = k->read(doc, path, m, &said, &t, err);
    json_decref(doc);
    SL_TRY(st);
    const void *kept = keep(k, t);
    if (!kept)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (!said && kept == t) /* once for each table */
        sl_log(
            SL_LOG_WARN, "sparse", "calibration",
            "file=\"%s\" reason=\"it does not say for which weights it was made, so only its shape was compared; "
            "sluice calibrate makes one that does\"",
            path);
    *out = kept;
    return SL_OK;
}

sl_status sl_calibrated_parse(const sl_calibrated_kind *k, const char *text, size_t n, const char *name,
                              const sl_algo_model *m, void **out, sl_err *err)
{
    json_t *doc = NULL;
    bool said;
    SL_TRY(sl_json_parse(text, n, name, &doc, err));
    sl_status st = k->read(doc, name, m, &said, out, err);
    json_decref(doc);
    return st;
}
