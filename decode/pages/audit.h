/*
 * Audit: a job that goes over all pages of a worker's cache while requests are served, either to verify or to remove them. It
 * is begun and asked about by CACHE_ASK (inspect.c); a worker has one at a time.
 *
 *   verify, host     the pages of the prefix tree, some at a time, are held and read by the checker, which compares them with
 *                    their kept checksums. A damaged page leaves the tree, and the requests that use it begin again
 *                    (damage.c)
 *   verify, tier     pages are read into memory of the job, where the tier has verified its own checksum; then the label must
 *                    be that of the key, and the checker compares the rows with the checksums that were kept when they were
 *                    computed. A damaged page is removed from the tier
 *   drop             the keys of the tier are listed and removed
 *
 *   step     waits for                      then
 *   -------  -----------------------------  -----------------------------------------------------------
 *   PAUSE    the time that the rate allows  HOST or READ or REMOVE, or the next place, or the end
 *   HOST     the checker                    PAUSE
 *   READ     the tier (get)                 COMPARE, when a page has arrived; else PAUSE
 *   COMPARE  the checker, page by page      REMOVE, when a page is wrong; else PAUSE
 *   REMOVE   the tier (remove)              PAUSE
 *
 * Bounds: one batch in flight, BATCH_MS of the rate in host memory and BATCH_BYTES from a tier; the memory for a tier is
 * allocated when the job begins with it. Pages that enter while the job runs may not be visited. A cancelled job ends when its
 * batch has come back. While the worker drains the job is cancelled.
 */
#ifndef SL_DECODE_PAGES_AUDIT_H
#define SL_DECODE_PAGES_AUDIT_H

#include "decode/pages/damage.h"
#include "decode/pages/holdings.h"

typedef struct sl_audit sl_audit;

/* NULL: out of memory. */
sl_audit *sl_audit_new(const sl_pages_env *e, sl_damage *damage, sl_holdings *holdings);
void sl_audit_free(sl_audit *a);
/* Before the tiers are closed: what they answer from now on is not looked at. */
void sl_audit_stop(sl_audit *a);
/* place: to verify or to empty; a drop needs one. rate 0: the default. SL_ERR_REFUSED: one is running, or the worker drains.
 * SL_ERR_UNSUPPORTED. */
sl_status sl_audit_begin(sl_audit *a, sl_cache_action action, int place, uint64_t rate, sl_err *err);
void sl_audit_cancel(sl_audit *a);
/* Fills what concerns the last job; out->keys points to keys. */
void sl_audit_describe(const sl_audit *a, sl_msg_cache_job *out, sl_key keys[SL_CACHE_DAMAGED_MAX]);
/* An answer of the checker whose tag is CHECK_AUDIT. */
void sl_audit_checked(sl_audit *a, sl_check *k);
/* Begins what is due; returns when something is due next. */
uint64_t sl_audit_tick(sl_audit *a, uint64_t now);

#endif
