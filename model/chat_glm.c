/*
 * GLM prompts: role markers, no end-of-turn token, tool calls as <arg_key>/<arg_value> pairs.
 *
 * There are two variants. GLM-5 and 4.7 write everything without line breaks and begin the answer with <think> or
 * </think>. GLM-4.5 and 4.6 ("spaced") put line breaks around the parts and turn thinking off by "/nothink" at the end
 * of the user's turn.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat_parse_impl.h"

typedef struct glm {
    ct_render *r;
    const char *nl; /* "\n" when spaced */
    bool spaced;
} glm;

static bool is(const json_t *msg, const char *role)
{
    return strcmp(ct_role(msg), role) == 0;
}

static void add_tools(glm *g, const json_t *tools)
{
    ct_buf *out = &g->r->out;
    size_t i;
    json_t *tool;
    ct_str(out, "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n");
    json_array_foreach(tools, i, tool)
    {
        ct_client_json(g->r, tool);
        ct_str(out, "\n");
    }
    ct_str(
        out,
        "</tools>\n\nFor each function call, output the function name and arguments within the following XML "
        "format:\n<tool_call>{function-name}");
    for (int k = 1; k <= 2; k++) {
        const char digit[] = {(char)('0' + k), 0};
        ct_str(out, g->nl);
        ct_str(out, "<arg_key>{arg-key-");
        ct_str(out, digit);
        ct_str(out, "}</arg_key>");
        ct_str(out, g->nl);
        ct_str(out, "<arg_value>{arg-value-");
        ct_str(out, digit);
        ct_str(out, "}</arg_value>");
    }
    ct_str(out, g->nl);
    ct_str(out, "...");
    ct_str(out, g->nl);
    ct_str(out, "</tool_call>");
    ct_choice(g->r);
}

/* Appends text without the white space at both ends, after `before`; nothing at all if the text is only white space. */
static void add_stripped(ct_render *r, const char *before, const char *text, size_t len)
{
    ct_strip(&text, &len);
    if (len) {
        ct_str(&r->out, before);
        ct_client(r, text, len);
    }
}

static sl_status add_call(glm *g, size_t i, size_t k)
{
    ct_buf *out = &g->r->out;
    const char *name, *key;
    json_t *args, *v;
    sl_status st = ct_arguments(g->r, i, k, &name, &args);
    if (st != SL_OK)
        return st;
    ct_str(out, g->nl);
    ct_str(out, "<tool_call>");
    ct_client(g->r, name, strlen(name));
    ct_str(out, g->nl);
    json_object_foreach(args, key, v)
    {
        ct_str(out, "<arg_key>");
        ct_client(g->r, key, strlen(key));
        ct_str(out, "</arg_key>");
        ct_str(out, g->nl);
        ct_str(out, "<arg_value>");
        if (json_is_string(v))
            ct_client(g->r, json_string_value(v), json_string_length(v));
        else
            ct_client_json(g->r, v);
        ct_str(out, "</arg_value>");
        ct_str(out, g->nl);
    }
    ct_str(out, "</tool_call>");
    json_decref(args);
    return SL_OK;
}

static sl_status add_assistant(glm *g, size_t i)
{
    ct_render *r = g->r;
    const json_t *msg = r->msgs[i];
    bool now = r->last_user == SIZE_MAX || i > r->last_user || r->req->keep_reasoning;
    ct_buf *out = &r->out, content = {0};
    sl_status st = ct_content_text(r, i, &content);
    ct_answer a = ct_take_apart(msg, content.p ? content.p : "", content.n);
    ct_str(out, "<|assistant|>");
    ct_str(out, g->nl);
    if (now && a.n_reasoning) {
        ct_str(out, "<think>");
        add_stripped(r, "", a.reasoning, a.n_reasoning);
        ct_str(out, "</think>");
    } else {
        ct_str(out, g->spaced ? "<think></think>" : "</think>");
    }
    add_stripped(r, g->nl, a.content, a.n_content);
    out->bad |= content.bad;
    free(content.p);
    if (st != SL_OK)
        return st;
    for (size_t k = 0; k < json_array_size(ct_tool_calls(msg)); k++)
        SL_TRY(add_call(g, i, k));
    return SL_OK;
}

static sl_status add_result(glm *g, size_t i)
{
    ct_buf *out = &g->r->out;
    if (i == 0 || !is(g->r->msgs[i - 1], "tool"))
        ct_str(out, "<|observation|>");
    ct_str(out, g->nl);
    ct_str(out, "<tool_response>");
    ct_str(out, g->nl);
    sl_status st = ct_content(g->r, i);
    ct_str(out, g->nl);
    ct_str(out, "</tool_response>");
    return st;
}

static sl_status add_message(glm *g, size_t i)
{
    ct_buf *out = &g->r->out;
    const json_t *msg = g->r->msgs[i];
    if (is(msg, "assistant"))
        return add_assistant(g, i);
    if (is(msg, "tool"))
        return add_result(g, i);
    bool user = is(msg, "user");
    ct_str(out, user ? "<|user|>" : "<|system|>"); /* GLM has no developer role */
    ct_str(out, g->nl);
    size_t from = out->n;
    sl_status st = ct_content(g->r, i);
    if (!user || !g->spaced || g->r->req->thinking || out->bad)
        return st;
    if (out->n - from < 8 || memcmp(out->p + out->n - 8, "/nothink", 8) != 0)
        ct_str(out, "/nothink");
    return st;
}

static void add_schema(glm *g, const json_t *schema)
{
    ct_buf *out = &g->r->out;
    ct_str(out, "<|system|>");
    ct_str(out, g->nl);
    ct_str(out, "Reply with JSON that follows this schema and nothing else:\n");
    ct_client_json(g->r, schema);
}

static sl_status render(ct_render *r, bool spaced)
{
    glm g = {r, spaced ? "\n" : "", spaced};
    for (size_t i = 0; i < r->n; i++) {
        if (is(r->msgs[i], "user"))
            r->last_user = i;
    }
    ct_str(&r->out, "[gMASK]<sop>");
    if (ct_tools(r->req))
        add_tools(&g, ct_tools(r->req));
    if (ct_schema(r->req))
        add_schema(&g, ct_schema(r->req));
    for (size_t i = 0; i < r->n; i++)
        SL_TRY(add_message(&g, i));
    ct_str(&r->out, "<|assistant|>");
    if (!spaced)
        ct_str(&r->out, r->req->thinking ? "<think>" : "</think>");
    else if (!r->req->thinking)
        ct_str(&r->out, "\n<think></think>");
    return SL_OK;
}

static sl_status render_glm(ct_render *r)
{
    return render(r, false);
}

static sl_status render_glm45(ct_render *r)
{
    return render(r, true);
}

/* The prompt of GLM-5 and 4.7 has opened the reasoning already; GLM-4.5 and 4.6 write <think> themselves. */
#define CALLS                                                                                                \
    .tools_open = "<tool_call>", .call_close = "</tool_call>", .arg_open = "<arg_key>",                      \
    .value_close = "</arg_value>", .strip_think = NO_LIMIT, .strip_tools = NO_LIMIT, .trim = true

static const ct_syntax syntax_glm = {CALLS, .think = THINK_ALWAYS},
                       syntax_glm45 = {CALLS, .think = THINK_OPTIONAL};

const ct_format ct_glm = {.render = render_glm, .syntax = &syntax_glm, .thinks = true};
const ct_format ct_glm45 = {.render = render_glm45, .syntax = &syntax_glm45};
