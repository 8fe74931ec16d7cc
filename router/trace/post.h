/* One POST of protocol buffers over HTTP/1.1, with a deadline. Blocks: only for the exporter's thread. */
#ifndef SL_ROUTER_TRACE_POST_H
#define SL_ROUTER_TRACE_POST_H

#include <stdbool.h>

#include "base/status.h"

/* Where traces go. */
typedef struct sl_trace_url {
    char host[256], port[8], path[256];
} sl_trace_url;

/* http://HOST[:PORT][/PATH]; the port is 4318 and the path /v1/traces unless said otherwise. INVALID says what is wrong. */
sl_status sl_trace_url_read(const char *url, sl_trace_url *out, sl_err *err);

enum { SL_TRACE_POST_MS = 5000 };

/* When a post ends at the latest. */
typedef struct sl_post_limit {
    uint64_t ns;
    const uint64_t *stop_ns; /* atomic; another thread may set an earlier end. 0: none */
} sl_post_limit;

/* SL_OK: the answer was 2xx. Otherwise *again says whether the same bytes may be taken later: not when the collector says that they are
 * wrong. */
sl_status sl_trace_post(const sl_trace_url *to, const void *bytes, size_t n, const sl_post_limit *limit,
                        bool *again, sl_err *err);

#endif
