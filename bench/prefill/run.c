/*
 * Measures one point: a resident sequence is opened whose context is in the host pages, as after a prefix hit or an
 * earlier chunk, one step computes the chunk, and the sequence is closed. The first step of a point is not timed, the
 * last one is profiled.
 *
 * A profile is a flat list of ops. The norms in the list tell which layer an op belongs to: every layer has three norms
 * and begins with the first of them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/prefill/prefill.h"
#include "bench/stats.h"
#include "kernels/synth.h"

enum { OPS_CAPACITY = 1 << 14, NORMS = 3 };

typedef struct run {
    sl_bench_prefill *b;
    sl_engine *engine;
    int32_t *tokens;
    double *ms;
    sl_bench_prefill_op *ops;
    sl_bench_prefill_result r;
} run;

/* Waits for the other ranks, so that the steps of all begin together. */
static sl_status meet(sl_bench_prefill *b)
{
    uint32_t own = 0, all[SL_COMM_RANKS_MAX];
    SL_TRY(sl_be_sync(b->local.be, &b->err));
    return b->group ? sl_comm_agree(b->group, &own, all, sizeof own, &b->err) : SL_OK;
}

/* Runs and times one step of the open sequence. */
static sl_status run_step(run *x, sl_seq *seq, double *ms)
{
    sl_bench_prefill *b = x->b;
    sl_step_item item = {.seq = seq, .tokens = x->tokens, .n_tokens = x->r.chunk, .want_logits = true};
    SL_TRY(meet(b));
    uint64_t t0 = sl_now_ns();
    SL_TRY(sl_engine_step(x->engine, &item, 1, NULL, &b->err));
    *ms = (double)(sl_now_ns() - t0) / 1e6;
    for (int32_t v = 0; v < b->local.checkpoint.cfg.vocab_size; v++)
        if (!(item.logits[v] > -1e30f && item.logits[v] < 1e30f))
            return sl_fail(&b->err, SL_ERR_INTERNAL, "logit %d is not finite", v);
    return SL_OK;
}

/* Computes the chunk after the context, in one step. */
static sl_status step(run *x, double *ms)
{
    sl_bench_prefill *b = x->b;
    sl_seq *seq = NULL;
    SL_TRY(sl_engine_seq_open(x->engine, SL_RESIDENT, x->b->local.pages,
                              sl_pages_for(x->r.context + x->r.chunk), x->r.context, NULL, &seq, &b->err));
    sl_status st = run_step(x, seq, ms);
    sl_engine_seq_close(x->engine, seq);
    return st;
}

static int by_part_and_time(const void *a, const void *b)
{
    const sl_bench_prefill_op *x = a, *y = b;
    return x->part != y->part ? (int)x->part - (int)y->part : (x->ns < y->ns) - (x->ns > y->ns);
}

/*
 * The part that op i belongs to; `norms` counts the norms among the ops 0 to i. The op before SL_OP_PICK, which adds
 * the last residual before the rows of the output head are picked, belongs to the ends like the pick itself.
 */
static sl_bench_part part_of(const sl_bench_prefill *b, const sl_op_time *v, int32_t n, int32_t i,
                             int32_t norms)
{
    int32_t layer = norms > 0 ? (norms - 1) / NORMS : -1;
    bool picks = v[i].op == SL_OP_PICK || (i + 1 < n && v[i + 1].op == SL_OP_PICK);
    if (picks || layer < 0 || layer >= b->local.checkpoint.cfg.n_layers)
        return SL_BENCH_ENDS;
    return b->local.checkpoint.cfg.layer_is_moe[layer] ? SL_BENCH_MOE : SL_BENCH_DENSE;
}

/* Adds up the times of a profile by part, op and shape. */
static sl_status sum_ops(run *x, const sl_op_time *v, int32_t n)
{
    int32_t norms = 0, used = 0;
    x->r.ops_ms = x->r.model_ms = 0;
    for (int32_t i = 0; i < n; i++) {
        norms += v[i].op == SL_OP_RMSNORM;
        sl_bench_prefill_op o = {part_of(x->b, v, n, i, norms), v[i].op, v[i].rows, v[i].cols, 0, 0};
        int32_t k = 0;
        while (k < used && (x->ops[k].part != o.part || x->ops[k].op != o.op || x->ops[k].rows != o.rows ||
                            x->ops[k].cols != o.cols))
            k++;
        if (k == used)
            x->ops[used++] = o;
        x->ops[k].calls++;
        x->ops[k].ns += v[i].ns;
        x->r.ops_ms += v[i].ns / 1e6;
        x->r.model_ms += v[i].ns / 1e6 * x->b->whole[o.part] / x->b->have[o.part];
    }
    if (norms != NORMS * x->b->local.checkpoint.cfg.n_layers + 1)
        return sl_fail(&x->b->err, SL_ERR_INTERNAL, "unexpected: %d norms in a step of %d layers", norms,
                       x->b->local.checkpoint.cfg.n_layers);
    qsort(x->ops, (size_t)used, sizeof *x->ops, by_part_and_time);
    x->r.ops = x->ops, x->r.n_ops = used;
    x->r.tokens_s = x->r.chunk * 1e3 / x->r.model_ms;
    return SL_OK;
}

static sl_status profile(run *x)
{
    sl_op_time *v = NULL;
    int32_t n = 0;
    double ms;
    SL_TRY(sl_be_profile_begin(x->b->local.be, OPS_CAPACITY, &x->b->err));
    sl_status st = step(x, &ms);
    sl_status end = sl_be_profile_end(x->b->local.be, &v, &n, st == SL_OK ? &x->b->err : NULL);
    st = st == SL_OK ? end : st; /* the first failure */
    if (st == SL_OK)
        st = sum_ops(x, v, n);
    free(v);
    return st;
}

static sl_status run_point(run *x)
{
    int32_t n = x->b->o.repeats;
    sl_comm_stats before = {0}, after = {0};
    double warm;
    SL_TRY(step(x, &warm));
    if (x->b->open.comm)
        sl_comm_stats_get(x->b->open.comm, &before);
    for (int32_t i = 0; i < n; i++)
        SL_TRY(step(x, &x->ms[i]));
    if (x->b->open.comm)
        sl_comm_stats_get(x->b->open.comm, &after);
    x->r.exposed_ms = (double)(after.exchange_ns - before.exchange_ns) / 1e6 / n;
    x->r.hidden_ms = (double)(after.hidden_ns - before.hidden_ns) / 1e6 / n;
    x->r.wait_ms = (double)(after.wait_ns - before.wait_ns) / 1e6 / n;
    SL_TRY(profile(x));
    x->r.least_ms = x->r.most_ms = x->ms[0];
    for (int32_t i = 1; i < n; i++) {
        x->r.least_ms = x->ms[i] < x->r.least_ms ? x->ms[i] : x->r.least_ms;
        x->r.most_ms = x->ms[i] > x->r.most_ms ? x->ms[i] : x->r.most_ms;
    }
    x->r.step_ms = sl_bench_median(x->ms, (size_t)n);
    x->b->report(x->b->report_ctx, &x->r);
    return SL_OK;
}

typedef struct prompt {
    const int32_t *tokens;
    int32_t n;
} prompt;

static sl_status run_chunks(run *x, sl_seq *seq, const prompt *p, int32_t chunk, float *logits)
{
    sl_bench_prefill *b = x->b;
    for (int32_t at = 0; at < p->n; at += chunk) {
        sl_step_item item = {.seq = seq,
                             .tokens = p->tokens + at,
                             .n_tokens = p->n - at < chunk ? p->n - at : chunk,
                             .want_logits = at + chunk >= p->n};
        SL_TRY(sl_engine_step(x->engine, &item, 1, NULL, &b->err));
        if (item.logits)
            memcpy(logits, item.logits, sizeof *logits * (size_t)b->local.checkpoint.cfg.vocab_size);
    }
    return SL_OK;
}

/* The logits after a prompt that is computed in chunks of this size. They must equal `want`, unless that is NULL. */
static sl_status compute_prompt(run *x, int32_t chunk, const prompt *p, float *out, const float *want)
{
    sl_bench_prefill *b = x->b;
    size_t bytes = sizeof *out * (size_t)b->local.checkpoint.cfg.vocab_size;
    sl_seq *seq = NULL;
    SL_TRY(sl_engine_seq_open(x->engine, SL_RESIDENT, x->b->local.pages, sl_pages_for(p->n), 0, NULL, &seq,
                              &b->err));
    sl_status st = run_chunks(x, seq, p, chunk, out);
    sl_engine_seq_close(x->engine, seq);
    if (st == SL_OK && want && memcmp(out, want, bytes) != 0)
        return sl_fail(&b->err, SL_ERR_CORRUPT,
                       "the logits of a prompt of %d tokens differ between chunks of %d and of %d tokens",
                       p->n, chunk, b->o.chunks.v[0]);
    return st;
}

/* Computes the same prompt in chunks of every size of the list: the logits must be equal bit by bit. */
static sl_status check_equal(run *x)
{
    sl_bench_prefill *b = x->b;
    int32_t n = b->o.equal;
    size_t vocab = (size_t)b->local.checkpoint.cfg.vocab_size;
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    float *logits = calloc(2 * vocab, sizeof *logits);
    sl_status st = tokens && logits ? SL_OK : sl_fail(&b->err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t i = 0; tokens && i < n; i++)
        tokens[i] = (int32_t)(sl_synth_hash(SL_BENCH_SEED + 1, (uint64_t)i) % (uint32_t)vocab);
    prompt p = {tokens, n};
    for (int i = 0; i < b->o.chunks.n && st == SL_OK; i++)
        st = compute_prompt(x, b->o.chunks.v[i], &p, logits + (i > 0 ? vocab : 0), i > 0 ? logits : NULL);
    if (st == SL_OK)
        printf("%d tokens in chunks of %d sizes: %zu logits equal bit by bit\n", n, b->o.chunks.n,
               vocab * (size_t)b->o.chunks.n);
    free(tokens);
    free(logits);
    return st;
}

/* The caller frees what this allocates. */
static sl_status run_all(run *x)
{
    const sl_bench_prefill_opts *o = &x->b->o;
    int32_t chunk = sl_bench_list_most(&o->chunks);
    x->tokens = calloc((size_t)chunk, sizeof *x->tokens);
    x->ms = calloc((size_t)o->repeats, sizeof *x->ms);
    x->ops = calloc(OPS_CAPACITY, sizeof *x->ops);
    if (!x->tokens || !x->ms || !x->ops)
        return sl_fail(&x->b->err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < chunk; i++)
        x->tokens[i] = (int32_t)(sl_synth_hash(SL_BENCH_SEED, (uint64_t)i) %
                                 (uint32_t)x->b->local.checkpoint.cfg.vocab_size);
    for (int c = 0; c < o->chunks.n; c++)
        for (int k = 0; k < o->contexts.n; k++) {
            x->r.chunk = o->chunks.v[c], x->r.context = o->contexts.v[k];
            SL_TRY(run_point(x));
        }
    return o->equal > 0 ? check_equal(x) : SL_OK;
}

static sl_status open_and_run(run *x)
{
    sl_bench_prefill *b = x->b;
    sl_engine_opts eo = {.hot_rows = b->local.checkpoint.cfg.index.topk,
                         .tail_rows = SL_PAGE_TOKENS,
                         .arena_readable = true,
                         .graphs = SL_GRAPHS_OFF};
    SL_TRY(sl_local_open_model(&b->local, &b->open, &b->err));
    SL_TRY(sl_bench_host_open(&b->host, &b->local, &b->open, b->o.threads, &b->err));
    SL_TRY(sl_local_engine(&b->local, &eo, &x->engine, &b->err));
    return run_all(x);
}

sl_status sl_bench_prefill_rows(sl_bench_prefill *b, sl_row_format rows)
{
    run x = {.b = b, .r.rows = rows};
    b->local.checkpoint.row_format = rows;
    sl_status st = open_and_run(&x);
    free(x.tokens);
    free(x.ms);
    free(x.ops);
    sl_engine_destroy(x.engine);
    sl_bench_host_close(&b->host);
    sl_local_close_model(&b->local);
    return st;
}
