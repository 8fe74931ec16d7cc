/*
 * The registry of model families, and what the tensor lists of several families use: dimensions, kinds of layers,
 * unused tensors. To add a family: its folder under families/, its line in `built_in`, its line in CMakeLists.txt.
 */
#include "model/family.h"

#include <stdlib.h>
#include <string.h>

#include "model/families/axk2/axk2.h"
#include "model/families/deepseek_v4/v4.h"
#include "model/families/dsa/dsa.h"
#include "model/families/glm5_next/glm5.h"
#include "model/families/gqa/gqa.h"
#include "model/families/hy_v4/hy_v4.h"
#include "model/families/minimax_m3/minimax_m3.h"
#include "model/families/qwen4_exp/qwen4.h"

static const sl_family *const built_in[] = {
    &sl_family_deepseek_v32, &sl_family_glm_moe_dsa, &sl_family_llama,     &sl_family_qwen2,
    &sl_family_qwen3,        &sl_family_hy_v4,       &sl_family_axk2,      &sl_family_deepseek_v4,
    &sl_family_minimax_m3,   &sl_family_qwen4_exp,   &sl_family_glm5_next,
};

enum { MAX_ADDED = 8 };

static const sl_family *added[MAX_ADDED];
static size_t n_added;

const sl_family *sl_family_at(size_t i)
{
    if (i < SL_COUNT(built_in))
        return built_in[i];
    i -= SL_COUNT(built_in);
    return i < n_added ? added[i] : NULL;
}

const sl_family *sl_family_find(const char *model_type)
{
    const sl_family *f;
    for (size_t i = 0; (f = sl_family_at(i)); i++)
        if (strcmp(f->model_type, model_type) == 0 || (f->text_type && strcmp(f->text_type, model_type) == 0))
            return f;
    return NULL;
}

sl_status sl_family_add(const sl_family *f)
{
    if (sl_family_find(f->model_type))
        return SL_ERR_INVALID;
    if (n_added == MAX_ADDED)
        return SL_ERR_EXHAUSTED;
    added[n_added++] = f;
    return SL_OK;
}

void sl_model_cache_dims(const sl_model_config *cfg, sl_row_format row, sl_index_format index,
                         sl_cache_dims *out)
{
    const sl_family *f = sl_family_find(cfg->family);
    *out = (sl_cache_dims){.rows = sl_row_format_of(row), .index_format = index};
    if (f)
        f->cache_dims(cfg, out);
}

sl_status sl_model_config_draft(sl_model_config *c, sl_err *err)
{
    const sl_family *f = sl_family_find(c->family);
    const int32_t last = c->n_layers - 1;
    if (!f || !f->row_steps)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "model.draft_tokens: %s drafts no tokens: %s", c->family,
                       f && f->no_drafts ? f->no_drafts : "its models have no MTP layer");
    if (c->n_nextn_layers < 1)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "model.draft_tokens: the checkpoint drafts no tokens: it has no MTP layer "
                       "(config.json: num_nextn_predict_layers is 0 or missing)");
    if (c->n_layers >= SL_MAX_LAYERS)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%d layers and an MTP layer are too many", c->n_layers);
    c->layer_is_moe[last + 1] = c->layer_is_moe[last];
    c->layer_has_indexer[last + 1] = true;
    c->layer_class[last + 1] = c->layer_class[last];
    c->n_layers++, c->n_draft = 1, c->n_nextn_layers--;
    return SL_OK;
}

int64_t sl_dim_one(const sl_model_config *c)
{
    (void)c;
    return 1;
}

int64_t sl_dim_vocab(const sl_model_config *c)
{
    return c->vocab_size;
}

int64_t sl_dim_hidden(const sl_model_config *c)
{
    return c->hidden_size;
}

int64_t sl_dim_dense(const sl_model_config *c)
{
    return c->intermediate_size;
}

int64_t sl_dim_shared(const sl_model_config *c)
{
    return c->moe.shared_intermediate_size ? c->moe.shared_intermediate_size
                                           : (int64_t)c->moe.n_shared * c->moe.intermediate_size;
}

int64_t sl_dim_experts(const sl_model_config *c)
{
    return c->moe.n_routed;
}

int64_t sl_dim_joined(const sl_model_config *c)
{
    return 2 * (int64_t)c->hidden_size;
}

bool sl_in_draft(const sl_model_config *c, int32_t layer)
{
    return layer >= c->n_layers - c->n_draft;
}

bool sl_in_first(const sl_model_config *c, int32_t layer)
{
    (void)c;
    return layer == 0;
}

bool sl_in_last(const sl_model_config *c, int32_t layer)
{
    return layer == c->n_layers - 1;
}

bool sl_in_dense(const sl_model_config *c, int32_t layer)
{
    return !c->layer_is_moe[layer];
}

bool sl_in_moe(const sl_model_config *c, int32_t layer)
{
    return c->layer_is_moe[layer];
}

bool sl_in_shared(const sl_model_config *c, int32_t layer)
{
    return c->layer_is_moe[layer] && c->moe.n_shared > 0;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

bool sl_family_ignores(const sl_family *f, const sl_model_config *c, const char *name)
{
    static const char prefix[] = "model.layers.";
    if (ends_with(name, "rotary_emb.inv_freq"))
        return true;
    for (const char *const *u = f->unused; u && *u; u++)
        if (strncmp(name, *u, strlen(*u)) == 0)
            return true;
    if (strcmp(name, "lm_head.weight") == 0)
        return c->tie_word_embeddings;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    char *rest;
    const char *digits = name + sizeof prefix - 1;
    if (*digits < '0' || *digits > '9')
        return false;
    long layer = strtol(digits, &rest, 10);
    if (*rest != '.')
        return false;
    if (layer >= c->n_layers)
        return layer < (long)c->n_layers + c->n_nextn_layers;
    return f->ignores && f->ignores(c, (int32_t)layer, rest + 1);
}
