/*
 * The memory tier: pages in malloc'ed blocks with their checksums, a hash table, one LRU list. It is an example of what
 * an implementation does, and in tests it represents a slow one: requests wait in a queue until poll is called.
 *
 * A lease is an end time that is kept with the page; of several leases of one page the latest end counts. Pages do not
 * survive the process and are not shared with others.
 */
#include <stdlib.h>
#include <string.h>

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

typedef enum { REQ_EXISTS, REQ_GET, REQ_SET, REQ_REMOVE } req_kind;

typedef struct request {
    struct request *next;
    req_kind kind;
    const sl_key *keys;
    int32_t n;
    uint32_t lease_ms;
    void *const *pages;
    const void *const *const_pages;
    sl_tier_done_fn *done;
    void *cookie;
} request;

typedef struct memory_tier {
    sl_tier base;
    sl_tier_opts o;
    entry **buckets;
    size_t mask;
    entry *oldest, *newest;
    uint64_t batch;
    request *head, *tail;
    sl_tier_stats st;
} memory_tier;

static entry **slot(memory_tier *t, sl_key k)
{
    entry **at = &t->buckets[k.lo & t->mask];
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

static sl_status m_create(const sl_tier_opts *opts, sl_tier **out, sl_err *err)
{
    if (!opts->page_bytes || opts->capacity_bytes < opts->page_bytes)
        return sl_fail(err, SL_ERR_INVALID, "tier: capacity of %lu bytes holds no page of %zu",
                       opts->capacity_bytes, opts->page_bytes);
    memory_tier *t = calloc(1, sizeof *t);
    size_t n = 16;
    while (n < opts->capacity_bytes / opts->page_bytes)
        n *= 2;
    entry **buckets = t ? calloc(n, sizeof *buckets) : NULL;
    if (!buckets) {
        free(t);
        return sl_fail(err, SL_ERR_NO_MEMORY, "tier: out of memory");
    }
    *t = (memory_tier){.base.ops = &sl_tier_memory_ops, .o = *opts, .buckets = buckets, .mask = n - 1};
    *out = &t->base;
    return SL_OK;
}

static void m_destroy(sl_tier *base)
{
    memory_tier *t = (memory_tier *)base;
    while (t->head) {
        request *r = t->head;
        t->head = r->next;
        r->done(r->cookie, SL_ERR_CANCELLED, 0);
        free(r);
    }
    while (t->oldest)
        drop(t, slot(t, t->oldest->key));
    free(t->buckets);
    free(t);
}

static sl_status push(sl_tier *base, request r)
{
    memory_tier *t = (memory_tier *)base;
    if (r.n < 1)
        return SL_ERR_INVALID;
    request *copy = malloc(sizeof *copy);
    if (!copy)
        return SL_ERR_NO_MEMORY;
    *copy = r;
    copy->next = NULL;
    *(t->head ? &t->tail->next : &t->head) = copy;
    t->tail = copy;
    return SL_OK;
}

static sl_status m_exists(sl_tier *t, const sl_key *keys, int32_t n, uint32_t lease_ms, sl_tier_done_fn *done,
                          void *cookie)
{
    return push(
        t,
        (request){
            .kind = REQ_EXISTS, .keys = keys, .n = n, .lease_ms = lease_ms, .done = done, .cookie = cookie});
}

static sl_status m_get(sl_tier *t, const sl_key *keys, int32_t n, void *const *pages, sl_tier_done_fn *done,
                       void *cookie)
{
    return push(
        t, (request){.kind = REQ_GET, .keys = keys, .n = n, .pages = pages, .done = done, .cookie = cookie});
}

static sl_status m_set(sl_tier *t, const sl_key *keys, int32_t n, const void *const *pages,
                       sl_tier_done_fn *done, void *cookie)
{
    return push(
        t, (request){
               .kind = REQ_SET, .keys = keys, .n = n, .const_pages = pages, .done = done, .cookie = cookie});
}

static sl_status m_remove(sl_tier *t, const sl_key *keys, int32_t n, sl_tier_done_fn *done, void *cookie)
{
    return push(t, (request){.kind = REQ_REMOVE, .keys = keys, .n = n, .done = done, .cookie = cookie});
}

static void touch(memory_tier *t, entry *e)
{
    unlist(t, e);
    list(t, e);
}

static int32_t do_exists(memory_tier *t, const request *r)
{
    uint64_t end = sl_now_ns() + r->lease_ms * 1000000ull;
    int32_t n = 0;
    for (entry *e; n < r->n && (e = *slot(t, r->keys[n])); n++) {
        if (e->lease_end_ns < end)
            e->lease_end_ns = end;
        touch(t, e);
    }
    return n;
}

static int32_t do_get(memory_tier *t, const request *r)
{
    for (int32_t i = 0; i < r->n; i++) {
        entry **at = slot(t, r->keys[i]);
        if (!*at) {
            t->st.misses += (uint64_t)(r->n - i);
            return i;
        }
        memcpy(r->pages[i], (*at)->bytes, t->o.page_bytes);
        if (sl_crc32c(0, r->pages[i], t->o.page_bytes) != (*at)->crc) {
            t->st.damaged++;
            drop(t, at);
            return i;
        }
        touch(t, *at);
        t->st.hits++;
    }
    return r->n;
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
    drop(t, slot(t, e->key));
    t->st.evictions++;
    return true;
}

static int32_t do_set(memory_tier *t, const request *r)
{
    int32_t n = 0;
    t->batch++;
    for (int32_t i = 0; i < r->n; i++) {
        entry *old = *slot(t, r->keys[i]);
        if (old) {
            old->batch = t->batch;
            n++;
            continue;
        }
        entry *e = make_room(t) ? malloc(sizeof *e + t->o.page_bytes) : NULL;
        if (!e)
            break; /* pages after a missing one could never be used */
        *e = (entry){
            .key = r->keys[i], .batch = t->batch, .crc = sl_crc32c(0, r->const_pages[i], t->o.page_bytes)};
        memcpy(e->bytes, r->const_pages[i], t->o.page_bytes);
        *slot(t, e->key) = e;
        list(t, e);
        t->st.pages++;
        t->st.sets++;
        n++;
    }
    return n;
}

static int32_t do_remove(memory_tier *t, const request *r)
{
    int32_t n = 0;
    for (int32_t i = 0; i < r->n; i++) {
        entry **at = slot(t, r->keys[i]);
        if (*at) {
            drop(t, at);
            n++;
        }
    }
    return n;
}

static int m_poll(sl_tier *base)
{
    memory_tier *t = (memory_tier *)base;
    static int32_t (*const run[])(memory_tier *, const request *) = {do_exists, do_get, do_set, do_remove};
    request *todo = t->head;
    int n = 0;
    t->head = t->tail = NULL; /* requests that callbacks add wait for the next poll */
    while (todo) {
        request *r = todo;
        todo = r->next;
        r->done(r->cookie, SL_OK, run[r->kind](t, r));
        free(r);
        n++;
    }
    return n;
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

static void m_stats(const sl_tier *base, sl_tier_stats *out)
{
    const memory_tier *t = (const memory_tier *)base;
    uint64_t now = sl_now_ns();
    *out = t->st;
    out->bytes = t->st.pages * t->o.page_bytes;
    out->capacity_bytes = t->o.capacity_bytes;
    for (const entry *e = t->oldest; e; e = e->next)
        out->leased += e->lease_end_ns > now;
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
                                        .create = m_create,
                                        .destroy = m_destroy,
                                        .exists = m_exists,
                                        .get = m_get,
                                        .set = m_set,
                                        .remove = m_remove,
                                        .release = m_release,
                                        .poll = m_poll,
                                        .stats = m_stats,
                                        .damage = m_damage};
