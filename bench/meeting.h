/*
 * How the processes of a benchmark that are ranks of one group find each other: through a page of memory that they share,
 * in which rank 0 leaves its invitation. Who makes the page and the processes is the benchmark's business. The page begins
 * zeroed, serves one group, and must outlive sl_meeting_enter() of every rank.
 */
#ifndef SL_BENCH_MEETING_H
#define SL_BENCH_MEETING_H

#include <stdatomic.h>

#include "collectives/comm.h"

/* Rank 0 fills `invite`, then sets `invited`. */
typedef struct sl_meeting {
    _Atomic uint32_t invited;
    sl_comm_invite invite;
} sl_meeting;

/* Founds the group, or joins it when rank 0 has founded it. SL_ERR_TIMEOUT: rank 0 did not within o->deadline_ms. Other
 * errors: those of sl_comm_found() and sl_comm_join(). */
sl_status sl_meeting_enter(const sl_comm_opts *o, sl_backend *be, sl_meeting *m, sl_comm **out, sl_err *err);

#endif
