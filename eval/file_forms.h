/*
 * The forms of a line of a task file (eval/file.h): one function for each makes an item of a JSON object. Private to eval/. A reader
 * owns the item until it is done; what it has is freed by the caller, also after an error. One thread.
 */
#ifndef SL_EVAL_FILE_FORMS_H
#define SL_EVAL_FILE_FORMS_H

#include <jansson.h>

#include "eval/item.h"

typedef struct sl_eval_line {
    const sl_eval_file_opts *o;
    const json_t *object, *prompts; /* prompts: of LongBench, or NULL */
    const char *task;               /* the name of the file's task */
    sl_eval_item *item;
} sl_eval_line;

typedef struct sl_eval_form_reader {
    const char *name;
    const char *const *marks;  /* fields that make a line this form; ends with NULL */
    const char *const *fields; /* that it has, whether they are used or not; ends with NULL */
    sl_status (*read)(sl_eval_line *l, sl_err *err);
} sl_eval_form_reader;

extern const sl_eval_form_reader sl_eval_forms[]; /* by sl_eval_form */
enum { SL_EVAL_FORMS = SL_EVAL_RULER + 1 };

#endif
