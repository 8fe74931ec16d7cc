/* See page.h: the document, and the texts, which the build has made arrays of bytes. */
#include "router/page/page.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/version.h"
#include "router/page/history.h"
#include "router/page/scrape.h"
#include "router/page/texts.h"

enum { REQUESTS_MAX = 100, CLIENTS_MAX = 64, ERRORS_MAX = 50, LOOKED_MS = 15000, SCRAPE_TICK_MS = 200 };

const char sl_page_policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                              "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct sl_page {
    sl_router *r;
    sl_scrapes *scrapes;
    sl_history *history;
    uint64_t looked_ns, ticked_ns; /* 0: never */
};

const char *sl_page_text(const char *path, const char **type, size_t *n)
{
    static const struct {
        const char *path, *type;
        const unsigned char *bytes;
        const unsigned long *len;
    } texts[] = {
        {"/", "text/html; charset=utf-8", sl_page_html, &sl_page_html_len},
        {"/page.css", "text/css; charset=utf-8", sl_page_css, &sl_page_css_len},
        {"/page.js", "text/javascript; charset=utf-8", sl_page_js, &sl_page_js_len},
    };
    for (size_t i = 0; i < SL_COUNT(texts); i++)
        if (strcmp(path, texts[i].path) == 0) {
            *type = texts[i].type;
            *n = *texts[i].len;
            return (const char *)texts[i].bytes;
        }
    return NULL;
}

sl_page *sl_page_create(sl_router *r, uv_loop_t *loop)
{
    sl_page *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->r = r;
    p->scrapes = sl_scrapes_create(r, loop);
    p->history = sl_history_create();
    if (p->scrapes && p->history)
        return p;
    sl_page_close(p);
    return NULL;
}

void sl_page_close(sl_page *p)
{
    if (!p)
        return;
    sl_scrapes_close(p->scrapes);
    sl_history_free(p->history);
    free(p);
}

void sl_page_tick(sl_page *p, uint64_t now)
{
    sl_history_tick(p->history, sl_router_get_stats(p->r), now);
    if (now - p->ticked_ns < SCRAPE_TICK_MS * SL_MS)
        return;
    p->ticked_ns = now;
    sl_scrapes_tick(p->scrapes, now, p->looked_ns && now - p->looked_ns < LOOKED_MS * SL_MS);
}

static void set_number(json_t *o, const char *key, double v)
{
    json_object_set_new(o, key, v == (double)(int64_t)v ? json_integer((json_int_t)v) : json_real(v));
}

static json_t *figures_json(const sl_figures *f, uint32_t age_ms)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"age_ms", age_ms},
        {"step_seconds", f->step_seconds},
        {"steps", f->steps},
        {"batch_sum", f->batch_sum},
        {"batches", f->batches},
        {"idle_seconds", f->idle_seconds},
        {"swap_hidden_seconds", f->hidden_seconds},
        {"swap_exposed_seconds", f->exposed_seconds},
        {"swap_bytes", f->swap_bytes},
        {"prefill_tokens", f->prefill_tokens},
        {"reused_tokens", f->reused_tokens},
        {"chunk_seconds", f->chunk_seconds},
        {"chunks", f->chunks},
        {"shipped_bytes", f->shipped_bytes},
        {"ship_exposed_seconds", f->ship_exposed_seconds},
        {"device_used_bytes", f->device_used},
        {"device_total_bytes", f->device_total},
        {"damaged_pages", f->damaged_pages},
        {"pages_total", f->pages_total},
        {"pages_free", f->pages_free},
        {"pages_cached", f->pages_cached},
        {"pages_active", f->pages_active},
        {"pages_landing", f->pages_landing},
    };
    json_t *o = json_object(), *hits = json_array(), *misses = json_array(), *tiers = json_object();
    for (size_t i = 0; i < SL_COUNT(numbers); i++)
        set_number(o, numbers[i].key, numbers[i].value);
    for (int l = 0; l < f->n_layers; l++) {
        json_array_append_new(hits, json_integer((json_int_t)f->hits[l]));
        json_array_append_new(misses, json_integer((json_int_t)f->misses[l]));
    }
    for (int t = 0; t < SL_FIGURES_TIERS; t++)
        json_object_set_new(tiers, sl_figures_tiers[t],
                            json_pack("{s:f, s:f, s:f}", "pages", f->tier_pages[t], "hits", f->tier_hits[t],
                                      "state", f->tier_state[t]));
    json_object_set_new(o, "layer_hits", hits);
    json_object_set_new(o, "layer_misses", misses);
    json_object_set_new(o, "tiers", tiers);
    return o;
}

static json_t *worker_json(const sl_page *p, const sl_member_info *w, uint64_t now)
{
    uint32_t age = 0;
    const sl_figures *f = sl_scrapes_find(p->scrapes, w->id, now, &age);
    json_t *o = json_pack(
        "{s:i, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:o}", "id",
        (int)w->id, "name", w->name, "role", sl_role_name(w->role), "state", sl_member_state_name(w->state),
        "placed", (int)w->placed, "running", (int)w->load.running, "waiting", (int)w->load.waiting,
        "max_batch", (int)w->max_batch, "free_pages", (int)w->load.free_pages, "cached_pages",
        (int)w->load.cached_pages, "total_pages", (int)w->total_pages, "tokens_done",
        (json_int_t)w->load.tokens_done, "swap_hits", (json_int_t)w->load.hits, "swap_misses",
        (json_int_t)w->load.misses, "known_host_pages", (json_int_t)w->known_pages[SL_MEDIUM_HOST],
        "known_disk_pages", (json_int_t)w->known_pages[SL_MEDIUM_DISK], "figures",
        f ? figures_json(f, age) : json_null());
    if (o && w->ranks)
        json_object_update_new(o, json_pack("{s:i, s:i, s:i}", "group", (int)w->group, "rank", (int)w->rank,
                                            "ranks", (int)w->ranks));
    return o;
}

static json_t *workers_json(const sl_page *p, uint64_t now)
{
    size_t n;
    sl_member_info *list = sl_cluster_members(p->r, &n);
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, worker_json(p, &list[i], now));
    free(list);
    return out;
}

/* Requests by stage; and for admins the oldest of them one by one. */
static void set_requests(json_t *doc, const sl_page *p, bool admin, uint64_t now)
{
    sl_request_info *list = calloc(REQUESTS_MAX, sizeof *list);
    uint32_t stages[SL_REQUEST_STAGES] = {0};
    size_t n = list ? sl_cluster_requests(p->r, list, REQUESTS_MAX, stages) : 0;
    json_t *by_stage = json_object(), *out = json_array();
    for (int i = 0; i < SL_REQUEST_STAGES; i++)
        json_object_set_new(by_stage, sl_request_stage_name(i), json_integer(stages[i]));
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, json_pack("{s:s, s:s, s:s, s:f, s:i, s:i, s:i, s:i, s:i, s:i}", "id",
                                             list[i].id, "client", list[i].client, "stage",
                                             sl_request_stage_name(list[i].stage), "age_s",
                                             (double)(now - list[i].start_ns) / 1e9, "prompt",
                                             (int)list[i].prompt, "cached", (int)list[i].cached, "produced",
                                             (int)list[i].produced, "attempt", (int)list[i].attempt,
                                             "prefill", (int)list[i].prefill, "decode", (int)list[i].decode));
    free(list);
    json_object_set_new(doc, "stages", by_stage);
    if (admin)
        json_object_set_new(doc, "requests", out);
    else
        json_decref(out);
}

static json_t *clients_json(const sl_page *p)
{
    static sl_client_info list[CLIENTS_MAX];
    size_t n = sl_cluster_clients(p->r, list, CLIENTS_MAX);
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, json_pack("{s:s, s:i, s:i}", "client", list[i].client, "queued",
                                             (int)list[i].queued, "active", (int)list[i].active));
    return out;
}

static json_t *errors_json(const sl_page *p, bool admin, uint64_t now)
{
    static sl_error_info list[ERRORS_MAX];
    size_t n = sl_cluster_errors(p->r, list, ERRORS_MAX);
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++) {
        if (now - list[i].at_ns > 3600 * 1000 * SL_MS)
            continue;
        json_t *e =
            json_pack("{s:f, s:s}", "age_s", (double)(now - list[i].at_ns) / 1e9, "outcome", list[i].outcome);
        if (admin)
            json_object_update_new(e, json_pack("{s:s, s:s}", "id", list[i].id, "reason", list[i].reason));
        json_array_append_new(out, e);
    }
    return out;
}

char *sl_page_document(sl_page *p, bool admin)
{
    const uint64_t now = sl_now_ns();
    sl_cluster_info c;
    sl_router_stats *s = sl_router_get_stats(p->r);
    sl_cluster_get_info(p->r, &c);
    p->looked_ns = now;
    json_t *doc =
        json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:o, s:o, s:o, s:o}",
                  "version", SL_VERSION, "model", sl_router_options(p->r)->model.served_name, "health",
                  sl_cluster_health(&c), "admin", admin, "now_unix", (json_int_t)time(NULL), "started_unix",
                  (json_int_t)c.started_unix, "max_context", (int)c.max_context, "queued", (int)c.queued,
                  "active", (int)c.active, "max_queue", (int)sl_router_options(p->r)->request.max_queue,
                  "output_tokens", (json_int_t)sl_counter_value(s->requests.generated_tokens),
                  "prompt_tokens", (json_int_t)sl_counter_value(s->requests.prompt_tokens), "cached_tokens",
                  (json_int_t)sl_counter_value(s->requests.cached_tokens), "workers", workers_json(p, now),
                  "history", sl_history_json(p->history, now), "errors_by_outcome",
                  sl_history_errors(p->history), "errors", errors_json(p, admin, now));
    set_requests(doc, p, admin, now);
    if (admin)
        json_object_set_new(doc, "clients", clients_json(p));
    char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;
    json_decref(doc);
    return text;
}
