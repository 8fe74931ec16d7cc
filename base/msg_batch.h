/*
 * Several messages as one, from a worker to a router: what a step has made for all requests of a router costs each side one
 * message. The bytes are the type BATCH, the version of messages, when that step ended (two numbers, 0 if that is not said; see
 * base/host_clock.h), and each message with its length before it, as base/msg.h encodes it. A router handles them in their order, as
 * if each had come alone; a batch in a batch is malformed. A worker that has one message to send, and no time, sends it alone.
 */
#ifndef SL_BASE_MSG_BATCH_H
#define SL_BASE_MSG_BATCH_H

#include "base/host_clock.h"
#include "base/msg.h"

enum { SL_MSG_BATCH = 63 }; /* the last id of an active message */

typedef struct sl_msg_batch { /* all zero: empty */
    sl_wr w;
    uint32_t n;     /* messages */
    sl_stamp since; /* set before the first one is added, kept by take */
} sl_msg_batch;

/* What is sent: a message or a batch; data is malloc'ed. */
typedef struct sl_msg_bytes {
    uint16_t id;
    uint8_t *data;
    size_t n;
    uint64_t since_ns; /* of the batch */
} sl_msg_bytes;

/* False: out of memory; the batch is as before, without the message. */
bool sl_msg_batch_add(sl_msg_batch *b, const sl_msg *m);
/* Gives the bytes to the caller and makes the batch empty. b->n > 0. */
sl_msg_bytes sl_msg_batch_take(sl_msg_batch *b);
void sl_msg_batch_free(sl_msg_batch *b);

/* Begins to read the bytes of a batch. since: out, or NULL. SL_ERR_CORRUPT: no batch of this version. */
sl_status sl_msg_batch_open(const void *bytes, size_t n, sl_rd *r, sl_stamp *since, sl_err *err);
/* The next message, borrowed from the bytes, for sl_msg_decode(). False: there is none; r->bad: the batch is cut off. */
bool sl_msg_batch_next(sl_rd *r, const uint8_t **msg, size_t *n);

#endif
