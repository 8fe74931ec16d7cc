/*
 * What every compute op requires of its parameters, as far as the host can see: the common checks, and the ops of
 * the model's dense part. The ops on the cache are in kernels/check_cache.c. Backends check only their own limits.
 */
#include "kernels/check.h"

#include <math.h>

#include "kernels/formats.h"
#include "kernels/synth.h"

void sl_chk_need(sl_chk *c, bool ok, const char *field, const char *why)
{
    if (!ok && c->st == SL_OK)
        c->st = sl_fail(c->err, SL_ERR_INVALID, "%s: %s %s", c->op, field, why);
}

void sl_chk_can(sl_chk *c, bool ok, const char *field, const char *why)
{
    if (!ok && c->st == SL_OK)
        c->st = sl_fail(c->err, SL_ERR_UNSUPPORTED, "%s: %s %s", c->op, field, why);
}

/* align: a power of two. Checks run before every op, so they do not divide. */
static bool aligned(const void *ptr, size_t align)
{
    return ((uintptr_t)ptr & (align - 1)) == 0;
}

void sl_chk_ptr(sl_chk *c, const char *field, const void *ptr, size_t align)
{
    if (!c->pointers || (ptr && aligned(ptr, align)))
        return;
    sl_chk_need(c, ptr != NULL, field, "is NULL");
    sl_chk_need(c, aligned(ptr, align), field, "is not aligned to its elements");
}

void sl_chk_rows(sl_chk *c, const char *field, const void *ptr, size_t size, int64_t bytes)
{
    sl_chk_ptr(c, field, ptr, size ? size : 1);
    if (c->pointers && bytes % SL_ROW_ALIGN == 0 && !aligned(ptr, c->align))
        sl_chk_need(c, false, field, "is not aligned to 16 bytes, but its rows are multiples of 16");
}

void sl_chk_pos(sl_chk *c, const char *field, int64_t value)
{
    sl_chk_need(c, value >= 1, field, "must be at least 1");
}

void sl_chk_ld(sl_chk *c, const char *field, int64_t value, int64_t min)
{
    sl_chk_need(c, value >= min, field, "is smaller than the row it strides over");
}

void sl_chk_count(sl_chk *c, const char *field, int64_t value)
{
    sl_chk_need(c, value >= 0, field, "is negative");
}

void sl_chk_size(sl_chk *c, const char *field, int64_t a, int64_t b)
{
    int64_t n;

    sl_chk_need(c, !__builtin_mul_overflow(a, b, &n) && !__builtin_mul_overflow(n, (int64_t)4, &n), field,
                "overflows as an array size");
}

void sl_chk_act(sl_chk *c, const char *field, sl_dtype d)
{
    sl_chk_can(c, d == SL_F32 || d == SL_BF16, field, "must be f32 or bf16");
}

void sl_chk_values(sl_chk *c, const char *field, const void *ptr, sl_dtype d)
{
    sl_chk_ptr(c, field, ptr, sl_dtype_size(d));
}

void sl_chk_float(sl_chk *c, const char *field, sl_dtype d)
{
    sl_chk_can(c, d == SL_F32 || d == SL_BF16 || d == SL_F16, field, "must be f32, bf16 or f16");
}

static void chk_groups(sl_chk *c, const char *field, const sl_weight *w)
{
    sl_chk_need(c, w->scale_type <= SL_SCALE_E4M3, field, "has an unknown type of multipliers");
    sl_chk_can(c, w->dtype == SL_I4 || w->dtype == SL_F4_E2M1 || w->dtype == SL_F8_E4M3, field,
               "has multipliers of groups, but no values of 8 or 4 bits");
    sl_chk_can(c, sl_weight_group_ok(w->group), field,
               "has groups that are not 16, 32, 64 or a multiple of 128");
    if (c->pointers)
        sl_chk_need(c, w->multiplier && (uintptr_t)w->multiplier % sl_scale_size(w->scale_type) == 0, field,
                    "has no (aligned) multipliers");
}

void sl_chk_weight(sl_chk *c, const char *field, const sl_weight *w, int64_t out, int64_t in)
{
    const bool half = w->dtype == SL_I4 || w->dtype == SL_F4_E2M1, groups = w->scale_type != SL_SCALE_BLOCKS;

    sl_chk_can(
        c, w->dtype == SL_F32 || w->dtype == SL_BF16 || w->dtype == SL_F16 || w->dtype == SL_F8_E4M3 || half,
        field, "has a dtype that is not a weight's");
    sl_chk_need(c, w->out >= 1 && w->in >= 1, field, "has no rows or columns");
    sl_chk_need(c, (out < 0 || w->out == out) && (in < 0 || w->in == in), field, "has another shape");
    sl_chk_size(c, field, w->out, w->in);
    sl_chk_rows(c, field, w->data, sl_dtype_size(w->dtype), sl_dtype_bytes(w->dtype, w->in));
    sl_chk_need(c, !half || groups, field, "has half-byte values, but no multipliers of groups");
    sl_chk_need(c, !half || w->in % 2 == 0, field, "has half-byte values and an odd number of columns");
    if (groups)
        chk_groups(c, field, w);
    else if (c->pointers && w->dtype == SL_F8_E4M3)
        sl_chk_need(c, w->scale != NULL && (uintptr_t)w->scale % 4 == 0, field,
                    "is f8 but has no (aligned) scales");
}

void sl_chk_rope(sl_chk *c, int32_t rope, int32_t dim, const float *cos_sin)
{
    sl_chk_need(c, rope >= 0 && rope <= dim && rope % 2 == 0, "rope", "must be even and within the head");
    if (rope > 0)
        sl_chk_ptr(c, "cos_sin", cos_sin, 8);
}

void sl_chk_eps(sl_chk *c, float eps)
{
    sl_chk_need(c, eps > 0 && eps < 1, "eps", "must be within (0, 1)");
}

/* ---- the dense ops ---- */

void sl_chk_embed(sl_chk *c, const void *params)
{
    const sl_embed_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_pos(c, "vocab", p->vocab);
    sl_chk_float(c, "table_dtype", p->table_dtype);
    sl_chk_act(c, "act", p->act);
    sl_chk_ptr(c, "ids", p->ids, 4);
    sl_chk_values(c, "table", p->table, p->table_dtype);
    sl_chk_values(c, "out", p->out, p->act);
}

void sl_chk_rmsnorm(sl_chk *c, const void *params)
{
    const sl_rmsnorm_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_ld(c, "ld_x", p->ld_x, p->dim);
    sl_chk_eps(c, p->eps);
    sl_chk_act(c, "act", p->act);
    sl_chk_float(c, "weight_dtype", p->weight_dtype);
    sl_chk_need(c, p->groups >= 0 && p->groups <= 1 << 10 && (!p->groups || !p->add), "groups",
                "is negative or above 1024, or there is an addition");
    const size_t size = sl_dtype_size(p->act), of_weight = sl_dtype_size(p->weight_dtype);
    const int64_t row = p->dim * (int64_t)size;
    sl_chk_rows(c, "x", p->x, size, p->ld_x * (int64_t)size);
    if (p->add)
        sl_chk_rows(c, "add", p->add, size, row);
    if (p->out) {
        sl_chk_rows(c, "out", p->out, size, row);
        sl_chk_rows(c, "weight", p->weight, of_weight, p->dim * (int64_t)of_weight);
    }
    if (c->pointers)
        sl_chk_need(c, p->out || p->add, "out", "and add are both NULL");
}

static void chk_one_linear(sl_chk *c, const sl_linear_params *p)
{
    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_weight(c, "w", &p->w, -1, -1);
    sl_chk_ld(c, "ld_x", p->ld_x, p->w.in);
    sl_chk_ld(c, "ld_out", p->ld_out, p->w.out);
    sl_chk_act(c, "act", p->act);
    sl_chk_act(c, "out_dtype", p->out_dtype);
    sl_chk_size(c, "x", p->tokens, p->ld_x);
    sl_chk_size(c, "out", p->tokens, p->ld_out);
    const size_t in = sl_dtype_size(p->act), out = sl_dtype_size(p->out_dtype);
    sl_chk_rows(c, "x", p->x, in, p->ld_x * (int64_t)in);
    sl_chk_rows(c, "out", p->out, out, p->ld_out * (int64_t)out);
}

void sl_chk_linear(sl_chk *c, const void *params)
{
    const sl_linear_params *first = params, *p = first;

    for (int n = 1; p && c->st == SL_OK; p = p->next, n++) {
        sl_chk_need(c, n <= SL_LINEAR_CHAIN, "next", "makes the chain too long");
        sl_chk_need(c,
                    p->x == first->x && p->tokens == first->tokens && p->ld_x == first->ld_x &&
                        p->act == first->act,
                    "next", "has another x");
        chk_one_linear(c, p);
    }
}

static void chk_heads(sl_chk *c, int32_t tokens, int32_t heads, int64_t width)
{
    sl_chk_count(c, "tokens", tokens);
    sl_chk_pos(c, "heads", heads);
    sl_chk_size(c, "heads", heads, width);
    if (c->st == SL_OK)
        sl_chk_size(c, "tokens", tokens, heads * width);
}

void sl_chk_q_absorb(sl_chk *c, const void *params)
{
    const sl_q_absorb_params *p = params;

    sl_chk_pos(c, "nope", p->nope);
    sl_chk_pos(c, "lora", p->lora);
    sl_chk_count(c, "v", p->v);
    sl_chk_need(c, p->rope >= 0 && p->rope % 2 == 0, "rope", "must be even and not negative");
    chk_heads(c, p->tokens, p->heads, (int64_t)p->lora + p->rope + p->nope);
    sl_chk_weight(c, "kv_b", &p->kv_b, (int64_t)p->heads * ((int64_t)p->nope + p->v), p->lora);
    sl_chk_act(c, "act", p->act);
    const size_t size = sl_dtype_size(p->act);
    sl_chk_rows(c, "q", p->q, size, (p->nope + (int64_t)p->rope) * (int64_t)size);
    sl_chk_rows(c, "ql", p->ql, 4, 4 * (p->lora + (int64_t)p->rope));
    if (p->rope) {
        sl_chk_ptr(c, "pos", p->pos, 4);
        sl_chk_ptr(c, "cos_sin", p->cos_sin, 8);
    }
}

void sl_chk_v_up(sl_chk *c, const void *params)
{
    const sl_v_up_params *p = params;

    sl_chk_pos(c, "v", p->v);
    sl_chk_pos(c, "lora", p->lora);
    sl_chk_count(c, "nope", p->nope);
    chk_heads(c, p->tokens, p->heads, (int64_t)p->lora + p->v);
    sl_chk_weight(c, "kv_b", &p->kv_b, (int64_t)p->heads * ((int64_t)p->nope + p->v), p->lora);
    sl_chk_act(c, "act", p->act);
    sl_chk_rows(c, "o", p->o, 4, 4 * (int64_t)p->lora);
    sl_chk_rows(c, "out", p->out, sl_dtype_size(p->act), p->v * (int64_t)sl_dtype_size(p->act));
}

void sl_chk_silu_mul(sl_chk *c, const void *params)
{
    const sl_silu_mul_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_ld(c, "ld_in", p->ld_in, p->dim);
    sl_chk_ld(c, "ld_out", p->ld_out, p->dim);
    sl_chk_act(c, "act", p->act);
    sl_chk_values(c, "gate", p->gate, p->act);
    sl_chk_values(c, "up", p->up, p->act);
    sl_chk_values(c, "out", p->out, p->act);
    sl_chk_glu(c, &p->glu);
}

void sl_chk_glu(sl_chk *c, const sl_glu *glu)
{
    sl_chk_need(c, glu->limit >= 0 && glu->alpha >= 0 && isfinite(glu->offset), "glu",
                "has a negative limit or alpha, or no number");
}

void sl_chk_moe_route(sl_chk *c, const void *params)
{
    const sl_moe_route_params *p = params;
    int32_t groups = p->groups > 1 ? p->groups : 1;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "experts", p->experts);
    sl_chk_count(c, "groups", p->groups);
    sl_chk_need(c, (unsigned)p->score <= SL_ROUTE_SQRT_SOFTPLUS, "score", "is unknown");
    sl_chk_need(c, p->experts % groups == 0, "groups", "does not divide experts");
    sl_chk_need(c, groups == 1 || (p->top_groups >= 1 && p->top_groups <= groups), "top_groups",
                "must be within 1..groups");
    sl_chk_need(c,
                p->top_k >= 1 && p->top_k <= (groups > 1 ? p->experts / groups * p->top_groups : p->experts),
                "top_k", "must be within 1..experts that are left");
    sl_chk_ptr(c, "logits", p->logits, 4);
    sl_chk_ptr(c, "experts_out", p->experts_out, 4);
    sl_chk_ptr(c, "weights_out", p->weights_out, 4);
    if (p->vocab == 0)
        return;
    sl_chk_pos(c, "vocab", p->vocab);
    sl_chk_need(c, groups == 1, "groups", "are not possible with a table");
    sl_chk_ptr(c, "table", p->table, 4);
    sl_chk_ptr(c, "ids", p->ids, 4);
}

void sl_chk_experts(sl_chk *c, const sl_weight *gate, const sl_weight *up, const sl_weight *down,
                    int32_t experts, int32_t inter, int32_t hidden)
{
    if (c->pointers)
        sl_chk_need(c, gate && up && down, "gate", ", up or down is NULL");
    if (!gate || !up || !down)
        return;
    for (int32_t e = 0; e < experts && c->st == SL_OK; e++) {
        sl_chk_weight(c, "gate", &gate[e], inter, hidden);
        sl_chk_weight(c, "up", &up[e], inter, hidden);
        sl_chk_weight(c, "down", &down[e], hidden, inter);
        sl_chk_can(c,
                   sl_weight_same_form(&gate[e], &gate[0]) && sl_weight_same_form(&up[e], &up[0]) &&
                       sl_weight_same_form(&down[e], &down[0]),
                   "gate", ", up or down has another dtype for some experts");
    }
}

void sl_chk_moe(sl_chk *c, const void *params)
{
    const sl_moe_params *p = params;
    size_t need;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "hidden", p->hidden);
    sl_chk_pos(c, "inter", p->inter);
    sl_chk_pos(c, "experts", p->experts);
    sl_chk_need(c, p->top_k >= 1 && p->top_k <= p->experts, "top_k", "must be within 1..experts");
    sl_chk_act(c, "act", p->act);
    sl_chk_glu(c, &p->glu);
    if (c->st != SL_OK)
        return;
    need = sl_moe_workspace_bytes(p->tokens, p->hidden, p->inter, p->experts, p->top_k);
    sl_chk_need(c, p->tokens == 0 || need != 0, "tokens", "needs a workspace that overflows");
    if (c->pointers)
        sl_chk_need(c, p->workspace_bytes >= need, "workspace_bytes",
                    "is smaller than sl_moe_workspace_bytes()");
    const size_t size = sl_dtype_size(p->act);
    sl_chk_rows(c, "x", p->x, size, p->hidden * (int64_t)size);
    sl_chk_ptr(c, "expert_ids", p->expert_ids, 4);
    sl_chk_ptr(c, "weights", p->weights, 4);
    sl_chk_rows(c, "out", p->out, size, p->hidden * (int64_t)size);
    sl_chk_ptr(c, "workspace", p->workspace, 16);
    sl_chk_experts(c, p->gate, p->up, p->down, p->experts, p->inter, p->hidden);
}

void sl_chk_add(sl_chk *c, const void *params)
{
    const sl_add_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_act(c, "act", p->act);
    sl_chk_values(c, "x", p->x, p->act);
    sl_chk_values(c, "y", p->y, p->act);
}

void sl_chk_pick(sl_chk *c, const void *params)
{
    const sl_pick_params *p = params;

    sl_chk_count(c, "n", p->n);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_act(c, "act", p->act);
    sl_chk_values(c, "x", p->x, p->act);
    sl_chk_ptr(c, "rows", p->rows, 4);
    sl_chk_values(c, "out", p->out, p->act);
}

void sl_chk_random(sl_chk *c, const void *params)
{
    const sl_random_params *p = params;
    bool whole = p->mean == (float)(int32_t)p->mean && p->spread >= 1 && p->spread <= 0x1p24f;

    sl_chk_count(c, "rows", p->rows);
    sl_chk_pos(c, "cols", p->cols);
    sl_chk_need(c, p->dtype == SL_F32 || p->dtype == SL_BF16 || p->dtype == SL_F8_E4M3 || p->dtype == SL_I32,
                "dtype", "must be f32, bf16, e4m3 or i32");
    if (c->st == SL_OK)
        sl_chk_need(c, p->dtype != SL_I32 || whole, "spread", "and mean must be whole numbers for i32");
    sl_chk_ptr(c, "out", p->out, p->dtype == SL_I32 ? 4 : sl_dtype_size(p->dtype));
}

void sl_chk_draw(sl_chk *c, const void *params)
{
    const sl_draw_params *p = params;

    sl_chk_seqs(c, p->seqs);
    sl_chk_pos(c, "k", p->k);
    sl_chk_ld(c, "ld_ids", p->ld_ids, p->k);
    sl_chk_ld(c, "span", p->span, p->k);
    sl_chk_need(c, p->lists >= 0, "lists", "is negative");
    sl_chk_need(c, (uintptr_t)p->keep % 4 == 0, "keep", "is not aligned to its elements");
    sl_chk_ptr(c, "ids", p->ids, 4);
}
