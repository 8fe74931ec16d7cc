/* Reference of the ops of clusters and of codes of keys (ref.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codes.h"
#include "tests/unit/kernels/ref.h"

static double key_value(const sl_key_source *s, int64_t head, int64_t token, int64_t i)
{
    const int64_t lists = s->rows.heads ? s->rows.heads : 1, slots = s->rows.heads ? 1 : s->heads;
    const int64_t slot = s->rows.heads ? 0 : head, row = s->rows.heads ? head : 0,
                  page = s->pages[token / 64];
    const uint8_t *at = s->host.base
                            ? s->host.base + page * s->host.page_stride + token % 64 * s->host.row_stride +
                                  row * s->rows.row_bytes
                            : s->rows.base + ((page * 64 + token % 64) * lists + row) * s->rows.row_bytes;
    float scale;

    if (s->format == SL_ROW_GQA_F32)
        return ref_at(at, SL_F32, slot * s->dim + i);
    if (s->format == SL_ROW_GQA_BF16)
        return ref_at(at, SL_BF16, slot * s->dim + i);
    memcpy(&scale, at + 2 * slots * s->dim + 4 * slot, 4);
    return ref_at(at, SL_F8_E4M3, slot * s->dim + i) * (double)scale;
}

/* How far a point is from a centroid. */
static double apart(sl_kmeans_metric metric, const double *x, const double *c, int64_t n)
{
    double dot = 0, xx = 0, cc = 0, square = 0;

    for (int64_t i = 0; i < n; i++)
        dot += x[i] * c[i], xx += x[i] * x[i], cc += c[i] * c[i], square += (x[i] - c[i]) * (x[i] - c[i]);
    if (metric == SL_KMEANS_L2)
        return square;
    return xx > 0 && cc > 0 ? 1 - dot / sqrt(xx * cc) : xx > 0 ? 1 : 0;
}

static int64_t nearest(sl_kmeans_metric metric, const double *x, const double *centroids, int64_t k,
                       int64_t n)
{
    int64_t best = 0;

    for (int64_t c = 1; c < k; c++)
        if (apart(metric, x, centroids + c * n, n) < apart(metric, x, centroids + best * n, n))
            best = c;
    return best;
}

/* One part of one head. */
static void kmeans(const sl_kmeans_params *p, const double *x, int64_t n, double *c, int64_t *label)
{
    const int64_t tokens = p->tokens, k = p->k;

    for (int64_t j = 0; j < k; j++) {
        int64_t from = k < tokens ? j * tokens / k : j < tokens ? j : tokens - 1;
        memcpy(c + j * n, x + from * n, 8 * (size_t)n);
    }
    for (int32_t it = 0; it < p->iterations; it++) {
        for (int64_t t = 0; t < tokens; t++)
            label[t] = nearest(p->metric, x + t * n, c, k, n);
        for (;;) {
            int64_t empty = k, far = -1;
            double most = p->metric == SL_KMEANS_COSINE ? 1e-6 : 0;

            for (int64_t j = k - 1; j >= 0; j--) {
                bool has = false;
                for (int64_t t = 0; t < tokens; t++)
                    has |= label[t] == j;
                empty = has ? empty : j;
            }
            for (int64_t t = 0; t < tokens && empty < k; t++)
                if (apart(p->metric, x + t * n, c + label[t] * n, n) > most)
                    most = apart(p->metric, x + t * n, c + label[t] * n, n), far = t;
            if (far < 0)
                break;
            memcpy(c + empty * n, x + far * n, 8 * (size_t)n);
            for (int64_t t = 0; t < tokens; t++)
                if (t == far || apart(p->metric, x + t * n, c + empty * n, n) <
                                    apart(p->metric, x + t * n, c + label[t] * n, n))
                    label[t] = empty;
        }
        for (int64_t j = 0; j < k; j++)
            for (int64_t i = 0; i < n; i++) {
                double sum = 0;
                int64_t count = 0;
                for (int64_t t = 0; t < tokens; t++)
                    if (label[t] == j)
                        sum += x[t * n + i], count++;
                c[j * n + i] = count ? (double)(float)(sum / (double)count) : c[j * n + i];
            }
    }
    for (int64_t t = 0; t < tokens; t++)
        label[t] = nearest(p->metric, x + t * n, c, k, n);
}

void ref_kmeans(const void *params)
{
    const sl_kmeans_params *p = params;
    const int64_t n = p->keys.dim / p->parts;
    double *x = malloc(8 * (size_t)(p->tokens * n)), *c = malloc(8 * (size_t)(p->k * n));
    int64_t *label = malloc(8 * (size_t)p->tokens);

    for (int64_t h = 0; h < p->keys.heads; h++)
        for (int64_t s = 0; s < p->parts; s++) {
            for (int64_t t = 0; t < p->tokens; t++)
                for (int64_t i = 0; i < n; i++)
                    x[t * n + i] = key_value(&p->keys, h, p->first + t, s * n + i);
            kmeans(p, x, n, c, label);
            for (int64_t j = 0; j < p->k; j++)
                for (int64_t i = 0; i < n; i++)
                    p->centroids[(h * p->ld_centroids + j) * p->keys.dim + s * n + i] = (float)c[j * n + i];
            for (int64_t t = 0; t < p->tokens && p->labels; t++)
                p->labels[(h * p->parts + s) * p->ld_labels + t] = (uint16_t)(p->label_base + label[t]);
        }
    free(x);
    free(c);
    free(label);
}

static void codes_of_tokens(const sl_codes_params *p)
{
    const int64_t n = p->keys.dim / p->parts;
    double *x = malloc(8 * (size_t)n), *c = malloc(8 * (size_t)(p->k * n));

    for (int64_t h = 0; h < p->keys.heads; h++)
        for (int64_t s = 0; s < p->parts; s++)
            for (int64_t t = p->first; t < p->first + p->tokens; t++) {
                for (int64_t i = 0; i < n; i++)
                    x[i] = key_value(&p->keys, h, t, s * n + i);
                for (int64_t j = 0; j < p->k * n; j++)
                    c[j] = (double)p->centroids[(h * p->k + j / n) * p->keys.dim + s * n + j % n];
                p->codes[(h * p->ld_codes + t) * p->parts + s] =
                    (uint8_t)nearest(SL_KMEANS_L2, x, c, p->k, n);
            }
    free(x);
    free(c);
}

static void codes_of_step(const sl_codes_params *p)
{
    const sl_seq_tables *t = p->step->seqs;

    for (int64_t i = 0; i < t->n_tokens; i++) {
        const int64_t seq = t->token_seq[i], pos = t->token_pos[i];
        const bool hot = t->hot_slot[seq] >= 0;
        sl_codes_params one = *p;

        one.step = NULL;
        one.keys.pages = (hot ? t->host_pages : t->row_pages) + seq * t->ld;
        one.keys.host.base = hot ? p->keys.host.base : NULL;
        one.first = (int32_t)pos - p->step->recent, one.tokens = 1;
        one.centroids += seq * p->keys.heads * p->k * p->keys.dim;
        one.codes += seq * p->keys.heads * p->ld_codes * p->parts;
        if (pos >= p->step->trained[seq] && one.first >= 0)
            codes_of_tokens(&one);
    }
}

void ref_codes(const void *params)
{
    const sl_codes_params *p = params;

    if (p->step)
        codes_of_step(p);
    else
        codes_of_tokens(p);
}

/* The product of a query with the decoded key of a token. */
static double decoded(const sl_code_scores_params *p, const float *q, int64_t row, int64_t token)
{
    const int64_t n = p->dim / p->parts;
    double sum = 0;

    for (int64_t i = 0; i < p->dim; i++) {
        int64_t code = p->codes[(row * p->ld_codes + token) * p->parts + i / n];
        sum += (double)q[i] * (double)p->centroids[(row * p->k + code) * p->dim + i];
    }
    return sum * (double)p->scale;
}

void ref_code_scores(const void *params)
{
    const sl_code_scores_params *p = params;
    const int64_t group = p->heads / p->kv_heads;

    for (int64_t i = 0; i < (int64_t)p->token_count * p->kv_heads; i++) {
        int64_t t = p->token_first + i / p->kv_heads, v = i % p->kv_heads, pos = p->seqs->token_pos[t];
        int64_t row = p->seqs->token_seq[t] * (int64_t)p->kv_heads + v;

        for (int64_t j = 0; j <= pos && pos >= p->from_pos; j++) {
            double sum = 0;

            for (int64_t h = v * group; h < (v + 1) * group && j >= p->sinks && j <= pos - p->recent; h++) {
                double top = -INFINITY, all = 0;
                const float *q = p->q + (t * p->heads + h) * p->dim;

                for (int64_t a = p->sinks; a <= pos - p->recent; a++)
                    top = fmax(top, decoded(p, q, row, a));
                for (int64_t a = p->sinks; a <= pos - p->recent; a++)
                    all += exp(decoded(p, q, row, a) - top);
                sum += exp(decoded(p, q, row, j) - top) / all;
            }
            p->scores[i * p->ld_scores + j] = (float)sum;
        }
    }
}

/* The end of the groups that are complete before a query at pos, and their clusters; 0: none. */
static int64_t clustered(const sl_cluster_rule *r, int64_t prompt, int64_t pos, int64_t *clusters)
{
    int64_t end = prompt > r->budget ? prompt : r->budget;

    *clusters = 0;
    if (pos < end)
        return 0;
    while (*clusters * r->cluster_tokens < end - r->sinks)
        ++*clusters;
    for (; end + r->window <= pos; end += r->window)
        *clusters += r->window_nlist;
    return end;
}

static double cluster_product(const sl_cluster_lists_params *p, int64_t t, int64_t head, const float *c)
{
    double sum = 0;

    for (int64_t i = 0; i < p->dim; i++)
        sum += (double)p->q[(t * p->heads + head) * p->dim + i] * (double)c[i];
    return sum;
}

static void cluster_scores(const sl_cluster_lists_params *p, int64_t t, int64_t v, const float *c, int64_t n,
                           double *out)
{
    const int64_t group = p->heads / p->kv_heads;

    double *each = malloc(8 * (size_t)n), *place = malloc(8 * (size_t)n);
    memset(out, 0, 8 * (size_t)n);
    for (int64_t h = v * group; h < (v + 1) * group; h++) {
        double top = -INFINITY, all = 0;

        for (int64_t i = 0; i < n; i++)
            top = fmax(top, cluster_product(p, t, h, c + i * p->dim));
        for (int64_t i = 0; i < n; i++)
            all += exp((double)p->scale * (cluster_product(p, t, h, c + i * p->dim) - top));
        for (int64_t i = 0; i < n; i++)
            each[i] = cluster_product(p, t, h, c + i * p->dim);
        ref_places(each, n, place);
        for (int64_t i = 0; i < n; i++) {
            double x = p->reduce == SL_GROUP_UNION ? place[i] : each[i];

            if (p->reduce == SL_GROUP_MAX || p->reduce == SL_GROUP_UNION)
                out[i] = h == v * group ? x : fmax(out[i], x);
            else
                out[i] += p->reduce == SL_GROUP_MEAN ? x : exp((double)p->scale * (x - top)) / all;
        }
    }
    free(each), free(place);
}

/* in[j]: whether the list of a token has token j. */
static void mark(const sl_cluster_lists_params *p, int64_t t, int64_t v, int64_t end, int64_t n, bool *in)
{
    const int64_t row = p->seqs->token_seq[t] * (int64_t)p->kv_heads + v;
    const uint16_t *labels = p->labels + row * p->ld_labels;
    double *score = malloc(8 * (size_t)n);
    int64_t left = p->take_of && p->take_of[v] < p->rule.budget ? p->take_of[v] : p->rule.budget;
    double all = 0, have = 0;

    left -= p->rule.sinks;
    cluster_scores(p, t, v, p->centroids + row * p->ld_clusters * p->dim, n, score);
    for (int64_t j = p->rule.sinks; j < end; j++)
        all += score[labels[j]];
    for (int64_t taken = 0; taken < n && left > 0 && (p->mass <= 0 || have < all * (double)p->mass);
         taken++) {
        int64_t best = 0;
        for (int64_t i = 1; i < n; i++)
            best = score[i] > score[best] ? i : best;
        for (int64_t j = p->rule.sinks; j < end && left > 0; j++)
            if (labels[j] == best)
                in[j] = true, left--, have += score[best];
        score[best] = -INFINITY;
    }
    free(score);
}

void ref_cluster_lists(const void *params)
{
    const sl_cluster_lists_params *p = params;

    for (int64_t i = 0; i < (int64_t)p->token_count * p->kv_heads; i++) {
        int64_t t = p->token_first + i / p->kv_heads, pos = p->seqs->token_pos[t], at = 0, clusters;
        int64_t prompt = p->prompts[p->seqs->token_seq[t]];
        int64_t end = clustered(&p->rule, prompt, pos, &clusters);
        bool all = pos < prompt || pos < p->dense_below || end == 0, *in = calloc((size_t)pos + 1, 1);

        if (!all)
            mark(p, t, i % p->kv_heads, end, clusters, in);
        for (int64_t j = 0; j <= pos; j++)
            if (all || in[j] || j < p->rule.sinks || j >= end)
                p->ids[i * p->ld_ids + at++] = (int32_t)j;
        for (; at < p->ld_ids; at++)
            p->ids[i * p->ld_ids + at] = -1;
        free(in);
    }
}
