/*
 * The work of `sluice verify`: one text computed in several ways that must give the same result, its logits
 * compared bit by bit with those of the plainest way. Internal to cli/.
 */
#ifndef SL_CLI_VERIFY_H
#define SL_CLI_VERIFY_H

#include <stdio.h>

#include "local/open.h"

typedef struct sl_cli_verify_opts {
    const char *dir, *backend;
    int32_t tokens, steps, chunk, hot_rows, tail_rows, threads; /* tokens, hot_rows: 0 = from index_topk */
    const char *indexer, *row_format, *act; /* names; NULL or "auto": from the checkpoint */
    uint64_t seed;
} sl_cli_verify_opts;

typedef struct sl_cli_verify {
    sl_cli_verify_opts o; /* with the zeros filled in */
    sl_local local;
    int32_t *ids;              /* tokens of the prompt, then steps more, chosen by the first way */
    float *want;               /* [1 + steps][vocab]: after the prompt, after each step */
    int ways, differing, idle; /* idle: hierarchical without a single miss, which shows nothing */
} sl_cli_verify;

/* Loads the checkpoint and makes the prompt. On failure sl_cli_verify_close frees the parts that were opened. */
sl_status sl_cli_verify_open(sl_cli_verify *v, const sl_cli_verify_opts *o, sl_err *err);
/*
 * Runs every way and prints a line about each. SL_OK also when logits differ: that is counted in v. An error
 * is one of the engine, or SL_ERR_CORRUPT when the plainest way gives logits that are not finite.
 */
sl_status sl_cli_verify_run(sl_cli_verify *v, FILE *to, sl_err *err);
void sl_cli_verify_close(sl_cli_verify *v);

#endif
