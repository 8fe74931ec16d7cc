/*
 * UCX transport, active messages in order.
 *
 * UCX delivers a small message immediately and a large one after a rendezvous that the receiver must start,
 * so small messages would overtake a large one that was sent before them. Every message therefore carries a
 * sequence number per endpoint and direction, and a message that arrives early is held. At most UX_MAX_FETCH
 * large messages are fetched at a time; the others stay at the sender, which limits the memory that a peer can occupy.
 * A gap or a repeated number breaks the connection, so a lost or repeated message is always noticed.
 */
#include <stdlib.h>
#include <string.h>

#include "transport/ucx/ucx_impl.h"

/*
 * With sl_tp_options.encrypt the owner's messages are encrypted: the data is, the wire header and the owner's header are
 * only authenticated. Handshake and BYE are not.
 */
static size_t open_part(ux_wire wire, const void *header, uint8_t out[SL_TP_OP_HEADER])
{
    memcpy(out, &wire, sizeof wire);
    if (wire.header_bytes)
        memcpy(out + sizeof wire, header, wire.header_bytes);
    return sizeof wire + wire.header_bytes;
}

/* ---- sending ---- */

static ucs_status_ptr_t give_ucx(ux_ep *ep, sl_tp_op *op, ucp_request_param_t *param)
{
    param->op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param->flags = UCP_AM_SEND_FLAG_REPLY; /* so that the receiver learns the endpoint */
    return ucp_am_send_nbx(ep->handle, UX_AM_ID, op->header, op->wire, op->local, op->bytes, param);
}

/* Replaces the data of a send by what goes over the network. */
static bool seal(ux_ep *ep, sl_tp_op *op)
{
    op->sealed = malloc(op->bytes + SL_CIPHER_TAG);
    if (!op->sealed || !sl_cipher_seal(ep->seals, op->header, op->wire, op->local, op->bytes, op->sealed))
        return false;
    op->local = op->sealed;
    op->bytes += SL_CIPHER_TAG;
    return true;
}

static sl_status send_am(ux_ep *ep, sl_tp_op *op, ucp_request_param_t *param, uint16_t id, const void *header,
                         size_t header_bytes, const void *data)
{
    ux_transport *tp = ux_of(ep);
    ux_wire wire = {.seq = ep->tx_seq, .id = id, .header_bytes = (uint16_t)header_bytes};
    op->wire = (uint32_t)open_part(wire, header, op->header);
    op->local = (uint8_t *)(uintptr_t)data;
    if (ep->seals && op->kind == SL_TP_OP_SEND && !seal(ep, op)) {
        sl_tp_op_put(&tp->pool, op);
        ux_break(ep, SL_ERR_NO_MEMORY, "a message could not be encrypted");
        return SL_ERR_PEER;
    }
    if (tp->in_ucx) { /* see ux_run_postponed */
        ep->tx_seq++;
        ep->inflight++;
        tp->stats.pending++;
        sl_tp_op_queue_push(&tp->postponed, op);
        return SL_OK;
    }
    sl_status st = ux_op_posted(ep, op, give_ucx(ep, op, param));
    if (st == SL_OK)
        ep->tx_seq++;
    else if (ep->seals) /* both sides count the messages: after one that is missing nothing opens */
        ux_break(ep, SL_ERR_PEER, "an encrypted message could not be sent");
    return st;
}

int ux_run_postponed(ux_transport *tp)
{
    int n = 0;
    for (sl_tp_op *op; (op = sl_tp_op_queue_pop(&tp->postponed)); n++) {
        ux_ep *ep = (ux_ep *)op->ep;
        ucp_request_param_t param = ux_op_param(op);
        bool usable = !ep->broken && ep->handle && ep->teardown == UX_LIVE;
        ucs_status_ptr_t request = usable ? give_ucx(ep, op, &param) : UCS_STATUS_PTR(UCS_ERR_CANCELED);
        if (UCS_PTR_IS_PTR(request))
            continue; /* on_complete follows */
        op->status = ux_status(UCS_PTR_STATUS(request));
        sl_tp_op_queue_push(&tp->finished, op);
        if (UCS_PTR_IS_ERR(request))
            ux_break(ep, SL_ERR_PEER, ucs_status_string(UCS_PTR_STATUS(request)));
    }
    return n;
}

sl_status ux_send(sl_tp_ep *base, uint16_t id, const void *header, size_t header_bytes, const void *data,
                  size_t bytes, sl_tp_done_fn *done, void *cookie)
{
    ux_ep *ep = (ux_ep *)base;
    sl_tp_op *op;
    ucp_request_param_t param;
    if (id >= SL_TP_AM_IDS)
        return SL_ERR_INVALID;
    if (header_bytes > SL_TP_AM_HEADER_MAX || bytes > SL_TP_AM_MAX)
        return SL_ERR_TOO_LARGE;
    sl_status st = ux_op_begin(ep, SL_TP_OP_SEND, bytes, done, cookie, &op, &param);
    return st == SL_OK ? send_am(ep, op, &param, id, header, header_bytes, data) : st;
}

sl_status ux_send_control(ux_ep *ep, uint16_t id, const void *header, size_t header_bytes)
{
    sl_tp_op *op;
    ucp_request_param_t param;
    sl_status st = ux_op_begin(ep, SL_TP_OP_CONTROL, 0, NULL, NULL, &op, &param);
    return st == SL_OK ? send_am(ep, op, &param, id, header, header_bytes, NULL) : st;
}

/* ---- receiving ---- */

static void to_owner(ux_ep *ep, uint16_t id, const void *header, size_t header_bytes, const void *data,
                     size_t bytes)
{
    ux_transport *tp = ux_of(ep);
    if (ep->close_requested)
        return;
    if (!tp->handlers[id] || bytes > SL_TP_AM_MAX) {
        tp->stats.messages_refused++;
        return;
    }
    tp->stats.messages_received++;
    tp->stats.message_bytes_received += bytes;
    tp->handlers[id](tp->handler_args[id], &ep->base, id, header_bytes ? header : NULL, header_bytes,
                     bytes ? data : NULL, bytes);
}

static void decrypt(ux_ep *ep, ux_wire wire, const void *header, const uint8_t *data, size_t bytes)
{
    uint8_t open[SL_TP_OP_HEADER], *plain = malloc(bytes);
    size_t n = open_part(wire, header, open);
    if (plain && sl_cipher_open(ep->opens, open, n, data, bytes, plain)) {
        to_owner(ep, wire.id, header, wire.header_bytes, plain, bytes - SL_CIPHER_TAG);
    } else {
        ux_of(ep)->stats.messages_refused++;
        ux_break(ep, SL_ERR_PEER,
                 plain ? "a message that the peer has not encrypted" : "no memory for a message");
    }
    free(plain);
}

static void hand_over(ux_ep *ep, uint16_t id, const void *header, size_t header_bytes, const void *data,
                      size_t bytes)
{
    ux_wire wire = {.seq = ep->rx_seq++, .id = id, .header_bytes = (uint16_t)header_bytes};
    if (id >= SL_TP_AM_IDS || ep->state != UX_OPEN)
        ux_control_received(ep, id, header, header_bytes);
    else if (ep->opens)
        decrypt(ep, wire, header, data, bytes);
    else
        to_owner(ep, id, header, header_bytes, data, bytes);
}

void ux_held_free(ux_transport *tp, ux_held *h)
{
    *(h->all_prev ? &h->all_prev->all_next : &tp->all_held) = h->all_next;
    if (h->all_next)
        h->all_next->all_prev = h->all_prev;
    free(h->data);
    free(h);
}

void ux_held_drop(ux_ep *ep)
{
    ux_transport *tp = ux_of(ep);
    while (ep->held) {
        ux_held *h = ep->held;
        ep->held = h->next;
        h->ep = NULL;
        if (h->desc)
            ucp_am_data_release(tp->worker, h->desc);
        h->desc = NULL;
        if (!h->fetching)
            ux_held_free(tp, h);
    }
    ep->n_held = 0;
}

/*
 * Delivers the messages that are next in the order. A handler may close the endpoint, which is freed after the
 * callbacks of UCX.
 */
static void pump(ux_ep *ep);

static void fetched(void *request, ucs_status_t status, size_t length, void *arg)
{
    ux_held *h = arg;
    ux_ep *ep = h->ep;
    (void)length;
    if (request)
        ucp_request_free(request);
    h->fetching = false;
    if (!ep) {
        ux_held_free(h->tp, h); /* its endpoint has been freed */
        return;
    }
    if (status != UCS_OK) {
        ux_break(ep, SL_ERR_PEER, "a message could not be fetched");
        return;
    }
    h->ready = true;
    pump(ep);
}

/* Starts rendezvous receives of the first waiting messages. */
static void fetch_more(ux_ep *ep)
{
    unsigned active = 0;
    for (ux_held *h = ep->held; h && active < UX_MAX_FETCH; h = h->next) {
        if (h->fetching)
            active++;
        if (!h->desc)
            continue;
        ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                     .cb.recv_am = fetched,
                                     .user_data = h};
        void *desc = h->desc;
        h->data = malloc(h->bytes);
        if (!h->data) { /* the descriptor is released with the endpoint */
            ux_break(ep, SL_ERR_NO_MEMORY, "no memory for a message");
            return;
        }
        h->desc = NULL;
        h->fetching = true;
        ucs_status_ptr_t req = ucp_am_recv_data_nbx(ux_of(ep)->worker, desc, h->data, h->bytes, &param);
        if (!req) {
            h->fetching = false;
            h->ready = true;
        } else if (UCS_PTR_IS_ERR(req)) {
            h->fetching = false;
            ux_break(ep, SL_ERR_PEER, "a message could not be fetched");
            return;
        } else {
            active++;
        }
    }
}

static void pump(ux_ep *ep)
{
    for (;;) {
        ux_held *h = ep->held;
        if (!h || h->seq != ep->rx_seq || ep->broken)
            return;
        if (!h->ready) {
            fetch_more(ep);
            if (!h->ready)
                return;
        }
        ep->held = h->next;
        ep->n_held--;
        hand_over(ep, h->id, h->header, h->header_bytes, h->data, h->bytes);
        ux_held_free(ux_of(ep), h);
    }
}

static ux_held *hold(ux_ep *ep, const ux_wire *wire, const uint8_t *header, size_t bytes)
{
    ux_transport *tp = ux_of(ep);
    ux_held **at = &ep->held;
    ux_held *h = calloc(1, sizeof *h + wire->header_bytes);
    if (!h)
        return NULL;
    h->tp = tp;
    h->ep = ep;
    h->seq = wire->seq;
    h->id = wire->id;
    h->header_bytes = wire->header_bytes;
    h->bytes = bytes;
    memcpy(h->header, header, wire->header_bytes);
    while (*at && (int32_t)((*at)->seq - h->seq) < 0)
        at = &(*at)->next;
    h->next = *at;
    *at = h;
    ep->n_held++;
    h->all_next = tp->all_held;
    if (tp->all_held)
        tp->all_held->all_prev = h;
    tp->all_held = h;
    return h;
}

static bool have_seq(const ux_ep *ep, uint32_t seq)
{
    for (const ux_held *h = ep->held; h; h = h->next)
        if (h->seq == seq)
            return true;
    return false;
}

/* Reads the wire header; false when the bytes are not a message of an endpoint of this transport. */
static bool read_wire(const void *header, size_t header_length, ux_wire *wire)
{
    if (header_length < sizeof *wire)
        return false;
    memcpy(wire, header, sizeof *wire);
    return wire->header_bytes == header_length - sizeof *wire;
}

ucs_status_t ux_am_receive(void *arg, const void *header, size_t header_length, void *data, size_t length,
                           const ucp_am_recv_param_t *param)
{
    ux_transport *tp = arg;
    ux_wire wire;
    bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    bool known = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP;
    ux_ep *ep = known && !tp->destroying ? ux_ep_find(tp, param->reply_ep) : NULL;
    if (!ep || ep->broken || ep->teardown != UX_LIVE)
        return UCS_OK;
    if (!read_wire(header, header_length, &wire) || length > SL_TP_AM_MAX + SL_CIPHER_TAG ||
        ep->n_held >= UX_MAX_HELD || (int32_t)(wire.seq - ep->rx_seq) < 0 || have_seq(ep, wire.seq)) {
        tp->stats.messages_refused++;
        ux_break(ep, SL_ERR_PEER, "malformed message");
        return UCS_OK;
    }
    const uint8_t *user = (const uint8_t *)header + sizeof wire;
    if (!rendezvous && wire.seq == ep->rx_seq) {
        hand_over(ep, wire.id, user, wire.header_bytes, data, length);
        pump(ep);
        return UCS_OK;
    }
    ux_held *h = hold(ep, &wire, user, length);
    if (h && !rendezvous && length) {
        h->data = malloc(length);
        if (h->data)
            memcpy(h->data, data, length);
    }
    if (!h || (!rendezvous && length && !h->data)) {
        ux_break(ep, SL_ERR_NO_MEMORY, "no memory for a message");
        return UCS_OK;
    }
    if (!rendezvous) {
        h->ready = true;
        return UCS_OK;
    }
    h->desc = data;
    pump(ep);
    return UCS_INPROGRESS; /* this transport keeps the descriptor until the message is fetched */
}
