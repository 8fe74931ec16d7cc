/* See the header. */
#include "tests/unit/worker/cluster.h"

#include <poll.h>
#include <stdio.h>
#include <unistd.h>

static const uint64_t MS = 1000000;

static sl_cfg_shipping default_shipping(void)
{
    const char *want = getenv("SL_SHIP");
    return want && strcmp(want, "direct") == 0 ? SL_CFG_SHIP_DIRECT
           : want && strcmp(want, "gpu") == 0  ? SL_CFG_SHIP_GPU
                                               : SL_CFG_SHIP_STAGING;
}

cluster_opts cluster_defaults(void)
{
    return (cluster_opts){.n_prefill = 1,
                          .n_decode = 1,
                          .prefill_pages = 64,
                          .decode_pages = 64,
                          .layers = 3,
                          .indexers = 2,
                          .rows = SL_ROW_MLA_FP8,
                          .index = SL_INDEX_OFFICIAL,
                          .vocab = 97,
                          .chunk_tokens = 128,
                          .max_requests = 4,
                          .max_batch = 8,
                          .max_waiting = 8,
                          .max_seqs = 16,
                          .max_context = 4096,
                          .drain_ms = 1000,
                          .quarantine_ms = 2000,
                          .deadline_ms = 20000,
                          .shipping = default_shipping(),
                          .eos = -1};
}

static sl_geometry make_geometry(const cluster_opts *o, sl_layout layout)
{
    sl_geometry g = {.fingerprint = {11, 12},
                     .layout = layout,
                     .row_format = o->rows,
                     .index_format = o->index,
                     .n_layers = o->layers,
                     .lora = 128,
                     .rope = 16,
                     .index_dim = 32};
    if (o->geometry.n_layers) {
        g = o->geometry;
        g.layout = layout;
    }
    for (int l = 0; l < o->layers && !o->geometry.n_layers; l++)
        g.has_index[l] = l % 3 < o->indexers;
    ck_assert_int_eq(sl_geometry_finish(&g, NULL), SL_OK);
    return g;
}

/* ---- workers ---- */

static void hook(void *arg, sl_transport *tp)
{
    cworker *w = arg;
    sl_tp_stats s;
    sl_tp_get_stats(tp, &s);
    atomic_store(&w->device_bytes_put, s.device_bytes_put);
    if (atomic_exchange(&w->faults_change, 0))
        sl_loopback_set_default_faults(tp, &w->faults);
    if (atomic_exchange(&w->kill, 0))
        sl_loopback_kill(tp);
}

static void worker_opts(cworker *w, sl_worker_opts *o)
{
    *o = (sl_worker_opts){.transport = "loopback",
                          .fabric = w->c->fabric,
                          .numa_node = -1,
                          .router_address = w->c->address,
                          .heartbeat_ms = 50,
                          .dead_after_ms = 3000,
                          .connect_timeout_ms = 1000,
                          .reconnect_ms = 20,
                          .hook = hook,
                          .hook_arg = w};
}

static sl_status create(cworker *w, sl_err *err)
{
    const cluster_opts *o = &w->c->o;
    if (w->role == SL_ROLE_PREFILL) {
        sl_prefill_opts p = {.name = w->name,
                             .model = "m",
                             .cluster_tag = "t",
                             .metrics_address = "",
                             .runner = &w->runner,
                             .arena = w->arena,
                             .eos_ids = &o->eos,
                             .n_eos = o->eos >= 0,
                             .chunk_tokens = o->chunk_tokens,
                             .max_requests = o->max_requests,
                             .prefix_cache = !o->no_prefix_cache,
                             .verify_checksums = true,
                             .shipping = o->shipping,
                             .backend = "cpu",
                             .backend_opts = {.threads = 1},
                             .drain_ms = o->drain_ms,
                             .direct_hook = o->direct_hook,
                             .direct_hook_arg = w};
        worker_opts(w, &p.worker);
        return sl_prefill_create(&p, &w->prefill, err);
    }
    sl_decode_opts d = {.name = w->name,
                        .model = "m",
                        .cluster_tag = "t",
                        .metrics_address = "",
                        .runner = &w->runner,
                        .arena = w->arena,
                        .eos_ids = &o->eos,
                        .n_eos = o->eos >= 0,
                        .residency = SL_HIERARCHICAL,
                        .row_pages = o->row_pages,
                        .max_batch = o->max_batch,
                        .max_waiting = o->max_waiting,
                        .prefix_cache = !o->no_prefix_cache,
                        .verify_checksums = !o->no_verify,
                        .shipping = o->decode_ships_by_staging ? SL_CFG_SHIP_STAGING : o->shipping,
                        .quarantine_ms = o->quarantine_ms};
    worker_opts(w, &d.worker);
    return sl_decode_create(&d, &w->decode, err);
}

static void *worker_main(void *arg)
{
    cworker *w = arg;
    const cluster_opts *o = &w->c->o;
    bool p = w->role == SL_ROLE_PREFILL;
    cluster_opts mine = *o;
    mine.rows = p && o->prefill_differs ? o->prefill_rows : o->rows;
    sl_geometry g = make_geometry(&mine, p ? o->prefill_layout : o->decode_layout);
    sl_arena_opts ao = {.bytes = (uint64_t)((p ? o->prefill_pages : o->decode_pages) * g.page_bytes),
                        .lock = SL_OFF,
                        .numa_node = -1,
                        .shared = !p && o->shipping != SL_CFG_SHIP_STAGING};
    SL_CHECK(sl_arena_create(&g, &ao, &w->arena, &w->run_err) == SL_OK, "%s", w->run_err.text);
    memset(sl_arena_base(w->arena), 0x5a, sl_arena_bytes(w->arena)); /* stale rows are not zero */
    if (o->make_runner) {
        SL_CHECK(o->make_runner(w), "no runner");
    } else {
        fake_opts f = {.vocab = o->vocab,
                       .max_context = o->max_context,
                       .max_step_tokens = p ? o->chunk_tokens : 64,
                       .max_seqs = o->max_seqs,
                       .layer_us = p ? o->prefill_layer_us : o->decode_layer_us};
        w->fake = fake_create(w->arena, &f);
        w->runner = fake_runner_of(w->fake);
    }
    w->run_status = create(w, &w->run_err);
    atomic_store(&w->broken, w->run_status != SL_OK);
    if (w->run_status == SL_OK)
        w->run_status = p ? sl_prefill_run(w->prefill, &w->stop, 1000, &w->run_err)
                          : sl_decode_run(w->decode, &w->stop, 1000, &w->run_err);
    return NULL;
}

static void worker_lost(cluster *c, cworker *w);

void cworker_start(cluster *c, sl_role role, int index)
{
    cworker *w = NULL;
    for (int i = 0; i < c->n; i++) {
        if (c->w[i].role == role && c->w[i].index == index)
            w = &c->w[i];
    }
    if (!w)
        w = &c->w[c->n++];
    else if (w->id) /* its end was not seen yet, and its place in the table is about to be another's */
        worker_lost(c, w);
    sl_loopback_faults f = role == SL_ROLE_PREFILL ? c->o.prefill_faults : (sl_loopback_faults){0};
    *w = (cworker){.c = c, .index = index, .role = role, .faults = f, .faults_change = 1, .running = true};
    snprintf(w->name, sizeof w->name, "%s/%d", sl_role_name(role), index);
    ck_assert_int_eq(pthread_create(&w->thread, NULL, worker_main, w), 0);
}

/* Frees a worker whose thread has ended. */
static void worker_free(cworker *w, bool check)
{
    sl_err err = {0};
    if (w->prefill && check) {
        sl_prefill_counts n;
        ck_assert_msg(sl_prefill_counts_get(w->prefill, &n, &err) == SL_OK, "%s: %s", w->name, err.text);
        ck_assert_msg(n.requests == 0 && n.pages_free + n.pages_cached == n.pages_total,
                      "%s leaks: %d requests, %d of %d pages", w->name, n.requests,
                      n.pages_free + n.pages_cached, n.pages_total);
    }
    if (w->decode && check) {
        sl_decode_counts n;
        ck_assert_msg(sl_decode_counts_get(w->decode, &n, &err) == SL_OK, "%s: %s", w->name, err.text);
        ck_assert_msg(n.tickets == 0 && n.pages_free + n.pages_cached == n.pages_total,
                      "%s leaks: %d tickets (%d quarantined), %d of %d pages", w->name, n.tickets,
                      n.quarantined, n.pages_free + n.pages_cached, n.pages_total);
        w->c->spilled += n.spilled;
    }
    sl_prefill_destroy(w->prefill);
    sl_decode_destroy(w->decode);
    w->prefill = NULL;
    w->decode = NULL;
    if (w->c->o.drop_runner)
        w->c->o.drop_runner(w);
    fake_destroy(w->fake);
    w->fake = NULL;
    sl_arena_destroy(w->arena);
    w->arena = NULL;
    w->running = false;
}

void cworker_kill(cworker *w)
{
    atomic_store(&w->kill, 1);
    __atomic_store_n(&w->stop, 1, __ATOMIC_RELAXED);
}

void cworker_join(cworker *w)
{
    pthread_join(w->thread, NULL);
    worker_free(w, false);
}

/* ---- the router ---- */

cworker *cluster_worker(cluster *c, sl_role role, int index)
{
    for (int i = 0; i < c->n; i++) {
        if (c->w[i].role == role && c->w[i].index == index)
            return &c->w[i];
    }
    return NULL;
}

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
    m.id = (sl_msg_id){r->rid, r->gen};
    cluster_send(w, &m);
}

static void send_abort(cworker *w, const creq *r, sl_status why)
{
    sl_msg m = {.type = SL_MSG_ABORT};
    m.abort = (sl_msg_abort){r->rid, r->gen, why};
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
        cworker *w = &c->w[(k + (int)r->gen) % c->n];
        if (!w->id || w->down || w->load.draining)
            continue;
        if (w->role == SL_ROLE_PREFILL && (r->prefill < 0 || r->prefill == w->index) && !p)
            p = w;
        if (w->role == SL_ROLE_DECODE && (r->decode < 0 || r->decode == w->index) && !d)
            d = w;
    }
    if (!p || !d)
        return;
    r->gen++;
    r->use_prefill = (int)p->id;
    r->use_decode = (int)d->id;
    r->state = REQ_RESERVING;
    r->prefill_sent = r->prefilled = false;
    sl_wr wr;
    sl_wr_init(&wr);
    sl_sampling_write(&wr, &r->sampling);
    sl_msg m = {.type = SL_MSG_RESERVE};
    m.reserve = (sl_msg_reserve){.rid = r->rid,
                                 .gen = r->gen,
                                 .prefill_worker = p->id,
                                 .n_prompt = (uint32_t)r->n_prompt,
                                 .tokens = r->tokens,
                                 .n_tokens = r->n_tokens,
                                 .deadline_ms = c->o.deadline_ms,
                                 .sampling = {wr.data, wr.len}};
    cluster_send(d, &m);
    sl_wr_free(&wr);
}

static creq *find_req(cluster *c, uint64_t rid, uint32_t gen)
{
    for (int i = 0; i < c->n_req; i++) {
        if (c->req[i].rid == rid && c->req[i].gen == gen)
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
                                 .gen = r->gen,
                                 .ticket = m->ticket,
                                 .decode_worker = d->id,
                                 .decode_epoch = d->epoch,
                                 .n_prompt = (uint32_t)r->n_prompt,
                                 .tokens = r->tokens,
                                 .n_tokens = r->n_tokens,
                                 .matched_pages = m->matched_pages,
                                 .pages = m->pages,
                                 .n_pages = m->n_pages,
                                 .deadline_ms = c->o.deadline_ms,
                                 .sampling = {wr.data, wr.len}};
    memcpy(o.prefill.decode_addr, d->listen, sizeof o.prefill.decode_addr);
    cluster_send(p, &o);
    sl_wr_free(&wr);
}

static void on_tokens(cluster *c, creq *r, const sl_msg_tokens *m)
{
    ck_assert_uint_eq(m->first_index, r->n_tokens - r->n_prompt);
    for (size_t i = 0; i < m->n_tokens; i++)
        r->tokens[r->n_tokens++] = m->tokens[i].id;
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
    /* all of them begin with rid and gen */
    creq *r = find_req(c, m->id.rid, m->id.gen);
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
    m.welcome = (sl_msg_welcome){w->id, 1, 50, 3000};
    cluster_send(w, &m);
}

static void on_worker_msg(cluster *c, cworker *w, const sl_msg *m)
{
    switch (m->type) {
    case SL_MSG_LOAD:
        w->load = m->load;
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

static void on_message(void *arg, sl_tp_ep *ep, uint16_t id, const void *h, size_t hn, const void *data,
                       size_t n)
{
    (void)h;
    (void)hn;
    cluster *c = arg;
    sl_msg m;
    sl_err err = {0};
    ck_assert_msg(sl_msg_decode(data, n, &m, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(id, m.type);
    cworker *w = ep->user;
    if (m.type == SL_MSG_HELLO) {
        for (int i = 0; i < c->n && !w; i++)
            w = strcmp(c->w[i].name, m.hello.name) == 0 ? &c->w[i] : NULL;
        ck_assert_ptr_nonnull(w);
        if (!c->on_msg || !c->on_msg(c, w, &m))
            on_hello(c, w, ep, &m.hello);
    } else if (w && !w->down && (!c->on_msg || !c->on_msg(c, w, &m))) {
        on_worker_msg(c, w, &m);
    }
    sl_msg_free(&m);
}

static void on_accepted(void *arg, sl_tp_ep *ep, const char *peer)
{
    (void)arg;
    (void)ep;
    (void)peer;
}

/* Every request on a dead worker is started again. */
static void worker_lost(cluster *c, cworker *w)
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
        worker_lost(arg, w);
    sl_tp_close(ep, SL_TP_CLOSE_FORCE);
}

static void on_closed(void *arg, sl_tp_ep *ep)
{
    (void)arg;
    cworker *w = ep->user;
    if (w && w->ep == ep)
        w->ep = NULL;
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

void cluster_until(cluster *c, bool (*cond)(cluster *c), int seconds, const char *what)
{
    uint64_t end = sl_now_ns() + (uint64_t)seconds * 1000 * MS;
    while (!cond(c)) {
        cluster_poll(c, 5);
        if (sl_now_ns() > end)
            ck_abort_msg("timed out: %s (request 0: state %d attempts %d reason \"%s\")", what,
                         c->req[0].state, c->req[0].attempts, c->req[0].reason);
    }
}

static bool all_joined(cluster *c)
{
    for (int i = 0; i < c->n; i++) {
        if (atomic_load(&c->w[i].broken))
            ck_abort_msg("%s: %s", c->w[i].name, c->w[i].run_err.text);
        if (!c->w[i].id || !c->w[i].load.total_pages)
            return false;
    }
    return true;
}

void cluster_start(cluster *c, const cluster_opts *o)
{
    static int n;
    memset(c, 0, sizeof *c);
    c->o = *o;
    c->auto_place = true;
    snprintf(c->fabric, sizeof c->fabric, "test-%d-%d", (int)getpid(), n++);
    sl_err err = {0};
    sl_tp_options t = sl_tp_options_default();
    t.events = (sl_tp_events){.arg = c, .accepted = on_accepted, .failed = on_failed, .closed = on_closed};
    t.fabric = c->fabric;
    ck_assert_msg(sl_transport_create("loopback", &t, &c->tp, &err) == SL_OK, "%s", err.text);
    for (uint16_t id = 0; id < SL_TP_AM_IDS; id++)
        sl_tp_handle(c->tp, id, on_message, c);
    ck_assert_int_eq(sl_tp_listen(c->tp, NULL, 0, c->address, sizeof c->address, &err), SL_OK);
    for (int i = 0; i < o->n_prefill; i++)
        cworker_start(c, SL_ROLE_PREFILL, i);
    for (int i = 0; i < o->n_decode; i++)
        cworker_start(c, SL_ROLE_DECODE, i);
    cluster_until(c, all_joined, 20, "workers join");
}

static bool drained(cluster *c)
{
    for (int i = 0; i < c->n; i++) {
        const cworker *w = &c->w[i];
        if (w->id && (w->load.running || w->load.waiting ||
                      w->load.free_pages + w->load.cached_pages != w->load.total_pages))
            return false;
    }
    return true;
}

void cluster_stop(cluster *c)
{
    cluster_until(c, drained, 15, "workers to give everything back");
    for (int i = 0; i < c->n; i++) {
        if (!c->w[i].running)
            continue;
        __atomic_store_n(&c->w[i].stop, 1, __ATOMIC_RELAXED);
    }
    for (int i = 0; i < c->n; i++) {
        if (!c->w[i].running)
            continue;
        pthread_join(c->w[i].thread, NULL);
        ck_assert_msg(c->w[i].run_status == SL_OK, "%s: %s", c->w[i].name, c->w[i].run_err.text);
        worker_free(&c->w[i], true);
    }
    for (int i = 0; i < 20; i++) /* what was on its way to them completes now */
        cluster_poll(c, 1);
    sl_tp_destroy(c->tp);
    for (int i = 0; i < c->n_req; i++) {
        sl_sampling_free(&c->req[i].sampling);
        free(c->req[i].tokens);
    }
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
                .max_attempts = 20,
                .matched_stop = -1};
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

void cluster_check_stream(cluster *c, const creq *r)
{
    size_t n = r->n_tokens - r->n_prompt;
    int32_t *want = malloc((n + 1) * sizeof *want);
    sl_geometry g = make_geometry(&c->o, SL_LAYOUT_PAGE_FIRST);
    fake_reference(&g, c->o.vocab, r->tokens, (int)r->n_prompt, want, (int)n);
    for (size_t i = 0; i < n; i++) {
        if (want[i] != r->tokens[r->n_prompt + i])
            ck_abort_msg("request %lx: token %zu of %zu is %d, not %d", (long)r->rid, i, n,
                         r->tokens[r->n_prompt + i], want[i]);
    }
    free(want);
}

void cluster_make_prompt(int32_t *out, int n, int vocab, uint64_t seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        out[i] = (int32_t)((seed >> 33) % (uint64_t)vocab);
    }
}

void cluster_cut_all(cluster *c)
{
    for (int i = 0; i < c->n; i++) {
        cworker *w = &c->w[i];
        if (!w->ep || w->down)
            continue;
        sl_tp_ep *ep = w->ep;
        worker_lost(c, w);
        w->ep = NULL;
        ep->user = NULL;
        sl_tp_close(ep, SL_TP_CLOSE_FORCE);
    }
}

void cworker_faults(cworker *w, sl_loopback_faults f)
{
    w->faults = f;
    atomic_store(&w->faults_change, 1);
}

static int held_wanted;

static bool pages_as_wanted(cluster *c)
{
    for (int i = 0; i < c->n; i++) {
        const sl_msg_load *l = &c->w[i].load;
        if (c->w[i].role == SL_ROLE_DECODE && c->w[i].id &&
            (int)(l->total_pages - l->free_pages - l->cached_pages) != held_wanted)
            return false;
    }
    return true;
}

void cluster_wait_pages(cluster *c, int held)
{
    held_wanted = held;
    cluster_until(c, pages_as_wanted, 15, "pages to come back");
}
