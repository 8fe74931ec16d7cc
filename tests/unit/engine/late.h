/*
 * A device that computes as late as it may: everything that is enqueued waits until the host waits for it. It is made of the CPU
 * backend, and shows whether host memory that a step reads or writes is touched before the step has ended, as on a GPU:
 * copies read pinned memory (allocated or registered) when they run, and other host memory when they are enqueued.
 */
#ifndef SL_TEST_ENGINE_LATE_H
#define SL_TEST_ENGINE_LATE_H

#include "kernels/backend.h"

/* A wrapper for fix_opts. One device at a time. */
void late_wrap(sl_backend *be);
/* The n-th run of this op from now on, counted when it is computed, finds a fault, which the next wait reports; 0: none. */
void late_fail(sl_op op, int n);
/* Work that waits now. */
int late_waiting(void);

#endif
