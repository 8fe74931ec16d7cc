/*
 * Routes, authentication and the pages that are answered at once: health, models, workers, metrics.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/http/http_impl.h"

static const char JSON_TYPE[] = "application/json";

void http_reply(http_req *q, int code, const char *type, char *text)
{
    free(q->reply);
    q->reply = text;
    q->reply_len = text ? strlen(text) : 0;
    q->code = text ? code : 500;
    q->type = type;
}

void http_reply_status(http_req *q, sl_status st, const char *text)
{
    int code;
    char *body = sl_oai_error_json(st, text, &code);
    http_reply(q, code, JSON_TYPE, body);
}

void http_reply_error(http_req *q, int code, const char *message, const char *type, const char *ecode)
{
    http_reply(q, code, JSON_TYPE, sl_oai_error_text(message, type, ecode, NULL));
}

static void reply_json(http_req *q, int code, json_t *o)
{
    http_reply(q, code, JSON_TYPE, o ? json_dumps(o, JSON_COMPACT) : NULL);
    json_decref(o);
}

static void page_health(http_req *q)
{
    sl_router *r = q->h->r;
    size_t p = sl_members_count(r, SL_ROLE_PREFILL), d = sl_members_count(r, SL_ROLE_DECODE);
    bool ok = sl_router_ready(r);
    reply_json(q, ok ? 200 : 503,
               json_pack("{s:s, s:i, s:i}", "status",
                         ok            ? "ok"
                         : r->draining ? "draining"
                                       : "waiting for workers",
                         "prefill", (int)p, "decode", (int)d));
}

static void page_metrics(http_req *q)
{
    sl_router_stats_tick(q->h->r);
    http_reply(q, 200, SL_METRICS_CONTENT_TYPE, sl_metrics_text(q->h->r->stats.m));
}

static json_t *model_json(const sl_router *r)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:i}", "id", r->o.served_name, "object", "model", "created",
                     (json_int_t)r->started_unix, "owned_by", "sluice", "max_model_len", (int)r->max_context);
}

static void page_models(http_req *q)
{
    reply_json(q, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(q->h->r)));
}

static void page_model(http_req *q)
{
    const char *name = q->path + strlen("/v1/models/");
    if (!strcmp(name, q->h->r->o.served_name))
        reply_json(q, 200, model_json(q->h->r));
    else
        http_reply_status(q, SL_ERR_NOT_FOUND, "model: does not exist");
}

static json_t *worker_json(const sl_member *w)
{
    static const char *const states[] = {"joining", "ready", "draining", "dead"};
    return json_pack(
        "{s:i, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I}", "id",
        (int)w->id, "name", w->name, "role", sl_role_name((sl_role)w->role), "state", states[w->state],
        "listen", w->listen, "metrics", w->metrics, "pid", (int)w->pid, "placed", (int)w->placed, "running",
        (int)w->load.running, "waiting", (int)w->load.waiting, "max_batch", (int)w->max_batch, "total_pages",
        (int)w->total_pages, "free_pages", (int)w->load.free_pages, "cached_pages", (int)w->load.cached_pages,
        "queued_tokens", (json_int_t)w->load.queued_tokens, "tokens_done", (json_int_t)w->load.tokens_done,
        "swap_hits", (json_int_t)w->load.hits, "swap_misses", (json_int_t)w->load.misses);
}

static void page_workers(http_req *q)
{
    json_t *list = json_array();
    for (const sl_member *w = q->h->r->workers; w; w = w->next) {
        if (w->id)
            json_array_append_new(list, worker_json(w));
    }
    reply_json(q, 200,
               json_pack("{s:o, s:i, s:i}", "workers", list, "queued", (int)q->h->r->queued, "active",
                         (int)q->h->r->active));
}

static const http_route routes[] = {
    {"/v1/chat/completions", "POST", true, http_generate},
    {"/v1/completions", "POST", true, http_generate},
    {"/v1/models", "GET", true, page_models},
    {"/v1/models/", "GET", true, page_model},
    {"/health", "GET", false, page_health},
    {"/metrics", "GET", false, page_metrics},
    {"/workers", "GET", true, page_workers},
};

static const http_route *find_route(const char *url)
{
    for (size_t i = 0; i < SL_COUNT(routes); i++) {
        size_t n = strlen(routes[i].path);
        bool prefix = routes[i].path[n - 1] == '/';
        if (prefix ? !strncmp(url, routes[i].path, n) && url[n] : !strcmp(url, routes[i].path))
            return &routes[i];
    }
    return NULL;
}

/* Compares in a time that depends on the lengths only. */
static bool same_secret(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    unsigned diff = na != nb;
    for (size_t i = 0; i < na; i++)
        diff |= (unsigned char)a[i] ^ (unsigned char)b[nb ? i % nb : 0];
    return !diff;
}

static bool allowed(http_req *q)
{
    const char *key = q->h->r->o.api_key;
    if (!key || !*key || !q->route->key)
        return true;
    const char *auth = MHD_lookup_connection_value(q->c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    return auth && !strncasecmp(auth, "Bearer ", 7) && same_secret(auth + 7, key);
}

void http_route_request(http_req *q, const char *url, const char *method)
{
    snprintf(q->path, sizeof q->path, "%s", url);
    q->route = find_route(url);
    if (!q->route) {
        http_reply_error(q, 404, "no such path", "invalid_request_error", "not_found");
        return;
    }
    bool get = !strcmp(q->route->method, "GET");
    if (strcmp(method, q->route->method) && !(get && !strcmp(method, "HEAD"))) {
        q->allow = get ? "GET, HEAD" : "POST";
        http_reply_error(q, 405, "this path does not allow that method", "invalid_request_error",
                         "method_not_allowed");
    } else if (!allowed(q)) {
        http_reply_error(q, 401, "incorrect or missing API key: send Authorization: Bearer KEY",
                         "invalid_request_error", "invalid_api_key");
    }
}
