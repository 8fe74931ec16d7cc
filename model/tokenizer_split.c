/*
 * Pre-tokenizer: the list of splits from tokenizer.json. Each of them splits the pieces that the split before it has
 * left.
 *
 * Pieces are byte ranges of one buffer; only the step that inserts spaces rewrites the buffer. Patterns are matched by
 * Oniguruma in its default syntax, in each piece separately. As in the binding that the Hugging Face library uses, an
 * empty match directly after a match is skipped.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer_impl.h"
#include "model/tokenizer_utf8.h"

enum {
    FIRST_STACK = 1024, /* entries: what each thread takes without asking */
    STACK_GROWTH = 4,
    STACK_ENTRY_BYTES = 40,
    SEARCHES_PER_LOOK = 1024,
    PIECES_PER_LOOK = 1024
};

static pthread_once_t onig_once = PTHREAD_ONCE_INIT;

static void onig_start(void)
{
    OnigEncoding list[] = {ONIG_ENCODING_UTF8};
    onig_initialize(list, 1);
}

sl_status tk_regex_compile(const char *pattern, size_t len, regex_t **out, sl_err *err)
{
    pthread_once(&onig_once, onig_start);
    OnigErrorInfo info;
    const OnigUChar *p = (const OnigUChar *)pattern;
    int rc = onig_new(out, p, p + len, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
    if (rc == ONIG_NORMAL)
        return SL_OK;
    OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN + 1] = {0};
    int n = onig_error_code_to_str(text, rc, &info);
    *out = NULL;
    return sl_fail(err, rc == ONIGERR_MEMORY ? SL_ERR_NO_MEMORY : SL_ERR_INVALID,
                   "regex does not compile: %.*s", n, (const char *)text);
}

/* Appends the part [from, to) of a piece unless it is empty. */
static bool keep(tk_spans *out, uint32_t from, uint32_t to)
{
    return from == to || tk_spans_push(out, from, to, false);
}

/* ---- matches of one step in one piece: ranges without gaps, each flagged as a match or not ---- */

static sl_status add_match(tk_work *w, uint32_t *prev, uint32_t start, uint32_t end)
{
    if (*prev != start && !tk_spans_push(&w->matches, *prev, start, false))
        return SL_ERR_NO_MEMORY;
    if (!tk_spans_push(&w->matches, start, end, true))
        return SL_ERR_NO_MEMORY;
    *prev = end;
    return SL_OK;
}

static sl_status find_literal(tk_work *w, const tk_step *step, const char *text, tk_span piece,
                              uint32_t *prev)
{
    uint32_t at = piece.start;
    while (piece.end - at >= step->n_literal) {
        const char *hit = memmem(text + at, piece.end - at, step->literal, step->n_literal);
        if (!hit)
            break;
        uint32_t start = (uint32_t)(hit - text);
        at = start + (uint32_t)step->n_literal;
        sl_status st = add_match(w, prev, start, at);
        if (st != SL_OK)
            return st;
    }
    return SL_OK;
}

static sl_status regex_failed(tk_work *w, int rc)
{
    OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN + 1] = {0};
    int n = onig_error_code_to_str(text, rc);
    return sl_fail(w->err, rc == ONIGERR_MEMORY ? SL_ERR_NO_MEMORY : SL_ERR_UNSUPPORTED,
                   "the pre-tokenizer's regex failed on the text: %.*s", n, (const char *)text);
}

/*
 * Oniguruma stacks an entry for each character to which it may come back, so that a run of letters or of spaces takes
 * forty times its bytes while it is matched. A search begins with a small stack, and is repeated with one of four times
 * the size, taken from the guard, when that is full; later searches of the text begin with the size that was needed.
 */
static sl_status larger_stack(tk_work *w)
{
    uint64_t entries = w->stack_entries ? STACK_GROWTH * w->stack_entries : FIRST_STACK;
    if (w->stack_entries)
        SL_TRY(sl_guard_take(w->guard, (entries - w->stack_entries) * STACK_ENTRY_BYTES, w->err));
    if (!w->match_param) {
        w->match_param = onig_new_match_param();
        if (!w->match_param)
            return SL_ERR_NO_MEMORY;
        onig_initialize_match_param(w->match_param);
    }
    w->stack_entries = entries;
    onig_set_match_stack_limit_size_of_match_param(w->match_param, (unsigned)entries);
    return SL_OK;
}

/* *rc: where the match begins, or ONIG_MISMATCH. */
static sl_status search(tk_work *w, regex_t *regex, const OnigUChar *base, const OnigUChar *end,
                        const OnigUChar *at, int *rc)
{
    if (!w->stack_entries)
        SL_TRY(larger_stack(w));
    if (++w->searches % SEARCHES_PER_LOOK == 0)
        SL_TRY(sl_guard_check(w->guard, w->err));
    do {
        *rc = onig_search_with_param(regex, base, end, at, end, w->region, ONIG_OPTION_NONE, w->match_param);
        if (*rc != ONIGERR_MATCH_STACK_LIMIT_OVER)
            return *rc >= 0 || *rc == ONIG_MISMATCH ? SL_OK : regex_failed(w, *rc);
        SL_TRY(sl_guard_check(w->guard, w->err));
        SL_TRY(larger_stack(w));
    } while (true);
}

static sl_status find_regex(tk_work *w, const tk_step *step, const char *text, tk_span piece, uint32_t *prev)
{
    const OnigUChar *base = (const OnigUChar *)text + piece.start, *end = (const OnigUChar *)text + piece.end;
    const OnigUChar *at = base, *last_match_end = NULL;
    while (at <= end) {
        int rc;
        SL_TRY(search(w, step->regex, base, end, at, &rc));
        if (rc == ONIG_MISMATCH)
            return SL_OK;
        const OnigUChar *s = base + w->region->beg[0], *e = base + w->region->end[0];
        if (s == e && e == last_match_end) {
            size_t len = 1;
            if (at < end)
                sl_utf8_step(at, (size_t)(end - at), &len);
            at += len;
            continue;
        }
        at = last_match_end = e;
        sl_status st = add_match(w, prev, (uint32_t)(s - (const OnigUChar *)text),
                                 (uint32_t)(e - (const OnigUChar *)text));
        if (st != SL_OK)
            return st;
    }
    return SL_OK;
}

static sl_status find_matches(tk_work *w, const tk_step *step, const char *text, tk_span piece)
{
    uint32_t prev = piece.start;
    w->matches.n = 0;
    sl_status st =
        step->regex ? find_regex(w, step, text, piece, &prev) : find_literal(w, step, text, piece, &prev);
    if (st != SL_OK)
        return st;
    if (prev != piece.end && !tk_spans_push(&w->matches, prev, piece.end, false))
        return SL_ERR_NO_MEMORY;
    for (size_t i = 0; step->invert && i < w->matches.n; i++)
        w->matches.v[i].match = !w->matches.v[i].match;
    return SL_OK;
}

/* ---- behaviours: matches to pieces ---- */

/* Joins neighbours: Contiguous joins equal flags; MergedWith… joins a match to its neighbour unless that
 * follows another match. Works in place over v[0..n) in the given direction and leaves the result there;
 * returns the count. */
static size_t join(tk_span *v, size_t n, tk_behavior how)
{
    bool backwards = how == TK_WITH_NEXT, prev_match = false;
    size_t out = 0;
    for (size_t k = 0; k < n; k++) {
        tk_span m = v[backwards ? n - 1 - k : k];
        bool merge = how == TK_CONTIGUOUS ? m.match == prev_match : m.match && !prev_match;
        prev_match = m.match;
        tk_span *last = out ? &v[backwards ? n - out : out - 1] : NULL;
        if (merge && last) {
            if (backwards)
                last->start = m.start;
            else
                last->end = m.end;
            continue;
        }
        v[backwards ? n - 1 - out : out] = m;
        out++;
    }
    if (backwards)
        memmove(v, v + (n - out), out * sizeof *v);
    return out;
}

static sl_status apply_step(tk_work *w, const tk_step *step, const char *text)
{
    w->b.n = 0;
    for (size_t i = 0; i < w->a.n; i++) {
        sl_status st = find_matches(w, step, text, w->a.v[i]);
        if (st != SL_OK)
            return st;
        bool removed = step->behavior == TK_REMOVED;
        if (!removed && step->behavior != TK_ISOLATED)
            w->matches.n = join(w->matches.v, w->matches.n, step->behavior);
        for (size_t k = 0; k < w->matches.n; k++) {
            tk_span m = w->matches.v[k];
            if (!(removed && m.match) && !keep(&w->b, m.start, m.end))
                return SL_ERR_NO_MEMORY;
        }
    }
    tk_spans swap = w->a;
    w->a = w->b;
    w->b = swap;
    return SL_OK;
}

/* Copies every piece to buf, and puts a space before it unless it begins with one. */
static sl_status prefix_spaces(tk_work *w, const char **text)
{
    size_t need = 0;
    for (size_t i = 0; i < w->a.n; i++)
        need += w->a.v[i].end - w->a.v[i].start + 1u;
    if (need > UINT32_MAX)
        return sl_fail(w->err, SL_ERR_TOO_LARGE, "text is too long");
    if (sl_guard_grow(w->guard, (void **)&w->buf2, &w->cap2, need, 1, NULL))
        return SL_ERR_NO_MEMORY;
    uint32_t at = 0;
    for (size_t i = 0; i < w->a.n; i++) {
        tk_span *s = &w->a.v[i];
        uint32_t start = at, n = s->end - s->start;
        if ((*text)[s->start] != ' ')
            w->buf2[at++] = ' ';
        memcpy(w->buf2 + at, *text + s->start, n);
        at += n;
        *s = (tk_span){start, at, false};
    }
    char *buf = w->buf;
    size_t cap = w->cap;
    w->buf = w->buf2;
    w->cap = w->cap2;
    w->buf2 = buf;
    w->cap2 = cap;
    *text = w->buf;
    return SL_OK;
}

sl_status tk_pretokenize(tk_work *w, const char *text, size_t len)
{
    w->a.n = 0;
    if (!w->region)
        w->region = onig_region_new();
    if (!w->region || !tk_spans_push(&w->a, 0, (uint32_t)len, false))
        return SL_ERR_NO_MEMORY;
    for (size_t i = 0; i < w->t->n_steps; i++) {
        const tk_step *step = &w->t->steps[i];
        bool prefix = !step->regex && !step->literal;
        sl_status st = prefix ? prefix_spaces(w, &text) : apply_step(w, step, text);
        if (st != SL_OK)
            return st;
    }
    for (size_t i = 0; i < w->a.n; i++) {
        tk_span s = w->a.v[i];
        if (w->ids.n > w->max_ids)
            return SL_OK; /* refused by the caller */
        if (i % PIECES_PER_LOOK == 0)
            SL_TRY(sl_guard_check(w->guard, w->err));
        SL_TRY(tk_bpe_piece(w, text + s.start, s.end - s.start));
    }
    return SL_OK;
}
