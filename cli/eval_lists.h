/*
 * The lists of `sluice eval`: each flag may be given several times, with items separated by commas. Main thread.
 */
#ifndef SL_CLI_EVAL_LISTS_H
#define SL_CLI_EVAL_LISTS_H

#include "base/args.h"
#include "eval/eval.h"

enum { SL_EVAL_ITEMS = 64 /* of a list */ };

/* The flags as they were given; without items the defaults apply. */
typedef struct sl_cli_eval_flags {
    sl_arg_list tasks, texts, lengths, budgets, algorithms;
    sl_eval_file_opts files;
} sl_cli_eval_flags;

typedef struct sl_cli_eval_items {
    char *v[SL_EVAL_ITEMS];
    int32_t n;
} sl_cli_eval_items;

typedef struct sl_cli_eval_lists {
    sl_eval_source source[SL_EVAL_ITEMS];                 /* tasks of names, or of files, or texts */
    sl_eval_file file[SL_EVAL_ITEMS];                     /* [n_files], of which sources are */
    sl_eval_text text[SL_EVAL_ITEMS];                     /* [n_texts] */
    int32_t length[SL_EVAL_ITEMS], budget[SL_EVAL_ITEMS]; /* ascending */
    int32_t n_sources, n_files, n_texts, n_budgets;
    int32_t n_lengths;            /* 0: of files, whose longest question says it */
    sl_cli_eval_items algorithms; /* without items: all that can serve the model */
} sl_cli_eval_lists;

/*
 * A task with a dot or a slash in its name is a file, or a folder whose *.jsonl files, and those of whose folders that are called
 * validation.jsonl, are tasks. Errors name the flag and the item. Texts are loaded later. The caller frees, also after a failure.
 */
sl_status sl_cli_eval_lists_read(const sl_cli_eval_flags *f, sl_cli_eval_lists *out, sl_err *err);
/* Divides the files of --text into tokens; they are the sources then. */
sl_status sl_cli_eval_lists_load_texts(const sl_cli_eval_flags *f, const sl_tokenizer *tok,
                                       sl_cli_eval_lists *out, sl_err *err);
/* Once the lengths are known: a budget that holds even the largest one is refused, of the defaults it is left out. */
sl_status sl_cli_eval_lists_bound(const sl_cli_eval_flags *f, sl_cli_eval_lists *l, sl_err *err);
void sl_cli_eval_lists_free(sl_cli_eval_lists *l);

#endif
