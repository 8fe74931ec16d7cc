/*
 * Metrics of tenants in the host store and in the disk tier (kvstore/quota.h). The series of a tenant are made when it is
 * reported first; there are as many as kvstore.quotas has entries, and two more. Engine thread.
 */
#ifndef SL_DECODE_REPORT_TENANTS_H
#define SL_DECODE_REPORT_TENANTS_H

#include "base/metrics.h"
#include "kvstore/cascade.h"

typedef struct sl_report_tenants sl_report_tenants;

/* cascade: may be NULL. *out NULL when m is NULL. */
sl_status sl_report_tenants_open(sl_metrics *m, const sl_store *store, const sl_cascade *cascade,
                                 sl_report_tenants **out, sl_err *err);
void sl_report_tenants_close(sl_report_tenants *t);
/* t may be NULL. */
void sl_report_tenants_show(sl_report_tenants *t);

#endif
