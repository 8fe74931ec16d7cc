/*
 * Watch: tells whether a thread that works for others makes progress. It counts the jobs that were posted and have not
 * come back, and knows when the last turn ended; the age is the time without a turn while a job waits. So a thread that
 * hangs in a job, and one that does not wake up for it, are both seen, and a long queue that moves is not.
 *
 * The poster calls sl_watch_post() before it posts a job. The thread calls sl_watch_turn() after each turn,
 * sl_watch_back() when a job goes back, and sl_watch_pause() before something that may take long by its nature, which
 * ends with the next turn. Any thread asks for the age.
 */
#ifndef SL_WORKER_WATCH_H
#define SL_WORKER_WATCH_H

#include <stdatomic.h>

#include "base/log.h"

typedef struct sl_watch {
    _Atomic uint32_t jobs;
    _Atomic uint64_t turn_ns; /* UINT64_MAX: it pauses */
} sl_watch;

static inline void sl_watch_post(sl_watch *w)
{
    if (!atomic_load(&w->jobs))
        atomic_store(&w->turn_ns, sl_now_ns()); /* first: a reader must not see the job with an old time */
    atomic_fetch_add(&w->jobs, 1);
}

static inline void sl_watch_turn(sl_watch *w)
{
    atomic_store(&w->turn_ns, sl_now_ns());
}

static inline void sl_watch_pause(sl_watch *w)
{
    atomic_store(&w->turn_ns, UINT64_MAX);
}

static inline void sl_watch_back(sl_watch *w)
{
    atomic_fetch_sub(&w->jobs, 1);
}

static inline uint32_t sl_watch_age_ms(const sl_watch *w, uint64_t now_ns)
{
    uint32_t jobs = atomic_load(&w->jobs);
    uint64_t turn = atomic_load(&w->turn_ns);
    return jobs && now_ns > turn ? (uint32_t)((now_ns - turn) / 1000000) : 0;
}

#endif
