/*
 * ROUGE-L of summaries by the Python package rouge: sentences end with a full stop, words are what is between blanks. For each
 * pair of sentences the words of one longest common subsequence are found; the different words of all of them are compared with
 * the different words of both texts. Private to eval/; nothing is kept. Threads: any.
 */
#ifndef SL_EVAL_ROUGE_WORDS_H
#define SL_EVAL_ROUGE_WORDS_H

/* 0 to 1; 0 when a text is empty or memory is out. */
double sl_eval_rouge_words(const char *text, const char *want);

#endif
