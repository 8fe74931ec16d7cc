/*
 * The JSON of the paths /cache/…: what a client asks about the cache of one decode worker, and the answers. Pure, any thread.
 *
 *   path            action   members besides "worker"
 *   --------------  -------  -------------------------------------------------------------------------------------------
 *   /cache/pages    LIST     "tier", "prefix" (1 to 32 hexadecimal digits of a key), "cursor" (of the answer before),
 *                            "limit" (1 to 512)
 *   /cache/verify   VERIFY   "tier", "bytes_per_second"
 *   /cache/drop     DROP     "tier" (required)
 *   /cache/job      STATUS   "cancel": true makes it CANCEL
 */
#ifndef SL_ROUTER_HTTP_CACHE_QUERY_H
#define SL_ROUTER_HTTP_CACHE_QUERY_H

#include <jansson.h>

#include "base/msg.h"

typedef struct sl_cache_query {
    char worker[64];
    sl_msg_cache_ask ask; /* its number is 0 */
} sl_cache_query;

/* action: of the path. SL_ERR_INVALID names the member and the reason; members that do not belong to the path are refused. */
sl_status sl_cache_query_read(sl_cache_action action, const char *text, size_t n, sl_cache_query *out,
                              sl_err *err);

/* NULL: out of memory. */
json_t *sl_cache_pages_json(const char *worker, const sl_msg_cache_pages *p);
json_t *sl_cache_job_json(const char *worker, const sl_msg_cache_job *j);

#endif
