/* The keys of config.json that Qwen 4 has, and what its layers keep. */
#include <math.h>
#include <string.h>

#include "kernels/delta.h"
#include "kernels/ngram.h"
#include "kernels/streams.h"
#include "model/config_read.h"
#include "model/families/qwen4_exp/qwen4.h"

static const sl_cfg_int_key int_keys[] = {
    {"num_key_value_heads", SL_CFG_FIELD(attn.n_kv_heads), 1, 1 << 10, SL_CFG_REQUIRED},
    {"head_dim", SL_CFG_FIELD(attn.v_head_dim), 2, 1 << 10, SL_CFG_REQUIRED},
    {"num_experts", SL_CFG_FIELD(moe.n_routed), 1, 1 << 13, SL_CFG_REQUIRED},
    {"num_experts_per_tok", SL_CFG_FIELD(moe.per_token), 1, 1 << 10, SL_CFG_REQUIRED},
    {"moe_intermediate_size", SL_CFG_FIELD(moe.intermediate_size), 1, 1 << 20, SL_CFG_REQUIRED},
    {"shared_expert_intermediate_size", SL_CFG_FIELD(moe.shared_intermediate_size), 1, 1 << 20,
     SL_CFG_REQUIRED},
    {"linear_num_key_heads", SL_CFG_FIELD(linear.key_heads), 1, 1 << 12, SL_CFG_REQUIRED},
    {"linear_num_value_heads", SL_CFG_FIELD(linear.value_heads), 1, 1 << 12, SL_CFG_REQUIRED},
    {"linear_key_head_dim", SL_CFG_FIELD(linear.key_dim), 1, SL_DELTA_DIM_MAX, SL_CFG_REQUIRED},
    {"linear_value_head_dim", SL_CFG_FIELD(linear.value_dim), 1, SL_DELTA_DIM_MAX, SL_CFG_REQUIRED},
    {"linear_conv_kernel_dim", SL_CFG_FIELD(linear.taps), 2, SL_CONV_TAPS_MAX, SL_CFG_REQUIRED},
    {"hc_count", SL_CFG_FIELD(streams.count), 1, SL_STREAMS_MAX, SL_CFG_REQUIRED},
    {"hc_lowrank", SL_CFG_FIELD(streams.rank), 1, 1 << 14, SL_CFG_REQUIRED},
    {"indexer_n_heads", SL_CFG_FIELD(index.n_heads), 1, 1 << 12, SL_CFG_REQUIRED},
    {"indexer_head_dim", SL_CFG_FIELD(index.head_dim), 2, 1 << 10, SL_CFG_REQUIRED},
    {"indexer_budget", SL_CFG_FIELD(index.topk), 1, 1 << 20, SL_CFG_REQUIRED},
    {"indexer_compress_ratio", SL_CFG_FIELD(index.unit), 1, 1 << 20, SL_CFG_REQUIRED},
};

static const sl_cfg_int_key ngram_keys[] = {
    {"ngram_size", SL_CFG_FIELD(ngram.order), 2, SL_NGRAM_MAX, SL_CFG_REQUIRED},
    {"heads_per_ngram", SL_CFG_FIELD(ngram.heads), 1, SL_NGRAM_HEADS_MAX, SL_CFG_REQUIRED},
    {"ple_conv_kernel_size", SL_CFG_FIELD(ngram.taps), 2, SL_CONV_TAPS_MAX, SL_CFG_REQUIRED},
};

/* What the published configuration class fills in; every layer has experts, so nothing reads a size of dense MLPs. */
sl_status sl_qwen4_begin(sl_config_reader *x)
{
    return sl_cfg_fill(x,
                       "{\"intermediate_size\": 1, \"norm_topk_prob\": true, \"full_attention_interval\": 4, "
                       "\"linear_conv_kernel_dim\": 4, \"ple_conv_kernel_size\": 4, \"ngram_size\": 3, "
                       "\"heads_per_ngram\": 8}");
}

static bool one_of(const char *s, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(s, words[i]) == 0)
            return true;
    return false;
}

/* `layer_types`, or every full_attention_interval-th layer attends. Configs of several versions name such layers differently. */
static sl_status read_layers(sl_config_reader *x)
{
    static const char *const attention[] = {"qwen_sparse_attention", "full_attention", "indexed_attention",
                                            "deepseek_sparse_attention"};
    const json_t *list = sl_cfg_get(x->root, "layer_types");
    sl_model_config *c = x->c;
    int32_t interval, attending = 0;
    SL_TRY(sl_cfg_int(x, sl_cfg_get(x->root, "full_attention_interval"), "full_attention_interval", 1,
                      SL_MAX_LAYERS, &interval));
    if (list && (!json_is_array(list) || json_array_size(list) != (size_t)c->n_layers))
        return sl_cfg_bad(x, "layer_types: not a list of %d layers", c->n_layers);
    for (int32_t i = 0; i < c->n_layers; i++) {
        const char *s = list ? json_string_value(json_array_get(list, (size_t)i)) : NULL;
        if (list && !s)
            return sl_cfg_bad(x, "layer_types[%d]: not a word", i);
        bool attends = list ? one_of(s, attention, SL_COUNT(attention)) : (i + 1) % interval == 0;
        if (list && !attends && strcmp(s, "linear_attention") != 0)
            return sl_cfg_cannot(x, "layer_types[%d]: \"%.32s\" is not supported", i, s);
        c->layer_class[i] = attends ? SL_QWEN4_ATTENTION : SL_QWEN4_LINEAR;
        c->layer_has_indexer[i] = attends;
        c->layer_is_moe[i] = true;
        attending += attends;
    }
    return attending ? SL_OK : sl_cfg_cannot(x, "layer_types: no layer attends");
}

/* The layers with n-grams, counted from 1, and their dimensions. */
static sl_status read_ngrams(sl_config_reader *x)
{
    const json_t *list = sl_cfg_get(x->root, "ple_layer_ids"), *eos = sl_cfg_get(x->root, "eos_token_id"),
                 *width = sl_cfg_get(x->root, "ple_embed_dim");
    sl_model_config *c = x->c;
    int32_t all = c->hidden_size, layer;
    if (list && !json_is_array(list))
        return sl_cfg_bad(x, "ple_layer_ids: not a list");
    if (!list || json_array_size(list) == 0)
        return SL_OK;
    SL_TRY(sl_cfg_ints(x, ngram_keys, SL_COUNT(ngram_keys)));
    if (width)
        SL_TRY(sl_cfg_int(x, width, "ple_embed_dim", 1, 1 << 16, &all));
    const int32_t rows = (c->ngram.order - 1) * c->ngram.heads;
    if (all % rows)
        return sl_cfg_bad(x, "ple_embed_dim: %d is no multiple of %d rows", all, rows);
    c->ngram.dim = all / rows;
    if (json_is_array(eos))
        eos = json_array_get(eos, 0);
    if (!eos)
        return sl_cfg_bad(x, "eos_token_id: missing, and n-grams end there");
    SL_TRY(sl_cfg_int(x, eos, "eos_token_id", 0, c->vocab_size - 1, &c->ngram.eos));
    for (size_t i = 0; i < json_array_size(list); i++) {
        SL_TRY(sl_cfg_int(x, json_array_get(list, i), "ple_layer_ids", 1, c->n_layers, &layer));
        if (c->layer_class[layer - 1] == SL_QWEN4_ATTENTION)
            return sl_cfg_cannot(x, "ple_layer_ids: layer %d attends, only linear layers have n-grams",
                                 layer);
        c->layer_class[layer - 1] = SL_QWEN4_NGRAM;
        c->ngram.in_layer[layer - 1] = true;
    }
    return SL_OK;
}

/* ---- what a layer keeps besides rows ---- */

static sl_layer_state attention_state(const sl_model_config *c)
{
    sl_layer_state s = {.format = "open unit"};
    sl_layer_state_add(&s, "open unit", SL_F32, 0, 1, c->index.unit, c->index.head_dim);
    return s;
}

static sl_layer_state linear_state(const sl_model_config *c, bool ngrams)
{
    const sl_linear_config *l = &c->linear;
    sl_layer_state s = {0};
    snprintf(s.format, sizeof s.format, ngrams ? "delta+ngrams" : "delta");
    sl_layer_state_add(&s, "convolution", SL_F32, 0, l->taps - 1, sl_qwen4_dim_channels(c), 1);
    sl_layer_state_add(&s, "recurrence", SL_F32, 0, l->value_heads, l->key_dim, l->value_dim);
    if (ngrams && c->ngram.order) {
        sl_layer_state_add(&s, "last tokens", SL_I32, 0, c->ngram.order - 1, 1, 1);
        sl_layer_state_add(&s, "convolution of n-grams", SL_F32, 0,
                           (int64_t)(c->ngram.taps - 1) * c->ngram.order, sl_qwen4_dim_all(c), 1);
    }
    return s;
}

static sl_status check_dims(sl_config_reader *x)
{
    const sl_model_config *c = x->c;
    static const sl_dim products[] = {sl_qwen4_dim_all,  sl_qwen4_dim_channels, sl_qwen4_dim_values,
                                      sl_qwen4_dim_q,    sl_qwen4_dim_kv,       sl_qwen4_dim_index_q,
                                      sl_qwen4_dim_ngram};
    for (size_t i = 0; i < SL_COUNT(products); i++)
        if (products[i](c) > SL_CFG_MAX_PRODUCT / 2)
            return sl_cfg_bad(x,
                              "a product of heads, streams or rows and their dimension is greater than 2^23");
    if (c->attn.n_heads % c->attn.n_kv_heads)
        return sl_cfg_bad(x, "num_key_value_heads: %d does not divide %d heads", c->attn.n_kv_heads,
                          c->attn.n_heads);
    if (c->linear.value_heads % c->linear.key_heads)
        return sl_cfg_bad(x, "linear_num_key_heads: %d does not divide %d value heads", c->linear.key_heads,
                          c->linear.value_heads);
    if (c->moe.per_token > c->moe.n_routed)
        return sl_cfg_bad(x, "num_experts_per_tok: %d of %d experts", c->moe.per_token, c->moe.n_routed);
    if (c->index.topk % c->index.unit)
        return sl_cfg_bad(x, "indexer_budget: %d is no multiple of indexer_compress_ratio %d", c->index.topk,
                          c->index.unit);
    if (SL_PAGE_TOKENS % c->index.unit)
        return sl_cfg_cannot(x, "indexer_compress_ratio: %d does not divide a page of %d tokens",
                             c->index.unit, SL_PAGE_TOKENS);
    if (c->attn.qk_rope_head_dim > c->index.head_dim)
        return sl_cfg_bad(x, "indexer_head_dim: %d is less than the %d values that are rotated",
                          c->index.head_dim, c->attn.qk_rope_head_dim);
    if (linear_state(c, true).bytes > SL_STATE_BYTES_MAX)
        return sl_cfg_bad(x, "linear_num_value_heads: the state of a layer has more than 2^30 bytes");
    return SL_OK;
}

static sl_status read_gate(sl_config_reader *x)
{
    const char *gate = NULL;
    SL_TRY(sl_cfg_string(x, x->root, "output_gate_type", &gate));
    if (gate && strcmp(gate, "silu") != 0 && strcmp(gate, "sigmoid") != 0)
        return sl_cfg_cannot(x, "output_gate_type: \"%.32s\" is not supported (silu, sigmoid are)", gate);
    x->c->linear.silu_gate = !gate || strcmp(gate, "silu") == 0;
    return SL_OK;
}

sl_status sl_qwen4_read_config(sl_config_reader *x, const sl_family *f)
{
    sl_model_config *c = x->c;
    static const char *const on[] = {"attn_output_gate"};
    int32_t one;
    (void)f;
    SL_TRY(sl_cfg_only_false(x, "attention_bias"));
    SL_TRY(sl_cfg_only_true(x, on, SL_COUNT(on)));
    SL_TRY(sl_cfg_ints(x, int_keys, SL_COUNT(int_keys)));
    SL_TRY(sl_cfg_int(x, sl_cfg_get(x->root, "indexer_kv_heads"), "indexer_kv_heads", 1, 1, &one));
    SL_TRY(sl_cfg_bool_or(x, x->root, "norm_topk_prob", true, &c->moe.norm_topk_prob));
    c->moe.n_shared = c->moe.n_group = c->moe.topk_group = 1;
    c->moe.scaling_factor = 1;
    c->moe.score = SL_ROUTE_SOFTMAX;
    c->index.eps = c->rms_eps;
    SL_TRY(read_gate(x));
    SL_TRY(read_layers(x));
    SL_TRY(read_ngrams(x));
    SL_TRY(sl_cfg_rope_part(x, c->attn.v_head_dim, c->attn.v_head_dim));
    c->attn.softmax_scale = (float)(1.0 / sqrt((double)c->attn.v_head_dim)); /* whatever the rope type is */
    return check_dims(x);
}

/* ---- what a layer keeps ---- */

void sl_qwen4_cache_dims(const sl_model_config *c, sl_cache_dims *out)
{
    out->kv_heads = c->attn.n_kv_heads;
    out->head_dim = c->attn.v_head_dim;
    out->query_heads = c->attn.n_heads;
    out->index_dim = c->index.head_dim;
    out->index_heads = c->index.n_heads;
    out->index_topk = c->index.topk;
    out->index_unit = c->index.unit;
    out->n_classes = SL_QWEN4_CLASSES;
    out->classes[SL_QWEN4_ATTENTION] =
        (sl_layer_class){.name = "attention", .kind = SL_LAYER_TOKENS, .state = attention_state(c)};
    out->classes[SL_QWEN4_LINEAR] =
        (sl_layer_class){.name = "linear", .kind = SL_LAYER_STATE, .state = linear_state(c, false)};
    out->classes[SL_QWEN4_NGRAM] =
        (sl_layer_class){.name = "linear+ngrams", .kind = SL_LAYER_STATE, .state = linear_state(c, true)};
}
