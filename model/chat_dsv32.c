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

#define D CT_DSML

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

static const ct_dsml dsml = {.head = tools_head, .tail = "\n</functions>\n"};

static bool is_user(const json_t *msg)
{
    return ct_is(msg, "user") || ct_is(msg, "developer");
}

static void open_answer(ct_render *r, bool thinks)
{
    ct_str(&r->out, thinks ? "<think>" : "</think>");
}

static sl_status add_user(ct_render *r, size_t i)
{
    const json_t *msg = r->msgs[i];
    bool developer = ct_is(msg, "developer");
    if (!json_object_get(msg, "content") || (developer && !ct_has_content(msg)))
        return ct_fail(r, i, "content", "is missing");
    ct_str(&r->out, "<｜User｜>");
    if (developer) {
        ct_dsml_extras(r, &dsml, msg, false);
        ct_str(&r->out, "\n\n# The user's message is: ");
    }
    sl_status st = ct_content(r, i);
    ct_str(&r->out, "<｜Assistant｜>");
    open_answer(r, i == r->last_user && r->req->thinking);
    return st;
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
    SL_TRY(ct_dsml_calls(r, i, "function_calls"));
    ct_str(&r->out, "<｜end▁of▁sentence｜>");
    return SL_OK;
}

static sl_status add_result(ct_render *r, size_t i)
{
    size_t caller = i;
    while (caller > 0 && ct_is(r->msgs[caller], "tool"))
        caller--;
    size_t order = i - caller, calls = json_array_size(ct_tool_calls(r->msgs[caller]));
    if (!ct_is(r->msgs[caller], "assistant") || order > calls)
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
    if (ct_is(msg, "assistant"))
        return add_assistant(r, i);
    if (ct_is(msg, "tool"))
        return add_result(r, i);
    sl_status st = ct_content(r, i);
    ct_dsml_extras(r, &dsml, msg, i == 0);
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
        if (last != SIZE_MAX && i < last && ct_is(r->msgs[i], "developer"))
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
    if (ct_is(r->msgs[last], "assistant"))
        return ct_fail(r, last, "role", "the last message must not be the assistant's");
    while (last > 0 && ct_is(r->msgs[last], "tool")) {
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
    if (!ct_is(r->msgs[0], "system"))
        ct_dsml_extras(r, &dsml, NULL, true);
    for (size_t i = 0; i < r->n; i++)
        SL_TRY(add_message(r, i));
    return check_end(r);
}

static const ct_syntax syntax = {.tools_open = "<" D "function_calls>",
                                 .block_close = "</" D "function_calls>",
                                 .call_open = "<" D "invoke",
                                 .call_close = "</" D "invoke>",
                                 .arg_open = "<" D "parameter",
                                 .head_close = "\">",
                                 .value_close = "</" D "parameter>",
                                 .strip_tools = 2,
                                 .think = THINK_OPEN};

const ct_format ct_dsv32 = {.render = render, .syntax = &syntax};
