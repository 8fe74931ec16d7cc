/*
 * Errors as OpenAI clients expect them: {"error":{"message","type","code","param"}} and the HTTP status. The
 * parameter is taken from the error text, which begins with the field's path.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/http/openai.h"

typedef struct row {
    sl_status st;
    int http;
    const char *type, *code;
} row;

static const row rows[] = {
    {SL_ERR_INVALID, 400, "invalid_request_error", "invalid_value"},
    {SL_ERR_NOT_FOUND, 404, "invalid_request_error", "model_not_found"},
    {SL_ERR_TOO_LARGE, 400, "invalid_request_error", "context_length_exceeded"},
    {SL_ERR_UNSUPPORTED, 400, "invalid_request_error", "unsupported_parameter"},
    {SL_ERR_DENIED, 401, "invalid_request_error", "invalid_api_key"},
    {SL_ERR_CANCELLED, 499, "cancelled", "request_cancelled"},
    {SL_ERR_DEADLINE, 504, "timeout_error", "deadline_exceeded"},
    {SL_ERR_EXHAUSTED, 429, "rate_limit_error", "rate_limit_exceeded"},
    {SL_ERR_DATA_LOSS, 500, "server_error", "data_loss"},
    {SL_ERR_PEER, 503, "server_error", "service_unavailable"},
    {SL_ERR_REFUSED, 503, "server_error", "service_unavailable"},
    {SL_ERR_TIMEOUT, 503, "server_error", "service_unavailable"},
};

char *sl_oai_error_text(const char *message, const char *type, const char *code, const char *param)
{
    json_t *o = json_pack("{s:{s:s, s:s, s:s, s:s?}}", "error", "message", message, "type", type, "code",
                          code, "param", param);
    if (!o) /* the message is not UTF-8: it quotes the client */
        o = json_pack("{s:{s:s, s:s, s:s, s:n}}", "error", "message", "invalid request", "type", type, "code",
                      code, "param");
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

/* "body.max_tokens: …" -> "max_tokens", or "" when the text does not begin with a field. */
static void find_param(const char *text, char *out, size_t cap)
{
    size_t n = 0;
    while (text[n] && (isalnum((unsigned char)text[n]) || strchr("_.[]", text[n])))
        n++;
    if (!n || text[n] != ':' || n >= cap || !strncmp(text, "body", n))
        n = 0;
    memcpy(out, text, n);
    out[n] = 0;
}

char *sl_oai_error_json(sl_status st, const char *text, int *code)
{
    const row *e = NULL;
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        if (rows[i].st == st)
            e = &rows[i];
    }
    static const row internal = {SL_ERR_INTERNAL, 500, "server_error", "internal_error"};
    if (!e)
        e = &internal;
    *code = e->http;
    if (!text || !*text)
        text = sl_status_name(st);
    if (!strncmp(text, "body.", 5))
        text += 5;
    char param[128];
    find_param(text, param, sizeof param);
    bool client = e->http >= 400 && e->http < 500;
    return sl_oai_error_text(text, e->type, e->code, client && param[0] ? param : NULL);
}

char *sl_oai_messages_error(int code, const char *text)
{
    static const struct {
        int code;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},       {413, "request_too_large"},    {429, "rate_limit_error"},
                 {503, "overloaded_error"},      {504, "timeout_error"}};
    const char *type = code < 500 ? "invalid_request_error" : "api_error";
    for (size_t i = 0; i < SL_COUNT(types); i++)
        if (types[i].code == code)
            type = types[i].type;
    if (!strncmp(text, "body.", 5))
        text += 5;
    json_t *o = json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", type, "message", text);
    if (!o) /* the message is not UTF-8: it quotes the client */
        o = json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", type, "message",
                      "invalid request");
    char *out = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return out;
}
