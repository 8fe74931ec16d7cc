/* The messages that the mock worker sends; the transport borrows their buffers until they are sent. */
#include <stdlib.h>

#include "kvstore/arena.h"
#include "base/log.h"
#include "bench/mock/mock_impl.h"
#include "router/core/text.h"

void sl_mock_sent(void *cookie, sl_status st)
{
    (void)st;
    outbuf *o = cookie;
    *o->pprev = o->next;
    if (o->next)
        o->next->pprev = o->pprev;
    free(o->data);
    free(o);
}

static void send_bytes(sl_mock *m, sl_tp_ep *ep, sl_msg_bytes b)
{
    outbuf *o = calloc(1, sizeof *o);
    SL_CHECK(o, "out of memory");
    o->data = b.data;
    o->next = m->out;
    o->pprev = &m->out;
    if (o->next)
        o->next->pprev = &o->next;
    m->out = o;
    if (sl_tp_send(ep, b.id, NULL, 0, o->data, b.n, sl_mock_sent, o) != SL_OK)
        sl_mock_sent(o, SL_ERR_PEER); /* The mock drops the message: the router must tolerate a lost one. */
}

void sl_mock_send(sl_mock *m, sl_tp_ep *ep, const sl_msg *msg)
{
    sl_msg_batch one = {0};
    if (m->k.silent || !ep)
        return;
    SL_CHECK(sl_msg_batch_add(&one, msg), "out of memory");
    send_bytes(m, ep, sl_msg_batch_take(&one));
}

void sl_mock_gather(sl_mock *m, bool on)
{
    m->gathers = on;
    if (on)
        m->gathered.since = (sl_stamp){m->clock, sl_now_ns()};
    if (!m->gathered.n)
        return;
    if (m->router && m->router_up)
        send_bytes(m, m->router, sl_msg_batch_take(&m->gathered));
    sl_msg_batch_free(&m->gathered);
}

static void send_router(sl_mock *m, const sl_msg *msg)
{
    if (!m->gathers)
        sl_mock_send(m, m->router, msg);
    else if (!m->k.silent)
        SL_CHECK(sl_msg_batch_add(&m->gathered, msg), "out of memory");
}

void sl_mock_send_router(sl_mock *m, const sl_msg *msg)
{
    if (!m->router_up)
        return;
    send_router(m, msg);
    if (m->k.duplicate && (msg->type == SL_MSG_TOKENS || msg->type == SL_MSG_RESERVED ||
                           msg->type == SL_MSG_PREFILLED || msg->type == SL_MSG_DONE))
        send_router(m, msg);
}

/* The page geometry of a cache of one layer. */
static void write_geometry(sl_key fingerprint, sl_wr *w)
{
    sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_MLA_BF16), .latent = 128, .rope = 16};
    sl_cache_shape shape;
    sl_geometry g;
    sl_geometry_opts o = {.fingerprint = fingerprint, .shape = &shape, .n_layers = 1};
    SL_CHECK(sl_cache_shape_make(&d, &shape, NULL) == SL_OK && sl_geometry_make(&o, &g, NULL) == SL_OK,
             "the mock's geometry");
    sl_geometry_write(&g, w);
}

void sl_mock_send_hello(sl_mock *m)
{
    sl_msg h = {.type = SL_MSG_HELLO};
    h.hello.bits = m->o.bits;
    h.hello.version = m->o.version ? m->o.version : SL_MSG_VERSION;
    h.hello.role = (uint8_t)m->o.role;
    sl_copy_text(h.hello.name, sizeof h.hello.name, m->o.name);
    sl_copy_text(h.hello.cluster_tag, sizeof h.hello.cluster_tag, m->o.tag);
    sl_copy_text(h.hello.model, sizeof h.hello.model, m->o.model);
    sl_copy_text(h.hello.listen, sizeof h.hello.listen, m->address);
    h.hello.epoch = m->epoch;
    h.hello.id.fingerprint = m->o.fingerprint;
    sl_wr geometry;
    sl_wr_init(&geometry);
    write_geometry(m->o.fingerprint, &geometry);
    h.hello.id.geometry =
        m->o.geometry ? (sl_blob){m->o.geometry, m->o.geometry_len} : (sl_blob){geometry.data, geometry.len};
    h.hello.instance = m->o.instance;
    h.hello.group = m->o.group;
    h.hello.rank = m->o.rank;
    h.hello.ranks = m->o.ranks;
    sl_copy_text(h.hello.host, sizeof h.hello.host, "mock");
    h.hello.max_context = m->o.max_context;
    h.hello.max_batch = m->o.max_batch;
    h.hello.total_pages = m->o.total_pages;
    h.hello.vocab_size = m->o.vocab;
    sl_mock_send_router(m, &h);
    sl_wr_free(&geometry);
}

void sl_mock_send_load(sl_mock *m)
{
    sl_msg l = {.type = SL_MSG_LOAD};
    for (job *j = m->jobs; j; j = j->next) {
        l.load.running++;
        l.load.queued_tokens += j->state == JOB_PREFILL ? j->n : 0;
    }
    sl_mock_tickets_load(m, &l.load);
    l.load.total_pages = m->o.total_pages;
    uint32_t used = m->c.pages_used + m->k.leaked;
    l.load.free_pages = m->o.total_pages > used ? m->o.total_pages - used : 0;
    l.load.tokens_done = m->c.tokens;
    l.load.draining = m->k.draining;
    l.load.group_broken = m->k.group_broken;
    l.load.engine_age_ms = m->k.engine_age_ms;
    l.load.checker_age_ms = m->k.checker_age_ms;
    l.load.copier_age_ms = m->k.copier_age_ms;
    l.load.disk_rate = m->k.disk_rate;
    l.load.peer_rate = m->k.peer_rate;
    l.load.prefill_rate = m->k.prefill_rate;
    sl_mock_send_router(m, &l);
}

void sl_mock_send_id(sl_mock *m, sl_msg_type type, uint64_t rid, uint32_t attempt)
{
    sl_msg d = {.type = type};
    d.id.rid = rid;
    d.id.attempt = attempt;
    sl_mock_send_router(m, &d);
}

void sl_mock_send_failed(sl_mock *m, uint64_t rid, uint32_t attempt, sl_status st, bool retryable)
{
    sl_msg f = {.type = SL_MSG_FAILED};
    f.failed.rid = rid;
    f.failed.attempt = attempt;
    f.failed.status = st;
    f.failed.retryable = retryable;
    sl_copy_text(f.failed.reason, sizeof f.failed.reason, "the mock was told to fail");
    sl_mock_send_router(m, &f);
}
