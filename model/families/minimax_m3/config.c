/*
 * The keys of config.json that MiniMax-M3 has. Released configs have lists of numbers by layer and an object
 * sparse_attention_config, configs of transformers words by layer and index_* keys.
 */
#include <math.h>
#include <string.h>

#include "model/config_read.h"
#include "model/families/minimax_m3/minimax_m3.h"

enum { MAX_HEADS = 1024, MAX_HEAD_DIM = 1024, MAX_INDEX_DIM = 256, MAX_BLOCK = 1 << 16 };

/* What the published configuration class fills in. */
sl_status sl_m3_begin(sl_config_reader *x)
{
    return sl_cfg_fill(
        x,
        "{\"rms_norm_eps\": 1e-6, \"rope_theta\": 5000000.0, \"swiglu_alpha\": 1.702, \"swiglu_limit\": 7.0, "
        "\"routed_scaling_factor\": 2.0, \"index_local_blocks\": 1}");
}

/* Keys of the released model whose other values would be another model. */
static sl_status check_fixed(sl_config_reader *x)
{
    static const char *const on[] = {"use_qk_norm", "use_gemma_norm", "use_routing_bias",
                                     "use_sparse_attention"};
    SL_TRY(sl_cfg_only_true(x, on, SL_COUNT(on)));
    SL_TRY(sl_cfg_only_string(x, "qk_norm_type", "per_head"));
    SL_TRY(sl_cfg_only_string(x, "scoring_func", "sigmoid"));
    return sl_cfg_only_false(x, "attention_bias");
}

static const sl_cfg_int_key int_keys[] = {
    {"num_key_value_heads", SL_CFG_FIELD(attn.n_kv_heads), 1, MAX_HEADS, SL_CFG_REQUIRED},
    {"head_dim", SL_CFG_FIELD(attn.v_head_dim), 2, MAX_HEAD_DIM, SL_CFG_REQUIRED},
    {"num_local_experts", SL_CFG_FIELD(moe.n_routed), 2, 1 << 13, SL_CFG_REQUIRED},
    {"num_experts_per_tok", SL_CFG_FIELD(moe.per_token), 1, 1 << 10, SL_CFG_REQUIRED},
    {"n_shared_experts", SL_CFG_FIELD(moe.n_shared), 1, 1, 1},
    {"shared_intermediate_size", SL_CFG_FIELD(moe.shared_intermediate_size), 1, 1 << 20, SL_CFG_REQUIRED},
};

/* A list with 0 or 1 for each layer; what follows is of no layer that is run. */
static sl_status read_flags(sl_config_reader *x, const json_t *list, const char *key, bool *out)
{
    const size_t n = (size_t)x->c->n_layers;
    if (!json_is_array(list) || json_array_size(list) < n)
        return sl_cfg_bad(x, "%s: not a list of at least %zu numbers", key, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || (json_integer_value(v) != 0 && json_integer_value(v) != 1))
            return sl_cfg_bad(x, "%s[%zu]: neither 0 nor 1", key, i);
        out[i] = json_integer_value(v) == 1;
    }
    return SL_OK;
}

static sl_status read_experts(sl_config_reader *x)
{
    sl_model_config *c = x->c;
    const json_t *words = sl_cfg_get(x->root, "mlp_layer_types"),
                 *freq = sl_cfg_get(x->root, "moe_layer_freq");
    double factor, alpha, limit;
    c->moe.intermediate_size = c->intermediate_size;
    SL_TRY(sl_cfg_int(x, sl_cfg_get(x->root, "dense_intermediate_size"), "dense_intermediate_size", 1,
                      1 << 20, &c->intermediate_size));
    if (c->moe.per_token > c->moe.n_routed)
        return sl_cfg_bad(x, "num_experts_per_tok: %d is more than num_local_experts %d", c->moe.per_token,
                          c->moe.n_routed);
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "routed_scaling_factor"), "routed_scaling_factor", 1e-6, 1e6,
                       &factor));
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "swiglu_alpha"), "swiglu_alpha", 1e-3, 1e3, &alpha));
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "swiglu_limit"), "swiglu_limit", 1e-3, 1e9, &limit));
    c->moe.scaling_factor = (float)factor;
    c->moe.n_group = c->moe.topk_group = 1, c->moe.norm_topk_prob = true;
    c->mlp_glu = c->moe.glu = (sl_glu){.limit = (float)limit, .alpha = (float)alpha, .offset = 1};
    if (words)
        return sl_cfg_layer_words(x, words, "mlp_layer_types", "sparse", "dense", c->layer_is_moe);
    if (freq)
        return read_flags(x, freq, "moe_layer_freq", c->layer_is_moe);
    for (int32_t i = 0; i < c->n_layers; i++)
        c->layer_is_moe[i] = true;
    return SL_OK;
}

/* Which layers select. As the published class, which attends to everything where nothing says it. */
static sl_status read_layers(sl_config_reader *x, const json_t *sparse)
{
    const json_t *words = sl_cfg_get(x->root, "layer_types"),
                 *freq = sparse ? sl_cfg_get(sparse, "sparse_attention_freq") : NULL;
    bool *out = x->c->layer_has_indexer;
    if (words)
        return sl_cfg_layer_words(x, words, "layer_types", "minimax_m3_sparse", "full_attention", out);
    if (freq)
        return read_flags(x, freq, "sparse_attention_freq", out);
    memset(out, 0, sizeof x->c->layer_has_indexer);
    return SL_OK;
}

/* What sparse_attention_config may say beyond its dimensions. */
static sl_status check_sparse(sl_config_reader *x, const json_t *sparse)
{
    static const char *const init[] = {"sparse_init_blocks", "sparse_init_block"};
    const char *type = NULL;
    const json_t *off = sl_cfg_get(sparse, "sparse_disable_index_value");
    for (size_t i = 0; i < SL_COUNT(init); i++) {
        const json_t *v = sl_cfg_get(sparse, init[i]);
        if (v && (!json_is_integer(v) || json_integer_value(v) != 0))
            return sl_cfg_cannot(x, "%s: only 0 is supported", init[i]);
    }
    SL_TRY(sl_cfg_string(x, sparse, "sparse_score_type", &type));
    if (type && strcmp(type, "max") != 0)
        return sl_cfg_cannot(x, "sparse_score_type: \"%.32s\" is not supported, \"max\" is", type);
    for (size_t i = 0; i < (json_is_array(off) ? json_array_size(off) : off != NULL); i++) {
        const json_t *v = json_is_array(off) ? json_array_get(off, i) : off;
        const bool yes = json_is_true(v) || (json_is_integer(v) && json_integer_value(v) != 0);
        if (!yes && (!json_is_array(off) || (i < (size_t)x->c->n_layers && x->c->layer_has_indexer[i])))
            return sl_cfg_cannot(x,
                                 "sparse_disable_index_value: an index branch with values is not supported");
    }
    return SL_OK;
}

/* A number of the indexer: by its name in sparse_attention_config, which goes before that of transformers. */
static sl_status read_number(sl_config_reader *x, const json_t *sparse, const char *old, const char *key,
                             int32_t lo, int32_t hi, int32_t *out)
{
    const json_t *v = sparse ? sl_cfg_get(sparse, old) : NULL;
    return v ? sl_cfg_int(x, v, old, lo, hi, out) : sl_cfg_int(x, sl_cfg_get(x->root, key), key, lo, hi, out);
}

/* Every list of blocks belongs to a head of the indexer; KV heads that share one are fine, and those that have several become
 * several. */
static sl_status divide_heads(sl_config_reader *x)
{
    sl_model_config *c = x->c;
    const int32_t lists = c->index.n_heads, kv = c->attn.n_kv_heads;
    if (c->attn.n_heads % lists)
        return sl_cfg_bad(x, "index_n_heads: %d does not divide num_attention_heads %d", lists,
                          c->attn.n_heads);
    if (kv % lists && lists % kv)
        return sl_cfg_cannot(
            x, "index_n_heads: %d neither divides num_key_value_heads %d nor is its multiple", lists, kv);
    if (lists > kv)
        c->index.blocks.stored_kv_heads = kv, c->attn.n_kv_heads = lists;
    return SL_OK;
}

static sl_status read_indexer(sl_config_reader *x, const json_t *sparse)
{
    sl_model_config *c = x->c;
    const char *local =
        sparse && sl_cfg_get(sparse, "sparse_local_blocks") ? "sparse_local_blocks" : "sparse_local_block";
    int32_t block, topk, keep;
    bool any = false;
    for (int32_t i = 0; i < c->n_layers; i++)
        any = any || c->layer_has_indexer[i];
    if (!any)
        return SL_OK;
    SL_TRY(
        read_number(x, sparse, "sparse_num_index_heads", "index_n_heads", 1, MAX_HEADS, &c->index.n_heads));
    SL_TRY(
        read_number(x, sparse, "sparse_index_dim", "index_head_dim", 2, MAX_INDEX_DIM, &c->index.head_dim));
    SL_TRY(read_number(x, sparse, "sparse_block_size", "index_block_size", 1, MAX_BLOCK, &block));
    SL_TRY(read_number(x, sparse, "sparse_topk_blocks", "index_topk_blocks", 1, 1 << 20, &topk));
    SL_TRY(read_number(x, sparse, local, "index_local_blocks", 0, 1 << 20, &keep));
    if ((int64_t)block * topk > SL_CFG_MAX_PRODUCT)
        return sl_cfg_bad(x, "index_topk_blocks * index_block_size is greater than 2^24");
    if (keep > topk)
        return sl_cfg_cannot(x, "index_local_blocks: %d is more than index_topk_blocks %d", keep, topk);
    c->index.topk = block * topk;
    c->index.blocks = (sl_index_blocks){.tokens = block, .local = keep};
    return divide_heads(x);
}

/*
 * How many values of a head are rotated: partial_rotary_factor says it. Where it is missing, rotary_dim of a released config does; a
 * config that transformers wrote (with rope_parameters) has rotary_dim too, but its class rotates the whole head then.
 */
static sl_status read_rope(sl_config_reader *x)
{
    sl_model_config *c = x->c;
    const json_t *v = sl_cfg_get(x->root, "rotary_dim");
    int32_t rotated = c->attn.v_head_dim;
    if (v && !sl_cfg_get(x->root, "rope_parameters"))
        SL_TRY(sl_cfg_int(x, v, "rotary_dim", 2, c->attn.v_head_dim, &rotated));
    SL_TRY(sl_cfg_rope_part(x, c->attn.v_head_dim, rotated));
    if (c->index.topk > 0 && c->index.head_dim < c->attn.qk_rope_head_dim)
        return sl_cfg_cannot(x, "index_head_dim: %d is less than the %d rotated values of a head",
                             c->index.head_dim, c->attn.qk_rope_head_dim);
    c->attn.softmax_scale = 1 / sqrtf((float)c->attn.v_head_dim);
    return SL_OK;
}

sl_status sl_m3_read_config(sl_config_reader *x, const sl_family *f)
{
    sl_model_config *c = x->c;
    const json_t *sparse = sl_cfg_get(x->root, "sparse_attention_config");
    (void)f;
    if (sparse && !json_is_object(sparse))
        return sl_cfg_bad(x, "sparse_attention_config: not an object");
    SL_TRY(check_fixed(x));
    SL_TRY(sl_cfg_ints(x, int_keys, SL_COUNT(int_keys)));
    if (c->attn.n_heads % c->attn.n_kv_heads)
        return sl_cfg_bad(x, "num_key_value_heads: %d does not divide num_attention_heads %d",
                          c->attn.n_kv_heads, c->attn.n_heads);
    if ((int64_t)c->attn.n_heads * c->attn.v_head_dim > SL_CFG_MAX_PRODUCT)
        return sl_cfg_bad(x, "head_dim: times num_attention_heads it is beyond 2^24");
    SL_TRY(read_experts(x));
    SL_TRY(read_layers(x, sparse));
    if (sparse)
        SL_TRY(check_sparse(x, sparse));
    SL_TRY(read_indexer(x, sparse));
    return read_rope(x);
}
