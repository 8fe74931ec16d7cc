/*
 * Changes of the workers' prefix caches: the reports of the workers are added to the directory that placement uses, and to
 * a ring that the subscribers of the fronts read, each at its own speed.
 *
 * Batches have the worker's own numbers, so a subscriber can see for each worker whether it has missed a batch. The
 * size of the ring in bytes is bounded for all workers together; for each worker one number remembers the newest batch
 * that left the ring, so that a subscriber that comes too late, or reads too slowly, is told of the gap.
 *
 * A gap in the numbers of a worker means that one side had no memory for a batch. What was known of the worker is then void,
 * and KV_RESYNC asks it to report everything again.
 *
 * Without router.keys_file every caller may subscribe. The tokens of requests with a cache_salt do not enter the ring
 * then: their pages are recognized by their keys, which do not follow from the tokens alone.
 */
#include <stdlib.h>
#include <string.h>

#include "kvstore/page_key.h"
#include "kvstore/snapshot.h"
#include "router/core/core_impl.h"

/* ---- batches ---- */

static void batch_free(sl_kv_batch *b)
{
    free(b->stored);
    free(b->removed);
    free(b->tokens);
    free(b);
}

static bool read_keys(sl_blob b, sl_key **keys)
{
    sl_rd rd = sl_rd_init(b.data, b.len);
    size_t n = b.len / 16;
    *keys = n ? malloc(n * sizeof **keys) : NULL;
    if (n && !*keys)
        return false;
    for (size_t i = 0; i < n; i++) {
        (*keys)[i].lo = sl_rd_u64(&rd);
        (*keys)[i].hi = sl_rd_u64(&rd);
    }
    return true;
}

static bool read_tokens(sl_blob b, int32_t **tokens)
{
    sl_rd rd = sl_rd_init(b.data, b.len);
    *tokens = b.len ? malloc(b.len) : NULL;
    if (b.len && !*tokens)
        return false;
    for (size_t i = 0; i < b.len / 4; i++)
        (*tokens)[i] = sl_rd_i32(&rd);
    return true;
}

/* NULL: out of memory. */
static sl_kv_batch *batch_of(const sl_member *w, const sl_msg_kv_events *e)
{
    sl_kv_batch *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    *b = (sl_kv_batch){.sequence = e->sequence,
                       .worker = w->id,
                       .medium = (sl_medium)e->medium,
                       .cleared = e->cleared != 0,
                       .n_stored = e->stored.len / 32,
                       .n_removed = e->removed.len / 16,
                       .bytes = sizeof *b + e->stored.len + e->removed.len + e->tokens.len};
    if (!read_keys(e->stored, &b->stored) || !read_keys(e->removed, &b->removed) ||
        !read_tokens(e->tokens, &b->tokens)) {
        batch_free(b);
        return NULL;
    }
    return b;
}

/* ---- the ring ---- */

static sl_kv_batch **slot(const sl_kv_log *k, uint64_t ordinal)
{
    return &k->ring[ordinal & (k->cap - 1)];
}

static void drop_oldest(sl_router *r)
{
    sl_kv_log *k = &r->kv;
    sl_kv_batch *b = *slot(k, k->first++);
    sl_member *w = sl_member_find(r, b->worker);
    if (w) {
        w->kv.lost = b->sequence;
        w->kv.lost_ordinal = b->ordinal;
    }
    k->bytes -= b->bytes;
    batch_free(b);
}

static bool make_room(sl_kv_log *k)
{
    if (!k->first)
        k->first = k->next = 1;
    if (k->next - k->first < k->cap)
        return true;
    size_t cap = k->cap ? 2 * k->cap : 256;
    sl_kv_batch **ring = calloc(cap, sizeof *ring);
    if (!ring)
        return false;
    for (uint64_t i = k->first; i < k->next; i++)
        ring[i & (cap - 1)] = *slot(k, i);
    free(k->ring);
    k->ring = ring;
    k->cap = cap;
    return true;
}

/* Takes ownership of b. */
static void publish(sl_router *r, sl_kv_batch *b)
{
    sl_kv_log *k = &r->kv;
    if (!make_room(k)) {
        batch_free(b);
        return;
    }
    b->ordinal = k->next++;
    *slot(k, b->ordinal) = b;
    k->bytes += b->bytes;
    for (size_t i = 0; i < SL_FRONTS; i++) {
        if (r->fronts[i])
            r->fronts[i]->c->kv_batch(r->fronts[i]);
    }
    while (k->bytes > SL_KV_RING_BYTES)
        drop_oldest(r);
}

void sl_kv_free(sl_router *r)
{
    for (uint64_t i = r->kv.first; i < r->kv.next; i++)
        batch_free(*slot(&r->kv, i));
    free(r->kv.ring);
}

/* ---- reports of workers ---- */

static void update_removed(sl_keyset *s, const sl_kv_batch *b)
{
    if (b->cleared)
        sl_keyset_clear(s);
    for (size_t i = 0; i < b->n_removed; i++)
        sl_keyset_remove(s, b->removed[i]);
}

static void update_directory(sl_member *w, const sl_kv_batch *b)
{
    sl_directory *d = w->r->directory;
    for (int m = 0; m < SL_MEDIUM_COUNT; m++) {
        if (b->all || (b->cleared && m == (int)b->medium))
            sl_directory_clear(d, w->place, (sl_medium)m);
    }
    for (size_t i = 0; i < b->n_removed; i++)
        sl_directory_remove(d, w->place, b->medium, b->removed[i]);
    for (size_t i = 0; i < b->n_stored; i++)
        sl_directory_add(d, w->place, b->medium, b->stored[2 * i + 1]);
}

/* Pages of snapshots have tokens that no text has: only the directory knows them. Subscribers are told that one is removed, which
 * they do not know either. */
static void leave_out_snapshots(sl_kv_batch *b)
{
    size_t n = 0;
    for (size_t i = 0; b->tokens && i < b->n_stored; i++) {
        const int32_t *tokens = b->tokens + i * SL_KEY_PAGE_TOKENS;
        if (sl_snapshot_has(tokens))
            continue;
        memmove(b->stored + 2 * n, b->stored + 2 * i, 2 * sizeof *b->stored);
        memmove(b->tokens + n * SL_KEY_PAGE_TOKENS, tokens, SL_KEY_PAGE_TOKENS * sizeof *tokens);
        n++;
    }
    if (b->tokens)
        b->n_stored = n;
}

static bool is_zero(sl_key k)
{
    return !(k.lo | k.hi);
}

/* Overwrites the tokens of pages of salted requests where every caller is an admin. A first page is unsalted if its key
 * follows from its tokens and the seed of everybody, another one if its parent is. */
static void withhold(sl_member *w, sl_kv_batch *b)
{
    const sl_router *r = w->r;
    if (!b->tokens || (r->o.front.keys_file && *r->o.front.keys_file))
        return;
    sl_key seed = sl_share_seed_of_everybody(r->cluster.fingerprint);
    if (!w->unsalted && sl_keyset_create(w->total_pages ? 2 * (size_t)w->total_pages : 4096, &w->unsalted))
        w->unsalted = NULL;
    if (w->unsalted && b->medium == SL_MEDIUM_HOST)
        update_removed(w->unsalted, b);
    for (size_t i = 0; i < b->n_stored; i++) {
        sl_key parent = b->stored[2 * i], key = b->stored[2 * i + 1];
        int32_t *tokens = b->tokens + i * SL_KEY_PAGE_TOKENS;
        bool open = is_zero(parent) ? !is_zero(seed) && sl_key_eq(key, sl_page_key(seed, tokens))
                                    : w->unsalted && sl_keyset_has(w->unsalted, parent);
        if (open && w->unsalted)
            sl_keyset_add(w->unsalted, key);
        for (size_t t = 0; !open && t < SL_KEY_PAGE_TOKENS; t++)
            tokens[t] = SL_KV_WITHHELD;
    }
}

void sl_kv_on_events(sl_member *w, const sl_msg_kv_events *e)
{
    if (e->sequence <= w->kv.sequence) {
        sl_counter_add(w->r->stats.workers.malformed, 1);
        return;
    }
    sl_kv_batch *b = batch_of(w, e);
    if (!b)
        return; /* the next batch shows the gap */
    if (e->sequence != w->kv.sequence + 1) {
        if (!w->kv.skipped && !w->kv.gap)
            sl_log(SL_LOG_WARN, "router", "kv_events_gap", "worker=%s from=%lu to=%lu", w->name,
                   w->kv.sequence, e->sequence);
        b->cleared = b->all = true;
        w->kv.gap = true;
        sl_counter_add(w->r->stats.directory.gaps, 1);
    }
    w->kv.skipped = e->sequence != w->kv.sequence + 1;
    w->kv.sequence = e->sequence;
    update_directory(w, b);
    leave_out_snapshots(b);
    withhold(w, b);
    publish(w->r, b);
}

void sl_kv_on_lost(sl_member *w)
{
    if (!w->kv.sequence)
        return;
    sl_msg_kv_events e = {.sequence = ++w->kv.sequence, .cleared = 1};
    sl_kv_batch *b = batch_of(w, &e);
    if (!b)
        return;
    b->all = true;
    publish(w->r, b);
}

enum { RESYNC_MS = 1000 };

void sl_kv_tick(sl_member *w, uint64_t now)
{
    if (!w->kv.gap || now < w->kv.resync_ns)
        return;
    w->kv.gap = false;
    w->kv.resync_ns = now + RESYNC_MS * SL_MS;
    sl_counter_add(w->r->stats.directory.resyncs, 1);
    sl_msg m = {.type = SL_MSG_KV_RESYNC};
    sl_router_link_send(w, &m);
}

/* ---- reading by subscribers ---- */

sl_status sl_kv_may_subscribe(const sl_router *r, sl_err *err)
{
    if (r->o.placement.share == SL_SHARE_ALL || (r->o.front.keys_file && *r->o.front.keys_file))
        return SL_OK; /* with a keys file the fronts let admins in alone */
    return sl_fail(
        err, SL_ERR_UNSUPPORTED,
        "kvstore.share keeps tokens of clients apart, and without router.keys_file every caller is "
        "an admin: there are no events then");
}

sl_kv_cursor sl_kv_subscribe(const sl_router *r, uint64_t from)
{
    uint64_t next = r->kv.next ? r->kv.next : 1;
    return (sl_kv_cursor){.from = from, .at = from ? 0 : next, .live = next, .lost = from != 0};
}

/* The first number that the subscriber wants of w. */
static uint64_t wanted(const sl_kv_cursor *c, const sl_member *w)
{
    return w && c->from > w->kv.sequence + 1 ? 1 : c->from;
}

/* The next worker, by id, of which the subscriber has missed something; NULL after the last. */
static const sl_member *next_lost(const sl_router *r, const sl_kv_cursor *c)
{
    const sl_member *found = NULL;
    for (const sl_member *w = r->cluster.members; w; w = w->next) {
        bool lost = w->kv.lost && w->kv.lost_ordinal >= c->at && w->state != SL_MEMBER_DEAD;
        if (lost && c->at < c->live && w->kv.lost_ordinal < c->live) /* in the replay */
            lost = w->kv.lost >= wanted(c, w);
        if (lost && w->id > c->told && (!found || w->id < found->id))
            found = w;
    }
    return found;
}

static const sl_kv_batch *read_gap(const sl_router *r, sl_kv_cursor *c, sl_kv_batch *gap)
{
    const sl_member *w = next_lost(r, c);
    if (!w) {
        c->lost = false;
        c->at = r->kv.first;
        return NULL;
    }
    c->told = w->id;
    *gap = (sl_kv_batch){.sequence = w->kv.lost, .worker = w->id, .cleared = true, .all = true};
    return gap;
}

const sl_kv_batch *sl_kv_read(sl_router *r, sl_kv_cursor *c, sl_kv_batch *gap)
{
    if (!r->kv.cap)
        return NULL;
    if (c->at < r->kv.first && !c->lost) {
        c->lost = true;
        c->told = 0;
    }
    if (c->lost && read_gap(r, c, gap))
        return gap;
    while (c->at < r->kv.next) {
        const sl_kv_batch *b = *slot(&r->kv, c->at++);
        if (b->ordinal >= c->live || b->sequence >= wanted(c, sl_member_find(r, b->worker)))
            return b;
    }
    return NULL;
}
