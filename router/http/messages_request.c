/*
 * A body of Anthropic's /v1/messages as one of /v1/chat/completions. What the model cannot see (images, documents, tools that
 * run on a server) is refused by name; thinking blocks of earlier answers are left out, as the chat formats do. Pure, any thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "router/http/translate.h"

#define W "body"

static const char *const TEXT[] = {"text", NULL};

/* ---- messages ---- */

typedef struct reader {
    json_t *messages; /* of the chat */
    sl_strbuf text;   /* of the message that is being read, since its last other block */
    const char *role;
    char where[128];
    sl_err *err;
} reader;

static sl_status end_text(reader *r)
{
    return r->text.len || r->text.bad ? oai_append(r->messages, oai_message(r->role, &r->text), r->err)
                                      : SL_OK;
}

static sl_status tool_use(reader *r, const json_t *b)
{
    const char *id, *name;
    const json_t *input = json_object_get(b, "input");
    SL_TRY(oai_need_string(b, r->where, "id", &id, r->err));
    SL_TRY(oai_need_string(b, r->where, "name", &name, r->err));
    if (!json_is_object(input))
        return sl_fail(r->err, SL_ERR_INVALID, "%s.input: want an object", r->where);
    SL_TRY(end_text(r));
    char *args = json_dumps(input, JSON_COMPACT);
    sl_status st = args ? oai_add_call(r->messages, id, name, args, r->err)
                        : sl_fail(r->err, SL_ERR_NO_MEMORY, "out of memory");
    free(args);
    return st;
}

static sl_status tool_result(reader *r, const json_t *b)
{
    const char *id;
    char where[160];
    sl_strbuf text = {0};
    const json_t *content = json_object_get(b, "content");
    SL_TRY(oai_need_string(b, r->where, "tool_use_id", &id, r->err));
    SL_TRY(end_text(r));
    snprintf(where, sizeof where, "%s.content", r->where);
    sl_status st =
        content && !json_is_null(content) ? oai_join_text(content, TEXT, where, &text, r->err) : SL_OK;
    if (st) {
        sl_sb_free(&text);
        return st;
    }
    json_t *m = oai_message("tool", &text);
    if (m)
        json_object_set_new(m, "tool_call_id", json_string(id));
    return oai_append(r->messages, m, r->err);
}

static sl_status block(reader *r, const json_t *b)
{
    const char *type = json_string_value(json_object_get(b, "type"));
    bool user = !strcmp(r->role, "user");
    if (!json_is_object(b) || !type)
        return sl_fail(r->err, SL_ERR_INVALID, "%s.type: want a string", r->where);
    if (!strcmp(type, "text")) {
        const char *text;
        SL_TRY(oai_need_string(b, r->where, "text", &text, r->err));
        sl_sb_append(&r->text, text, json_string_length(json_object_get(b, "text")));
        return SL_OK;
    }
    if (!user && !strcmp(type, "tool_use"))
        return tool_use(r, b);
    if (user && !strcmp(type, "tool_result"))
        return tool_result(r, b);
    if (!user && (!strcmp(type, "thinking") || !strcmp(type, "redacted_thinking")))
        return SL_OK;
    return sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s.type: '%.40s' is not supported in a message of role %s",
                   r->where, type, r->role);
}

static sl_status message(reader *r, const json_t *m, size_t at)
{
    const json_t *content = json_object_get(m, "content"), *b;
    size_t i;
    snprintf(r->where, sizeof r->where, W ".messages[%zu]", at);
    if (!json_is_object(m))
        return sl_fail(r->err, SL_ERR_INVALID, "%s: want an object", r->where);
    SL_TRY(oai_need_string(m, r->where, "role", &r->role, r->err));
    if (strcmp(r->role, "user") && strcmp(r->role, "assistant"))
        return sl_fail(r->err, SL_ERR_INVALID, "%s.role: want user or assistant", r->where);
    if (json_is_string(content)) {
        sl_sb_append(&r->text, json_string_value(content), json_string_length(content));
        return oai_append(r->messages, oai_message(r->role, &r->text), r->err);
    }
    if (!json_is_array(content))
        return sl_fail(r->err, SL_ERR_INVALID, "%s.content: want a string or a list of blocks", r->where);
    json_array_foreach((json_t *)content, i, b)
    {
        snprintf(r->where, sizeof r->where, W ".messages[%zu].content[%zu]", at, i);
        SL_TRY(block(r, b));
    }
    return end_text(r);
}

static sl_status read_messages(const json_t *o, json_t *out, sl_err *err)
{
    json_t *list = NULL, *m;
    size_t i;
    sl_status st = SL_OK;
    reader r = {.messages = json_array(), .err = err};
    const json_t *system = json_object_get(o, "system");
    json_object_set_new(out, "messages", r.messages);
    if (oai_given(o, "system")) {
        st = oai_join_text(system, TEXT, W ".system", &r.text, err);
        if (!st && r.text.len)
            st = oai_append(r.messages, oai_message("system", &r.text), err);
    }
    if (!st)
        st = sl_json_get_array(o, W, "messages", &list, err);
    if (!st && !json_array_size(list))
        st = sl_fail(err, SL_ERR_INVALID, W ".messages: is empty");
    for (i = 0; !st && i < json_array_size(list); i++) {
        m = json_array_get(list, i);
        st = message(&r, m, i);
    }
    sl_sb_free(&r.text);
    return st;
}

/* ---- tools, thinking ---- */

static sl_status read_tool(const json_t *t, size_t i, json_t *tools, sl_err *err)
{
    const char *name, *type = json_string_value(json_object_get(t, "type"));
    char where[64];
    snprintf(where, sizeof where, W ".tools[%zu]", i);
    if (!json_is_object(t))
        return sl_fail(err, SL_ERR_INVALID, "%s: want an object", where);
    if (type && strcmp(type, "custom"))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s.type: '%.40s' is not supported", where, type);
    SL_TRY(oai_need_string(t, where, "name", &name, err));
    json_t *f = json_pack("{s:s}", "name", name);
    oai_move(t, "description", f, "description");
    oai_move(t, "input_schema", f, "parameters");
    return oai_append(tools, json_pack("{s:s, s:o}", "type", "function", "function", f), err);
}

static sl_status read_choice(const json_t *o, json_t *out, sl_err *err)
{
    json_t *choice = NULL;
    const char *type, *name;
    bool alone = false;
    SL_TRY(sl_json_opt_object(o, W, "tool_choice", &choice, err));
    if (!choice)
        return SL_OK;
    SL_TRY(oai_need_string(choice, W ".tool_choice", "type", &type, err));
    SL_TRY(sl_json_opt_bool(choice, W ".tool_choice", "disable_parallel_tool_use", &alone, err));
    if (alone)
        json_object_set_new(out, "parallel_tool_calls", json_false());
    if (!strcmp(type, "auto") || !strcmp(type, "none")) {
        json_object_set_new(out, "tool_choice", json_string(type));
    } else if (!strcmp(type, "any")) {
        json_object_set_new(out, "tool_choice", json_string("required"));
    } else if (!strcmp(type, "tool")) {
        SL_TRY(oai_need_string(choice, W ".tool_choice", "name", &name, err));
        json_object_set_new(out, "tool_choice",
                            json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name));
    } else {
        return sl_fail(err, SL_ERR_INVALID, W ".tool_choice.type: want auto, any, tool or none");
    }
    return SL_OK;
}

static sl_status read_tools(const json_t *o, json_t *out, sl_err *err)
{
    json_t *list = NULL;
    SL_TRY(sl_json_opt_array(o, W, "tools", &list, err));
    if (!list || !json_array_size(list))
        return read_choice(o, out, err); /* a misspelt one is refused without tools, too */
    json_t *tools = json_array();
    json_object_set_new(out, "tools", tools);
    for (size_t i = 0; i < json_array_size(list); i++)
        SL_TRY(read_tool(json_array_get(list, i), i, tools, err));
    return read_choice(o, out, err);
}

/* The answer begins with a thinking block only if the request says so. */
static sl_status read_thinking(const json_t *o, json_t *out, sl_err *err)
{
    json_t *t = NULL;
    const char *type = "disabled";
    SL_TRY(sl_json_opt_object(o, W, "thinking", &t, err));
    if (t)
        SL_TRY(oai_need_string(t, W ".thinking", "type", &type, err));
    if (strcmp(type, "enabled") && strcmp(type, "adaptive") && strcmp(type, "disabled"))
        return sl_fail(err, SL_ERR_INVALID, W ".thinking.type: want enabled, adaptive or disabled");
    json_object_set_new(out, "chat_template_kwargs",
                        json_pack("{s:b}", "thinking", strcmp(type, "disabled") != 0));
    return SL_OK;
}

/* The schema that the answer follows, and how much the model is to reason. */
static sl_status read_output(const json_t *o, json_t *out, sl_err *err)
{
    json_t *config = NULL, *format = NULL;
    const char *type;
    SL_TRY(sl_json_opt_object(o, W, "output_config", &config, err));
    if (config)
        SL_TRY(sl_json_opt_object(config, W ".output_config", "format", &format, err));
    if (config)
        oai_move(config, "effort", out, "reasoning_effort");
    if (!format)
        return SL_OK;
    SL_TRY(oai_need_string(format, W ".output_config.format", "type", &type, err));
    if (strcmp(type, "json_schema"))
        return sl_fail(err, SL_ERR_UNSUPPORTED, W ".output_config.format.type: want json_schema");
    json_t *schema = json_object();
    oai_move(format, "schema", schema, "schema");
    json_object_set_new(out, "response_format", json_pack("{s:s, s:o}", "type", type, "json_schema", schema));
    return SL_OK;
}

static sl_status read_all(const json_t *o, json_t *out, sl_err *err)
{
    static const char *const same[] = {"model",  "max_tokens", "temperature", "top_p",     "top_k",
                                       "stream", "seed",       "ignore_eos",  "cache_salt"};
    for (size_t i = 0; i < SL_COUNT(same); i++)
        oai_move(o, same[i], out, same[i]);
    oai_move(o, "stop_sequences", out, "stop");
    SL_TRY(read_messages(o, out, err));
    SL_TRY(read_tools(o, out, err));
    SL_TRY(read_output(o, out, err));
    return read_thinking(o, out, err);
}

sl_status sl_oai_from_messages(const json_t *o, json_t **chat, sl_err *err)
{
    json_t *out = json_object();
    sl_status st = out ? read_all(o, out, err) : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (st)
        json_decref(out);
    else
        *chat = out;
    return st;
}
