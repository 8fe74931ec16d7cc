/*
 * `sluice plan`: computes memory per request and largest batch from a model's config, for one process or for each rank
 * of a group; it needs no GPU and no weights.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/model_args.h"
#include "cli/plan_layers.h"
#include "engine/choose.h"
#include "engine/plan_group.h"
#include "model/checkpoint.h"
#include "model/sizes.h"
#include "local/selection.h"

#define ASSUMED_GPU (139ull << 30) /* the usable memory of an H200 */

/* The values of the flags; fill_memory() completes them. */
typedef struct flags {
    const char *dir, *preset, *indexer, *rows, *algorithm;
    sl_local_selection selection;
    sl_plan_layers layers;
    sl_plan_group group;
    sl_plan_in in;
    bool json;
    bool gpu_known; /* the GPU's memory was given or found, not assumed */
} flags;

/* The memory of the first CUDA device; false when there is none. */
static bool device_memory(uint64_t *total)
{
    sl_backend *be;
    uint64_t free_bytes;
    sl_backend_opts o = {0};
    if (sl_backend_create("cuda", &o, &be, NULL) != SL_OK)
        return false;
    bool ok = sl_be_memory(be, &free_bytes, total, NULL) == SL_OK;
    sl_backend_destroy(be);
    return ok;
}

/* False: the command ends at once with *exit_code. */
static bool parse_flags(int argc, char **argv, flags *f, int *exit_code)
{
    const sl_arg args[] = {
        {"model", SL_ARG_TEXT, &f->dir, "DIR",
         "Directory with the checkpoint, or with its config.json alone. Required without --preset.", 0, 0,
         NULL},
        {"preset", SL_ARG_TEXT, &f->preset, "NAME",
         "Dimensions of a built-in model instead of a directory, for instance deepseek_v32.", 0, 0, NULL},
        {"ranks", SL_ARG_INT, &f->group.ranks, "N",
         "Plan for each rank of a group of N ranks, which share the routed experts. The plan is that of the rank with "
         "the most experts.",
         1, SL_COMM_RANKS_MAX, NULL},
        {"ranks-per-host", SL_ARG_INT, &f->group.ranks_per_host, "N",
         "With --ranks: number of ranks that share a host and its --host-bytes. Default: all ranks, but at most 8.",
         1, SL_COMM_RANKS_MAX, NULL},
        {"gpu-bytes", SL_ARG_BYTES, &f->in.gpu_bytes, "N",
         "Bytes of memory of one device. Default: those of this machine's GPU, or of an H200 if it has none.",
         0, 0, NULL},
        {"host-bytes", SL_ARG_BYTES, &f->in.host_bytes, "N",
         "Bytes of memory of one host for pages, such as 64G or 1.5T: kvstore.bytes of all its workers together. Required.",
         0, 0, NULL},
        {"weight-bytes", SL_ARG_BYTES, &f->in.weight_bytes, "N",
         "Bytes of the weights on one device. Default: the size of the checkpoint's files; without files, and with --ranks, "
         "what the config says.",
         0, 0, NULL},
        {"reserve-bytes", SL_ARG_BYTES, &f->in.reserve_bytes, "N",
         "Bytes kept free on the device. Default: one sixteenth of its memory.", 0, 0, NULL},
        {"hot-rows", SL_ARG_INT, &f->in.hot_rows, "N",
         "Number of rows of the hot buffer per request and layer. Default: twice the selection.", 0,
         SL_HOT_ROWS_MAX, NULL},
        {"tail-rows", SL_ARG_INT, &f->in.tail_rows, "N",
         "Number of newest rows per request and layer that never leave the device. Default 64.", 0, 65536,
         NULL},
        {"max-context", SL_ARG_INT, &f->in.max_context, "N",
         "Tokens of the longest sequence. Default: the model's context.", 0, 1 << 24, NULL},
        {"step-tokens", SL_ARG_INT, &f->in.max_step_tokens, "N",
         "Largest number of tokens in one step. Default 512.", 1, 1 << 20, NULL},
        {"max-seqs", SL_ARG_INT, &f->in.max_seqs, "N",
         "Largest number of requests at once, for which an engine sets memory aside: decode.max_batch. Default 256.",
         1, 4096, NULL},
        {"algorithm", SL_ARG_TEXT, &f->algorithm, "NAME",
         "Sparse algorithm. auto, the default, is dsa for a model with an indexer and dense for every other model.",
         0, 0, NULL},
        SL_CLI_INDEXER_ARG(f->indexer),
        SL_CLI_ROW_FORMAT_ARG(f->rows),
        {"locality", SL_ARG_TEXT, &f->layers.file, "FILE",
         "A saved /metrics page of a decode worker. The hot rows of each layer are then printed instead of the plan.",
         0, 0, NULL},
        {"context", SL_ARG_INT, &f->layers.context, "N",
         "With --locality: number of tokens of each request. Default 65536.", 1, 1 << 24, NULL},
        {"swap-share", SL_ARG_REAL, &f->layers.swap_share, "X",
         "With --locality: fraction of a step spent waiting for rows. Default: the fraction that the page shows.",
         0, 1, NULL},
        {"json", SL_ARG_FLAG, &f->json, NULL, "Print one JSON object.", 0, 0, NULL},
    };
    sl_arg all[SL_COUNT(args) + SL_LOCAL_FLAGS];
    sl_local_selection_init(&f->selection);
    size_t n = sl_local_selection_args(&f->selection, args, SL_COUNT(args), all);
    return sl_args_ready("--model DIR|--preset NAME --host-bytes N [--ranks N] [--gpu-bytes N] [flags]", all,
                         n, argc, argv, exit_code);
}

/* False, with a message on stderr: a flag is missing, or two contradict each other. */
static bool check_flags(const flags *f)
{
    if (!f->preset && !sl_cli_model_given("plan", f->dir))
        return false;
    if (f->preset && f->dir)
        fprintf(stderr, "sluice plan: --model and --preset exclude each other\n");
    else if (f->group.ranks_per_host && !f->group.ranks)
        fprintf(stderr, "sluice plan: --ranks-per-host needs --ranks\n");
    else if (!f->in.host_bytes && !f->layers.file)
        fprintf(
            stderr,
            "sluice plan: --host-bytes is required: the memory of one host for pages, such as 64G or 1.5T; the plan is for "
            "the hosts that you will have, not for this one\n");
    else
        return true;
    return false;
}

/* The sizes that were not given: those of this machine and of the checkpoint. */
static void fill_memory(flags *f)
{
    sl_plan_in *in = &f->in;
    f->gpu_known = in->gpu_bytes > 0 || device_memory(&in->gpu_bytes);
    if (!f->gpu_known)
        in->gpu_bytes = ASSUMED_GPU;
    f->group.given_weights = in->weight_bytes;
    if (in->weight_bytes == UINT64_MAX)
        in->weight_bytes = f->dir ? sl_checkpoint_file_bytes(f->dir) : 0;
    if (in->reserve_bytes == UINT64_MAX)
        in->reserve_bytes = in->gpu_bytes / 16;
}

/* Without files the weights of one process are those of the config, as they are of a rank. */
static void count_weights(const sl_local_checkpoint *m, flags *f)
{
    sl_weight_bytes w;
    if (f->in.weight_bytes)
        return;
    sl_model_weight_sizes(&m->cfg, f->group.stored, f->group.act, &w);
    f->in.weight_bytes = w.replicated + (uint64_t)m->cfg.moe.n_routed * w.expert;
}

/* Plans for one process or, with --ranks, for one rank of the group. */
static sl_status make_plan(const sl_local_checkpoint *m, flags *f, sl_plan *p, sl_err *err)
{
    sl_plan_group *g = &f->group;
    f->in.pool_unit = SL_PLAN_UNIT;
    f->in.cfg = &m->cfg, f->in.cache = sl_engine_cache_dims(&m->cfg, m->row_format, m->index_format);
    sl_select_options values = {0};
    SL_TRY(sl_local_selection_options(&f->selection, f->in.algorithm, true, values.values, err));
    SL_TRY(
        sl_choose_selection(f->in.algorithm, values.values, &m->cfg, &f->in.gates, &f->in.cache.select, err));
    g->stored = m->has_weights || !m->cfg.quant.f8_acts ? m->stored : SL_F8_E4M3;
    SL_TRY(sl_local_act_find(NULL, g->stored, &g->act, err));
    if (g->ranks == 0) {
        count_weights(m, f);
        return sl_plan_make(&f->in, p, err);
    }
    g->host_bytes = f->in.host_bytes;
    g->ranks_per_host = g->ranks_per_host ? g->ranks_per_host : g->ranks < 8 ? g->ranks : 8;
    return sl_plan_group_make(g, &f->in, p, err);
}

static int run_plan(const sl_local_checkpoint *m, flags *f)
{
    sl_err err = {0};
    sl_plan p;
    sl_status st = make_plan(m, f, &p, &err);
    if (st != SL_OK)
        return sl_args_fail("plan", st, &err);
    if (f->layers.file)
        return sl_cli_plan_layers(&f->layers, &p, m->cfg.n_layers, f->json);
    char *text = f->json ? sl_plan_json(&f->in, &p) : sl_plan_text(&f->in, &p);
    if (!text)
        return sl_args_fail("plan", SL_ERR_NO_MEMORY, NULL);
    if (!f->json) {
        printf("%s: %s rows, %s indexer\n", f->dir ? f->dir : f->preset, sl_row_format_name(m->row_format),
               sl_index_format_name(m->index_format));
        if (!f->gpu_known)
            printf(
                "this machine has no GPU and --gpu-bytes is not given: the memory of an H200 is assumed\n");
    }
    fputs(text, stdout);
    free(text);
    return SL_EXIT_OK;
}

int sl_cmd_plan(int argc, char **argv)
{
    static flags f; /* large; this runs once per process */
    f = (flags){.algorithm = "auto",
                .layers = {.context = 65536, .swap_share = -1},
                .in = {.max_step_tokens = 512, .weight_bytes = UINT64_MAX, .reserve_bytes = UINT64_MAX}};
    int exit_code;
    if (!parse_flags(argc, argv, &f, &exit_code))
        return exit_code;
    if (!check_flags(&f))
        return SL_EXIT_USAGE;
    sl_err err = {0};
    sl_local_checkpoint m;
    sl_status st = f.preset ? sl_local_checkpoint_preset(f.preset, f.indexer, f.rows, &m, &err)
                            : sl_local_checkpoint_read(f.dir, f.indexer, f.rows, &m, &err);
    if (st != SL_OK)
        return sl_args_fail("plan", st, &err);
    st = sl_choose_algorithm(f.algorithm, &m.cfg, &f.in.algorithm, &err);
    if (st != SL_OK)
        return sl_args_fail("plan", st, &err);
    fill_memory(&f);
    return run_plan(&m, &f);
}
