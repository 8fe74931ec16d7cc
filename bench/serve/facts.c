/* What the processes of a cluster have counted; see serve.h. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "bench/page.h"
#include "bench/serve/serve.h"

static double at_least_0(double v)
{
    return v > 0 ? v : 0;
}

static void add_decoder(serve_facts *f, const char *page)
{
    double idle = sl_bench_metric_sum(page, "sluice_decode_idle_seconds_total");
    f->idle_s = idle < 0 || f->idle_s < 0 ? -1 : f->idle_s + idle;
    f->decoders++;
    f->running += at_least_0(sl_bench_metric_sum(page, "sluice_decode_requests_running"));
    f->tokens += at_least_0(sl_bench_metric_sum(page, "sluice_decode_tokens_total"));
    f->steps += at_least_0(sl_bench_metric_sum(page, "sluice_decode_step_seconds_count"));
    f->step_s += at_least_0(sl_bench_metric_sum(page, "sluice_decode_step_seconds_sum"));
    f->items += at_least_0(sl_bench_metric_sum(page, "sluice_decode_items_total"));
    f->drafted += at_least_0(sl_bench_metric(page, "sluice_draft_tokens_total{place=\"1\"}"));
    f->accepted += at_least_0(sl_bench_metric(page, "sluice_draft_accepted_tokens_total{place=\"1\"}"));
    f->draft_s += at_least_0(sl_bench_metric_sum(page, "sluice_draft_seconds_total"));
    sl_bench_histogram_add(&f->sent, page, "sluice_decode_tokens_sent_seconds", NULL);
}

static sl_status add_worker(serve_facts *f, const json_t *w, sl_err *err)
{
    const char *role, *address, *state;
    char host[128], *page = NULL;
    SL_TRY(sl_json_get_string(w, "/workers", "role", &role, err));
    SL_TRY(sl_json_get_string(w, "/workers", "metrics", &address, err));
    SL_TRY(sl_json_get_string(w, "/workers", "state", &state, err));
    const char *colon = strrchr(address, ':');
    if (strcmp(state, "ready") != 0)
        return SL_OK;
    if (!colon || (size_t)(colon - address) >= sizeof host)
        return sl_fail(err, SL_ERR_INVALID,
                       "a %s worker has no metrics page (metrics.port is 0), so its steps cannot be read",
                       role);
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    SL_TRY(sl_bench_http(host, (int)strtol(colon + 1, NULL, 10), "/metrics", NULL, &page, NULL, err));
    f->worker_cpu_s += at_least_0(sl_bench_metric_sum(page, "process_cpu_seconds_total"));
    f->prompt_tokens += at_least_0(sl_bench_metric_sum(page, "sluice_prefill_tokens_total"));
    f->chunks += at_least_0(sl_bench_metric_sum(page, "sluice_prefill_chunk_seconds_count"));
    f->chunk_s += at_least_0(sl_bench_metric_sum(page, "sluice_prefill_chunk_seconds_sum"));
    if (strcmp(role, "prefill") != 0)
        add_decoder(f, page);
    free(page);
    return SL_OK;
}

static sl_status get_json(const serve_target *t, const char *path, json_t **out, sl_err *err)
{
    char *page = NULL;
    SL_TRY(sl_bench_http(t->host, t->http_port, path, NULL, &page, NULL, err));
    sl_status st = sl_json_parse(page, strlen(page), path, out, err);
    free(page);
    return st;
}

sl_status serve_facts_get(const serve_target *t, serve_facts *out, sl_err *err)
{
    json_t *root = NULL, *list = NULL, *w;
    char *page = NULL;
    size_t i;
    *out = (serve_facts){0};
    SL_TRY(get_json(t, "/workers", &root, err));
    sl_status st = sl_json_get_array(root, "/workers", "workers", &list, err);
    out->before_ns = sl_now_ns();
    json_array_foreach(list, i, w)
    {
        if (st == SL_OK)
            st = add_worker(out, w, err);
    }
    out->after_ns = sl_now_ns();
    json_decref(root);
    SL_TRY(st);
    SL_TRY(sl_bench_http(t->host, t->http_port, "/metrics", NULL, &page, NULL, err));
    out->router_cpu_s = at_least_0(sl_bench_metric_sum(page, "process_cpu_seconds_total"));
    sl_bench_histogram_add(&out->written, page, "sluice_router_tokens_written_seconds", "from=\"arrival\"");
    sl_bench_histogram_add(&out->whole, page, "sluice_router_tokens_written_seconds", "from=\"step\"");
    free(page);
    return SL_OK;
}

sl_status serve_model(serve_target *t, sl_err *err)
{
    json_t *root = NULL, *list = NULL;
    const char *id = NULL;
    SL_TRY(get_json(t, "/v1/models", &root, err));
    sl_status st = sl_json_get_array(root, "/v1/models", "data", &list, err);
    if (st == SL_OK)
        st = sl_json_get_string(json_array_get(list, 0), "/v1/models: data[0]", "id", &id, err);
    if (st == SL_OK)
        snprintf(t->model, sizeof t->model, "%s", id);
    json_decref(root);
    return st;
}
