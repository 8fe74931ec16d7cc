/*
 * Replay: the newest batches, kept so that a subscriber that has missed some can ask for them again, and the request with
 * which it asks. The buffer is bounded in batches and in bytes; the oldest batch leaves first.
 *
 * A request is the first sequence number that is wanted, 8 bytes big-endian, with or without the empty frame before it that
 * a REQ socket sends. One thread, that of the publisher; a batch may have other holders as well, which release it on any
 * thread.
 */
#ifndef SL_EVENTS_REPLAY_H
#define SL_EVENTS_REPLAY_H

#include <stdatomic.h>

#include "base/mailbox.h"

/* One payload. Its first holder is who made it; the last one who releases it frees it. */
typedef struct sl_events_batch {
    sl_mail link; /* in the inbox of the publisher */
    atomic_int holders;
    uint64_t sequence;
    size_t n;
    uint8_t bytes[];
} sl_events_batch;

/* One holder. NULL: out of memory. */
sl_events_batch *sl_events_batch_new(uint64_t sequence, const void *bytes, size_t n);
void sl_events_batch_hold(sl_events_batch *b);
void sl_events_batch_release(sl_events_batch *b);

typedef struct sl_replay {
    sl_events_batch **ring; /* [cap], a power of two; the i-th oldest is at (first + i) & (cap - 1) */
    size_t cap, first, n, bytes;
    size_t max_batches, max_bytes;
} sl_replay;

/* max_batches 0: nothing is kept. SL_ERR_NO_MEMORY. */
sl_status sl_replay_open(sl_replay *r, size_t max_batches, size_t max_bytes);
void sl_replay_close(sl_replay *r);
/* Takes a hold of b, whose sequence is larger than those before. */
void sl_replay_keep(sl_replay *r, sl_events_batch *b);
/* The index of the first batch whose sequence is at least `from`; r->n: there is none. */
size_t sl_replay_find(const sl_replay *r, uint64_t from);
/* The i-th oldest. */
sl_events_batch *sl_replay_at(const sl_replay *r, size_t i);

typedef struct sl_replay_frame {
    const void *data;
    size_t n;
} sl_replay_frame;

/* The frames of a request after the identity of its sender. delimiter: it begins with an empty frame, and so must the
 * answers. False: this is no request. */
bool sl_replay_parse(const sl_replay_frame *frames, size_t n, uint64_t *from, bool *delimiter);

#endif
