/*
 * One question of a task under a setting: made, read from a file, or the window of a text; put to the target, and its answer scored.
 * Private to eval/. One thread.
 */
#ifndef SL_EVAL_ASK_H
#define SL_EVAL_ASK_H

#include "eval/eval.h"
#include "local/progress.h"

/* The state of a run. */
typedef struct sl_eval_running {
    const sl_eval_opts *o;
    const sl_eval_target *t;
    sl_eval_result *out;
    sl_local_progress progress;
    char what[192]; /* of the progress */
    uint64_t done, total;
    float **
        dense; /* [n_dense] logits of dense attention, [measured][vocab], by window of a task; of one length */
    int32_t n_dense;
} sl_eval_running;

/* Documents of a task: as many as were asked for and exist. */
int32_t sl_eval_count(const sl_eval_opts *o, int32_t task, int32_t length);
/* Whether the questions of a task fit a length. Errors name what does not. */
sl_status sl_eval_check(const sl_eval_running *r, int32_t task, int32_t length, sl_err *err);
/* Asks question `index` of the row's task, and adds to the row. */
sl_status sl_eval_ask(sl_eval_running *r, sl_eval_row *row, int32_t index, sl_err *err);
/* Frees the logits that were kept of dense attention. */
void sl_eval_dense_forget(sl_eval_running *r);

#endif
