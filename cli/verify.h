/*
 * The work of `sluice verify`: computes one text in several ways whose logits must be equal bit by bit to those of the
 * first way, which keeps all rows on the device. Internal to cli/.
 */
#ifndef SL_CLI_VERIFY_H
#define SL_CLI_VERIFY_H

#include <stdio.h>

#include "local/open.h"

typedef struct sl_cli_verify_opts {
    const char *dir, *backend;
    int32_t tokens, hot_rows; /* 0: derived from index_topk */
    int32_t steps, chunk, tail_rows, threads;
    const char *indexer, *row_format, *act; /* names; NULL or "auto": chosen by the checkpoint */
    uint64_t seed;
} sl_cli_verify_opts;

typedef struct sl_cli_verify {
    sl_cli_verify_opts o; /* with values in place of the zeros */
    sl_local local;
    int32_t *ids; /* the prompt, then one token per step, which the first way chooses */
    float *want;  /* [1 + steps][vocab]: the logits of the first way after the prompt and each step */
    int ways, differing, idle; /* idle: hierarchical ways without a miss, which prove nothing */
} sl_cli_verify;

/* Loads the checkpoint and makes the prompt. After a failure, sl_cli_verify_close() frees what was opened. */
sl_status sl_cli_verify_open(sl_cli_verify *v, const sl_cli_verify_opts *o, sl_err *err);
/*
 * Runs every way and prints one line about each. Returns SL_OK also when logits differ, which v counts. Returns the
 * error of the engine if a step fails, and SL_ERR_CORRUPT if logits of the first way are not finite.
 */
sl_status sl_cli_verify_run(sl_cli_verify *v, FILE *to, sl_err *err);
void sl_cli_verify_close(sl_cli_verify *v);

#endif
