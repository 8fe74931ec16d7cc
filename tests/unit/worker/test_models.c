/*
 * The output of a cluster equals that of a single process, with real engines on checkpoints of the repository: with a
 * hierarchical decode worker whose hot buffer is as small as the longest list (the selection, or with dense attention
 * the context) and whose stale rows are poisoned, chunks that end in the middle of pages, several requests in one
 * batch, greedy and seeded sampling, more than a thousand steps, and a decode worker that dies in the middle. Two of
 * the models run under quest, with rows and lists of blocks by KV head and a plane of its own, and one each under snapkv,
 * rocket_kv, cluster_kv and pq_cache, whose selections depend on where the prompt ended; those of the last two are made again by the
 * worker that opens the pages. One runs under xattention, whose prompts are cut at pages.
 */
#include <stdio.h>

#include "tests/unit/run_suite.h"
#include "tests/unit/sparse/select_params.h"
#include "tests/unit/worker/cluster.h"

/* All models are served; what spills and what dies does so with one model of each kind of rows and planes. The address
 * sanitizer makes steps several times slower; it looks at every kind, not at long texts. */
#if defined(__SANITIZE_ADDRESS__)
enum { SLOWER = 8, MODELS = 7, SPILLED = 4, DIED = 3 };
#else
enum { SLOWER = 1, MODELS = 12, SPILLED = 7, DIED = 5 };
#endif
/* One model of each kind of rows and planes first. */
static const int order[] = {0, 11, 5, 7, 8, 9, 10, 1, 2, 3, 4, 6};

static cluster c;
static const char *dir;
static sl_index_format index_format;
static sl_row_format row_format;
static sl_dtype act;
static const sl_algo_desc *algorithm;
static sl_select_options select_of_model;
static int32_t longest; /* list; 0: that of the model */

typedef struct rig {
    sl_backend *be;
    sl_model *model;
    sl_engine *engine;
} rig;

static rig rigs[MAX_WORKERS];

static void load(rig *g, int max_tokens, int rows)
{
    sl_err err = {0};
    sl_backend_opts bo = {.threads = 1};
    SL_CHECK(sl_backend_create("cpu", &bo, &g->be, &err) == SL_OK, "%s", err.text);
    sl_model_opts mo = {.index_format = index_format,
                        .row_format = row_format,
                        .act = act,
                        .max_tokens = max_tokens,
                        .max_logit_rows = rows};
    SL_CHECK(sl_model_load(g->be, dir, &mo, &g->model, &err) == SL_OK, "%s", err.text);
}

static sl_engine_opts engine_opts(const rig *g, bool prefill, int max_tokens, int context)
{
    int pages = sl_pages_for(context), seqs = 6;
    int32_t hot = algorithm->reads_all ? context
                  : longest            ? longest
                                       : sl_model_get_config(g->model)->index.topk;
    return (sl_engine_opts){.algorithm = algorithm,
                            .select = select_of_model,
                            .max_seqs = seqs,
                            .max_hot_seqs = prefill ? 0 : seqs,
                            .max_step_tokens = max_tokens,
                            .max_context = context,
                            .hot_rows = hot,
                            .tail_rows = 2,
                            .index_pages = pages * seqs,
                            .row_pages = prefill ? pages * seqs : c.o.row_pages,
                            .poison = true};
}

static void build(rig *g, sl_arena *arena, const sl_engine_opts *o)
{
    sl_err err = {0};
    SL_CHECK(sl_engine_create(g->be, g->model, arena, o, &g->engine, &err) == SL_OK, "%s", err.text);
}

static void drop(rig *g)
{
    sl_engine_destroy(g->engine);
    sl_model_destroy(g->model);
    sl_backend_destroy(g->be);
    *g = (rig){0};
}

/* The steps of the first decode worker, which stop after a number of them until the test opens the gate: so a request is certainly
 * in the middle of its stream when the test kills the worker, however late the test is. */
static struct {
    void *impl;
    sl_status (*submit)(void *impl, sl_step_item *items, int32_t n, sl_err *err);
    int left;
    _Atomic bool closed;
} gate;

static sl_status gated_submit(void *impl, sl_step_item *items, int32_t n, sl_err *err)
{
    if (impl == gate.impl && gate.left-- <= 0)
        while (atomic_load(&gate.closed))
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return gate.submit(impl, items, n, err);
}

static void gate_runner(cworker *w)
{
    if (w->role != SL_ROLE_DECODE || w->index || !atomic_load(&gate.closed))
        return;
    gate.impl = w->runner.impl;
    gate.submit = w->runner.submit;
    w->runner.submit = gated_submit;
}

static bool make_runner(cworker *w)
{
    rig *g = &rigs[w - w->c->w];
    bool prefill = w->role == SL_ROLE_PREFILL;
    int tokens = prefill ? w->c->o.chunk_tokens : w->c->o.max_batch;
    load(g, tokens, prefill ? w->c->o.max_requests : w->c->o.max_batch);
    sl_engine_opts o = engine_opts(g, prefill, tokens, w->c->o.max_context);
    build(g, w->arena, &o);
    w->runner = sl_runner_for_engine(g->engine, sl_model_get_config(g->model), &o);
    w->runner.overlaps = true; /* as on a GPU; the CPU's own loop is that of tests/e2e */
    gate_runner(w);
    return true;
}

static void drop_runner(cworker *w)
{
    drop(&rigs[w - w->c->w]);
}

/* A model, with an algorithm, or with the one that fits it. */
typedef struct model {
    const char *dir;
    const sl_algo_desc *algorithm;
    int32_t longest; /* list */
    select_params select;
} model;

static void choose(const model *m)
{
    sl_model_config cfg;
    sl_dtype stored;
    sl_err err = {0};
    dir = m->dir;
    ck_assert_msg(sl_model_config_load(dir, &cfg, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_model_stored_dtype(dir, &stored, &err) == SL_OK, "%s", err.text);
    sl_model_auto_formats(&cfg, stored, &index_format, &row_format);
    act = stored == SL_F32 ? SL_F32 : SL_BF16;
    algorithm = m->algorithm ? m->algorithm : cfg.attn.n_kv_heads > 0 ? &sl_algo_dense : &sl_algo_dsa;
    select_of_model = select_options(algorithm, &m->select);
    longest = m->longest;
}

static cluster_opts options(void)
{
    rig g = {0};
    sl_err err = {0};
    cluster_opts o = cluster_defaults();
    load(&g, 1, 1);
    const sl_model_config *cfg = sl_model_get_config(g.model);
    sl_cache_dims cache = sl_engine_cache_dims(cfg, row_format, index_format);
    cache.select = select_of_model;
    ck_assert_msg(sl_engine_geometry(cfg, &cache, algorithm, SL_LAYOUT_PAGE_FIRST,
                                     sl_model_fingerprint(g.model), &o.geometry, &err) == SL_OK,
                  "%s", err.text);
    o.vocab = cfg->vocab_size;
    o.chunk_tokens = 80;
    o.max_batch = 4;
    o.max_context = cfg->max_context < 1600 ? cfg->max_context : 1600;
    o.prefill_pages = 80;
    o.decode_pages = 80;
    o.make_runner = make_runner;
    o.drop_runner = drop_runner;
    drop(&g);
    return o;
}

/* The stream of one engine in this thread: the prompt in as few steps as possible, resident. */
static void reference(const creq *r)
{
    rig g = {0};
    sl_err err = {0};
    sl_arena *arena;
    sl_sampler *sampler;
    int context = c.o.max_context, n_pages = context / SL_PAGE_TOKENS;
    size_t n = r->n_prompt;
    load(&g, 256, 1);
    sl_arena_opts ao = {
        .bytes = (uint64_t)(n_pages * c.o.geometry.page_bytes), .lock = SL_OFF, .numa_node = -1};
    ck_assert_msg(sl_arena_create(&c.o.geometry, &ao, &arena, &err) == SL_OK, "%s", err.text);
    sl_engine_opts o = engine_opts(&g, true, 256, context);
    build(&g, arena, &o);
    ck_assert_int_eq(sl_sampler_create(c.o.vocab, NULL, 0, &sampler), SL_OK);
    int32_t pages[64];
    for (int i = 0; i < n_pages; i++)
        pages[i] = i;
    sl_seq *seq;
    ck_assert_msg(sl_engine_seq_open(g.engine, SL_RESIDENT, pages, n_pages, 0, NULL, &seq, &err) == SL_OK,
                  "%s", err.text);
    ck_assert_msg(sl_engine_seq_prompt(g.engine, seq, (int32_t)n, &err) == SL_OK, "%s", err.text);
    sl_step_item it = {.seq = seq};
    for (size_t at = 0; at < r->n_tokens;) {
        size_t k = at >= n ? 1 : n - at < 256 ? n - at : 256;
        it.tokens = r->tokens + at;
        it.n_tokens = (int32_t)k;
        it.want_logits = at + k >= n;
        ck_assert_msg(sl_engine_step(g.engine, &it, 1, NULL, &err) == SL_OK, "%s", err.text);
        at += k;
        if (at < n || at == r->n_tokens)
            continue;
        sl_history h = {r->tokens, n, r->tokens + n, at - n};
        sl_sampled s;
        ck_assert_int_eq(sl_sample(sampler, it.logits, &r->sampling, &h, at, &s, &err), SL_OK);
        if (s.id != r->tokens[at])
            ck_abort_msg("request %lx: token %zu is %d, one process gives %d", (long)r->rid, at - n,
                         r->tokens[at], s.id);
    }
    sl_engine_seq_close(g.engine, seq);
    sl_sampler_destroy(sampler);
    drop(&g);
    sl_arena_destroy(arena);
}

static creq *make(int n, int max, uint64_t seed, bool greedy)
{
    creq *r = cluster_ask(&c, n, max, seed);
    r->sampling.temperature = greedy ? 0 : 0.9f;
    r->sampling.top_p = greedy ? 1 : 0.95f;
    r->sampling.seed = seed * 77;
    return r;
}

static void all_equal(int seconds)
{
    cluster_until(&c, cluster_idle, seconds, "requests end");
    for (int i = 0; i < c.n_req; i++) {
        ck_assert_msg(c.req[i].state == REQ_DONE, "request %d: state %d, %s", i, c.req[i].state,
                      c.req[i].reason);
        reference(&c.req[i]);
    }
}

static const model models[] = {
    {.dir = "models/tiny-v32"},
    {.dir = "tests/golden/model/glm-share"},
    {.dir = "tests/golden/model/ds-fp8"},
    {.dir = "tests/golden/model/qwen3-norms"},
    {.dir = "tests/golden/model/llama-odd"},
    {"tests/golden/model/qwen3-norms", &sl_algo_quest, 96, {.block_tokens = 16, .token_budget = 96}},
    {"tests/golden/model/llama-odd", &sl_algo_quest, 96, {.block_tokens = 4, .token_budget = 96}},
    {"tests/golden/model/llama-odd",
     &sl_algo_snapkv,
     98,
     {.prompt_budget = 48, .window = 20, .output_tokens = 50}},
    {"tests/golden/model/llama-odd",
     &sl_algo_cluster_kv,
     68,
     {.token_budget = 48, .cluster_tokens = 6, .cluster_window = 20, .window_nlist = 3, .niter = 4}},
    {"tests/golden/model/qwen3-norms",
     &sl_algo_pq_cache,
     70,
     {.token_budget = 70, .n_subvec = 2, .n_subbits = 4, .niter = 4, .recent_ratio = 0.5f}},
    {"tests/golden/model/qwen3-norms",
     &sl_algo_rocket_kv,
     36,
     {.prompt_budget = 96, .window = 20, .top_pages = 9, .retained_page = 4}},
    {"tests/golden/model/llama-odd", &sl_algo_xattention, 0, {.list_mass = 0.3f}},
};

START_TEST(a_thousand_steps)
{
    choose(&models[0]);
    cluster_opts o = options();
    cluster_start(&c, &o);
    make(300, 1100 / SLOWER, 1, true);
    make(100, 400 / SLOWER, 2, false);
    make(37, 300 / SLOWER, 3, false);
    all_equal(120);
    cluster_stop(&c);
}
END_TEST

START_TEST(other_models)
{
    choose(&models[order[_i]]);
    cluster_opts o = options();
    o.n_prefill = 2;
    o.n_decode = 2;
    o.prefill_layout = SL_LAYOUT_LAYER_FIRST;
    o.decode_layout = SL_LAYOUT_PAGE_HEAD;
    cluster_start(&c, &o);
    for (int i = 0; i < 4; i++)
        make(65 + 90 * i, (60 + 20 * i) / SLOWER + 1, 20 + (uint64_t)i, i % 2 == 0);
    all_equal(120);
    /* the first prompt again, longer, on whatever has it: reuse, shipping from cache or pulling */
    for (int p = 0; p < 2; p++) {
        creq *r = make(335 + 20 * p, 40 / SLOWER, 23, false);
        r->prefill = p;
        r->decode = 1 - p;
    }
    /* and the next turn of a conversation, whose prompt has what the one before generated, on each decode worker */
    const creq *turn = &c.req[1];
    for (int d = 0; d < 2; d++) {
        creq *next = cluster_request(&c, turn->tokens, (int)turn->n_tokens, 30 / SLOWER + 1);
        next->decode = d;
        next->sampling.temperature = 0;
    }
    all_equal(120);
    cluster_stop(&c);
}
END_TEST

/* Three row pages: only the shortest requests start resident, and the page that begins with row 192 spills
 * them; the same tokens. */
START_TEST(spilled_under_pressure)
{
    choose(&models[order[_i]]);
    cluster_opts o = options();
    o.row_pages = 3;
    cluster_start(&c, &o);
    for (int i = 0; i < 2; i++)
        make(120 + i, 80 + 160 / SLOWER, 60 + (uint64_t)i, i == 0);
    make(250, 40, 62, false);
    make(500, 40, 63, true);
    all_equal(120);
    cluster_stop(&c);
    ck_assert_uint_gt(c.spilled, 0);
}
END_TEST

START_TEST(survives_a_death)
{
    choose(&models[order[_i]]);
    cluster_opts o = options();
    o.n_decode = 2;
    gate.left = 100;
    atomic_store(&gate.closed, true);
    cluster_start(&c, &o);
    creq *a = make(200, 160 + 340 / SLOWER, 5, false);
    a->decode = 0;
    while (a->n_tokens < 300)
        cluster_poll(&c, 2);
    ck_assert_int_eq(a->state, REQ_DECODING);
    cworker_kill(cluster_worker(&c, SL_ROLE_DECODE, 0));
    atomic_store(&gate.closed, false);
    a->decode = -1;
    all_equal(120);
    ck_assert_int_ge(a->attempts, 1);
    cworker_join(cluster_worker(&c, SL_ROLE_DECODE, 0));
    cluster_stop(&c);
}
END_TEST

int main(void)
{
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("models");
    TCase *t = tcase_create("models");
    tcase_set_timeout(t, 280);
    tcase_add_test(t, a_thousand_steps);
    tcase_add_loop_test(t, other_models, 0, MODELS);
    tcase_add_loop_test(t, spilled_under_pressure, 0, SPILLED);
    tcase_add_loop_test(t, survives_a_death, 0, DIED);
    suite_add_tcase(s, t);
    return run_suite(s);
}
