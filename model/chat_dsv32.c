/*
 * DeepSeek-V3.2 prompts. The model has no template file; the rules of its published encoder are:
 *
 *   - A user or developer turn is followed at once by the beginning of the assistant's turn: <think> when the model is
 *     to reason there, which is after the last user turn and after the tool results that follow it; </think> elsewhere.
 *   - Reasoning is rendered only after the last user turn.
 *   - While thinking, developer turns before the last user turn are left out.
 */
#include <string.h>

#include "model/chat_parse_impl.h"

#define D "｜DSML｜"

static const char tools_head[] =
    "## Tools\n\n"
    "You have access to a set of tools you can use to answer the user's question.\n"
    "You can invoke functions by writing a \"<" D
    "function_calls>\" block like the following as part of your reply to "
    "the user:\n"
    "<" D "function_calls>\n"
    "<" D "invoke name=\"$FUNCTION_NAME\">\n"
    "<" D "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</" D "parameter>\n"
    "...\n"
    "</" D "invoke>\n"
    "<" D "invoke name=\"$FUNCTION_NAME2\">\n"
    "...\n"
    "</" D "invoke>\n"
    "</" D "function_calls>\n\n"
    "String and scalar parameters should be specified as is without any escaping or quotes, while lists and "
    "objects "
    "should use JSON format. The \"string\" attribute should be set to \"true\" for string type parameters "
    "and "
    "\"false\" for other types (numbers, booleans, arrays, objects).\n\n"
    "If the thinking_mode is enabled, then after function results you should strongly consider outputting a "
    "thinking "
    "block. Here is an example:\n\n"
    "<" D "function_calls>\n"
    "...\n"
    "</" D "function_calls>\n\n"
    "<function_results>\n"
    "...\n"
    "</function_results>\n\n"
    "<think>...thinking about results</think>\n\n"
    "Here are the functions available in JSONSchema format:\n"
    "<functions>\n";

static void add_tools(ct_render *r, const json_t *tools)
{
    size_t i;
    json_t *tool;
    ct_str(&r->out, "\n\n");
    ct_str(&r->out, tools_head);
    json_array_foreach(tools, i, tool)
    {
        ct_str(&r->out, i ? "\n" : "");
        ct_client_json(r, ct_function(tool));
    }
    ct_str(&r->out, "\n</functions>\n");
}

static void add_schema(ct_render *r, const json_t *schema)
{
    ct_str(&r->out,
           "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
    ct_client_json(r, schema);
}

/* Tools and response format: the message's own, else those of the request if with_request. */
static void add_extras(ct_render *r, const json_t *msg, bool with_request)
{
    const json_t *tools = json_object_get(msg, "tools"), *schema = json_object_get(msg, "response_format");
    bool own = json_array_size(tools) > 0;
    if (!own && with_request)
        tools = ct_tools(r->req);
    if (json_array_size(tools) > 0)
        add_tools(r, tools);
    if (!own && with_request && tools)
        ct_choice(r);
    if ((!schema || json_is_null(schema)) && with_request)
        schema = ct_schema(r->req);
    if (schema && !json_is_null(schema))
        add_schema(r, schema);
}

static bool is(const json_t *msg, const char *role)
{
    return strcmp(ct_role(msg), role) == 0;
}

static bool is_user(const json_t *msg)
{
    return is(msg, "user") || is(msg, "developer");
}

static void open_answer(ct_render *r, bool thinks)
{
    ct_str(&r->out, thinks ? "<think>" : "</think>");
}

static sl_status add_user(ct_render *r, size_t i)
{
    const json_t *msg = r->msgs[i];
    bool developer = is(msg, "developer");
    if (!json_object_get(msg, "content") || (developer && !ct_has_content(msg)))
        return ct_fail(r, i, "content", "is missing");
    ct_str(&r->out, "<｜User｜>");
    if (developer) {
        add_extras(r, msg, false);
        ct_str(&r->out, "\n\n# The user's message is: ");
    }
    sl_status st = ct_content(r, i);
    ct_str(&r->out, "<｜Assistant｜>");
    open_answer(r, i == r->last_user && r->req->thinking);
    return st;
}

static sl_status add_call(ct_render *r, size_t i, size_t k)
{
    const char *name, *key;
    json_t *args, *v;
    SL_TRY(ct_arguments(r, i, k, &name, &args));
    ct_str(&r->out, k ? "\n<" D "invoke name=\"" : "<" D "invoke name=\"");
    ct_client(r, name, strlen(name));
    ct_str(&r->out, "\">\n");
    bool first = true;
    json_object_foreach(args, key, v)
    {
        ct_str(&r->out, first ? "<" D "parameter name=\"" : "\n<" D "parameter name=\"");
        ct_client(r, key, strlen(key));
        ct_str(&r->out, json_is_string(v) ? "\" string=\"true\">" : "\" string=\"false\">");
        if (json_is_string(v))
            ct_client(r, json_string_value(v), json_string_length(v));
        else
            ct_client_json(r, v);
        ct_str(&r->out, "</" D "parameter>");
        first = false;
    }
    ct_str(&r->out, "\n</" D "invoke>");
    json_decref(args);
    return SL_OK;
}

static sl_status add_assistant(ct_render *r, size_t i)
{
    const json_t *msg = r->msgs[i], *calls = ct_tool_calls(msg);
    const char *reasoning = ct_reasoning(msg);
    if (r->req->thinking && (r->last_user == SIZE_MAX || i > r->last_user)) {
        if (!reasoning && !calls)
            return ct_fail(r, i, "reasoning_content", "is needed after the last user message while thinking");
        if (reasoning)
            ct_client(r, reasoning, strlen(reasoning));
        ct_str(&r->out, "</think>");
    }
    SL_TRY(ct_content(r, i));
    if (calls)
        ct_str(&r->out, "\n\n<" D "function_calls>\n");
    for (size_t k = 0; k < json_array_size(calls); k++)
        SL_TRY(add_call(r, i, k));
    if (calls)
        ct_str(&r->out, "\n</" D "function_calls>");
    ct_str(&r->out, "<｜end▁of▁sentence｜>");
    return SL_OK;
}

static sl_status add_result(ct_render *r, size_t i)
{
    size_t caller = i;
    while (caller > 0 && is(r->msgs[caller], "tool"))
        caller--;
    size_t order = i - caller, calls = json_array_size(ct_tool_calls(r->msgs[caller]));
    if (!is(r->msgs[caller], "assistant") || order > calls)
        return ct_fail(r, i, "role",
                       "a tool result without its tool call in the assistant message before it");
    if (order == 1)
        ct_str(&r->out, "\n\n<function_results>");
    ct_str(&r->out, "\n<result>");
    sl_status st = ct_content(r, i);
    ct_str(&r->out, "</result>");
    if (order < calls)
        return st;
    ct_str(&r->out, "\n</function_results>\n\n");
    open_answer(r, r->req->thinking && (r->last_user == SIZE_MAX || i >= r->last_user));
    return st;
}

static sl_status add_message(ct_render *r, size_t i)
{
    const json_t *msg = r->msgs[i];
    if (is_user(msg))
        return add_user(r, i);
    if (is(msg, "assistant"))
        return add_assistant(r, i);
    if (is(msg, "tool"))
        return add_result(r, i);
    sl_status st = ct_content(r, i);
    add_extras(r, msg, i == 0);
    return st;
}

static size_t find_last_user(const ct_render *r)
{
    for (size_t i = r->n; i-- > 0;) {
        if (is_user(r->msgs[i]))
            return i;
    }
    return SIZE_MAX;
}

/* While thinking, developer turns before the last user turn are left out. */
static void drop_developers(ct_render *r)
{
    size_t last = find_last_user(r), n = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (last != SIZE_MAX && i < last && is(r->msgs[i], "developer"))
            continue;
        r->msgs[n] = r->msgs[i];
        r->index[n++] = r->index[i];
    }
    r->n = n;
}

/* The prompt must end where the model's answer begins. */
static sl_status check_end(const ct_render *r)
{
    size_t last = r->n - 1, calls = 0, results = 0;
    if (is(r->msgs[last], "assistant"))
        return ct_fail(r, last, "role", "the last message must not be the assistant's");
    while (last > 0 && is(r->msgs[last], "tool")) {
        results++;
        last--;
    }
    calls = json_array_size(ct_tool_calls(r->msgs[last]));
    if (results && results < calls)
        return ct_fail(r, r->n - 1, "role", "results of some tool calls are missing");
    return SL_OK;
}

static sl_status render(ct_render *r)
{
    if (r->req->thinking && !r->req->keep_reasoning)
        drop_developers(r);
    r->last_user = find_last_user(r);
    ct_str(&r->out, "<｜begin▁of▁sentence｜>");
    if (!is(r->msgs[0], "system"))
        add_extras(r, NULL, true);
    for (size_t i = 0; i < r->n; i++)
        SL_TRY(add_message(r, i));
    return check_end(r);
}

static const ct_syntax syntax = {.tools_open = "<" D "function_calls>",
                                 .block_close = "</" D "function_calls>",
                                 .call_open = "<" D "invoke",
                                 .call_close = "</" D "invoke>",
                                 .arg_open = "<" D "parameter",
                                 .value_close = "</" D "parameter>",
                                 .strip_tools = 2,
                                 .think = THINK_OPEN};

const ct_format ct_dsv32 = {.render = render, .syntax = &syntax};
