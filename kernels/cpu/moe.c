/*
 * SL_OP_MOE: tokens are grouped by expert; each expert is one gate, up and down product over its tokens. Experts
 * run in ascending order and add to a float32 sum per token, so every token's sum has the same order whatever other
 * tokens are in the batch.
 */
#include "kernels/cpu/cpu.h"

#include <string.h>

#include "kernels/formats.h"

/* Everything lives in the caller's workspace; see carve(). */
typedef struct bufs {
    float *x, *g, *u, *h, *d; /* of one expert, at most T rows: input, gate, up, product, result */
    float *sum;               /* [T][hidden] */
    float *scale;
    int32_t *slots;  /* [T * top_k] choices sorted by expert, then token */
    int32_t *starts; /* [experts + 1] */
} bufs;

static void carve(const sl_moe_params *p, bufs *b)
{
    int64_t T = p->tokens;
    int32_t widest = p->hidden > p->inter ? p->hidden : p->inter;
    float *f = p->workspace;

    b->x = f;
    b->d = b->x + T * p->hidden;
    b->g = b->d + T * p->hidden;
    b->u = b->g + T * p->inter;
    b->h = b->u + T * p->inter;
    b->scale = b->h + T * p->inter;
    b->slots = (int32_t *)(void *)(b->scale + T * sl_fp8_groups(widest));
    b->starts = b->slots + T * p->top_k;
}

/* Counting sort of the choices by expert; false when an id is out of range. */
static bool sort_by_expert(const sl_moe_params *p, bufs *b)
{
    int64_t n = (int64_t)p->tokens * p->top_k;

    memset(b->starts, 0, sizeof(int32_t) * ((size_t)p->experts + 1));
    for (int64_t i = 0; i < n; i++) {
        int32_t e = p->expert_ids[i];

        if (e < -1 || e >= p->experts)
            return false;
        if (e >= 0)
            b->starts[e + 1]++;
    }
    for (int32_t e = 0; e < p->experts; e++)
        b->starts[e + 1] += b->starts[e];
    for (int64_t i = 0; i < n; i++)
        if (p->expert_ids[i] >= 0)
            b->slots[b->starts[p->expert_ids[i]]++] = (int32_t)i;
    for (int32_t e = p->experts; e > 0; e--) /* every start has moved to the next one's place */
        b->starts[e] = b->starts[e - 1];
    b->starts[0] = 0;
    return true;
}

static void product(sl_cpu *c, const bufs *b, const sl_weight *w, float *x, int32_t n, bool fp8, float *out,
                    sl_dtype act)
{
    sl_matmul m = {
        .x = x, .w = w, .out = out, .ld_x = w->in, .ld_out = w->out, .tokens = n, .out_dtype = SL_F32};

    if (fp8)
        m.scale_x = b->scale;
    sl_matmul_run(c, &m);
    if (act == SL_BF16)
        for (int64_t i = 0; i < (int64_t)n * w->out; i++)
            out[i] = sl_round_bf16(out[i]);
}

static void quantise(const bufs *b, float *x, int32_t n, int32_t dim)
{
    int32_t groups = sl_fp8_groups(dim);

    for (int32_t i = 0; i < n; i++)
        sl_quant_acts(x + (int64_t)i * dim, dim, b->scale + (int64_t)i * groups);
}

static void load_inputs(const sl_moe_params *p, const bufs *b, const int32_t *slots, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        sl_load_f32(p->act, p->x, (int64_t)(slots[i] / p->top_k) * p->hidden, p->hidden,
                    b->x + (int64_t)i * p->hidden);
}

/* gate or up: both read the same input, quantised only if that weight is F8. */
static void project(sl_cpu *c, const sl_moe_params *p, const bufs *b, const sl_weight *w,
                    const int32_t *slots, int32_t n, float *out)
{
    bool fp8 = p->fp8_acts && w->dtype == SL_F8_E4M3;

    load_inputs(p, b, slots, n);
    if (fp8)
        quantise(b, b->x, n, p->hidden);
    product(c, b, w, b->x, n, fp8, out, p->act);
}

static void one_expert(sl_cpu *c, const sl_moe_params *p, const bufs *b, int32_t e)
{
    const int32_t *slots = b->slots + b->starts[e];
    int32_t n = b->starts[e + 1] - b->starts[e];
    bool fp8 = p->fp8_acts && p->down[e].dtype == SL_F8_E4M3;

    project(c, p, b, &p->gate[e], slots, n, b->g);
    project(c, p, b, &p->up[e], slots, n, b->u);
    for (int64_t i = 0; i < (int64_t)n * p->inter; i++)
        b->h[i] = sl_round_act(sl_silu_mul(b->g[i], b->u[i]), p->act);
    if (fp8)
        quantise(b, b->h, n, p->inter);
    product(c, b, &p->down[e], b->h, n, fp8, b->d, p->act);
    for (int32_t i = 0; i < n; i++) {
        float *sum = b->sum + (int64_t)(slots[i] / p->top_k) * p->hidden, w = p->weights[slots[i]];
        const float *d = b->d + (int64_t)i * p->hidden;

        for (int32_t k = 0; k < p->hidden; k++)
            sum[k] += w * d[k];
    }
}

/* The largest number of choices of one expert; a token may name an expert more than once. */
static int32_t largest_group(const sl_moe_params *p, const bufs *b)
{
    int32_t most = 0;

    for (int32_t e = 0; e < p->experts; e++)
        if (b->starts[e + 1] - b->starts[e] > most)
            most = b->starts[e + 1] - b->starts[e];
    return most;
}

sl_status sl_cpu_moe(sl_backend *be, const void *params, sl_err *err)
{
    const sl_moe_params *p = params;
    sl_cpu *c = (sl_cpu *)be;
    bufs b = {0};
    sl_weight widest = {.in = p->hidden > p->inter ? p->hidden : p->inter};
    void *sum;

    SL_TRY(sl_cpu_scratch_threads(c, sl_matmul_scratch(&widest, p->tokens), err));
    SL_TRY(sl_cpu_scratch(c, SL_SCRATCH_Y, 4 * (size_t)p->tokens * (size_t)p->hidden, &sum, err));
    carve(p, &b);
    b.sum = sum;
    if (!sort_by_expert(p, &b))
        return sl_deverr(SL_DEVERR_ID, "moe", err);
    if (largest_group(p, &b) > p->tokens)
        return sl_fail(err, SL_ERR_INVALID, "moe: expert_ids name one expert twice for a token");
    memset(b.sum, 0, 4 * (size_t)p->tokens * (size_t)p->hidden);
    for (int32_t e = 0; e < p->experts; e++)
        if (b.starts[e + 1] > b.starts[e])
            one_expert(c, p, &b, e);
    sl_store_f32(p->act, b.sum, (int64_t)p->tokens * p->hidden, p->out, 0);
    return SL_OK;
}
