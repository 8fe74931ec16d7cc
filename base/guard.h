/*
 * What a long job asks while it runs: whether it may take more memory, and whether anybody still wants its result.
 *
 * A job that works on the bytes of a client takes memory from its guard before it allocates it, and looks at `stop`
 * between pieces of work, so that memory is counted before it exists and a job ends soon after its client has left. The
 * owner of the guard says where memory comes from, and gives everything back when what the job has made is freed.
 *
 * A NULL guard is allowed everywhere: nothing is counted and nothing stops the job.
 *
 * Threads: one thread works under a guard at a time; sl_guard_stop() from any thread.
 */
#ifndef SL_BASE_GUARD_H
#define SL_BASE_GUARD_H

#include "base/status.h"

typedef struct sl_guard sl_guard;

struct sl_guard {
    /* Changes what is held from g->held to this many bytes, and sets g->held; false, and nothing changes, when there is
     * no room. Less than before always succeeds. NULL: there is always room. */
    bool (*hold)(sl_guard *g, uint64_t bytes);
    uint64_t held;
    uint64_t most;    /* that could ever be held; 0: not known */
    uint64_t refused; /* what would have been held by the take that was refused last; 0: none was */
    bool stop;        /* atomic */
};

/* Takes bytes more. EXHAUSTED: there is no room now. TOO_LARGE: there never is. */
sl_status sl_guard_take(sl_guard *g, uint64_t bytes, sl_err *err);
/* The error of the take that was refused, for a caller who only learned that it was. */
sl_status sl_guard_refused(const sl_guard *g, sl_err *err);
/* Gives bytes back. */
void sl_guard_give(sl_guard *g, uint64_t bytes);
/* CANCELLED once sl_guard_stop() was called. */
sl_status sl_guard_check(const sl_guard *g, sl_err *err);
void sl_guard_stop(sl_guard *g);

/*
 * Grows the array at *p of *cap elements to at least `need` elements, by half its size at least, and takes what it
 * grows by. On failure the array stays as it is.
 */
sl_status sl_guard_grow(sl_guard *g, void **p, size_t *cap, size_t need, size_t element, sl_err *err);

#endif
