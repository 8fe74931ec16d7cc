/*
 * Limits that the operating system sets for this process. Called once by the program, before other threads run.
 */
#ifndef SL_BASE_LIMITS_H
#define SL_BASE_LIMITS_H

/* Raises the soft limit of file descriptors to the hard one. Connections, UCX and shared memory need many descriptors;
 * the usual soft limit of 1,024 is meant for programs that call select(). If the system refuses, nothing changes. */
void sl_limits_raise_descriptors(void);

#endif
