/*
 * UCX transport, the life of a connection.
 *
 *   client: CONNECTING ──welcome──► OPEN        server: GREETING ──hello──► OPEN
 *   any:    break (UCX error, bad handshake, deadline) or close ──► teardown: WANTED → FENCING → GONE
 *
 * UCX does not report when a connection by socket address is established, so the client sends a greeting and the server
 * answers; the greeting also contains the protocol version. With a secret, the server answers the hello by a challenge,
 * the client answers the challenge by a proof, and the welcome contains the server's proof. The proofs cover the nonces
 * of both sides and the session of the door, so they show that the connection belongs to the process that was admitted
 * there. With rdmacm, which has no door, they are the only proof.
 *
 * Teardown force-closes the UCX endpoint, then calls progress of the UCX worker UX_FENCE_ROUNDS times (UCX destroys the
 * transport endpoints in its next progress), and waits until UCX has completed every operation. Only then `failed` or
 * `closed` is called. This wait has no timeout, because a buffer that UCX still reads, or a page that it may still
 * write, must not be reused. A flush close first completes all posted operations, flushes, and sends BYE. The receiver
 * of BYE breaks its side of the connection, which ends the side of the sender.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "transport/ucx/ucx_impl.h"

/* ---- bookkeeping ---- */

static size_t bucket(ucp_ep_h handle)
{
    return ((uintptr_t)handle >> 6) % UX_HASH;
}

ux_ep *ux_ep_find(ux_transport *tp, ucp_ep_h handle)
{
    for (ux_ep *ep = tp->by_handle[bucket(handle)]; ep; ep = ep->hash_next)
        if (ep->handle == handle)
            return ep;
    return NULL;
}

static void unhash(ux_ep *ep)
{
    if (!ep->handle)
        return;
    for (ux_ep **at = &ux_of(ep)->by_handle[bucket(ep->handle)]; *at; at = &(*at)->hash_next)
        if (*at == ep) {
            *at = ep->hash_next;
            break;
        }
    ep->handle = NULL;
}

void ux_ep_adopt(ux_ep *ep, ucp_ep_h handle)
{
    ux_ep **head = &ux_of(ep)->by_handle[bucket(handle)];
    ep->handle = handle;
    ep->hash_next = *head;
    *head = ep;
}

ux_ep *ux_ep_new(ux_transport *tp, ux_state state)
{
    ux_ep *ep = calloc(1, sizeof *ep);
    if (!ep)
        return NULL;
    ep->base.tp = &tp->base;
    ep->state = state;
    ux_stream_init(ep);
    ep->next = tp->eps;
    if (tp->eps)
        tp->eps->prev = ep;
    tp->eps = ep;
    tp->stats.endpoints++;
    return ep;
}

void ux_ep_free(ux_ep *ep)
{
    ux_transport *tp = ux_of(ep);
    ux_lookup_leave(ep);
    ux_door_leave(ep);
    unhash(ep);
    ux_held_drop(ep);
    sl_cipher_free(ep->seals);
    sl_cipher_free(ep->opens);
    *(ep->prev ? &ep->prev->next : &tp->eps) = ep->next;
    if (ep->next)
        ep->next->prev = ep->prev;
    tp->stats.endpoints--;
    free(ep);
}

void ux_attend(ux_ep *ep)
{
    ux_transport *tp = ux_of(ep);
    if (ep->in_attention)
        return;
    ep->in_attention = true;
    ep->attention_next = tp->attention;
    tp->attention = ep;
}

void ux_deadline(ux_transport *tp, uint64_t ns)
{
    if (!tp->next_deadline_ns || ns < tp->next_deadline_ns)
        tp->next_deadline_ns = ns;
}

void ux_ep_deadline(ux_ep *ep, uint32_t ms)
{
    ep->deadline_ns = sl_now_ns() + (uint64_t)ms * 1000000u;
    ux_deadline(ux_of(ep), ep->deadline_ns);
}

void ux_break(ux_ep *ep, sl_status st, const char *why)
{
    if (ep->broken || ep->teardown != UX_LIVE)
        return;
    ep->broken = true;
    ep->status = st;
    snprintf(ep->why, sizeof ep->why, "%s", why);
    ux_attend(ep);
}

/* ---- greeting ---- */

static void prove(const ux_ep *ep, const char *label, uint8_t out[SL_PROOF_BYTES])
{
    sl_proof_make(ux_of(ep)->opts.secret, label, &ep->session, sizeof ep->session, out);
}

sl_status ux_send_greeting(ux_ep *ep, uint16_t id)
{
    ux_hello m = {.magic = {'S', 'L', 'T', 'P'}, .protocol = UX_PROTOCOL, .encrypt = ux_of(ep)->opts.encrypt};
    uint8_t *nonce = id == UX_ID_HELLO       ? ep->session.client
                     : id == UX_ID_CHALLENGE ? ep->session.server
                                             : NULL;
    if (nonce) {
        sl_proof_nonce(nonce);
        memcpy(m.nonce, nonce, sizeof m.nonce);
    } else if (ux_has_secret(ux_of(ep))) {
        prove(ep, id == UX_ID_PROOF ? UX_PROOF_CLIENT : UX_PROOF_SERVER, m.proof);
    }
    return ux_send_control(ep, id, &m, sizeof m);
}

static sl_cipher *new_cipher(const ux_ep *ep, const char *label, bool seal)
{
    uint8_t key[SL_CIPHER_KEY];
    _Static_assert(sizeof key == SL_PROOF_BYTES, "a proof is a key");
    prove(ep, label, key);
    return sl_cipher_new(key, seal);
}

/* Each direction has a key of its own, made from the secret, the session of the door and the nonces of both sides. */
static bool make_ciphers(ux_ep *ep, bool server)
{
    ep->seals = new_cipher(ep, server ? UX_KEY_SERVER : UX_KEY_CLIENT, true);
    ep->opens = new_cipher(ep, server ? UX_KEY_CLIENT : UX_KEY_SERVER, false);
    return ep->seals && ep->opens;
}

static void opened(ux_ep *ep)
{
    const sl_tp_events *on = &ux_of(ep)->opts.events;
    bool server = ep->state == UX_GREETING;
    if (ux_of(ep)->opts.encrypt && !make_ciphers(ep, server)) {
        ux_break(ep, SL_ERR_NO_MEMORY, "no memory for the keys of the connection");
        return;
    }
    ep->state = UX_OPEN;
    ep->stream.used = ux_stream_wanted(ep);
    ep->deadline_ns = 0;
    if (server && ux_send_greeting(ep, UX_ID_WELCOME) != SL_OK)
        ux_break(ep, SL_ERR_PEER, "cannot answer the greeting");
    if (server)
        on->accepted(on->arg, &ep->base, ep->peer_address);
    else if (on->connected && !ep->close_requested)
        on->connected(on->arg, &ep->base, SL_OK, "");
}

static bool proved(const ux_ep *ep, const char *label, const ux_hello *m)
{
    uint8_t right[SL_PROOF_BYTES];
    prove(ep, label, right);
    return ep->challenged && sl_proof_equal(right, m->proof);
}

/* Handles a message of the handshake at the server; false: it is not expected in this state, or wrong. */
static bool server_hears(ux_ep *ep, uint16_t id, const ux_hello *m)
{
    bool secret = ux_has_secret(ux_of(ep));
    if (id == UX_ID_HELLO && !ep->challenged && secret) {
        memcpy(ep->session.client, m->nonce, sizeof ep->session.client);
        ep->challenged = true;
        if (ux_send_greeting(ep, UX_ID_CHALLENGE) != SL_OK)
            ux_break(ep, SL_ERR_PEER, "cannot answer the greeting");
        return true;
    }
    if (secret ? id != UX_ID_PROOF || !proved(ep, UX_PROOF_CLIENT, m) : id != UX_ID_HELLO)
        return false;
    opened(ep);
    return true;
}

/* Handles a message of the handshake at the client; false: it is not expected in this state, or wrong. */
static bool client_hears(ux_ep *ep, uint16_t id, const ux_hello *m)
{
    bool secret = ux_has_secret(ux_of(ep));
    if (id == UX_ID_CHALLENGE && !ep->challenged && secret) {
        memcpy(ep->session.server, m->nonce, sizeof ep->session.server);
        ep->challenged = true;
        if (ux_send_greeting(ep, UX_ID_PROOF) != SL_OK)
            ux_break(ep, SL_ERR_REFUSED, "cannot answer the challenge");
        return true;
    }
    if (id != UX_ID_WELCOME || (secret && !proved(ep, UX_PROOF_SERVER, m)))
        return false;
    opened(ep);
    return true;
}

void ux_control_received(ux_ep *ep, uint16_t id, const void *header, size_t header_bytes)
{
    ux_hello m = {.protocol = 0};
    if (id == UX_ID_BYE && ep->state == UX_OPEN) {
        ux_break(ep, SL_ERR_PEER, "closed by the peer");
        return;
    }
    if (header_bytes == sizeof m)
        memcpy(&m, header, sizeof m);
    bool same = memcmp(m.magic, "SLTP", sizeof m.magic) == 0 && m.protocol == UX_PROTOCOL;
    /* A server that disagrees answers the hello all the same, because its challenge tells the client the reason. */
    bool asked = id == UX_ID_HELLO && ux_has_secret(ux_of(ep));
    bool agreed = same && (asked || m.encrypt == ux_of(ep)->opts.encrypt);
    if (agreed && ep->state == UX_GREETING && server_hears(ep, id, &m))
        return;
    if (agreed && ep->state == UX_CONNECTING && client_hears(ep, id, &m))
        return;
    ux_of(ep)->stats.messages_refused++;
    ux_break(ep, ep->state == UX_CONNECTING ? SL_ERR_REFUSED : SL_ERR_PEER,
             !same     ? "the peer speaks another protocol version"
             : !agreed ? "cluster.encrypt differs between the two sides"
                       : "unexpected handshake message, or a wrong proof of the cluster's secret");
}

/* ---- closing ---- */

void ux_close(sl_tp_ep *base, sl_tp_close_mode mode)
{
    ux_ep *ep = (ux_ep *)base;
    if (ep->close_requested && (mode == SL_TP_CLOSE_FLUSH || ep->close_mode == SL_TP_CLOSE_FORCE))
        return;
    ep->close_requested = true;
    ep->close_mode = mode;
    ux_attend(ep);
}

static void bye_flushed(void *cookie, sl_status st)
{
    ux_ep *ep = cookie;
    if (st == SL_OK && (ep->teardown != UX_LIVE || ep->broken))
        return;
    if (st != SL_OK || ux_send_control(ep, UX_ID_BYE, NULL, 0) != SL_OK)
        ux_break(ep, SL_ERR_PEER, "cannot send BYE");
}

static sl_status post_bye_flush(ux_ep *ep)
{
    sl_tp_op *op;
    ucp_request_param_t param;
    SL_TRY(ux_op_begin(ep, SL_TP_OP_CONTROL, 0, bye_flushed, ep, &op, &param));
    return ep->stream.used ? ux_stream_flush(ep, op)
                           : ux_op_posted(ep, op, ucp_ep_flush_nbx(ep->handle, &param));
}

/*
 * The next step of a flush close when nothing is pending: flush, then BYE. The peer's close or the deadline
 * ends it.
 */
static void start_bye(ux_ep *ep)
{
    ep->bye_started = true;
    ux_ep_deadline(ep, ux_of(ep)->opts.connect_timeout_ms);
    if (post_bye_flush(ep) != SL_OK)
        ux_break(ep, SL_ERR_PEER, "cannot flush");
}

static void on_closed(void *request, ucs_status_t st, void *arg)
{
    ux_ep *ep = arg;
    (void)st;
    ucp_request_free(request);
    ep->close_pending = false;
    ux_attend(ep);
}

static void start_teardown(ux_ep *ep)
{
    const ucp_request_param_t force = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_closed,
        .user_data = ep,
    };
    ucp_ep_h handle = ep->handle;
    ep->teardown = UX_FENCING;
    ep->fence_left = UX_FENCE_ROUNDS;
    ep->deadline_ns = 0;
    ux_lookup_leave(ep);
    ux_door_leave(ep);
    unhash(ep);
    ux_held_drop(ep);
    ux_stream_abort(ep);
    ucs_status_ptr_t request = handle ? ucp_ep_close_nbx(handle, &force) : NULL;
    ep->close_pending = UCS_PTR_IS_PTR(request);
    if (UCS_PTR_IS_ERR(request))
        sl_log(SL_LOG_WARN, "ucx", "close", "peer=%s cause=\"%s\"", ep->peer_address,
               ucs_status_string(UCS_PTR_STATUS(request)));
}

/* Calls the owner's callback for the end of the connection; ep may be freed afterwards. */
static void finish(ux_ep *ep)
{
    ux_transport *tp = ux_of(ep);
    const sl_tp_events *on = &tp->opts.events;
    if (ep->close_requested) {
        if (on->closed)
            on->closed(on->arg, &ep->base);
        ux_ep_free(ep);
        return;
    }
    if (ep->state == UX_GREETING) { /* the owner does not know this endpoint yet */
        ux_ep_free(ep);
        return;
    }
    if (ep->told)
        return;
    ep->told = true;
    tp->stats.failed_endpoints++;
    if (ep->state == UX_CONNECTING && on->connected)
        on->connected(on->arg, &ep->base, ep->status, ep->why);
    else if (ep->state == UX_OPEN && on->failed)
        on->failed(on->arg, &ep->base, ep->status, ep->why);
}

static void service_one(ux_ep *ep)
{
    if (ep->teardown == UX_LIVE) {
        bool flush = ep->close_mode == SL_TP_CLOSE_FLUSH && ep->state == UX_OPEN && !ep->broken;
        if (ep->broken || (ep->close_requested && !flush))
            ep->teardown = UX_WANTED;
        else if (ep->close_requested && !ep->bye_started && ep->inflight == 0)
            start_bye(ep);
        if (ep->teardown == UX_LIVE)
            ux_stream_pump(ep);
    }
    if (ep->teardown == UX_WANTED)
        start_teardown(ep);
    if (ep->teardown == UX_FENCING) {
        if (ep->fence_left > 0 && --ep->fence_left > 0)
            ux_attend(ep); /* checked again after the next progress of the worker */
        else if (!ep->close_pending && ep->inflight == 0)
            ep->teardown = UX_GONE;
    }
    if (ep->teardown == UX_GONE)
        finish(ep);
}

int ux_service(ux_transport *tp)
{
    int n = 0;
    ux_ep *list = tp->attention;
    tp->attention = NULL;
    while (list) {
        ux_ep *ep = list;
        list = ep->attention_next;
        ep->in_attention = false;
        service_one(ep);
        n++;
    }
    return n;
}

int ux_run_deadlines(ux_transport *tp, uint64_t now)
{
    int n = 0;
    if (now < tp->next_deadline_ns)
        return 0;
    tp->next_deadline_ns = 0;
    for (ux_ep *ep = tp->eps; ep; ep = ep->next) {
        if (!ep->deadline_ns)
            continue;
        if (ep->deadline_ns > now) {
            ux_deadline(tp, ep->deadline_ns);
            continue;
        }
        ep->deadline_ns = 0;
        ux_break(ep, ep->state == UX_OPEN ? SL_ERR_PEER : SL_ERR_TIMEOUT, "no answer in time");
        n++;
    }
    ux_door_deadlines(tp, now);
    return n;
}

int ux_run_finished(ux_transport *tp)
{
    int n = 0;
    sl_tp_op_queue todo = tp->finished;
    if (!todo.head)
        return 0;
    sl_tp_op_queue_init(&tp->finished);
    for (sl_tp_op *op; (op = sl_tp_op_queue_pop(&todo)); n++) {
        ux_ep *ep = (ux_ep *)op->ep;
        sl_tp_done_fn *done = op->done;
        void *cookie = op->cookie;
        if (op->status != SL_OK)
            op->status = ep->broken ? SL_ERR_PEER : ep->close_requested ? SL_ERR_CANCELLED : op->status;
        sl_status st = op->status;
        sl_tp_stats_done(&tp->stats, op);
        tp->stats.pending--;
        sl_tp_op_put(&tp->pool, op);
        if (done)
            done(cookie, st);
        if (--ep->inflight == 0 && (ep->broken || ep->close_requested))
            ux_attend(ep);
    }
    return n;
}

/* Writes the "transport/device" pairs of the lanes that UCX chose. */
void ux_ep_query(const sl_tp_ep *base, char *text, size_t cap)
{
    const ux_ep *ep = (const ux_ep *)base;
    char *info = NULL, word[96], list[160] = "";
    size_t n = 0;
    FILE *f = ep->handle ? open_memstream(&info, &n) : NULL;
    if (f) {
        ucp_ep_print_info(ep->handle, f);
        fclose(f);
    }
    for (const char *at = info; at && (at = strstr(at, " lane[")); at++) {
        if (sscanf(at, " lane[%*d]: %*d:%95[^. \n]", word) != 1 || strstr(list, word))
            continue;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", used ? "," : "", word);
    }
    free(info);
    snprintf(text, cap, "peer=%s tls=%s", ep->peer_address, *list ? list : "none");
}
