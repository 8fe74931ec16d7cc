/*
 * Stop strings: text that is not yet emitted is kept in one buffer. Each call of feed searches what is new and emits
 * everything before the first byte at which a match could still begin.
 *
 * The search is that of Knuth, Morris and Pratt, whose state stays between calls: it looks at each byte once for each
 * string, whatever the strings are and wherever the text is cut.
 */
#include <stdlib.h>
#include <string.h>

#include "model/stop.h"

struct sl_stop {
    size_t n;
    char *text[SL_STOP_MAX];
    size_t len[SL_STOP_MAX];
    uint16_t *table[SL_STOP_MAX];  /* where a search continues after a byte that does not fit */
    uint16_t matched[SL_STOP_MAX]; /* bytes at the end of the text so far that text[i] begins with */
    bool include, done;
    char *buf; /* [0, emitted) was returned by the last call, [emitted, used) is held back */
    size_t emitted, used, cap;
};

/* table[k]: the longest proper beginning of text that ends text[0..k]. */
static void make_table(const char *text, size_t len, uint16_t *table)
{
    size_t k = 0;
    table[0] = 0;
    for (size_t i = 1; i < len; i++) {
        while (k && text[i] != text[k])
            k = table[k - 1];
        k += text[i] == text[k];
        table[i] = (uint16_t)k;
    }
}

sl_status sl_stop_create(const char *const *strings, size_t n, bool include, sl_stop **out, sl_err *err)
{
    if (n > SL_STOP_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "stop: %zu strings, at most %d", n, SL_STOP_MAX);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(strings[i]);
        if (len == 0 || len > SL_STOP_LEN_MAX)
            return sl_fail(err, SL_ERR_INVALID, "stop[%zu]: %zu bytes, must have 1 to %d", i, len,
                           SL_STOP_LEN_MAX);
    }
    sl_stop *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    s->include = include;
    for (; s->n < n; s->n++) {
        size_t len = strlen(strings[s->n]);
        s->text[s->n] = strdup(strings[s->n]);
        s->table[s->n] = malloc(len * sizeof *s->table[0]);
        if (!s->text[s->n] || !s->table[s->n]) {
            s->n++;
            sl_stop_destroy(s);
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        }
        s->len[s->n] = len;
        make_table(strings[s->n], len, s->table[s->n]);
    }
    *out = s;
    return SL_OK;
}

void sl_stop_destroy(sl_stop *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        free(s->text[i]);
        free(s->table[i]);
    }
    free(s->buf);
    free(s);
}

/* Removes the text that was returned and appends the new text to the text that is still held. */
static bool append(sl_stop *s, const char *text, size_t len)
{
    size_t held = s->used - s->emitted;
    if (held + len > s->cap) {
        size_t cap = (held + len) * 2 + 64;
        char *p = malloc(cap);
        if (!p)
            return false;
        if (held)
            memcpy(p, s->buf + s->emitted, held);
        free(s->buf);
        s->buf = p;
        s->cap = cap;
    } else if (held) {
        memmove(s->buf, s->buf + s->emitted, held);
    }
    if (len)
        memcpy(s->buf + held, text, len);
    s->emitted = 0;
    s->used = held + len;
    return true;
}

/* Takes one byte for stop string i; true when that is its last. */
static bool step(sl_stop *s, size_t i, char c)
{
    size_t k = s->matched[i];
    while (k && c != s->text[i][k])
        k = s->table[i][k - 1];
    k += c == s->text[i][k];
    s->matched[i] = (uint16_t)k;
    return k == s->len[i];
}

/* The stop string whose match ends first in buf[from..), and of several that end there the one that starts first; -1:
 * none. *start and *end are its place. */
static int first_match(sl_stop *s, size_t from, size_t *start, size_t *end)
{
    for (size_t at = from; at < s->used; at++) {
        int best = -1;
        for (size_t i = 0; i < s->n; i++) {
            if (step(s, i, s->buf[at]) && (best < 0 || s->len[i] > s->len[best]))
                best = (int)i;
        }
        if (best >= 0) {
            *end = at + 1;
            *start = *end - s->len[best];
            return best;
        }
    }
    return -1;
}

/* Length of the longest tail of buf with which a stop string begins. */
static size_t open_tail(const sl_stop *s)
{
    size_t longest = 0;
    for (size_t i = 0; i < s->n; i++)
        longest = s->matched[i] > longest ? s->matched[i] : longest;
    return longest;
}

int sl_stop_feed(sl_stop *s, const char *text, size_t len, const char **emit, size_t *n_emit)
{
    *emit = "";
    *n_emit = 0;
    if (s->done)
        return -1;
    if (s->n == 0) { /* no stop strings: all text is emitted at once */
        *emit = text;
        *n_emit = len;
        return -1;
    }
    size_t held = s->used - s->emitted, start = 0, end = 0; /* what is held has been searched */
    if (!append(s, text, len))
        return SL_STOP_OOM;
    int found = first_match(s, held, &start, &end);
    s->emitted = found >= 0 ? (s->include ? end : start) : s->used - open_tail(s);
    *emit = s->buf ? s->buf : "";
    *n_emit = s->emitted;
    if (found >= 0) {
        s->done = true;
        s->used = s->emitted;
    }
    return found;
}

void sl_stop_finish(sl_stop *s, const char **emit, size_t *n_emit)
{
    *emit = s->buf ? s->buf + s->emitted : "";
    *n_emit = s->used - s->emitted;
    s->emitted = s->used;
}

size_t sl_stop_held(const sl_stop *s)
{
    return s->used - s->emitted;
}
