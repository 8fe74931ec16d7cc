/*
 * The traces of a router: the last ones are kept for people who ask (`sluice trace`), and those that are sampled go to a
 * collector (exporter.h), if there is one.
 *
 * Bounds: at most SL_TRACES_KEPT traces of SL_TRACES_BYTES together are kept, the newest ones.
 *
 * Threads: the loop's.
 */
#ifndef SL_ROUTER_TRACE_TRACES_H
#define SL_ROUTER_TRACE_TRACES_H

#include "base/metrics.h"
#include "router/trace/trace.h"

enum { SL_TRACES_KEPT = 1024, SL_TRACES_BYTES = 8 << 20 };

typedef struct sl_traces sl_traces;

typedef struct sl_traces_options {
    const char *to; /* URL [sample=X], as router.traces; NULL or "": no collector. Read during create only */
    const char *model;   /* copied */
    sl_metrics *metrics; /* borrowed until close; NULL is allowed */
} sl_traces_options;

/* INVALID: `to` does not have that form. */
sl_status sl_traces_create(const sl_traces_options *o, sl_traces **out, sl_err *err);
/* Decides whether a call is exported, unless its client has. */
void sl_traces_sample(const sl_traces *s, sl_trace_context *c);
/* The trace has ended and is taken over. */
void sl_traces_add(sl_traces *s, sl_trace *t);
/* The newest kept trace with this id: of the client or the answer, the rid as logs have it (16 digits), or that of the trace (32);
 * borrowed until the next call. NULL: there is none. */
const sl_trace *sl_traces_find(const sl_traces *s, const char *id);
/* Gives what waits to the collector, for at most a short time. NULL is allowed. */
void sl_traces_close(sl_traces *s);

#endif
