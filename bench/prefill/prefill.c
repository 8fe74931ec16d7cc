/* `sluice bench prefill`: flags, the sweep and the output; see prefill.h. */
#include "bench/prefill/prefill.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/args.h"
#include "kernels/cache.h"
#include "model/synthetic.h"

const char *const sl_bench_part_names[] = {"dense", "moe", "ends", NULL};

typedef struct sweep {
    sl_bench_prefill b;
    FILE *csv;
    bool told;
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
    fprintf(out,
            "# one resident sequence, one chunk after its context, logits of the last token; as many (token, "
            "expert) pairs as the rank's own tokens choose; no exchange between ranks, no sampling\n");
    fprintf(out,
            "# step_ms: host clock around the step that ran, median of %d; model_ms: sum of its ops, "
            "each kind of layer times its number in the whole model\n",
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
    fprintf(out, "  %-6s %-14s %-14s %6s %12s %12s %7s\n", "part", "op", "shape", "calls", "us a layer",
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
    for (size_t i = 0; i < SL_COUNT(outs) && !s->told; i++)
        if (outs[i])
            print_facts(outs[i], &s->b);
    if (s->csv && !s->told)
        fprintf(s->csv,
                "rows,chunk,context,part,op,out,in,calls_per_layer,us_per_layer,share_or_tokens_per_s\n");
    s->told = true;
    printf(
        "%-8s chunk %5d behind %6d  step %9.3f ms (%d layers, ops %9.3f)  model %9.3f ms  %9.1f tokens/s\n",
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

/* The config with a few layers, two of experts unless the flag says how many. */
static sl_status make_config(sl_bench_prefill *b)
{
    sl_model_config whole;
    sl_status st = sl_synthetic_config(b->o.model, 0, &whole, &b->err);
    if (st != SL_OK)
        return st;
    count_layers(&whole, b->whole);
    int32_t n = b->o.layers ? b->o.layers : b->whole[SL_BENCH_DENSE] + 2;
    st = sl_synthetic_config(b->o.model, n, &b->local.checkpoint.cfg, &b->err);
    if (st != SL_OK)
        return st;
    count_layers(&b->local.checkpoint.cfg, b->have);
    for (int p = 0; p < SL_BENCH_PARTS; p++)
        if (b->whole[p] > 0 && b->have[p] == 0)
            return sl_fail(&b->err, SL_ERR_INVALID, "--layers %d: none of the %d %s layers is among them", n,
                           b->whole[p], sl_bench_part_names[p]);
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
    sl_status st = SL_OK;
    for (int i = 0; i < o->rows.n && st == SL_OK; i++)
        st = sl_bench_prefill_rows(b, (sl_row_format)o->rows.v[i]);
    sl_local_close(&b->local);
    return st;
}

static bool parse_lists(sl_bench_prefill_opts *o, const char *chunks, const char *contexts, const char *rows)
{
    if (!sl_bench_list_parse(chunks, NULL, 2, &o->chunks))
        fprintf(stderr, "sluice bench prefill: --chunks %s is not a list of numbers of tokens\n", chunks);
    else if (!sl_bench_list_parse(contexts, NULL, 0, &o->contexts))
        fprintf(stderr, "sluice bench prefill: --contexts %s is not a list of lengths\n", contexts);
    else if (!sl_bench_list_parse(rows, sl_row_format_names(), 0, &o->rows))
        fprintf(stderr, "sluice bench prefill: --rows %s: must be of mla_fp8, mla_bf16, mla_f32\n", rows);
    else
        return true;
    return false;
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
         "Dimensions of the model: deepseek_v32, the default, or tiny for tests.", 0, 0, NULL},
        {"layers", SL_ARG_INT, &o->layers, "N",
         "Run only the first N layers. Default: the dense layers and two with experts.", 1, SL_MAX_LAYERS,
         NULL},
        {"ranks", SL_ARG_INT, &o->ranks, "N",
         "Ranks of expert parallelism, of which one runs here. Default 8.", 1, 256, NULL},
        {"chunks", SL_ARG_TEXT, &chunks, "LIST", "Chunk sizes in tokens. Default 512,1024,2048,4096.", 0, 0,
         NULL},
        {"contexts", SL_ARG_TEXT, &contexts, "LIST",
         "Tokens of context before the chunk. Default 0,4096,16384,65536.", 0, 0, NULL},
        {"rows", SL_ARG_TEXT, &rows, "LIST", "Row formats: mla_fp8, mla_bf16, mla_f32. Default mla_fp8.", 0,
         0, NULL},
        {"repeats", SL_ARG_INT, &o->repeats, "N", "Timed steps. Default 3.", 1, 1000, NULL},
        {"equal", SL_ARG_INT, &o->equal, "N",
         "Also compute a prompt of N tokens in chunks of each size and check that the logits are equal bit by bit.",
         1, 1 << 17, NULL},
        {"ops", SL_ARG_FLAG, &o->ops, NULL, "Print the profile by op.", 0, 0, NULL},
        {"threads", SL_ARG_INT, &o->threads, "N",
         "Threads that fill the host store, and that compute on the cpu backend. Default 8.", 1, 256, NULL},
        {"csv", SL_ARG_TEXT, &o->csv, "FILE", "Also write the results as CSV, with the profile by op.", 0, 0,
         NULL},
    };
    switch (sl_args_parse("[flags]", args, SL_COUNT(args), argc, argv)) {
    case SL_ARGS_HELP:
        return SL_EXIT_OK;
    case SL_ARGS_WRONG:
        return SL_EXIT_USAGE;
    case SL_ARGS_RUN:
        break;
    }
    if (!parse_lists(o, chunks, contexts, rows))
        return SL_EXIT_USAGE;
    s.b.report = on_result, s.b.report_ctx = &s;
    s.csv = o->csv ? fopen(o->csv, "w") : NULL;
    if (o->csv && !s.csv) {
        fprintf(stderr, "sluice bench prefill: cannot write %s\n", o->csv);
        return SL_EXIT_FAILED;
    }
    sl_status st = run_all(&s);
    if (s.csv && fclose(s.csv) != 0 && st == SL_OK)
        st = sl_fail(&s.b.err, SL_ERR_INTERNAL, "cannot write %s", o->csv);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail("bench prefill", st, &s.b.err);
}
