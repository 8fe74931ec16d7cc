/*
 * The keys of config.json that only the DSA families have: the dimensions of latent attention, the indexer, and which
 * layers run one.
 */
#include <string.h>

#include "model/config_read.h"
#include "model/families/dsa/dsa.h"

static const sl_cfg_int_key int_keys[] = {
    {"q_lora_rank", SL_CFG_FIELD(attn.q_lora_rank), 1, 1 << 16, SL_CFG_REQUIRED},
    {"kv_lora_rank", SL_CFG_FIELD(attn.kv_lora_rank), 1, 1 << 13, SL_CFG_REQUIRED},
    {"qk_nope_head_dim", SL_CFG_FIELD(attn.qk_nope_head_dim), 1, 1 << 13, SL_CFG_REQUIRED},
    {"qk_rope_head_dim", SL_CFG_FIELD(attn.qk_rope_head_dim), 2, 1 << 12, SL_CFG_REQUIRED},
    {"v_head_dim", SL_CFG_FIELD(attn.v_head_dim), 1, 1 << 13, SL_CFG_REQUIRED},
    {"index_n_heads", SL_CFG_FIELD(index.n_heads), 1, 1 << 12, SL_CFG_REQUIRED},
    {"index_head_dim", SL_CFG_FIELD(index.head_dim), 2, 1 << 12, SL_CFG_REQUIRED},
    {"index_topk", SL_CFG_FIELD(index.topk), 1, 1 << 20, SL_CFG_REQUIRED},
    {"num_nextn_predict_layers", SL_CFG_FIELD(n_nextn_layers), 0, 16, 1},
};

static sl_status check_dims(sl_config_reader *x)
{
    const sl_model_config *c = x->c;
    static const sl_dim products[] = {sl_dsa_dim_q, sl_dsa_dim_kv_b, sl_dsa_dim_o, sl_dsa_dim_index_q};
    for (size_t i = 0; i < SL_COUNT(products); i++)
        if (products[i](c) > SL_CFG_MAX_PRODUCT)
            return sl_cfg_bad(x, "heads * head dimension is greater than 2^24");
    if (c->attn.qk_rope_head_dim % 2)
        return sl_cfg_bad(x, "qk_rope_head_dim: %d is odd", c->attn.qk_rope_head_dim);
    if (c->index.head_dim < c->attn.qk_rope_head_dim)
        return sl_cfg_bad(x, "index_head_dim: %d is less than qk_rope_head_dim %d", c->index.head_dim,
                          c->attn.qk_rope_head_dim);
    return SL_OK;
}

static sl_status pattern_of_letters(sl_config_reader *x, const char *s)
{
    size_t n = (size_t)x->c->n_layers, have = strlen(s);
    if (have < n || have > n + (size_t)x->c->n_nextn_layers)
        return sl_cfg_bad(x, "index_topk_pattern: not %zu letters", n);
    for (size_t i = 0; i < n; i++) {
        if (s[i] != 'F' && s[i] != 'S')
            return sl_cfg_bad(x, "index_topk_pattern[%zu]: neither F nor S", i);
        x->c->layer_has_indexer[i] = s[i] == 'F';
    }
    return SL_OK;
}

/* Every `freq`-th layer runs its own indexer, after the first `offset` layers, which all do. */
static sl_status pattern_of_numbers(sl_config_reader *x)
{
    const json_t *jf = sl_cfg_get(x->root, "index_topk_freq"),
                 *jo = sl_cfg_get(x->root, "index_skip_topk_offset");
    int32_t freq = 1, offset = 2;
    if (jf)
        SL_TRY(sl_cfg_int(x, jf, "index_topk_freq", 0, SL_MAX_LAYERS, &freq));
    if (jo)
        SL_TRY(sl_cfg_int(x, jo, "index_skip_topk_offset", 0, SL_MAX_LAYERS, &offset));
    for (int32_t i = 0; i < x->c->n_layers; i++) {
        int32_t past = i - offset + 1 > 0 ? i - offset + 1 : 0;
        x->c->layer_has_indexer[i] = past % (freq > 1 ? freq : 1) == 0;
    }
    return SL_OK;
}

/* IndexShare, in the order of precedence of the reference: list, pattern, frequency and offset. */
sl_status sl_dsa_indexer_layers(sl_config_reader *x)
{
    bool *out = x->c->layer_has_indexer;
    const json_t *list = sl_cfg_get(x->root, "indexer_types"),
                 *pattern = sl_cfg_get(x->root, "index_topk_pattern");
    if (list)
        return sl_cfg_layer_words(x, list, "indexer_types", "full", "shared", out);
    if (json_is_string(pattern))
        return pattern_of_letters(x, json_string_value(pattern));
    if (pattern)
        return sl_cfg_layer_words(x, pattern, "index_topk_pattern", "full", "shared", out);
    return pattern_of_numbers(x);
}

static sl_status check_indexer_layers(sl_config_reader *x, const sl_family *f)
{
    const sl_dsa_traits *traits = f->traits;
    for (int32_t i = 0; i < x->c->n_layers; i++) {
        if (!x->c->layer_has_indexer[i] && !traits->index_share)
            return sl_cfg_cannot(x, "layer %d shares a selection, %s models do not", i, f->model_type);
        if (!x->c->layer_has_indexer[i] && i == 0)
            return sl_cfg_bad(x, "layer 0 shares a selection, but there is no layer before it");
    }
    return SL_OK;
}

sl_status sl_dsa_read_config(sl_config_reader *x, const sl_family *f)
{
    const sl_dsa_traits *traits = f->traits;
    sl_model_config *c = x->c;
    if (traits->defaults)
        SL_TRY(sl_cfg_fill(x, traits->defaults));
    SL_TRY(sl_cfg_ints(x, int_keys, SL_COUNT(int_keys)));
    SL_TRY(sl_cfg_only_false(x, "attention_bias"));
    const json_t *kv_heads = sl_cfg_get(x->root, "num_key_value_heads");
    int32_t n;
    if (kv_heads && !traits->any_kv_heads)
        SL_TRY(sl_cfg_int(x, kv_heads, "num_key_value_heads", c->attn.n_heads, c->attn.n_heads, &n));
    SL_TRY(sl_cfg_bool_or(x, x->root, "indexer_rope_interleave", traits->index_rope_interleaved,
                          &c->index.rope_interleaved));
    SL_TRY(sl_cfg_bool_or(x, x->root, "index_share_for_mtp_iteration", false, &c->draft_shares));
    c->attn.lora_eps = traits->lora_eps;
    c->index.eps = traits->index_eps > 0 ? traits->index_eps : c->rms_eps;
    SL_TRY(check_dims(x));
    SL_TRY(sl_cfg_moe(x));
    SL_TRY(sl_dsa_indexer_layers(x));
    SL_TRY(check_indexer_layers(x, f));
    SL_TRY(sl_cfg_only_selected(x));
    return sl_cfg_rope(x);
}
