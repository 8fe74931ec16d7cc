/* The keys of config.json that Hy4 has besides those of the DSA families. */
#include "kernels/streams.h"
#include "model/config_read.h"
#include "model/families/hy_v4/hy_v4.h"

/* As the published class: layer 0, then every fourth layer from 1 on, runs its indexer. */
static sl_status read_indexers(sl_config_reader *x)
{
    static const char *const others[] = {"index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"};
    for (size_t i = 0; i < SL_COUNT(others); i++)
        if (sl_cfg_get(x->root, others[i]))
            return sl_cfg_cannot(x, "%s: is no key of hy_v4, indexer_types is", others[i]);
    for (int32_t i = 0; !sl_cfg_get(x->root, "indexer_types") && i < x->c->n_layers; i++)
        x->c->layer_has_indexer[i] = i == 0 || (i - 1) % 4 == 0;
    return SL_OK;
}

static sl_status read_streams(sl_config_reader *x)
{
    sl_streams_config *s = &x->c->streams;
    double eps, magnitude;
    SL_TRY(sl_cfg_int(x, sl_cfg_get(x->root, "hc_mult"), "hc_mult", 1, SL_STREAMS_MAX, &s->count));
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "hc_eps"), "hc_eps", 0, 1, &eps));
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "hc_magnitude"), "hc_magnitude", -1e3, 1e3, &magnitude));
    if ((int64_t)s->count * x->c->hidden_size > SL_CFG_MAX_PRODUCT)
        return sl_cfg_bad(x, "hc_mult * hidden_size is greater than 2^24");
    s->eps = (float)eps, s->magnitude = (float)magnitude;
    return SL_OK;
}

/* Keys of the released model whose other values would be another model. */
static sl_status check_fixed(sl_config_reader *x)
{
    static const char *const on[] = {"enable_ihc", "gated_mla", "learnable_sink"};
    SL_TRY(sl_cfg_only_true(x, on, SL_COUNT(on)));
    return sl_cfg_only_string(x, "gating_type", "elementwise");
}

sl_status sl_hy4_read_config(sl_config_reader *x, const sl_family *f)
{
    bool interleaved;
    double limit;
    SL_TRY(sl_dsa_read_config(x, f));
    SL_TRY(check_fixed(x));
    SL_TRY(read_indexers(x));
    SL_TRY(sl_cfg_bool_or(x, x->root, "rope_interleave", true, &interleaved));
    x->c->attn.rope_halves = !interleaved;
    x->c->index.rope_interleaved = interleaved;
    SL_TRY(sl_cfg_real(x, sl_cfg_get(x->root, "swiglu_limit"), "swiglu_limit", -1e9, 1e9, &limit));
    x->c->moe.glu.limit = limit > 0 ? (float)limit : 0;
    return read_streams(x);
}
