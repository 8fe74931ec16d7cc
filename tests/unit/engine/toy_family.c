/* See toy_family.h. The steps of the family keep running values in the engine's memory; the restatement at the end of the
 * file keeps the whole history of a text, and nothing else. */
#include "tests/unit/engine/toy_family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/turns.h"
#include "model/config_read.h"
#include "model/family.h"
#include "model/steps.h"

enum { TOKENS, BLOCKS, STATE, RING, MOD = 9973 };

static const char kinds[TOY_LAYERS + 1] = TOY_KINDS;

static int kind_of(char c)
{
    return c == 't' ? TOKENS : c == 'b' ? BLOCKS : c == 's' ? STATE : RING;
}

/* ---- the values of the classes ---- */

static int32_t token_value(int32_t a, int32_t p, int h, int d)
{
    return (a * (h + 1) + 3 * d + p) % 97;
}

static int32_t block_value(int32_t a, int32_t p)
{
    return (a * 5 + p) % 101;
}

static int32_t ring_value(int32_t a, int32_t p)
{
    return (a * 3 + p) % 89;
}

/* ---- config, tensors, buffers ---- */

static sl_status read_config(sl_config_reader *x, const sl_family *f)
{
    sl_model_config *c = x->c;
    const char *k = NULL;
    (void)f;
    SL_TRY(sl_cfg_string(x, x->root, "layer_kinds", &k));
    if (!k || strlen(k) != (size_t)c->n_layers)
        return sl_cfg_bad(x, "layer_kinds: a letter for each layer");
    for (int32_t l = 0; l < c->n_layers; l++)
        c->layer_class[l] = (uint8_t)kind_of(k[l]);
    c->attn.n_kv_heads = TOY_HEADS;
    c->attn.v_head_dim = c->attn.qk_rope_head_dim = TOY_DIM;
    return sl_cfg_rope(x);
}

static sl_cache_plane units(const char *name, int32_t tokens)
{
    sl_cache_plane p = {
        .format = "toy",
        .role = SL_PLANE_BLOCKS,
        .heads = 1,
        .unit_tokens = tokens,
        .n_parts = 2,
        .parts = {{"sum", SL_I32, SL_PER_OPEN_UNIT, 1}, {"entry", SL_I32, SL_PER_CLOSED_UNIT, 1}}};
    snprintf(p.name, sizeof p.name, "%s", name);
    return p;
}

typedef struct toy_state {
    uint32_t s[8], table[TOY_TABLE];
} toy_state;

static void cache_dims(const sl_model_config *c, sl_cache_dims *out)
{
    out->kv_heads = c->attn.n_kv_heads;
    out->head_dim = c->attn.v_head_dim;
    out->n_classes = 4;
    out->classes[TOKENS] = (sl_layer_class){.name = "tokens", .kind = SL_LAYER_TOKENS};
    out->classes[BLOCKS] = (sl_layer_class){.name = "blocks",
                                            .kind = SL_LAYER_BLOCKS,
                                            .n_planes = 2,
                                            .open = SL_OPEN_KEPT,
                                            .planes = {units("blocks", TOY_BLOCK), units("pools", TOY_POOL)}};
    out->classes[STATE] = (sl_layer_class){
        .name = "state", .kind = SL_LAYER_STATE, .state = {.format = "toy", .bytes = sizeof(toy_state)}};
    out->classes[RING] = (sl_layer_class){.name = "ring",
                                          .kind = SL_LAYER_RING,
                                          .window = TOY_RING,
                                          .state = {.format = "toy ring", .bytes = TOY_RING * 4}};
}

static const sl_tensor_spec model_tensors[] = {
    {"model.embed_tokens.weight", SL_T_EMBED, SL_K_TABLE, NULL, sl_dim_vocab, sl_dim_hidden, 0},
    {"model.norm.weight", SL_T_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"lm_head.weight", SL_T_HEAD, SL_K_LINEAR, NULL, sl_dim_vocab, sl_dim_hidden, 0},
};

typedef struct toy_buffers {
    float *q, *k, *v, *o; /* [T][heads][dim] */
    int32_t *a;           /* [T] the number that goes through the layers */
} toy_buffers;

static void carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own)
{
    toy_buffers *b = own;
    float **of[] = {&b->q, &b->k, &b->v, &b->o};
    (void)c;
    for (size_t i = 0; i < SL_COUNT(of); i++)
        *of[i] = sl_carve_take(k, o->max_tokens, (int64_t)TOY_HEADS * TOY_DIM, sizeof(float));
    b->a = sl_carve_take(k, o->max_tokens, 1, sizeof(int32_t));
}

/* ---- steps: on the CPU, where ops have ended when they return ---- */

static bool is(const sl_pass *p, int class)
{
    return !p->dry && p->c->layer_class[p->layer] == class;
}

static sl_status step_ids(sl_pass *p)
{
    toy_buffers *b = p->ws->own;
    for (int32_t t = 0; p->layer == 0 && !p->dry && t < p->tokens; t++)
        b->a[t] = p->f->ids[t];
    return SL_OK;
}

/* Attention of zero queries is a mean over the selected tokens. */
static sl_status step_tokens(sl_pass *p)
{
    toy_buffers *b = p->ws->own;
    enum { ROW = TOY_HEADS * TOY_DIM };
    const sl_gqa_head_params none = {.cos_sin = p->m->cos_sin, .eps = 1e-5f};
    if (!is(p, TOKENS))
        return SL_OK;
    memset(b->q, 0, sizeof(float) * ROW * (size_t)p->tokens);
    memset(b->k, 0, sizeof(float) * ROW * (size_t)p->tokens);
    for (int32_t i = 0; i < p->tokens * ROW; i++)
        b->v[i] =
            (float)token_value(b->a[i / ROW], p->f->seqs->token_pos[i / ROW], i % ROW / TOY_DIM, i % TOY_DIM);
    sl_attn_call call = {.kind = SL_ATTN_GQA, .layer = p->layer, .seqs = p->f->seqs};
    call.gqa.kv = (sl_gqa_append_params){.k = b->k,
                                         .v = b->v,
                                         .key = none,
                                         .heads = TOY_HEADS,
                                         .dim = TOY_DIM,
                                         .format = p->m->opts.row_format,
                                         .act = SL_F32};
    call.gqa.attn = (sl_gqa_attn_params){.q = b->q,
                                         .out = b->o,
                                         .tokens = p->tokens,
                                         .heads = TOY_HEADS,
                                         .kv_heads = TOY_HEADS,
                                         .dim = TOY_DIM,
                                         .scale = 1,
                                         .format = p->m->opts.row_format,
                                         .act = SL_F32};
    SL_TRY(p->f->seam.attend(p->f->seam.ctx, &call, p->err));
    for (int32_t t = 0; t < p->tokens; t++) {
        int32_t pos = p->f->seqs->token_pos[t], sum = 0;
        int32_t n = pos + 1 < TOY_SINKS + TOY_RECENT ? pos + 1 : TOY_SINKS + TOY_RECENT;
        for (int32_t i = 0; i < ROW; i++)
            sum += (int32_t)lrintf(b->o[t * ROW + i] * (float)n) * (i + 1);
        b->a[t] = (b->a[t] * 7 + sum) % MOD;
    }
    return SL_OK;
}

typedef struct unit {
    int32_t sum, entry;
} unit;

/* A unit's segment with token `pos`, on the device or in the host pages. */
static unit *segment(const sl_pass *p, const sl_layer_plane *m, int32_t size, int32_t seq, int32_t pos,
                     bool host)
{
    const sl_seq_tables *s = p->f->seqs;
    int32_t in_page = size < SL_PAGE_TOKENS ? pos % SL_PAGE_TOKENS / size : 0;
    int64_t at = (int64_t)seq * s->ld + pos / SL_PAGE_TOKENS;
    return (unit *)(void *)(host ? m->host.base + s->host_pages[at] * m->host.page_stride +
                                       in_page * m->host.row_stride
                                 : m->device + s->index_pages[at] * m->device_stride +
                                       in_page * (int64_t)sizeof(unit));
}

/* Token pos is added to its unit; returns what the complete units say. */
static int32_t add_to_unit(const sl_pass *p, const sl_layer_plane *m, int32_t size, int32_t seq, int32_t pos,
                           int32_t value)
{
    unit now = *segment(p, m, size, seq, pos, false);
    int64_t read = 0;
    now.sum = value + (pos % size ? segment(p, m, size, seq, pos - 1, false)->sum : 0);
    if (pos % size == size - 1)
        now.entry = now.sum * 3 + 1;
    else if (pos % SL_PAGE_TOKENS == SL_PAGE_TOKENS - 1)
        now.entry = 0; /* the page is full, and the unit continues in the next one */
    *segment(p, m, size, seq, pos, false) = *segment(p, m, size, seq, pos, true) = now;
    for (int32_t u = 0; u < (pos + 1) / size; u++)
        read += (int64_t)segment(p, m, size, seq, (u + 1) * size - 1, false)->entry * (u + 1);
    return (int32_t)(read % MOD);
}

static uint32_t state_step(toy_state *s, int32_t a)
{
    for (int i = 0; i < 8; i++)
        s->s[i] =
            (s->s[i] * 1664525u + (uint32_t)a * (uint32_t)(i + 1) + 1013904223u) ^ (s->s[(i + 1) % 8] >> 3);
    s->table[s->s[3] % TOY_TABLE] ^= s->s[0];
    return s->s[0] % MOD + s->table[s->s[6] % TOY_TABLE] % 977;
}

/* The version of what token t changes (kernels/turns.h), as bytes after its first version; 0: none is kept. */
static int64_t version_of(const sl_pass *p, int32_t t)
{
    const sl_seq_tables *s = p->f->seqs;
    int32_t k = 1;
    while (t + k < p->tokens && s->token_seq[t + k] == s->token_seq[t])
        k++;
    return s->turns && k <= s->turns->kept ? k * s->turns->stride : 0;
}

static void keep_state(const sl_layer_memory *m, const sl_pass *p, int32_t t, size_t bytes)
{
    const int64_t version = version_of(p, t);
    uint8_t *state = m->state + p->f->seqs->token_seq[t] * m->state_stride;
    if (version)
        memcpy(state + version, state, bytes);
}

static void keep_unit(const sl_layer_memory *m, const sl_layer_plane *u, const sl_pass *p, int32_t t,
                      int32_t size)
{
    const int64_t version = version_of(p, t);
    const int32_t seq = p->f->seqs->token_seq[t];
    if (version)
        memcpy(u->open + seq * m->state_stride + version,
               segment(p, u, size, seq, p->f->seqs->token_pos[t], false), sizeof(unit));
}

/* The layers whose memory is the engine's alone, token by token. */
static sl_status step_memory(sl_pass *p)
{
    toy_buffers *b = p->ws->own;
    sl_layer_memory m;
    if (p->dry || p->c->layer_class[p->layer] == TOKENS)
        return SL_OK;
    SL_TRY(p->f->seam.memory(p->f->seam.ctx, p->layer, &m, p->err));
    for (int32_t t = 0; t < p->tokens; t++) {
        const int32_t seq = p->f->seqs->token_seq[t], pos = p->f->seqs->token_pos[t], a = b->a[t];
        if (seq < 0)
            continue;
        uint8_t *state = m.state + seq * m.state_stride;
        if (is(p, BLOCKS)) {
            keep_unit(&m, &m.planes[0], p, t, TOY_BLOCK);
            keep_unit(&m, &m.planes[1], p, t, TOY_POOL);
            b->a[t] = a * 11 + add_to_unit(p, &m.planes[0], TOY_BLOCK, seq, pos, block_value(a, pos));
            b->a[t] += 3 * add_to_unit(p, &m.planes[1], TOY_POOL, seq, pos, block_value(a, pos));
        } else if (is(p, STATE)) {
            keep_state(&m, p, t, sizeof(toy_state));
            b->a[t] = a * 13 + (int32_t)state_step((toy_state *)(void *)state, a);
        } else {
            keep_state(&m, p, t, TOY_RING * 4);
            int32_t *ring = (int32_t *)(void *)state, n = pos + 1 < TOY_RING ? pos + 1 : TOY_RING;
            ring[pos % TOY_RING] = ring_value(a, pos);
            for (int32_t age = 0; age < n; age++)
                b->a[t] += ring[(pos - age) % TOY_RING] * (age + 1);
        }
        b->a[t] %= MOD;
    }
    return SL_OK;
}

static sl_status step_result(sl_pass *p)
{
    const toy_buffers *b = p->ws->own;
    float *x = p->ws->x;
    if (p->dry || p->layer < p->c->n_layers - 1)
        return SL_OK;
    for (int32_t i = 0; i < p->tokens * TOY_VOCAB; i++)
        x[i] = i % TOY_VOCAB == b->a[i / TOY_VOCAB] % TOY_VOCAB ? 1 : 0;
    return SL_OK;
}

static const sl_layer_step steps[] = {{"ids", NULL, step_ids},
                                      {"tokens", NULL, step_tokens},
                                      {"memory", NULL, step_memory},
                                      {"result", NULL, step_result}};

const sl_family toy_family = {
    .model_type = "toy_layers",
    .architecture = "ToyLayersForCausalLM",
    .read_config = read_config,
    .cache_dims = cache_dims,
    .model_tensors = model_tensors,
    .n_model_tensors = SL_COUNT(model_tensors),
    .layer_tensors = NULL,
    .n_layer_tensors = 0,
    .workspace_size = sizeof(toy_buffers),
    .workspace = carve,
    .steps = steps,
    .n_steps = SL_COUNT(steps),
};

/* ---- the restatement ---- */

/* in[p]: the number with which token p comes into the layer. */
static int32_t restate_tokens(const int32_t *in, int32_t p)
{
    int32_t sum = 0;
    for (int32_t j = 0; j <= p; j++)
        for (int i = 0; i < TOY_HEADS * TOY_DIM && (j < TOY_SINKS || j > p - TOY_RECENT); i++)
            sum += token_value(in[j], j, i / TOY_DIM, i % TOY_DIM) * (i + 1);
    return (in[p] * 7 + sum) % MOD;
}

static int32_t restate_units(const int32_t *in, int32_t p, int32_t size)
{
    int64_t read = 0;
    for (int32_t u = 0; (u + 1) * size <= p + 1; u++) {
        int64_t sum = 0;
        for (int32_t j = u * size; j < (u + 1) * size; j++)
            sum += block_value(in[j], j);
        read += (sum * 3 + 1) * (u + 1);
    }
    return (int32_t)(read % MOD);
}

static int32_t restate_ring(const int32_t *in, int32_t p)
{
    int32_t a = in[p];
    for (int32_t j = p; j >= 0 && j > p - TOY_RING; j--)
        a += ring_value(in[j], j) * (p - j + 1);
    return a % MOD;
}

void toy_restate(int32_t *ids, int32_t n_prompt, int32_t n, int32_t *next)
{
    int32_t *in = calloc((size_t)(TOY_LAYERS + 1) * (size_t)n, sizeof *in);
    toy_state *states = calloc(TOY_LAYERS, sizeof *states);
    for (int32_t p = 0; p < n; p++) {
        in[p] = ids[p];
        for (int l = 0; l < TOY_LAYERS; l++) {
            const int32_t *of = in + l * n;
            int32_t *to = in + (l + 1) * n + p;
            if (kinds[l] == 't')
                *to = restate_tokens(of, p);
            else if (kinds[l] == 'b')
                *to =
                    (of[p] * 11 + restate_units(of, p, TOY_BLOCK) + 3 * restate_units(of, p, TOY_POOL)) % MOD;
            else if (kinds[l] == 's')
                *to = (of[p] * 13 + (int32_t)state_step(&states[l], of[p])) % MOD;
            else
                *to = restate_ring(of, p);
        }
        next[p] = in[TOY_LAYERS * n + p] % TOY_VOCAB;
        if (p + 1 >= n_prompt && p + 1 < n)
            ids[p + 1] = next[p];
    }
    free(states);
    free(in);
}
