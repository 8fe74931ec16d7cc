/*
 * `sluice bench decode`: the sweep; see decode.h. The host store has the planes of one algorithm. Therefore the sweep goes
 * algorithm by algorithm, and the mode `dense` is a store of its own, which is measured first.
 */
#include "bench/decode/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/choose.h"
#include "base/args.h"
#include "bench/csv.h"
#include "bench/ranks.h"
#include "kernels/cache.h"

enum { RESULTS = 512 };

typedef struct sweep {
    sl_bench_decode b;
    FILE *csv;
    sl_comm *comm; /* of a real group, or NULL */
    bool opened;   /* the caller has opened the backend, and closes it */
    bool silent;   /* another rank prints */
    sl_bench_decode_result *results;
    int32_t n_results;
    /* steps in a group, in the order of the sweep; then the same sweep without the exchange compares with them */
    double with_ms[RESULTS];
    int32_t n_with, n_without;
} sweep;

static void keep_result(sweep *s, const sl_bench_decode_result *r)
{
    sl_bench_decode_result *more = realloc(s->results, sizeof *more * (size_t)(s->n_results + 1));
    if (!more)
        return; /* the table at the end will lack it */
    s->results = more;
    more[s->n_results] = *r;
    more[s->n_results++].ops = NULL;
}

/* Keeps a step with the exchange; gives the one without it the ratio. */
static void compare(sweep *s, sl_bench_decode_result *r)
{
    if (s->comm && s->n_with < RESULTS)
        s->with_ms[s->n_with++] = r->step_ms;
    else if (s->n_without < s->n_with)
        r->exchange_ratio = s->with_ms[s->n_without++] / r->step_ms;
}

static void on_result(void *ctx, const sl_bench_decode_result *result)
{
    sweep *s = ctx;
    sl_bench_decode_result with_ratio = *result, *r = &with_ratio;
    compare(s, r);
    if (s->silent)
        return;
    sl_bench_decode_print_row(stdout, r);
    keep_result(s, r);
    if (r->ops && s->b.o.ops)
        sl_bench_decode_print_ops(stdout, r);
    fflush(stdout);
    if (s->csv)
        sl_bench_decode_print_csv(s->csv, r);
}

/*
 * Sets the device bytes for the cache: those of the flag, else the bytes that the weights left free, less the reserve.
 */
static sl_status find_budget(sl_bench_decode *b)
{
    const sl_bench_decode_opts *o = &b->o;
    uint64_t total;
    b->kv_bytes = o->kv_bytes;
    if (o->kv_bytes > 0)
        return SL_OK;
    SL_TRY(sl_be_memory(b->local.be, &b->kv_bytes, &total, &b->err));
    if (b->kv_bytes <= o->reserve_bytes)
        return sl_fail(&b->err, SL_ERR_DEVICE_MEMORY,
                       "no device memory is left for the cache after the weights");
    b->kv_bytes -= o->reserve_bytes;
    return SL_OK;
}

static sl_status run_contexts(sweep *s, sl_row_format rows)
{
    sl_bench_decode *b = &s->b;
    SL_TRY(sl_bench_host_open(&b->host, &b->local, &b->open, b->o.threads, &b->err));
    if (!s->silent)
        sl_bench_decode_print_facts(stdout, b);
    if (s->comm && !s->silent)
        printf("# %s\n", sl_comm_describe(s->comm));
    if (s->csv)
        sl_bench_decode_print_facts(s->csv, b);
    for (int i = 0; i < b->o.contexts.n; i++)
        SL_TRY(sl_bench_decode_context(b, rows, b->o.contexts.v[i]));
    return SL_OK;
}

/* The option of that name, if the algorithm has it. */
static sl_status set_number(sl_bench_decode *b, const sl_algo_desc *a, const char *name, int32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    return a->options && sl_options_find(a->options, name)
               ? sl_options_set(a->options, b->open.select.values, name, text, &b->err)
               : SL_OK;
}

static sl_status choose_options(sl_bench_decode *b, const sl_algo_desc *a)
{
    b->open.select = (sl_select_options){.set = a->options != NULL};
    SL_TRY(sl_local_selection_options(&b->o.selection, a, false, b->open.select.values, &b->err));
    if (!sl_local_selection_given(&b->o.selection, "token_budget"))
        SL_TRY(set_number(b, a, "token_budget", b->o.budget));
    if (a != &sl_algo_double_sparsity)
        return SL_OK;
    if (b->o.channels)
        SL_TRY(set_number(b, a, "heavy_channels", b->o.channels));
    sl_select_channels(&b->open.select, &b->channels);
    return SL_OK;
}

/* Whether some layer has rows of tokens, among which an algorithm selects. */
static bool selects(const sl_bench_decode *b)
{
    return b->local.checkpoint.cfg.entries.window == 0;
}

/* Whether a mode is one of the algorithm's: `dense` is a mode too, except for models of which no other algorithm exists. */
static bool has_mode(const sl_bench_decode *b, const sl_algo_desc *a, int32_t mode)
{
    return selects(b) ? (mode == SL_BENCH_READ_ALL) == (a == &sl_algo_dense) : mode != SL_BENCH_READ_ALL;
}

/* Measures the modes of the list that the algorithm has, in a store made for it. */
static sl_status run_algorithm(sweep *s, sl_row_format rows, const sl_algo_desc *a)
{
    sl_bench_decode *b = &s->b;
    b->modes.n = 0;
    for (int i = 0; i < b->o.modes.n; i++)
        if (has_mode(b, a, b->o.modes.v[i]))
            b->modes.v[b->modes.n++] = b->o.modes.v[i];
    if (b->modes.n == 0)
        return SL_OK;
    b->open.algorithm = a;
    SL_TRY(choose_options(b, a));
    sl_status st = run_contexts(s, rows);
    sl_bench_host_close(&b->host);
    sl_local_close_store(&b->local);
    return st;
}

static sl_status run_algorithms(sweep *s, sl_row_format rows)
{
    sl_bench_decode *b = &s->b;
    SL_TRY(sl_local_open_model(&b->local, &b->open, &b->err));
    SL_TRY(find_budget(b));
    SL_TRY(run_algorithm(s, rows, &sl_algo_dense));
    for (int i = 0; i < b->o.algorithms.n; i++) {
        const sl_algo_desc *a = sl_algo_registry()[b->o.algorithms.v[i]];
        if (a != &sl_algo_dense)
            SL_TRY(run_algorithm(s, rows, a));
    }
    return SL_OK;
}

static sl_status run_rows(sweep *s, sl_row_format rows)
{
    sl_bench_decode *b = &s->b;
    b->local.checkpoint.row_format = rows;
    sl_status st = run_algorithms(s, rows);
    sl_local_close_model(&b->local);
    return st;
}

/* Runs the sweep on the open backend, which the caller closes, as it frees b->keep. */
static sl_status run_formats(sweep *s)
{
    sl_bench_decode *b = &s->b;
    const sl_bench_decode_opts *o = &b->o;
    unsigned caps = sl_backend_caps(b->local.be);
    sl_layout unused; /* a wrong --layout is refused before the weights are made, which takes minutes */
    SL_TRY(sl_choose_layout(o->layout, caps, &unused, &b->err));
    SL_TRY(sl_choose_policy(NULL, caps, &b->policy, &b->err));
    SL_TRY(
        sl_be_alloc(b->local.be, SL_MEM_DEVICE, sizeof *b->keep * SL_MAX_LAYERS, (void **)&b->keep, &b->err));
    for (int i = 0; i < o->rows.n; i++)
        SL_TRY(run_rows(s, (sl_row_format)o->rows.v[i]));
    return SL_OK;
}

/* Another number of experts: they are one group of the router, so that any number can be chosen from. */
static void set_experts(const sl_bench_decode_opts *o, sl_model_config *c)
{
    if (o->experts > 0)
        c->moe.n_routed = o->experts, c->moe.n_group = c->moe.topk_group = 1;
}

static void add(sl_bench_list *l, int32_t v)
{
    l->v[l->n++] = v;
}

/* The lists that were not given, for the model of b->local. */
static void set_defaults(sl_bench_decode *b)
{
    sl_bench_decode_opts *o = &b->o;
    const bool heads = b->local.checkpoint.cfg.attn.n_kv_heads > 0,
               blocks = b->local.checkpoint.cfg.index.blocks.tokens > 0,
               units = b->local.checkpoint.cfg.index.unit > 0, rows = selects(b);
    if (o->rows.n == 0)
        add(&o->rows, heads ? SL_ROW_GQA_BF16 : SL_ROW_MLA_FP8);
    if (o->modes.n == 0) {
        if (heads && rows)
            add(&o->modes, SL_BENCH_READ_ALL);
        add(&o->modes, SL_BENCH_RESIDENT);
        if (rows)
            add(&o->modes, SL_BENCH_HIERARCHICAL), add(&o->modes, SL_BENCH_FREE_ROWS);
    }
    const sl_algo_desc *const *all = sl_algo_registry();
    for (int32_t i = 0; o->algorithms.n == 0 && all[i]; i++)
        if (all[i] == (!rows    ? &sl_algo_dense
                       : blocks ? &sl_algo_msa
                       : units  ? &sl_algo_pooled
                       : heads  ? &sl_algo_quest
                                : &sl_algo_dsa))
            add(&o->algorithms, i);
}

/* Weights are random, so no channel matters more than another: every head lists all of them in order. */
static sl_status make_channels(sl_bench_decode *b)
{
    const sl_model_config *c = &b->local.checkpoint.cfg;
    const size_t heads = (size_t)c->n_layers * (size_t)c->attn.n_kv_heads, dim = (size_t)c->attn.v_head_dim;
    if (heads == 0)
        return SL_OK;
    int32_t *of = malloc(sizeof *of * heads * dim);
    if (!of)
        return sl_fail(&b->err, SL_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < heads * dim; i++)
        of[i] = (int32_t)(i % dim);
    b->channels = (sl_channels){.n_layers = c->n_layers,
                                .kv_heads = c->attn.n_kv_heads,
                                .head_dim = c->attn.v_head_dim,
                                .count = c->attn.v_head_dim,
                                .of = of};
    return SL_OK;
}

static sl_status check_algorithms(sl_bench_decode *b)
{
    for (int i = 0; i < b->o.algorithms.n; i++) {
        const sl_algo_desc *a = sl_algo_registry()[b->o.algorithms.v[i]];
        if (a->prompt)
            return sl_fail(&b->err, SL_ERR_UNSUPPORTED,
                           "--algorithm %s selects at the end of a prompt, which these requests do not have",
                           a->name);
    }
    return SL_OK;
}

/* On the open backend, which the caller closes. */
static sl_status run_model(sweep *s)
{
    sl_bench_decode *b = &s->b;
    set_defaults(b);
    SL_TRY(check_algorithms(b));
    if (s->csv && s->n_with == 0)
        sl_bench_decode_print_csv_head(s->csv);
    SL_TRY(make_channels(b));
    sl_status st = run_formats(s);
    sl_be_free(b->local.be, SL_MEM_DEVICE, b->keep);
    b->keep = NULL;
    free((void *)(uintptr_t)b->channels.of);
    b->channels.of = NULL;
    if (s->n_results > 0)
        sl_bench_decode_print_summary(stdout, s->results, s->n_results);
    else if (st == SL_OK)
        st = sl_fail(&b->err, SL_ERR_INVALID,
                     "nothing was measured: no mode of --modes fits, or none is one of --algorithm's");
    free(s->results);
    s->results = NULL, s->n_results = 0;
    return st;
}

static sl_status run_all(sweep *s)
{
    sl_bench_decode *b = &s->b;
    const sl_bench_decode_opts *o = &b->o;
    sl_synthetic_opts so = {.ranks = s->comm ? 1 : o->ranks, .seed = SL_BENCH_SEED, .drawn = true};
    b->open = (sl_local_opts){.synthetic = &so,
                              .backend = o->backend,
                              .act = "bf16",
                              .layout = o->layout,
                              .threads = o->threads,
                              .max_tokens = o->max_batch * (o->draft > 0 ? 1 + o->draft : 1),
                              .max_logit_rows = o->max_batch * (o->draft > 0 ? 1 + o->draft : 1),
                              .max_context = sl_bench_list_most(&o->contexts),
                              .comm = s->comm,
                              .store_bytes = o->host_bytes};
    b->local.checkpoint.index_format = SL_INDEX_OFFICIAL;
    for (int32_t l = 0; l < o->resident_layers; l++)
        b->hot_layer[l] = SL_HOT_RESIDENT;
    for (int32_t l = 0; l < SL_MAX_LAYERS; l++)
        b->all_resident[l] = SL_HOT_RESIDENT;
    SL_TRY(sl_synthetic_config(o->model, o->layers, &b->local.checkpoint.cfg, &b->err));
    if (b->local.checkpoint.cfg.index.blocks.tokens > 0)
        b->local.checkpoint.index_format = SL_INDEX_PLAIN;
    if (o->draft >= 0 && s->comm)
        return sl_fail(&b->err, SL_ERR_UNSUPPORTED, "--draft: this benchmark does not draft in a group");
    if (o->draft >= 0)
        SL_TRY(sl_model_config_draft(&b->local.checkpoint.cfg, &b->err));
    set_experts(o, &b->local.checkpoint.cfg);
    if (o->weights)
        SL_TRY(sl_synthetic_experts(o->weights, &b->local.checkpoint.cfg, &b->err));
    if (!s->opened)
        SL_TRY(sl_local_open_backend(&b->local, &b->open, &b->err));
    sl_status st = run_model(s);
    if (!s->opened)
        sl_local_close(&b->local);
    return st;
}

/* The sweep of a rank without the exchange, all ranks at the same time: same experts, same device bytes. */
static sl_status run_without(sweep *s)
{
    sl_bench_decode_opts *o = &s->b.o;
    o->ranks = o->group, o->group = 1;
    o->kv_bytes = s->b.kv_bytes;
    s->comm = NULL;
    return run_all(s);
}

/* A rank of a real group: all ranks run the same steps, rank 0 prints. The caller closes the local. */
static sl_status run_rank(const void *opts, int32_t rank, sl_local *l, sl_comm *c, sl_err *err)
{
    const sl_bench_decode_opts *o = opts;
    sweep s = {.b.o = *o, .b.local = *l, .comm = c, .opened = true, .silent = rank > 0};
    s.b.report = on_result, s.b.report_ctx = &s;
    if (rank == 0 && !sl_bench_csv_open("bench decode", o->csv, &s.csv))
        return sl_fail(err, SL_ERR_INVALID, "--csv %s cannot be written", o->csv);
    sl_status st = run_all(&s);
    if (st == SL_OK)
        st = run_without(&s);
    *l = s.b.local;
    *err = s.b.err;
    if (s.csv)
        fclose(s.csv);
    return st;
}

int sl_bench_decode_main(int argc, char **argv)
{
    sweep s = {0};
    int exit_code;
    if (!sl_bench_decode_flags(&s.b.o, argc, argv, &exit_code))
        return exit_code;
    if (s.b.o.group > 1) {
        sl_bench_ranks ranks = {.name = "bench decode",
                                .backend = s.b.o.backend,
                                .n = s.b.o.group,
                                .threads = s.b.o.threads,
                                .run = run_rank,
                                .opts = &s.b.o};
        return sl_bench_ranks_run(&ranks);
    }
    s.b.report = on_result, s.b.report_ctx = &s;
    if (!sl_bench_csv_open("bench decode", s.b.o.csv, &s.csv))
        return SL_EXIT_FAILED;
    sl_status st = run_all(&s);
    return sl_bench_csv_end("bench decode", s.b.o.csv, s.csv, st, &s.b.err);
}
