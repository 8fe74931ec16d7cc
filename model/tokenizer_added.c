/*
 * Added tokens: a byte trie finds the leftmost, longest match; then the token's flags decide whether the match counts
 * and which white space around it belongs to it.
 *
 * The order of these checks, and that a discarded match still consumes its text, are the same as in the Hugging Face
 * library, because the ids depend on them.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/tokenizer_impl.h"
#include "model/tokenizer_utf8.h"

enum { MATCHES_PER_LOOK = 1024 };

static uint32_t new_node(tk_trie *t, unsigned char byte)
{
    if (t->n == t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 256;
        tk_node *nodes = realloc(t->nodes, cap * sizeof *nodes);
        if (!nodes)
            return 0;
        t->nodes = nodes;
        t->cap = cap;
    }
    t->nodes[t->n] = (tk_node){.id = -1, .byte = byte};
    return t->n++;
}

static uint32_t find_child(const tk_trie *t, uint32_t node, unsigned char byte)
{
    uint32_t c = t->nodes[node].child;
    while (c && t->nodes[c].byte != byte)
        c = t->nodes[c].sibling;
    return c;
}

sl_status tk_trie_add(tk_trie *t, const char *text, size_t len, int32_t id)
{
    if (t->n == 0) {
        new_node(t, 0);
        if (t->n == 0)
            return SL_ERR_NO_MEMORY;
    }
    uint32_t node = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];
        uint32_t next = find_child(t, node, byte);
        if (!next) {
            next = new_node(t, byte);
            if (!next)
                return SL_ERR_NO_MEMORY;
            t->nodes[next].sibling = t->nodes[node].child;
            t->nodes[node].child = next;
        }
        if (i == 0)
            t->first[byte] = next;
        node = next;
    }
    if (t->nodes[node].id >= 0)
        return SL_ERR_INVALID;
    t->nodes[node].id = id;
    t->any = true;
    return SL_OK;
}

bool tk_is_blank(const tk_token *t)
{
    return strspn(t->text, " \t\n\r\v\f") == t->n_text;
}

size_t tk_plain_from(const tk_work *w, size_t pos)
{
    size_t low = 0, high = w->n_plain;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (w->plain[mid].end > pos)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* The number of bytes from `at` up to the next plain range. */
static size_t before_plain(const tk_work *w, const char *at)
{
    size_t pos = (size_t)(at - w->base), i = tk_plain_from(w, pos);
    if (i == w->n_plain)
        return SIZE_MAX;
    return w->plain[i].start > pos ? w->plain[i].start - pos : 0;
}

/* The longest token that begins at text[0] and has no byte in a plain range: its id and length; -1: none. */
static int32_t longest(const tk_work *w, const tk_trie *t, const char *text, size_t len, size_t *match_len)
{
    int32_t id = -1;
    size_t most = w->n_plain ? before_plain(w, text) : SIZE_MAX;
    uint32_t node = t->first[(unsigned char)text[0]];
    for (size_t i = 1; node; i++) {
        int32_t here = t->nodes[node].id;
        if (here >= 0 && (i <= most || tk_is_blank(&w->t->tokens[here]))) {
            id = here;
            *match_len = i;
        }
        if (i == len)
            break;
        node = find_child(t, node, (unsigned char)text[i]);
    }
    return id;
}

/* \w as the regex engine of the Hugging Face library defines it for this check. Oniguruma's class also has superscripts
 * and fractions. */
static bool is_word(uint32_t c)
{
    if (c < 0x80)
        return isalnum((int)c) || c == '_';
    if (c == 0x200C || c == 0x200D)
        return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return ONIGENC_IS_CODE_CTYPE(ONIG_ENCODING_UTF8, c, ONIGENC_CTYPE_ALPHA) != 0;
    }
}

static bool is_space(uint32_t c)
{
    return ONIGENC_IS_CODE_CTYPE(ONIG_ENCODING_UTF8, c, ONIGENC_CTYPE_SPACE) != 0;
}

/* Where the character that ends at text[end) begins. */
static size_t prev_char(const char *text, size_t end)
{
    size_t at = end - 1;
    while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80)
        at--;
    return at;
}

static size_t next_char(const char *text, size_t at)
{
    unsigned char c = (unsigned char)text[at];
    return at + (c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4);
}

static uint32_t char_at(const char *text, size_t at)
{
    return sl_utf8_get((const unsigned char *)text + at);
}

static bool stands_alone(const char *text, size_t len, size_t start, size_t stop)
{
    if (start > 0 && is_word(char_at(text, prev_char(text, start))))
        return false;
    return stop == len || !is_word(char_at(text, stop));
}

static size_t strip_left(const char *text, size_t start, size_t floor)
{
    while (start > 0 && start > floor) {
        size_t p = prev_char(text, start);
        if (!is_space(char_at(text, p)))
            break;
        start = p;
    }
    return start > floor ? start : floor;
}

static size_t strip_right(const char *text, size_t len, size_t stop)
{
    while (stop < len && is_space(char_at(text, stop)))
        stop = next_char(text, stop);
    return stop;
}

/* One match at [start, stop): appends the ids of the text before it, then its own id; moves *done to the end of
 * both. */
static sl_status take(tk_work *w, const char *text, size_t len, size_t start, size_t stop, int32_t id,
                      size_t *done, tk_text_fn *between)
{
    uint32_t flags = w->t->tokens[id].flags;
    if ((w->flags & SL_TOK_NO_SPECIAL) && (flags & TK_SPECIAL))
        return SL_OK;
    if ((flags & TK_SINGLE_WORD) && !stands_alone(text, len, start, stop))
        return SL_OK;
    if (flags & TK_LSTRIP)
        start = strip_left(text, start, *done);
    if (flags & TK_RSTRIP)
        stop = strip_right(text, len, stop);
    if (*done < start) {
        sl_status st = between(w, text + *done, start - *done);
        if (st != SL_OK)
            return st;
    }
    *done = stop;
    return tk_ids_push(&w->ids, id) ? SL_OK : SL_ERR_NO_MEMORY;
}

sl_status tk_added_split(tk_work *w, const tk_trie *trie, const char *text, size_t len, tk_text_fn *between)
{
    size_t done = 0, at = 0;
    while (trie->any && at < len && w->ids.n <= w->max_ids) {
        size_t n = 0;
        int32_t id = trie->first[(unsigned char)text[at]] ? longest(w, trie, text + at, len - at, &n) : -1;
        if (id < 0) {
            at++;
            continue;
        }
        if (++w->searches % MATCHES_PER_LOOK == 0)
            SL_TRY(sl_guard_check(w->guard, w->err));
        sl_status st = take(w, text, len, at, at + n, id, &done, between);
        if (st != SL_OK)
            return st;
        at += n;
    }
    return done < len && w->ids.n <= w->max_ids ? between(w, text + done, len - done) : SL_OK;
}
