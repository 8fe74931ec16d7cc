/*
 * The keys of config.json that the families with grouped-query attention have: heads, head dimension, RoPE; and the
 * keys whose values would change the mathematics in a way that is not computed.
 */
#include <string.h>

#include "model/config_read.h"
#include "model/families/gqa/gqa.h"

enum { MAX_HEADS = 1024, MAX_HEAD_DIM = 1024 };

static sl_status read_kv_heads(sl_config_reader *x, const sl_gqa_traits *traits)
{
    sl_model_config *c = x->c;
    const json_t *v = sl_cfg_get(x->root, "num_key_value_heads");
    c->attn.n_kv_heads = c->attn.n_heads;
    if (v || !traits->kv_heads_optional)
        SL_TRY(sl_cfg_int(x, v, "num_key_value_heads", 1, MAX_HEADS, &c->attn.n_kv_heads));
    if (c->attn.n_kv_heads > MAX_HEADS)
        return sl_cfg_cannot(x, "num_attention_heads: more than %d KV heads are not supported", MAX_HEADS);
    if (c->attn.n_heads % c->attn.n_kv_heads)
        return sl_cfg_bad(x, "num_key_value_heads: %d does not divide num_attention_heads %d",
                          c->attn.n_kv_heads, c->attn.n_heads);
    return SL_OK;
}

static sl_status read_head_dim(sl_config_reader *x, const sl_gqa_traits *traits)
{
    sl_model_config *c = x->c;
    const json_t *v = sl_cfg_get(x->root, "head_dim");
    int32_t dim = traits->head_dim;
    if (v)
        SL_TRY(sl_cfg_int(x, v, "head_dim", 2, MAX_HEAD_DIM, &dim));
    if (!dim && c->hidden_size % c->attn.n_heads)
        return sl_cfg_bad(x, "head_dim: missing, and num_attention_heads %d does not divide hidden_size %d",
                          c->attn.n_heads, c->hidden_size);
    if (!dim)
        dim = c->hidden_size / c->attn.n_heads;
    if (dim < 2 || dim > MAX_HEAD_DIM)
        return sl_cfg_bad(
            x, "head_dim: missing, and hidden_size / num_attention_heads = %d is not within 2 and %d", dim,
            MAX_HEAD_DIM);
    if (dim % 2)
        return sl_cfg_bad(x, "head_dim: %d is odd", dim);
    if ((int64_t)c->attn.n_heads * dim > SL_CFG_MAX_PRODUCT)
        return sl_cfg_bad(x, "head_dim: times num_attention_heads it is beyond 2^24");
    c->attn.qk_rope_head_dim = c->attn.v_head_dim = dim;
    return SL_OK;
}

/* Windows: a layer that sees only the newest tokens is another attention. */
static sl_status check_windows(sl_config_reader *x)
{
    const json_t *list = sl_cfg_get(x->root, "layer_types");
    SL_TRY(sl_cfg_only_false(x, "use_sliding_window"));
    if (list && !json_is_array(list))
        return sl_cfg_bad(x, "layer_types: not a list");
    for (size_t i = 0; list && i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (!s || strcmp(s, "full_attention") != 0)
            return sl_cfg_cannot(x, "layer_types[%zu]: only \"full_attention\" is supported", i);
    }
    return SL_OK;
}

sl_status sl_gqa_read_config(sl_config_reader *x, const sl_family *f)
{
    const sl_gqa_traits *traits = f->traits;
    SL_TRY(sl_cfg_only_false(x, "attention_bias"));
    SL_TRY(read_kv_heads(x, traits));
    SL_TRY(read_head_dim(x, traits));
    SL_TRY(check_windows(x));
    return sl_cfg_rope(x);
}
