/*
 * What a task (eval/tasks.c) makes a document with: random numbers, words, statements at places in the text, the
 * question and the answer. Statements are taken while there is room. Memory that runs out is noticed at the end. Private to
 * eval/. One thread.
 */
#ifndef SL_EVAL_MAKER_H
#define SL_EVAL_MAKER_H

#include "base/strbuf.h"
#include "eval/document.h"
#include "eval/words.h"

enum { SL_EVAL_SENTENCE = 192 }; /* bytes of the longest statement, with its NUL */

typedef struct sl_eval_statement {
    double place; /* in the text, 0 to 1 */
    char text[SL_EVAL_SENTENCE];
} sl_eval_statement;

struct sl_eval_maker {
    const sl_eval_spec *spec;
    uint64_t random; /* state */
    int32_t room;    /* tokens left for statements */
    sl_eval_statement *v;
    int32_t n, cap;
    char question[2 * SL_EVAL_SENTENCE];
    bool early; /* the question comes before the text */
    sl_strbuf answer;
    sl_eval_document *out; /* its values */
    bool bad;              /* out of memory */
};

/* A number below n (at least 1), and a place in the text. */
int32_t sl_eval_below(sl_eval_maker *m, int32_t n);
double sl_eval_place(sl_eval_maker *m);
const char *sl_eval_pick(sl_eval_maker *m, sl_eval_word list);
/* n distinct numbers below `of`, at least n, in random order, malloc'ed; NULL, and m->bad: out of memory. */
int32_t *sl_eval_distinct(sl_eval_maker *m, int32_t n, int32_t of);
/* Tokens of a text. */
int32_t sl_eval_cost(const sl_eval_maker *m, const char *text);
/* Puts a statement, which begins with a blank, at a random place, and takes its tokens from the room. */
void sl_eval_tell(sl_eval_maker *m, const char *text);
/* Adds a value to the answer's values. */
void sl_eval_value(sl_eval_maker *m, const char *value);

#endif
