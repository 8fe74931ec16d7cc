/*
 * Outputs of a group to an OpenAI answer. One object for both shapes: a stream turns each output into
 * server-sent events at once, a document keeps the texts until all choices have ended.
 *
 * What clients rely on and is kept here: every chunk has the same id and created; a choice's first delta
 * carries the role and its last chunk the finish_reason; with include_usage every chunk has "usage": null and
 * one more chunk, with "choices": [] and the usage, precedes [DONE]; an error in mid-stream is an event with
 * a complete error object and no [DONE] follows it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "router/http/openai.h"

typedef struct choice {
    sl_strbuf text;                                     /* document: all of it */
    json_t *lp_tokens, *lp_values, *lp_top, *lp_offset; /* completions */
    json_t *lp_content;                                 /* chat */
    sl_chat_parser *parser;                             /* chat stream */
    size_t offset;                                      /* of the next token in the text, for text_offset */
    bool role_sent, ended;
    const char *finish;
    char *stop_reason;
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
} choice;

struct sl_oai_answer {
    sl_oai_env env;
    bool chat, stream, include_usage, continuous_usage, logprobs, thinking;
    int top;
    json_t *tools;
    char id[96];
    int64_t created;
    choice *choices;
    uint32_t n, n_per_prompt, ended;
    sl_strbuf out;
    size_t taken;
    bool began, failed, oom;
    sl_status status;
    char error[512];
};

sl_oai_answer *sl_oai_answer_create(const sl_oai_env *env, sl_oai_request *q, const char *id, int64_t created,
                                    uint32_t n, uint32_t per_prompt)
{
    sl_oai_answer *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->choices = calloc(n, sizeof *a->choices);
    if (!a->choices) {
        free(a);
        return NULL;
    }
    a->env = *env;
    a->chat = q->chat;
    a->stream = q->stream;
    a->include_usage = q->include_usage || q->continuous_usage;
    a->continuous_usage = q->continuous_usage;
    a->logprobs = q->logprobs;
    a->top = q->top_logprobs;
    a->thinking = q->thinking;
    a->tools = q->tools;
    q->tools = NULL;
    snprintf(a->id, sizeof a->id, "%s", id);
    a->created = created;
    a->n = n;
    a->n_per_prompt = per_prompt ? per_prompt : 1;
    for (uint32_t i = 0; i < n && a->chat && a->stream; i++) {
        if (sl_chat_parser_create(env->chat, a->thinking, a->tools, &a->choices[i].parser)) {
            sl_oai_answer_destroy(a);
            return NULL;
        }
    }
    return a;
}

static void drop_logprobs(choice *c)
{
    json_decref(c->lp_tokens);
    json_decref(c->lp_values);
    json_decref(c->lp_top);
    json_decref(c->lp_offset);
    json_decref(c->lp_content);
    c->lp_tokens = c->lp_values = c->lp_top = c->lp_offset = c->lp_content = NULL;
}

void sl_oai_answer_destroy(sl_oai_answer *a)
{
    if (!a)
        return;
    for (uint32_t i = 0; i < a->n; i++) {
        sl_sb_free(&a->choices[i].text);
        sl_chat_parser_destroy(a->choices[i].parser);
        drop_logprobs(&a->choices[i]);
        free(a->choices[i].stop_reason);
    }
    json_decref(a->tools);
    sl_sb_free(&a->out);
    free(a->choices);
    free(a);
}

/* ---- logprobs ---- */

static double clamp(float v)
{
    return isfinite(v) ? (double)v : -9999.0; /* JSON has no infinity */
}

static json_t *token_text(const sl_oai_answer *a, int32_t id)
{
    char *text;
    size_t len;
    if (sl_tokenizer_decode(a->env.tok, &id, 1, false, &text, &len))
        return NULL;
    json_t *s = json_stringn(text, len);
    free(text);
    return s;
}

static json_t *token_bytes(const sl_oai_answer *a, int32_t id)
{
    size_t n;
    const char *p = sl_tokenizer_piece(a->env.tok, id, &n);
    json_t *arr = json_array();
    for (size_t i = 0; p && i < n; i++)
        json_array_append_new(arr, json_integer((unsigned char)p[i]));
    return arr;
}

static json_t *chat_logprob(const sl_oai_answer *a, int32_t id, float lp)
{
    return json_pack("{s:o*, s:f, s:o*}", "token", token_text(a, id), "logprob", clamp(lp), "bytes",
                     token_bytes(a, id));
}

static void add_chat_logprob(sl_oai_answer *a, choice *c, const sl_msg_token *t)
{
    if (!c->lp_content)
        c->lp_content = json_array();
    json_t *o = chat_logprob(a, t->id, t->logprob), *top = json_array();
    for (int i = 0; i < t->n_top && i < a->top; i++)
        json_array_append_new(top, chat_logprob(a, t->top_ids[i], t->top_logprobs[i]));
    json_object_set_new(o, "top_logprobs", top);
    json_array_append_new(c->lp_content, o);
}

static void add_text_logprob(sl_oai_answer *a, choice *c, const sl_msg_token *t)
{
    if (!c->lp_tokens) {
        c->lp_tokens = json_array();
        c->lp_values = json_array();
        c->lp_top = json_array();
        c->lp_offset = json_array();
    }
    json_t *text = token_text(a, t->id), *top = json_object();
    for (int i = 0; i < t->n_top && i < a->top; i++) {
        json_t *k = token_text(a, t->top_ids[i]);
        if (k && !json_object_get(top, json_string_value(k)))
            json_object_set_new(top, json_string_value(k), json_real(clamp(t->top_logprobs[i])));
        json_decref(k);
    }
    json_array_append_new(c->lp_offset, json_integer((json_int_t)c->offset));
    c->offset += text ? json_string_length(text) : 0;
    json_array_append_new(c->lp_tokens, text ? text : json_string(""));
    json_array_append_new(c->lp_values, json_real(clamp(t->logprob)));
    json_array_append_new(c->lp_top, top);
}

/* What was collected since the last call, as the "logprobs" member; null when not asked for. */
static json_t *take_logprobs(sl_oai_answer *a, choice *c)
{
    if (!a->logprobs)
        return json_null();
    json_t *o;
    if (a->chat)
        o = json_pack("{s:o}", "content", c->lp_content ? json_incref(c->lp_content) : json_array());
    else
        o = json_pack("{s:o, s:o, s:o, s:o}", "tokens",
                      c->lp_tokens ? json_incref(c->lp_tokens) : json_array(), "token_logprobs",
                      c->lp_values ? json_incref(c->lp_values) : json_array(), "top_logprobs",
                      c->lp_top ? json_incref(c->lp_top) : json_array(), "text_offset",
                      c->lp_offset ? json_incref(c->lp_offset) : json_array());
    drop_logprobs(c);
    return o;
}

/* ---- usage ---- */

static json_t *usage_of(uint32_t prompt, uint32_t completion, uint32_t cached)
{
    return json_pack("{s:i, s:i, s:i, s:{s:i}}", "prompt_tokens", (int)prompt, "completion_tokens",
                     (int)completion, "total_tokens", (int)(prompt + completion), "prompt_tokens_details",
                     "cached_tokens", (int)cached);
}

static json_t *usage(const sl_oai_answer *a)
{
    uint32_t prompt = 0, completion = 0, cached = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        const choice *c = &a->choices[i];
        completion += c->completion_tokens;
        if (i % a->n_per_prompt)
            continue; /* choices of one prompt share it */
        prompt += c->prompt_tokens;
        cached += c->cached_tokens;
    }
    return usage_of(prompt, completion, cached);
}

/* ---- stream ---- */

static void put_event(sl_oai_answer *a, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text) {
        a->oom = true;
        return;
    }
    sl_sb_str(&a->out, "data: ");
    sl_sb_str(&a->out, text);
    sl_sb_str(&a->out, "\n\n");
    a->began = true;
    free(text);
}

static json_t *envelope(sl_oai_answer *a, json_t *choices)
{
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", a->id, "object",
                          a->chat ? "chat.completion.chunk" : "text_completion", "created",
                          (json_int_t)a->created, "model", a->env.served_name, "choices", choices);
    if (o && a->include_usage)
        json_object_set_new(o, "usage", a->continuous_usage ? usage(a) : json_null());
    return o;
}

/* One chunk of one choice; body is its delta (chat) or text. finish may be NULL. */
static void put_chunk(sl_oai_answer *a, uint32_t i, json_t *body, const char *finish)
{
    choice *c = &a->choices[i];
    json_t *ch = json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)i, a->chat ? "delta" : "text", body,
                           "logprobs", take_logprobs(a, c), "finish_reason", finish);
    if (ch && finish && c->stop_reason)
        json_object_set_new(ch, "stop_reason", json_string(c->stop_reason));
    put_event(a, ch ? envelope(a, json_pack("[o]", ch)) : NULL);
}

typedef struct delta_ctx {
    sl_oai_answer *a;
    uint32_t i;
} delta_ctx;

static void make_call_id(char *out, size_t cap)
{
    snprintf(out, cap, "call_%016lx%08lx", sl_random_u64(), sl_random_u64() & 0xffffffffu);
}

static void on_chat_event(void *user, const sl_chat_event *ev)
{
    delta_ctx *d = user;
    json_t *delta = NULL;
    char id[48];
    switch (ev->kind) {
    case SL_CHAT_REASONING:
        delta = json_pack("{s:s%}", "reasoning_content", ev->text, ev->len);
        break;
    case SL_CHAT_CONTENT:
        delta = json_pack("{s:s%}", "content", ev->text, ev->len);
        break;
    case SL_CHAT_TOOL_BEGIN:
        make_call_id(id, sizeof id);
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
    if (delta)
        put_chunk(d->a, d->i, delta, NULL);
    else
        d->a->oom = true;
}

static void stream_role(sl_oai_answer *a, uint32_t i)
{
    choice *c = &a->choices[i];
    if (!a->chat || c->role_sent)
        return;
    c->role_sent = true;
    json_t *ch = json_pack("{s:i, s:{s:s, s:s}, s:n, s:n}", "index", (int)i, "delta", "role", "assistant",
                           "content", "", "logprobs", "finish_reason");
    put_event(a, ch ? envelope(a, json_pack("[o]", ch)) : NULL);
}

static void stream_output(sl_oai_answer *a, const sl_output *o)
{
    choice *c = &a->choices[o->index];
    stream_role(a, o->index);
    delta_ctx d = {a, o->index};
    if (a->chat && o->text_len && sl_chat_parser_feed(c->parser, o->text, o->text_len, on_chat_event, &d))
        a->oom = true;
    if (!a->chat && o->text_len && !o->finished)
        put_chunk(a, o->index, json_stringn(o->text, o->text_len), NULL);
    if (!o->finished) {
        if (a->logprobs && (c->lp_content || c->lp_tokens)) /* tokens without visible text yet */
            put_chunk(a, o->index, a->chat ? json_pack("{s:s}", "content", "") : json_string(""), NULL);
        return;
    }
    if (a->chat) {
        if (sl_chat_parser_finish(c->parser, on_chat_event, &d))
            a->oom = true;
        if (sl_chat_parser_tool_calls(c->parser) > 0 && !strcmp(c->finish, "stop"))
            c->finish = "tool_calls";
        put_chunk(a, o->index, json_object(), c->finish);
    } else {
        put_chunk(a, o->index, json_stringn(o->text ? o->text : "", o->text_len), c->finish);
    }
}

static void stream_end(sl_oai_answer *a)
{
    if (a->include_usage) {
        json_t *o = envelope(a, json_array());
        if (o)
            json_object_set_new(o, "usage", usage(a));
        put_event(a, o);
    }
    sl_sb_str(&a->out, "data: [DONE]\n\n");
}

static void fail(sl_oai_answer *a, sl_status st, const char *error)
{
    a->failed = true;
    a->status = st;
    snprintf(a->error, sizeof a->error, "%s", error);
    if (!a->stream || !a->began)
        return; /* nothing was sent: an ordinary error response is still possible */
    int code;
    char *text = sl_oai_error_json(st, error, &code);
    if (text) {
        sl_sb_str(&a->out, "data: ");
        sl_sb_str(&a->out, text);
        sl_sb_str(&a->out, "\n\n");
        free(text);
    }
}

/* ---- both ---- */

static void end_choice(sl_oai_answer *a, choice *c, const sl_output *o)
{
    c->ended = true;
    a->ended++;
    c->finish = o->finish == SL_FINISH_LENGTH ? "length" : "stop";
    char text[32];
    if (o->matched_stop) {
        c->stop_reason = strdup(o->matched_stop);
    } else if (o->matched_token >= 0) {
        snprintf(text, sizeof text, "%d", o->matched_token);
        c->stop_reason = strdup(text);
    }
}

void sl_oai_answer_feed(sl_oai_answer *a, const sl_output *o)
{
    if (a->failed || o->index >= a->n || a->choices[o->index].ended)
        return;
    choice *c = &a->choices[o->index];
    c->prompt_tokens = o->prompt_tokens;
    c->completion_tokens = o->completion_tokens;
    c->cached_tokens = o->cached_tokens;
    if (o->finished && o->status) {
        fail(a, o->status, o->error);
        return;
    }
    for (size_t i = 0; a->logprobs && i < o->n_tokens; i++) {
        if (a->chat)
            add_chat_logprob(a, c, &o->tokens[i]);
        else
            add_text_logprob(a, c, &o->tokens[i]);
    }
    if (o->finished)
        end_choice(a, c, o);
    if (a->stream)
        stream_output(a, o);
    else
        sl_sb_append(&c->text, o->text, o->text_len);
    if (a->stream && a->ended == a->n)
        stream_end(a);
    if (a->oom || a->out.bad || c->text.bad)
        fail(a, SL_ERR_NO_MEMORY, "out of memory");
}

bool sl_oai_answer_stream(const sl_oai_answer *a)
{
    return a->stream;
}

bool sl_oai_answer_done(const sl_oai_answer *a)
{
    return a->failed || a->ended == a->n;
}

bool sl_oai_answer_began(const sl_oai_answer *a)
{
    return a->began;
}

sl_status sl_oai_answer_status(const sl_oai_answer *a)
{
    return a->status;
}

const char *sl_oai_answer_error(const sl_oai_answer *a)
{
    return a->error;
}

const char *sl_oai_answer_bytes(const sl_oai_answer *a, size_t *n)
{
    *n = a->out.len - a->taken;
    return a->out.data ? a->out.data + a->taken : "";
}

void sl_oai_answer_consume(sl_oai_answer *a, size_t n)
{
    a->taken += n;
    if (a->taken == a->out.len) {
        a->out.len = a->taken = 0;
    } else if (a->taken > a->out.len / 2) { /* so that a stream that is never quite empty does not grow */
        memmove(a->out.data, a->out.data + a->taken, a->out.len - a->taken);
        a->out.len -= a->taken;
        a->taken = 0;
    }
}

void sl_oai_answer_fail(sl_oai_answer *a, sl_status st, const char *error)
{
    if (!sl_oai_answer_done(a))
        fail(a, st, error);
}

/* ---- document ---- */

static json_t *chat_choice(sl_oai_answer *a, choice *c)
{
    json_t *msg = NULL;
    if (sl_chat_parse(a->env.chat, a->thinking, a->tools, c->text.data ? c->text.data : "", c->text.len,
                      &msg))
        return NULL;
    json_t *calls = json_object_get(msg, "tool_calls"), *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        char id[48];
        make_call_id(id, sizeof id);
        if (!json_object_get(call, "id"))
            json_object_set_new(call, "id", json_string(id));
    }
    if (json_array_size(calls) && !strcmp(c->finish, "stop"))
        c->finish = "tool_calls";
    if (!json_object_get(msg, "refusal"))
        json_object_set_new(msg, "refusal", json_null());
    return msg;
}

static json_t *document_choice(sl_oai_answer *a, uint32_t i)
{
    choice *c = &a->choices[i];
    json_t *body = a->chat ? chat_choice(a, c) : json_stringn(c->text.data ? c->text.data : "", c->text.len);
    if (!body)
        return NULL;
    json_t *o = json_pack("{s:i, s:o, s:o, s:s}", "index", (int)i, a->chat ? "message" : "text", body,
                          "logprobs", take_logprobs(a, c), "finish_reason", c->finish);
    if (o)
        json_object_set_new(o, "stop_reason", c->stop_reason ? json_string(c->stop_reason) : json_null());
    return o;
}

char *sl_oai_answer_json(sl_oai_answer *a)
{
    json_t *choices = json_array();
    for (uint32_t i = 0; i < a->n; i++) {
        json_t *c = document_choice(a, i);
        if (!c) {
            json_decref(choices);
            return NULL;
        }
        json_array_append_new(choices, c);
    }
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "id", a->id, "object",
                          a->chat ? "chat.completion" : "text_completion", "created", (json_int_t)a->created,
                          "model", a->env.served_name, "choices", choices, "usage", usage(a));
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}
