/* Reference conversions and the ops of the model's dense part (ref.h). */
#include "tests/unit/kernels/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/synth.h"

/* ---- conversions ---- */

static double e4m3_formula(uint8_t code)
{
    int e = code >> 3 & 15, m = code & 7;
    double v = e == 0 ? m * 0x1p-9 : (8 + m) * (double)(1 << e) * 0x1p-10;

    if (e == 15 && m == 7)
        return NAN;
    return code & 0x80 ? -v : v;
}

double ref_e4m3_value(uint8_t code)
{
    static double value[256]; /* called a billion times */

    if (value[1] == 0)
        for (int c = 255; c >= 0; c--)
            value[c] = e4m3_formula((uint8_t)c);
    return value[code];
}

uint8_t ref_e4m3(double v)
{
    uint8_t sign = signbit(v) ? 0x80 : 0, best = 0;
    double a = fabs(v);

    if (isnan(v))
        return sign | 0x7f;
    for (int c = 1; c < 0x7f; c++) { /* nearest; of two at the same distance the even code */
        double d = fabs(ref_e4m3_value((uint8_t)c) - a), b = fabs(ref_e4m3_value(best) - a);

        if (d > b)
            break; /* values ascend: from here on they are farther */
        if (d < b || c % 2 == 0)
            best = (uint8_t)c;
    }
    return sign | best;
}

double ref_bf16_value(uint16_t code)
{
    static double power[256]; /* ldexp() is slow, and this is called a billion times */
    int e = code >> 7 & 255, m = code & 127;

    for (int i = 1; power[255] == 0 && i < 256; i++)
        power[i] = ldexp(1.0, i - 134);
    double v = e == 0 ? m * 0x1p-133 : (128 + m) * power[e];

    if (e == 255)
        v = m ? NAN : INFINITY;
    return code & 0x8000 ? -v : v;
}

uint16_t ref_bf16(double v)
{
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(v), m;
    int e;

    if (isnan(v))
        return sign | 0x7fc0;
    if (isinf(v))
        return sign | 0x7f80;
    frexp(a, &e); /* a in [2^(e-1), 2^e) */
    if (e < -125)
        e = -125;
    m = nearbyint(ldexp(a, 8 - e)); /* 8 significant bits */
    a = ldexp(m, e - 8);
    if (a >= 0x1p128)
        return sign | 0x7f80;
    if (a < 0x1p-126)
        return sign | (uint16_t)ldexp(a, 133);
    frexp(a, &e);
    return (uint16_t)(sign | (e + 126) << 7 | ((int)ldexp(a, 8 - e) & 127));
}

ref_lanes *ref_lanes_alloc(size_t n)
{
    ref_lanes *v = aligned_alloc(sizeof(ref_lanes), sizeof(ref_lanes) * (n ? n : 1));

    if (v)
        memset(v, 0, sizeof(ref_lanes) * n);
    return v;
}

double ref_pow2_ceil(double t)
{
    int e;

    return frexp(t, &e) == 0.5 ? ldexp(1.0, e - 1) : ldexp(1.0, e);
}

static double f16_value(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 0 ? m * 0x1p-24 : ldexp(1024 + m, e - 25);

    return h & 0x8000 ? -v : v;
}

/* A sign, two bits of exponent with bias 1, one bit of mantissa. */
static double e2m1_value(int code)
{
    int e = code >> 1 & 3, m = code & 1;
    double v = e == 0 ? m * 0.5 : ldexp(2 + m, e - 2);

    return code & 8 ? -v : v;
}

double ref_at(const void *base, sl_dtype dtype, int64_t i)
{
    switch (dtype) {
    case SL_F32:
        return (double)((const float *)base)[i];
    case SL_BF16:
        return ref_bf16_value(((const uint16_t *)base)[i]);
    case SL_F16:
        return f16_value(((const uint16_t *)base)[i]);
    case SL_F8_E4M3:
        return ref_e4m3_value(((const uint8_t *)base)[i]);
    case SL_I32:
        return ((const int32_t *)base)[i];
    case SL_I8:
        return ((const int8_t *)base)[i];
    case SL_I4:
        return (((const uint8_t *)base)[i / 2] >> (i % 2 ? 4 : 0)) % 16 - 8;
    case SL_F4_E2M1:
        return e2m1_value((((const uint8_t *)base)[i / 2] >> (i % 2 ? 4 : 0)) % 16);
    }
    return NAN;
}

void ref_put(void *base, sl_dtype dtype, int64_t i, double v)
{
    if (dtype == SL_F32)
        ((float *)base)[i] = (float)v;
    else
        ((uint16_t *)base)[i] = ref_bf16((double)(float)v);
}

double ref_act(double v, sl_dtype act)
{
    return act == SL_BF16 ? ref_bf16_value(ref_bf16((double)(float)v)) : (double)(float)v;
}

static double f(double v)
{
    return (double)(float)v;
}

void ref_rope(double *x, int32_t n, const float *cos_sin, int64_t pos, bool interleaved, sl_dtype act)
{
    for (int32_t i = 0; i < n / 2; i++) {
        int32_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + n / 2;
        double c = (double)cos_sin[pos * n + 2 * i], s = (double)cos_sin[pos * n + 2 * i + 1];
        double re = f(f(x[a] * c) - f(x[b] * s)), im = f(f(x[a] * s) + f(x[b] * c));

        x[a] = ref_act(re, act);
        x[b] = ref_act(im, act);
    }
}

/* ---- linear, experts ---- */

/* What value k of row r of a weight in 8 or 4 bits is multiplied with. */
static double multiplier(const sl_weight *w, int64_t r, int64_t k)
{
    const int64_t groups = w->group ? (w->in + w->group - 1) / w->group : 0,
                  i = r * groups + (w->group ? k / w->group : 0);

    switch (w->scale_type) {
    case SL_SCALE_F32:
        return ref_at(w->multiplier, SL_F32, i);
    case SL_SCALE_BF16:
        return ref_at(w->multiplier, SL_BF16, i);
    case SL_SCALE_E8M0:
        return w->multiplier[i] == 255 ? NAN : ldexp(1.0, w->multiplier[i] - 127);
    case SL_SCALE_E4M3:
        return f(ref_e4m3_value(w->multiplier[i]) * (double)w->global);
    default:
        return (double)w->scale[r / 128 * ((w->in + 127) / 128) + k / 128];
    }
}

static bool has_multipliers(const sl_weight *w)
{
    return w->dtype == SL_F8_E4M3 || w->dtype == SL_I4 || w->dtype == SL_F4_E2M1;
}

static double weight_at(const sl_weight *w, int64_t r, int64_t k, sl_dtype round_act)
{
    double v = ref_at(w->data, w->dtype, r * w->in + k);

    return has_multipliers(w) ? ref_act(f(v * multiplier(w, r, k)), round_act) : v;
}

/* x[n] -> e4m3 values and a scale per 128. */
static void quant(const double *x, int32_t n, double *values, double *scales)
{
    for (int32_t g = 0; g * 128 < n; g++) {
        double amax = (double)1e-4f;

        for (int32_t i = g * 128; i < n && i < g * 128 + 128; i++)
            amax = fmax(amax, fabs(x[i]));
        scales[g] = ref_pow2_ceil(f(amax * (double)(1.0f / 448.0f)));
        for (int32_t i = g * 128; i < n && i < g * 128 + 128; i++)
            values[i] = ref_e4m3_value(ref_e4m3(x[i] / scales[g]));
    }
}

/* A weight's values as doubles, eight rows interleaved: [rows / 8][in]. The caller frees it. */
static ref_lanes *decode(const sl_weight *w, bool fp8_acts)
{
    bool quantised = fp8_acts && has_multipliers(w) && !w->acts_as_given; /* product() has the scales then */
    ref_lanes *v = ref_lanes_alloc((size_t)(w->out + 7) / 8 * (size_t)w->in);

    for (int64_t r = 0; r < w->out; r++)
        for (int64_t k = 0; k < w->in; k++)
            v[r / 8 * w->in + k][r % 8] =
                quantised ? ref_at(w->data, w->dtype, r * w->in + k) : weight_at(w, r, k, SL_F32);
    return v;
}

/* One row of out = x * w^T, not rounded beyond float32; v: decode(w). Every sum is in the order of k. */
static void product(const double *x, const sl_weight *w, const ref_lanes *v, bool fp8_acts, double *out)
{
    double *q = malloc(sizeof(double) * (size_t)w->in),
           *s = malloc(sizeof(double) * (size_t)(w->in / 128 + 1));
    bool quantised = fp8_acts && has_multipliers(w) && !w->acts_as_given;

    if (quantised)
        quant(x, w->in, q, s);
    for (int32_t r = 0; r < w->out; r += 8, v += w->in) {
        ref_lanes sum = {0}, scale = {0};

        for (int32_t k = 0; k < w->in; k++) {
            for (int32_t i = 0; quantised && k % 16 == 0 && i < 8 && r + i < w->out; i++)
                scale[i] = multiplier(w, r + i, k);
            sum += quantised ? q[k] * v[k] * s[k / 128] * scale : x[k] * v[k];
        }
        for (int32_t i = 0; i < 8 && r + i < w->out; i++)
            out[r + i] = f(sum[i]);
    }
    free(q);
    free(s);
}

static void ref_one_linear(const sl_linear_params *p)
{
    double *x = malloc(sizeof(double) * (size_t)p->w.in), *out = malloc(sizeof(double) * (size_t)p->w.out);
    ref_lanes *w = decode(&p->w, p->fp8_acts);

    for (int64_t t = 0; t < p->tokens; t++) {
        for (int32_t k = 0; k < p->w.in; k++)
            x[k] = ref_at(p->x, p->act, t * p->ld_x + k);
        product(x, &p->w, w, p->fp8_acts, out);
        for (int32_t r = 0; r < p->w.out; r++)
            ref_put(p->out, p->out_dtype, t * p->ld_out + r, out[r]);
    }
    free(w);
    free(x);
    free(out);
}

static void ref_linear(const void *params)
{
    for (const sl_linear_params *p = params; p; p = p->next)
        ref_one_linear(p);
}

/* Adds the result of expert e for the token x, multiplied by this weight, to sum[hidden]. w: gate, up and down. */
static void ref_expert(const sl_moe_params *p, int32_t e, ref_lanes *const w[3], const double *x,
                       double weight, double *sum)
{
    double *g = malloc(8 * (size_t)p->inter), *u = malloc(8 * (size_t)p->inter),
           *d = malloc(8 * (size_t)p->hidden);

    product(x, &p->gate[e], w[0], p->fp8_acts, g);
    product(x, &p->up[e], w[1], p->fp8_acts, u);
    for (int32_t i = 0; i < p->inter; i++)
        g[i] = ref_act(ref_glu(ref_act(g[i], p->act), ref_act(u[i], p->act), &p->glu), p->act);
    product(g, &p->down[e], w[2], p->fp8_acts, d);
    for (int32_t k = 0; k < p->hidden; k++)
        sum[k] += weight * ref_act(d[k], p->act);
    free(g);
    free(u);
    free(d);
}

static void ref_moe(const void *params)
{
    const sl_moe_params *p = params;
    size_t H = (size_t)p->hidden;
    double *x = malloc(8 * H), *sum = calloc((size_t)p->tokens * H, 8);

    for (int32_t e = 0; e < p->experts; e++) { /* experts in order, for every token */
        ref_lanes *w[3] = {decode(&p->gate[e], p->fp8_acts), decode(&p->up[e], p->fp8_acts),
                           decode(&p->down[e], p->fp8_acts)};

        for (int64_t i = 0; i < (int64_t)p->tokens * p->top_k; i++) {
            int64_t t = i / p->top_k;

            if (p->expert_ids[i] != e)
                continue;
            for (int32_t k = 0; k < p->hidden; k++)
                x[k] = ref_at(p->x, p->act, t * p->hidden + k);
            ref_expert(p, e, w, x, (double)p->weights[i], sum + t * p->hidden);
        }
        for (int k = 0; k < 3; k++)
            free(w[k]);
    }
    for (int64_t i = 0; i < (int64_t)p->tokens * p->hidden; i++)
        ref_put(p->out, p->act, i, sum[i]);
    free(x);
    free(sum);
}

static double ref_route_score(const sl_moe_route_params *p, const float *logits, int32_t e)
{
    const double x = (double)logits[e];
    double all = 0;

    if (p->score == SL_ROUTE_SIGMOID)
        return 1 / (1 + exp(-x));
    if (p->score == SL_ROUTE_SQRT_SOFTPLUS)
        return sqrt(log1p(exp(x)));
    for (int32_t o = 0; o < p->experts; o++)
        all += exp((double)logits[o] - x);
    return 1 / all;
}

/* The experts of a row of the table, smallest first, each as often as it is there. */
static void ref_route_table(const sl_moe_route_params *p, int64_t t)
{
    const int32_t *row = p->table + (int64_t)p->ids[t] * p->top_k;
    const float *logits = p->logits + t * p->experts;
    int32_t n = 0, *out = p->experts_out + t * p->top_k;
    double sum = 0;

    for (int32_t e = 0; e < p->experts; e++)
        for (int32_t i = 0; i < p->top_k; i++)
            if (row[i] == e) {
                out[n++] = e;
                sum += ref_route_score(p, logits, e);
            }
    for (int32_t i = 0; i < n; i++)
        p->weights_out[t * p->top_k + i] =
            (float)(ref_route_score(p, logits, out[i]) / (p->normalise ? sum : 1) * (double)p->scale);
}

static void ref_moe_route(const void *params)
{
    const sl_moe_route_params *p = params;
    int32_t E = p->experts, G = p->groups > 1 ? p->groups : 1, per = E / G;
    double *s = malloc(8 * (size_t)E), *c = malloc(8 * (size_t)E), *gs = malloc(8 * (size_t)G);

    for (int64_t t = 0; t < p->tokens; t++) {
        double sum = 0;
        int32_t n = 0;

        if (p->vocab) {
            ref_route_table(p, t);
            continue;
        }
        for (int32_t e = 0; e < E; e++) {
            s[e] = ref_route_score(p, p->logits + t * E, e);
            c[e] = s[e] + (p->bias ? (double)p->bias[e] : 0);
        }
        for (int32_t g = 0; g < G; g++) { /* the largest sum of two different experts of the group */
            gs[g] = -INFINITY;
            for (int32_t a = g * per; a < (g + 1) * per; a++)
                for (int32_t b = a + 1; b < (g + 1) * per; b++)
                    gs[g] = fmax(gs[g], c[a] + c[b]);
            if (per == 1)
                gs[g] = c[g];
        }
        for (int32_t g = 0; G > 1 && p->zero_refused && g < G; g++) {
            int32_t before = 0;

            for (int32_t o = 0; o < G; o++)
                before += gs[o] > gs[g] || (gs[o] == gs[g] && o < g);
            for (int32_t e = g * per; before >= p->top_groups && e < (g + 1) * per; e++)
                c[e] = 0;
        }
        for (int32_t e = 0; e < E; e++) { /* chosen iff fewer than top_k experts of kept groups are better */
            int32_t better = 0, better_groups = 0;

            for (int32_t g = 0; g < G; g++)
                better_groups += gs[g] > gs[e / per] || (gs[g] == gs[e / per] && g < e / per);
            if (G > 1 && !p->zero_refused && better_groups >= p->top_groups)
                continue;
            for (int32_t o = 0; o < E; o++) {
                int32_t bg = 0;

                for (int32_t g = 0; g < G; g++)
                    bg += gs[g] > gs[o / per] || (gs[g] == gs[o / per] && g < o / per);
                if (G > 1 && !p->zero_refused && bg >= p->top_groups)
                    continue;
                better += c[o] > c[e] || (c[o] == c[e] && o < e);
            }
            if (better >= p->top_k)
                continue;
            p->experts_out[t * p->top_k + n] = e;
            p->weights_out[t * p->top_k + n++] = (float)s[e];
            sum += s[e];
        }
        for (int32_t i = 0; i < n; i++) {
            double w = s[p->experts_out[t * p->top_k + i]];

            p->weights_out[t * p->top_k + i] = (float)((p->normalise ? w / sum : w) * (double)p->scale);
        }
    }
    free(s);
    free(c);
    free(gs);
}

/* ---- small ops ---- */

static void ref_embed(const void *params)
{
    const sl_embed_params *p = params;

    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t i = 0; i < p->dim; i++)
            ref_put(p->out, p->act, t * p->dim + i,
                    ref_at(p->table, p->table_dtype, (int64_t)p->ids[t] * p->dim + i));
}

static void ref_rmsnorm(const void *params)
{
    const sl_rmsnorm_params *p = params;

    for (int64_t t = 0; t < p->tokens; t++) {
        double *s = malloc(8 * (size_t)p->dim), sum = 0;

        for (int64_t i = 0; i < p->dim; i++) {
            s[i] = ref_at(p->x, p->act, t * p->ld_x + i);
            if (p->add) {
                s[i] = f(s[i] + ref_at(p->add, p->act, t * p->dim + i));
                ref_put(p->x, p->act, t * p->ld_x + i, s[i]);
            }
            sum += s[i] * s[i];
        }
        for (int64_t i = 0; p->out && i < p->dim; i++)
            ref_put(p->out, p->act, t * p->dim + i,
                    s[i] / sqrt(sum / p->dim + (double)p->eps) *
                        ref_at(p->weight, p->weight_dtype, (p->groups ? t % p->groups * p->dim : 0) + i));
        free(s);
    }
}

static void ref_add(const void *params)
{
    const sl_add_params *p = params;

    for (int64_t i = 0; i < (int64_t)p->tokens * p->dim; i++)
        ref_put(p->x, p->act, i, ref_at(p->x, p->act, i) + ref_at(p->y, p->act, i));
}

static void ref_pick(const void *params)
{
    const sl_pick_params *p = params;

    for (int64_t i = 0; i < p->n; i++)
        for (int64_t k = 0; k < p->dim; k++)
            ref_put(p->out, p->act, i * p->dim + k, ref_at(p->x, p->act, (int64_t)p->rows[i] * p->dim + k));
}

static void ref_q_absorb(const void *params)
{
    const sl_q_absorb_params *p = params;
    int32_t dq = p->nope + p->rope, dl = p->lora + p->rope;

    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t h = 0; h < p->heads; h++) {
            float *out = (float *)p->ql + (t * p->heads + h) * dl;
            double *q = malloc(8 * (size_t)dq);

            for (int32_t i = 0; i < dq; i++)
                q[i] = ref_at(p->q, p->act, (t * p->heads + h) * dq + i);
            if (p->rope)
                ref_rope(q + p->nope, p->rope, p->cos_sin, p->pos[t], true, p->act);
            for (int32_t l = 0; l < p->lora; l++) {
                double sum = 0;

                for (int32_t n = 0; n < p->nope; n++)
                    sum += q[n] * weight_at(&p->kv_b, h * (p->nope + p->v) + n, l, p->act);
                out[l] = (float)sum;
            }
            for (int32_t i = 0; i < p->rope; i++)
                out[p->lora + i] = (float)q[p->nope + i];
            free(q);
        }
}

static void ref_v_up(const void *params)
{
    const sl_v_up_params *p = params;

    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t h = 0; h < p->heads; h++)
            for (int64_t i = 0; i < p->v; i++) {
                double sum = 0;

                for (int64_t l = 0; l < p->lora; l++)
                    sum += (double)p->o[(t * p->heads + h) * p->lora + l] *
                           weight_at(&p->kv_b, h * (p->nope + p->v) + p->nope + i, l, p->act);
                ref_put(p->out, p->act, (t * p->heads + h) * p->v + i, sum);
            }
}

static void ref_random(const void *params)
{
    const sl_random_params *p = params;

    for (int64_t i = 0; i < (int64_t)p->rows * p->cols; i++) {
        uint32_t h = sl_synth_hash(p->seed, (uint64_t)i);
        float v = p->mean + (float)((double)p->spread * ((double)(h >> 8) * 0x1p-23 - 1));

        if (p->dtype == SL_I32)
            ((int32_t *)p->out)[i] = (int32_t)p->mean + (int32_t)(h % (uint32_t)p->spread);
        else if (p->dtype == SL_F8_E4M3)
            ((uint8_t *)p->out)[i] = ref_e4m3(v);
        else
            ref_put(p->out, p->dtype, i, v);
    }
}

/* The numbers come from kernels/synth.h; this function defines where they are written. */
static void ref_draw(const void *params)
{
    const sl_draw_params *p = params;
    const int32_t lists = p->lists ? p->lists : 1;

    for (int64_t r = 0; r < (int64_t)p->seqs->n_tokens * lists; r++) {
        int32_t t = (int32_t)(r / lists), pos = p->seqs->token_pos[t], list = (int32_t)(r % lists);

        for (int32_t i = 0; i < p->ld_ids && pos >= p->from_pos; i++)
            p->ids[r * p->ld_ids + i] =
                i < p->k ? sl_synth_draw(p, p->keep ? *p->keep : 0, p->seqs->token_seq[t], pos, list, i) : -1;
    }
}

/* The ops of a group of ranks are compared with SL_OP_MOE: test_ep.c. */
static void ref_group(const void *params)
{
    (void)params;
    abort();
}
#define ref_ep_send ref_group
#define ref_ep_experts ref_group
#define ref_ep_sum ref_group

void ref_run(sl_op op, const void *params)
{
    static void (*const fns[SL_OP_COUNT])(const void *) = {
#define X(op, name, items, field, text) [SL_OP_##op] = ref_##name,
        SL_OPS(X)
#undef X
    };

    fns[op](params);
}
