/*
 * Tool calls in an answer whose arguments are written with tags: the states of the parser between the marker that opens
 * a call, or a block of calls, and the one that closes it. The arguments are in chat_parse_args.c.
 */
#include <string.h>

#include "model/chat_parse_impl.h"

progress cp_tools_open(sl_chat_parser *p)
{
    p->block_empty = true;
    p->marked = true;
    p->st = p->syn->json ? ST_OBJECT : p->syn->call_open ? ST_BLOCK : ST_NAME;
    return MOVED;
}

void cp_begin_call(sl_chat_parser *p, const char *name, size_t len)
{
    memcpy(p->name, name, len);
    p->name[len] = '\0';
    p->calls++;
    p->block_empty = false;
    p->first_arg = true;
    cp_emit(p, SL_CHAT_TOOL_BEGIN, p->name, len);
}

/* Looked up once a call, because a request may have thousands of tools. */
static const json_t *parameters_of(const sl_chat_parser *p)
{
    size_t i;
    json_t *tool;
    json_array_foreach(p->tools, i, tool)
    {
        const json_t *f = ct_function(tool);
        const char *name = json_string_value(json_object_get(f, "name"));
        if (name && strcmp(name, p->name) == 0)
            return json_object_get(f, "parameters");
    }
    return NULL;
}

static void begin_call(sl_chat_parser *p, const char *name, size_t len)
{
    cp_begin_call(p, name, len);
    p->parameters = parameters_of(p);
    p->st = ST_CALL;
}

void cp_end_call(sl_chat_parser *p)
{
    ct_str(&p->out, p->first_arg ? "{}" : "}");
    cp_emit_args(p);
    cp_emit(p, SL_CHAT_TOOL_END, "", 0);
}

static void emit_marker(sl_chat_parser *p, const char *text)
{
    if (text)
        cp_emit(p, SL_CHAT_CONTENT, text, strlen(text));
}

progress cp_give_up(sl_chat_parser *p)
{
    bool in_call = p->st == ST_CALL, in_name = p->st == ST_NAME, block = p->syn->call_open != NULL;
    if (in_call)
        cp_end_call(p);
    bool nothing_yet = (in_name && !block) || ((in_name || p->st == ST_BLOCK) && p->block_empty);
    p->st = ST_CONTENT;
    p->trim_left = false;
    if (nothing_yet)
        emit_marker(p, p->syn->tools_open);
    if (in_name && block)
        emit_marker(p, p->syn->call_open);
    return MOVED;
}

progress cp_incomplete(sl_chat_parser *p, bool plausible, bool end)
{
    if (plausible && end) {
        cp_consume(p, p->pend.n);
        return WAIT;
    }
    return plausible && p->pend.n < HEADER_MAX ? WAIT : cp_give_up(p);
}

bool cp_attribute(const char *head, size_t len, const char *name, const char **value, size_t *n)
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

/* Moves both ends past white space. False: what is left is no name of a function. */
static bool is_name(const char **text, size_t *len)
{
    while (*len && cp_is_space(**text)) {
        ++*text;
        --*len;
    }
    while (*len && cp_is_space((*text)[*len - 1]))
        --*len;
    bool odd = *len == 0 || *len >= HEADER_MAX;
    for (size_t i = 0; i < *len; i++)
        odd |= (*text)[i] == '<' || (*text)[i] == '{' || cp_is_space((*text)[i]);
    return !odd;
}

/* The name in the tag pend[0..len) that opens a call. */
static bool name_in_head(const sl_chat_parser *p, size_t len, const char **name, size_t *n)
{
    if (p->syn->args != ARG_EQUALS)
        return cp_attribute(p->pend.p, len, " name=\"", name, n) && *n > 0;
    size_t open = strlen(p->syn->call_open);
    *name = p->pend.p + open;
    *n = len - open - strlen(p->syn->head_close);
    return is_name(name, n);
}

static progress run_block(sl_chat_parser *p, bool end)
{
    const ct_syntax *s = p->syn;
    const char *name;
    size_t n;
    cp_skip_space(p);
    if (p->pend.n == 0)
        return WAIT;
    if (cp_starts_with(p, s->block_close)) {
        cp_consume(p, strlen(s->block_close));
        p->st = ST_CONTENT;
        p->trim_left = s->trim;
        return MOVED;
    }
    if (!cp_starts_with(p, s->call_open))
        return cp_incomplete(p, cp_may_become(p, s->block_close) || cp_may_become(p, s->call_open), end);
    if (!s->head_close) {
        cp_consume(p, strlen(s->call_open));
        p->st = ST_NAME;
        return MOVED;
    }
    const char *stop = cp_find(p, 0, s->head_close);
    if (!stop)
        return cp_incomplete(p, true, end);
    size_t head = (size_t)(stop - p->pend.p) + strlen(s->head_close);
    if (cp_too_long(head) || !name_in_head(p, head, &name, &n))
        return cp_give_up(p);
    begin_call(p, name, n);
    cp_consume(p, head);
    return MOVED;
}

static progress run_name(sl_chat_parser *p, bool end)
{
    const char *arg = cp_find(p, 0, p->syn->arg_open), *close = cp_find(p, 0, p->syn->call_close);
    const char *stop = arg && (!close || arg < close) ? arg : close;
    if (!stop)
        return end || p->pend.n >= HEADER_MAX ? cp_give_up(p) : WAIT;
    const char *name = p->pend.p;
    size_t at = (size_t)(stop - p->pend.p), n = at;
    if (cp_too_long(at + strlen(stop == arg ? p->syn->arg_open : p->syn->call_close)) || !is_name(&name, &n))
        return cp_give_up(p);
    begin_call(p, name, n);
    cp_consume(p, at);
    return MOVED;
}

static progress run_call(sl_chat_parser *p, bool end)
{
    const ct_syntax *s = p->syn;
    cp_skip_space(p);
    bool closed = cp_starts_with(p, s->call_close);
    if (closed ||
        (s->block_close && cp_starts_with(p, s->block_close))) { /* some models forget to close the call */
        if (closed)
            cp_consume(p, strlen(s->call_close));
        cp_end_call(p);
        p->st = s->call_open ? ST_BLOCK : ST_CONTENT;
        p->trim_left = s->trim;
        return MOVED;
    }
    if (p->pend.n == 0)
        return WAIT;
    bool may_close = cp_may_become(p, s->call_close) || cp_may_become(p, s->block_close);
    if (may_close || !cp_starts_with(p, s->arg_open))
        return cp_incomplete(p, may_close || cp_may_become(p, s->arg_open), end);
    return cp_argument(p, end);
}

progress cp_tools_step(sl_chat_parser *p, bool end)
{
    switch (p->st) {
    case ST_BLOCK:
        return run_block(p, end);
    case ST_NAME:
        return run_name(p, end);
    case ST_CALL:
        return run_call(p, end);
    case ST_STRING:
        return cp_string(p, end);
    default:
        return cp_value(p, end);
    }
}
