/* `sluice calibrate`: measures on a text what an algorithm needs to know about a model, and writes it to a file. */
#include <stdio.h>

#include "cli/model_args.h"
#include "local/calibrate.h"

static const char *const algorithms[] = {"double_sparsity", NULL};

int sl_cmd_calibrate(int argc, char **argv)
{
    const char *algorithm = NULL;
    sl_calibrate_opts o = {
        .output = "double_sparsity.json", .type = "qk", .block_tokens = 512, .max_tokens = 256 * 512};
    int32_t tokens = (int32_t)o.max_tokens;
    const sl_arg args[] = {
        {"algorithm", SL_ARG_CHOICE, &algorithm, "NAME", "The algorithm that reads the file. Required.", 0, 0,
         algorithms},
        {"model", SL_ARG_TEXT, &o.dir, "DIR", "Checkpoint directory. Required.", 0, 0, NULL},
        {"text", SL_ARG_TEXT, &o.text_path, "FILE",
         "UTF-8 text as the model will read it. Required. More than a few thousand tokens change little.", 0,
         0, NULL},
        {"output", SL_ARG_TEXT, &o.output, "FILE", "The file to write. Default double_sparsity.json.", 0, 0,
         NULL},
        {"type", SL_ARG_CHOICE, &o.type, "NAME",
         "What is measured: the products of queries and keys by channel (qk, the default), or the keys alone (k).",
         0, 0, sl_calibrate_types},
        {"block", SL_ARG_INT, &o.block_tokens, "N",
         "The text is read in blocks of N tokens, each from position 0. Default 512.", 1, 1 << 20, NULL},
        {"tokens", SL_ARG_INT, &tokens, "N", "Number of tokens that are read at most. Default 131072.", 1,
         1 << 30, NULL},
        SL_CLI_ROW_FORMAT_ARG(o.row_format),
        SL_CLI_ACT_ARG(o.act),
        SL_CLI_THREADS_ARG(o.threads),
    };
    int exit_code;
    if (!sl_args_ready("--algorithm NAME --model DIR --text FILE [flags]", args, SL_COUNT(args), argc, argv,
                       &exit_code))
        return exit_code;
    if (!algorithm || !o.dir || !o.text_path) {
        fprintf(stderr, "sluice calibrate: --%s is required\n",
                !algorithm ? "algorithm"
                : !o.dir   ? "model"
                           : "text");
        return SL_EXIT_USAGE;
    }
    o.max_tokens = tokens;
    sl_calibrate_result r = {0};
    sl_err err = {0};
    sl_status st = sl_calibrate(&o, &r, &err);
    if (st != SL_OK)
        return sl_args_fail("calibrate", st, &err);
    printf("%s: %d layers, %d KV heads, %d channels ranked by %s on %lld tokens\n", o.output, r.n_layers,
           r.kv_heads, r.head_dim, o.type, (long long)r.tokens);
    return SL_EXIT_OK;
}
