/*
 * Tool calls in an answer whose arguments are written with tags: the states of the parser between the marker that opens
 * a call, or a block of calls, and the one that closes it. String arguments are emitted as they arrive. Other arguments
 * wait for their end, because a value that is not valid JSON becomes a string.
 */
#include <string.h>

#include "base/json.h"
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

/* The text is not what was expected: from here on it is content. */
static progress give_up(sl_chat_parser *p)
{
    bool in_call = p->st == ST_CALL;
    if (in_call)
        cp_end_call(p);
    bool nothing_yet = p->st == ST_NAME || (p->st == ST_BLOCK && p->block_empty);
    p->st = ST_CONTENT;
    p->trim_left = false;
    if (nothing_yet)
        cp_emit(p, SL_CHAT_CONTENT, p->syn->tools_open, strlen(p->syn->tools_open));
    return MOVED;
}

/* A tag that ends after pend[n) is too long, however the text was cut: incomplete() has given up before its end came, or would have. */
static bool too_long(size_t n)
{
    return n > HEADER_MAX;
}

/*
 * pend does not hold a whole tag. plausible: it can be the beginning of one, so more text is awaited, up to HEADER_MAX
 * bytes; at the end of the answer such a beginning is dropped. Otherwise gives up.
 */
static progress incomplete(sl_chat_parser *p, bool plausible, bool end)
{
    if (plausible && end) {
        cp_consume(p, p->pend.n);
        return WAIT;
    }
    return plausible && p->pend.n < HEADER_MAX ? WAIT : give_up(p);
}

/* Finds the attribute in the tag head[0..len); name is ` name="`. Its value, up to the next quote. */
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
    const ct_syntax *s = p->syn;
    const char *name;
    size_t n;
    cp_skip_space(p);
    if (p->pend.n == 0)
        return WAIT;
    if (cp_starts_with(p, s->block_close)) {
        cp_consume(p, strlen(s->block_close));
        p->st = ST_CONTENT;
        return MOVED;
    }
    if (!cp_starts_with(p, s->call_open))
        return incomplete(p, cp_may_become(p, s->block_close) || cp_may_become(p, s->call_open), end);
    const char *stop = cp_find(p, 0, "\">");
    if (!stop)
        return incomplete(p, true, end);
    size_t head = (size_t)(stop - p->pend.p) + 2;
    if (too_long(head) || !attribute(p->pend.p, head, " name=\"", &name, &n) || n == 0)
        return give_up(p);
    begin_call(p, name, n);
    cp_consume(p, head);
    return MOVED;
}

static progress run_name(sl_chat_parser *p, bool end)
{
    const char *arg = cp_find(p, 0, p->syn->arg_open), *close = cp_find(p, 0, p->syn->call_close);
    const char *stop = arg && (!close || arg < close) ? arg : close;
    if (!stop)
        return end || p->pend.n >= HEADER_MAX ? give_up(p) : WAIT;
    size_t from = 0, to = (size_t)(stop - p->pend.p), at = to;
    if (too_long(at + strlen(stop == arg ? p->syn->arg_open : p->syn->call_close)))
        return give_up(p);
    while (from < to && cp_is_space(p->pend.p[from]))
        from++;
    while (to > from && cp_is_space(p->pend.p[to - 1]))
        to--;
    bool odd = to == from || to - from >= HEADER_MAX;
    for (size_t i = from; i < to; i++)
        odd |= p->pend.p[i] == '<' || p->pend.p[i] == '{' || cp_is_space(p->pend.p[i]);
    if (odd)
        return give_up(p);
    begin_call(p, p->pend.p + from, to - from);
    cp_consume(p, at);
    return MOVED;
}

/* The types that the schema of the current call's function allows for an argument. */
static unsigned schema_types(const sl_chat_parser *p, const char *key, size_t len)
{
    return p->parameters ? ct_property_types(p->parameters, key, len) : CT_ANY;
}

/* types: those that the argument may have; a string is emitted while it arrives. */
static void begin_value(sl_chat_parser *p, const char *key, size_t len, unsigned types)
{
    bool string = types == CT_STRING;
    p->types = types;
    ct_str(&p->out, p->first_arg ? "{\"" : ", \"");
    ct_escaped(&p->out, key, len);
    ct_str(&p->out, string ? "\": \"" : "\": ");
    p->first_arg = false;
    p->scanned = 0;
    p->st = string ? ST_STRING : ST_JSON;
    cp_emit_args(p);
}

/* <｜DSML｜parameter name="k" string="true|false"> */
static progress dsv32_argument(sl_chat_parser *p, bool end)
{
    const char *stop = cp_find(p, 0, "\">"), *key, *string;
    size_t n, n_string;
    if (!stop)
        return incomplete(p, true, end);
    size_t head = (size_t)(stop - p->pend.p) + 2;
    if (too_long(head) || !attribute(p->pend.p, head, " name=\"", &key, &n))
        return give_up(p);
    bool typed = attribute(p->pend.p, head, " string=\"", &string, &n_string);
    begin_value(p, key, n, typed && n_string == 4 && memcmp(string, "true", 4) == 0 ? CT_STRING : CT_ANY);
    cp_consume(p, head);
    return MOVED;
}

/* <arg_key>k</arg_key> <arg_value> */
static progress glm_argument(sl_chat_parser *p, bool end)
{
    static const char key_open[] = "<arg_key>", key_close[] = "</arg_key>", value_open[] = "<arg_value>";
    const char *close = cp_find(p, 0, key_close);
    if (!close)
        return incomplete(p, true, end);
    const char *key = p->pend.p + sizeof key_open - 1;
    size_t at = (size_t)(close - p->pend.p) + sizeof key_close - 1;
    while (at < p->pend.n && cp_is_space(p->pend.p[at]))
        at++;
    size_t rest = p->pend.n - at, most = sizeof value_open - 1;
    if (memcmp(p->pend.p + at, value_open, rest < most ? rest : most) != 0)
        return give_up(p);
    if (rest < most)
        return incomplete(p, true, end);
    if (too_long(at + most))
        return give_up(p);
    size_t n = (size_t)(close - key);
    begin_value(p, key, n, schema_types(p, key, n));
    cp_consume(p, at + most);
    return MOVED;
}

static progress run_call(sl_chat_parser *p, bool end)
{
    const ct_syntax *s = p->syn;
    cp_skip_space(p);
    if (cp_starts_with(p, s->call_close)) {
        cp_consume(p, strlen(s->call_close));
        cp_end_call(p);
        p->st = s->call_open ? ST_BLOCK : ST_CONTENT;
        p->trim_left = s->trim;
        return MOVED;
    }
    if (p->pend.n == 0)
        return WAIT;
    if (!cp_starts_with(p, s->arg_open))
        return incomplete(p, cp_may_become(p, s->call_close) || cp_may_become(p, s->arg_open), end);
    return s->call_open ? dsv32_argument(p, end) : glm_argument(p, end);
}

static progress run_string(sl_chat_parser *p, bool end)
{
    const char *close = p->syn->value_close, *hit = cp_find(p, 0, close);
    size_t n = hit ? (size_t)(hit - p->pend.p) : p->pend.n - cp_open_tail(p, close);
    ct_escaped(&p->out, p->pend.p, n);
    if (hit || end)
        ct_str(&p->out, "\"");
    cp_emit_args(p);
    if (!hit && !end) {
        cp_consume(p, n);
        return WAIT;
    }
    cp_consume(p, hit ? n + strlen(close) : p->pend.n);
    p->st = ST_CALL;
    return MOVED;
}

/*
 * A value of which it is not known that it is a string. It is copied if it is valid JSON of a type that the schema
 * allows; otherwise it becomes a string. If the schema allows no string either, valid JSON is copied whatever its type
 * is.
 */
static void add_value(sl_chat_parser *p, const char *text, size_t len)
{
    size_t from = 0, to = len;
    while (from < to && cp_is_space(text[from]))
        from++;
    while (to > from && cp_is_space(text[to - 1]))
        to--;
    bool deep = sl_json_measure(text + from, to - from).depth > DEPTH_MAX;
    json_t *v = deep ? NULL
                     : json_loadb(text + from, to - from,
                                  JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    bool copied = v && (ct_type_of(v) & p->types || !(p->types & CT_STRING));
    json_decref(v);
    if (copied) {
        ct_add(&p->out, text + from, to - from);
    } else {
        ct_str(&p->out, "\"");
        ct_escaped(&p->out, text, len);
        ct_str(&p->out, "\"");
    }
    cp_emit_args(p);
}

static progress run_json(sl_chat_parser *p, bool end)
{
    const char *close = p->syn->value_close;
    size_t size = strlen(close), back = p->scanned < size ? p->scanned : size;
    const char *hit = cp_find(p, p->scanned - back, close);
    p->scanned = p->pend.n;
    if (!hit && !end)
        return WAIT;
    size_t n = hit ? (size_t)(hit - p->pend.p) : p->pend.n - cp_open_tail(p, close);
    add_value(p, p->pend.p ? p->pend.p : "", n);
    cp_consume(p, hit ? n + size : p->pend.n);
    p->st = ST_CALL;
    return MOVED;
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
        return run_string(p, end);
    default:
        return run_json(p, end);
    }
}
