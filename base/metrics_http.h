/*
 * A small HTTP exporter for processes without a public HTTP server: only GET /metrics and GET /health, on its own
 * thread. It only reads the registry and takes no part in serving requests. It has neither TLS nor a key, so it belongs
 * on an address that only the operator's network can reach.
 */
#ifndef SL_BASE_METRICS_HTTP_H
#define SL_BASE_METRICS_HTTP_H

#include "base/metrics.h"

typedef struct sl_exporter sl_exporter;

/* Called on the exporter's thread. Returns whether the process is healthy, and writes a short reason, the body of the
 * answer, to text. */
typedef bool (*sl_health_fn)(void *arg, char *text, size_t n);

/* host: address or name to bind; port 0 = any free port. m and arg must outlive the exporter. health may be
 * NULL (always healthy). SL_ERR_IO with host, port and reason when it cannot listen. */
sl_status sl_exporter_start(sl_metrics *m, const char *host, int port, sl_health_fn health, void *arg,
                            sl_exporter **out, sl_err *err);
/* The port it listens on. */
int sl_exporter_port(const sl_exporter *e);
/* Stops the thread and closes open connections. NULL is allowed. */
void sl_exporter_stop(sl_exporter *e);

#endif
