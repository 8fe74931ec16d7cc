/* See score.h: one function for each scorer; the best of several answers is taken at the end. */
#include "eval/score.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/rouge_words.h"
#include "eval/text.h"

const char *const sl_eval_scorer_names[] = {"exact",  "contains",    "contains_all", "f1",      "rouge_l",
                                            "choice", "rouge_words", "classes",      "numbers", "code",
                                            NULL};
_Static_assert(SL_COUNT(sl_eval_scorer_names) == SL_EVAL_SCORERS + 1, "one name for each scorer");

/* Whether names are the same but for capitals, hyphens and underscores: "ROUGE-L" and "rougeL" are rouge_l. */
static bool same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, "-_ ");
        b += strspn(b, "-_ ");
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
            return false;
        if (!*a)
            return true;
    }
}

sl_status sl_eval_scorer_find(const char *name, sl_eval_scorer *out, sl_err *err)
{
    for (int i = 0; i < SL_EVAL_SCORERS; i++)
        if (same_name(sl_eval_scorer_names[i], name)) {
            *out = (sl_eval_scorer)i;
            return SL_OK;
        }
    return sl_fail_unknown(err, "scorer", name, sl_eval_scorer_names);
}

/* ---- whole texts and parts of them ---- */

static void trim(sl_eval_chars *c, int32_t *first)
{
    *first = 0;
    while (c->n && sl_eval_is_space(c->v[c->n - 1]))
        c->n--;
    while (*first < c->n && sl_eval_is_space(c->v[*first]))
        ++*first;
}

static double exact(const char *text, const char *want)
{
    sl_eval_chars t = sl_eval_chars_of(text, false), w = sl_eval_chars_of(want, false);
    int32_t i, j;
    trim(&t, &i);
    trim(&w, &j);
    const bool same =
        t.v && w.v && t.n - i == w.n - j && memcmp(t.v + i, w.v + j, (size_t)(t.n - i) * sizeof *t.v) == 0;
    free(t.v);
    free(w.v);
    return same;
}

static bool occurs(const sl_eval_chars *in, const sl_eval_chars *what)
{
    for (int32_t i = 0; i + what->n <= in->n; i++)
        if (memcmp(in->v + i, what->v, (size_t)what->n * sizeof *what->v) == 0)
            return true;
    return false;
}

static double contains(const char *text, const char *want)
{
    sl_eval_chars t = sl_eval_chars_of(text, true), w = sl_eval_chars_of(want, true);
    const bool found = t.v && w.v && occurs(&t, &w);
    free(t.v);
    free(w.v);
    return found;
}

static double contains_all(const sl_eval_right_answers *right, const char *text)
{
    double found = 0;
    for (int32_t i = 0; i < right->n_answers; i++)
        found += contains(text, right->answers[i]);
    return found / right->n_answers;
}

/* ---- words ---- */

static double f_measure(double common, double n, double m)
{
    return common > 0 ? 2 * (common / n) * (common / m) / (common / n + common / m) : 0;
}

/* Words in common, each as often as in both. */
static int32_t in_common(const sl_eval_terms *a, const sl_eval_terms *b)
{
    bool *used = calloc((size_t)b->n + 1, sizeof *used);
    int32_t n = 0;
    for (int32_t i = 0; used && i < a->n; i++)
        for (int32_t j = 0; j < b->n; j++)
            if (!used[j] && sl_eval_word_equal(a, i, b, j)) {
                used[j] = true;
                n++;
                break;
            }
    free(used);
    return n;
}

static double f1(const char *text, const char *want)
{
    sl_eval_terms a = sl_eval_terms_squad(text), b = sl_eval_terms_squad(want);
    const double f = f_measure(in_common(&a, &b), a.n, b.n);
    sl_eval_terms_free(&a);
    sl_eval_terms_free(&b);
    return f;
}

static double rouge_l(const char *text, const char *want)
{
    sl_eval_terms a = sl_eval_terms_rouge(text), b = sl_eval_terms_rouge(want);
    const double f = f_measure(sl_eval_lcs(&a, &b), a.n, b.n);
    sl_eval_terms_free(&a);
    sl_eval_terms_free(&b);
    return f;
}

/* ---- LongBench's other scores ---- */

static double classes(const sl_eval_right_answers *right, const char *text, const char *want)
{
    bool *in = calloc((size_t)right->n_choices + 1, sizeof *in), has = false;
    int32_t n = 0;
    for (int32_t i = 0; in && i < right->n_choices; i++) {
        const char *name = right->choices[i];
        in[i] = strstr(text, name) != NULL;
        n += in[i];
        has |= in[i] && strcmp(name, want) == 0;
    }
    /* A name within the right one is found with it. The original's loop passes over the name after one that it removes. */
    for (int32_t i = 0, skip = 0; in && i < right->n_choices; i++) {
        if (!in[i])
            continue;
        const bool part = !skip && strstr(want, right->choices[i]) && strcmp(right->choices[i], want) != 0;
        n -= part;
        skip = part;
    }
    free(in);
    return has ? 1.0 / n : 0;
}

static double numbers(const char *text, const char *want)
{
    int32_t n = 0, same = 0;
    while (*(text += strcspn(text, "0123456789"))) {
        const size_t len = strspn(text, "0123456789");
        same += len == strlen(want) && strncmp(text, want, len) == 0;
        n++;
        text += len;
    }
    return n ? (double)same / n : 0;
}

/* The first line that is no comment, malloc'ed. */
static char *first_code(const char *text)
{
    text += strspn(text, "\n");
    for (;;) {
        const size_t n = strcspn(text, "\n");
        char *line = strndup(text, n);
        if (!line || !(strchr(line, '`') || strchr(line, '#') || strstr(line, "//")))
            return line;
        free(line);
        if (!text[n])
            return strdup("");
        text += n + 1;
    }
}

/* Characters as words, so that their common subsequence is known. */
static sl_eval_terms characters(const char *text)
{
    sl_eval_terms w = {.chars = sl_eval_chars_of(text, false)};
    w.v = malloc(((size_t)w.chars.n + 1) * sizeof *w.v);
    for (; w.v && w.n < w.chars.n; w.n++)
        w.v[w.n].first = w.n, w.v[w.n].n = 1;
    return w;
}

/* In whole percent, as the original has it. */
static double code(const char *text, const char *want)
{
    char *line = first_code(text);
    if (!line)
        return 0;
    sl_eval_terms a = characters(line), b = characters(want);
    const double all = a.n + b.n, ratio = all > 0 ? 2 * sl_eval_lcs(&a, &b) / all : 1;
    sl_eval_terms_free(&a);
    sl_eval_terms_free(&b);
    free(line);
    return nearbyint(100 * ratio) / 100;
}

/* ---- choices ---- */

/* A letter of a choice at `at`, in parentheses or not, that no letter or digit follows; 0: none. */
static char letter_at(const char *at, int32_t n)
{
    const bool open = *at == '(';
    at += open;
    const char c = (char)toupper((unsigned char)*at);
    if (c < 'A' || c >= 'A' + n || isalnum((unsigned char)at[1]) || (unsigned char)at[1] >= 0x80)
        return 0;
    return open && at[1] != ')' ? 0 : c;
}

/* After "answer is" or "answer:", at the first place where a letter follows. */
static char letter_told(const char *text, int32_t n)
{
    for (const char *at = text; (at = strcasestr(at, "answer")); at++) {
        const char *p = at + strlen("answer");
        p += strspn(p, " ");
        p += *p == ':' ? 1 : strncasecmp(p, "is", 2) == 0 ? 2 : 0;
        if (p[-1] == ' ' || p == at + strlen("answer"))
            continue; /* neither */
        p += strspn(p, " :\n");
        /* "the answer is a house" names no letter */
        const char c = letter_at(p, n);
        if (c && (isupper((unsigned char)p[*p == '(']) || *p == '('))
            return c;
    }
    return 0;
}

static char letter_first(const char *text, int32_t n)
{
    text += strspn(text, " \t\r\n");
    const char c = letter_at(text, n), *after = text + (*text == '(' ? 3 : 1);
    return c && (*text == '(' || !*after || strchr(").:,;\r\n", *after)) ? c : 0;
}

/* The only choice whose text occurs as whole words; a choice within another one that occurs is not counted. */
static char choice_named(const char *text, const char *const *choices, int32_t n)
{
    char only = 0;
    const char *longest = "";
    for (int32_t i = 0; choices && i < n; i++) {
        if (!*choices[i] || contains(text, choices[i]) == 0)
            continue;
        if (only && contains(longest, choices[i]) > 0)
            continue;
        if (only && contains(choices[i], longest) == 0)
            return 0;
        only = (char)('A' + i), longest = choices[i];
    }
    return only;
}

static char letter_alone(const char *text, int32_t n)
{
    char only = 0;
    for (const char *at = text; (at = strchr(at, '(')); at++) {
        const char c = letter_at(at, n);
        if (c && only && c != only)
            return 0;
        only = c ? c : only;
    }
    return only;
}

char sl_eval_chosen(const char *text, const char *const *choices, int32_t n_choices)
{
    char *plain = strdup(text), *to = plain, c;
    for (const char *at = text; plain && *at; at++)
        if (*at != '*')
            *to++ = *at;
    if (!plain)
        return 0;
    *to = 0;
    if (!(c = letter_told(plain, n_choices)) && !(c = letter_first(plain, n_choices)) &&
        !(c = choice_named(plain, choices, n_choices)))
        c = letter_alone(plain, n_choices);
    free(plain);
    return c;
}

static double choice(const sl_eval_right_answers *right, const char *text)
{
    enum { LETTERS = 26 };
    const char c = sl_eval_chosen(text, right->choices, right->n_choices ? right->n_choices : LETTERS);
    for (int32_t i = 0; c && i < right->n_answers; i++)
        if (right->answers[i][0] == c)
            return 1;
    return 0;
}

/* ---- all ---- */

static double score_one(sl_eval_scorer how, const sl_eval_right_answers *right, const char *text,
                        const char *want)
{
    switch (how) {
    case SL_EVAL_EXACT:
        return exact(text, want);
    case SL_EVAL_CONTAINS:
        return contains(text, want);
    case SL_EVAL_F1:
        return f1(text, want);
    case SL_EVAL_ROUGE_L:
        return rouge_l(text, want);
    case SL_EVAL_ROUGE_WORDS:
        return sl_eval_rouge_words(text, want);
    case SL_EVAL_CLASSES:
        return classes(right, text, want);
    case SL_EVAL_NUMBERS:
        return numbers(text, want);
    case SL_EVAL_CODE:
        return code(text, want);
    default:
        return 0;
    }
}

double sl_eval_score(sl_eval_scorer how, const sl_eval_right_answers *right, const char *text)
{
    double best = 0;
    if (how == SL_EVAL_CONTAINS_ALL)
        return contains_all(right, text);
    if (how == SL_EVAL_CHOICE)
        return choice(right, text);
    for (int32_t i = 0; i < right->n_answers; i++)
        best = fmax(best, score_one(how, right, text, right->answers[i]));
    return best;
}

void sl_eval_wilson(double mean, int64_t n, double *low, double *high)
{
    const double z = 1.959963984540054, zz = z * z / (double)(n > 0 ? n : 1);
    if (n <= 0) {
        *low = 0, *high = 1;
        return;
    }
    const double centre = (mean + zz / 2) / (1 + zz);
    const double half = z * sqrt(mean * (1 - mean) / (double)n + zz / (4 * (double)n)) / (1 + zz);
    *low = fmax(0, centre - half), *high = fmin(1, centre + half);
}
