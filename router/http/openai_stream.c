/*
 * An answer as server-sent events. What clients rely on: every chunk has the same id and created; a choice's first
 * delta carries the role and its last chunk the finish_reason; with include_usage every chunk has "usage": null and one
 * more chunk, with "choices": [] and the usage, precedes [DONE]; an error in mid-stream is an event with a complete
 * error object, and no [DONE] follows it.
 */
#include <stdlib.h>
#include <string.h>

#include "router/http/openai_answer_impl.h"

static void begin_event(sl_oai_answer *a)
{
    sl_sb_str(&a->out, "data: ");
    oai_put_head(a, a->chat ? "chat.completion.chunk" : "text_completion", &a->out);
}

static void end_event(sl_oai_answer *a, bool with_usage)
{
    sl_sb_char(&a->out, ']');
    if (a->include_usage) {
        sl_sb_str(&a->out, ",\"usage\":");
        if (with_usage || a->continuous_usage)
            oai_put_usage(a, &a->out);
        else
            sl_sb_str(&a->out, "null");
    }
    sl_sb_str(&a->out, "}\n\n");
    a->began = true;
}

/* Up to the value of "delta" or "text". */
static void begin_choice(sl_oai_answer *a, uint32_t i)
{
    begin_event(a);
    sl_sb_printf(&a->out, "{\"index\":%u,\"%s\":", i, a->chat ? "delta" : "text");
}

/* finish may be NULL. */
static void end_choice(sl_oai_answer *a, uint32_t i, const char *finish)
{
    oai_choice *c = &a->choices[i];
    sl_sb_str(&a->out, ",\"logprobs\":");
    oai_logprobs_take(a, &c->lp, &a->out);
    if (finish)
        sl_sb_printf(&a->out, ",\"finish_reason\":\"%s\"", finish);
    else
        sl_sb_str(&a->out, ",\"finish_reason\":null");
    if (finish && c->stop_reason) {
        sl_sb_str(&a->out, ",\"stop_reason\":");
        oai_put_stop_reason(c, &a->out);
    }
    sl_sb_char(&a->out, '}');
    end_event(a, false);
}

static void put_delta(sl_oai_answer *a, uint32_t i, json_t *delta, const char *finish)
{
    begin_choice(a, i);
    oai_put_json(delta, &a->out);
    end_choice(a, i, finish);
}

static void put_text(sl_oai_answer *a, uint32_t i, const char *text, size_t len, const char *finish)
{
    bool first = a->echo && !a->choices[i].role_sent; /* the prompt comes with the first part */
    begin_choice(a, i);
    if (first)
        oai_prompt_text(a, i, text ? text : "", len, &a->out);
    else
        sl_sb_json(&a->out, text ? text : "", len);
    a->choices[i].role_sent = true;
    end_choice(a, i, finish);
}

typedef struct delta_ctx {
    sl_oai_answer *a;
    uint32_t i;
} delta_ctx;

static void on_chat_event(void *user, const sl_chat_event *ev)
{
    delta_ctx *d = user;
    char id[48];
    json_t *delta = NULL;
    switch (ev->kind) {
    case SL_CHAT_REASONING:
        delta = json_pack("{s:s%}", "reasoning_content", ev->text, ev->len);
        break;
    case SL_CHAT_CONTENT:
        delta = json_pack("{s:s%}", "content", ev->text, ev->len);
        break;
    case SL_CHAT_TOOL_BEGIN:
        oai_make_call_id(id, sizeof id);
        delta = json_pack("{s:[{s:i, s:s, s:s, s:{s:s%, s:s}}]}", "tool_calls", "index", ev->index, "id", id,
                          "type", "function", "function", "name", ev->text, ev->len, "arguments", "");
        break;
    case SL_CHAT_TOOL_ARGS:
        delta = json_pack("{s:[{s:i, s:{s:s%}}]}", "tool_calls", "index", ev->index, "function", "arguments",
                          ev->text, ev->len);
        break;
    default:
        return;
    }
    put_delta(d->a, d->i, delta, NULL);
}

/* The first chunk of a choice. It carries no logprobs. */
static void put_role(sl_oai_answer *a, uint32_t i)
{
    if (a->choices[i].role_sent)
        return;
    a->choices[i].role_sent = true;
    begin_choice(a, i);
    sl_sb_str(&a->out, "{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}");
    end_event(a, false);
}

/* The text of an answer under a constraint, as it comes. A list of calls is sent when it is complete. */
static void put_forced(sl_oai_answer *a, uint32_t i, const char *text, size_t len)
{
    oai_choice *c = &a->choices[i];
    delta_ctx d = {a, i};
    sl_chat_event ev = {.kind = SL_CHAT_CONTENT, .text = text, .len = len};
    if (a->form == OAI_CALLS || !len)
        return;
    if (a->form == OAI_CALL && !c->call_sent)
        on_chat_event(&d, &(sl_chat_event){
                              .kind = SL_CHAT_TOOL_BEGIN, .text = a->function, .len = strlen(a->function)});
    c->call_sent = a->form == OAI_CALL;
    if (c->call_sent)
        ev.kind = SL_CHAT_TOOL_ARGS;
    on_chat_event(&d, &ev);
}

/* What an answer that reasons before its constraint begins consists of. */
static void on_forced_event(void *user, const sl_chat_event *ev)
{
    delta_ctx *d = user;
    oai_choice *c = &d->a->choices[d->i];
    if (ev->kind != SL_CHAT_CONTENT) {
        on_chat_event(d, ev);
        return;
    }
    if (d->a->form == OAI_CALLS) {
        sl_sb_append(&c->text, ev->text, ev->len);
        d->a->kept += ev->len;
    }
    put_forced(d->a, d->i, ev->text, ev->len);
}

static void end_forced(sl_oai_answer *a, uint32_t i)
{
    oai_choice *c = &a->choices[i];
    delta_ctx d = {a, i};
    if (c->parser)
        a->oom |= sl_chat_parser_finish(c->parser, on_forced_event, &d) != SL_OK;
    json_t *calls = a->form == OAI_CALLS ? oai_forced_calls(c) : NULL;
    if (calls)
        put_delta(a, i, json_pack("{s:o}", "tool_calls", calls), NULL);
    else if (a->form == OAI_CALLS)
        put_delta(a, i, json_pack("{s:s%}", "content", c->text.data ? c->text.data : "", c->text.len), NULL);
    if ((calls || c->call_sent) && !strcmp(c->finish, "stop"))
        c->finish = "tool_calls";
    put_delta(a, i, json_object(), c->finish);
}

static void end_chat_choice(sl_oai_answer *a, uint32_t i)
{
    oai_choice *c = &a->choices[i];
    delta_ctx d = {a, i};
    a->oom |= sl_chat_parser_finish(c->parser, on_chat_event, &d) != SL_OK;
    if (sl_chat_parser_tool_calls(c->parser) > 0 && !strcmp(c->finish, "stop"))
        c->finish = "tool_calls";
    put_delta(a, i, json_object(), c->finish);
}

static void put_output(sl_oai_answer *a, const sl_output *o)
{
    oai_choice *c = &a->choices[o->index];
    delta_ctx d = {a, o->index};
    if (a->chat) {
        put_role(a, o->index);
        if (a->form && c->parser)
            a->oom |= sl_chat_parser_feed(c->parser, o->text, o->text_len, on_forced_event, &d) != SL_OK;
        else if (a->form)
            put_forced(a, o->index, o->text, o->text_len);
        else if (o->text_len)
            a->oom |= sl_chat_parser_feed(c->parser, o->text, o->text_len, on_chat_event, &d) != SL_OK;
    } else if (o->text_len && !o->finished) {
        put_text(a, o->index, o->text, o->text_len, NULL);
    }
    if (o->finished && a->chat && a->form)
        end_forced(a, o->index);
    else if (o->finished && a->chat)
        end_chat_choice(a, o->index);
    else if (o->finished)
        put_text(a, o->index, o->text, o->text_len, c->finish);
    else if (a->logprobs && oai_logprobs_any(&c->lp) && a->chat) /* tokens without visible text yet */
        put_delta(a, o->index, json_pack("{s:s}", "content", ""), NULL);
    else if (a->logprobs && oai_logprobs_any(&c->lp))
        put_text(a, o->index, "", 0, NULL);
}

void oai_stream_output(sl_oai_answer *a, const sl_output *o)
{
    put_output(a, o);
    if (a->ended < a->n)
        return;
    if (a->include_usage) {
        begin_event(a);
        end_event(a, true);
    }
    sl_sb_str(&a->out, "data: [DONE]\n\n");
}

void oai_stream_error(sl_oai_answer *a, sl_status st, const char *error)
{
    int code;
    char *text = sl_oai_error_json(st, error, &code);
    if (!text)
        return;
    sl_sb_str(&a->out, "data: ");
    sl_sb_str(&a->out, text);
    sl_sb_str(&a->out, "\n\n");
    free(text);
}
