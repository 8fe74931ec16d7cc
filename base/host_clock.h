/*
 * Times of another process: the clock of sl_now_ns() counts from the start of a kernel, so a time that a process says means
 * something only to processes on the same kernel, in the same time namespace. They know each other by this number.
 */
#ifndef SL_BASE_HOST_CLOCK_H
#define SL_BASE_HOST_CLOCK_H

#include <stdint.h>

/* A time, and whose. All zero: none. */
typedef struct sl_stamp {
    uint64_t clock; /* sl_host_clock() of who says it */
    uint64_t ns;
} sl_stamp;

/* Equal in all processes that share the clock of sl_now_ns(); 0: it is not known. Any thread. */
uint64_t sl_host_clock(void);
/* s on the clock of the caller; 0: it is none, it is that of another clock, or it is not in the minute before now. */
uint64_t sl_stamp_ns(const sl_stamp *s, uint64_t now);

#endif
