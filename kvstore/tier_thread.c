/* See tier_thread.h. */
#include "kvstore/tier_thread.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"

/* With the lock. */
static void complete(sl_tier_thread *t, sl_tier_req *r)
{
    sl_list_push(&t->done, r);
    eventfd_write(t->event, 1);
}

sl_status sl_tier_thread_init(sl_tier_thread *t, const sl_tier_opts *o)
{
    *t = (sl_tier_thread){.wake = -1, .event = -1, .evicted = o->evicted, .evicted_ctx = o->evicted_ctx};
    for (int i = 0; i < SL_TIER_QUEUES; i++)
        sl_list_init(&t->queues[i]);
    sl_list_init(&t->done);
    pthread_mutex_init(&t->lock, NULL);
    t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return t->wake >= 0 && t->event >= 0 ? SL_OK : SL_ERR_NO_MEMORY;
}

sl_status sl_tier_thread_start(sl_tier_thread *t, void *(*run)(void *), void *arg)
{
    t->running = pthread_create(&t->thread, NULL, run, arg) == 0;
    return t->running ? SL_OK : SL_ERR_NO_MEMORY;
}

static void tell_to_stop(sl_tier_thread *t)
{
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_mutex_unlock(&t->lock);
    eventfd_write(t->wake, 1);
}

void sl_tier_thread_stop(sl_tier_thread *t)
{
    tell_to_stop(t);
    if (t->running)
        pthread_join(t->thread, NULL);
    t->running = false;
}

bool sl_tier_thread_stop_within(sl_tier_thread *t, uint32_t ms)
{
    tell_to_stop(t);
    const struct timespec until = sl_wall_after(ms * 1000000ull);
    if (t->running && pthread_timedjoin_np(t->thread, NULL, &until) != 0)
        return false;
    t->running = false;
    return true;
}

void sl_tier_thread_drain(sl_tier_thread *t)
{
    sl_tier_req *r;
    int32_t i;
    do /* a done may make new requests */
        for (int q = 0; q < SL_TIER_QUEUES; q++)
            (void)sl_tier_thread_next(t, (sl_tier_queue_kind)q, &r, &i);
    while (sl_tier_thread_poll(t));
}

void sl_tier_thread_free(sl_tier_thread *t)
{
    if (t->wake >= 0)
        close(t->wake);
    if (t->event >= 0)
        close(t->event);
    pthread_mutex_destroy(&t->lock);
    free(t->gone);
}

void sl_tier_thread_submit(sl_tier_thread *t, sl_tier_req *r)
{
    static const sl_tier_queue_kind queue_of[] = {[SL_TIER_EXISTS] = SL_TIER_QUICK,
                                                  [SL_TIER_REMOVE] = SL_TIER_QUICK,
                                                  [SL_TIER_GET] = SL_TIER_READS,
                                                  [SL_TIER_SET] = SL_TIER_WRITES};
    pthread_mutex_lock(&t->lock);
    sl_list_push(&t->queues[queue_of[r->op]], r);
    pthread_mutex_unlock(&t->lock);
    eventfd_write(t->wake, 1);
}

void sl_tier_thread_cancel(sl_tier_thread *t, sl_tier_req *r)
{
    pthread_mutex_lock(&t->lock);
    r->cancelled = true;
    pthread_mutex_unlock(&t->lock);
    eventfd_write(t->wake, 1);
}

void sl_tier_thread_wake(sl_tier_thread *t)
{
    eventfd_write(t->wake, 1);
}

int sl_tier_thread_poll(sl_tier_thread *t)
{
    eventfd_t count;
    int n = 0;
    pthread_mutex_lock(&t->lock);
    eventfd_read(t->event, &count);
    sl_tier_req *todo = t->done.head;
    sl_list_init(&t->done);
    bool stopping = t->stopping;
    sl_key *gone = t->gone;
    int32_t n_gone = t->n_gone;
    t->gone = NULL;
    t->n_gone = t->gone_cap = 0;
    pthread_mutex_unlock(&t->lock);
    if (n_gone && !stopping)
        t->evicted(t->evicted_ctx, gone, n_gone);
    free(gone);
    while (todo) {
        sl_tier_req *r = todo;
        todo = r->next; /* done may free the request */
        r->done(r, r->cancelled || stopping ? SL_ERR_CANCELLED : SL_OK);
        n++;
    }
    return n;
}

bool sl_tier_thread_next(sl_tier_thread *t, sl_tier_queue_kind kind, sl_tier_req **out, int32_t *i)
{
    sl_tier_queue *q = &t->queues[kind];
    bool found = false;
    pthread_mutex_lock(&t->lock);
    while (q->head && !found) {
        sl_tier_req *r = q->head;
        while ((t->stopping || r->cancelled) && r->begun < r->n)
            r->results[r->begun++] = SL_ERR_CANCELLED;
        found = r->begun < r->n;
        if (found) {
            *out = r;
            *i = r->begun++;
            r->open++;
        }
        if (r->begun < r->n)
            break;
        sl_list_pop(q);
        if (r->open == 0)
            complete(t, r);
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}

void sl_tier_thread_end_key(sl_tier_thread *t, sl_tier_req *r, int32_t i, sl_status st)
{
    pthread_mutex_lock(&t->lock);
    r->results[i] = st;
    r->open--;
    if (r->begun == r->n && r->open == 0)
        complete(t, r);
    pthread_mutex_unlock(&t->lock);
}

void sl_tier_thread_gone(sl_tier_thread *t, sl_key key)
{
    if (!t->evicted)
        return;
    pthread_mutex_lock(&t->lock);
    if (t->n_gone == t->gone_cap) {
        int32_t cap = t->gone_cap ? 2 * t->gone_cap : 16;
        sl_key *more = realloc(t->gone, (size_t)cap * sizeof *more);
        t->gone = more ? more : t->gone;
        t->gone_cap = more ? cap : t->gone_cap;
    }
    if (t->n_gone < t->gone_cap)
        t->gone[t->n_gone++] = key;
    pthread_mutex_unlock(&t->lock);
}

bool sl_tier_thread_stopping(sl_tier_thread *t)
{
    pthread_mutex_lock(&t->lock);
    bool stopping = t->stopping;
    pthread_mutex_unlock(&t->lock);
    return stopping;
}

void sl_tier_thread_awake(sl_tier_thread *t)
{
    eventfd_t count;
    eventfd_read(t->wake, &count);
}
