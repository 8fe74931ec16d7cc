/*
 * A load from its lookup to its end, and the requests that wait for it.
 *
 *   LOOKUP   asks the tiers one after the other which of the pages they have, each for those that no earlier tier has; a
 *            lease in the tier protects them. A tier that fails or is late is passed over
 *   reading  has chunks of pages in flight (cascade_read.c), and publishes them in their order
 *   woken    the requests that waited have continued, because all pages up to `limit` are in the tree, or because what
 *            was still to come is late. What is in flight is cancelled, and drains; a late chunk that arrives after all is
 *            published
 *
 * `limit` is the end of the pages for which the requests wait. It becomes smaller whenever a page turns out not to come.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/cascade_impl.h"

static const uint64_t MS = 1000000;
enum {
    LEASE_MS = 10000, /* at least, in a tier, from the lookup until the read begins */
    ROUNDS = 4,       /* times that one request waits, if loads of other requests end without its pages */
    LOOKUP_PAGES = 1 << 14,
    RATE_BYTES = 1 << 20, /* reads of fewer bytes say more about latency */
    RATE_MS =
        30000 /* how long a measured speed counts: a tier that is not asked any more is not measured any more */
};

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

/* Puts the request in the list of those that are to be told, once. */
static void queue(sl_cascade *c, sl_cascade_waiter *w)
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
        queue(l->c, w);
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

/* ---- the lookup ---- */

bool sl_cascade_usable(const sl_cascade *c, int tier, sl_cascade_miss *why)
{
    sl_tier_health h;
    *why = SL_MISS_LATE;
    if (c->tiers[tier].n_late)
        return false;
    sl_tier_get_health(c->tiers[tier].t.tier, &h);
    *why = SL_MISS_IO;
    return h.state != SL_TIER_FAILED;
}

/* Names the other worker that may have the leading ones of these pages. */
static void give_advice(sl_cascade_job *j)
{
    const sl_cascade_load *l = j->load;
    j->advice = l->advice;
    j->advice.seed = l->seed;
    j->advice.pages = 0;
    while (j->advice.pages < j->n && l->first + j->which[j->advice.pages] < l->advice.pages)
        j->advice.pages++;
    j->req.source = &j->advice;
}

void sl_cascade_load_submit(sl_cascade_job *j, sl_tier_op op, sl_tier_done_fn *done)
{
    sl_cascade_slot *s = &j->c->tiers[j->tier];
    uint32_t lease = s->t.load_timeout_ms;
    if (!j->load->asked_ns[j->tier])
        j->load->asked_ns[j->tier] = sl_now_ns();
    j->req = (sl_tier_req){.op = op,
                           .n = j->n,
                           .keys = j->keys,
                           .pages = j->asked,
                           .lease_ms = lease > LEASE_MS ? lease : LEASE_MS,
                           .results = j->answers,
                           .done = done,
                           .cookie = j};
    if (op == SL_TIER_EXISTS)
        give_advice(j);
    SL_CHECK(sl_tier_submit(s->t.tier, &j->req) == SL_OK, "%d keys", j->n);
}

/* Tells a request that waits what will come, if it is worth while. */
static void tell_begun(const sl_cascade_load *l, sl_cascade_waiter *w)
{
    if (l->limit - l->published <= l->c->chunk_pages)
        return;
    w->begun = l->first + l->limit;
    queue(l->c, w);
}

/* The pages that will be read are the leading ones that some tier has. */
static void land(sl_cascade_load *l)
{
    int32_t hits = 0;
    int32_t have = sl_store_match(l->c->o.store, l->seed, l->tokens, (l->first + l->n) * PAGE + 1);
    while (hits < l->n && l->source[hits] >= 0)
        hits++;
    l->reading = true;
    l->from = have - l->first; /* the tree may have changed since the lookup */
    l->limit = hits;
    if (l->from < 0)
        l->from = l->limit = 0; /* what this load continues has left the tree */
    l->begun = l->published = l->from;
    l->c->changes++;
    for (sl_cascade_waiter *w = l->waiters; w; w = w->next)
        tell_begun(l, w);
}

static sl_cascade_job *make_lookup(sl_cascade_load *l, int tier, int32_t n)
{
    sl_cascade_job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    *j = (sl_cascade_job){.c = l->c,
                          .state = LOAD_LOOKUP,
                          .tier = tier,
                          .load = l,
                          .keys = malloc((size_t)n * sizeof *j->keys),
                          .which = malloc((size_t)n * sizeof *j->which),
                          .answers = malloc((size_t)n * sizeof *j->answers)};
    if (!j->keys || !j->which || !j->answers) {
        sl_cascade_job_free(j);
        return NULL;
    }
    for (int32_t i = 0; i < l->n; i++) {
        if (l->source[i] < 0) {
            j->keys[j->n] = l->keys[i];
            j->which[j->n++] = i;
        }
    }
    return j;
}

static void on_looked_up(sl_tier_req *req, sl_status st);

static bool needs_advice(const sl_cascade *c, int tier)
{
    return c->tiers[tier].t.tier->ops->needs_source;
}

static bool is_faster(const sl_cascade *c, int tier, int than, uint64_t now)
{
    const sl_cascade_slot *a = &c->tiers[tier], *b = &c->tiers[than];
    bool known = a->rate_bytes > RATE_BYTES && b->rate_bytes > RATE_BYTES &&
                 now - a->reads_due_ns < RATE_MS * MS && now - b->reads_due_ns < RATE_MS * MS;
    return known && a->st.read_rate > SL_CASCADE_FASTER * b->st.read_rate;
}

/* The order of the tiers as it was given, but much faster ones before. */
static void set_order(sl_cascade_load *l)
{
    for (int t = 0; t < l->c->n_tiers; t++) {
        int at = t;
        for (; at && is_faster(l->c, t, l->order[at - 1], l->start_ns); at--)
            l->order[at] = l->order[at - 1];
        l->order[at] = (uint8_t)t;
    }
}

static int place_of(const sl_cascade_load *l, int tier)
{
    int at = 0;
    while (l->order[at] != tier)
        at++;
    return at;
}

/* Asks the next tier, from this place of the order on, for the pages that were not found; after the last one the reading
 * begins. */
static void look_up(sl_cascade_load *l, int at)
{
    for (; at < l->c->n_tiers; at++) {
        int32_t n = 0, tier = l->order[at];
        sl_cascade_miss why;
        for (int32_t i = 0; i < l->n; i++)
            n += l->source[i] < 0;
        if (!n)
            break;
        if (needs_advice(l->c, tier) && l->advice.pages <= l->first)
            continue;
        bool usable = sl_cascade_usable(l->c, tier, &why);
        sl_cascade_job *j = usable ? make_lookup(l, tier, n) : NULL;
        if (j) {
            j->next = l->jobs;
            l->jobs = j;
            sl_cascade_load_submit(j, SL_TIER_EXISTS, on_looked_up);
            return;
        }
        for (int32_t i = 0; i < l->n; i++)
            if (l->source[i] < 0)
                sl_cascade_missed(l, tier, i, usable ? SL_MISS_ROOM : why);
    }
    land(l);
}

static void on_looked_up(sl_tier_req *req, sl_status st)
{
    sl_cascade_job *j = req->cookie;
    sl_cascade_load *l = j->load;
    bool given_up = j->late || l->woken;
    int tier = j->tier;
    if (j->c->closing)
        return;
    for (int32_t k = 0; k < j->n; k++) {
        int32_t i = j->which[k];
        if (st == SL_OK && j->answers[k] == SL_OK && !given_up) {
            l->seen[tier * l->n + i] = SEEN_HAS;
            l->source[i] = (int8_t)tier;
        } else if (!given_up) {
            sl_cascade_missed(l, tier, i, j->answers[k] == SL_ERR_IO ? SL_MISS_IO : SL_MISS_ABSENT);
        }
    }
    if (given_up)
        sl_tier_release(j->c->tiers[tier].t.tier, j->keys, j->n);
    j->c->tiers[tier].n_late -= j->late;
    sl_cascade_job_unlink(&l->jobs, j);
    sl_cascade_job_free(j);
    if (!given_up)
        look_up(l, place_of(l, tier) + 1);
    sl_cascade_load_advance(l);
}

static sl_cascade_load *make(sl_cascade *c, sl_key seed, const int32_t *tokens, int32_t have, int32_t most)
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
        if (advice->pages > have || !needs_advice(c, t))
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
    sl_cascade_load *l = make(c, seed, tokens, have, most);
    sl_cascade_load *other = l ? running(c, have, l->keys[0]) : NULL;
    if (other) {
        sl_cascade_load_free(l);
        join(other, w);
        if (other->reading)
            tell_begun(other, w);
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
    set_order(l);
    l->next = c->loads;
    c->loads = l;
    c->n_loads++;
    join(l, w);
    look_up(l, 0);
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
        look_up(l, place_of(l, j->tier) + 1);
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
