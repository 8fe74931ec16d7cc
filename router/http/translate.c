/* See translate.h. */
#include "router/http/translate.h"

#include <stdio.h>
#include <string.h>

/* As jansson and malloc take them: an object of few members, of which each has a short text. */
enum { TEXT_COPIES = 4, MESSAGE_BYTES = 768, TOOL_BYTES = 1152, CALL_BYTES = 2048 };

static uint64_t item_bytes(const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    return type && (!strcmp(type, "tool_use") || !strcmp(type, "function_call")) ? CALL_BYTES : MESSAGE_BYTES;
}

uint64_t oai_translated_bytes(const json_t *o, size_t len)
{
    static const char *const lists[] = {"messages", "input"};
    uint64_t bytes = TEXT_COPIES * (uint64_t)len + TOOL_BYTES * json_array_size(json_object_get(o, "tools"));
    size_t i, k;
    json_t *item, *block;
    for (size_t l = 0; l < SL_COUNT(lists); l++) {
        json_array_foreach(json_object_get(o, lists[l]), i, item)
        {
            bytes += item_bytes(item);
            json_array_foreach(json_object_get(item, "content"), k, block) bytes += item_bytes(block);
        }
    }
    return bytes;
}

/* Puts `with` in the place of n bytes at `at`; a text that becomes too long loses its end. */
static void replace(sl_err *err, size_t at, size_t n, const char *with)
{
    char rest[sizeof err->text];
    snprintf(rest, sizeof rest, "%s", err->text + at + n);
    snprintf(err->text + at, sizeof err->text - at, "%s%s", with, rest);
}

void oai_name_for(sl_oai_api api, sl_err *err)
{
    static const struct {
        sl_oai_api api;
        const char *chat, *own;
    } names[] = {{OAI_RESPONSES, "max_tokens", "max_output_tokens"},
                 {OAI_RESPONSES, "response_format", "text.format"},
                 {OAI_RESPONSES, "reasoning_effort", "reasoning.effort"},
                 {OAI_MESSAGES, "stop", "stop_sequences"},
                 {OAI_MESSAGES, "response_format", "output_config.format"},
                 {OAI_MESSAGES, "reasoning_effort", "output_config.effort"}};
    enum { BODY = 5 };
    if (!err || strncmp(err->text, "body.", BODY))
        return;
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        size_t n = strcspn(err->text + BODY, ":.[");
        bool same = names[i].api == (api == OAI_COUNT_TOKENS ? OAI_MESSAGES : api);
        if (!same || n != strlen(names[i].chat) || strncmp(err->text + BODY, names[i].chat, n))
            continue;
        replace(err, BODY, n, names[i].own);
        return;
    }
    char *inner = strstr(err->text, ".function.");
    if (inner && inner < err->text + strcspn(err->text, ":") && !strncmp(err->text + BODY, "tool", 4))
        replace(err, (size_t)(inner - err->text), strlen(".function"), "");
}

void oai_move(const json_t *o, const char *from, json_t *out, const char *to)
{
    if (oai_given(o, from))
        json_object_set(out, to, json_object_get(o, from));
}

static bool is_one_of(const char *type, const char *const *types)
{
    while (*types && strcmp(*types, type))
        types++;
    return *types != NULL;
}

sl_status oai_need_string(const json_t *o, const char *where, const char *key, const char **out, sl_err *err)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_string(v))
        return sl_fail(err, SL_ERR_INVALID, "%s.%s: want a string", where, key);
    *out = json_string_value(v);
    return SL_OK;
}

sl_status oai_join_text(const json_t *content, const char *const *types, const char *where, sl_strbuf *out,
                        sl_err *err)
{
    size_t i;
    const json_t *part;
    if (json_is_string(content)) {
        sl_sb_append(out, json_string_value(content), json_string_length(content));
        return SL_OK;
    }
    if (!json_is_array(content))
        return sl_fail(err, SL_ERR_INVALID, "%s: want a string or a list of parts", where);
    json_array_foreach((json_t *)content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!json_is_object(part) || !type)
            return sl_fail(err, SL_ERR_INVALID, "%s[%zu].type: want a string", where, i);
        if (!is_one_of(type, types))
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%s[%zu].type: '%.40s' is not supported", where, i, type);
        if (!json_is_string(text))
            return sl_fail(err, SL_ERR_INVALID, "%s[%zu].text: want a string", where, i);
        sl_sb_append(out, json_string_value(text), json_string_length(text));
    }
    return SL_OK;
}

sl_status oai_append(json_t *list, json_t *v, sl_err *err)
{
    return v && json_array_append_new(list, v) == 0 ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
}

json_t *oai_message(const char *role, sl_strbuf *sb)
{
    json_t *m =
        sb->bad ? NULL : json_pack("{s:s, s:s%}", "role", role, "content", sb->data ? sb->data : "", sb->len);
    sl_sb_free(sb);
    return m;
}

sl_status oai_add_call(json_t *messages, const char *id, const char *name, const char *arguments, sl_err *err)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant")) {
        last = json_pack("{s:s, s:n}", "role", "assistant", "content");
        SL_TRY(oai_append(messages, last, err));
    }
    json_t *calls = json_object_get(last, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(last, "tool_calls", calls);
    }
    return oai_append(calls,
                      json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type", "function", "function", "name",
                                name, "arguments", arguments),
                      err);
}
