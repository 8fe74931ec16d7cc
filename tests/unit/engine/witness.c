/* Lists that a test sees, and what restatements of definitions need; see witness.h. */
#include "witness.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gqa.h"

static const sl_algo_desc *seen_algo;
static witness *seen_by;
static sl_algo_desc shown; /* seen_algo, except these functions */

static sl_status shown_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    SL_TRY(seen_algo->create(be, d, out, err));
    (*out)->desc = &shown;
    return SL_OK;
}

/* The queries of a token of the window. */
static void keep_query(witness *w, const sl_attn_call *c, int32_t t)
{
    const int32_t window = w->f->o.select.window, at = c->seqs->token_pos[t] - (w->prompt - window);
    const int64_t width = (int64_t)c->gqa.attn.heads * c->gqa.attn.dim;
    if (at < 0 || at >= window)
        return;
    if (!w->q)
        w->q = calloc((size_t)w->f->cfg->n_layers * (size_t)window, (size_t)width * sizeof *w->q);
    memcpy(w->q + ((int64_t)c->layer * window + at) * width, c->gqa.attn.q + t * width,
           (size_t)width * sizeof(float));
}

/* Steps of a prompt attend without lists, but have an update. */
static sl_status shown_update(sl_algo *a, const sl_algo_call *call, sl_err *err)
{
    for (int32_t t = 0; seen_by->prompt && t < call->attn->seqs->n_tokens; t++)
        if (call->attn->seqs->token_seq[t] >= 0)
            keep_query(seen_by, call->attn, t);
    return seen_algo->update(a, call, err);
}

void witness_end(witness *w)
{
    free(w->q);
    w->q = NULL;
}

static sl_status shown_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                int32_t *ids, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    const int32_t heads = c->gqa.attn.heads, n_q = heads / call->lists, dim = c->gqa.attn.dim;
    SL_TRY(seen_algo->retrieve(a, call, first, count, ids, err));
    for (int32_t i = 0; i < count * call->lists; i++) {
        int32_t t = first + i / call->lists, list = i % call->lists;
        seen_list l = {.layer = c->layer,
                       .pos = c->seqs->token_pos[t],
                       .list = list,
                       .q = c->gqa.attn.q + ((int64_t)t * heads + (int64_t)list * n_q) * dim,
                       .ids = ids + (int64_t)i * call->k,
                       .n_q = n_q,
                       .dim = dim,
                       .k = call->k,
                       .scale = c->gqa.attn.scale};
        if (c->seqs->token_seq[t] < 0)
            continue;
        seen_by->check(seen_by, &l);
    }
    return SL_OK;
}

const sl_algo_desc *witness_of(const sl_algo_desc *algo, witness *w)
{
    seen_algo = algo, seen_by = w;
    shown = *algo;
    shown.create = shown_create, shown.retrieve = shown_retrieve;
    shown.update = algo->update ? shown_update : NULL;
    return &shown;
}

sl_host_plane witness_plane(const witness *w, int32_t layer, int32_t plane)
{
    const sl_geometry *g = sl_arena_geometry(w->f->arena);
    return sl_geometry_plane(g, sl_arena_base(w->f->arena), sl_arena_pages(w->f->arena), layer, plane);
}

void witness_key(const witness *w, int32_t layer, int32_t pos, int32_t head, float *k)
{
    const sl_cache_plane *rows = &sl_arena_geometry(w->f->arena)->shape.planes[SL_CACHE_ROWS];
    const sl_model_config *m = w->f->cfg;
    const sl_host_plane h = witness_plane(w, layer, SL_CACHE_ROWS);
    const int32_t n = rows->unit_tokens, in_page = pos % SL_PAGE_TOKENS;
    const uint8_t *unit =
        h.base + w->run->pages[pos / SL_PAGE_TOKENS] * h.page_stride + in_page / n * h.row_stride;
    float v[WITNESS_MAX_DIM];
    if (rows->heads > 1)
        sl_gqa_row_decode(w->f->o.rows, n, m->attn.v_head_dim, unit + head * sl_cache_unit_bytes(rows),
                          in_page % n, k, v);
    else
        sl_gqa_row_decode(w->f->o.rows, n * m->attn.n_kv_heads, m->attn.v_head_dim, unit,
                          in_page % n * m->attn.n_kv_heads + head, k, v);
}

double witness_bf16(double v, double (*round_to)(double))
{
    int e;
    frexp(v, &e);
    double step = ldexp(1, e - 8);
    return round_to(v / step) * step;
}

/* Minus the places of n scores in their order (SL_GROUP_UNION); the largest of these and of what out has. */
static void add_places(const double *each, int32_t n, bool first, double *out)
{
    for (int32_t b = 0; b < n; b++) {
        double place = 0;
        for (int32_t c = 0; c < n; c++)
            place -= each[c] > each[b] || (each[c] == each[b] && c < b);
        out[b] = first ? place : fmax(out[b], place);
    }
}

/* Adds the scores of units 0 .. n - 1 for query head `from` of the list, or for the mean of `count` heads. */
static void add_head(const witness *w, const seen_list *l, int32_t from, int32_t count, int32_t n,
                     witness_score *score, double *out)
{
    const int32_t head = (l->list * l->n_q + from) / (w->f->cfg->attn.n_heads / w->f->cfg->attn.n_kv_heads);
    const sl_group_reduce reduce = w->f->o.select.reduce;
    double q[WITNESS_MAX_DIM], each[WITNESS_MAX_UNITS], top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < l->dim; i++) {
        q[i] = 0;
        for (int32_t h = 0; h < count; h++)
            q[i] += (double)l->q[(from + h) * l->dim + i] / count;
    }
    for (int32_t b = 0; b < n; b++) {
        each[b] = score(w, l, q, head, b);
        top = fmax(top, each[b]);
    }
    if (reduce == SL_GROUP_UNION) {
        add_places(each, n, from == 0, out);
        return;
    }
    for (int32_t b = 0; b < n; b++)
        sum += exp((double)l->scale * (each[b] - top));
    for (int32_t b = 0; b < n; b++)
        if (reduce == SL_GROUP_MAX)
            out[b] = from == 0 ? each[b] : fmax(out[b], each[b]);
        else if (reduce == SL_GROUP_MEAN)
            out[b] += each[b];
        else
            out[b] += exp((double)l->scale * (each[b] - top)) / sum;
}

void witness_scores(const witness *w, const seen_list *l, int32_t n, witness_score *score, double *out)
{
    const int32_t group = w->f->cfg->attn.n_heads / w->f->cfg->attn.n_kv_heads;
    const int32_t step = w->f->o.select.reduce == SL_GROUP_MEAN ? group : 1;
    MUST(n <= WITNESS_MAX_UNITS);
    for (int32_t b = 0; b < n; b++)
        out[b] = 0;
    for (int32_t h = 0; h < l->n_q; h += step)
        add_head(w, l, h, step, n, score, out);
}

int32_t witness_ids(const seen_list *l, int32_t last, bool *in)
{
    int32_t n = 0;
    for (; n < l->k && l->ids[n] >= 0; n++) {
        MUST(l->ids[n] <= last && (n == 0 || l->ids[n] > l->ids[n - 1]));
        in[l->ids[n]] = true;
    }
    for (int32_t i = n; i < l->k; i++)
        MUST(l->ids[i] == -1);
    return n;
}

static int falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

void witness_best(double *all, int32_t n_all, double *got, int32_t n_got)
{
    MUST(n_got <= n_all);
    qsort(all, (size_t)n_all, sizeof *all, falling);
    qsort(got, (size_t)n_got, sizeof *got, falling);
    for (int32_t i = 0; i < n_got; i++)
        MUST(fabs(all[i] - got[i]) <= 1e-5 * (1 + fabs(all[i])));
}

/* Adds the softmax over the keys 0 .. seen - 1 of one query to the sums of the first `before` of them. */
static void add_weights(const float *q, const float *keys, int32_t dim, int32_t seen, int32_t before,
                        double scale, double *sum)
{
    double p[WITNESS_MAX_UNITS], top = -INFINITY, all = 0;
    for (int32_t j = 0; j < seen; j++) {
        p[j] = 0;
        for (int32_t i = 0; i < dim; i++)
            p[j] += (double)q[i] * (double)keys[(int64_t)j * WITNESS_MAX_DIM + i];
        top = fmax(top, p[j]);
    }
    for (int32_t j = 0; j < seen; j++)
        all += exp(scale * (p[j] - top));
    for (int32_t j = 0; j < before; j++)
        sum[j] += exp(scale * (p[j] - top)) / all;
}

void witness_votes(const witness *w, const seen_list *l, int32_t kernel, bool largest, double *votes)
{
    const sl_model_config *m = w->f->cfg;
    const int32_t window = w->f->o.select.window, before = w->prompt - window, dim = l->dim;
    const int32_t group = m->attn.n_heads / m->attn.n_kv_heads;
    static float keys[WITNESS_MAX_UNITS][WITNESS_MAX_DIM];
    double sum[WITNESS_MAX_UNITS] = {0};
    for (int32_t j = 0; j < w->prompt; j++)
        witness_key(w, l->layer, j, l->list, keys[j]);
    for (int32_t t = 0; t < window; t++)
        for (int32_t g = 0; g < group; g++)
            add_weights(
                w->q +
                    (((int64_t)l->layer * window + t) * m->attn.n_heads + (int64_t)l->list * group + g) * dim,
                keys[0], dim, before + t + 1, before, (double)l->scale, sum);
    for (int32_t j = 0; j < before; j++) {
        double total = 0, most = -INFINITY;
        for (int32_t i = j - kernel / 2; i <= j + kernel / 2; i++) {
            total += i >= 0 && i < before ? sum[i] : 0;
            most = i >= 0 && i < before ? fmax(most, sum[i]) : most;
        }
        votes[j] = largest ? most : total / kernel;
    }
}

void witness_kept(const witness *w, const double *votes, const bool *in, int32_t before)
{
    const int32_t sinks = w->f->o.gates.sink_tokens;
    double least = INFINITY, most = -INFINITY;
    for (int32_t j = 0; j < before; j++) {
        MUST(j >= sinks || in[j]);
        if (j >= sinks && in[j])
            least = fmin(least, votes[j]);
        if (!in[j])
            most = fmax(most, votes[j]);
    }
    MUST(most <= least + 1e-5 * (1e-3 + fabs(most)));
}
