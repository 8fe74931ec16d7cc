/*
 * quantization_config of config.json, or the `quantization` of hf_quant_config.json: which forms weights in 8 and 4 bits
 * have, and whether inputs are quantised. Which weights are quantised is not read from the lists of modules, which every
 * tool writes in another way: the loader sees it by the tensors, and requires that their form is one of those here.
 *
 * Quantisation of the KV cache is not read either: the format of rows is a choice of the server.
 */
#include <stdio.h>
#include <string.h>

#include "model/config_read.h"

/* Adds a form, once. */
static sl_status add_form(sl_config_reader *x, const char *key, sl_weight_form f)
{
    sl_quantisation *q = &x->c->quant;
    for (int32_t i = 0; i < q->n; i++)
        if (q->forms[i].dtype == f.dtype && q->forms[i].scale_type == f.scale_type &&
            q->forms[i].group == f.group)
            return SL_OK;
    if (q->n == SL_MAX_FORMS)
        return sl_cfg_cannot(x, "%s: more than %d forms of weights", key, SL_MAX_FORMS);
    q->forms[q->n++] = f;
    return SL_OK;
}

/* Every group must agree on the inputs of its kind of weight, as one layer may mix them. */
static sl_status set_acts(sl_config_reader *x, const char *key, bool half, bool quantised)
{
    sl_quantisation *q = &x->c->quant;
    const int8_t is = quantised ? 1 : -1;
    int8_t *have = half ? &q->half_acts : &q->f8_acts;
    if (*have && *have != is)
        return sl_cfg_cannot(x, "%s: some weights of %d bits have quantised inputs, and some have not", key,
                             half ? 4 : 8);
    *have = is;
    x->c->fp8_acts = x->c->fp8_acts || quantised;
    return SL_OK;
}

/* [128, 128] */
static bool is_block(const json_t *b)
{
    return json_is_array(b) && json_array_size(b) == 2 && json_integer_value(json_array_get(b, 0)) == 128 &&
           json_integer_value(json_array_get(b, 1)) == 128;
}

/* ---- ModelOpt's names of forms ---- */

static sl_status add_nvfp4(sl_config_reader *x, const char *key)
{
    SL_TRY(add_form(x, key, (sl_weight_form){SL_F4_E2M1, SL_SCALE_E4M3, 16}));
    return set_acts(x, key, true, false);
}

static bool is_nvfp4(const char *algo)
{
    return strcmp(algo, "NVFP4") == 0 || strcmp(algo, "W4A16_NVFP4") == 0;
}

/* A form for each module by its name. Those of draft layers are not read, as their tensors are not. */
static sl_status read_layers(sl_config_reader *x, const json_t *layers)
{
    const char *name, *algo;
    json_t *layer;
    if (!json_is_object(layers) || json_object_size(layers) == 0)
        return sl_cfg_bad(x, "quantized_layers: missing or not an object of modules");
    json_object_foreach((json_t *)layers, name, layer)
    {
        if (strncmp(name, "mtp.", 4) == 0)
            continue;
        SL_TRY(sl_cfg_string(x, layer, "quant_algo", &algo));
        if (!algo || !is_nvfp4(algo))
            return sl_cfg_cannot(
                x, "quantized_layers.%.64s.quant_algo: \"%.32s\" is not supported, \"NVFP4\" is", name,
                algo ? algo : "");
        SL_TRY(add_nvfp4(x, "quantized_layers"));
    }
    return SL_OK;
}

static sl_status read_fp8(sl_config_reader *x, const json_t *q)
{
    const char *scheme = NULL, *fmt = NULL, *experts = NULL;
    SL_TRY(sl_cfg_string(x, q, "activation_scheme", &scheme));
    SL_TRY(sl_cfg_string(x, q, "fmt", &fmt));
    SL_TRY(sl_cfg_string(x, x->root, "expert_dtype", &experts));
    if (fmt && strcmp(fmt, "e4m3") != 0)
        return sl_cfg_cannot(x,
                             "quantization_config: only quant_method \"fp8\" of fmt \"e4m3\" is supported");
    if (scheme && strcmp(scheme, "dynamic") != 0)
        return sl_cfg_cannot(x, "activation_scheme: \"%.32s\" is not supported, \"dynamic\" is", scheme);
    if (!is_block(sl_cfg_get(q, "weight_block_size")))
        return sl_cfg_cannot(x, "weight_block_size: only [128, 128] is supported");
    SL_TRY(set_acts(x, "quantization_config", false, true));
    if (sl_cfg_get(q, "quantized_layers")) /* which are the experts then, whatever expert_dtype says */
        return read_layers(x, sl_cfg_get(q, "quantized_layers"));
    if (!experts || strcmp(experts, "fp8") == 0)
        return SL_OK;
    if (strcmp(experts, "fp4") != 0)
        return sl_cfg_cannot(x, "expert_dtype: \"%.32s\" is not supported, \"fp8\" and \"fp4\" are", experts);
    SL_TRY(add_form(x, "expert_dtype", (sl_weight_form){SL_F4_E2M1, SL_SCALE_E8M0, 32}));
    return set_acts(x, "expert_dtype", true, true);
}

/* ---- compressed-tensors ---- */

/* The numbers of one quantisation of a config group. */
typedef struct numbers {
    const json_t *object;
    char key[96]; /* in errors */
    const char *type, *strategy;
    int32_t bits, group; /* group: 0 without one */
    bool dynamic, symmetric;
} numbers;

static sl_status read_numbers(sl_config_reader *x, const char *group, const json_t *of, const char *what,
                              numbers *n)
{
    n->object = sl_cfg_get(of, what);
    snprintf(n->key, sizeof n->key, "config_groups.%.32s.%s", group, what);
    if (!n->object)
        return SL_OK;
    if (!json_is_object(n->object))
        return sl_cfg_bad(x, "%s: not an object", n->key);
    const json_t *size = sl_cfg_get(n->object, "group_size"), *dynamic = sl_cfg_get(n->object, "dynamic");
    SL_TRY(sl_cfg_int(x, sl_cfg_get(n->object, "num_bits"), "num_bits", 1, 16, &n->bits));
    SL_TRY(sl_cfg_string(x, n->object, "type", &n->type));
    SL_TRY(sl_cfg_string(x, n->object, "strategy", &n->strategy));
    SL_TRY(sl_cfg_bool_or(x, n->object, "symmetric", true, &n->symmetric));
    if (size && !(json_is_integer(size) && json_integer_value(size) == -1))
        SL_TRY(sl_cfg_int(x, size, "group_size", 1, 1 << 16, &n->group));
    /* "local": scales of groups by their content, and one of the tensor that is fixed. */
    n->dynamic = json_is_true(dynamic) || json_is_string(dynamic);
    if (!n->type)
        n->type = "int";
    if (!n->strategy)
        n->strategy = n->group ? "group" : "tensor";
    return SL_OK;
}

/* Whether the inputs are to be quantised to e4m3. Those in 4 bits are not: they stay as they are, which is closer to the
 * model that the checkpoint was made from. */
static sl_status read_inputs(sl_config_reader *x, const numbers *in, bool half, bool *quantised)
{
    *quantised = false;
    if (!in->object || (half && in->bits == 4 && strcmp(in->type, "float") == 0))
        return SL_OK;
    if (in->bits != 8 || strcmp(in->type, "float") != 0)
        return sl_cfg_cannot(x,
                             "%s: inputs as %.16s of %d bits are not supported, as float of 8 bits they are",
                             in->key, in->type, in->bits);
    if (!in->dynamic)
        return sl_cfg_cannot(x, "%s: dynamic: false is not supported", in->key);
    *quantised = true;
    return SL_OK;
}

static sl_status read_int4(sl_config_reader *x, const numbers *w)
{
    const json_t *order = sl_cfg_get(w->object, "actorder");
    const char *by = json_string_value(order);
    bool channel = strcmp(w->strategy, "channel") == 0;
    if (!w->symmetric)
        return sl_cfg_cannot(x, "%s: symmetric: false (zero points) is not supported", w->key);
    if (order && !json_is_false(order) && !(by && (!strcmp(by, "weight") || !strcmp(by, "static"))))
        return sl_cfg_cannot(x, "%s: actorder: inputs in another order than the groups are not supported",
                             w->key);
    if (!channel && strcmp(w->strategy, "group") != 0)
        return sl_cfg_cannot(x, "%s: strategy: \"%.32s\" is not supported for int of 4 bits", w->key,
                             w->strategy);
    if (!channel && !sl_weight_group_ok(w->group))
        return sl_cfg_cannot(x, "%s: group_size: %d is not 16, 32, 64 or a multiple of 128", w->key,
                             w->group);
    return add_form(x, w->key, (sl_weight_form){SL_I4, SL_SCALE_BF16, channel ? 0 : w->group});
}

static sl_status read_float4(sl_config_reader *x, const numbers *w)
{
    if (strcmp(w->strategy, "tensor_group") == 0 && w->group == 16)
        return add_form(x, w->key, (sl_weight_form){SL_F4_E2M1, SL_SCALE_E4M3, 16});
    if (strcmp(w->strategy, "group") == 0 && w->group == 32)
        return add_form(x, w->key, (sl_weight_form){SL_F4_E2M1, SL_SCALE_E8M0, 32});
    return sl_cfg_cannot(x,
                         "%s: float of 4 bits with strategy \"%.32s\" and group_size %d is not supported: "
                         "\"tensor_group\" of 16 (NVFP4) and \"group\" of 32 (MXFP4) are",
                         w->key, w->strategy, w->group);
}

static sl_status read_float8(sl_config_reader *x, const numbers *w)
{
    if (strcmp(w->strategy, "channel") == 0)
        return add_form(x, w->key, (sl_weight_form){SL_F8_E4M3, SL_SCALE_F32, 0});
    if (strcmp(w->strategy, "block") == 0 && is_block(sl_cfg_get(w->object, "block_structure")))
        return SL_OK;
    return sl_cfg_cannot(x,
                         "%s: float of 8 bits is supported with strategy \"channel\", or \"block\" of "
                         "[128, 128]; not with \"%.32s\"",
                         w->key, w->strategy);
}

static sl_status read_group(sl_config_reader *x, const char *name, const json_t *g)
{
    numbers w = {0}, in = {0};
    bool half, quantised;
    if (!json_is_object(g))
        return sl_cfg_bad(x, "config_groups.%.32s: not an object", name);
    if (sl_cfg_get(g, "output_activations"))
        return sl_cfg_cannot(x, "config_groups.%.32s.output_activations: not supported", name);
    SL_TRY(read_numbers(x, name, g, "weights", &w));
    SL_TRY(read_numbers(x, name, g, "input_activations", &in));
    if (!w.object)
        return sl_cfg_cannot(x, "%s: missing: quantised inputs of plain weights are not supported", w.key);
    half = w.bits == 4;
    if (half && strcmp(w.type, "int") == 0)
        SL_TRY(read_int4(x, &w));
    else if (half && strcmp(w.type, "float") == 0)
        SL_TRY(read_float4(x, &w));
    else if (w.bits == 8 && strcmp(w.type, "float") == 0)
        SL_TRY(read_float8(x, &w));
    else
        return sl_cfg_cannot(x, "%s: %.16s of %d bits is not supported", w.key, w.type, w.bits);
    SL_TRY(read_inputs(x, &in, half, &quantised));
    return set_acts(x, in.key, half, quantised);
}

/* A part of the document that changes the mathematics: absent, or an object without members that matter. */
static sl_status only_empty(sl_config_reader *x, const json_t *q, const char *key)
{
    const json_t *v = sl_cfg_get(q, key), *inner = sl_cfg_get(v, "config_groups");
    const char *format = json_string_value(sl_cfg_get(v, "format"));
    bool empty = !v || (json_is_object(v) && json_object_size(v) == 0) ||
                 (format && !strcmp(format, "dense")) ||
                 (json_is_object(inner) && json_object_size(inner) == 0);
    return empty ? SL_OK : sl_cfg_cannot(x, "quantization_config.%s: not supported", key);
}

static sl_status read_groups(sl_config_reader *x, const json_t *groups)
{
    const char *name;
    json_t *g;
    if (!json_is_object(groups) || json_object_size(groups) == 0)
        return sl_cfg_bad(x, "config_groups: missing or not an object of groups");
    json_object_foreach((json_t *)groups, name, g) SL_TRY(read_group(x, name, g));
    return SL_OK;
}

static sl_status read_compressed(sl_config_reader *x, const json_t *q)
{
    static const char *const formats[] = {"pack-quantized",  "nvfp4-pack-quantized", "mxfp4-pack-quantized",
                                          "float-quantized", "mixed-precision",      "naive-quantized"};
    const char *format = NULL;
    bool known = false;
    SL_TRY(sl_cfg_string(x, q, "format", &format));
    for (size_t i = 0; format && i < SL_COUNT(formats); i++)
        known = known || strcmp(format, formats[i]) == 0;
    if (format && !known)
        return sl_cfg_cannot(x, "quantization_config.format: \"%.40s\" is not supported", format);
    SL_TRY(only_empty(x, q, "sparsity_config"));
    SL_TRY(only_empty(x, q, "transform_config"));
    return read_groups(x, sl_cfg_get(q, "config_groups"));
}

/* ---- ModelOpt ---- */

static sl_status read_algorithm(sl_config_reader *x, const json_t *q)
{
    const char *algo = NULL;
    int32_t group = 16;
    SL_TRY(sl_cfg_string(x, q, "quant_algo", &algo));
    if (algo && strcmp(algo, "MIXED_PRECISION") == 0)
        return read_layers(x, sl_cfg_get(q, "quantized_layers"));
    if (!algo || !is_nvfp4(algo))
        return sl_cfg_cannot(x,
                             "quant_algo: \"%.32s\" is not supported, \"NVFP4\" and \"MIXED_PRECISION\" are",
                             algo ? algo : "");
    if (sl_cfg_get(q, "group_size"))
        SL_TRY(sl_cfg_int(x, sl_cfg_get(q, "group_size"), "group_size", 1, 1 << 16, &group));
    if (group != 16)
        return sl_cfg_cannot(x, "group_size: %d is not supported for NVFP4, 16 is", group);
    return add_nvfp4(x, "quant_algo");
}

sl_status sl_cfg_quantization(sl_config_reader *x)
{
    const json_t *q = sl_cfg_get(x->root, "quantization_config");
    const char *method = NULL;
    if (!q)
        return SL_OK;
    if (!json_is_object(q))
        return sl_cfg_bad(x, "quantization_config: not an object");
    SL_TRY(sl_cfg_string(x, q, "quant_method", &method));
    if (method && strcmp(method, "fp8") == 0)
        return read_fp8(x, q);
    if (method && strcmp(method, "compressed-tensors") == 0)
        return read_compressed(x, q);
    if (method && strcmp(method, "modelopt") == 0)
        return read_algorithm(x, q);
    return sl_cfg_cannot(x,
                         "quantization_config: quant_method \"%.32s\" is not supported: \"fp8\", "
                         "\"compressed-tensors\" and \"modelopt\" are",
                         method ? method : "");
}

sl_status sl_cfg_hf_quant(sl_config_reader *x)
{
    const json_t *q = sl_cfg_get(x->root, "quantization");
    if (!json_is_object(q))
        return sl_cfg_bad(x, "quantization: missing or not an object");
    return sl_cfg_get(q, "quant_algo") ? read_algorithm(x, q) : SL_OK;
}
