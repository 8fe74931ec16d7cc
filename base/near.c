/* See near.h: the number of edits (insert, delete, replace, exchange of neighbours) between two words. */
#include "base/near.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum { WORD_MAX = 128 }; /* longer words are similar to none */

static size_t min2(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Capitals are no mistake that makes another word. */
static bool differ(char a, char b)
{
    return tolower((unsigned char)a) != tolower((unsigned char)b);
}

/* Both words are shorter than WORD_MAX. rows: of the matrix of edits, for the last three letters of a. */
static size_t edits(const char *a, const char *b)
{
    size_t rows[3][WORD_MAX + 1], nb = strlen(b), i;
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (i = 1; a[i - 1]; i++) {
        size_t *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            now[j] = min2(min2(last[j] + 1, now[j - 1] + 1), last[j - 1] + differ(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && !differ(a[i - 1], b[j - 2]) && !differ(a[i - 2], b[j - 1]))
                now[j] = min2(now[j], before[j - 2] + 1);
        }
    }
    return rows[(i - 1) % 3][nb];
}

sl_near sl_near_begin(const char *word)
{
    return (sl_near){.word = word, .cost = strlen(word) / 2 + 1};
}

void sl_near_rate(sl_near *s, const char *known, size_t cost)
{
    if (cost < s->cost) {
        s->cost = cost;
        s->best = known;
    }
}

void sl_near_try(sl_near *s, const char *known)
{
    size_t na = strlen(s->word), nb = strlen(known);
    if (na >= WORD_MAX || nb >= WORD_MAX || (na > nb ? na - nb : nb - na) >= s->cost)
        return;
    sl_near_rate(s, known, edits(s->word, known));
}
