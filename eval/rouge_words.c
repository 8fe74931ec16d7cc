/* See rouge_words.h. Of several longest common subsequences the one is taken that the package finds. */
#include "eval/rouge_words.h"

#include <stdlib.h>
#include <string.h>

#include "eval/text.h"

enum { SENTENCES = 4096 };

typedef struct summary {
    sl_eval_terms *v; /* [n] sentences */
    int32_t n;
} summary;

static summary divide(const char *text)
{
    summary s = {.v = calloc(SENTENCES, sizeof *s.v)};
    while (s.v && *text && s.n < SENTENCES) {
        const size_t n = strcspn(text, ".");
        if (n)
            s.v[s.n++] = sl_eval_terms_plain(text, n);
        text += n + (text[n] != 0);
    }
    return s;
}

static void free_summary(summary *s)
{
    for (int32_t i = 0; i < s->n; i++)
        sl_eval_terms_free(&s->v[i]);
    free(s->v);
}

/* Different words, by reference. */
typedef struct word_set {
    struct {
        const sl_eval_terms *of;
        int32_t i;
    } * v;
    int32_t n, cap;
} word_set;

static void add(word_set *s, const sl_eval_terms *of, int32_t i)
{
    for (int32_t j = 0; j < s->n; j++)
        if (sl_eval_word_equal(s->v[j].of, s->v[j].i, of, i))
            return;
    if (s->n == s->cap) {
        const int32_t cap = s->cap ? 2 * s->cap : 64;
        void *v = realloc(s->v, (size_t)cap * sizeof *s->v);
        if (!v)
            return;
        s->v = v, s->cap = cap;
    }
    s->v[s->n].of = of;
    s->v[s->n++].i = i;
}

static int32_t different_words(const summary *s)
{
    word_set set = {0};
    for (int32_t i = 0; i < s->n; i++)
        for (int32_t w = 0; w < s->v[i].n; w++)
            add(&set, &s->v[i], w);
    free(set.v);
    return set.n;
}

/* Adds the words of one longest common subsequence. */
static void add_common(word_set *set, const sl_eval_terms *x, const sl_eval_terms *y)
{
    const size_t ld = (size_t)y->n + 1;
    int32_t *t = calloc(((size_t)x->n + 1) * ld, sizeof *t);
    if (!t)
        return;
    for (int32_t i = 1; i <= x->n; i++)
        for (int32_t j = 1; j <= y->n; j++) {
            const int32_t up = t[(size_t)(i - 1) * ld + (size_t)j], left = t[(size_t)i * ld + (size_t)j - 1];
            t[(size_t)i * ld + (size_t)j] = sl_eval_word_equal(x, i - 1, y, j - 1)
                                                ? t[(size_t)(i - 1) * ld + (size_t)j - 1] + 1
                                                : (up > left ? up : left);
        }
    for (int32_t i = x->n, j = y->n; i && j;) {
        if (sl_eval_word_equal(x, i - 1, y, j - 1)) {
            add(set, x, i - 1);
            i--, j--;
        } else if (t[(size_t)(i - 1) * ld + (size_t)j] > t[(size_t)i * ld + (size_t)j - 1]) {
            i--;
        } else {
            j--;
        }
    }
    free(t);
}

double sl_eval_rouge_words(const char *text, const char *want)
{
    summary a = divide(text), b = divide(want);
    word_set common = {0};
    double f = 0;
    for (int32_t r = 0; r < b.n; r++)
        for (int32_t e = 0; e < a.n; e++)
            add_common(&common, &b.v[r], &a.v[e]);
    if (a.n && b.n) {
        const double p = (double)common.n / different_words(&a), q = (double)common.n / different_words(&b);
        f = 2 * (p * q / (p + q + 1e-8));
    }
    free(common.v);
    free_summary(&a);
    free_summary(&b);
    return f;
}
