/*
 * Parses a whole answer into an OpenAI assistant message: the streaming parser with a sink that collects its events.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat_impl.h"
#include "model/tokenizer_utf8.h"

typedef struct whole {
    ct_buf reasoning, content, args;
    json_t *calls; /* array; NULL: none yet */
    char *name;
    bool bad;
} whole;

static void collect(void *user, const sl_chat_event *ev)
{
    whole *w = user;
    switch (ev->kind) {
    case SL_CHAT_REASONING:
        ct_add(&w->reasoning, ev->text, ev->len);
        break;
    case SL_CHAT_CONTENT:
        ct_add(&w->content, ev->text, ev->len);
        break;
    case SL_CHAT_TOOL_BEGIN:
        w->args.n = 0;
        free(w->name);
        w->name = strndup(ev->text, ev->len);
        break;
    case SL_CHAT_TOOL_ARGS:
        ct_add(&w->args, ev->text, ev->len);
        break;
    case SL_CHAT_TOOL_END:
        if (!w->calls)
            w->calls = json_array();
        json_t *call = json_pack("{s:s, s:{s:s, s:s%}}", "type", "function", "function", "name",
                                 w->name ? w->name : "", "arguments", w->args.p, w->args.n);
        w->bad |= !call || json_array_append_new(w->calls, call) != 0;
        break;
    }
}

static json_t *message(const whole *w)
{
    json_t *msg = json_pack("{s:s}", "role", "assistant");
    json_t *text = w->content.n ? json_stringn(w->content.p, w->content.n)
                   : w->calls   ? json_null()
                                : json_string("");
    bool ok = msg && json_object_set_new(msg, "content", text) == 0;
    if (ok && w->reasoning.n)
        ok = json_object_set_new(msg, "reasoning_content", json_stringn(w->reasoning.p, w->reasoning.n)) == 0;
    if (ok && w->calls)
        ok = json_object_set(msg, "tool_calls", w->calls) == 0;
    if (ok)
        return msg;
    json_decref(msg);
    return NULL;
}

sl_status sl_chat_parse(sl_chat_format f, sl_chat_think thinking, const json_t *tools, const char *text,
                        size_t len, json_t **out)
{
    sl_chat_parser *p;
    whole w = {0};
    if (sl_utf8_valid_len(text, len) < len)
        return SL_ERR_INVALID;
    SL_TRY(sl_chat_parser_create(f, thinking, tools, &p));
    sl_status st = sl_chat_parser_feed(p, text, len, collect, &w);
    if (st != SL_OK)
        goto free_parts;
    st = sl_chat_parser_finish(p, collect, &w);
    if (st != SL_OK)
        goto free_parts;
    bool complete = !w.bad && !w.reasoning.bad && !w.content.bad && !w.args.bad;
    json_t *msg = complete ? message(&w) : NULL;
    if (msg)
        *out = msg;
    else
        st = SL_ERR_NO_MEMORY;
free_parts:
    free(w.reasoning.p);
    free(w.content.p);
    free(w.args.p);
    free(w.name);
    json_decref(w.calls);
    sl_chat_parser_destroy(p);
    return st;
}
