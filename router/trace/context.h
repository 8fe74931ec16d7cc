/*
 * What a client says of the trace that its call belongs to: W3C Trace Context, the headers traceparent and tracestate.
 *
 * A value that does not have the form counts as absent, as the standard asks: the call gets a trace of its own. Pure.
 */
#ifndef SL_ROUTER_TRACE_CONTEXT_H
#define SL_ROUTER_TRACE_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

enum { SL_TRACE_STATE_MAX = 512 };

typedef struct sl_trace_context {
    bool given;        /* the client has named a trace: id and parent are its */
    bool sampled;      /* and wants it recorded; without `given`: this router has chosen it */
    uint8_t id[16];    /* of the trace */
    uint8_t parent[8]; /* the client's span */
    char state[SL_TRACE_STATE_MAX + 1]; /* tracestate, passed on as it is; "" none */
} sl_trace_context;

/* NULL or "": absent. */
void sl_trace_context_read(const char *traceparent, const char *tracestate, sl_trace_context *out);
/* Lower-case hexadecimal of n bytes, with a zero. */
void sl_trace_hex(const uint8_t *bytes, int n, char *out);

#endif
