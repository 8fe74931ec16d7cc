/*
 * Gates: packet filters in the kernel that decide which processes can reach UCX's own TCP sockets.
 *
 * UCX 1.13 accepts bytes from every program that connects. It treats unexpected bytes as an internal error and aborts
 * the process, and its put messages can name any address of the process. A gate is a filter
 * (SO_ATTACH_FILTER) on a listening socket of UCX: segments that do not pass are dropped before a connection
 * exists. A connection that was made while the gate was open continues to work after the gate is shut.
 *
 * A gate holds duplicates of the descriptors, so it never acts on a descriptor number that was closed and
 * used again for another file. Not thread-safe; owned by the instance.
 */
#ifndef SL_TRANSPORT_UCX_GATE_H
#define SL_TRANSPORT_UCX_GATE_H

#include <sys/socket.h>

#include "base/status.h"

enum { UX_GATE_SOCKETS = 64, UX_GATE_ADMITTED = 64, UX_GATE_SNAPSHOT = 512 };

typedef struct ux_gate {
    int fds[UX_GATE_SOCKETS];
    size_t n;
} ux_gate;

/* Ports (host order) on which this process listens, at one moment. */
typedef struct ux_gate_ports {
    uint16_t port[UX_GATE_SNAPSHOT];
    size_t n;
} ux_gate_ports;

void ux_gate_snapshot(ux_gate_ports *out);
/*
 * Finds the sockets that listen now, did not listen in `before`, and whose port is `port` (0: any) or occurs
 * in network order in `address`, a packed UCX address; sets shut gates on them. Errors: IO, NO_MEMORY;
 * UNSUPPORTED when the kernel accepts no filter from this process (some require CAP_NET_ADMIN).
 */
sl_status ux_gate_take(ux_gate *g, const ux_gate_ports *before, const void *address, size_t bytes,
                       uint16_t port, sl_err *err);
/* Shuts the gate: nothing passes. */
sl_status ux_gate_shut(const ux_gate *g, sl_err *err);
/* Opens the gate: every segment passes. */
sl_status ux_gate_open(const ux_gate *g, sl_err *err);
/* Lets only segments from these n (at most UX_GATE_ADMITTED) addresses and ports pass. */
sl_status ux_gate_admit(const ux_gate *g, const struct sockaddr_storage *from, size_t n, sl_err *err);
/*
 * Tries to connect through the shut gate; false when that succeeds: the kernel accepts filters and ignores
 * them.
 */
bool ux_gate_holds(const ux_gate *g);
/* Closes the duplicated descriptors and leaves the filters as they are; UCX's own descriptors stay open. */
void ux_gate_release(ux_gate *g);

#endif
