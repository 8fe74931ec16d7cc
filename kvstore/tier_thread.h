/*
 * What a storage tier with an I/O thread of its own shares with others of its kind: the queues of requests between owner and
 * thread, their completion, cancel and close, exactly as kvstore/tier.h promises them. A tier embeds one sl_tier_thread.
 *
 * The owner calls submit, cancel, poll, fd and stop. The I/O thread calls next to take one key at a time and end_key when
 * that key has ended; it waits for `wake` (an eventfd) when it has nothing to do. Lock: `lock` guards the queues here and,
 * by the tier's choice, its statistics and health. It is held for a few instructions only.
 *
 * Requests wait in three queues, because a question of a few bytes should not wait for pages, and a reader waits while a
 * writer does not: exists and remove, get, set.
 */
#ifndef SL_KVSTORE_TIER_THREAD_H
#define SL_KVSTORE_TIER_THREAD_H

#include <pthread.h>

#include "base/list.h"
#include "kvstore/tier.h"

typedef enum { SL_TIER_QUICK, SL_TIER_READS, SL_TIER_WRITES, SL_TIER_QUEUES } sl_tier_queue_kind;

typedef SL_LIST(sl_tier_req) sl_tier_queue;

typedef struct sl_tier_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    int wake, event; /* eventfds: to the thread, to the owner */
    bool running, stopping;
    sl_tier_queue queues[SL_TIER_QUEUES], done;
    void (*evicted)(void *ctx, const sl_key *keys, int32_t n); /* of the options */
    void *evicted_ctx;
    sl_key *gone; /* pages that left and are not reported yet */
    int32_t n_gone, gone_cap;
} sl_tier_thread;

/* Takes `evicted` from the options. SL_ERR_NO_MEMORY: no descriptors; sl_tier_thread_free() may follow. */
sl_status sl_tier_thread_init(sl_tier_thread *t, const sl_tier_opts *o);
/* Starts `run(arg)`. SL_ERR_NO_MEMORY: there is no thread to have. */
sl_status sl_tier_thread_start(sl_tier_thread *t, void *(*run)(void *), void *arg);
/* Tells the thread to stop and waits for its end. What it had not begun is cancelled by its sl_tier_thread_next(). */
void sl_tier_thread_stop(sl_tier_thread *t);
/* The same, but it waits for at most this time. False: the thread runs on; it can be called again. */
bool sl_tier_thread_stop_within(sl_tier_thread *t, uint32_t ms);
/* After stop: runs the done of all requests. */
void sl_tier_thread_drain(sl_tier_thread *t);
void sl_tier_thread_free(sl_tier_thread *t);

/* The owner's. */
void sl_tier_thread_submit(sl_tier_thread *t, sl_tier_req *r);
void sl_tier_thread_cancel(sl_tier_thread *t, sl_tier_req *r);
int sl_tier_thread_poll(sl_tier_thread *t);

/*
 * The thread's: takes the next key of a queue; false when it is empty. Keys of cancelled requests, and all of them when
 * the tier stops, are ended here with SL_ERR_CANCELLED.
 */
bool sl_tier_thread_next(sl_tier_thread *t, sl_tier_queue_kind q, sl_tier_req **r, int32_t *i);
/* A key that next gave has ended; the request may be complete, and is then not touched any more. */
void sl_tier_thread_end_key(sl_tier_thread *t, sl_tier_req *r, int32_t i, sl_status st);
/* A page has left the tier: the next poll reports it to the owner, before the done of the requests that complete now. */
void sl_tier_thread_gone(sl_tier_thread *t, sl_key key);
/* Makes the thread look around, from any thread. */
void sl_tier_thread_wake(sl_tier_thread *t);
/* Whether the thread has to end. Its queues can still hold requests, which next cancels. */
bool sl_tier_thread_stopping(sl_tier_thread *t);
/* Empties the wake descriptor. */
void sl_tier_thread_awake(sl_tier_thread *t);

#endif
