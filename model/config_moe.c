/* The keys of config.json that describe the mixture of experts. */
#include "model/config_read.h"

#include "model/family.h"

static const sl_cfg_int_key int_keys[] = {
    {"moe_intermediate_size", SL_CFG_FIELD(moe.intermediate_size), 1, 1 << 20, SL_CFG_REQUIRED},
    {"n_routed_experts", SL_CFG_FIELD(moe.n_routed), 1, 1 << 13, SL_CFG_REQUIRED},
    {"n_shared_experts", SL_CFG_FIELD(moe.n_shared), 0, 64, SL_CFG_REQUIRED},
    {"num_experts_per_tok", SL_CFG_FIELD(moe.per_token), 1, 1 << 10, SL_CFG_REQUIRED},
    {"n_group", SL_CFG_FIELD(moe.n_group), 1, 1 << 10, SL_CFG_REQUIRED},
    {"topk_group", SL_CFG_FIELD(moe.topk_group), 1, 1 << 10, SL_CFG_REQUIRED},
};

static sl_status check_experts(sl_config_reader *x)
{
    const sl_model_config *c = x->c;
    if (sl_dim_shared(c) > SL_CFG_MAX_PRODUCT)
        return sl_cfg_bad(x, "n_shared_experts * moe_intermediate_size is greater than 2^24");
    if (c->moe.n_routed % c->moe.n_group || c->moe.n_routed / c->moe.n_group < 2)
        return sl_cfg_bad(x, "n_group: %d does not divide %d experts into groups of at least two",
                          c->moe.n_group, c->moe.n_routed);
    if (c->moe.topk_group > c->moe.n_group)
        return sl_cfg_bad(x, "topk_group: %d is more than n_group %d", c->moe.topk_group, c->moe.n_group);
    if (c->moe.per_token > c->moe.n_routed / c->moe.n_group * c->moe.topk_group)
        return sl_cfg_bad(x, "num_experts_per_tok: %d is more than the experts of %d groups",
                          c->moe.per_token, c->moe.topk_group);
    return SL_OK;
}

static sl_status read_layers(sl_config_reader *x)
{
    const json_t *list = sl_cfg_get(x->root, "mlp_layer_types");
    if (list)
        return sl_cfg_layer_words(x, list, "mlp_layer_types", "sparse", "dense", x->c->layer_is_moe);
    const json_t *first = sl_cfg_get(x->root, "first_k_dense_replace");
    int32_t dense;
    SL_TRY(sl_cfg_int(x, first, "first_k_dense_replace", 0, SL_MAX_LAYERS, &dense));
    for (int32_t i = 0; i < x->c->n_layers; i++)
        x->c->layer_is_moe[i] = i >= dense;
    return SL_OK;
}

sl_status sl_cfg_moe(sl_config_reader *x)
{
    const json_t *scale = sl_cfg_get(x->root, "routed_scaling_factor"),
                 *freq = sl_cfg_get(x->root, "moe_layer_freq");
    double factor;
    int32_t one;
    SL_TRY(sl_cfg_ints(x, int_keys, SL_COUNT(int_keys)));
    SL_TRY(sl_cfg_only_string(x, "scoring_func", "sigmoid"));
    SL_TRY(sl_cfg_only_string(x, "topk_method", "noaux_tc"));
    if (freq)
        SL_TRY(sl_cfg_int(x, freq, "moe_layer_freq", 1, 1, &one));
    SL_TRY(sl_cfg_real(x, scale, "routed_scaling_factor", 1e-6, 1e6, &factor));
    x->c->moe.scaling_factor = (float)factor;
    if (!sl_cfg_get(x->root, "norm_topk_prob"))
        return sl_cfg_bad(x, "norm_topk_prob: missing");
    SL_TRY(sl_cfg_bool_or(x, x->root, "norm_topk_prob", true, &x->c->moe.norm_topk_prob));
    SL_TRY(check_experts(x));
    return read_layers(x);
}
