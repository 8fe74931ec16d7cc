/*
 * Sends traces to an OpenTelemetry collector: OTLP over HTTP/1.1, protocol buffers, without TLS (a collector on this host or
 * in this network passes them on). A thread of its own does everything that can wait, so the router's loop never does.
 *
 * Bounds: at most SL_EXPORTER_WAITING traces of SL_EXPORTER_BYTES wait; what comes then is dropped. A batch that the collector does not
 * take is sent again a few times, ever more slowly, and given up after that; meanwhile the others wait. Spans are counted by what
 * became of them: sluice_trace_spans_total{result="exported|dropped|failed"}.
 *
 * Threads: create, post and close on one thread, which is not the exporter's.
 */
#ifndef SL_ROUTER_TRACE_EXPORTER_H
#define SL_ROUTER_TRACE_EXPORTER_H

#include "base/metrics.h"
#include "router/trace/trace.h"

enum { SL_EXPORTER_WAITING = 2048, SL_EXPORTER_BYTES = 16 << 20 };

typedef struct sl_exporter sl_exporter;

sl_status sl_trace_exporter_create(const char *url, const char *model, sl_metrics *metrics, sl_exporter **out,
                                   sl_err *err);
/* Takes a reference, or counts the spans as dropped. Waits for nothing. */
void sl_trace_exporter_post(sl_exporter *e, sl_trace *t);
/* Sends what waits, for at most two seconds. A thread that is still in the resolver of names then is abandoned with its memory: it
 * ends with the process. NULL is allowed. */
void sl_trace_exporter_close(sl_exporter *e);

#endif
