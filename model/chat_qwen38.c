/*
 * Qwen3.8 prompts: ChatML as of Qwen 3, with these differences. The first turn of the system has how much the model is to
 * reason, then the tools, then the client's text. Texts of messages are cut at white space. The reasoning of all turns is kept,
 * and a turn without reasoning has an empty <think>; <think> in a content is text. A call is <function=f> with one
 * <parameter=k> for each argument, in <tool_call>. The prompt opens the reasoning.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat_parse_impl.h"

static void open_turn(ct_render *r, const char *role)
{
    ct_str(&r->out, "<|im_start|>");
    ct_str(&r->out, role);
    ct_str(&r->out, "\n");
}

static void close_turn(ct_render *r)
{
    ct_str(&r->out, "<|im_end|>\n");
}

/* Adds the text of message i without white space at both ends, after `before` unless nothing is left. */
static sl_status add_content(ct_render *r, size_t i, const char *before)
{
    ct_buf buf = {0};
    sl_status st = ct_content_text(r, i, &buf);
    const char *text = buf.p ? buf.p : "";
    size_t n = buf.n;
    ct_strip(&text, &n);
    ct_str(&r->out, n ? before : "");
    ct_client(r, text, n);
    r->out.bad |= buf.bad;
    free(buf.p);
    return st;
}

static const char *effort(const sl_chat_request *req)
{
    const char *e = req->effort ? req->effort : "";
    if (!req->thinking || !strcmp(e, "medium"))
        return NULL;
    return !strcmp(e, "low") || !strcmp(e, "minimal")
               ? "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the "
                 "conclusion without unnecessary elaboration."
               : "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, "
                 "consider plausible alternatives, and prioritize correctness, consistency, and clarity in the final "
                 "answer.";
}

static void add_tools(ct_render *r, const json_t *tools)
{
    size_t i;
    json_t *tool;
    ct_str(&r->out, "# Tools\n\nYou have access to the following functions:\n\n<tools>");
    json_array_foreach(tools, i, tool)
    {
        ct_str(&r->out, "\n");
        ct_client_json(r, tool);
    }
    ct_str(
        &r->out,
        "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
        "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
        "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
        "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified "
        "format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n"
        "- Required parameters MUST be specified\n- You may provide optional reasoning for your function call in "
        "natural language BEFORE the function call, but NOT after\n- If there is no function call available, answer "
        "the question like normal with your current knowledge and do not tell the user about function calls\n"
        "</IMPORTANT>");
    ct_choice(r);
}

static bool is_system(const json_t *msg)
{
    return ct_is(msg, "system") || ct_is(msg, "developer");
}

/* The parts of the first turn of the system are separated by empty lines. Without a part, or with an empty text alone, there is no
 * such turn. */
static sl_status add_system(ct_render *r)
{
    const json_t *tools = ct_tools(r->req), *schema = ct_schema(r->req);
    const char *level = effort(r->req), *gap = "";
    const size_t start = r->out.n;
    open_turn(r, "system");
    const size_t first = r->out.n;
    if (level) {
        ct_str(&r->out, level);
        gap = "\n\n";
    }
    if (tools) {
        ct_str(&r->out, gap);
        add_tools(r, tools);
        gap = "\n\n";
    }
    size_t before = r->out.n;
    if (is_system(r->msgs[0]))
        SL_TRY(add_content(r, 0, gap));
    if (schema) {
        ct_str(&r->out, r->out.n > before ? "\n\n" : gap);
        ct_str(&r->out, "Reply with JSON that follows this schema and nothing else:\n");
        ct_client_json(r, schema);
    }
    if (r->out.n > first)
        close_turn(r);
    else
        r->out.n = start;
    return SL_OK;
}

static sl_status add_call(ct_render *r, size_t i, size_t k)
{
    const char *name, *key;
    size_t n;
    json_t *args, *v;
    SL_TRY(ct_arguments(r, i, k, &name, &args));
    ct_str(&r->out, "<tool_call>\n<function=");
    ct_client(r, name, strlen(name));
    ct_str(&r->out, ">\n");
    json_object_keylen_foreach(args, key, n, v)
    {
        ct_str(&r->out, "<parameter=");
        ct_client(r, key, n);
        ct_str(&r->out, ">\n");
        if (json_is_string(v))
            ct_client(r, json_string_value(v), json_string_length(v));
        else
            ct_client_json(r, v);
        ct_str(&r->out, "\n</parameter>\n");
    }
    ct_str(&r->out, "</function>\n</tool_call>");
    json_decref(args);
    return SL_OK;
}

static sl_status add_assistant(ct_render *r, size_t i)
{
    const json_t *msg = r->msgs[i], *given = json_object_get(msg, "reasoning_content");
    const char *reasoning = json_is_string(given) ? json_string_value(given) : "";
    size_t n = json_string_length(given);
    ct_strip(&reasoning, &n);
    open_turn(r, "assistant");
    ct_str(&r->out, "<think>\n");
    ct_client(r, reasoning, n);
    ct_str(&r->out, "\n</think>\n\n");
    size_t before = r->out.n;
    SL_TRY(add_content(r, i, ""));
    const char *gap = r->out.n > before ? "\n\n" : "";
    for (size_t k = 0; k < json_array_size(ct_tool_calls(msg)); k++, gap = "\n") {
        ct_str(&r->out, gap);
        SL_TRY(add_call(r, i, k));
    }
    close_turn(r);
    return SL_OK;
}

static sl_status add_result(ct_render *r, size_t i)
{
    if (i == 0 || !ct_is(r->msgs[i - 1], "tool"))
        ct_str(&r->out, "<|im_start|>user");
    ct_str(&r->out, "\n<tool_response>\n");
    SL_TRY(add_content(r, i, ""));
    ct_str(&r->out, "\n</tool_response>");
    if (i + 1 == r->n || !ct_is(r->msgs[i + 1], "tool"))
        close_turn(r);
    return SL_OK;
}

static sl_status add_message(ct_render *r, size_t i)
{
    const json_t *msg = r->msgs[i];
    if (ct_is(msg, "assistant"))
        return add_assistant(r, i);
    if (ct_is(msg, "tool"))
        return add_result(r, i);
    open_turn(r, is_system(msg) ? "system" : "user");
    SL_TRY(add_content(r, i, ""));
    close_turn(r);
    return SL_OK;
}

static sl_status render(ct_render *r)
{
    SL_TRY(add_system(r));
    for (size_t i = is_system(r->msgs[0]); i < r->n; i++)
        SL_TRY(add_message(r, i));
    open_turn(r, "assistant");
    ct_str(&r->out, r->req->thinking ? "<think>\n" : "<think>\n\n</think>\n\n");
    return SL_OK;
}

static const ct_syntax syntax = {.tools_open = "<tool_call>",
                                 .block_close = "</tool_call>",
                                 .call_open = "<function=",
                                 .call_close = "</function>",
                                 .head_close = ">",
                                 .arg_open = "<parameter=",
                                 .value_close = "</parameter>",
                                 .args = ARG_EQUALS,
                                 .strip_think = NO_LIMIT,
                                 .strip_tools = NO_LIMIT,
                                 .trim = true,
                                 .think = THINK_ALWAYS};

const ct_format ct_qwen38 = {
    .render = render, .syntax = &syntax, .thinks = SL_CHAT_THINK_YES, .ends = {"<|im_end|>"}};
