/*
 * Loopback: the transport inside one process, and its fault injection. The template for implementers and the
 * test double for everybody above.
 *
 * Instances that name the same fabric see each other, on the same or different threads. Puts and gets are
 * carried out when they are delivered, by the target's sl_tp_progress(), reading the initiator's memory at
 * that moment: memory that was freed or reused too early shows up, as it would on a NIC. Addresses are
 * "fabric:port".
 *
 * Device memory is taken where the CPU reaches it (a unified backend's): for tests of those who ship it.
 *
 * Faults are set per endpoint and act on what that endpoint sends (its posts), counted from the call. Rates
 * are "every n-th": deterministic, so that a failing test fails again. Owner thread of the endpoint only.
 */
#ifndef SL_TRANSPORT_LOOPBACK_LOOPBACK_H
#define SL_TRANSPORT_LOOPBACK_LOOPBACK_H

#include "transport/transport.h"

typedef struct sl_loopback_faults {
    uint64_t delay_ns;          /* everything this endpoint posts is delivered that much later, in order */
    uint32_t lose_completion;   /* every n-th put/get/flush takes effect but never completes (until close) */
    uint32_t lose_put;          /* every n-th put never lands, yet completes SL_OK (a lying wire) */
    uint32_t damage_put;        /* every n-th put lands with one bit flipped */
    uint32_t lose_message;      /* every n-th message vanishes */
    uint32_t damage_message;    /* every n-th message has one bit of its payload (else header) flipped */
    uint32_t duplicate_message; /* every n-th message is delivered twice */
    uint32_t late_put; /* every n-th put lands again late_put_ns later, unless the target closed meanwhile */
    uint64_t late_put_ns; /* see late_put */
    uint32_t fail_op;     /* every n-th put/get completes SL_ERR_IO and has no effect */
    uint64_t die_after;   /* the connection breaks for both sides after that many posts; 0: never */
    bool stall;           /* nothing this endpoint posts is delivered any more (a hanging peer) */
} sl_loopback_faults;

/* Replaces the endpoint's faults; NULL clears them (a stalled endpoint then delivers what waited). */
void sl_loopback_set_faults(sl_tp_ep *ep, const sl_loopback_faults *faults);

/* Faults that endpoints of this instance start with, made by connect or accept from now on. NULL clears. */
void sl_loopback_set_default_faults(sl_transport *tp, const sl_loopback_faults *faults);

/* The instance refuses the next n connects (UINT32_MAX: all). */
void sl_loopback_refuse(sl_transport *tp, uint32_t n);

/*
 * As if the process died: peers see their endpoints fail, nothing is delivered to or from it any more, its
 * callbacks stay silent. What is left to do with it is sl_tp_destroy(). Any thread.
 */
void sl_loopback_kill(sl_transport *tp);

#endif
