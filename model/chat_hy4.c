/*
 * Hy4-preview prompts: every turn is a start token, the role, a middle token, the text, an end token. The first turn is the
 * system's: its text, the tools, and how much the model is to reason. The tokens and tags of the released checkpoint have the
 * name "opensource" in them. A turn of the assistant always has <think>; the reasoning before the last question is kept when
 * there are tools. A call is a name with keys and values; all calls of a turn are in one block. Results of tools are turns.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat_parse_impl.h"

#define S ":opensource"
#define TAG(name) "<" name S ">"
#define CLOSE(name) "</" name S ">"

static void open_turn(ct_render *r, const char *role)
{
    ct_str(&r->out, "<｜hy_start" S "｜>");
    ct_str(&r->out, role);
    ct_str(&r->out, "<｜hy_middle" S "｜>");
}

static void close_turn(ct_render *r)
{
    ct_str(&r->out, "<｜hy_end" S "｜>");
}

static void add_tools(ct_render *r, const json_t *tools)
{
    size_t i;
    json_t *tool;
    ct_str(&r->out, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n");
    json_array_foreach(tools, i, tool)
    {
        ct_client_json(r, tool);
        ct_str(&r->out, "\n");
    }
    ct_str(&r->out,
           "</tools>\n\nFor function call returns, you should first print " TAG(
               "tool_calls") "\n"
                             "For each function call, you should return object like:\n" TAG(
                                 "tool_call") "{function-name}" TAG("arg_key") "{arg-key-1}" CLOSE("arg_key")
                                 TAG("arg_value") "{arg-value-1}" CLOSE("arg_value")
                                     TAG("arg_key") "{arg-key-2}" CLOSE("arg_key")
                                         TAG("arg_value") "{arg-value-2}" CLOSE("arg_value") "..." CLOSE(
                                             "tool_call") "\nAt the end of function call returns, you should "
                                                          "print " CLOSE("tool_calls"));
    ct_choice(r);
}

static bool is_system(const json_t *msg)
{
    return ct_is(msg, "system") || ct_is(msg, "developer");
}

/* The parts are separated by empty lines. */
static sl_status add_system(ct_render *r)
{
    const json_t *tools = ct_tools(r->req), *schema = ct_schema(r->req);
    open_turn(r, "system");
    size_t begin = r->out.n;
    if (is_system(r->msgs[0]))
        SL_TRY(ct_content(r, 0));
    if (tools) {
        ct_str(&r->out, r->out.n > begin ? "\n\n" : "");
        add_tools(r, tools);
    }
    if (schema) {
        ct_str(&r->out, r->out.n > begin ? "\n\n" : "");
        ct_str(&r->out, "Reply with JSON that follows this schema and nothing else:\n");
        ct_client_json(r, schema);
    }
    ct_str(&r->out, "<｜reasoning_mode" S "｜>reasoning_effort:");
    ct_str(&r->out, r->req->thinking ? "high" : "no_think");
    close_turn(r);
    return SL_OK;
}

static sl_status add_call(ct_render *r, size_t i, size_t k)
{
    const char *name, *key;
    size_t n;
    json_t *args, *v;
    SL_TRY(ct_arguments(r, i, k, &name, &args));
    ct_str(&r->out, TAG("tool_call"));
    ct_client(r, name, strlen(name));
    json_object_keylen_foreach(args, key, n, v)
    {
        ct_str(&r->out, TAG("arg_key"));
        ct_client(r, key, n);
        ct_str(&r->out, CLOSE("arg_key") TAG("arg_value"));
        if (json_is_string(v))
            ct_client(r, json_string_value(v), json_string_length(v));
        else
            ct_client_json(r, v);
        ct_str(&r->out, CLOSE("arg_value"));
    }
    ct_str(&r->out, CLOSE("tool_call"));
    json_decref(args);
    return SL_OK;
}

static sl_status add_assistant(ct_render *r, size_t i)
{
    const json_t *msg = r->msgs[i], *calls = ct_tool_calls(msg);
    const char *reasoning = ct_reasoning(msg);
    bool keep = r->last_user == SIZE_MAX || i > r->last_user || ct_tools(r->req) || r->req->keep_reasoning;
    open_turn(r, "assistant");
    ct_str(&r->out, TAG("think"));
    if (keep && reasoning)
        ct_client(r, reasoning, strlen(reasoning));
    ct_str(&r->out, CLOSE("think"));
    SL_TRY(ct_content(r, i));
    ct_str(&r->out, calls ? TAG("tool_calls") : "");
    for (size_t k = 0; k < json_array_size(calls); k++)
        SL_TRY(add_call(r, i, k));
    ct_str(&r->out, calls ? CLOSE("tool_calls") : "");
    close_turn(r);
    return SL_OK;
}

static sl_status add_message(ct_render *r, size_t i)
{
    const json_t *msg = r->msgs[i];
    bool result = ct_is(msg, "tool");
    if (ct_is(msg, "assistant"))
        return add_assistant(r, i);
    open_turn(r, is_system(msg) ? "system" : ct_role(msg));
    ct_str(&r->out, result ? TAG("tool_response") : "");
    SL_TRY(ct_content(r, i));
    ct_str(&r->out, result ? CLOSE("tool_response") : "");
    close_turn(r);
    return SL_OK;
}

static sl_status render(ct_render *r)
{
    for (size_t i = 0; i < r->n; i++) {
        if (ct_is(r->msgs[i], "user"))
            r->last_user = i;
    }
    SL_TRY(add_system(r));
    for (size_t i = is_system(r->msgs[0]); i < r->n; i++)
        SL_TRY(add_message(r, i));
    open_turn(r, "assistant");
    ct_str(&r->out, r->req->thinking ? TAG("think") : TAG("think") CLOSE("think"));
    return SL_OK;
}

static const ct_syntax syntax = {.think_open = TAG("think"),
                                 .think_close = CLOSE("think"),
                                 .tools_open = TAG("tool_calls"),
                                 .block_close = CLOSE("tool_calls"),
                                 .call_open = TAG("tool_call"),
                                 .call_close = CLOSE("tool_call"),
                                 .arg_open = TAG("arg_key"),
                                 .key_close = CLOSE("arg_key"),
                                 .value_open = TAG("arg_value"),
                                 .value_close = CLOSE("arg_value"),
                                 .args = ARG_PAIRS,
                                 .trim = true,
                                 .strip_think = NO_LIMIT,
                                 .strip_tools = NO_LIMIT,
                                 .think = THINK_ALWAYS};

const ct_format ct_hy4 = {
    .render = render, .syntax = &syntax, .thinks = SL_CHAT_THINK_YES, .ends = {"<｜hy_end" S "｜>"}};
