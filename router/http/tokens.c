/*
 * Answers that need the tokenizer and no worker: /tokenize and /detokenize as vLLM has them, and Anthropic's count_tokens. Pure,
 * any thread; what it takes is taken from the guard.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "router/http/translate.h"

#define W "body"

enum { CHECK_EVERY = 4096, ID_BYTES = 24, ESCAPED = 6, REPLACED = 3 };

static const struct {
    const char *path, *name;
} apis[OAI_APIS] = {
    [OAI_COMPLETIONS] = {"/v1/completions", "completions"},
    [OAI_CHAT] = {"/v1/chat/completions", "chat"},
    [OAI_RESPONSES] = {"/v1/responses", "responses"},
    [OAI_MESSAGES] = {"/v1/messages", "messages"},
    [OAI_GENERATE] = {"/generate", "generate"},
    [OAI_TOKENIZE] = {"/tokenize", "tokenize"},
    [OAI_DETOKENIZE] = {"/detokenize", "detokenize"},
    [OAI_COUNT_TOKENS] = {"/v1/messages/count_tokens", "count_tokens"},
};

const char *sl_oai_path(sl_oai_api api)
{
    return (size_t)api < OAI_APIS ? apis[api].path : "";
}

const char *sl_oai_name(sl_oai_api api)
{
    return (size_t)api < OAI_APIS ? apis[api].name : "other";
}

sl_oai_api sl_oai_find(const char *path)
{
    int api = 0;
    while (api < OAI_APIS && strcmp(path, apis[api].path))
        api++;
    return (sl_oai_api)api;
}

/* Unlike requests for tokens, these may leave the model out. */
static sl_status check_model(const sl_oai_env *env, const json_t *o, sl_err *err)
{
    const char *model = env->served_name;
    SL_TRY(sl_json_opt_string(o, W, "model", &model, err));
    return strcmp(model, env->served_name)
               ? sl_fail(err, SL_ERR_NOT_FOUND,
                         W ".model: the model '%.100s' does not exist; this server has '%s'", model,
                         env->served_name)
               : SL_OK;
}

/* ---- tokenize ---- */

static sl_status encode_prompt(const sl_oai_env *env, const json_t *o, int32_t **ids, size_t *n, sl_err *err)
{
    const json_t *text = json_object_get(o, "prompt");
    bool special = true, parse = env->parse_special;
    SL_TRY(sl_json_opt_bool(o, W, "add_special_tokens", &special, err));
    SL_TRY(sl_json_opt_bool(o, W, "parse_special", &parse, err));
    if (!json_is_string(text))
        return sl_fail(err, SL_ERR_INVALID, W ".prompt: want a string");
    const sl_tok_range all = {0, json_string_length(text)};
    const sl_tok_input in = {.text = json_string_value(text),
                             .len = json_string_length(text),
                             .flags = special ? SL_TOK_ADD_SPECIAL : 0,
                             .plain = &all,
                             .n_plain = !parse,
                             .max_ids = SIZE_MAX,
                             .guard = env->guard};
    sl_status st = sl_tokenizer_encode_input(env->tok, &in, ids, n, err);
    return st ? sl_fail_in(err, st, W ".prompt") : SL_OK;
}

/* The prompt that a chat with these messages would have. */
static sl_status encode_chat(const sl_oai_env *env, const json_t *o, int32_t **ids, size_t *n, sl_err *err)
{
    static const char *const kept[] = {"messages", "tools", "chat_template_kwargs", "parse_special"};
    json_t *chat = json_pack("{s:s}", "model", env->served_name);
    for (size_t i = 0; i < SL_COUNT(kept); i++)
        if (oai_given(o, kept[i]))
            json_object_set(chat, kept[i], json_object_get(o, kept[i]));
    sl_oai_request q = {.api = OAI_CHAT};
    sl_status st = sl_oai_parse_object(env, chat, true, &q, err);
    json_decref(chat);
    if (st)
        return st;
    *ids = q.spec.prompts[0].ids;
    *n = q.spec.prompts[0].n;
    q.spec.prompts[0].ids = NULL;
    sl_oai_request_free(&q);
    return SL_OK;
}

/* Whether somebody still waits; asked from time to time. */
static sl_status wanted(const sl_oai_env *env, size_t i, sl_err *err)
{
    return i % CHECK_EVERY || !env->guard ? SL_OK : sl_guard_check(env->guard, err);
}

static sl_status put_ids(const sl_oai_env *env, const int32_t *ids, size_t n, sl_strbuf *out, sl_err *err)
{
    for (size_t i = 0; i < n; i++) {
        SL_TRY(wanted(env, i, err));
        char text[16];
        int len = snprintf(text, sizeof text, i ? ",%d" : "%d", ids[i]);
        sl_sb_append(out, text, (size_t)len);
    }
    return SL_OK;
}

static sl_status put_strings(const sl_oai_env *env, const int32_t *ids, size_t n, sl_strbuf *out, sl_err *err)
{
    for (size_t i = 0; i < n; i++) {
        SL_TRY(wanted(env, i, err));
        const char *token = sl_tokenizer_token(env->tok, ids[i]);
        if (i)
            sl_sb_char(out, ',');
        sl_sb_json(out, token ? token : "", token ? strlen(token) : 0);
    }
    return SL_OK;
}

/* What the answer takes: its buffer has twice what is in it at most, and a letter that JSON escapes has six. */
static uint64_t answer_bytes(const sl_oai_env *env, const int32_t *ids, size_t n, bool strings)
{
    uint64_t bytes = ID_BYTES * (uint64_t)n;
    for (size_t i = 0; i < n && strings; i++) {
        const char *token = sl_tokenizer_token(env->tok, ids[i]);
        bytes += 2 * (3 + ESCAPED * (token ? strlen(token) : 0));
    }
    return bytes;
}

static sl_status tokenize(const sl_oai_env *env, const json_t *o, sl_strbuf *out, sl_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    bool strings = false;
    SL_TRY(sl_json_opt_bool(o, W, "return_token_strs", &strings, err));
    if (oai_given(o, "messages") == oai_given(o, "prompt"))
        return sl_fail(err, SL_ERR_INVALID, W ".prompt: want this or messages");
    SL_TRY((oai_given(o, "messages") ? encode_chat : encode_prompt)(env, o, &ids, &n, err));
    sl_status st = sl_guard_take(env->guard, answer_bytes(env, ids, n, strings), err);
    if (!st) {
        sl_sb_printf(out, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":[", n, env->context);
        st = put_ids(env, ids, n, out, err);
        sl_sb_str(out, strings ? "],\"token_strs\":[" : "],\"token_strs\":null}");
        if (strings && !st)
            st = put_strings(env, ids, n, out, err);
        if (strings)
            sl_sb_str(out, "]}");
    }
    free(ids);
    return st;
}

/* ---- detokenize ---- */

static sl_status detokenize(const sl_oai_env *env, const json_t *o, sl_strbuf *out, sl_err *err)
{
    json_t *list = NULL;
    bool skip = false;
    char *text = NULL;
    size_t len, n, piece = 0;
    uint64_t bytes = 0;
    SL_TRY(sl_json_get_array(o, W, "tokens", &list, err));
    SL_TRY(sl_json_opt_bool(o, W, "skip_special_tokens", &skip, err));
    n = json_array_size(list);
    SL_TRY(sl_guard_take(env->guard, n * sizeof(int32_t), err));
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    sl_status st = ids ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < n && !st; i++) {
        const json_t *v = json_array_get(list, i);
        int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        ids[i] = (int32_t)id;
        st = wanted(env, i, err);
        if (!st && (id < 0 || id >= sl_tokenizer_vocab_size(env->tok)))
            st = sl_fail(err, SL_ERR_INVALID, W ".tokens: entry %zu is no token id", i);
        if (!st && sl_tokenizer_piece(env->tok, ids[i], &piece))
            bytes += piece;
    }
    if (!st) /* the text, in which a byte that is no character becomes one of three, and its JSON; buffers have twice what is in them */
        st = sl_guard_take(env->guard, 2 * (REPLACED + ESCAPED) * bytes, err);
    if (!st)
        st = sl_tokenizer_decode(env->tok, ids, n, skip, &text, &len);
    if (!st) {
        sl_sb_str(out, "{\"prompt\":");
        sl_sb_json(out, text, len);
        sl_sb_char(out, '}');
    }
    free(ids);
    free(text);
    return st;
}

/* ---- count_tokens ---- */

static sl_status count_tokens(const sl_oai_env *env, const json_t *o, size_t len, sl_strbuf *out, sl_err *err)
{
    json_t *chat = NULL;
    sl_oai_request q = {.api = OAI_COUNT_TOKENS};
    SL_TRY(sl_guard_take(env->guard, oai_translated_bytes(o, len), err));
    SL_TRY(sl_oai_from_messages(o, &chat, err));
    sl_status st = sl_oai_parse_object(env, chat, true, &q, err);
    json_decref(chat);
    oai_name_for(OAI_COUNT_TOKENS, st ? err : NULL);
    if (st)
        return st;
    sl_sb_printf(out, "{\"input_tokens\":%zu}", q.spec.prompts[0].n);
    sl_oai_request_free(&q);
    return SL_OK;
}

sl_status sl_oai_reply(const sl_oai_env *env, sl_oai_api api, const char *body, size_t len, char **out,
                       sl_err *err)
{
    json_t *o = NULL;
    sl_strbuf text = {0};
    SL_TRY(sl_oai_load(env, body, len, &o, err));
    sl_status st = sl_oai_fields_check(o, 1u << api, err);
    if (!st && api != OAI_COUNT_TOKENS)
        st = check_model(env, o, err);
    if (!st)
        st = api == OAI_TOKENIZE     ? tokenize(env, o, &text, err)
             : api == OAI_DETOKENIZE ? detokenize(env, o, &text, err)
                                     : count_tokens(env, o, len, &text, err);
    json_decref(o);
    char *reply = st ? NULL : sl_sb_take(&text);
    sl_sb_free(&text);
    if (!st && !reply)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    *out = reply;
    return st;
}
