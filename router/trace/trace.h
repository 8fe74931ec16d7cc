/*
 * The trace of one client call: what its requests waited for and who worked on them, as a tree of spans. Index 0 is the call
 * itself. The core adds spans while the call runs (core/traced.c); after that a trace never changes, so the thread of the
 * exporter (exporter.h) and the list of the last traces (traces.h) share it by counted references.
 *
 * Spans of workers are made here too, from durations that workers report: their clocks need not agree with this one. Times are of
 * sl_now_ns(); one pair of readings of both clocks in each trace turns them into dates.
 *
 * Bounds: sl_trace_new() says how many spans there may be. What exceeds them is counted in `dropped`; of the first stages, which
 * repeat while no worker has room, a quarter is left for what follows.
 *
 * Threads: one owner until it is shared; then any thread reads.
 */
#ifndef SL_ROUTER_TRACE_TRACE_H
#define SL_ROUTER_TRACE_TRACE_H

#include "base/status.h"
#include "router/trace/context.h"

typedef enum {
    SL_SPAN_CALL,
    SL_SPAN_READ, /* from here on stages of the router */
    SL_SPAN_QUEUE,
    SL_SPAN_RESERVE,
    SL_SPAN_PREFILL,
    SL_SPAN_DECODE,
    SL_SPAN_LOAD, /* from here on work of workers */
    SL_SPAN_PROMPT_QUEUE,
    SL_SPAN_COMPUTE,
    SL_SPAN_SHIPMENT,
    SL_SPAN_CHECK,
    SL_SPAN_JOIN,
    SL_SPAN_STEPS,
    SL_SPAN_KINDS
} sl_span_kind;

enum { SL_SPAN_VALUES = 4, SL_TRACE_WORKERS = 32, SL_TRACE_NAME = 64 };

/* How a kind is shown: its name, and what its values are called (NULL: no such value). */
typedef struct sl_span_form {
    const char *name;
    const char *values[SL_SPAN_VALUES];
} sl_span_form;
const sl_span_form *sl_span_form_of(sl_span_kind kind);

typedef struct sl_span {
    sl_span_kind kind;
    int32_t parent;      /* index; -1: none */
    uint32_t choice;     /* of the requests of the call */
    uint32_t attempt;    /* 0: of none */
    uint32_t worker;     /* index of sl_trace.workers; 0: the router */
    uint64_t begin, end; /* ns; end 0: open */
    uint64_t values[SL_SPAN_VALUES];
    char *error; /* NULL: none */
} sl_span;

/* A process that did a part of the work. */
typedef struct sl_trace_worker {
    const char *role; /* static */
    char name[SL_TRACE_NAME];
} sl_trace_worker;

typedef struct sl_trace {
    unsigned refs; /* atomic */
    sl_trace_context context;
    uint64_t rid;     /* of its first request; the others follow */
    uint32_t choices; /* its requests */
    char id[96];
    const char *api;      /* static */
    const char *outcome;  /* static; NULL until the end */
    uint64_t first_token; /* ns; 0: none */
    uint64_t base;        /* the identity of span i is base + i */
    int64_t date;         /* ns to be added to times for a date since 1970 */
    sl_trace_worker workers[SL_TRACE_WORKERS];
    uint32_t n_workers; /* the router, workers[0], included */
    sl_span *spans;
    uint32_t n, cap, most, dropped;
} sl_trace;

/* A trace with one open span, the call, that began at `begin`. context: of the client, or one without an identity, which then gets
 * one. NULL: out of memory. */
sl_trace *sl_trace_new(const sl_trace_context *context, const char *id, const char *api, uint32_t choices,
                       uint64_t begin);
/* Opens a span; returns its index, or -1, which the other functions ignore. parent -1: the call. worker: a name, with the name of its
 * role; NULL: the router. */
int32_t sl_trace_open(sl_trace *t, sl_span_kind kind, int32_t parent, const char *role, const char *worker,
                      uint64_t begin);
/* The span, for its values; NULL: -1. */
sl_span *sl_trace_at(sl_trace *t, int32_t span);
/* error: NULL, or why it ended without success. */
void sl_trace_close(sl_trace *t, int32_t span, uint64_t end, const char *error);
/* Says why it failed; the first reason stays. */
void sl_trace_fail(sl_trace *t, int32_t span, const char *error);
/* Memory that it takes. */
size_t sl_trace_bytes(const sl_trace *t);
/* The identity of a span, never 0. */
uint64_t sl_trace_span_id(const sl_trace *t, uint32_t span);
void sl_trace_ref(sl_trace *t);
void sl_trace_unref(sl_trace *t); /* NULL is allowed */

/* As a file for chrome://tracing or ui.perfetto.dev: a JSON object with traceEvents, malloc'ed; NULL: out of memory. */
char *sl_trace_chrome(const sl_trace *t);

#endif
