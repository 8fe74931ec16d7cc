/* `sluice calibrate`: measures on a text what an algorithm needs to know about a model, and writes it to a file. */
#include <stdio.h>
#include <string.h>

#include "cli/model_args.h"
#include "local/calibrate.h"

static const char *const algorithms[] = {"double_sparsity", "budgets", NULL};

int sl_cmd_calibrate(int argc, char **argv)
{
    const char *algorithm = NULL, *method = "both";
    sl_calibrate_opts o = {
        .type = "qk", .block_tokens = 512, .max_tokens = 256 * 512, .budget = 128, .retrieval = 0.5};
    int32_t tokens = (int32_t)o.max_tokens;
    const sl_arg args[] = {
        {"algorithm", SL_ARG_CHOICE, &algorithm, "NAME",
         "What is calibrated: the channels of double_sparsity, or the budgets of layers and KV heads. Required.",
         0, 0, algorithms},
        {"model", SL_ARG_TEXT, &o.dir, "DIR", "Checkpoint directory. Required.", 0, 0, NULL},
        {"text", SL_ARG_TEXT, &o.text_path, "FILE",
         "UTF-8 text as the model will read it. Required. More than a few thousand tokens change little.", 0,
         0, NULL},
        {"output", SL_ARG_TEXT, &o.output, "FILE",
         "The file to write. Default double_sparsity.json or budgets.json.", 0, 0, NULL},
        {"type", SL_ARG_CHOICE, &o.type, "NAME",
         "What is measured: the products of queries and keys by channel (qk, the default), or the keys alone (k).",
         0, 0, sl_calibrate_types},
        {"method", SL_ARG_CHOICE, &method, "NAME",
         "Of budgets: what shares one. head: the KV heads of a layer. layer: the layers. both (the default): all of them. duo: some "
         "lists read everything, the others what is always selected.",
         0, 0, sl_budgets_methods},
        {"budget", SL_ARG_INT, &o.budget, "N",
         "Of budgets: tokens of a list for which they are divided. Default 128.", 1, 1 << 24, NULL},
        {"retrieval", SL_ARG_REAL, &o.retrieval, "X",
         "Of budgets by duo: share of the lists that read everything. Default 0.5.", 0, 1, NULL},
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
    const bool budgets = strcmp(algorithm, "budgets") == 0;
    o.max_tokens = tokens;
    o.output = o.output ? o.output : budgets ? "budgets.json" : "double_sparsity.json";
    while (strcmp(sl_budgets_methods[o.method], method) != 0)
        o.method++;
    o.type = budgets ? NULL : o.type;
    sl_calibrate_result r = {0};
    sl_err err = {0};
    sl_status st = sl_calibrate(&o, &r, &err);
    if (st != SL_OK)
        return sl_args_fail("calibrate", st, &err);
    if (budgets)
        printf("%s: %d layers, %d KV heads, budgets by %s of %d tokens from %lld tokens of text\n", o.output,
               r.n_layers, r.kv_heads, method, o.budget, (long long)r.tokens);
    else
        printf("%s: %d layers, %d KV heads, %d channels ranked by %s on %lld tokens\n", o.output, r.n_layers,
               r.kv_heads, r.head_dim, o.type, (long long)r.tokens);
    return SL_EXIT_OK;
}
