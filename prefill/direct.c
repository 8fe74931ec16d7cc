/*
 * Paths: which way the rows of a connection go, and the direct one (worker/direct.h): into the decode
 * worker's arena, mapped here. The other two are puts (ship_post.c): from the own arena, or from device
 * memory.
 *
 * Two kinds of copies. Rows that were just computed go from device memory, by the copier's thread, once it
 * has registered the mapping with the device; until then, and for pages of the own cache, the transport
 * thread copies from the own arena. Either way a span counts as outstanding until it has landed, so DRAINED
 * and COMMIT are true when they are said. A mapping lives until the connection is closed and every batch is
 * back.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "prefill/prefill_impl.h"

enum { WINDOW_BATCHES = 32 };

static const char *why_not(sl_prefill *p, const sl_msg_peer_welcome *w)
{
    if (p->o.shipping == SL_CFG_SHIP_STAGING)
        return "cluster.shipping is staging";
    if (p->o.shipping == SL_CFG_SHIP_GPU)
        return "cluster.shipping is gpu";
    return w->direct.len ? NULL : "the decode worker does not offer it: another host, or its log says why";
}

/* ---- batches ---- */

static sl_copier_mail *take_mail(sl_prefill *p, sl_copier_what what, sl_dpeer *d)
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
    m->direct = d ? d->direct : NULL;
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

/* Asks the copier to make the mapping reachable for the device. Without one the transport thread copies. */
static void request_copies(sl_prefill *p, sl_dpeer *d)
{
    sl_copier_mail *m = p->copier ? take_mail(p, SL_COPIER_REGISTER, d) : NULL;
    if (!m)
        return;
    d->batches++;
    sl_copier_post(p->copier, m);
}

sl_status sl_path_choose(sl_prefill *p, sl_dpeer *d, const sl_msg_peer_welcome *w, sl_err *err)
{
    sl_err reason = {0};
    const char *no = why_not(p, w);
    if (!no && sl_direct_attach(w->direct.data, w->direct.len, w->arena_bytes, &d->direct, &reason) != SL_OK)
        no = reason.text;
    if (no && p->o.shipping == SL_CFG_SHIP_DIRECT)
        return sl_fail(err, SL_ERR_REFUSED, "cluster.shipping is direct, which is not possible: %s", no);
    d->gpu = p->o.shipping == SL_CFG_SHIP_GPU;
    sl_log(SL_LOG_INFO, "prefill", "shipping", "path=%s address=%s worker_id=%u reason=\"%s\"",
           d->gpu ? "gpu"
           : no   ? "staging"
                  : "direct",
           d->address, d->worker_id, no ? no : "its store is memory of this host");
    if (!no)
        request_copies(p, d);
    return SL_OK;
}

static uint8_t *place(const sl_dpeer *d, const sl_span *s)
{
    uint64_t at = s->remote - d->base, bytes = (uint64_t)s->bytes, all = sl_direct_bytes(d->direct);
    SL_CHECK(at <= all && bytes <= all - at, "a span outside the decode worker's arena");
    return sl_direct_base(d->direct) + at;
}

sl_status sl_copies_post(sl_prefill *p, sl_pjob *j)
{
    sl_dpeer *d = j->t.peer;
    sl_span s;
    if (d->batches >= WINDOW_BATCHES)
        return SL_AGAIN;
    sl_copier_mail *m = take_mail(p, SL_COPIER_COPY, d);
    if (!m)
        return SL_ERR_NO_MEMORY;
    if (j->t.held.bytes && sl_copier_add(m, &j->t.held, place(d, &j->t.held)))
        j->t.held.bytes = 0;
    while (!j->t.held.bytes && sl_pieces_next(&j->t.it, &s)) {
        if (!sl_copier_add(m, &s, place(d, &s)))
            j->t.held = s; /* first of the next batch */
    }
    if (!m->n) {
        give_mail(p, m);
        return SL_INPROGRESS;
    }
    if (!sl_direct_begin(d->direct)) {
        give_mail(p, m);
        return SL_ERR_PEER;
    }
    if (p->o.direct_hook)
        p->o.direct_hook(p->o.direct_hook_arg);
    m->job = j;
    j->t.bytes += m->total;
    sl_counter_add(p->c.put_bytes, m->total);
    if (!d->in_flight)
        d->progress_ns = sl_now_ns();
    d->in_flight++;
    d->batches++;
    j->t.in_flight++;
    sl_copier_post(p->copier, m);
    return SL_OK;
}

/* ---- the way back ---- */

static void registered(sl_prefill *p, sl_dpeer *d, const sl_copier_mail *m)
{
    (void)p;
    d->registered = m->status == SL_OK;
    sl_log(SL_LOG_INFO, "prefill", "shipping", "path=direct copies=%s address=%s worker_id=%u reason=\"%s\"",
           d->registered ? "device" : "host", d->address, d->worker_id,
           d->registered ? "its store is registered with the device" : m->why);
}

static void copied(sl_prefill *p, sl_dpeer *d, const sl_copier_mail *m)
{
    sl_pjob *j = m->job;
    sl_direct_end(d->direct);
    d->in_flight--;
    d->progress_ns = sl_now_ns();
    j->t.in_flight--;
    sl_counter_add(m->status == SL_OK ? p->c.put_ok : p->c.put_failed, 1);
    if (m->status != SL_OK && j->t.state != SHIP_DRAINING && j->t.state != SHIP_OVER)
        sl_ship_fail(p, j, SL_ERR_DEVICE, true, "copy into the decode worker's memory: %s", m->why);
    else
        sl_ship_settle(p, j);
}

void sl_copies_back(sl_prefill *p, sl_copier_mail *m)
{
    sl_dpeer *d = m->peer;
    if (m->what == SL_COPIER_REGISTER)
        registered(p, d, m);
    else if (m->what == SL_COPIER_COPY)
        copied(p, d, m);
    if (m->what != SL_COPIER_LET_GO && --d->batches == 0 && !d->ep)
        sl_path_release(p, d);
    give_mail(p, m);
}

void sl_path_release(sl_prefill *p, sl_dpeer *d)
{
    if (d->batches) { /* comes here again with the last of them */
        d->ep = NULL;
        d->next = p->gone;
        p->gone = d;
        return;
    }
    for (sl_dpeer **at = &p->gone; *at; at = &(*at)->next) {
        if (*at == d) {
            *at = d->next;
            break;
        }
    }
    sl_copier_mail *m = d->registered ? take_mail(p, SL_COPIER_LET_GO, d) : NULL;
    if (m)
        sl_copier_post(p->copier, m); /* detaches it too */
    else
        sl_direct_detach(d->direct);
    free(d);
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

void sl_path_destroy(sl_prefill *p)
{
    sl_copier_destroy(p->copier, drop, p);
    for (int i = 0; i < 2; i++) {
        sl_dpeer **list = i ? &p->gone : &p->peers;
        while (*list) {
            sl_dpeer *d = *list;
            *list = d->next;
            sl_direct_detach(d->direct);
            free(d);
        }
    }
    while (p->free_batches) {
        sl_copier_mail *m = p->free_batches;
        p->free_batches = (sl_copier_mail *)m->mail.link.next;
        free(m);
    }
    free(p->dev_layers);
    free(p->dev_memory);
}

/* ---- copies by this thread ---- */

static sl_status write_there(const sl_prefill *p, sl_direct *d, uint8_t *there, const sl_span *s)
{
    if (!sl_direct_begin(d))
        return SL_ERR_PEER;
    if (p->o.direct_hook)
        p->o.direct_hook(p->o.direct_hook_arg);
    memcpy(there, s->local, (size_t)s->bytes);
    sl_direct_end(d);
    return SL_OK;
}

sl_status sl_direct_copy(sl_prefill *p, sl_pjob *j, const sl_span *s, bool pull)
{
    sl_dpeer *d = j->t.peer;
    uint64_t bytes = (uint64_t)s->bytes;
    if (p->direct_left <= 0)
        return SL_AGAIN;
    p->direct_left -= s->bytes;
    uint8_t *there = place(d, s);
    if (pull) { /* its pages are pinned by the ticket; checksums tell if they no longer are */
        memcpy(s->local, there, (size_t)bytes);
    } else {
        sl_status st = write_there(p, d->direct, there, s);
        if (st != SL_OK)
            return st;
        j->t.bytes += bytes;
    }
    sl_counter_add(pull ? p->c.get_ok : p->c.put_ok, 1);
    sl_counter_add(pull ? p->c.get_bytes : p->c.put_bytes, bytes);
    return SL_OK;
}
