/*
 * The NIXL tier's thread: answers questions from the directory or by NIXL's query, and moves records between its registered
 * staging buffers and files or objects by NIXL transfers. A page is copied once between a staging buffer and its spans, after
 * its checksum was verified. NIXL has no descriptor to wait for: while transfers are in flight their statuses are asked for
 * every 50 µs at most.
 *
 * Objects are written as a whole by their store, so they need no temporary name. NIXL cannot delete objects: one that is
 * damaged or was removed is forgotten by this process and is overwritten by the next set of its key.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/nixl_impl.h"

static size_t record_bytes(const sl_nixl_tier *t)
{
    return SL_PAGE_RECORD_BYTES + t->o.page_bytes;
}

/* Bytes of a transfer: records in files are filled up to whole blocks. */
static size_t transfer_bytes(const sl_nixl_tier *t)
{
    return t->objects ? record_bytes(t) : t->files.record_bytes;
}

static void object_name(const sl_nixl_tier *t, sl_key key, char out[SL_NIXL_PATH_BYTES])
{
    char digits[33];
    sl_page_name_key(key, digits);
    snprintf(out, SL_NIXL_PATH_BYTES, "%s%s", t->prefix, digits);
}

/* ---- objects that are not offered any more ---- */

static sl_key *forgotten_place(sl_nixl_tier *t, sl_key key)
{
    return &t->forgotten[key.lo % SL_NIXL_FORGOTTEN];
}

static bool is_forgotten(sl_nixl_tier *t, sl_key key)
{
    return sl_key_eq(*forgotten_place(t, key), key);
}

static void forget(sl_nixl_tier *t, sl_key key)
{
    if (t->objects)
        *forgotten_place(t, key) = key;
    else
        sl_nixl_file_remove(&t->files, key);
}

/* ---- questions ---- */

/* Asks NIXL which of these objects exist. A failure is a miss: the objects may be there, but cannot be read now. */
static void query(sl_nixl_tier *t, sl_tier_req *const *reqs, const int32_t *keys, int32_t n, bool *there)
{
    const sl_nixl_api *a = t->api;
    nixl_regions *regions = NULL;
    nixl_answers *answers = NULL;
    bool asked =
        a->create_regions(NIXL_OBJECT, &regions) == NIXL_DONE && a->create_answers(&answers) == NIXL_DONE;
    for (int32_t i = 0; asked && i < n; i++) {
        char name[SL_NIXL_PATH_BYTES];
        object_name(t, reqs[i]->keys[keys[i]], name);
        asked = a->regions_add(regions, 0, record_bytes(t), (uint64_t)i, name, strlen(name)) == NIXL_DONE;
    }
    asked = asked && a->query(t->agent, regions, answers, t->options) == NIXL_DONE;
    for (int32_t i = 0; i < n; i++)
        there[i] = asked && a->answers_has(answers, (size_t)i, &there[i]) == NIXL_DONE && there[i] &&
                   !is_forgotten(t, reqs[i]->keys[keys[i]]);
    if (answers)
        a->destroy_answers(answers);
    if (regions)
        a->destroy_regions(regions);
}

static void answer_remove(sl_nixl_tier *t, sl_key key, bool there, sl_status *st)
{
    if (t->objects) {
        *st = there ? SL_OK : SL_ERR_NOT_FOUND;
        if (there)
            forget(t, key);
    } else {
        *st = sl_nixl_file_remove(&t->files, key) ? SL_OK : SL_ERR_NOT_FOUND;
    }
}

static bool answer_questions(sl_nixl_tier *t)
{
    sl_tier_req *reqs[SL_NIXL_BATCH];
    int32_t keys[SL_NIXL_BATCH], n = 0;
    bool there[SL_NIXL_BATCH] = {false};
    while (n < SL_NIXL_BATCH && sl_tier_thread_next(&t->th, SL_TIER_QUICK, &reqs[n], &keys[n]))
        n++;
    if (n && t->objects)
        query(t, reqs, keys, n, there);
    for (int32_t i = 0; i < n; i++) {
        sl_key key = reqs[i]->keys[keys[i]];
        sl_status st;
        if (reqs[i]->op == SL_TIER_REMOVE)
            answer_remove(t, key, there[i], &st);
        else
            st = (t->objects ? there[i] : sl_nixl_file_touch(&t->files, key, reqs[i]->lease_ms))
                     ? SL_OK
                     : SL_ERR_NOT_FOUND;
        sl_tier_thread_end_key(&t->th, reqs[i], keys[i], st);
    }
    return n > 0;
}

/* ---- transfers ---- */

static void count(sl_nixl_tier *t, uint64_t *counter, uint64_t *bytes)
{
    pthread_mutex_lock(&t->th.lock);
    (*counter)++;
    if (bytes)
        *bytes += transfer_bytes(t);
    pthread_mutex_unlock(&t->th.lock);
}

static void note(sl_nixl_tier *t, const char *what, const char *reason, bool failed)
{
    pthread_mutex_lock(&t->th.lock);
    t->failures = failed ? t->failures + 1 : 0;
    if (failed) {
        t->st.io_errors++;
        snprintf(t->why, sizeof t->why, "%s: %.120s", what, reason);
    }
    bool first = failed && t->failures == 1;
    pthread_mutex_unlock(&t->th.lock);
    if (first)
        sl_log(SL_LOG_WARN, "tier", "io_failed", "backend=%s op=%s reason=\"%s\"", t->backend_name, what,
               reason);
}

static void release(sl_nixl_tier *t, sl_nixl_op *op)
{
    const sl_nixl_api *a = t->api;
    if (op->transfer) {
        a->release_transfer(t->agent, op->transfer);
        a->destroy_transfer(op->transfer);
    }
    if (op->local)
        a->destroy_segments(op->local);
    if (op->remote)
        a->destroy_segments(op->remote);
    if (op->registered)
        a->deregister_mem(t->agent, op->regions, t->options);
    if (op->regions)
        a->destroy_regions(op->regions);
    if (op->fd >= 0)
        close(op->fd);
    op->used = false;
    t->in_flight--;
    t->writes_in_flight -= op->write;
}

static sl_nixl_op *take_op(sl_nixl_tier *t, sl_tier_req *r, int32_t i)
{
    sl_nixl_op *op = t->ops;
    while (op->used)
        op++;
    *op = (sl_nixl_op){.used = true,
                       .write = r->op == SL_TIER_SET,
                       .req = r,
                       .i = i,
                       .fd = -1,
                       .start_ns = sl_now_ns(),
                       .buffer = op->buffer};
    t->in_flight++;
    t->writes_in_flight += op->write;
    return op;
}

static void end(sl_nixl_tier *t, sl_nixl_op *op, sl_status st)
{
    sl_tier_req *r = op->req;
    int32_t i = op->i;
    release(t, op);
    sl_tier_thread_end_key(&t->th, r, i, st);
}

/* Registers the file or object and begins the transfer. */
static bool post(sl_nixl_tier *t, sl_nixl_op *op)
{
    const sl_nixl_api *a = t->api;
    char name[SL_NIXL_PATH_BYTES] = "";
    size_t n = transfer_bytes(t);
    int kind = t->objects ? NIXL_OBJECT : NIXL_FILE;
    uint64_t device = t->objects ? (uint64_t)(op - t->ops) + 1 : (uint64_t)op->fd;
    if (t->objects)
        object_name(t, op->req->keys[op->i], name);
    if (a->create_regions(kind, &op->regions) != NIXL_DONE ||
        a->regions_add(op->regions, 0, n, device, name, strlen(name)) != NIXL_DONE ||
        a->register_mem(t->agent, op->regions, t->options) != NIXL_DONE)
        return false;
    op->registered = true;
    if (a->create_segments(NIXL_DRAM, &op->local) != NIXL_DONE ||
        a->segments_add(op->local, (uintptr_t)op->buffer, n, 0) != NIXL_DONE ||
        a->create_segments(kind, &op->remote) != NIXL_DONE ||
        a->segments_add(op->remote, 0, n, device) != NIXL_DONE ||
        a->create_transfer(t->agent, op->write ? NIXL_WRITE : NIXL_READ, op->local, op->remote, t->agent_name,
                           &op->transfer, t->options) != NIXL_DONE)
        return false;
    return a->post(t->agent, op->transfer, NULL) >= NIXL_DONE;
}

static void fail(sl_nixl_tier *t, sl_nixl_op *op, const char *reason)
{
    note(t, op->write ? "write" : "read", reason, true);
    if (op->write) {
        if (!t->objects && !op->given_up)
            sl_nixl_file_give_up(&t->files, op->temporary);
        count(t, &t->st.not_stored_io, NULL);
    }
    end(t, op, SL_ERR_IO);
}

static void miss(sl_nixl_tier *t, sl_nixl_op *op)
{
    count(t, &t->st.misses, NULL);
    end(t, op, SL_ERR_NOT_FOUND);
}

static void damaged(sl_nixl_tier *t, sl_nixl_op *op)
{
    sl_key key = op->req->keys[op->i];
    forget(t, key);
    count(t, &t->st.damaged, NULL);
    sl_tier_thread_gone(&t->th, key);
    end(t, op, SL_ERR_CORRUPT);
}

static void begin_get(sl_nixl_tier *t, sl_nixl_op *op)
{
    sl_key key = op->req->keys[op->i];
    sl_status st = SL_OK;
    if (!t->objects)
        st = sl_nixl_file_read(&t->files, key, &op->fd);
    else if (is_forgotten(t, key))
        st = SL_ERR_NOT_FOUND;
    /* A read that failed without a word must not find the record of an earlier one in the buffer. */
    memset(op->buffer, 0, SL_PAGE_RECORD_BYTES);
    if (st == SL_ERR_NOT_FOUND)
        miss(t, op);
    else if (st == SL_ERR_CORRUPT)
        damaged(t, op);
    else if (st != SL_OK)
        fail(t, op, strerror(errno));
    else if (!post(t, op))
        fail(t, op, "NIXL refused the transfer");
}

static bool is_there(sl_nixl_tier *t, sl_nixl_op *op)
{
    bool there = false;
    sl_tier_req *r = op->req;
    if (t->objects)
        query(t, &r, &op->i, 1, &there);
    else
        there = sl_nixl_file_touch(&t->files, r->keys[op->i], 0);
    return there;
}

static void begin_set(sl_nixl_tier *t, sl_nixl_op *op)
{
    const sl_tier_page *page = &op->req->pages[op->i];
    sl_key key = op->req->keys[op->i];
    uint64_t evicted = 0;
    if (is_there(t, op)) {
        end(t, op, SL_OK);
        return;
    }
    bool room = t->objects || sl_nixl_files_make_room(&t->files, &evicted);
    pthread_mutex_lock(&t->th.lock);
    t->st.evictions += evicted;
    t->st.not_stored_room += !room;
    pthread_mutex_unlock(&t->th.lock);
    if (!room) {
        end(t, op, SL_ERR_EXHAUSTED);
        return;
    }
    sl_page_record r = {
        .key = key, .fingerprint = t->o.fingerprint, .format = t->o.format, .length = t->o.page_bytes};
    sl_tier_gather(page, op->buffer + SL_PAGE_RECORD_BYTES, t->o.page_bytes);
    r.crc = sl_crc32c(0, op->buffer + SL_PAGE_RECORD_BYTES, t->o.page_bytes);
    sl_page_record_write(&r, op->buffer);
    memset(op->buffer + record_bytes(t), 0, transfer_bytes(t) - record_bytes(t));
    if (!t->objects && sl_nixl_file_create(&t->files, key, op->temporary, &op->fd) != SL_OK)
        fail(t, op, strerror(errno));
    else if (!post(t, op))
        fail(t, op, "NIXL refused the transfer");
}

static void finish_get(sl_nixl_tier *t, sl_nixl_op *op)
{
    if (!sl_page_record_verify(op->buffer, record_bytes(t), op->req->keys[op->i], &t->o)) {
        damaged(t, op);
        return;
    }
    sl_tier_scatter(op->buffer + SL_PAGE_RECORD_BYTES, &op->req->pages[op->i], t->o.page_bytes);
    note(t, "read", "", false);
    count(t, &t->st.hits, &t->st.bytes_read);
    end(t, op, SL_OK);
}

static void finish_set(sl_nixl_tier *t, sl_nixl_op *op)
{
    sl_key key = op->req->keys[op->i];
    if (!t->objects && sl_nixl_file_commit(&t->files, key, op->temporary, op->fd) != SL_OK) {
        op->given_up = true;
        fail(t, op, strerror(errno));
        return;
    }
    if (is_forgotten(t, key))
        *forgotten_place(t, key) = (sl_key){0};
    note(t, "write", "", false);
    count(t, &t->st.sets, &t->st.bytes_written);
    end(t, op, SL_OK);
}

/* NIXL does not say why it failed: an object that is not there looks like a network that is not. */
static void finish_failed(sl_nixl_tier *t, sl_nixl_op *op)
{
    bool asks = t->objects && !op->write;
    if (asks && !is_there(t, op) && t->failures == 0)
        miss(t, op);
    else
        fail(t, op, "NIXL: the transfer failed");
}

static bool finish_all(sl_nixl_tier *t)
{
    bool any = false;
    for (int32_t i = 0; i < t->depth; i++) {
        sl_nixl_op *op = &t->ops[i];
        if (!op->used)
            continue;
        int st = t->api->status(t->agent, op->transfer);
        if (st == NIXL_RUNNING)
            continue;
        any = true;
        if (st < 0)
            finish_failed(t, op);
        else if (op->write)
            finish_set(t, op);
        else
            finish_get(t, op);
    }
    return any;
}

static bool begin_one(sl_nixl_tier *t, sl_tier_queue_kind queue)
{
    sl_tier_req *r;
    int32_t i;
    if (t->in_flight == t->depth || !sl_tier_thread_next(&t->th, queue, &r, &i))
        return false;
    sl_nixl_op *op = take_op(t, r, i);
    if (op->write)
        begin_set(t, op);
    else
        begin_get(t, op);
    return true;
}

/* Reads first; one write is kept in flight all the same. */
static bool begin_all(sl_nixl_tier *t)
{
    bool any = t->writes_in_flight == 0 && begin_one(t, SL_TIER_WRITES);
    while (begin_one(t, SL_TIER_READS))
        any = true;
    while (begin_one(t, SL_TIER_WRITES))
        any = true;
    return any;
}

static void publish(sl_nixl_tier *t)
{
    uint64_t oldest = 0;
    for (int32_t i = 0; i < t->depth; i++)
        if (t->ops[i].used && (!oldest || t->ops[i].start_ns < oldest))
            oldest = t->ops[i].start_ns;
    pthread_mutex_lock(&t->th.lock);
    t->oldest_ns = oldest;
    t->st.bytes = t->objects ? t->st.bytes_written : t->files.used;
    t->st.pages = t->st.bytes / transfer_bytes(t);
    t->st.capacity_bytes = t->o.capacity_bytes;
    pthread_mutex_unlock(&t->th.lock);
}

void *sl_nixl_main(void *tier)
{
    sl_nixl_tier *t = tier;
    struct pollfd wake = {.fd = t->th.wake, .events = POLLIN};
    for (;;) {
        sl_tier_thread_awake(&t->th);
        bool any = answer_questions(t);
        any |= begin_all(t);
        any |= finish_all(t);
        publish(t);
        if (!t->in_flight && !any && sl_tier_thread_stopping(&t->th))
            return NULL;
        if (!t->in_flight && !any)
            poll(&wake, 1, 1000);
        else if (!any)
            nanosleep(&(struct timespec){0, 50000}, NULL);
    }
}
