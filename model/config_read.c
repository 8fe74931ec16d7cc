/* Typed access to the keys of config.json; see config_read.h. */
#include "model/config_read.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static sl_status refuse(const sl_config_reader *x, sl_status st, const char *fmt, va_list ap)
{
    char text[400];
    vsnprintf(text, sizeof text, fmt, ap);
    return sl_fail(x->err, st, "%s: %s", x->label, text);
}

sl_status sl_cfg_bad(const sl_config_reader *x, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sl_status st = refuse(x, SL_ERR_INVALID, fmt, ap);
    va_end(ap);
    return st;
}

sl_status sl_cfg_cannot(const sl_config_reader *x, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sl_status st = refuse(x, SL_ERR_UNSUPPORTED, fmt, ap);
    va_end(ap);
    return st;
}

sl_status sl_cfg_fill(sl_config_reader *x, const char *defaults)
{
    json_t *more = json_loads(defaults, JSON_REJECT_DUPLICATES, NULL),
           *all = json_copy((json_t *)(uintptr_t)x->root);
    const char *key;
    json_t *v;
    SL_CHECK(more, "defaults of a family are no JSON: %s", defaults);
    bool ok = all != NULL;
    json_object_foreach(more, key, v) if (ok && !sl_cfg_get(all, key)) ok = json_object_set(all, key, v) == 0;
    json_decref(more);
    if (!ok) {
        json_decref(all);
        return sl_fail(x->err, SL_ERR_NO_MEMORY, "%s: no memory for a config", x->label);
    }
    json_decref(x->filled);
    x->root = x->filled = all;
    return SL_OK;
}

sl_status sl_cfg_only_selected(sl_config_reader *x)
{
    static const char *const words[] = {"deepseek_sparse_attention", "indexed_attention", "full_attention"};
    const json_t *list = sl_cfg_get(x->root, "layer_types");
    if (list && !json_is_array(list))
        return sl_cfg_bad(x, "layer_types: not a list");
    for (size_t i = 0; list && i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        bool known = false;
        for (size_t k = 0; s && k < SL_COUNT(words); k++)
            known = known || strcmp(s, words[k]) == 0;
        if (!known)
            return sl_cfg_cannot(x, "layer_types[%zu]: only \"deepseek_sparse_attention\" is supported", i);
    }
    return SL_OK;
}

const json_t *sl_cfg_get(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

sl_status sl_cfg_int(sl_config_reader *x, const json_t *v, const char *key, int32_t lo, int32_t hi,
                     int32_t *out)
{
    if (!v)
        return sl_cfg_bad(x, "%s: missing", key);
    if (!json_is_integer(v))
        return sl_cfg_bad(x, "%s: not an integer", key);
    json_int_t n = json_integer_value(v);
    if (n < lo || n > hi)
        return sl_cfg_bad(x, "%s: %lld is not within %d and %d", key, (long long)n, lo, hi);
    *out = (int32_t)n;
    return SL_OK;
}

sl_status sl_cfg_real(sl_config_reader *x, const json_t *v, const char *key, double lo, double hi,
                      double *out)
{
    if (!v)
        return sl_cfg_bad(x, "%s: missing", key);
    if (!json_is_number(v))
        return sl_cfg_bad(x, "%s: not a number", key);
    double d = json_number_value(v);
    if (!(d >= lo && d <= hi))
        return sl_cfg_bad(x, "%s: %g is not within %g and %g", key, d, lo, hi);
    *out = d;
    return SL_OK;
}

sl_status sl_cfg_real_or(sl_config_reader *x, const json_t *v, const char *key, double lo, double hi,
                         double dflt, double *out)
{
    *out = dflt;
    return v ? sl_cfg_real(x, v, key, lo, hi, out) : SL_OK;
}

sl_status sl_cfg_bool_or(sl_config_reader *x, const json_t *object, const char *key, bool dflt, bool *out)
{
    const json_t *v = sl_cfg_get(object, key);
    if (v && !json_is_boolean(v))
        return sl_cfg_bad(x, "%s: not true or false", key);
    *out = v ? json_is_true(v) : dflt;
    return SL_OK;
}

sl_status sl_cfg_string(sl_config_reader *x, const json_t *object, const char *key, const char **out)
{
    const json_t *v = sl_cfg_get(object, key);
    if (v && !json_is_string(v))
        return sl_cfg_bad(x, "%s: not a string", key);
    *out = v ? json_string_value(v) : NULL;
    return SL_OK;
}

sl_status sl_cfg_ints(sl_config_reader *x, const sl_cfg_int_key *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const sl_cfg_int_key *k = &keys[i];
        int32_t *field = (int32_t *)((char *)x->c + k->offset);
        const json_t *v = sl_cfg_get(x->root, k->key);
        *field = k->dflt;
        if (v || k->dflt == SL_CFG_REQUIRED)
            SL_TRY(sl_cfg_int(x, v, k->key, k->lo, k->hi, field));
    }
    return SL_OK;
}

sl_status sl_cfg_only_string(sl_config_reader *x, const char *key, const char *only)
{
    const char *s = NULL;
    SL_TRY(sl_cfg_string(x, x->root, key, &s));
    if (s && strcmp(s, only) != 0)
        return sl_cfg_cannot(x, "%s: \"%.32s\" is not supported, \"%s\" is", key, s, only);
    return SL_OK;
}

sl_status sl_cfg_only_false(sl_config_reader *x, const char *key)
{
    bool on = false;
    SL_TRY(sl_cfg_bool_or(x, x->root, key, false, &on));
    return on ? sl_cfg_cannot(x, "%s: true is not supported", key) : SL_OK;
}

sl_status sl_cfg_only_true(sl_config_reader *x, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool on = true;
        SL_TRY(sl_cfg_bool_or(x, x->root, keys[i], true, &on));
        if (!on)
            return sl_cfg_cannot(x, "%s: false is not supported", keys[i]);
    }
    return SL_OK;
}

sl_status sl_cfg_layer_words(sl_config_reader *x, const json_t *list, const char *key, const char *yes,
                             const char *no, bool *out)
{
    size_t n = (size_t)x->c->n_layers, have = json_array_size(list);
    if (!json_is_array(list) || have < n || have > n + (size_t)x->c->n_nextn_layers)
        return sl_cfg_bad(x, "%s: not a list of %zu words", key, n);
    for (size_t i = 0; i < n; i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (!s || (strcmp(s, yes) != 0 && strcmp(s, no) != 0))
            return sl_cfg_bad(x, "%s[%zu]: neither \"%s\" nor \"%s\"", key, i, yes, no);
        out[i] = strcmp(s, yes) == 0;
    }
    return SL_OK;
}
