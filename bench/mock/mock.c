/*
 * The mock's event loop: it handles received messages, runs the jobs that are due, and sends messages. mock.h says what
 * the mock is for.
 */
#include "bench/mock/mock.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/page_key.h"
#include "model/sampler.h"
#include "router/core/keyset.h"
#include "router/core/text.h"
#include "transport/loopback/loopback.h"
#include "bench/mock/mock_impl.h"

void sl_mock_opts_default(sl_mock_opts *o)
{
    memset(o, 0, sizeof *o);
    o->transport = "loopback";
    o->listen_host = "127.0.0.1";
    o->model = "sluice";
    o->tag = "sluice";
    o->fingerprint = (sl_key){1, 2};
    o->vocab = 512;
    o->max_context = 4096;
    o->max_batch = 64;
    o->total_pages = 4096;
    o->heartbeat_ms = 20;
    o->token_lo = 32;
    o->token_hi = 127;
    o->eos = -1;
}

int32_t sl_mock_next_token(const sl_mock_opts *o, const int32_t *tokens, size_t n, size_t n_prompt)
{
    if (o->n_script)
        return o->script[(n - n_prompt) % o->n_script];
    uint64_t h = sl_hash_chain((sl_key){n_prompt, 0}, tokens, n * sizeof *tokens).lo;
    if (o->eos >= 0 && o->eos_every && h % o->eos_every == 0)
        return o->eos;
    return o->token_lo + (int32_t)((h >> 20) % (uint64_t)(o->token_hi - o->token_lo));
}

/* ---- messages ---- */

/* If a knob says so, answers the request with FAILED, as retryable with that status or as final, and returns true. */
static bool told_to_fail(sl_mock *m, uint64_t rid, uint32_t attempt, sl_status retryable)
{
    bool retry = m->k.fail > 0;
    if (!retry && !m->k.fail_final)
        return false;
    if (retry)
        m->k.fail--;
    else
        m->k.fail_final--;
    sl_mock_send_failed(m, rid, attempt, retry ? retryable : SL_ERR_INTERNAL, retry);
    return true;
}

static void on_reserve(sl_mock *m, const sl_msg_reserve *r)
{
    if (m->k.full) {
        m->k.full--;
        sl_mock_send_failed(m, r->rid, r->attempt, SL_ERR_EXHAUSTED, true);
        return;
    }
    if (told_to_fail(m, r->rid, r->attempt, SL_ERR_PEER))
        return;
    sl_mock_reserve(m, r);
    sl_msg l = {.type = SL_MSG_LOADING};
    l.loading = (sl_msg_loading){r->rid, r->attempt, m->k.loading};
    for (int i = 0; m->k.loading && i < 2; i++)
        sl_mock_send_router(m, &l);
}

static void on_abort(sl_mock *m, const sl_msg_abort *a)
{
    if (m->o.role != SL_ROLE_PREFILL)
        sl_mock_aborted(m, a);
    else if (sl_mock_abort_job(m, a->rid, a->attempt))
        sl_mock_send_id(m, SL_MSG_DRAINED, a->rid, a->attempt);
}

/* What tests may look at after a step. */
static void count(sl_mock *m)
{
    sl_tickets_sweep(&m->core.tickets);
    m->c.waiting_drain = (uint32_t)m->core.tickets.count[SL_TICKET_QUARANTINE];
    m->c.jobs = (uint32_t)(sl_tickets_placed(&m->core.tickets) + m->core.tickets.count[SL_TICKET_LOADING]);
    for (const job *j = m->jobs; j; j = j->next)
        m->c.jobs++;
}

static void handle(sl_mock *m, const sl_msg *msg)
{
    switch (msg->type) {
    case SL_MSG_WELCOME:
        m->c.welcome = true;
        m->c.worker_id = msg->welcome.worker_id;
        sl_mock_send_load(m);
        break;
    case SL_MSG_REFUSE:
        m->c.refused = true;
        m->c.refused_for_now = msg->refuse.retry;
        memcpy(m->c.refuse_reason, msg->refuse.reason, sizeof m->c.refuse_reason);
        break;
    case SL_MSG_PING: {
        sl_msg pong = {.type = SL_MSG_PONG};
        pong.ping = msg->ping;
        sl_mock_send_router(m, &pong);
        break;
    }
    case SL_MSG_RESERVE:
        m->c.source = msg->reserve.source;
        m->c.tenant = msg->reserve.tenant;
        on_reserve(m, &msg->reserve);
        break;
    case SL_MSG_PREFETCH:
        m->c.source = msg->prefetch.source;
        break;
    case SL_MSG_PREFILL:
        if (!told_to_fail(m, msg->prefill.rid, msg->prefill.attempt, SL_ERR_DEVICE))
            sl_mock_prefill(m, &msg->prefill);
        break;
    case SL_MSG_COMMIT:
        sl_mock_committed(m, &msg->commit);
        break;
    case SL_MSG_ABORT:
        on_abort(m, &msg->abort);
        break;
    case SL_MSG_DRAINED:
        sl_mock_drained(m, &msg->id);
        break;
    case SL_MSG_FLUSH_CACHE:
        sl_keyset_clear(m->prefix);
        break;
    default:
        break;
    }
}

static void on_message(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes,
                       const void *data, size_t bytes)
{
    (void)ep;
    (void)id;
    (void)header;
    (void)header_bytes;
    sl_mock *m = arg;
    sl_msg msg;
    sl_err err = {""};
    if (m->c.dead)
        return;
    SL_CHECK(sl_msg_decode(data, bytes, &msg, &err) == SL_OK, "%s", err.text);
    m->c.received[msg.type]++;
    handle(m, &msg);
    sl_msg_free(&msg);
}

static void on_accepted(void *arg, sl_tp_ep *ep, const char *addr)
{
    (void)arg;
    (void)ep;
    (void)addr;
}

static void on_connected(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    (void)why;
    sl_mock *m = arg;
    if (ep == m->router) {
        m->router_up = st == SL_OK;
        if (m->router_up)
            sl_mock_send_hello(m);
        return;
    }
    peer *p = ep->user;
    p->up = st == SL_OK;
    sl_mock_peer_changed(m, p);
    if (st)
        sl_tp_close(ep, SL_TP_CLOSE_FORCE);
}

static void on_failed(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    (void)st;
    (void)why;
    sl_mock *m = arg;
    if (ep == m->router)
        m->router_up = false;
    sl_tp_close(ep, SL_TP_CLOSE_FORCE);
}

static void on_closed(void *arg, sl_tp_ep *ep)
{
    sl_mock *m = arg;
    if (ep == m->router)
        m->router = NULL;
    for (peer **p = &m->peers; *p; p = &(*p)->next) {
        if ((*p)->ep == ep) {
            peer *gone = *p;
            *p = gone->next;
            free(gone);
            break;
        }
    }
}

static sl_status open_transport(sl_mock *m, sl_err *err)
{
    sl_tp_options t = sl_tp_options_default();
    t.events = (sl_tp_events){m, on_accepted, on_connected, on_failed, on_closed};
    t.fabric = m->o.fabric;
    SL_TRY(sl_keyset_create(m->o.total_pages, &m->prefix));
    SL_TRY(sl_mock_tickets_open(m, err));
    SL_TRY(sl_transport_create(m->o.transport, &t, &m->tp, err));
    for (uint16_t id = 0; id < SL_TP_AM_IDS; id++)
        SL_TRY(sl_tp_handle(m->tp, id, on_message, m));
    SL_TRY(sl_tp_listen(m->tp, m->o.listen_host, 0, m->address, sizeof m->address, err));
    return sl_tp_connect(m->tp, m->o.router_address, &m->router, err);
}

sl_status sl_mock_create(const sl_mock_opts *o, sl_mock **out, sl_err *err)
{
    sl_mock *m = calloc(1, sizeof *m);
    if (!m)
        return SL_ERR_NO_MEMORY;
    m->o = *o;
    m->clock = o->clock ? o->clock : sl_host_clock();
    m->epoch = sl_random_u64();
    if (!m->o.instance)
        m->o.instance = sl_random_u64();
    sl_status st = open_transport(m, err);
    if (st)
        sl_mock_destroy(m);
    else
        *out = m;
    return st;
}

static int until_due(const sl_mock *m, uint64_t now)
{
    uint64_t next = m->beat_ns, tickets = m->k.hold ? UINT64_MAX : sl_mock_tickets_due(m);
    next = tickets < next ? tickets : next;
    for (const job *j = m->jobs; j && !m->k.hold; j = j->next) {
        if (j->state == JOB_PREFILL && j->due_ns < next)
            next = j->due_ns;
    }
    return next <= now ? 0 : (int)((next - now + 999999) / 1000000);
}

int sl_mock_step(sl_mock *m)
{
    if (m->c.dead)
        return 100;
    for (int i = 0; i < 1000 && !m->c.dead; i++) {
        int n = 0;
        while (!m->c.dead && sl_tp_progress(m->tp) > 0)
            n++;
        uint64_t now = sl_now_ns();
        if (!m->c.dead)
            sl_mock_run_jobs(m, now);
        if (!m->c.dead)
            sl_mock_run_tickets(m, now);
        count(m);
        if (!m->c.dead && now >= m->beat_ns) {
            m->beat_ns = now + m->o.heartbeat_ms * 1000000ull;
            if (m->c.welcome)
                sl_mock_send_load(m);
        }
        if (!m->c.dead && sl_tp_arm(m->tp) == SL_OK)
            break;
    }
    return m->c.dead ? 100 : until_due(m, sl_now_ns());
}

int sl_mock_fd(const sl_mock *m)
{
    return sl_tp_event_fd(m->tp);
}

void sl_mock_run(sl_mock *m, const volatile int *stop)
{
    while (!__atomic_load_n(stop, __ATOMIC_RELAXED) && !m->c.dead) {
        int ms = sl_mock_step(m);
        struct pollfd p = {.fd = sl_mock_fd(m), .events = POLLIN};
        if (!m->c.dead)
            poll(&p, 1, ms < 50 ? ms : 50);
    }
}

sl_mock_knobs *sl_mock_knob(sl_mock *m)
{
    return &m->k;
}

const sl_mock_counts *sl_mock_count(const sl_mock *m)
{
    return &m->c;
}

void sl_mock_kill(sl_mock *m)
{
    if (m->c.dead)
        return;
    m->c.dead = true;
    if (!strcmp(m->o.transport, "loopback"))
        sl_loopback_kill(m->tp);
}

void sl_mock_destroy(sl_mock *m)
{
    if (!m)
        return;
    while (m->jobs)
        sl_mock_end_job(m, m->jobs);
    sl_core_close(&m->core);
    while (m->peers) {
        peer *p = m->peers;
        m->peers = p->next;
        free(p);
    }
    sl_tp_destroy(m->tp);
    while (m->out)
        sl_mock_sent(m->out, SL_ERR_CANCELLED);
    sl_keyset_destroy(m->prefix);
    free(m);
}
