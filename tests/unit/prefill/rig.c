/* See rig.h. */
#include "tests/unit/prefill/rig.h"
#include "tests/unit/kvstore/mla_geometry.h"

#include "kvstore/cascade.h"
#include "kvstore/page_key.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sl_worker {
    sl_transport tp;
    sl_tp_mem mem, pool[2]; /* the arena; its halves, which stand for device pools */
    sl_mailbox *mails;      /* of the copier */
};

struct sl_wep {
    sl_tp_ep tp;
    void *user;
};

rig r;
void (*rig_engine)(sl_wmail *m);
const sl_key rig_seed = {3, 3};
static sl_worker worker;

/* ---- transport ---- */

static sl_status post(rig_op op)
{
    ck_assert_msg(!r.in_callback, "posted from inside a callback");
    ck_assert_msg(!r.close_asked, "posted on an endpoint that is being closed");
    ck_assert(r.peer_up);
    if (r.full)
        return SL_AGAIN;
    if (r.refuse != SL_OK && r.refused == op.kind)
        return r.refuse;
    ck_assert_int_lt(r.n_ops, (int)SL_COUNT(r.op));
    r.unflushed |= op.kind == OP_PUT;
    r.op[r.n_ops++] = op;
    return SL_OK;
}

static uint8_t *landing(uint64_t remote, size_t bytes)
{
    uint8_t *at = (uint8_t *)(uintptr_t)remote, *base = sl_arena_base(r.there);
    ck_assert_msg(at >= base && at + bytes <= base + sl_arena_bytes(r.there), "outside the landing arena");
    return at;
}

static sl_status f_put(sl_tp_ep *ep, const void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote,
                       sl_tp_rkey *rkey, sl_tp_done_fn *done, void *cookie)
{
    ck_assert(ep == &r.ep->tp && rkey != NULL);
    ck_assert(mem == &worker.mem || r.path == RIG_GPU);
    ck_assert((uint8_t *)local >= (uint8_t *)mem->base &&
              (uint8_t *)local + bytes <= (uint8_t *)mem->base + mem->bytes);
    return post((rig_op){OP_PUT, done, cookie, (uint8_t *)(uintptr_t)local, landing(remote, bytes), bytes});
}

static sl_status f_get(sl_tp_ep *ep, void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote,
                       sl_tp_rkey *rkey, sl_tp_done_fn *done, void *cookie)
{
    ck_assert(ep == &r.ep->tp && mem == &worker.mem && rkey != NULL);
    return post((rig_op){OP_GET, done, cookie, local, landing(remote, bytes), bytes});
}

static sl_status f_flush(sl_tp_ep *ep, sl_tp_done_fn *done, void *cookie)
{
    ck_assert(ep == &r.ep->tp);
    return post((rig_op){.kind = OP_FLUSH, .done = done, .cookie = cookie});
}

static sl_status f_rkey_unpack(sl_tp_ep *ep, const void *buf, size_t len, sl_tp_rkey **out, sl_err *err)
{
    (void)buf, (void)len, (void)err;
    *out = calloc(1, sizeof **out);
    (*out)->ep = ep;
    return SL_OK;
}

static void f_rkey_release(sl_tp_rkey *rkey)
{
    ck_assert_int_eq(r.n_ops, 0); /* no operation with it may be in flight */
    free(rkey);
}

static void f_ep_query(const sl_tp_ep *ep, char *text, size_t cap)
{
    (void)ep;
    snprintf(text, cap, "rig");
}

static const sl_transport_ops ops = {.name = "rig",
                                     .put = f_put,
                                     .get = f_get,
                                     .flush = f_flush,
                                     .rkey_unpack = f_rkey_unpack,
                                     .rkey_release = f_rkey_release,
                                     .ep_query = f_ep_query};

static void complete(int i, sl_status st)
{
    rig_op op = r.op[i];
    memmove(&r.op[i], &r.op[i + 1], (size_t)(r.n_ops - i - 1) * sizeof op);
    r.n_ops--;
    if (st == SL_OK && op.kind == OP_PUT)
        memcpy(op.remote, op.local, op.bytes);
    if (st == SL_OK && op.kind == OP_GET)
        memcpy(op.local, op.remote, op.bytes);
    if (st == SL_OK && op.kind == OP_FLUSH) /* the machine posts nothing after a flush */
        r.unflushed = false;
    r.in_callback = true;
    op.done(op.cookie, st);
    r.in_callback = false;
}

void rig_complete(sl_status st)
{
    ck_assert_int_gt(r.n_ops, 0);
    complete(0, st);
}

void rig_complete_all(sl_status st)
{
    while (r.n_ops)
        complete(0, st);
}

void rig_closed(void)
{
    ck_assert(r.close_asked);
    rig_complete_all(SL_ERR_CANCELLED);
    r.in_callback = true;
    sl_peer_closed(r.p, r.ep);
    r.in_callback = false;
    free(r.ep);
    r.ep = NULL;
    r.peer_up = r.close_asked = r.unflushed = false;
}

/* ---- worker core ---- */

void sl_wmsg_free(sl_wmsg *m)
{
    if (!m)
        return;
    sl_msg_free(&m->msg);
    free(m);
}

void sl_worker_post(sl_worker *w, sl_wmail *m)
{
    sl_mailbox_post(w->mails, &m->link);
}

void sl_worker_send_router(sl_worker *w, uint32_t router, const sl_msg *msg)
{
    ck_assert(w == &worker && !r.in_callback && router == RIG_ROUTER);
    r.seen.prefilled += msg->type == SL_MSG_PREFILLED;
    r.seen.drained += msg->type == SL_MSG_DRAINED;
    r.seen.failed += msg->type == SL_MSG_FAILED;
    if (msg->type == SL_MSG_FAILED)
        r.seen.why = msg->failed;
}

sl_status sl_worker_connect(sl_worker *w, const char *address, void *user, sl_wep **out, sl_err *err)
{
    (void)address, (void)err;
    ck_assert(!r.ep);
    r.ep = calloc(1, sizeof *r.ep);
    r.ep->tp.tp = &w->tp;
    r.ep->user = user;
    *out = r.ep;
    return SL_OK;
}

static bool landed_as(const sl_msg_commit *m)
{
    for (size_t i = 0; i < m->n_crc; i++) {
        int32_t page = (int32_t)(m->first_page + i / RIG_LAYERS), rows = RIG_TOKENS - page * SL_PAGE_TOKENS;
        rows = rows < SL_PAGE_TOKENS ? rows : SL_PAGE_TOKENS;
        if (sl_arena_page_crc(r.there, (int32_t)r.job->msg->pages[page], (int32_t)(i % RIG_LAYERS), rows) !=
            m->crc[i])
            return false;
    }
    return m->n_crc == (size_t)(RIG_PAGES - (int)m->first_page) * RIG_LAYERS;
}

/* Operations in flight of prefetches, or of the others. */
static int ops_of(bool prefetch)
{
    int n = 0;
    for (int i = 0; i < r.n_ops; i++) {
        const sl_prefill_job *j =
            r.op[i].kind == OP_GET ? ((const sl_pull_chunk *)r.op[i].cookie)->job : r.op[i].cookie;
        n += j->prefetch == prefetch;
    }
    return n;
}

void sl_wep_send(sl_wep *ep, const sl_msg *msg)
{
    ck_assert(ep == r.ep);
    r.seen.hello += msg->type == SL_MSG_PEER_HELLO;
    if (msg->type == SL_MSG_PEER_HELLO)
        return;
    ck_assert(!r.in_callback && !r.close_asked && r.peer_up);
    r.seen.asked += msg->type == SL_MSG_PAGES_ASK;
    r.seen.peer_drained += msg->type == SL_MSG_DRAINED;
    r.seen.commit += msg->type == SL_MSG_COMMIT;
    r.seen.lease_ends += msg->type == SL_MSG_LEASE_END;
    if (msg->type == SL_MSG_LEASE_ASK) {
        ck_assert_int_eq(msg->lease_ask.wait, 1);
        r.seen.leases++;
        r.seen.lease = msg->lease_ask.lease;
        r.seen.lease_keys = (int)(msg->lease_ask.keys.len / sizeof(sl_key));
    }
    if (msg->type == SL_MSG_LEASE_END)
        ck_assert(ops_of(true) == 0 && msg->lease_end.lease == r.seen.lease);
    if (msg->type == SL_MSG_COMMIT)
        r.seen.commit_ok = landed_as(&msg->commit);
    if (msg->type == SL_MSG_COMMIT || msg->type == SL_MSG_DRAINED)
        ck_assert_msg(!ops_of(false) && !r.unflushed, "an end was sent with %d operations in flight%s",
                      ops_of(false), r.unflushed ? " and without a flush" : "");
}

void sl_wep_close(sl_wep *ep, sl_tp_close_mode mode)
{
    ck_assert(ep == r.ep && mode == SL_TP_CLOSE_FORCE);
    r.close_asked = true;
}

void *sl_wep_user(const sl_wep *ep)
{
    return ep->user;
}

sl_tp_ep *sl_wep_tp(sl_wep *ep)
{
    return &ep->tp;
}

sl_tp_mem *sl_worker_memory(sl_worker *w)
{
    return &w->mem;
}

sl_tp_mem *sl_worker_device_memory(sl_worker *w, const void *address)
{
    return &w->pool[(const uint8_t *)address >= (uint8_t *)w->pool[1].base];
}

uint64_t sl_worker_epoch(const sl_worker *w, uint32_t router)
{
    (void)w;
    return router == RIG_ROUTER ? 5 : 0;
}

uint32_t sl_worker_id(const sl_worker *w, uint32_t router)
{
    (void)w;
    return router == RIG_ROUTER ? 1 : 0;
}

/* ---- the engine ---- */

bool rig_pulled_right(void)
{
    return r.job->pull_ok && !r.seen.chunks_bad && r.seen.chunk_pages == r.job->pull_end - r.job->own_matched;
}

/* Pages have arrived, with their checksums; the test is the checker. They come in their order, and none after PULLED. */
static void take_chunk(sl_pull_chunk *c)
{
    bool right = true;
    for (int32_t i = c->first; i < c->end; i++)
        for (int32_t l = 0; l < RIG_LAYERS; l++)
            right &= sl_arena_page_crc(r.here, c->job->own_pages[i], l, SL_PAGE_TOKENS) ==
                     c->crc[(i - c->first) * RIG_LAYERS + l];
    ck_assert(right || !c->job->prefetch);
    ck_assert(!c->in_flight && !r.seen.told_pulled);
    ck_assert_int_eq(c->first, c->job->own_matched + r.seen.chunk_pages);
    r.seen.chunk_pages += c->end - c->first;
    r.seen.chunks++;
    r.seen.chunks_bad += !right;
    free(c);
}

static void take_engine_mail(void)
{
    for (sl_mail *m; (m = sl_mailbox_take(r.p->role.inbox));) {
        int kind = ((sl_wmail *)m)->kind;
        if (kind == PM_CHUNK && !rig_engine) {
            take_chunk((sl_pull_chunk *)m);
            continue;
        }
        r.seen.told_new += kind == PM_NEW;
        r.seen.told_pulled += kind == PM_PULLED;
        if (kind == PM_PULLED)
            ck_assert_msg(!((sl_job_mail *)m)->job->ship.in_flight,
                          "the engine may write to pages that are still got");
        r.seen.told_stop += kind == PM_STOP;
        r.seen.told_end += kind == PM_END;
        if (kind == PM_END)
            ck_assert_msg(!ops_of(((sl_job_mail *)m)->job->prefetch),
                          "pages were given back with %d operations in flight", r.n_ops);
        if (rig_engine)
            rig_engine((sl_wmail *)m);
    }
}

void rig_begin(uint32_t matched, uint32_t deadline_ms)
{
    static uint64_t rid = 100;
    sl_wmsg *m = calloc(1, sizeof *m);
    m->msg.type = SL_MSG_PREFILL;
    m->router = RIG_ROUTER;
    m->msg.prefill = (sl_msg_prefill){.rid = ++rid,
                                      .attempt = 1,
                                      .ticket = 9,
                                      .decode_worker = 2,
                                      .decode_addr = "rig:1",
                                      .decode_epoch = 7,
                                      .n_prompt = RIG_TOKENS,
                                      .n_tokens = RIG_TOKENS,
                                      .matched_pages = matched,
                                      .n_pages = RIG_PAGES,
                                      .deadline_ms = deadline_ms};
    m->msg.prefill.tokens = calloc(RIG_TOKENS, sizeof(int32_t));
    m->msg.prefill.pages = calloc(RIG_PAGES, sizeof(uint32_t));
    for (uint32_t i = 0; i < RIG_PAGES; i++)
        m->msg.prefill.pages[i] = 5 - i;
    r.seen = (rig_seen){.hello = r.seen.hello};
    sl_ship_new(r.p, m);
    r.job = r.p->ships;
    r.now = sl_now_ns();
    take_engine_mail();
    ck_assert_int_eq(r.seen.told_new, 1);
}

void rig_begin_prefetch(void)
{
    static uint64_t rid = 10000;
    sl_wmsg *m = calloc(1, sizeof *m);
    m->msg.type = SL_MSG_PREFETCH;
    m->router = RIG_ROUTER;
    m->msg.prefetch = (sl_msg_prefetch){
        .rid = ++rid,
        .attempt = 1,
        .n_tokens = RIG_TOKENS,
        .seed = rig_seed,
        .source = {.worker = 2, .addr = "rig:1", .epoch = 7, .pages = RIG_AHEAD},
    };
    m->msg.prefetch.tokens = calloc(RIG_TOKENS, sizeof(int32_t));
    r.seen = (rig_seen){.hello = r.seen.hello};
    sl_ship_new(r.p, m);
    r.job = r.p->ships;
    r.now = sl_now_ns();
    take_engine_mail();
    ck_assert(r.seen.told_new == 1 && r.job->prefetch);
}

void rig_lease(int n, bool right)
{
    const sl_prefill_job *j = r.job;
    size_t bytes = sl_cascade_label_bytes(sl_arena_geometry(r.there));
    uint8_t *labels = calloc((size_t)n + 1, bytes);
    sl_wmsg *m = calloc(1, sizeof *m);
    m->msg.type = SL_MSG_LEASE;
    m->msg.lease = (sl_msg_lease){
        .lease = r.seen.lease, .ms = 1000, .n_pages = (size_t)n, .labels = {labels, (size_t)n * bytes}};
    m->msg.lease.pages = calloc((size_t)n + 1, sizeof(uint32_t));
    for (int i = 0; i < n; i++) {
        int at = j->ship.at + i;
        uint32_t crc[RIG_LAYERS], page = m->msg.lease.pages[i] = (uint32_t)(5 - at);
        sl_store_page p = {
            .seed = rig_seed, .prev = at ? j->keys[at - 1] : rig_seed, .tokens = j->msg->tokens};
        for (int32_t l = 0; l < RIG_LAYERS; l++)
            crc[l] = sl_arena_page_crc(r.there, (int32_t)page, l, SL_PAGE_TOKENS);
        sl_cascade_label_write(&p, labels + (size_t)i * bytes);
        sl_cascade_label_sums(labels + (size_t)i * bytes, crc, RIG_LAYERS);
    }
    labels[8] ^= !right;
    r.in_callback = true;
    sl_peer_msg(r.p, r.ep, m);
    r.in_callback = false;
    free(labels);
}

void rig_start(int32_t own)
{
    sl_prefill_job *j = r.job;
    if (j->prefetch) {
        j->keys = calloc(RIG_AHEAD, sizeof *j->keys);
        sl_page_keys(rig_seed, j->msg->tokens, RIG_AHEAD * SL_PAGE_TOKENS, j->keys);
    }
    j->own_pages = calloc(RIG_PAGES, sizeof *j->own_pages);
    for (int32_t i = 0; i < RIG_PAGES; i++)
        j->own_pages[i] = 1 + i;
    if (r.p->dev_layers) {
        j->dev_rows = calloc(2 * RIG_PAGES, sizeof *j->dev_rows);
        j->dev_index = j->dev_rows + RIG_PAGES;
        memcpy(j->dev_rows, j->own_pages, RIG_PAGES * sizeof *j->dev_rows);
        memcpy(j->dev_index, j->own_pages, RIG_PAGES * sizeof *j->dev_rows);
    }
    int32_t theirs = (int32_t)j->msg->matched_pages;
    j->own_matched = own;
    j->pull_end = theirs > own ? theirs : own;
    sl_ship_mail(r.p, sl_job_mail_of(j, PM_START));
}

void rig_layer(int32_t layer, int32_t first, int32_t end)
{
    r.step->n = 1;
    r.step->item[0].job = r.job;
    r.step->item[0].first = first;
    r.step->item[0].end = end;
    sl_ship_mail(r.p, &r.step->layer[layer].mail);
}

void rig_finish(void)
{
    sl_ship_mail(r.p, sl_job_mail_of(r.job, PM_FINISH));
}

static void answer_ask(int32_t pages, bool right)
{
    size_t n = (size_t)pages * RIG_LAYERS;
    sl_wmsg *m = calloc(1, sizeof *m);
    m->msg.type = SL_MSG_PAGES_CRC;
    m->msg.pages_crc = (sl_msg_pages_crc){.rid = r.job->rid, .attempt = 1, .n_crc = n};
    m->msg.pages_crc.crc = calloc(n + 4, sizeof(uint32_t));
    for (size_t i = 0; i < n; i++) {
        int32_t page = (int32_t)r.job->msg->pages[i / RIG_LAYERS];
        m->msg.pages_crc.crc[i] = sl_arena_page_crc(r.there, page, (int32_t)(i % RIG_LAYERS), SL_PAGE_TOKENS);
    }
    m->msg.pages_crc.crc[3] ^= !right;
    r.in_callback = true;
    sl_peer_msg(r.p, r.ep, m);
    r.in_callback = false;
}

void rig_pages_crc(bool right)
{
    answer_ask((int32_t)r.job->msg->matched_pages, right);
}

void rig_no_pages_crc(void)
{
    answer_ask(0, true);
}

void rig_peer_up(void)
{
    uint8_t desc[SL_DIRECT_DESC_MAX];
    size_t n = 0;
    sl_err err = {0};
    sl_wr geometry;
    sl_peer_connected(r.p, r.ep, SL_OK, "");
    sl_wr_init(&geometry);
    sl_geometry_write(sl_arena_geometry(r.there), &geometry);
    if (r.path >= RIG_DIRECT)
        ck_assert_msg(sl_direct_grant(r.host, (uint32_t)getpid(), desc, &n, &err) >= 0, "%s", err.text);
    sl_wmsg *m = calloc(1, sizeof *m);
    m->msg.type = SL_MSG_PEER_WELCOME;
    m->msg.peer_welcome = (sl_msg_peer_welcome){.epoch = 7,
                                                .arena_addr = (uint64_t)(uintptr_t)sl_arena_base(r.there),
                                                .arena_bytes = sl_arena_bytes(r.there),
                                                .total_pages = (uint32_t)sl_arena_pages(r.there),
                                                .geometry = {geometry.data, geometry.len},
                                                .direct = {desc, n}};
    r.peer_up = true;
    r.in_callback = true;
    sl_peer_msg(r.p, r.ep, m);
    r.in_callback = false;
    sl_wr_free(&geometry);
    sl_decode_peer *d = r.p->peers;
    ck_assert(d && d->remote.state == SL_REMOTE_UP);
    for (int i = 0; i < rig_patience() && r.path == RIG_COPIER && !d->direct.registered; i++) {
        usleep(100);
        rig_tick();
    }
    ck_assert(d->direct.registered == (r.path == RIG_COPIER));
}

/* ---- the clock ---- */

void rig_tick(void)
{
    r.in_callback = true;
    for (sl_mail *m; (m = sl_mailbox_take(worker.mails));)
        sl_ship_mail(r.p, (sl_wmail *)m);
    r.in_callback = false;
    for (int i = 0; sl_ship_tick(r.p, r.now) == r.now; i++)
        ck_assert_int_lt(i, 1000);
    take_engine_mail();
}

int rig_patience(void)
{
    return r.path == RIG_COPIER ? 300000 : 5000;
}

void rig_settle(void)
{
    for (int i = 0; r.p->ships; i++) {
        ck_assert_msg(i < rig_patience(), "it does not end: state %s, %d operations, %u in flight",
                      sl_ship_state_name(r.job->ship.state), r.n_ops, r.job->ship.in_flight);
        if (r.close_asked)
            rig_closed();
        rig_complete_all(SL_OK);
        rig_tick();
        if (r.seen.told_end) {
            ck_assert_int_eq(r.job->ship.state, SHIP_OVER);
            sl_ship_mail(r.p, sl_job_mail_of(r.job, PM_RELEASE));
            r.job = NULL;
            r.seen.freed++;
        } else if (r.path == RIG_COPIER) {
            usleep(100);
        }
    }
}

/* ---- open and close ---- */

static sl_arena *make_arena(sl_layout layout, bool shared, uint8_t fill)
{
    static const bool has_indexer[RIG_LAYERS] = {true, false, true};
    sl_geometry g =
        mla_geometry((sl_key){1, 2}, layout, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, RIG_LAYERS, has_indexer);
    sl_arena *a = NULL;
    sl_err err = {0};
    sl_arena_opts o = {
        .bytes = (uint64_t)(8 * g.page_bytes), .lock = SL_OFF, .numa_node = -1, .shared = shared};
    ck_assert_msg(sl_arena_create(&g, &o, &a, &err) == SL_OK, "%s", err.text);
    for (uint64_t i = 0; i < sl_arena_bytes(a); i++)
        sl_arena_base(a)[i] = (uint8_t)(i * 7 + i / 251 + fill);
    return a;
}

/* The own arena stands for device memory. */
static void make_device(void)
{
    const sl_geometry *g = sl_arena_geometry(r.here);
    uint8_t *base = sl_arena_base(r.here);
    int64_t n = sl_arena_pages(r.here);
    r.p->dev_layers = calloc(RIG_LAYERS, sizeof *r.p->dev_layers);
    for (int32_t l = 0; l < RIG_LAYERS; l++) {
        for (int32_t i = 0; i < g->shape.n_planes; i++)
            r.p->dev_layers[l].planes[i] = sl_geometry_plane(g, base, n, l, i);
    }
}

static void make_worker(void)
{
    uint8_t *base = sl_arena_base(r.here);
    size_t bytes = sl_arena_bytes(r.here), half = bytes / 2 + 100; /* in the middle of a row */
    worker =
        (sl_worker){.tp.ops = &ops,
                    .mem = {.base = base, .bytes = bytes},
                    .pool = {{.base = base, .bytes = half}, {.base = base + half, .bytes = bytes - half}}};
    ck_assert_int_eq(sl_mailbox_create(&worker.mails), SL_OK);
}

void rig_open(rig_path path)
{
    sl_err err = {0};
    memset(&r, 0, sizeof r);
    r.path = path;
    r.here = make_arena(SL_LAYOUT_LAYER_FIRST, false, 1);
    r.there = make_arena(SL_LAYOUT_PAGE_FIRST, true, 99);
    ck_assert(sl_direct_host_create(sl_arena_fd(r.there), sl_arena_bytes(r.there), &r.host, &err) == SL_OK);
    make_worker();
    r.p = calloc(1, sizeof *r.p);
    r.p->worker = &worker;
    r.p->geo = sl_arena_geometry(r.here);
    r.p->o.role.arena = r.here;
    r.p->o.role.verify_checksums = true;
    r.p->o.shipping = path == RIG_STAGING ? &sl_shipping_staging
                      : path == RIG_GPU   ? &sl_shipping_gpu
                                          : &sl_shipping_direct;
    r.p->o.drain_ms = 1000;
    static const sl_runner runner = {.max_context = 1024};
    r.p->o.role.runner = &runner;
    ck_assert_int_eq(sl_mailbox_create(&r.p->role.inbox), SL_OK);
    if (path == RIG_COPIER || path == RIG_GPU)
        make_device();
    sl_backend_opts bo = {.threads = 1};
    if (path == RIG_COPIER)
        ck_assert_msg(sl_copier_create("cpu", &bo, PM_COPIED, &r.p->copier, &err) == SL_OK, "%s", err.text);
    r.step = calloc(1, sizeof *r.step + RIG_LAYERS * sizeof r.step->layer[0]);
    for (int32_t l = 0; l < RIG_LAYERS; l++)
        r.step->layer[l] = (sl_layer_mail){.mail.kind = PM_LAYER, .step = r.step, .layer = l};
    r.now = sl_now_ns();
}

void rig_close(void)
{
    ck_assert(!r.p->ships && !r.p->runnable.head);
    ck_assert_int_eq(r.n_ops, 0);
    if (r.p->peers)
        ck_assert_uint_eq(r.p->peers->remote.in_flight, 0);
    if (r.ep) {
        sl_peer_drop(r.p, r.p->peers, SL_ERR_CANCELLED, "the test ends");
        rig_closed();
    }
    sl_copier_stop(r.p->copier);
    rig_tick();
    ck_assert(!r.p->peers && !r.p->closed_peers);
    sl_paths_close(r.p);
    sl_direct_host_destroy(r.host);
    sl_mailbox_destroy(r.p->role.inbox);
    sl_mailbox_destroy(worker.mails);
    free(r.p);
    free(r.step);
    sl_arena_destroy(r.here);
    sl_arena_destroy(r.there);
}
