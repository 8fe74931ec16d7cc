/*
 * See verify.h. The text consists of random prompt tokens and of the tokens that greedy sampling appends to them. No
 * way can reuse rows of the way before: the host pages are first filled with bytes that are NaN in every row format,
 * stale rows on the device are NaN as well, and the prompt is computed again. A row that was not written, or that is
 * read from a place where it no longer is, therefore changes the logits.
 */
#include "cli/verify.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    ROWS_RESIDENT,
    ROWS_SPILLED, /* resident for the prompt, then moved to the host, as when a decode worker's device is full */
    ROWS_FROM_HOST /* opened on complete host pages, as after a hand-over from a prefill worker */
} way_rows;

typedef struct way {
    const char *name;
    way_rows rows;
    sl_evict_policy policy;
    int32_t cut;     /* the chunks have 1/cut of the usual size */
    int32_t singles; /* this number of tokens at the end of the prompt are computed one per step */
} way;

static const way ways[] = {
    {"resident", ROWS_RESIDENT, SL_EVICT_LRU, 1, 0},
    {"prompt in smaller chunks", ROWS_RESIDENT, SL_EVICT_LRU, 3, 0},
    {"end of the prompt token by token", ROWS_RESIDENT, SL_EVICT_LRU, 1, 16},
    {"hierarchical, spilled, lru", ROWS_SPILLED, SL_EVICT_LRU, 1, 0},
    {"hierarchical, spilled, clock", ROWS_SPILLED, SL_EVICT_CLOCK, 1, 0},
    {"hierarchical, from host pages", ROWS_FROM_HOST, SL_EVICT_LRU, 1, 0},
};

/* One way while it runs. */
typedef struct pass {
    const way *w;
    sl_engine *engine;
    sl_seq *seq;
    int32_t differs_at; /* the first step whose logits differ; 0: those after the prompt; -1: none */
    int32_t elements;   /* number of logits that differ there */
    double largest;     /* largest difference there */
    uint64_t misses;
} pass;

static int32_t context_of(const sl_cli_verify *v)
{
    return v->o.tokens + v->o.steps;
}

/* Chooses the numbers that no flag gives: enough tokens that the hot buffers must evict rows. */
static sl_status fill_opts(sl_cli_verify *v, sl_err *err)
{
    sl_cli_verify_opts *o = &v->o;
    const sl_model_config *c = &v->local.checkpoint.cfg;
    if (c->index.topk <= 0)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "this checkpoint has no indexer: every row is read in every step and no row is swapped in");
    if (!o->hot_rows)
        o->hot_rows = c->index.topk;
    if (!o->tokens)
        o->tokens = 3 * o->hot_rows + 2 * o->tail_rows < c->max_context - o->steps
                        ? 3 * o->hot_rows + 2 * o->tail_rows
                        : c->max_context - o->steps;
    if (o->tokens < 1 || (int64_t)o->tokens + o->steps > c->max_context)
        return sl_fail(err, SL_ERR_TOO_LARGE, "--tokens %d and --steps %d exceed the model's context of %d",
                       o->tokens, o->steps, c->max_context);
    o->chunk = o->chunk < o->tokens ? o->chunk : o->tokens;
    return SL_OK;
}

static void make_prompt(sl_cli_verify *v)
{
    uint64_t x = v->o.seed;
    for (int32_t i = 0; i < v->o.tokens; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        v->ids[i] = (int32_t)((x >> 33) % (uint64_t)v->local.checkpoint.cfg.vocab_size);
    }
}

sl_status sl_cli_verify_open(sl_cli_verify *v, const sl_cli_verify_opts *o, sl_err *err)
{
    *v = (sl_cli_verify){.o = *o};
    const sl_model_config *c = &v->local.checkpoint.cfg;
    SL_TRY(sl_local_checkpoint_read(o->dir, o->indexer, o->row_format, &v->local.checkpoint, err));
    SL_TRY(fill_opts(v, err));
    v->ids = calloc((size_t)context_of(v) + 1, sizeof *v->ids);
    v->want = calloc((size_t)v->o.steps + 1, sizeof(float) * (size_t)c->vocab_size);
    if (!v->ids || !v->want)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for the logits of %d steps", v->o.steps);
    make_prompt(v);
    sl_local_opts lo = {.dir = o->dir,
                        .backend = o->backend,
                        .act = o->act,
                        .threads = o->threads,
                        .max_tokens = v->o.chunk,
                        .max_logit_rows = 1,
                        .max_context = context_of(v)};
    return sl_local_open(&v->local, &lo, err);
}

void sl_cli_verify_close(sl_cli_verify *v)
{
    sl_local_close(&v->local);
    free(v->want);
    free(v->ids);
    *v = (sl_cli_verify){0};
}

/* ---- one way ---- */

static sl_status open_engine(const sl_cli_verify *v, pass *p, sl_err *err)
{
    sl_engine_opts eo = {.max_hot_seqs = p->w->rows != ROWS_RESIDENT,
                         .hot_rows = v->o.hot_rows,
                         .tail_rows = v->o.tail_rows,
                         .policy = p->w->policy,
                         .poison = true};
    memset(sl_arena_base(v->local.arena), 0xff, sl_arena_bytes(v->local.arena));
    SL_TRY(sl_local_engine(&v->local, &eo, &p->engine, err));
    SL_TRY(sl_local_seq_open(&v->local, p->engine, SL_RESIDENT, 0, &p->seq, err));
    return sl_engine_seq_prompt(p->engine, p->seq, v->o.tokens, err);
}

static sl_status check_finite(const float *x, int32_t n, int32_t at, sl_err *err)
{
    for (int32_t i = 0; i < n; i++) {
        if (!isfinite((double)x[i]))
            return sl_fail(err, SL_ERR_CORRUPT, "logit %d after token %d is not a finite number", i, at);
    }
    return SL_OK;
}

static int32_t best(const float *x, int32_t n)
{
    int32_t k = 0;
    for (int32_t i = 1; i < n; i++)
        k = x[i] > x[k] ? i : k;
    return k;
}

/* Takes the logits after the prompt (at = 0) or after step `at`: the first way keeps them, the others compare. */
static sl_status take(sl_cli_verify *v, pass *p, int32_t at, const float *logits, sl_err *err)
{
    int32_t n = v->local.checkpoint.cfg.vocab_size;
    float *want = v->want + (size_t)at * (size_t)n;
    if (p->w == &ways[0]) {
        memcpy(want, logits, sizeof(float) * (size_t)n);
        v->ids[v->o.tokens + at] = best(logits, n);
        return check_finite(logits, n, v->o.tokens + at - 1, err);
    }
    if (p->differs_at >= 0 || memcmp(want, logits, sizeof(float) * (size_t)n) == 0)
        return SL_OK;
    p->differs_at = at;
    for (int32_t i = 0; i < n; i++) {
        p->elements += memcmp(&want[i], &logits[i], sizeof(float)) != 0;
        double d = fabs((double)want[i] - (double)logits[i]);
        p->largest = isnan(d) ? (double)INFINITY : fmax(p->largest, d);
    }
    return SL_OK;
}

static sl_status prompt(sl_cli_verify *v, pass *p, sl_err *err)
{
    int32_t n, total = v->o.tokens, chunk = (v->o.chunk + p->w->cut - 1) / p->w->cut;
    int32_t alone = p->w->singles < total ? total - p->w->singles : 0;
    for (int32_t done = 0; done < total; done += n) {
        n = p->w->singles && done >= alone ? 1 : chunk;
        if (p->w->singles && done < alone && n > alone - done)
            n = alone - done;
        n = n < total - done ? n : total - done;
        sl_step_item it = {
            .seq = p->seq, .tokens = v->ids + done, .n_tokens = n, .want_logits = done + n == total};
        SL_TRY(sl_engine_step(p->engine, &it, 1, NULL, err));
        if (it.want_logits)
            SL_TRY(take(v, p, 0, it.logits, err));
    }
    return SL_OK;
}

/* Moves the prompt's rows to the place that this way reads them from. */
static sl_status move_rows(sl_cli_verify *v, pass *p, sl_err *err)
{
    if (p->w->rows == ROWS_SPILLED)
        return sl_engine_seq_spill(p->engine, p->seq, err);
    if (p->w->rows != ROWS_FROM_HOST)
        return SL_OK;
    sl_engine_seq_close(p->engine, p->seq);
    p->seq = NULL;
    SL_TRY(sl_local_seq_open(&v->local, p->engine, SL_HIERARCHICAL, v->o.tokens, &p->seq, err));
    return sl_engine_seq_prompt(p->engine, p->seq, v->o.tokens, err);
}

static sl_status decode(sl_cli_verify *v, pass *p, sl_err *err)
{
    for (int32_t i = 0; i < v->o.steps; i++) {
        sl_step_item it = {
            .seq = p->seq, .tokens = v->ids + v->o.tokens + i, .n_tokens = 1, .want_logits = true};
        SL_TRY(sl_engine_step(p->engine, &it, 1, NULL, err));
        SL_TRY(take(v, p, i + 1, it.logits, err));
    }
    return SL_OK;
}

static void report(sl_cli_verify *v, const pass *p, FILE *to)
{
    bool hot = p->w->rows != ROWS_RESIDENT;
    char rows[48] = "";
    if (hot)
        snprintf(rows, sizeof rows, ", %" PRIu64 " rows missed", p->misses);
    v->ways++;
    if (p->differs_at >= 0) {
        v->differing++;
        fprintf(to, "%-30s DIFFERS after %s %d: %d of %d logits, by up to %.3g%s\n", p->w->name,
                p->differs_at ? "step" : "prompt token", p->differs_at ? p->differs_at : v->o.tokens,
                p->elements, v->local.checkpoint.cfg.vocab_size, p->largest, rows);
    } else if (hot && !p->misses) {
        v->idle++;
        fprintf(to, "%-30s equal, but no row was ever missed, which proves nothing: give more --tokens\n",
                p->w->name);
    } else {
        fprintf(to, "%-30s %s%s\n", p->w->name, p->w == &ways[0] ? "finite" : "equal", rows);
    }
    fflush(to);
}

static sl_status run_pass(sl_cli_verify *v, pass *p, sl_err *err)
{
    sl_engine_stats stats;
    SL_TRY(open_engine(v, p, err));
    SL_TRY(prompt(v, p, err));
    SL_TRY(move_rows(v, p, err));
    SL_TRY(decode(v, p, err));
    sl_engine_stats_get(p->engine, &stats);
    p->misses = stats.misses;
    return SL_OK;
}

static sl_status run_way(sl_cli_verify *v, const way *w, FILE *to, sl_err *err)
{
    pass p = {.w = w, .differs_at = -1};
    sl_status st = run_pass(v, &p, err);
    if (st == SL_OK)
        report(v, &p, to);
    if (p.seq)
        sl_engine_seq_close(p.engine, p.seq);
    sl_engine_destroy(p.engine);
    return st;
}

sl_status sl_cli_verify_run(sl_cli_verify *v, FILE *to, sl_err *err)
{
    fprintf(to, "%d prompt tokens in chunks of %d, %d steps; %s rows, %d hot; logits of %d positions, %s\n",
            v->o.tokens, v->o.chunk, v->o.steps, sl_row_format_name(v->local.checkpoint.row_format),
            v->o.hot_rows, v->o.steps + 1, sl_backend_describe(v->local.be));
    for (size_t i = 0; i < SL_COUNT(ways); i++)
        SL_TRY(run_way(v, &ways[i], to, err));
    return SL_OK;
}
