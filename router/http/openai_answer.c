/*
 * Outputs of a group to an OpenAI answer. One object for both shapes: a stream turns each output into server-sent
 * events at once, a document keeps texts and logprobs until all choices have ended.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "router/http/agent.h"

enum { KEEP_BYTES = 64 << 10 }; /* of a stream's buffer after it was emptied */

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
    a->form = q->form;
    memcpy(a->function, q->function, sizeof a->function);
    a->tools = q->tools;
    q->tools = NULL;
    a->echo = q->echo;
    a->no_output = q->no_output;
    a->prompt_top = q->prompt_logprobs;
    a->prompts = q->prompts;
    a->n_shown = q->n_shown;
    q->prompts = NULL;
    q->n_shown = 0;
    snprintf(a->id, sizeof a->id, "%s", id);
    a->created = created;
    a->n = n;
    a->n_per_prompt = per_prompt ? per_prompt : 1;
    for (size_t i = 0; i < a->n_shown; i++)
        a->kept += a->prompts[i].json.len * (a->stream ? 1 : a->n_per_prompt);
    for (uint32_t i = 0; i < n && a->echo; i++)
        a->choices[i].lp.offset = a->prompts[i / a->n_per_prompt].len;
    a->generate = q->api == OAI_GENERATE;
    a->n_stops = q->n_stops;
    memcpy(a->stops, q->stops, sizeof a->stops);
    if (oai_agent_create(q->api, &q->shown, &a->agent)) {
        sl_oai_answer_destroy(a);
        return NULL;
    }
    a->kept += a->agent ? a->agent->shown.len : 0;
    for (uint32_t i = 0; i < n && a->chat && (a->stream || a->agent) && (!a->form || a->thinking); i++) {
        if (sl_chat_parser_create(env->chat, a->thinking, a->form ? NULL : a->tools, &a->choices[i].parser)) {
            sl_oai_answer_destroy(a);
            return NULL;
        }
    }
    return a;
}

void sl_oai_answer_destroy(sl_oai_answer *a)
{
    if (!a)
        return;
    for (uint32_t i = 0; i < a->n; i++) {
        sl_sb_free(&a->choices[i].text);
        sl_chat_parser_destroy(a->choices[i].parser);
        oai_logprobs_free(&a->choices[i].lp);
        free(a->choices[i].stop_reason);
    }
    sl_oai_prompts_free(a->prompts, a->n_shown);
    oai_agent_free(a->agent);
    json_decref(a->tools);
    sl_sb_free(&a->out);
    free(a->choices);
    free(a);
}

/* ---- parts of both shapes ---- */

void oai_put_head(const sl_oai_answer *a, const char *object, sl_strbuf *out)
{
    sl_sb_str(out, "{\"id\":");
    sl_sb_json(out, a->id, strlen(a->id));
    sl_sb_printf(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object, (long long)a->created);
    sl_sb_json(out, a->env.served_name, strlen(a->env.served_name));
    sl_sb_str(out, ",\"choices\":[");
}

void oai_put_usage(const sl_oai_answer *a, sl_strbuf *out)
{
    uint32_t prompt = 0, completion = 0, cached = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        const oai_choice *c = &a->choices[i];
        completion += c->completion_tokens;
        if (i % a->n_per_prompt)
            continue; /* choices of one prompt share it */
        prompt += c->prompt_tokens;
        cached += c->cached_tokens;
    }
    sl_sb_printf(out,
                 "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
                 "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
                 prompt, completion, prompt + completion, cached);
}

void oai_put_stop_reason(const oai_choice *c, sl_strbuf *out)
{
    if (c->stop_string)
        sl_sb_json(out, c->stop_reason, strlen(c->stop_reason));
    else
        sl_sb_str(out, c->stop_reason);
}

void oai_put_json(json_t *o, sl_strbuf *out)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (text)
        sl_sb_str(out, text);
    else
        out->bad = true;
    free(text);
}

void oai_make_call_id(char *out, size_t cap)
{
    snprintf(out, cap, "call_%016lx%08lx", sl_random_u64(), sl_random_u64() & 0xffffffffu);
}

json_t *oai_forced_calls(const oai_choice *c)
{
    json_t *list = json_loadb(c->text.data ? c->text.data : "", c->text.len, 0, NULL), *out = json_array(),
           *e;
    bool whole = json_is_array(list);
    size_t i;
    json_array_foreach(list, i, e)
    {
        char id[48], *args = json_dumps(json_object_get(e, "arguments"), JSON_COMPACT | JSON_ENCODE_ANY);
        oai_make_call_id(id, sizeof id);
        json_t *call =
            json_pack("{s:i, s:s, s:s, s:{s:O, s:s}}", "index", (int)i, "id", id, "type", "function",
                      "function", "name", json_object_get(e, "name"), "arguments", args ? args : "");
        whole &= call && args && json_array_append_new(out, call) == 0;
        free(args);
    }
    json_decref(list);
    if (whole)
        return out;
    json_decref(out);
    return NULL;
}

/* ---- outputs ---- */

static void fail(sl_oai_answer *a, sl_status st, const char *error)
{
    a->failed = true;
    a->status = st;
    snprintf(a->error, sizeof a->error, "%s", error);
    if (a->stream && a->began && a->agent)
        a->agent->shape->error(a, st, error);
    else if (a->stream && a->began) /* else nothing was sent: an ordinary error response is still possible */
        oai_stream_error(a, st, error);
}

static void end_choice(sl_oai_answer *a, oai_choice *c, const sl_output *o)
{
    c->ended = true;
    a->ended++;
    c->finish = o->finish == SL_FINISH_LENGTH ? "length" : "stop";
    char text[32];
    if (o->matched_stop) {
        c->stop_reason = strdup(o->matched_stop);
        c->stop_string = true;
    }
    for (uint32_t i = 0; i < a->n_stops && !c->stop_reason; i++) { /* not the tokens that end every answer */
        if (a->stops[i] != o->matched_token)
            continue;
        snprintf(text, sizeof text, "%d", o->matched_token);
        c->stop_reason = strdup(text);
    }
}

/* What the one token of an answer without tokens says counts for nothing. */
static sl_output without_output(const sl_output *o)
{
    sl_output x = *o;
    x.n_tokens = x.text_len = x.completion_tokens = 0;
    if (o->finished && !o->status)
        x.finish = SL_FINISH_LENGTH;
    x.matched_stop = NULL;
    x.matched_token = -1;
    return x;
}

void sl_oai_answer_feed(sl_oai_answer *a, const sl_output *given)
{
    if (a->failed || given->index >= a->n || a->choices[given->index].ended)
        return;
    sl_output part = a->no_output ? without_output(given) : *given, *o = &part;
    oai_choice *c = &a->choices[o->index];
    oai_prompt_take(a, o->index / a->n_per_prompt, o->scores, o->n_scores);
    if (a->no_output && !o->finished)
        return;
    c->prompt_tokens = o->prompt_tokens;
    c->completion_tokens = o->completion_tokens;
    c->cached_tokens = o->cached_tokens;
    if (o->finished && o->status) {
        fail(a, o->status, o->error);
        return;
    }
    size_t before = oai_logprobs_bytes(&c->lp);
    for (size_t i = 0; a->logprobs && !a->generate && i < o->n_tokens; i++)
        oai_logprobs_add(a, &c->lp, &o->tokens[i]);
    if (o->finished)
        end_choice(a, c, o);
    bool whole = !a->agent && !a->generate && (!a->stream || (a->form == OAI_CALLS && !a->thinking));
    a->kept += (a->stream ? 0 : oai_logprobs_bytes(&c->lp) - before) + (whole ? o->text_len : 0);
    if (whole)
        sl_sb_append(&c->text, o->text, o->text_len);
    if (a->agent)
        oai_agent_output(a, o);
    else if (a->generate)
        oai_generate_output(a, o);
    else if (a->stream)
        oai_stream_output(a, o);
    if (a->oom || a->out.bad || c->text.bad)
        fail(a, SL_ERR_NO_MEMORY, "out of memory");
}

uint64_t sl_oai_answer_memory(const sl_oai_answer *a)
{
    return a->out.cap + 3 * (uint64_t)a->kept;
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
        if (a->out.cap > KEEP_BYTES)
            sl_sb_free(&a->out);
    } else if (a->taken >
               a->out.len / 2) { /* so that a buffer that is never completely empty does not grow */
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
