/* See sizes.h. The tensors are those of the family's table, as the loader (weights.c) and synthetic.c walk them. */
#include "model/sizes.h"

#include "kernels/formats.h"
#include "model/family.h"
#include "model/workspace.h"

#define BLOCK 128

static uint64_t matrix(int64_t rows, int64_t cols, sl_dtype dtype)
{
    uint64_t scales = (uint64_t)((rows + BLOCK - 1) / BLOCK) * (uint64_t)((cols + BLOCK - 1) / BLOCK);
    uint64_t values = (uint64_t)rows * (uint64_t)cols * sl_dtype_size(dtype);
    return dtype == SL_F8_E4M3 ? values + scales * sizeof(float) : values;
}

static uint64_t tensor(const sl_model_config *c, const sl_tensor_spec *s, sl_dtype stored, sl_dtype act)
{
    sl_dtype other = stored == SL_F8_E4M3 ? SL_BF16 : stored;
    bool bf16 = (s->flags & SL_SPEC_ABSORBED) && act == SL_BF16; /* converted at load */
    switch (s->kind) {
    case SL_K_LINEAR:
        return matrix(s->rows(c), s->cols(c), (s->flags & SL_SPEC_16BIT) || bf16 ? other : stored);
    case SL_K_TABLE:
        return matrix(s->rows(c), s->cols(c), other);
    case SL_K_VECTOR:
        return matrix(s->rows(c), 1, other);
    case SL_K_LONGS:
        return (uint64_t)s->rows(c) * sizeof(int64_t);
    case SL_K_TAPS:
        return matrix(s->rows(c), s->cols(c), SL_F32);
    case SL_K_FLOATS:
        return matrix(s->rows(c), s->cols(c), SL_F32);
    case SL_K_EXPERTS:
        return matrix(s->rows(c), s->cols(c), SL_I32);
    }
    return 0;
}

const sl_weight_form *sl_model_half_form(const sl_model_config *c)
{
    for (int32_t i = 0; i < c->quant.n; i++)
        if (sl_form_is_half(&c->quant.forms[i]))
            return &c->quant.forms[i];
    return NULL;
}

static uint64_t expert_matrix(const sl_model_config *c, int64_t rows, int64_t cols, sl_dtype stored)
{
    const sl_weight_form *f = sl_model_half_form(c);
    if (!f)
        return matrix(rows, cols, stored);
    int64_t groups = f->group ? (cols + f->group - 1) / f->group : 1;
    return (uint64_t)rows *
           ((uint64_t)sl_dtype_bytes(f->dtype, cols) + (uint64_t)groups * sl_scale_size(f->scale_type));
}

void sl_model_weight_sizes(const sl_model_config *c, sl_dtype stored, sl_dtype act, sl_weight_bytes *out)
{
    const sl_family *f = sl_family_find(c->family);
    int64_t inter = c->moe.intermediate_size, hidden = c->hidden_size;
    *out = (sl_weight_bytes){0};
    for (size_t i = 0; f && i < f->n_model_tensors; i++)
        if (f->model_tensors[i].slot != SL_T_HEAD || !c->tie_word_embeddings)
            out->replicated += tensor(c, &f->model_tensors[i], stored, act);
    for (int32_t l = 0; f && l < c->n_layers; l++) {
        for (size_t i = 0; i < f->n_layer_tensors; i++)
            if (sl_when_holds(f->layer_tensors[i].when, c, l))
                out->replicated += tensor(c, &f->layer_tensors[i], stored, act);
        if (c->layer_is_moe[l])
            out->expert +=
                2 * expert_matrix(c, inter, hidden, stored) + expert_matrix(c, hidden, inter, stored);
    }
}

static void linear_of(const sl_model_config *c, const sl_tensor_spec *s, size_t n, int32_t layer,
                      sl_linear_fn *f, void *ctx)
{
    for (size_t i = 0; i < n; i++)
        if ((s[i].kind == SL_K_LINEAR || s[i].kind == SL_K_FLOATS) && sl_when_holds(s[i].when, c, layer))
            f(ctx, s[i].rows(c), s[i].cols(c), s[i].kind == SL_K_LINEAR && !(s[i].flags & SL_SPEC_16BIT));
}

void sl_model_each_linear(const sl_model_config *c, sl_linear_fn *f, void *ctx)
{
    const sl_family *family = sl_family_find(c->family);
    if (!family)
        return;
    linear_of(c, family->model_tensors, family->n_model_tensors, 0, f, ctx);
    for (int32_t l = 0; l < c->n_layers; l++)
        linear_of(c, family->layer_tensors, family->n_layer_tensors, l, f, ctx);
}

uint64_t sl_model_exchange_bytes(const sl_model_config *c, sl_dtype act, int32_t max_tokens, int32_t ranks)
{
    sl_carve k = {0};
    sl_workspace w = {0};
    sl_workspace_exchange(c, act, max_tokens, ranks, &k, &w);
    return k.at;
}
