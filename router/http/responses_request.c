/*
 * A body of OpenAI's /v1/responses as one of /v1/chat/completions, and the members that its answer repeats. Nothing is stored: every
 * request carries its whole conversation. Reasoning of earlier answers is left out, as the chat formats do. Pure, any thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "router/http/translate.h"

#define W "body"

/* Of a member that the events of a stream repeat. They repeat it three times, also while the client does not read. */
enum { STREAM_MEMBER_BYTES = 16 << 10 };

static const char *const TEXT[] = {"input_text", "output_text", "text", NULL};

/* ---- input ---- */

static sl_status read_message(const json_t *m, const char *where, json_t *messages, sl_err *err)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const char *role;
    char inner[256];
    size_t i = 0;
    sl_strbuf text = {0};
    SL_TRY(oai_need_string(m, where, "role", &role, err));
    while (i < SL_COUNT(roles) && strcmp(role, roles[i]))
        i++;
    if (i == SL_COUNT(roles))
        return sl_fail(err, SL_ERR_INVALID, "%s.role: want user, assistant, system or developer", where);
    snprintf(inner, sizeof inner, "%s.content", where);
    sl_status st = oai_join_text(json_object_get(m, "content"), TEXT, inner, &text, err);
    if (st) {
        sl_sb_free(&text);
        return st;
    }
    return oai_append(messages, oai_message(i == 3 ? "system" : role, &text), err);
}

static sl_status read_call(const json_t *m, const char *where, json_t *messages, sl_err *err)
{
    const char *id, *name, *args;
    SL_TRY(oai_need_string(m, where, "call_id", &id, err));
    SL_TRY(oai_need_string(m, where, "name", &name, err));
    SL_TRY(oai_need_string(m, where, "arguments", &args, err));
    return oai_add_call(messages, id, name, args, err);
}

static sl_status read_output(const json_t *m, const char *where, json_t *messages, sl_err *err)
{
    const char *id;
    char inner[256];
    sl_strbuf text = {0};
    SL_TRY(oai_need_string(m, where, "call_id", &id, err));
    snprintf(inner, sizeof inner, "%s.output", where);
    sl_status st = oai_join_text(json_object_get(m, "output"), TEXT, inner, &text, err);
    if (st) {
        sl_sb_free(&text);
        return st;
    }
    json_t *out = oai_message("tool", &text);
    if (out)
        json_object_set_new(out, "tool_call_id", json_string(id));
    return oai_append(messages, out, err);
}

static sl_status read_item(const json_t *m, size_t i, json_t *messages, sl_err *err)
{
    static const struct {
        const char *type;
        sl_status (*read)(const json_t *m, const char *where, json_t *messages, sl_err *err);
    } kinds[] = {{"message", read_message},
                 {"function_call", read_call},
                 {"function_call_output", read_output},
                 {"reasoning", NULL}};
    char where[64];
    snprintf(where, sizeof where, W ".input[%zu]", i);
    const json_t *type = json_object_get(m, "type");
    if (!json_is_object(m) || (type && !json_is_string(type)))
        return sl_fail(err, SL_ERR_INVALID, "%s: want an object with a type", where);
    const char *name = type ? json_string_value(type) : "message";
    for (size_t k = 0; k < SL_COUNT(kinds); k++)
        if (!strcmp(name, kinds[k].type))
            return kinds[k].read ? kinds[k].read(m, where, messages, err) : SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s.type: '%.40s' is not supported", where, name);
}

static sl_status read_input(const json_t *o, json_t *out, sl_err *err)
{
    const json_t *input = json_object_get(o, "input"), *instructions = json_object_get(o, "instructions");
    json_t *messages = json_array();
    json_object_set_new(out, "messages", messages);
    if (oai_given(o, "instructions")) {
        if (!json_is_string(instructions))
            return sl_fail(err, SL_ERR_INVALID, W ".instructions: want a string");
        SL_TRY(oai_append(messages, json_pack("{s:s, s:O}", "role", "system", "content", instructions), err));
    }
    if (json_is_string(input))
        return oai_append(messages, json_pack("{s:s, s:O}", "role", "user", "content", input), err);
    if (!json_is_array(input) || !json_array_size(input))
        return sl_fail(err, SL_ERR_INVALID, W ".input: want a string or a list of items");
    for (size_t i = 0; i < json_array_size(input); i++)
        SL_TRY(read_item(json_array_get(input, i), i, messages, err));
    return SL_OK;
}

/* ---- tools, the form of the answer ---- */

static sl_status read_tool(const json_t *t, size_t i, json_t *tools, sl_err *err)
{
    static const char *const same[] = {"name", "description", "parameters", "strict"};
    const char *type;
    char where[64];
    snprintf(where, sizeof where, W ".tools[%zu]", i);
    if (!json_is_object(t))
        return sl_fail(err, SL_ERR_INVALID, "%s: want an object", where);
    SL_TRY(oai_need_string(t, where, "type", &type, err));
    if (strcmp(type, "function"))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s.type: '%.40s' is not supported", where, type);
    json_t *f = json_object();
    for (size_t k = 0; k < SL_COUNT(same); k++)
        oai_move(t, same[k], f, same[k]);
    return oai_append(tools, json_pack("{s:s, s:o}", "type", "function", "function", f), err);
}

/* Also without tools, so that a misspelt one is refused. */
static sl_status read_choice(const json_t *o, json_t *out, sl_err *err)
{
    const json_t *choice = json_object_get(o, "tool_choice");
    const char *type, *name;
    if (!json_is_object(choice)) {
        oai_move(o, "tool_choice", out, "tool_choice");
        return SL_OK;
    }
    SL_TRY(oai_need_string(choice, W ".tool_choice", "type", &type, err));
    if (strcmp(type, "function"))
        return sl_fail(err, SL_ERR_UNSUPPORTED, W ".tool_choice.type: '%.40s' is not supported", type);
    SL_TRY(oai_need_string(choice, W ".tool_choice", "name", &name, err));
    json_object_set_new(out, "tool_choice",
                        json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name));
    return SL_OK;
}

static sl_status read_tools(const json_t *o, json_t *out, sl_err *err)
{
    json_t *list = NULL;
    SL_TRY(read_choice(o, out, err));
    SL_TRY(sl_json_opt_array(o, W, "tools", &list, err));
    if (!list || !json_array_size(list))
        return SL_OK;
    json_t *tools = json_array();
    json_object_set_new(out, "tools", tools);
    for (size_t i = 0; i < json_array_size(list); i++)
        SL_TRY(read_tool(json_array_get(list, i), i, tools, err));
    oai_move(o, "parallel_tool_calls", out, "parallel_tool_calls");
    return SL_OK;
}

static sl_status read_text(const json_t *o, json_t *out, sl_err *err)
{
    json_t *text = NULL, *format = NULL;
    const char *type;
    SL_TRY(sl_json_opt_object(o, W, "text", &text, err));
    if (text)
        SL_TRY(sl_json_opt_object(text, W ".text", "format", &format, err));
    if (!format)
        return SL_OK;
    SL_TRY(oai_need_string(format, W ".text.format", "type", &type, err));
    if (!strcmp(type, "text"))
        return SL_OK;
    if (!strcmp(type, "json_schema")) {
        json_t *schema = json_object();
        oai_move(format, "name", schema, "name");
        oai_move(format, "schema", schema, "schema");
        oai_move(format, "strict", schema, "strict");
        json_object_set_new(out, "response_format",
                            json_pack("{s:s, s:o}", "type", type, "json_schema", schema));
    } else {
        json_object_set_new(out, "response_format", json_pack("{s:s}", "type", type));
    }
    return SL_OK;
}

static sl_status read_all(const json_t *o, json_t *out, sl_err *err)
{
    static const char *const same[] = {"model",      "temperature", "top_p",
                                       "stream",     "seed",        "ignore_eos",
                                       "cache_salt", "user",        "chat_template_kwargs"};
    json_t *reasoning = NULL, *metadata = NULL, *stream_options = NULL;
    bool parallel = true;
    for (size_t i = 0; i < SL_COUNT(same); i++)
        oai_move(o, same[i], out, same[i]);
    oai_move(o, "max_output_tokens", out, "max_tokens");
    SL_TRY(sl_json_opt_object(o, W, "stream_options", &stream_options, err));
    SL_TRY(sl_json_opt_bool(o, W, "parallel_tool_calls", &parallel, err)); /* also without tools */
    SL_TRY(sl_json_opt_object(o, W, "reasoning", &reasoning, err));
    if (reasoning)
        oai_move(reasoning, "effort", out, "reasoning_effort");
    SL_TRY(sl_json_opt_object(o, W, "metadata", &metadata, err));
    SL_TRY(read_input(o, out, err));
    SL_TRY(read_tools(o, out, err));
    return read_text(o, out, err);
}

/* As OpenAI's answers repeat the request; what is not given has its default. */
static json_t *defaults(void)
{
    return json_pack(
        "{s:n, s:n, s:{}, s:b, s:f, s:{s:{s:s}}, s:s, s:[], s:f, s:{s:n, s:n}, s:n, s:s, s:n, s:b, s:b}",
        "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", 1, "temperature", 1.0, "text",
        "format", "type", "text", "tool_choice", "auto", "tools", "top_p", 1.0, "reasoning", "effort",
        "summary", "user", "truncation", "disabled", "previous_response_id", "store", 0, "background", 0);
}

static bool is_repeated(const char *key)
{
    static const char *const fixed[] = {"truncation", "previous_response_id", "store", "background"};
    for (size_t i = 0; i < SL_COUNT(fixed); i++) {
        if (!strcmp(key, fixed[i]))
            return false;
    }
    return true;
}

/* Text, because it is made on the pool and the events of a stream are made in the loop. */
static sl_status repeat(const json_t *o, sl_strbuf *out, sl_err *err)
{
    bool stream = json_is_true(json_object_get(o, "stream"));
    json_t *all = defaults(), *v;
    const char *key;
    json_object_foreach(all, key, v)
    {
        bool given = is_repeated(key) && oai_given(o, key);
        char *text = json_dumps(given ? json_object_get(o, key) : v, JSON_COMPACT | JSON_ENCODE_ANY);
        if (given && stream && text && strlen(text) > STREAM_MEMBER_BYTES) {
            free(text);
            text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        }
        sl_sb_printf(out, ",\"%s\":", key);
        sl_sb_str(out, text ? text : "null");
        out->bad |= !text;
        free(text);
    }
    out->bad |= !all;
    json_decref(all);
    return out->bad ? sl_fail(err, SL_ERR_NO_MEMORY, "out of memory") : SL_OK;
}

sl_status sl_oai_from_responses(const json_t *o, json_t **chat, sl_strbuf *shown, sl_err *err)
{
    json_t *out = json_object();
    sl_strbuf text = {0};
    sl_status st = out ? read_all(o, out, err) : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (!st)
        st = repeat(o, &text, err);
    if (st) {
        sl_sb_free(&text);
        json_decref(out);
        return st;
    }
    *chat = out;
    *shown = text;
    return SL_OK;
}
