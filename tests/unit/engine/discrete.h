/*
 * A device whose memory the host cannot access and whose work completes later, made of the CPU backend: device memory is one
 * mapping without access rights except while an op, copy or fill runs, so that any access by the host is a fault; events need a few
 * queries until they are done; graphs are lists of ops with the parameters that they had when they were captured, and only ops,
 * events and stream switches may be captured; work that is enqueued on the side stream runs as late as possible, when the main
 * stream waits for its event.
 */
#ifndef SL_TEST_ENGINE_DISCRETE_H
#define SL_TEST_ENGINE_DISCRETE_H

#include "kernels/backend.h"

/* Since the program began; a test may set them to 0. tapes: graphs that exist. */
typedef struct discrete_counts {
    int launches, tapes, pending_queries, stream_waits;
} discrete_counts;
extern discrete_counts discrete;

/* A wrapper for fix_opts. One device at a time. */
void discrete_wrap(sl_backend *be);

#endif
