/* Loopback, operations and memory: a post appends a packet to the peer's inbox and decides its faults. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "transport/loopback/loopback_impl.h"

/* ---- posts ---- */

static bool nth(uint32_t every, uint64_t count)
{
    return every && count % every == 0;
}

static void apply_faults(lb_ep *ep, lb_packet *p)
{
    const sl_loopback_faults *f = &ep->faults;
    uint64_t n;
    p->due_ns = f->delay_ns ? sl_now_ns() + f->delay_ns : 0;
    if (p->kind == SL_TP_OP_SEND) {
        n = ++ep->n_msg;
        p->lose = nth(f->lose_message, n);
        p->damage = nth(f->damage_message, n);
        p->duplicate = nth(f->duplicate_message, n);
        return;
    }
    p->no_completion = nth(f->lose_completion, ++ep->n_op);
    if (p->kind == SL_TP_OP_FLUSH)
        return;
    p->fail = nth(f->fail_op, ep->n_op);
    if (p->kind == SL_TP_OP_GET)
        p->damage = nth(f->damage_get, ++ep->n_get);
    if (p->kind == SL_TP_OP_PUT) {
        n = ++ep->n_put;
        p->lose = nth(f->lose_put, n);
        p->damage = nth(f->damage_put, n);
        p->stray = f->stray_put;
        p->late = nth(f->late_put, n);
        p->late_ns = f->late_put_ns;
    }
}

/* Posts packet p, of which it takes ownership, as a new operation. Mutex held. */
static sl_status post(lb_ep *ep, lb_packet *p, sl_tp_done_fn *done, void *cookie)
{
    lb_transport *tp = lb_of(ep);
    sl_status st = SL_OK;
    sl_tp_op *op = NULL;
    if (ep->state != EP_OPEN)
        st = ep->state == EP_CLOSING ? SL_ERR_CANCELLED : SL_ERR_PEER;
    else if (tp->stats.pending >= tp->opts.max_pending)
        st = SL_AGAIN;
    else if (!(op = sl_tp_op_get(&tp->pool, false)))
        st = SL_ERR_NO_MEMORY;
    if (st != SL_OK) {
        lb_packet_free(p);
        return st;
    }
    op->ep = &ep->base;
    op->done = done;
    op->cookie = cookie;
    op->bytes = p->bytes;
    op->kind = p->kind;
    op->device = p->device;
    sl_tp_op_queue_push(&ep->pending, op);
    tp->stats.pending++;
    p->op = op;
    apply_faults(ep, p);
    *ep->peer->inbox_tail = p;
    ep->peer->inbox_tail = &p->next;
    lb_poke(lb_of(ep->peer));
    if (ep->faults.die_after && ++ep->n_post >= ep->faults.die_after)
        lb_break_pair(ep, "injected death");
    return SL_OK;
}

static sl_status post_locked(lb_ep *ep, const lb_packet *proto, sl_tp_done_fn *done, void *cookie)
{
    lb_packet *p = malloc(sizeof *p);
    if (!p) {
        free(proto->header);
        return SL_ERR_NO_MEMORY;
    }
    *p = *proto;
    lb_lock();
    sl_status st = post(ep, p, done, cookie);
    lb_unlock();
    return st;
}

static bool ranges_ok(const void *local, const sl_tp_mem *mem, size_t bytes, uint64_t remote,
                      const sl_tp_rkey *rkey)
{
    return sl_tp_in_range((uintptr_t)local, bytes, (uintptr_t)mem->base, mem->bytes) &&
           sl_tp_in_range(remote, bytes, rkey->base, rkey->bytes);
}

sl_status lb_put(sl_tp_ep *ep, const void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote,
                 sl_tp_rkey *rkey, sl_tp_done_fn *done, void *cookie)
{
    if (!ranges_ok(local, mem, bytes, remote, rkey))
        return SL_ERR_INVALID;
    lb_packet p = {.kind = SL_TP_OP_PUT,
                   .out = local,
                   .bytes = bytes,
                   .remote = remote,
                   .mem_id = ((lb_rkey *)rkey)->id,
                   .device = ((lb_mem *)mem)->device};
    return post_locked((lb_ep *)ep, &p, done, cookie);
}

sl_status lb_get(sl_tp_ep *ep, void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote, sl_tp_rkey *rkey,
                 sl_tp_done_fn *done, void *cookie)
{
    if (!ranges_ok(local, mem, bytes, remote, rkey))
        return SL_ERR_INVALID;
    lb_packet p = {
        .kind = SL_TP_OP_GET, .in = local, .bytes = bytes, .remote = remote, .mem_id = ((lb_rkey *)rkey)->id};
    return post_locked((lb_ep *)ep, &p, done, cookie);
}

sl_status lb_flush(sl_tp_ep *ep, sl_tp_done_fn *done, void *cookie)
{
    lb_packet p = {.kind = SL_TP_OP_FLUSH};
    return post_locked((lb_ep *)ep, &p, done, cookie);
}

sl_status lb_send(sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes, const void *data,
                  size_t bytes, sl_tp_done_fn *done, void *cookie)
{
    if (id >= SL_TP_AM_IDS)
        return SL_ERR_INVALID;
    if (header_bytes > SL_TP_AM_HEADER_MAX || bytes > SL_TP_AM_MAX)
        return SL_ERR_TOO_LARGE;
    lb_packet p = {
        .kind = SL_TP_OP_SEND, .out = data, .bytes = bytes, .id = id, .header_bytes = header_bytes};
    if (header_bytes) {
        p.header = malloc(header_bytes);
        if (!p.header)
            return SL_ERR_NO_MEMORY;
        memcpy(p.header, header, header_bytes);
    }
    return post_locked((lb_ep *)ep, &p, done, cookie);
}

sl_status lb_handle(sl_transport *base, uint16_t id, sl_tp_message_fn *fn, void *arg)
{
    lb_transport *tp = (lb_transport *)base;
    if (id >= SL_TP_AM_IDS)
        return SL_ERR_INVALID;
    tp->handlers[id] = fn;
    tp->handler_args[id] = arg;
    return SL_OK;
}

/* ---- memory ---- */

sl_status lb_mem_register(sl_transport *base, void *ptr, size_t bytes, sl_tp_mem_kind kind, unsigned access,
                          sl_tp_mem **out, sl_err *err)
{
    lb_transport *tp = (lb_transport *)base;
    if (!ptr || !bytes)
        return sl_fail(err, SL_ERR_INVALID, "cannot register an empty range");
    lb_mem *m = calloc(1, sizeof *m);
    if (!m)
        return SL_ERR_NO_MEMORY;
    m->base = (sl_tp_mem){.tp = base, .base = ptr, .bytes = bytes};
    m->access = access;
    m->device = kind == SL_TP_DEVICE; /* the CPU must also reach it, as on a unified backend */
    lb_lock();
    m->id = lb_world.next_id++;
    m->next = tp->mems;
    tp->mems = m;
    tp->stats.registered_bytes += bytes;
    lb_unlock();
    *out = &m->base;
    return SL_OK;
}

void lb_mem_deregister(sl_tp_mem *base)
{
    lb_transport *tp = (lb_transport *)base->tp;
    lb_mem *m = (lb_mem *)base;
    lb_lock();
    for (lb_mem **at = &tp->mems; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            break;
        }
    tp->stats.registered_bytes -= m->base.bytes;
    lb_unlock();
    free(m);
}

static const char rkey_magic[4] = {'L', 'B', 'K', '1'};

sl_status lb_rkey_pack(const sl_tp_mem *mem, void *buf, size_t cap, size_t *len)
{
    const lb_mem *m = (const lb_mem *)mem;
    uint64_t fields[3] = {m->id, (uint64_t)(uintptr_t)mem->base, mem->bytes};
    if (cap < sizeof rkey_magic + sizeof fields)
        return SL_ERR_TOO_LARGE;
    memcpy(buf, rkey_magic, sizeof rkey_magic);
    memcpy((uint8_t *)buf + sizeof rkey_magic, fields, sizeof fields);
    *len = sizeof rkey_magic + sizeof fields;
    return SL_OK;
}

sl_status lb_rkey_unpack(sl_tp_ep *base, const void *buf, size_t len, sl_tp_rkey **out, sl_err *err)
{
    lb_ep *ep = (lb_ep *)base;
    uint64_t fields[3];
    if (len != sizeof rkey_magic + sizeof fields || memcmp(buf, rkey_magic, sizeof rkey_magic) != 0)
        return sl_fail(err, SL_ERR_CORRUPT, "not a loopback remote key (%zu bytes)", len);
    lb_lock();
    bool open = ep->state == EP_OPEN;
    lb_unlock();
    if (!open)
        return SL_ERR_PEER;
    lb_rkey *k = calloc(1, sizeof *k);
    if (!k)
        return SL_ERR_NO_MEMORY;
    memcpy(fields, (const uint8_t *)buf + sizeof rkey_magic, sizeof fields);
    k->id = fields[0];
    k->base = (sl_tp_rkey){.ep = base, .base = fields[1], .bytes = fields[2]};
    lb_transport *tp = lb_of(ep);
    k->next = tp->rkeys;
    if (tp->rkeys)
        tp->rkeys->prev = k;
    tp->rkeys = k;
    *out = &k->base;
    return SL_OK;
}

void lb_rkey_release(sl_tp_rkey *rkey)
{
    lb_rkey *k = (lb_rkey *)rkey;
    lb_transport *tp = (lb_transport *)rkey->ep->tp;
    *(k->prev ? &k->prev->next : &tp->rkeys) = k->next;
    if (k->next)
        k->next->prev = k->prev;
    free(k);
}
