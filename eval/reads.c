/* See reads.h. A key is decoded once for all query heads that share it. */
#include "eval/reads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/dump.h"
#include "eval/keys.h"

struct sl_eval_meter {
    const sl_algo_desc *algorithm;
    sl_cache_dims dims;
    sl_cache_shape shape;
    int32_t heads, max_context;
    float *scores;  /* [heads][max_context] */
    bool *selected; /* [max_context] */
    sl_eval_reads sums;
    FILE *dump;                               /* NULL: lists are not written */
    double *shares;                           /* [max_context] of the query heads of a list */
    float *selected_shares, *selected_scores; /* [max_context] */
};

/* scores[head][position], of the query heads that share KV head kv_head. */
static void score(sl_eval_meter *m, const sl_eval_keys *s, int32_t kv_head, int32_t n)
{
    float key[SL_EVAL_KEY_DIM];
    for (int32_t j = 0; j < n; j++) {
        sl_eval_keys_load(s, 0, kv_head, j, key);
        for (int32_t h = 0; h < s->heads; h++) {
            const float *q = s->q + ((int64_t)kv_head * s->heads + h) * s->dim;
            double sum = 0;
            for (int32_t i = 0; i < s->dim; i++)
                sum += (double)q[i] * (double)key[i];
            m->scores[(int64_t)h * m->max_context + j] = (float)(sum * (double)s->scale);
        }
    }
}

/* Adds one head's shares. */
static void add_head(sl_eval_meter *m, const float *scores, int32_t n)
{
    float max = -INFINITY;
    double all = 0, kept = 0, middle = 0, middle_kept = 0;
    for (int32_t j = 0; j < n; j++)
        max = fmaxf(max, scores[j]);
    for (int32_t j = 0; j < n; j++) {
        const double p = exp((double)scores[j] - (double)max);
        const bool inner = j >= SL_EVAL_SINKS && j < n - SL_EVAL_NEWEST;
        all += p;
        kept += m->selected[j] ? p : 0;
        middle += inner ? p : 0;
        middle_kept += inner && m->selected[j] ? p : 0;
    }
    for (int32_t j = 0; m->dump && j < n; j++)
        m->shares[j] += exp((double)scores[j] - (double)max) / all;
    m->sums.all += 1;
    m->sums.kept += kept / all;
    m->sums.middle += middle / all;
    m->sums.middle_kept += middle_kept / all;
}

/* Marks the positions of a list; returns how many they are, and adds to *entries. */
static int32_t mark(sl_eval_meter *m, const sl_coord_seen *s, const int32_t *ids, int32_t n,
                    uint64_t *entries)
{
    int32_t marked = 0;
    memset(m->selected, 0, (size_t)n * sizeof *m->selected);
    for (int32_t i = 0; i < s->k && ids[i] >= 0; i++) {
        const int32_t first = ids[i] << s->block_log2, end = first + (1 << s->block_log2);
        for (int32_t j = first; j < end && j < n; j++, marked++)
            m->selected[j] = true;
        ++*entries;
    }
    return marked;
}

/* The model's index keys are read only by the algorithm that selects by them. */
static bool reads_plane(const sl_eval_meter *m, const sl_cache_plane *plane, const sl_attn_call *call)
{
    if (plane->role == SL_PLANE_ROWS || (plane->role == SL_PLANE_INDEX && !m->algorithm->needs_indexer))
        return false;
    return !plane->indexed_only || call->has_indexer;
}

/* Bytes of n tokens in the planes and in other memory by which the algorithm selects. */
static uint64_t meta_bytes(const sl_eval_meter *m, const sl_attn_call *call, int32_t n)
{
    uint64_t bytes = m->algorithm->query_bytes ? m->algorithm->query_bytes(&m->dims, n) : 0;
    for (int32_t p = 0; p < m->shape.n_planes; p++)
        if (reads_plane(m, &m->shape.planes[p], call))
            bytes += (uint64_t)sl_cache_page_bytes(&m->shape.planes[p]) * (uint64_t)n / SL_PAGE_TOKENS;
    return bytes;
}

/* The score by which unit `id` of a list was selected by the query at position n - 1; NaN: there is none. */
static float score_of(const sl_coord_seen *s, int32_t list, int32_t id, int32_t n)
{
    const sl_algo_scores *c = s->scores;
    const int64_t begin = (int64_t)id << s->block_log2, end = (int64_t)(id + 1) << s->block_log2;
    if (!c || !c->at || n - 1 < c->from_pos || s->first < c->first || s->first >= c->first + c->count ||
        id >= c->ld || begin < c->sinks || end > n - c->recent)
        return NAN;
    return c->at[((int64_t)(s->first - c->first) * s->lists + list) * c->ld + id];
}

/* Writes a list with the shares that `heads` query heads have added up, which begin anew. */
static void dump_list(sl_eval_meter *m, const sl_coord_seen *s, int32_t list, int32_t heads, int32_t n)
{
    const int32_t *ids = s->ids + (int64_t)list * s->k, unit = 1 << s->block_log2;
    sl_eval_dump_list l = {
        .layer = s->call->layer, .list = list, .position = n - 1, .unit_tokens = unit, .ids = ids};
    for (; l.n < s->k && ids[l.n] >= 0; l.n++) {
        double sum = 0;
        for (int32_t j = ids[l.n] << s->block_log2; j < n && j >> s->block_log2 == ids[l.n]; j++)
            sum += m->shares[j];
        m->selected_shares[l.n] = (float)(sum / heads);
        m->selected_scores[l.n] = score_of(s, list, ids[l.n], n);
        l.mass += sum / heads;
    }
    l.shares = m->selected_shares, l.scores = m->selected_scores;
    sl_eval_dump_one(m->dump, &l);
    memset(m->shares, 0, (size_t)n * sizeof *m->shares);
}

static void seen(void *ctx, const sl_coord_seen *s)
{
    sl_eval_meter *m = ctx;
    const sl_eval_keys src = sl_eval_keys_of(s->call, s->layer->rows, s->layer->host_rows);
    const sl_seq_tables *t = s->call->seqs;
    if (t->n_tokens != 1 || t->token_seq[0] < 0 || t->token_pos[0] >= m->max_context ||
        src.heads > m->heads || src.dim > SL_EVAL_KEY_DIM)
        return; /* not a decode step of the sequences that this meter was made for */
    const int32_t n = t->token_pos[0] + 1;
    uint64_t entries = 0;
    bool everything = true;
    for (int32_t g = 0; g < src.kv_heads; g++) {
        if (g == 0 || s->lists > 1)
            everything &= mark(m, s, s->ids + (int64_t)g * s->k, n, &entries) == n;
        score(m, &src, g, n);
        for (int32_t h = 0; h < src.heads; h++)
            add_head(m, m->scores + (int64_t)h * m->max_context, n);
        if (m->dump && (s->lists > 1 || g + 1 == src.kv_heads))
            dump_list(m, s, s->lists > 1 ? g : 0, s->lists > 1 ? src.heads : src.heads * src.kv_heads, n);
    }
    m->sums.steps += s->call->layer == 0;
    m->sums.row_bytes += entries * (uint64_t)s->layer->rows.row_bytes;
    m->sums.meta_bytes += everything ? 0 : meta_bytes(m, s->call, n);
}

sl_eval_meter *sl_eval_meter_create(const sl_algo_desc *algorithm, const sl_cache_dims *dims,
                                    const sl_cache_shape *shape, int32_t heads, int32_t max_context)
{
    sl_eval_meter *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    *m = (sl_eval_meter){
        .algorithm = algorithm, .dims = *dims, .shape = *shape, .heads = heads, .max_context = max_context};
    m->scores = malloc((size_t)heads * (size_t)max_context * sizeof *m->scores);
    m->selected = malloc((size_t)max_context * sizeof *m->selected);
    if (m->scores && m->selected)
        return m;
    sl_eval_meter_destroy(m);
    return NULL;
}

void sl_eval_meter_destroy(sl_eval_meter *m)
{
    if (!m)
        return;
    free(m->scores);
    free(m->selected);
    free(m->shares);
    free(m->selected_shares);
    free(m->selected_scores);
    free(m);
}

bool sl_eval_meter_dump(sl_eval_meter *m, FILE *to)
{
    m->shares = calloc((size_t)m->max_context, sizeof *m->shares);
    m->selected_shares = malloc((size_t)m->max_context * sizeof *m->selected_shares);
    m->selected_scores = malloc((size_t)m->max_context * sizeof *m->selected_scores);
    m->dump = to;
    return m->shares && m->selected_shares && m->selected_scores;
}

sl_coord_probe sl_eval_meter_probe(sl_eval_meter *m)
{
    return (sl_coord_probe){.seen = seen, .ctx = m};
}

sl_eval_reads sl_eval_meter_take(sl_eval_meter *m)
{
    sl_eval_reads r = m->sums;
    m->sums = (sl_eval_reads){0};
    return r;
}

void sl_eval_reads_add(sl_eval_reads *to, const sl_eval_reads *from)
{
    to->all += from->all;
    to->kept += from->kept;
    to->middle += from->middle;
    to->middle_kept += from->middle_kept;
    to->steps += from->steps;
    to->row_bytes += from->row_bytes;
    to->meta_bytes += from->meta_bytes;
    to->tiles += from->tiles;
    to->tiles_skipped += from->tiles_skipped;
}

double sl_eval_tiles(const sl_eval_reads *r)
{
    return r->tiles ? 1 - (double)r->tiles_skipped / (double)r->tiles : -1;
}

double sl_eval_mass(const sl_eval_reads *r)
{
    return r->all > 0 ? r->kept / r->all : -1;
}

double sl_eval_middle_mass(const sl_eval_reads *r)
{
    return r->middle > 0 ? r->middle_kept / r->middle : -1;
}
