/* See experts.h. Experts run in ascending order, so the results of every row arrive in that order, whichever rows share
 * the batch. */
#include "kernels/cpu/experts.h"

#include <string.h>

#include "kernels/formats.h"

/* Everything lives in the caller's work memory; see carve(). */
typedef struct bufs {
    float *x, *g, *u,
        *d; /* of one expert, at most `rows` rows: input, gate and then the activation, up, result */
    float *scale;
    int32_t *slots;  /* [rows * top_k] choices sorted by expert, then row */
    int32_t *starts; /* [experts + 1] */
} bufs;

static size_t carve(const sl_cpu_experts *p, void *work, bufs *b)
{
    int64_t n = p->rows;
    int32_t widest = p->hidden > p->inter ? p->hidden : p->inter;
    float *f = work;

    b->x = f;
    b->d = b->x + n * p->hidden;
    b->g = b->d + n * p->hidden;
    b->u = b->g + n * p->inter;
    b->scale = b->u + n * p->inter;
    b->slots = (int32_t *)(void *)(b->scale + n * sl_fp8_groups(widest));
    b->starts = b->slots + n * p->top_k;
    return (size_t)((uint8_t *)(b->starts + p->experts + 1) - (uint8_t *)work);
}

size_t sl_cpu_experts_bytes(const sl_cpu_experts *p)
{
    int64_t n = p->rows;
    int32_t widest = p->hidden > p->inter ? p->hidden : p->inter;

    return sizeof(float) *
           (size_t)(n * (2 * (int64_t)p->hidden + 2 * (int64_t)p->inter + sl_fp8_groups(widest) + p->top_k) +
                    p->experts + 1);
}

/* Counting sort of the choices by expert; false when an id is out of range. */
static bool sort_by_expert(const sl_cpu_experts *p, bufs *b)
{
    int64_t n = (int64_t)p->rows * p->top_k;

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

static void round_all(float *x, int64_t n, sl_dtype act)
{
    if (act == SL_BF16)
        for (int64_t i = 0; i < n; i++)
            x[i] = sl_round_bf16(x[i]);
}

static void product(sl_cpu *c, const bufs *b, const sl_weight *w, float *x, int32_t n, bool fp8, float *out,
                    sl_dtype act)
{
    sl_matmul m = {
        .x = x, .w = w, .out = out, .ld_x = w->in, .ld_out = w->out, .tokens = n, .out_dtype = SL_F32};

    if (fp8)
        m.scale_x = b->scale;
    sl_matmul_run(c, &m);
    round_all(out, (int64_t)n * w->out, act);
}

/* gate or up: both read the same input, quantised only if that weight takes it so. */
static void project(sl_cpu *c, const sl_cpu_experts *p, const bufs *b, const sl_weight *w,
                    const int32_t *slots, int32_t n, float *out)
{
    bool fp8 = p->fp8_acts && sl_weight_takes_e4m3(w);
    int32_t groups = sl_fp8_groups(p->hidden);

    for (int32_t i = 0; i < n; i++)
        p->load(p->ctx, slots[i] / p->top_k, b->x + (int64_t)i * p->hidden,
                fp8 ? b->scale + (int64_t)i * groups : NULL);
    product(c, b, w, b->x, n, fp8, out, p->act);
}

static void one_expert(sl_cpu *c, const sl_cpu_experts *p, const bufs *b, int32_t e)
{
    const int32_t *slots = b->slots + b->starts[e];
    int32_t n = b->starts[e + 1] - b->starts[e], groups = sl_fp8_groups(p->inter);
    bool fp8 = p->fp8_acts && sl_weight_takes_e4m3(&p->down[e]);

    project(c, p, b, &p->gate[e], slots, n, b->g);
    project(c, p, b, &p->up[e], slots, n, b->u);
    sl_glu_mul(&p->glu, b->g, b->u, (int64_t)n * p->inter);
    round_all(b->g, (int64_t)n * p->inter, p->act);
    for (int32_t i = 0; fp8 && i < n; i++)
        sl_quant_acts(b->g + (int64_t)i * p->inter, p->inter, b->scale + (int64_t)i * groups);
    product(c, b, &p->down[e], b->g, n, fp8, b->d, p->act);
    for (int32_t i = 0; i < n; i++)
        p->take(p->ctx, slots[i], b->d + (int64_t)i * p->hidden);
}

/* The largest number of choices of one expert; a row may name an expert more than once. */
static int32_t largest_group(const sl_cpu_experts *p, const bufs *b)
{
    int32_t most = 0;

    for (int32_t e = 0; e < p->experts; e++)
        if (b->starts[e + 1] - b->starts[e] > most)
            most = b->starts[e + 1] - b->starts[e];
    return most;
}

sl_status sl_cpu_experts_run(sl_cpu *c, const sl_cpu_experts *p, void *work, const char *op, sl_err *err)
{
    sl_weight widest = {.in = p->hidden > p->inter ? p->hidden : p->inter};
    bufs b = {0};

    SL_TRY(sl_cpu_scratch_threads(c, sl_matmul_scratch(&widest, p->rows), err));
    (void)carve(p, work, &b);
    if (!sort_by_expert(p, &b))
        return sl_deverr(SL_DEVERR_ID, op, err);
    if (largest_group(p, &b) > p->rows)
        return sl_fail(err, SL_ERR_INVALID, "%s: expert_ids name one expert twice for a token", op);
    for (int32_t e = 0; e < p->experts; e++)
        if (b.starts[e + 1] > b.starts[e])
            one_expert(c, p, &b, e);
    return SL_OK;
}
