/*
 * Documents of users: a file with one JSON object on each line (JSONL), or one array of such objects. What a line is follows
 * from its fields, so a file is read as it was published:
 *
 *   own            prompt, answers (or answer), scorer; may have choices, prefix, max_new_tokens
 *   LongBench      input, context, answers, dataset, all_classes, length, language, _id: scorer, tokens of the answer and whether
 *                  only its first line counts follow from dataset, as in LongBench's eval.py and config/
 *   LongBench v2   question, choice_A .. choice_D, answer, context, ...: scorer choice
 *   RULER          input, outputs, index, length, ...; answer_prefix begins the answer. The task is the name of the
 *                  file, or that of its folder for validation.jsonl and test.jsonl; of qa any of the outputs is enough, of the others
 *                  the share of outputs counts
 *
 * A line that cannot be used is an error that names file, line, field and reason; fields that are not read are counted, so that
 * a misspelt one is noticed. Nothing is guessed: a line without a scorer of its own needs opts.scorer.
 *
 * Ownership: a file owns its texts; sl_eval_file_free(). Threads: any; a file is only read after it was made.
 */
#ifndef SL_EVAL_FILE_H
#define SL_EVAL_FILE_H

#include "eval/item.h"

typedef struct sl_eval_file {
    char name[SL_EVAL_FILE_NAME]; /* of the task */
    char *path;
    sl_eval_form form; /* of the first line */
    sl_eval_item *items;
    int32_t n, cap;
    char *unread[SL_EVAL_UNREAD]; /* names of fields that were not read, some */
    int32_t n_unread;
} sl_eval_file;

/* Parses n bytes. path: for messages and the name. SL_ERR_INVALID, SL_ERR_TOO_LARGE, SL_ERR_NO_MEMORY. Nothing is left after
 * an error. */
sl_status sl_eval_file_parse(const char *text, size_t n, const char *path, const sl_eval_file_opts *o,
                             sl_eval_file *out, sl_err *err);
sl_status sl_eval_file_load(const char *path, const sl_eval_file_opts *o, sl_eval_file *out, sl_err *err);
/* f may be zeroed. */
void sl_eval_file_free(sl_eval_file *f);

/* Score of an answer, 0 to 1. */
double sl_eval_item_score(const sl_eval_item *item, const char *text);

#endif
