/*
 * `sluice plan`: computes memory per request and largest batch from a model's config; it needs no GPU and no weights.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/model_args.h"
#include "cli/plan_layers.h"
#include "engine/plan.h"
#include "model/checkpoint.h"

#define ASSUMED_GPU (139ull << 30) /* the usable memory of an H200 */

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

static uint64_t host_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

static int run_plan(const char *dir, const sl_local_checkpoint *m, sl_plan_in *in, bool gpu_given, bool json,
                    const sl_plan_layers *layers)
{
    sl_err err = {0};
    sl_plan p;
    in->cfg = &m->cfg, in->cache = sl_engine_cache_dims(&m->cfg, m->row_format, m->index_format);
    sl_status st = sl_plan_make(in, &p, &err);
    if (st != SL_OK)
        return sl_args_fail("plan", st, &err);
    if (layers->file)
        return sl_cli_plan_layers(layers, &p, m->cfg.n_layers, json);
    char *text = json ? sl_plan_json(in, &p) : sl_plan_text(in, &p);
    if (!text)
        return sl_args_fail("plan", SL_ERR_NO_MEMORY, NULL);
    if (!json) {
        printf("%s: %s rows, %s indexer\n", dir, sl_row_format_name(m->row_format),
               sl_index_format_name(m->index_format));
        if (!gpu_given)
            printf(
                "this machine has no GPU and --gpu-bytes is not given: the memory of an H200 is assumed\n");
    }
    fputs(text, stdout);
    free(text);
    return SL_EXIT_OK;
}

int sl_cmd_plan(int argc, char **argv)
{
    const char *dir = NULL;
    const char *indexer = NULL, *rows = NULL;
    bool json = false;
    sl_plan_layers layers = {.context = 65536, .swap_share = -1};
    const char *algorithm = "dsa";
    sl_plan_in in = {.max_step_tokens = 512, .weight_bytes = UINT64_MAX, .reserve_bytes = UINT64_MAX};
    const sl_arg args[] = {
        {"model", SL_ARG_TEXT, &dir, "DIR",
         "Directory with the checkpoint, or with its config.json alone. Required.", 0, 0, NULL},
        {"gpu-bytes", SL_ARG_BYTES, &in.gpu_bytes, "N",
         "Bytes of device memory. Default: those of this machine's GPU, or of an H200 if it has none.", 0, 0,
         NULL},
        {"host-bytes", SL_ARG_BYTES, &in.host_bytes, "N",
         "Bytes of host memory for pages. Default: three quarters of this machine's memory.", 0, 0, NULL},
        {"weight-bytes", SL_ARG_BYTES, &in.weight_bytes, "N",
         "Bytes of the weights on the device. Default: the size of the checkpoint's files.", 0, 0, NULL},
        {"reserve-bytes", SL_ARG_BYTES, &in.reserve_bytes, "N",
         "Bytes kept free on the device. Default: one sixteenth of its memory.", 0, 0, NULL},
        {"hot-rows", SL_ARG_INT, &in.hot_rows, "N",
         "Number of rows of the hot buffer per request and layer. Default: twice the selection.", 0,
         SL_HOT_ROWS_MAX, NULL},
        {"tail-rows", SL_ARG_INT, &in.tail_rows, "N",
         "Number of newest rows per request and layer that never leave the device. Default 64.", 0, 65536,
         NULL},
        {"max-context", SL_ARG_INT, &in.max_context, "N",
         "Tokens of the longest sequence. Default: the model's context.", 0, 1 << 24, NULL},
        {"step-tokens", SL_ARG_INT, &in.max_step_tokens, "N",
         "Largest number of tokens in one step. Default 512.", 1, 1 << 20, NULL},
        {"algorithm", SL_ARG_TEXT, &algorithm, "NAME", "Sparse algorithm. Default dsa.", 0, 0, NULL},
        SL_CLI_INDEXER_ARG(indexer),
        SL_CLI_ROW_FORMAT_ARG(rows),
        {"locality", SL_ARG_TEXT, &layers.file, "FILE",
         "A saved /metrics page of a decode worker. The hot rows of each layer are then printed instead of the plan.",
         0, 0, NULL},
        {"context", SL_ARG_INT, &layers.context, "N",
         "With --locality: number of tokens of each request. Default 65536.", 1, 1 << 24, NULL},
        {"swap-share", SL_ARG_REAL, &layers.swap_share, "X",
         "With --locality: fraction of a step spent waiting for rows. Default: the fraction that the page shows.",
         0, 1, NULL},
        {"json", SL_ARG_FLAG, &json, NULL, "Print one JSON object.", 0, 0, NULL},
    };
    int exit_code;
    if (!sl_args_ready("--model DIR [--gpu-bytes N] [--host-bytes N] [flags]", args, SL_COUNT(args), argc,
                       argv, &exit_code))
        return exit_code;
    if (!sl_cli_model_given("plan", dir))
        return SL_EXIT_USAGE;
    sl_err err = {0};
    sl_local_checkpoint m;
    sl_status st = sl_local_checkpoint_read(dir, indexer, rows, &m, &err);
    if (st != SL_OK)
        return sl_args_fail("plan", st, &err);
    in.algorithm = sl_algo_find(algorithm);
    if (!in.algorithm)
        return sl_args_fail("plan", sl_fail_unknown(&err, "--algorithm", algorithm, sl_algo_names()), &err);
    bool known = in.gpu_bytes > 0 || device_memory(&in.gpu_bytes);
    if (!known)
        in.gpu_bytes = ASSUMED_GPU;
    if (in.host_bytes == 0)
        in.host_bytes = host_memory() / 4 * 3;
    if (in.weight_bytes == UINT64_MAX)
        in.weight_bytes = sl_checkpoint_file_bytes(dir);
    if (in.reserve_bytes == UINT64_MAX)
        in.reserve_bytes = in.gpu_bytes / 16;
    return run_plan(dir, &m, &in, known, json, &layers);
}
