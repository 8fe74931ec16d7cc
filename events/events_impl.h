/*
 * What the owner's side (events.c) and the thread with the sockets share; no other file includes this.
 */
#ifndef SL_EVENTS_EVENTS_IMPL_H
#define SL_EVENTS_EVENTS_IMPL_H

#include "events/events.h"
#include "events/replay.h"

enum { SL_EVENTS_TOPIC_MAX = 256 };

/* The thread with the sockets. */
typedef struct sl_publisher sl_publisher;

/* What both sides use; the owner's side makes it and frees it after the publisher has been closed. */
typedef struct sl_events_shared {
    sl_mailbox *inbox; /* batches; a mail that is `stop` ends the thread */
    sl_mail stop;
    atomic_size_t queued_bytes; /* of batches in the inbox */
    atomic_bool subscribed;     /* somebody has subscribed since the owner looked */
    sl_counter *published, *replayed, *lost_subscriber, *lost_queue, *lost_replay, *all;
    sl_gauge *buffered;
} sl_events_shared;

sl_status sl_publisher_open(const sl_events_opts *o, sl_events_shared *shared, sl_publisher **out,
                            sl_err *err);
/* Publishes what is in the inbox, then ends. NULL is allowed. */
void sl_publisher_close(sl_publisher *p);

#endif
