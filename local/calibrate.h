/*
 * Calibration: of channels for double_sparsity, and of budgets by layer and KV head (budgets.h). For the former it runs
 * a model over a text and measures, for every layer and KV head, how important each channel of its keys is. The text is
 * read in blocks of block_tokens tokens, each a sequence of its own, with dense attention; what does not fill a block
 * is left out.
 *
 *   type   importance of channel c of KV head h: the mean over tokens of
 *   qk     the sum over the query heads of the group of |q_c * k_c|, of the token's own query and key, after RoPE
 *   k      |k_c|, of the projected key before norm and RoPE
 *
 * These are the measures "qk_proj" and "k_proj" of the paper's offline calibration. On the CPU backend only. One thread.
 */
#ifndef SL_LOCAL_CALIBRATE_H
#define SL_LOCAL_CALIBRATE_H

#include "local/budgets.h"
#include "model/model.h"
#include "sparse/channels.h"

typedef struct sl_calibrate_opts {
    const char *dir, *text_path; /* checkpoint; file of UTF-8 text */
    const char *output;          /* the file that is written */
    const char *type;            /* of sl_calibrate_types; NULL: budgets are calibrated, not channels */
    int32_t method, budget; /* of budgets: sl_budgets_method, and the tokens of a list that are divided */
    double retrieval;       /* of budgets by SL_BUDGETS_DUO */
    const char *row_format, *act;
    int32_t block_tokens;
    int64_t max_tokens; /* of the text */
    int32_t threads;
} sl_calibrate_opts;

extern const char *const sl_calibrate_types[]; /* "qk", "k", NULL */

typedef struct sl_calibrate_result {
    int64_t tokens;
    int32_t n_layers, kv_heads, head_dim;
} sl_calibrate_result;

/* Errors name the file and the reason: a text that does not fill one block is SL_ERR_INVALID, a model without KV heads
 * SL_ERR_UNSUPPORTED. Progress is shown on stderr. */
sl_status sl_calibrate(const sl_calibrate_opts *o, sl_calibrate_result *out, sl_err *err);

#endif
