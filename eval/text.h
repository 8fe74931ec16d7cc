/*
 * Text as scorers compare it: code points in small letters, and words of them. Private to eval/.
 *
 * sl_eval_terms_free() frees what a list has. Out of memory gives a list without words. Threads: any.
 */
#ifndef SL_EVAL_TEXT_H
#define SL_EVAL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sl_eval_chars {
    uint32_t *v; /* malloc'ed */
    int32_t n;
} sl_eval_chars;

typedef struct sl_eval_terms {
    sl_eval_chars chars;
    struct {
        int32_t first, n; /* of chars; n 0: the empty word */
    } * v;
    int32_t n, cap;
} sl_eval_terms;

/* Broken bytes are skipped. small: in small letters, as far as a character has one. */
sl_eval_chars sl_eval_chars_of(const char *text, bool small);
bool sl_eval_is_space(uint32_t c);
/* Characters of scripts that have no blanks between words: Chinese, kana, Hangul. */
bool sl_eval_is_own_word(uint32_t c);

/* As SQuAD's evaluation: small letters, without ASCII punctuation and the words a, an, the; divided at white space. */
sl_eval_terms sl_eval_terms_squad(const char *text);
/* As rouge_score: small letters, runs of a-z and 0-9. */
sl_eval_terms sl_eval_terms_rouge(const char *text);
/* The words of one sentence between blanks, as they are; a sentence without words has the empty one. n: its bytes. */
sl_eval_terms sl_eval_terms_plain(const char *text, size_t n);
bool sl_eval_word_equal(const sl_eval_terms *a, int32_t i, const sl_eval_terms *b, int32_t j);
void sl_eval_terms_free(sl_eval_terms *w);

/* Length of the longest common subsequence of words. */
int32_t sl_eval_lcs(const sl_eval_terms *a, const sl_eval_terms *b);

#endif
