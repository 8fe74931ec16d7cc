/*
 * Changes of the prefix tree, as the routers are told of them: KV_EVENTS with medium host. Engine thread.
 */
#include "decode/decode_impl.h"

/* Pages in one KV_EVENTS: 144 KiB, far below the limits of the transport and of a gRPC client. */
enum { KV_BATCH_PAGES = 512 };

static void write_key(sl_wr *w, sl_key k)
{
    sl_wr_u64(w, k.lo);
    sl_wr_u64(w, k.hi);
}

static void stored(sl_decode *d, const sl_store_page *p)
{
    sl_key none = {0, 0};
    if (d->pages.changes.removed.len || d->pages.changes.stored.len >= KV_BATCH_PAGES * 32)
        sl_changes_tell(d); /* a receiver applies the removals of a message first */
    write_key(&d->pages.changes.stored, sl_key_eq(p->prev, p->seed) ? none : p->prev);
    write_key(&d->pages.changes.stored, p->key);
    for (int i = 0; i < SL_PAGE_TOKENS; i++)
        sl_wr_i32(&d->pages.changes.tokens, p->tokens[i]);
}

void sl_changes_event(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    sl_decode *d = ctx;
    if (!d->tickets.n_routers)
        return; /* a new session begins with a report of the whole tree */
    switch (ev) {
    case SL_STORE_STORED:
        stored(d, page);
        break;
    case SL_STORE_REMOVED:
        if (d->pages.changes.stored.len || d->pages.changes.removed.len >= KV_BATCH_PAGES * 16)
            sl_changes_tell(d);
        write_key(&d->pages.changes.removed, page->key);
        break;
    case SL_STORE_CLEARED:
        d->pages.changes.stored.len = d->pages.changes.removed.len = d->pages.changes.tokens.len = 0;
        d->pages.changes.cleared = true;
        break;
    }
}

/* A batch that is lost because memory is exhausted has a sequence number as well, so the routers see the gap. */
void sl_changes_tell(sl_decode *d)
{
    sl_wr *s = &d->pages.changes.stored, *r = &d->pages.changes.removed, *t = &d->pages.changes.tokens;
    if (!d->pages.changes.cleared && !s->len && !r->len && !s->bad && !r->bad && !t->bad)
        return;
    sl_msg m = {.type = SL_MSG_KV_EVENTS};
    m.kv_events = (sl_msg_kv_events){.stored = {s->data, s->len},
                                     .removed = {r->data, r->len},
                                     .tokens = {t->data, t->len},
                                     .cleared = d->pages.changes.cleared};
    for (int i = 0; i < d->tickets.n_routers; i++) {
        sl_decode_router *to = &d->tickets.routers[i];
        if (d->pages.changes.only && d->pages.changes.only != to->session)
            continue;
        m.kv_events.sequence = ++to->kv_sequence;
        if (!s->bad && !r->bad && !t->bad)
            sl_worker_tell_router(d->worker, to->session, &m);
    }
    s->len = r->len = t->len = 0;
    s->bad = r->bad = t->bad = d->pages.changes.cleared = false;
}

void sl_changes_router_up(sl_decode *d, uint32_t router)
{
    SL_CHECK(d->tickets.n_routers < SL_WORKER_ROUTERS_MAX, "%d sessions", d->tickets.n_routers);
    sl_changes_tell(d); /* of the other sessions; a session begins with the whole tree */
    d->tickets.routers[d->tickets.n_routers++] = (sl_decode_router){.session = router};
    sl_changes_resync(d, router);
}

void sl_changes_resync(sl_decode *d, uint32_t router)
{
    sl_changes_tell(d); /* what the others have not been told yet is in the tree already */
    d->pages.changes.only = router;
    d->pages.changes.cleared = true;
    if (sl_store_walk(d->role.store, sl_changes_event, d) != SL_OK)
        sl_log(SL_LOG_WARN, "decode", "kv_events_lost",
               "reason=\"out of memory for the list of cached pages\"");
    sl_changes_tell(d);
    d->pages.changes.only = 0;
    sl_holdings_begin(d, router);
}

void sl_changes_router_down(sl_decode *d, uint32_t router)
{
    for (int i = 0; i < d->tickets.n_routers; i++) {
        if (d->tickets.routers[i].session == router)
            d->tickets.routers[i--] = d->tickets.routers[--d->tickets.n_routers];
    }
    if (!d->tickets.n_routers) { /* nothing is kept for later: the next session begins with the whole tree */
        d->pages.changes.stored.len = d->pages.changes.removed.len = d->pages.changes.tokens.len = 0;
        d->pages.changes.cleared = false;
        d->pages.holdings.stored.len = d->pages.holdings.removed.len = 0;
    }
}
