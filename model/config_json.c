/*
 * config.json: parses the document, reads the keys that all families share, and then calls the reader of the family
 * that `model_type` names. generation_config.json adds token ids.
 */
#include "model/config.h"

#include <stdio.h>
#include <string.h>

#include "model/config_read.h"
#include "model/family.h"

#define MAX_CONFIG_BYTES (16u << 20)

static const sl_cfg_int_key int_keys[] = {
    {"vocab_size", SL_CFG_FIELD(vocab_size), 2, 1 << 24, SL_CFG_REQUIRED},
    {"hidden_size", SL_CFG_FIELD(hidden_size), 1, 1 << 16, SL_CFG_REQUIRED},
    {"intermediate_size", SL_CFG_FIELD(intermediate_size), 1, 1 << 20, SL_CFG_REQUIRED},
    {"num_hidden_layers", SL_CFG_FIELD(n_layers), 1, SL_MAX_LAYERS, SL_CFG_REQUIRED},
    {"num_attention_heads", SL_CFG_FIELD(attn.n_heads), 1, 1 << 12, SL_CFG_REQUIRED},
    {"max_position_embeddings", SL_CFG_FIELD(max_context), 1, 1 << 24, SL_CFG_REQUIRED},
};

static bool is_name(const char *s, const char *a, const char *b)
{
    return strcmp(s, a) == 0 || (b && strcmp(s, b) == 0);
}

/*
 * The keys of the text part of a model with pictures are in text_config: they take the place of the document's own. What the
 * document says besides (how weights are quantised, ids of tokens) stays where the text part says nothing.
 */
static sl_status open_text(sl_config_reader *x, const sl_family *f)
{
    const json_t *text = sl_cfg_get(x->root, "text_config");
    const char *type = NULL, *key;
    json_t *v;
    if (!text)
        return SL_OK;
    if (!json_is_object(text))
        return sl_cfg_bad(x, "text_config: not an object");
    SL_TRY(sl_cfg_string(x, text, "model_type", &type));
    if (type && !is_name(type, f->model_type, f->text_type))
        return sl_cfg_cannot(x, "text_config: model_type \"%.64s\" is not supported, %s is", type,
                             f->text_type ? f->text_type : f->model_type);
    json_t *all = json_copy((json_t *)(uintptr_t)x->root);
    bool ok = all != NULL;
    json_object_foreach((json_t *)(uintptr_t)text, key,
                        v) if (ok &&
                               (!json_is_null(v) || !json_object_get(all, key))) /* null may mean something */
        ok = json_object_set(all, key, v) == 0;
    if (!ok) {
        json_decref(all);
        return sl_fail(x->err, SL_ERR_NO_MEMORY, "%s: no memory for a config", x->label);
    }
    x->root = x->filled = all;
    return SL_OK;
}

static sl_status read_identity(sl_config_reader *x, const sl_family **family)
{
    const char *type = NULL;
    SL_TRY(sl_cfg_string(x, x->root, "model_type", &type));
    if (!type)
        return sl_cfg_bad(x, "model_type: missing");
    const sl_family *f = sl_family_find(type);
    if (!f) {
        char known[256] = "";
        for (size_t i = 0, at = 0; sl_family_at(i) && at < sizeof known; i++)
            at += (size_t)snprintf(known + at, sizeof known - at, i ? ", %s" : "%s",
                                   sl_family_at(i)->model_type);
        return sl_cfg_cannot(x, "model_type: \"%.64s\" is not supported (%s are)", type, known);
    }
    const json_t *a = sl_cfg_get(x->root, "architectures");
    if (a && (!json_is_array(a) || json_array_size(a) != 1 || !json_is_string(json_array_get(a, 0))))
        return sl_cfg_bad(x, "architectures: not a list of one name");
    if (a && !is_name(json_string_value(json_array_get(a, 0)), f->architecture, f->text_architecture))
        return sl_cfg_cannot(x, "architectures: \"%.64s\" is not supported, %s is",
                             json_string_value(json_array_get(a, 0)), f->architecture);
    snprintf(x->c->family, sizeof x->c->family, "%s", f->model_type);
    snprintf(x->c->architecture, sizeof x->c->architecture, "%s", f->architecture);
    *family = f;
    return open_text(x, f);
}

static sl_status add_eos(sl_config_reader *x, const json_t *v, const char *key)
{
    sl_model_config *c = x->c;
    int32_t id = -1;
    SL_TRY(sl_cfg_int(x, v, key, 0, c->vocab_size - 1, &id));
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] == id)
            return SL_OK;
    if (c->n_eos == SL_MAX_EOS)
        return sl_cfg_bad(x, "%s: more than %d ids", key, SL_MAX_EOS);
    c->eos_ids[c->n_eos++] = id;
    return SL_OK;
}

/* bos_token_id and eos_token_id (a number or a list). */
static sl_status read_ids(sl_config_reader *x)
{
    const json_t *bos = sl_cfg_get(x->root, "bos_token_id"), *eos = sl_cfg_get(x->root, "eos_token_id");
    if (bos)
        SL_TRY(sl_cfg_int(x, bos, "bos_token_id", 0, x->c->vocab_size - 1, &x->c->bos_id));
    if (eos && !json_is_array(eos))
        SL_TRY(add_eos(x, eos, "eos_token_id"));
    for (size_t i = 0; json_is_array(eos) && i < json_array_size(eos); i++)
        SL_TRY(add_eos(x, json_array_get(eos, i), "eos_token_id"));
    return SL_OK;
}

static sl_status parse_object(const char *text, size_t n, const char *label, json_t **out, sl_err *err)
{
    json_error_t je;
    if (n > MAX_CONFIG_BYTES)
        return sl_fail(err, SL_ERR_INVALID, "%s: %zu bytes are too large for a config", label, n);
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return sl_fail(err, SL_ERR_INVALID, "%s: line %d: %s", label, je.line, je.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return sl_fail(err, SL_ERR_INVALID, "%s: not a JSON object", label);
    }
    *out = root;
    return SL_OK;
}

/* The keys that every family has. */
static sl_status read_common(sl_config_reader *x, const sl_family *f)
{
    const char *act = NULL;
    double eps;
    SL_TRY(sl_cfg_ints(x, int_keys, SL_COUNT(int_keys)));
    SL_TRY(sl_cfg_string(x, x->root, "hidden_act", &act));
    if (act && !(f->hidden_act && strcmp(act, f->hidden_act) == 0))
        SL_TRY(sl_cfg_only_string(x, "hidden_act", "silu"));
    SL_TRY(sl_cfg_only_false(x, "mlp_bias"));
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "rms_norm_eps"), "rms_norm_eps", 1e-20, 1.0, &eps));
    x->c->rms_eps = (float)eps;
    return sl_cfg_bool_or(x, x->root, "tie_word_embeddings", false, &x->c->tie_word_embeddings);
}

static sl_status read_config(sl_config_reader *x)
{
    const sl_family *f = NULL;
    SL_TRY(read_identity(x, &f));
    if (f->begin)
        SL_TRY(f->begin(x));
    SL_TRY(read_common(x, f));
    SL_TRY(f->read_config(x, f));
    SL_TRY(sl_cfg_quantization(x));
    return read_ids(x);
}

sl_status sl_model_config_parse(const char *text, size_t n, const char *label, const char *generation,
                                size_t generation_n, const char *generation_label, sl_model_config *out,
                                sl_err *err)
{
    sl_model_config c = {.bos_id = -1};
    json_t *root = NULL, *gen = NULL;
    sl_status rc = parse_object(text, n, label, &root, err);
    if (rc != SL_OK)
        return rc;
    sl_config_reader x = {.root = root, .label = label, .c = &c, .err = err};
    rc = read_config(&x);
    if (rc == SL_OK && generation)
        rc = parse_object(generation, generation_n, generation_label, &gen, err);
    if (rc == SL_OK && gen) {
        x.root = gen;
        x.label = generation_label;
        rc = read_ids(&x);
    }
    json_decref(x.filled);
    json_decref(gen);
    json_decref(root);
    if (rc == SL_OK)
        *out = c;
    return rc;
}

sl_status sl_model_config_hf_quant(const char *text, size_t n, const char *label, sl_model_config *out,
                                   sl_err *err)
{
    sl_model_config c = *out;
    json_t *root = NULL;
    SL_TRY(parse_object(text, n, label, &root, err));
    sl_config_reader x = {.root = root, .label = label, .c = &c, .err = err};
    sl_status rc = out->quant.n || out->fp8_acts ? SL_OK : sl_cfg_hf_quant(&x);
    json_decref(root);
    if (rc == SL_OK)
        *out = c;
    return rc;
}
