/* The keys of config.json of DeepSeek-V4: as published, and as the class of transformers writes them. */
#include <math.h>
#include <string.h>

#include "kernels/streams.h"
#include "model/config_read.h"
#include "model/families/deepseek_v4/v4.h"
#include "model/rope.h"

static const char chosen_name[] = "compressed_sparse_attention",
                  pooled_name[] = "heavily_compressed_attention";

/* What the published configuration class fills in, and what the shared keys call the width of an expert. */
sl_status sl_v4_begin(sl_config_reader *x)
{
    static const char *const defaults =
        "{\"num_key_value_heads\": 1, \"n_shared_experts\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": 1.5, "
        "\"scoring_func\": \"sqrtsoftplus\", \"hc_mult\": 4, \"hc_sinkhorn_iters\": 20, \"hc_eps\": 1e-6, "
        "\"swiglu_limit\": 10.0, \"sliding_window\": 128, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "
        "\"compress_rope_theta\": 160000.0, \"num_hash_layers\": 3, \"max_position_embeddings\": 1048576}";
    char width[64];
    int32_t n;
    SL_TRY(sl_cfg_fill(x, defaults));
    SL_TRY(
        sl_cfg_int(x, sl_cfg_get(x->root, "moe_intermediate_size"), "moe_intermediate_size", 1, 1 << 20, &n));
    snprintf(width, sizeof width, "{\"intermediate_size\": %d}", n);
    return sl_cfg_fill(x, width);
}

static const sl_cfg_int_key int_keys[] = {
    {"q_lora_rank", SL_CFG_FIELD(attn.q_lora_rank), 1, 1 << 16, SL_CFG_REQUIRED},
    {"head_dim", SL_CFG_FIELD(attn.v_head_dim), 2, 1 << 13, SL_CFG_REQUIRED},
    {"num_key_value_heads", SL_CFG_FIELD(attn.n_kv_heads), 1, 1, SL_CFG_REQUIRED},
    {"o_groups", SL_CFG_FIELD(entries.o_groups), 1, 1 << 10, SL_CFG_REQUIRED},
    {"o_lora_rank", SL_CFG_FIELD(entries.o_rank), 1, 1 << 16, SL_CFG_REQUIRED},
    {"sliding_window", SL_CFG_FIELD(entries.window), 1, 1 << 15, SL_CFG_REQUIRED},
    {"index_n_heads", SL_CFG_FIELD(index.n_heads), 1, 1 << 12, SL_CFG_REQUIRED},
    {"index_head_dim", SL_CFG_FIELD(index.head_dim), 2, 1 << 12, SL_CFG_REQUIRED},
    {"index_topk", SL_CFG_FIELD(entries.topk), 1, 1 << 20, SL_CFG_REQUIRED},
    {"moe_intermediate_size", SL_CFG_FIELD(moe.intermediate_size), 1, 1 << 20, SL_CFG_REQUIRED},
    {"n_routed_experts", SL_CFG_FIELD(moe.n_routed), 1, 1 << 13, SL_CFG_REQUIRED},
    {"num_experts_per_tok", SL_CFG_FIELD(moe.per_token), 1, 1 << 10, SL_CFG_REQUIRED},
    {"hc_mult", SL_CFG_FIELD(streams.count), 1, SL_STREAMS_MAX, SL_CFG_REQUIRED},
    {"hc_sinkhorn_iters", SL_CFG_FIELD(streams.iters), 1, 1000, SL_CFG_REQUIRED},
};

/* ---- layers ---- */

static sl_status class_of_word(sl_config_reader *x, const json_t *v, int32_t i, uint8_t *out)
{
    const char *s = json_string_value(v);
    if (s && strcmp(s, "sliding_attention") == 0)
        *out = SL_V4_WINDOW;
    else if (s && strcmp(s, chosen_name) == 0)
        *out = SL_V4_CHOSEN;
    else if (s && strcmp(s, pooled_name) == 0)
        *out = SL_V4_POOLED;
    else
        return sl_cfg_cannot(x, "layer_types[%d]: \"%.64s\" is none of sliding_attention, %s and %s", i,
                             s ? s : "", chosen_name, pooled_name);
    return SL_OK;
}

static sl_status class_of_ratio(sl_config_reader *x, const json_t *v, int32_t i, uint8_t *out)
{
    const json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
    if (n != 0 && n != 4 && n != 128)
        return sl_cfg_cannot(x, "compress_ratios[%d]: is none of 0, 4 and 128", i);
    *out = n == 0 ? SL_V4_WINDOW : n == 4 ? SL_V4_CHOSEN : SL_V4_POOLED;
    return SL_OK;
}

static sl_status read_list(sl_config_reader *x, const char *key, const json_t *list,
                           sl_status (*one)(sl_config_reader *, const json_t *, int32_t, uint8_t *))
{
    if (!json_is_array(list) || json_array_size(list) < (size_t)x->c->n_layers)
        return sl_cfg_bad(x, "%s: not a list for %d layers", key, x->c->n_layers);
    for (int32_t i = 0; i < x->c->n_layers; i++)
        SL_TRY(one(x, json_array_get(list, (size_t)i), i, &x->c->layer_class[i]));
    return SL_OK;
}

/* The list is longer than the model where MTP layers follow. Without one: two pooled layers, then pooled and chosen in turn. */
static sl_status read_classes(sl_config_reader *x)
{
    const json_t *words = sl_cfg_get(x->root, "layer_types"),
                 *ratios = sl_cfg_get(x->root, "compress_ratios");
    if (words)
        return read_list(x, "layer_types", words, class_of_word);
    if (ratios)
        return read_list(x, "compress_ratios", ratios, class_of_ratio);
    for (int32_t i = 0; i < x->c->n_layers; i++)
        x->c->layer_class[i] = i > 1 && i % 2 ? SL_V4_CHOSEN : SL_V4_POOLED;
    return SL_OK;
}

static sl_status read_rate(sl_config_reader *x, const char *key, const char *old, int32_t dflt, int32_t *out)
{
    const json_t *rates = sl_cfg_get(x->root, "compress_rates"), *v = sl_cfg_get(x->root, old);
    *out = dflt;
    if (rates && !json_is_object(rates))
        return sl_cfg_bad(x, "compress_rates: not an object");
    if (!v)
        v = sl_cfg_get(rates, key);
    if (!v)
        return SL_OK;
    return sl_cfg_int(x, v, key, 1, 1 << 14, out);
}

static sl_status read_mlps(sl_config_reader *x)
{
    const json_t *words = sl_cfg_get(x->root, "mlp_layer_types");
    int32_t n;
    if (words)
        return sl_cfg_layer_words(x, words, "mlp_layer_types", "hash_moe", "moe", x->c->entries.hashed);
    SL_TRY(sl_cfg_int(x, sl_cfg_get(x->root, "num_hash_layers"), "num_hash_layers", 0, SL_MAX_LAYERS, &n));
    for (int32_t i = 0; i < x->c->n_layers; i++)
        x->c->entries.hashed[i] = i < n;
    return SL_OK;
}

/* ---- RoPE ---- */

static sl_status rope_dim(sl_config_reader *x)
{
    sl_model_config *c = x->c;
    const json_t *part = sl_cfg_get(x->root, "partial_rotary_factor"),
                 *rope = sl_cfg_get(x->root, "qk_rope_head_dim");
    double factor = 0.125;
    int32_t n = 0;
    if (part)
        SL_TRY(sl_cfg_real(x, part, "partial_rotary_factor", 0, 1, &factor));
    else if (rope)
        SL_TRY(sl_cfg_int(x, rope, "qk_rope_head_dim", 2, c->attn.v_head_dim, &n));
    c->attn.qk_rope_head_dim = n ? n : (int32_t)(c->attn.v_head_dim * factor);
    c->attn.qk_nope_head_dim = c->attn.v_head_dim - c->attn.qk_rope_head_dim;
    if (c->attn.qk_rope_head_dim < 2 || c->attn.qk_rope_head_dim % 2)
        return sl_cfg_bad(
            x, "partial_rotary_factor: %d rotated values of a head are not an even number of at least 2",
            c->attn.qk_rope_head_dim);
    if (c->index.head_dim < c->attn.qk_rope_head_dim)
        return sl_cfg_bad(x, "index_head_dim: %d is less than the %d rotated values", c->index.head_dim,
                          c->attn.qk_rope_head_dim);
    return SL_OK;
}

/* One of the two embeddings, from its own object. */
static sl_status read_rope(sl_config_reader *x, const json_t *o, const char *name, sl_rope_config *out)
{
    const json_t *part = sl_cfg_get(o, "partial_rotary_factor"), *theta = sl_cfg_get(o, "rope_theta");
    double factor;
    SL_TRY(sl_cfg_real_or(x, part, "partial_rotary_factor", 0, 1, 1, &factor));
    if ((int32_t)(x->c->attn.v_head_dim * factor) != x->c->attn.qk_rope_head_dim)
        return sl_cfg_bad(
            x, "rope_parameters.%s.partial_rotary_factor: %g of %d values are not the %d that rotate", name,
            factor, x->c->attn.v_head_dim, x->c->attn.qk_rope_head_dim);
    SL_TRY(sl_cfg_rope_of(x, o, theta));
    *out = x->c->rope;
    return SL_OK;
}

/* The flat spelling: the scaling belongs to the layers with entries alone, and does not change cos and sin. */
static sl_status read_flat(sl_config_reader *x, const json_t *scaling)
{
    sl_model_config *c = x->c;
    SL_TRY(sl_cfg_rope_of(x, scaling, sl_cfg_get(x->root, "compress_rope_theta")));
    if (!sl_cfg_get(scaling, "attention_factor"))
        c->rope.attention_factor = 1;
    c->entries.rope = c->rope;
    return sl_cfg_rope_of(x, NULL, sl_cfg_get(x->root, "rope_theta"));
}

static sl_status read_ropes(sl_config_reader *x)
{
    const json_t *rope = sl_cfg_get(x->root, "rope_parameters"), *old = sl_cfg_get(x->root, "rope_scaling");
    const json_t *first = sl_cfg_get(rope, "main"), *second = sl_cfg_get(rope, "compress");
    sl_rope_config plain;
    if ((rope && !json_is_object(rope)) || (old && !json_is_object(old)))
        return sl_cfg_bad(x, "%s: not an object", rope ? "rope_parameters" : "rope_scaling");
    SL_TRY(rope_dim(x));
    if (json_is_object(first) && json_is_object(second)) {
        SL_TRY(read_rope(x, second, "compress", &x->c->entries.rope));
        SL_TRY(read_rope(x, first, "main", &plain));
    } else {
        SL_TRY(read_flat(x, rope ? rope : old));
    }
    x->c->attn.softmax_scale = (float)pow(x->c->attn.v_head_dim, -0.5);
    return SL_OK;
}

/* ---- all ---- */

static sl_status read_score(sl_config_reader *x)
{
    const char *name = NULL;
    SL_TRY(sl_cfg_string(x, x->root, "scoring_func", &name));
    if (!name || (strcmp(name, "sqrtsoftplus") != 0 && strcmp(name, "sigmoid") != 0))
        return sl_cfg_cannot(x,
                             "scoring_func: \"%.32s\" is not supported, \"sqrtsoftplus\" and \"sigmoid\" are",
                             name ? name : "");
    x->c->moe.score = strcmp(name, "sigmoid") == 0 ? SL_ROUTE_SIGMOID : SL_ROUTE_SQRT_SOFTPLUS;
    return SL_OK;
}

static sl_status read_reals(sl_config_reader *x)
{
    sl_model_config *c = x->c;
    double scale, eps, limit;
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "routed_scaling_factor"), "routed_scaling_factor", 1e-6, 1e6,
                       &scale));
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "hc_eps"), "hc_eps", 0, 1, &eps));
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "swiglu_limit"), "swiglu_limit", 1e-6, 1e9, &limit));
    c->moe.scaling_factor = (float)scale;
    c->streams.eps = (float)eps, c->streams.magnitude = 2;
    c->mlp_glu.limit = c->moe.glu.limit = (float)limit;
    return SL_OK;
}

static sl_status check_dims(sl_config_reader *x)
{
    const sl_model_config *c = x->c;
    const int64_t q = (int64_t)c->attn.n_heads * c->attn.v_head_dim;
    const int64_t products[] = {q, (int64_t)c->index.n_heads * c->index.head_dim,
                                (int64_t)c->entries.o_groups * c->entries.o_rank,
                                (int64_t)c->streams.count * c->hidden_size};
    for (size_t i = 0; i < SL_COUNT(products); i++)
        if (products[i] > SL_CFG_MAX_PRODUCT)
            return sl_cfg_bad(
                x, "a product of heads, groups or streams with their dimension is greater than 2^24");
    if (q % c->entries.o_groups)
        return sl_cfg_bad(x, "o_groups: %d does not divide the %lld values of all heads", c->entries.o_groups,
                          (long long)q);
    if (c->moe.per_token > c->moe.n_routed)
        return sl_cfg_bad(x, "num_experts_per_tok: %d is more than %d experts", c->moe.per_token,
                          c->moe.n_routed);
    return SL_OK;
}

/* Chosen experts are always normalised, and there is one shared expert, whatever norm_topk_prob and n_shared_experts say: so
 * does the published code, and the tensors show the width of the shared expert. */
sl_status sl_v4_read_config(sl_config_reader *x, const sl_family *f)
{
    sl_model_config *c = x->c;
    (void)f;
    SL_TRY(sl_cfg_ints(x, int_keys, SL_COUNT(int_keys)));
    SL_TRY(sl_cfg_only_false(x, "attention_bias"));
    SL_TRY(read_reals(x));
    SL_TRY(read_score(x));
    SL_TRY(check_dims(x));
    SL_TRY(read_classes(x));
    SL_TRY(read_rate(x, chosen_name, "compress_rate_csa", 4, &c->entries.rate_chosen));
    SL_TRY(read_rate(x, pooled_name, "compress_rate_hca", 128, &c->entries.rate_pooled));
    SL_TRY(read_mlps(x));
    c->moe.n_shared = c->moe.n_group = c->moe.topk_group = 1;
    c->moe.norm_topk_prob = true;
    for (int32_t i = 0; i < c->n_layers; i++)
        c->layer_is_moe[i] = true;
    return read_ropes(x);
}
