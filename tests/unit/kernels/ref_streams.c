/* The ops of parallel residual streams and of gates, restated in double; see ref.h. */
#include <math.h>

#include "kernels/streams.h"
#include "tests/unit/kernels/ref.h"

static double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

double ref_glu(double g, double u, const sl_glu *v)
{
    double limit = v->limit > 0 ? (double)v->limit : INFINITY, alpha = v->alpha > 0 ? (double)v->alpha : 1;

    g = fmin(g, limit);
    u = fmax(fmin(u, limit), -limit);
    return g * sigmoid(alpha * g) * (u + (double)v->offset);
}

void ref_silu_mul(const void *params)
{
    const sl_silu_mul_params *p = params;

    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t i = 0; i < p->dim; i++)
            ref_put(p->out, p->act, t * p->ld_out + i,
                    ref_glu(ref_at(p->gate, p->act, t * p->ld_in + i),
                            ref_at(p->up, p->act, t * p->ld_in + i), &p->glu));
}

void ref_sigmoid_mul(const void *params)
{
    const sl_sigmoid_mul_params *p = params;

    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t i = 0; i < p->dim; i++)
            ref_put(p->x, p->act, t * p->ld_x + i,
                    ref_at(p->x, p->act, t * p->ld_x + i) *
                        sigmoid(ref_at(p->gate, p->act, t * p->ld_gate + i)));
}

void ref_join(const void *params)
{
    const sl_join_params *p = params;
    int64_t dim = (int64_t)p->dim_a + p->dim_b;

    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t i = 0; i < dim; i++)
            ref_put(p->out, p->act, t * dim + i,
                    i < p->dim_a ? ref_at(p->a, p->act, t * p->dim_a + i)
                                 : ref_at(p->b, p->act, t * p->dim_b + i - p->dim_a));
}

/* The matrix of a token from its normalised mix m: column j of row i is M[i * n + j]. */
static void balance(const sl_streams_out_params *p, const double *m, float *out)
{
    const int64_t n = p->count;
    double M[SL_STREAMS_MAX][SL_STREAMS_MAX];

    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++)
            sum += M[i][j] =
                exp(m[2 * n + i * n + j] * (double)p->scale[2] + (double)p->base[2 * n + i * n + j]);
        for (int64_t j = 0; j < n; j++)
            M[i][j] = M[i][j] / sum + (double)p->hc_eps;
    }
    for (int32_t k = 0; k < p->iters; k++) {
        for (int64_t i = 0; k > 0 && i < n; i++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++)
                sum += M[i][j];
            for (int64_t j = 0; j < n; j++)
                M[i][j] /= sum + (double)p->hc_eps;
        }
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++)
                sum += M[i][j];
            for (int64_t i = 0; i < n; i++)
                M[i][j] /= sum + (double)p->hc_eps;
        }
    }
    for (int64_t i = 0; i < n * n; i++)
        out[i] = (float)M[i / n][i % n];
}

void ref_streams_out(const void *params)
{
    const sl_streams_out_params *p = params;
    int64_t count = p->count, dim = p->dim,
            gates = p->comb   ? (2 + count) * count
                    : p->post ? 2 * count
                              : count;
    double m[(2 + SL_STREAMS_MAX) * SL_STREAMS_MAX];

    for (int64_t i = 0; !p->mix && i < p->tokens * dim; i++) {
        double v = 0;
        for (int64_t c = 0; c < count; c++)
            v += ref_at(p->streams, p->act, (i / dim * count + c) * dim + i % dim) / (double)count;
        ref_put(p->out, p->act, i, v);
    }
    for (int64_t t = 0; p->mix && t < p->tokens; t++) {
        double square = 0;

        for (int64_t i = 0; i < count * dim; i++) {
            double v = ref_at(p->streams, p->act, t * count * dim + i);
            square += v * v;
        }
        double by = 1 / sqrt(square / (double)(count * dim) + (double)p->eps);

        for (int64_t i = 0; i < dim; i++) {
            double v = 0;
            for (int64_t c = 0; c < count; c++)
                v += (sigmoid((double)p->mix[t * gates + c] * by * (double)p->scale[0] + (double)p->base[c]) +
                      (double)p->hc_eps) *
                     ref_at(p->streams, p->act, (t * count + c) * dim + i);
            ref_put(p->out, p->act, t * dim + i, v);
        }
        for (int64_t c = 0; p->post && c < count; c++)
            p->post[t * count + c] =
                (float)((double)p->magnitude *
                            sigmoid((double)p->mix[t * gates + count + c] * by * (double)p->scale[1] +
                                    (double)p->base[count + c]) +
                        (p->comb ? 0 : (double)p->hc_eps));
        for (int64_t i = 0; i < gates; i++)
            m[i] = (double)p->mix[t * gates + i] * by;
        if (p->comb)
            balance(p, m, p->comb + t * count * count);
    }
}

void ref_streams_add(const void *params)
{
    const sl_streams_add_params *p = params;

    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t i = 0; i < p->dim; i++) {
            double x[SL_STREAMS_MAX], y = ref_at(p->y, p->act, t * p->dim + i);

            for (int64_t c = 0; c < p->count; c++)
                x[c] = p->post ? ref_at(p->streams, p->act, (t * p->count + c) * p->dim + i) : 0;
            for (int64_t c = 0; c < p->count; c++) {
                double v = p->post ? (double)p->post[t * p->count + c] * y + (p->comb ? 0 : x[c]) : y;
                for (int64_t j = 0; p->comb && j < p->count; j++)
                    v += (double)p->comb[(t * p->count + j) * p->count + c] * x[j];
                ref_put(p->streams, p->act, (t * p->count + c) * p->dim + i, v);
            }
        }
}
