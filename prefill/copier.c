/* See copier.h. The batches that the mailbox holds at one time are enqueued together and synchronized once. */
#include "prefill/copier.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum { TOGETHER = 16, IDLE_MS = 1000, MAX_REGISTERED = 256 };

struct sl_copier {
    pthread_t thread;
    sl_mailbox *inbox;
    int kind;
    bool opened;
    const char *name;
    sl_backend_opts opts;
    sl_backend *be;
    sl_status open_status;
    sl_err open_err;
    sl_copier_mail stop;
    bool stopped;
    sl_watch watch;
    void *registered[MAX_REGISTERED];
    int n_registered;
};

/* ---- batches ---- */

/* Adds a piece to the run c if it continues the run: the second piece sets the pitches, later ones must match them. */
static bool continues(sl_copy *c, const sl_span *s, const uint8_t *dst)
{
    const uint8_t *src = s->local;
    const size_t bytes = (size_t)s->bytes;
    const uint8_t *last_src = c->src + (c->n - 1) * c->src_pitch,
                  *last_dst = c->dst + (c->n - 1) * c->dst_pitch;
    if (!sl_pieces_same_memory(s, &(sl_span){.device = c->device, .plane = c->plane}))
        return false;
    if (bytes != c->bytes || src < last_src + bytes || dst < last_dst + bytes)
        return false;
    size_t src_pitch = (size_t)(src - last_src), dst_pitch = (size_t)(dst - last_dst);
    if (c->n > 1 && (src_pitch != c->src_pitch || dst_pitch != c->dst_pitch))
        return false;
    if (src_pitch > INT32_MAX || dst_pitch > INT32_MAX)
        return false;
    c->src_pitch = src_pitch;
    c->dst_pitch = dst_pitch;
    c->n++;
    return true;
}

bool sl_copier_add(sl_copier_mail *m, const sl_span *s, uint8_t *there)
{
    size_t bytes = (size_t)s->bytes;
    bool merged = false;
    /* spans of rows, keys and scales alternate */
    for (int i = m->n - 1; i >= 0 && i >= m->n - 3 && !merged; i--)
        merged = continues(&m->copy[i], s, there);
    if (!merged && m->n == SL_COPIES)
        return false;
    if (!merged)
        m->copy[m->n++] = (sl_copy){
            .dst = there, .src = s->local, .bytes = bytes, .n = 1, .device = s->device, .plane = s->plane};
    m->total += bytes;
    return true;
}

/* ---- thread ---- */

sl_status sl_copier_enqueue(sl_backend *be, const sl_copier_mail *m, sl_err *err)
{
    for (int i = 0; i < m->n; i++) {
        const sl_copy *k = &m->copy[i];
        if (k->n == 1)
            SL_TRY(sl_be_copy(be, k->dst, k->src, k->bytes, err));
        else
            SL_TRY(sl_be_copy_2d(be, k->dst, k->dst_pitch, k->src, k->src_pitch, k->bytes, k->n, err));
    }
    return SL_OK;
}

static sl_status register_arena(sl_copier *c, const sl_copier_mail *m, sl_err *err)
{
    void *base = sl_direct_base(m->direct);
    if (c->n_registered == MAX_REGISTERED)
        return sl_fail(err, SL_ERR_EXHAUSTED, "%d arenas are registered", MAX_REGISTERED);
    SL_TRY(sl_be_host_register(c->be, base, sl_direct_bytes(m->direct), err));
    c->registered[c->n_registered++] = base;
    return SL_OK;
}

static void let_go(sl_copier *c, sl_copier_mail *m)
{
    void *base = sl_direct_base(m->direct);
    for (int i = 0; i < c->n_registered; i++) {
        if (c->registered[i] == base) {
            c->registered[i--] = c->registered[--c->n_registered];
            sl_be_host_unregister(c->be, base);
        }
    }
    sl_direct_detach(m->direct);
    m->direct = NULL;
}

static void run_one(sl_copier *c, sl_copier_mail *m)
{
    sl_err err = {0};
    if (!c->opened || m->what != SL_COPIER_COPY)
        sl_watch_pause(&c->watch); /* to open a device or to pin a large arena takes long */
    if (!c->opened)
        c->open_status = sl_backend_create(c->name, &c->opts, &c->be, &c->open_err);
    c->opened = true;
    m->status = c->open_status;
    if (m->what == SL_COPIER_LET_GO)
        let_go(c, m);
    else if (c->open_status != SL_OK)
        err = c->open_err;
    else
        m->status =
            m->what == SL_COPIER_REGISTER ? register_arena(c, m, &err) : sl_copier_enqueue(c->be, m, &err);
    if (m->status != SL_OK)
        snprintf(m->why, sizeof m->why, "%.199s", err.text);
}

static void *thread_main(void *arg)
{
    sl_copier *c = arg;
    sl_copier_mail *batch[TOGETHER];
    for (bool stop = false; !stop;) {
        int n = 0;
        while (n < TOGETHER && !stop) {
            sl_copier_mail *m = (sl_copier_mail *)sl_mailbox_take(c->inbox);
            if (!m)
                break;
            stop = m->what == SL_COPIER_STOP;
            if (!stop)
                run_one(c, batch[n++] = m);
        }
        sl_err err = {0};
        if (n)
            sl_watch_turn(&c->watch);
        sl_status st = n && c->be ? sl_be_sync(c->be, &err) : SL_OK;
        if (n)
            sl_watch_turn(&c->watch);
        for (int i = 0; i < n; i++) {
            sl_watch_back(&c->watch);
            if (st != SL_OK && batch[i]->status == SL_OK) {
                batch[i]->status = st;
                snprintf(batch[i]->why, sizeof batch[i]->why, "%.199s", err.text);
            }
            batch[i]->mail.kind = c->kind;
            sl_worker_post(batch[i]->worker, &batch[i]->mail);
        }
        if (!n && !stop)
            sl_mailbox_wait(c->inbox, IDLE_MS);
    }
    for (int i = 0; i < c->n_registered; i++)
        sl_be_host_unregister(c->be, c->registered[i]);
    sl_backend_destroy(c->be);
    return NULL;
}

sl_status sl_copier_create(const char *backend, const sl_backend_opts *opts, int kind, sl_copier **out,
                           sl_err *err)
{
    sl_copier *c = calloc(1, sizeof *c);
    if (!c || sl_mailbox_create(&c->inbox) != SL_OK) {
        free(c);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    c->name = backend;
    c->opts = *opts;
    c->kind = kind;
    if (pthread_create(&c->thread, NULL, thread_main, c) != 0) {
        sl_mailbox_destroy(c->inbox);
        free(c);
        return sl_fail(err, SL_ERR_IO, "cannot start the copier's thread");
    }
    *out = c;
    return SL_OK;
}

void sl_copier_post(sl_copier *c, sl_copier_mail *m)
{
    if (m->what != SL_COPIER_STOP)
        sl_watch_post(&c->watch);
    sl_mailbox_post(c->inbox, &m->mail.link);
}

uint32_t sl_copier_age_ms(const sl_copier *c, uint64_t now_ns)
{
    return c ? sl_watch_age_ms(&c->watch, now_ns) : 0;
}

void sl_copier_stop(sl_copier *c)
{
    if (!c || c->stopped)
        return;
    c->stopped = true;
    c->stop.what = SL_COPIER_STOP;
    sl_copier_post(c, &c->stop);
    pthread_join(c->thread, NULL);
}

void sl_copier_destroy(sl_copier *c, void (*drop)(void *arg, sl_copier_mail *m), void *arg)
{
    if (!c)
        return;
    for (sl_mail *m; (m = sl_mailbox_take(c->inbox));)
        drop(arg, (sl_copier_mail *)m);
    sl_mailbox_destroy(c->inbox);
    free(c);
}
