/*
 * Pinning: the host store is mapped, touched and made readable to the device on a thread of its own, while the weights are loaded:
 * both take tens of seconds, one for memory and the kernel, the other for disks and the link.
 *
 * Threads: all functions on the thread that starts it; the thread ends within take or drop. The backend must outlive it. Whoever
 * ends first, the caller learns of both: a failure waits for take(), drop() gives everything back.
 */
#ifndef SL_WORKER_PINNING_H
#define SL_WORKER_PINNING_H

#include "kernels/backend.h"
#include "kvstore/arena.h"

typedef struct sl_pinning sl_pinning;

/* g and o are copied. SL_ERR_NO_MEMORY. */
sl_status sl_pinning_start(const sl_geometry *g, const sl_arena_opts *o, sl_backend *be, sl_pinning **out,
                           sl_err *err);
/* Waits for the end, and frees p. *out is the caller's, who unregisters it before destroying it. *seconds: what it took. Errors as
 * sl_arena_create() and sl_be_host_register(); there is no arena then. */
sl_status sl_pinning_take(sl_pinning *p, sl_arena **out, double *seconds, sl_err *err);
/* The same when something else has failed: waits, and gives everything back. p may be NULL. */
void sl_pinning_drop(sl_pinning *p);

#endif
