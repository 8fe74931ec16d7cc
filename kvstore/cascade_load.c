/*
 * Loads: from the tier into the store.
 *
 *   state    waits for                       then
 *   -------  ------------------------------  ------------------------------------------------------------------------
 *   LOOKUP   exists, with a lease in the     none there: end. Else it takes pages of the store, with a lease on the
 *            tier                            whole prefix -> READ
 *   READ     get                             the pages that follow the first failed one are given up -> CHECK
 *   CHECK    the owner, who compares         right: published, end. Wrong -> REMOVE
 *            checksums
 *   REMOVE   remove                          end
 *
 * At the end the requests that wait continue. They do so earlier when the load is late; then it is cancelled, and what has
 * arrived is published when the tier has drained.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/cascade_impl.h"

static const uint64_t MS = 1000000;
enum {
    LEASE_MS = 10000, /* in the tier, from the lookup until the read begins */
    ROUNDS = 4,       /* times that one request waits, if loads of other requests end without its pages */
    LOOKUP_PAGES = 1 << 14
};

void sl_cascade_load_free(sl_cascade_job *l)
{
    sl_lease_release(l->lease, true); /* pages that were not published become free */
    sl_cascade_block_free(&l->block);
    free(l->keys);
    free(l->tokens);
    free(l->crc);
    free(l);
}

static void wake(sl_cascade_job *l)
{
    for (sl_cascade_waiter *w; (w = l->waiters);) {
        l->waiters = w->next;
        l->c->st.waiting--;
        w->load = NULL;
        w->looked_up |= l->late;
        w->ready(w);
    }
}

/* Every path of a load ends here. */
static void end(sl_cascade_job *l)
{
    sl_cascade *c = l->c;
    sl_cascade_job_unlink(&c->loads, l);
    c->n_loads--;
    c->n_late -= l->late;
    c->st.loading -= l->count;
    if (l->count) {
        c->st.loads++;
        c->st.load_ns += sl_now_ns() - l->start_ns;
    }
    sl_lease_release(l->lease, true);
    l->lease = NULL;
    wake(l);
    sl_cascade_load_free(l);
}

static void missed(sl_cascade_job *l, sl_cascade_miss why, int32_t pages)
{
    if (!l->late) /* these are counted already */
        l->c->st.misses[why] += (uint64_t)pages;
}

static void submit(sl_cascade_job *l, sl_tier_op op, int32_t from, int32_t n, sl_tier_done_fn *done)
{
    l->req = (sl_tier_req){.op = op,
                           .n = n,
                           .keys = l->keys + from,
                           .pages = l->block.pages,
                           .lease_ms = LEASE_MS,
                           .results = l->block.results,
                           .done = done,
                           .cookie = l};
    SL_CHECK(sl_tier_submit(l->c->tier, &l->req) == SL_OK, "%d keys", n);
}

/* ---- REMOVE ---- */

static void on_removed(sl_tier_req *req, sl_status st)
{
    sl_cascade_job *l = req->cookie;
    (void)st;
    if (!l->c->closing)
        end(l);
}

/* ---- CHECK ---- */

void sl_cascade_checked(sl_cascade *c, sl_cascade_job *l, bool right)
{
    SL_CHECK(l->c == c && l->state == LOAD_CHECK, "state %d", l->state);
    if (right) {
        sl_lease_publish(l->lease, l->tokens, (l->first + l->from + l->arrived) * PAGE);
        c->st.bytes_loaded += (uint64_t)l->arrived * (c->page_bytes + c->label_bytes);
        c->st.hits += l->late ? 0 : (uint64_t)l->arrived;
        end(l);
        return;
    }
    sl_log(
        SL_LOG_WARN, "cascade", "pages_damaged",
        "pages=%d reason=\"rows that the tier returned do not have the checksums with which they were stored\"",
        l->arrived);
    missed(l, SL_MISS_DAMAGED, l->arrived);
    l->state = LOAD_REMOVE;
    submit(l, SL_TIER_REMOVE, l->from, l->arrived, on_removed);
}

/* The kept checksums of the pages that arrived, from their labels. */
static bool collect_sums(sl_cascade_job *l)
{
    const sl_cascade *c = l->c;
    size_t bytes = (size_t)c->n_layers * sizeof *l->crc;
    l->crc = malloc((size_t)l->arrived * bytes);
    for (int32_t i = 0; l->crc && i < l->arrived; i++)
        memcpy(l->crc + (size_t)i * (size_t)c->n_layers,
               sl_cascade_block_label(c, &l->block, i) + sizeof(sl_cascade_label), bytes);
    return l->crc != NULL;
}

static void check(sl_cascade_job *l)
{
    const sl_cascade_calls *calls = &l->c->o.calls;
    const int32_t *pages = sl_lease_pages(l->lease) + l->first + l->from;
    l->state = LOAD_CHECK;
    if (collect_sums(l) && calls->check_sums(calls->ctx, l, pages, l->arrived, l->crc))
        return;
    missed(l, SL_MISS_ROOM, l->arrived);
    end(l);
}

/* ---- READ ---- */

/* Whether page i that was read is the page of this prompt: its key alone could belong to other tokens. */
static bool label_fits(const sl_cascade_job *l, int32_t i)
{
    sl_cascade_label label;
    int32_t at = l->from + i;
    memcpy(&label, sl_cascade_block_label(l->c, &l->block, i), sizeof label);
    return sl_key_eq(label.seed, l->seed) && sl_key_eq(label.prev, at ? l->keys[at - 1] : l->prev) &&
           memcmp(label.tokens, l->tokens + (size_t)(l->first + at) * PAGE, sizeof label.tokens) == 0;
}

static sl_cascade_miss reason_of(sl_status st)
{
    switch (st) {
    case SL_ERR_CORRUPT:
        return SL_MISS_DAMAGED;
    case SL_ERR_IO:
        return SL_MISS_IO;
    case SL_ERR_CANCELLED:
        return SL_MISS_LATE;
    default: /* evicted since the lookup; or another page of the same key */
        return SL_MISS_ABSENT;
    }
}

static void on_read(sl_tier_req *req, sl_status st)
{
    sl_cascade_job *l = req->cookie;
    (void)st; /* the results say as much */
    if (l->c->closing)
        return;
    while (l->arrived < l->count && l->block.results[l->arrived] == SL_OK && label_fits(l, l->arrived))
        l->arrived++;
    sl_tier_release(l->c->tier, l->keys, l->n);
    if (l->arrived < l->count)
        missed(l, reason_of(l->block.results[l->arrived]), l->count - l->arrived);
    if (l->arrived)
        check(l);
    else
        end(l);
}

/* Takes pages of the store for the first `hits` keys. False: there are none. */
static bool land(sl_cascade_job *l, int32_t hits)
{
    sl_cascade *c = l->c;
    int32_t budget = sl_arena_pages(c->o.arena) / 2 - c->st.loading;
    hits = hits < budget ? hits : budget;
    if (hits < 1 || sl_store_lease_pages(c->o.store, l->seed, l->tokens, l->first + hits, &l->lease) != SL_OK)
        return false;
    l->from = sl_lease_matched(l->lease) - l->first; /* the tree may have changed since the lookup */
    if (l->from < 0 || l->from >= hits || !sl_cascade_block_make(c, hits - l->from, &l->block))
        return false;
    l->count = hits - l->from;
    c->st.loading += l->count;
    for (int32_t i = 0; i < l->count; i++)
        sl_cascade_block_page(c, &l->block, i, sl_lease_pages(l->lease)[l->first + l->from + i]);
    return true;
}

/* ---- LOOKUP ---- */

static void on_looked_up(sl_tier_req *req, sl_status st)
{
    sl_cascade_job *l = req->cookie;
    sl_cascade *c = l->c;
    if (c->closing)
        return;
    int32_t hits = st == SL_OK ? sl_tier_prefix(req) : 0;
    sl_cascade_block_free(&l->block); /* the results of the lookup */
    missed(l, SL_MISS_ABSENT, l->n - hits);
    if (hits && !l->late && land(l, hits)) {
        missed(l, SL_MISS_ROOM, hits - l->from - l->count);
        l->state = LOAD_READ;
        submit(l, SL_TIER_GET, l->from, l->count, on_read);
        return;
    }
    missed(l, SL_MISS_ROOM, hits);
    sl_tier_release(c->tier, l->keys, l->n);
    end(l);
}

static sl_cascade_job *make(sl_cascade *c, sl_key seed, const int32_t *tokens, int32_t have, int32_t most)
{
    size_t n = (size_t)(most - have);
    sl_cascade_job *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    *l = (sl_cascade_job){.c = c,
                          .state = LOAD_LOOKUP,
                          .start_ns = sl_now_ns(),
                          .n = (int32_t)n,
                          .keys = malloc(n * sizeof *l->keys),
                          .tokens = malloc((size_t)most * PAGE * sizeof *tokens),
                          .seed = seed,
                          .prev = seed,
                          .first = have};
    l->block.results = malloc(n * sizeof *l->block.results);
    if (!l->keys || !l->tokens || !l->block.results) {
        sl_cascade_load_free(l);
        return NULL;
    }
    memcpy(l->tokens, tokens, (size_t)most * PAGE * sizeof *tokens);
    for (int32_t i = 0; i < have; i++)
        l->prev = sl_page_key(l->prev, tokens + (size_t)i * PAGE);
    sl_page_keys(l->prev, tokens + (size_t)have * PAGE, n * PAGE, l->keys);
    return l;
}

/* ---- waiting ---- */

static void join(sl_cascade_job *l, sl_cascade_waiter *w)
{
    sl_cascade_waiter **at = &l->waiters;
    while (*at) /* they continue in the order in which they came */
        at = &(*at)->next;
    w->load = l;
    w->next = NULL;
    *at = w;
    w->rounds++;
    l->c->st.waiting++;
}

/* The load that will have this page of a prefix, or NULL. */
static sl_cascade_job *running(const sl_cascade *c, int32_t at, sl_key key)
{
    for (sl_cascade_job *l = c->loads; l; l = l->next) {
        int32_t i = at - l->first, n = l->state == LOAD_LOOKUP ? l->n : l->from + l->count;
        if (!l->late && l->state != LOAD_REMOVE && i >= 0 && i < n && sl_key_eq(l->keys[i], key))
            return l;
    }
    return NULL;
}

/* Whether no load can begin now, and why. */
static bool refuses(const sl_cascade *c, sl_cascade_miss *why)
{
    sl_tier_health h;
    *why = c->n_late ? SL_MISS_LATE : SL_MISS_ROOM;
    if (c->n_late || c->n_loads == SL_CASCADE_LOADS)
        return true;
    sl_tier_get_health(c->tier, &h);
    *why = SL_MISS_IO;
    return h.state == SL_TIER_FAILED;
}

bool sl_cascade_wait(sl_cascade *c, sl_key seed, const int32_t *tokens, int32_t n_tokens,
                     sl_cascade_waiter *w)
{
    sl_cascade_miss why;
    int32_t have = sl_store_match(c->o.store, seed, tokens, n_tokens), most = (n_tokens - 1) / PAGE;
    if (c->finishing || w->looked_up || w->rounds == ROUNDS || have >= most)
        return false;
    most = most - have > LOOKUP_PAGES ? have + LOOKUP_PAGES : most;
    sl_cascade_job *l = make(c, seed, tokens, have, most);
    sl_cascade_job *other = l ? running(c, have, l->keys[0]) : NULL;
    if (other) {
        sl_cascade_load_free(l);
        join(other, w);
        return true;
    }
    w->looked_up = true;
    if (!l || refuses(c, &why)) {
        c->st.misses[l ? why : SL_MISS_ROOM] += (uint64_t)(most - have);
        if (l)
            sl_cascade_load_free(l);
        return false;
    }
    l->deadline_ns = l->start_ns + c->o.load_timeout_ms * MS;
    l->next = c->loads;
    c->loads = l;
    c->n_loads++;
    join(l, w);
    submit(l, SL_TIER_EXISTS, 0, l->n, on_looked_up);
    return true;
}

void sl_cascade_leave(sl_cascade *c, sl_cascade_waiter *w)
{
    if (!w->load)
        return;
    sl_cascade_waiter **at = &w->load->waiters;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    w->load = NULL;
    c->st.waiting--;
}

static void make_late(sl_cascade_job *l)
{
    sl_cascade *c = l->c;
    missed(l, SL_MISS_LATE, l->state == LOAD_LOOKUP ? l->n : l->count);
    l->late = true;
    c->n_late++;
    sl_log(SL_LOG_WARN, "cascade", "load_late", "pages=%d ms=%u", l->state == LOAD_LOOKUP ? l->n : l->count,
           c->o.load_timeout_ms);
    if (l->state != LOAD_CHECK)
        sl_tier_cancel(c->tier, &l->req);
    wake(l);
}

uint64_t sl_cascade_loads_tick(sl_cascade *c, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_cascade_job *l = c->loads; l;) {
        if (!l->late && now >= l->deadline_ns) {
            make_late(l);
            l = c->loads; /* the requests that continued may have changed the list */
            due = UINT64_MAX;
            continue;
        }
        due = !l->late && l->deadline_ns < due ? l->deadline_ns : due;
        l = l->next;
    }
    return due;
}
