/*
 * The thread with the sockets of the events. It takes batches out of its inbox, publishes them, keeps them for replay, and
 * answers requests for replay. A payload is never copied: a message of ZeroMQ holds the batch.
 *
 * The PUB side is an XPUB socket, which speaks the same protocol and shows subscriptions as they arrive. It is told
 * not to drop (XPUB_NODROP): when a subscriber is so slow that its high-water mark is reached, sending fails
 * instead; that is counted, and the batch is sent to the others. ZeroMQ leaves that subscriber out from then on
 * until it has read, which is not counted again: the number of batches that it loses is known to it alone, by their
 * sequence numbers. The ROUTER side is told that an answer that cannot be queued is an error (ROUTER_MANDATORY),
 * which ends that replay and is counted. So nothing is lost silently.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "base/log.h"
#include "events/events_impl.h"

enum {
    LINGER_MS = 300,        /* how long subscribers may take what is left at the end */
    REQUEST_BYTES = 256,    /* of a message of a subscriber: a topic or a request for replay */
    REQUEST_FRAMES = 4,     /* the identity and the frames of a request */
    REQUESTS_PER_TURN = 16, /* of each socket, so that a flood of them does not delay batches */
    REPLAY_SPARE = 64,      /* answers that one client may have unread, in addition to a whole replay */
};

struct sl_publisher {
    sl_events_shared *shared;
    char topic[SL_EVENTS_TOPIC_MAX];
    void *ctx, *pub, *router; /* router NULL: there is no replay */
    sl_replay replay;
    pthread_t thread;
    bool runs;
};

/* ---- publishing ---- */

static void put_be(uint8_t out[8], uint64_t v)
{
    for (int i = 7; i >= 0; i--, v >>= 8)
        out[i] = (uint8_t)v;
}

/*
 * Messages given to ZeroMQ. Its queues order what this thread wrote before what its own threads do with a message; its
 * library is not compiled with ThreadSanitizer, which sees the order by this counter only.
 */
static atomic_uint handed_over;

/* On a thread of ZeroMQ. */
static void release(void *bytes, void *batch)
{
    (void)bytes;
    (void)atomic_load(&handed_over);
    sl_events_batch_release(batch);
}

/* Sends the payload as the last frame; the message has a hold of its own. */
static bool send_payload(void *socket, sl_events_batch *b)
{
    zmq_msg_t m;
    sl_events_batch_hold(b);
    atomic_fetch_add(&handed_over, 1);
    if (zmq_msg_init_data(&m, b->bytes, b->n, release, b) != 0) {
        sl_events_batch_release(b);
        return false;
    }
    if (zmq_msg_send(&m, socket, ZMQ_DONTWAIT) >= 0)
        return true;
    zmq_msg_close(&m);
    return false;
}

static void set_nodrop(sl_publisher *p, int on)
{
    zmq_setsockopt(p->pub, ZMQ_XPUB_NODROP, &on, sizeof on);
}

static bool send_topic(sl_publisher *p)
{
    return zmq_send(p->pub, p->topic, strlen(p->topic), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0;
}

static void publish(sl_publisher *p, sl_events_batch *b)
{
    uint8_t sequence[8];
    put_be(sequence, b->sequence);
    bool sent = send_topic(p);
    if (!sent && errno == EAGAIN) { /* a subscriber is too slow: it loses this batch */
        sl_counter_add(p->shared->lost_subscriber, 1);
        set_nodrop(p, 0);
        sent = send_topic(p);
    }
    if (sent && zmq_send(p->pub, sequence, sizeof sequence, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
        send_payload(p->pub, b))
        sl_counter_add(p->shared->published, 1);
    set_nodrop(p, 1);
    sl_replay_keep(&p->replay, b);
    sl_gauge_set(p->shared->buffered, (double)p->replay.bytes);
}

/* False: the end. */
static bool take_inbox(sl_publisher *p)
{
    sl_events_shared *s = p->shared;
    sl_mailbox_ack(s->inbox);
    for (sl_mail *m; (m = sl_mailbox_take(s->inbox));) {
        if (m == &s->stop)
            return false;
        sl_events_batch *b = (sl_events_batch *)m;
        atomic_fetch_sub(&s->queued_bytes, b->n);
        publish(p, b);
        sl_events_batch_release(b);
    }
    return true;
}

/* ---- subscriptions ---- */

static void take_subscriptions(sl_publisher *p)
{
    char bytes[REQUEST_BYTES];
    for (int i = 0; i < REQUESTS_PER_TURN; i++) {
        int n = zmq_recv(p->pub, bytes, sizeof bytes, ZMQ_DONTWAIT);
        if (n < 0)
            return;
        if (n > 0 && bytes[0] == 1) /* 0: it subscribes no more */
            atomic_store(&p->shared->subscribed, true);
    }
}

/* ---- replay ---- */

/* One message of a client: its identity, and what it sent. Frames point into bytes. */
typedef struct request {
    uint8_t bytes[REQUEST_FRAMES][REQUEST_BYTES];
    sl_replay_frame frames[REQUEST_FRAMES];
    size_t n;
} request;

/* False: there is none. q->n 0: it has too many or too long frames. */
static bool receive(sl_publisher *p, request *q)
{
    bool right = true;
    int more = 1;
    for (q->n = 0; more;) {
        size_t i = q->n < REQUEST_FRAMES ? q->n : REQUEST_FRAMES - 1, len = sizeof more;
        int n = zmq_recv(p->router, q->bytes[i], REQUEST_BYTES, ZMQ_DONTWAIT);
        if (n < 0)
            return false;
        right &= q->n < REQUEST_FRAMES && n <= REQUEST_BYTES;
        q->frames[i] = (sl_replay_frame){q->bytes[i], right ? (size_t)n : 0};
        q->n += q->n < REQUEST_FRAMES;
        if (zmq_getsockopt(p->router, ZMQ_RCVMORE, &more, &len) != 0)
            return false;
    }
    if (!right)
        q->n = 0;
    return true;
}

/* The frames of an answer before its payload. */
static bool send_envelope(sl_publisher *p, const request *q, bool delimiter, uint64_t sequence)
{
    uint8_t be[8];
    put_be(be, sequence);
    int flags = ZMQ_SNDMORE | ZMQ_DONTWAIT;
    return zmq_send(p->router, q->frames[0].data, q->frames[0].n, flags) >= 0 &&
           (!delimiter || zmq_send(p->router, "", 0, flags) >= 0) &&
           zmq_send(p->router, be, sizeof be, flags) >= 0;
}

static void answer(sl_publisher *p, const request *q)
{
    uint64_t from;
    bool delimiter, sent = true;
    if (q->n < 2 || !sl_replay_parse(q->frames + 1, q->n - 1, &from, &delimiter))
        return;
    for (size_t i = sl_replay_find(&p->replay, from); sent && i < p->replay.n; i++) {
        sl_events_batch *b = sl_replay_at(&p->replay, i);
        sent = send_envelope(p, q, delimiter, b->sequence) && send_payload(p->router, b);
        sl_counter_add(sent ? p->shared->replayed : p->shared->lost_replay, 1);
    }
    if (sent && send_envelope(p, q, delimiter, UINT64_MAX))
        zmq_send(p->router, "", 0, ZMQ_DONTWAIT);
}

static void take_requests(sl_publisher *p)
{
    request q;
    for (int i = 0; i < REQUESTS_PER_TURN && receive(p, &q); i++)
        answer(p, &q);
}

/* ---- the thread ---- */

static void *publisher_main(void *arg)
{
    sl_publisher *p = arg;
    zmq_pollitem_t items[] = {
        {.fd = sl_mailbox_fd(p->shared->inbox), .events = ZMQ_POLLIN},
        {.socket = p->pub, .events = ZMQ_POLLIN},
        {.socket = p->router, .events = ZMQ_POLLIN},
    };
    int n = p->router ? 3 : 2;
    for (;;) {
        if (zmq_poll(items, n, -1) < 0 && errno != EINTR)
            sl_log(SL_LOG_ERROR, "events", "poll", "reason=\"%s\"", zmq_strerror(errno));
        if (items[1].revents)
            take_subscriptions(p);
        if ((items[0].revents & ZMQ_POLLIN) && !take_inbox(p))
            return NULL;
        if (n == 3 && items[2].revents)
            take_requests(p);
    }
}

/* ---- open and close ---- */

static sl_status fail_zmq(sl_err *err, const char *option, const char *endpoint)
{
    int code = errno;
    sl_status st = code == EINVAL || code == EPROTONOSUPPORT || code == ENODEV ? SL_ERR_INVALID : SL_ERR_IO;
    return sl_fail(err, st, "%s \"%.200s\": %s", option, endpoint, zmq_strerror(code));
}

static bool set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

static sl_status open_socket(sl_publisher *p, int type, int hwm, const char *option, const char *endpoint,
                             void **out, sl_err *err)
{
    *out = zmq_socket(p->ctx, type);
    int64_t most = REQUEST_BYTES;
    bool v6 = strchr(endpoint, '[') != NULL;
    bool set = *out && set_int(*out, ZMQ_SNDHWM, hwm) && set_int(*out, ZMQ_LINGER, LINGER_MS) &&
               (!v6 || set_int(*out, ZMQ_IPV6, 1)) &&
               zmq_setsockopt(*out, ZMQ_MAXMSGSIZE, &most, sizeof most) == 0;
    set = set && (type == ZMQ_XPUB ? set_int(*out, ZMQ_XPUB_VERBOSE, 1) && set_int(*out, ZMQ_XPUB_NODROP, 1)
                                   : set_int(*out, ZMQ_ROUTER_MANDATORY, 1));
    if (!set || zmq_bind(*out, endpoint) != 0)
        return fail_zmq(err, option, endpoint);
    return SL_OK;
}

static sl_status open_parts(sl_publisher *p, const sl_events_opts *o, sl_err *err)
{
    bool replays = o->replay_endpoint && o->replay_endpoint[0];
    snprintf(p->topic, sizeof p->topic, "%s", o->topic);
    SL_TRY(sl_replay_open(&p->replay, replays ? o->buffer_steps : 0, o->buffer_bytes));
    p->ctx = zmq_ctx_new();
    if (!p->ctx)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    SL_TRY(open_socket(p, ZMQ_XPUB, o->hwm, "events.zmq.endpoint", o->endpoint, &p->pub, err));
    if (replays)
        SL_TRY(open_socket(p, ZMQ_ROUTER, (int)o->buffer_steps + REPLAY_SPARE, "events.zmq.replay_endpoint",
                           o->replay_endpoint, &p->router, err));
    if (pthread_create(&p->thread, NULL, publisher_main, p) != 0)
        return sl_fail(err, SL_ERR_IO, "cannot start the thread of the events");
    p->runs = true;
    sl_log(SL_LOG_INFO, "events", "listening", "topic=\"%s\" endpoint=%s replay=%s", p->topic, o->endpoint,
           replays ? o->replay_endpoint : "off");
    return SL_OK;
}

sl_status sl_publisher_open(const sl_events_opts *o, sl_events_shared *shared, sl_publisher **out,
                            sl_err *err)
{
    sl_publisher *p = calloc(1, sizeof *p);
    if (!p)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    p->shared = shared;
    sl_status st = open_parts(p, o, err);
    if (st != SL_OK) {
        sl_publisher_close(p);
        return st;
    }
    *out = p;
    return SL_OK;
}

void sl_publisher_close(sl_publisher *p)
{
    if (!p)
        return;
    if (p->runs) {
        sl_mailbox_post(p->shared->inbox, &p->shared->stop);
        pthread_join(p->thread, NULL);
    }
    sl_replay_close(&p->replay);
    if (p->pub)
        zmq_close(p->pub);
    if (p->router)
        zmq_close(p->router);
    if (p->ctx)
        zmq_ctx_term(p->ctx);
    free(p);
}
