/*
 * The chunks of a load: consecutive pages that one tier has.
 *
 *   state    waits for                then
 *   -------  -----------------------  ---------------------------------------------------------------------------------
 *   READ     get of one tier          pages are missing: get of these from the next tier that may have them -> READ. No
 *                                     tier is left: the load ends before the first of them -> CHECK
 *   CHECK    the owner, who compares  all are right -> READY. Some are wrong -> REMOVE of these
 *            checksums
 *   REMOVE   remove                   the pages are looked for in the tiers that were not asked for them -> READ
 *   READY    the chunks before it     published (cascade_load.c)
 *
 * Wrong checksums are rare: they need rows that were damaged in memory, because a tier finds damage of its own. So the pages that
 * were right are simply checked again with those that replace the wrong ones.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/cascade_impl.h"

enum { CHUNKS_AHEAD = 4, JOBS_AHEAD = 16 }; /* full chunks and requests in flight of one load */

static bool seen_missed(const sl_cascade_load *l, int tier, int32_t i)
{
    return l->seen[tier * l->n + i] >= SEEN_MISSED;
}

/* The chunk has ended without pages. */
static void drop(sl_cascade_job *j)
{
    sl_cascade_load *l = j->load;
    l->limit = l->limit < j->at ? l->limit : j->at;
    sl_cascade_job_unlink(&l->jobs, j);
    sl_cascade_job_free(j);
    sl_cascade_load_advance(l);
}

/* The request in flight has ended. */
static void landed(sl_cascade_job *j)
{
    j->c->tiers[j->tier].n_late -= j->late && j->state != CHUNK_CHECK;
}

/* ---- the speed of a tier ---- */

/* Gets of one tier share its bandwidth, so the time with at least one get in flight counts once. */
static void count_time(sl_cascade_slot *s)
{
    uint64_t now = sl_now_ns();
    if (s->n_reads && now > s->reads_due_ns)
        s->rate_ns += (double)(now - s->reads_due_ns);
    s->reads_due_ns = now;
}

static void submit_read(sl_cascade_job *j, sl_tier_done_fn *done)
{
    sl_cascade_slot *s = &j->c->tiers[j->tier];
    count_time(s);
    s->n_reads++;
    j->state = CHUNK_READ;
    sl_cascade_load_submit(j, SL_TIER_GET, done);
}

static void count_read(const sl_cascade_job *j)
{
    const sl_cascade *c = j->c;
    sl_cascade_slot *s = &j->c->tiers[j->tier];
    static const double KEEP = 1 - 1.0 / 8;
    count_time(s);
    s->n_reads--;
    for (int32_t k = 0; k < j->n; k++)
        s->rate_bytes += j->answers[k] == SL_OK ? (double)(c->page_bytes + c->label_bytes) : 0;
    double rate = s->rate_ns > 0 ? s->rate_bytes * 1e9 / s->rate_ns : 0;
    s->st.read_rate = rate > 1 ? rate : 1; /* 0 would mean that nothing was read */
    s->rate_bytes *= KEEP;
    s->rate_ns *= KEEP;
}

/* ---- CHECK ---- */

/* The kept checksums of the pages that arrived, from their labels. */
static bool collect_sums(sl_cascade_job *j)
{
    const sl_cascade *c = j->c;
    size_t bytes = (size_t)c->n_layers * sizeof *j->crc;
    free(j->crc);
    j->crc = malloc((size_t)j->arrived * bytes);
    for (int32_t i = 0; j->crc && i < j->arrived; i++)
        memcpy(j->crc + (size_t)i * (size_t)c->n_layers,
               sl_cascade_block_label(c, &j->block, i) + sizeof(sl_cascade_label), bytes);
    return j->crc != NULL;
}

static void check(sl_cascade_job *j)
{
    const sl_cascade_calls *calls = &j->c->o.calls;
    sl_cascade_load *l = j->load;
    j->state = CHUNK_CHECK;
    if (collect_sums(j) &&
        calls->check_sums(calls->ctx, j, sl_lease_pages(l->lease) + l->first + j->at, j->arrived, j->crc))
        return;
    for (int32_t i = j->at; i < j->at + j->arrived; i++)
        sl_cascade_missed(l, l->source[i], i, SL_MISS_ROOM);
    drop(j);
}

/* ---- READ ---- */

static void on_read(sl_tier_req *req, sl_status st);

/* Makes the request for the pages of the chunk for which `wanted` holds. False: there are none. */
static bool gather(sl_cascade_job *j, int tier, bool (*wanted)(const sl_cascade_load *l, int tier, int32_t i))
{
    sl_cascade_load *l = j->load;
    j->tier = tier;
    j->n = 0;
    for (int32_t i = 0; i < j->count; i++) {
        if (!wanted(l, tier, j->at + i))
            continue;
        j->keys[j->n] = l->keys[j->at + i];
        j->asked[j->n] = j->block.pages[i];
        j->which[j->n++] = j->at + i;
    }
    return j->n > 0;
}

static bool may_have(const sl_cascade_load *l, int tier, int32_t i)
{
    return !l->got[i] && !seen_missed(l, tier, i);
}

/* Whether page i that was read is the page of this prompt: its key alone could belong to other tokens. */
static bool label_fits(const sl_cascade_job *j, int32_t i)
{
    const sl_cascade_load *l = j->load;
    sl_cascade_label label;
    memcpy(&label, sl_cascade_block_label(j->c, &j->block, i - j->at), sizeof label);
    return sl_key_eq(label.seed, l->seed) && sl_key_eq(label.prev, i ? l->keys[i - 1] : l->prev) &&
           memcmp(label.tokens, l->tokens + (size_t)(l->first + i) * PAGE, sizeof label.tokens) == 0;
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

/* Asks another tier for the pages that did not come, or continues with the leading ones that did. */
static void continue_chunk(sl_cascade_job *j)
{
    sl_cascade_load *l = j->load;
    sl_cascade_miss why;
    bool wanted = !l->woken && !j->late && j->at < l->limit;
    j->arrived = 0;
    while (j->arrived < j->count && l->got[j->at + j->arrived])
        j->arrived++;
    for (int t = 0; t < j->c->n_tiers && wanted && j->arrived < j->count; t++) {
        if (seen_missed(l, t, j->at + j->arrived) || !sl_cascade_usable(j->c, t, &why) ||
            !gather(j, t, may_have))
            continue;
        submit_read(j, on_read);
        return;
    }
    if (j->arrived < j->count && l->limit > j->at + j->arrived)
        l->limit = j->at + j->arrived;
    if (j->arrived && (wanted || j->late))
        check(j);
    else
        drop(j);
}

static void on_read(sl_tier_req *req, sl_status st)
{
    sl_cascade_job *j = req->cookie;
    sl_cascade_load *l = j->load;
    (void)st; /* the results say as much */
    if (j->c->closing)
        return;
    landed(j);
    count_read(j);
    l->read_from |= (uint8_t)(1 << j->tier);
    for (int32_t k = 0; k < j->n; k++) {
        int32_t i = j->which[k];
        l->got[i] = j->answers[k] == SL_OK && label_fits(j, i);
        if (l->got[i]) {
            l->source[i] = (int8_t)j->tier;
            if (!j->late)
                l->seen[j->tier * l->n + i] = SEEN_HAS;
        } else if (j->at < l->limit) { /* else it was not wanted any more */
            sl_cascade_missed(l, j->tier, i, reason_of(j->answers[k]));
        }
    }
    continue_chunk(j);
}

/* ---- REMOVE ---- */

static void remove_damaged(sl_cascade_job *j);

static void on_removed(sl_tier_req *req, sl_status st)
{
    sl_cascade_job *j = req->cookie;
    const sl_cascade_calls *calls = &j->c->o.calls;
    (void)st;
    if (j->c->closing)
        return;
    landed(j);
    for (int32_t k = 0; calls->gone && k < j->n; k++)
        if (j->answers[k] == SL_OK)
            calls->gone(calls->ctx, j->tier, &j->keys[k], 1);
    remove_damaged(j);
}

static bool is_damaged(const sl_cascade_load *l, int tier, int32_t i)
{
    return l->got[i] && l->source[i] == tier && l->seen[tier * l->n + i] == SEEN_MISSED + SL_MISS_DAMAGED;
}

/* Removes the damaged pages of the chunk from the tiers that delivered them, then looks for them elsewhere. */
static void remove_damaged(sl_cascade_job *j)
{
    sl_cascade_load *l = j->load;
    for (int t = 0; t < j->c->n_tiers; t++) {
        if (!gather(j, t, is_damaged))
            continue;
        for (int32_t k = 0; k < j->n; k++)
            l->got[j->which[k]] = false;
        const sl_cascade_tier *tier = &j->c->tiers[t].t;
        if (tier->policy == SL_CASCADE_READ_ONLY && !tier->tier->ops->has_owners)
            continue;
        j->state = CHUNK_REMOVE;
        sl_cascade_load_submit(j, SL_TIER_REMOVE, on_removed);
        return;
    }
    continue_chunk(j);
}

void sl_cascade_chunk_checked(sl_cascade_job *j, const int32_t *damaged, int32_t n)
{
    sl_cascade_load *l = j->load;
    const int32_t *pages = sl_lease_pages(l->lease) + l->first;
    int32_t k = 0;
    if (!n) {
        j->state = CHUNK_READY;
        sl_cascade_load_advance(l);
        return;
    }
    for (int32_t i = j->at; i < j->at + j->arrived && k < n; i++) {
        if (pages[i] == damaged[k]) {
            sl_cascade_missed(l, l->source[i], i, SL_MISS_DAMAGED);
            k++;
        }
    }
    SL_CHECK(k == n, "%d pages are damaged, %d of them are in the chunk", n, k);
    sl_log(
        SL_LOG_WARN, "cascade", "pages_damaged",
        "pages=%d reason=\"rows that a tier returned do not have the checksums with which they were stored\"",
        n);
    j->count = j->arrived; /* pages after those are given up already */
    j->late = false;       /* its read has ended */
    remove_damaged(j);
}

/* ---- the next chunk ---- */

/* Takes pages of the store for at most n pages after those that have begun; returns their number. */
static int32_t take_pages(sl_cascade_load *l, int32_t n)
{
    sl_cascade *c = l->c;
    int32_t budget = sl_arena_pages(c->o.arena) / 2 - c->loading, available = sl_store_available(c->o.store);
    n = n < budget ? n : budget;
    n = n < available ? n : available;
    if (n < 1)
        return 0;
    sl_status st = l->lease ? sl_lease_grow(l->lease, n)
                            : sl_store_lease_pages(c->o.store, l->tenant, l->seed, l->tokens,
                                                   l->first + l->begun + n, &l->lease);
    if (st != SL_OK)
        return 0;
    l->pages += n;
    c->loading += n;
    return n;
}

static sl_cascade_job *make_chunk(sl_cascade_load *l, int32_t n)
{
    size_t k = (size_t)n;
    sl_cascade_job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    *j = (sl_cascade_job){.c = l->c,
                          .load = l,
                          .at = l->begun,
                          .count = n,
                          .keys = malloc(k * sizeof *j->keys),
                          .which = malloc(k * sizeof *j->which),
                          .asked = malloc(k * sizeof *j->asked),
                          .answers = malloc(k * sizeof *j->answers)};
    if (!j->keys || !j->which || !j->asked || !j->answers || !sl_cascade_block_make(l->c, n, &j->block)) {
        sl_cascade_job_free(j);
        return NULL;
    }
    for (int32_t i = 0; i < n; i++)
        sl_cascade_block_page(l->c, &j->block, i, sl_lease_pages(l->lease)[l->first + j->at + i]);
    return j;
}

static bool has_room_ahead(const sl_cascade_load *l)
{
    int32_t pages = 0, jobs = 0;
    for (const sl_cascade_job *j = l->jobs; j; j = j->next) {
        pages += j->count;
        jobs++;
    }
    return jobs < JOBS_AHEAD && pages < CHUNKS_AHEAD * l->c->chunk_pages;
}

bool sl_cascade_chunk_begin(sl_cascade_load *l)
{
    if (!l->reading || l->woken || l->begun >= l->limit || !has_room_ahead(l))
        return false;
    int32_t at = l->begun, n = 1, tier = l->source[at];
    while (n < l->c->chunk_pages && at + n < l->limit && l->source[at + n] == tier)
        n++;
    n = take_pages(l, n);
    sl_cascade_job *j = n ? make_chunk(l, n) : NULL;
    if (!j) {
        for (int32_t i = at; i < l->limit; i++)
            sl_cascade_missed(l, l->source[i], i, SL_MISS_ROOM);
        l->limit = at;
        return false;
    }
    sl_cascade_job **end = &l->jobs;
    while (*end)
        end = &(*end)->next;
    *end = j;
    l->begun += n;
    gather(j, tier, may_have);
    submit_read(j, on_read);
    return true;
}
