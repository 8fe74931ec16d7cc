/*
 * config.json and generation_config.json (the two are separated by a zero byte): no input may crash, and what is
 * accepted is within bounds.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "model/rope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_quantisation(const sl_model_config *c)
{
    if (c->quant.n < 0 || c->quant.n > SL_MAX_FORMS)
        abort();
    for (int32_t i = 0; i < c->quant.n; i++)
        if (c->quant.forms[i].group && !sl_weight_group_ok(c->quant.forms[i].group))
            abort();
}

static void check(const sl_model_config *c)
{
    static float table[2 * 4096];
    if (c->n_layers < 1 || c->n_layers > SL_MAX_LAYERS || c->n_eos > SL_MAX_EOS)
        abort();
    /* latent rows: the first layer that attends has an indexer; linear layers may come before it */
    if (!c->layer_has_indexer[0] && !c->attn.n_kv_heads && !c->linear.value_heads)
        abort();
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] < 0 || c->eos_ids[i] >= c->vocab_size)
            abort();
    if (!isfinite(c->attn.softmax_scale) || c->attn.softmax_scale <= 0 || c->attn.qk_rope_head_dim % 2)
        abort();
    if (c->attn.n_kv_heads &&
        (c->attn.n_heads % c->attn.n_kv_heads || c->attn.v_head_dim < c->attn.qk_rope_head_dim))
        abort();
    check_quantisation(c);
    sl_rope_table(c, c->max_context - 1, 1, table);
    for (int32_t i = 0; i < c->attn.qk_rope_head_dim; i++)
        if (!isfinite(table[i]))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_err err = {0};
    sl_model_config c = {0};
    if (sl_model_config_hf_quant((const char *)data, size, "hf_quant_config", &c, &err) == SL_OK)
        check_quantisation(&c);
    c = (sl_model_config){0}, err = (sl_err){0};
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t n = cut ? (size_t)(cut - data) : size;
    const char *generation = cut ? (const char *)cut + 1 : NULL;
    if (sl_model_config_parse((const char *)data, n, "config", generation, cut ? size - n - 1 : 0,
                              "generation", &c, &err) == SL_OK)
        check(&c);
    else if (!strstr(err.text, ": "))
        abort();
    return 0;
}
