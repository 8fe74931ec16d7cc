/*
 * Scorers: how well an answer of a model agrees with the right answers of a question, from 0 to 1. Each is a published
 * definition, so that figures can be compared with those of others; the expected scores of the tests come from
 * published programs (tests/golden/eval/make_scores.py).
 *
 *   exact         1 if the text is one of the answers, without white space at its ends
 *   contains      1 if one of the answers occurs in the text, in small or capital letters
 *   contains_all  the share of the answers that occur in the text, in the same way
 *   f1            words in common, as SQuAD counts them: without capitals, punctuation and articles; the best of the answers
 *   rouge_l       F1 of the longest common subsequence of words, as the Python package rouge_score computes rougeL without
 *                 a stemmer; the best of the answers
 *   choice        1 if the letter that the text chooses is that of an answer, see sl_eval_chosen()
 *   rouge_words   F1 of the union of longest common subsequences of sentences, as the Python package rouge computes
 *                 rouge-l: what LongBench calls ROUGE-L
 *   classes       LongBench's classification score: 1 / n if the answer is among the n names of classes in the text
 *   numbers       the share of the numbers in the text that are the answer: LongBench's scores for counts and passages
 *   code          LongBench's similarity of the first line that is no comment, from an edit distance without substitution
 *
 * Chinese and Japanese characters and Hangul syllables are words of their own in f1, rouge_l and rouge_words; LongBench divides
 * Chinese texts into words with a dictionary instead, so its figures for these differ.
 *
 * Nothing is kept; texts are UTF-8, in which broken bytes are skipped. Threads: any.
 */
#ifndef SL_EVAL_SCORE_H
#define SL_EVAL_SCORE_H

#include "base/status.h"

typedef enum {
    SL_EVAL_EXACT,
    SL_EVAL_CONTAINS,
    SL_EVAL_CONTAINS_ALL,
    SL_EVAL_F1,
    SL_EVAL_ROUGE_L,
    SL_EVAL_CHOICE,
    SL_EVAL_ROUGE_WORDS,
    SL_EVAL_CLASSES,
    SL_EVAL_NUMBERS,
    SL_EVAL_CODE,
    SL_EVAL_SCORERS /* their number */
} sl_eval_scorer;

extern const char *const sl_eval_scorer_names[]; /* by number; ends with NULL */
/* In any spelling with capitals and hyphens. SL_ERR_NOT_FOUND, with all names. */
sl_status sl_eval_scorer_find(const char *name, sl_eval_scorer *out, sl_err *err);

/* What a scorer compares with. */
typedef struct sl_eval_right_answers {
    const char *const *answers; /* [n_answers], at least 1; of choice: the letter */
    const char *const
        *choices; /* [n_choices] of choice: the texts of A, B, ...; of classes: all names. May be none. */
    int32_t n_answers, n_choices;
} sl_eval_right_answers;

/* Out of memory counts as 0. */
double sl_eval_score(sl_eval_scorer how, const sl_eval_right_answers *right, const char *text);

/*
 * The letter that a text chooses, 'A' and so on, of n_choices (2 to 26); 0: none. In this order: the letter after "answer is" or
 * "answer:"; a letter at the beginning that ends there or has a mark after it; the only choice whose text occurs; the only
 * letter in parentheses. Asterisks are not read.
 */
char sl_eval_chosen(const char *text, const char *const *choices, int32_t n_choices);

/* Bounds of the Wilson score interval of 95 % for a mean of n values from 0 to 1; for values between these it is
 * wider than it needs to be. n = 0: 0 to 1. */
void sl_eval_wilson(double mean, int64_t n, double *low, double *high);

#endif
