/* `sluice bench prefill`: flags, the sweep and the output; see prefill.h. */
#include "bench/prefill/prefill.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/args.h"
#include "bench/csv.h"
#include "kernels/cache.h"
#include "model/synthetic.h"

const char *const sl_bench_part_names[] = {"dense", "moe", "ends", NULL};

typedef struct sweep {
    sl_bench_prefill b;
    FILE *csv;
    bool facts_printed;
} sweep;

static void print_facts(FILE *out, const sl_bench_prefill *b)
{
    struct utsname u;
    uname(&u);
    fprintf(out, "# %s; host %s %s\n", sl_backend_describe(b->local.be), u.sysname, u.release);
    fprintf(
        out,
        "# model %s, rank 1 of %d (%d of %d experts); %d dense and %d expert layers run, %.1f GiB of random "
        "weights; the whole model has %d and %d\n",
        b->o.model, b->o.ranks, b->local.checkpoint.cfg.n_routed_experts / b->o.ranks,
        b->local.checkpoint.cfg.n_routed_experts, b->have[SL_BENCH_DENSE], b->have[SL_BENCH_MOE],
        (double)sl_model_weight_bytes(b->local.model) / (1 << 30), b->whole[SL_BENCH_DENSE],
        b->whole[SL_BENCH_MOE]);
    fprintf(
        out,
        "# one resident sequence; a step computes one chunk after the context and the logits of the last token; the "
        "number of (token, expert) pairs is that of the rank's own tokens; without exchange between ranks and "
        "without sampling\n");
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

static void on_result(void *ctx, const sl_bench_prefill_result *r)
{
    sweep *s = ctx;
    FILE *outs[] = {stdout, s->csv};
    for (size_t i = 0; i < SL_COUNT(outs) && !s->facts_printed; i++)
        if (outs[i])
            print_facts(outs[i], &s->b);
    if (s->csv && !s->facts_printed)
        fprintf(s->csv,
                "rows,chunk,context,part,op,out,in,calls_per_layer,us_per_layer,share_or_tokens_per_s\n");
    s->facts_printed = true;
    printf("%-8s chunk %5d after %6d  step %9.3f ms (%d layers, ops %9.3f)  model %9.3f ms  %9.1f tokens/s\n",
           sl_row_format_name(r->rows), r->chunk, r->context, r->step_ms, s->b.local.checkpoint.cfg.n_layers,
           r->ops_ms, r->model_ms, r->tokens_s);
    if (s->b.o.ops)
        print_ops(stdout, &s->b, r);
    fflush(stdout);
    if (s->csv)
        print_csv(s->csv, &s->b, r);
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
    sl_model_config whole;
    SL_TRY(sl_synthetic_config(b->o.model, 0, &whole, &b->err));
    count_layers(&whole, b->whole);
    int32_t n = b->o.layers ? b->o.layers : b->whole[SL_BENCH_DENSE] + 2;
    SL_TRY(sl_synthetic_config(b->o.model, n, &b->local.checkpoint.cfg, &b->err));
    count_layers(&b->local.checkpoint.cfg, b->have);
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
    sl_synthetic_opts so = {.ranks = o->ranks, .seed = SL_BENCH_SEED};
    int32_t chunk = sl_bench_list_most(&o->chunks), longest = sl_bench_list_most(&o->contexts) + chunk;
    b->open = (sl_local_opts){.synthetic = &so,
                              .backend = o->backend,
                              .act = "bf16",
                              .threads = o->threads,
                              .max_tokens = chunk,
                              .max_logit_rows = 1,
                              .max_context = longest > o->equal ? longest : o->equal};
    b->local.checkpoint.index_format = SL_INDEX_OFFICIAL;
    SL_TRY(make_config(b));
    SL_TRY(sl_local_open_backend(&b->local, &b->open, &b->err));
    sl_status st = run_formats(b);
    sl_local_close(&b->local);
    return st;
}

static bool parse_lists(sl_bench_prefill_opts *o, const char *chunks, const char *contexts, const char *rows)
{
    static const char cmd[] = "bench prefill";
    return sl_bench_list_flag(cmd, "chunks", chunks, NULL, 2, &o->chunks) &&
           sl_bench_list_flag(cmd, "contexts", contexts, NULL, 0, &o->contexts) &&
           sl_bench_list_flag(cmd, "rows", rows, sl_row_format_names(), 0, &o->rows);
}

int sl_bench_prefill_main(int argc, char **argv)
{
    sweep s = {
        .b.o = {.backend = "cuda", .model = sl_synthetic_name(0), .ranks = 8, .repeats = 3, .threads = 8}};
    sl_bench_prefill_opts *o = &s.b.o;
    const char *chunks = "512,1024,2048,4096", *contexts = "0,4096,16384,65536", *rows = "mla_fp8";
    const sl_arg args[] = {
        {"backend", SL_ARG_TEXT, &o->backend, "NAME", "Compute backend: cuda, the default, or cpu.", 0, 0,
         NULL},
        {"model", SL_ARG_TEXT, &o->model, "NAME",
         "Model whose dimensions are used: deepseek_v32, the default, or tiny, which is for tests.", 0, 0,
         NULL},
        {"layers", SL_ARG_INT, &o->layers, "N",
         "Run only the first N layers. Default: the dense layers and two expert layers.", 1, SL_MAX_LAYERS,
         NULL},
        {"ranks", SL_ARG_INT, &o->ranks, "N",
         "Number of ranks of expert parallelism; the benchmark runs one of them. Default 8.", 1, 256, NULL},
        {"chunks", SL_ARG_TEXT, &chunks, "LIST", "Chunk sizes in tokens. Default 512,1024,2048,4096.", 0, 0,
         NULL},
        {"contexts", SL_ARG_TEXT, &contexts, "LIST",
         "Numbers of context tokens before the chunk. Default 0,4096,16384,65536.", 0, 0, NULL},
        {"rows", SL_ARG_TEXT, &rows, "LIST", "Row formats, for instance mla_fp8,mla_bf16. Default mla_fp8.",
         0, 0, NULL},
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
    if (!parse_lists(o, chunks, contexts, rows))
        return SL_EXIT_USAGE;
    s.b.report = on_result, s.b.report_ctx = &s;
    if (!sl_bench_csv_open("bench prefill", o->csv, &s.csv))
        return SL_EXIT_FAILED;
    sl_status st = run_all(&s);
    return sl_bench_csv_end("bench prefill", o->csv, s.csv, st, &s.b.err);
}
