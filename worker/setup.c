/*
 * The order of setup: exporter, device, group, weights and host store, storage tiers, engine (with the memory that is
 * left on the device), options of the role. Steps that fail quickly come first: a port that is in use is found
 * before the weights are loaded. The values that "auto" stands for are decided and logged during these steps;
 * setup_impl.h says where.
 */
#include "worker/setup.h"

#include <stdio.h>
#include <string.h>

#include "base/metrics_http.h"
#include "base/version.h"
#include "base/limits.h"
#include "worker/setup_impl.h"

static sl_status start_metrics(sl_setup *s, sl_err *err)
{
    sl_parts *p = s->p;
    unsigned roles = (sl_role_does(s->role, SL_ROLE_PREFILL) ? (unsigned)SL_METRICS_PREFILL : 0u) |
                     (sl_role_does(s->role, SL_ROLE_DECODE) ? (unsigned)SL_METRICS_DECODE : 0u);
    sl_status st = sl_metrics_create(roles, &p->metrics);
    if (st != SL_OK)
        return sl_fail(err, st, "metrics: out of memory");
    if (!s->cfg->metrics.port)
        return SL_OK;
    int port = s->cfg->metrics.port + s->launch->rank;
    st = sl_exporter_start(p->metrics, s->cfg->metrics.host, port, NULL, NULL, &p->exporter, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "metrics.port");
    snprintf(p->metrics_address, sizeof p->metrics_address, "%.100s:%d", s->cfg->metrics.host,
             sl_exporter_port(p->exporter));
    sl_log(SL_LOG_INFO, s->comp, "metrics", "address=%s", p->metrics_address);
    return SL_OK;
}

/* Sets the metrics that describe this worker and do not change. */
static void set_facts(sl_setup *s)
{
    sl_parts *p = s->p;
    char pages[16];
    snprintf(pages, sizeof pages, "%d", sl_arena_pages(p->arena));
    sl_gauge_set(sl_metrics_gauge(p->metrics, "sluice_build_info",
                                  SL_LABELS(SL_VERSION, sl_role_name(s->role), sl_backend_name(p->backend))),
                 1);
    sl_gauge_set(sl_metrics_gauge(p->metrics, "vllm:cache_config_info", SL_LABELS("64", pages)), 1);
}

static void fill_role_opts(sl_setup *s)
{
    sl_parts *p = s->p;
    const sl_config *c = s->cfg;
    const sl_model_config *mc = sl_model_get_config(p->model);
    p->role = (sl_worker_role_opts){
        .name = p->name,
        .model = c->model.served_name,
        .cluster_tag = c->cluster.tag,
        .metrics_address = p->metrics_address,
        .bits = sl_backend_bits(p->backend),
        .runner = &p->runner,
        .arena = p->arena,
        .row_sums = p->row_sums,
        .model_dir = c->model.path,
        .eos_ids = mc->eos_ids,
        .n_eos = mc->n_eos,
        .prefix_cache = true,
        .verify_checksums = c->kvstore.verify != SL_CFG_VERIFY_OFF,
        .verify = c->kvstore.verify,
        .patrol_rate = c->kvstore.patrol_rate,
        .quota = p->has_quota ? &p->quota : NULL,
    };
    sl_setup_core(s, &p->role.worker);
}

static const char *const phases[SL_START_PHASES] = {"fingerprint", "weights", "pinning", "engine"};

void sl_setup_took(sl_setup *s, sl_start_phase phase, double seconds)
{
    s->took_s[phase] = seconds;
    sl_gauge_set(sl_metrics_gauge(s->p->metrics, "sluice_start_seconds", SL_LABELS(phases[phase])), seconds);
}

static sl_status make_engine(sl_setup *s, sl_err *err)
{
    uint64_t began = sl_now_ns();
    SL_TRY(sl_setup_engine(s, err));
    sl_setup_took(s, SL_START_ENGINE, (double)(sl_now_ns() - began) / 1e9);
    return SL_OK;
}

static sl_status make_parts(sl_setup *s, sl_err *err)
{
    uint64_t began = sl_now_ns();
    SL_TRY(sl_setup_check_bench(s, err));
    SL_TRY(sl_shipping_choose(s->cfg->cluster.shipping, &s->p->shipping, err));
    SL_TRY(start_metrics(s, err));
    SL_TRY(sl_setup_backend(s, err));
    sl_setup_nics(s);
    SL_TRY(sl_setup_group(s, err));
    SL_TRY(sl_setup_model(s, err));
    SL_TRY(sl_setup_arena(s, err));
    SL_TRY(sl_setup_quota(s, err));
    SL_TRY(sl_setup_tiers(s, err));
    SL_TRY(make_engine(s, err));
    if (s->p->group)
        sl_wgroup_attach(s->p->group, s->p->backend, &s->p->runner);
    SL_TRY(sl_process_check_address_space(err)); /* UCX starts afterwards */
    set_facts(s);
    sl_log(SL_LOG_INFO, s->comp, "started",
           "fingerprint_s=%.2f weights_s=%.2f pinning_s=%.2f engine_s=%.2f total_s=%.2f",
           s->took_s[SL_START_FINGERPRINT], s->took_s[SL_START_WEIGHTS], s->took_s[SL_START_PINNING],
           s->took_s[SL_START_ENGINE], (double)(sl_now_ns() - began) / 1e9);
    fill_role_opts(s);
    return SL_OK;
}

sl_status sl_parts_create(const sl_config *cfg, const sl_worker_launch *launch, sl_role role, sl_parts *out,
                          sl_err *err)
{
    memset(out, 0, sizeof *out);
    sl_setup s = {.cfg = cfg, .launch = launch, .role = role, .comp = sl_role_name(role), .p = out};
    snprintf(out->name, sizeof out->name, "%s", launch->name);
    sl_status st = make_parts(&s, err);
    if (st != SL_OK) {
        sl_pinning_drop(s.pinning); /* what has failed is told; the store may fit or not */
        sl_parts_destroy(out);
    }
    return st;
}

void sl_parts_stop_listening(sl_parts *p)
{
    sl_exporter_stop(p->exporter);
    p->exporter = NULL;
}

void sl_parts_destroy(sl_parts *p)
{
    sl_parts_stop_listening(p);
    sl_metrics_destroy(p->metrics);
    for (int t = 0; t < p->n_tiers; t++)
        sl_cascade_tier_close(&p->tiers[t]);
    sl_engine_destroy(p->engine);
    if (p->drawn)
        sl_be_free(p->backend, SL_MEM_DEVICE, p->drawn);
    sl_wgroup_stop(p->group);
    sl_worker_identity_free(&p->identity);
    sl_row_sums_destroy(p->row_sums);
    if (p->arena)
        sl_be_host_unregister(p->backend, sl_arena_base(p->arena));
    sl_arena_destroy(p->arena);
    sl_model_destroy(p->model);
    sl_backend_destroy(p->backend);
    memset(p, 0, sizeof *p);
}
