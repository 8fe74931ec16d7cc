/*
 * Runs the core of a router without its loop and its transport: for the simulator, in which time is virtual (sl_now_virtual
 * in base/log.h) and workers are objects of the same process. The owner of the router calls these functions instead of
 * sl_router_run(); fronts are off.
 *
 * An endpoint given to sl_router_drive_join() is the caller's: its transport needs only `send`, which must not call the
 * router and must call `done` later, and `close`, which ends its use. Threads: that of the router. The endpoints outlive
 * the router.
 */
#ifndef SL_ROUTER_CORE_DRIVE_H
#define SL_ROUTER_CORE_DRIVE_H

#include "base/msg.h"
#include "router/core.h"
#include "transport/transport.h"

/* A worker has connected by this endpoint; its HELLO comes by sl_router_drive_message(). */
void sl_router_drive_join(sl_router *r, sl_tp_ep *ep, const char *address);
/* Handles a message of the worker, all of its effects included. Nothing happens for an endpoint that is closed. */
void sl_router_drive_message(sl_tp_ep *ep, const sl_msg *m);
/* The id that the router gave the worker; 0: none. */
uint32_t sl_router_drive_id(const sl_tp_ep *ep);
/* What the loop does before it sleeps: performs the effects of calls. */
void sl_router_drive_settle(sl_router *r);
/* What the loop does every SL_ROUTER_DRIVE_MS. Every member counts as heard at this time. */
enum { SL_ROUTER_DRIVE_MS = 20 };
void sl_router_drive_tick(sl_router *r);

#endif
