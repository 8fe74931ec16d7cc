/*
 * A model's answer, taken apart into reasoning, content and tool calls. One state machine serves all formats. It is fed
 * with text that is cut anywhere: bytes wait in `pend` until it is certain what they are, and no longer. This file has
 * the machine with reasoning and content; chat_parse_tools.c and chat_parse_json.c have tool calls.
 *
 * Text that is not what the machine expects is no error: everything from there on is content, and a call that has
 * already begun is closed, so that the JSON of its arguments is complete.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat_parse_impl.h"

enum { FEED_PIECE = 4096 };

/* The state in which an answer begins. */
static state first_state(const sl_chat_parser *p, bool thinking)
{
    if (p->syn && thinking && p->syn->think != THINK_NONE)
        return p->syn->think == THINK_OPEN ? ST_REASONING : ST_MAYBE_THINK;
    return p->syn && p->syn->bare && p->tools ? ST_OBJECT : ST_CONTENT;
}

sl_status sl_chat_parser_create(sl_chat_format f, sl_chat_think thinking, const json_t *tools,
                                sl_chat_parser **out)
{
    sl_chat_parser *p = calloc(1, sizeof *p);
    if (!p)
        return SL_ERR_NO_MEMORY;
    p->syn = ct_format_of(f)->syntax;
    if (json_array_size(tools)) {
        /* Shared and never changed: a copy for each choice of a request with many choices would take seconds. */
        p->tools = json_incref((json_t *)(uintptr_t)tools);
    }
    p->adaptive = thinking == SL_CHAT_THINK_ADAPTIVE && ct_format_of(f)->thinks == SL_CHAT_THINK_ADAPTIVE;
    p->opened = thinking == SL_CHAT_THINK_OPEN;
    p->st = first_state(p, thinking != SL_CHAT_THINK_NO);
    *out = p;
    return SL_OK;
}

bool sl_chat_marks_special(sl_chat_format f, const sl_tokenizer *tok)
{
    const ct_syntax *s = ct_format_of(f)->syntax;
    if (!s || s->bare)
        return false;
    const char *const marks[] = {s->think_open ? s->think_open : "<think>",
                                 s->think_close ? s->think_close : "</think>",
                                 s->tools_open,
                                 s->block_close,
                                 s->call_open,
                                 s->call_close,
                                 s->arg_open,
                                 s->key_close,
                                 s->value_open,
                                 s->value_close,
                                 s->args == ARG_NAMED ? CT_M3 : NULL};
    for (size_t i = 0; i < SL_COUNT(marks); i++) {
        if (marks[i] && sl_tokenizer_is_special(tok, sl_tokenizer_id(tok, marks[i], strlen(marks[i]))))
            return true;
    }
    return false;
}

int32_t sl_chat_think_end(sl_chat_format f, const sl_tokenizer *tok)
{
    const ct_syntax *s = ct_format_of(f)->syntax;
    if (!s || s->think == THINK_NONE)
        return -1;
    const char *close = s->think_close ? s->think_close : "</think>";
    return sl_tokenizer_id(tok, close, strlen(close));
}

void sl_chat_parser_destroy(sl_chat_parser *p)
{
    if (!p)
        return;
    json_decref(p->tools);
    free(p->pend.p);
    free(p->out.p);
    free(p->key.p);
    free(p);
}

int sl_chat_parser_tool_calls(const sl_chat_parser *p)
{
    return p->calls;
}

/* ---- output ---- */

void cp_emit(sl_chat_parser *p, sl_chat_event_kind kind, const char *text, size_t len)
{
    bool tool = kind >= SL_CHAT_TOOL_BEGIN;
    if (len == 0 && kind != SL_CHAT_TOOL_END && kind != SL_CHAT_TOOL_BEGIN)
        return;
    sl_chat_event ev = {kind, tool ? p->calls - 1 : -1, text, len};
    p->sink(p->user, &ev);
}

void cp_emit_args(sl_chat_parser *p)
{
    if (!p->out.bad)
        cp_emit(p, SL_CHAT_TOOL_ARGS, p->out.p ? p->out.p : "", p->out.n);
    p->out.n = 0;
}

static void emit_text(sl_chat_parser *p, const char *text, size_t len)
{
    while (p->trim_left && len && *text == '\n') {
        text++;
        len--;
    }
    if (len == 0)
        return;
    p->trim_left = false;
    cp_emit(p, p->st == ST_REASONING ? SL_CHAT_REASONING : SL_CHAT_CONTENT, text, len);
}

void cp_consume(sl_chat_parser *p, size_t n)
{
    memmove(p->pend.p, p->pend.p + n, p->pend.n - n);
    p->pend.n -= n;
}

/* ---- looking at pend ---- */

const char *cp_find(const sl_chat_parser *p, size_t from, const char *what)
{
    return from < p->pend.n ? memmem(p->pend.p + from, p->pend.n - from, what, strlen(what)) : NULL;
}

bool cp_starts_with(const sl_chat_parser *p, const char *what)
{
    size_t n = strlen(what);
    return p->pend.n >= n && memcmp(p->pend.p, what, n) == 0;
}

bool cp_may_become(const sl_chat_parser *p, const char *what)
{
    return what && p->pend.n < strlen(what) && memcmp(p->pend.p, what, p->pend.n) == 0;
}

void cp_skip_space(sl_chat_parser *p)
{
    size_t n = 0;
    while (n < p->pend.n && cp_is_space(p->pend.p[n]))
        n++;
    if (n)
        cp_consume(p, n);
}

size_t cp_open_tail(const sl_chat_parser *p, const char *what)
{
    size_t most = strlen(what) - 1;
    for (size_t n = most < p->pend.n ? most : p->pend.n; n > 0; n--) {
        if (memcmp(p->pend.p + p->pend.n - n, what, n) == 0)
            return n;
    }
    return 0;
}

/* The end of the text before pend[at], without the line breaks, at most `most`, that belong to the marker there. */
static size_t before_breaks(const sl_chat_parser *p, size_t at, int most)
{
    while (at > 0 && most-- > 0 && p->pend.p[at - 1] == '\n')
        at--;
    return at;
}

/* ---- reasoning and content ---- */

typedef struct marker {
    const char *text;
    int strip; /* at most this many line breaks before it belong to it */
} marker;

/*
 * Looks for the first of the n markers. Found: emits the text before it, consumes both, and returns its index in m.
 * Else -1: emits the text that cannot be the beginning of a marker; at the end the whole text.
 */
static int run_text(sl_chat_parser *p, const marker *m, int n, bool end)
{
    emit_text(p, p->pend.p, p->plain);
    cp_consume(p, p->plain);
    p->plain = 0;
    size_t keep = p->pend.n;
    const char *first = NULL;
    int found = -1;
    for (int i = 0; i < n; i++) {
        const char *hit = cp_find(p, 0, m[i].text);
        if (hit && (!first || hit < first)) {
            first = hit;
            found = i;
        }
    }
    if (found >= 0) {
        size_t at = (size_t)(first - p->pend.p);
        emit_text(p, p->pend.p, before_breaks(p, at, m[found].strip));
        cp_consume(p, at + strlen(m[found].text));
        return found;
    }
    for (int i = 0; !end && i < n; i++) {
        size_t at = before_breaks(p, p->pend.n - cp_open_tail(p, m[i].text), m[i].strip);
        keep = at < keep ? at : keep;
    }
    emit_text(p, p->pend.p, keep);
    cp_consume(p, keep);
    return -1;
}

static const char *think_open(const sl_chat_parser *p)
{
    return p->syn->think_open ? p->syn->think_open : "<think>";
}

static const char *think_close(const sl_chat_parser *p)
{
    return p->syn->think_close ? p->syn->think_close : "</think>";
}

static progress run_reasoning(sl_chat_parser *p, bool end)
{
    const marker m[] = {{think_close(p), p->syn->strip_think}, {p->syn->tools_open, p->syn->strip_tools}};
    int found = run_text(p, m, p->tools ? 2 : 1, end);
    if (found < 0)
        return WAIT;
    p->trim_left = p->syn->trim;
    p->st = ST_CONTENT;
    return found == 0 ? MOVED : cp_tools_open(p);
}

static progress run_content(sl_chat_parser *p, bool end)
{
    if (!p->syn || !p->tools) {
        run_text(p, NULL, 0, true);
        return WAIT;
    }
    const marker m = {p->syn->tools_open, p->syn->strip_tools};
    return run_text(p, &m, 1, end) < 0 ? WAIT : cp_tools_open(p);
}

static progress run_maybe_think(sl_chat_parser *p, bool end)
{
    const char *open = think_open(p), *close = p->adaptive ? think_close(p) : NULL;
    cp_skip_space(p);
    if (!end && (cp_may_become(p, open) || cp_may_become(p, close)))
        return WAIT;
    bool opened = cp_starts_with(p, open), closed = close && cp_starts_with(p, close);
    if (opened || closed)
        cp_consume(p, strlen(opened ? open : close));
    bool always = p->opened || (p->syn->think == THINK_ALWAYS && !p->adaptive);
    p->trim_left = p->syn->trim;
    p->st = opened || always ? ST_REASONING : ST_CONTENT;
    return MOVED;
}

/* ---- the machine ---- */

static progress step(sl_chat_parser *p, bool end)
{
    switch (p->st) {
    case ST_MAYBE_THINK:
        return run_maybe_think(p, end);
    case ST_REASONING:
        return run_reasoning(p, end);
    case ST_CONTENT:
        return run_content(p, end);
    case ST_OBJECT:
    case ST_MEMBER:
    case ST_TEXT:
    case ST_CLOSE:
        return cp_json_step(p, end);
    default:
        return cp_tools_step(p, end);
    }
}

static sl_status run(sl_chat_parser *p, bool end, sl_chat_sink *sink, void *user)
{
    p->sink = sink;
    p->user = user;
    ct_add(&p->pend, "", 0); /* pend.p is never NULL below */
    if (p->pend.bad)
        return SL_ERR_NO_MEMORY;
    while (step(p, end) == MOVED)
        ;
    if (end && (p->st == ST_CALL || p->st == ST_MEMBER))
        cp_end_call(p);
    p->out.bad |= p->key.bad;
    return p->out.bad ? SL_ERR_NO_MEMORY : SL_OK;
}

sl_status sl_chat_parser_feed(sl_chat_parser *p, const char *text, size_t len, sl_chat_sink *sink, void *user)
{
    /* What has been understood is moved out of pend at once, so a long text is taken in pieces. */
    size_t at = 0, n;
    do {
        n = len - at < FEED_PIECE ? len - at : FEED_PIECE;
        ct_add(&p->pend, text + at, n);
        SL_TRY(run(p, false, sink, user));
        at += n;
    } while (at < len);
    return SL_OK;
}

sl_status sl_chat_parser_finish(sl_chat_parser *p, sl_chat_sink *sink, void *user)
{
    sl_status st = run(p, true, sink, user);
    p->st = ST_CONTENT;
    p->pend.n = 0;
    return st;
}
