/*
 * Chat rendering: the registry of formats, what all formats share (checking and reading messages), and the plain format.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/chat_impl.h"

static sl_status render_plain(ct_render *r);

static const ct_format ct_plain = {.render = render_plain};

/* The registry: a new format is a file and a line in both tables. */
static const ct_format *const formats[SL_CHAT_FORMATS] = {
    [SL_CHAT_PLAIN] = &ct_plain,   [SL_CHAT_DSV32] = &ct_dsv32,       [SL_CHAT_GLM] = &ct_glm,
    [SL_CHAT_GLM45] = &ct_glm45,   [SL_CHAT_LLAMA3] = &ct_llama3,     [SL_CHAT_LLAMA31] = &ct_llama31,
    [SL_CHAT_CHATML] = &ct_chatml, [SL_CHAT_QWEN25] = &ct_qwen25,     [SL_CHAT_QWEN3] = &ct_qwen3,
    [SL_CHAT_AXK2] = &ct_axk2,     [SL_CHAT_DSV4] = &ct_dsv4,         [SL_CHAT_GLM53] = &ct_glm53,
    [SL_CHAT_HY4] = &ct_hy4,       [SL_CHAT_MINIMAX3] = &ct_minimax3, [SL_CHAT_QWEN38] = &ct_qwen38,
};
static const char *const format_names[SL_CHAT_FORMATS + 1] = {
    [SL_CHAT_PLAIN] = "plain",   [SL_CHAT_DSV32] = "dsv32",       [SL_CHAT_GLM] = "glm",
    [SL_CHAT_GLM45] = "glm45",   [SL_CHAT_LLAMA3] = "llama3",     [SL_CHAT_LLAMA31] = "llama31",
    [SL_CHAT_CHATML] = "chatml", [SL_CHAT_QWEN25] = "qwen25",     [SL_CHAT_QWEN3] = "qwen3",
    [SL_CHAT_AXK2] = "axk2",     [SL_CHAT_DSV4] = "dsv4",         [SL_CHAT_GLM53] = "glm53",
    [SL_CHAT_HY4] = "hy4",       [SL_CHAT_MINIMAX3] = "minimax3", [SL_CHAT_QWEN38] = "qwen38",
};

/*
 * Which format a checkpoint's model was trained on, first match. A family has models of several generations, and base
 * models; they differ in the added tokens of their tokenizer. NULL: any tokenizer.
 */
static const struct {
    const char *model_type, *token;
    sl_chat_format format;
} choices[] = {
    {"deepseek_v32", NULL, SL_CHAT_DSV32},
    {"glm_moe_dsa", NULL, SL_CHAT_GLM},
    {"glm4_moe", NULL, SL_CHAT_GLM45},
    {"llama", "<|eom_id|>", SL_CHAT_LLAMA31}, /* Llama 3.1 ends a call by it; 3.0 does not have it */
    {"llama", "<|start_header_id|>", SL_CHAT_LLAMA3},
    {"qwen2", "<tool_call>", SL_CHAT_QWEN25}, /* added with Qwen 2.5 */
    {"qwen2", "<|im_start|>", SL_CHAT_CHATML},
    {"qwen3", "<|im_start|>", SL_CHAT_QWEN3},
    {"axk2", "<|im_start|>", SL_CHAT_AXK2},
    {"deepseek_v4", NULL, SL_CHAT_DSV4},
    {"glm5_next", NULL, SL_CHAT_GLM53},
    {"glm5_next_text", NULL, SL_CHAT_GLM53},
    {"hy_v4", NULL, SL_CHAT_HY4},
    {"minimax_m3_vl", NULL, SL_CHAT_MINIMAX3},
    {"minimax_m3_vl_text", NULL, SL_CHAT_MINIMAX3},
    {"qwen4_exp", NULL, SL_CHAT_QWEN38},
    {"qwen4_exp_text", NULL, SL_CHAT_QWEN38},
};

const char *const *sl_chat_format_names(void)
{
    return format_names;
}

sl_status sl_chat_format_parse(const char *name, sl_chat_format *out)
{
    for (size_t i = 0; format_names[i]; i++) {
        if (strcmp(name, format_names[i]) == 0) {
            *out = (sl_chat_format)i;
            return SL_OK;
        }
    }
    return SL_ERR_NOT_FOUND;
}

const char *sl_chat_format_name(sl_chat_format f)
{
    return format_names[f];
}

static bool has_added(const sl_tokenizer *tok, const char *token)
{
    return tok && sl_tokenizer_is_added(tok, sl_tokenizer_id(tok, token, strlen(token)));
}

sl_chat_format sl_chat_format_for(const char *model_type, const sl_tokenizer *tok)
{
    for (size_t i = 0; i < SL_COUNT(choices); i++) {
        if (strcmp(choices[i].model_type, model_type) == 0 &&
            (!choices[i].token || has_added(tok, choices[i].token)))
            return choices[i].format;
    }
    return SL_CHAT_PLAIN;
}

const ct_format *ct_format_of(sl_chat_format f)
{
    return formats[f];
}

sl_chat_think sl_chat_thinks(sl_chat_format f)
{
    return formats[f]->thinks;
}

const char *const *sl_chat_ends(sl_chat_format f)
{
    return formats[f]->ends;
}

/* ---- reading messages ---- */

sl_status ct_fail(const ct_render *r, size_t i, const char *field, const char *why)
{
    return sl_fail(r->err, SL_ERR_INVALID, "messages[%zu].%s: %s", r->index[i], field, why);
}

const char *ct_role(const json_t *msg)
{
    return json_string_value(json_object_get(msg, "role"));
}

bool ct_is(const json_t *msg, const char *role)
{
    return strcmp(ct_role(msg), role) == 0;
}

const char *ct_reasoning(const json_t *msg)
{
    const char *s = json_string_value(json_object_get(msg, "reasoning_content"));
    return s && s[0] ? s : NULL;
}

const json_t *ct_tool_calls(const json_t *msg)
{
    const json_t *c = json_object_get(msg, "tool_calls");
    return json_array_size(c) ? c : NULL;
}

bool ct_has_content(const json_t *msg)
{
    const json_t *c = json_object_get(msg, "content");
    return json_string_length(c) > 0 || json_array_size(c) > 0;
}

/* Marks out[from..] as the client's; ranges that touch are joined. */
static void mark(ct_render *r, size_t from)
{
    size_t end = r->out.n;
    if (r->out.bad || from == end)
        return;
    if (r->n_client && r->client[r->n_client - 1].end == from) {
        r->client[r->n_client - 1].end = end;
        return;
    }
    if (sl_guard_grow(r->out.guard, (void **)&r->client, &r->cap_client, r->n_client + 1, sizeof *r->client,
                      NULL)) {
        r->out.bad = true; /* rather no prompt than one whose text is not marked */
        return;
    }
    r->client[r->n_client++] = (sl_tok_range){from, end};
}

void ct_client(ct_render *r, const char *text, size_t len)
{
    size_t from = r->out.n;
    ct_add(&r->out, text, len);
    mark(r, from);
}

void ct_client_json(ct_render *r, const json_t *value)
{
    size_t from = r->out.n;
    ct_json(&r->out, value);
    mark(r, from);
}

void ct_client_json_indented(ct_render *r, const json_t *value)
{
    size_t from = r->out.n;
    ct_json_indented(&r->out, value);
    mark(r, from);
}

sl_status ct_content(ct_render *r, size_t i)
{
    size_t from = r->out.n;
    sl_status st = ct_content_text(r, i, &r->out);
    mark(r, from);
    return st;
}

/* The text of part k, or a message with the type of a part that is not text; a part without a type has only text. */
static sl_status text_of_part(const ct_render *r, size_t i, size_t k, const json_t *part, const json_t **text)
{
    const char *type = json_string_value(json_object_get(part, "type")), *other = NULL, *key;
    char field[64], why[128];
    json_t *v;
    *text = json_is_string(part) ? part : json_object_get(part, "text");
    json_object_foreach((json_t *)(uintptr_t)part, key, v) if (!type && strcmp(key, "text") != 0) other = key;
    if (json_is_string(*text) && !other && (!type || strcmp(type, "text") == 0))
        return SL_OK;
    snprintf(field, sizeof field, "content[%zu]%s", k, type ? ".type" : "");
    snprintf(why, sizeof why, "\"%.32s\": only parts of type \"text\" can be used, with a text",
             type    ? type
             : other ? other
                     : "");
    return ct_fail(r, i, field, why);
}

sl_status ct_content_text(ct_render *r, size_t i, ct_buf *out)
{
    const json_t *c = json_object_get(r->msgs[i], "content");
    if (!c || json_is_null(c))
        return SL_OK;
    if (json_is_string(c)) {
        ct_add(out, json_string_value(c), json_string_length(c));
        return SL_OK;
    }
    if (!json_is_array(c))
        return ct_fail(r, i, "content", "must be a string, null or an array of text parts");
    size_t k;
    json_t *part;
    json_array_foreach(c, k, part)
    {
        const json_t *text;
        SL_TRY(text_of_part(r, i, k, part, &text));
        ct_add(out, json_string_value(text), json_string_length(text));
    }
    return SL_OK;
}

/* The text was written by the client and is parsed for the first time: it has the limits of the body. What its values
 * take is held until the prompt is rendered, because the number of calls at once is not known here. */
static sl_status parse_arguments(ct_render *r, size_t i, const json_t *text, json_t **args)
{
    sl_json_cost c = sl_json_measure(json_string_value(text), json_string_length(text));
    if (c.depth > SL_JSON_DEPTH_MAX)
        return ct_fail(r, i, "tool_calls", "function.arguments is nested too deeply");
    SL_TRY(sl_guard_take(r->req->guard, c.bytes, r->err));
    *args = json_loadb(json_string_value(text), json_string_length(text), JSON_ALLOW_NUL, NULL);
    return SL_OK;
}

sl_status ct_arguments(ct_render *r, size_t i, size_t k, const char **name, json_t **args)
{
    const json_t *call = ct_function(json_array_get(ct_tool_calls(r->msgs[i]), k));
    const json_t *a = json_object_get(call, "arguments");
    *name = json_string_value(json_object_get(call, "name"));
    if (!*name)
        return ct_fail(r, i, "tool_calls", "a call lacks function.name");
    if (json_is_object(a))
        *args = json_incref((json_t *)a);
    else if (json_is_string(a) && json_string_length(a) > 0)
        SL_TRY(parse_arguments(r, i, a, args));
    else
        *args = a && !json_is_null(a) && !json_is_string(a) ? NULL : json_object();
    if (json_is_object(*args))
        return SL_OK;
    json_decref(*args);
    return ct_fail(r, i, "tool_calls", "function.arguments is not the text of a JSON object");
}

static const char *id_of(const json_t *v, const char *key)
{
    const char *id = json_string_value(json_object_get(v, key));
    return id && id[0] ? id : NULL;
}

/* The place of each call by its id; NULL: out of memory, or strict and an id is missing or comes twice. */
static json_t *places_of(const json_t *calls, bool strict)
{
    json_t *places = json_object(), *call;
    size_t k;
    json_array_foreach(calls, k, call)
    {
        const char *id = id_of(call, "id");
        if (strict && (!id || json_object_get(places, id))) {
            json_decref(places);
            return NULL;
        }
        if (id)
            json_object_set_new(places, id, json_integer((json_int_t)k));
    }
    return places;
}

/* Sorts at[0..n) by the places of their calls; false: strict, and one has no place or that of another. */
static bool sort_by_place(const ct_render *r, const json_t *places, size_t *at, size_t n, size_t *next,
                          size_t n_calls, bool strict, size_t *sorted)
{
    for (size_t i = 0; i < n; i++) {
        const char *id = id_of(r->msgs[at[i]], "tool_call_id");
        const json_t *place = id ? json_object_get(places, id) : NULL;
        size_t k = (size_t)json_integer_value(place);
        if (strict && (!place || next[k + 1]))
            return false;
        sorted[i] = k; /* for the moment */
        next[k + 1]++;
    }
    for (size_t k = 0; k < n_calls; k++)
        next[k + 1] += next[k];
    for (size_t i = 0; i < n; i++) {
        size_t to = next[sorted[i]]++;
        sorted[n + to] = at[i];
    }
    memcpy(at, sorted + n, n * sizeof *at);
    return true;
}

sl_status ct_order_results(ct_render *r, const json_t *calls, size_t *at, size_t n, bool strict)
{
    enum { ID_BYTES = 160 }; /* of one id in an object of jansson, without its text, which the request has */
    size_t n_calls = json_array_size(calls);
    if (n < 2 || n_calls == 0)
        return SL_OK;
    SL_TRY(sl_guard_take(r->req->guard, n_calls * ID_BYTES + (n_calls + 1 + 2 * n) * sizeof(size_t), r->err));
    json_t *places = places_of(calls, strict);
    size_t *next = calloc(n_calls + 1, sizeof *next), *sorted = calloc(2 * n, sizeof *sorted);
    sl_status st = next && sorted ? SL_OK : SL_ERR_NO_MEMORY;
    if (!st && json_object_size(places))
        sort_by_place(r, places, at, n, next, n_calls, strict, sorted);
    free(next);
    free(sorted);
    json_decref(places);
    return st;
}

const json_t *ct_function(const json_t *tool)
{
    const json_t *f = json_object_get(tool, "function");
    return f ? f : tool;
}

const json_t *ct_tools(const sl_chat_request *req)
{
    const char *choice = json_string_value(req->tool_choice);
    if (json_array_size(req->tools) == 0 || (choice && strcmp(choice, "none") == 0))
        return NULL;
    return req->tools;
}

const json_t *ct_schema(const sl_chat_request *req)
{
    const json_t *f = req->response_format;
    const char *type = json_string_value(json_object_get(f, "type"));
    if (!type || strcmp(type, "text") == 0)
        return NULL;
    const json_t *named = json_object_get(f, "json_schema"), *schema = json_object_get(named, "schema");
    return schema ? schema : named ? named : f;
}

void ct_choice(ct_render *r)
{
    const json_t *choice = r->req->tool_choice;
    const char *word = json_string_value(choice);
    const char *name = json_string_value(json_object_get(ct_function(choice), "name"));
    if (word && strcmp(word, "required") == 0) {
        ct_str(&r->out, "\nYou must call at least one function in your reply.\n");
    } else if (name) {
        ct_str(&r->out, "\nYou must call the function ");
        ct_client(r, name, strlen(name));
        ct_str(&r->out, " in your reply.\n");
    }
}

/* ---- checks before any format ---- */

static sl_status check_tools(const sl_chat_request *req, sl_err *err)
{
    if (req->tools && !json_is_null(req->tools) && !json_is_array(req->tools))
        return sl_fail(err, SL_ERR_INVALID, "tools: must be an array");
    if (json_array_size(req->tools) > SL_CHAT_TOOLS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "tools: %zu of them, at most %d", json_array_size(req->tools),
                       SL_CHAT_TOOLS_MAX);
    size_t i;
    json_t *tool;
    json_array_foreach(req->tools, i, tool)
    {
        if (!json_is_string(json_object_get(ct_function(tool), "name")))
            return sl_fail(err, SL_ERR_INVALID, "tools[%zu].function.name: must be a string", i);
    }
    const json_t *c = req->tool_choice;
    const char *word = json_string_value(c);
    bool known =
        !c || json_is_null(c) || json_is_object(c) ||
        (word && (strcmp(word, "auto") == 0 || strcmp(word, "none") == 0 || strcmp(word, "required") == 0));
    return known ? SL_OK
                 : sl_fail(err, SL_ERR_INVALID, "tool_choice: must be auto, none, required or a function");
}

static sl_status check_messages(const sl_chat_request *req, sl_err *err)
{
    if (!json_is_array(req->messages) || json_array_size(req->messages) == 0)
        return sl_fail(err, SL_ERR_INVALID, "messages: must be an array with at least one message");
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    size_t i;
    json_t *msg;
    json_array_foreach(req->messages, i, msg)
    {
        const char *role = ct_role(msg);
        bool known = false;
        for (size_t k = 0; role && k < SL_COUNT(roles); k++)
            known |= strcmp(role, roles[k]) == 0;
        if (!known)
            return sl_fail(err, SL_ERR_INVALID, "messages[%zu].role: \"%.32s\" is unknown", i,
                           role ? role : "");
        if (strcmp(role, "assistant") && json_is_null(json_object_get(msg, "content")))
            return sl_fail(err, SL_ERR_INVALID, "messages[%zu].content: must not be null for the role %s", i,
                           role);
        const json_t *calls = json_object_get(msg, "tool_calls");
        if (calls && !json_is_null(calls) && !json_is_array(calls))
            return sl_fail(err, SL_ERR_INVALID, "messages[%zu].tool_calls: must be an array", i);
    }
    return SL_OK;
}

/* ---- plain ---- */

static sl_status render_plain(ct_render *r)
{
    if (ct_tools(r->req))
        return sl_fail(r->err, SL_ERR_UNSUPPORTED, "tools: the plain chat format has none");
    for (size_t i = 0; i < r->n; i++) {
        if (ct_tool_calls(r->msgs[i]))
            return ct_fail(r, i, "tool_calls", "the model's chat format has no tools");
        ct_str(&r->out, ct_role(r->msgs[i]));
        ct_str(&r->out, ": ");
        SL_TRY(ct_content(r, i));
        ct_str(&r->out, "\n");
    }
    ct_str(&r->out, "assistant:");
    return SL_OK;
}

/* ---- entry ---- */

static sl_status bad(const ct_render *r)
{
    SL_TRY(sl_guard_check(r->req->guard, r->err));
    return r->req->guard && r->req->guard->refused ? sl_guard_refused(r->req->guard, r->err)
                                                   : SL_ERR_NO_MEMORY;
}

sl_status sl_chat_render(sl_chat_format f, const sl_chat_request *req, sl_chat_prompt *out, sl_err *err)
{
    SL_TRY(check_messages(req, err));
    SL_TRY(check_tools(req, err));
    sl_status st = SL_ERR_NO_MEMORY;
    size_t n = json_array_size(req->messages);
    ct_render r = {.err = err, .req = req, .n = n, .last_user = SIZE_MAX};
    r.out.guard = req->guard;
    SL_TRY(sl_guard_take(req->guard, n * (sizeof *r.msgs + sizeof *r.index), err));
    r.msgs = malloc(n * sizeof *r.msgs);
    r.index = malloc(n * sizeof *r.index);
    if (!r.msgs || !r.index)
        goto free_lists;
    for (size_t i = 0; i < n; i++) {
        r.msgs[i] = json_array_get(req->messages, i);
        r.index[i] = i;
    }
    st = formats[f]->render(&r);
    if (st != SL_OK)
        goto free_text;
    if (r.out.bad) {
        st = bad(&r);
        goto free_text;
    }
    *out = (sl_chat_prompt){.text = r.out.p, .len = r.out.n, .client = r.client, .n_client = r.n_client};
    r.out.p = NULL; /* the caller's, and the ranges */
    r.client = NULL;
free_text:
    free(r.out.p);
    free(r.client);
free_lists:
    free(r.msgs);
    free(r.index);
    return st == SL_ERR_NO_MEMORY ? sl_fail(err, st, "out of memory") : st;
}

void sl_chat_prompt_free(sl_chat_prompt *p)
{
    free(p->text);
    free(p->client);
    *p = (sl_chat_prompt){0};
}
