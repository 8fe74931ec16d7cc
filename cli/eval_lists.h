/*
 * The lists of `sluice eval`: each flag may be given several times, with items separated by commas. Main thread.
 */
#ifndef SL_CLI_EVAL_LISTS_H
#define SL_CLI_EVAL_LISTS_H

#include "base/args.h"
#include "eval/document.h"

enum { SL_EVAL_ITEMS = 64 /* of a list */ };

/* The flags as they were given; without items the defaults apply. */
typedef struct sl_cli_eval_flags {
    sl_arg_list tasks, lengths, budgets, algorithms;
} sl_cli_eval_flags;

typedef struct sl_cli_eval_items {
    char *v[SL_EVAL_ITEMS];
    int32_t n;
} sl_cli_eval_items;

typedef struct sl_cli_eval_lists {
    const sl_eval_task *task[SL_EVAL_ITEMS];
    int32_t length[SL_EVAL_ITEMS], budget[SL_EVAL_ITEMS]; /* ascending */
    int32_t n_tasks, n_lengths, n_budgets;
    sl_cli_eval_items algorithms; /* without items: all that can serve the model */
} sl_cli_eval_lists;

/*
 * Errors name the flag and the item. A budget that holds even the largest length is refused, of the defaults it is left out.
 * The caller frees, also after a failure.
 */
sl_status sl_cli_eval_lists_read(const sl_cli_eval_flags *f, sl_cli_eval_lists *out, sl_err *err);
void sl_cli_eval_lists_free(sl_cli_eval_lists *l);

#endif
