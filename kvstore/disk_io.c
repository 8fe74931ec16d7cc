/*
 * The disk tier's thread: takes keys from the queues, does the I/O, and ends them.
 *
 * One lock guards index, queues, statistics and health; it is never held during I/O, copies or checksums. Gets and sets
 * wait in two queues; the thread takes keys from them, one operation per key, as long as a staging buffer is free. It
 * prefers gets, but keeps one set in flight. An operation carries header and page in one aligned, registered staging
 * buffer, from which the page is copied to the spans after its checksum was verified, and the other way round. So spans
 * need no alignment, and a page in the arena never has unverified bytes.
 *
 * Writing: the segment's header with its new generation first, alone; then records, each in one write. A page enters the
 * index when its write is complete. At most `window` records after the oldest one in flight are started, so recovery
 * knows which records can be incomplete (disk_recover.c). There is no fsync per page: after a loss of power pages may be
 * missing, and the checksum finds those that are damaged.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/log.h"
#include "kvstore/disk_impl.h"

enum { SUBMIT = 4 /* operations that are submitted at once */ };
#define WAKE UINT64_MAX /* user_data of the poll of the wake descriptor */

void sl_disk_complete(sl_disk_tier *t, sl_tier_req *r)
{
    sl_list_push(&t->done, r);
    t->completed++;
    eventfd_write(t->event, 1);
}

void sl_disk_gone_add(sl_disk_tier *t, sl_key key)
{
    sl_disk_gone *g = &t->gone;
    if (!t->evicted)
        return;
    if (g->n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 64;
        void *v = realloc(g->v, cap * sizeof *g->v);
        if (!v)
            return; /* this report is lost */
        g->v = v;
        g->cap = cap;
    }
    g->v[g->n].key = key;
    g->v[g->n++].after = t->completed;
    eventfd_write(t->event, 1);
}

/* A key of the request has ended. */
static void end_key(sl_disk_tier *t, sl_tier_req *r, int32_t i, sl_status st)
{
    r->results[i] = st;
    r->open--;
    if (r->begun == r->n && r->open == 0)
        sl_disk_complete(t, r);
}

/* ---- health ---- */

static bool may_try(sl_disk_direction *d, int32_t limit)
{
    uint64_t now = sl_now_ns();
    if (d->failures < limit)
        return true;
    if (now < d->probe_ns)
        return false;
    d->probe_ns = now + SL_DISK_PROBE_NS;
    return true;
}

static void note(sl_disk_tier *t, sl_disk_direction *d, const char *what, int32_t res, bool failed)
{
    if (!failed) {
        d->failures = 0;
        return;
    }
    t->st.io_errors++;
    d->failures++;
    d->probe_ns = sl_now_ns() + SL_DISK_PROBE_NS;
    snprintf(d->why, sizeof d->why, "%s: %s", what, res < 0 ? strerror(-res) : "short");
    sl_log(SL_LOG_WARN, "tier", "io_failed", "file=%s op=%s reason=%s", t->file.path, what,
           res < 0 ? strerror(-res) : "short");
}

/* ---- what the thread begins; with the lock ---- */

static sl_disk_op *take_op(sl_disk_tier *t, sl_disk_op_kind kind, sl_tier_req *r, int64_t slot)
{
    sl_disk_op *o = t->ops;
    while (o->used)
        o++;
    *o = (sl_disk_op){
        .kind = kind, .used = true, .req = r, .slot = slot, .start_ns = sl_now_ns(), .buffer = o->buffer};
    if (r) {
        o->i = r->begun++;
        r->open++;
    }
    t->in_flight++;
    t->writes_in_flight += kind != SL_DISK_READ;
    if (kind != SL_DISK_SEGMENT)
        sl_disk_index_seg(&t->index, slot)->busy++;
    return o;
}

/* The key ends without an operation. */
void sl_disk_skip(sl_tier_req *r, sl_status st)
{
    r->results[r->begun++] = st;
}

static sl_disk_op *begin_get(sl_disk_tier *t, sl_tier_req *r)
{
    int64_t slot = sl_disk_index_find(&t->index, r->keys[r->begun]);
    if (slot < 0 || t->index.slots[slot].state != SL_SLOT_STORED) {
        t->st.misses++;
        sl_disk_skip(r, SL_ERR_NOT_FOUND);
        return NULL;
    }
    if (!may_try(&t->reads, SL_DISK_READ_FAILURES)) {
        sl_disk_skip(r, SL_ERR_IO);
        return NULL;
    }
    if (!r->not_a_use)
        sl_disk_index_touch(&t->index, slot);
    return take_op(t, SL_DISK_READ, r, slot);
}

static sl_disk_op *begin_remove(sl_disk_tier *t, sl_tier_req *r)
{
    int64_t slot = sl_disk_index_find(&t->index, r->keys[r->begun]);
    if (slot < 0 || t->index.slots[slot].state != SL_SLOT_STORED) {
        sl_disk_skip(r, SL_ERR_NOT_FOUND);
        return NULL;
    }
    sl_disk_index_drop(&t->index, slot);
    return take_op(t, SL_DISK_ERASE, r, slot);
}

/* Whether the record with the next sequence number would be too far from the oldest one in flight. */
static bool window_is_full(const sl_disk_tier *t)
{
    for (int32_t i = 0; i < t->depth; i++)
        if (t->ops[i].used && t->ops[i].kind == SL_DISK_WRITE &&
            t->sequence - t->ops[i].record.sequence >= t->window)
            return true;
    return false;
}

/* *wait: this key can begin after a completion that will come. */
static sl_disk_op *begin_set(sl_disk_tier *t, sl_tier_req *r, bool *wait)
{
    sl_key key = r->keys[r->begun];
    int64_t slot = sl_disk_index_find(&t->index, key);
    if (slot >= 0) {
        *wait = t->index.slots[slot].state == SL_SLOT_WRITING;
        if (*wait)
            return NULL;
        sl_disk_index_touch(&t->index, slot);
        sl_disk_index_seg(&t->index, slot)->batch = t->batch;
        sl_disk_skip(r, SL_OK);
        return NULL;
    }
    *wait = t->opening || window_is_full(t);
    if (*wait)
        return NULL;
    if (!may_try(&t->writes, SL_DISK_WRITE_FAILURES)) {
        t->st.not_stored_io++;
        sl_disk_skip(r, SL_ERR_IO);
        return NULL;
    }
    uint64_t tenant = r->tenants ? r->tenants[r->begun] : 0;
    slot = sl_disk_index_claim(&t->index, key, tenant, t->batch);
    if (slot >= 0) {
        sl_disk_op *o = take_op(t, SL_DISK_WRITE, r, slot);
        o->record = (sl_disk_record){.store_id = t->file.store.id,
                                     .slot = (uint64_t)slot,
                                     .generation = sl_disk_index_seg(&t->index, slot)->generation,
                                     .sequence = t->sequence++,
                                     .key = key,
                                     .fingerprint = t->file.store.fingerprint,
                                     .format = t->file.store.format,
                                     .length = t->file.store.page_bytes};
        return o;
    }
    int64_t segment = sl_disk_index_recycle(&t->index, tenant, t->batch, sl_now_ns(), t->sequence++);
    if (segment >= 0) {
        t->opening = true;
        return take_op(t, SL_DISK_SEGMENT, NULL, segment);
    }
    *wait = segment == -2;
    if (*wait)
        return NULL;
    t->st.not_stored_room++;
    sl_disk_skip(r, SL_ERR_EXHAUSTED);
    return NULL;
}

void sl_disk_cancel_rest(sl_tier_req *r)
{
    while (r->begun < r->n)
        sl_disk_skip(r, SL_ERR_CANCELLED);
}

static bool refused_by_admission(sl_disk_tier *t, sl_tier_req *r)
{
    sl_key key = r->keys[r->begun];
    if (!t->second_use || r->admitted > r->begun || sl_disk_index_find(&t->index, key) >= 0)
        return false;
    if (sl_disk_index_admit(&t->index, key)) {
        r->admitted = r->begun + 1; /* this key may be tried several times */
        return false;
    }
    t->st.not_stored_admission++;
    sl_disk_skip(r, SL_AGAIN);
    return true;
}

/* Works on the first request of a queue until an operation has begun, it has to wait, or the queue is empty. */
static sl_disk_op *begin_next(sl_disk_tier *t, sl_disk_queue *q)
{
    while (q->head) {
        sl_tier_req *r = q->head;
        sl_disk_op *o = NULL;
        bool wait = false;
        if (t->stopping || r->cancelled)
            sl_disk_cancel_rest(r);
        else if (r->op == SL_TIER_GET)
            o = begin_get(t, r);
        else if (r->op == SL_TIER_REMOVE)
            o = begin_remove(t, r);
        else {
            t->batch += r->begun == 0 && r->admitted == 0;
            if (!refused_by_admission(t, r))
                o = begin_set(t, r, &wait);
        }
        if (wait)
            return NULL;
        if (r->begun == r->n) {
            sl_list_pop(q);
            if (r->open == 0)
                sl_disk_complete(t, r);
        }
        if (o)
            return o;
    }
    return NULL;
}

static sl_disk_op *next_op(sl_disk_tier *t)
{
    if (t->in_flight == t->depth)
        return NULL;
    sl_disk_op *o = t->writes_in_flight ? NULL : begin_next(t, &t->sets);
    if (!o)
        o = begin_next(t, &t->gets);
    if (!o && t->in_flight < t->depth)
        o = begin_next(t, &t->sets);
    return o;
}

/* ---- what the thread does; without the lock ---- */

static uint64_t fill(sl_disk_tier *t, sl_disk_op *o)
{
    size_t page = t->file.store.page_bytes;
    switch (o->kind) {
    case SL_DISK_WRITE:
        sl_tier_gather(&o->req->pages[o->i], o->buffer + SL_DISK_BLOCK, page);
        memset(o->buffer + SL_DISK_BLOCK + page, 0, t->slot_bytes - SL_DISK_BLOCK - page);
        o->record.crc = sl_crc32c(0, o->buffer + SL_DISK_BLOCK, page);
        sl_disk_record_write(&o->record, o->buffer);
        return t->slot_bytes;
    case SL_DISK_SEGMENT: {
        const sl_disk_seg *g = &t->index.segs[o->slot]; /* constant while the header is in flight */
        sl_disk_segment_write(&(sl_disk_segment){.store_id = t->file.store.id,
                                                 .index = (uint64_t)o->slot,
                                                 .generation = g->generation,
                                                 .sequence = g->generation,
                                                 .tenant = sl_quota_tenant(&t->index.quota, g->tenant)},
                              o->buffer);
        return SL_DISK_BLOCK;
    }
    case SL_DISK_ERASE:
        memset(o->buffer, 0, SL_DISK_BLOCK);
        return SL_DISK_BLOCK;
    case SL_DISK_READ:
        break;
    }
    return t->slot_bytes;
}

static uint64_t expected_bytes(const sl_disk_tier *t, const sl_disk_op *o)
{
    return o->kind == SL_DISK_READ || o->kind == SL_DISK_WRITE ? t->slot_bytes : SL_DISK_BLOCK;
}

static void start(sl_disk_tier *t, sl_disk_op *o)
{
    uint64_t n = fill(t, o);
    uint64_t at = o->kind == SL_DISK_SEGMENT ? sl_disk_segment_at(&t->file.store, (uint64_t)o->slot)
                                             : sl_disk_slot_at(&t->file.store, (uint64_t)o->slot);
    if (o->kind != SL_DISK_READ && t->hooks.before)
        t->hooks.before(t->hooks.ctx, o->kind, t->file.fd, at, o->buffer, n);
    struct io_uring_sqe *e = sl_uring_prepare(&t->ring);
    bool read = o->kind == SL_DISK_READ;
    if (t->fixed)
        e->opcode = read ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED;
    else
        e->opcode = read ? IORING_OP_READ : IORING_OP_WRITE;
    e->buf_index = (uint16_t)(t->fixed ? o - t->ops : 0);
    e->fd = t->file.fd;
    e->off = at;
    e->addr = (uintptr_t)o->buffer;
    e->len = (uint32_t)n;
    e->user_data = (uint64_t)(o - t->ops);
}

/* The status of a read that the device has completed; the page is copied to the request when it is right. */
static sl_status check_page(sl_disk_tier *t, const sl_disk_op *o, uint64_t generation)
{
    const sl_disk_store *s = &t->file.store;
    sl_disk_record r;
    const uint8_t *page = o->buffer + SL_DISK_BLOCK;
    if (sl_disk_record_read(o->buffer, &r) != SL_OK ||
        !sl_disk_record_fits(&r, s, (uint64_t)o->slot, generation) || !sl_key_eq(r.key, o->req->keys[o->i]) ||
        sl_crc32c(0, page, s->page_bytes) != r.crc)
        return SL_ERR_CORRUPT;
    sl_tier_scatter(page, &o->req->pages[o->i], s->page_bytes);
    return SL_OK;
}

static sl_status finish_read(sl_disk_tier *t, sl_disk_op *o, int32_t res)
{
    sl_status st = SL_ERR_IO;
    /* The segment is busy, so neither its generation nor the place of the page changes. */
    if (res >= 0)
        st = (uint64_t)res == t->slot_bytes
                 ? check_page(t, o, sl_disk_index_seg(&t->index, o->slot)->generation)
                 : SL_ERR_CORRUPT;
    pthread_mutex_lock(&t->lock);
    note(t, &t->reads, "read", res, res < 0);
    bool stored = t->index.slots[o->slot].state == SL_SLOT_STORED &&
                  sl_key_eq(t->index.slots[o->slot].key, o->req->keys[o->i]);
    t->st.bytes_read += res > 0 ? (uint64_t)res : 0;
    t->st.hits += st == SL_OK;
    t->st.damaged += st == SL_ERR_CORRUPT && stored;
    if (st != SL_OK && stored) {
        sl_disk_index_drop(&t->index, o->slot);
        sl_disk_gone_add(t, o->req->keys[o->i]);
    } else if (st != SL_OK)
        st = SL_ERR_NOT_FOUND; /* removed while it was read */
    return st;
}

static sl_status finish_write(sl_disk_tier *t, sl_disk_op *o, int32_t res)
{
    bool failed = (uint64_t)(res < 0 ? 0 : res) != expected_bytes(t, o);
    if (!failed && t->hooks.after)
        t->hooks.after(t->hooks.ctx, o->kind);
    pthread_mutex_lock(&t->lock);
    note(t, &t->writes, "write", res, failed);
    t->st.bytes_written += res > 0 ? (uint64_t)res : 0;
    if (o->kind == SL_DISK_SEGMENT) {
        t->opening = false;
        if (!failed)
            sl_disk_index_open(&t->index, o->slot);
    } else if (o->kind == SL_DISK_WRITE && failed) {
        t->st.not_stored_io++;
        sl_disk_index_drop(&t->index, o->slot);
    } else if (o->kind == SL_DISK_WRITE) {
        t->st.sets++;
        sl_disk_index_publish(&t->index, o->slot);
    }
    return failed ? SL_ERR_IO : SL_OK;
}

static void finish(sl_disk_tier *t, sl_disk_op *o, int32_t res)
{
    if (t->hooks.result)
        res = t->hooks.result(t->hooks.ctx, o->kind, res);
    sl_status st =
        o->kind == SL_DISK_READ ? finish_read(t, o, res) : finish_write(t, o, res); /* takes the lock */
    if (o->kind != SL_DISK_SEGMENT)
        sl_disk_index_seg(&t->index, o->slot)->busy--;
    t->in_flight--;
    t->writes_in_flight -= o->kind != SL_DISK_READ;
    o->used = false;
    if (o->req)
        end_key(t, o->req, o->i, st);
    pthread_mutex_unlock(&t->lock);
}

static void arm_wake(sl_disk_tier *t)
{
    eventfd_t count;
    if (t->wake_armed)
        return;
    eventfd_read(t->wake, &count);
    struct io_uring_sqe *e = sl_uring_prepare(&t->ring);
    e->opcode = IORING_OP_POLL_ADD;
    e->fd = t->wake;
    e->poll32_events = POLLIN;
    e->user_data = WAKE;
    t->wake_armed = true;
}

/* Takes one completion, if there is one. Pages are checked and copied here, so the caller starts another operation before it
 * takes the next: otherwise the device would have nothing to do while all pages that have arrived are copied. */
static void reap_one(sl_disk_tier *t)
{
    uint64_t data;
    int32_t res;
    if (!sl_uring_next(&t->ring, &data, &res))
        return;
    if (data == WAKE)
        t->wake_armed = false;
    else
        finish(t, &t->ops[data], res);
}

/* Whether what is prepared is given to the device now. While it has enough to do, several operations are submitted at once:
 * that costs less for each, in a virtual machine much less. */
static bool must_submit(const sl_disk_tier *t)
{
    return t->in_flight - (int32_t)t->ring.prepared < t->depth / 2 || t->ring.prepared >= SUBMIT;
}

int32_t sl_disk_abandon(sl_disk_tier *t)
{
    t->abandoned = true;
    for (int32_t i = 0; i < t->depth; i++) {
        if (t->ops[i].used && t->ops[i].req)
            end_key(t, t->ops[i].req, t->ops[i].i, SL_ERR_IO);
        t->ops[i].req = NULL;
    }
    (void)begin_next(t, &t->gets); /* nothing begins while the tier stops: the rest is cancelled */
    (void)begin_next(t, &t->sets);
    return t->in_flight;
}

/* The kernel may keep the thread here for as long as it likes. False: its owner has given up. */
static bool enter(sl_disk_tier *t, bool wait)
{
    pthread_mutex_lock(&t->lock);
    t->waiting = true;
    pthread_mutex_unlock(&t->lock);
    sl_status st = sl_uring_enter(&t->ring, wait);
    pthread_mutex_lock(&t->lock);
    t->waiting = false;
    bool go_on = !t->abandoned;
    pthread_mutex_unlock(&t->lock);
    SL_CHECK(!go_on || st == SL_OK, "io_uring_enter: errno %d", errno);
    return go_on;
}

void *sl_disk_io_main(void *arg)
{
    sl_disk_tier *t = arg;
    for (;;) {
        arm_wake(t); /* before the queues are looked at, so that no wake is lost */
        pthread_mutex_lock(&t->lock);
        sl_disk_op *o = next_op(t);
        bool stop = t->stopping && !o && !t->in_flight && !t->gets.head && !t->sets.head;
        pthread_mutex_unlock(&t->lock);
        if (stop)
            return NULL;
        if (o)
            start(t, o);
        if ((!o || must_submit(t)) && !enter(t, !o))
            return NULL;
        reap_one(t);
    }
}
