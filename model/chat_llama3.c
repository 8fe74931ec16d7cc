/*
 * Llama 3 prompts: every turn is <|start_header_id|>role<|end_header_id|>, two line breaks, the text without white space
 * at its ends, <|eot_id|>. The rules of the templates of 3.1 to 3.3, which 3.0 does not have:
 *
 *   - There is always a system turn; it begins with two dates. The second is the template's constant, although some
 *     templates take the current date: a prompt that changes every day would share no cached prefix with yesterday's.
 *   - Tools are described in the first turn of the user.
 *   - A call is the whole turn, {"name", "parameters"}, so a turn has one call at most and no text next to it.
 *   - A result is a turn of the role ipython, as a JSON string.
 *
 * The developer role does not exist and is taken as system.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat_parse_impl.h"

static bool is(const json_t *msg, const char *role)
{
    return strcmp(ct_role(msg), role) == 0;
}

static bool is_system(const json_t *msg)
{
    return is(msg, "system") || is(msg, "developer");
}

static void open_turn(ct_render *r, const char *role)
{
    ct_str(&r->out, "<|start_header_id|>");
    ct_str(&r->out, role);
    ct_str(&r->out, "<|end_header_id|>\n\n");
}

static void close_turn(ct_render *r)
{
    ct_str(&r->out, "<|eot_id|>");
}

/* Appends the text of message i without white space at its ends. */
static sl_status add_text(ct_render *r, size_t i)
{
    ct_buf text = {0};
    sl_status st = ct_content_text(r, i, &text);
    const char *from = text.p ? text.p : "";
    size_t n = text.n;
    ct_strip(&from, &n);
    ct_client(r, from, n);
    r->out.bad |= text.bad;
    free(text.p);
    return st;
}

static sl_status add_turn(ct_render *r, size_t i)
{
    const json_t *msg = r->msgs[i];
    open_turn(r, is_system(msg) ? "system" : ct_role(msg));
    SL_TRY(add_text(r, i));
    close_turn(r);
    return SL_OK;
}

static void add_schema(ct_render *r)
{
    if (!ct_schema(r->req))
        return;
    open_turn(r, "system");
    ct_str(&r->out, "Reply with JSON that follows this schema and nothing else:\n");
    ct_client_json(r, ct_schema(r->req));
    close_turn(r);
}

/* ---- 3.0 ---- */

static sl_status render_llama3(ct_render *r)
{
    if (ct_tools(r->req))
        return sl_fail(r->err, SL_ERR_UNSUPPORTED, "tools: the model's chat format has none");
    ct_str(&r->out, "<|begin_of_text|>");
    add_schema(r);
    for (size_t i = 0; i < r->n; i++) {
        if (is(r->msgs[i], "tool") || ct_tool_calls(r->msgs[i]))
            return ct_fail(r, i, "role", "the model's chat format has no tools");
        SL_TRY(add_turn(r, i));
    }
    open_turn(r, "assistant");
    return SL_OK;
}

/* ---- 3.1 ---- */

/* Sets *next to the first message after the system turn. */
static sl_status add_system(ct_render *r, size_t *next)
{
    bool given = is_system(r->msgs[0]);
    open_turn(r, "system");
    ct_str(&r->out, ct_tools(r->req) ? "Environment: ipython\n" : "");
    ct_str(&r->out, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
    if (given)
        SL_TRY(add_text(r, 0));
    close_turn(r);
    add_schema(r);
    *next = given;
    return SL_OK;
}

/* The first turn of the user, with the tools. */
static sl_status add_tools(ct_render *r, const json_t *tools, size_t i)
{
    size_t k;
    json_t *tool;
    if (i == r->n || !is(r->msgs[i], "user"))
        return sl_fail(
            r->err, SL_ERR_INVALID,
            "tools: this model needs a message of the user first, because its prompt describes the "
            "tools there");
    open_turn(r, "user");
    ct_str(&r->out,
           "Given the following functions, please respond with a JSON for a function call with its proper "
           "arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function name, "
           "\"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n");
    json_array_foreach(tools, k, tool)
    {
        ct_client_json_indented(r, tool);
        ct_str(&r->out, "\n\n");
    }
    ct_choice(r);
    SL_TRY(add_text(r, i));
    close_turn(r);
    return SL_OK;
}

static sl_status add_call(ct_render *r, size_t i)
{
    const char *name;
    json_t *args;
    if (json_array_size(ct_tool_calls(r->msgs[i])) > 1)
        return ct_fail(r, i, "tool_calls", "this model makes one call per turn");
    SL_TRY(ct_arguments(r, i, 0, &name, &args));
    open_turn(r, "assistant");
    ct_str(&r->out, "{\"name\": \"");
    ct_client(r, name, strlen(name));
    ct_str(&r->out, "\", \"parameters\": ");
    ct_client_json(r, args);
    ct_str(&r->out, "}");
    close_turn(r);
    json_decref(args);
    return SL_OK;
}

static sl_status add_result(ct_render *r, size_t i)
{
    ct_buf text = {0};
    sl_status st = ct_content_text(r, i, &text);
    json_t *value = json_stringn(text.p ? text.p : "", text.n);
    open_turn(r, "ipython");
    if (value)
        ct_client_json(r, value);
    close_turn(r);
    r->out.bad |= text.bad || !value;
    json_decref(value);
    free(text.p);
    return st;
}

static sl_status render_llama31(ct_render *r)
{
    size_t next = 0;
    ct_str(&r->out, "<|begin_of_text|>");
    SL_TRY(add_system(r, &next));
    if (ct_tools(r->req))
        SL_TRY(add_tools(r, ct_tools(r->req), next++));
    for (size_t i = next; i < r->n; i++) {
        if (ct_tool_calls(r->msgs[i]))
            SL_TRY(add_call(r, i));
        else
            SL_TRY(is(r->msgs[i], "tool") ? add_result(r, i) : add_turn(r, i));
    }
    open_turn(r, "assistant");
    return SL_OK;
}

/* <|python_tag|> is a special token: it is in the text only when the client wants special tokens. */
static const ct_syntax syntax_llama31 = {.tools_open = "<|python_tag|>", .json = true, .bare = true};

const ct_format ct_llama3 = {.render = render_llama3, .ends = {"<|eot_id|>"}};
const ct_format ct_llama31 = {
    .render = render_llama31, .syntax = &syntax_llama31, .ends = {"<|eot_id|>", "<|eom_id|>"}};
