/* See scratch.h. Parameters of the largest ops are made up here, and kernels/scratch.h is asked what they need. */
#include "engine/scratch.h"

#include "kernels/scratch.h"
#include "model/sizes.h"

typedef struct sum {
    const sl_gpu *g;
    const sl_model_config *c;
    const sl_scratch_load *l;
    size_t most;
} sum;

static void count(sum *s, size_t bytes)
{
    s->most = bytes > s->most ? bytes : s->most;
}

static void ask(sum *s, sl_op op, const void *params)
{
    count(s, sl_op_scratch(s->g, op, params));
}

/* ---- the model's ops ---- */

/* Outputs of tokens that are filled up to a multiple of 4 take more than those of a token more; layers of few outputs in float32 have
 * sums of their own for few tokens. */
static void linear(void *ctx, int64_t out, int64_t in, bool fp8)
{
    sum *s = ctx;
    const int32_t most = s->l->step_tokens, few = most < SL_LINEAR_NARROW_FEW ? most : SL_LINEAR_NARROW_FEW;
    sl_linear_params p = {.w = {.out = (int32_t)out, .in = (int32_t)in, .dtype = SL_F32},
                          .ld_x = (int32_t)in,
                          .ld_out = (int32_t)out,
                          .act = s->l->act,
                          .out_dtype = s->l->act};
    for (p.tokens = few; p.tokens > 0 && p.tokens > few - 2; p.tokens--)
        ask(s, SL_OP_LINEAR, &p);
    p.fp8_acts = s->c->fp8_acts, p.w.dtype = SL_F8_E4M3;
    for (p.tokens = most; fp8 && p.tokens > 0 && p.tokens > most - 2; p.tokens--)
        ask(s, SL_OP_LINEAR, &p);
}

/* kv_b in the form in which it is loaded. */
static void latent(sum *s)
{
    const sl_model_config *c = s->c;
    const sl_v_up_params v = {
        .kv_b = {.out = c->attn.n_heads * (c->attn.qk_nope_head_dim + c->attn.v_head_dim),
                 .in = c->attn.kv_lora_rank,
                 .dtype = s->l->act == SL_BF16 ? SL_BF16 : SL_F8_E4M3},
        .tokens = s->l->step_tokens,
        .heads = c->attn.n_heads,
        .nope = c->attn.qk_nope_head_dim,
        .v = c->attn.v_head_dim,
        .lora = c->attn.kv_lora_rank,
        .act = s->l->act};
    const sl_q_absorb_params q = {.kv_b = v.kv_b,
                                  .tokens = v.tokens,
                                  .heads = v.heads,
                                  .nope = v.nope,
                                  .rope = c->attn.qk_rope_head_dim,
                                  .v = v.v,
                                  .lora = v.lora,
                                  .act = v.act};
    ask(s, SL_OP_V_UP, &v);
    ask(s, SL_OP_Q_ABSORB, &q);
}

/* Experts of one form. Which path has more than the other depends on their tiles, so the larger one counts whatever the rows. */
static void experts(sum *s, const sl_weight *w)
{
    const sl_model_config *c = s->c;
    const sl_scratch_load *l = s->l;
    const int32_t n = l->ranks > 1 ? l->experts : c->moe.n_routed, top_k = c->moe.per_token;
    const int64_t hidden = c->hidden_size, inter = c->moe.intermediate_size,
                  rows = (int64_t)l->ranks * l->step_tokens;
    const sl_moe_params p = {.gate = w,
                             .up = w,
                             .down = w,
                             .tokens = l->step_tokens,
                             .hidden = c->hidden_size,
                             .inter = c->moe.intermediate_size,
                             .experts = n,
                             .top_k = top_k,
                             .fp8_acts = true,
                             .act = l->act};
    const bool plain = sl_path_moe(s->g, &p, p.tokens, true) == SL_MOE_PLAIN;
    size_t bytes = 0;
    for (int size = 1; !plain && size <= 2; size++) {
        const size_t of = sl_moe_grouped_scratch(rows, top_k, n, hidden, inter, size);
        bytes = of > bytes ? of : bytes;
    }
    if (l->ranks > 1)
        bytes +=
            sl_ep_lists_bytes(rows * top_k) + (plain ? sl_ep_floats_bytes(rows * top_k, hidden, inter) : 0);
    count(s, bytes);
}

static void routed(sum *s)
{
    const sl_scratch_load *l = s->l;
    const sl_weight_form *half = sl_model_half_form(s->c);
    const sl_weight bf16 = {.dtype = SL_BF16}, f8 = {.dtype = SL_F8_E4M3};
    if (s->c->moe.n_routed < 1)
        return;
    experts(s, &bf16);
    experts(s, &f8);
    for (int as_given = 0; half && as_given < 2; as_given++) {
        const sl_weight w = {.dtype = half->dtype,
                             .scale_type = half->scale_type,
                             .group = half->group,
                             .acts_as_given = as_given};
        experts(s, &w);
    }
    if (l->ranks < 2)
        return;
    count(s, sl_ep_send_scratch(l->step_tokens, l->ranks));
    count(s, sl_ep_send_scratch(0, l->ranks));
    count(s, sl_ep_sum_scratch(l->step_tokens, s->c->moe.per_token));
}

/* ---- attention ---- */

static void by_head(sum *s, const sl_cache_dims *d)
{
    enum { EDGE = SL_PAGE_TOKENS }; /* a list ends with the block of its token */
    const sl_seq_tables one = {.n_seqs = 1};
    sl_gqa_attn_params p = {.heads = d->query_heads,
                            .kv_heads = d->kv_heads,
                            .dim = d->head_dim,
                            .k = s->l->context + EDGE,
                            .format = d->rows->format,
                            .act = s->l->act};
    /* Where each multiprocessor has eight lists or more, they are never cut. */
    const int32_t cut = 8 * s->g->sms / d->kv_heads + 1,
                  most = s->l->step_tokens < cut ? s->l->step_tokens : cut;
    for (p.tokens = 1; p.tokens <= most; p.tokens++)
        ask(s, SL_OP_GQA_ATTN, &p);
    p.seqs = &one, p.tokens = s->l->step_tokens;
    ask(s, SL_OP_GQA_ATTN, &p);
}

/* Windows and compressed entries, of the layers that have them. */
static void rings(sum *s)
{
    const sl_ring_attn_params p = {.tokens = s->l->step_tokens,
                                   .dim = s->c->attn.v_head_dim,
                                   .act = s->l->act,
                                   .entries = {.dtype = s->l->act}};
    if (s->c->entries.topk > 0)
        ask(s, SL_OP_RING_ATTN, &p);
}

static void attention(sum *s, const sl_cache_dims *d)
{
    const sl_sparse_attn_params latent_rows = {
        .lora = d->latent, .rope = d->rope, .format = d->rows->format, .tokens = 1};
    if (d->kv_heads < 1)
        ask(s, SL_OP_SPARSE_ATTN, &latent_rows);
    else if (d->query_heads > 0)
        by_head(s, d);
}

/* ---- selection ---- */

/* Scores of as many floats as algorithms keep, or of the lists of one token, without a hint. */
static void lists(sum *s, const sl_algo_dims *d)
{
    const int32_t per = d->cache.kv_heads > 1 ? d->cache.kv_heads : 1, ld = s->l->context;
    const int64_t fit = d->workspace_bytes / 4 / SL_TOPK_ROW_MAX + 1;
    if (ld <= SL_TOPK_ROW_MAX)
        return;
    count(s, sl_topk_hint_bytes(per, ld));
    count(s, sl_topk_hint_bytes((int32_t)fit, SL_TOPK_ROW_MAX + 32));
}

/* What any op of selection but k-means, its codes and its lists can ask for with these dimensions. */
static void selection(sum *s, const sl_algo_dims *d)
{
    const sl_cache_dims *c = &d->cache;
    const int32_t tokens = s->l->step_tokens, ld = (s->l->context + 3) / 4 * 4, heads = c->query_heads,
                  pages = ld / SL_PAGE_TOKENS + 1;
    if (c->kv_heads < 1 || heads < c->kv_heads)
        return;
    const size_t digits = sl_digits_scratch(heads, c->kv_heads, c->head_dim, 1, ld, false);
    const sl_prompt_space prompt = sl_prompt_space_of(heads, c->head_dim, pages);
    count(s, sl_slices_most(sl_group_scratch(SL_GROUP_UNION, heads, ld, digits), tokens));
    count(s, sl_votes_sums(c->kv_heads, ld) + sl_slices_most(sl_raw_scratch(heads, ld), tokens));
    count(s, sl_slices_most(sl_prompt_plain_scratch(heads, pages), tokens / SL_PAGE_TOKENS + 1));
    count(s, sl_slices_most(prompt.q + prompt.sums + prompt.tops, tokens / SL_PAGE_TOKENS + 1));
}

static void algorithm_ops(sum *s, const sl_cache_dims *cache, const sl_algo_desc *a)
{
    enum { WORKSPACE = 64 << 20 }; /* of scores, unless an engine says otherwise */
    const sl_algo_dims d = {.n_layers = s->c->n_layers,
                            .max_step_tokens = s->l->step_tokens,
                            .max_context = s->l->context,
                            .cache = *cache,
                            .workspace_bytes = WORKSPACE,
                            .max_seqs = s->l->seqs};
    if (a->reads_all && !a->prompt_lists)
        return;
    lists(s, &d);
    selection(s, &d);
    if (a->scratch)
        count(s, a->scratch(&d));
}

size_t sl_engine_scratch_bytes(const sl_gpu *g, const sl_model_config *c, const sl_cache_dims *cache,
                               const sl_algo_desc *algorithm, const sl_scratch_load *l)
{
    sum s = {.g = g, .c = c, .l = l};
    sl_model_each_linear(c, linear, &s);
    if (c->attn.kv_lora_rank > 0)
        latent(&s);
    routed(&s);
    attention(&s, cache);
    rings(&s);
    if (algorithm)
        algorithm_ops(&s, cache, algorithm);
    return s.most;
}
