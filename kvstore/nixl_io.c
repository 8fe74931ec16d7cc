/*
 * The NIXL tier's thread: answers questions from the directory or by NIXL's query, and moves records between its registered
 * staging buffers and files or objects by NIXL transfers. A page is copied once between a staging buffer and its spans, after
 * its checksum was verified. NIXL has no descriptor to wait for: while transfers are in flight their statuses are asked for
 * every 50 µs at most.
 *
 * Calls of NIXL and of the file system last for as long as the store hangs. They are made between away() and back(), where the
 * thread touches nothing that belongs to the owner, so that close can end without them (tier_nixl.c).
 *
 * Objects are written as a whole by their store, so they need no temporary name. NIXL cannot delete objects: one that is
 * damaged or was removed is forgotten by this process and is overwritten by the next set of its key.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/nixl_impl.h"

static void away(sl_nixl_tier *t)
{
    pthread_mutex_lock(&t->th.lock);
    t->away = true;
    pthread_mutex_unlock(&t->th.lock);
}

/* Does not return when the tier was closed meanwhile. */
static void back(sl_nixl_tier *t)
{
    pthread_mutex_lock(&t->th.lock);
    t->away = false;
    bool left = t->left;
    pthread_mutex_unlock(&t->th.lock);
    if (left)
        pthread_exit(NULL);
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
    if (t->objects) {
        *forgotten_place(t, key) = key;
        return;
    }
    away(t);
    sl_nixl_file_remove(&t->files, key);
    back(t);
}

/* ---- leases ---- */

/* Ends the leases that the owner has released; called before anything that the owner asked for later. */
static void end_leases(sl_nixl_tier *t)
{
    pthread_mutex_lock(&t->th.lock);
    sl_key *keys = t->released;
    int32_t n = t->n_released;
    t->released = NULL;
    t->n_released = t->released_cap = 0;
    pthread_mutex_unlock(&t->th.lock);
    if (!keys)
        return;
    away(t);
    for (int32_t i = 0; i < n; i++)
        sl_nixl_file_release(&t->files, keys[i]);
    free(keys);
    back(t);
}

/* ---- questions ---- */

static void note(sl_nixl_tier *t, const char *what, const char *reason, bool failed);

/* Sets `there` of n questions; a failure is a miss. */
static void ask_objects(sl_nixl_tier *t, sl_nixl_question *q, int32_t n)
{
    away(t);
    bool asked = sl_nixl_query(t, q, n);
    back(t);
    if (!asked)
        note(t, "query", "NIXL: the query failed", true);
    for (int32_t i = 0; i < n; i++)
        q[i].there = asked && q[i].there && !is_forgotten(t, q[i].key);
}

/* The same for files. A page that is asked for is used. */
static void ask_files(sl_nixl_tier *t, sl_nixl_question *q, int32_t n)
{
    away(t);
    for (int32_t i = 0; i < n; i++)
        q[i].there = q[i].remove ? sl_nixl_file_remove(&t->files, q[i].key)
                                 : sl_nixl_file_touch(&t->files, q[i].key, q[i].lease_ms);
    back(t);
}

static void ask(sl_nixl_tier *t, sl_nixl_question *q, int32_t n)
{
    if (t->objects)
        ask_objects(t, q, n);
    else
        ask_files(t, q, n);
}

static bool answer_questions(sl_nixl_tier *t)
{
    sl_nixl_question q = {0};
    t->n_questions = t->n_answered = 0;
    while (t->n_questions < SL_NIXL_BATCH && sl_tier_thread_next(&t->th, SL_TIER_QUICK, &q.req, &q.i)) {
        q.key = q.req->keys[q.i];
        q.remove = q.req->op == SL_TIER_REMOVE;
        q.lease_ms = q.req->lease_ms;
        t->questions[t->n_questions++] = q;
    }
    if (!t->n_questions)
        return false;
    end_leases(t);
    ask(t, t->questions, t->n_questions);
    while (t->n_answered < t->n_questions) {
        const sl_nixl_question *e = &t->questions[t->n_answered++];
        if (e->remove && e->there && t->objects)
            forget(t, e->key);
        sl_tier_thread_end_key(&t->th, e->req, e->i, e->there ? SL_OK : SL_ERR_NOT_FOUND);
    }
    return true;
}

/* ---- transfers ---- */

static void count(sl_nixl_tier *t, uint64_t *counter, uint64_t *bytes)
{
    pthread_mutex_lock(&t->th.lock);
    (*counter)++;
    if (bytes)
        *bytes += sl_nixl_transfer_bytes(t);
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
    away(t);
    sl_nixl_transfer_end(t, op);
    back(t);
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
                       .key = r->keys[i],
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

static bool post(sl_nixl_tier *t, sl_nixl_op *op)
{
    away(t);
    bool begun = sl_nixl_transfer_begin(t, op);
    back(t);
    return begun;
}

static void fail(sl_nixl_tier *t, sl_nixl_op *op, const char *reason)
{
    note(t, op->write ? "write" : "read", reason, true);
    if (op->write) {
        if (!t->objects && !op->given_up) {
            away(t);
            sl_nixl_file_give_up(&t->files, op->temporary);
            back(t);
        }
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
    forget(t, op->key);
    count(t, &t->st.damaged, NULL);
    sl_tier_thread_gone(&t->th, op->key);
    end(t, op, SL_ERR_CORRUPT);
}

static void begin_get(sl_nixl_tier *t, sl_nixl_op *op)
{
    sl_status st = SL_OK;
    int reason = 0;
    if (!t->objects) {
        away(t);
        st = sl_nixl_file_read(&t->files, op->key, &op->fd);
        reason = errno;
        back(t);
    } else if (is_forgotten(t, op->key)) {
        st = SL_ERR_NOT_FOUND;
    }
    /* A read that failed without a word must not find the record of an earlier one in the buffer. */
    memset(op->buffer, 0, SL_PAGE_RECORD_BYTES);
    if (st == SL_ERR_NOT_FOUND)
        miss(t, op);
    else if (st == SL_ERR_CORRUPT)
        damaged(t, op);
    else if (st != SL_OK)
        fail(t, op, strerror(reason));
    else if (!post(t, op))
        fail(t, op, "NIXL refused the transfer");
}

static bool is_there(sl_nixl_tier *t, const sl_nixl_op *op)
{
    sl_nixl_question q = {.key = op->key};
    ask(t, &q, 1);
    return q.there;
}

/* Room for a record in the directory. */
static bool make_room(sl_nixl_tier *t)
{
    uint64_t evicted = 0;
    bool room = true;
    if (!t->objects) {
        away(t);
        room = sl_nixl_files_make_room(&t->files, &evicted);
        back(t);
    }
    pthread_mutex_lock(&t->th.lock);
    t->st.evictions += evicted;
    t->st.not_stored_room += !room;
    pthread_mutex_unlock(&t->th.lock);
    return room;
}

/* The record of a page in the staging buffer. */
static void make_record(const sl_nixl_tier *t, const sl_nixl_op *op)
{
    const sl_tier_page *page = &op->req->pages[op->i];
    sl_page_record r = {
        .key = op->key, .fingerprint = t->o.fingerprint, .format = t->o.format, .length = t->o.page_bytes};
    sl_tier_gather(page, op->buffer + SL_PAGE_RECORD_BYTES, t->o.page_bytes);
    r.crc = sl_crc32c(0, op->buffer + SL_PAGE_RECORD_BYTES, t->o.page_bytes);
    sl_page_record_write(&r, op->buffer);
    memset(op->buffer + sl_nixl_record_bytes(t), 0, sl_nixl_transfer_bytes(t) - sl_nixl_record_bytes(t));
}

static sl_status create_file(sl_nixl_tier *t, sl_nixl_op *op, int *reason)
{
    if (t->objects)
        return SL_OK;
    away(t);
    sl_status st = sl_nixl_file_create(&t->files, op->key, op->temporary, &op->fd);
    *reason = errno;
    back(t);
    return st;
}

static void begin_set(sl_nixl_tier *t, sl_nixl_op *op)
{
    int reason = 0;
    if (is_there(t, op)) {
        end(t, op, SL_OK);
        return;
    }
    if (!make_room(t)) {
        end(t, op, SL_ERR_EXHAUSTED);
        return;
    }
    make_record(t, op);
    if (create_file(t, op, &reason) != SL_OK)
        fail(t, op, strerror(reason));
    else if (!post(t, op))
        fail(t, op, "NIXL refused the transfer");
}

static void finish_get(sl_nixl_tier *t, sl_nixl_op *op)
{
    if (!sl_page_record_verify(op->buffer, sl_nixl_record_bytes(t), op->key, &t->o)) {
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
    if (!t->objects) {
        away(t);
        op->given_up = sl_nixl_file_commit(&t->files, op->key, op->temporary, op->fd) != SL_OK;
        int reason = errno;
        back(t);
        if (op->given_up) {
            fail(t, op, strerror(reason));
            return;
        }
    }
    if (is_forgotten(t, op->key))
        *forgotten_place(t, op->key) = (sl_key){0};
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
    int status[SL_NIXL_DEPTH];
    if (!t->in_flight)
        return false;
    away(t);
    for (int32_t i = 0; i < t->depth; i++)
        status[i] = t->ops[i].used ? t->api->status(t->agent, t->ops[i].transfer) : NIXL_RUNNING;
    back(t);
    for (int32_t i = 0; i < t->depth; i++) {
        sl_nixl_op *op = &t->ops[i];
        if (status[i] == NIXL_RUNNING)
            continue;
        any = true;
        if (status[i] < 0)
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
    end_leases(t);
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
    t->st.pages = t->st.bytes / sl_nixl_transfer_bytes(t);
    t->st.capacity_bytes = t->o.capacity_bytes;
    pthread_mutex_unlock(&t->th.lock);
}

void *sl_nixl_main(void *tier)
{
    sl_nixl_tier *t = tier;
    struct pollfd wake = {.fd = t->th.wake, .events = POLLIN};
    for (;;) {
        sl_tier_thread_awake(&t->th);
        end_leases(t);
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
