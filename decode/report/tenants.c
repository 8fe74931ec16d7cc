/* See tenants.h. */
#include "decode/report/tenants.h"

#include <stdlib.h>

#include "decode/report/rows.h"

enum { MOST = 2 + SL_QUOTA_RULES };

static const char *const reasons[SL_QUOTA_REASONS] = {[SL_QUOTA_LIMIT] = "limit", [SL_QUOTA_ROOM] = "room"};

static const sl_series_row rows[] = {
    SL_SERIES(sl_quota_use, pages, "sluice_tenant_cached_pages", "@0", "@1"),
    SL_SERIES_EACH(sl_quota_use, evicted, "sluice_tenant_evicted_pages_total", reasons, "@0", "@1"),
};

struct sl_report_tenants {
    sl_metrics *m;
    const sl_store *store;
    const sl_cascade *cascade;
    sl_series_list *host[MOST], *disk[MOST];
};

sl_status sl_report_tenants_open(sl_metrics *m, const sl_store *store, const sl_cascade *cascade,
                                 sl_report_tenants **out, sl_err *err)
{
    *out = m ? calloc(1, sizeof **out) : NULL;
    if (m && !*out)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (m)
        **out = (sl_report_tenants){.m = m, .store = store, .cascade = cascade};
    return SL_OK;
}

void sl_report_tenants_close(sl_report_tenants *t)
{
    for (int i = 0; t && i < MOST; i++) {
        sl_series_close(t->host[i]);
        sl_series_close(t->disk[i]);
    }
    free(t);
}

/* Out of memory: the tenant is reported later. */
static void show(const sl_report_tenants *t, const char *tier, sl_series_list **list, const sl_quota_use *now,
                 int n)
{
    for (int i = 0; i < n; i++) {
        if (!list[i])
            (void)sl_series_open(t->m, rows, SL_COUNT(rows), SL_LABELS(tier, now[i].name), &list[i], NULL);
        sl_series_show(list[i], &now[i]);
    }
}

void sl_report_tenants_show(sl_report_tenants *t)
{
    sl_quota_use now[MOST];
    if (!t)
        return;
    show(t, "host", t->host, now, sl_store_quota_uses(t->store, now));
    for (int i = 0; t->cascade && i < sl_cascade_n_tiers(t->cascade); i++)
        show(t, "disk", t->disk, now, sl_tier_quota_uses(sl_cascade_tier_at(t->cascade, i), now));
}
