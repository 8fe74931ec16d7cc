/*
 * `sluice verify`: checks that the logits of a checkpoint are equal bit by bit wherever its rows are and in whatever
 * chunks its prompt was computed, as docs/architecture.md promises, on this machine and with this build.
 */
#include <stdio.h>

#include "cli/model_args.h"
#include "cli/verify.h"

/* The caller closes v, also after a failure. */
static sl_status verify(sl_cli_verify *v, const sl_cli_verify_opts *o, bool *equal, sl_err *err)
{
    SL_TRY(sl_cli_verify_open(v, o, err));
    SL_TRY(sl_cli_verify_run(v, stdout, err));
    printf("%d of %d ways shown to be equal\n", v->ways - v->differing - v->idle, v->ways);
    *equal = !v->differing && !v->idle;
    return SL_OK;
}

int sl_cmd_verify(int argc, char **argv)
{
    sl_cli_verify_opts o = {.steps = 32, .chunk = 512, .tail_rows = 64, .backend = "cpu"};
    const sl_arg args[] = {
        {"model", SL_ARG_TEXT, &o.dir, "DIR", "Checkpoint directory. Required.", 0, 0, NULL},
        SL_CLI_BACKEND_ARG(o.backend),
        {"tokens", SL_ARG_INT, &o.tokens, "N",
         "Number of tokens of the random prompt. Default: three times the hot rows.", 1, 1 << 24, NULL},
        {"steps", SL_ARG_INT, &o.steps, "N", "Number of tokens decoded after the prompt. Default 32.", 1,
         4096, NULL},
        {"chunk", SL_ARG_INT, &o.chunk, "N", "Number of prompt tokens per step. Default 512.", 1, 1 << 20,
         NULL},
        {"hot-rows", SL_ARG_INT, &o.hot_rows, "N",
         "Number of rows per layer in the hot buffer. Default: index_topk.", 0, SL_HOT_ROWS_MAX, NULL},
        {"tail-rows", SL_ARG_INT, &o.tail_rows, "N",
         "Number of newest rows per layer that never leave the device. Default 64.", 1, 65536, NULL},
        {"seed", SL_ARG_U64, &o.seed, "N", "Seed of the prompt. Default 0.", 0, 0, NULL},
        SL_CLI_INDEXER_ARG(o.indexer),
        SL_CLI_ROW_FORMAT_ARG(o.row_format),
        SL_CLI_ACT_ARG(o.act),
        SL_CLI_THREADS_ARG(o.threads),
    };
    int exit_code;
    if (!sl_args_ready("--model DIR [flags]", args, SL_COUNT(args), argc, argv, &exit_code))
        return exit_code;
    if (!sl_cli_model_given("verify", o.dir))
        return SL_EXIT_USAGE;
    sl_err err = {0};
    sl_cli_verify v;
    bool equal = false;
    sl_status st = verify(&v, &o, &equal, &err);
    sl_cli_verify_close(&v);
    if (st != SL_OK)
        return sl_args_fail("verify", st, &err);
    return equal ? SL_EXIT_OK : SL_EXIT_FAILED;
}
