/*
 * `sluice cache … --router`: a running cluster. `stat` joins the router's table of workers with the metrics that each
 * worker exports (metrics.port); `drop` empties host memories; `warm` (cache_warm.c) sends prompts.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cache.h"

enum { ASK_TIMEOUT_S = 30, TIERS_MAX = 16 };

/* ---- Prometheus text ---- */

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

/* The value of a label in "name{a="b",…} value"; false: it has none. */
static bool label(const char *line, const char *name, char *out, size_t cap)
{
    char key[64];
    size_t n = (size_t)(next_line(line) - line), k = (size_t)snprintf(key, sizeof key, "%s=\"", name);
    const char *at = memmem(line, n, key, k);
    const char *end = at ? memchr(at + k, '"', n - (size_t)(at - line) - k) : NULL;
    if (!end || (size_t)(end - at) >= cap)
        return false;
    snprintf(out, cap, "%.*s", (int)(end - at - (long)k), at + k);
    return true;
}

/* Whether the line is of this metric, with this tier if one is given. */
static bool is_line(const char *line, const char *metric, const char *tier)
{
    char of[32];
    size_t n = strlen(metric);
    if (strncmp(line, metric, n) != 0 || (line[n] != '{' && line[n] != ' '))
        return false;
    return !tier || (label(line, "tier", of, sizeof of) && !strcmp(of, tier));
}

static double line_value(const char *line)
{
    size_t n = strcspn(line, "\n");
    const char *at = memrchr(line, ' ', n);
    double v = at ? strtod(at, NULL) : 0;
    return v > -1e15 && v < 1e15 ? v : 0; /* not NaN either: callers convert it to an integer */
}

/* The sum of a metric over its lines, of one tier, with one more label if it is given. */
static double metric(const char *text, const char *name, const char *tier, const char *key, const char *value)
{
    double sum = 0;
    char got[64];
    for (const char *l = text; *l; l = next_line(l)) {
        if (is_line(l, name, tier) && (!key || (label(l, key, got, sizeof got) && !strcmp(got, value))))
            sum += line_value(l);
    }
    return sum;
}

/* {"reason": value} of a metric of one tier. */
static json_t *by_reason(const char *text, const char *name, const char *tier)
{
    char reason[64];
    json_t *o = json_object();
    for (const char *l = text; *l; l = next_line(l)) {
        if (is_line(l, name, tier) && label(l, "reason", reason, sizeof reason))
            json_object_set_new(o, reason, json_integer((json_int_t)line_value(l)));
    }
    return o;
}

/* ---- stat ---- */

static json_t *tier_json(const char *text, const char *tier)
{
    static const char *const states[] = {"healthy", "degraded", "failed"};
    double state_value = metric(text, "sluice_tier_state", tier, NULL, NULL);
    int state = state_value >= 0 && state_value < 3 ? (int)state_value : -1;
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:I, s:o, s:I, s:I}", "tier", tier, "state",
                     state >= 0 && state < 3 ? states[state] : "unknown", "pages",
                     (json_int_t)metric(text, "sluice_tier_pages", tier, NULL, NULL), "bytes",
                     (json_int_t)metric(text, "sluice_tier_bytes", tier, "state", "used"), "capacity_bytes",
                     (json_int_t)metric(text, "sluice_tier_bytes", tier, "state", "capacity"), "hit_pages",
                     (json_int_t)metric(text, "sluice_tier_hit_pages_total", tier, NULL, NULL), "miss_pages",
                     by_reason(text, "sluice_tier_miss_pages_total", tier), "stored_pages",
                     (json_int_t)metric(text, "sluice_tier_stored_pages_total", tier, NULL, NULL),
                     "lost_pages", by_reason(text, "sluice_tier_lost_pages_total", tier), "evictions",
                     (json_int_t)metric(text, "sluice_tier_evictions_total", tier, NULL, NULL),
                     "requests_waiting",
                     (json_int_t)metric(text, "sluice_tier_requests_waiting", tier, NULL, NULL));
}

static json_t *tiers_json(const char *text)
{
    char seen[TIERS_MAX][32], tier[32];
    int n = 0;
    json_t *list = json_array();
    for (const char *l = text; *l; l = next_line(l)) {
        bool fresh = is_line(l, "sluice_tier_pages", NULL) && label(l, "tier", tier, sizeof tier);
        for (int i = 0; fresh && i < n; i++)
            fresh = strcmp(seen[i], tier) != 0;
        if (!fresh || n == TIERS_MAX)
            continue;
        memcpy(seen[n++], tier, sizeof tier);
        /* A worker exports every tier that could be; one without a size is not configured. */
        if (metric(text, "sluice_tier_bytes", tier, "state", "capacity") > 0)
            json_array_append_new(list, tier_json(text, tier));
    }
    return list;
}

/* What a worker's own exporter says; {"reason": text} if it cannot be asked. */
static json_t *details(const char *address)
{
    sl_err err = {0};
    sl_http_server exporter;
    sl_http_answer a = {0};
    if (!address || !address[0])
        return json_pack("{s:s}", "reason", "metrics.port of the worker is 0");
    sl_status st = sl_http_server_parse(address, &exporter, &err);
    if (st == SL_OK)
        st = sl_http_ask(&exporter, "GET", "/metrics", NULL, ASK_TIMEOUT_S, &a, &err);
    if (st != SL_OK)
        return json_pack("{s:s}", "reason", err.text);
    json_t *o = json_pack(
        "{s:I, s:I, s:I, s:I, s:o}", "query_tokens",
        (json_int_t)metric(a.body, "sluice_kv_prefix_queries_tokens_total", NULL, NULL, NULL), "hit_tokens",
        (json_int_t)metric(a.body, "sluice_kv_prefix_hits_tokens_total", NULL, NULL, NULL), "evictions",
        (json_int_t)metric(a.body, "sluice_kv_evictions_total", NULL, NULL, NULL), "damaged_pages",
        (json_int_t)metric(a.body, "sluice_store_damaged_pages_total", NULL, NULL, NULL), "tiers",
        tiers_json(a.body));
    free(a.body);
    return o;
}

static json_int_t number(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static void print_reasons(const char *what, const json_t *o)
{
    const char *key;
    json_t *v;
    bool any = false;
    printf("%s ", what);
    json_object_foreach((json_t *)o, key, v)
    {
        if (!json_integer_value(v))
            continue;
        printf("%s%s %lld", any ? ", " : "", key, (long long)json_integer_value(v));
        any = true;
    }
    printf("%s", any ? "" : "none");
}

static void print_tier(const json_t *t)
{
    printf("  %-9s  %s: %lld pages, %.1f of %.1f MiB, %lld evicted, %lld requests wait\n", text_of(t, "tier"),
           text_of(t, "state"), (long long)number(t, "pages"), (double)number(t, "bytes") / 1048576,
           (double)number(t, "capacity_bytes") / 1048576, (long long)number(t, "evictions"),
           (long long)number(t, "requests_waiting"));
    printf("             read %lld pages; ", (long long)number(t, "hit_pages"));
    print_reasons("not found:", json_object_get(t, "miss_pages"));
    printf("\n             stored %lld pages; ", (long long)number(t, "stored_pages"));
    print_reasons("not stored:", json_object_get(t, "lost_pages"));
    printf("\n");
    if (strcmp(text_of(t, "state"), "healthy") != 0)
        printf("             why: the worker's log, ev=tier_health\n");
}

static void print_worker(const json_t *w)
{
    const json_t *d = json_object_get(w, "cache");
    size_t i;
    json_t *t;
    long long total = number(w, "total_pages"), free_pages = number(w, "free_pages"),
              cached = number(w, "cached_pages");
    printf("%s  %s, %lld running, %lld waiting\n", text_of(w, "name"), text_of(w, "state"),
           (long long)number(w, "running"), (long long)number(w, "waiting"));
    printf("  host       %lld pages: %lld in use, %lld cached, %lld free\n", total,
           total - free_pages - cached, cached, free_pages);
    if (json_object_get(d, "reason")) {
        printf("             nothing more is known: %s\n", text_of(d, "reason"));
        return;
    }
    double asked = (double)number(d, "query_tokens"), hit = (double)number(d, "hit_tokens");
    printf(
        "             %.0f of %.0f prompt tokens were cached (%.1f %%); %lld pages evicted, %lld damaged\n",
        hit, asked, asked > 0 ? 100 * hit / asked : 0, (long long)number(d, "evictions"),
        (long long)number(d, "damaged_pages"));
    json_array_foreach(json_object_get(d, "tiers"), i, t) print_tier(t);
}

sl_status sl_cache_refused(const sl_http_answer *a, sl_err *err)
{
    json_t *o = json_loads(a->body, 0, NULL);
    const char *why = text_of(json_object_get(o, "error"), "message");
    sl_status st = sl_fail(err, a->code == 401 || a->code == 403 ? SL_ERR_DENIED : SL_ERR_PEER,
                           "the router answers %d%s%s", a->code, why[0] ? ": " : "", why);
    json_decref(o);
    return st;
}

sl_status sl_cache_workers(const sl_http_server *router, json_t **out, sl_err *err)
{
    sl_http_answer a;
    SL_TRY(sl_http_ask(router, "GET", "/workers", NULL, ASK_TIMEOUT_S, &a, err));
    json_t *o = a.code == 200 ? json_loads(a.body, 0, NULL) : NULL;
    sl_status st = a.code != 200 ? sl_cache_refused(&a, err)
                   : !json_is_array(json_object_get(o, "workers"))
                       ? sl_fail(err, SL_ERR_CORRUPT, "is no router of Sluice")
                       : SL_OK;
    free(a.body);
    if (st == SL_OK)
        *out = json_incref(json_object_get(o, "workers"));
    json_decref(o);
    return st;
}

int sl_cache_router_stat(const char *command, const sl_http_server *router, bool json)
{
    sl_err err = {0};
    json_t *workers = NULL, *w;
    size_t i;
    sl_status st = sl_cache_workers(router, &workers, &err);
    if (st != SL_OK)
        return sl_args_fail(command, st, &err);
    for (i = json_array_size(workers); i-- > 0;) {
        w = json_array_get(workers, i);
        if (strcmp(text_of(w, "state"), "dead") == 0)
            json_array_remove(workers, i);
        else
            json_object_set_new(w, "cache", details(text_of(w, "metrics")));
    }
    if (json)
        json_dumpf(workers, stdout, JSON_INDENT(1));
    json_array_foreach(workers, i, w)
    {
        if (!json)
            print_worker(w);
    }
    if (json)
        printf("\n");
    json_decref(workers);
    return SL_EXIT_OK;
}

/* ---- drop ---- */

int sl_cache_router_drop(const char *command, const sl_http_server *router, int wait_s)
{
    sl_err err = {0};
    time_t until = time(NULL) + wait_s;
    for (;;) {
        sl_http_answer a;
        sl_status st = sl_http_ask(router, "POST", "/flush_cache", "{}", ASK_TIMEOUT_S, &a, &err);
        if (st != SL_OK)
            return sl_args_fail(command, st, &err);
        int code = a.code;
        if (code != 200)
            st = sl_cache_refused(&a, &err);
        free(a.body);
        if (code == 200)
            break;
        if (code != 409 || time(NULL) >= until)
            return sl_args_fail(command, st, &err);
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
    printf("the host memories are empty\n");
    return SL_EXIT_OK;
}
