/*
 * What somebody probably meant who wrote a wrong word: the most similar of the words that exist. Commands, flags and keys
 * of the configuration use it for "did you mean ...?". Pure, any thread.
 */
#ifndef SL_BASE_NEAR_H
#define SL_BASE_NEAR_H

#include <stddef.h>

/* The search for the word that is most similar to `word`, which must live as long as the search. */
typedef struct sl_near {
    const char *word;
    const char *best; /* NULL: none of the words tried is similar */
    size_t cost;      /* edits of the best one, or one more than are allowed */
} sl_near;

/* At most half of the letters of a word may be wrong. */
sl_near sl_near_begin(const char *word);
/* Tries a word that exists; it becomes the best one if it is more similar than those before. */
void sl_near_try(sl_near *s, const char *known);
/* The same when the number of edits is known. */
void sl_near_rate(sl_near *s, const char *known, size_t cost);

#endif
