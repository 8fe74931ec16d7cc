/*
 * A question of a task file (eval/file.h) with its right answers. The file owns the texts. Plain values; any thread.
 */
#ifndef SL_EVAL_ITEM_H
#define SL_EVAL_ITEM_H

#include "eval/score.h"

enum { SL_EVAL_FILE_NAME = 64, SL_EVAL_UNREAD = 8, SL_EVAL_ITEM_NEW = 65536, SL_EVAL_CHOICES = 26 };

typedef enum { SL_EVAL_OWN, SL_EVAL_LONGBENCH, SL_EVAL_LONGBENCH2, SL_EVAL_RULER } sl_eval_form;

typedef struct sl_eval_item {
    char *prompt, *prefix; /* prefix: begins the answer; NULL: nothing does */
    char **answers, **choices;
    int32_t n_answers, n_choices;
    int32_t max_new; /* tokens of the answer; 0: not said */
    int32_t line;    /* of the file, from 1; of an array, the number of the object */
    sl_eval_scorer scorer;
    bool no_chat;    /* the published evaluation puts this prompt to models without a chat template */
    bool first_line; /* only the first line of the answer counts */
} sl_eval_item;

typedef struct sl_eval_file_opts {
    const char *scorer; /* of own lines that name none; NULL: each names its own */
    /* LongBench's dataset2prompt.json; NULL: context, an empty line and input are the prompt */
    const char *prompts;
} sl_eval_file_opts;

#endif
