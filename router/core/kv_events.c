/*
 * Changes of the workers' prefix caches, as they report them: into the index that placement uses, into a ring for
 * subscribers that ask for old ones, and to the fronts.
 */
#include <stdlib.h>

#include "router/core/core_impl.h"

static bool read_keys(sl_blob b, sl_key **keys, size_t *n)
{
    sl_rd rd = sl_rd_init(b.data, b.len);
    *n = b.len / 16;
    *keys = *n ? malloc(*n * sizeof **keys) : NULL;
    if (*n && !*keys)
        return false;
    for (size_t i = 0; i < *n; i++) {
        (*keys)[i].lo = sl_rd_u64(&rd);
        (*keys)[i].hi = sl_rd_u64(&rd);
    }
    return true;
}

/* Takes b's arrays over. */
static void publish(sl_router *r, sl_kv_batch *b)
{
    b->sequence = ++r->kv.newest;
    sl_kv_batch *slot = &r->kv.ring[b->sequence % SL_KV_RING];
    free(slot->stored);
    free(slot->removed);
    *slot = *b;
    for (size_t i = 0; i < SL_FRONTS; i++) {
        if (r->fronts[i])
            r->fronts[i]->c->kv_batch(r->fronts[i], slot);
    }
}

void sl_kv_on_events(sl_member *w, const sl_msg_kv_events *e)
{
    sl_router *r = w->r;
    sl_kv_batch b = {.worker = w->id, .cleared = e->cleared != 0};
    if (e->stored.len % 32 || e->removed.len % 16) {
        sl_counter_add(r->stats.malformed, 1);
        return;
    }
    if (w->kv_sequence && e->sequence != w->kv_sequence + 1)
        sl_log(SL_LOG_DEBUG, "router", "kv_events_gap", "worker=%s from=%lu to=%lu", w->name, w->kv_sequence,
               e->sequence);
    w->kv_sequence = e->sequence;
    if (!read_keys(e->stored, &b.stored, &b.n_stored) || !read_keys(e->removed, &b.removed, &b.n_removed)) {
        free(b.stored);
        return;
    }
    if (b.cleared)
        sl_keyset_clear(w->prefix);
    for (size_t i = 0; i < b.n_removed; i++)
        sl_keyset_remove(w->prefix, b.removed[i]);
    for (size_t i = 1; i < b.n_stored; i += 2)
        sl_keyset_add(w->prefix, b.stored[i]);
    publish(r, &b);
}

uint64_t sl_kv_newest(const sl_router *r)
{
    return r->kv.newest;
}

const sl_kv_batch *sl_kv_at(const sl_router *r, uint64_t sequence)
{
    const sl_kv_batch *b = &r->kv.ring[sequence % SL_KV_RING];
    return sequence && b->sequence == sequence ? b : NULL;
}

void sl_kv_free(sl_router *r)
{
    for (size_t i = 0; i < SL_KV_RING; i++) {
        free(r->kv.ring[i].stored);
        free(r->kv.ring[i].removed);
    }
}
