/*
 * `sluice verify`: whether a checkpoint gives the same logits, bit by bit, wherever its rows are and however
 * its prompt was cut: the promise of docs/architecture.md, on this machine, with this build.
 */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/verify.h"

int sl_cmd_verify(int argc, char **argv)
{
    sl_verify_opts o = {.steps = 32, .chunk = 512, .tail_rows = 64};
    int backend = 0;
    const sl_arg args[] = {
        {"model", SL_ARG_TEXT, &o.dir, "DIR", "checkpoint directory (required)", 0, 0, NULL},
        {"backend", SL_ARG_CHOICE, &backend, "NAME", "compute backend", 0, 0, sl_cli_backends},
        {"tokens", SL_ARG_INT, &o.tokens, "N", "of the random prompt (three times the hot rows)", 1, 1 << 24,
         NULL},
        {"steps", SL_ARG_INT, &o.steps, "N", "tokens decoded after it (32)", 1, 4096, NULL},
        {"chunk", SL_ARG_INT, &o.chunk, "N", "prompt tokens per step (512)", 1, 1 << 20, NULL},
        {"hot-rows", SL_ARG_INT, &o.hot_rows, "N", "rows per layer on the device (index_topk)", 0, 65534,
         NULL},
        {"tail-rows", SL_ARG_INT, &o.tail_rows, "N", "newest rows that never leave (64)", 1, 65536, NULL},
        {"seed", SL_ARG_U64, &o.seed, "N", "of the prompt (0)", 0, 0, NULL},
        {"indexer", SL_ARG_CHOICE, &o.indexer, "NAME", "numeric convention", 0, 0, sl_cli_indexers},
        {"row-format", SL_ARG_CHOICE, &o.rows, "NAME", "cache rows", 0, 0, sl_cli_row_formats},
        {"act", SL_ARG_CHOICE, &o.act, "NAME", "activations", 0, 0, sl_cli_acts},
        {"threads", SL_ARG_INT, &o.threads, "N", "CPU threads, 0 = all cores", 0, 1024, NULL},
    };
    switch (sl_args_parse("--model DIR [flags]", args, SL_COUNT(args), argc, argv)) {
    case SL_ARGS_HELP:
        return SL_EXIT_OK;
    case SL_ARGS_WRONG:
        return SL_EXIT_USAGE;
    case SL_ARGS_RUN:
        break;
    }
    if (!o.dir) {
        fprintf(stderr, "sluice verify: --model DIR is required\n");
        return SL_EXIT_USAGE;
    }
    o.backend = sl_cli_backends[backend];
    sl_err err = {0};
    sl_verify v;
    sl_status st = sl_verify_open(&v, &o, &err);
    if (st == SL_OK)
        st = sl_verify_run(&v, stdout, &err);
    bool good = st == SL_OK && !v.differing && !v.idle;
    if (st == SL_OK)
        printf("%d of %d ways shown to be equal\n", v.ways - v.differing - v.idle, v.ways);
    sl_verify_close(&v);
    if (st != SL_OK)
        return sl_args_fail("verify", st, &err);
    return good ? SL_EXIT_OK : SL_EXIT_FAILED;
}
