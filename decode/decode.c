/*
 * Creation, the engine thread's loop, the callbacks that the worker core makes on the transport thread,
 * destruction.
 */
#include "decode/decode.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decode/decode_impl.h"

static const uint64_t MS = 1000000;
enum {
    IDLE_MS = 100,
    LEAVE_MS = 150 /* so that the router hears of it and what was on its way is refused */
};

/* ---- transport thread ---- */

static void note(sl_decode *d, int kind)
{
    sl_note *n = calloc(1, sizeof *n);
    SL_CHECK(n, "out of memory");
    n->mail.kind = kind;
    sl_mailbox_post(d->inbox, &n->mail.link);
}

static void on_router_up(void *arg, const sl_msg_welcome *w)
{
    (void)w;
    note(arg, DM_ROUTER_UP);
}

static void on_router_down(void *arg, sl_status st, const char *why)
{
    (void)st;
    (void)why;
    note(arg, DM_ROUTER_DOWN);
    sl_wpeer_router_down(arg);
}

static void on_fatal(void *arg, sl_status st, const char *why)
{
    sl_decode *d = arg;
    d->fatal_status = st;
    strncpy(d->fatal_reason, why, sizeof d->fatal_reason - 1);
    d->fatal_mail.kind = DM_FATAL;
    sl_mailbox_post(d->inbox, &d->fatal_mail.link);
}

static void on_router_msg(void *arg, sl_wmsg *m)
{
    sl_decode *d = arg;
    m->ep_serial = 0;
    m->mail.kind = DM_MSG;
    sl_mailbox_post(d->inbox, &m->mail.link);
}

static void on_load(void *arg, sl_msg_load *out)
{
    sl_decode *d = arg;
    out->running = atomic_load(&d->load.running);
    out->waiting = atomic_load(&d->load.waiting);
    out->free_pages = atomic_load(&d->load.free_pages);
    out->cached_pages = atomic_load(&d->load.cached_pages);
    out->total_pages = (uint32_t)sl_arena_pages(d->o.arena);
    out->queued_tokens = atomic_load(&d->load.queued_tokens);
    out->tokens_done = atomic_load(&d->load.tokens_done);
    out->hits = atomic_load(&d->load.hits);
    out->misses = atomic_load(&d->load.misses);
    out->swap_bytes = atomic_load(&d->load.swap_bytes);
    out->draining = atomic_load(&d->load.draining) != 0;
}

static void on_accepted(void *arg, sl_wep *ep, const char *address)
{
    sl_wpeer_accepted(arg, ep, address);
}

static void on_connected(void *arg, sl_wep *ep, sl_status st, const char *why)
{
    (void)arg;
    (void)st;
    (void)why;
    sl_wep_close(ep, SL_TP_CLOSE_FORCE); /* cannot happen: we connect to the router only */
}

static void on_msg(void *arg, sl_wep *ep, sl_wmsg *m)
{
    if (sl_wep_user(ep))
        sl_wpeer_msg(arg, ep, m);
    else
        sl_wmsg_free(m);
}

static void on_failed(void *arg, sl_wep *ep, sl_status st, const char *why)
{
    if (sl_wep_user(ep))
        sl_wpeer_failed(arg, ep, st, why);
}

static void on_closed(void *arg, sl_wep *ep)
{
    if (sl_wep_user(ep))
        sl_wpeer_closed(arg, ep);
}

static void on_mail(void *arg, sl_wmail *m)
{
    SL_CHECK(m->kind == DM_FENCE, "mail %d", m->kind);
    sl_wpeer_fence(arg, (sl_fence *)m);
}

static uint64_t on_tick(void *arg, uint64_t now)
{
    return sl_wpeer_tick(arg, now);
}

static sl_worker_role make_role(sl_decode *d)
{
    return (sl_worker_role){.arg = d,
                            .comp = "decode",
                            .router_up = on_router_up,
                            .router_down = on_router_down,
                            .fatal = on_fatal,
                            .router_msg = on_router_msg,
                            .load = on_load,
                            .ep_accepted = on_accepted,
                            .ep_connected = on_connected,
                            .ep_msg = on_msg,
                            .ep_failed = on_failed,
                            .ep_closed = on_closed,
                            .mail = on_mail,
                            .tick = on_tick};
}

/* ---- engine thread ---- */

static void on_engine_mail(sl_decode *d, sl_wmail *m)
{
    switch (m->kind) {
    case DM_MSG:
        sl_tickets_msg(d, (sl_wmsg *)m);
        return;
    case DM_CHECKED:
        sl_tickets_checked(d, (sl_check *)m);
        return;
    case DM_CONNECTED:
        sl_tickets_connected(d, ((sl_fence *)m)->writer);
        break;
    case DM_FENCED:
        sl_tickets_fenced(d, ((sl_fence *)m)->writer);
        break;
    case DM_ROUTER_UP:
        sl_report_router_up(d);
        break;
    case DM_ROUTER_DOWN:
        d->router_up = false;
        sl_tickets_router_down(d);
        break;
    case DM_FATAL:
        d->fatal = true;
        return;
    default:
        SL_CHECK(false, "mail %d", m->kind);
    }
    free(m);
}

static void take_mail(sl_decode *d)
{
    for (sl_mail *m; (m = sl_mailbox_take(d->inbox));)
        on_engine_mail(d, (sl_wmail *)m);
}

/* The flag may be set by a signal handler or by another thread. */
static bool stopping(const volatile int *stop)
{
    return __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

sl_status sl_decode_run(sl_decode *d, const volatile int *stop, uint32_t drain_timeout_ms, sl_err *err)
{
    uint64_t give_up = UINT64_MAX, told = 0;
    for (;;) {
        take_mail(d);
        if (d->fatal)
            return sl_fail(err, d->fatal_status, "%s", d->fatal_reason);
        uint64_t now = sl_now_ns();
        if (stopping(stop) && give_up == UINT64_MAX) {
            d->draining = true;
            told = now;
            give_up = now + drain_timeout_ms * MS;
            sl_report_load(d);
            sl_worker_tell_router(d->worker, &(sl_msg){.type = SL_MSG_DRAIN});
        }
        uint64_t due = sl_tickets_tick(d, now);
        if (stopping(stop) && ((!d->n_tickets && now >= told + LEAVE_MS * MS) || now >= give_up)) {
            sl_report_load(d);
            return SL_OK;
        }
        sl_batch_admit(d);
        sl_status st;
        bool worked = sl_batch_step(d, &st, err);
        sl_report_kv_events(d);
        sl_report_load(d);
        if (st != SL_OK)
            return st;
        if (worked)
            continue;
        uint64_t ms = due > now ? (due - now) / MS + 1 : 1;
        sl_mailbox_wait(d->inbox, ms < IDLE_MS ? (int)ms : IDLE_MS);
    }
}

static void fill_hello(sl_decode *d)
{
    const sl_decode_opts *o = &d->o;
    sl_msg_hello *h = &d->hello;
    h->version = SL_MSG_VERSION;
    h->role = SL_ROLE_DECODE;
    strncpy(h->name, o->name, sizeof h->name - 1);
    strncpy(h->cluster_tag, o->cluster_tag, sizeof h->cluster_tag - 1);
    strncpy(h->model, o->model, sizeof h->model - 1);
    strncpy(h->metrics, o->metrics_address, sizeof h->metrics - 1);
    sl_geometry_write(d->geo, &d->geometry);
    h->id.fingerprint = d->geo->fingerprint;
    h->id.geometry = (sl_blob){d->geometry.data, d->geometry.len};
    h->max_context = (uint32_t)o->runner->max_context;
    h->max_batch = (uint32_t)o->max_batch;
    h->total_pages = (uint32_t)sl_arena_pages(o->arena);
    h->vocab_size = (uint32_t)o->runner->vocab;
    h->pid = (uint32_t)getpid();
}

static sl_status make_parts(sl_decode *d, sl_err *err)
{
    sl_store_opts so = {.n_pages = sl_arena_pages(d->o.arena),
                        .fingerprint = d->geo->fingerprint,
                        .prefix_cache = d->o.prefix_cache,
                        .event = sl_report_event,
                        .event_ctx = d};
    size_t layers = (size_t)d->geo->n_layers, batch = (size_t)d->o.max_batch;
    d->batch = calloc(batch, sizeof *d->batch);
    d->items = calloc(batch, sizeof *d->items);
    d->layers_seen = calloc(layers, sizeof *d->layers_seen);
    d->layers_now = calloc(layers, sizeof *d->layers_now);
    d->c.layer_hit = calloc(layers, sizeof *d->c.layer_hit);
    d->c.layer_miss = calloc(layers, sizeof *d->c.layer_miss);
    d->c.layer_evict = calloc(layers, sizeof *d->c.layer_evict);
    if (!d->batch || !d->items || !d->layers_seen || !d->layers_now || !d->c.layer_hit || !d->c.layer_miss ||
        !d->c.layer_evict)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = sl_store_create(&so, &d->store, err);
    if (st == SL_OK)
        st = sl_sampler_create(d->o.runner->vocab, d->o.eos_ids, (size_t)d->o.n_eos, &d->sampler);
    if (st == SL_OK)
        st = sl_mailbox_create(&d->inbox);
    if (st == SL_OK)
        st = sl_checker_start(d, err);
    return st;
}

static sl_status open_direct(sl_decode *d, sl_err *err)
{
    sl_cfg_shipping want = d->o.shipping;
    sl_err why = {0};
    if (want == SL_CFG_SHIP_STAGING || want == SL_CFG_SHIP_GPU)
        return SL_OK;
    sl_status st =
        sl_arena_fd(d->o.arena) < 0
            ? sl_fail(&why, SL_ERR_UNSUPPORTED, "the store is not shared memory")
            : sl_direct_host_create(sl_arena_fd(d->o.arena), sl_arena_bytes(d->o.arena), &d->direct, &why);
    if (st != SL_OK && want == SL_CFG_SHIP_DIRECT)
        return sl_fail(err, st, "cluster.shipping is direct, which is not possible: %s", why.text);
    sl_log(SL_LOG_INFO, "decode", "shipping", "direct=%s reason=\"%s\"", st == SL_OK ? "offered" : "no",
           st == SL_OK ? "to writers of this host" : why.text);
    return SL_OK;
}

sl_status sl_decode_create(const sl_decode_opts *opts, sl_decode **out, sl_err *err)
{
    sl_decode *d = calloc(1, sizeof *d);
    if (!d)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    d->o = *opts;
    d->geo = sl_arena_geometry(opts->arena);
    sl_wr_init(&d->geometry);
    sl_wr_init(&d->kv_stored);
    sl_wr_init(&d->kv_removed);
    fill_hello(d);
    sl_status st = make_parts(d, err);
    if (st == SL_OK)
        st = open_direct(d, err);
    if (st == SL_OK) {
        sl_report_metrics_find(d, opts->worker.metrics);
        sl_report_load(d);
        sl_worker_opts w = opts->worker;
        w.listens = true;
        w.memory = sl_arena_base(opts->arena);
        w.memory_bytes = sl_arena_bytes(opts->arena);
        w.hello = &d->hello;
        sl_worker_role role = make_role(d);
        st = sl_worker_start(&w, &role, &d->worker, err);
    }
    if (st != SL_OK) {
        sl_decode_destroy(d);
        return st;
    }
    *out = d;
    return SL_OK;
}

/* Threads are gone: what was on its way to the engine thread. */
static void drop_mail(sl_decode *d)
{
    for (sl_mail *l; d->inbox && (l = sl_mailbox_take(d->inbox));) {
        sl_wmail *m = (sl_wmail *)l;
        if (m->kind == DM_MSG) {
            sl_wmsg_free((sl_wmsg *)m);
        } else if (m->kind == DM_CHECKED) {
            ((sl_check *)m)->ticket->checks--;
            sl_check_free((sl_check *)m);
        } else if (m->kind != DM_FATAL) {
            free(m);
        }
    }
}

void sl_decode_destroy(sl_decode *d)
{
    if (!d)
        return;
    sl_worker_stop(d->worker);
    sl_checker_stop(d);
    drop_mail(d);
    while (d->tickets)
        sl_ticket_free(d, d->tickets, true);
    while (d->peers) {
        sl_wpeer *w = d->peers;
        d->peers = w->next;
        free(w);
    }
    sl_direct_host_destroy(d->direct);
    sl_mailbox_destroy(d->inbox);
    sl_sampler_destroy(d->sampler);
    sl_store_destroy(d->store);
    sl_wr_free(&d->geometry);
    sl_wr_free(&d->kv_stored);
    sl_wr_free(&d->kv_removed);
    free(d->batch);
    free(d->items);
    free(d->layers_seen);
    free(d->layers_now);
    free(d->c.layer_hit);
    free(d->c.layer_miss);
    free(d->c.layer_evict);
    free(d);
}

const char *sl_decode_address(const sl_decode *d)
{
    return sl_worker_address(d->worker);
}

sl_status sl_decode_counts_get(const sl_decode *d, sl_decode_counts *out, sl_err *err)
{
    sl_store_stats st;
    sl_store_stats_get(d->store, &st);
    *out = (sl_decode_counts){.tickets = d->n_tickets,
                              .pages_total = st.total,
                              .pages_free = st.free,
                              .pages_cached = st.cached,
                              .steps = d->steps,
                              .tokens = d->tokens,
                              .stale = d->stale,
                              .corrupt = d->corrupt,
                              .retracted = d->retracted,
                              .spilled = d->spilled,
                              .fences = d->fences};
    for (const sl_ticket *t = d->tickets; t; t = t->next)
        out->quarantined += t->state == TICKET_QUARANTINE;
    return sl_store_check(d->store, err);
}
