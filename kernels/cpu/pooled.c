/*
 * The ops of pooled index keys (kernels/pooled.h). A task of append is a sequence, a task of scores is a token: the keys of a token's
 * units are read page by page.
 */
#include "kernels/pooled.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/runs.h"
#include "kernels/cpu/vec.h"
#include "kernels/formats.h"

/* ---- append ---- */

/* A run of tokens: `t` is the first one, at position pos. */
typedef struct run {
    int64_t t, end;
    sl_place at;
    float *state;
} run;

/* The raw key, or the gate, of the token at a position of the run's sequence. */
static const float *raw(const sl_pool_append_params *p, const run *r, int32_t pos, bool gate)
{
    const int32_t unit = 1 << p->unit_log2;

    if (pos >= r->at.pos)
        return (gate ? p->gate : p->k) + (r->t + pos - r->at.pos) * p->ld;
    return r->state + ((int64_t)(gate ? unit : 0) + pos % unit) * p->dim;
}

static void pool(const sl_pool_append_params *p, const run *r, int32_t begin, float *key)
{
    const int32_t unit = 1 << p->unit_log2;

    for (int32_t d = 0; d < p->dim; d++) {
        float sum = 0, all = 0, top = -INFINITY;

        for (int32_t j = 0; p->gate && j < unit; j++)
            top = fmaxf(top, raw(p, r, begin + j, true)[d] + p->ape[(int64_t)j * p->dim + d]);
        for (int32_t j = 0; j < unit; j++) {
            const float w =
                p->gate ? expf(raw(p, r, begin + j, true)[d] + p->ape[(int64_t)j * p->dim + d] - top) : 1;

            all += w;
            sum += w * raw(p, r, begin + j, false)[d];
        }
        key[d] = sl_round_act(sum / all, p->act);
    }
}

static void finish(const sl_pool_append_params *p, int32_t begin, float *key)
{
    if (p->norm) {
        const float inv = sl_inverse_rms(key, p->dim, p->eps);
        for (int32_t d = 0; d < p->dim; d++)
            key[d] = sl_round_act(key[d] * inv * p->norm[d], p->act);
    }
    if (p->rope)
        sl_rope(key, p->rope, sl_cos_sin_at(p->cos_sin, begin, p->rope), false, p->act);
}

/* The key of the unit that begins at a position goes to its places. */
static uint32_t put(const sl_pool_append_params *p, const run *r, int32_t begin, const float *key)
{
    const sl_seq_tables *s = p->seqs;
    const int64_t entry = (int64_t)r->at.seq * s->ld + begin / SL_PAGE_TOKENS;
    const int32_t place = begin % SL_PAGE_TOKENS >> p->unit_log2;
    const size_t bytes = sizeof(float) * (size_t)p->dim;

    if (s->index_pages[entry] < 0 || (p->host.base && s->host_pages[entry] < 0))
        return SL_DEVERR_PAGE;
    memcpy(p->base + s->index_pages[entry] * p->page_stride + (size_t)place * bytes, key, bytes);
    if (p->host.base)
        memcpy(p->host.base + s->host_pages[entry] * p->host.page_stride + place * p->host.row_stride, key,
               bytes);
    return 0;
}

static uint32_t append_run(const sl_pool_append_params *p, const run *r, float *key)
{
    const int32_t unit = 1 << p->unit_log2, end = r->at.pos + (int32_t)(r->end - r->t);
    uint32_t bad = 0;

    for (int32_t begin = r->at.pos & -unit; begin + unit <= end; begin += unit) {
        pool(p, r, begin, key);
        finish(p, begin, key);
        bad |= put(p, r, begin, key);
    }
    for (int32_t pos = end & -unit; pos < end; pos++)
        for (int gate = 0; pos >= r->at.pos && gate <= (p->gate != NULL); gate++)
            memcpy(r->state + ((int64_t)gate * unit + pos % unit) * p->dim, raw(p, r, pos, gate),
                   sizeof(float) * (size_t)p->dim);
    return bad;
}

static uint32_t append_task(const void *arg, int64_t t, void *own)
{
    const sl_pool_append_params *p = arg;
    run r = {.t = t};
    uint32_t bad = sl_run_at(p->seqs, t, &r.at, &r.end);

    if (bad)
        return bad;
    r.state = (float *)(void *)(p->state + r.at.seq * p->state_stride);
    return append_run(p, &r, own);
}

static sl_status run_pool_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_pool_append_params *p = params;
    return sl_cpu_run(be, "pool_append", 4 * (size_t)p->dim, p->seqs->n_tokens, 20 * (int64_t)p->dim,
                      append_task, p, err);
}

const sl_op_impl sl_cpu_pool_append = {.run = run_pool_append};

/* ---- scores ---- */

/* n units of one page, for token t. */
static void score_page(const sl_pool_scores_params *p, int64_t t, const float *keys, int32_t n, float *dots,
                       float *out)
{
    sl_vec_products((sl_vec_rows){keys, p->dim, n},
                    (sl_vec_rows){p->q + t * p->heads * p->dim, p->dim, p->heads}, p->dim, dots,
                    SL_PAGE_TOKENS);
    for (int32_t i = 0; i < n; i++) {
        float sum = 0;

        for (int32_t h = 0; h < p->heads; h++) {
            const float d = dots[h * SL_PAGE_TOKENS + i];

            sum += (d < 0 ? 0.0f : d) * (p->weights ? p->weights[t * p->heads + h] : 1); /* NaN stays NaN */
        }
        out[i] = sum * p->scale;
    }
}

static uint32_t score_token(const void *arg, int64_t at, void *dots)
{
    const sl_pool_scores_params *p = arg;
    const int32_t per = SL_PAGE_TOKENS >> p->unit_log2;
    const int64_t t = p->token_first + at;
    sl_place place;
    uint32_t bad = sl_place_of(p->seqs, t, &place);

    p->unit_seq[at] = -1, p->unit_pos[at] = 0;
    if (bad)
        return bad;
    const int32_t units = (place.pos + 1) >> p->unit_log2;
    if (units == 0)
        return 0;
    if (units > p->ld_scores)
        return SL_DEVERR_POS;
    for (int32_t first = 0; first < units; first += per) {
        const int32_t page = p->seqs->index_pages[(int64_t)place.seq * p->seqs->ld + first / per];

        if (page < 0)
            return SL_DEVERR_PAGE;
        score_page(p, t, (const float *)(const void *)(p->base + page * p->page_stride),
                   units - first < per ? units - first : per, dots, p->scores + at * p->ld_scores + first);
    }
    p->unit_seq[at] = place.seq, p->unit_pos[at] = (units << p->unit_log2) - 1;
    return 0;
}

static sl_status run_pool_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_pool_scores_params *p = params;
    return sl_cpu_run(be, "pool_scores", 4 * (size_t)p->heads * SL_PAGE_TOKENS, p->token_count,
                      (int64_t)p->ld_scores * p->heads * p->dim / 8, score_token, p, err);
}

const sl_op_impl sl_cpu_pool_scores = {.run = run_pool_scores};

/* ---- open_units ---- */

/* The list of a token at a position, with its open unit; *n: its length. */
static uint32_t add_open(const sl_open_units_params *p, int32_t pos, int32_t *list, int32_t *n)
{
    while (*n < p->ld_ids && list[*n] >= 0)
        ++*n;
    if (((pos + 1) & ((1 << p->unit_log2) - 1)) == 0 || (*n > 0 && list[*n - 1] == pos >> p->unit_log2))
        return 0;
    if (*n == p->ld_ids)
        return SL_DEVERR_SELECTION;
    list[(*n)++] = pos >> p->unit_log2;
    return 0;
}

/* The tokens of n units, in their place: from the last one on, because a unit is never later in the list than its tokens. */
static uint32_t to_tokens(const sl_open_units_params *p, int32_t pos, int32_t *list, int32_t n)
{
    const int32_t unit = 1 << p->unit_log2;

    if (n == 0)
        return 0;
    const int32_t last = list[n - 1] << p->unit_log2, end = last + unit <= pos + 1 ? last + unit : pos + 1;
    if ((int64_t)(n - 1) * unit + end - last > p->ld_ids)
        return SL_DEVERR_SELECTION;
    for (int32_t i = (n - 1) * unit + end - last - 1; i >= 0; i--)
        list[i] = (list[i >> p->unit_log2] << p->unit_log2) + (i & (unit - 1));
    return 0;
}

static sl_status run_open_units(sl_backend *be, const void *params, sl_err *err)
{
    const sl_open_units_params *p = params;
    uint32_t bad = 0;
    (void)be;

    for (int64_t t = 0; t < p->seqs->n_tokens; t++) {
        const int32_t pos = p->seqs->token_pos[t];
        int32_t *list = p->ids + t * p->ld_ids, n = 0;

        if (p->seqs->token_seq[t] < 0)
            continue;
        bad |= add_open(p, pos, list, &n);
        if (p->by_token && !bad)
            bad |= to_tokens(p, pos, list, n);
    }
    return sl_deverr(bad, "open_units", err);
}

const sl_op_impl sl_cpu_open_units = {.run = run_open_units};
