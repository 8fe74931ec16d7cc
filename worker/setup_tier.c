/*
 * The quotas of tenants, and the storage tiers of a decode worker, in the order in which they are asked: the
 * cheapest to read first, which is that of the registry. See setup_impl.h. Every refusal names the key that has to be
 * changed: tiers name the options of their own tables.
 */
#include <stdio.h>

#include "base/log.h"
#include "kvstore/cascade.h"
#include "worker/setup_impl.h"

sl_status sl_setup_quota(sl_setup *s, sl_err *err)
{
    const sl_config *c = s->cfg;
    s->p->quota = (sl_quota_opts){.limit = 1};
    for (int i = 0; i < c->kvstore.quotas.n; i++) {
        sl_status st = sl_quota_add_rule(&s->p->quota, c->kvstore.quotas.v[i], err);
        if (st != SL_OK)
            return sl_fail_in(err, st, "kvstore.quotas");
    }
    s->p->has_quota = sl_role_does(s->role, SL_ROLE_DECODE) &&
                      (s->p->quota.share > 0 || s->p->quota.limit < 1 || s->p->quota.n_rules);
    return SL_OK;
}

static sl_cascade_policy policy_of(sl_cfg_write write)
{
    static const sl_cascade_policy of[] = {[SL_CFG_WRITE_THROUGH] = SL_CASCADE_WRITE_THROUGH,
                                           [SL_CFG_WRITE_SELECTIVE] = SL_CASCADE_WRITE_SELECTIVE,
                                           [SL_CFG_WRITE_SECOND] = SL_CASCADE_WRITE_THROUGH,
                                           [SL_CFG_WRITE_BACK] = SL_CASCADE_WRITE_BACK};
    return of[write];
}

/* "decode-0": the name of this worker for tiers that keep something of their own for each. */
static void name_instance(const sl_setup *s, char *out, size_t cap)
{
    const char *role = sl_role_name(s->role);
    if (s->launch->index < 0)
        snprintf(out, cap, "%s", role);
    else
        snprintf(out, cap, "%s-%d", role, s->launch->index);
}

/* Opens one tier. t->tier stays NULL when the configuration does not use it. */
static sl_status open_tier(sl_setup *s, const sl_tier_ops *ops, sl_tier_opts *o, sl_cascade_tier *t,
                           sl_err *err)
{
    const sl_geometry *g = sl_arena_geometry(s->p->arena);
    const sl_tier_common *common = sl_config_part(s->cfg, ops->options);
    char instance[64];
    if (!sl_cascade_page_format(g, &o->page_bytes, &o->format))
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    name_instance(s, instance, sizeof instance);
    o->fingerprint = sl_tier_fingerprint(g->fingerprint, sl_backend_bits(s->p->backend));
    o->options = common;
    o->instance = instance;
    o->capacity_bytes = common->bytes;
    o->required = sl_config_requires(&s->cfg->kvstore, ops->name);
    o->prefix = s->cfg->kvstore.prefix;
    o->second_use = s->cfg->kvstore.write == SL_CFG_WRITE_SECOND;
    if (ops->persistent && !ops->shared) { /* of this worker alone */
        o->quota = s->p->has_quota ? &s->p->quota : NULL;
        s->p->disk_ages = sl_worker_ages_find(s->p->metrics, ops->name);
        o->aged = sl_worker_ages_add;
        o->aged_ctx = &s->p->disk_ages;
    }
    t->policy = policy_of(s->cfg->kvstore.write);
    t->load_timeout_ms = (uint32_t)sl_config_load_timeout_ms(s->cfg);
    return sl_tier_open(ops, o, &t->tier, err);
}

/* A tier that cannot be used does not keep the worker from starting, unless the configuration says so. What only another
 * configuration can mend is refused in any case. */
static sl_status or_without(const sl_setup *s, const sl_tier_ops *ops, sl_status st, sl_err *err)
{
    if (st == SL_OK || sl_config_requires(&s->cfg->kvstore, ops->name) || st == SL_ERR_INVALID ||
        st == SL_ERR_DENIED || st == SL_ERR_NO_MEMORY)
        return st;
    sl_gauge_set(sl_metrics_gauge(s->p->metrics, "sluice_tier_state", SL_LABELS(ops->name)), SL_TIER_FAILED);
    sl_log(SL_LOG_ERROR, "tier", "unusable",
           "tier=%s status=%s reason=\"%s\" effect=\"the worker serves without it until its next start\" "
           "advice=\"mend it and start the worker again; kvstore.required: [%s] refuses the start instead\"",
           ops->name, sl_status_name(st), err ? err->text : "", ops->name);
    if (err)
        err->text[0] = 0;
    return SL_OK;
}

/* Tiers of the configuration that this build lacks. */
static sl_status check_absent(const sl_setup *s, sl_err *err)
{
    for (const sl_options *const *t = sl_tier_absent(); *t; t++)
        if (sl_config_uses(s->cfg, *t))
            return sl_fail(
                err, SL_ERR_UNSUPPORTED,
                "%s.%s: this build has no tier \"%s\", because its library was not there when it was built "
                "(docs/dependencies.md)",
                (*t)->section, (*t)->on, (*t)->name);
    return SL_OK;
}

sl_status sl_setup_tiers(sl_setup *s, sl_err *err)
{
    if (!sl_role_does(s->role, SL_ROLE_DECODE))
        return SL_OK;
    SL_TRY(check_absent(s, err));
    for (size_t i = 0; sl_tier_at(i); i++) {
        const sl_tier_ops *ops = sl_tier_at(i);
        sl_tier_opts o = {0};
        if (!ops->options || !sl_config_uses(s->cfg, ops->options))
            continue;
        if (s->p->n_tiers == SL_CASCADE_TIERS)
            return sl_fail(err, SL_ERR_INVALID, "%s.%s: more than %d tiers", ops->options->section,
                           ops->options->on, SL_CASCADE_TIERS);
        sl_cascade_tier t = {.listener = sl_cascade_listen(&o)};
        sl_status st =
            t.listener ? open_tier(s, ops, &o, &t, err) : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        st = or_without(s, ops, st, err);
        if (!t.tier) {
            sl_cascade_tier_close(&t);
            SL_TRY(st);
            continue;
        }
        sl_tier_stats found;
        sl_tier_get_stats(t.tier, &found);
        sl_gauge_set(sl_metrics_gauge(s->p->metrics, "sluice_tier_set_aside", SL_LABELS(ops->name)),
                     found.set_aside);
        s->p->tiers[s->p->n_tiers++] = t;
    }
    return SL_OK;
}
