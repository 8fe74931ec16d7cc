/*
 * Limits of this process that the operating system keeps (ulimit). UCX ends the process when it runs out of descriptors
 * or of address space, in the middle of a request; so both are checked before it starts.
 */
#ifndef SL_BASE_LIMITS_H
#define SL_BASE_LIMITS_H

#include "base/status.h"

/* Raises the soft limit of file descriptors to the hard one. Connections, UCX and shared memory need many descriptors;
 * the usual soft limit of 1,024 is meant for programs that call select(). If the system refuses, nothing changes.
 * Called once by the program, before other threads run. */
void sl_process_raise_descriptors(void);

/* SL_ERR_EXHAUSTED when fewer descriptors are allowed than a process of a cluster needs; err names the limit, its
 * value, and what is needed. */
sl_status sl_process_check_descriptors(sl_err *err);

/* SL_ERR_EXHAUSTED when less address space is left than UCX, the threads and the requests of a process need, apart from
 * what it has allocated when this is called. */
sl_status sl_process_check_address_space(sl_err *err);

#endif
