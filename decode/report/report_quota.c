/*
 * Metrics of tenants in the host store and in the disk tier (kvstore/quota.h). The series of a tenant are made when it is
 * reported first; there are as many as kvstore.quota.tenants has entries, and two more.
 */
#include <string.h>

#include "decode/decode_impl.h"

static const char *const reasons[SL_QUOTA_REASONS] = {[SL_QUOTA_LIMIT] = "limit", [SL_QUOTA_ROOM] = "room"};

static void report_use(sl_decode *d, const char *tier, sl_decode_tenant *t, const sl_quota_use *now)
{
    sl_metrics *m = d->o.role.worker.metrics;
    if (!t->pages) {
        t->pages = sl_metrics_gauge(m, "sluice_tenant_cached_pages", SL_LABELS(tier, now->name));
        for (int r = 0; r < SL_QUOTA_REASONS; r++)
            t->evicted[r] = sl_metrics_counter(m, "sluice_tenant_evicted_pages_total",
                                               SL_LABELS(tier, now->name, reasons[r]));
    }
    sl_gauge_set(t->pages, (double)now->pages);
    for (int r = 0; r < SL_QUOTA_REASONS; r++)
        sl_counter_add(t->evicted[r], now->evicted[r] - t->seen[r]);
    memcpy(t->seen, now->evicted, sizeof t->seen);
}

void sl_report_quotas(sl_decode *d)
{
    sl_quota_use now[2 + SL_QUOTA_RULES];
    if (!d->o.role.worker.metrics)
        return;
    for (int i = 0, n = sl_store_quota_uses(d->role.store, now); i < n; i++)
        report_use(d, "host", &d->report.tenants[0][i], &now[i]);
    for (int t = 0; sl_pages_cascade(d->pages) && t < sl_cascade_n_tiers(sl_pages_cascade(d->pages)); t++) {
        int n = sl_tier_quota_uses(sl_cascade_tier_at(sl_pages_cascade(d->pages), t), now);
        for (int i = 0; i < n; i++)
            report_use(d, "disk", &d->report.tenants[1][i], &now[i]);
    }
}
