/*
 * Traces as OpenTelemetry's wire form: an ExportTraceServiceRequest in protocol buffers, as OTLP/HTTP carries it. Every worker is a
 * resource of its own (service.name sluice-router, sluice-prefill, sluice-decode or sluice-both; service.instance.id its name).
 */
#ifndef SL_ROUTER_TRACE_OTLP_H
#define SL_ROUTER_TRACE_OTLP_H

#include "base/strbuf.h"
#include "router/trace/trace.h"

/* Appends one trace; several make one request. model: the name that clients use. */
void sl_otlp_add(sl_strbuf *out, const sl_trace *t, const char *model);

#endif
