/*
 * Gates before UCX's own TCP sockets: who may reach them is decided in the kernel.
 *
 * UCX 1.13 takes bytes from anybody who connects and treats what it does not expect as a broken invariant of
 * its own: it aborts, and its put messages name any address. A gate is a packet filter (SO_ATTACH_FILTER) on
 * a listening socket of UCX: what does not pass is dropped before there is a connection. A connection that
 * was made while the gate let it pass keeps working after the gate is shut.
 *
 * A gate holds duplicates of the descriptors, so it never meets a number that was closed and given to
 * somebody else. Not thread-safe; owned by the instance.
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
 * Gates the sockets that listen now, did not in `before`, and whose port (network order) occurs in `address`,
 * a packed UCX address, or is `port` (0: none). They are shut. Errors: IO, NO_MEMORY; UNSUPPORTED when the
 * kernel takes no filter from this process (some allow it only with CAP_NET_ADMIN).
 */
sl_status ux_gate_take(ux_gate *g, const ux_gate_ports *before, const void *address, size_t bytes,
                       uint16_t port, sl_err *err);
/* Nobody passes. */
sl_status ux_gate_shut(const ux_gate *g, sl_err *err);
/* Everybody passes. */
sl_status ux_gate_open(const ux_gate *g, sl_err *err);
/* Only segments from these n (at most UX_GATE_ADMITTED) addresses and ports pass. */
sl_status ux_gate_admit(const ux_gate *g, const struct sockaddr_storage *from, size_t n, sl_err *err);
/* Tries to connect to the shut gate; false when that succeeds, on kernels that take filters and ignore them.
 */
bool ux_gate_holds(const ux_gate *g);
/* Lets go of the sockets as they are; only UCX's own descriptors remain. */
void ux_gate_release(ux_gate *g);

#endif
