/* `sluice bench decode`: flags and the sweep; see decode.h. */
#include "bench/decode/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/choose.h"
#include "base/args.h"
#include "bench/csv.h"
#include "kernels/cache.h"

typedef struct sweep {
    sl_bench_decode b;
    FILE *csv;
    sl_comm *comm; /* of a real group, or NULL */
    bool silent;   /* another rank prints */
} sweep;

static void on_result(void *ctx, const sl_bench_decode_result *r)
{
    sweep *s = ctx;
    if (s->silent)
        return;
    sl_bench_decode_print_row(stdout, r);
    if (r->ops)
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
    SL_TRY(sl_local_open_model(&b->local, &b->open, &b->err));
    SL_TRY(find_budget(b));
    SL_TRY(sl_bench_host_open(&b->host, &b->local, &b->open, b->o.threads, &b->err));
    if (!s->silent)
        sl_bench_decode_print_facts(stdout, b);
    if (s->comm && !s->silent)
        printf("# %s\n", sl_comm_describe(s->comm));
    if (s->csv)
        sl_bench_decode_print_facts(s->csv, b), sl_bench_decode_print_csv_head(s->csv);
    for (int i = 0; i < b->o.contexts.n; i++)
        SL_TRY(sl_bench_decode_context(b, rows, b->o.contexts.v[i]));
    return SL_OK;
}

static sl_status run_rows(sweep *s, sl_row_format rows)
{
    sl_bench_decode *b = &s->b;
    b->local.checkpoint.row_format = rows;
    sl_status st = run_contexts(s, rows);
    sl_bench_host_close(&b->host);
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
        c->n_routed_experts = o->experts, c->n_group = c->topk_group = 1;
}

static sl_status run_all(sweep *s)
{
    sl_bench_decode *b = &s->b;
    const sl_bench_decode_opts *o = &b->o;
    sl_synthetic_opts so = {.ranks = s->comm ? 1 : o->ranks, .seed = SL_BENCH_SEED};
    b->open = (sl_local_opts){.synthetic = &so,
                              .backend = o->backend,
                              .act = "bf16",
                              .layout = o->layout,
                              .threads = o->threads,
                              .max_tokens = o->max_batch,
                              .max_logit_rows = o->max_batch,
                              .max_context = sl_bench_list_most(&o->contexts),
                              .comm = s->comm,
                              .store_bytes = o->host_bytes};
    b->local.checkpoint.index_format = SL_INDEX_OFFICIAL;
    for (int32_t l = 0; l < o->resident_layers; l++)
        b->hot_layer[l] = SL_HOT_RESIDENT;
    SL_TRY(sl_synthetic_config(o->model, o->layers, &b->local.checkpoint.cfg, &b->err));
    set_experts(o, &b->local.checkpoint.cfg);
    if (!s->comm)
        SL_TRY(sl_local_open_backend(&b->local, &b->open, &b->err));
    sl_status st = run_formats(s);
    sl_be_free(b->local.be, SL_MEM_DEVICE, b->keep);
    if (!s->comm)
        sl_local_close(&b->local);
    return st;
}

/* A rank of a real group: all ranks run the same steps, rank 0 prints. The caller closes the local. */
static sl_status run_rank(const sl_bench_decode_opts *o, int32_t rank, sl_local *l, sl_comm *c, sl_err *err)
{
    sweep s = {.b.o = *o, .b.local = *l, .comm = c, .silent = rank > 0};
    s.b.report = on_result, s.b.report_ctx = &s;
    if (rank == 0 && !sl_bench_csv_open("bench decode", o->csv, &s.csv))
        return sl_fail(err, SL_ERR_INVALID, "--csv %s cannot be written", o->csv);
    sl_status st = run_all(&s);
    *l = s.b.local;
    *err = s.b.err;
    if (s.csv)
        fclose(s.csv);
    return st;
}

/* The flags that take lists, as they were given. */
typedef struct list_flags {
    const char *contexts, *modes, *profiles, *rows, *batches;
} list_flags;

static bool parse_lists(sl_bench_decode_opts *o, const list_flags *l)
{
    static const char cmd[] = "bench decode";
    return sl_bench_list_flag(cmd, "contexts", l->contexts, NULL, 1, &o->contexts) &&
           sl_bench_list_flag(cmd, "modes", l->modes, sl_bench_mode_names, 1, &o->modes) &&
           sl_bench_list_flag(cmd, "profiles", l->profiles, sl_bench_profile_names, 1, &o->profiles) &&
           sl_bench_list_flag(cmd, "rows", l->rows, sl_row_format_names(), 1, &o->rows) &&
           (!l->batches || sl_bench_list_flag(cmd, "batch", l->batches, NULL, 1, &o->batches));
}

/* False: the benchmark ends at once with *exit_code. */
static bool parse_flags(sl_bench_decode_opts *o, list_flags *l, int argc, char **argv, int *exit_code)
{
    const sl_arg args[] = {
        {"backend", SL_ARG_TEXT, &o->backend, "NAME", "Compute backend: cuda, the default, or cpu.", 0, 0,
         NULL},
        {"model", SL_ARG_TEXT, &o->model, "NAME",
         "Model whose dimensions are used: deepseek_v32, the default, or tiny, which is for tests.", 0, 0,
         NULL},
        {"layers", SL_ARG_INT, &o->layers, "N", "Run only the first N layers. Default: all.", 1,
         SL_MAX_LAYERS, NULL},
        {"ranks", SL_ARG_INT, &o->ranks, "N",
         "Number of ranks of expert parallelism; the benchmark runs one of them. Default 8.", 1, 256, NULL},
        {"group", SL_ARG_INT, &o->group, "N",
         "Run a real group: N processes, rank r on device r, that share the experts and exchange rows. Rank 0 prints. --ranks is not used.",
         2, SL_COMM_RANKS_MAX, NULL},
        {"experts", SL_ARG_INT, &o->experts, "N",
         "Number of routed experts of a layer, of all ranks together. Default: the model's.", 1, 1024, NULL},
        {"contexts", SL_ARG_TEXT, &l->contexts, "LIST", "Lengths of the requests in tokens. Default 65536.",
         0, 0, NULL},
        {"modes", SL_ARG_TEXT, &l->modes, "LIST",
         "Where the cache is: resident, hierarchical, free_rows (hierarchical, but fetching rows takes no time), first_resident (hierarchical, but all rows of the first layers are on the device). Default: the first three.",
         0, 0, NULL},
        {"profiles", SL_ARG_TEXT, &l->profiles, "LIST",
         "How the selection changes between steps: keep85, layered, random. Default keep85.", 0, 0, NULL},
        {"rows", SL_ARG_TEXT, &l->rows, "LIST",
         "Row formats, for instance mla_fp8,mla_bf16. Default mla_fp8.", 0, 0, NULL},
        {"hot-rows", SL_ARG_INT, &o->hot_rows, "N",
         "Rows of the hot buffer per request and layer. Default: twice the selection.", 1, SL_HOT_ROWS_MAX,
         NULL},
        {"resident-layers", SL_ARG_INT, &o->resident_layers, "N",
         "In mode first_resident: number of layers of which all rows stay on the device. Default 3.", 1,
         SL_MAX_LAYERS, NULL},
        {"tail-rows", SL_ARG_INT, &o->tail_rows, "N",
         "Number of newest rows per request and layer that never leave the device. Default 64.", 1, 65536,
         NULL},
        {"batch", SL_ARG_TEXT, &l->batches, "LIST", "Batch sizes. Default: the largest that fits.", 0, 0,
         NULL},
        {"max-batch", SL_ARG_INT, &o->max_batch, "N", "Largest batch. Default 256.", 1, 4096, NULL},
        {"groups", SL_ARG_INT, &o->groups, "N",
         "Request groups per decode step: one group's rows are fetched while another group computes. Default: 2 for batches of 32 requests or more, else 1.",
         1, SL_COORD_GROUPS_MAX, NULL},
        {"steps", SL_ARG_INT, &o->steps, "N", "Timed steps. Default 20.", 1, 100000, NULL},
        {"warmup", SL_ARG_INT, &o->warmup, "N", "Steps before the timed ones. Default 6.", 1, 100000, NULL},
        {"kv-bytes", SL_ARG_BYTES, &o->kv_bytes, "N",
         "Device bytes for the cache. Default: the free bytes less --reserve-bytes.", 0, 0, NULL},
        {"reserve-bytes", SL_ARG_BYTES, &o->reserve_bytes, "N",
         "Device bytes that stay free when --kv-bytes is not given. Default 2G.", 0, 0, NULL},
        {"host-bytes", SL_ARG_BYTES, &o->host_bytes, "N", "Size of the host store. Default 16G.", 0, 0, NULL},
        {"layout", SL_ARG_TEXT, &o->layout, "NAME",
         "Order of the rows in the host store: page_first, layer_first, page_head or auto. Default auto, which chooses by backend as a worker does.",
         0, 0, NULL},
        {"shared-host-pages", SL_ARG_FLAG, &o->shared, NULL,
         "Requests share host pages if the store is too small for all of them.", 0, 0, NULL},
        {"ops", SL_ARG_FLAG, &o->ops, NULL, "Print the profile of one step by op.", 0, 0, NULL},
        {"threads", SL_ARG_INT, &o->threads, "N",
         "Number of threads that fill the host store, and that compute on the cpu backend. Default 8.", 1,
         256, NULL},
        {"csv", SL_ARG_TEXT, &o->csv, "FILE", "Also write the results as CSV.", 0, 0, NULL},
    };
    return sl_args_ready("[flags]", args, SL_COUNT(args), argc, argv, exit_code);
}

int sl_bench_decode_main(int argc, char **argv)
{
    sweep s = {.b.o = {.backend = "cuda",
                       .layout = "auto",
                       .model = sl_synthetic_name(0),
                       .ranks = 8,
                       .tail_rows = 64,
                       .resident_layers = 3,
                       .steps = 20,
                       .warmup = 6,
                       .max_batch = 256,
                       .threads = 8,
                       .host_bytes = 16ull << 30,
                       .reserve_bytes = 2ull << 30}};
    list_flags lists = {.contexts = "65536",
                        .modes = "resident,hierarchical,free_rows",
                        .profiles = "keep85",
                        .rows = "mla_fp8"};
    sl_bench_decode_opts *o = &s.b.o;
    int exit_code;
    if (!parse_flags(o, &lists, argc, argv, &exit_code))
        return exit_code;
    if (!parse_lists(o, &lists))
        return SL_EXIT_USAGE;
    if (o->group > 1)
        return sl_bench_decode_group(o, run_rank);
    s.b.report = on_result, s.b.report_ctx = &s;
    if (!sl_bench_csv_open("bench decode", o->csv, &s.csv))
        return SL_EXIT_FAILED;
    sl_status st = run_all(&s);
    return sl_bench_csv_end("bench decode", o->csv, s.csv, st, &s.b.err);
}
