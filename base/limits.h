/*
 * Limits of this process that the operating system keeps. Called once by the program, before threads run.
 */
#ifndef SL_BASE_LIMITS_H
#define SL_BASE_LIMITS_H

/* Raises the soft limit of file descriptors to the hard one: connections, UCX and shared memory take many, and the
 * soft default of 1,024 serves only programs that call select(). Nothing changes when the system refuses. */
void sl_limits_raise_descriptors(void);

#endif
