/*
 * The transport thread: it makes progress, handles mail and timers, then sleeps on the descriptors of the transport and
 * of the mailbox.
 *
 * When it stops, it first delivers the mail that is still queued, and then destroys the transport, which closes every
 * connection by force.
 */
#include "worker/worker.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/worker_impl.h"

enum { PROGRESS_ROUNDS = 64, MAIL_ROUNDS = 1024 };

/*
 * Listens. The address for other processes has the port of the listener, and the advertised host if one is configured.
 */
static sl_status listen_there(sl_worker *w, sl_err *err)
{
    sl_status st =
        sl_tp_listen(w->tp, w->o.listen_host, w->o.listen_port, w->address, sizeof w->address, err);
    const char *host = w->o.advertise_host, *port = strrchr(w->address, ':');
    if (st != SL_OK || !host || !*host || !port)
        return st;
    char told[SL_TP_ADDRESS_MAX];
    int n = snprintf(told, sizeof told, strchr(host, ':') ? "[%s]%s" : "%s%s", host, port);
    if (n < 0 || (size_t)n >= sizeof told)
        return sl_fail(err, SL_ERR_INVALID, "cluster.advertise_host \"%s\" is too long", host);
    memcpy(w->address, told, sizeof told);
    return SL_OK;
}

static int by_address(const void *a, const void *b)
{
    const sl_tp_mem *const *x = a, *const *y = b;
    return (uintptr_t)(*x)->base < (uintptr_t)(*y)->base ? -1 : 1;
}

static sl_status register_device(sl_worker *w, sl_err *err)
{
    sl_err why = {0};
    w->device_mem = calloc((size_t)w->o.n_device_memory + 1, sizeof *w->device_mem);
    if (!w->device_mem)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int i = 0; i < w->o.n_device_memory; i++) {
        const sl_worker_range *r = &w->o.device_memory[i];
        sl_status st =
            sl_tp_mem_register(w->tp, r->base, r->bytes, SL_TP_DEVICE, SL_TP_LOCAL, &w->device_mem[i], &why);
        if (st != SL_OK)
            return sl_fail(
                err, st,
                "cluster.shipping is gpu, but transport %s cannot move GPU memory here (%.250s); take "
                "auto, staging or direct",
                w->o.transport, why.text);
        w->n_device_mem++;
    }
    qsort(w->device_mem, (size_t)w->n_device_mem, sizeof *w->device_mem, by_address);
    return SL_OK;
}

sl_tp_mem *sl_worker_device_memory(sl_worker *w, const void *address)
{
    /* Ranges before low begin at or before the address; ranges from high on begin after it. */
    int low = 0, high = w->n_device_mem;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if ((uintptr_t)w->device_mem[mid]->base <= (uintptr_t)address)
            low = mid + 1;
        else
            high = mid;
    }
    sl_tp_mem *m = low ? w->device_mem[low - 1] : NULL;
    return m && (uintptr_t)address - (uintptr_t)m->base < m->bytes ? m : NULL;
}

static sl_status open_transport(sl_worker *w, sl_err *err)
{
    sl_tp_options o = sl_tp_options_default();
    sl_wep_events(w, &o.events);
    o.tls = w->o.tls && *w->o.tls ? w->o.tls : NULL;
    o.fabric = w->o.fabric;
    o.secret = w->o.secret;
    o.encrypt = w->o.encrypt;
    o.numa_node = w->o.numa_node;
    o.connect_timeout_ms = w->o.connect_timeout_ms;
    if (w->o.enter)
        SL_TRY(w->o.enter(w->o.enter_arg, err));
    sl_status st = sl_transport_create(w->o.transport, &o, &w->tp, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "transport %s", w->o.transport);
    SL_TRY(sl_wep_handlers(w));
    /* Only a listening worker has peers that write into its memory; other workers only put from it and get into it. */
    unsigned access = SL_TP_LOCAL | (w->o.listens ? SL_TP_REMOTE_READ | SL_TP_REMOTE_WRITE : 0);
    if (w->o.memory)
        SL_TRY(sl_tp_mem_register(w->tp, w->o.memory, w->o.memory_bytes, SL_TP_HOST, access, &w->mem, err));
    if (w->o.n_device_memory)
        SL_TRY(register_device(w, err));
    return w->o.listens ? listen_there(w, err) : SL_OK;
}

static void report_start(sl_worker *w, sl_status st, const sl_err *err)
{
    pthread_mutex_lock(&w->lock);
    w->started = true;
    w->start_status = st;
    w->start_err = *err;
    pthread_cond_signal(&w->started_cond);
    pthread_mutex_unlock(&w->lock);
}

static void log_start(sl_worker *w)
{
    sl_tp_info info;
    sl_tp_query(w->tp, &info);
    sl_log(SL_LOG_INFO, w->calls.comp, "transport",
           "name=%s version=\"%s\" listen=%s devices=\"%s\" transports=\"%s\" registered_bytes=%zu "
           "gpu_ranges=%d",
           info.name, info.version, w->address[0] ? w->address : "-", info.devices, info.transports,
           w->o.memory ? w->o.memory_bytes : 0, w->n_device_mem);
}

static void send_to_all_routers(sl_worker *w, sl_wsend *s)
{
    for (int i = 0; i < w->n_links; i++) {
        uint8_t *copy = w->links[i].state == LINK_UP ? malloc(s->bytes) : NULL;
        if (!copy)
            continue;
        memcpy(copy, s->data, s->bytes);
        sl_wep_send_bytes(w->links[i].ep, s->id, copy, s->bytes);
    }
    free(s->data);
}

static void send_for_other_thread(sl_worker *w, sl_wsend *s)
{
    sl_wep *ep = s->serial ? sl_wep_find(w, s->serial) : NULL;
    if (ep) {
        sl_wep_send_bytes(ep, s->id, s->data, s->bytes);
        if (s->since_ns)
            sl_histogram_observe(w->h_sent, (double)(sl_now_ns() - s->since_ns) / 1e9);
    } else if (s->serial) {
        free(s->data);
    } else {
        send_to_all_routers(w, s);
    }
    free(s);
}

static void hold(sl_worker *w, sl_whold *h)
{
    sl_worker_links_hold(w, h->mail.kind == SL_WMAIL_HOLD);
    if (!h->tell) {
        free(h);
        return;
    }
    h->mail.kind = SL_WMAIL_HELD;
    sl_mailbox_post(h->tell, &h->mail.link);
}

static bool drain_mail(sl_worker *w)
{
    bool any = false;
    for (int i = 0; i < MAIL_ROUNDS; i++) {
        sl_wmail *m = (sl_wmail *)sl_mailbox_take(w->inbox);
        if (!m)
            return any;
        any = true;
        if (m->kind == SL_WMAIL_STOP)
            w->stopping = true;
        else if (m->kind == SL_WMAIL_SEND)
            send_for_other_thread(w, (sl_wsend *)m);
        else if (m->kind == SL_WMAIL_HOLD || m->kind == SL_WMAIL_JOIN)
            hold(w, (sl_whold *)m);
        else
            w->calls.mail(w->calls.arg, m);
    }
    return any;
}

static void sleep_until(sl_worker *w, uint64_t due)
{
    if (sl_tp_arm(w->tp) != SL_OK)
        return;
    uint64_t now = sl_now_ns();
    uint64_t ms = due <= now ? 0 : (due - now) / 1000000 + 1;
    struct pollfd p[2] = {{.fd = sl_tp_event_fd(w->tp), .events = POLLIN},
                          {.fd = sl_mailbox_fd(w->inbox), .events = POLLIN}};
    if (poll(p, 2, ms > 1000 ? 1000 : (int)ms) > 0 && p[1].revents)
        sl_mailbox_ack(w->inbox);
}

static void loop(sl_worker *w)
{
    w->last_loop_ns = sl_now_ns();
    while (!w->stopping) {
        bool busy = false;
        if (w->o.hook)
            w->o.hook(w->o.hook_arg, w->tp);
        for (int i = 0; i < PROGRESS_ROUNDS && sl_tp_progress(w->tp) > 0; i++)
            busy = true;
        busy |= drain_mail(w);
        uint64_t now = sl_now_ns();
        uint64_t due = sl_worker_links_tick(w, now), role_due = w->calls.tick(w->calls.arg, now);
        w->last_loop_ns = now;
        busy |= sl_wep_flush_queues(w);
        if (!busy)
            sleep_until(w, due < role_due ? due : role_due);
    }
}

static void *thread_main(void *arg)
{
    sl_worker *w = arg;
    sl_err err = {0};
    sl_status st = open_transport(w, &err);
    if (st != SL_OK) {
        report_start(w, st, &err);
        goto destroy;
    }
    log_start(w);
    report_start(w, SL_OK, &err);
    loop(w);
    while (drain_mail(w))
        ;
destroy:
    sl_tp_destroy(w->tp);
    free(w->device_mem);
    sl_wep_free_all(w);
    return NULL;
}

static void counters(sl_worker *w, sl_metrics *m)
{
    if (w->hello.role != SL_ROLE_PREFILL)
        w->h_sent = sl_metrics_histogram(m, "sluice_decode_tokens_sent_seconds", NULL);
    w->c_malformed = sl_metrics_counter(m, "sluice_messages_dropped_total", SL_LABELS("malformed"));
    w->c_unknown = sl_metrics_counter(m, "sluice_messages_dropped_total", SL_LABELS("unknown"));
    w->c_failed = sl_metrics_counter(m, "sluice_transport_peer_failures_total", NULL);
    w->g_peers = sl_metrics_gauge(m, "sluice_transport_peers", NULL);
}

static void worker_free(sl_worker *w)
{
    sl_mailbox_destroy(w->inbox);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->started_cond);
    free(w);
}

sl_status sl_worker_start(const sl_worker_opts *opts, const sl_worker_calls *calls, sl_worker **out,
                          sl_err *err)
{
    sl_worker *w = calloc(1, sizeof *w);
    if (!w)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    w->o = *opts;
    w->calls = *calls;
    w->hello = *opts->hello;
    w->held = opts->held;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->started_cond, NULL);
    counters(w, opts->metrics);
    sl_worker_links_init(w);
    sl_status st = sl_mailbox_create(&w->inbox);
    if (st != SL_OK) {
        worker_free(w);
        return sl_fail(err, st, "cannot create a mailbox");
    }
    *out = w; /* set early, because callbacks may use it before the thread reports that it has started */
    if (pthread_create(&w->thread, NULL, thread_main, w) != 0) {
        *out = NULL;
        worker_free(w);
        return sl_fail(err, SL_ERR_IO, "cannot start the transport thread");
    }
    pthread_mutex_lock(&w->lock);
    while (!w->started)
        pthread_cond_wait(&w->started_cond, &w->lock);
    pthread_mutex_unlock(&w->lock);
    if (w->start_status == SL_OK)
        return SL_OK;
    st = w->start_status;
    if (err)
        *err = w->start_err;
    pthread_join(w->thread, NULL);
    *out = NULL;
    worker_free(w);
    return st;
}

void sl_worker_stop(sl_worker *w)
{
    if (!w)
        return;
    w->stop_mail.kind = SL_WMAIL_STOP;
    sl_mailbox_post(w->inbox, &w->stop_mail.link);
    pthread_join(w->thread, NULL);
    worker_free(w);
}

void sl_worker_hold(sl_worker *w, bool on, sl_mailbox *tell)
{
    sl_whold *h = calloc(1, sizeof *h);
    SL_CHECK(h, "out of memory");
    *h = (sl_whold){.mail.kind = on ? SL_WMAIL_HOLD : SL_WMAIL_JOIN, .tell = tell};
    sl_mailbox_post(w->inbox, &h->mail.link);
}

void sl_worker_post(sl_worker *w, sl_wmail *m)
{
    sl_mailbox_post(w->inbox, &m->link);
}

/* serial 0: all routers. bytes.data NULL: out of memory. */
static void send_by_mail(sl_worker *w, uint32_t serial, sl_msg_bytes bytes)
{
    sl_wsend *s = bytes.data ? malloc(sizeof *s) : NULL;
    if (!s) {
        free(bytes.data);
        sl_log(SL_LOG_ERROR, w->calls.comp, "send_failed", "type=%s reason=\"out of memory\"",
               bytes.id == SL_MSG_BATCH ? "batch" : sl_msg_type_name((sl_msg_type)bytes.id));
        return;
    }
    *s = (sl_wsend){.mail.kind = SL_WMAIL_SEND,
                    .serial = serial,
                    .id = bytes.id,
                    .data = bytes.data,
                    .bytes = bytes.n,
                    .since_ns = bytes.since_ns};
    sl_mailbox_post(w->inbox, &s->mail.link);
}

static sl_msg_bytes encoded(const sl_msg *msg)
{
    sl_wr wr;
    sl_wr_init(&wr);
    sl_msg_encode(msg, &wr);
    if (wr.bad)
        sl_wr_free(&wr);
    return (sl_msg_bytes){(uint16_t)msg->type, wr.data, wr.len, 0};
}

void sl_worker_tell_peer(sl_worker *w, uint32_t serial, const sl_msg *msg)
{
    if (serial)
        send_by_mail(w, serial, encoded(msg));
}

void sl_worker_tell_router(sl_worker *w, uint32_t router, const sl_msg *msg)
{
    sl_worker_tell_peer(w, router, msg); /* a session is named by the serial of its endpoint */
}

void sl_worker_tell_router_bytes(sl_worker *w, uint32_t router, sl_msg_bytes bytes)
{
    if (router)
        send_by_mail(w, router, bytes);
    else
        free(bytes.data);
}

void sl_worker_tell_routers(sl_worker *w, const sl_msg *msg)
{
    send_by_mail(w, 0, encoded(msg));
}

sl_tp_mem *sl_worker_memory(sl_worker *w)
{
    return w->mem;
}

const char *sl_worker_address(const sl_worker *w)
{
    return w->address;
}
