/*
 * The strategies of the synthetic oracle that keep state for each request: rocket_kv, cluster_kv, pq_cache. Parameters are the
 * defaults of the algorithms; what is a number of tokens there follows from the oracle's budget, so that the short run
 * has the same proportions as the long one.
 */
#include <math.h>
#include <stdlib.h>

#include "kernels/codes.h"
#include "kernels/retained.h"
#include "tests/unit/sparse/oracle_methods.h"

enum { KV = ORACLE_KV, HEADS = ORACLE_HEADS, DIM = ORACLE_DIM };

/* The algorithms' default is 20; what is found hardly depends on it, and the test is short. */
enum { ITERATIONS = 5 };

/* ---- rocket_kv ---- */

enum { ROCKET_KERNEL = 63, ROCKET_PAGE_LOG2 = 2 };

/*
 * Stage 1: twice the budget is kept, as the default of 2,048 for a budget of 1,024. It runs on the CPU whatever the
 * backend is: a kept token more or less moves all later pages, and then the sets of two backends could not be compared.
 * That the votes agree is what snapkv shows. Returns [KV][kept], NULL after a failure.
 */
static int32_t *keep(const oracle_input *in, int32_t kept, sl_err *err)
{
    oracle_input on_cpu = *in;
    int32_t *h = malloc(sizeof *h * (size_t)(KV * kept));

    SL_CHECK(h, "out of memory");
    on_cpu.be = in->cpu;
    oracle_rig r = oracle_rig_make(&on_cpu, 0, err);
    oracle_read(&r, h, oracle_vote(&r, in->d->n - 1, ROCKET_KERNEL, SL_POOLING_MAX, kept),
                sizeof *h * (size_t)(KV * kept));
    if (oracle_done(&r) == SL_OK)
        return h;
    free(h);
    return NULL;
}

/* The prompt is all tokens but the last, which reads a quarter of the budget. */
static sl_retained retain(oracle_rig *r, const int32_t *kept, int32_t n_kept, sl_kt_type type)
{
    const int32_t prompt = r->in->d->n - 1, prompts[2] = {prompt, n_kept};
    const int64_t page = sl_retained_page_bytes(KV, DIM, ROCKET_PAGE_LOG2, type);
    sl_retained of = {.prompts = oracle_put(r, prompts, sizeof prompts),
                      .kept = oracle_put(r, kept, sizeof *kept * (size_t)(KV * n_kept)),
                      .base = oracle_put(r, NULL, (size_t)(r->n_pages * page)),
                      .page_stride = page,
                      .host_rows = r->host_rows,
                      .rows = r->rows,
                      .ld_kept = n_kept,
                      .window = ORACLE_WINDOW,
                      .page_log2 = ROCKET_PAGE_LOG2,
                      .kv_heads = KV,
                      .dim = DIM,
                      .format = SL_ROW_GQA_BF16,
                      .type = type};
    sl_seq_tables end = r->all;
    end.n_tokens = 2;
    end.token_pos = r->all.token_pos ? r->all.token_pos + prompt - 1 : NULL;
    const sl_retained_append_params a = {.seqs = &end, .r = of};
    oracle_run_op(r, SL_OP_RETAINED_APPEND, &a);
    return of;
}

static const int32_t *best_pages(oracle_rig *r, const sl_retained *of, int32_t n_kept, int32_t select)
{
    const int32_t ld = ((n_kept + ORACLE_WINDOW) >> ROCKET_PAGE_LOG2) + 1;
    const sl_retained_scores_params s = {.q = oracle_put(r, r->in->d->q, sizeof(float) * HEADS * DIM),
                                         .seqs = &r->last,
                                         .r = *of,
                                         .scores = oracle_put(r, NULL, sizeof(float) * (size_t)(KV * ld)),
                                         .place = oracle_put(r, NULL, 2 * sizeof(int32_t)),
                                         .token_count = 1,
                                         .heads = HEADS,
                                         .ld_scores = ld,
                                         .top_r = DIM,
                                         .select = select,
                                         .scale = 1 / sqrtf(DIM)};
    oracle_run_op(r, SL_OP_RETAINED_SCORES, &s);
    sl_seq_tables seqs = r->last;
    seqs.token_seq = s.place;
    seqs.token_pos = s.place ? s.place + 1 : NULL;
    const sl_topk_params t = {.scores = s.scores,
                              .seqs = &seqs,
                              .ids = oracle_put(r, NULL, sizeof(int32_t) * (size_t)(KV * select)),
                              .token_count = 1,
                              .k = select,
                              .ld_scores = ld,
                              .ld_ids = select,
                              .lists = KV,
                              .block_log2 = ROCKET_PAGE_LOG2};
    oracle_run_op(r, SL_OP_TOPK, &t);
    return t.ids;
}

sl_status oracle_run_rocket(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    const int32_t n_kept = 2 * in->budget - ORACLE_WINDOW, tokens = in->budget / 4,
                  select = tokens >> ROCKET_PAGE_LOG2;
    int32_t *kept = keep(in, n_kept, err);

    if (!kept)
        return SL_ERR_INTERNAL;
    oracle_rig r = oracle_rig_make(in, 0, err);
    oracle_need_host_rows(&r);
    const sl_retained of = retain(&r, kept, n_kept, (sl_kt_type)arg);
    free(kept);
    const sl_retained_lists_params l = {.seqs = &r.last,
                                        .r = of,
                                        .pages = best_pages(&r, &of, n_kept, select),
                                        .ids = oracle_put(&r, NULL, sizeof(int32_t) * (size_t)(KV * tokens)),
                                        .token_count = 1,
                                        .ld_ids = tokens,
                                        .select = select};
    oracle_run_op(&r, SL_OP_RETAINED_LISTS, &l);
    oracle_take(&r, l.ids, KV, tokens, 0, out);
    return oracle_done(&r);
}

/* ---- cluster_kv ---- */

enum { CLUSTER_SINKS = 16, CLUSTER_WINDOW = 320, CLUSTER_NLIST = 8 };

/* The last tokens before the query's are generated ones that are not clustered yet: half a window of a budget of 1,024. */
sl_status oracle_run_clusters(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    oracle_rig r = oracle_rig_make(in, 0, err);
    const int32_t n = in->d->n, open = in->budget * CLUSTER_WINDOW / 2048, prompt = n - 1 - open;
    const sl_cluster_rule rule = {.sinks = CLUSTER_SINKS,
                                  .budget = in->budget - open - 1,
                                  .cluster_tokens = in->budget * 80 / 1024,
                                  .window = CLUSTER_WINDOW,
                                  .window_nlist = CLUSTER_NLIST};
    const sl_cluster_state g = sl_clusters_at(&rule, prompt, n - 1);
    float *centroids = oracle_put(&r, NULL, sizeof(float) * (size_t)(KV * g.count * DIM));
    uint16_t *labels = oracle_put(&r, NULL, sizeof(uint16_t) * (size_t)(KV * n));
    const sl_kmeans_params m = {.keys = oracle_keys(&r),
                                .first = g.begin,
                                .tokens = g.end - g.begin,
                                .parts = 1,
                                .k = g.count,
                                .iterations = ITERATIONS,
                                .metric = SL_KMEANS_COSINE,
                                .centroids = centroids,
                                .labels = labels ? labels + g.begin : NULL,
                                .ld_centroids = g.count,
                                .ld_labels = n};
    oracle_run_op(&r, SL_OP_KMEANS, &m);
    const sl_cluster_lists_params l = {.seqs = &r.last,
                                       .q = oracle_put(&r, in->d->q, sizeof(float) * HEADS * DIM),
                                       .prompts = oracle_put(&r, &prompt, sizeof prompt),
                                       .centroids = centroids,
                                       .labels = labels,
                                       .ids =
                                           oracle_put(&r, NULL, sizeof(int32_t) * (size_t)(KV * in->budget)),
                                       .token_count = 1,
                                       .heads = HEADS,
                                       .kv_heads = KV,
                                       .dim = DIM,
                                       .ld_clusters = g.count,
                                       .ld_labels = n,
                                       .ld_ids = in->budget,
                                       .rule = rule,
                                       .reduce = (sl_group_reduce)arg,
                                       .scale = 1 / sqrtf(DIM)};
    oracle_run_op(&r, SL_OP_CLUSTER_LISTS, &l);
    oracle_take(&r, l.ids, KV, in->budget, 0, out);
    return oracle_done(&r);
}

/* ---- pq_cache ---- */

enum { PQ_SINKS = 32, PQ_PARTS = 2, PQ_CODES = 64 };

sl_status oracle_run_codes(const oracle_input *in, int32_t arg, uint8_t *out, sl_err *err)
{
    oracle_rig r = oracle_rig_make(in, 0, err);
    const int32_t n = in->d->n, recent = (in->budget - PQ_SINKS) / 4;
    const sl_key_source keys = oracle_keys(&r);
    float *book = oracle_put(&r, NULL, sizeof(float) * KV * PQ_CODES * DIM);
    uint8_t *codes = oracle_put(&r, NULL, (size_t)KV * (size_t)n * PQ_PARTS);
    const sl_kmeans_params m = {.keys = keys,
                                .first = PQ_SINKS,
                                .tokens = n - 1 - PQ_SINKS, /* the prompt's */
                                .parts = PQ_PARTS,
                                .k = PQ_CODES,
                                .iterations = ITERATIONS,
                                .metric = SL_KMEANS_L2,
                                .centroids = book,
                                .ld_centroids = PQ_CODES};
    const sl_codes_params c = {.keys = keys,
                               .first = PQ_SINKS,
                               .tokens = n - recent - PQ_SINKS,
                               .parts = PQ_PARTS,
                               .k = PQ_CODES,
                               .centroids = book,
                               .codes = codes,
                               .ld_codes = n};
    (void)arg;

    oracle_run_op(&r, SL_OP_KMEANS, &m);
    oracle_run_op(&r, SL_OP_CODES, &c);
    const sl_code_scores_params s = {.q = oracle_put(&r, in->d->q, sizeof(float) * HEADS * DIM),
                                     .seqs = &r.last,
                                     .centroids = book,
                                     .codes = codes,
                                     .scores = oracle_put(&r, NULL, sizeof(float) * (size_t)(KV * n)),
                                     .token_count = 1,
                                     .heads = HEADS,
                                     .kv_heads = KV,
                                     .dim = DIM,
                                     .parts = PQ_PARTS,
                                     .k = PQ_CODES,
                                     .ld_codes = n,
                                     .ld_scores = n,
                                     .sinks = PQ_SINKS,
                                     .recent = recent,
                                     .scale = 1 / sqrtf(DIM)};
    oracle_run_op(&r, SL_OP_CODE_SCORES, &s);
    const sl_topk_params t = {.scores = s.scores,
                              .seqs = &r.last,
                              .ids = oracle_put(&r, NULL, sizeof(int32_t) * (size_t)(KV * in->budget)),
                              .token_count = 1,
                              .k = in->budget,
                              .ld_scores = n,
                              .ld_ids = in->budget,
                              .sinks = PQ_SINKS,
                              .recent = recent,
                              .lists = KV};
    oracle_run_op(&r, SL_OP_TOPK, &t);
    oracle_take(&r, t.ids, KV, in->budget, 0, out);
    return oracle_done(&r);
}
