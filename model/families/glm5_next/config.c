/* The keys of config.json that GLM-5.3-Flash has, and what its layers keep. */
#include <string.h>

#include "kernels/delta.h"
#include "kernels/streams.h"
#include "model/config_read.h"
#include "model/families/glm5_next/glm5.h"
#include "model/rope.h"

static const sl_cfg_int_key int_keys[] = {
    {"q_lora_rank", SL_CFG_FIELD(attn.q_lora_rank), 1, 1 << 16, SL_CFG_REQUIRED},
    {"kv_lora_rank", SL_CFG_FIELD(attn.kv_lora_rank), 1, 1 << 13, SL_CFG_REQUIRED},
    {"qk_nope_head_dim", SL_CFG_FIELD(attn.qk_nope_head_dim), 1, 1 << 13, SL_CFG_REQUIRED},
    {"v_head_dim", SL_CFG_FIELD(attn.v_head_dim), 1, 1 << 13, SL_CFG_REQUIRED},
    {"index_n_heads", SL_CFG_FIELD(index.n_heads), 1, 1 << 12, SL_CFG_REQUIRED},
    {"index_head_dim", SL_CFG_FIELD(index.head_dim), 1, 1 << 10, SL_CFG_REQUIRED},
    {"index_topk", SL_CFG_FIELD(index.topk), 1, 1 << 20, SL_CFG_REQUIRED},
    {"index_kpool", SL_CFG_FIELD(index.unit), 1, 1 << 20, SL_CFG_REQUIRED},
    {"num_nextn_predict_layers", SL_CFG_FIELD(n_nextn_layers), 0, 16, 1},
    {"hc_mult", SL_CFG_FIELD(streams.count), 1, SL_STREAMS_MAX, SL_CFG_REQUIRED},
    {"hc_sinkhorn_iters", SL_CFG_FIELD(streams.iters), 1, 1000, SL_CFG_REQUIRED},
};

/* What the published configuration class fills in. */
sl_status sl_glm5_begin(sl_config_reader *x)
{
    return sl_cfg_fill(
        x,
        "{\"n_shared_experts\": 1, \"n_group\": 1, \"topk_group\": 1, \"norm_topk_prob\": true, "
        "\"routed_scaling_factor\": 2.5, \"first_k_dense_replace\": 3, \"swiglu_limit\": 10.0, \"hc_mult\": 4, "
        "\"hc_eps\": 1e-6, \"hc_sinkhorn_iters\": 20, \"index_kpool\": 16, \"rms_norm_eps\": 1e-5, "
        "\"max_position_embeddings\": 1048576}");
}

/* ---- layers ---- */

static bool is_attention(const char *s)
{
    return strcmp(s, "deepseek_sparse_attention") == 0 || strcmp(s, "full_attention") == 0 ||
           strcmp(s, "indexed_attention") == 0 || strcmp(s, "qwen_sparse_attention") == 0;
}

/* `layer_types`, which may go on for MTP layers; without it every fourth layer attends. */
static sl_status read_kinds(sl_config_reader *x)
{
    const json_t *list = sl_cfg_get(x->root, "layer_types");
    sl_model_config *c = x->c;
    const size_t n = (size_t)c->n_layers, have = json_array_size(list);
    int32_t attending = 0;
    if (!list && sl_cfg_get(sl_cfg_get(x->root, "linear_attn_config"), "kda_layers"))
        return sl_cfg_cannot(x, "linear_attn_config.kda_layers: not supported without layer_types");
    if (list && (!json_is_array(list) || have < n || have > n + (size_t)c->n_nextn_layers))
        return sl_cfg_bad(x, "layer_types: not a list of %d layers", c->n_layers);
    for (int32_t i = 0; i < c->n_layers; i++) {
        const char *s = list ? json_string_value(json_array_get(list, (size_t)i)) : NULL;
        if (list && !s)
            return sl_cfg_bad(x, "layer_types[%d]: not a word", i);
        const bool attends = list ? is_attention(s) : i % 4 == 3;
        if (list && !attends && strcmp(s, "linear_attention") != 0)
            return sl_cfg_cannot(x, "layer_types[%d]: \"%.32s\" is not supported", i, s);
        c->layer_class[i] = attends ? SL_GLM5_ATTENTION : SL_GLM5_LINEAR;
        attending += attends;
    }
    return attending ? SL_OK : sl_cfg_cannot(x, "layer_types: no layer attends");
}

/* Layers that attend and have no indexer read what the layer just before them has chosen; a linear layer chooses nothing. */
static sl_status read_indexers(sl_config_reader *x)
{
    sl_model_config *c = x->c;
    bool full[SL_MAX_LAYERS];
    SL_TRY(sl_dsa_indexer_layers(x));
    memcpy(full, c->layer_has_indexer, sizeof full);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layer_has_indexer[i] = full[i] && c->layer_class[i] == SL_GLM5_ATTENTION;
        if (full[i] || c->layer_class[i] != SL_GLM5_ATTENTION)
            continue;
        if (i == 0 || c->layer_class[i - 1] != SL_GLM5_ATTENTION || !full[i - 1])
            return sl_cfg_cannot(x,
                                 "indexer_types[%d]: \"shared\" after a layer without an indexer of its own "
                                 "is not supported",
                                 i);
    }
    for (int32_t i = 0; i < c->n_layers; i++)
        if (c->layer_class[i] == SL_GLM5_ATTENTION && !full[i])
            c->layer_class[i] = SL_GLM5_SHARED;
    return SL_OK;
}

/* ---- linear attention ---- */

/* A key of `linear_attn_config`, or else one of the document. */
static const json_t *linear_key(const sl_config_reader *x, const char *inner, const char *outer)
{
    const json_t *own = sl_cfg_get(sl_cfg_get(x->root, "linear_attn_config"), inner);
    return own ? own : sl_cfg_get(x->root, outer);
}

/* The bound of the decay: -5 where no key says another one, none where a key says null. */
static sl_status read_bound(sl_config_reader *x)
{
    const json_t *dict = sl_cfg_get(x->root, "linear_attn_config");
    const json_t *v = json_object_get(dict, "gate_lower_bound");
    bool safe = false;
    double bound = -5;
    v = v ? v : json_object_get(x->root, "linear_lower_bound");
    if (dict)
        SL_TRY(sl_cfg_bool_or(x, dict, "safe_gate", true, &safe));
    x->c->linear.bound = -5;
    if (!v || (json_is_null(v) && safe))
        return SL_OK;
    if (json_is_null(v)) {
        x->c->linear.bound = 0;
        return SL_OK;
    }
    SL_TRY(sl_cfg_real(x, v, "linear_lower_bound", -1e3, -1e-6, &bound));
    x->c->linear.bound = (float)bound;
    return SL_OK;
}

static sl_status read_linear(sl_config_reader *x)
{
    const json_t *dict = sl_cfg_get(x->root, "linear_attn_config"), *taps;
    sl_linear_config *l = &x->c->linear;
    if (dict && !json_is_object(dict))
        return sl_cfg_bad(x, "linear_attn_config: not an object");
    SL_TRY(sl_cfg_int(x, linear_key(x, "num_heads", "linear_num_heads"), "linear_num_heads", 1, 1 << 12,
                      &l->value_heads));
    SL_TRY(sl_cfg_int(x, linear_key(x, "head_dim", "linear_head_dim"), "linear_head_dim", 1, SL_DELTA_DIM_MAX,
                      &l->value_dim));
    l->taps = 4;
    taps = linear_key(x, "short_conv_kernel_size", "linear_conv_kernel_dim");
    if (taps)
        SL_TRY(sl_cfg_int(x, taps, "linear_conv_kernel_dim", 2, SL_CONV_TAPS_MAX, &l->taps));
    l->key_heads = l->value_heads, l->key_dim = l->value_dim;
    return read_bound(x);
}

/* ---- the rest ---- */

/* ---- what a layer keeps besides rows ---- */

static sl_layer_state attention_state(const sl_model_config *c)
{
    sl_layer_state s = {.format = "open unit"};
    sl_layer_state_add(&s, "open unit", SL_F32, 0, 2, c->index.unit, c->index.head_dim);
    return s;
}

static sl_layer_state linear_state(const sl_model_config *c)
{
    static const char *const convolutions[] = {"convolution of q", "convolution of k", "convolution of v"};
    const sl_linear_config *l = &c->linear;
    sl_layer_state s = {.format = "delta"};
    for (int i = 0; i < SL_GLM5_PART_DELTA; i++)
        sl_layer_state_add(&s, convolutions[i], SL_F32, 0, l->taps - 1, sl_glm5_dim_linear(c), 1);
    sl_layer_state_add(&s, "recurrence", SL_F32, 0, l->value_heads, l->key_dim, l->value_dim);
    return s;
}

static sl_status check_dims(sl_config_reader *x)
{
    const sl_model_config *c = x->c;
    static const sl_dim products[] = {sl_dsa_dim_q,       sl_dsa_dim_kv_b, sl_dsa_dim_o,
                                      sl_dsa_dim_index_q, sl_glm5_dim_all, sl_glm5_dim_linear};
    for (size_t i = 0; i < SL_COUNT(products); i++)
        if (products[i](c) > SL_CFG_MAX_PRODUCT)
            return sl_cfg_bad(x, "a product of heads or streams and their dimension is greater than 2^24");
    if (c->index.topk % c->index.unit)
        return sl_cfg_bad(x, "index_topk: %d is no multiple of index_kpool %d", c->index.topk, c->index.unit);
    if (SL_PAGE_TOKENS % c->index.unit)
        return sl_cfg_cannot(x, "index_kpool: %d does not divide a page of %d tokens", c->index.unit,
                             SL_PAGE_TOKENS);
    if (linear_state(c).bytes > SL_STATE_BYTES_MAX)
        return sl_cfg_bad(x, "linear_num_heads: the state of a layer has more than 2^30 bytes");
    return SL_OK;
}

static sl_status read_streams(sl_config_reader *x)
{
    sl_streams_config *s = &x->c->streams;
    double eps;
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "hc_eps"), "hc_eps", 0, 1, &eps));
    s->eps = (float)eps, s->magnitude = 2;
    return SL_OK;
}

/* The same clamp in dense MLPs and in experts. */
static sl_status read_clamp(sl_config_reader *x)
{
    double limit;
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "swiglu_limit"), "swiglu_limit", 1e-6, 1e9, &limit));
    x->c->mlp_glu.limit = x->c->moe.glu.limit = (float)limit;
    return SL_OK;
}

/* Nothing is rotated. */
static sl_status read_rope(sl_config_reader *x)
{
    sl_model_config *c = x->c;
    const json_t *rope = sl_cfg_get(x->root, "qk_rope_head_dim");
    int32_t zero;
    if (rope && json_is_integer(rope) && json_integer_value(rope) != 0)
        return sl_cfg_cannot(x, "qk_rope_head_dim: %lld is not supported, 0 is",
                             (long long)json_integer_value(rope));
    if (rope)
        SL_TRY(sl_cfg_int(x, rope, "qk_rope_head_dim", 0, 0, &zero));
    c->rope.factor = c->rope.attention_factor = 1;
    c->rope.type = SL_ROPE_PLAIN;
    sl_rope_finish_config(c);
    return SL_OK;
}

/* Without the open unit a query before the end of the first unit would read nothing. */
static sl_status read_tail(sl_config_reader *x)
{
    bool tail;
    SL_TRY(sl_cfg_bool_or(x, x->root, "index_kpool_always_select_tail", true, &tail));
    return tail || x->c->index.unit == 1
               ? SL_OK
               : sl_cfg_cannot(x, "index_kpool_always_select_tail: false is not supported");
}

sl_status sl_glm5_read_config(sl_config_reader *x, const sl_family *f)
{
    sl_model_config *c = x->c;
    static const char *const on[] = {"mhc", "mla_use_nope", "index_kpool_compress"};
    const json_t *heads = sl_cfg_get(x->root, "num_key_value_heads");
    int32_t n;
    (void)f;
    SL_TRY(sl_cfg_only_true(x, on, SL_COUNT(on)));
    SL_TRY(sl_cfg_ints(x, int_keys, SL_COUNT(int_keys)));
    SL_TRY(sl_cfg_only_false(x, "attention_bias"));
    if (heads)
        SL_TRY(sl_cfg_int(x, heads, "num_key_value_heads", c->attn.n_heads, c->attn.n_heads, &n));
    c->attn.lora_eps = c->rms_eps;
    SL_TRY(sl_cfg_moe(x));
    SL_TRY(read_kinds(x));
    SL_TRY(read_indexers(x));
    SL_TRY(read_linear(x));
    SL_TRY(read_streams(x));
    SL_TRY(read_clamp(x));
    SL_TRY(read_tail(x));
    SL_TRY(read_rope(x));
    return check_dims(x);
}

/* ---- what a layer keeps ---- */

void sl_glm5_cache_dims(const sl_model_config *c, sl_cache_dims *out)
{
    sl_dsa_cache_dims(c, out);
    out->index_unit = c->index.unit;
    out->n_classes = SL_GLM5_CLASSES;
    out->classes[SL_GLM5_ATTENTION] =
        (sl_layer_class){.name = "attention", .kind = SL_LAYER_TOKENS, .state = attention_state(c)};
    out->classes[SL_GLM5_SHARED] = (sl_layer_class){.name = "shared", .kind = SL_LAYER_TOKENS};
    out->classes[SL_GLM5_LINEAR] =
        (sl_layer_class){.name = "linear", .kind = SL_LAYER_STATE, .state = linear_state(c)};
}
