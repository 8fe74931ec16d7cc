/*
 * Drafts in a group of ranks, as processes: what a rank drafts, and the tokens that its steps choose, are those of one process with the
 * whole model, bit by bit, while the ranks want different numbers of drafts, none, or have no work at all; and a rank that is killed
 * between two drafts breaks the group, and nothing waits for it.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/unit/collectives/group.h"

enum { SEQS = 3, MOST = 4, CONTEXT = 256, PROMPT = 60, MAX_TOKENS = 120 };
enum { PAGES = (CONTEXT + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS, LIST = 16 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STEPS = 25 };
#else
enum { STEPS = 90 };
#endif

typedef struct config {
    const char *dir;
    int32_t ranks, killed_at; /* the last rank ends in an exchange of a draft from this step on; 0: never */
} config;

static const config configs[] = {
    {"tests/golden/model/ds-mtp", 2, 0},
    {"tests/golden/model/ds-mtp", 4, 0},
    {"tests/golden/model/glm-mtp", 3, 0},
    {"tests/golden/model/ds-mtp", 2, 12},
};

typedef struct whole {
    sl_model *model;
    sl_arena *arena;
    sl_engine *engine;
} whole;

/* A sequence in both engines; ids[len] is the token that its next step begins with. */
typedef struct stream {
    sl_seq *seq[2];
    sl_sampling how;
    int32_t ids[CONTEXT + 1], len;
} stream;

/* A step of one engine. */
typedef struct turn {
    sl_draft_item drafts[SEQS];
    sl_step_item items[SEQS];
    sl_step_sample samples[SEQS][1 + MOST];
    int32_t ids[SEQS][1 + MOST];
    int made;
} turn;

typedef struct test {
    cg_rank *r;
    const config *c;
    whole w[2]; /* alone, group */
    stream streams[SEQS];
    int32_t vocab;
    uint64_t drawn;
    int32_t drafted, idle;
} test;

static uint32_t draw(test *t, uint32_t below)
{
    return cg_hash(0x717 + (uint64_t)t->r->rank, t->drawn++) % below;
}

static bool open_whole(test *t, whole *w, sl_comm *comm)
{
    sl_model_opts mo = {.index_format = SL_INDEX_OFFICIAL,
                        .row_format = SL_ROW_MLA_FP8,
                        .act = SL_BF16,
                        .max_tokens = MAX_TOKENS,
                        .max_logit_rows = SEQS * (1 + MOST),
                        .draft = true,
                        .comm = comm};
    sl_engine_opts eo = {.algorithm = &sl_algo_dsa,
                         .max_seqs = SEQS,
                         .max_hot_seqs = SEQS,
                         .max_step_tokens = MAX_TOKENS,
                         .max_item_tokens = 1 + MOST,
                         .max_context = CONTEXT,
                         .hot_rows = LIST * (1 + MOST),
                         .tail_rows = 2 * MOST + 1,
                         .index_pages = SEQS * PAGES,
                         .row_pages = SEQS * PAGES,
                         .poison = true};
    sl_arena_opts ao = {.huge_pages = SL_OFF, .lock = SL_OFF, .numa_node = -1};
    sl_geometry g;
    sl_err err = {{0}};
    if (!cg_ok(t->r, sl_model_load(t->r->be, t->c->dir, &mo, &w->model, &err), &err, "load"))
        return false;
    const sl_model_config *cfg = sl_model_get_config(w->model);
    sl_cache_dims cache = sl_engine_cache_dims(cfg, mo.row_format, mo.index_format);
    t->vocab = cfg->vocab_size;
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

static void made(void *ctx)
{
    turn *u = ctx;
    u->made++;
}

static sl_step_sample sample_of(const stream *s, int32_t tokens)
{
    return (sl_step_sample){.sampling = &s->how, .history = {.prompt = s->ids, .n_prompt = (size_t)tokens}};
}

/* The prompts of all streams, in steps that all ranks make. */
static bool prompts(test *t)
{
    sl_err err = {{0}};
    for (int32_t i = 0; i < SEQS; i++) {
        stream *s = &t->streams[i];
        int32_t pages[PAGES];
        s->how = (sl_sampling){.temperature = i == 1 ? 0.6f : 0,
                               .top_p = 1,
                               .repetition_penalty = 1,
                               .n_logprobs = -1,
                               .seed = 40 + (uint64_t)i};
        s->len = PROMPT - i;
        for (int32_t k = 0; k < s->len; k++)
            s->ids[k] = (int32_t)draw(t, (uint32_t)t->vocab);
        for (int32_t k = 0; k < PAGES; k++)
            pages[k] = k * SEQS + i;
        for (int e = 0; e < 2; e++) {
            sl_step_sample w = sample_of(s, s->len);
            if (!cg_ok(
                    t->r,
                    sl_engine_seq_open(t->w[e].engine, SL_RESIDENT, pages, PAGES, 0, NULL, &s->seq[e], &err),
                    &err, "open"))
                return false;
            sl_step_item it = {.seq = s->seq[e], .tokens = s->ids, .n_tokens = s->len, .sample = &w};
            if (!cg_ok(t->r, sl_engine_step(t->w[e].engine, &it, 1, NULL, &err), &err, "prompt") ||
                (i != 0 && !cg_ok(t->r, sl_engine_seq_spill(t->w[e].engine, s->seq[e], &err), &err, "spill")))
                return false;
            s->ids[s->len] = w.out.id;
        }
    }
    return true;
}

/* What this rank does in this step: streams of[0 .. n - 1], each with some drafts or none. */
static int32_t choose(test *t, int32_t *of, int32_t *want)
{
    int32_t n = 0;
    if (draw(t, 100) < (t->r->rank == 1 ? 40u : 10u))
        return 0;
    for (int32_t i = 0; i < SEQS; i++) {
        want[n] = (int32_t)draw(t, 1 + MOST);
        if (draw(t, 6) == 0 || t->streams[i].len + 1 + MOST >= CONTEXT)
            continue;
        want[n] = draw(t, 4) == 0 ? 0 : want[n];
        of[n++] = i;
    }
    return n;
}

/* The step in engine e, whose drafts come with it in the group. */
static sl_status step(test *t, int e, turn *u, const int32_t *of, const int32_t *want, int32_t n, sl_err *err)
{
    int32_t drafts = 0;
    u->made = 0;
    for (int32_t i = 0; i < n; i++) {
        const stream *s = &t->streams[of[i]];
        u->ids[i][0] = s->ids[s->len];
        u->items[i] = (sl_step_item){.seq = s->seq[e],
                                     .tokens = u->ids[i],
                                     .n_tokens = 1 + want[i],
                                     .sample = u->samples[i],
                                     .n_samples = 1 + want[i]};
        for (int32_t k = 0; k <= want[i]; k++)
            u->samples[i][k] = sample_of(s, s->len + 1 + k);
        if (want[i] > 0)
            u->drafts[drafts++] = (sl_draft_item){.seq = s->seq[e],
                                                  .token = u->ids[i][0],
                                                  .n = want[i],
                                                  .sampling = &s->how,
                                                  .out = u->ids[i] + 1};
    }
    const sl_step_drafts d = {.items = u->drafts, .n = drafts, .made = made, .ctx = u};
    const sl_step_hooks hooks = {.drafts = &d};
    if (e == 0 && drafts > 0)
        SL_TRY(sl_engine_draft(t->w[0].engine, u->drafts, drafts, err));
    if (e == 0 && n == 0)
        return SL_OK;
    SL_TRY(sl_engine_step(t->w[e].engine, u->items, n, e ? &hooks : NULL, err));
    if (e == 1 && u->made != (drafts > 0))
        cg_fail(t->r, "%d calls for %d items with drafts", u->made, drafts);
    return SL_OK;
}

/* Both engines drafted and chose the same; what stands is kept. */
static void check(test *t, const turn *a, const turn *g, const int32_t *of, const int32_t *want, int32_t n,
                  int32_t at)
{
    for (int32_t i = 0; i < n && !t->r->failed; i++) {
        stream *s = &t->streams[of[i]];
        int32_t kept = 0;
        for (int32_t k = 1; k <= want[i]; k++)
            if (a->ids[i][k] != g->ids[i][k])
                cg_fail(t->r, "step %d: draft %d of %d of item %d is %d, of one process %d", at, k, want[i],
                        i, g->ids[i][k], a->ids[i][k]);
        for (int32_t k = 0; k <= want[i]; k++)
            if (a->samples[i][k].out.id != g->samples[i][k].out.id)
                cg_fail(t->r, "step %d: token %d of item %d is %d, of one process %d", at, k, i,
                        g->samples[i][k].out.id, a->samples[i][k].out.id);
        t->drafted += want[i];
        do {
            s->ids[++s->len] = a->samples[i][kept].out.id;
            kept++;
        } while (kept <= want[i] && a->ids[i][kept] == s->ids[s->len]);
        for (int e = 0; e < 2; e++) {
            sl_err err = {{0}};
            cg_ok(t->r, sl_engine_seq_truncate(t->w[e].engine, s->seq[e], s->len, &err), &err, "truncate");
        }
    }
}

static void run(cg_rank *r, const void *arg)
{
    test *t = calloc(1, sizeof *t);
    static turn u[2];
    sl_err err = {{0}};
    bool lost = false, open = false;
    t->r = r, t->c = arg;
    const bool last = r->rank == r->ranks - 1;
    if (open_whole(t, &t->w[0], NULL) && open_whole(t, &t->w[1], r->c))
        open = prompts(t);
    for (int32_t at = 1; open && at <= STEPS && !r->failed && !lost; at++) {
        int32_t of[SEQS], want[SEQS], n = choose(t, of, want);
        t->idle += n == 0;
        cg_ok(r, step(t, 0, &u[0], of, want, n, &err), &err, "a step of one process");
        if (last && t->c->killed_at && at >= t->c->killed_at && n > 0 && want[0] > 1)
            cg_lose(r, 1, SIGKILL); /* in the first draft */
        sl_status st = step(t, 1, &u[1], of, want, n, &err);
        lost = t->c->killed_at && at >= t->c->killed_at && st == SL_ERR_PEER;
        if (!lost && cg_ok(r, st, &err, "a step of the group"))
            check(t, &u[0], &u[1], of, want, n, at);
    }
    if (t->c->killed_at && !lost && !r->failed)
        cg_fail(r, "no step noticed that a rank was lost");
    if (!t->c->killed_at && t->drafted < STEPS)
        cg_fail(r, "only %d drafts", t->drafted);
    printf("rank %d of %d: %d drafts equal, %d idle steps\n", r->rank, r->ranks, t->drafted, t->idle);
    fflush(stdout);
    for (int32_t i = 0; i < SEQS; i++)
        for (int e = 0; e < 2; e++)
            if (t->streams[i].seq[e])
                sl_engine_seq_close(t->w[e].engine, t->streams[i].seq[e]);
    close_whole(&t->w[1]);
    close_whole(&t->w[0]);
    free(t);
}

int main(void)
{
    int failed = 0;
    for (size_t i = 0; i < SL_COUNT(configs); i++) {
        const config *c = &configs[i];
        char why[512];
        cg_run g = {.backend = "cpu",
                    .ranks = c->ranks,
                    .deadline_ms = 120000,
                    .limit_ms = 300000,
                    .killed = c->killed_at ? 1ull << (c->ranks - 1) : 0};
        printf("%s, %d ranks\n", c->dir, c->ranks);
        fflush(stdout);
        if (cg_go(&g, run, c, why, sizeof why) == CG_OK)
            continue;
        printf("FAILED: %s\n", why);
        failed++;
    }
    printf("groups with drafts: %d configurations failed\n", failed);
    return failed ? 1 : 0;
}
