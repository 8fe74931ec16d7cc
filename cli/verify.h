/*
 * The machinery behind `sluice verify`: one text computed in several ways that must not matter, its logits
 * compared bit by bit with those of the plainest way. Internal to cli/.
 */
#ifndef SL_CLI_VERIFY_H
#define SL_CLI_VERIFY_H

#include <stdio.h>

#include "cli/cli.h"
#include "local/checkpoint.h"
#include "engine/engine.h"

typedef struct sl_verify_opts {
    const char *dir, *backend;
    int32_t tokens, steps, chunk, hot_rows, tail_rows, threads; /* tokens, hot_rows: 0 = from index_topk */
    int indexer, rows, act;                                     /* indices of the flags' choices */
    uint64_t seed;
} sl_verify_opts;

typedef struct sl_verify {
    sl_verify_opts o; /* with the zeros filled in */
    sl_cli_model m;
    sl_backend *be;
    sl_model *model;
    sl_arena *arena;
    int32_t *ids, *pages, n_pages; /* ids: tokens of the prompt, then steps more, chosen by the first way */
    float *want;                   /* [1 + steps][vocab]: after the prompt, after each step */
    int ways, differing, idle;     /* idle: hierarchical without a single miss, which shows nothing */
} sl_verify;

/* Loads the checkpoint and makes the prompt. On failure sl_verify_close still frees what there is. */
sl_status sl_verify_open(sl_verify *v, const sl_verify_opts *o, sl_err *err);
/*
 * Runs every way and prints a line about each. SL_OK also when logits differ: that is counted in v. An error
 * is one of the engine, or SL_ERR_CORRUPT when the plainest way gives logits that are not finite.
 */
sl_status sl_verify_run(sl_verify *v, FILE *to, sl_err *err);
void sl_verify_close(sl_verify *v);

#endif
