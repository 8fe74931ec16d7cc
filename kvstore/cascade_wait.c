/*
 * The requests that wait for loads: which load one joins or begins, what it is told, and how it leaves.
 */
#include "base/log.h"
#include "kvstore/cascade_impl.h"

static const uint64_t MS = 1000000;
enum {
    ROUNDS = 4, /* times that one request waits, if loads of other requests end without its pages */
    LOOKUP_PAGES = 1 << 14
};

/* ---- the list of those that are to be told ---- */

/* Puts the request in the list of those that are to be told, once. */
void sl_cascade_tell(sl_cascade *c, sl_cascade_waiter *w)
{
    if (w->queued)
        return;
    w->queued = true;
    w->next_news = NULL;
    *(c->news ? &c->news_tail->next_news : &c->news) = w;
    c->news_tail = w;
}

static void unqueue(sl_cascade *c, sl_cascade_waiter *w)
{
    sl_cascade_waiter *before = NULL;
    for (sl_cascade_waiter *k = c->news; w->queued && k != w; k = k->next_news)
        before = k;
    if (!w->queued)
        return;
    *(before ? &before->next_news : &c->news) = w->next_news;
    if (c->news_tail == w)
        c->news_tail = before;
    w->queued = false;
    w->begun = 0;
}

static void unpin(sl_cascade_load *l)
{
    if (l && !--l->pins)
        sl_cascade_load_advance(l);
}

bool sl_cascade_next(sl_cascade *c, sl_cascade_news *out)
{
    sl_cascade_load *told = c->told;
    c->told = NULL;
    unpin(told);
    sl_cascade_waiter *w = c->news;
    if (!w)
        return false;
    *out = (sl_cascade_news){.w = w, .ended = w->pinned != NULL, .pages = w->begun};
    unqueue(c, w);
    c->told = w->pinned;
    w->pinned = NULL;
    return true;
}

/* Tells a request that waits what will come, if it is worth while. */
void sl_cascade_tell_begun(const sl_cascade_load *l, sl_cascade_waiter *w)
{
    if (l->limit - l->published <= l->c->chunk_pages)
        return;
    w->begun = l->first + l->limit;
    sl_cascade_tell(l->c, w);
}

/* ---- waiting ---- */

static void join(sl_cascade_load *l, sl_cascade_waiter *w)
{
    sl_cascade_waiter **at = &l->waiters;
    while (*at) /* they continue in the order in which they came */
        at = &(*at)->next;
    w->load = l;
    w->loaded = w->loaded_end = 0;
    w->next = NULL;
    *at = w;
    w->rounds++;
    l->c->waiting++;
}

/* The load that will have this page of a prefix, or NULL. */
static sl_cascade_load *running(const sl_cascade *c, int32_t at, sl_key key)
{
    for (sl_cascade_load *l = c->loads; l; l = l->next) {
        int32_t i = at - l->first, n = l->reading ? l->limit : l->n;
        if (!l->woken && i >= 0 && i < n && sl_key_eq(l->keys[i], key))
            return l;
    }
    return NULL;
}

bool sl_cascade_may_load(const sl_cascade *c, sl_key seed, sl_key key)
{
    for (const sl_cascade_load *l = c->loads; l; l = l->next) {
        int32_t n = l->reading ? l->limit : l->n;
        for (int32_t i = l->published; !l->woken && sl_key_eq(l->seed, seed) && i < n; i++)
            if (sl_key_eq(l->keys[i], key))
                return true;
    }
    return false;
}

uint64_t sl_cascade_changes(const sl_cascade *c)
{
    return c->changes;
}

/* Whether no load can begin now; then counts the pages that the request does not get. */
static bool refuses(sl_cascade *c, int32_t pages)
{
    sl_cascade_miss why[SL_CASCADE_TIERS];
    bool any = false;
    for (int t = 0; t < c->n_tiers; t++)
        any |= sl_cascade_usable(c, t, &why[t]);
    if (any && c->n_loads < SL_CASCADE_LOADS)
        return false;
    if (any)
        c->tiers[0].st.misses[SL_MISS_ROOM] += (uint64_t)pages;
    for (int t = 0; t < c->n_tiers && !any; t++)
        c->tiers[t].st.misses[why[t]] += (uint64_t)pages;
    return true;
}

/* How long the load may last: as long as the most patient tier, and not beyond the time of the request that begins it. */
static void set_deadline(sl_cascade_load *l, sl_cascade_waiter *w)
{
    uint32_t most = 0;
    for (int t = 0; t < l->c->n_tiers; t++)
        most = l->c->tiers[t].t.load_timeout_ms > most ? l->c->tiers[t].t.load_timeout_ms : most;
    l->deadline_ns = l->start_ns + most * MS;
    if (w->until_ns && w->until_ns < l->deadline_ns)
        l->deadline_ns = w->until_ns;
    w->until_ns = l->deadline_ns;
}

/* Whether some tier may have pages of this prompt from page `have` on. */
static bool anyone_to_ask(const sl_cascade *c, int32_t have, const sl_tier_source *advice)
{
    for (int t = 0; t < c->n_tiers; t++) {
        if (advice->pages > have || !sl_cascade_needs_advice(c, t))
            return true;
    }
    return false;
}

bool sl_cascade_wait(sl_cascade *c, sl_key seed, const int32_t *tokens, int32_t n_tokens,
                     sl_cascade_waiter *w)
{
    int32_t have = sl_store_match(c->o.store, seed, tokens, n_tokens), most = (n_tokens - 1) / PAGE;
    bool over = w->until_ns && sl_now_ns() >= w->until_ns;
    if (c->finishing || over || w->looked_up || w->rounds == ROUNDS || have >= most)
        return false;
    if (!anyone_to_ask(c, have, &w->source))
        return false;
    most = most - have > LOOKUP_PAGES ? have + LOOKUP_PAGES : most;
    sl_cascade_load *l = sl_cascade_load_make(c, seed, tokens, have, most);
    sl_cascade_load *other = l ? running(c, have, l->keys[0]) : NULL;
    if (other) {
        sl_cascade_load_free(l);
        join(other, w);
        if (other->reading)
            sl_cascade_tell_begun(other, w);
        return true;
    }
    w->looked_up = true;
    if (!l || refuses(c, most - have)) {
        c->tiers[0].st.misses[SL_MISS_ROOM] += l ? 0 : (uint64_t)(most - have);
        if (l)
            sl_cascade_load_free(l);
        return false;
    }
    l->advice = w->source;
    l->tenant = w->tenant;
    set_deadline(l, w);
    sl_cascade_load_order(l);
    l->next = c->loads;
    c->loads = l;
    c->n_loads++;
    join(l, w);
    sl_cascade_look_up(l, 0);
    sl_cascade_load_advance(l); /* no tier could be asked: the request continues at once */
    return true;
}

void sl_cascade_leave(sl_cascade *c, sl_cascade_waiter *w)
{
    sl_cascade_load *l = w->load, *pinned = w->pinned;
    unqueue(c, w);
    w->pinned = NULL;
    unpin(pinned);
    if (!l)
        return;
    sl_cascade_waiter **at = &l->waiters;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    w->load = NULL;
    c->waiting--;
    if (l->waiters || l->woken)
        return;
    l->woken = true; /* no request waits: what is in flight drains, nothing else begins */
    l->limit = l->published;
    c->changes++;
    sl_cascade_load_advance(l);
}
