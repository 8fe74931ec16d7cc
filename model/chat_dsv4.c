/*
 * DeepSeek-V4 prompts. The model has no template file; the rules of its published encoder are:
 *
 *   - There is no turn for results of tools: they are part of a turn of the user, in <tool_result>, in the order of the
 *     calls. Turns of users and results that follow each other are one turn; its parts are separated by an empty line.
 *   - Where the assistant's turn begins, <think> or </think> says whether the model reasons there.
 *   - Reasoning before the last such turn, and developer turns before it, are left out while thinking; but a request with
 *     tools keeps both.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat_parse_impl.h"

#define D CT_DSML

static const ct_dsml dsml = {
    .head =
        "## Tools\n\n"
        "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \"<" D
        "tool_calls>\" block like the following:\n\n"
        "<" D "tool_calls>\n"
        "<" D "invoke name=\"$TOOL_NAME\">\n"
        "<" D "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</" D "parameter>\n"
        "...\n"
        "</" D "invoke>\n"
        "<" D "invoke name=\"$TOOL_NAME2\">\n"
        "...\n"
        "</" D "invoke>\n"
        "</" D "tool_calls>\n\n"
        "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "
        "booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\n"
        "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
        "<think>...</think> BEFORE any tool calls or final response.\n\n"
        "Otherwise, output directly after </think> with tool calls or final response.\n\n"
        "### Available Tool Schemas\n\n",
    .tail =
        "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"};

static const char most_effort[] =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, "
    "and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

typedef struct turns {
    ct_render *r;
    bool keep;           /* all reasoning and all developer turns */
    const json_t *calls; /* of the last assistant message that has some */
} turns;

static bool is_user(const json_t *msg)
{
    return ct_is(msg, "user") || ct_is(msg, "tool");
}

/* The message after the turn that begins at i. */
static size_t turn_end(const ct_render *r, size_t i)
{
    if (!is_user(r->msgs[i]))
        return i + 1;
    while (i < r->n && is_user(r->msgs[i]))
        i++;
    return i;
}

static bool left_out(const turns *t, size_t i)
{
    const ct_render *r = t->r;
    return r->req->thinking && !t->keep && r->last_user != SIZE_MAX && i < r->last_user &&
           ct_is(r->msgs[i], "developer");
}

/* The parts of a user's turn; results[] are the indices of the results of tools, in their order. */
static sl_status add_parts(ct_render *r, size_t from, size_t to, const size_t *results)
{
    for (size_t i = from; i < to; i++) {
        bool result = ct_is(r->msgs[i], "tool");
        if (!json_object_get(r->msgs[i], "content"))
            return ct_fail(r, i, "content", "is missing");
        ct_str(&r->out, i > from ? "\n\n" : "");
        ct_str(&r->out, result ? "<tool_result>" : "");
        SL_TRY(ct_content(r, result ? *results++ : i));
        ct_str(&r->out, result ? "</tool_result>" : "");
    }
    return SL_OK;
}

static sl_status add_user(turns *t, size_t from, size_t to)
{
    ct_render *r = t->r;
    size_t n = 0;
    SL_TRY(sl_guard_take(r->req->guard, (to - from) * sizeof n, r->err));
    size_t *results = calloc(to - from, sizeof *results);
    if (!results)
        return SL_ERR_NO_MEMORY;
    for (size_t i = from; i < to; i++) {
        if (ct_is(r->msgs[i], "tool"))
            results[n++] = i;
    }
    ct_str(&r->out, "<｜User｜>");
    sl_status st = ct_order_results(r, t->calls, results, n, false);
    if (!st)
        st = add_parts(r, from, to, results);
    free(results);
    return st;
}

static sl_status add_assistant(turns *t, size_t i)
{
    ct_render *r = t->r;
    const json_t *msg = r->msgs[i];
    const char *reasoning = ct_reasoning(msg);
    if (ct_tool_calls(msg))
        t->calls = ct_tool_calls(msg);
    if (r->req->thinking && (t->keep || r->last_user == SIZE_MAX || i > r->last_user)) {
        if (reasoning)
            ct_client(r, reasoning, strlen(reasoning));
        ct_str(&r->out, "</think>");
    }
    SL_TRY(ct_content(r, i));
    SL_TRY(ct_dsml_calls(r, i, "tool_calls"));
    ct_str(&r->out, "<｜end▁of▁sentence｜>");
    return SL_OK;
}

static sl_status add_turn(turns *t, size_t i, size_t end)
{
    ct_render *r = t->r;
    const json_t *msg = r->msgs[i];
    if (is_user(msg))
        return add_user(t, i, end);
    if (ct_is(msg, "assistant"))
        return add_assistant(t, i);
    bool developer = ct_is(msg, "developer");
    if (developer && !ct_has_content(msg))
        return ct_fail(r, i, "content", "is missing");
    ct_str(&r->out, developer ? "<｜User｜>" : "");
    SL_TRY(ct_content(r, i));
    ct_dsml_extras(r, &dsml, msg, i == 0 && !developer);
    return SL_OK;
}

/* The beginning of the assistant's turn after a turn of the user, messages up to end, unless another such turn follows. */
static void open_answer(turns *t, size_t i, size_t end)
{
    ct_render *r = t->r;
    if (!is_user(r->msgs[i]) && !ct_is(r->msgs[i], "developer"))
        return;
    size_t next = end;
    while (next < r->n && left_out(t, next))
        next++;
    if (next < r->n && !ct_is(r->msgs[next], "assistant"))
        return;
    ct_str(&r->out, "<｜Assistant｜>");
    ct_str(&r->out, r->req->thinking && (t->keep || end > r->last_user) ? "<think>" : "</think>");
}

static bool has_tools(const ct_render *r)
{
    for (size_t i = 0; i < r->n; i++) {
        if (json_array_size(json_object_get(r->msgs[i], "tools")))
            return true;
    }
    return ct_tools(r->req) != NULL;
}

static sl_status render(ct_render *r)
{
    turns t = {.r = r, .keep = r->req->keep_reasoning || has_tools(r)};
    for (size_t i = 0; i < r->n; i++) {
        if (is_user(r->msgs[i]) || ct_is(r->msgs[i], "developer"))
            r->last_user = i;
    }
    if (ct_is(r->msgs[r->n - 1], "assistant"))
        return ct_fail(r, r->n - 1, "role", "the last message must not be the assistant's");
    ct_str(&r->out, "<｜begin▁of▁sentence｜>");
    if (r->req->thinking && r->req->effort && strcmp(r->req->effort, "max") == 0)
        ct_str(&r->out, most_effort);
    if (!ct_is(r->msgs[0], "system"))
        ct_dsml_extras(r, &dsml, NULL, true);
    for (size_t i = 0, end; i < r->n; i = end) {
        end = turn_end(r, i);
        if (left_out(&t, i))
            continue;
        SL_TRY(add_turn(&t, i, end));
        open_answer(&t, i, end);
    }
    return SL_OK;
}

static const ct_syntax syntax = {.tools_open = "<" D "tool_calls>",
                                 .block_close = "</" D "tool_calls>",
                                 .call_open = "<" D "invoke",
                                 .call_close = "</" D "invoke>",
                                 .arg_open = "<" D "parameter",
                                 .head_close = "\">",
                                 .value_close = "</" D "parameter>",
                                 .strip_tools = 2,
                                 .think = THINK_OPEN};

const ct_format ct_dsv4 = {.render = render, .syntax = &syntax};
