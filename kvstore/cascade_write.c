/*
 * Writes: from the store to each tier, in batches of one tier. A batch holds its pages (sl_store_hold), asks the owner for their kept
 * checksums (WRITE_SUMS), and gives page and label to the tier (WRITE_SET). When the tier has ended all its pages the holds
 * end, and what was evicted meanwhile becomes free.
 *
 * A page that could not be stored is not offered again: it is counted by reason.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/cascade_impl.h"

enum {
    AHEAD_PAGES =
        1024,       /* write_back: at most this many of the pages that are evicted next are kept written */
    AHEAD_SHARE = 8 /* and one in this many of all */
};
static const uint64_t SCAN_NS = 5000000;

void sl_cascade_write_free(sl_cascade_job *b)
{
    for (int32_t i = 0; i < b->n; i++)
        sl_store_unhold(b->c->o.store, b->page[i]);
    sl_cascade_job_free(b);
}

static void end(sl_cascade_job *b)
{
    sl_cascade_slot *s = &b->c->tiers[b->tier];
    sl_cascade_job_unlink(&s->writes, b);
    s->n_writes--;
    s->st.writing -= b->n;
    sl_cascade_write_free(b);
}

static void lost(sl_cascade_job *b, sl_cascade_lost why)
{
    b->c->tiers[b->tier].st.lost[why] += (uint64_t)b->n;
    end(b);
}

static sl_cascade_lost reason_of(sl_status st)
{
    switch (st) {
    case SL_AGAIN:
        return SL_LOST_ADMISSION;
    case SL_ERR_EXHAUSTED:
        return SL_LOST_ROOM;
    default:
        return SL_LOST_IO;
    }
}

static void tell_held(const sl_cascade_job *b, int32_t i)
{
    const sl_cascade_calls *calls = &b->c->o.calls;
    sl_cascade_label l;
    memcpy(&l, sl_cascade_block_label(b->c, &b->block, i), sizeof l);
    calls->held(calls->ctx, b->tier,
                &(sl_store_page){.key = b->keys[i], .seed = l.seed, .prev = l.prev, .tokens = l.tokens});
}

static void on_set(sl_tier_req *req, sl_status st)
{
    sl_cascade_job *b = req->cookie;
    const sl_cascade *c = b->c;
    sl_cascade_stats *count = &b->c->tiers[b->tier].st;
    (void)st;
    if (c->closing)
        return;
    for (int32_t i = 0; i < b->n; i++) {
        bool stored = b->block.results[i] == SL_OK;
        count->stored += stored;
        count->bytes_stored += stored ? c->page_bytes + c->label_bytes : 0;
        if (!stored)
            count->lost[reason_of(b->block.results[i])]++;
        else if (c->o.calls.stored)
            c->o.calls.stored(c->o.calls.ctx, b->tier, &b->keys[i], 1);
        if (stored && c->o.calls.held)
            tell_held(b, i);
    }
    count->writes++;
    count->write_ns += sl_now_ns() - b->start_ns;
    end(b);
}

void sl_cascade_write_sums(sl_cascade_job *b, const uint32_t *crc)
{
    sl_cascade *c = b->c;
    if (!crc) {
        lost(b, SL_LOST_SUMS);
        return;
    }
    for (int32_t i = 0; i < b->n; i++)
        sl_cascade_label_sums(sl_cascade_block_label(c, &b->block, i), crc + (size_t)i * (size_t)c->n_layers,
                              c->n_layers);
    b->state = WRITE_SET;
    b->req = (sl_tier_req){.op = SL_TIER_SET,
                           .n = b->n,
                           .keys = b->keys,
                           .pages = b->block.pages,
                           .tenants = b->tenants,
                           .results = b->block.results,
                           .done = on_set,
                           .cookie = b};
    SL_CHECK(sl_tier_submit(c->tiers[b->tier].t.tier, &b->req) == SL_OK, "%d keys", b->n);
}

static void hold(sl_cascade_job *b, int32_t i, int32_t page)
{
    sl_store_page p;
    sl_store_hold(b->c->o.store, b->tier, page, &p);
    sl_cascade_label_write(&p, sl_cascade_block_label(b->c, &b->block, i));
    b->keys[i] = p.key;
    b->page[i] = page;
    b->tenants[i] = p.tenant;
    sl_cascade_block_page(b->c, &b->block, i, page);
}

static bool begin(sl_cascade *c, int tier, const int32_t *pages, int32_t n)
{
    sl_cascade_slot *s = &c->tiers[tier];
    sl_cascade_job *b = calloc(1, sizeof *b);
    if (!b)
        return false;
    *b = (sl_cascade_job){.c = c, .state = WRITE_SUMS, .tier = tier, .start_ns = sl_now_ns()};
    b->keys = malloc((size_t)n * sizeof *b->keys);
    b->page = malloc((size_t)n * sizeof *b->page);
    b->tenants = malloc((size_t)n * sizeof *b->tenants);
    if (!b->keys || !b->page || !b->tenants || !sl_cascade_block_make(c, n, &b->block)) {
        sl_cascade_job_free(b);
        return false; /* the next turn tries again */
    }
    for (; b->n < n; b->n++)
        hold(b, b->n, pages[b->n]);
    b->next = s->writes;
    s->writes = b;
    s->n_writes++;
    s->st.writing += n;
    if (!c->o.calls.read_sums(c->o.calls.ctx, b, b->page, n))
        lost(b, SL_LOST_SUMS);
    return true;
}

/* At most n pages to write next; returns their number. */
static int32_t pick(sl_cascade *c, int tier, uint64_t now, int32_t *pages, int32_t n)
{
    sl_cascade_slot *t = &c->tiers[tier];
    sl_store_stats s;
    if (c->finishing || t->t.policy != SL_CASCADE_WRITE_BACK)
        return sl_store_offers(c->o.store, tier, pages, n);
    sl_store_stats_get(c->o.store, &s);
    int32_t ahead = s.total / AHEAD_SHARE < AHEAD_PAGES ? s.total / AHEAD_SHARE + 1 : AHEAD_PAGES;
    int32_t free_soon = s.free + s.leaving;
    bool same = free_soon >= t->scan_free && s.evictions == t->scan_evictions;
    if (free_soon >= ahead || (same && now < t->scan_ns))
        return 0;
    n = sl_store_oldest_offers(c->o.store, tier, ahead - free_soon, pages, n);
    t->scan_free = free_soon;
    t->scan_evictions = s.evictions;
    t->scan_ns = n ? 0 : now + SCAN_NS;
    return n;
}

void sl_cascade_writes_begin(sl_cascade *c, int tier, uint64_t now)
{
    sl_cascade_slot *s = &c->tiers[tier];
    int32_t pages[SL_CASCADE_BATCH];
    while (s->n_writes < SL_CASCADE_BATCHES && s->st.writing < c->max_writing) {
        int32_t most = c->max_writing - s->st.writing;
        int32_t n = pick(c, tier, now, pages, most < SL_CASCADE_BATCH ? most : SL_CASCADE_BATCH);
        if (!n || !begin(c, tier, pages, n))
            return;
    }
}
