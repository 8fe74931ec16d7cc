/*
 * The queue of events in virtual time: a binary heap by time, and by the order of adding for equal times. An event calls a
 * function once; there is no cancelling, so a function looks whether it is still meant.
 */
#ifndef SL_SIMULATE_EVENTS_H
#define SL_SIMULATE_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void sl_sim_event_fn(void *arg, uint64_t number);

typedef struct sl_sim_event {
    uint64_t at_ns, order;
    sl_sim_event_fn *fn;
    void *arg;
    uint64_t number;
} sl_sim_event;

typedef struct sl_sim_events {
    sl_sim_event *heap;
    size_t n, cap;
    uint64_t order;
} sl_sim_events;

/* Ends the process when memory is out: a lost event would make the result wrong. */
void sl_sim_events_add(sl_sim_events *q, uint64_t at_ns, sl_sim_event_fn *fn, void *arg, uint64_t number);
/* The next event; false: there is none. */
bool sl_sim_events_take(sl_sim_events *q, sl_sim_event *out);
void sl_sim_events_free(sl_sim_events *q);

#endif
