/*
 * Engines of a group of ranks, as processes: the logits of every rank are those of one process with the whole model,
 * bit by bit, while the ranks have different loads: prompts in chunks of any size, decode, both in one step, or
 * nothing. Every rank holds the whole model too and runs each of its steps on both.
 *
 *   test_group [--backend cpu|cuda] [--ranks N] [--config TEXT] [--library] [STEPS]
 *
 * With --ranks every configuration runs with that number of ranks. On GPUs rank r has device r, and one configuration
 * more runs: random weights with the dimensions of DeepSeek-V3.2. --config: only those whose name contains the text;
 * --library: NCCL alone moves the rows. Exit code 77: no such backend, or too few devices.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "model/synthetic.h"
#include "tests/unit/collectives/group.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STEPS = 60, DEADLINE_MS = 7000 }; /* of the waits for a rank that stops */
#else
enum { STEPS = 400, DEADLINE_MS = 2500 };
#endif
enum { STOP_MS = 120000 }; /* after which a rank that stops continues although no other has noticed */
enum { LONG = 260 };       /* tokens; more than SPLIT_TOKENS of model/experts_group.c */
enum { SEQS = 4, CONTEXT = 320, MAX_TOKENS = 300, PAGES = (CONTEXT + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS };

/* How the last rank is lost: it kills itself before a step; or in an exchange of a step that computes prompts or only
 * decodes, while the other ranks wait there for it: dispatch of the first MoE layer, combine of the second. */
typedef enum { BEFORE_STEP, KILLED_IN_PROMPT, KILLED_IN_DECODE, STOPPED_IN_PROMPT } loss;

typedef struct config {
    const char *dir;
    sl_index_format index;
    sl_row_format rows;
    sl_dtype act;
    sl_graph_use graphs;
    int32_t ranks, steps; /* steps 0: all */
    int32_t killed_at;    /* the last rank is lost from this step on; 0: never */
    loss lost;
} config;

typedef struct options {
    const char *backend, *only;
    int32_t ranks, steps; /* 0: those of the configuration */
    bool library;
} options;

#define TINY "models/tiny-v32"
#define DS_FP8 "tests/golden/model/ds-fp8"
#define DS_BF16 "tests/golden/model/ds-bf16"
#define GLM "tests/golden/model/glm-groups"
#define M3 "tests/golden/model/m3-vl" /* clamped experts of a model with KV heads */
#define V32 "deepseek_v32"            /* not a checkpoint: random weights, on GPUs only */
static const config configs[] = {
    {TINY, SL_INDEX_PLAIN, SL_ROW_MLA_F32, SL_F32, SL_GRAPHS_AUTO, 2, 0, 0, BEFORE_STEP},
    {TINY, SL_INDEX_OFFICIAL, SL_ROW_MLA_FP8, SL_BF16, SL_GRAPHS_AUTO, 3, 0, 0, BEFORE_STEP},
    {DS_FP8, SL_INDEX_OFFICIAL, SL_ROW_MLA_FP8, SL_BF16, SL_GRAPHS_AUTO, 2, 0, 0, BEFORE_STEP},
    {DS_FP8, SL_INDEX_OFFICIAL, SL_ROW_MLA_FP8, SL_BF16, SL_GRAPHS_PAD, 4, 200, 0, BEFORE_STEP},
    {DS_FP8, SL_INDEX_OFFICIAL, SL_ROW_MLA_FP8, SL_F32, SL_GRAPHS_AUTO, 3, 200, 0, BEFORE_STEP},
    {DS_BF16, SL_INDEX_PLAIN, SL_ROW_MLA_BF16, SL_BF16, SL_GRAPHS_PAD, 3, 200, 0, BEFORE_STEP},
    {GLM, SL_INDEX_PLAIN, SL_ROW_MLA_F32, SL_F32, SL_GRAPHS_AUTO, 4, 200, 0, BEFORE_STEP},
    {TINY, SL_INDEX_PLAIN, SL_ROW_MLA_F32, SL_F32, SL_GRAPHS_AUTO, 1, 50, 0, BEFORE_STEP},
    {TINY, SL_INDEX_PLAIN, SL_ROW_MLA_F32, SL_F32, SL_GRAPHS_AUTO, 3, 60, 40, BEFORE_STEP},
    {TINY, SL_INDEX_PLAIN, SL_ROW_MLA_F32, SL_F32, SL_GRAPHS_AUTO, 3, 60, 5, KILLED_IN_PROMPT},
    {TINY, SL_INDEX_PLAIN, SL_ROW_MLA_F32, SL_F32, SL_GRAPHS_AUTO, 3, 60, 9, KILLED_IN_DECODE},
    {TINY, SL_INDEX_PLAIN, SL_ROW_MLA_F32, SL_F32, SL_GRAPHS_AUTO, 2, 60, 5, STOPPED_IN_PROMPT},
    {V32, SL_INDEX_OFFICIAL, SL_ROW_MLA_FP8, SL_BF16, SL_GRAPHS_AUTO, 2, 300, 0, BEFORE_STEP},
    {M3, SL_INDEX_PLAIN, SL_ROW_GQA_F32, SL_F32, SL_GRAPHS_AUTO, 3, 60, 0, BEFORE_STEP},
};

static int32_t steps_of(const config *c)
{
    return !c->steps || (c->steps > STEPS && !c->killed_at) ? STEPS : c->steps;
}

/* A model with its store and engine. */
typedef struct whole {
    sl_model *model;
    sl_arena *arena;
    sl_engine *engine;
} whole;

/* A sequence in both engines. */
typedef struct stream {
    sl_seq *seq[2];
    int32_t prompt, end;      /* tokens of the prompt; of the whole sequence */
    int32_t ids[CONTEXT + 1]; /* prompt, then what the model chose */
    int32_t len;
} stream;

typedef struct test {
    cg_rank *r;
    const config *c;
    whole w[2]; /* alone, group */
    stream streams[SEQS];
    bool open[SEQS];
    int32_t vocab;
    uint64_t drawn;
    int32_t compared, idle;
} test;

static uint32_t draw(test *t, uint32_t below)
{
    return cg_hash(0x5151 + (uint64_t)t->r->rank, t->drawn++) % below;
}

/* Four layers, three of them with 32 experts; two of four groups of experts are chosen, so that some tokens have
 * experts on one rank only. */
static sl_status load_v32(test *t, const sl_model_opts *mo, sl_model **out, sl_err *err)
{
    sl_synthetic_opts so = {.ranks = 1, .seed = 7};
    sl_model_config *c = calloc(1, sizeof *c);
    sl_status st = sl_synthetic_config(V32, 4, c, err);

    c->moe.n_routed = 32, c->moe.n_group = 4, c->moe.topk_group = 2, c->moe.per_token = 8;
    c->vocab_size = 1024;
    for (int32_t l = 0; l < 4; l++)
        c->layer_is_moe[l] = l > 0;
    if (st == SL_OK)
        st = sl_model_synthetic(t->r->be, c, mo, &so, out, err);
    free(c);
    return st;
}

static bool open_whole(test *t, whole *w, sl_comm *comm)
{
    const config *c = t->c;
    sl_model_opts mo = {.index_format = c->index,
                        .row_format = c->rows,
                        .act = c->act,
                        .max_tokens = MAX_TOKENS,
                        .max_logit_rows = SEQS,
                        .comm = comm};
    sl_engine_opts eo = {.algorithm = &sl_algo_dsa,
                         .max_seqs = SEQS,
                         .max_step_tokens = MAX_TOKENS,
                         .max_context = CONTEXT,
                         .tail_rows = 1,
                         .index_pages = SEQS * PAGES,
                         .row_pages = SEQS * PAGES,
                         .graphs = c->graphs,
                         .poison = true};
    sl_arena_opts ao = {.huge_pages = SL_OFF, .lock = SL_OFF, .numa_node = -1};
    sl_geometry g;
    sl_err err = {{0}};

    sl_status st = strcmp(c->dir, V32) == 0 ? load_v32(t, &mo, &w->model, &err)
                                            : sl_model_load(t->r->be, c->dir, &mo, &w->model, &err);
    if (!cg_ok(t->r, st, &err, "load"))
        return false;
    const sl_model_config *cfg = sl_model_get_config(w->model);
    sl_cache_dims cache = sl_engine_cache_dims(cfg, c->rows, c->index);
    if (cfg->index.blocks.tokens)
        eo.algorithm = &sl_algo_msa;

    t->vocab = cfg->vocab_size;
    eo.hot_rows = cfg->index.topk;
    if (!cg_ok(t->r,
               sl_engine_geometry(cfg, &cache, eo.algorithm, SL_LAYOUT_PAGE_FIRST,
                                  sl_model_fingerprint(w->model), &g, &err),
               &err, "geometry"))
        return false;
    ao.bytes = (uint64_t)(SEQS * PAGES * g.page_bytes);
    return cg_ok(t->r, sl_arena_create(&g, &ao, &w->arena, &err), &err, "arena") &&
           cg_ok(t->r, sl_engine_create(t->r->be, w->model, w->arena, &eo, &w->engine, &err), &err, "engine");
}

static void close_whole(whole *w)
{
    sl_engine_destroy(w->engine);
    sl_arena_destroy(w->arena);
    sl_model_destroy(w->model);
}

static void start(test *t, int32_t i)
{
    stream *s = &t->streams[i];
    int32_t pages[PAGES];
    sl_err err = {{0}};

    /* A long prompt is one step, in which GPUs write rows into the memory of other ranks. */
    *s = (stream){.prompt = draw(t, 12) ? 1 + (int32_t)draw(t, 150) : LONG + (int32_t)draw(t, 40)};
    s->end = s->prompt + 1 + (int32_t)draw(t, (uint32_t)(CONTEXT - s->prompt));
    for (int32_t k = 0; k < s->prompt; k++)
        s->ids[k] = (int32_t)draw(t, (uint32_t)t->vocab);
    for (int32_t k = 0; k < PAGES; k++)
        pages[k] = k * SEQS + i;
    for (int e = 0; e < 2; e++)
        cg_ok(t->r, sl_engine_seq_open(t->w[e].engine, SL_RESIDENT, pages, PAGES, 0, NULL, &s->seq[e], &err),
              &err, "open");
    t->open[i] = true;
}

static void end(test *t, int32_t i)
{
    for (int e = 0; e < 2; e++)
        sl_engine_seq_close(t->w[e].engine, t->streams[i].seq[e]);
    t->open[i] = false;
}

/* What this rank does in this step: item i belongs to stream of[i]. Rank r has at most 1 + r streams; rank 1 is idle
 * half of the time, the others rarely. */
static int32_t choose(test *t, sl_step_item *items, int32_t *of)
{
    int32_t most = t->r->rank + 1 < SEQS ? t->r->rank + 1 : SEQS, n = 0, tokens = 0;

    if (draw(t, 100) < (t->r->rank == 1 ? 50u : 8u))
        return 0;
    for (int32_t i = 0; i < most && !t->r->failed; i++) {
        stream *s = &t->streams[i];
        int32_t take = 1;

        if (!t->open[i] && draw(t, 3) == 0)
            start(t, i);
        if (!t->open[i] || draw(t, 10) == 0)
            continue;
        if (s->len < s->prompt) {
            take = 1 + (int32_t)draw(t, 40);
            take = s->prompt < LONG && take < s->prompt - s->len ? take : s->prompt - s->len;
        }
        take = take < MAX_TOKENS - tokens ? take : MAX_TOKENS - tokens;
        if (take < 1)
            continue;
        items[n] = (sl_step_item){
            .tokens = s->ids + s->len, .n_tokens = take, .want_logits = s->len + take >= s->prompt};
        tokens += take;
        of[n++] = i;
    }
    return n;
}

static int32_t best(const float *logits, int32_t n)
{
    int32_t b = 0;

    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[b])
            b = i;
    return b;
}

static void check(test *t, const sl_step_item *alone, const sl_step_item *group, int32_t n, const int32_t *of,
                  int32_t step)
{
    for (int32_t i = 0; i < n && !t->r->failed; i++) {
        stream *s = &t->streams[of[i]];

        s->len += alone[i].n_tokens;
        if (!alone[i].want_logits)
            continue;
        t->compared++;
        if (memcmp(alone[i].logits, group[i].logits, sizeof(float) * (size_t)t->vocab) != 0)
            cg_fail(t->r, "step %d: logits of item %d of %d (%d tokens) differ from one process", step, i, n,
                    alone[i].n_tokens);
        s->ids[s->len] = best(alone[i].logits, t->vocab);
        if (s->len + 1 >= s->end)
            end(t, of[i]);
    }
}

/* The last rank, before a step with these items: is this the step in which it is lost? */
static void arm(test *t, const sl_step_item *items, int32_t n, int32_t step)
{
    bool prompt = false;

    if (t->r->rank != t->r->ranks - 1 || t->c->lost == BEFORE_STEP || step < t->c->killed_at)
        return;
    for (int32_t i = 0; i < n; i++)
        prompt = prompt || items[i].n_tokens > 1;
    if (n == 0 || prompt != (t->c->lost != KILLED_IN_DECODE))
        return;
    cg_lose(t->r, t->c->lost == KILLED_IN_DECODE ? 4 : 1,
            t->c->lost == STOPPED_IN_PROMPT ? SIGSTOP : SIGKILL);
}

static sl_status one_step(test *t, int32_t step, sl_err *err)
{
    sl_step_item items[2][SEQS];
    int32_t of[SEQS], n = choose(t, items[0], of);

    memcpy(items[1], items[0], sizeof items[0]);
    for (int32_t i = 0; i < n; i++)
        for (int e = 0; e < 2; e++)
            items[e][i].seq = t->streams[of[i]].seq[e];
    t->idle += n == 0;
    arm(t, items[1], n, step);
    if (n > 0)
        cg_ok(t->r, sl_engine_step(t->w[0].engine, items[0], n, NULL, err), err, "a step of one process");
    SL_TRY(sl_engine_step(t->w[1].engine, items[1], n, NULL, err));
    check(t, items[0], items[1], n, of, step);
    return SL_OK;
}

/* A rank loads less than all weights, and more than nothing of the experts. */
static void check_weights(test *t)
{
    uint64_t all = sl_model_weight_bytes(t->w[0].model), mine = sl_model_weight_bytes(t->w[1].model);

    if (t->r->ranks > 1 ? mine >= all : mine != all)
        cg_fail(t->r, "this rank of %d has %llu bytes of weights, all are %llu", t->r->ranks,
                (unsigned long long)mine, (unsigned long long)all);
    if (!sl_key_eq(sl_model_fingerprint(t->w[0].model), sl_model_fingerprint(t->w[1].model)))
        cg_fail(t->r, "the fingerprint depends on the group");
}

/* Its experts have computed rows, of other ranks too; one process without a group counts nothing. */
static void check_load(test *t)
{
    sl_ep_load mine = sl_engine_expert_load(t->w[1].engine), none = sl_engine_expert_load(t->w[0].engine);

    if (none.rows || (t->r->ranks > 1 && (!mine.rows || mine.busiest > mine.rows ||
                                          mine.rows > mine.busiest * (uint64_t)mine.experts)))
        cg_fail(t->r, "%d experts computed %llu rows, the busiest %llu", mine.experts,
                (unsigned long long)mine.rows, (unsigned long long)mine.busiest);
}

/* Every step is one gather and two exchanges in each MoE layer, and the rows that travelled have taken time. A group of
 * one rank exchanges nothing. */
static void check_exchanges(test *t)
{
    const sl_model_config *cfg = sl_model_get_config(t->w[1].model);
    uint64_t layers = 0, agreed;
    bool many = t->r->ranks > 1;
    sl_comm_stats s;

    for (int32_t l = 0; l < cfg->n_layers; l++)
        layers += cfg->layer_is_moe[l];
    (void)sl_engine_shares(t->w[1].engine, &agreed);
    sl_comm_stats_get(t->r->c, &s);
    if (s.gathers != agreed || s.exchanges % (2 * layers) || s.exchanges > 2 * layers * agreed)
        cg_fail(t->r, "%llu gathers and %llu exchanges are counted in %llu steps with %llu layers",
                (unsigned long long)s.gathers, (unsigned long long)s.exchanges, (unsigned long long)agreed,
                (unsigned long long)layers);
    uint64_t ns = s.exchange_ns + s.hidden_ns;
    if (!s.gather_ns || many != (s.exchanges > 0) || many != (ns > 0) || many != (s.exchange_bytes > 0))
        cg_fail(t->r, "%llu exchanges of %llu bytes took %llu ns, gathers %llu",
                (unsigned long long)s.exchanges, (unsigned long long)s.exchange_bytes, (unsigned long long)ns,
                (unsigned long long)s.gather_ns);
    if (many)
        printf("rank %d: %llu steps, waited %.1f us each; %llu exchanges of %.1f us and %.1f KB\n",
               t->r->rank, (unsigned long long)agreed, (double)s.gather_ns / 1e3 / (double)agreed,
               (unsigned long long)s.exchanges, (double)ns / 1e3 / (double)s.exchanges,
               (double)s.exchange_bytes / 1e3 / (double)s.exchanges);
}

/* What a rank must notice: on the CPU that the process has ended; on a GPU that the rank does not arrive. */
static bool is_loss(const cg_rank *r, loss lost, sl_status st, const sl_err *err)
{
    if (lost == STOPPED_IN_PROMPT)
        return st == SL_ERR_TIMEOUT || (st == SL_ERR_PEER && r->rank == r->ranks - 1);
    if (strcmp(r->backend, "cpu") == 0)
        return st == SL_ERR_PEER && strstr(err->text, "its process has ended");
    return st == SL_ERR_PEER || st == SL_ERR_TIMEOUT;
}

/* After a loss backend and weights are as they were: the model of one process continues. */
static void check_survival(test *t)
{
    sl_step_item items[SEQS];
    int32_t of[SEQS], n = 0;
    sl_err err = {{0}};

    sl_engine_set_comm(t->w[1].engine, NULL);
    sl_comm_destroy(t->r->c);
    t->r->c = NULL;
    while (n == 0)
        n = choose(t, items, of);
    for (int32_t i = 0; i < n; i++)
        items[i].seq = t->streams[of[i]].seq[0];
    cg_ok(t->r, sl_engine_step(t->w[0].engine, items, n, NULL, &err), &err, "a step after the loss");
}

static void run(cg_rank *r, const void *arg)
{
    test *t = calloc(1, sizeof *t);
    sl_err err = {{0}};
    sl_engine_stats stats;
    bool lost = false;

    t->r = r;
    t->c = arg;
    if (open_whole(t, &t->w[0], NULL) && open_whole(t, &t->w[1], r->c)) {
        check_weights(t);
        for (int32_t step = 1; step <= steps_of(t->c) && !r->failed; step++) {
            bool last = r->rank == r->ranks - 1;

            if (t->c->killed_at == step && t->c->lost == BEFORE_STEP && last)
                raise(SIGKILL);
            sl_status st = one_step(t, step, &err);
            lost = t->c->killed_at && step >= t->c->killed_at && is_loss(r, t->c->lost, st, &err);
            if (lost) {
                cg_gave_up(r);
                check_survival(t);
                break;
            }
            cg_ok(r, st, &err, "a step of the group");
        }
        if (t->c->killed_at && !lost && !r->failed)
            cg_fail(r, "no step noticed that a rank was lost");
        if (t->compared < 10 && !r->failed && !t->c->killed_at)
            cg_fail(r, "only %d logits were compared", t->compared);
        if (!r->failed)
            check_load(t);
        if (!r->failed && !t->c->killed_at)
            check_exchanges(t);
        sl_engine_stats_get(t->w[1].engine, &stats);
        if (sl_backend_caps(r->be) & SL_BE_GRAPHS && t->c->graphs == SL_GRAPHS_AUTO && !t->c->killed_at &&
            !stats.graph_steps)
            cg_fail(r, "no step was a graph");
        printf("rank %d of %d: %d logits equal, %d idle steps, %llu steps were graphs\n", r->rank, r->ranks,
               t->compared, t->idle, (unsigned long long)stats.graph_steps);
        fflush(stdout);
    }
    for (int32_t i = 0; i < SEQS; i++)
        if (t->open[i])
            end(t, i);
    close_whole(&t->w[1]);
    close_whole(&t->w[0]);
    free(t);
}

static bool parse(int argc, char **argv, options *o)
{
    *o = (options){.backend = "cpu", .only = ""};
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--library") == 0)
            o->library = true;
        else if (strcmp(argv[i], "--backend") == 0 && v)
            o->backend = argv[++i];
        else if (strcmp(argv[i], "--config") == 0 && v)
            o->only = argv[++i];
        else if (strcmp(argv[i], "--ranks") == 0 && v)
            o->ranks = (int32_t)strtol(argv[++i], NULL, 10);
        else if (argv[i][0] != '-')
            o->steps = (int32_t)strtol(argv[i], NULL, 10);
        else
            return false;
    }
    return o->ranks >= 0 && o->ranks <= SL_COMM_RANKS_MAX && o->steps >= 0;
}

static int run_config(const options *o, config c, char *why, size_t cap)
{
    bool cpu = strcmp(o->backend, "cpu") == 0, stops = c.lost == STOPPED_IN_PROMPT;

    if (o->ranks)
        c.ranks = o->ranks;
    if (o->steps && !c.killed_at)
        c.steps = o->steps;
    cg_run g = {.backend = o->backend,
                .ranks = c.ranks,
                .deadline_ms = stops                 ? DEADLINE_MS
                               : !cpu && c.killed_at ? 5000
                                                     : 120000,
                .limit_ms = 600000,
                .library_only = o->library,
                .killed = c.killed_at && !stops ? 1ull << (c.ranks - 1) : 0,
                .stopped = stops ? 1ull << (c.ranks - 1) : 0,
                .stop_ms = STOP_MS};

    if ((cpu && strcmp(c.dir, V32) == 0) || !strstr(c.dir, o->only) || (c.killed_at && c.ranks < 2) ||
        (!cpu && c.lost)) /* exchanges of a captured step are no calls */
        return CG_OK;
    printf("%s, %d ranks\n", c.dir, c.ranks);
    return cg_go(&g, run, &c, why, cap);
}

int main(int argc, char **argv)
{
    int failed = 0;
    options o;

    if (!parse(argc, argv, &o)) {
        fprintf(stderr,
                "usage: test_group [--backend cpu|cuda] [--ranks N] [--config TEXT] [--library] [STEPS]\n");
        return 2;
    }
    for (size_t i = 0; i < SL_COUNT(configs); i++) {
        char why[512];
        int rc = run_config(&o, configs[i], why, sizeof why);

        if (rc == CG_SKIPPED) {
            printf("skipped: %s\n", why);
            return CG_SKIPPED;
        }
        if (rc != CG_OK) {
            printf("FAILED: %s\n", why);
            failed++;
        }
    }
    printf("groups: %d configurations failed\n", failed);
    return failed ? 1 : 0;
}
