/*
 * UCX transport, how connections begin.
 *
 * UCX connects by socket address: its listener, its connection manager, then the data connections. Where the
 * connection manager is TCP, callers must first be admitted at the door (door.c), and UCX listens on a
 * separate port that only admitted callers can reach. Where it is rdmacm alone, UCX's listener is the
 * address: it is not a TCP port, and everything that reaches it has passed through the RDMA stack.
 *
 * A host name is looked up first, on another thread (transport/lookup.h); numeric addresses are used at once.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "transport/ucx/ucx_impl.h"

static void on_error(void *arg, ucp_ep_h handle, ucs_status_t ucs)
{
    ux_ep *ep = arg;
    (void)handle;
    sl_status st = SL_ERR_PEER;
    if (ep->state == UX_CONNECTING)
        st = ucs == UCS_ERR_TIMED_OUT ? SL_ERR_TIMEOUT : SL_ERR_REFUSED;
    ux_break(ep, st, ucs_status_string(ucs));
}

static ucs_status_t create_ep(ux_ep *ep, ucp_ep_params_t *params)
{
    ucp_ep_h handle;
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler = (ucp_err_handler_t){.cb = on_error, .arg = ep};
    ucs_status_t st = ucp_ep_create(ux_of(ep)->worker, params, &handle);
    if (st == UCS_OK)
        ux_ep_adopt(ep, handle);
    return st;
}

static socklen_t length_of(const struct sockaddr_storage *sa)
{
    return sa->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

void ux_connect_ucx(ux_ep *ep, const struct sockaddr_storage *to, const struct sockaddr_storage *from)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = (const struct sockaddr *)to, .addrlen = length_of(to)},
    };
    if (from) {
        params.field_mask |= UCP_EP_PARAM_FIELD_LOCAL_SOCK_ADDR;
        params.local_sockaddr =
            (ucs_sock_addr_t){.addr = (const struct sockaddr *)from, .addrlen = length_of(from)};
    }
    ucs_status_t ucs = create_ep(ep, &params);
    if (ucs != UCS_OK)
        ux_break(ep, SL_ERR_REFUSED, ucs_status_string(ucs));
    else if (ux_send_greeting(ep, UX_ID_HELLO) != SL_OK)
        ux_break(ep, SL_ERR_REFUSED, "cannot send the greeting");
}

static void connect_to(ux_ep *ep, const struct sockaddr_storage *sa, socklen_t len)
{
    if (ux_of(ep)->door.used)
        ux_door_knock(ep, sa, len);
    else
        ux_connect_ucx(ep, sa, NULL);
}

/* ---- names ---- */

static void look_up(ux_ep *ep, const char *host, uint16_t port)
{
    ux_transport *tp = ux_of(ep);
    sl_err err = {0};
    sl_status st = sl_lookup_start(host, port, &ep->lookup, &err);
    if (st != SL_OK) {
        ux_break(ep, st, err.text);
        return;
    }
    tp->lookups++;
    st = sl_tp_waker_add(&tp->waker, sl_lookup_fd(ep->lookup), &err);
    if (st != SL_OK)
        ux_break(ep, st, err.text);
}

void ux_lookup_leave(ux_ep *ep)
{
    ux_transport *tp = ux_of(ep);
    if (!ep->lookup)
        return;
    sl_tp_waker_remove(&tp->waker, sl_lookup_fd(ep->lookup));
    sl_lookup_release(ep->lookup);
    ep->lookup = NULL;
    tp->lookups--;
}

int ux_lookups_progress(ux_transport *tp)
{
    int n = 0;
    for (ux_ep *ep = tp->lookups ? tp->eps : NULL; ep; ep = ep->next) {
        sl_status st;
        sl_err err;
        struct sockaddr_storage sa;
        socklen_t len;
        if (!ep->lookup || !sl_lookup_done(ep->lookup, &st, &sa, &len, &err))
            continue;
        n++;
        ux_lookup_leave(ep);
        if (ep->broken || ep->close_requested)
            continue; /* its teardown follows */
        if (st == SL_OK)
            connect_to(ep, &sa, len);
        else
            ux_break(ep, st, err.text);
    }
    return n;
}

sl_status ux_connect(sl_transport *base, const char *address, sl_tp_ep **out, sl_err *err)
{
    ux_transport *tp = (ux_transport *)base;
    char host[SL_TP_ADDRESS_MAX];
    uint16_t port;
    struct sockaddr_storage sa;
    socklen_t len;
    SL_TRY(sl_tp_address_parse(address, host, sizeof host, &port, err));
    ux_ep *ep = ux_ep_new(tp, UX_CONNECTING);
    if (!ep)
        return SL_ERR_NO_MEMORY;
    snprintf(ep->peer_address, sizeof ep->peer_address, "%s", address);
    ux_ep_deadline(ep, tp->opts.connect_timeout_ms);
    if (sl_tp_resolve_numeric(host, port, &sa, &len))
        connect_to(ep, &sa, len);
    else
        look_up(ep, host, port);
    *out = &ep->base;
    return SL_OK;
}

static void on_connection(ucp_conn_request_h request, void *arg)
{
    ux_transport *tp = arg;
    ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    bool known = ucp_conn_request_query(request, &attr) == UCS_OK;
    uint8_t session[SL_PROOF_BYTES] = {0};
    if (known && tp->door.used)
        ux_door_arrived(tp, &attr.client_address, session);
    ux_ep *ep = tp->destroying || !tp->opts.events.accepted ? NULL : ux_ep_new(tp, UX_GREETING);
    if (!ep) {
        tp->stats.refused_connects++;
        ucp_listener_reject(tp->listener, request);
        return;
    }
    memcpy(ep->session.door, session, sizeof session);
    if (known)
        sl_tp_address_text(&attr.client_address, ep->peer_address, sizeof ep->peer_address);
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = request};
    ucs_status_t ucs = create_ep(ep, &params);
    if (ucs != UCS_OK) {
        sl_log(SL_LOG_WARN, "ucx", "accept_failed", "peer=%s cause=\"%s\"", ep->peer_address,
               ucs_status_string(ucs));
        ux_break(ep, SL_ERR_PEER, ucs_status_string(ucs));
        return;
    }
    ux_ep_deadline(ep, tp->opts.connect_timeout_ms);
}

/* Opens UCX's listener on sa, and writes the port that it got into sa. */
static sl_status listen_ucx(ux_transport *tp, struct sockaddr_storage *sa, socklen_t len, sl_err *err)
{
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = (const struct sockaddr *)sa, .addrlen = len},
        .conn_handler = {.cb = on_connection, .arg = tp},
    };
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    char text[SL_TP_ADDRESS_MAX];
    sl_tp_address_text(sa, text, sizeof text);
    ucs_status_t ucs = ucp_listener_create(tp->worker, &params, &tp->listener);
    if (ucs != UCS_OK) {
        tp->listener = NULL;
        return sl_fail(err, SL_ERR_IO, "cannot listen on %s: %s", text, ucs_status_string(ucs));
    }
    ucs = ucp_listener_query(tp->listener, &attr);
    if (ucs != UCS_OK) {
        ucp_listener_destroy(tp->listener);
        tp->listener = NULL;
        return sl_fail(err, SL_ERR_IO, "ucp_listener_query: %s", ucs_status_string(ucs));
    }
    *sa = attr.sockaddr;
    return SL_OK;
}

/* Opens the door on sa, and UCX's listener on another port of the same address, which the gate protects. */
static sl_status listen_with_door(ux_transport *tp, struct sockaddr_storage *sa, socklen_t len, sl_err *err)
{
    struct sockaddr_storage inner = *sa;
    ux_gate_ports before;
    ux_gate_snapshot(&before);
    ux_set_port(&inner, 0);
    SL_TRY(listen_ucx(tp, &inner, len, err));
    sl_status st = ux_door_open(tp, sa, len, &before, ux_port(&inner), err);
    if (st != SL_OK) {
        ucp_listener_destroy(tp->listener);
        tp->listener = NULL;
    }
    return st;
}

sl_status ux_listen(sl_transport *base, const char *host, uint16_t port, char *address, size_t cap,
                    sl_err *err)
{
    ux_transport *tp = (ux_transport *)base;
    struct sockaddr_storage sa;
    socklen_t len;
    if (tp->listener)
        return sl_fail(err, SL_ERR_INVALID, "already listening on %s", tp->address);
    SL_TRY(sl_tp_resolve(host ? host : "", port, true, &sa, &len, err));
    SL_TRY(tp->door.used ? listen_with_door(tp, &sa, len, err) : listen_ucx(tp, &sa, len, err));
    sl_tp_address_concrete(&sa);
    sl_tp_address_text(&sa, tp->address, sizeof tp->address);
    snprintf(address, cap, "%s", tp->address);
    return SL_OK;
}
