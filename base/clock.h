/*
 * The time of day, for texts that people and other programs read and for waits of pthread, which have that clock. What measures and
 * plans uses sl_now_ns() (base/log.h), which is never set back. Any thread.
 */
#ifndef SL_BASE_CLOCK_H
#define SL_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds since 1970, UTC. */
uint64_t sl_wall_ns(void);
/* The moment this many nanoseconds from now, as pthread_cond_timedwait() and pthread_timedjoin_np() take it. */
struct timespec sl_wall_after(uint64_t ns);

#endif
