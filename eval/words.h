/*
 * The words of the generated documents: every list of models/train/words.json, on which the small trained checkpoints
 * learnt. Constant data.
 */
#ifndef SL_EVAL_WORDS_H
#define SL_EVAL_WORDS_H

#include "base/status.h"

typedef enum {
    SL_EVAL_FIRST,
    SL_EVAL_LAST,
    SL_EVAL_CITY,
    SL_EVAL_COLOUR,
    SL_EVAL_JOB,
    SL_EVAL_ANIMAL,
    SL_EVAL_QUALITY,
    SL_EVAL_THING,
    SL_EVAL_VARIABLE,
    SL_EVAL_MOOD,
    SL_EVAL_VERB,
    SL_EVAL_PLACE,
    SL_EVAL_TIME,
    SL_EVAL_WORD_LISTS /* their number */
} sl_eval_word;

typedef struct sl_eval_words {
    const char *name; /* in words.json */
    const char *const *v;
    int32_t n;
} sl_eval_words;

extern const sl_eval_words sl_eval_word_lists[SL_EVAL_WORD_LISTS];

#endif
