/*
 * Generated documents: a text of many short statements, one question about them, and the right answer. A document is a
 * function of its task, style, length and seed (and of how tokens are counted), on every machine.
 *
 *   facts   word by word what models/train/language.py generates, on which the small trained checkpoints learnt; the
 *           right answer is one exact text
 *   plain   the same statements with an instruction in plain English, for every other model; an answer is right if it
 *           has all values of the right one
 *
 * Tasks are a registry (sl_eval_tasks): a new one is a function in tasks.c and a row there.
 *
 * Ownership: the caller frees a document by sl_eval_document_free(). Threads: any.
 */
#ifndef SL_EVAL_DOCUMENT_H
#define SL_EVAL_DOCUMENT_H

#include "base/status.h"

typedef enum { SL_EVAL_FACTS, SL_EVAL_PLAIN } sl_eval_style;
extern const char *const sl_eval_style_names[]; /* facts, plain; ends with NULL */

enum { SL_EVAL_VALUES = 4, SL_EVAL_VALUE_BYTES = 16 };

typedef struct sl_eval_document {
    char *user;   /* the user's message: text and question */
    char *answer; /* as the checkpoints of facts answer */
    char values[SL_EVAL_VALUES]
               [SL_EVAL_VALUE_BYTES]; /* what the answer is about: codes, names of cities, ... */
    int32_t n_values;
} sl_eval_document;

/* Tokens of a piece of text that begins with a blank or with a document. */
typedef struct sl_eval_counter {
    int32_t (*count)(void *ctx, const char *text, size_t len);
    void *ctx;
} sl_eval_counter;
/* Counts words, marks and pairs of digits, which are the tokens of the small trained checkpoints, and about those of
 * other models. ctx is not used. */
int32_t sl_eval_count_pieces(void *ctx, const char *text, size_t len);

typedef struct sl_eval_maker sl_eval_maker; /* eval/maker.h */

typedef struct sl_eval_task {
    const char *name, *help;
    void (*make)(sl_eval_maker *m);
} sl_eval_task;

extern const sl_eval_task sl_eval_tasks[];               /* ends with an empty row */
const sl_eval_task *sl_eval_task_find(const char *name); /* NULL: there is none */
const char *const *sl_eval_task_names(void);             /* ends with NULL */

typedef struct sl_eval_spec {
    const sl_eval_task *task;
    sl_eval_style style;
    int32_t length; /* the user's message has at most this number of tokens, and nearly as many */
    uint64_t seed;
    int32_t index; /* of the document, for this seed, task and length */
    sl_eval_counter counter;
} sl_eval_spec;

/* SL_ERR_INVALID: the length has no room for the task, with the length that has; SL_ERR_NO_MEMORY. */
sl_status sl_eval_document_make(const sl_eval_spec *spec, sl_eval_document *out, sl_err *err);
void sl_eval_document_free(sl_eval_document *d);

/* Whether an answer is right: facts, the exact text without white space at its ends; plain, every value occurs as a word
 * of its own, in small or capital letters. */
bool sl_eval_right(const sl_eval_document *d, sl_eval_style style, const char *text);

#endif
