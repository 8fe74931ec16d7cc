/* `sluice bench decode`: flags and the sweep; see decode.h. */
#include "bench/decode/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/choose.h"
#include "base/args.h"

typedef struct sweep {
    dec_bench b;
    FILE *csv;
} sweep;

static void on_result(void *ctx, const dec_result *r)
{
    sweep *s = ctx;
    dec_print_row(stdout, r);
    if (r->ops)
        dec_print_ops(stdout, r);
    fflush(stdout);
    if (s->csv)
        dec_print_csv(s->csv, r);
}

/* Device bytes for the cache: what the flag says, else what the weights left free, less the reserve. */
static sl_status find_budget(dec_bench *b)
{
    const dec_opts *o = &b->o;
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
    dec_bench *b = &s->b;
    SL_TRY(sl_local_open_model(&b->local, &b->open, &b->err));
    SL_TRY(find_budget(b));
    SL_TRY(dec_host_open(&b->host, &b->local, &b->open, b->o.threads, &b->err));
    dec_print_facts(stdout, b);
    if (s->csv)
        dec_print_facts(s->csv, b), dec_print_csv_head(s->csv);
    for (int i = 0; i < b->o.contexts.n; i++)
        SL_TRY(dec_run_context(b, rows, b->o.contexts.v[i]));
    return SL_OK;
}

static sl_status run_rows(sweep *s, sl_row_format rows)
{
    dec_bench *b = &s->b;
    b->local.checkpoint.row_format = rows;
    sl_status st = run_contexts(s, rows);
    dec_host_close(&b->host);
    sl_local_close_model(&b->local);
    return st;
}

static sl_status run_all(sweep *s)
{
    dec_bench *b = &s->b;
    const dec_opts *o = &b->o;
    sl_synthetic_opts so = {.ranks = o->ranks, .seed = DEC_SEED};
    b->open = (sl_local_opts){.synthetic = &so,
                              .backend = o->backend,
                              .act = "bf16",
                              .layout = o->layout,
                              .threads = o->threads,
                              .max_tokens = o->max_batch,
                              .max_logit_rows = o->max_batch,
                              .max_context = bench_list_most(&o->contexts),
                              .store_bytes = o->host_bytes};
    b->local.checkpoint.index_format = SL_INDEX_OFFICIAL;
    for (int32_t l = 0; l < o->resident_layers; l++)
        b->hot_layer[l] = SL_HOT_RESIDENT;
    SL_TRY(sl_synthetic_config(o->model, o->layers, &b->local.checkpoint.cfg, &b->err));
    SL_TRY(sl_local_open_backend(&b->local, &b->open, &b->err));
    sl_layout unused; /* a wrong --layout is refused before minutes of making weights */
    sl_status st = sl_choose_layout(o->layout, sl_backend_caps(b->local.be), &unused, &b->err);
    if (st == SL_OK)
        st = sl_choose_policy(NULL, sl_backend_caps(b->local.be), &b->policy, &b->err);
    if (st == SL_OK)
        st = sl_be_alloc(b->local.be, SL_MEM_DEVICE, sizeof *b->keep * SL_MAX_LAYERS, (void **)&b->keep,
                         &b->err);
    for (int i = 0; i < o->rows.n && st == SL_OK; i++)
        st = run_rows(s, (sl_row_format)o->rows.v[i]);
    sl_be_free(b->local.be, SL_MEM_DEVICE, b->keep);
    sl_local_close(&b->local);
    return st;
}

static bool parse_lists(dec_opts *o, const char *contexts, const char *modes, const char *profiles,
                        const char *rows, const char *batches)
{
    if (!bench_list_parse(contexts, NULL, 1, &o->contexts))
        fprintf(stderr, "sluice bench decode: --contexts %s is not a list of lengths\n", contexts);
    else if (!bench_list_parse(modes, dec_mode_names, 1, &o->modes))
        fprintf(stderr,
                "sluice bench decode: --modes %s: of resident, hierarchical, free_rows, first_resident\n",
                modes);
    else if (!bench_list_parse(profiles, dec_profile_names, 1, &o->profiles))
        fprintf(stderr, "sluice bench decode: --profiles %s: of keep85, layered, random\n", profiles);
    else if (!bench_list_parse(rows, bench_row_names, 1, &o->rows))
        fprintf(stderr, "sluice bench decode: --rows %s: of mla_fp8, mla_bf16, mla_f32\n", rows);
    else if (batches && !bench_list_parse(batches, NULL, 1, &o->batches))
        fprintf(stderr, "sluice bench decode: --batch %s is not a list of numbers\n", batches);
    else
        return true;
    return false;
}

int sl_bench_decode_main(int argc, char **argv)
{
    sweep s = {.b.o = {.backend = "cuda",
                       .layout = "auto",
                       .model = sl_synthetic_names[0],
                       .ranks = 8,
                       .tail_rows = 64,
                       .resident_layers = 3,
                       .steps = 20,
                       .warmup = 6,
                       .max_batch = 256,
                       .threads = 8,
                       .host_bytes = 16ull << 30,
                       .reserve_bytes = 2ull << 30}};
    dec_opts *o = &s.b.o;
    const char *contexts = "65536", *modes = "resident,hierarchical,free_rows", *profiles = "keep85",
               *rows = "mla_fp8", *batches = NULL;
    const sl_arg args[] = {
        {"backend", SL_ARG_TEXT, &o->backend, "NAME", "cuda or cpu", 0, 0, NULL},
        {"model", SL_ARG_TEXT, &o->model, "NAME", "deepseek_v32, or tiny for tests", 0, 0, NULL},
        {"layers", SL_ARG_INT, &o->layers, "N", "only the first N layers (all)", 1, SL_MAX_LAYERS, NULL},
        {"ranks", SL_ARG_INT, &o->ranks, "N", "of expert parallelism; one of them runs here (8)", 1, 256,
         NULL},
        {"contexts", SL_ARG_TEXT, &contexts, "LIST", "tokens of each request (65536)", 0, 0, NULL},
        {"modes", SL_ARG_TEXT, &modes, "LIST",
         "resident, hierarchical, free_rows, first_resident (the first three)", 0, 0, NULL},
        {"profiles", SL_ARG_TEXT, &profiles, "LIST", "keep85, layered, random (keep85)", 0, 0, NULL},
        {"rows", SL_ARG_TEXT, &rows, "LIST", "row formats (mla_fp8)", 0, 0, NULL},
        {"hot-rows", SL_ARG_INT, &o->hot_rows, "N", "per request and layer (twice the selection)", 1, 65534,
         NULL},
        {"resident-layers", SL_ARG_INT, &o->resident_layers, "N",
         "first_resident: layers whose rows all stay on the device (3)", 1, SL_MAX_LAYERS, NULL},
        {"tail-rows", SL_ARG_INT, &o->tail_rows, "N", "newest rows that never leave (64)", 1, 65536, NULL},
        {"batch", SL_ARG_TEXT, &batches, "LIST", "requests (as many as fit)", 0, 0, NULL},
        {"max-batch", SL_ARG_INT, &o->max_batch, "N", "never more than these (256)", 1, 4096, NULL},
        {"groups", SL_ARG_INT, &o->groups, "N",
         "rows of one group of requests come beside the work on others (2 from 32 requests on)", 1,
         SL_COORD_GROUPS_MAX, NULL},
        {"steps", SL_ARG_INT, &o->steps, "N", "timed steps (20)", 1, 100000, NULL},
        {"warmup", SL_ARG_INT, &o->warmup, "N", "steps before them (6)", 1, 100000, NULL},
        {"kv-bytes", SL_ARG_BYTES, &o->kv_bytes, "N", "device bytes for the cache (what is free)", 0, 0,
         NULL},
        {"reserve-bytes", SL_ARG_BYTES, &o->reserve_bytes, "N", "of what is free, left alone (2G)", 0, 0,
         NULL},
        {"host-bytes", SL_ARG_BYTES, &o->host_bytes, "N", "of the host store (16G)", 0, 0, NULL},
        {"layout", SL_ARG_TEXT, &o->layout, "NAME",
         "of the host store: auto, page_first, layer_first, page_head (auto: as a worker)", 0, 0, NULL},
        {"shared-host-pages", SL_ARG_FLAG, &o->shared, NULL,
         "requests share host pages where the store is too small for all", 0, 0, NULL},
        {"ops", SL_ARG_FLAG, &o->ops, NULL, "profile one step by op", 0, 0, NULL},
        {"threads", SL_ARG_INT, &o->threads, "N", "fill the host store; compute on cpu (8)", 1, 256, NULL},
        {"csv", SL_ARG_TEXT, &o->csv, "FILE", "also write CSV", 0, 0, NULL},
    };
    switch (sl_args_parse("[flags]", args, SL_COUNT(args), argc, argv)) {
    case SL_ARGS_HELP:
        return SL_EXIT_OK;
    case SL_ARGS_WRONG:
        return SL_EXIT_USAGE;
    case SL_ARGS_RUN:
        break;
    }
    if (!parse_lists(o, contexts, modes, profiles, rows, batches))
        return SL_EXIT_USAGE;
    s.b.report = on_result, s.b.report_ctx = &s;
    s.csv = o->csv ? fopen(o->csv, "w") : NULL;
    if (o->csv && !s.csv) {
        fprintf(stderr, "sluice bench decode: cannot write %s\n", o->csv);
        return SL_EXIT_FAILED;
    }
    sl_status st = run_all(&s);
    if (s.csv && fclose(s.csv) != 0 && st == SL_OK)
        st = sl_fail(&s.b.err, SL_ERR_INTERNAL, "cannot write %s", o->csv);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail("bench decode", st, &s.b.err);
}
