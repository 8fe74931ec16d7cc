/*
 * UCX transport: puts and gets as messages of our own, for endpoints whose transports have no one-sided
 * operations (TCP).
 *
 * UCX 1.13 emulates such operations itself, but its receiver answers every put, and serves every get, with a send that
 * aborts the process if the endpoint has failed. So a peer that dies in the middle of its puts would end this process,
 * too. Ordinary active messages have no such answer.
 *
 * Each endpoint has one queue of operations. They are cut into frames that fit into one transport segment, so
 * UCX neither assembles nor fetches anything: the data of a frame is in its final place when the receive
 * callback returns, and no frame is accepted after the endpoint has been removed from the hash, which is the
 * first step of a close. UCX holds at most one frame per endpoint; the next one is sent when UCX has released
 * it. So frames arrive in the order of the queue, and a flush is an ordinary frame whose answer says that all
 * frames before it have been handled. The numbers in the frames only detect a lost or repeated frame.
 *
 *   put    PUT {key, address, bytes}...            flush  FLUSH {} <- FLUSHED {}
 *   get    READ {key, address, bytes} <- DATA {offset}...
 *
 * A key is the random number of a registration. The target checks key, range and access right of every frame;
 * a violation breaks the connection. The local side of a put may be device memory: UCX copies it into its
 * segments. The remote side, and both sides of a get, must be host memory: the CPU copies the frames.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ucx/ucx_impl.h"

enum { PUT = 1, FLUSH, FLUSHED, READ, DATA };

/*
 * Payload of a frame: with our header and UCX's it fits into the segment size that config.c sets
 * (TX_SEG_SIZE). With smaller segments UCX cuts and assembles frames, which costs only an additional copy.
 */
enum { FRAME_BYTES = 65536 - 512, FRAMES_AT_ONCE = 64 /* then other work is done first */ };

/* ---- which endpoints ---- */

/* True when one of the endpoint's lanes can write to the peer's memory without the peer: rc and dc can. */
bool ux_stream_wanted(const ux_ep *ep)
{
    char text[512];
    ux_ep_query(&ep->base, text, sizeof text);
    const char *lanes = strstr(text, " tls=");
    return !lanes || (!strstr(lanes, "rc_") && !strstr(lanes, "dc_"));
}

/* ---- sending ---- */

static void end_op(ux_ep *ep, sl_tp_op *op, sl_status st)
{
    op->status = st;
    sl_tp_op_queue_push(&ux_of(ep)->finished, op);
}

/* The head's next frame; returns its payload bytes. */
static size_t next_frame(ux_stream *s, const sl_tp_op *op)
{
    bool carries = op->wire == PUT || op->wire == DATA;
    size_t left = carries ? op->bytes - op->moved : 0;
    size_t n = left < FRAME_BYTES ? left : FRAME_BYTES;
    s->frame = (ux_frame){.kind = op->wire,
                          .seq = s->tx_seq++,
                          .key = op->key,
                          .address = op->remote + op->moved,
                          .bytes = carries ? n : op->bytes};
    return n;
}

/* UCX has released the frame of the first operation in the queue. */
static void frame_sent(ux_ep *ep, size_t payload)
{
    ux_stream *s = &ep->stream;
    sl_tp_op *op = s->queue.head;
    op->moved += payload;
    if (payload && op->moved < op->bytes)
        return;
    sl_tp_op_queue_pop(&s->queue);
    if (op->wire == FLUSH) {
        sl_tp_op_queue_push(&s->flushes, op);
    } else if (op->wire == READ) {
        sl_tp_op_queue_push(&s->gets, op);
    } else {
        s->serving -= op->wire == DATA;
        end_op(ep, op, SL_OK);
    }
}

static void on_frame(void *request, ucs_status_t st, void *arg)
{
    ux_ep *ep = arg;
    ux_stream *s = &ep->stream;
    ucp_request_free(request);
    s->busy = false;
    if (st == UCS_OK && ep->teardown == UX_LIVE) {
        frame_sent(ep, s->payload);
        ux_attend(ep); /* the next one is sent after UCX's callback */
        return;
    }
    end_op(ep, sl_tp_op_queue_pop(&s->queue), st == UCS_OK ? SL_ERR_CANCELLED : ux_status(st));
    ux_break(ep, SL_ERR_PEER, ucs_status_string(st));
}

void ux_stream_pump(ux_ep *ep)
{
    ux_stream *s = &ep->stream;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_frame,
        .user_data = ep,
    };
    for (int n = 0; s->queue.head && !s->busy && !ep->broken && ep->teardown == UX_LIVE; n++) {
        if (n == FRAMES_AT_ONCE) {
            ux_attend(ep);
            return;
        }
        const sl_tp_op *op = s->queue.head;
        s->payload = next_frame(s, op);
        ux_op_memory(op, &param);
        ucs_status_ptr_t req = ucp_am_send_nbx(ep->handle, UX_STREAM_ID, &s->frame, sizeof s->frame,
                                               s->payload ? op->local + op->moved : NULL, s->payload, &param);
        if (UCS_PTR_IS_ERR(req)) /* the queue ends with the endpoint */
            ux_break(ep, SL_ERR_PEER, ucs_status_string(UCS_PTR_STATUS(req)));
        else if (req)
            s->busy = true;
        else
            frame_sent(ep, s->payload);
    }
}

static void append(ux_ep *ep, sl_tp_op *op, uint32_t wire)
{
    op->wire = wire;
    ep->inflight++;
    ux_of(ep)->stats.pending++;
    sl_tp_op_queue_push(&ep->stream.queue, op);
}

static sl_status enqueue(ux_ep *ep, sl_tp_op *op, uint32_t wire)
{
    append(ep, op, wire);
    if (ux_of(ep)->in_ucx) /* see ux_run_postponed */
        ux_attend(ep);
    else
        ux_stream_pump(ep);
    return SL_OK;
}

sl_status ux_stream_put(ux_ep *ep, sl_tp_op *op)
{
    return enqueue(ep, op, PUT);
}

sl_status ux_stream_get(ux_ep *ep, sl_tp_op *op)
{
    return enqueue(ep, op, READ);
}

sl_status ux_stream_flush(ux_ep *ep, sl_tp_op *op)
{
    return enqueue(ep, op, FLUSH);
}

static void end_all(ux_ep *ep, sl_tp_op_queue *q)
{
    for (sl_tp_op *op; (op = sl_tp_op_queue_pop(q));)
        end_op(ep, op, SL_ERR_CANCELLED);
}

void ux_stream_abort(ux_ep *ep)
{
    ux_stream *s = &ep->stream;
    /* UCX still reads it: on_frame completes it */
    sl_tp_op *held = s->busy ? sl_tp_op_queue_pop(&s->queue) : NULL;
    end_all(ep, &s->queue);
    end_all(ep, &s->flushes);
    end_all(ep, &s->gets);
    if (held)
        sl_tp_op_queue_push(&s->queue, held);
}

void ux_stream_init(ux_ep *ep)
{
    sl_tp_op_queue_init(&ep->stream.queue);
    sl_tp_op_queue_init(&ep->stream.flushes);
    sl_tp_op_queue_init(&ep->stream.gets);
}

/* ---- receiving: each function returns NULL, or a text that says what is wrong ---- */

static const char *refuse(ux_ep *ep)
{
    ux_of(ep)->stats.accesses_refused++;
    return "access outside of the memory that was offered";
}

static bool may(const ux_ep *ep, const ux_frame *f, unsigned access)
{
    const ux_mem *m = ux_mem_find(ux_of(ep), f->key);
    return m && m->access & access &&
           sl_tp_in_range(f->address, f->bytes, (uintptr_t)m->base.base, m->base.bytes);
}

static const char *take_put(ux_ep *ep, const ux_frame *f, const void *data, size_t n)
{
    if (f->bytes != n || !may(ep, f, SL_TP_REMOTE_WRITE))
        return refuse(ep);
    memcpy((void *)(uintptr_t)f->address, data, n);
    return NULL;
}

/*
 * Queues an answer. It counts as an operation of the endpoint, so that a close waits until UCX has released
 * it.
 */
static const char *answer(ux_ep *ep, const ux_frame *f, uint32_t wire)
{
    sl_tp_op *op;
    ucp_request_param_t unused;
    sl_status st = ux_op_begin(ep, SL_TP_OP_CONTROL, f->bytes, NULL, NULL, &op, &unused);
    if (st != SL_OK)
        return st == SL_ERR_NO_MEMORY ? "no memory for an answer"
                                      : NULL; /* otherwise the endpoint is closing */
    op->local = (uint8_t *)(uintptr_t)f->address;
    ep->stream.serving += wire == DATA;
    append(ep, op, wire);
    ux_attend(ep); /* sent after UCX's callback */
    return NULL;
}

static const char *take_read(ux_ep *ep, const ux_frame *f)
{
    if (ep->close_requested)
        return NULL; /* the peer is told when the connection closes */
    if (ep->stream.serving >= UX_MAX_SERVING || !may(ep, f, SL_TP_REMOTE_READ))
        return refuse(ep);
    return answer(ep, f, DATA);
}

/* Handles data of our oldest get. */
static const char *take_data(ux_ep *ep, const ux_frame *f, const void *data, size_t n)
{
    sl_tp_op *op = ep->stream.gets.head;
    if (!op || f->address != op->moved || !n || n > op->bytes - op->moved)
        return "data without a request";
    memcpy(op->local + op->moved, data, n);
    op->moved += n;
    if (op->moved == op->bytes)
        end_op(ep, sl_tp_op_queue_pop(&ep->stream.gets), SL_OK);
    return NULL;
}

static const char *take_flushed(ux_ep *ep)
{
    sl_tp_op *op = sl_tp_op_queue_pop(&ep->stream.flushes);
    if (!op)
        return "an answer to no flush";
    end_op(ep, op, SL_OK);
    return NULL;
}

static const char *take(ux_ep *ep, const ux_frame *f, const void *data, size_t n)
{
    if (f->seq != ep->stream.rx_seq++)
        return "a frame was lost";
    if (ep->state != UX_OPEN && f->kind != FLUSH) /* no key is known before */
        return "a frame before the greeting";
    switch (f->kind) {
    case PUT:
        return take_put(ep, f, data, n);
    case READ:
        return take_read(ep, f);
    case DATA:
        return take_data(ep, f, data, n);
    case FLUSH:
        return answer(ep, &(ux_frame){0}, FLUSHED);
    case FLUSHED:
        return take_flushed(ep);
    default:
        return "an unknown frame";
    }
}

ucs_status_t ux_stream_receive(void *arg, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param)
{
    ux_transport *tp = arg;
    ux_frame f;
    bool known = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP;
    ux_ep *ep = known && !tp->destroying ? ux_ep_find(tp, param->reply_ep) : NULL;
    const char *wrong = "a malformed frame";
    if (!ep || ep->broken || ep->teardown != UX_LIVE)
        return UCS_OK;
    if (header_length == sizeof f && !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        memcpy(&f, header, sizeof f);
        wrong = take(ep, &f, data, length);
    }
    if (wrong) {
        tp->stats.messages_refused++;
        ux_break(ep, SL_ERR_PEER, wrong);
    }
    return UCS_OK;
}
