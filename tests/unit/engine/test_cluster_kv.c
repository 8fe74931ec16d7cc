/*
 * cluster_kv through the real engine. Every list is compared with a restatement in double precision (ref_clusters.c of the
 * kernels' tests) over keys that are read from the host pages and over groups whose limits this file computes itself; one
 * setting has a cluster for every token, and its lists must be the exact best tokens. The clusters of a group have the
 * properties that the definition promises. The bits do not depend on chunks, threads, the batch, residency, pages that
 * exist already, or on whether tokens after the prompt are computed again; and with a budget of the whole context they
 * are those of dense attention. Run from the repository's root.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend_impl.h"
#include "kernels/codes.h"
#include "kernels/gqa.h"
#include "prompts.h"
#include "strategies.h"
#include "tests/unit/kernels/ref.h"
#include "tests/unit/run_suite.h"

enum { CONTEXT = PROMPTS_CONTEXT, PROMPT = 150, LENGTH = PROMPTS_LENGTH, LAYERS = 8 };

static const char *const models[] = {"tests/golden/model/llama-odd", "tests/golden/model/qwen2-mha",
                                     "tests/golden/model/qwen3-norms", "tests/golden/model/llama-rope3"};
static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};

typedef struct setting {
    select_params select;
    int32_t sinks, prompt;
} setting;

/* The second has a cluster for every token; the third a prompt that is shorter than the budget. */
static const setting settings[] = {
    {{.token_budget = 64, .cluster_tokens = 8, .cluster_window = 20, .window_nlist = 3, .niter = 10},
     4,
     PROMPT},
    {{.token_budget = 40, .cluster_tokens = 1, .cluster_window = 9, .window_nlist = 9, .niter = 1},
     0,
     PROMPT},
    {{.token_budget = 96,
      .cluster_tokens = 5,
      .cluster_window = 16,
      .window_nlist = 2,
      .niter = 20,
      .reduce = SL_GROUP_SOFTMAX},
     16,
     70},
    {{.token_budget = 50,
      .cluster_tokens = 30,
      .cluster_window = 1,
      .window_nlist = 1,
      .reduce = SL_GROUP_MEAN},
     7,
     PROMPT},
    {{.token_budget = 60,
      .cluster_tokens = 4,
      .cluster_window = 12,
      .window_nlist = 3,
      .niter = 8,
      .reduce = SL_GROUP_UNION},
     5,
     PROMPT},
};

enum { SETTINGS = SL_COUNT(settings) };

static fix_opts opts_of(int i)
{
    sl_row_format rows = formats[i % (int)SL_COUNT(formats)];
    const setting *s = &settings[i % SETTINGS];
    return (fix_opts){.dir = models[(i + i / SETTINGS) % (int)SL_COUNT(models)],
                      .rows = rows,
                      .act = rows == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16,
                      .threads = 1,
                      .max_tokens = CONTEXT,
                      .max_context = CONTEXT,
                      .max_seqs = 3,
                      .max_hot = 2,
                      .hot_rows = s->select.token_budget + s->select.cluster_window,
                      .tail_rows = 3,
                      .select = s->select,
                      .gates = {.sink_tokens = s->sinks},
                      .algorithm = "cluster_kv"};
}

static int32_t prompt_of(int i)
{
    return settings[i % SETTINGS].prompt;
}

/* ---- the definition ---- */

typedef struct checker {
    const fix *f;
    const fix_run *run;
    int32_t prompt;
    int64_t lists;
    int32_t layer; /* the one that is being checked */
    int32_t end;   /* of the groups that are complete before the token that is being checked */
    int32_t made[LAYERS], clusters[LAYERS]; /* end and clusters of the groups that exist */
    float *centroids[LAYERS];               /* [kv_heads][CONTEXT][dim] */
    uint16_t *labels[LAYERS];               /* [kv_heads][CONTEXT] */
} checker;

static checker *seen;
static sl_algo_desc witnessed; /* cluster_kv, except these two functions */

static sl_key_source host_keys(const checker *c, int32_t layer)
{
    const sl_geometry *g = sl_arena_geometry(c->f->arena);
    const sl_cache_plane *rows = &g->shape.planes[SL_CACHE_ROWS];
    MUST(g->shape.n_planes == 1 && rows->unit_tokens == 1 && rows->heads == c->f->cfg->attn.n_kv_heads);
    return (sl_key_source){.rows = {.heads = rows->heads, .row_bytes = sl_cache_unit_bytes(rows)},
                           .host = sl_geometry_plane(g, sl_arena_base(c->f->arena),
                                                     sl_arena_pages(c->f->arena), layer, SL_CACHE_ROWS),
                           .pages = c->run->pages,
                           .heads = c->f->cfg->attn.n_kv_heads,
                           .dim = c->f->cfg->attn.v_head_dim,
                           .format = c->f->o.rows};
}

/* Appends the clusters of one group. */
static void add_group(checker *c, int32_t begin, int32_t end, int32_t k)
{
    const select_params *s = &c->f->o.select;
    const sl_kmeans_params p = {.keys = host_keys(c, c->layer),
                                .first = begin,
                                .tokens = end - begin,
                                .parts = 1,
                                .k = k,
                                .iterations = s->niter ? s->niter : 20,
                                .metric = SL_KMEANS_COSINE,
                                .centroids = c->centroids[c->layer] +
                                             (int64_t)c->clusters[c->layer] * c->f->cfg->attn.v_head_dim,
                                .labels = c->labels[c->layer] + begin,
                                .ld_centroids = CONTEXT,
                                .ld_labels = CONTEXT,
                                .label_base = c->clusters[c->layer]};
    ref_run(SL_OP_KMEANS, &p);
    c->made[c->layer] = end, c->clusters[c->layer] += k;
}

/* The groups of a layer that are complete before a query at pos; positions of a layer only grow. */
static void make_groups(checker *c, int32_t layer, int32_t pos)
{
    const select_params *s = &c->f->o.select;
    const int32_t sinks = c->f->o.gates.sink_tokens;
    const int32_t first = c->prompt > s->token_budget ? c->prompt : s->token_budget;
    c->layer = layer, c->end = 0;
    if (pos < first)
        return;
    if (c->made[layer] == 0)
        add_group(c, sinks, first, (first - sinks + s->cluster_tokens - 1) / s->cluster_tokens);
    while (c->made[layer] + s->cluster_window <= pos)
        add_group(c, c->made[layer], c->made[layer] + s->cluster_window, s->window_nlist);
    for (c->end = first; c->end + s->cluster_window <= pos;)
        c->end += s->cluster_window;
}

/* With a cluster for every token the chosen ones have the exact largest products. */
static void check_best(const checker *c, const sl_attn_call *call, int64_t t, int32_t head, const bool *in)
{
    const int32_t dim = call->gqa.attn.dim, group = call->gqa.attn.heads / c->f->cfg->attn.n_kv_heads;
    double least = INFINITY, most = -INFINITY;
    for (int32_t j = 0; j < c->end; j++) {
        double best = -INFINITY;
        for (int32_t g = 0; g < group; g++) {
            const float *q = call->gqa.attn.q + (t * call->gqa.attn.heads + head * group + g) * dim;
            const sl_key_source keys = host_keys(c, call->layer);
            float k[512];
            double dot = 0;
            sl_gqa_key_decode(keys.format, 1, dim,
                              keys.host.base + keys.pages[j / SL_PAGE_TOKENS] * keys.host.page_stride +
                                  j % SL_PAGE_TOKENS * keys.host.row_stride + head * keys.rows.row_bytes,
                              0, k);
            for (int32_t i = 0; i < dim; i++)
                dot += (double)q[i] * (double)k[i];
            best = fmax(best, dot);
        }
        least = in[j] ? fmin(least, best) : least;
        most = in[j] ? most : fmax(most, best);
    }
    MUST(most <= least + 1e-5 * (1e-3 + fabs(most)));
}

static void check_list(checker *c, const sl_attn_call *call, int64_t t, int32_t head, const int32_t *ids,
                       int32_t k)
{
    const select_params *s = &c->f->o.select;
    const int32_t pos = call->seqs->token_pos[t], sinks = c->f->o.gates.sink_tokens;
    const bool all = pos < c->prompt || c->end == 0;
    bool in[CONTEXT] = {false};
    int32_t n = 0, chosen = 0;
    for (; n < k && ids[n] >= 0; n++) {
        MUST(ids[n] <= pos && (n == 0 || ids[n] > ids[n - 1]));
        in[ids[n]] = true;
        chosen += ids[n] < c->end;
    }
    for (int32_t i = n; i < k; i++)
        MUST(ids[i] == -1);
    MUST(all ? n == pos + 1 : chosen == s->token_budget);
    for (int32_t j = 0; j <= pos; j++)
        MUST(in[j] || (j >= sinks && j < c->end));
    c->lists++;
    if (!all && s->cluster_tokens == 1)
        check_best(c, call, t, head, in);
}

/* The lists of a token, all heads. */
static void check_token(checker *c, const sl_algo_call *call, int64_t t, const int32_t *ids)
{
    const sl_attn_call *a = call->attn;
    const select_params *s = &c->f->o.select;
    int32_t want[8 * CONTEXT], seq = 0, pos = a->seqs->token_pos[t];
    const sl_seq_tables one = {
        .n_tokens = 1, .n_seqs = 1, .ld = CONTEXT, .token_seq = &seq, .token_pos = &pos};
    make_groups(c, a->layer, pos);
    const sl_cluster_lists_params p = {.seqs = &one,
                                       .q = a->gqa.attn.q + t * a->gqa.attn.heads * a->gqa.attn.dim,
                                       .prompts = &c->prompt,
                                       .centroids = c->centroids[a->layer],
                                       .labels = c->labels[a->layer],
                                       .ids = want,
                                       .token_count = 1,
                                       .heads = a->gqa.attn.heads,
                                       .kv_heads = call->lists,
                                       .dim = a->gqa.attn.dim,
                                       .ld_clusters = CONTEXT,
                                       .ld_labels = CONTEXT,
                                       .ld_ids = CONTEXT,
                                       .rule = {.sinks = c->f->o.gates.sink_tokens,
                                                .budget = s->token_budget,
                                                .cluster_tokens = s->cluster_tokens,
                                                .window = s->cluster_window,
                                                .window_nlist = s->window_nlist},
                                       .reduce = s->reduce,
                                       .scale = a->gqa.attn.scale};
    MUST(call->lists <= 8);
    ref_run(SL_OP_CLUSTER_LISTS, &p);
    for (int32_t h = 0; h < call->lists; h++) {
        const int32_t *got = ids + (int64_t)h * call->k;
        check_list(c, a, t, h, got, call->k);
        for (int32_t i = 0; i < call->k; i++)
            MUST(got[i] == want[h * CONTEXT + i]);
    }
}

static sl_status witnessed_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    SL_TRY(sl_algo_cluster_kv.create(be, d, out, err));
    (*out)->desc = &witnessed;
    return SL_OK;
}

static sl_status witnessed_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                    int32_t *ids, sl_err *err)
{
    SL_TRY(sl_algo_cluster_kv.retrieve(a, call, first, count, ids, err));
    for (int32_t i = 0; i < count; i++)
        if (call->attn->seqs->token_pos[first + i] % 7 == 0 ||
            call->attn->seqs->token_pos[first + i] >= seen->prompt)
            check_token(seen, call, first + i, ids + (int64_t)i * call->lists * call->k);
    return SL_OK;
}

START_TEST(equals_definition)
{
    fix f;
    fix_opts o = opts_of(_i);
    witnessed = sl_algo_cluster_kv;
    witnessed.create = witnessed_create, witnessed.retrieve = witnessed_retrieve;
    o.desc = &witnessed;
    fix_open(&f, &o);
    fix_run r = {0};
    fix_text t;
    checker c = {.f = &f, .run = &r, .prompt = prompt_of(_i)};
    const size_t tokens = (size_t)f.cfg->attn.n_kv_heads * CONTEXT;
    ck_assert_int_le(f.cfg->n_layers, LAYERS);
    for (int32_t l = 0; l < f.cfg->n_layers; l++) {
        c.centroids[l] = calloc(tokens * (size_t)f.cfg->attn.v_head_dim, sizeof *c.centroids[l]);
        c.labels[l] = calloc(tokens, sizeof *c.labels[l]);
    }
    seen = &c;
    fix_prompt(&f, &t, LENGTH, 77);
    prompts_open(&f, &r, SL_RESIDENT, 0, c.prompt);
    fix_feed(&f, &r, &t, c.prompt, 70);
    fix_feed(&f, &r, &t, 180, 1);
    fix_feed(&f, &r, &t, LENGTH, 19); /* as when tokens are computed again */
    ck_assert_int_ge(c.lists, (LENGTH - c.prompt) * f.cfg->n_layers * f.cfg->attn.n_kv_heads);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
    for (int32_t l = 0; l < LAYERS; l++) {
        free(c.centroids[l]);
        free(c.labels[l]);
    }
}
END_TEST

/* ---- the properties of a group ---- */

enum { N = 130, HEADS = 2, DIM = 24, FIRST = 3, K = 17 };

static double cosine(const float *a, const float *b)
{
    double dot = 0, aa = 0, bb = 0;
    for (int32_t i = 0; i < DIM; i++)
        dot += (double)a[i] * (double)b[i], aa += (double)a[i] * (double)a[i],
            bb += (double)b[i] * (double)b[i];
    return dot / sqrt(aa * bb);
}

/* Labels are a partition into exactly these clusters, each token has the centroid with the largest cosine, no cluster is
 * empty; and a later group leaves what earlier ones wrote as it was. */
START_TEST(clusters_have_their_properties)
{
    static float keys[HEADS][N][DIM];
    static float centroids[HEADS][3 * K][DIM], before[HEADS][3 * K][DIM];
    static uint16_t labels[HEADS][N], labels_before[HEADS][N];
    const int64_t row = sl_gqa_row_bytes(SL_ROW_GQA_F32, 1, DIM);
    uint8_t *rows = calloc((size_t)(3 * SL_PAGE_TOKENS * HEADS), (size_t)row);
    const int32_t pages[] = {2, 0, 1};
    sl_backend *be;
    sl_backend_opts bo = {.threads = 2};
    sl_err err = {0};
    uint64_t x = 99;
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, &err), SL_OK);
    for (int32_t h = 0; h < HEADS; h++)
        for (int32_t j = 0; j < N; j++) {
            float v[DIM] = {0};
            for (int32_t i = 0; i < DIM; i++) {
                x ^= x << 13, x ^= x >> 7, x ^= x << 17;
                keys[h][j][i] = (float)((double)(x >> 11) / 9007199254740992.0 - 0.3);
            }
            int64_t at =
                ((int64_t)pages[j / SL_PAGE_TOKENS] * SL_PAGE_TOKENS + j % SL_PAGE_TOKENS) * HEADS + h;
            sl_gqa_row_encode(SL_ROW_GQA_F32, 1, DIM, 0, 1, keys[h][j], v, rows + at * row);
        }
    sl_kmeans_params p = {.keys = {.rows = {.base = rows, .row_bytes = row, .heads = HEADS},
                                   .pages = pages,
                                   .heads = HEADS,
                                   .dim = DIM,
                                   .format = SL_ROW_GQA_F32},
                          .first = FIRST,
                          .tokens = 100 - FIRST,
                          .parts = 1,
                          .k = K,
                          .iterations = 20,
                          .metric = SL_KMEANS_COSINE,
                          .centroids = &centroids[0][0][0],
                          .labels = &labels[0][FIRST],
                          .ld_centroids = 3 * K,
                          .ld_labels = N};
    memset(labels, 0xff, sizeof labels);
    memset(centroids, 0xff, sizeof centroids);
    ck_assert_msg(sl_be_run(be, SL_OP_KMEANS, &p, &err) == SL_OK, "%s", err.text);
    for (int32_t h = 0; h < HEADS; h++) {
        int32_t size[K] = {0};
        for (int32_t j = FIRST; j < 100; j++) {
            MUST(labels[h][j] < K);
            size[labels[h][j]]++;
            for (int32_t c = 0; c < K; c++)
                MUST(cosine(keys[h][j], centroids[h][c]) <=
                     cosine(keys[h][j], centroids[h][labels[h][j]]) + 1e-6);
        }
        for (int32_t c = 0; c < K; c++)
            MUST(size[c] > 0);
        MUST(labels[h][FIRST - 1] == 0xffff && labels[h][100] == 0xffff);
    }
    memcpy(before, centroids, sizeof before);
    memcpy(labels_before, labels, sizeof labels);
    p.first = 100, p.tokens = N - 100, p.k = 5, p.label_base = K;
    p.centroids = &centroids[0][K][0], p.labels = &labels[0][100];
    ck_assert_msg(sl_be_run(be, SL_OP_KMEANS, &p, &err) == SL_OK, "%s", err.text);
    for (int32_t h = 0; h < HEADS; h++) {
        MUST(memcmp(before[h], centroids[h], K * sizeof centroids[h][0]) == 0);
        MUST(memcmp(before[h][K + 5], centroids[h][K + 5], (2 * K - 5) * sizeof centroids[h][0]) == 0);
        MUST(memcmp(labels_before[h], labels[h], 100 * sizeof labels[h][0]) == 0);
        for (int32_t j = 100; j < N; j++)
            MUST(labels[h][j] >= K && labels[h][j] < K + 5);
    }
    free(rows);
    sl_backend_destroy(be);
}
END_TEST

/* The limits of groups, token by token, against counting. */
START_TEST(groups_follow_from_the_prompt)
{
    static const sl_cluster_rule rules[] = {
        {.sinks = 4, .budget = 30, .cluster_tokens = 7, .window = 5, .window_nlist = 2},
        {.budget = 1, .cluster_tokens = 1, .window = 1, .window_nlist = 1},
        {.sinks = 16, .budget = 64, .cluster_tokens = 80, .window = 32, .window_nlist = 8}};
    for (size_t i = 0; i < SL_COUNT(rules); i++)
        for (int32_t prompt = 1; prompt < 130; prompt += 3) {
            const sl_cluster_rule *r = &rules[i];
            int32_t end = 0, count = 0, open = 0;
            for (int32_t tokens = 1; tokens < 200; tokens++) {
                int32_t begin = end;
                open++;
                if (tokens >= prompt && tokens >= r->budget && (end == 0 || open == r->window)) {
                    begin = end ? end : r->sinks, open = 0;
                    count += end ? r->window_nlist
                                 : (tokens - r->sinks + r->cluster_tokens - 1) / r->cluster_tokens;
                    end = tokens;
                    const sl_cluster_state g = sl_clusters_at(r, prompt, tokens);
                    MUST(g.begin == begin && g.before < g.count);
                }
                const sl_cluster_state g = sl_clusters_at(r, prompt, tokens);
                MUST(g.end == end && g.count == count && (g.groups > 0) == (end > 0));
                MUST(count <= sl_clusters_most(r, tokens));
            }
        }
}
END_TEST

/* ---- the same bits on every way ---- */

START_TEST(chunks_threads_and_recomputing_do_not_matter)
{
    prompts_chunks(opts_of(_i), prompt_of(_i));
}
END_TEST

START_TEST(groups_and_graphs)
{
    const setting *s = &settings[_i];
    const int32_t first = s->prompt > s->select.token_budget ? s->prompt : s->select.token_budget;
    int32_t once = 0; /* steps in which a group is complete */
    for (int32_t n = s->prompt + 1; n <= LENGTH; n++)
        once += n >= first && (n - first) % s->select.cluster_window == 0;
    prompts_graphs(opts_of(_i), prompt_of(_i), once);
}
END_TEST

START_TEST(hierarchical_equals_resident)
{
    prompts_hierarchical(opts_of(_i), _i, prompt_of(_i));
}
END_TEST

START_TEST(pages_are_continued_with_the_same_bits)
{
    prompts_pages(opts_of(_i), _i, prompt_of(_i));
}
END_TEST

START_TEST(the_batch_does_not_matter)
{
    prompts_batch(opts_of(_i), PROMPT);
}
END_TEST

START_TEST(a_whole_budget_is_dense)
{
    fix_opts o = opts_of(_i);
    o.select.token_budget = CONTEXT;
    prompts_dense(o, prompt_of(_i));
}
END_TEST

/* ---- refusals ---- */

START_TEST(refusals)
{
    fix f;
    fix_opts o = opts_of(0);
    fix_open(&f, &o);
    sl_engine_opts eo = f.eo;
    eo.hot_rows = 83;
    fix_refused(&f, &eo, SL_ERR_INVALID,
                "hot_rows 83 of layer 0 is less than the longest selection, 84 tokens");
    eo = f.eo, eo.gates.recent_tokens = 5;
    fix_refused(&f, &eo, SL_ERR_INVALID, "recent_tokens is 5, but cluster_window says");
    eo = f.eo, eo.gates.sink_tokens = 64;
    fix_refused(&f, &eo, SL_ERR_INVALID, "token_budget 64 leaves nothing to select after sink_tokens 64");
    eo = f.eo, fix_option(&eo, "window_nlist", "21");
    fix_refused(&f, &eo, SL_ERR_INVALID, "window_nlist 21 exceeds cluster_window 20");
    eo = f.eo, eo.select.stamp = 5;
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane rows: stamp differs");
    fix_close(&f);
}
END_TEST

Suite *cluster_kv_suite(void)
{
    Suite *s = suite_create("engine/cluster_kv");
    TCase *c = tcase_create("cluster_kv");
    tcase_set_timeout(c, 240);
    add_variants(c, equals_definition, SETTINGS);
    tcase_add_test(c, clusters_have_their_properties);
    tcase_add_test(c, groups_follow_from_the_prompt);
    add_variants(c, chunks_threads_and_recomputing_do_not_matter, SETTINGS);
    add_variants(c, groups_and_graphs, SETTINGS);
    add_variants(c, hierarchical_equals_resident, SETTINGS);
    add_variants(c, pages_are_continued_with_the_same_bits, SETTINGS);
    tcase_add_loop_test(c, the_batch_does_not_matter, 0, 2);
    tcase_add_loop_test(c, a_whole_budget_is_dense, 0, 2);
    tcase_add_test(c, refusals);
    suite_add_tcase(s, c);
    return s;
}
