/*
 * Loopback: the transport inside one process, and its fault injection. The example for implementers, and the
 * test double for the rooms that use a transport.
 *
 * Instances that name the same fabric see each other, on the same or on different threads. Puts and gets are
 * executed when they are delivered, by the target's sl_tp_progress(), which reads the initiator's memory at
 * that moment: a test notices memory that was freed or reused too early, as a NIC would. Addresses are
 * "fabric:port".
 *
 * Device memory is accepted where the CPU can reach it (that of a unified backend), for tests of shipping.
 *
 * Faults are set per endpoint, from its owner thread, and act on the posts of that endpoint, counted from the
 * call. Rates are "every n-th", hence deterministic: a failing test fails again.
 */
#ifndef SL_TRANSPORT_LOOPBACK_LOOPBACK_H
#define SL_TRANSPORT_LOOPBACK_LOOPBACK_H

#include "transport/transport.h"

typedef struct sl_loopback_faults {
    uint64_t delay_ns;        /* every post is delivered later by this time, in order */
    uint32_t lose_completion; /* every n-th put/get/flush takes effect but never completes (until close) */
    uint32_t lose_put;        /* every n-th put is not written, but completes with SL_OK */
    uint32_t damage_put;      /* every n-th put is written with one bit flipped */
    uint32_t damage_get;      /* every n-th get arrives with one bit flipped */
    /* A hostile writer: every put is also written at this distance from its place, modulo the size of the target's
     * memory. 0: not. */
    uint64_t stray_put;
    uint32_t lose_message;      /* every n-th message is lost */
    uint32_t damage_message;    /* every n-th message has one bit of its payload (else header) flipped */
    uint32_t duplicate_message; /* every n-th message is delivered twice */
    uint32_t late_put;    /* every n-th put is written again after late_put_ns, unless the target closed */
    uint64_t late_put_ns; /* see late_put */
    uint32_t fail_op;     /* every n-th put/get completes with SL_ERR_IO and has no effect */
    uint64_t die_after;   /* the connection breaks for both sides after this number of posts; 0: never */
    bool stall;           /* no later post of this endpoint is delivered (a hanging peer) */
} sl_loopback_faults;

/* Replaces the endpoint's faults; NULL clears them (a stalled endpoint then delivers the waiting posts). */
void sl_loopback_set_faults(sl_tp_ep *ep, const sl_loopback_faults *faults);

/* Sets the faults of endpoints that this instance connects or accepts from now on. NULL clears them. */
void sl_loopback_set_default_faults(sl_transport *tp, const sl_loopback_faults *faults);

/* Makes the instance refuse the next n connects (UINT32_MAX: all). */
void sl_loopback_refuse(sl_transport *tp, uint32_t n);

/*
 * Behaves as if the process had died: peers see their endpoints fail, nothing is delivered to or from the
 * instance, and it runs no more callbacks. Only sl_tp_destroy() may be called afterwards. Any thread.
 */
void sl_loopback_kill(sl_transport *tp);

#endif
