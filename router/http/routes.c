/*
 * The one table of routes, and who may use them.
 */
#include <stdio.h>
#include <string.h>

#include "router/http/http_impl.h"

static const http_route routes[] = {
    {"/", "GET", false, http_live_text, false, true, true},
    {"/page.css", "GET", false, http_live_text, false, true, true},
    {"/page.js", "GET", false, http_live_text, false, true, true},
    {"/overview", "GET", true, http_live_document, false, true, true},
    {"/v1/chat/completions", "POST", true, http_generate, false, false, false},
    {"/v1/completions", "POST", true, http_generate, false, false, false},
    {"/v1/responses", "POST", true, http_generate, false, false, false},
    {"/v1/messages", "POST", true, http_generate, false, false, false},
    {"/v1/messages/count_tokens", "POST", true, http_generate, false, false, false},
    {"/generate", "POST", true, http_generate, false, false, false},
    {"/tokenize", "POST", true, http_generate, false, false, false},
    {"/detokenize", "POST", true, http_generate, false, false, false},
    {"/tokenizer_info", "GET", true, http_page_tokenizer_info, false, true, false},
    {"/v1/models", "GET", true, http_page_models, false, true, false},
    {"/v1/models/", "GET", true, http_page_model, false, false, false},
    {"/health", "GET", false, http_page_health, false, true, false},
    {"/health/live", "GET", false, http_page_live, false, true, false},
    {"/health/ready", "GET", false, http_page_health, false, true, false},
    {"/ping", "GET", false, http_page_health, false, true, false},
    {"/ping", "POST", false, http_page_health, false, false, false},
    {"/version", "GET", false, http_page_version, false, true, false},
    {"/get_model_info", "GET", true, http_page_model_info, false, true, false},
    {"/server_info", "GET", true, http_page_server_info, false, true, false},
    {"/get_server_info", "GET", true, http_page_server_info, false, true, false},
    {"/metrics", "GET", false, http_page_metrics, false, true, false},
    {"/workers", "GET", true, http_page_workers, true, true, false},
    {"/trace/", "GET", true, http_page_trace, true, false, false},
    {"/flush_cache", "POST", true, http_page_flush, true, false, false},
    {"/cache/pages", "POST", true, http_cache_pages, true, false, false},
    {"/cache/verify", "POST", true, http_cache_verify, true, false, false},
    {"/cache/drop", "POST", true, http_cache_drop, true, false, false},
    {"/cache/job", "POST", true, http_cache_job, true, false, false},
};

static bool is_prefix(const http_route *r)
{
    size_t n = strlen(r->path);
    return n > 1 && r->path[n - 1] == '/';
}

/* With this method if there is one, otherwise with another one. */
static const http_route *find_route(const char *url, const char *method)
{
    const http_route *found = NULL;
    for (size_t i = 0; i < SL_COUNT(routes); i++) {
        const http_route *r = &routes[i];
        size_t n = strlen(r->path);
        if (is_prefix(r) ? strncmp(url, r->path, n) || !url[n] : strcmp(url, r->path))
            continue;
        if (!strcmp(r->method, method))
            return r;
        found = found ? found : r;
    }
    return found;
}

/* The paths that the client may have meant: near ones, and those that have its last part. */
static void neighbours(const char *url, sl_strbuf *out)
{
    const char *last = strrchr(url, '/');
    unsigned most = (unsigned)strlen(url) / 4;
    most = most < 2 ? 2 : most > 4 ? 4 : most;
    for (size_t i = 0; i < SL_COUNT(routes); i++) {
        const char *path = routes[i].path, *end = strrchr(path, '/');
        bool same_end = last && last[1] && end && !strcmp(last, end);
        bool again = i && !strcmp(path, routes[i - 1].path);
        if (again || is_prefix(&routes[i]) || (!same_end && sl_oai_distance(url, path, most) > most))
            continue;
        sl_sb_str(out, out->len ? ", " : "; did you mean ");
        sl_sb_str(out, path);
    }
    if (out->len)
        sl_sb_char(out, '?');
}

static void refuse_path(http_req *q, const char *url)
{
    char shown[64];
    sl_strbuf near = {0};
    size_t n = 0;
    for (; url[n] && n + 1 < sizeof shown; n++)
        shown[n] = url[n] > ' ' && url[n] < 0x7f ? url[n] : '?';
    shown[n] = 0;
    neighbours(url, &near);
    sl_sb_char(&near, 0);
    char text[512];
    snprintf(text, sizeof text, "there is no path %s%s%s", shown, url[n] ? "..." : "",
             near.data ? near.data : "");
    sl_sb_free(&near);
    http_reply_error(q, 404, text, "invalid_request_error", "not_found");
}

static bool allowed(http_req *q)
{
    char bearer[600];
    const char *auth = MHD_lookup_connection_value(q->c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *key = auth ? NULL : MHD_lookup_connection_value(q->c, MHD_HEADER_KIND, "x-api-key");
    if (key && snprintf(bearer, sizeof bearer, "Bearer %s", key) < (int)sizeof bearer)
        auth = bearer; /* as Anthropic's clients say it */
    const union MHD_ConnectionInfo *peer = MHD_get_connection_info(q->c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    bool known = sl_front_caller(q->h->r, auth, peer ? peer->client_addr : NULL, &q->caller);
    return known || !q->route->key;
}

void http_route_request(http_req *q, const char *url, const char *method)
{
    snprintf(q->path, sizeof q->path, "%s", url);
    q->route = find_route(url, method);
    if (!q->route) {
        refuse_path(q, url);
        return;
    }
    bool get = !strcmp(q->route->method, "GET");
    if (!strcmp(method, "OPTIONS") && q->origin[0]) {
        http_preflight(q);
        return;
    }
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
            sl_router_stats_request(q->h->stats, sl_oai_name(sl_oai_find(q->route->path)),
                                    sl_router_stats_outcome(st));
            http_reply_status(q, st, err.text);
        }
    }
}
