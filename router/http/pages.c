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

static sl_cluster_info cluster_info(const http_req *q)
{
    sl_cluster_info c;
    sl_cluster_get_info(q->h->r, &c);
    return c;
}

static void page_health(http_req *q)
{
    sl_cluster_info c = cluster_info(q);
    reply_json(q, c.ready ? 200 : 503,
               json_pack("{s:s, s:i, s:i}", "status", sl_cluster_health(&c), "prefill", (int)c.prefill,
                         "decode", (int)c.decode));
}

/* An answer shows that the loop runs. It says nothing about workers: a probe that restarts the router must not depend
 * on them. */
static void page_live(http_req *q)
{
    reply_json(q, 200, json_pack("{s:s}", "status", "ok"));
}

static void page_metrics(http_req *q)
{
    /* What each tenant does is for admins. */
    http_reply(q, 200, SL_METRICS_CONTENT_TYPE, sl_router_metrics_text(q->h->r, q->caller.admin));
}

static json_t *model_json(const http_req *q)
{
    sl_cluster_info c = cluster_info(q);
    return json_pack("{s:s, s:s, s:I, s:s, s:i}", "id", q->h->o->served_name, "object", "model", "created",
                     (json_int_t)c.started_unix, "owned_by", "sluice", "max_model_len", (int)c.max_context);
}

static void page_models(http_req *q)
{
    reply_json(q, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(q)));
}

static void page_model(http_req *q)
{
    const char *name = q->path + strlen("/v1/models/");
    if (!strcmp(name, q->h->o->served_name))
        reply_json(q, 200, model_json(q));
    else
        http_reply_status(q, SL_ERR_NOT_FOUND, "model: does not exist");
}

static json_t *worker_json(const sl_member_info *w)
{
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"pid", w->pid},
        {"placed", w->placed},
        {"running", w->load.running},
        {"waiting", w->load.waiting},
        {"max_batch", w->max_batch},
        {"total_pages", w->total_pages},
        {"free_pages", w->load.free_pages},
        {"cached_pages", w->load.cached_pages},
        {"queued_tokens", w->load.queued_tokens},
        {"tokens_done", w->load.tokens_done},
        {"swap_hits", w->load.hits},
        {"swap_misses", w->load.misses},
        {"prefill_rate", w->load.prefill_rate},
        {"disk_rate", w->load.disk_rate},
        {"shared_rate", w->load.shared_rate},
        {"peer_rate", w->load.peer_rate},
        {"known_host_pages", w->known_pages[SL_MEDIUM_HOST]},
        {"known_disk_pages", w->known_pages[SL_MEDIUM_DISK]},
    };
    json_t *o = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s}", "id", (int)w->id, "name", w->name, "role",
                          sl_role_name(w->role), "state", sl_member_state_name(w->state), "listen", w->listen,
                          "metrics", w->metrics);
    for (size_t i = 0; o && i < SL_COUNT(numbers); i++)
        json_object_set_new(o, numbers[i].key, json_integer((json_int_t)numbers[i].value));
    if (o && w->ranks) {
        json_object_set_new(o, "group", json_integer(w->group));
        json_object_set_new(o, "rank", json_integer(w->rank));
        json_object_set_new(o, "ranks", json_integer(w->ranks));
    }
    return o;
}

static bool same_group(const sl_member_info *a, const sl_member_info *b)
{
    return b->ranks && b->state != SL_MEMBER_DEAD && a->role == b->role && a->group == b->group;
}

/* The group of this rank: its ranks have one state, that of any of them. */
static json_t *group_json(const sl_member_info *list, size_t n, const sl_member_info *w)
{
    json_int_t joined = 0, placed = 0, running = 0;
    for (size_t i = 0; i < n; i++) {
        if (!same_group(w, &list[i]))
            continue;
        joined++;
        placed += list[i].placed;
        running += list[i].load.running;
    }
    return json_pack("{s:s, s:i, s:s, s:i, s:I, s:I, s:I}", "role", sl_role_name(w->role), "group",
                     (int)w->group, "state", sl_member_state_name(w->state), "ranks", (int)w->ranks, "joined",
                     joined, "placed", placed, "running", running);
}

static json_t *groups_json(const sl_member_info *list, size_t n)
{
    json_t *groups = json_array();
    for (size_t i = 0; i < n; i++) {
        size_t first = 0;
        while (first < i && !same_group(&list[i], &list[first]))
            first++;
        if (first == i && same_group(&list[i], &list[i]))
            json_array_append_new(groups, group_json(list, n, &list[i]));
    }
    return groups;
}

static void page_workers(http_req *q)
{
    sl_cluster_info c = cluster_info(q);
    size_t n;
    sl_member_info *list = sl_cluster_members(q->h->r, &n);
    json_t *workers = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(workers, worker_json(&list[i]));
    json_t *groups = groups_json(list, n);
    free(list);
    reply_json(q, 200,
               json_pack("{s:o, s:o, s:i, s:i}", "workers", workers, "groups", groups, "queued",
                         (int)c.queued, "active", (int)c.active));
}

/* As FlushCache over gRPC with timeout_s 0. */
static void page_flush(http_req *q)
{
    if (cluster_info(q).active) {
        http_reply_error(q, 409, "requests are still running", "invalid_request_error", "busy");
        return;
    }
    sl_cluster_flush_cache(q->h->r);
    reply_json(q, 200, json_pack("{s:b}", "success", 1));
}

static const http_route routes[] = {
    {"/", "GET", false, http_live_text, false, false, true},
    {"/page.css", "GET", false, http_live_text, false, false, true},
    {"/page.js", "GET", false, http_live_text, false, false, true},
    {"/overview", "GET", true, http_live_document, false, true, true},
    {"/v1/chat/completions", "POST", true, http_generate, false, false, false},
    {"/v1/completions", "POST", true, http_generate, false, false, false},
    {"/v1/models", "GET", true, page_models, false, true, false},
    {"/v1/models/", "GET", true, page_model, false, false, false},
    {"/health", "GET", false, page_health, false, true, false},
    {"/health/live", "GET", false, page_live, false, true, false},
    {"/health/ready", "GET", false, page_health, false, true, false},
    {"/metrics", "GET", false, page_metrics, false, true, false},
    {"/workers", "GET", true, page_workers, true, true, false},
    {"/flush_cache", "POST", true, page_flush, true, false, false},
    {"/cache/pages", "POST", true, http_cache_pages, true, false, false},
    {"/cache/verify", "POST", true, http_cache_verify, true, false, false},
    {"/cache/drop", "POST", true, http_cache_drop, true, false, false},
    {"/cache/job", "POST", true, http_cache_job, true, false, false},
};

static const http_route *find_route(const char *url)
{
    for (size_t i = 0; i < SL_COUNT(routes); i++) {
        size_t n = strlen(routes[i].path);
        bool prefix = n > 1 && routes[i].path[n - 1] == '/';
        if (prefix ? !strncmp(url, routes[i].path, n) && url[n] : !strcmp(url, routes[i].path))
            return &routes[i];
    }
    return NULL;
}

static bool allowed(http_req *q)
{
    const char *auth = MHD_lookup_connection_value(q->c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    const union MHD_ConnectionInfo *peer = MHD_get_connection_info(q->c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    bool known = sl_front_caller(q->h->r, auth, peer ? peer->client_addr : NULL, &q->caller);
    return known || !q->route->key;
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
    } else if (q->route->page && !http_page_allowed(q)) {
        http_reply_error(
            q, 403,
            "without router.keys_file or router.api_key_file this page is for this host, by its address or as "
            "localhost",
            "invalid_request_error", "key_required");
    } else if (q->route->admin && !q->caller.admin) {
        http_reply_error(q, 403, "this key has no admin rights (router.keys_file)", "invalid_request_error",
                         "admin_required");
    } else if (q->route->run == http_generate) {
        sl_err err = {""};
        sl_status st = sl_call_check(q->h->r, q->caller.client, &q->retry_after_s, &err);
        if (st) {
            sl_router_stats_request(q->h->stats, "completions", sl_router_stats_outcome(st));
            http_reply_status(q, st, err.text);
        }
    }
}
