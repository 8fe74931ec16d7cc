/* `sluice bench prefill`: flags, the sweep and the output; see prefill.h. */
#include "bench/prefill/prefill.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/args.h"
#include "bench/csv.h"
#include "bench/ranks.h"
#include "kernels/cache.h"
#include "model/synthetic.h"

const char *const sl_bench_part_names[] = {"dense", "moe", "ends", NULL};

enum { RESULTS = 512 };

typedef struct sweep {
    sl_bench_prefill b;
    FILE *csv;
    sl_comm *comm; /* of a real group, or NULL */
    bool opened;   /* the caller has opened the backend, and closes it */
    bool silent;   /* another rank prints */
    bool facts_printed, head_printed;
    /* steps in a group, in the order of the sweep; then the same sweep without the exchange compares with them */
    double with_ms[RESULTS];
    int32_t n_with, n_without;
    float ranks_ms[SL_COMM_RANKS_MAX]; /* the last step of every rank */
} sweep;

static void print_facts(FILE *out, const sl_bench_prefill *b, const sl_comm *comm)
{
    struct utsname u;
    int32_t ranks = comm ? sl_comm_ranks(comm) : b->o.ranks;
    uname(&u);
    fprintf(out, "# %s; host %s %s\n", sl_backend_describe(b->local.be), u.sysname, u.release);
    fprintf(
        out,
        "# model %s, rank 1 of %d (%d of %d experts); %d dense and %d expert layers run, %.1f GiB of random "
        "weights; the whole model has %d and %d\n",
        b->o.model, ranks, b->local.checkpoint.cfg.moe.n_routed / ranks, b->local.checkpoint.cfg.moe.n_routed,
        b->have[SL_BENCH_DENSE], b->have[SL_BENCH_MOE],
        (double)sl_model_weight_bytes(b->local.model) / (1 << 30), b->whole[SL_BENCH_DENSE],
        b->whole[SL_BENCH_MOE]);
    fprintf(
        out,
        "# one resident sequence; a step computes one chunk after the context and the logits of the last token; the "
        "number of (token, expert) pairs is that of the rank's own tokens; %s exchange between ranks%s%s and "
        "without sampling\n",
        comm ? "with the" : "without", comm ? " by " : "", comm ? sl_comm_describe(comm) : "");
    fprintf(
        out,
        "# step_ms: host clock around the measured step, median of %d; model_ms: sum of the times of its ops, those "
        "of each kind of layer scaled to the number of such layers in the whole model\n",
        b->o.repeats);
}

static void print_csv(FILE *out, const sl_bench_prefill *b, const sl_bench_prefill_result *r)
{
    for (int32_t i = 0; i < r->n_ops; i++) {
        const sl_bench_prefill_op *o = &r->ops[i];
        fprintf(out, "%s,%d,%d,%s,%s,%d,%d,%.1f,%.3f,%.4f\n", sl_row_format_name(r->rows), r->chunk,
                r->context, sl_bench_part_names[o->part], sl_op_name(o->op), o->rows, o->cols,
                (double)o->calls / b->have[o->part], o->ns / 1e3 / b->have[o->part],
                o->ns / 1e6 * b->whole[o->part] / b->have[o->part] / r->model_ms);
    }
    fprintf(out, "%s,%d,%d,step,,,,,%.3f,\n", sl_row_format_name(r->rows), r->chunk, r->context,
            r->step_ms * 1e3);
    fprintf(out, "%s,%d,%d,model,,,,,%.3f,%.1f\n", sl_row_format_name(r->rows), r->chunk, r->context,
            r->model_ms * 1e3, r->tokens_s);
}

static void print_ops(FILE *out, const sl_bench_prefill *b, const sl_bench_prefill_result *r)
{
    fprintf(out, "  %-6s %-14s %-14s %6s %12s %12s %7s\n", "part", "op", "shape", "calls", "us/layer",
            "ms, model", "share");
    for (int32_t i = 0; i < r->n_ops; i++) {
        const sl_bench_prefill_op *o = &r->ops[i];
        double ms = o->ns / 1e6 * b->whole[o->part] / b->have[o->part];
        char shape[32] = "";
        if (o->rows)
            snprintf(shape, sizeof shape, "%dx%d", o->rows, o->cols);
        fprintf(out, "  %-6s %-14s %-14s %6.1f %12.2f %12.3f %6.1f%%\n", sl_bench_part_names[o->part],
                sl_op_name(o->op), shape, (double)o->calls / b->have[o->part], o->ns / 1e3 / b->have[o->part],
                ms, 100 * ms / r->model_ms);
    }
}

static void print_heads(sweep *s)
{
    FILE *outs[] = {stdout, s->csv};
    for (size_t i = 0; i < SL_COUNT(outs) && !s->facts_printed; i++)
        if (outs[i])
            print_facts(outs[i], &s->b, s->comm);
    if (s->csv && !s->head_printed)
        fprintf(s->csv,
                "rows,chunk,context,part,op,out,in,calls_per_layer,us_per_layer,share_or_tokens_per_s\n");
    s->facts_printed = s->head_printed = true;
}

/* Tells the ranks each other's times. */
static void share_times(sweep *s, double step_ms)
{
    float own = (float)step_ms;
    s->ranks_ms[0] = own;
    if (s->b.group && sl_comm_agree(s->b.group, &own, s->ranks_ms, sizeof own, &s->b.err) != SL_OK)
        s->ranks_ms[0] = own;
}

static double slowest(const sweep *s)
{
    double most = s->ranks_ms[0];
    for (int32_t r = 1; s->b.group && r < sl_comm_ranks(s->b.group); r++)
        most = s->ranks_ms[r] > most ? s->ranks_ms[r] : most;
    return most;
}

/* Keeps a step with the exchange; 0, or without it the ratio of the rates of an expert layer, of the slowest rank. What the layers have in
 * addition to the rest of the step is the same on both sides, so the ratio is that of the steps with the difference
 * scaled to the expert layers of the whole model. Negative when the noise of a busy machine, scaled in this way, is more than the
 * whole step. */
static double compare(sweep *s, const sl_bench_prefill_result *r)
{
    const sl_bench_prefill *b = &s->b;
    if (s->comm && s->n_with < RESULTS)
        s->with_ms[s->n_with++] = r->step_ms;
    if (s->comm || s->n_without >= s->n_with)
        return 0;
    double more = (s->with_ms[s->n_without++] - slowest(s)) / b->have[SL_BENCH_MOE] * b->whole[SL_BENCH_MOE];
    return r->model_ms / (r->model_ms + more);
}

/* What every rank says of itself. */
static void print_rank(const sweep *s, const sl_bench_prefill_result *r)
{
    if (!s->b.group)
        return;
    printf(
        "  rank %d: steps of %.3f to %.3f ms, median %.3f; exchanges %.3f ms alone and %.3f ms on the side, of which it "
        "waits %.3f ms\n",
        sl_comm_rank(s->b.group), r->least_ms, r->most_ms, r->step_ms, r->exposed_ms, r->hidden_ms,
        r->wait_ms);
    if (s->silent && s->b.o.ops)
        print_ops(stdout, &s->b, r);
    fflush(stdout);
}

static void print_result(sweep *s, const sl_bench_prefill_result *r, double ratio)
{
    if (s->silent) {
        print_rank(s, r);
        return;
    }
    print_heads(s);
    printf("%-8s chunk %5d after %6d  step %9.3f ms (%d layers, ops %9.3f)  model %9.3f ms  %9.1f tokens/s\n",
           sl_row_format_name(r->rows), r->chunk, r->context, r->step_ms, s->b.local.checkpoint.cfg.n_layers,
           r->ops_ms, r->model_ms, r->tokens_s);
    print_rank(s, r);
    if (ratio > 0)
        printf("  with the exchange the whole model computes %.4f of these tokens/s\n", ratio);
    else if (ratio < 0)
        printf("  with the exchange the whole model computes as fast: the difference is noise\n");
    if (s->csv && ratio > 0)
        fprintf(s->csv, "%s,%d,%d,with_exchange,,,,,,%.4f\n", sl_row_format_name(r->rows), r->chunk,
                r->context, ratio);
    if (s->b.o.ops)
        print_ops(stdout, &s->b, r);
    fflush(stdout);
    if (s->csv)
        print_csv(s->csv, &s->b, r);
}

/* The ranks of a group print one after another, because they share a terminal or a pipe. */
static void on_result(void *ctx, const sl_bench_prefill_result *r)
{
    sweep *s = ctx;
    sl_comm *group = s->b.group;
    float turn = 0, turns[SL_COMM_RANKS_MAX];
    share_times(s, r->step_ms);
    double ratio = compare(s, r);
    for (int32_t k = 0; k < (group ? sl_comm_ranks(group) : 1); k++) {
        if (!group || k == sl_comm_rank(group))
            print_result(s, r, ratio);
        if (group)
            (void)sl_comm_agree(group, &turn, turns, sizeof turn,
                                &s->b.err); /* if it fails, the next step does */
    }
}

static void count_layers(const sl_model_config *c, int32_t *n)
{
    n[SL_BENCH_DENSE] = n[SL_BENCH_MOE] = 0, n[SL_BENCH_ENDS] = 1;
    for (int32_t l = 0; l < c->n_layers; l++)
        n[c->layer_is_moe[l] ? SL_BENCH_MOE : SL_BENCH_DENSE]++;
}

/* Makes a config with the first --layers layers; without the flag, with the dense layers and two expert layers. */
static sl_status make_config(sl_bench_prefill *b)
{
    sl_model_config whole, *c = &b->local.checkpoint.cfg;
    SL_TRY(sl_synthetic_config(b->o.model, 0, &whole, &b->err));
    count_layers(&whole, b->whole);
    int32_t n = b->o.layers ? b->o.layers : b->whole[SL_BENCH_DENSE] + 2;
    SL_TRY(sl_synthetic_config(b->o.model, n, c, &b->err));
    if (b->o.experts > 0) /* one group of the router, so that any number can be chosen from */
        c->moe.n_routed = b->o.experts, c->moe.n_group = c->moe.topk_group = 1;
    count_layers(c, b->have);
    for (int p = 0; p < SL_BENCH_PARTS; p++)
        if (b->whole[p] > 0 && b->have[p] == 0)
            return sl_fail(&b->err, SL_ERR_INVALID, "--layers %d: none of the %d %s layers is among them", n,
                           b->whole[p], sl_bench_part_names[p]);
    return SL_OK;
}

static sl_status run_formats(sl_bench_prefill *b)
{
    for (int i = 0; i < b->o.rows.n; i++)
        SL_TRY(sl_bench_prefill_rows(b, (sl_row_format)b->o.rows.v[i]));
    return SL_OK;
}

static sl_status run_all(sweep *s)
{
    sl_bench_prefill *b = &s->b;
    const sl_bench_prefill_opts *o = &b->o;
    sl_synthetic_opts so = {.ranks = s->comm ? 1 : o->ranks, .seed = SL_BENCH_SEED, .drawn = true};
    int32_t chunk = sl_bench_list_most(&o->chunks), longest = sl_bench_list_most(&o->contexts) + chunk;
    b->open = (sl_local_opts){.synthetic = &so,
                              .backend = o->backend,
                              .act = "bf16",
                              .threads = o->threads,
                              .max_tokens = chunk,
                              .max_logit_rows = 1,
                              .comm = s->comm,
                              .max_context = longest > o->equal ? longest : o->equal};
    b->local.checkpoint.index_format = SL_INDEX_OFFICIAL;
    SL_TRY(make_config(b));
    if (b->local.checkpoint.cfg.index.blocks.tokens > 0 || b->local.checkpoint.cfg.index.unit > 0)
        b->local.checkpoint.index_format = SL_INDEX_PLAIN;
    if (!s->opened)
        SL_TRY(sl_local_open_backend(&b->local, &b->open, &b->err));
    s->facts_printed = false;
    sl_status st = run_formats(b);
    if (!s->opened)
        sl_local_close(&b->local);
    return st;
}

/* A rank of a real group; then the same rank without the exchange. The caller closes the local. */
static sl_status run_rank(const void *opts, int32_t rank, sl_local *l, sl_comm *c, sl_err *err)
{
    sweep s = {.b = {.o = *(const sl_bench_prefill_opts *)opts, .local = *l},
               .comm = c,
               .opened = true,
               .silent = rank > 0};
    s.b.report = on_result, s.b.report_ctx = &s, s.b.group = c;
    if (rank == 0 && !sl_bench_csv_open("bench prefill", s.b.o.csv, &s.csv))
        return sl_fail(err, SL_ERR_INVALID, "--csv %s cannot be written", s.b.o.csv);
    sl_status st = run_all(&s);
    s.comm = NULL;
    s.b.o.ranks = s.b.o.group;
    if (st == SL_OK)
        st = run_all(&s);
    *l = s.b.local;
    *err = s.b.err;
    if (s.csv)
        fclose(s.csv);
    return st;
}

/* The lists as flags give them, or NULL. */
typedef struct lists {
    const char *chunks, *contexts, *rows, *ttft;
} lists;

static bool parse_lists(sl_bench_prefill_opts *o, const lists *l)
{
    static const char cmd[] = "bench prefill";
    const char *chunks = l->chunks ? l->chunks
                         : l->ttft ? "2048"
                                   : "512,1024,2048,4096",
               *rows = l->rows   ? l->rows
                       : l->ttft ? "gqa_bf16"
                                 : "mla_fp8";
    return sl_bench_list_flag(cmd, "chunks", chunks, NULL, 2, &o->chunks) &&
           sl_bench_list_flag(cmd, "contexts", l->contexts, NULL, 0, &o->contexts) &&
           sl_bench_list_flag(cmd, "rows", rows, sl_row_format_names(), 0, &o->rows) &&
           (!l->ttft || sl_bench_list_flag(cmd, "ttft", l->ttft, NULL, 1, &o->ttft));
}

int sl_bench_prefill_main(int argc, char **argv)
{
    sweep s = {
        .b.o = {.backend = "cuda", .algorithms = "xattention", .ranks = 8, .repeats = 3, .threads = 8}};
    sl_bench_prefill_opts *o = &s.b.o;
    lists l = {.contexts = "0,4096,16384,65536"};
    const sl_arg args[] = {
        {"backend", SL_ARG_TEXT, &o->backend, "NAME", "Compute backend: cuda, the default, or cpu.", 0, 0,
         NULL},
        {"model", SL_ARG_TEXT, &o->model, "NAME",
         "Model whose dimensions are used: deepseek_v32, the default, or tiny, which is for tests. With --ttft: llama3_8b, the default, qwen3_8b or tiny_llama.",
         0, 0, NULL},
        {"layers", SL_ARG_INT, &o->layers, "N",
         "Run only the first N layers. Default: the dense layers and two expert layers.", 1, SL_MAX_LAYERS,
         NULL},
        {"ranks", SL_ARG_INT, &o->ranks, "N",
         "Number of ranks of expert parallelism; the benchmark runs one of them. Default 8.", 1, 256, NULL},
        {"group", SL_ARG_INT, &o->group, "N",
         "Run a real group: N processes, rank r on device r, that share the experts and exchange rows; then the same ranks without the exchange, and the ratio. Rank 0 prints. --ranks is not used.",
         2, SL_COMM_RANKS_MAX, NULL},
        {"experts", SL_ARG_INT, &o->experts, "N",
         "Number of routed experts of a layer, of all ranks together. Default: the model's.", 1, 1024, NULL},
        {"ttft", SL_ARG_TEXT, &l.ttft, "LIST",
         "Instead: the time of whole prompts of these numbers of tokens to the logits of the last one, with all layers, with dense attention and with the algorithms, and the ratio.",
         0, 0, NULL},
        {"algorithms", SL_ARG_TEXT, &o->algorithms, "LIST",
         "With --ttft: sparse algorithms, each with keys of sparse_attention as NAME:KEY=VALUE:KEY=VALUE. Default xattention.",
         0, 0, NULL},
        {"chunks", SL_ARG_TEXT, &l.chunks, "LIST",
         "Chunk sizes in tokens. Default 512,1024,2048,4096, with --ttft 2048.", 0, 0, NULL},
        {"contexts", SL_ARG_TEXT, &l.contexts, "LIST",
         "Numbers of context tokens before the chunk. Default 0,4096,16384,65536.", 0, 0, NULL},
        {"rows", SL_ARG_TEXT, &l.rows, "LIST",
         "Row formats, for instance mla_fp8,mla_bf16. Default mla_fp8; with --ttft one, gqa_bf16.", 0, 0,
         NULL},
        {"repeats", SL_ARG_INT, &o->repeats, "N", "Number of timed steps. Default 3.", 1, 1000, NULL},
        {"equal", SL_ARG_INT, &o->equal, "N",
         "Also compute a prompt of N tokens in chunks of each size and check that the logits are equal bit by bit.",
         1, 1 << 17, NULL},
        {"ops", SL_ARG_FLAG, &o->ops, NULL, "Print the profile by op.", 0, 0, NULL},
        {"threads", SL_ARG_INT, &o->threads, "N",
         "Number of threads that fill the host store, and that compute on the cpu backend. Default 8.", 1,
         256, NULL},
        {"csv", SL_ARG_TEXT, &o->csv, "FILE", "Also write the results as CSV, with the profile by op.", 0, 0,
         NULL},
    };
    int exit_code;
    if (!sl_args_ready("[flags]", args, SL_COUNT(args), argc, argv, &exit_code))
        return exit_code;
    if (!parse_lists(o, &l))
        return SL_EXIT_USAGE;
    if (!o->model)
        o->model = l.ttft ? "llama3_8b" : sl_synthetic_name(0);
    if (o->group > 1) {
        sl_bench_ranks ranks = {.name = "bench prefill",
                                .backend = o->backend,
                                .n = o->group,
                                .threads = o->threads,
                                .run = run_rank,
                                .opts = o};
        return sl_bench_ranks_run(&ranks);
    }
    s.b.report = on_result, s.b.report_ctx = &s;
    if (!sl_bench_csv_open("bench prefill", o->csv, &s.csv))
        return SL_EXIT_FAILED;
    sl_status st = l.ttft ? sl_bench_prefill_ttft(&s.b, s.csv) : run_all(&s);
    return sl_bench_csv_end("bench prefill", o->csv, s.csv, st, &s.b.err);
}
