/* See holdings.h. */
#include "decode/pages/holdings.h"

#include <stdlib.h>

enum {
    BATCH_PAGES = 512, /* in one KV_EVENTS */
    BATCHES = 4        /* of a list in one turn */
};

/* A session that is told the whole list; it has come to `cursor` in this tier. */
typedef struct listing {
    uint32_t session;
    int tier;
    uint64_t cursor;
} listing;

struct sl_holdings {
    const sl_pages_env *e;
    sl_sessions *sessions;
    sl_publish *publish;
    sl_wr stored, removed; /* not told yet */
    listing list[SL_WORKER_ROUTERS_MAX];
    int n;
};

sl_holdings *sl_holdings_new(const sl_pages_env *e, sl_sessions *sessions, sl_publish *publish)
{
    sl_holdings *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->e = e;
    h->sessions = sessions;
    h->publish = publish;
    sl_wr_init(&h->stored);
    sl_wr_init(&h->removed);
    return h;
}

void sl_holdings_free(sl_holdings *h)
{
    if (!h)
        return;
    sl_wr_free(&h->stored);
    sl_wr_free(&h->removed);
    free(h);
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

static void tell(sl_holdings *h, uint32_t only, const sl_wr *stored, const sl_wr *removed, bool cleared)
{
    const sl_msg_kv_events m = {.medium = SL_MEDIUM_DISK,
                                .stored = {stored->data, stored->len},
                                .removed = {removed->data, removed->len},
                                .cleared = cleared};
    sl_sessions_tell(h->sessions, only, &m, stored->bad || removed->bad);
}

static void tell_changes(sl_holdings *h)
{
    sl_wr *s = &h->stored, *r = &h->removed;
    if (!s->len && !r->len && !s->bad && !r->bad)
        return;
    tell(h, SL_SESSIONS_ALL, s, r, false);
    s->len = r->len = 0;
    s->bad = r->bad = false;
}

void sl_holdings_stored(sl_holdings *h, int tier, const sl_key *keys, int32_t n)
{
    if (!sl_sessions_any(h->sessions) || !sl_pages_places_local(h->e, tier))
        return;
    if (h->removed.len || h->stored.len >= BATCH_PAGES * 32)
        tell_changes(h); /* a receiver applies the removals of a message first */
    write_keys(&h->stored, keys, n, true);
}

void sl_holdings_gone(sl_holdings *h, int tier, const sl_key *keys, int32_t n)
{
    if (!sl_pages_places_local(h->e, tier))
        return;
    sl_publish_gone(h->publish, keys, n);
    if (!sl_sessions_any(h->sessions))
        return;
    if (h->stored.len || h->removed.len >= BATCH_PAGES * 16)
        tell_changes(h);
    write_keys(&h->removed, keys, n, false);
}

void sl_holdings_end(sl_holdings *h, uint32_t session)
{
    for (int i = 0; i < h->n; i++) {
        if (h->list[i].session == session)
            h->list[i--] = h->list[--h->n];
    }
    if (!sl_sessions_any(h->sessions))
        h->stored.len = h->removed.len = 0;
}

void sl_holdings_begin(sl_holdings *h, uint32_t session)
{
    const sl_wr none = {0};
    bool local = false;
    for (int t = 0; h->e->cascade && t < sl_cascade_n_tiers(h->e->cascade); t++)
        local |= sl_pages_places_local(h->e, t);
    if (!local)
        return;
    tell_changes(h); /* what the sessions have not been told yet is part of the list */
    sl_holdings_end(h, session);
    h->list[h->n++] = (listing){.session = session};
    tell(h, session, &none, &none, true);
}

/* The next part of the list for one session. False: that was the last one. */
static bool tell_part(sl_holdings *h, listing *to)
{
    sl_key keys[BATCH_PAGES];
    const sl_wr none = {0};
    sl_wr stored;
    int32_t n = 0;
    for (; to->tier < sl_cascade_n_tiers(h->e->cascade) && !n; to->tier += n == 0) {
        if (sl_pages_places_local(h->e, to->tier))
            n = sl_tier_list(sl_cascade_tier_at(h->e->cascade, to->tier), &to->cursor, keys, BATCH_PAGES);
        to->cursor = n ? to->cursor : 0;
    }
    if (!n)
        return false;
    sl_wr_init(&stored);
    write_keys(&stored, keys, n, true);
    tell(h, to->session, &stored, &none, false);
    sl_wr_free(&stored);
    return true;
}

bool sl_holdings_tick(sl_holdings *h)
{
    tell_changes(h);
    for (int i = h->n - 1; i >= 0; i--) {
        bool more = true;
        for (int k = 0; k < BATCHES && more; k++)
            more = tell_part(h, &h->list[i]);
        if (!more)
            h->list[i] = h->list[--h->n];
    }
    return h->n > 0;
}
