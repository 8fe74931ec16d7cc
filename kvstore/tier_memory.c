/*
 * The memory tier: pages in malloc'ed blocks with their checksums, a hash table, one LRU list. It is an example
 * of what an implementation does. Requests wait in a list until poll, which runs them in their order, each as a whole.
 *
 * A lease is an end time that is kept with the page; of several leases of one page the latest end counts. Pages do not
 * survive the process and are not shared with others.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/list.h"
#include "base/log.h"
#include "kvstore/tier.h"

typedef struct entry {
    struct entry *chain;       /* hash bucket */
    struct entry *prev, *next; /* LRU: head is the oldest */
    sl_key key;
    uint32_t crc;
    uint64_t lease_end_ns, batch; /* batch: the number of the last set with this key */
    uint8_t bytes[];
} entry;

typedef struct memory_tier {
    sl_tier base;
    sl_tier_opts o;
    entry **buckets;
    size_t mask;
    entry *oldest, *newest;
    uint64_t batch;
    int event; /* eventfd: readable while requests wait */
    SL_LIST(sl_tier_req) waiting;
    sl_tier_stats st;
} memory_tier;

static entry **slot(memory_tier *t, sl_key k)
{
    entry **at = &t->buckets[sl_key_place(k) & t->mask];
    while (*at && !sl_key_eq((*at)->key, k))
        at = &(*at)->chain;
    return at;
}

static void unlist(memory_tier *t, entry *e)
{
    *(e->prev ? &e->prev->next : &t->oldest) = e->next;
    *(e->next ? &e->next->prev : &t->newest) = e->prev;
}

static void list(memory_tier *t, entry *e)
{
    e->prev = t->newest;
    e->next = NULL;
    *(e->prev ? &e->prev->next : &t->oldest) = e;
    t->newest = e;
}

static void drop(memory_tier *t, entry **at)
{
    entry *e = *at;
    *at = e->chain;
    unlist(t, e);
    t->st.pages--;
    free(e);
}

/* The tier itself gives this page up. Runs inside of poll; at close the owner is told nothing. */
static void forget(memory_tier *t, entry **at)
{
    sl_key key = (*at)->key;
    drop(t, at);
    if (t->o.evicted)
        t->o.evicted(t->o.evicted_ctx, &key, 1);
}

static sl_status m_open(const sl_tier_opts *opts, sl_tier **out, sl_err *err)
{
    if (!opts->page_bytes || opts->capacity_bytes < opts->page_bytes)
        return sl_fail(err, SL_ERR_INVALID, "tier memory: capacity of %lu bytes holds no page of %zu",
                       opts->capacity_bytes, opts->page_bytes);
    size_t n = 16;
    while (n < opts->capacity_bytes / opts->page_bytes)
        n *= 2;
    memory_tier *t = calloc(1, sizeof *t);
    if (!t)
        goto no_memory;
    *t = (memory_tier){.base.ops = &sl_tier_memory_ops, .o = *opts, .mask = n - 1};
    sl_list_init(&t->waiting);
    t->buckets = calloc(n, sizeof(entry *));
    if (!t->buckets)
        goto free_tier;
    t->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->event < 0)
        goto free_buckets;
    *out = &t->base;
    return SL_OK;

free_buckets:
    free(t->buckets);
free_tier:
    free(t);
no_memory:
    return sl_fail(err, SL_ERR_NO_MEMORY, "tier memory: out of memory or descriptors");
}

static void m_submit(sl_tier *base, sl_tier_req *r)
{
    memory_tier *t = (memory_tier *)base;
    sl_list_push(&t->waiting, r);
    eventfd_write(t->event, 1);
}

static void m_cancel(sl_tier *base, sl_tier_req *r)
{
    (void)base; /* the request still waits, and poll sees the mark */
    r->cancelled = true;
}

static int m_fd(const sl_tier *base)
{
    return ((const memory_tier *)base)->event;
}

static void touch(memory_tier *t, entry *e)
{
    unlist(t, e);
    list(t, e);
}

static sl_status do_exists(memory_tier *t, const sl_tier_req *r, int32_t i)
{
    entry *e = *slot(t, r->keys[i]);
    uint64_t end = sl_now_ns() + r->lease_ms * 1000000ull;
    if (!e)
        return SL_ERR_NOT_FOUND;
    if (e->lease_end_ns < end)
        e->lease_end_ns = end;
    touch(t, e);
    return SL_OK;
}

static sl_status do_get(memory_tier *t, const sl_tier_req *r, int32_t i)
{
    entry **at = slot(t, r->keys[i]);
    if (!*at) {
        t->st.misses++;
        return SL_ERR_NOT_FOUND;
    }
    if (sl_crc32c(0, (*at)->bytes, t->o.page_bytes) != (*at)->crc) {
        t->st.damaged++;
        forget(t, at);
        return SL_ERR_CORRUPT;
    }
    sl_tier_scatter((*at)->bytes, &r->pages[i], t->o.page_bytes);
    if (!r->not_a_use)
        touch(t, *at);
    t->st.hits++;
    t->st.bytes_read += t->o.page_bytes;
    return SL_OK;
}

static bool make_room(memory_tier *t)
{
    uint64_t now = sl_now_ns();
    entry *e = t->oldest;
    if ((t->st.pages + 1) * t->o.page_bytes <= t->o.capacity_bytes)
        return true;
    while (e && (e->lease_end_ns > now || e->batch == t->batch)) /* a set does not evict its own pages */
        e = e->next;
    if (!e)
        return false;
    forget(t, slot(t, e->key));
    t->st.evictions++;
    return true;
}

static sl_status do_set(memory_tier *t, const sl_tier_req *r, int32_t i)
{
    entry *old = *slot(t, r->keys[i]);
    if (old) {
        old->batch = t->batch;
        return SL_OK;
    }
    entry *e = make_room(t) ? malloc(sizeof *e + t->o.page_bytes) : NULL;
    if (!e) {
        t->st.not_stored_room++;
        return SL_ERR_EXHAUSTED;
    }
    *e = (entry){.key = r->keys[i], .batch = t->batch};
    sl_tier_gather(&r->pages[i], e->bytes, t->o.page_bytes);
    e->crc = sl_crc32c(0, e->bytes, t->o.page_bytes);
    *slot(t, e->key) = e;
    list(t, e);
    t->st.pages++;
    t->st.sets++;
    t->st.bytes_written += t->o.page_bytes;
    return SL_OK;
}

static sl_status do_remove(memory_tier *t, const sl_tier_req *r, int32_t i)
{
    entry **at = slot(t, r->keys[i]);
    if (!*at)
        return SL_ERR_NOT_FOUND;
    drop(t, at);
    return SL_OK;
}

static void finish(memory_tier *t, sl_tier_req *r, bool cancelled)
{
    static sl_status (*const run[])(memory_tier *, const sl_tier_req *,
                                    int32_t) = {[SL_TIER_EXISTS] = do_exists,
                                                [SL_TIER_GET] = do_get,
                                                [SL_TIER_SET] = do_set,
                                                [SL_TIER_REMOVE] = do_remove};
    cancelled = cancelled || r->cancelled;
    t->batch++;
    for (int32_t i = 0; i < r->n; i++)
        r->results[i] = cancelled ? SL_ERR_CANCELLED : run[r->op](t, r, i);
    r->done(r, cancelled ? SL_ERR_CANCELLED : SL_OK);
}

static int complete(memory_tier *t, bool cancelled)
{
    sl_tier_req *todo = t->waiting.head;
    eventfd_t count;
    int n = 0;
    eventfd_read(t->event, &count);
    sl_list_init(&t->waiting); /* requests that callbacks add wait for the next poll */
    while (todo) {
        sl_tier_req *r = todo;
        todo = r->next; /* done may free the request */
        finish(t, r, cancelled);
        n++;
    }
    return n;
}

static int m_poll(sl_tier *base)
{
    return complete((memory_tier *)base, false);
}

static void m_close(sl_tier *base)
{
    memory_tier *t = (memory_tier *)base;
    while (complete(t, true))
        ;
    while (t->oldest)
        drop(t, slot(t, t->oldest->key));
    close(t->event);
    free(t->buckets);
    free(t);
}

static void m_release(sl_tier *base, const sl_key *keys, int32_t n)
{
    memory_tier *t = (memory_tier *)base;
    for (int32_t i = 0; i < n; i++) {
        entry *e = *slot(t, keys[i]);
        if (e)
            e->lease_end_ns = 0;
    }
}

static void m_health(sl_tier *base, sl_tier_health *out)
{
    (void)base;
    *out = (sl_tier_health){.state = SL_TIER_HEALTHY};
}

static void m_stats(sl_tier *base, sl_tier_stats *out)
{
    const memory_tier *t = (const memory_tier *)base;
    uint64_t now = sl_now_ns();
    *out = t->st;
    out->bytes = t->st.pages * t->o.page_bytes;
    out->capacity_bytes = t->o.capacity_bytes;
    for (const entry *e = t->oldest; e; e = e->next)
        out->leased += e->lease_end_ns > now;
}

/* The cursor counts buckets in its upper half, and in its lower half the pages of that bucket that were listed. */
static int32_t m_list(sl_tier *base, uint64_t *cursor, sl_key *keys, int32_t n)
{
    const memory_tier *t = (const memory_tier *)base;
    uint64_t bucket = *cursor >> 32, skip = *cursor & UINT32_MAX;
    int32_t k = 0;
    for (; bucket <= t->mask; bucket++, skip = 0) {
        uint64_t at = 0;
        for (const entry *e = t->buckets[bucket]; e; e = e->chain, at++) {
            if (at < skip)
                continue;
            if (k == n) {
                *cursor = bucket << 32 | at;
                return k;
            }
            keys[k++] = e->key;
        }
    }
    *cursor = bucket << 32;
    return k;
}

static bool m_damage(sl_tier *base, sl_key key)
{
    entry *e = *slot((memory_tier *)base, key);
    if (e)
        e->bytes[((memory_tier *)base)->o.page_bytes / 2] ^= 0x40;
    return e != NULL;
}

const sl_tier_ops sl_tier_memory_ops = {.name = "memory",
                                        .description = "pages in this process's memory",
                                        .ordered = true,
                                        .open = m_open,
                                        .close = m_close,
                                        .fd = m_fd,
                                        .submit = m_submit,
                                        .cancel = m_cancel,
                                        .release = m_release,
                                        .poll = m_poll,
                                        .health = m_health,
                                        .stats = m_stats,
                                        .list = m_list,
                                        .damage = m_damage};
