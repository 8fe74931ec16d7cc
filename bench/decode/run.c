/*
 * Measures one engine after another. Each gets as many requests as the device bytes allow, runs warm-up steps, timed
 * steps, and one step that is profiled by op.
 *
 * Every request has `context` tokens at the end of the run; it is opened with that number less the tokens that the run
 * appends. The rows and keys of these tokens come from the host store, as after a hand-over from a prefill worker. The
 * steps use the engine as a decode worker does and include the copy of the logits to the host; sampling is not part of
 * the measured time.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/decode/decode.h"
#include "bench/stats.h"
#include "kernels/synth.h"

enum { OPS_CAPACITY = 1 << 16 };

typedef struct run {
    sl_bench_decode *b;
    sl_row_format rows;
    int32_t context, batch, per_seq, own, appended;
    sl_bench_mode mode;
    sl_engine *engine;
    sl_seq **seqs;
    sl_step_item *items;
    int32_t *tokens; /* [batch][per] */
    int32_t per;     /* tokens of a request in a step */
    sl_step_sample *samples;
    sl_draft_item *drafts;
    int64_t kept, steps_run; /* tokens that stand, and steps, since they were zeroed */
    double *ms;
    sl_bench_decode_result r;
} run;

static int32_t per_step(const sl_bench_decode_opts *o)
{
    return o->draft > 0 ? 1 + o->draft : 1;
}

/* The most tokens that the steps of all profiles and the profiled steps append to each request. */
static int32_t total_steps(const sl_bench_decode_opts *o)
{
    return (o->profiles.n * (o->warmup + o->steps) + 4) * per_step(o);
}

/* The layers whose rows are all on the device. A plan always asks what a hot slot takes, and with lists of the whole
 * context a slot may be impossible; layers that are all resident have none. */
static const int32_t *hot_layers(const run *x)
{
    return x->mode == SL_BENCH_READ_ALL         ? x->b->all_resident
           : x->mode == SL_BENCH_FIRST_RESIDENT ? x->b->hot_layer
                                                : NULL;
}

static sl_status make_plan(const run *x, sl_plan *p, sl_err *err)
{
    const sl_bench_decode_opts *o = &x->b->o;
    const sl_model_config *cfg = &x->b->local.checkpoint.cfg;
    sl_plan_in in = {.cfg = cfg,
                     .cache = sl_engine_cache_dims(cfg, x->rows, x->b->local.checkpoint.index_format),
                     .algorithm = x->b->local.algorithm,
                     .hot_rows = o->hot_rows,
                     .hot_rows_layer = hot_layers(x),
                     .tail_rows = o->tail_rows,
                     .max_context = x->context,
                     .max_step_tokens = o->max_batch * per_step(o),
                     .max_item_tokens = per_step(o),
                     .max_seqs = o->max_batch,
                     .policy = x->b->policy,
                     .gpu_bytes = x->b->kv_bytes,
                     .on_host = !sl_be_gpu(x->b->local.be),
                     .host_bytes = sl_arena_bytes(x->b->host.arena)};
    in.cache.select = x->b->local.select;
    return sl_plan_make(&in, p, err);
}

/* The number of requests for which the device bytes suffice in this mode. */
static int32_t device_batch(const run *x, const sl_plan *p)
{
    uint64_t n = (uint64_t)sl_pages_for(x->context);
    uint64_t one =
        n * p->index_page_device +
        (sl_bench_on_device(x->mode) ? n * p->row_page_device : p->hot_rows_bytes + p->hot_meta_bytes);
    uint64_t fit = p->cache_bytes / one;
    return fit > INT32_MAX ? INT32_MAX : (int32_t)fit;
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static sl_status open_engine(run *x, sl_err *err)
{
    const sl_bench_decode_opts *o = &x->b->o;
    sl_plan plan;
    SL_TRY(make_plan(x, &plan, err));
    x->r.gpu_batch = device_batch(x, &plan);
    bool resident = sl_bench_on_device(x->mode);
    x->r.hot_rows = resident ? 0 : plan.hot_rows;
    x->r.resident_layers = resident                             ? x->b->local.checkpoint.cfg.n_layers
                           : x->mode == SL_BENCH_FIRST_RESIDENT ? o->resident_layers
                                                                : 0;
    x->batch = smaller(x->batch > 0 ? x->batch : o->max_batch, x->r.gpu_batch);
    int64_t host = sl_arena_pages(x->b->host.arena) / x->per_seq;
    if (!o->shared)
        x->batch = smaller(x->batch, host > INT32_MAX ? INT32_MAX : (int32_t)host);
    if (x->batch < 1)
        return sl_fail(err, SL_ERR_EXHAUSTED, "not even one request of %d tokens fits", x->context);
    sl_coord_draw draw = {
        .keep = x->b->keep, .span_tokens = x->context - total_steps(o), .seed = SL_BENCH_SEED};
    sl_engine_opts eo = {.algorithm = x->b->local.algorithm,
                         .select = x->b->local.select,
                         .max_step_tokens = o->max_batch * per_step(o),
                         .policy = x->b->policy,
                         .draw = &draw,
                         .arena_readable = true,
                         .zero_states = true};
    /* A step that fetches no rows, or fetches them at no cost, is fastest with one group. */
    eo.groups = resident || x->mode == SL_BENCH_FREE_ROWS ? 1 : o->groups;
    SL_TRY(sl_plan_pools(&plan, resident ? SL_RESIDENT : SL_HIERARCHICAL, x->batch, x->context, &eo, err));
    if (!resident)
        eo.row_pages = 0; /* the device holds index keys, hot rows and the rows of resident layers only */
    eo.in_turn = x->mode == SL_BENCH_IN_TURN;
    if (x->mode == SL_BENCH_FIRST_RESIDENT)
        eo.hot_rows_layer = x->b->hot_layer;
    if (x->mode == SL_BENCH_CHECKED) {
        SL_TRY(sl_bench_host_sums(&x->b->host, o->threads, err));
        eo.row_sums = x->b->host.sums;
    }
    return sl_engine_create(x->b->local.be, x->b->local.model, x->b->host.arena, &eo, &x->engine, err);
}

/* pages: room for the page numbers of one request. */
static sl_status open_each(run *x, int32_t *pages, sl_err *err)
{
    sl_residency residency = sl_bench_on_device(x->mode) ? SL_RESIDENT : SL_HIERARCHICAL;
    int32_t tokens = x->context - total_steps(&x->b->o);
    for (int32_t i = 0; i < x->batch; i++) {
        SL_TRY(sl_bench_host_pages(&x->b->host, x->b->o.shared, i, x->batch, x->per_seq, x->own, pages,
                                   &x->r.host_sets, err));
        if (x->mode == SL_BENCH_CHECKED) /* the steps write rows there */
            sl_row_sums_forget(x->b->host.sums, pages + x->per_seq - x->own, x->own);
        SL_TRY(sl_engine_seq_open(x->engine, residency, pages, x->per_seq, tokens, NULL, &x->seqs[i], err));
    }
    return sl_be_sync(x->b->local.be, err);
}

static sl_status open_seqs(run *x, sl_err *err)
{
    int32_t *pages = calloc((size_t)x->per_seq, sizeof *pages);
    uint64_t t0 = sl_now_ns();
    sl_status st = pages ? open_each(x, pages, err) : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_engine_rows_free(x->engine, x->mode == SL_BENCH_FREE_ROWS);
    x->r.open_s = (double)(sl_now_ns() - t0) / 1e9;
    free(pages);
    return st;
}

/* Of the drafts of request i in this step, how many stand: drawn, the same in every run. */
static int32_t standing(const run *x, int32_t i)
{
    double u = sl_synth_hash(SL_BENCH_SEED + 1, (uint64_t)(x->appended * x->batch + i)) / 4294967296.0;
    return sl_drawn_standing(x->b->o.accept, x->b->o.draft, u);
}

/* Requests that are chosen for greedily; with drafts of the MTP layer, after which what does not stand is taken back. */
static sl_status step_of_drafts(run *x, const sl_step_hooks *hooks, sl_err *err)
{
    static const sl_sampling greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    const int32_t per = x->per;
    for (int32_t i = 0; i < x->batch; i++)
        x->drafts[i] = (sl_draft_item){.seq = x->seqs[i],
                                       .token = x->tokens[i * per],
                                       .n = per - 1,
                                       .sampling = &greedy,
                                       .out = x->tokens + i * per + 1};
    if (per > 1)
        SL_TRY(sl_engine_draft(x->engine, x->drafts, x->batch, err));
    for (int32_t i = 0; i < x->batch; i++) {
        const size_t len = (size_t)sl_engine_seq_len(x->seqs[i]);
        for (int32_t k = 0; k < per; k++)
            x->samples[i * per + k] =
                (sl_step_sample){.sampling = &greedy, .history.n_prompt = len + 1 + (size_t)k};
        x->items[i] = (sl_step_item){.seq = x->seqs[i],
                                     .tokens = x->tokens + i * per,
                                     .n_tokens = per,
                                     .sample = x->samples + i * per,
                                     .n_samples = per};
    }
    SL_TRY(sl_engine_step(x->engine, x->items, x->batch, hooks, err));
    for (int32_t i = 0; i < x->batch; i++) {
        int32_t stand = standing(x, i);
        x->kept += 1 + stand;
        if (per > 1)
            SL_TRY(sl_engine_seq_truncate(x->engine, x->seqs[i],
                                          sl_engine_seq_len(x->seqs[i]) - (per - 1 - stand), err));
    }
    x->steps_run++;
    return SL_OK;
}

static sl_status step(run *x, const sl_step_hooks *hooks, double *ms, sl_err *err)
{
    for (int32_t i = 0; i < x->batch; i++) {
        x->tokens[i * x->per] =
            (int32_t)(sl_synth_hash(SL_BENCH_SEED, (uint64_t)(x->appended * x->batch + i)) %
                      (uint32_t)x->b->local.checkpoint.cfg.vocab_size);
        x->items[i] = (sl_step_item){
            .seq = x->seqs[i], .tokens = &x->tokens[i * x->per], .n_tokens = 1, .want_logits = true};
    }
    x->appended++;
    uint64_t t0 = sl_now_ns();
    sl_status st = x->b->o.draft >= 0 ? step_of_drafts(x, hooks, err)
                                      : sl_engine_step(x->engine, x->items, x->batch, hooks, err);
    *ms = (double)(sl_now_ns() - t0) / 1e6;
    return st;
}

static void ignore_page(void *ctx, int32_t page)
{
    (void)ctx;
    (void)page;
}

/* Checks that the logits of the last step are finite: random weights must not make the computation overflow. */
static sl_status check_logits(const run *x, sl_err *err)
{
    for (int32_t i = 0; x->b->o.draft >= 0 && i < x->batch * x->per; i++)
        if (x->samples[i].out.fault)
            return sl_fail(err, SL_ERR_INTERNAL, "request %d: no token can be chosen", i / x->per);
    if (x->b->o.draft >= 0)
        return SL_OK;
    for (int32_t i = 0; i < x->batch; i++)
        for (int32_t v = 0; v < x->b->local.checkpoint.cfg.vocab_size; v++)
            if (!(x->items[i].logits[v] > -1e30f && x->items[i].logits[v] < 1e30f))
                return sl_fail(err, SL_ERR_INTERNAL, "request %d: logit %d is not finite", i, v);
    return SL_OK;
}

static sl_status set_profile(const run *x, sl_profile p, sl_err *err)
{
    uint32_t keep[SL_MAX_LAYERS];
    for (int32_t l = 0; l < x->b->local.checkpoint.cfg.n_layers; l++)
        keep[l] = sl_coord_profile_keep(p, l, x->b->local.checkpoint.cfg.n_layers);
    SL_TRY(sl_be_copy(x->b->local.be, x->b->keep, keep,
                      sizeof *keep * (size_t)x->b->local.checkpoint.cfg.n_layers, err));
    return sl_be_sync(x->b->local.be, err);
}

static void summarise(run *x, const sl_engine_stats *s0, const sl_engine_stats *s1)
{
    int32_t n = x->b->o.steps;
    double sum = 0, per = (double)n * x->batch * x->b->local.checkpoint.cfg.n_layers;
    for (int32_t i = 0; i < n; i++)
        sum += x->ms[i];
    x->r.step_ms = sl_bench_median(x->ms, (size_t)n); /* it also sorts */
    x->r.min_ms = x->ms[0], x->r.max_ms = x->ms[n - 1], x->r.mean_ms = sum / n;
    x->r.tokens_s = x->batch * 1e3 / x->r.step_ms;
    if (x->b->o.draft >= 0) {
        x->r.tokens_step = (double)x->kept / ((double)x->steps_run * x->batch);
        x->r.tokens_s *= x->r.tokens_step;
        x->r.draft_ms = (double)(s1->draft_ns - s0->draft_ns) / 1e6 / n;
    }
    x->r.misses = (double)(s1->misses - s0->misses) / per;
    x->r.hits = (double)(s1->hits - s0->hits) / per;
    x->r.tail_hits = (double)(s1->tail_hits - s0->tail_hits) / per;
    x->r.swap_ms = (double)(s1->swap_ns - s0->swap_ns) / 1e6 / n;
    x->r.exposed_ms = (double)(s1->swap_exposed_ns - s0->swap_exposed_ns) / 1e6 / n;
    x->r.kv_bytes = s1->kv_bytes, x->r.kv_used = s1->kv_bytes_used, x->r.device_bytes = s1->device_bytes;
}

static void nothing(void *ctx, int32_t layer)
{
    (void)ctx;
    (void)layer;
}

/* Profiles one step. Its hook makes the engine run op by op; a profile does not see the ops of a captured graph. */
static sl_status profile_ops(run *x, sl_err *err)
{
    sl_step_hooks hooks = {.layer_done = nothing};
    double ms;
    SL_TRY(sl_be_profile_begin(x->b->local.be, OPS_CAPACITY, err));
    sl_status st = step(x, &hooks, &ms, err);
    sl_status end = sl_be_profile_end(x->b->local.be, &x->r.ops, &x->r.n_ops, st == SL_OK ? err : NULL);
    return st == SL_OK ? end : st; /* the first failure */
}

/* Sums of the profile, for the table of ratios. */
static void add_up(sl_bench_decode_result *r)
{
    for (int32_t i = 0; i < r->n_ops; i++) {
        sl_op op = r->ops[i].op;
        double ms = r->ops[i].ns / 1e6;
        if (op == SL_OP_INDEX_SCORES || op == SL_OP_BOUNDS_SCORES || op == SL_OP_LABELS_SCORES ||
            op == SL_OP_TOPK)
            r->select_ms += ms;
        if (op == SL_OP_SPARSE_ATTN || op == SL_OP_GQA_ATTN)
            r->attend_ms += ms;
    }
}

static sl_status measure(run *x, sl_profile p, bool last, sl_err *err)
{
    sl_engine_stats s0, s1;
    double warm;
    sl_status st = SL_OK;
    SL_TRY(set_profile(x, p, err));
    for (int32_t i = 0; i < x->b->o.warmup; i++)
        SL_TRY(step(x, NULL, &warm, err));
    sl_engine_stats_get(x->engine, &s0);
    x->kept = x->steps_run = 0;
    for (int32_t i = 0; i < x->b->o.steps; i++)
        SL_TRY(step(x, NULL, &x->ms[i], err));
    sl_engine_stats_get(x->engine, &s1);
    int32_t damaged = sl_engine_damaged(x->engine, ignore_page, NULL);
    if (damaged)
        return sl_fail(err, SL_ERR_CORRUPT, "%d pages differ from their checksums", damaged);
    if (last && x->mode != SL_BENCH_FREE_ROWS) /* free_rows computes with stale rows */
        SL_TRY(check_logits(x, err));
    x->r.profile = p;
    summarise(x, &s0, &s1);
    if (x->b->o.draft < 0) /* else a step has tokens at several places */
        sl_bench_decode_pairs(x->b, x->context - total_steps(&x->b->o) + x->appended - 1, &x->r);
    x->r.select_ms = x->r.attend_ms = -1;
    if (p == (sl_profile)x->b->o.profiles.v[0]) {
        st = profile_ops(x, err);
        x->r.select_ms = x->r.attend_ms = 0;
        add_up(&x->r);
    }
    if (st == SL_OK)
        x->b->report(x->b->report_ctx, &x->r);
    free(x->r.ops);
    x->r.ops = NULL;
    return st;
}

static void close_run(run *x)
{
    for (int32_t i = 0; x->seqs && i < x->batch; i++)
        if (x->seqs[i])
            sl_engine_seq_close(x->engine, x->seqs[i]);
    sl_engine_destroy(x->engine);
    free(x->seqs);
    free(x->items);
    free(x->tokens);
    free(x->samples);
    free(x->drafts);
    free(x->ms);
}

/* close_run() frees what this opened, also after a failure. */
static sl_status run_mode(run *x, sl_err *err)
{
    const sl_bench_decode_opts *o = &x->b->o;
    SL_TRY(open_engine(x, err));
    size_t n = (size_t)x->batch;
    x->seqs = calloc(n, sizeof *x->seqs);
    x->items = calloc(n, sizeof *x->items);
    x->per = per_step(o);
    x->tokens = calloc(n * (size_t)x->per, sizeof *x->tokens);
    x->samples = calloc(n * (size_t)x->per, sizeof *x->samples);
    x->drafts = calloc(n, sizeof *x->drafts);
    x->ms = calloc((size_t)o->steps, sizeof *x->ms);
    if (!x->seqs || !x->items || !x->tokens || !x->samples || !x->drafts || !x->ms)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    SL_TRY(open_seqs(x, err));
    x->r.batch = x->batch;
    for (int i = 0; i < o->profiles.n; i++) {
        SL_TRY(measure(x, (sl_profile)o->profiles.v[i], i == o->profiles.n - 1, err));
        if (sl_bench_on_device(x->mode))
            break; /* resident requests fetch no rows, so the access pattern has no effect */
    }
    return SL_OK;
}

sl_status sl_bench_decode_context(sl_bench_decode *b, sl_row_format rows, int32_t context)
{
    const int batches = b->o.batches.n > 0 ? b->o.batches.n : 1;
    for (int i = 0; i < b->modes.n * batches; i++) {
        run x = {.b = b, .rows = rows, .context = context, .mode = (sl_bench_mode)b->modes.v[i / batches]};
        x.batch = b->o.batches.v[i % batches];
        x.per_seq = sl_pages_for(context);
        x.own = x.per_seq - (context - total_steps(&b->o)) / SL_PAGE_TOKENS;
        x.r = (sl_bench_decode_result){
            .rows = rows, .algorithm = b->local.algorithm->name, .context = context, .mode = x.mode};
        sl_status st = run_mode(&x, &b->err);
        close_run(&x);
        if (st == SL_ERR_EXHAUSTED) /* this point does not fit and has no result; the sweep continues */
            fprintf(stderr, "bench decode: %s, context %d: %s\n", sl_bench_mode_names[x.mode], context,
                    b->err.text);
        else
            SL_TRY(st);
    }
    return SL_OK;
}
