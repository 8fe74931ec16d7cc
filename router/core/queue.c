/*
 * The queue of requests that wait for workers: first in, first out; attempts that start again go to the front. A held
 * request keeps its place and is passed over. Queues per client and their weights belong here.
 */
#include "router/core/core_impl.h"

void sl_queue_push(sl_router *r, sl_request *q, bool front)
{
    sl_queue *u = &r->queue;
    q->in_queue = true;
    u->waiting += !q->held;
    q->q_prev = front ? NULL : u->tail;
    q->q_next = front ? u->head : NULL;
    if (q->q_prev)
        q->q_prev->q_next = q;
    else
        u->head = q;
    if (q->q_next)
        q->q_next->q_prev = q;
    else
        u->tail = q;
}

void sl_queue_remove(sl_router *r, sl_request *q)
{
    sl_queue *u = &r->queue;
    if (!q->in_queue)
        return;
    q->in_queue = false;
    u->waiting -= !q->held;
    if (q->q_prev)
        q->q_prev->q_next = q->q_next;
    else
        u->head = q->q_next;
    if (q->q_next)
        q->q_next->q_prev = q->q_prev;
    else
        u->tail = q->q_prev;
    q->q_next = q->q_prev = NULL;
}

void sl_queue_unhold(sl_router *r, sl_request *q)
{
    if (!q->held)
        return;
    q->held = false;
    r->queue.waiting += q->in_queue;
    r->queue.dirty = true;
}
