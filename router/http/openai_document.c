/*
 * An answer as one JSON document, made when all choices have ended. Any thread: only constant data are shared.
 */
#include <stdlib.h>
#include <string.h>

#include "router/http/agent.h"

/* Takes the reasoning before the constraint out of the text: what it is; NULL: there is none, or no memory for it. */
static json_t *take_reasoning(const sl_oai_answer *a, oai_choice *c)
{
    json_t *msg = NULL, *reasoning = NULL;
    if (!a->thinking ||
        sl_chat_parse(a->env.chat, a->thinking, NULL, c->text.data ? c->text.data : "", c->text.len, &msg))
        return NULL;
    const json_t *content = json_object_get(msg, "content");
    reasoning = json_incref(json_object_get(msg, "reasoning_content"));
    c->text.len = 0;
    sl_sb_append(&c->text, json_string_length(content) ? json_string_value(content) : "",
                 json_string_length(content));
    json_decref(msg);
    return reasoning;
}

/* The message of an answer under a constraint, whose text is no text of the model's own format. */
static json_t *constrained_message(const sl_oai_answer *a, oai_choice *c)
{
    const char *text = c->text.data ? c->text.data : "";
    char id[48];
    json_t *calls = NULL;
    if (a->form == OAI_CALLS)
        calls = oai_forced_calls(c);
    oai_make_call_id(id, sizeof id);
    if (a->form == OAI_CALL)
        calls = json_pack("[{s:s, s:s, s:{s:s, s:s%}}]", "id", id, "type", "function", "function", "name",
                          a->function, "arguments", text, c->text.len);
    if (!calls)
        return json_pack("{s:s, s:s%, s:n}", "role", "assistant", "content", text, c->text.len, "refusal");
    for (size_t i = 0; i < json_array_size(calls); i++)
        json_object_del(json_array_get(calls, i), "index");
    if (!strcmp(c->finish, "stop"))
        c->finish = "tool_calls";
    return json_pack("{s:s, s:n, s:o, s:n}", "role", "assistant", "content", "tool_calls", calls, "refusal");
}

static json_t *chat_message(sl_oai_answer *a, oai_choice *c)
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
        oai_make_call_id(id, sizeof id);
        if (!json_object_get(call, "id"))
            json_object_set_new(call, "id", json_string(id));
    }
    if (json_array_size(calls) && !strcmp(c->finish, "stop"))
        c->finish = "tool_calls";
    if (!json_object_get(msg, "refusal"))
        json_object_set_new(msg, "refusal", json_null());
    return msg;
}

static json_t *forced_message(const sl_oai_answer *a, oai_choice *c)
{
    json_t *reasoning = take_reasoning(a, c), *msg = constrained_message(a, c);
    if (reasoning && msg)
        json_object_set(msg, "reasoning_content", reasoning);
    json_decref(reasoning);
    return msg;
}

/* The choice's own text is freed as soon as it is in the document. */
static void put_choice(sl_oai_answer *a, uint32_t i, sl_strbuf *out)
{
    oai_choice *c = &a->choices[i];
    sl_sb_printf(out, "%s{\"index\":%u,\"%s\":", i ? "," : "", i, a->chat ? "message" : "text");
    if (a->chat)
        oai_put_json(a->form ? forced_message(a, c) : chat_message(a, c), out);
    else
        oai_prompt_text(a, i, c->text.data ? c->text.data : "", c->text.len, out);
    sl_sb_free(&c->text);
    sl_sb_str(out, ",\"logprobs\":");
    oai_prompt_logprobs(a, i, &c->lp);
    oai_logprobs_take(a, &c->lp, out);
    sl_sb_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", c->finish);
    if (c->stop_reason)
        oai_put_stop_reason(c, out);
    else
        sl_sb_str(out, "null");
    if (!a->chat)
        oai_prompt_member(a, i, out);
    sl_sb_char(out, '}');
}

char *sl_oai_answer_json(sl_oai_answer *a, sl_guard *guard)
{
    sl_strbuf out = {0};
    a->env.guard = guard;
    if (a->agent)
        return a->agent->shape->document(a);
    if (a->generate)
        return oai_generate_document(a);
    oai_put_head(a, a->chat ? "chat.completion" : "text_completion", &out);
    for (uint32_t i = 0; i < a->n && !out.bad && !sl_guard_check(guard, NULL); i++)
        put_choice(a, i, &out);
    sl_sb_str(&out, "],\"usage\":");
    oai_put_usage(a, &out);
    if (a->chat)
        oai_prompt_member(a, 0, &out);
    sl_sb_char(&out, '}');
    return sl_sb_take(&out);
}
