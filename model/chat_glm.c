/*
 * GLM prompts: role markers, no end-of-turn token, tool calls as <arg_key>/<arg_value> pairs.
 *
 * There are three variants. GLM-5 and 4.7 write everything without line breaks and begin the answer with <think> or
 * </think>. GLM-4.5 and 4.6 ("spaced") put line breaks around the parts and turn thinking off by "/nothink" at the end
 * of the user's turn. GLM-5.3-Flash ("effort") is told how much to reason, keeps the reasoning of all turns as it is, gets
 * tools without their wrapper, and results of tools in the order of the calls. Its template cannot turn thinking off; here the
 * answer then begins after an empty <think></think>, as turns without reasoning are written.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat_parse_impl.h"

typedef struct glm {
    ct_render *r;
    const char *nl; /* "\n" when spaced */
    bool spaced, effort;
} glm;

/* A tool as GLM-5.3 gets it: the function without what only clients know; one that is deferred is left out. */
static void add_bare_tool(ct_render *r, const json_t *tool)
{
    const json_t *function = ct_function(tool);
    if (json_is_true(json_object_get(function, "defer_loading")))
        return;
    json_t *bare = json_copy((json_t *)(uintptr_t)function);
    r->out.bad |= !bare;
    json_object_del(bare, "defer_loading");
    json_object_del(bare, "strict");
    if (bare)
        ct_client_json(r, bare);
    ct_str(&r->out, "\n");
    json_decref(bare);
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
        if (g->effort) {
            add_bare_tool(g->r, tool);
            continue;
        }
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
    const char *whole = content.p ? content.p : "";
    ct_answer a = g->effort ? ct_take_apart_by(msg, whole, content.n, "<think>", "</think>")
                            : ct_take_apart(msg, whole, content.n);
    ct_str(out, "<|assistant|>");
    ct_str(out, g->nl);
    if (g->effort) {
        ct_str(out, "<think>");
        ct_client(r, a.reasoning ? a.reasoning : "", a.n_reasoning);
        ct_str(out, "</think>");
    } else if (now && a.n_reasoning) {
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

static sl_status add_response(glm *g, size_t i)
{
    ct_buf *out = &g->r->out;
    ct_str(out, g->nl);
    ct_str(out, "<tool_response>");
    ct_str(out, g->nl);
    sl_status st = ct_content(g->r, i);
    ct_str(out, g->nl);
    ct_str(out, "</tool_response>");
    return st;
}

/* The results from message i on that follow each other, in the order of the calls before them if their ids allow it. */
static sl_status add_ordered(glm *g, size_t i)
{
    ct_render *r = g->r;
    size_t n = 0;
    while (i + n < r->n && ct_is(r->msgs[i + n], "tool"))
        n++;
    SL_TRY(sl_guard_take(r->req->guard, n * sizeof n, r->err));
    size_t *at = calloc(n, sizeof *at);
    if (!at)
        return SL_ERR_NO_MEMORY;
    for (size_t k = 0; k < n; k++)
        at[k] = i + k;
    sl_status st = i ? ct_order_results(r, ct_tool_calls(r->msgs[i - 1]), at, n, true) : SL_OK;
    for (size_t k = 0; !st && k < n; k++)
        st = add_response(g, at[k]);
    free(at);
    return st;
}

static sl_status add_result(glm *g, size_t i)
{
    bool first = i == 0 || !ct_is(g->r->msgs[i - 1], "tool");
    if (first)
        ct_str(&g->r->out, "<|observation|>");
    if (g->effort)
        return first ? add_ordered(g, i) : SL_OK;
    return add_response(g, i);
}

static sl_status add_message(glm *g, size_t i)
{
    ct_buf *out = &g->r->out;
    const json_t *msg = g->r->msgs[i];
    if (ct_is(msg, "assistant"))
        return add_assistant(g, i);
    if (ct_is(msg, "tool"))
        return add_result(g, i);
    bool user = ct_is(msg, "user");
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

static const char *effort(const sl_chat_request *req)
{
    const char *e = req->effort ? req->effort : "";
    if (!req->thinking || !strcmp(e, "low") || !strcmp(e, "minimal"))
        return "Low";
    return !strcmp(e, "high") ? "High" : "Max";
}

static sl_status render(ct_render *r, bool spaced, bool with_effort)
{
    glm g = {r, spaced ? "\n" : "", spaced, with_effort};
    for (size_t i = 0; i < r->n; i++) {
        if (ct_is(r->msgs[i], "user"))
            r->last_user = i;
    }
    ct_str(&r->out, "[gMASK]<sop>");
    if (with_effort) {
        ct_str(&r->out, "<|system|>Reasoning Effort: ");
        ct_str(&r->out, effort(r->req));
    }
    if (ct_tools(r->req))
        add_tools(&g, ct_tools(r->req));
    if (ct_schema(r->req))
        add_schema(&g, ct_schema(r->req));
    for (size_t i = 0; i < r->n; i++)
        SL_TRY(add_message(&g, i));
    ct_str(&r->out, "<|assistant|>");
    if (with_effort)
        ct_str(&r->out, r->req->thinking ? "<think>" : "<think></think>");
    else if (!spaced)
        ct_str(&r->out, r->req->thinking ? "<think>" : "</think>");
    else if (!r->req->thinking || r->req->thinking == SL_CHAT_THINK_OPEN)
        ct_str(&r->out, r->req->thinking ? "\n<think>" : "\n<think></think>");
    return SL_OK;
}

static sl_status render_glm(ct_render *r)
{
    return render(r, false, false);
}

static sl_status render_glm45(ct_render *r)
{
    return render(r, true, false);
}

static sl_status render_glm53(ct_render *r)
{
    return render(r, false, true);
}

/* The prompt of GLM-5, 5.3 and 4.7 has opened the reasoning already; GLM-4.5 and 4.6 write <think> themselves. */
#define CALLS                                                                                                \
    .tools_open = "<tool_call>", .call_close = "</tool_call>", .arg_open = "<arg_key>",                      \
    .key_close = "</arg_key>", .value_open = "<arg_value>", .value_close = "</arg_value>",                   \
    .args = ARG_PAIRS, .strip_think = NO_LIMIT, .strip_tools = NO_LIMIT, .trim = true

static const ct_syntax syntax_glm = {CALLS, .think = THINK_ALWAYS},
                       syntax_glm45 = {CALLS, .think = THINK_OPTIONAL};

const ct_format ct_glm = {.render = render_glm, .syntax = &syntax_glm, .thinks = SL_CHAT_THINK_YES};
const ct_format ct_glm53 = {.render = render_glm53, .syntax = &syntax_glm, .thinks = SL_CHAT_THINK_YES};
const ct_format ct_glm45 = {.render = render_glm45, .syntax = &syntax_glm45};
