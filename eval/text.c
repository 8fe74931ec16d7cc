/* See text.h. Small letters are those of the C library's C.UTF-8 locale, which needs no package of languages. */
#include "eval/text.h"

#include <locale.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <wctype.h>

static locale_t utf8;

static void open_locale(void)
{
    utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
}

/* Only ASCII, where the locale does not exist. */
static uint32_t small_letter(uint32_t c)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (c < 0x80)
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    pthread_once(&once, open_locale);
    return utf8 ? (uint32_t)towlower_l((wint_t)c, utf8) : c;
}

/* The next character of valid UTF-8, or 0 for a byte that is none; *at then points to the next one. */
static uint32_t next_char(const unsigned char **at)
{
    const unsigned char *p = *at;
    const int more = p[0] < 0x80 ? 0 : p[0] >= 0xf0 ? 3 : p[0] >= 0xe0 ? 2 : p[0] >= 0xc2 ? 1 : -1;
    uint32_t c = more <= 0 ? p[0] : p[0] & (0x3fu >> more);
    *at = p + 1;
    if (more < 0 || p[0] > 0xf4)
        return 0;
    for (int i = 1; i <= more; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    *at = p + 1 + more;
    return c;
}

sl_eval_chars sl_eval_chars_of(const char *text, bool small)
{
    sl_eval_chars out = {.v = malloc((strlen(text) + 1) * sizeof(uint32_t))};
    for (const unsigned char *at = (const unsigned char *)text; out.v && *at;) {
        const uint32_t c = next_char(&at);
        if (c)
            out.v[out.n++] = small ? small_letter(c) : c;
    }
    return out;
}

/* What Python calls white space. */
bool sl_eval_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

bool sl_eval_is_own_word(uint32_t c)
{
    return (c >= 0x3040 && c <= 0x30ff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x4e00 && c <= 0x9fff) ||
           (c >= 0xac00 && c <= 0xd7a3) || (c >= 0xf900 && c <= 0xfaff) || (c >= 0x20000 && c <= 0x3ffff);
}

static bool is_punctuation(uint32_t c)
{
    return c > ' ' && c < 0x7f && !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') &&
           !(c >= 'A' && c <= 'Z');
}

/* What belongs to a word of Python's patterns, except the underscore. */
static bool is_letter(uint32_t c)
{
    if (c < 0x80)
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    return utf8 ? iswalnum_l((wint_t)c, utf8) : true;
}

static void add_word(sl_eval_terms *w, int32_t first, int32_t n)
{
    if (w->n == w->cap) {
        const int32_t cap = w->cap ? 2 * w->cap : 64;
        void *v = realloc(w->v, (size_t)cap * sizeof *w->v);
        if (!v)
            return;
        w->v = v, w->cap = cap;
    }
    w->v[w->n].first = first;
    w->v[w->n++].n = n;
}

/* Words between white space; a character that is a word of its own ends the one before it. */
static void divide(sl_eval_terms *w)
{
    int32_t first = -1;
    for (int32_t i = 0; i <= w->chars.n; i++) {
        const uint32_t c = i < w->chars.n ? w->chars.v[i] : ' ';
        const bool own = sl_eval_is_own_word(c), in = !own && !sl_eval_is_space(c);
        if (first >= 0 && !in)
            add_word(w, first, i - first), first = -1;
        if (own)
            add_word(w, i, 1);
        else if (in && first < 0)
            first = i;
    }
}

/* Whether the characters are one of the articles. */
static bool is_article(const uint32_t *c, int32_t n)
{
    return (n == 1 && c[0] == 'a') || (n == 2 && c[0] == 'a' && c[1] == 'n') ||
           (n == 3 && c[0] == 't' && c[1] == 'h' && c[2] == 'e');
}

/* Articles that stand between characters that belong to no word become blanks. */
static void blank_articles(sl_eval_chars *c)
{
    for (int32_t i = 0; i < c->n;) {
        int32_t n = 0;
        while (i + n < c->n && is_letter(c->v[i + n]))
            n++;
        if (n && is_article(c->v + i, n))
            for (int32_t j = 0; j < n; j++)
                c->v[i + j] = ' ';
        i += n ? n : 1;
    }
}

sl_eval_terms sl_eval_terms_squad(const char *text)
{
    sl_eval_terms w = {.chars = sl_eval_chars_of(text, true)};
    int32_t n = 0;
    for (int32_t i = 0; i < w.chars.n; i++)
        if (!is_punctuation(w.chars.v[i]))
            w.chars.v[n++] = w.chars.v[i];
    w.chars.n = n;
    blank_articles(&w.chars);
    divide(&w);
    return w;
}

sl_eval_terms sl_eval_terms_rouge(const char *text)
{
    sl_eval_terms w = {.chars = sl_eval_chars_of(text, true)};
    for (int32_t i = 0; i < w.chars.n; i++) {
        const uint32_t c = w.chars.v[i];
        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && !sl_eval_is_own_word(c))
            w.chars.v[i] = ' ';
    }
    divide(&w);
    return w;
}

sl_eval_terms sl_eval_terms_plain(const char *text, size_t n)
{
    char *copy = strndup(text, n);
    sl_eval_terms w = {0};
    if (!copy)
        return w;
    w.chars = sl_eval_chars_of(copy, false);
    free(copy);
    divide(&w);
    if (!w.n)
        add_word(&w, 0, 0);
    return w;
}

bool sl_eval_word_equal(const sl_eval_terms *a, int32_t i, const sl_eval_terms *b, int32_t j)
{
    return a->v[i].n == b->v[j].n && memcmp(a->chars.v + a->v[i].first, b->chars.v + b->v[j].first,
                                            (size_t)a->v[i].n * sizeof(uint32_t)) == 0;
}

void sl_eval_terms_free(sl_eval_terms *w)
{
    free(w->chars.v);
    free(w->v);
    *w = (sl_eval_terms){0};
}

int32_t sl_eval_lcs(const sl_eval_terms *a, const sl_eval_terms *b)
{
    int32_t *row = calloc((size_t)b->n + 1, sizeof *row), best = 0;
    for (int32_t i = 0; row && i < a->n; i++)
        for (int32_t j = 1, before = 0; j <= b->n; j++) {
            const int32_t above = row[j];
            if (sl_eval_word_equal(a, i, b, j - 1))
                row[j] = before + 1;
            else if (row[j - 1] > above)
                row[j] = row[j - 1];
            before = above;
        }
    best = row ? row[b->n] : 0;
    free(row);
    return best;
}
