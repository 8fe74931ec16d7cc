/* The synthetic model; see rig.h. */
#include "rig.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formats.h"

#define MAX_POS RIG_CONTEXT

struct rig {
    rig_opts o;
    sl_backend *be;
    sl_coord *coord;
    sl_coord_layer layers[RIG_LAYERS];
    uint8_t *host;
    int64_t page_bytes, row_bytes, block_bytes;
    int32_t host_pages[RIG_SEQS][RIG_PAGES], pool_pages[RIG_SEQS][RIG_PAGES]; /* index and row pages alike */
    int32_t row_pages[RIG_SEQS][RIG_PAGES];                                   /* -1 when hierarchical */
    int32_t hot_slot[RIG_SEQS];
    rig_seq seqs[RIG_SEQS];
    float cos_sin[MAX_POS * RIG_LORA]; /* enough for any rope width */
    float norm[RIG_LORA], norm_w[RIG_INDEX_DIM], norm_b[RIG_INDEX_DIM];
    /* activations of a step */
    float kv[RIG_MAX_STEP * (RIG_LORA + RIG_ROPE)], ik[RIG_MAX_STEP * RIG_INDEX_DIM];
    float iq[RIG_MAX_STEP * RIG_INDEX_HEADS * RIG_INDEX_DIM], iw[RIG_MAX_STEP * RIG_INDEX_HEADS];
    float iq_raw[RIG_MAX_STEP * RIG_INDEX_HEADS * RIG_INDEX_DIM], iw_raw[RIG_MAX_STEP * RIG_INDEX_HEADS];
    float ql[RIG_MAX_STEP * RIG_HEADS * (RIG_LORA + RIG_ROPE)], out[RIG_MAX_STEP * RIG_HEADS * RIG_LORA];
    int32_t token_seq[RIG_MAX_STEP], token_pos[RIG_MAX_STEP];
};

/* ---- activations ---- */

static float noise(uint32_t what, int layer, uint32_t content, int32_t pos, int i)
{
    uint64_t x = what * 0x9e3779b97f4a7c15ull + (uint64_t)layer * 0xbf58476d1ce4e5b9ull +
                 content * 0x94d049bb133111ebull + (uint64_t)pos * 0xd6e8feb86659fd93ull +
                 (uint64_t)i * 0xa0761d6478bd642full;
    x ^= x >> 32, x *= 0xd6e8feb86659fd93ull, x ^= x >> 29, x *= 0x9fb21c651e98df25ull, x ^= x >> 32;
    return (float)((double)(x >> 11) / 9007199254740992.0 * 4 - 2);
}

enum { KV = 1, IK, IQ, IW, QL, FIXED };

static void activations(rig *r, int layer, int t, uint32_t content, int32_t pos)
{
    for (int i = 0; i < RIG_LORA + RIG_ROPE; i++)
        r->kv[t * (RIG_LORA + RIG_ROPE) + i] = noise(KV, layer, content, pos, i);
    for (int i = 0; i < RIG_INDEX_DIM; i++)
        r->ik[t * RIG_INDEX_DIM + i] = noise(IK, layer, content, pos, i);
    for (int i = 0; i < RIG_INDEX_HEADS * RIG_INDEX_DIM; i++)
        r->iq_raw[t * RIG_INDEX_HEADS * RIG_INDEX_DIM + i] = noise(IQ, layer, content, pos, i);
    for (int i = 0; i < RIG_INDEX_HEADS; i++)
        r->iw_raw[t * RIG_INDEX_HEADS + i] = noise(IW, layer, content, pos, i);
    for (int i = 0; i < RIG_HEADS * (RIG_LORA + RIG_ROPE); i++)
        r->ql[t * RIG_HEADS * (RIG_LORA + RIG_ROPE) + i] = noise(QL, layer, content, pos, i);
}

/* ---- making ---- */

static bool has_indexer(const rig_opts *o, int layer)
{
    return !o->share || layer % 2 == 0;
}

static sl_cache_dims cache_dims(const rig_opts *o)
{
    return (sl_cache_dims){.rows = sl_row_format_of(o->row_format),
                           .index_format = o->index_format,
                           .latent = RIG_LORA,
                           .rope = RIG_ROPE,
                           .kv_heads = RIG_HEADS,
                           .head_dim = RIG_LORA,
                           .index_dim = RIG_INDEX_DIM,
                           .index_heads = RIG_INDEX_HEADS,
                           .index_topk = RIG_TOPK};
}

static sl_coord_opts coord_opts(const rig_opts *o, const sl_coord_layer *layers)
{
    return (sl_coord_opts){
        .algorithm = o->desc ? o->desc : sl_algo_find(o->algorithm),
        .use = SL_USE_PREFIX_REUSE | SL_USE_CHUNKED_PREFILL | SL_USE_DISAGGREGATION,
        .n_layers = RIG_LAYERS,
        .layers = layers,
        .cache = cache_dims(o),
        .max_seqs = RIG_SEQS,
        .hot_slots = o->hot_slots,
        .max_step_tokens = RIG_MAX_STEP,
        .max_context = RIG_CONTEXT,
        .policy = o->policy,
        .gates = {.sink_tokens = o->sinks,
                  .recent_tokens = o->recent,
                  .min_tokens = o->min_tokens,
                  .dense_layers = o->dense_layers,
                  .n_dense_layers = o->n_dense},
        .workspace_bytes = o->workspace,
        .poison = !o->no_poison,
    };
}

static void make_memory(rig *r)
{
    const rig_opts *o = &r->o;
    r->row_bytes = sl_row_bytes(o->row_format, RIG_LORA, RIG_ROPE);
    r->block_bytes = sl_index_block_bytes(o->index_format, RIG_INDEX_DIM);
    int64_t slice = SL_PAGE_TOKENS * r->row_bytes + r->block_bytes, pages = RIG_SEQS * RIG_PAGES;
    r->page_bytes = RIG_LAYERS * slice;
    r->host = malloc((size_t)(pages * r->page_bytes));
    memset(r->host, 0xff, (size_t)(pages * r->page_bytes));
    int64_t rows = pages * SL_PAGE_TOKENS + o->hot_slots * (o->hot_rows + o->tail_rows);
    for (int l = 0; l < RIG_LAYERS; l++) {
        sl_coord_layer *y = &r->layers[l];
        y->has_indexer = has_indexer(o, l);
        y->rows = (sl_row_view){malloc((size_t)(rows * r->row_bytes)),
                                r->row_bytes,
                                (int32_t)pages * SL_PAGE_TOKENS,
                                o->hot_rows,
                                o->tail_rows,
                                0,
                                0};
        memset(y->rows.base, 0xff, (size_t)(rows * r->row_bytes));
        y->host_rows = (sl_host_plane){r->host + l * slice, r->page_bytes, r->row_bytes};
        if (!y->has_indexer)
            continue;
        sl_algo_plane *index = &y->planes[RIG_INDEX];
        index->device = malloc((size_t)(pages * r->block_bytes));
        memset(index->device, 0xff, (size_t)(pages * r->block_bytes));
        index->device_stride = r->block_bytes;
        index->host = (sl_host_plane){r->host + l * slice + SL_PAGE_TOKENS * r->row_bytes, r->page_bytes,
                                      r->block_bytes};
    }
    for (int s = 0; s < RIG_SEQS; s++)
        for (int p = 0; p < RIG_PAGES; p++) {
            r->host_pages[s][p] = (s * RIG_PAGES + p) * 5 % (int)pages; /* 5 and 28 are coprime: scattered */
            r->pool_pages[s][p] = (s * RIG_PAGES + p) * 3 % (int)pages;
        }
}

static void make_constants(rig *r)
{
    for (int i = 0; i < RIG_LORA; i++)
        r->norm[i] = 1 + noise(FIXED, 0, 1, 0, i) / 8;
    for (int i = 0; i < RIG_INDEX_DIM; i++)
        r->norm_w[i] = 1 + noise(FIXED, 0, 2, 0, i) / 8, r->norm_b[i] = noise(FIXED, 0, 3, 0, i) / 8;
    for (int p = 0; p < MAX_POS; p++)
        for (int j = 0; j < RIG_ROPE / 2; j++) {
            double a = p * pow(10000, -2.0 * j / RIG_ROPE);
            r->cos_sin[(p * RIG_ROPE / 2 + j) * 2] = (float)cos(a);
            r->cos_sin[(p * RIG_ROPE / 2 + j) * 2 + 1] = (float)sin(a);
        }
}

static int32_t least_hot(const rig_opts *o)
{
    sl_coord_layer layers[RIG_LAYERS] = {0};
    for (int l = 0; l < RIG_LAYERS; l++)
        layers[l].has_indexer = has_indexer(o, l);
    sl_coord_opts c = coord_opts(o, layers);
    int32_t width = 0, of_run = 0;
    sl_err err = {0};
    ck_assert_msg(sl_coord_width(&c, &width, &of_run, &err) == SL_OK, "%s", err.text);
    return of_run;
}

sl_status rig_try(const rig_opts *o, sl_err *err)
{
    sl_backend *be;
    sl_backend_opts bo = {.threads = 1};
    sl_coord_layer layers[RIG_LAYERS] = {0};
    for (int l = 0; l < RIG_LAYERS; l++) {
        layers[l].has_indexer = has_indexer(o, l);
        layers[l].rows = (sl_row_view){NULL, 160, 0, o->hot_rows, o->tail_rows, 0, 0};
    }
    sl_coord_opts c = coord_opts(o, layers);
    if (!c.algorithm)
        return sl_fail_unknown(err, "sparse algorithm", o->algorithm, sl_algo_names());
    c.poison = false; /* there are no rows */
    sl_coord *coord = NULL;
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, NULL), SL_OK);
    sl_status st = sl_coord_create(be, &c, &coord, err);
    ck_assert(st == SL_OK || coord == NULL);
    sl_coord_destroy(coord);
    sl_backend_destroy(be);
    return st;
}

rig *rig_create(const rig_opts *opts)
{
    rig *r = calloc(1, sizeof *r);
    r->o = *opts;
    if (r->o.hot_rows == 0)
        r->o.hot_rows = least_hot(opts);
    if (r->o.tail_rows == 0)
        r->o.tail_rows = 5;
    sl_backend_opts bo = {.threads = opts->threads ? opts->threads : 1};
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &r->be, NULL), SL_OK);
    make_memory(r);
    make_constants(r);
    memset(r->row_pages, 0xff, sizeof r->row_pages);
    for (int s = 0; s < RIG_SEQS; s++) {
        r->hot_slot[s] = -1;
        r->seqs[s].o = calloc(RIG_LAYERS, sizeof *r->seqs[s].o);
        r->seqs[s].ids = calloc((size_t)RIG_LAYERS * RIG_CONTEXT * RIG_CONTEXT, 4);
    }
    sl_coord_opts c = coord_opts(&r->o, r->layers);
    sl_err err = {0};
    ck_assert_msg(sl_coord_create(r->be, &c, &r->coord, &err) == SL_OK, "%s", err.text);
    return r;
}

void rig_destroy(rig *r)
{
    sl_coord_destroy(r->coord);
    sl_backend_destroy(r->be);
    for (int l = 0; l < RIG_LAYERS; l++) {
        free(r->layers[l].rows.base);
        free(r->layers[l].planes[RIG_INDEX].device);
    }
    for (int s = 0; s < RIG_SEQS; s++) {
        free(r->seqs[s].o);
        free(r->seqs[s].ids);
    }
    free(r->host);
    free(r);
}

sl_coord *rig_coord(rig *r)
{
    return r->coord;
}

rig_seq *rig_seq_at(rig *r, int seq)
{
    return &r->seqs[seq];
}

/* ---- life cycle ---- */

static sl_coord_request request_of(rig *r, int seq)
{
    return (sl_coord_request){
        seq, r->hot_slot[seq], r->seqs[seq].len, r->host_pages[seq], r->pool_pages[seq], r->pool_pages[seq]};
}

void rig_open(rig *r, int seq, uint32_t content, bool hierarchical, int32_t n_cached)
{
    r->hot_slot[seq] = hierarchical ? seq : -1;
    r->seqs[seq].open = true, r->seqs[seq].content = content, r->seqs[seq].len = n_cached;
    for (int p = 0; p < RIG_PAGES; p++)
        r->row_pages[seq][p] = hierarchical ? -1 : r->pool_pages[seq][p];
    sl_coord_request q = request_of(r, seq);
    sl_err err = {0};
    ck_assert_msg(sl_coord_request_begin(r->coord, &q, &err) == SL_OK, "%s", err.text);
}

/* Stale device memory of a sequence: NaN. */
static void poison_pool(rig *r, int seq, bool index)
{
    for (int p = 0; p < RIG_PAGES; p++)
        for (int l = 0; l < RIG_LAYERS; l++) {
            int64_t bytes = SL_PAGE_TOKENS * r->row_bytes;
            memset(r->layers[l].rows.base + r->pool_pages[seq][p] * bytes, 0xff, (size_t)bytes);
            if (index && r->layers[l].planes[RIG_INDEX].device)
                memset(r->layers[l].planes[RIG_INDEX].device + r->pool_pages[seq][p] * r->block_bytes, 0xff,
                       (size_t)r->block_bytes);
        }
}

void rig_spill(rig *r, int seq)
{
    r->hot_slot[seq] = seq;
    sl_coord_request q = request_of(r, seq);
    sl_err err = {0};
    ck_assert_msg(sl_coord_request_spill(r->coord, &q, &err) == SL_OK, "%s", err.text);
    memset(r->row_pages[seq], 0xff, sizeof r->row_pages[seq]);
    poison_pool(r, seq, false);
}

void rig_close(rig *r, int seq)
{
    sl_coord_request_end(r->coord, seq);
    r->seqs[seq].open = false;
    poison_pool(r, seq, true);
}

static uint8_t *page_at(rig *r, int seq, int p)
{
    return r->host + r->host_pages[seq][p] * r->page_bytes;
}

void rig_copy_pages(rig *to, int to_seq, rig *from, int from_seq, int32_t n_tokens)
{
    for (int p = 0; p * SL_PAGE_TOKENS < n_tokens; p++)
        memcpy(page_at(to, to_seq, p), page_at(from, from_seq, p), (size_t)to->page_bytes);
    memcpy(to->seqs[to_seq].o, from->seqs[from_seq].o, RIG_LAYERS * sizeof *to->seqs[to_seq].o);
    memcpy(to->seqs[to_seq].ids, from->seqs[from_seq].ids,
           (size_t)RIG_LAYERS * RIG_CONTEXT * RIG_CONTEXT * 4);
}

/* ---- steps ---- */

static int32_t *ids_of(const rig_seq *s, int layer, int32_t pos)
{
    return s->ids + ((int64_t)layer * RIG_CONTEXT + pos) * RIG_CONTEXT;
}

static void keep_results(rig *r, int layer, int total)
{
    int32_t ld;
    const int32_t *sel = sl_coord_selection(r->coord, &ld);
    for (int t = 0; t < total; t++) {
        rig_seq *s = &r->seqs[r->token_seq[t]];
        int32_t pos = r->token_pos[t], *ids = ids_of(s, layer, pos);
        memcpy(s->o[layer][pos], r->out + t * RIG_HEADS * RIG_LORA, sizeof s->o[layer][pos]);
        memset(ids, 0xff, RIG_CONTEXT * 4);
        if (sel)
            memcpy(ids, sel + (int64_t)t * ld, (size_t)(ld < RIG_CONTEXT ? ld : RIG_CONTEXT) * 4);
        else
            ids[0] = -2;
    }
}

static void index_queries(rig *r, int total)
{
    sl_index_query_params q = {.q = r->iq_raw,
                               .wproj = r->iw_raw,
                               .pos = r->token_pos,
                               .cos_sin = r->cos_sin,
                               .q_out = r->iq,
                               .weights = r->iw,
                               .tokens = total,
                               .heads = RIG_INDEX_HEADS,
                               .dim = RIG_INDEX_DIM,
                               .rope = RIG_ROPE,
                               .format = r->o.index_format,
                               .act = SL_F32};
    sl_err err = {0};
    ck_assert_msg(sl_be_run(r->be, SL_OP_INDEX_QUERY, &q, &err) == SL_OK, "%s", err.text);
}

static void run_layer(rig *r, int layer, const sl_seq_tables *seqs)
{
    for (int t = 0; t < seqs->n_tokens; t++)
        activations(r, layer, t, r->seqs[r->token_seq[t]].content, r->token_pos[t]);
    sl_attn_call call = {
        .kind = SL_ATTN_MLA,
        .layer = layer,
        .has_indexer = has_indexer(&r->o, layer),
        .seqs = seqs,
        .mla.kv = {.kv = r->kv,
                   .norm = r->norm,
                   .cos_sin = r->cos_sin,
                   .ld_kv = RIG_LORA + RIG_ROPE,
                   .lora = RIG_LORA,
                   .rope = RIG_ROPE,
                   .eps = 1e-6f,
                   .format = r->o.row_format,
                   .act = SL_F32,
                   .norm_dtype = SL_F32},
        .index = {.key = {.k = r->ik,
                          .norm_weight = r->norm_w,
                          .norm_bias = r->norm_b,
                          .cos_sin = r->cos_sin,
                          .ld_k = RIG_INDEX_DIM,
                          .dim = RIG_INDEX_DIM,
                          .rope = RIG_ROPE,
                          .eps = 1e-6f,
                          .format = r->o.index_format,
                          .act = SL_F32,
                          .norm_dtype = SL_F32},
                  .q = r->iq,
                  .weights = r->iw,
                  .heads = RIG_INDEX_HEADS,
                  .dim = RIG_INDEX_DIM,
                  .topk = RIG_TOPK,
                  .format = r->o.index_format},
        .mla.attn = {.ql = r->ql,
                     .o = r->out,
                     .tokens = seqs->n_tokens,
                     .heads = RIG_HEADS,
                     .lora = RIG_LORA,
                     .rope = RIG_ROPE,
                     .scale = 0.2f,
                     .format = r->o.row_format},
    };
    if (call.has_indexer)
        index_queries(r, seqs->n_tokens);
    memset(r->out, 0xff, sizeof r->out);
    sl_err err = {0};
    ck_assert_msg(sl_coord_attend(r->coord, &call, &err) == SL_OK, "%s", err.text);
    keep_results(r, layer, seqs->n_tokens);
}

int rig_half_step(rig *r, const int *seqs, const int32_t *n, int count, int layers)
{
    sl_coord_run runs[RIG_SEQS];
    int total = 0;
    for (int i = 0; i < count; i++) {
        runs[i] = (sl_coord_run){seqs[i], n[i]};
        for (int32_t k = 0; k < n[i]; k++, total++) {
            MUST(total < RIG_MAX_STEP);
            r->token_seq[total] = seqs[i];
            r->token_pos[total] = r->seqs[seqs[i]].len + k;
        }
    }
    sl_err err = {0};
    ck_assert_msg(sl_coord_step_begin(r->coord, runs, count, &err) == SL_OK, "%s", err.text);
    sl_seq_tables t = {total,
                       RIG_SEQS,
                       RIG_PAGES,
                       r->token_seq,
                       r->token_pos,
                       &r->host_pages[0][0],
                       &r->pool_pages[0][0],
                       &r->row_pages[0][0],
                       r->hot_slot,
                       NULL};
    for (int l = 0; l < layers; l++)
        run_layer(r, l, &t);
    return total;
}

void rig_step(rig *r, const int *seqs, const int32_t *n, int count)
{
    rig_half_step(r, seqs, n, count, RIG_LAYERS);
    sl_coord_step_end(r->coord);
    for (int i = 0; i < count; i++)
        r->seqs[seqs[i]].len += n[i];
}

/* ---- the naive computation ---- */

static void host_row(rig *r, int layer, int seq, int32_t pos, float *values)
{
    const sl_host_plane *h = &r->layers[layer].host_rows;
    sl_row_decode(r->o.row_format, RIG_LORA, RIG_ROPE,
                  h->base + r->host_pages[seq][pos / SL_PAGE_TOKENS] * h->page_stride +
                      pos % SL_PAGE_TOKENS * h->row_stride,
                  values);
}

/* Index score of key j for the query of (layer, pos), from the host page's key. */
static double naive_score(rig *r, int layer, int seq, int32_t j)
{
    float key[RIG_INDEX_DIM];
    const sl_host_plane *h = &r->layers[layer].planes[RIG_INDEX].host;
    const uint8_t *block = h->base + r->host_pages[seq][j / SL_PAGE_TOKENS] * h->page_stride;
    sl_index_key_decode(r->o.index_format, RIG_INDEX_DIM, block, j % SL_PAGE_TOKENS, key);
    double s = 0;
    for (int head = 0; head < RIG_INDEX_HEADS; head++) {
        double dot = 0;
        for (int i = 0; i < RIG_INDEX_DIM; i++) {
            int at = head * RIG_INDEX_DIM + i;
            double q = r->o.index_format == SL_INDEX_PLAIN
                           ? (double)r->iq[at]
                           : (double)sl_e4m3_to_f32(((const uint8_t *)r->iq)[at]);
            dot += q * (double)key[i];
        }
        s += dot > 0 ? dot * (double)r->iw[head] : 0;
    }
    return s;
}

static bool is_dense(const rig *r, int layer)
{
    for (int i = 0; i < r->o.n_dense; i++)
        if (r->o.dense_layers[i] == layer)
            return true;
    return false;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The list must be ascending and hold the forced tokens, and the multiset of its other scores must be that of the
 * best. */
static void check_selection(rig *r, int layer, int seq, int32_t pos, const int32_t *ids)
{
    int owner = has_indexer(&r->o, layer) ? layer : layer - 1;
    double all[RIG_CONTEXT], got[RIG_CONTEXT];
    bool in[RIG_CONTEXT] = {false};
    int n = 0, n_all = 0, n_got = 0;
    activations(r, owner, 0, r->seqs[seq].content, pos);
    r->token_pos[0] = pos;
    index_queries(r, 1);
    for (; n < RIG_CONTEXT && ids[n] >= 0; n++) {
        MUST(ids[n] <= pos && (n == 0 || ids[n] > ids[n - 1]));
        in[ids[n]] = true;
    }
    bool everything = pos + 1 <= RIG_TOPK || pos + 1 <= r->o.min_tokens;
    MUST(n == (everything ? pos + 1 : RIG_TOPK));
    for (int32_t j = 0; j <= pos; j++) {
        bool forced = j < r->o.sinks || j > pos - r->o.recent;
        MUST(!forced || in[j]);
        double s = naive_score(r, owner, seq, j);
        if (!forced)
            all[n_all++] = s;
        if (!forced && in[j])
            got[n_got++] = s;
    }
    qsort(all, (size_t)n_all, sizeof *all, by_value);
    qsort(got, (size_t)n_got, sizeof *got, by_value);
    for (int i = 0; i < n_got; i++)
        MUST(fabs(all[i] - got[i]) <= 1e-4 * (1 + fabs(all[i])));
}

static void check_output(rig *r, int layer, int seq, int32_t pos, const int32_t *ids, int n)
{
    activations(r, layer, 0, r->seqs[seq].content, pos);
    for (int h = 0; h < RIG_HEADS; h++) {
        double p[RIG_CONTEXT], max = -INFINITY, sum = 0, o[RIG_LORA] = {0};
        float row[RIG_LORA + RIG_ROPE];
        const float *q = r->ql + h * (RIG_LORA + RIG_ROPE);
        for (int i = 0; i < n; i++) {
            host_row(r, layer, seq, ids[i], row);
            p[i] = 0;
            for (int k = 0; k < RIG_LORA + RIG_ROPE; k++)
                p[i] += (double)q[k] * (double)row[k];
            p[i] *= 0.2f;
            max = p[i] > max ? p[i] : max;
        }
        for (int i = 0; i < n; i++) {
            host_row(r, layer, seq, ids[i], row);
            double e = exp(p[i] - max);
            sum += e;
            for (int k = 0; k < RIG_LORA; k++)
                o[k] += e * (double)row[k];
        }
        for (int k = 0; k < RIG_LORA; k++)
            MUST(fabs(o[k] / sum - (double)r->seqs[seq].o[layer][pos][h * RIG_LORA + k]) < 2e-4);
    }
}

void rig_check(rig *r, int seq, int32_t pos)
{
    for (int l = 0; l < RIG_LAYERS; l++) {
        int32_t everything[RIG_CONTEXT], *ids = ids_of(&r->seqs[seq], l, pos);
        int n = 0;
        if (ids[0] == -2) { /* the coordinator kept no list: dense */
            MUST(is_dense(r, l) || strcmp(r->o.algorithm, "dsa") != 0);
            for (int32_t j = 0; j <= pos; j++)
                everything[n++] = j;
            ids = everything;
        } else {
            MUST(!is_dense(r, l));
            check_selection(r, l, seq, pos, ids);
            while (n < RIG_CONTEXT && ids[n] >= 0)
                n++;
        }
        check_output(r, l, seq, pos, ids, n);
    }
}

void rig_same(const rig_seq *a, const rig_seq *b, int32_t from, int32_t to)
{
    for (int l = 0; l < RIG_LAYERS; l++)
        for (int32_t p = from; p < to; p++) {
            if (memcmp(a->o[l][p], b->o[l][p], sizeof a->o[l][p]) != 0)
                ck_abort_msg("outputs differ in layer %d at position %d", l, p);
            if (memcmp(ids_of(a, l, p), ids_of(b, l, p), RIG_CONTEXT * 4) != 0)
                ck_abort_msg("selections differ in layer %d at position %d", l, p);
        }
}
