/*
 * Answers back to parts. One machine for all formats, fed with text of any cut: bytes wait in `pend` until it
 * is certain what they are, and nothing waits longer. String arguments stream as they come; other arguments
 * wait for their end, because what is not JSON becomes a string.
 *
 * What the machine expects and does not find is not an error: the text from there on is content, and a call
 * already begun is closed so that its JSON is whole.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat_impl.h"

#define D "｜DSML｜"

enum { HEADER_MAX = 4096, NO_LIMIT = 1 << 30 };

typedef enum {
    ST_MAYBE_THINK, /* an optional <think> */
    ST_REASONING,
    ST_CONTENT,
    ST_BLOCK,  /* dsv32: between the calls of a block */
    ST_NAME,   /* glm: after <tool_call> */
    ST_CALL,   /* between the arguments of a call */
    ST_STRING, /* inside a string argument */
    ST_JSON,   /* inside another argument */
} state;

typedef enum { WAIT, MOVED } progress;

typedef struct syntax {
    const char *tools_open, *block_close, *call_open, *call_close, *arg_open, *value_close;
    int strip_think, strip_tools; /* line breaks that belong to the marker after them */
    bool trim;                    /* line breaks after a marker belong to it */
} syntax;

static const syntax dsv32 = {"<" D "function_calls>",
                             "</" D "function_calls>",
                             "<" D "invoke",
                             "</" D "invoke>",
                             "<" D "parameter",
                             "</" D "parameter>",
                             0,
                             2,
                             false};
static const syntax glm = {"<tool_call>", NULL,     NULL, "</tool_call>", "<arg_key>", "</arg_value>",
                           NO_LIMIT,      NO_LIMIT, true};

struct sl_chat_parser {
    sl_chat_format format;
    const syntax *syn; /* NULL = plain */
    json_t *tools;     /* NULL = tool calls stay text */
    state st;
    bool trim_left;   /* drop line breaks at the start of the text */
    bool block_empty; /* dsv32: no call yet in this block */
    bool first_arg;
    int calls;
    char name[HEADER_MAX]; /* of the current call */
    size_t scanned;        /* ST_JSON: bytes of pend searched already */
    ct_buf pend, out;
    sl_chat_sink *sink;
    void *user;
};

sl_status sl_chat_parser_create(sl_chat_format f, bool thinking, const json_t *tools, sl_chat_parser **out)
{
    sl_chat_parser *p = calloc(1, sizeof *p);
    if (!p)
        return SL_ERR_NO_MEMORY;
    p->format = f;
    p->syn = f == SL_CHAT_PLAIN ? NULL : f == SL_CHAT_DSV32 ? &dsv32 : &glm;
    if (json_array_size(tools)) {
        /* Shared, never changed: a copy for each of many choices would take seconds. */
        p->tools = json_incref((json_t *)(uintptr_t)tools);
    }
    p->st = !thinking || !p->syn ? ST_CONTENT : f == SL_CHAT_DSV32 ? ST_REASONING : ST_MAYBE_THINK;
    *out = p;
    return SL_OK;
}

void sl_chat_parser_destroy(sl_chat_parser *p)
{
    if (!p)
        return;
    json_decref(p->tools);
    free(p->pend.p);
    free(p->out.p);
    free(p);
}

int sl_chat_parser_tool_calls(const sl_chat_parser *p)
{
    return p->calls;
}

/* ---- output ---- */

static void emit(sl_chat_parser *p, sl_chat_event_kind kind, const char *text, size_t len)
{
    bool tool = kind >= SL_CHAT_TOOL_BEGIN;
    if (len == 0 && kind != SL_CHAT_TOOL_END && kind != SL_CHAT_TOOL_BEGIN)
        return;
    sl_chat_event ev = {kind, tool ? p->calls - 1 : -1, text, len};
    p->sink(p->user, &ev);
}

static void emit_args(sl_chat_parser *p)
{
    if (!p->out.bad)
        emit(p, SL_CHAT_TOOL_ARGS, p->out.p ? p->out.p : "", p->out.n);
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
    emit(p, p->st == ST_REASONING ? SL_CHAT_REASONING : SL_CHAT_CONTENT, text, len);
}

static void consume(sl_chat_parser *p, size_t n)
{
    memmove(p->pend.p, p->pend.p + n, p->pend.n - n);
    p->pend.n -= n;
}

/* ---- looking at pend ---- */

static const char *find(const sl_chat_parser *p, size_t from, const char *what)
{
    return from < p->pend.n ? memmem(p->pend.p + from, p->pend.n - from, what, strlen(what)) : NULL;
}

static bool starts_with(const sl_chat_parser *p, const char *what)
{
    size_t n = strlen(what);
    return p->pend.n >= n && memcmp(p->pend.p, what, n) == 0;
}

/* pend is the beginning of what, but not all of it. */
static bool may_become(const sl_chat_parser *p, const char *what)
{
    return what && p->pend.n < strlen(what) && memcmp(p->pend.p, what, p->pend.n) == 0;
}

/* Length of the longest tail of pend that begins `what`. */
static size_t open_tail(const sl_chat_parser *p, const char *what)
{
    size_t most = strlen(what) - 1;
    for (size_t n = most < p->pend.n ? most : p->pend.n; n > 0; n--) {
        if (memcmp(p->pend.p + p->pend.n - n, what, n) == 0)
            return n;
    }
    return 0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void skip_space(sl_chat_parser *p)
{
    size_t n = 0;
    while (n < p->pend.n && is_space(p->pend.p[n]))
        n++;
    if (n)
        consume(p, n);
}

/* Where the text before pend[at] ends once at most `most` line breaks are given to what follows. */
static size_t before_breaks(const sl_chat_parser *p, size_t at, int most)
{
    while (at > 0 && most-- > 0 && p->pend.p[at - 1] == '\n')
        at--;
    return at;
}

/* ---- reasoning and content ---- */

typedef struct marker {
    const char *text;
    int strip;
} marker;

/* Emits text up to the first marker and consumes that; its number, or -1: all that is certain was emitted. */
static int run_text(sl_chat_parser *p, const marker *m, int n, bool end)
{
    size_t keep = p->pend.n;
    const char *first = NULL;
    int found = -1;
    for (int i = 0; i < n; i++) {
        const char *hit = find(p, 0, m[i].text);
        if (hit && (!first || hit < first)) {
            first = hit;
            found = i;
        }
    }
    if (found >= 0) {
        size_t at = (size_t)(first - p->pend.p);
        emit_text(p, p->pend.p, before_breaks(p, at, m[found].strip));
        consume(p, at + strlen(m[found].text));
        return found;
    }
    for (int i = 0; !end && i < n; i++) {
        size_t at = before_breaks(p, p->pend.n - open_tail(p, m[i].text), m[i].strip);
        keep = at < keep ? at : keep;
    }
    emit_text(p, p->pend.p, keep);
    consume(p, keep);
    return -1;
}

static progress open_tools(sl_chat_parser *p)
{
    p->block_empty = true;
    p->st = p->syn->call_open ? ST_BLOCK : ST_NAME;
    return MOVED;
}

static progress run_reasoning(sl_chat_parser *p, bool end)
{
    const marker m[] = {{"</think>", p->syn->strip_think}, {p->syn->tools_open, p->syn->strip_tools}};
    int found = run_text(p, m, p->tools ? 2 : 1, end);
    if (found < 0)
        return WAIT;
    p->trim_left = p->syn->trim;
    p->st = ST_CONTENT;
    return found == 0 ? MOVED : open_tools(p);
}

static progress run_content(sl_chat_parser *p, bool end)
{
    if (!p->syn || !p->tools) {
        run_text(p, NULL, 0, true);
        return WAIT;
    }
    const marker m = {p->syn->tools_open, p->syn->strip_tools};
    return run_text(p, &m, 1, end) < 0 ? WAIT : open_tools(p);
}

static progress run_maybe_think(sl_chat_parser *p, bool end)
{
    skip_space(p);
    if (!end && may_become(p, "<think>"))
        return WAIT;
    bool opened = starts_with(p, "<think>");
    if (opened)
        consume(p, 7);
    p->trim_left = true;
    p->st = opened || p->format == SL_CHAT_GLM ? ST_REASONING : ST_CONTENT;
    return MOVED;
}

/* ---- tool calls ---- */

static void begin_call(sl_chat_parser *p, const char *name, size_t len)
{
    memcpy(p->name, name, len);
    p->name[len] = '\0';
    p->calls++;
    p->block_empty = false;
    p->first_arg = true;
    p->st = ST_CALL;
    emit(p, SL_CHAT_TOOL_BEGIN, p->name, len);
}

static void end_call(sl_chat_parser *p)
{
    ct_str(&p->out, p->first_arg ? "{}" : "}");
    emit_args(p);
    emit(p, SL_CHAT_TOOL_END, "", 0);
}

/* Not what was expected: from here on it is content. */
static progress give_up(sl_chat_parser *p)
{
    bool in_call = p->st == ST_CALL;
    if (in_call)
        end_call(p);
    bool nothing_yet = p->st == ST_NAME || (p->st == ST_BLOCK && p->block_empty);
    p->st = ST_CONTENT;
    p->trim_left = false;
    if (nothing_yet)
        emit(p, SL_CHAT_CONTENT, p->syn->tools_open, strlen(p->syn->tools_open));
    return MOVED;
}

/* pend does not hold a whole tag: wait for more, or give up. At the end a cut tag is dropped with the cut. */
static progress incomplete(sl_chat_parser *p, bool plausible, bool end)
{
    if (plausible && end) {
        consume(p, p->pend.n);
        return WAIT;
    }
    return plausible && p->pend.n < HEADER_MAX ? WAIT : give_up(p);
}

/* Finds name="…" in head[0..len); the value's place and length. */
static bool attribute(const char *head, size_t len, const char *name, const char **value, size_t *n)
{
    const char *at = memmem(head, len, name, strlen(name));
    if (!at)
        return false;
    at += strlen(name);
    const char *quote = memchr(at, '"', len - (size_t)(at - head));
    if (!quote)
        return false;
    *value = at;
    *n = (size_t)(quote - at);
    return true;
}

static progress run_block(sl_chat_parser *p, bool end)
{
    const syntax *s = p->syn;
    const char *name;
    size_t n;
    skip_space(p);
    if (p->pend.n == 0)
        return WAIT;
    if (starts_with(p, s->block_close)) {
        consume(p, strlen(s->block_close));
        p->st = ST_CONTENT;
        return MOVED;
    }
    if (!starts_with(p, s->call_open))
        return incomplete(p, may_become(p, s->block_close) || may_become(p, s->call_open), end);
    const char *stop = find(p, 0, "\">");
    if (!stop)
        return incomplete(p, true, end);
    size_t head = (size_t)(stop - p->pend.p) + 2;
    if (head >= HEADER_MAX || !attribute(p->pend.p, head, " name=\"", &name, &n) || n == 0)
        return give_up(p);
    begin_call(p, name, n);
    consume(p, head);
    return MOVED;
}

static progress run_name(sl_chat_parser *p, bool end)
{
    const char *arg = find(p, 0, p->syn->arg_open), *close = find(p, 0, p->syn->call_close);
    const char *stop = arg && (!close || arg < close) ? arg : close;
    if (!stop)
        return end || p->pend.n >= HEADER_MAX ? give_up(p) : WAIT;
    size_t from = 0, to = (size_t)(stop - p->pend.p), at = to;
    while (from < to && is_space(p->pend.p[from]))
        from++;
    while (to > from && is_space(p->pend.p[to - 1]))
        to--;
    bool odd = to == from || to - from >= HEADER_MAX;
    for (size_t i = from; i < to; i++)
        odd |= p->pend.p[i] == '<' || p->pend.p[i] == '{' || is_space(p->pend.p[i]);
    if (odd)
        return give_up(p);
    begin_call(p, p->pend.p + from, to - from);
    consume(p, at);
    return MOVED;
}

/* The JSON schema type of an argument of the current call, or NULL. */
static const char *schema_type(const sl_chat_parser *p, const char *key, size_t len)
{
    size_t i;
    json_t *tool;
    json_array_foreach(p->tools, i, tool)
    {
        const json_t *f = ct_function(tool);
        const char *name = json_string_value(json_object_get(f, "name"));
        if (!name || strcmp(name, p->name) != 0)
            continue;
        const json_t *props = json_object_get(json_object_get(f, "parameters"), "properties");
        return json_string_value(json_object_get(json_object_getn(props, key, len), "type"));
    }
    return NULL;
}

static void begin_value(sl_chat_parser *p, const char *key, size_t len, bool string)
{
    ct_str(&p->out, p->first_arg ? "{\"" : ", \"");
    ct_escaped(&p->out, key, len);
    ct_str(&p->out, string ? "\": \"" : "\": ");
    p->first_arg = false;
    p->scanned = 0;
    p->st = string ? ST_STRING : ST_JSON;
    emit_args(p);
}

/* <｜DSML｜parameter name="k" string="true|false"> */
static progress dsv32_argument(sl_chat_parser *p, bool end)
{
    const char *stop = find(p, 0, "\">"), *key, *string;
    size_t n, n_string;
    if (!stop)
        return incomplete(p, true, end);
    size_t head = (size_t)(stop - p->pend.p) + 2;
    if (!attribute(p->pend.p, head, " name=\"", &key, &n))
        return give_up(p);
    bool typed = attribute(p->pend.p, head, " string=\"", &string, &n_string);
    begin_value(p, key, n, typed && n_string == 4 && memcmp(string, "true", 4) == 0);
    consume(p, head);
    return MOVED;
}

/* <arg_key>k</arg_key> <arg_value> */
static progress glm_argument(sl_chat_parser *p, bool end)
{
    static const char key_open[] = "<arg_key>", key_close[] = "</arg_key>", value_open[] = "<arg_value>";
    const char *close = find(p, 0, key_close);
    if (!close)
        return incomplete(p, true, end);
    const char *key = p->pend.p + sizeof key_open - 1;
    size_t at = (size_t)(close - p->pend.p) + sizeof key_close - 1;
    while (at < p->pend.n && is_space(p->pend.p[at]))
        at++;
    size_t rest = p->pend.n - at, most = sizeof value_open - 1;
    if (memcmp(p->pend.p + at, value_open, rest < most ? rest : most) != 0)
        return give_up(p);
    if (rest < most)
        return incomplete(p, true, end);
    size_t n = (size_t)(close - key);
    const char *type = schema_type(p, key, n);
    begin_value(p, key, n, type && strcmp(type, "string") == 0);
    consume(p, at + most);
    return MOVED;
}

static progress run_call(sl_chat_parser *p, bool end)
{
    const syntax *s = p->syn;
    skip_space(p);
    if (starts_with(p, s->call_close)) {
        consume(p, strlen(s->call_close));
        end_call(p);
        p->st = s->call_open ? ST_BLOCK : ST_CONTENT;
        p->trim_left = s->trim;
        return MOVED;
    }
    if (p->pend.n == 0)
        return WAIT;
    if (!starts_with(p, s->arg_open))
        return incomplete(p, may_become(p, s->call_close) || may_become(p, s->arg_open), end);
    return s->call_open ? dsv32_argument(p, end) : glm_argument(p, end);
}

static progress run_string(sl_chat_parser *p, bool end)
{
    const char *close = p->syn->value_close, *hit = find(p, 0, close);
    size_t n = hit ? (size_t)(hit - p->pend.p) : p->pend.n - open_tail(p, close);
    ct_escaped(&p->out, p->pend.p, n);
    if (hit || end)
        ct_str(&p->out, "\"");
    emit_args(p);
    if (!hit && !end) {
        consume(p, n);
        return WAIT;
    }
    consume(p, hit ? n + strlen(close) : p->pend.n);
    p->st = ST_CALL;
    return MOVED;
}

/* A value that is not marked as a string: JSON as it stands, or else a string after all. */
static void add_value(sl_chat_parser *p, const char *text, size_t len)
{
    size_t from = 0, to = len;
    while (from < to && is_space(text[from]))
        from++;
    while (to > from && is_space(text[to - 1]))
        to--;
    json_t *v =
        json_loadb(text + from, to - from, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    if (v) {
        ct_add(&p->out, text + from, to - from);
        json_decref(v);
    } else {
        ct_str(&p->out, "\"");
        ct_escaped(&p->out, text, len);
        ct_str(&p->out, "\"");
    }
    emit_args(p);
}

static progress run_json(sl_chat_parser *p, bool end)
{
    const char *close = p->syn->value_close;
    size_t size = strlen(close), back = p->scanned < size ? p->scanned : size;
    const char *hit = find(p, p->scanned - back, close);
    p->scanned = p->pend.n;
    if (!hit && !end)
        return WAIT;
    size_t n = hit ? (size_t)(hit - p->pend.p) : p->pend.n - open_tail(p, close);
    add_value(p, p->pend.p ? p->pend.p : "", n);
    consume(p, hit ? n + size : p->pend.n);
    p->st = ST_CALL;
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
    case ST_BLOCK:
        return run_block(p, end);
    case ST_NAME:
        return run_name(p, end);
    case ST_CALL:
        return run_call(p, end);
    case ST_STRING:
        return run_string(p, end);
    case ST_JSON:
        break;
    }
    return run_json(p, end);
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
    if (end && p->st == ST_CALL)
        end_call(p);
    return p->out.bad ? SL_ERR_NO_MEMORY : SL_OK;
}

sl_status sl_chat_parser_feed(sl_chat_parser *p, const char *text, size_t len, sl_chat_sink *sink, void *user)
{
    ct_add(&p->pend, text, len);
    return run(p, false, sink, user);
}

sl_status sl_chat_parser_finish(sl_chat_parser *p, sl_chat_sink *sink, void *user)
{
    sl_status st = run(p, true, sink, user);
    p->st = ST_CONTENT;
    p->pend.n = 0;
    return st;
}
