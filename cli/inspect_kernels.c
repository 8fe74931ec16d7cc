/*
 * See inspect_kernels.h. Weights of one shape and type are one line, named after the first of them. The answer comes from
 * the functions by which the backend itself chooses (kernels/paths.h); no GPU is needed.
 */
#include "cli/inspect_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/paths.h"

enum { FEW = 1, MANY = 4096, H200_SMS = 132, H200_SHARED = 227 << 10 };

/* Weights that take the same path. */
typedef struct kind {
    sl_op op;
    sl_dtype dtype;
    int32_t out, in;
    int n;
    const char *first;
} kind;

typedef struct kinds {
    kind *v;
    int n;
} kinds;

static bool dtype_of(const sl_st_tensor *t, sl_dtype *out)
{
    switch (t->dtype) {
    case SL_ST_F32:
        *out = SL_F32;
        return true;
    case SL_ST_BF16:
        *out = SL_BF16;
        return true;
    case SL_ST_F16:
        *out = SL_F16;
        return true;
    case SL_ST_F8_E4M3:
        *out = SL_F8_E4M3;
        return true;
    case SL_ST_I32:
        *out = SL_I4;
        return true;
    case SL_ST_U8:
    case SL_ST_I8:
        *out = SL_F4_E2M1;
        return true;
    default:
        return false;
    }
}

/* The op that reads this tensor as a weight of [out][in]; false: none does. */
static bool op_of(const sl_st_tensor *t, sl_op *out)
{
    const size_t n = strlen(t->name);

    const bool packed = n > 14 && strcmp(t->name + n - 14, ".weight_packed") == 0;
    if (t->rank != 2 || n < 7 || (!packed && strcmp(t->name + n - 7, ".weight") != 0) ||
        strstr(t->name, "embed_tokens"))
        return false;
    *out = strstr(t->name, ".experts.")     ? SL_OP_MOE
           : strstr(t->name, ".kv_b_proj.") ? SL_OP_Q_ABSORB
                                            : SL_OP_LINEAR;
    return true;
}

static sl_status add(kinds *k, const sl_st_tensor *t, sl_err *err)
{
    kind one = {.n = 1, .first = t->name};

    if (!op_of(t, &one.op) || !dtype_of(t, &one.dtype))
        return SL_OK;
    one.out = (int32_t)t->shape[0], one.in = (int32_t)t->shape[1];
    one.in *= one.dtype == SL_I4 ? 8 : one.dtype == SL_F4_E2M1 ? 2 : 1; /* of a word or byte of the file */
    for (int i = 0; i < k->n; i++)
        if (k->v[i].op == one.op && k->v[i].dtype == one.dtype && k->v[i].out == one.out &&
            k->v[i].in == one.in) {
            k->v[i].n++;
            return SL_OK;
        }
    kind *v = realloc(k->v, sizeof *v * (size_t)(k->n + 1));
    if (!v)
        return sl_fail(err, SL_ERR_NO_MEMORY, "no memory for a list of %d weights", k->n + 1);
    k->v = v;
    k->v[k->n++] = one;
    return SL_OK;
}

/* As the loader describes it (model/weights_linear.c); of several forms of 4 bits the first. */
static sl_weight weight_of(const kind *k, const sl_model_config *c)
{
    sl_weight w = {.out = k->out, .in = k->in, .dtype = k->dtype};

    for (int32_t i = c->quant.n - 1; i >= 0; i--)
        if (c->quant.forms[i].dtype == k->dtype && k->dtype != SL_F8_E4M3) {
            w.scale_type = c->quant.forms[i].scale_type;
            w.group = c->quant.forms[i].group ? c->quant.forms[i].group : (k->in + 127) / 128 * 128;
            w.acts_as_given = c->quant.half_acts != 1;
        }
    return w;
}

static const sl_path *path_of(const sl_gpu *g, const kind *k, const sl_model_config *c, sl_dtype act,
                              int32_t tokens)
{
    const bool f8 = c->fp8_acts;
    const sl_weight w = weight_of(k, c);

    if (k->op == SL_OP_MOE) {
        const bool down = k->out == c->hidden_size;
        const sl_moe_params p = {.gate = &w,
                                 .up = &w,
                                 .down = &w,
                                 .tokens = tokens,
                                 .hidden = c->hidden_size,
                                 .inter = down ? k->in : k->out,
                                 .experts = c->moe.n_routed,
                                 .top_k = c->moe.per_token,
                                 .fp8_acts = f8,
                                 .act = act};
        return sl_op_path(g, k->op, &p);
    }
    if (k->op == SL_OP_Q_ABSORB) {
        const sl_q_absorb_params p = {.kv_b = w,
                                      .tokens = tokens,
                                      .heads = c->attn.n_heads,
                                      .nope = c->attn.qk_nope_head_dim,
                                      .rope = c->attn.qk_rope_head_dim,
                                      .v = c->attn.v_head_dim,
                                      .lora = c->attn.kv_lora_rank,
                                      .act = act};
        return sl_op_path(g, k->op, &p);
    }
    const sl_linear_params p = {.w = w,
                                .tokens = tokens,
                                .ld_x = k->in,
                                .ld_out = k->out,
                                .fp8_acts = f8,
                                .act = act,
                                .out_dtype = act};
    return sl_op_path(g, k->op, &p);
}

static void print_paths(const char *op, const char *shape, const sl_path *few, const sl_path *many,
                        const char *what)
{
    printf("%-13s %-24s %-22s %-22s %s%s\n", op, shape, few->name, many->name,
           few->plain || many->plain ? "(slow) " : "", what);
}

static void print_attention(const sl_gpu *g, const sl_local_checkpoint *m)
{
    const sl_model_config *c = &m->cfg;
    sl_seq_tables seqs = {.n_tokens = MANY, .n_seqs = 1};
    char shape[64];

    if (c->attn.kv_lora_rank > 0) {
        const sl_sparse_attn_params p = {.tokens = 1,
                                         .heads = c->attn.n_heads,
                                         .lora = c->attn.kv_lora_rank,
                                         .rope = c->attn.qk_rope_head_dim,
                                         .format = m->row_format};
        const sl_path *path = sl_op_path(g, SL_OP_SPARSE_ATTN, &p);
        snprintf(shape, sizeof shape, "%d + %d %s", p.lora, p.rope, sl_row_format_name(m->row_format));
        print_paths("sparse_attn", shape, path, path, "");
    } else {
        sl_gqa_attn_params p = {.tokens = 1,
                                .heads = c->attn.n_heads,
                                .kv_heads = c->attn.n_kv_heads,
                                .dim = c->attn.v_head_dim,
                                .format = m->row_format,
                                .act = sl_model_auto_act(m->stored)};
        const sl_path *few = sl_op_path(g, SL_OP_GQA_ATTN, &p);
        p.tokens = MANY, p.seqs = &seqs;
        snprintf(shape, sizeof shape, "%d / %d heads of %d %s", p.heads, p.kv_heads, p.dim,
                 sl_row_format_name(m->row_format));
        print_paths("gqa_attn", shape, few, sl_op_path(g, SL_OP_GQA_ATTN, &p), "");
    }
    if (c->index.head_dim > 0) {
        const sl_index_scores_params p = {.token_count = 1,
                                          .heads = c->index.n_heads,
                                          .dim = c->index.head_dim,
                                          .ld_scores = c->max_context,
                                          .format = m->index_format};
        const sl_path *path = sl_op_path(g, SL_OP_INDEX_SCORES, &p);
        snprintf(shape, sizeof shape, "%d heads of %d %s", p.heads, p.dim,
                 sl_index_format_name(m->index_format));
        print_paths("index_scores", shape, path, path, "");
    }
}

sl_status sl_cli_inspect_kernels(const sl_local_checkpoint *m, sl_checkpoint *ck, sl_err *err)
{
    static const char *const types[] = {"f32", "bf16", "f16", "fp8", "", "", "int4", "fp4"};
    const sl_gpu g = sl_gpu_of(90, H200_SMS, H200_SHARED);
    const sl_dtype act = sl_model_auto_act(m->stored);
    kinds k = {0};
    sl_status st = SL_OK;

    for (size_t i = 0; ck && st == SL_OK && i < sl_checkpoint_count(ck); i++)
        st = add(&k, sl_checkpoint_at(ck, i)->t, err);
    if (st == SL_OK) {
        printf("\n%-13s %-24s %-22s %-22s %s\n", "op", "shape", "one token", "4,096 tokens", "weights");
        print_attention(&g, m);
    }
    for (int i = 0; st == SL_OK && i < k.n; i++) {
        char shape[64], what[192];
        snprintf(shape, sizeof shape, "%d x %d %s", k.v[i].out, k.v[i].in, types[k.v[i].dtype]);
        snprintf(what, sizeof what, "%d: %.120s%s", k.v[i].n, k.v[i].first, k.v[i].n > 1 ? ", ..." : "");
        print_paths(sl_op_name(k.v[i].op), shape, path_of(&g, &k.v[i], &m->cfg, act, FEW),
                    path_of(&g, &k.v[i], &m->cfg, act, MANY), what);
    }
    free(k.v);
    return st;
}
