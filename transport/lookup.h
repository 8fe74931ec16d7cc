/*
 * Looking up host names without blocking the caller. getaddrinfo() blocks as long as the name server is silent, and a
 * thread that waits in it sends no heartbeats. A lookup therefore runs on a thread of its own, and a descriptor becomes
 * readable when it has ended.
 *
 * Callers that ask for the same name at the same time share one lookup, so a dead name server costs one thread for each
 * name; SL_LOOKUPS_MAX bounds their number in the process. A lookup that is released before it has ended continues
 * until getaddrinfo() returns, and its thread then frees it.
 *
 * Threads: any. Ownership: the caller releases its sl_lookup.
 */
#ifndef SL_TRANSPORT_LOOKUP_H
#define SL_TRANSPORT_LOOKUP_H

#include <sys/socket.h>

#include "base/status.h"

enum { SL_LOOKUPS_MAX = 64 };

typedef struct sl_lookup sl_lookup;

/* Begins a lookup, or joins the one of the same host and port. Errors: EXHAUSTED (SL_LOOKUPS_MAX in flight), NO_MEMORY,
 * IO (no descriptor, no thread). */
sl_status sl_lookup_start(const char *host, uint16_t port, sl_lookup **out, sl_err *err);
/* Readable once the lookup has ended; it stays readable. Valid until the release. */
int sl_lookup_fd(const sl_lookup *l);
/* True when it has ended: *st, and the address or the reason. */
bool sl_lookup_done(const sl_lookup *l, sl_status *st, struct sockaddr_storage *out, socklen_t *len,
                    sl_err *err);
void sl_lookup_release(sl_lookup *l); /* NULL is allowed */

#endif
