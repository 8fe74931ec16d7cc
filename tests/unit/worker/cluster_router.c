/* The small router of the test cluster: places, retries, relays and keeps every token. */
#include "tests/unit/worker/cluster.h"

#include <poll.h>
#include <stdio.h>

static const uint64_t MS = 1000000;

static cworker *by_id(cluster *c, uint32_t id)
{
    for (int i = 0; i < c->n; i++) {
        if (id && c->w[i].id == id)
            return &c->w[i];
    }
    return NULL;
}

void cluster_send(cworker *w, const sl_msg *m)
{
    if (!w || !w->ep || w->down)
        return;
    sl_wr wr;
    sl_wr_init(&wr);
    sl_msg_encode(m, &wr);
    sl_tp_send_owned(w->ep, (uint16_t)m->type, wr.data, wr.len);
}

static void send_id(cworker *w, sl_msg_type type, const creq *r)
{
    sl_msg m = {.type = type};
    m.id = (sl_msg_id){r->rid, r->attempt};
    cluster_send(w, &m);
}

static void send_abort(cworker *w, const creq *r, sl_status why)
{
    sl_msg m = {.type = SL_MSG_ABORT};
    m.abort = (sl_msg_abort){r->rid, r->attempt, why};
    cluster_send(w, &m);
}

static void leave(cluster *c, creq *r, sl_status why, bool tell_prefill, bool tell_decode)
{
    cworker *p = by_id(c, (uint32_t)r->use_prefill), *d = by_id(c, (uint32_t)r->use_decode);
    bool writes = r->prefill_sent && !r->prefilled;
    if (d && tell_decode)
        send_abort(d, r, why);
    if (p && writes && tell_prefill)
        send_abort(p, r, why);
    else if (d && tell_decode && (p || !writes))
        send_id(d, SL_MSG_DRAINED, r);
    r->prefill_sent = r->prefilled = false;
}

static void again(cluster *c, creq *r, sl_status st, const char *why, bool tell_p, bool tell_d)
{
    leave(c, r, SL_ERR_PEER, tell_p, tell_d);
    r->status = st;
    snprintf(r->reason, sizeof r->reason, "%s", why);
    r->state = ++r->attempts >= r->max_attempts ? REQ_FAILED : REQ_NEW;
    r->retry_ns = sl_now_ns() + 5 * MS;
}

static void place(cluster *c, creq *r)
{
    cworker *p = NULL, *d = NULL;
    for (int k = 0; k < c->n; k++) {
        cworker *w = &c->w[(k + (int)r->attempt) % c->n];
        if (!w->id || w->down || (w->load.draining && !c->keeps))
            continue;
        if (w->role == SL_ROLE_PREFILL && (r->prefill < 0 || r->prefill == w->index) && !p)
            p = w;
        if (w->role == SL_ROLE_DECODE && (r->decode < 0 || r->decode == w->index) && !d)
            d = w;
    }
    if (!p || !d)
        return;
    r->attempt++;
    r->use_prefill = (int)p->id;
    r->use_decode = (int)d->id;
    r->state = REQ_RESERVING;
    r->prefill_sent = r->prefilled = false;
    sl_wr wr;
    sl_wr_init(&wr);
    sl_sampling_write(&wr, &r->sampling);
    sl_msg m = {.type = SL_MSG_RESERVE};
    m.reserve = (sl_msg_reserve){.rid = r->rid,
                                 .attempt = r->attempt,
                                 .prefill_worker = p->id,
                                 .n_prompt = (uint32_t)r->n_prompt,
                                 .tokens = r->tokens,
                                 .n_tokens = r->n_tokens,
                                 .deadline_ms = c->o.times.deadline_ms,
                                 .sampling = {wr.data, wr.len},
                                 .seed = r->seed};
    const cworker *from = r->source >= 0 ? cluster_worker(c, SL_ROLE_DECODE, r->source) : NULL;
    if (from && from != d && from->id && r->source_pages) {
        m.reserve.source = (sl_msg_source){.worker = from->id,
                                           .epoch = from->epoch + r->source_epoch_off,
                                           .pages = (uint32_t)r->source_pages};
        memcpy(m.reserve.source.addr, from->listen, sizeof m.reserve.source.addr);
    }
    cluster_send(d, &m);
    sl_wr_free(&wr);
}

static creq *find_req(cluster *c, uint64_t rid, uint32_t attempt)
{
    for (int i = 0; i < c->n_req; i++) {
        if (c->req[i].rid == rid && c->req[i].attempt == attempt)
            return &c->req[i];
    }
    return NULL;
}

static void on_reserved(cluster *c, creq *r, const sl_msg_reserved *m)
{
    cworker *p = by_id(c, (uint32_t)r->use_prefill), *d = by_id(c, (uint32_t)r->use_decode);
    if (!p || !d) {
        again(c, r, SL_ERR_PEER, "prefill is gone", true, true);
        return;
    }
    sl_wr wr;
    sl_wr_init(&wr);
    sl_sampling_write(&wr, &r->sampling);
    r->state = REQ_PREFILLING;
    r->prefill_sent = true;
    r->matched_pages = m->matched_pages;
    sl_msg o = {.type = SL_MSG_PREFILL};
    o.prefill = (sl_msg_prefill){.rid = r->rid,
                                 .attempt = r->attempt,
                                 .ticket = m->ticket,
                                 .decode_worker = d->id,
                                 .decode_epoch = d->epoch,
                                 .n_prompt = (uint32_t)r->n_prompt,
                                 .tokens = r->tokens,
                                 .n_tokens = r->n_tokens,
                                 .matched_pages = m->matched_pages,
                                 .pages = m->pages,
                                 .n_pages = m->n_pages,
                                 .deadline_ms = c->o.times.deadline_ms,
                                 .sampling = {wr.data, wr.len},
                                 .seed = r->seed};
    memcpy(o.prefill.decode_addr, d->listen, sizeof o.prefill.decode_addr);
    cluster_send(p, &o);
    sl_wr_free(&wr);
}

static void on_tokens(cluster *c, creq *r, const sl_msg_tokens *m)
{
    ck_assert_uint_eq(m->first_index, r->n_tokens - r->n_prompt);
    for (size_t i = 0; i < m->n_tokens; i++) {
        bool again = r->n_tokens < r->n_sent;
        if (again && r->tokens[r->n_tokens] != m->tokens[i].id) {
            leave(c, r, SL_ERR_CANCELLED, true, true);
            r->status = SL_ERR_DATA_LOSS;
            r->state = REQ_FAILED;
            return;
        }
        r->repeated += again;
        r->tokens[r->n_tokens++] = m->tokens[i].id;
    }
    c->tokens_seen += m->n_tokens;
    r->last = m->tokens[m->n_tokens - 1];
    r->state = REQ_DECODING;
}

static void on_failed_msg(cluster *c, creq *r, const cworker *w, const sl_msg_failed *m)
{
    bool decode = w->role == SL_ROLE_DECODE;
    if (m->status == SL_ERR_EXHAUSTED && m->retryable && decode && r->state == REQ_RESERVING) {
        r->exhausted++;
        r->state = REQ_NEW;
        r->retry_ns = sl_now_ns() + 10 * MS;
        return;
    }
    if (m->retryable) {
        again(c, r, (sl_status)m->status, m->reason, decode, !decode);
        return;
    }
    leave(c, r, SL_ERR_CANCELLED, decode, !decode);
    r->status = (sl_status)m->status;
    snprintf(r->reason, sizeof r->reason, "%s", m->reason);
    r->state = REQ_FAILED;
}

static void on_request_msg(cluster *c, cworker *w, const sl_msg *m)
{
    /* all of them begin with rid and attempt */
    creq *r = find_req(c, m->id.rid, m->id.attempt);
    if (!r)
        return;
    if (m->type == SL_MSG_DRAINED) {
        bool decode = w->role == SL_ROLE_DECODE;
        if (decode)
            r->got_drained_d = true;
        else
            r->got_drained_p = true;
    }
    bool placed = r->state == REQ_RESERVING || r->state == REQ_PREFILLING || r->state == REQ_DECODING;
    if (!placed)
        return;
    switch (m->type) {
    case SL_MSG_RESERVED:
        on_reserved(c, r, &m->reserved);
        break;
    case SL_MSG_PREFILLED:
        r->prefilled = true;
        break;
    case SL_MSG_TOKENS:
        on_tokens(c, r, &m->tokens);
        break;
    case SL_MSG_DONE:
        ck_assert_uint_eq(m->done.produced, r->n_tokens - r->n_prompt);
        r->cached_tokens = m->done.cached_tokens;
        r->finish = m->done.finish;
        r->matched_stop = m->done.matched_stop;
        r->state = REQ_DONE;
        break;
    case SL_MSG_RETRACTED:
        r->retractions++;
        if (m->retracted.damaged && r->n_prompt + m->retracted.safe < r->n_tokens) {
            r->n_sent = r->n_sent > r->n_tokens ? r->n_sent : r->n_tokens;
            r->n_tokens = r->n_prompt + m->retracted.safe;
        }
        r->state = REQ_NEW;
        r->retry_ns = sl_now_ns() + 5 * MS;
        r->prefill_sent = r->prefilled = false;
        break;
    case SL_MSG_FAILED:
        on_failed_msg(c, r, w, &m->failed);
        break;
    default:
        break;
    }
}

/* The attempt that a late DRAINED belongs to may be over: relay to every decode worker but the sender. */
static void relay_drained(cluster *c, cworker *w, const sl_msg *m)
{
    for (int i = 0; i < c->n && w->role == SL_ROLE_PREFILL; i++) {
        if (c->w[i].role == SL_ROLE_DECODE)
            cluster_send(&c->w[i], m);
    }
}

static void on_hello(cluster *c, cworker *w, sl_tp_ep *ep, const sl_msg_hello *h)
{
    w->ep = ep;
    w->down = false;
    w->id = ++c->next_id;
    w->epoch = h->epoch;
    memcpy(w->listen, h->listen, sizeof w->listen);
    ep->user = w;
    sl_msg m = {.type = SL_MSG_WELCOME};
    m.welcome = (sl_msg_welcome){w->id, 1, 50, c->o.times.dead_after_ms ? c->o.times.dead_after_ms : 3000};
    cluster_send(w, &m);
}

static void on_worker_msg(cluster *c, cworker *w, const sl_msg *m)
{
    switch (m->type) {
    case SL_MSG_LOAD:
        w->load = m->load;
        if (w->load.draining && !c->keeps)
            cluster_send(w, &(sl_msg){.type = SL_MSG_LEAVE});
        break;
    case SL_MSG_DRAIN: /* LOAD says so, too */
        break;
    case SL_MSG_PING: {
        sl_msg pong = *m;
        pong.type = SL_MSG_PONG;
        if (!c->silent)
            cluster_send(w, &pong);
        break;
    }
    case SL_MSG_KV_EVENTS:
        w->kv_events++;
        w->kv_stored += m->kv_events.stored.len / 32;
        w->kv_removed += m->kv_events.removed.len / 16;
        break;
    case SL_MSG_DRAINED:
        relay_drained(c, w, m);
        on_request_msg(c, w, m);
        break;
    case SL_MSG_PONG:
        break;
    default:
        on_request_msg(c, w, m);
        break;
    }
}

static void take(cluster *c, sl_tp_ep *ep, const void *data, size_t n)
{
    sl_msg m;
    sl_err err = {0};
    ck_assert_msg(sl_msg_decode(data, n, &m, &err) == SL_OK, "%s", err.text);
    cworker *w = ep->user;
    if (m.type == SL_MSG_HELLO) {
        for (int i = 0; i < c->n && !w; i++)
            w = strcmp(c->w[i].name, m.hello.name) == 0 ? &c->w[i] : NULL;
        ck_assert_ptr_nonnull(w);
        c->greeting = ep;
        if (!c->on_msg || !c->on_msg(c, w, &m))
            on_hello(c, w, ep, &m.hello);
    } else if (w && !w->down && (!c->on_msg || !c->on_msg(c, w, &m))) {
        on_worker_msg(c, w, &m);
    }
    sl_msg_free(&m);
}

static void on_message(void *arg, sl_tp_ep *ep, uint16_t id, const void *h, size_t hn, const void *data,
                       size_t n)
{
    sl_rd r;
    const uint8_t *msg;
    size_t len;
    (void)h;
    (void)hn;
    if (id != SL_MSG_BATCH) {
        ck_assert_int_eq(id, *(const uint8_t *)data);
        take(arg, ep, data, n);
        return;
    }
    ck_assert_int_eq(sl_msg_batch_open(data, n, &r, NULL, NULL), SL_OK);
    while (sl_msg_batch_next(&r, &msg, &len))
        take(arg, ep, msg, len);
    ck_assert_int_eq(sl_rd_done(&r), SL_OK);
}

static void on_accepted(void *arg, sl_tp_ep *ep, const char *peer)
{
    (void)arg;
    (void)ep;
    (void)peer;
}

/* Every request on a dead worker is started again. */
void cluster_worker_lost(cluster *c, cworker *w)
{
    uint32_t id = w->id;
    w->id = 0;
    w->down = true;
    for (int i = 0; i < c->n_req; i++) {
        creq *r = &c->req[i];
        bool placed = r->state == REQ_RESERVING || r->state == REQ_PREFILLING || r->state == REQ_DECODING;
        bool mine = (uint32_t)r->use_decode == id || ((uint32_t)r->use_prefill == id && !r->prefilled);
        if (placed && mine)
            again(c, r, SL_ERR_PEER, "worker lost", true, true);
    }
}

static void on_failed(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    (void)st;
    (void)why;
    cworker *w = ep->user;
    if (w && w->ep == ep)
        cluster_worker_lost(arg, w);
    sl_tp_close(ep, SL_TP_CLOSE_FORCE);
}

static void on_closed(void *arg, sl_tp_ep *ep)
{
    (void)arg;
    cworker *w = ep->user;
    if (w && w->ep == ep)
        w->ep = NULL;
}

void cluster_router_open(cluster *c)
{
    sl_err err = {0};
    sl_tp_options t = sl_tp_options_default();
    t.events = (sl_tp_events){.arg = c, .accepted = on_accepted, .failed = on_failed, .closed = on_closed};
    t.fabric = c->fabric;
    ck_assert_msg(sl_transport_create(c->o.transport ? c->o.transport : "loopback", &t, &c->tp, &err) ==
                      SL_OK,
                  "%s", err.text);
    for (uint16_t id = 0; id < SL_TP_AM_IDS; id++)
        sl_tp_handle(c->tp, id, on_message, c);
    char host[SL_TP_ADDRESS_MAX];
    uint16_t port = 0;
    if (c->address[0])
        ck_assert_int_eq(sl_tp_address_parse(c->address, host, sizeof host, &port, &err), SL_OK);
    ck_assert_int_eq(
        sl_tp_listen(c->tp, c->o.transport ? "127.0.0.1" : NULL, port, c->address, sizeof c->address, &err),
        SL_OK);
}

void cluster_router_kill(cluster *c)
{
    sl_loopback_kill(c->tp);
    sl_tp_destroy(c->tp);
    c->tp = NULL;
    for (int i = 0; i < c->n; i++) {
        c->w[i].ep = NULL;
        c->w[i].id = 0;
        memset(&c->w[i].load, 0, sizeof c->w[i].load);
    }
    for (int i = 0; i < c->n_req; i++) {
        sl_sampling_free(&c->req[i].sampling);
        free(c->req[i].tokens);
    }
    c->n_req = 0;
    c->next_id = 0;
}

static void beat(cluster *c)
{
    uint64_t now = sl_now_ns();
    if (now < c->next_beat_ns || c->silent)
        return;
    c->next_beat_ns = now + 200 * MS;
    for (int i = 0; i < c->n; i++) {
        sl_msg m = {.type = SL_MSG_PING};
        m.ping.stamp = now;
        if (c->w[i].id)
            cluster_send(&c->w[i], &m);
    }
}

void cluster_poll(cluster *c, int ms)
{
    if (!c->tp) /* killed */
        return;
    while (sl_tp_progress(c->tp) > 0)
        ;
    beat(c);
    uint64_t now = sl_now_ns();
    for (int i = 0; i < c->n_req && c->auto_place; i++) {
        if (c->req[i].state == REQ_NEW && now >= c->req[i].retry_ns)
            place(c, &c->req[i]);
    }
    while (sl_tp_progress(c->tp) > 0)
        ;
    if (sl_tp_arm(c->tp) != SL_OK)
        return;
    struct pollfd p = {.fd = sl_tp_event_fd(c->tp), .events = POLLIN};
    poll(&p, 1, ms);
}

creq *cluster_request(cluster *c, const int32_t *prompt, int n_prompt, int max_tokens)
{
    ck_assert_int_lt(c->n_req, MAX_REQS);
    creq *r = &c->req[c->n_req++];
    *r = (creq){.rid = 0xabc000u + (uint64_t)c->n_req,
                .n_prompt = (size_t)n_prompt,
                .n_tokens = (size_t)n_prompt,
                .prefill = -1,
                .decode = -1,
                .source = -1,
                .max_attempts = 20,
                .matched_stop = -1,
                .seed = {1, 1}};
    r->tokens = malloc(((size_t)n_prompt + (size_t)max_tokens + 8) * sizeof *r->tokens);
    memcpy(r->tokens, prompt, (size_t)n_prompt * sizeof *prompt);
    sl_sampling_default(&r->sampling);
    r->sampling.temperature = 0;
    r->sampling.max_tokens = max_tokens;
    return r;
}

void cluster_abort(cluster *c, creq *r, sl_status why)
{
    leave(c, r, why, true, true);
    r->state = REQ_ABORTED;
}

bool cluster_idle(cluster *c)
{
    for (int i = 0; i < c->n_req; i++) {
        if (c->req[i].state < REQ_DONE)
            return false;
    }
    return true;
}

void cluster_cut_all(cluster *c)
{
    for (int i = 0; i < c->n; i++) {
        cworker *w = &c->w[i];
        if (!w->ep || w->down)
            continue;
        sl_tp_ep *ep = w->ep;
        cluster_worker_lost(c, w);
        w->ep = NULL;
        ep->user = NULL;
        sl_tp_close(ep, SL_TP_CLOSE_FORCE);
    }
}
