/*
 * ChatML prompts: every turn is <|im_start|>role, a line break, the text, <|im_end|>. Three generations of Qwen use it, and
 * A.X-K2, of which it is known only that its calls are like those of Qwen 3 and that its reasoning ends at </think>:
 *
 *   format  system turn of a request without one  tools                      reasoning
 *   ------  ------------------------------------  -------------------------  ------------------------------
 *   chatml  its template's sentence               none                       none
 *   qwen25  its template's sentence               <tools> in the system turn none
 *   qwen3   none                                  <tools> in the system turn <think>, after the last question
 *   axk2    none                                  <tools> in the system turn the same, opened by the prompt
 *
 * A call is <tool_call>{"name", "arguments"}</tool_call> in the assistant's turn. Results of tools are turns of the user:
 * those that follow each other share one, each in <tool_response>. The last question is the last turn of a user that is
 * not such a result written by the client. The developer role does not exist and is taken as system.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat_parse_impl.h"

typedef struct variant {
    /* the text of the system turn when the request has none; NULL: then there is no such turn */
    const char *system;
    bool tools, thinks;
    bool opens; /* the prompt opens the reasoning */
} variant;

static bool is_system(const json_t *msg)
{
    return ct_is(msg, "system") || ct_is(msg, "developer");
}

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

static void add_tools(ct_render *r, const json_t *tools)
{
    ct_buf *out = &r->out;
    size_t i;
    json_t *tool;
    ct_str(out, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                "You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
    json_array_foreach(tools, i, tool)
    {
        ct_str(out, "\n");
        ct_client_json(r, tool);
    }
    ct_str(
        out,
        "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n<tool_call>\n"
        "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>");
    ct_choice(r);
}

/* The turn before all others: the system message, or the variant's sentence, then the tools. */
static sl_status add_system(ct_render *r, const variant *v)
{
    const json_t *tools = ct_tools(r->req), *schema = ct_schema(r->req);
    bool given = is_system(r->msgs[0]);
    if (given || v->system || tools) {
        open_turn(r, "system");
        if (given)
            SL_TRY(ct_content(r, 0));
        else if (v->system)
            ct_str(&r->out, v->system);
        if (tools && (given || v->system))
            ct_str(&r->out, "\n\n");
        if (tools)
            add_tools(r, tools);
        close_turn(r);
    }
    if (schema) {
        open_turn(r, "system");
        ct_str(&r->out, "Reply with JSON that follows this schema and nothing else:\n");
        ct_client_json(r, schema);
        close_turn(r);
    }
    return SL_OK;
}

static sl_status add_call(ct_render *r, size_t i, size_t k)
{
    const char *name;
    json_t *args;
    SL_TRY(ct_arguments(r, i, k, &name, &args));
    ct_str(&r->out, "<tool_call>\n{\"name\": \"");
    ct_client(r, name, strlen(name));
    ct_str(&r->out, "\", \"arguments\": ");
    ct_client_json(r, args);
    ct_str(&r->out, "}\n</tool_call>");
    json_decref(args);
    return SL_OK;
}

/* Reasoning, when this turn shows it, and content. text: that of the message. */
static void add_answer(ct_render *r, const variant *v, size_t i, ct_answer *a)
{
    bool after = i > r->last_user && (i + 1 == r->n || a->n_reasoning);
    if (v->thinks && (after || (r->req->keep_reasoning && a->n_reasoning))) {
        ct_strip_newlines(&a->reasoning, &a->n_reasoning);
        ct_lstrip_newlines(&a->content, &a->n_content);
        ct_str(&r->out, "<think>\n");
        ct_client(r, a->reasoning, a->n_reasoning);
        ct_str(&r->out, "\n</think>\n\n");
    }
    ct_client(r, a->content, a->n_content);
}

static sl_status add_assistant(ct_render *r, const variant *v, size_t i)
{
    const json_t *msg = r->msgs[i], *calls = ct_tool_calls(msg);
    ct_buf text = {0};
    if (calls && !v->tools)
        return ct_fail(r, i, "tool_calls", "the model's chat format has no tools");
    sl_status st = ct_content_text(r, i, &text);
    const char *content = text.p ? text.p : "";
    ct_answer a = v->thinks ? ct_take_apart(msg, content, text.n) : (ct_answer){NULL, content, 0, text.n};
    bool separate = a.n_content > 0;
    open_turn(r, "assistant");
    add_answer(r, v, i, &a);
    r->out.bad |= text.bad;
    free(text.p);
    if (st != SL_OK)
        return st;
    for (size_t k = 0; k < json_array_size(calls); k++) {
        ct_str(&r->out, k || separate ? "\n" : "");
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
    SL_TRY(ct_content(r, i));
    ct_str(&r->out, "\n</tool_response>");
    if (i + 1 == r->n || !ct_is(r->msgs[i + 1], "tool"))
        close_turn(r);
    return SL_OK;
}

static sl_status add_message(ct_render *r, const variant *v, size_t i)
{
    const json_t *msg = r->msgs[i];
    if (ct_is(msg, "assistant"))
        return add_assistant(r, v, i);
    if (ct_is(msg, "tool"))
        return v->tools ? add_result(r, i) : ct_fail(r, i, "role", "the model's chat format has no tools");
    open_turn(r, is_system(msg) ? "system" : "user");
    SL_TRY(ct_content(r, i));
    close_turn(r);
    return SL_OK;
}

static bool is_wrapped(const ct_buf *text)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    size_t n = text->n, n_open = sizeof open - 1, n_close = sizeof close - 1;
    return n >= n_close && memcmp(text->p, open, n_open) == 0 &&
           memcmp(text->p + n - n_close, close, n_close) == 0;
}

/* Sets last_user to the last question; without one to the last message, so that no turn is after it. */
static sl_status find_question(ct_render *r)
{
    r->last_user = r->n - 1;
    for (size_t i = r->n; i-- > 0;) {
        if (!ct_is(r->msgs[i], "user"))
            continue;
        ct_buf text = {0};
        sl_status st = ct_content_text(r, i, &text);
        bool question = !is_wrapped(&text);
        r->out.bad |= text.bad;
        free(text.p);
        SL_TRY(st);
        if (question) {
            r->last_user = i;
            break;
        }
    }
    return SL_OK;
}

static sl_status render(ct_render *r, const variant *v)
{
    if (ct_tools(r->req) && !v->tools)
        return sl_fail(r->err, SL_ERR_UNSUPPORTED, "tools: the model's chat format has none");
    if (v->thinks)
        SL_TRY(find_question(r));
    SL_TRY(add_system(r, v));
    for (size_t i = is_system(r->msgs[0]); i < r->n; i++)
        SL_TRY(add_message(r, v, i));
    open_turn(r, "assistant");
    if (v->thinks && !r->req->thinking)
        ct_str(&r->out, "<think>\n\n</think>\n\n");
    else if (v->opens || (v->thinks && r->req->thinking == SL_CHAT_THINK_OPEN))
        ct_str(&r->out, "<think>\n");
    return SL_OK;
}

static sl_status render_chatml(ct_render *r)
{
    static const variant qwen2 = {.system = "You are a helpful assistant."};
    return render(r, &qwen2);
}

static sl_status render_qwen25(ct_render *r)
{
    static const variant qwen25 = {
        .system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", .tools = true};
    return render(r, &qwen25);
}

static sl_status render_qwen3(ct_render *r)
{
    static const variant qwen3 = {.tools = true, .thinks = true};
    return render(r, &qwen3);
}

static sl_status render_axk2(ct_render *r)
{
    static const variant axk2 = {.tools = true, .thinks = true, .opens = true};
    return render(r, &axk2);
}

#define CALLS                                                                                                \
    .tools_open = "<tool_call>", .call_close = "</tool_call>", .json = true, .strip_think = NO_LIMIT,        \
    .strip_tools = NO_LIMIT, .trim = true
#define ENDS                                                                                                 \
    {                                                                                                        \
        "<|im_end|>"                                                                                         \
    }

static const ct_syntax syntax_qwen25 = {CALLS}, syntax_qwen3 = {CALLS, .think = THINK_OPTIONAL},
                       syntax_axk2 = {CALLS, .think = THINK_ALWAYS};

const ct_format ct_chatml = {.render = render_chatml, .ends = ENDS};
const ct_format ct_qwen25 = {.render = render_qwen25, .syntax = &syntax_qwen25, .ends = ENDS};
const ct_format ct_qwen3 = {
    .render = render_qwen3, .syntax = &syntax_qwen3, .thinks = SL_CHAT_THINK_YES, .ends = ENDS};
const ct_format ct_axk2 = {
    .render = render_axk2, .syntax = &syntax_axk2, .thinks = SL_CHAT_THINK_YES, .ends = ENDS};
