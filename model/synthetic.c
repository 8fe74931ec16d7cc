/* Models with random weights; see synthetic.h. The tensors are those of the family's table, all in one block. */
#include "model/synthetic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ep.h"
#include "kernels/formats.h"
#include "kernels/synth.h"
#include "model/config.h"
#include "model/model_impl.h"
#include "model/sizes.h"

#define ALIGN 256
#define BLOCK 128
#define F8_SPREAD 240.0f

/* The i-th preset of all families, NULL after the last. */
static const sl_model_preset *preset_at(size_t i)
{
    for (size_t k = 0; sl_family_at(k); k++) {
        for (const sl_model_preset *p = sl_family_at(k)->presets; p && p->name; p++) {
            if (i-- == 0)
                return p;
        }
    }
    return NULL;
}

const char *sl_synthetic_name(size_t i)
{
    const sl_model_preset *p = preset_at(i);
    return p ? p->name : NULL;
}

sl_status sl_synthetic_config(const char *name, int32_t layers, sl_model_config *out, sl_err *err)
{
    const sl_model_preset *p = NULL;
    for (size_t i = 0; (p = preset_at(i)) != NULL && strcmp(p->name, name) != 0; i++)
        continue;
    if (!p)
        return sl_fail(err, SL_ERR_INVALID, "there is no synthetic model \"%s\"", name);
    if (layers < 0 || layers > p->layers)
        return sl_fail(err, SL_ERR_INVALID, "%s has %d layers; %d is not possible", name, p->layers, layers);
    char text[4096];
    int n =
        snprintf(text, sizeof text, "{\"num_hidden_layers\": %d, %s}", layers ? layers : p->layers, p->keys);
    SL_CHECK(n > 0 && (size_t)n < sizeof text, "preset %s has %d bytes", name, n);
    return sl_model_config_parse(text, (size_t)n, name, NULL, 0, NULL, out, err);
}

static const struct {
    const char *name;
    sl_weight_form form;
    int8_t acts;
} weight_names[] = {
    {"fp8", {SL_F8_E4M3, SL_SCALE_BLOCKS, 128}, 1}, {"int4", {SL_I4, SL_SCALE_BF16, 128}, -1},
    {"w4a8", {SL_I4, SL_SCALE_BF16, 128}, 1},       {"mxfp4", {SL_F4_E2M1, SL_SCALE_E8M0, 32}, 1},
    {"nvfp4", {SL_F4_E2M1, SL_SCALE_E4M3, 16}, -1},
};

sl_status sl_synthetic_experts(const char *name, sl_model_config *c, sl_err *err)
{
    for (size_t i = 0; i < SL_COUNT(weight_names); i++) {
        if (strcmp(name, weight_names[i].name) != 0)
            continue;
        if (i > 0 && c->moe.n_routed == 0)
            return sl_fail(err, SL_ERR_INVALID, "%s: the model has no routed experts", name);
        if (i > 0)
            c->quant.forms[0] = weight_names[i].form, c->quant.n = 1,
            c->quant.half_acts = weight_names[i].acts;
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_NOT_FOUND, "\"%s\" is none of " SL_SYNTHETIC_EXPERTS, name);
}

/* Walks all tensors. block NULL: only adds up their sizes. */
typedef struct maker {
    sl_model *m;
    uint8_t *block;
    uint64_t at;    /* where the next tensor lies in the block */
    uint64_t bytes; /* of all tensors so far, without padding */
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

/* Random values with variance 1 / cols. F8 values use the whole range of the format; the scale restores the
 * variance. */
static sl_status make_linear(maker *k, int64_t rows, int64_t cols, sl_dtype dtype, sl_weight *w)
{
    float spread = sqrtf(3.0f / (float)cols);
    const void *scale = NULL;
    *w = (sl_weight){.out = (int32_t)rows, .in = (int32_t)cols, .dtype = dtype};
    if (dtype != SL_F8_E4M3)
        return fill(k, rows, cols, dtype, 0, spread, &w->data);
    float s = spread / F8_SPREAD;
    SL_TRY(fill(k, rows, cols, dtype, 0, F8_SPREAD, &w->data));
    SL_TRY(fill(k, (rows + BLOCK - 1) / BLOCK, (cols + BLOCK - 1) / BLOCK, SL_F32, s, s / 8, &scale));
    w->scale = scale;
    return SL_OK;
}

/* The value of an e4m3 code, to fill bytes with it. */
static float code_value(int code)
{
    return sl_e4m3_to_f32((uint8_t)code);
}

/* The same in 4 bits. Codes are bytes of random F8 values, which covers all codes, if not evenly. */
static sl_status make_half(maker *k, int64_t rows, int64_t cols, const sl_weight_form *f, sl_weight *w)
{
    const float s = sqrtf(3.0f / (float)cols) / (f->dtype == SL_I4 ? 8.0f : 6.0f);
    const int64_t groups = f->group ? (cols + f->group - 1) / f->group : 1;
    const void *multipliers = NULL;
    int power;
    w->scale_type = f->scale_type;
    w->group = f->group ? f->group : (int32_t)((cols + BLOCK - 1) / BLOCK * BLOCK);
    w->acts_as_given = k->m->config.quant.half_acts != 1;
    w->global = f->scale_type == SL_SCALE_E4M3 ? s : 0;
    SL_TRY(fill(k, rows, cols / 2, SL_F8_E4M3, 0, F8_SPREAD, &w->data));
    (void)frexpf(s, &power);
    switch (f->scale_type) {
    case SL_SCALE_E8M0:
        SL_TRY(fill(k, rows, groups, SL_F8_E4M3, code_value(127 + power < 126 ? 127 + power : 125), 0,
                    &multipliers));
        break;
    case SL_SCALE_E4M3:
        SL_TRY(fill(k, rows, groups, SL_F8_E4M3, 1, 0.25f, &multipliers));
        break;
    default:
        SL_TRY(
            fill(k, rows, groups, f->scale_type == SL_SCALE_BF16 ? SL_BF16 : SL_F32, s, s / 8, &multipliers));
    }
    w->multiplier = multipliers;
    return SL_OK;
}

/* A table of experts: those of a row are neighbours, so none is there twice. */
static sl_status make_experts_of(maker *k, int64_t rows, int64_t cols, sl_weight *w)
{
    const size_t bytes = (size_t)(rows * cols) * sizeof(int32_t);
    const uint64_t from = k->at;
    *w = (sl_weight){.out = (int32_t)rows, .in = (int32_t)cols, .dtype = SL_I32};
    k->at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    k->bytes += bytes;
    k->tensors++;
    if (!k->block)
        return SL_OK;
    int32_t *ids = malloc(bytes);
    if (!ids)
        return sl_fail(k->err, SL_ERR_NO_MEMORY, "no memory for a table of experts");
    for (int64_t i = 0; i < rows * cols; i++)
        ids[i] = (int32_t)((i / cols * 7919 + i % cols) % k->m->local_experts);
    w->data = k->block + from;
    sl_status st = sl_be_copy(k->m->be, k->block + from, ids, bytes, k->err);
    if (st == SL_OK)
        st = sl_be_sync(k->m->be, k->err);
    free(ids);
    return st;
}

static sl_status make_tensor(maker *k, const sl_tensor_spec *s, sl_weight *w)
{
    const sl_model_config *c = &k->m->config;
    int64_t rows = s->rows(c), cols = s->cols(c);
    float mean = s->flags & SL_SPEC_GAIN ? 1 : 0;
    if (s->kind == SL_K_LINEAR) {
        bool whole = s->flags & SL_SPEC_16BIT || !k->m->config.quant.f8_acts;
        return make_linear(k, rows, cols, whole ? SL_BF16 : SL_F8_E4M3, w);
    }
    if (s->kind == SL_K_EXPERTS)
        return make_experts_of(k, rows, cols, w);
    sl_dtype dtype = s->kind == SL_K_FLOATS || s->kind == SL_K_TAPS ? SL_F32 : SL_BF16;
    *w = (sl_weight){.out = (int32_t)rows, .in = (int32_t)cols, .dtype = dtype};
    return fill(k, rows, cols, dtype, mean, s->kind == SL_K_TABLE ? 1 : 0.125f, &w->data);
}

/* An expert of another rank has a shape and a dtype, and takes its numbers of the random stream. */
static sl_status make_expert(maker *k, int32_t e, int64_t rows, int64_t cols, sl_weight *w)
{
    const sl_weights *all = &k->m->weights;
    const sl_weight_form *half = sl_model_half_form(&k->m->config);
    sl_dtype dtype = half ? half->dtype : k->m->config.quant.f8_acts ? SL_F8_E4M3 : SL_BF16;
    bool own = e >= all->expert_first[all->rank] && e < all->expert_first[all->rank + 1];
    if (own && !half)
        return make_linear(k, rows, cols, dtype, w);
    *w = (sl_weight){.out = (int32_t)rows, .in = (int32_t)cols, .dtype = dtype};
    if (half && cols % 2)
        return sl_fail(k->err, SL_ERR_UNSUPPORTED, "experts of %lld inputs in 4 bits", (long long)cols);
    if (half) { /* its description does not need its tensors */
        uint64_t at = k->at, bytes = k->bytes;
        uint8_t *block = k->block;
        k->block = own ? block : NULL;
        sl_status rc = make_half(k, rows, cols, half, w);
        k->block = block;
        if (!own)
            k->at = at, k->bytes = bytes, w->data = NULL, w->multiplier = NULL;
        return rc;
    }
    k->tensors += dtype == SL_F8_E4M3 ? 2 : 1; /* values, and their scales */
    return SL_OK;
}

static sl_status make_layer(maker *k, int32_t layer)
{
    const sl_family *f = k->m->family;
    const sl_model_config *c = &k->m->config;
    sl_layer_weights *lw = &k->m->weights.layers[layer];
    int64_t inter = c->moe.intermediate_size, hidden = c->hidden_size;
    for (size_t i = 0; i < f->n_layer_tensors; i++)
        if (sl_when_holds(f->layer_tensors[i].when, c, layer))
            SL_TRY(make_tensor(k, &f->layer_tensors[i], &lw->w[f->layer_tensors[i].slot]));
    for (int32_t e = 0; c->layer_is_moe[layer] && e < k->m->local_experts; e++) {
        SL_TRY(make_expert(k, e, inter, hidden, &lw->gate[e]));
        SL_TRY(make_expert(k, e, inter, hidden, &lw->up[e]));
        SL_TRY(make_expert(k, e, hidden, inter, &lw->down[e]));
    }
    lw->quantised = sl_model_half_form(c) ? c->quant.half_acts == 1 : c->quant.f8_acts == 1;
    return SL_OK;
}

static sl_status make_all(maker *k)
{
    const sl_family *f = k->m->family;
    k->at = k->bytes = k->tensors = 0;
    for (size_t i = 0; i < f->n_model_tensors; i++)
        SL_TRY(make_tensor(k, &f->model_tensors[i], &k->m->weights.w[f->model_tensors[i].slot]));
    for (int32_t l = 0; l < k->m->config.n_layers; l++)
        SL_TRY(make_layer(k, l));
    return SL_OK;
}

static sl_status alloc_tables(sl_model *m, sl_err *err)
{
    size_t layers = (size_t)m->config.n_layers, e = (size_t)m->local_experts;
    sl_weights *w = &m->weights;
    w->be = m->be;
    w->n_layers = m->config.n_layers;
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

/* The tables, and the size of all tensors: a first pass over them has no block and only adds up. */
static sl_status measure_weights(maker *k)
{
    SL_TRY(alloc_tables(k->m, k->err));
    return make_all(k);
}

static sl_status make_weights(sl_model *m, uint64_t seed, sl_err *err)
{
    maker k = {.m = m, .seed = seed, .err = err};
    sl_status st = measure_weights(&k);
    if (st == SL_OK)
        st = sl_be_alloc(m->be, SL_MEM_DEVICE, k.at, &m->weights.block, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "%.1f GiB of weights", (double)k.at / (1 << 30));
    k.block = m->weights.block;
    SL_TRY(make_all(&k));
    m->weights.bytes = k.bytes;
    return sl_be_sync(m->be, err);
}

static sl_status check_ranks(const sl_model_config *c, const sl_model_opts *o, const sl_synthetic_opts *synth,
                             sl_err *err)
{
    int32_t ranks = o->comm ? sl_comm_ranks(o->comm) : o->ranks;
    if (synth->ranks > 1 && (o->comm || o->ranks > 1))
        return sl_fail(err, SL_ERR_INVALID, "a rank of a real group does not simulate another group");
    if (synth->ranks < 1 || c->moe.n_routed % synth->ranks ||
        c->moe.n_routed / synth->ranks < c->moe.per_token)
        return sl_fail(err, SL_ERR_INVALID, "%d ranks do not divide %d experts into parts of at least %d",
                       synth->ranks, c->moe.n_routed, c->moe.per_token);
    if (c->moe.n_routed > 0 && ranks > c->moe.n_routed)
        return sl_fail(err, SL_ERR_INVALID, "%d ranks share %d routed experts, every rank needs one", ranks,
                       c->moe.n_routed);
    return SL_OK;
}

/* A model without weights. be may be NULL if none will be made. */
static sl_status new_model(sl_backend *be, const sl_model_config *cfg, const sl_model_opts *opts,
                           const sl_synthetic_opts *synth, sl_model **out, sl_err *err)
{
    SL_TRY(check_ranks(cfg, opts, synth, err));
    sl_model *m = calloc(1, sizeof *m);
    if (!m)
        return sl_fail(err, SL_ERR_NO_MEMORY, "no memory for a model");
    m->be = be;
    m->opts = *opts;
    if (opts->comm)
        m->opts.rank = sl_comm_rank(opts->comm), m->opts.ranks = sl_comm_ranks(opts->comm);
    m->weights.rank = m->opts.rank, m->weights.ranks = m->opts.ranks > 1 ? m->opts.ranks : 1;
    sl_ep_split(cfg->moe.n_routed / synth->ranks, m->weights.ranks, m->weights.expert_first);
    m->config = *cfg;
    m->config.tie_word_embeddings = false;
    m->family = sl_family_find(cfg->family);
    m->local_experts = cfg->moe.n_routed / synth->ranks;
    m->drawn_experts = synth->drawn;
    m->fingerprint = (sl_key){synth->seed | 1, (uint64_t)cfg->n_layers};
    if (opts->max_context && opts->max_context < m->config.max_context)
        m->config.max_context = opts->max_context;
    *out = m;
    return SL_OK;
}

sl_status sl_synthetic_bytes(const sl_model_config *cfg, const sl_model_opts *opts,
                             const sl_synthetic_opts *synth, uint64_t *out, sl_err *err)
{
    sl_model *m = NULL;
    SL_TRY(new_model(NULL, cfg, opts, synth, &m, err));
    maker k = {.m = m, .err = err};
    sl_status st = measure_weights(&k);
    *out = k.at;
    sl_model_destroy(m);
    return st;
}

sl_status sl_model_synthetic(sl_backend *be, const sl_model_config *cfg, const sl_model_opts *opts,
                             const sl_synthetic_opts *synth, sl_model **out, sl_err *err)
{
    sl_model *m = NULL;
    SL_TRY(new_model(be, cfg, opts, synth, &m, err));
    sl_status st = make_weights(m, synth->seed, err);
    if (st != SL_OK)
        goto destroy_model;
    st = sl_model_finish(m, err);
    if (st != SL_OK)
        goto destroy_model;
    *out = m;
    return SL_OK;
destroy_model:
    sl_model_destroy(m);
    return st;
}
