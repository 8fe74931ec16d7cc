/* See eval_http.h. */
#include "cli/eval_http.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_S = 1800, FRAME_TOKENS = 48 /* of chat formats, with their system prompt */ };

typedef struct http {
    const sl_http_server *servers, *server; /* server: of the setting that has begun */
    char *model;                            /* the name that it serves */
} http;

static sl_status refused(const http *h, const sl_http_answer *a, sl_err *err)
{
    json_t *o = json_loads(a->body, 0, NULL);
    const char *why = json_string_value(json_object_get(json_object_get(o, "error"), "message"));
    sl_status st = sl_fail(err, a->code == 401 ? SL_ERR_DENIED : SL_ERR_REFUSED, "%s:%s answers %d: %s%s",
                           h->server->host, h->server->port, a->code, why ? why : "no message",
                           a->code == 401 ? " (--key-file)" : "");
    json_decref(o);
    return st;
}

/* Asks and parses; *out is a new reference. */
static sl_status ask(const http *h, const char *method, const char *path, const char *body, json_t **out,
                     sl_err *err)
{
    sl_http_answer a;
    SL_TRY(sl_http_ask(h->server, method, path, body, TIMEOUT_S, &a, err));
    sl_status st = SL_OK;
    *out = NULL;
    if (a.code != 200)
        st = refused(h, &a, err);
    else if (!(*out = json_loadb(a.body, a.len, 0, NULL)))
        st = sl_fail(err, SL_ERR_CORRUPT, "%s:%s: the answer to %s is not JSON", h->server->host,
                     h->server->port, path);
    free(a.body);
    return st;
}

/* The model's name, and whether `length` tokens fit its context, if the server says how long that is. */
static sl_status begin(void *ctx, const sl_eval_setting *s, int32_t length, sl_err *err)
{
    http *h = ctx;
    json_t *models;
    h->server = &h->servers[s->server];
    SL_TRY(ask(h, "GET", "/v1/models", NULL, &models, err));
    const json_t *first = json_array_get(json_object_get(models, "data"), 0);
    const char *id = json_string_value(json_object_get(first, "id"));
    const json_int_t most = json_integer_value(json_object_get(first, "max_model_len"));
    sl_status st = SL_OK;
    free(h->model);
    h->model = id ? strdup(id) : NULL;
    if (!h->model)
        st = sl_fail(err, SL_ERR_CORRUPT, "%s: /v1/models names no model", s->name);
    else if (most > 0 && length > most)
        st = sl_fail(err, SL_ERR_TOO_LARGE,
                     "--lengths: %d tokens exceed the context of %lld of the model at %s", length,
                     (long long)most, s->name);
    json_decref(models);
    return st;
}

/* A server cannot be given the beginning of an answer; it ends the message, as RULER's programs do with servers. */
static json_t *chat_request(const http *h, const sl_eval_question *q)
{
    return json_pack("{s:s, s:[{s:s, s:s+}], s:i, s:i, s:b, s:{s:b, s:b}}", "model", h->model, "messages",
                     "role", "user", "content", q->user, q->prefix ? q->prefix : "", "temperature", 0,
                     "max_tokens", q->max_new, "stream", 0, "chat_template_kwargs", "thinking", 0,
                     "enable_thinking", 0);
}

/* Without a chat format the answer continues the prompt and what begins the answer. */
static json_t *text_request(const http *h, const sl_eval_question *q)
{
    return json_pack("{s:s, s:s+, s:i, s:i, s:b}", "model", h->model, "prompt", q->user,
                     q->prefix ? q->prefix : "", "temperature", 0, "max_tokens", q->max_new, "stream", 0);
}

static sl_status answer(void *ctx, const sl_eval_question *q, sl_eval_answer *out, sl_err *err)
{
    http *h = ctx;
    json_t *got;
    json_t *request = q->chat ? chat_request(h, q) : text_request(h, q);
    char *body = request ? json_dumps(request, JSON_COMPACT) : NULL;
    json_decref(request);
    if (!body)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a request");
    sl_status st = ask(h, "POST", q->chat ? "/v1/chat/completions" : "/v1/completions", body, &got, err);
    free(body);
    if (st != SL_OK)
        return st;
    const json_t *choice = json_array_get(json_object_get(got, "choices"), 0);
    const json_t *content = q->chat ? json_object_get(json_object_get(choice, "message"), "content")
                                    : json_object_get(choice, "text");
    const char *text = json_string_value(content);
    out->text = strdup(text ? text : "");
    out->prompt_tokens =
        (int32_t)json_integer_value(json_object_get(json_object_get(got, "usage"), "prompt_tokens"));
    json_decref(got);
    return out->text ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for an answer");
}

static void destroy(void *ctx)
{
    http *h = ctx;
    free(h->model);
    free(h);
}

sl_status sl_cli_eval_http_create(const sl_http_server *servers, sl_eval_target *out, sl_err *err)
{
    http *h = calloc(1, sizeof *h);
    if (!h)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    h->servers = servers;
    *out = (sl_eval_target){.ctx = h,
                            .begin = begin,
                            .answer = answer,
                            .counter = {.count = sl_eval_count_pieces},
                            .frame_tokens = FRAME_TOKENS,
                            .destroy = destroy};
    return SL_OK;
}
