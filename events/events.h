/*
 * Events: tells other programs' routers, over ZeroMQ, which pages a decode worker has and on what medium, in the format of
 * vLLM (events/format.h). A message has three frames: the topic, the sequence number of the batch (8 bytes big-endian,
 * from 0, without gaps), and the payload.
 *
 * The owner thread (the engine's) says what has changed; changes are encoded at once and collected into batches. Batches go
 * to a thread of their own, which has the sockets: a PUB socket for subscribers, and a ROUTER socket where they ask for
 * batches that they have missed. The owner never waits: at most SL_EVENTS_QUEUE_BYTES wait for the thread, and a batch
 * beyond that is dropped.
 *
 * Every batch that is dropped is counted, and has a sequence number all the same, so that subscribers see the gap. Nothing
 * is wrong for long: the events begin with AllBlocksCleared; after a batch was dropped here, and when somebody has
 * subscribed, sl_events_wants_all() asks the owner to publish AllBlocksCleared and then every page again.
 *
 * Built without libzmq, open fails with SL_ERR_UNSUPPORTED.
 */
#ifndef SL_EVENTS_EVENTS_H
#define SL_EVENTS_EVENTS_H

#include "base/metrics.h"
#include "base/msg.h"
#include "base/options.h"
#include "events/format.h"

enum {
    SL_EVENTS_QUEUE_BYTES = 64 << 20,
    SL_EVENTS_BATCH_EVENTS = 64,  /* the most events of one batch */
    SL_EVENTS_ALL_MS = 5000,      /* all pages are published at most once in this time */
    SL_EVENTS_ENDPOINT_MAX = 256, /* bytes of an endpoint */
};

typedef struct sl_events sl_events;

typedef struct sl_events_opts {
    const char *endpoint;        /* of the PUB socket, complete: tcp://host:port or ipc://path */
    const char *replay_endpoint; /* of the ROUTER socket; "": there is none, and nothing is kept */
    const char *topic;
    sl_events_form form;
    int dp_rank;
    const char *medium[SL_MEDIUM_COUNT]; /* the words for them */
    int hwm; /* batches that wait for one slow subscriber; beyond it, it loses some */
    size_t buffer_steps, buffer_bytes; /* kept for replay */
    size_t queue_bytes;                /* that wait for the thread; 0: SL_EVENTS_QUEUE_BYTES */
    bool resend_all;                   /* sl_events_wants_all() also when somebody has subscribed */
    sl_metrics *metrics;               /* may be NULL */
} sl_events_opts;

/*
 * The options of the configuration: the section events.zmq. sl_events_open_configured() opens what they say for one worker,
 * with its number among those of its role, and SL_OK with *out NULL when they say nothing. sl_events_check_exposure():
 * SL_ERR_INVALID when other hosts reach an endpoint; not asked where cluster.insecure names events.
 */
extern const sl_options sl_events_table;
typedef struct sl_events_worker {
    int index;
    const char *name, *model; /* "decode/0", and the name that clients use */
    sl_metrics *metrics;
} sl_events_worker;
sl_status sl_events_open_configured(const void *options, const sl_events_worker *w, sl_events **out,
                                    sl_err *err);
sl_status sl_events_check_exposure(const void *options, bool (*is_loopback)(const char *host), sl_err *err);

/* Copies the strings, binds the sockets and starts the thread. Errors name the key (events.zmq.endpoint…) and the reason:
 * SL_ERR_INVALID, SL_ERR_IO, SL_ERR_UNSUPPORTED, SL_ERR_NO_MEMORY. */
sl_status sl_events_open(const sl_events_opts *opts, sl_events **out, sl_err *err);
/* Publishes AllBlocksCleared, because the process forgets its pages, waits shortly for subscribers to take what is left, and
 * ends the thread. NULL is allowed. */
void sl_events_close(sl_events *e);

/* ---- owner thread ---- */

/* Whether pages in this medium have a word, without which they are not to be told. */
bool sl_events_has_medium(const sl_events *e, sl_medium medium);
/* block->medium is not read: medium says it. */
void sl_events_stored(sl_events *e, sl_medium medium, const sl_events_block *block);
void sl_events_removed(sl_events *e, sl_medium medium, uint64_t hash);
void sl_events_cleared(sl_events *e);
/* Ends the present batch and passes it to the thread. Call it when the owner is about to wait. */
void sl_events_flush(sl_events *e);

/* Whether all pages are to be published again: sl_events_all_begin(), then sl_events_stored() for each page, parents first,
 * then sl_events_all_end(). These batches are never dropped: they take memory in proportion to the number of pages. */
bool sl_events_wants_all(sl_events *e, uint64_t now_ns);
void sl_events_all_begin(sl_events *e, uint64_t now_ns);
void sl_events_all_end(sl_events *e);

/*
 * The endpoint of worker `index` from the configured one: to the port of a TCP endpoint the index is added, to the path of
 * an IPC endpoint "-<index>" is appended. SL_ERR_INVALID: it is neither, or has no port from 1 to 65535.
 */
sl_status sl_events_endpoint(const char *configured, int index, char out[SL_EVENTS_ENDPOINT_MAX],
                             sl_err *err);
/* The host of a TCP endpoint; "" for others and for "*". */
void sl_events_endpoint_host(const char *endpoint, char *out, size_t cap);
/* pattern with {worker}, {model} and {host} replaced. False: it does not fit. */
bool sl_events_topic(const char *pattern, const char *worker, const char *model, const char *host, char *out,
                     size_t cap);

#endif
