/*
 * The disk tier as its owner sees it: requests in, completions out, health, open and close. The I/O is done by a thread
 * of its own (disk_io.c); exists is answered by the index at once.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "kvstore/disk_impl.h"

#define STAGING_BYTES ((uint64_t)64 << 20)

static uint64_t slowest_ns(const sl_disk_tier *t)
{
    uint64_t now = sl_now_ns(), worst = 0;
    for (int32_t i = 0; i < t->depth; i++)
        if (t->ops[i].used && t->ops[i].start_ns && now - t->ops[i].start_ns > worst)
            worst = now - t->ops[i].start_ns;
    return worst;
}

static void d_health(sl_tier *base, sl_tier_health *out)
{
    sl_disk_tier *t = (sl_disk_tier *)base;
    *out = (sl_tier_health){.state = SL_TIER_HEALTHY};
    pthread_mutex_lock(&t->lock);
    uint64_t slow = slowest_ns(t);
    if (t->reads.failures >= SL_DISK_READ_FAILURES) {
        out->state = SL_TIER_FAILED;
        snprintf(out->reason, sizeof out->reason, "%.100s: %s", t->file.path, t->reads.why);
    } else if (t->writes.failures >= SL_DISK_WRITE_FAILURES) {
        out->state = SL_TIER_DEGRADED;
        snprintf(out->reason, sizeof out->reason, "%.100s: %s; new pages are not stored", t->file.path,
                 t->writes.why);
    } else if (slow > t->slow_ns) {
        out->state = SL_TIER_DEGRADED;
        snprintf(out->reason, sizeof out->reason, "%.100s: an operation has been in flight for %.1f s",
                 t->file.path, (double)slow / 1e9);
    }
    pthread_mutex_unlock(&t->lock);
}

static void d_submit(sl_tier *base, sl_tier_req *r)
{
    sl_disk_tier *t = (sl_disk_tier *)base;
    uint64_t end = sl_now_ns() + r->lease_ms * 1000000ull;
    r->admitted = 0;
    pthread_mutex_lock(&t->lock);
    if (t->stopping) {
        sl_disk_cancel_rest(r);
        sl_disk_complete(t, r);
    } else if (r->op == SL_TIER_EXISTS) {
        while (r->begun < r->n) {
            int64_t slot = sl_disk_index_find(&t->index, r->keys[r->begun]);
            bool found = slot >= 0 && t->index.slots[slot].state == SL_SLOT_STORED;
            if (found) {
                sl_disk_index_touch(&t->index, slot);
                if (r->lease_ms)
                    sl_disk_index_lease(&t->index, slot, end);
            }
            sl_disk_skip(r, found ? SL_OK : SL_ERR_NOT_FOUND);
        }
        sl_disk_complete(t, r);
    } else {
        sl_disk_queue *q = r->op == SL_TIER_GET ? &t->gets : &t->sets;
        sl_list_push(q, r);
        eventfd_write(t->wake, 1);
    }
    pthread_mutex_unlock(&t->lock);
}

static void d_cancel(sl_tier *base, sl_tier_req *r)
{
    sl_disk_tier *t = (sl_disk_tier *)base;
    pthread_mutex_lock(&t->lock);
    r->cancelled = true;
    pthread_mutex_unlock(&t->lock);
    eventfd_write(t->wake, 1);
}

static int d_fd(const sl_tier *base)
{
    return ((const sl_disk_tier *)base)->event;
}

/* Reports the pages from *at on that left before request number `before` was complete. */
static void report_gone(const sl_disk_tier *t, const sl_disk_gone *g, size_t *at, uint64_t before)
{
    sl_key keys[64];
    while (*at < g->n && g->v[*at].after < before) {
        int32_t n = 0;
        while (n < (int32_t)SL_COUNT(keys) && *at < g->n && g->v[*at].after < before)
            keys[n++] = g->v[(*at)++].key;
        if (!t->stopping)
            t->evicted(t->evicted_ctx, keys, n);
    }
}

static int d_poll(sl_tier *base)
{
    sl_disk_tier *t = (sl_disk_tier *)base;
    eventfd_t count;
    int n = 0;
    size_t at = 0;
    pthread_mutex_lock(&t->lock);
    eventfd_read(t->event, &count);
    sl_tier_req *todo = t->done.head;
    sl_list_init(&t->done);
    sl_disk_gone gone = t->gone;
    t->gone = (sl_disk_gone){0};
    pthread_mutex_unlock(&t->lock);
    while (todo) {
        sl_tier_req *r = todo;
        todo = r->next; /* done may free the request */
        report_gone(t, &gone, &at, ++t->reported);
        r->done(r, r->cancelled || t->stopping ? SL_ERR_CANCELLED : SL_OK);
        n++;
    }
    report_gone(t, &gone, &at, UINT64_MAX);
    free(gone.v);
    return n;
}

static void on_index_evicted(void *ctx, sl_key key, double unused_s, double age_s)
{
    sl_disk_tier *t = ctx;
    sl_disk_gone_add(t, key);
    if (t->aged)
        t->aged(t->aged_ctx, unused_s, age_s);
}

static int32_t d_list(sl_tier *base, uint64_t *cursor, sl_key *keys, int32_t n)
{
    sl_disk_tier *t = (sl_disk_tier *)base;
    int32_t k = 0;
    pthread_mutex_lock(&t->lock);
    for (; *cursor < t->index.n_slots && k < n; ++*cursor) {
        if (t->index.slots[*cursor].state == SL_SLOT_STORED)
            keys[k++] = t->index.slots[*cursor].key;
    }
    pthread_mutex_unlock(&t->lock);
    return k;
}

static void d_release(sl_tier *base, const sl_key *keys, int32_t n)
{
    sl_disk_tier *t = (sl_disk_tier *)base;
    pthread_mutex_lock(&t->lock);
    for (int32_t i = 0; i < n; i++) {
        int64_t slot = sl_disk_index_find(&t->index, keys[i]);
        if (slot >= 0)
            sl_disk_index_lease(&t->index, slot, 0);
    }
    pthread_mutex_unlock(&t->lock);
}

static void d_stats(sl_tier *base, sl_tier_stats *out)
{
    sl_disk_tier *t = (sl_disk_tier *)base;
    pthread_mutex_lock(&t->lock);
    *out = t->st;
    out->pages = t->index.pages;
    out->bytes = t->index.pages * t->file.store.page_bytes;
    out->capacity_bytes = t->index.n_slots * t->file.store.page_bytes;
    out->evictions = t->index.evictions;
    out->leased = sl_disk_index_leased(&t->index, sl_now_ns());
    out->bytes_written_ever = t->sequence * t->slot_bytes;
    pthread_mutex_unlock(&t->lock);
}

static int d_quota_uses(sl_tier *base, sl_quota_use *out)
{
    sl_disk_tier *t = (sl_disk_tier *)base;
    pthread_mutex_lock(&t->lock);
    int n = sl_quota_n_uses(&t->index.quota);
    memcpy(out, t->index.quota.uses, (size_t)n * sizeof *out);
    pthread_mutex_unlock(&t->lock);
    return n;
}

static bool d_damage(sl_tier *base, sl_key key)
{
    sl_disk_tier *t = (sl_disk_tier *)base;
    uint8_t *block = aligned_alloc(SL_DISK_BLOCK, SL_DISK_BLOCK);
    pthread_mutex_lock(&t->lock);
    int64_t slot = sl_disk_index_find(&t->index, key);
    pthread_mutex_unlock(&t->lock);
    bool done = false;
    if (block && slot >= 0) {
        off_t at = (off_t)(sl_disk_slot_at(&t->file.store, (uint64_t)slot) + SL_DISK_BLOCK);
        done = pread(t->file.fd, block, SL_DISK_BLOCK, at) == SL_DISK_BLOCK;
        block[t->file.store.page_bytes / 2 % SL_DISK_BLOCK] ^= 0x40;
        done = done && pwrite(t->file.fd, block, SL_DISK_BLOCK, at) == SL_DISK_BLOCK;
    }
    free(block);
    return done;
}

static void free_tier(sl_disk_tier *t)
{
    sl_uring_close(&t->ring);
    sl_disk_index_free(&t->index);
    sl_disk_file_close(&t->file);
    if (t->wake >= 0)
        close(t->wake);
    if (t->event >= 0)
        close(t->event);
    pthread_mutex_destroy(&t->lock);
    free(t->gone.v);
    free(t->staging);
    free(t);
}

/* Tiers whose thread waits in the kernel, which may still write into their buffers. They stay reachable. */
static void keep_for_ever(sl_disk_tier *t)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static sl_disk_tier *left;
    pthread_mutex_lock(&lock);
    t->next_left = left;
    left = t;
    pthread_mutex_unlock(&lock);
}

static bool join_within(sl_disk_tier *t, uint64_t ns)
{
    const struct timespec until = sl_wall_after(ns);
    return pthread_timedjoin_np(t->thread, NULL, &until) == 0;
}

/* False: the device did not end its operations within slow_ms, and they are given up. */
static bool stop_thread(sl_disk_tier *t)
{
    uint64_t wait = t->slow_ns;
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_mutex_unlock(&t->lock);
    eventfd_write(t->wake, 1);
    while (!join_within(t, wait)) {
        wait = 10000000; /* it is between two waits: it will be in the kernel, or have ended, soon */
        pthread_mutex_lock(&t->lock);
        int32_t n = t->waiting ? sl_disk_abandon(t) : -1;
        pthread_mutex_unlock(&t->lock);
        if (n < 0)
            continue;
        sl_log(
            SL_LOG_WARN, "tier", "disk_left",
            "file=%s operations=%d waited_ms=%lu effect=\"the kernel keeps their buffers until the process ends\"",
            t->file.path, n, (unsigned long)(t->slow_ns / 1000000));
        pthread_detach(t->thread);
        return false;
    }
    return true;
}

static void d_close(sl_tier *base)
{
    sl_disk_tier *t = (sl_disk_tier *)base;
    bool ended = stop_thread(t);
    while (d_poll(base))
        ;
    if (ended)
        free_tier(t);
    else
        keep_for_ever(t);
}

/* ---- open ---- */

static sl_status make_staging(sl_disk_tier *t, const sl_tier_opts *o)
{
    struct iovec iov[SL_DISK_MAX_DEPTH];
    uint64_t depth = o->queue_depth > 0 ? (uint64_t)o->queue_depth : STAGING_BYTES / t->slot_bytes;
    if (o->queue_depth <= 0)
        depth = depth > 32 ? 32 : depth < 4 ? 4 : depth;
    t->depth = depth > SL_DISK_MAX_DEPTH ? SL_DISK_MAX_DEPTH : (int32_t)depth;
    t->window = 2 * (uint64_t)t->depth;
    t->staging = aligned_alloc(SL_DISK_BLOCK, (size_t)t->depth * t->slot_bytes);
    if (!t->staging)
        return SL_ERR_NO_MEMORY;
    memset(t->staging, 0, (size_t)t->depth * t->slot_bytes);
    for (int32_t i = 0; i < t->depth; i++) {
        t->ops[i].buffer = t->staging + (size_t)i * t->slot_bytes;
        iov[i] = (struct iovec){t->ops[i].buffer, t->slot_bytes};
    }
    t->fixed = sl_uring_register(&t->ring, iov, (unsigned)t->depth) == SL_OK;
    if (!t->fixed)
        sl_log(
            SL_LOG_WARN, "tier", "not_registered", "file=%s reason=%s", t->file.path,
            "the limit of locked memory is too small for the staging buffers; reads and writes cost more time");
    return SL_OK;
}

static sl_status prepare(sl_disk_tier *t, const sl_tier_opts *o, sl_err *err)
{
    sl_disk_recovered found;
    SL_TRY(sl_disk_file_open(o, &t->file, err));
    t->slot_bytes = sl_disk_slot_bytes(&t->file.store);
    if (sl_uring_open(&t->ring, SL_DISK_MAX_DEPTH + 1, err) != SL_OK)
        return sl_fail_in(err, SL_ERR_UNSUPPORTED, "tier disk");
    t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->wake < 0 || t->event < 0 || make_staging(t, o) != SL_OK ||
        sl_disk_index_init(&t->index, &t->file.store, t->file.n_segments, o->quota) != SL_OK)
        return sl_fail(err, SL_ERR_NO_MEMORY, "tier disk: out of memory or descriptors");
    SL_TRY(sl_disk_recover(&t->file, 2 * SL_DISK_MAX_DEPTH, &t->index, &found, err));
    t->sequence = found.sequence;
    t->st.recovered = t->index.pages;
    t->st.set_aside = t->file.set_aside;
    t->index.evicted = on_index_evicted;
    t->index.evicted_ctx = t;
    sl_log(SL_LOG_INFO, "tier", "opened",
           "file=%s segments=%" PRIu64 " pages=%" PRIu64 " incomplete=%" PRIu64, t->file.path,
           t->file.n_segments, t->index.pages, found.damaged);
    return SL_OK;
}

/* ---- options ---- */

typedef struct disk_options {
    sl_tier_common common;
    char path[1024];
} disk_options;

static const sl_option rows[] = {
    SL_OPTION(
        disk_options, path, SL_OPTION_TEXT, 0, "", 0, 0,
        "Directory on a local disk where decode workers keep pages beyond the host store and across restarts "
        "(docs/caching.md). Each worker makes a directory of its own in it, decode-0, decode-1… or both-0…, readable "
        "by this user only. Empty: no disk is used."),
    SL_TIER_BYTES(disk_options,
                  "Size of the disk store of each decode worker, allocated in full at start; it is never "
                  "exceeded. Mandatory with path."),
};

static sl_status finish(void *values, sl_err *err)
{
    const disk_options *o = values;
    return o->common.bytes
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID,
                         "bytes: is mandatory with kvstore.disk.path: the size of the store on disk");
}

static const sl_options table = {.section = "kvstore.disk",
                                 .name = "disk",
                                 .on = "path",
                                 .needs_reuse = true,
                                 .rows = rows,
                                 .n = SL_COUNT(rows),
                                 .bytes = sizeof(disk_options),
                                 .finish = finish};
_Static_assert(sizeof(disk_options) <= SL_TIER_OPTIONS_BYTES, "see tier.h");

/* The worker's own directory in the configured one, which exists; it is made if it does not exist. */
static sl_status own_directory(const disk_options *d, const char *instance, char *out, size_t cap,
                               sl_err *err)
{
    struct stat st;
    if (snprintf(out, cap, "%s/%s", d->path, instance ? instance : "decode") >= (int)cap)
        return sl_fail(err, SL_ERR_INVALID, "kvstore.disk.path: is too long");
    if (stat(d->path, &st) != 0)
        return sl_fail(err, SL_ERR_IO, "kvstore.disk.path: %.300s: %s", d->path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return sl_fail(err, SL_ERR_INVALID, "kvstore.disk.path: %.300s is not a directory", d->path);
    if (mkdir(out, 0700) != 0 && errno != EEXIST)
        return sl_fail(err, SL_ERR_IO, "kvstore.disk.path: %.300s: %s", out, strerror(errno));
    return SL_OK;
}

static sl_status open_with(const sl_tier_opts *o, sl_tier **out, sl_err *err);

static sl_status d_open(const sl_tier_opts *o, sl_tier **out, sl_err *err)
{
    const disk_options *d = o->options;
    char directory[1024];
    if (!d)
        return open_with(o, out, err);
    sl_tier_opts own = *o;
    SL_TRY(own_directory(d, o->instance, directory, sizeof directory, err));
    own.options = NULL;
    own.directory = directory;
    sl_status st = open_with(&own, out, err);
    bool size = st == SL_ERR_EXHAUSTED || st == SL_ERR_INVALID;
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, size ? "kvstore.disk.bytes" : "kvstore.disk.path");
}

static sl_status open_with(const sl_tier_opts *o, sl_tier **out, sl_err *err)
{
    sl_disk_tier *t = calloc(1, sizeof *t);
    if (!t)
        return sl_fail(err, SL_ERR_NO_MEMORY, "tier disk: out of memory");
    t->base.ops = &sl_tier_disk_ops;
    t->file.fd = t->file.dir_fd = t->ring.fd = t->wake = t->event = -1;
    sl_list_init(&t->gets);
    sl_list_init(&t->sets);
    sl_list_init(&t->done);
    t->slow_ns = (o->slow_ms ? o->slow_ms : 5000) * 1000000ull;
    t->second_use = o->second_use;
    t->evicted = o->evicted;
    t->evicted_ctx = o->evicted_ctx;
    t->aged = o->aged;
    t->aged_ctx = o->aged_ctx;
    if (sl_disk_test_hooks)
        t->hooks = *sl_disk_test_hooks;
    pthread_mutex_init(&t->lock, NULL);
    sl_status st = prepare(t, o, err);
    if (st == SL_OK && pthread_create(&t->thread, NULL, sl_disk_io_main, t) != 0)
        st = sl_fail(err, SL_ERR_NO_MEMORY, "tier disk: no thread");
    if (st != SL_OK) {
        free_tier(t);
        return st;
    }
    *out = &t->base;
    return SL_OK;
}

const sl_tier_ops sl_tier_disk_ops = {.name = "disk",
                                      .description =
                                          "pages in one preallocated file, by io_uring and O_DIRECT",
                                      .options = &table,
                                      .persistent = true,
                                      .open = d_open,
                                      .close = d_close,
                                      .fd = d_fd,
                                      .submit = d_submit,
                                      .cancel = d_cancel,
                                      .release = d_release,
                                      .poll = d_poll,
                                      .health = d_health,
                                      .stats = d_stats,
                                      .list = d_list,
                                      .quota_uses = d_quota_uses,
                                      .damage = d_damage};
