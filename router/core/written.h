/*
 * How long tokens take from a worker's message to the sockets. A message is noted when it arrives, and counted when the fronts have
 * given all that they had to the sockets: for every stream of that message this is the time of the last one, so what is counted
 * is never too short. A client that does not read is not waited for. Of a worker on this host the time begins at the end of its step
 * (base/host_clock.h), which is the whole way of a token; the clocks of two hosts differ. The loop's thread.
 */
#ifndef SL_ROUTER_CORE_WRITTEN_H
#define SL_ROUTER_CORE_WRITTEN_H

#include "base/host_clock.h"
#include "base/metrics.h"

enum { SL_WRITTEN_MOST = 256 }; /* of one turn; later ones are not counted */

typedef struct sl_written { /* all zero: none */
    struct {
        uint64_t arrived_ns, stepped_ns; /* stepped_ns 0: not known */
    } at[SL_WRITTEN_MOST];
    int n;
    sl_histogram *from_arrival, *from_step; /* NULL: not counted */
} sl_written;

void sl_written_open(sl_written *w, sl_metrics *m);

/* A message with tokens has arrived. */
void sl_written_note(sl_written *w, const sl_stamp *stepped, uint64_t now);
/* Nothing waits for a socket that takes it. */
void sl_written_done(sl_written *w);

#endif
