/*
 * MiniMax-M3 prompts: every turn is ]~b]role, a line break, the text, [e~[ and a line break. A system turn with the model's
 * name and how it may reason comes first, then the client's system message as a turn of the developer, with the tools.
 * A turn of the assistant always has <mm:think>reasoning</mm:think>, or </mm:think> alone where there is none. Results of
 * tools that follow each other share a turn. A call is tags, each after a special token (chat_parse_nested.c).
 *
 * Members of arguments that are null are left out, as the template does. A later system message, which the template drops, is
 * a turn of the developer.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat_parse_impl.h"

#define T CT_M3
#define END "[e~[\n"

/* How the model may reason. */
static sl_chat_think mode(const ct_render *r)
{
    return r->req->thinking == SL_CHAT_THINK_OPEN ? SL_CHAT_THINK_YES : r->req->thinking;
}

static void add_identity(ct_render *r)
{
    static const char *const modes[] = {
        [SL_CHAT_THINK_NO] = "disabled. Do not output any thinking process.",
        [SL_CHAT_THINK_YES] =
            "enabled. You MUST think step by step before every response, including after receiving "
            "function/tool results.",
        [SL_CHAT_THINK_ADAPTIVE] =
            "adaptive. You are encouraged to think for complex decision-making, multi-step "
            "reasoning, or when analyzing function/tool results."};
    ct_str(
        &r->out,
        "]~!b[]~b]system\nYour model version is MiniMax-M3, developed by MiniMax. Knowledge cutoff: January 2026. "
        "Founded in early 2022, MiniMax is a global AI foundation model company committed to advancing the frontiers "
        "of AI towards AGI.\n\n<thinking_instructions>\nYou have a thinking capability that allows you to reason step "
        "by step before responding. When thinking is enabled, wrap your reasoning in <mm:think></mm:think> tags before "
        "your response. When thinking is disabled, begin your response directly after the </mm:think> prefix. When "
        "thinking is adaptive, decide on your own whether to think for the current turn.\nCurrent thinking mode: ");
    ct_str(&r->out, modes[mode(r)]);
    ct_str(&r->out, "\n</thinking_instructions>" END);
}

static void add_tools(ct_render *r, const json_t *tools)
{
    size_t i;
    json_t *tool;
    ct_str(&r->out, "\n\n# Tools\nYou may call one or more tools to assist with the user query.\n"
                    "Here are the tools available in JSONSchema format:\n\n<tools>\n");
    json_array_foreach(tools, i, tool)
    {
        ct_str(&r->out, "<tool>");
        ct_client_json(r, ct_function(tool));
        ct_str(&r->out, "</tool>\n");
    }
    ct_str(
        &r->out,
        "</tools>\n\nTo call tools, wrap all invocations in a single " T "<tool_call>" T
        "</tool_call> block. Parameter values containing nested objects or arrays are recursively expanded "
        "into XML elements. Example:\n\n" T "<tool_call>\n" T "<invoke name=\"tool-name-1\">" T
        "<param-1>value-1" T "</param-1>" T "<param-2>" T "<item>" T "<key-a>val-a" T "</key-a>" T
        "<key-b>val-b" T "</key-b>" T "</item>" T "</param-2>" T "</invoke>\n" T
        "<invoke name=\"tool-name-2\">" T "<param-1>value-1" T "</param-1>" T "</invoke>\n" T "</tool_call>");
    ct_choice(r);
}

static bool is_system(const json_t *msg)
{
    return ct_is(msg, "system") || ct_is(msg, "developer");
}

/* The developer's turn: the first message if it is a system message, the tools, the schema of the answer. */
static sl_status add_developer(ct_render *r)
{
    const json_t *tools = ct_tools(r->req), *schema = ct_schema(r->req);
    ct_str(&r->out, "]~b]developer\n");
    if (is_system(r->msgs[0]) && ct_has_content(r->msgs[0]))
        SL_TRY(ct_content(r, 0));
    else
        ct_str(&r->out, "You are a helpful assistant.");
    if (tools)
        add_tools(r, tools);
    if (schema) {
        ct_str(&r->out, "\n\nReply with JSON that follows this schema and nothing else:\n");
        ct_client_json(r, schema);
    }
    ct_str(&r->out, END);
    return SL_OK;
}

/* name has the length n; it is the client's, like what is between the tags. */
static void add_tag(ct_render *r, const char *open, const char *name, size_t n)
{
    ct_str(&r->out, open);
    ct_client(r, name, n);
    ct_str(&r->out, ">");
}

static void add_value(ct_render *r, const json_t *value);

static void add_element(ct_render *r, const char *name, size_t n, const json_t *value)
{
    add_tag(r, T "<", name, n);
    add_value(r, value);
    add_tag(r, T "</", name, n);
}

static void add_members(ct_render *r, const json_t *object)
{
    const char *key;
    size_t n;
    json_t *v;
    json_object_keylen_foreach((json_t *)(uintptr_t)object, key, n, v)
    {
        if (!json_is_null(v))
            add_element(r, key, n, v);
    }
}

static void add_value(ct_render *r, const json_t *value)
{
    size_t i;
    json_t *v;
    if (json_is_object(value)) {
        add_members(r, value);
    } else if (json_is_string(value)) {
        ct_client(r, json_string_value(value), json_string_length(value));
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, v)
        {
            ct_str(&r->out, T "<item>");
            add_value(r, v);
            ct_str(&r->out, T "</item>");
        }
    } else if (!json_is_null(value)) {
        ct_client_json(r, value);
    }
}

static sl_status add_call(ct_render *r, size_t i, size_t k)
{
    const char *name;
    json_t *args;
    SL_TRY(ct_arguments(r, i, k, &name, &args));
    ct_str(&r->out, T "<invoke name=\"");
    ct_client(r, name, strlen(name));
    ct_str(&r->out, "\">");
    add_members(r, args);
    ct_str(&r->out, T "</invoke>\n");
    json_decref(args);
    return SL_OK;
}

static sl_status add_assistant(ct_render *r, size_t i)
{
    const json_t *msg = r->msgs[i], *calls = ct_tool_calls(msg);
    ct_buf text = {0};
    sl_status st = ct_content_text(r, i, &text);
    const char *content = text.p ? text.p : "";
    ct_answer a = ct_take_apart_by(msg, content, text.n, "<mm:think>", "</mm:think>");
    if (a.content != content) {
        ct_strip_newlines(&a.reasoning, &a.n_reasoning);
        ct_strip_newlines(&a.content, &a.n_content);
    }
    ct_str(&r->out, a.n_reasoning ? "]~b]ai\n<mm:think>" : "]~b]ai\n");
    ct_client(r, a.n_reasoning ? a.reasoning : "", a.n_reasoning);
    ct_str(&r->out, "</mm:think>");
    ct_client(r, a.content, a.n_content);
    r->out.bad |= text.bad;
    free(text.p);
    SL_TRY(st);
    if (calls)
        ct_str(&r->out, T "<tool_call>\n");
    for (size_t k = 0; k < json_array_size(calls); k++)
        SL_TRY(add_call(r, i, k));
    ct_str(&r->out, calls ? T "</tool_call>" END : END);
    return SL_OK;
}

static sl_status add_result(ct_render *r, size_t i, bool called)
{
    if (!called)
        return ct_fail(r, i, "role", "a tool result without a tool call in the assistant message before it");
    ct_str(&r->out, ct_is(r->msgs[i - 1], "tool") ? "\n<response>" : "]~b]tool\n<response>");
    SL_TRY(ct_content(r, i));
    ct_str(&r->out, "</response>");
    if (i + 1 == r->n || !ct_is(r->msgs[i + 1], "tool"))
        ct_str(&r->out, END);
    return SL_OK;
}

static sl_status render(ct_render *r)
{
    bool called = false; /* the last turn of the assistant has calls */
    add_identity(r);
    SL_TRY(add_developer(r));
    for (size_t i = is_system(r->msgs[0]); i < r->n; i++) {
        const json_t *msg = r->msgs[i];
        if (ct_is(msg, "assistant")) {
            called = ct_tool_calls(msg) != NULL;
            SL_TRY(add_assistant(r, i));
        } else if (ct_is(msg, "tool")) {
            SL_TRY(add_result(r, i, called));
        } else {
            ct_str(&r->out, ct_is(msg, "user") ? "]~b]user\n" : "]~b]developer\n");
            SL_TRY(ct_content(r, i));
            ct_str(&r->out, END);
        }
    }
    static const char *const begins[] = {
        [SL_CHAT_THINK_NO] = "]~b]ai\n</mm:think>",
        [SL_CHAT_THINK_YES] = "]~b]ai\n<mm:think>",
        [SL_CHAT_THINK_ADAPTIVE] = "]~b]ai\n",
    };
    ct_str(&r->out, begins[mode(r)]);
    return SL_OK;
}

static const ct_syntax syntax = {.think_open = "<mm:think>",
                                 .think_close = "</mm:think>",
                                 .tools_open = T "<tool_call>",
                                 .block_close = T "</tool_call>",
                                 .call_open = T "<invoke",
                                 .call_close = T "</invoke>",
                                 .head_close = "\">",
                                 .arg_open = T "<",
                                 .args = ARG_NAMED,
                                 .think = THINK_ALWAYS};

const ct_format ct_minimax3 = {
    .render = render, .syntax = &syntax, .thinks = SL_CHAT_THINK_ADAPTIVE, .ends = {"[e~["}};
