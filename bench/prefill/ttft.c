/*
 * --ttft: whole prompts from the first token to the logits of the last one, for dense attention and for other algorithms of the same
 * model, one after the other. Each has a store and an engine of its own; the weights are made once. A prompt is computed once before the
 * clock runs. How many tiles of attention prompts read is counted in a further run, because counting waits for the device.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "bench/prefill/prefill.h"
#include "bench/stats.h"
#include "engine/choose.h"
#include "kernels/synth.h"

enum { SETTINGS = 16, OPS_CAPACITY = 1 << 18 };

typedef struct setting {
    const char *name; /* as it was given; the first is dense */
    const sl_algo_desc *algorithm;
    sl_select_options select;
    sl_gates gates;
} setting;

typedef struct ttft {
    sl_bench_prefill *b;
    FILE *csv;
    setting settings[SETTINGS];
    int n;
    char *names; /* of the settings, owned */
    int32_t *tokens;
    double *ms;
    int32_t length, chunk;
    double dense_ms; /* at this length and chunk */
    sl_key dense;    /* of the logits */
} ttft;

/* What was measured of one setting at one length. */
typedef struct point {
    double ms, least, most;
    sl_key logits;
    sl_engine_stats stats; /* of the counted run */
} point;

/* NAME or NAME:KEY=VALUE:KEY=VALUE */
static sl_status add_setting(ttft *x, char *text, sl_err *err)
{
    const sl_model_config *cfg = &x->b->local.checkpoint.cfg;
    setting *s = &x->settings[x->n];
    sl_select_options values;
    if (x->n == SETTINGS)
        return sl_fail(err, SL_ERR_TOO_LARGE, "--algorithms: more than %d", SETTINGS - 1);
    s->name = text;
    char *keys = strchr(text, ':'), name[SL_OPTION_CHOICE_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)(keys ? keys - text : (int)strlen(text)), text);
    SL_TRY(sl_choose_algorithm(name, cfg, &s->algorithm, err));
    SL_TRY(sl_algo_select(s->algorithm, keys ? keys + 1 : "", &values, err));
    sl_status st = sl_choose_selection(s->algorithm, values.values, cfg, &s->gates, &s->select, err);
    x->n += st == SL_OK;
    return st;
}

static sl_status add_settings(ttft *x, sl_err *err)
{
    static char dense[] = "dense";
    x->names = strdup(x->b->o.algorithms);
    if (!x->names)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    SL_TRY(add_setting(x, dense, err));
    for (char *rest = x->names, *one; (one = strsep(&rest, ","));)
        if (strcmp(one, dense) != 0) {
            sl_status st = add_setting(x, one, err);
            if (st != SL_OK)
                return sl_fail_in(err, st, "--algorithms %s", one);
        }
    return SL_OK;
}

static sl_status run_chunks(const ttft *x, sl_engine *e, sl_seq *seq, sl_key *out, sl_err *err)
{
    const size_t bytes = sizeof(float) * (size_t)x->b->local.checkpoint.cfg.vocab_size;
    const int32_t chunk = sl_engine_prompt_chunk(e, x->chunk, x->length);
    if (chunk < 1)
        return sl_fail(err, SL_ERR_INVALID, "--chunks %d: the algorithm computes prompts by %d tokens",
                       x->chunk, sl_engine_prompt_unit(e));
    for (int32_t at = 0; at < x->length; at += chunk) {
        const int32_t left = x->length - at;
        sl_step_item it = {.seq = seq,
                           .tokens = x->tokens + at,
                           .n_tokens = left < chunk ? left : chunk,
                           .want_logits = left <= chunk};
        SL_TRY(sl_engine_step(e, &it, 1, NULL, err));
        if (it.logits)
            *out = sl_hash_chain((sl_key){0}, it.logits, bytes);
    }
    return SL_OK;
}

/* The prompt once, and how long it took. */
static sl_status run_prompt(const ttft *x, sl_engine *e, sl_key *out, double *ms)
{
    sl_seq *seq = NULL;
    sl_err *err = &x->b->err;
    SL_TRY(sl_local_seq_open(&x->b->local, e, SL_RESIDENT, 0, &seq, err));
    sl_status st = sl_engine_seq_prompt(e, seq, x->length, err);
    const uint64_t t0 = sl_now_ns();
    if (st == SL_OK)
        st = run_chunks(x, e, seq, out, err);
    *ms = (double)(sl_now_ns() - t0) / 1e6;
    sl_engine_seq_close(e, seq);
    return st;
}

static sl_status open_engine(const ttft *x, const setting *s, bool count, sl_engine **out)
{
    const sl_engine_opts eo = {.hot_rows = SL_PAGE_TOKENS,
                               .tail_rows = SL_PAGE_TOKENS,
                               .gates = s->gates,
                               .arena_readable = true,
                               .count_tiles = count,
                               .graphs = SL_GRAPHS_OFF};
    return sl_local_engine(&x->b->local, &eo, out, &x->b->err);
}

/* Times of the ops of one prompt, summed by op. */
static sl_status print_ops(const ttft *x, sl_engine *e)
{
    sl_op_time *v = NULL;
    int32_t n = 0;
    double ns[SL_OP_COUNT + 1] = {0}, ms; /* and of collectives, of which there are none */
    sl_key logits;
    SL_TRY(sl_be_profile_begin(x->b->local.be, OPS_CAPACITY, &x->b->err));
    sl_status st = run_prompt(x, e, &logits, &ms);
    sl_status ended = sl_be_profile_end(x->b->local.be, &v, &n, st == SL_OK ? &x->b->err : NULL);
    st = st == SL_OK ? ended : st;
    for (int32_t i = 0; st == SL_OK && i < n; i++)
        ns[v[i].op] += v[i].ns;
    for (int op = 0; op < SL_OP_COUNT; op++)
        if (ns[op] > 0)
            printf("    %-16s %12.3f ms\n", sl_op_name((sl_op)op), ns[op] / 1e6);
    free(v);
    return st;
}

static sl_status count_tiles(const ttft *x, const setting *s, point *p)
{
    sl_engine *e = NULL;
    double ms;
    SL_TRY(open_engine(x, s, true, &e));
    sl_status st = run_prompt(x, e, &p->logits, &ms);
    sl_engine_stats_get(e, &p->stats);
    sl_engine_destroy(e);
    return st;
}

static sl_status time_prompts(ttft *x, sl_engine *e, point *p)
{
    const int32_t n = x->b->o.repeats;
    double warm;
    SL_TRY(run_prompt(x, e, &p->logits, &warm));
    for (int32_t i = 0; i < n; i++)
        SL_TRY(run_prompt(x, e, &p->logits, &x->ms[i]));
    p->ms = sl_bench_median(x->ms, (size_t)n); /* sorts */
    p->least = x->ms[0], p->most = x->ms[n - 1];
    return SL_OK;
}

static void report(ttft *x, const setting *s, const point *p)
{
    const bool first = s == x->settings;
    const sl_engine_stats *t = &p->stats;
    const double read = t->tiles ? 1 - (double)t->tiles_skipped / (double)t->tiles : 1;
    if (first)
        x->dense_ms = p->ms, x->dense = p->logits;
    printf(
        "%7d tokens, chunks of %5d  %-32s TTFT %10.3f ms (%.3f to %.3f)  %9.1f tokens/s  tiles read %6.2f %%  "
        "%.4f of dense%s\n",
        x->length, x->chunk, s->name, p->ms, p->least, p->most, x->length * 1e3 / p->ms, 100 * read,
        p->ms / x->dense_ms, first || !sl_key_eq(p->logits, x->dense) ? "" : "  logits of dense, bit by bit");
    if (x->csv)
        fprintf(x->csv, "%s,%d,%d,%s,%.3f,%.3f,%.3f,%.4f,%.4f,%d\n",
                sl_row_format_name(x->b->local.checkpoint.row_format), x->length, x->chunk, s->name, p->ms,
                p->least, p->most, read, p->ms / x->dense_ms, sl_key_eq(p->logits, x->dense));
    fflush(stdout);
}

/* With the store of the setting open and readable. */
static sl_status measure(ttft *x, const setting *s)
{
    sl_engine *e = NULL;
    point p = {0};
    SL_TRY(open_engine(x, s, false, &e));
    sl_status st = time_prompts(x, e, &p);
    if (st == SL_OK && x->b->o.ops)
        st = print_ops(x, e);
    sl_engine_destroy(e);
    if (st == SL_OK)
        st = count_tiles(x, s, &p);
    if (st == SL_OK)
        report(x, s, &p);
    return st;
}

static sl_status run_setting(ttft *x, const setting *s)
{
    sl_bench_prefill *b = x->b;
    sl_local_opts o = b->open;
    o.algorithm = s->algorithm, o.select = s->select;
    b->local.max_context = x->length;
    sl_status st = sl_local_open_store(&b->local, &o, &b->err);
    if (st == SL_OK)
        st = sl_be_host_register(b->local.be, sl_arena_base(b->local.arena), sl_arena_bytes(b->local.arena),
                                 &b->err);
    if (st == SL_OK) {
        st = measure(x, s);
        sl_be_host_unregister(b->local.be, sl_arena_base(b->local.arena));
    }
    sl_local_close_store(&b->local);
    return st;
}

static sl_status run_lengths(ttft *x)
{
    const sl_bench_prefill_opts *o = &x->b->o;
    for (int l = 0; l < o->ttft.n; l++)
        for (int c = 0; c < o->chunks.n; c++)
            for (int s = 0; s < x->n; s++) {
                x->length = o->ttft.v[l], x->chunk = o->chunks.v[c];
                SL_TRY(run_setting(x, &x->settings[s]));
            }
    return SL_OK;
}

static void print_facts(const ttft *x, FILE *to)
{
    const sl_local *l = &x->b->local;
    if (to)
        fprintf(
            to,
            "# %s\n# model %s, %d layers, %.1f GiB of random weights, rows of %s; one resident sequence of random tokens; TTFT: "
            "host clock until the logits of the last token are there, without sampling, median of %d\n",
            sl_backend_describe(l->be), x->b->o.model, l->checkpoint.cfg.n_layers,
            (double)sl_model_weight_bytes(l->model) / (1 << 30), sl_row_format_name(l->checkpoint.row_format),
            x->b->o.repeats);
}

/* The caller frees what this allocates. */
static sl_status run_all(ttft *x)
{
    sl_bench_prefill *b = x->b;
    const int32_t most = sl_bench_list_most(&b->o.ttft);
    x->tokens = calloc((size_t)most, sizeof *x->tokens);
    x->ms = calloc((size_t)b->o.repeats, sizeof *x->ms);
    if (!x->tokens || !x->ms)
        return sl_fail(&b->err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < most; i++)
        x->tokens[i] = (int32_t)(sl_synth_hash(SL_BENCH_SEED, (uint64_t)i) %
                                 (uint32_t)b->local.checkpoint.cfg.vocab_size);
    SL_TRY(add_settings(x, &b->err));
    SL_TRY(sl_local_open_model(&b->local, &b->open, &b->err));
    print_facts(x, stdout);
    print_facts(x, x->csv);
    if (x->csv)
        fprintf(x->csv,
                "rows,tokens,chunk,algorithm,ttft_ms,least_ms,most_ms,tiles_read,of_dense,logits_of_dense\n");
    return run_lengths(x);
}

sl_status sl_bench_prefill_ttft(sl_bench_prefill *b, FILE *csv)
{
    const sl_synthetic_opts so = {.ranks = 1, .seed = SL_BENCH_SEED, .drawn = true};
    sl_model_config *cfg = &b->local.checkpoint.cfg;
    ttft x = {.b = b, .csv = csv};
    SL_TRY(sl_synthetic_config(b->o.model, b->o.layers, cfg, &b->err));
    if (cfg->attn.n_kv_heads < 1)
        return sl_fail(&b->err, SL_ERR_UNSUPPORTED, "--ttft: %s has no KV heads; llama3_8b and qwen3_8b have",
                       b->o.model);
    if (sl_bench_list_most(&b->o.ttft) > cfg->max_context)
        return sl_fail(&b->err, SL_ERR_TOO_LARGE, "--ttft: %d tokens exceed the model's context of %d",
                       sl_bench_list_most(&b->o.ttft), cfg->max_context);
    b->local.checkpoint.row_format = (sl_row_format)b->o.rows.v[0];
    b->open = (sl_local_opts){.synthetic = &so,
                              .backend = b->o.backend,
                              .act = "bf16",
                              .threads = b->o.threads,
                              .max_tokens = sl_bench_list_most(&b->o.chunks),
                              .max_logit_rows = 1,
                              .max_context = sl_bench_list_most(&b->o.ttft)};
    SL_TRY(sl_local_open_backend(&b->local, &b->open, &b->err));
    sl_status st = run_all(&x);
    sl_local_close(&b->local);
    free(x.names);
    free(x.tokens);
    free(x.ms);
    return st;
}
