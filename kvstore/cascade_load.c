/*
 * A load from its first chunk to its end, and its deadlines. cascade_lookup.c finds out which tier has the pages, cascade_read.c has
 * their chunks, cascade_wait.c the requests that wait.
 *
 *   LOOKUP   asks the tiers one after the other which of the pages they have, each for those that no earlier tier has; a
 *            lease in the tier protects them. A tier that fails or is late is passed over
 *   reading  has chunks of pages in flight, and publishes them in their order
 *   woken    the requests that waited have continued, because all pages up to `limit` are in the tree, or because what
 *            was still to come is late. What is in flight is cancelled, and drains; a late chunk that arrives after all is
 *            published
 *
 * `limit` is the end of the pages for which the requests wait. It becomes smaller whenever a page turns out not to come.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/cascade_impl.h"

static const uint64_t MS = 1000000;

static void free_jobs(sl_cascade_load *l)
{
    for (sl_cascade_job *j; (j = l->jobs);) {
        l->jobs = j->next;
        sl_cascade_job_free(j);
    }
}

void sl_cascade_load_free(sl_cascade_load *l)
{
    free_jobs(l);
    sl_lease_release(l->lease, true); /* pages that were not published become free */
    free(l->keys);
    free(l->tokens);
    free(l->seen);
    free(l->source);
    free(l->got);
    free(l);
}

/* Ends the leases in the tiers. */
static void release(sl_cascade_load *l)
{
    for (int t = 0; t < l->c->n_tiers; t++)
        if (l->asked_ns[t])
            sl_tier_release(l->c->tiers[t].t.tier, l->keys, l->n);
}

static void end(sl_cascade_load *l)
{
    sl_cascade *c = l->c;
    sl_cascade_load **at = &c->loads;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    c->n_loads--;
    c->loading -= l->pages;
    for (int t = 0; t < c->n_tiers; t++) {
        if (l->read_from >> t & 1) {
            c->tiers[t].st.loads++;
            c->tiers[t].st.load_ns += sl_now_ns() - l->start_ns;
        }
    }
    release(l);
    sl_cascade_load_free(l);
}

sl_cascade_load *sl_cascade_load_make(sl_cascade *c, sl_key seed, const int32_t *tokens, int32_t have,
                                      int32_t most)
{
    size_t n = (size_t)(most - have);
    sl_cascade_load *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    *l = (sl_cascade_load){.c = c,
                           .start_ns = sl_now_ns(),
                           .n = (int32_t)n,
                           .keys = malloc(n * sizeof *l->keys),
                           .tokens = malloc((size_t)most * PAGE * sizeof *tokens),
                           .seen = calloc((size_t)c->n_tiers, n),
                           .source = malloc(n * sizeof *l->source),
                           .got = calloc(n, sizeof *l->got),
                           .seed = seed,
                           .prev = seed,
                           .first = have};
    if (!l->keys || !l->tokens || !l->seen || !l->source || !l->got) {
        sl_cascade_load_free(l);
        return NULL;
    }
    memset(l->source, -1, n * sizeof *l->source);
    memcpy(l->tokens, tokens, (size_t)most * PAGE * sizeof *tokens);
    for (int32_t i = 0; i < have; i++)
        l->prev = sl_page_key(l->prev, tokens + (size_t)i * PAGE);
    sl_page_keys(l->prev, tokens + (size_t)have * PAGE, n * PAGE, l->keys);
    return l;
}

/* ---- what requests did not get ---- */

/* Why the pages from `limit` on do not come: the reason that this tier gave for page `limit`; if it was not asked for that page, the
 * reason of the last tier that was. */
static sl_cascade_miss reason_at_limit(const sl_cascade_load *l, int tier)
{
    int why = SL_MISS_ROOM;
    if (l->limit == l->n)
        return SL_MISS_ROOM;
    for (int t = 0; t < l->c->n_tiers; t++) {
        int seen = l->seen[t * l->n + l->limit];
        if (seen >= SEEN_MISSED && (t <= tier || why == SL_MISS_ROOM))
            why = seen - SEEN_MISSED;
    }
    return (sl_cascade_miss)why;
}

/* Counts the pages that the tiers were asked for and that the requests continue without. */
static void account(sl_cascade_load *l)
{
    for (int t = 0; t < l->c->n_tiers; t++) {
        uint64_t *misses = l->c->tiers[t].st.misses;
        sl_cascade_miss rest = reason_at_limit(l, t);
        for (int32_t i = l->from; i < l->n; i++) {
            int seen = l->seen[t * l->n + i];
            if (seen >= SEEN_MISSED)
                misses[seen - SEEN_MISSED]++;
            else if (seen == SEEN_HAS && i >= l->limit)
                misses[rest]++;
        }
    }
}

/* Whether another tier could be asked after this load was late. */
static bool another_way(const sl_cascade *c)
{
    sl_cascade_miss why;
    for (int t = 0; t < c->n_tiers; t++)
        if (sl_cascade_usable(c, t, &why))
            return true;
    return false;
}

/* The waiting requests continue. They may wait a second time only if pages that exist were late in one tier, and another tier can be
 * asked for them. */
static void wake(sl_cascade_load *l)
{
    bool late = false, late_pages = false;
    for (const sl_cascade_job *j = l->jobs; j; j = j->next) {
        late |= j->late;
        late_pages |= j->late && j->state != LOAD_LOOKUP;
    }
    bool again = late_pages && another_way(l->c);
    account(l);
    l->woken = true;
    l->c->changes++;
    for (sl_cascade_waiter *w; (w = l->waiters);) {
        l->waiters = w->next;
        l->c->waiting--;
        w->load = NULL;
        w->loaded = l->first + l->from;
        w->loaded_end = l->first + l->published;
        w->looked_up = again ? false : w->looked_up || late;
        w->pinned = l;
        l->pins++;
        sl_cascade_tell(l->c, w);
    }
}

/* ---- advancing ---- */

/* Publishes the verified chunks at the head of the list. A chunk that does not continue the published pages is dropped, because the
 * tree has no place for it. */
static void publish(sl_cascade_load *l)
{
    sl_cascade *c = l->c;
    for (;;) {
        sl_cascade_job *j = l->jobs;
        while (j && j->state == LOAD_LOOKUP)
            j = j->next;
        if (!j || j->state != CHUNK_READY)
            return;
        if (j->at == l->published) {
            l->published += j->arrived;
            sl_lease_publish(l->lease, l->tokens, (l->first + l->published) * PAGE);
            c->changes++;
        }
        for (int32_t i = j->at; i < l->published; i++) {
            sl_cascade_stats *st = &c->tiers[l->source[i]].st;
            sl_store_has(c->o.store, l->source[i], sl_lease_pages(l->lease)[l->first + i]);
            st->bytes_loaded += c->page_bytes + c->label_bytes;
            st->hits += !l->woken;
            if (c->o.calls.held)
                c->o.calls.held(c->o.calls.ctx, l->source[i],
                                &(sl_store_page){.key = l->keys[i],
                                                 .seed = l->seed,
                                                 .prev = i ? l->keys[i - 1] : l->prev,
                                                 .tokens = l->tokens + (size_t)(l->first + i) * PAGE});
        }
        sl_cascade_job_unlink(&l->jobs, j);
        sl_cascade_job_free(j);
    }
}

static bool at_tier(const sl_cascade_job *j)
{
    return j->state == LOAD_LOOKUP || j->state == CHUNK_READ || j->state == CHUNK_REMOVE;
}

/* Cancels what is in flight and no longer wanted. */
static void cancel_rest(sl_cascade_load *l)
{
    for (sl_cascade_job *j = l->jobs; j; j = j->next) {
        bool wanted = j->state == LOAD_LOOKUP ? !l->woken : j->at < l->limit;
        if (!wanted && at_tier(j) && !j->req.cancelled)
            sl_tier_cancel(l->c->tiers[j->tier].t.tier, &j->req);
    }
}

void sl_cascade_load_advance(sl_cascade_load *l)
{
    publish(l);
    while (sl_cascade_chunk_begin(l))
        ;
    if (!l->woken && l->reading && l->published >= l->limit)
        wake(l);
    cancel_rest(l);
    if (l->woken && !l->jobs && !l->pins)
        end(l);
}

/* ---- time ---- */

/* The requests do not wait for pages from i on any more, because these are late. A page there that has arrived, and is not verified
 * yet, is late as well. */
static void end_before(sl_cascade_load *l, int32_t i)
{
    int8_t tier = i < l->n ? l->source[i] : -1;
    if (tier >= 0 && l->seen[tier * l->n + i] == SEEN_HAS)
        sl_cascade_missed(l, tier, i, SL_MISS_LATE);
    l->limit = i;
}

static void make_late(sl_cascade_job *j)
{
    sl_cascade_load *l = j->load;
    const sl_cascade_tier *t = &j->c->tiers[j->tier].t;
    for (int32_t k = 0; k < j->n; k++)
        sl_cascade_missed(l, j->tier, j->which[k], SL_MISS_LATE);
    j->late = true;
    j->c->tiers[j->tier].n_late++;
    sl_log(SL_LOG_WARN, "cascade", "load_late", "tier=%s pages=%d ms=%u", t->tier->ops->name, j->n,
           t->load_timeout_ms);
    sl_tier_cancel(t->tier, &j->req);
    if (j->state == LOAD_LOOKUP)
        sl_cascade_look_up(l, sl_cascade_load_place(l, j->tier) + 1);
    else if (l->limit > j->at)
        end_before(l, j->at);
}

static uint64_t due_of(const sl_cascade_job *j)
{
    const sl_cascade_load *l = j->load;
    uint64_t due = l->asked_ns[j->tier] + j->c->tiers[j->tier].t.load_timeout_ms * MS;
    return due < l->deadline_ns ? due : l->deadline_ns;
}

/* Ends what is too late in this load; returns its next deadline, or 0: something was too late, and the load may be gone. */
static uint64_t load_tick(sl_cascade_load *l, uint64_t now)
{
    uint64_t due = l->deadline_ns;
    bool late = false;
    for (sl_cascade_job *j = l->jobs; j; j = j->next) {
        if (j->late || !at_tier(j))
            continue;
        if (now >= due_of(j)) {
            make_late(j);
            late = true;
        } else {
            due = due_of(j) < due ? due_of(j) : due;
        }
    }
    if (now >= l->deadline_ns) {
        if (!l->reading || l->published < l->limit)
            end_before(l, l->published);
        l->reading = late = true;
    }
    if (late)
        sl_cascade_load_advance(l);
    return late ? 0 : due;
}

uint64_t sl_cascade_loads_tick(sl_cascade *c, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_cascade_load *l = c->loads; l;) {
        uint64_t next = l->woken ? UINT64_MAX : load_tick(l, now);
        due = next < due ? next : due;
        if (next == 0) {
            l = c->loads; /* this one may be gone */
            due = UINT64_MAX;
            continue;
        }
        l = l->next;
    }
    return due;
}
