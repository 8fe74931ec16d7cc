/*
 * The direct path (worker/direct.h): copies into the decode worker's arena, which this process has mapped.
 *
 * There are two kinds of copies. The copier's thread copies rows that were just computed from device memory, as soon as
 * it has registered the mapping with the device. Before that, and for pages of the own cache, the transport thread
 * copies from the own arena, at most DIRECT_TURN bytes before it handles its messages again. In both cases a span
 * counts as in flight until it has landed, so DRAINED and COMMIT are true when they are sent. A mapping lasts until the
 * connection is closed and every batch has come back from the copier.
 */
#include "prefill/path.h"

#include <stdlib.h>
#include <string.h>

#include "prefill/peer.h"
#include "prefill/prefill_impl.h"

enum { WINDOW_BATCHES = 32 /* largest number of batches of a connection that the copier holds */ };

/* ---- mails to the copier ---- */

static sl_copier_mail *take_mail(sl_prefill *p, sl_copier_what what, sl_decode_peer *d)
{
    sl_copier_mail *m = p->free_batches;
    if (m)
        p->free_batches = (sl_copier_mail *)m->mail.link.next;
    else
        m = malloc(sizeof *m);
    if (!m)
        return NULL;
    m->what = what;
    m->worker = p->worker;
    m->peer = d;
    m->job = NULL;
    m->direct = d->direct.map;
    m->total = 0;
    m->n = 0;
    m->why[0] = '\0';
    return m;
}

static void give_mail(sl_prefill *p, sl_copier_mail *m)
{
    m->mail.link.next = (sl_mail *)p->free_batches;
    p->free_batches = m;
}

/* ---- opening and closing ---- */

/* Creates the copier, if the engine's rows are in device memory. */
static sl_status direct_prepare(sl_prefill *p, sl_err *err)
{
    SL_TRY(sl_path_find_device_layers(p, err));
    if (!p->dev_layers)
        return SL_OK;
    return sl_copier_create(p->o.backend, &p->o.backend_opts, PM_COPIED, &p->copier, err);
}

static sl_status direct_open(sl_prefill *p, sl_decode_peer *d, const sl_msg_peer_welcome *w, sl_err *err)
{
    (void)p;
    if (!w->direct.len)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "the decode worker does not offer it: it runs on another host, or its log says why");
    return sl_direct_attach(w->direct.data, w->direct.len, w->arena_bytes, &d->direct.map, err);
}

/* Asks the copier to register the mapping with the device. Without a copier the transport thread copies. */
static void direct_opened(sl_prefill *p, sl_decode_peer *d)
{
    sl_copier_mail *m = p->copier ? take_mail(p, SL_COPIER_REGISTER, d) : NULL;
    if (!m)
        return;
    d->direct.batches++;
    sl_copier_post(p->copier, m);
}

static bool direct_close(sl_prefill *p, sl_decode_peer *d)
{
    if (d->direct.batches) /* called again when the last batch comes back */
        return false;
    sl_copier_mail *m = d->direct.registered ? take_mail(p, SL_COPIER_LET_GO, d) : NULL;
    if (m)
        sl_copier_post(p->copier, m); /* the copier also detaches the mapping */
    else
        sl_direct_detach(d->direct.map);
    d->direct.map = NULL;
    return true;
}

static bool registered_with_device(const sl_decode_peer *d)
{
    return d->direct.registered;
}

/* ---- copies ---- */

static uint8_t *place(const sl_decode_peer *d, const sl_span *s)
{
    uint64_t at = s->remote - d->remote.base, bytes = (uint64_t)s->bytes,
             all = sl_direct_bytes(d->direct.map);
    SL_CHECK(at <= all && bytes <= all - at, "a span outside the decode worker's arena");
    return sl_direct_base(d->direct.map) + at;
}

/* Takes the right to write; false when the decode worker has taken it back. */
static bool begin(const sl_prefill *p, sl_decode_peer *d)
{
    if (!sl_direct_begin(d->direct.map))
        return false;
    if (p->o.direct_hook)
        p->o.direct_hook(p->o.direct_hook_arg);
    return true;
}

/* Moves spans of the open layer into a batch until the layer ends or the batch is full. */
static void fill(sl_copier_mail *m, sl_ship_cursor *c, const sl_decode_peer *d)
{
    sl_span s;
    while (sl_cursor_next(c, &s)) {
        if (!sl_copier_add(m, &s, place(d, &s))) {
            sl_cursor_hold(c, &s); /* the next batch begins with it */
            return;
        }
    }
}

/* For rows in device memory: posts one batch to the copier. */
static sl_status post_batch(sl_prefill *p, sl_prefill_job *j)
{
    sl_decode_peer *d = j->ship.peer;
    if (d->direct.batches >= WINDOW_BATCHES)
        return SL_AGAIN;
    sl_copier_mail *m = take_mail(p, SL_COPIER_COPY, d);
    if (!m)
        return SL_ERR_NO_MEMORY;
    fill(m, &j->ship.cursor, d);
    if (!m->n || !begin(p, d)) {
        sl_status st = m->n ? SL_ERR_PEER : SL_INPROGRESS;
        give_mail(p, m);
        return st;
    }
    m->job = j;
    j->ship.bytes += m->total;
    sl_counter_add(p->c.put_bytes, m->total);
    sl_ship_posted(j);
    d->direct.batches++;
    sl_copier_post(p->copier, m);
    return SL_OK;
}

/* For rows in the own arena: copies one span at once. */
static sl_status copy_span(sl_prefill *p, sl_prefill_job *j)
{
    sl_decode_peer *d = j->ship.peer;
    sl_span s;
    if (p->direct_left <= 0)
        return SL_AGAIN;
    if (!sl_cursor_next(&j->ship.cursor, &s))
        return SL_INPROGRESS;
    p->direct_left -= s.bytes;
    uint8_t *there = place(d, &s);
    if (!begin(p, d))
        return SL_ERR_PEER;
    memcpy(there, s.local, (size_t)s.bytes);
    sl_direct_end(d->direct.map);
    j->ship.bytes += (uint64_t)s.bytes;
    sl_counter_add(p->c.put_ok, 1);
    sl_counter_add(p->c.put_bytes, (uint64_t)s.bytes);
    return SL_OK;
}

/* The ticket pins these pages; if it no longer does, the checksums show it. */
static sl_status direct_get(sl_prefill *p, sl_prefill_job *j, const sl_span *s)
{
    if (p->direct_left <= 0)
        return SL_AGAIN;
    p->direct_left -= s->bytes;
    memcpy(s->local, place(j->ship.peer, s), (size_t)s->bytes);
    sl_counter_add(p->c.get_ok, 1);
    sl_counter_add(p->c.get_bytes, (uint64_t)s->bytes);
    return SL_OK;
}

static sl_status direct_post(sl_prefill *p, sl_prefill_job *j)
{
    return j->ship.map.dev ? post_batch(p, j) : copy_span(p, j);
}

const sl_ship_path sl_path_direct = {.way = &sl_shipping_direct,
                                     .needs_process = true,
                                     .reason = "its store is memory of this host",
                                     .prepare = direct_prepare,
                                     .open = direct_open,
                                     .opened = direct_opened,
                                     .from_device = registered_with_device,
                                     .post = direct_post,
                                     .get = direct_get,
                                     .close = direct_close};

/* ---- mails that come back from the copier ---- */

static void registered(sl_decode_peer *d, const sl_copier_mail *m)
{
    d->direct.registered = m->status == SL_OK;
    sl_log(SL_LOG_INFO, "prefill", "shipping", "path=direct copies=%s address=%s worker_id=%u reason=\"%s\"",
           d->direct.registered ? "device" : "host", d->remote.address, d->remote.worker_id,
           d->direct.registered ? "its store is registered with the device" : m->why);
}

/* The job still exists: a shipment is not OVER while one of its batches is in flight. */
static void copied(sl_prefill *p, sl_decode_peer *d, const sl_copier_mail *m)
{
    sl_prefill_job *j = m->job;
    sl_direct_end(d->direct.map);
    sl_counter_add(m->status == SL_OK ? p->c.put_ok : p->c.put_failed, 1);
    if (m->status != SL_OK)
        sl_ship_fail(p, j, SL_ERR_DEVICE, true, "copy into the decode worker's memory: %s", m->why);
    sl_ship_completed(j, d);
}

void sl_copies_back(sl_prefill *p, sl_copier_mail *m)
{
    sl_decode_peer *d = m->peer; /* not there any more when the copier has let it go */
    if (m->what == SL_COPIER_REGISTER)
        registered(d, m);
    else if (m->what == SL_COPIER_COPY)
        copied(p, d, m);
    if (m->what != SL_COPIER_LET_GO && --d->direct.batches == 0 && d->remote.state == SL_REMOTE_CLOSED &&
        direct_close(p, d))
        sl_peer_unused(p, d);
    give_mail(p, m);
}

static void drop(void *arg, sl_copier_mail *m)
{
    sl_prefill *p = arg;
    if (m->what == SL_COPIER_COPY)
        sl_direct_end(m->direct);
    if (m->what == SL_COPIER_LET_GO)
        sl_direct_detach(m->direct);
    give_mail(p, m);
}

void sl_copies_destroy(sl_prefill *p)
{
    sl_copier_destroy(p->copier, drop, p);
    for (int i = 0; i < 2; i++) {
        for (sl_decode_peer *d = i ? p->closed_peers : p->peers; d; d = d->next)
            sl_direct_detach(d->direct.map);
    }
    while (p->free_batches) {
        sl_copier_mail *m = p->free_batches;
        p->free_batches = (sl_copier_mail *)m->mail.link.next;
        free(m);
    }
}
