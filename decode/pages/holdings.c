/*
 * Holdings: what this worker tells the routers about pages on its own disk: KV_EVENTS with medium disk, without parents and
 * tokens. Pages in host memory are told by report.c, from the events of the store.
 *
 * A page is told as stored when the tier has reported its write, and as removed when the tier has given it up. A session
 * begins with everything that the local persistent tiers have, in batches, a few in each turn; that is also how pages
 * which a restart has found become known. Changes are told meanwhile. They come after the part of the list that they
 * concern, because a tier reports them in its poll, so what a router knows at the end is right.
 */
#include "decode/decode_impl.h"

enum {
    BATCH_PAGES = 512, /* in one KV_EVENTS */
    BATCHES = 4        /* of a list in one turn */
};

bool sl_holdings_local(const sl_decode *d, int tier)
{
    const sl_tier_ops *ops = sl_cascade_tier_at(d->pages.cascade, tier)->ops;
    return ops->persistent && ops->list;
}

static void write_keys(sl_wr *w, const sl_key *keys, int32_t n, bool parents)
{
    for (int32_t i = 0; i < n; i++) {
        if (parents) {
            sl_wr_u64(w, 0);
            sl_wr_u64(w, 0);
        }
        sl_wr_u64(w, keys[i].lo);
        sl_wr_u64(w, keys[i].hi);
    }
}

/* To one session, with the next number. A batch that memory was exhausted for has a number too, so the router sees the gap. */
static void send(sl_decode *d, sl_decode_router *to, const sl_wr *stored, const sl_wr *removed, bool cleared)
{
    sl_msg m = {.type = SL_MSG_KV_EVENTS};
    m.kv_events = (sl_msg_kv_events){.sequence = ++to->kv_sequence,
                                     .medium = SL_MEDIUM_DISK,
                                     .stored = {stored->data, stored->len},
                                     .removed = {removed->data, removed->len},
                                     .cleared = cleared};
    if (!stored->bad && !removed->bad)
        sl_worker_tell_router(d->worker, to->session, &m);
}

static void tell_changes(sl_decode *d)
{
    sl_wr *s = &d->pages.holdings.stored, *r = &d->pages.holdings.removed;
    if (!s->len && !r->len && !s->bad && !r->bad)
        return;
    for (int i = 0; i < d->tickets.n_routers; i++)
        send(d, &d->tickets.routers[i], s, r, false);
    s->len = r->len = 0;
    s->bad = r->bad = false;
}

void sl_holdings_stored(void *ctx, int tier, const sl_key *keys, int32_t n)
{
    sl_decode *d = ctx;
    if (!d->tickets.n_routers || !sl_holdings_local(d, tier))
        return;
    if (d->pages.holdings.removed.len || d->pages.holdings.stored.len >= BATCH_PAGES * 32)
        tell_changes(d); /* a receiver applies the removals of a message first */
    write_keys(&d->pages.holdings.stored, keys, n, true);
}

void sl_holdings_gone(void *ctx, int tier, const sl_key *keys, int32_t n)
{
    sl_decode *d = ctx;
    if (!sl_holdings_local(d, tier))
        return;
    sl_publish_gone(d, keys, n);
    if (!d->tickets.n_routers)
        return;
    if (d->pages.holdings.stored.len || d->pages.holdings.removed.len >= BATCH_PAGES * 16)
        tell_changes(d);
    write_keys(&d->pages.holdings.removed, keys, n, false);
}

void sl_holdings_begin(sl_decode *d, uint32_t router)
{
    const sl_wr none = {0};
    bool local = false;
    for (int t = 0; d->pages.cascade && t < sl_cascade_n_tiers(d->pages.cascade); t++)
        local |= sl_holdings_local(d, t);
    if (!local)
        return;
    tell_changes(d); /* what the sessions have not been told yet is part of the list */
    for (int i = 0; i < d->tickets.n_routers; i++) {
        sl_decode_router *to = &d->tickets.routers[i];
        if (to->session != router)
            continue;
        to->list_tier = 0;
        to->list_cursor = 0;
        to->listing = true;
        send(d, to, &none, &none, true);
    }
}

/* The next part of the list for one session. */
static void tell_part(sl_decode *d, sl_decode_router *to)
{
    sl_key keys[BATCH_PAGES];
    const sl_wr none = {0};
    sl_wr stored;
    int32_t n = 0;
    for (; to->list_tier < sl_cascade_n_tiers(d->pages.cascade) && !n; to->list_tier += n == 0) {
        if (sl_holdings_local(d, to->list_tier))
            n = sl_tier_list(sl_cascade_tier_at(d->pages.cascade, to->list_tier), &to->list_cursor, keys,
                             BATCH_PAGES);
        to->list_cursor = n ? to->list_cursor : 0;
    }
    to->listing = n > 0;
    if (!n)
        return;
    sl_wr_init(&stored);
    write_keys(&stored, keys, n, true);
    send(d, to, &stored, &none, false);
    sl_wr_free(&stored);
}

bool sl_holdings_tick(sl_decode *d)
{
    bool more = false;
    tell_changes(d);
    for (int i = 0; i < d->tickets.n_routers; i++) {
        for (int k = 0; k < BATCHES && d->tickets.routers[i].listing; k++)
            tell_part(d, &d->tickets.routers[i]);
        more |= d->tickets.routers[i].listing;
    }
    return more;
}
