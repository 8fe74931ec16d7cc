/* Conformance cases of clusters of keys and of codes of keys. */
#include <string.h>

#include "kernels/codes.h"
#include "kernels/gqa.h"
#include "tests/unit/kernels/batch.h"
#include "tests/unit/kernels/ref.h"

/* 1, tokens, first, heads, dim, format, by head, host, parts, k, iterations, metric + 2 * distinct keys */
static void kmeans(cf_run *r, const int64_t *a)
{
    sl_kmeans_params p = {.keys =
                              batch_keys(r, (int32_t)a[1], (int32_t)a[3], (int32_t)a[4], (sl_row_format)a[5],
                                         a[6] != 0, a[7] != 0, (int32_t)a[11] / 2, 51),
                          .first = (int32_t)a[2],
                          .tokens = (int32_t)(a[1] - a[2]),
                          .parts = (int32_t)a[8],
                          .k = (int32_t)a[9],
                          .iterations = (int32_t)a[10],
                          .metric = (sl_kmeans_metric)(a[11] % 2),
                          .ld_centroids = (int32_t)a[9] + 2,
                          .ld_labels = (int32_t)a[1],
                          .label_base = 3};
    const size_t row = 4 * (size_t)p.k * (size_t)p.keys.dim;
    const size_t pitch = 4 * (size_t)p.ld_centroids * (size_t)p.keys.dim;

    p.centroids = cf_mem(r, NULL, (size_t)p.keys.heads * pitch);
    p.labels = cf_mem(r, NULL, 2 * (size_t)p.keys.heads * (size_t)p.parts * (size_t)p.ld_labels);
    cf_op(r, SL_OP_KMEANS, &p);
    const double keys = (double)p.keys.heads * (double)p.tokens * (double)p.keys.dim;
    cf_work(r, keys * 2, 2 * keys * (double)p.k * (double)(p.iterations + 1), SL_F32, 0);
    cf_out(r, "centroids", p.centroids, p.keys.heads, row, pitch, CF_F32, 1e-6);
    cf_out(r, "labels", p.labels, (int64_t)p.keys.heads * p.parts, 2 * (size_t)p.tokens,
           2 * (size_t)p.ld_labels, CF_BYTES, 0);
}

/* 1, tokens, first, heads, dim, format, by head, host, parts, k */
static void codes(cf_run *r, const int64_t *a)
{
    sl_codes_params p = {.keys = batch_keys(r, (int32_t)a[1], (int32_t)a[3], (int32_t)a[4],
                                            (sl_row_format)a[5], a[6] != 0, a[7] != 0, 0, 51),
                         .first = (int32_t)a[2],
                         .tokens = (int32_t)(a[1] - a[2]),
                         .parts = (int32_t)a[8],
                         .k = (int32_t)a[9],
                         .ld_codes = (int32_t)a[1] + 1};
    const size_t row = (size_t)p.parts * (size_t)p.ld_codes;

    p.centroids = cf_matrix(r, 54, 0, (int64_t)p.keys.heads * p.k, p.keys.dim, p.keys.dim, SL_F32, 2);
    p.codes = cf_mem(r, NULL, (size_t)p.keys.heads * row);
    cf_op(r, SL_OP_CODES, &p);
    cf_out(r, "codes", p.codes, p.keys.heads, row, row, CF_BYTES, 0);
}

/* what batch_rows reads (6 is read here: tokens of a codebook are 6 + 7 * sequence), parts, k, recent */
static void codes_step(cf_run *r, const int64_t *a)
{
    batch b;
    sl_gqa_append_params rows;

    batch_rows(r, &b, a, &rows);
    sl_codes_step step = {.seqs = &b.t, .recent = (int32_t)a[11]};
    sl_codes_params p = {.keys = {.rows = rows.rows,
                                  .host = rows.host,
                                  .heads = rows.heads,
                                  .dim = rows.dim,
                                  .format = rows.format},
                         .step = &step,
                         .tokens = (int32_t)r->n,
                         .parts = (int32_t)a[9],
                         .k = (int32_t)a[10],
                         .ld_codes = (int32_t)a[2]};
    const int64_t lists = b.seqs * rows.heads;
    const size_t row = (size_t)p.ld_codes * (size_t)p.parts;
    int32_t *trained = cf_temp(r, 4 * (size_t)b.seqs);

    for (int64_t s = 0; s < b.seqs; s++)
        trained[s] = (int32_t)(a[6] + 7 * s);
    step.trained = cf_mem(r, trained, 4 * (size_t)b.seqs);
    p.centroids = cf_matrix(r, 61, 0, lists * p.k, rows.dim, rows.dim, SL_F32, 2);
    p.codes = cf_mem(r, NULL, (size_t)lists * row);
    cf_op(r, SL_OP_CODES, &p);
    cf_out(r, "codes", p.codes, lists, row, row, CF_BYTES, 0);
}

/* T, per, length, heads, KV heads, dim, parts, k, sinks, recent, from_pos */
static void code_scores(cf_run *r, const int64_t *a)
{
    batch b;

    batch_make(r, &b, a[0], a[1], a[2], 0);
    sl_code_scores_params p = {.seqs = &b.t,
                               .token_count = (int32_t)r->n,
                               .heads = (int32_t)a[3],
                               .kv_heads = (int32_t)a[4],
                               .dim = (int32_t)a[5],
                               .parts = (int32_t)a[6],
                               .k = (int32_t)a[7],
                               .ld_codes = (int32_t)a[2],
                               .ld_scores = (int32_t)a[2] + 3,
                               .sinks = (int32_t)a[8],
                               .recent = (int32_t)a[9],
                               .from_pos = (int32_t)a[10],
                               .scale = 0.4f};
    const int64_t rows = b.seqs * p.kv_heads, n_codes = rows * p.ld_codes * p.parts;
    uint8_t *code = cf_temp(r, (size_t)n_codes);

    for (int64_t i = 0; i < n_codes; i++)
        code[i] = (uint8_t)(cf_hash(55, i) % (uint64_t)p.k);
    p.codes = cf_mem(r, code, (size_t)n_codes);
    p.centroids = cf_matrix(r, 56, 0, rows * p.k, p.dim, p.dim, SL_F32, 2);
    p.q = cf_matrix(r, 57, r->first, r->n, (int64_t)p.heads * p.dim, (int64_t)p.heads * p.dim, SL_F32, 2);
    const size_t out = 4 * (size_t)p.kv_heads * (size_t)p.ld_scores;
    p.scores = cf_mem(r, NULL, (size_t)r->n * out);
    cf_op(r, SL_OP_CODE_SCORES, &p);
    cf_out_tokens(r, "scores", p.scores, out, CF_F32, 2e-5);
}

/* T, per, length, heads, KV heads, dim, budget, cluster tokens, window + 1000 * its clusters, dense below, prompt, reduction; three sinks */
static void lists(cf_run *r, const int64_t *a)
{
    batch b;

    batch_make(r, &b, a[0], a[1], a[2], 0);
    sl_cluster_lists_params p = {.seqs = &b.t,
                                 .token_count = (int32_t)r->n,
                                 .heads = (int32_t)a[3],
                                 .kv_heads = (int32_t)a[4],
                                 .dim = (int32_t)a[5],
                                 .ld_labels = (int32_t)a[2],
                                 .ld_ids = (int32_t)a[2] + 2,
                                 .dense_below = (int32_t)a[9],
                                 .rule = {.sinks = 3,
                                          .budget = (int32_t)a[6],
                                          .cluster_tokens = (int32_t)a[7],
                                          .window = (int32_t)a[8] % 1000,
                                          .window_nlist = (int32_t)a[8] / 1000},
                                 .reduce = (sl_group_reduce)a[11],
                                 .scale = 0.4f};
    p.ld_clusters = (int32_t)sl_clusters_most(&p.rule, (int32_t)a[2]);
    const int64_t rows = b.seqs * p.kv_heads;
    int32_t *prompts = cf_temp(r, 4 * (size_t)b.seqs);
    uint16_t *labels = cf_temp(r, 2 * (size_t)(rows * p.ld_labels));

    for (int64_t s = 0; s < b.seqs; s++) {
        prompts[s] = (int32_t)a[10] + 5 * (int32_t)s;
        for (int64_t i = 0; i < p.kv_heads * p.ld_labels; i++) {
            const int32_t pos = (int32_t)(i % p.ld_labels);
            int32_t end = prompts[s];
            sl_cluster_state g = {0};

            while (g.end <= pos) /* the group of this token */
                g = sl_clusters_at(&p.rule, prompts[s], end++);
            labels[s * p.kv_heads * p.ld_labels + i] =
                (uint16_t)(g.before + (int32_t)(cf_hash(58, s * 7919 + i) % (uint64_t)(g.count - g.before)));
        }
    }
    p.prompts = cf_mem(r, prompts, 4 * (size_t)b.seqs);
    p.labels = cf_mem(r, labels, 2 * (size_t)(rows * p.ld_labels));
    p.centroids = cf_matrix(r, 59, 0, rows * p.ld_clusters, p.dim, p.dim, SL_F32, 2);
    p.q = cf_matrix(r, 60, r->first, r->n, (int64_t)p.heads * p.dim, (int64_t)p.heads * p.dim, SL_F32, 2);
    const size_t out = 4 * (size_t)p.kv_heads * (size_t)p.ld_ids;
    p.ids = cf_mem(r, NULL, (size_t)r->n * out);
    p.mass = (float)a[12] / 100;
    if (a[13]) {
        int32_t *of = cf_temp(r, 4 * (size_t)p.kv_heads);
        for (int32_t h = 0; h < p.kv_heads; h++)
            of[h] = h == 1 ? INT32_MAX : (int32_t)(cf_hash(95, h + a[13]) % (uint64_t)p.rule.budget);
        p.take_of = cf_mem(r, of, 4 * (size_t)p.kv_heads);
    }
    cf_op(r, SL_OP_CLUSTER_LISTS, &p);
    cf_out_tokens(r, "ids", p.ids, out, CF_BYTES, 0);
}

/* One wrong field at a time. */
static void bad_kmeans(cf_run *r, const int64_t *a)
{
    float some[64] = {0};
    (void)a;
    const sl_kmeans_params good = {.keys = batch_keys(r, 4, 1, 2, SL_ROW_GQA_F32, true, false, 0, 51),
                                   .tokens = 4,
                                   .parts = 1,
                                   .k = 2,
                                   .iterations = 1,
                                   .centroids = cf_mem(r, some, sizeof some),
                                   .labels = cf_mem(r, some, sizeof some),
                                   .ld_centroids = 2,
                                   .ld_labels = 4};
    sl_kmeans_params p = good;
    p.parts = 3;
    cf_refused(r, SL_OP_KMEANS, &p, SL_ERR_INVALID, "parts");
    p = good, p.k = 0;
    cf_refused(r, SL_OP_KMEANS, &p, SL_ERR_INVALID, "k");
    p = good, p.ld_centroids = 1;
    cf_refused(r, SL_OP_KMEANS, &p, SL_ERR_INVALID, "ld_centroids");
    p = good, p.ld_labels = 3;
    cf_refused(r, SL_OP_KMEANS, &p, SL_ERR_INVALID, "ld_labels");
    p = good, p.label_base = 65535;
    cf_refused(r, SL_OP_KMEANS, &p, SL_ERR_UNSUPPORTED, "k");
    p = good, p.metric = (sl_kmeans_metric)2;
    cf_refused(r, SL_OP_KMEANS, &p, SL_ERR_INVALID, "metric");
    p = good, p.keys.rows.row_bytes = 4;
    cf_refused(r, SL_OP_KMEANS, &p, SL_ERR_INVALID, "keys.rows.row_bytes");
    p = good, p.keys.rows.block_log2 = 1;
    cf_refused(r, SL_OP_KMEANS, &p, SL_ERR_UNSUPPORTED, "block_log2");
    p = good, p.keys.format = SL_ROW_MLA_F32;
    cf_refused(r, SL_OP_KMEANS, &p, SL_ERR_UNSUPPORTED, "format");
    const sl_codes_params c = {.keys = good.keys,
                               .tokens = 4,
                               .parts = 1,
                               .k = 257,
                               .centroids = good.centroids,
                               .codes = (uint8_t *)good.labels,
                               .ld_codes = 4};
    cf_refused(r, SL_OP_CODES, &c, SL_ERR_UNSUPPORTED, "k");
    sl_codes_params d = c;
    d.k = 2, d.ld_codes = 3;
    cf_refused(r, SL_OP_CODES, &d, SL_ERR_INVALID, "ld_codes");
}

/* 1, which field */
static void bad_lists(cf_run *r, const int64_t *a)
{
    const int32_t zeros[8] = {0}, pos = 5;
    const sl_seq_tables seqs = {.n_tokens = 1,
                                .n_seqs = 1,
                                .ld = 1,
                                .token_seq = cf_mem(r, zeros, sizeof zeros),
                                .token_pos = cf_mem(r, &pos, sizeof pos)};
    sl_cluster_lists_params p = {.seqs = &seqs,
                                 .q = cf_mem(r, zeros, sizeof zeros),
                                 .prompts = cf_mem(r, zeros, sizeof zeros),
                                 .centroids = cf_mem(r, zeros, sizeof zeros),
                                 .labels = cf_mem(r, zeros, sizeof zeros),
                                 .ids = cf_mem(r, NULL, sizeof zeros),
                                 .token_count = 1,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .dim = 2,
                                 .ld_clusters = 4,
                                 .ld_labels = 8,
                                 .ld_ids = a[1] == 0 ? 5 : 6, /* of six tokens */
                                 .rule = {.sinks = a[1] == 1 ? 7 : 0,
                                          .budget = 7,
                                          .cluster_tokens = 2,
                                          .window = a[1] == 2 ? 0 : 1,
                                          .window_nlist = 1}};
    static const char *const fields[] = {"ids", "rule.budget", "rule.window"};
    cf_refused(r, SL_OP_CLUSTER_LISTS, &p, SL_ERR_INVALID, fields[a[1]]);
}

#define G4 SL_ROW_GQA_F32
#define G2 SL_ROW_GQA_BF16
#define G1 SL_ROW_GQA_FP8
#define COS SL_KMEANS_COSINE
#define L2 SL_KMEANS_L2
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_KMEANS, "n=1 k=1 d=2", kmeans, {1, 1, 0, 1, 2, G4, 1, 0, 1, 1, 1, COS}, CF_FIX_ALL},
    {SL_OP_KMEANS, "n=150 k=7 d=64 kv=2 f32 cosine", kmeans, {1, 150, 4, 2, 64, G4, 1, 0, 1, 7, 20, COS}, CF_FIX_ALL},
    {SL_OP_KMEANS, "n=200 k=20 d=14 kv=3 bf16 cosine host", kmeans, {1, 200, 16, 3, 14, G2, 1, 1, 1, 20, 5, COS}, CF_FIX_ALL},
    {SL_OP_KMEANS, "n=130 k=9 d=32 kv=2 fp8 all heads, in the host", kmeans, {1, 130, 0, 2, 32, G1, 0, 1, 1, 9, 20, COS}, CF_FIX_ALL},
    {SL_OP_KMEANS, "n=150 k=16 d=64 parts=2 f32 L2", kmeans, {1, 150, 10, 2, 64, G4, 1, 0, 2, 16, 20, L2}, CF_FIX_ALL},
    {SL_OP_KMEANS, "n=100 k=64 d=12 parts=4 bf16 L2 no iterations", kmeans, {1, 100, 0, 2, 12, G2, 1, 0, 4, 64, 0, L2}, CF_FIX_ALL},
    {SL_OP_KMEANS, "n=180 k=16 d=8 L2 eleven different keys", kmeans, {1, 180, 0, 2, 8, G4, 1, 0, 2, 16, 3, L2 + 2 * 11}, CF_FIX_ALL},
    {SL_OP_KMEANS, "n=120 k=16 d=8 cosine twenty different keys", kmeans, {1, 120, 0, 2, 8, G4, 1, 0, 1, 16, 10, COS + 2 * 20}, CF_FIX_ALL},
    {SL_OP_KMEANS, "more centroids than points", kmeans, {1, 5, 1, 2, 8, G4, 1, 0, 1, 7, 3, L2}, CF_FIX_ALL},
    {SL_OP_KMEANS, "n=1500 k=20 d=128 bf16 cosine", kmeans, {1, 1500, 7, 1, 128, G2, 1, 0, 1, 20, 4, COS}, CF_LARGE},
    {SL_OP_KMEANS, "n=1400 k=40 d=24 fp8 parts=2 L2 host", kmeans, {1, 1400, 0, 2, 24, G1, 1, 1, 2, 40, 4, L2}, CF_LARGE},
    {SL_OP_KMEANS, "n=1300 k=40 d=8 cosine thirty different keys", kmeans, {1, 1300, 0, 1, 8, G4, 1, 0, 1, 40, 4, COS + 2 * 30}, CF_LARGE},
    {SL_OP_KMEANS, "n=32768 k=410 d=128 kv=8 bf16 cosine", kmeans, {1, 32768, 0, 8, 128, G2, 1, 0, 1, 410, 20, COS}, CF_PERF_ONLY},
    {SL_OP_KMEANS, "n=32768 k=64 d=128 kv=8 bf16 parts=2 L2", kmeans, {1, 32768, 0, 8, 128, G2, 1, 0, 2, 64, 20, L2}, CF_PERF_ONLY},
    {SL_OP_KMEANS, "n=320 k=8 d=128 kv=8 bf16 cosine", kmeans, {1, 320, 0, 8, 128, G2, 1, 0, 1, 8, 20, COS}, CF_PERF_ONLY},
    {SL_OP_KMEANS, "refuses bad shapes", bad_kmeans, {1}, 0},
    {SL_OP_CODES, "n=150 k=64 d=64 parts=2 f32", codes, {1, 150, 10, 2, 64, G4, 1, 0, 2, 64}, CF_FIX_ALL},
    {SL_OP_CODES, "n=70 k=256 d=12 parts=3 bf16 host", codes, {1, 70, 65, 3, 12, G2, 1, 1, 3, 256}, CF_FIX_ALL},
    {SL_OP_CODES, "n=70 k=2 d=16 parts=16 fp8 all heads", codes, {1, 70, 0, 2, 16, G1, 0, 0, 16, 2}, CF_FIX_ALL},
    {SL_OP_CODES, "of a step T=40 kv=2 d=64 f32", codes_step, {40, 20, 150, 2, 64, G4, 12, 0, BATCH_BY_HEAD, 2, 64, 3}, CF_FIX_ALL},
    {SL_OP_CODES, "of a step T=60 kv=3 d=12 bf16 all heads", codes_step, {60, 30, 200, 3, 12, G2, 0, 0, 0, 3, 256, 1}, CF_FIX_ALL},
    {SL_OP_CODES, "of a step T=90 kv=2 d=16 fp8 hierarchical", codes_step, {90, 45, 200, 2, 16, G1, 5, 1, BATCH_BY_HEAD, 16, 2, 20}, CF_FIX_ALL},
    {SL_OP_CODE_SCORES, "T=1", code_scores, {1, 1, 60, 2, 1, 8, 2, 16, 0, 1, 0}, CF_SPLIT},
    {SL_OP_CODE_SCORES, "T=24 heads=6 kv=3", code_scores, {24, 6, 150, 6, 3, 12, 3, 7, 5, 20, 0}, CF_SPLIT},
    {SL_OP_CODE_SCORES, "T=20 heads=4 kv=4 from 60", code_scores, {20, 5, 130, 4, 4, 16, 1, 256, 2, 1, 60}, CF_SPLIT},
    {SL_OP_CLUSTER_LISTS, "refuses a short list", bad_lists, {1, 0}, 0},
    {SL_OP_CLUSTER_LISTS, "refuses a budget of sinks", bad_lists, {1, 1}, 0},
    {SL_OP_CLUSTER_LISTS, "refuses an empty window", bad_lists, {1, 2}, 0},
    {SL_OP_CLUSTER_LISTS, "T=1", lists, {1, 1, 60, 1, 1, 4, 20, 8, 2010, 0, 30, SL_GROUP_MAX}, CF_SPLIT},
    {SL_OP_CLUSTER_LISTS, "T=24 kv=2 max", lists, {24, 6, 150, 6, 2, 16, 40, 8, 3020, 0, 50, SL_GROUP_MAX}, CF_SPLIT},
    {SL_OP_CLUSTER_LISTS, "T=24 kv=3 mean", lists, {24, 6, 150, 6, 3, 12, 40, 5, 1007, 0, 20, SL_GROUP_MEAN}, CF_SPLIT},
    {SL_OP_CLUSTER_LISTS, "T=20 kv=2 softmax, dense below 80", lists, {20, 5, 150, 8, 2, 16, 33, 10, 4016, 80, 40, SL_GROUP_SOFTMAX}, CF_SPLIT},
    {SL_OP_CLUSTER_LISTS, "T=4 kv=2 of 9000 tokens", lists, {4, 2, 9000, 4, 2, 16, 3000, 80, 8320, 0, 5000, SL_GROUP_MAX}, CF_SPLIT | CF_LARGE},
    {SL_OP_CLUSTER_LISTS, "T=24 kv=2 softmax mass", lists, {24, 6, 150, 6, 2, 16, 40, 8, 3020, 0, 50, SL_GROUP_SOFTMAX, 60}, CF_SPLIT},
    {SL_OP_CLUSTER_LISTS, "T=24 kv=2 softmax mass of all", lists, {24, 6, 150, 6, 2, 16, 40, 8, 3020, 0, 50, SL_GROUP_SOFTMAX, 100}, CF_SPLIT},
    {SL_OP_CLUSTER_LISTS, "T=24 kv=4 limits", lists, {24, 6, 150, 8, 4, 16, 40, 8, 3020, 0, 50, SL_GROUP_MAX, 0, 1}, CF_SPLIT},
    {SL_OP_CLUSTER_LISTS, "T=20 kv=3 softmax mass limits", lists, {20, 5, 190, 3, 3, 8, 60, 4, 5005, 70, 80, SL_GROUP_SOFTMAX, 30, 2}, CF_SPLIT},
    {SL_OP_CLUSTER_LISTS, "T=24 kv=2 union", lists, {24, 6, 150, 6, 2, 16, 40, 8, 3020, 0, 50, SL_GROUP_UNION}, CF_SPLIT},
    {SL_OP_CLUSTER_LISTS, "T=20 kv=2 union one token per cluster", lists, {20, 5, 150, 8, 2, 8, 24, 1, 5005, 0, 60, SL_GROUP_UNION}, CF_SPLIT},
    {SL_OP_CLUSTER_LISTS, "T=20 kv=2 one token per cluster", lists, {20, 5, 150, 2, 2, 8, 24, 1, 5005, 0, 60, SL_GROUP_MAX}, CF_SPLIT},
};
/* clang-format on */

const cf_table cf_cluster_cases = {cases, SL_COUNT(cases)};
