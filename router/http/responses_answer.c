/*
 * OpenAI's Responses: a response of items; as typed events with a sequence number. Each item is announced, then its part, then come
 * deltas, and what is done is said again as a whole. The last event carries the complete response.
 */
#include <stdlib.h>
#include <string.h>

#include "router/http/agent.h"

static void event(sl_oai_answer *a, const char *name)
{
    oai_agent_event(a, name);
    sl_sb_printf(&a->out, ",\"sequence_number\":%lu", a->agent->events++);
}

static bool cut(const sl_oai_answer *a)
{
    return a->choices[0].finish && !strcmp(a->choices[0].finish, "length");
}

/* ---- items ---- */

static void put_part(const oai_block *b, bool whole, sl_strbuf *out)
{
    bool text = b->kind == OAI_BLOCK_TEXT;
    sl_sb_printf(out, "{\"type\":\"%s\"", text ? "output_text" : "reasoning_text");
    oai_agent_member(out, "text", b->text.data, whole ? b->text.len : 0);
    sl_sb_str(out, text ? ",\"annotations\":[],\"logprobs\":[]}" : "}");
}

static void put_item(const sl_oai_answer *a, size_t i, bool whole, sl_strbuf *out)
{
    static const char *const types[] = {
        [OAI_BLOCK_THINKING] = "reasoning", [OAI_BLOCK_TEXT] = "message", [OAI_BLOCK_CALL] = "function_call"};
    const oai_block *b = &a->agent->blocks[i];
    bool last = i + 1 == a->agent->n;
    const char *status = !whole ? "in_progress" : last && cut(a) ? "incomplete" : "completed";
    sl_sb_printf(out, "{\"id\":\"%s%s\",\"type\":\"%s\",\"status\":\"%s\"",
                 b->kind == OAI_BLOCK_CALL ? "fc_" : "", b->id, types[b->kind], status);
    if (b->kind == OAI_BLOCK_CALL) {
        oai_agent_member(out, "call_id", b->id, strlen(b->id));
        oai_agent_member(out, "name", b->name.data, b->name.len);
        oai_agent_member(out, "arguments", b->text.data, whole ? b->text.len : 0);
        sl_sb_char(out, '}');
        return;
    }
    sl_sb_str(out, b->kind == OAI_BLOCK_TEXT ? ",\"role\":\"assistant\",\"content\":["
                                             : ",\"summary\":[],\"content\":[");
    if (whole)
        put_part(b, true, out);
    sl_sb_str(out, "]}");
}

/* ---- the response ---- */

static void put_usage(const oai_choice *c, sl_strbuf *out)
{
    sl_sb_printf(out,
                 "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u},\"output_tokens\":%u,"
                 "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%u}",
                 c->prompt_tokens, c->cached_tokens, c->completion_tokens,
                 c->prompt_tokens + c->completion_tokens);
}

/* What became of the request, then the members that repeat it. */
static void put_response(const sl_oai_answer *a, const char *status, sl_strbuf *out)
{
    bool ended = strcmp(status, "in_progress") != 0;
    sl_sb_printf(
        out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":null",
        a->id, (long long)a->created, status);
    sl_sb_str(out, ended && cut(a) ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"
                                   : ",\"incomplete_details\":null");
    oai_agent_member(out, "model", a->env.served_name, strlen(a->env.served_name));
    sl_sb_str(out, ",\"output\":[");
    for (size_t i = 0; ended && i < a->agent->n; i++) {
        if (i)
            sl_sb_char(out, ',');
        put_item(a, i, true, out);
    }
    sl_sb_str(out, "],\"usage\":");
    if (ended)
        put_usage(&a->choices[0], out);
    else
        sl_sb_str(out, "null");
    sl_sb_append(out, a->agent->shown.data ? a->agent->shown.data : "", a->agent->shown.len);
    sl_sb_char(out, '}');
}

static void response_event(sl_oai_answer *a, const char *name, const char *status)
{
    event(a, name);
    sl_sb_str(&a->out, ",\"response\":");
    put_response(a, status, &a->out);
    oai_agent_event_end(a);
}

/* ---- events ---- */

static void begin(sl_oai_answer *a)
{
    response_event(a, "response.created", "in_progress");
    response_event(a, "response.in_progress", "in_progress");
}

static void item_event(sl_oai_answer *a, const char *name, size_t i, bool whole)
{
    event(a, name);
    sl_sb_printf(&a->out, ",\"output_index\":%zu,\"item\":", i);
    put_item(a, i, whole, &a->out);
    oai_agent_event_end(a);
}

/* An event about what an item contains, up to its own members. */
static void inner_event(sl_oai_answer *a, const char *name, size_t i)
{
    const oai_block *b = &a->agent->blocks[i];
    bool call = b->kind == OAI_BLOCK_CALL;
    event(a, name);
    sl_sb_printf(&a->out, ",\"item_id\":\"%s%s\",\"output_index\":%zu", call ? "fc_" : "", b->id, i);
    if (!call)
        sl_sb_str(&a->out, ",\"content_index\":0");
}

static void part_event(sl_oai_answer *a, const char *name, size_t i, bool whole)
{
    inner_event(a, name, i);
    sl_sb_str(&a->out, ",\"part\":");
    put_part(&a->agent->blocks[i], whole, &a->out);
    oai_agent_event_end(a);
}

static const struct {
    const char *delta, *done, *member;
} names[] = {
    [OAI_BLOCK_THINKING] = {"response.reasoning_text.delta", "response.reasoning_text.done", "text"},
    [OAI_BLOCK_TEXT] = {"response.output_text.delta", "response.output_text.done", "text"},
    [OAI_BLOCK_CALL] = {"response.function_call_arguments.delta", "response.function_call_arguments.done",
                        "arguments"},
};

static void open_block(sl_oai_answer *a, size_t i)
{
    item_event(a, "response.output_item.added", i, false);
    if (a->agent->blocks[i].kind != OAI_BLOCK_CALL)
        part_event(a, "response.content_part.added", i, false);
}

static void delta(sl_oai_answer *a, size_t i, const char *text, size_t len)
{
    oai_block_kind kind = a->agent->blocks[i].kind;
    inner_event(a, names[kind].delta, i);
    oai_agent_member(&a->out, "delta", text, len);
    if (kind == OAI_BLOCK_TEXT)
        sl_sb_str(&a->out, ",\"logprobs\":[]");
    oai_agent_event_end(a);
}

static void close_block(sl_oai_answer *a, size_t i)
{
    const oai_block *b = &a->agent->blocks[i];
    inner_event(a, names[b->kind].done, i);
    oai_agent_member(&a->out, names[b->kind].member, b->text.data, b->text.len);
    if (b->kind == OAI_BLOCK_TEXT)
        sl_sb_str(&a->out, ",\"logprobs\":[]");
    if (b->kind == OAI_BLOCK_CALL)
        oai_agent_member(&a->out, "name", b->name.data, b->name.len);
    oai_agent_event_end(a);
    if (b->kind != OAI_BLOCK_CALL)
        part_event(a, "response.content_part.done", i, true);
    item_event(a, "response.output_item.done", i, true);
}

static void end(sl_oai_answer *a)
{
    response_event(a, cut(a) ? "response.incomplete" : "response.completed",
                   cut(a) ? "incomplete" : "completed");
}

static void error(sl_oai_answer *a, sl_status st, const char *text)
{
    event(a, "error");
    oai_agent_member(&a->out, "code", sl_status_name(st), strlen(sl_status_name(st)));
    oai_agent_member(&a->out, "message", text, strlen(text));
    sl_sb_str(&a->out, ",\"param\":null");
    oai_agent_event_end(a);
}

static char *document(sl_oai_answer *a)
{
    sl_strbuf out = {0};
    put_response(a, cut(a) ? "incomplete" : "completed", &out);
    return sl_sb_take(&out);
}

const oai_agent_shape oai_responses_shape = {.ids = {"rs", "msg", "call"},
                                             .begin = begin,
                                             .open = open_block,
                                             .delta = delta,
                                             .close = close_block,
                                             .end = end,
                                             .error = error,
                                             .document = document};
