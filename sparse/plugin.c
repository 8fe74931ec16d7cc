/* See plugin.h. */
#include "sparse/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "sparse/registry.h"

enum { MOST_OBJECTS = 8 };

typedef struct object {
    char path[PATH_MAX];
    const sl_options *options[SL_PLUGIN_ALGORITHMS + 1];
} object;

static object objects[MOST_OBJECTS];
static int n_objects;

static sl_status hash_file(const char *path, uint64_t *out, sl_err *err)
{
    enum { BLOCK = 65536 };
    uint8_t block[BLOCK];
    FILE *from = fopen(path, "re");
    sl_key k = {0, 0};
    if (!from)
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    for (size_t n; (n = fread(block, 1, sizeof block, from)) > 0;)
        k = sl_hash_chain(k, block, n);
    const bool bad = ferror(from);
    fclose(from);
    *out = k.lo | 1; /* 0 stands for an algorithm of this build */
    return bad ? sl_fail(err, SL_ERR_IO, "%s: cannot be read", path) : SL_OK;
}

/* ---- what an object must be ---- */

static sl_status check_version(const sl_plugin *p, sl_err *err)
{
    static const uint32_t here[SL_PLUGIN_SIZES] = SL_PLUGIN_SIZES_HERE;
    if (p->version != SL_PLUGIN_VERSION)
        return sl_fail(err, SL_ERR_REFUSED, "it was made for version %u of plug-ins, and this is version %d",
                       p->version, SL_PLUGIN_VERSION);
    if (memcmp(p->sizes, here, sizeof here) != 0)
        return sl_fail(err, SL_ERR_REFUSED,
                       "it was compiled with headers of another version of Sluice; compile it again");
    return p->algorithms && p->algorithms[0] ? SL_OK : sl_fail(err, SL_ERR_INVALID, "it has no algorithms");
}

/* A word of small letters, digits and underscores that a configuration can name. */
static bool is_name(const char *name)
{
    const size_t n = name ? strlen(name) : 0;
    return n > 0 && n < SL_OPTION_CHOICE_BYTES && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

static sl_status check_functions(const sl_algo_desc *a, sl_err *err)
{
    const struct {
        const char *name;
        bool there;
    } required[] = {{"selector", a->selector != NULL},         {"width", a->width != NULL},
                    {"device_bytes", a->device_bytes != NULL}, {"create", a->create != NULL},
                    {"destroy", a->destroy != NULL},           {"retrieve", a->retrieve != NULL},
                    {"description", a->description != NULL}};
    for (size_t i = 0; i < SL_COUNT(required); i++)
        if (!required[i].there)
            return sl_fail(err, SL_ERR_INVALID, "algorithm %s has no %s", a->name, required[i].name);
    if (a->prompt_lists && !(a->prompt && a->reads_all && a->needs_kv_heads))
        return sl_fail(err, SL_ERR_INVALID,
                       "algorithm %s has prompt_lists, which need prompt, reads_all and needs_kv_heads",
                       a->name);
    return !a->prompt == !a->prompt_window
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "algorithm %s has only one of prompt and prompt_window",
                         a->name);
}

/* Bytes of a field of each type; 0: a list, whose bytes depend on it. */
static size_t field_bytes(sl_option_type t)
{
    static const size_t bytes[] = {[SL_OPTION_INT] = sizeof(int),
                                   [SL_OPTION_SIZE] = sizeof(uint64_t),
                                   [SL_OPTION_FLOAT] = sizeof(double),
                                   [SL_OPTION_BOOL] = sizeof(bool),
                                   [SL_OPTION_ENUM] = sizeof(int),
                                   [SL_OPTION_CHOICE] = SL_OPTION_CHOICE_BYTES,
                                   [SL_OPTION_TEXTS] = 0};
    return bytes[t];
}

/* What a table of another program can have wrong: each of these would be read or written as something else. */
static sl_status check_row(const sl_options *t, size_t i, sl_err *err)
{
    const sl_option *o = &t->rows[i];
    if (!is_name(o->name) || !o->doc || !o->dflt)
        return sl_fail(err, SL_ERR_INVALID, "option %zu has no name, no text or no default", i);
    if (o->type < SL_OPTION_TEXT || o->type > SL_OPTION_TEXTS)
        return sl_fail(err, SL_ERR_INVALID, "option %s: type %d does not exist", o->name, (int)o->type);
    if (!o->size || o->offset > t->bytes || o->size > t->bytes - o->offset)
        return sl_fail(err, SL_ERR_INVALID, "option %s is outside of the values, which have %zu bytes",
                       o->name, t->bytes);
    if (field_bytes(o->type) && field_bytes(o->type) != o->size)
        return sl_fail(err, SL_ERR_INVALID, "option %s has %zu bytes, and its type %zu", o->name, o->size,
                       field_bytes(o->type));
    if ((o->type == SL_OPTION_ENUM || o->type == SL_OPTION_ENUMS) && !o->names && !o->list)
        return sl_fail(err, SL_ERR_INVALID, "option %s is an enumeration without names", o->name);
    for (size_t k = 0; k < i; k++)
        if (strcmp(t->rows[k].name, o->name) == 0)
            return sl_fail(err, SL_ERR_INVALID, "two options %s", o->name);
    return SL_OK;
}

/* Every default must be accepted, since a configuration begins with all of them. */
static sl_status check_rows(const sl_options *t, sl_err *err)
{
    char values[SL_SELECT_BYTES] __attribute__((aligned(16))) = {0};
    if (t->n && !t->rows)
        return sl_fail(err, SL_ERR_INVALID, "%zu options without rows", t->n);
    for (size_t i = 0; i < t->n; i++) {
        SL_TRY(check_row(t, i, err));
        SL_TRY(sl_option_set(values, &t->rows[i], t->rows[i].dflt, err));
    }
    return SL_OK;
}

/* An option of its own, or the newest tokens, which every algorithm can read. */
static sl_status check_budget(const sl_algo_desc *a, sl_err *err)
{
    const char *key = a->budget_key;
    if (!key || strcmp(key, "recent_tokens") == 0 || (a->options && sl_options_find(a->options, key)))
        return SL_OK;
    return sl_fail(err, SL_ERR_INVALID,
                   "algorithm %s: budget_key %s is none of its options, nor recent_tokens", a->name, key);
}

static sl_status check_options(const sl_algo_desc *a, sl_err *err)
{
    const sl_options *t = a->options;
    if (!t)
        return check_budget(a, err);
    if (!t->section || strcmp(t->section, "sparse_attention") != 0 || !t->seam ||
        strcmp(t->seam, "sparse_attention.algorithm") != 0 || !t->name || strcmp(t->name, a->name) != 0)
        return sl_fail(
            err, SL_ERR_INVALID,
            "options of %s: section must be sparse_attention, seam sparse_attention.algorithm, and name that of the algorithm",
            a->name);
    if (t->bytes > SL_SELECT_BYTES || t->n > SL_PLUGIN_OPTIONS)
        return sl_fail(err, SL_ERR_TOO_LARGE,
                       "options of %s: %zu of %zu bytes, and there can be %d of %d bytes", a->name, t->n,
                       t->bytes, SL_PLUGIN_OPTIONS, SL_SELECT_BYTES);
    sl_status st = check_rows(t, err);
    if (st == SL_OK)
        st = check_budget(a, err);
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, "options of %s", a->name);
}

static sl_status check_algorithm(const sl_algo_desc *a, sl_err *err)
{
    if (!is_name(a->name))
        return sl_fail(err, SL_ERR_INVALID,
                       "the name of an algorithm is not a word of small letters, digits and underscores");
    if (sl_algo_find(a->name) || strcmp(a->name, "auto") == 0)
        return sl_fail(err, SL_ERR_REFUSED, "algorithm %s exists already", a->name);
    SL_TRY(check_functions(a, err));
    return check_options(a, err);
}

/* ---- loading ---- */

static sl_status check_all(const sl_plugin *p, int *n, sl_err *err)
{
    SL_TRY(check_version(p, err));
    for (*n = 0; p->algorithms[*n]; ++*n) {
        if (*n == SL_PLUGIN_ALGORITHMS)
            return sl_fail(err, SL_ERR_TOO_LARGE, "more than %d algorithms", SL_PLUGIN_ALGORITHMS);
        for (int i = 0; i < *n; i++)
            if (p->algorithms[i]->name && p->algorithms[*n]->name &&
                strcmp(p->algorithms[i]->name, p->algorithms[*n]->name) == 0)
                return sl_fail(err, SL_ERR_INVALID, "two algorithms %s", p->algorithms[i]->name);
        SL_TRY(check_algorithm(p->algorithms[*n], err));
    }
    return SL_OK;
}

static sl_status open_object(const char *path, object *o, uint64_t hash, sl_err *err)
{
    int n = 0, options = 0;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return sl_fail(err, SL_ERR_INVALID, "%s", dlerror());
    const sl_plugin *p = dlsym(library, "sluice_plugin");
    sl_status st = p ? check_all(p, &n, err)
                     : sl_fail(err, SL_ERR_INVALID, "%s: it does not define sluice_plugin", path);
    if (st != SL_OK)
        (void)sl_fail_in(err, st, "%s", path);
    if (st != SL_OK) {
        dlclose(library);
        return st;
    }
    for (int i = 0; i < n; i++) { /* the object stays loaded from here on */
        SL_TRY(sl_registry_add(p->algorithms[i], hash, err));
        if (p->algorithms[i]->options)
            o->options[options++] = p->algorithms[i]->options;
    }
    return SL_OK;
}

sl_status sl_plugin_load(const char *path, const sl_options *const **options, sl_err *err)
{
    char real[PATH_MAX];
    uint64_t hash;
    if (!realpath(path, real))
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    int i = 0;
    while (i < n_objects && strcmp(objects[i].path, real) != 0)
        i++;
    if (i == MOST_OBJECTS)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%s: more than %d plug-ins", path, MOST_OBJECTS);
    if (i == n_objects) {
        SL_TRY(hash_file(real, &hash, err));
        SL_TRY(open_object(real, &objects[i], hash, err));
        memcpy(objects[i].path, real, strlen(real) + 1);
        n_objects++;
        sl_log(SL_LOG_INFO, "sparse", "plugin", "file=\"%s\" object=%016llx", real, (unsigned long long)hash);
    }
    if (options)
        *options = objects[i].options;
    return SL_OK;
}
