/* Random models; see synthetic.h. The tensors are those of the family's table, placed in one block. */
#include "model/synthetic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/synth.h"
#include "model/config.h"
#include "model/model_impl.h"

#define ALIGN 256
#define BLOCK 128
#define F8_SPREAD 240.0f

const char *const sl_synthetic_names[] = {"deepseek_v32", "tiny", NULL};

#define COMMON                                                                                               \
    "\"architectures\": [\"DeepseekV32ForCausalLM\"], \"model_type\": \"deepseek_v32\", "                    \
    "\"num_hidden_layers\": %d, "                                                                            \
    "\"moe_layer_freq\": 1, \"n_shared_experts\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": "  \
    "2.5, "                                                                                                  \
    "\"topk_method\": \"noaux_tc\", \"scoring_func\": \"sigmoid\", \"hidden_act\": \"silu\", "               \
    "\"rms_norm_eps\": 1e-6, "                                                                               \
    "\"attention_bias\": false, \"rope_theta\": 10000, \"max_position_embeddings\": 163840, "                \
    "\"eos_token_id\": 1, "                                                                                  \
    "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"original_max_position_embeddings\": 4096, "    \
    "\"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}, "                       \
    "\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": "        \
    "\"dynamic\", "                                                                                          \
    "\"weight_block_size\": [128, 128]}, "

static const struct {
    const char *name, *config;
    int32_t layers;
} presets[] = {
    {"deepseek_v32",
     "{" COMMON "\"vocab_size\": 129280, \"hidden_size\": 7168, \"intermediate_size\": 18432, "
     "\"moe_intermediate_size\": 2048, \"first_k_dense_replace\": 3, \"num_attention_heads\": 128, "
     "\"num_key_value_heads\": 128, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, "
     "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"index_n_heads\": 64, \"index_head_dim\": 128, "
     "\"index_topk\": 2048, \"n_routed_experts\": 256, \"num_experts_per_tok\": 8, \"n_group\": 8, "
     "\"topk_group\": 4}",
     61},
    {"tiny",
     "{" COMMON "\"vocab_size\": 256, \"hidden_size\": 128, \"intermediate_size\": 256, "
     "\"moe_intermediate_size\": 128, \"first_k_dense_replace\": 1, \"num_attention_heads\": 2, "
     "\"num_key_value_heads\": 2, \"q_lora_rank\": 128, \"kv_lora_rank\": 128, \"qk_nope_head_dim\": 32, "
     "\"qk_rope_head_dim\": 16, \"v_head_dim\": 32, \"index_n_heads\": 4, \"index_head_dim\": 32, "
     "\"index_topk\": 32, \"n_routed_experts\": 16, \"num_experts_per_tok\": 4, \"n_group\": 4, "
     "\"topk_group\": 2}",
     4},
};

sl_status sl_synthetic_config(const char *name, int32_t layers, sl_model_config *out, sl_err *err)
{
    for (size_t i = 0; i < SL_COUNT(presets); i++) {
        if (strcmp(presets[i].name, name) != 0)
            continue;
        if (layers < 0 || layers > presets[i].layers)
            return sl_fail(err, SL_ERR_INVALID, "%s has %d layers, %d are not possible", name,
                           presets[i].layers, layers);
        char text[4096];
        int n = snprintf(text, sizeof text, presets[i].config, layers ? layers : presets[i].layers);
        return sl_model_config_parse(text, (size_t)n, name, NULL, 0, NULL, out, err);
    }
    return sl_fail(err, SL_ERR_INVALID, "there is no made-up model \"%s\"", name);
}

/* Walks all tensors; without a block it only measures. */
typedef struct maker {
    sl_model *m;
    uint8_t *block;
    uint64_t at, bytes; /* aligned place; of tensors */
    uint64_t seed, tensors;
    sl_err *err;
} maker;

static sl_status fill(maker *k, int64_t rows, int64_t cols, sl_dtype dtype, float mean, float spread,
                      const void **out)
{
    size_t bytes = (size_t)(rows * cols) * sl_dtype_size(dtype);
    sl_random_params p = {.out = k->block + k->at,
                          .rows = (int32_t)rows,
                          .cols = (int32_t)cols,
                          .dtype = dtype,
                          .mean = mean,
                          .spread = spread,
                          .seed = k->seed + (++k->tensors << 40)};
    k->at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    k->bytes += bytes;
    if (!k->block)
        return SL_OK;
    *out = p.out;
    return sl_be_run(k->m->be, SL_OP_RANDOM, &p, k->err);
}

/* Values of variance 1 / cols; F8 ones fill the range of the format and are scaled back. */
static sl_status make_linear(maker *k, int64_t rows, int64_t cols, sl_dtype dtype, sl_weight *w)
{
    float spread = sqrtf(3.0f / (float)cols);
    const void *scale = NULL;
    *w = (sl_weight){.out = (int32_t)rows, .in = (int32_t)cols, .dtype = dtype};
    if (dtype != SL_F8_E4M3)
        return fill(k, rows, cols, dtype, 0, spread, &w->data);
    float s = spread / F8_SPREAD;
    sl_status st = fill(k, rows, cols, dtype, 0, F8_SPREAD, &w->data);
    if (st == SL_OK)
        st = fill(k, (rows + BLOCK - 1) / BLOCK, (cols + BLOCK - 1) / BLOCK, SL_F32, s, s / 8, &scale);
    w->scale = scale;
    return st;
}

static sl_status make_tensor(maker *k, const sl_tensor_spec *s, sl_weight *w)
{
    const sl_model_config *c = &k->m->config;
    int64_t rows = s->rows(c), cols = s->cols(c);
    float mean = s->flags & SL_SPEC_GAIN ? 1 : 0;
    if (s->kind == SL_K_LINEAR)
        return make_linear(k, rows, cols, s->flags & SL_SPEC_16BIT ? SL_BF16 : SL_F8_E4M3, w);
    sl_dtype dtype = s->kind == SL_K_FLOATS ? SL_F32 : SL_BF16;
    *w = (sl_weight){.out = (int32_t)rows, .in = (int32_t)cols, .dtype = dtype};
    return fill(k, rows, cols, dtype, mean, s->kind == SL_K_TABLE ? 1 : 0.125f, &w->data);
}

static sl_status make_layer(maker *k, int32_t layer)
{
    const sl_family *f = k->m->family;
    const sl_model_config *c = &k->m->config;
    sl_layer_weights *lw = &k->m->weights.layers[layer];
    int64_t inter = c->moe_intermediate_size, hidden = c->hidden_size;
    sl_status st = SL_OK;
    for (size_t i = 0; i < f->n_layer_tensors && st == SL_OK; i++)
        if (sl_when_holds(f->layer_tensors[i].when, c, layer))
            st = make_tensor(k, &f->layer_tensors[i], &lw->w[f->layer_tensors[i].slot]);
    for (int32_t e = 0; c->layer_is_moe[layer] && e < k->m->local_experts && st == SL_OK; e++) {
        st = make_linear(k, inter, hidden, SL_F8_E4M3, &lw->gate[e]);
        if (st == SL_OK)
            st = make_linear(k, inter, hidden, SL_F8_E4M3, &lw->up[e]);
        if (st == SL_OK)
            st = make_linear(k, hidden, inter, SL_F8_E4M3, &lw->down[e]);
    }
    return st;
}

static sl_status make_all(maker *k)
{
    const sl_family *f = k->m->family;
    sl_status st = SL_OK;
    k->at = k->bytes = k->tensors = 0;
    for (size_t i = 0; i < f->n_model_tensors && st == SL_OK; i++)
        st = make_tensor(k, &f->model_tensors[i], &k->m->weights.w[f->model_tensors[i].slot]);
    for (int32_t l = 0; l < k->m->config.n_layers && st == SL_OK; l++)
        st = make_layer(k, l);
    return st;
}

static sl_status alloc_tables(sl_model *m, sl_err *err)
{
    size_t layers = (size_t)m->config.n_layers, e = (size_t)m->local_experts;
    sl_weights *w = &m->weights;
    w->be = m->be;
    w->layers = calloc(layers, sizeof *w->layers);
    w->experts = calloc(layers * e * 3 + 1, sizeof *w->experts);
    if (!w->layers || !w->experts)
        return sl_fail(err, SL_ERR_NO_MEMORY, "no memory for the tables of %zu layers", layers);
    for (size_t l = 0; l < layers; l++) {
        w->layers[l].gate = w->experts + 3 * e * l;
        w->layers[l].up = w->layers[l].gate + e;
        w->layers[l].down = w->layers[l].up + e;
    }
    return SL_OK;
}

static sl_status make_weights(sl_model *m, uint64_t seed, sl_err *err)
{
    maker k = {.m = m, .seed = seed, .err = err};
    sl_status st = alloc_tables(m, err);
    if (st == SL_OK)
        st = make_all(&k);
    if (st == SL_OK)
        st = sl_be_alloc(m->be, SL_MEM_DEVICE, k.at, &m->weights.block, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "%.1f GiB of weights", (double)k.at / (1 << 30));
    k.block = m->weights.block;
    st = make_all(&k);
    m->weights.bytes = k.bytes;
    return st == SL_OK ? sl_be_sync(m->be, err) : st;
}

sl_status sl_model_synthetic(sl_backend *be, const sl_model_config *cfg, const sl_model_opts *opts,
                             const sl_synthetic_opts *synth, sl_model **out, sl_err *err)
{
    if (synth->ranks < 1 || cfg->n_routed_experts % synth->ranks ||
        cfg->n_routed_experts / synth->ranks < cfg->num_experts_per_tok)
        return sl_fail(err, SL_ERR_INVALID, "%d ranks do not divide %d experts into parts of at least %d",
                       synth->ranks, cfg->n_routed_experts, cfg->num_experts_per_tok);
    sl_model *m = calloc(1, sizeof *m);
    if (!m)
        return sl_fail(err, SL_ERR_NO_MEMORY, "no memory for a model");
    m->be = be;
    m->opts = *opts;
    m->config = *cfg;
    m->config.tie_word_embeddings = false;
    m->family = sl_family_find(cfg->family);
    m->local_experts = cfg->n_routed_experts / synth->ranks;
    m->fingerprint = (sl_key){synth->seed | 1, (uint64_t)cfg->n_layers};
    if (opts->max_context && opts->max_context < m->config.max_context)
        m->config.max_context = opts->max_context;
    sl_status st = make_weights(m, synth->seed, err);
    if (st == SL_OK)
        st = sl_model_finish(m, err);
    if (st != SL_OK) {
        sl_model_destroy(m);
        return st;
    }
    *out = m;
    return SL_OK;
}
