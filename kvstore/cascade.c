/*
 * The cascade as a whole: creation and end, one turn, answers of the owner, statistics, and the memory of the pages of a
 * request to a tier. cascade_load.c, cascade_read.c and cascade_write.c move the pages.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "kvstore/cascade_impl.h"

enum {
    WRITING_SHARE = 8, /* at most one in this many pages is held for writes */
    CHUNK_BYTES = 32 << 20,
    CHUNK_PAGES_MIN = 8,
    CHUNK_PAGES_MAX = 512
};

const char *const sl_cascade_miss_names[SL_MISS_REASONS] = {"absent", "damaged", "io", "late", "room"};
const char *const sl_cascade_lost_names[SL_LOST_REASONS] = {"pressure", "admission", "room", "io", "sums"};

size_t sl_cascade_label_bytes(const sl_geometry *g)
{
    return sizeof(sl_cascade_label) + (size_t)g->n_layers * sizeof(uint32_t);
}

void sl_cascade_label_write(const sl_store_page *page, uint8_t *label)
{
    sl_cascade_label l = {.seed = page->seed, .prev = page->prev};
    memcpy(l.tokens, page->tokens, sizeof l.tokens);
    memcpy(label, &l, sizeof l);
}

void sl_cascade_label_sums(uint8_t *label, const uint32_t *crc, int32_t n_layers)
{
    memcpy(label + sizeof(sl_cascade_label), crc, (size_t)n_layers * sizeof *crc);
}

bool sl_cascade_label_read(const uint8_t *label, sl_key key, uint32_t *crc, int32_t n_layers)
{
    sl_cascade_label l;
    memcpy(&l, label, sizeof l);
    memcpy(crc, label + sizeof l, (size_t)n_layers * sizeof *crc);
    return sl_key_eq(sl_page_key(l.prev, l.tokens), key);
}

bool sl_cascade_page_format(const sl_geometry *g, size_t *page_bytes, sl_key *format)
{
    static const char version[] = "cascade page 1";
    sl_key k;
    if (!sl_geometry_format(g, &k))
        return false;
    *page_bytes = (size_t)g->page_bytes + sl_cascade_label_bytes(g);
    *format = sl_hash_chain(k, version, sizeof version);
    return true;
}

/* ---- blocks ---- */

bool sl_cascade_block_make(const sl_cascade *c, int32_t n, sl_cascade_block *out)
{
    size_t k = (size_t)n;
    *out = (sl_cascade_block){.n = n,
                              .spans = malloc(k * (size_t)(c->n_spans + 1) * sizeof *out->spans),
                              .pages = malloc(k * sizeof *out->pages),
                              .labels = calloc(k, c->label_bytes),
                              .results = calloc(k, sizeof *out->results)};
    if (out->spans && out->pages && out->labels && out->results)
        return true;
    sl_cascade_block_free(out);
    return false;
}

void sl_cascade_block_free(sl_cascade_block *b)
{
    free(b->spans);
    free(b->pages);
    free(b->labels);
    free(b->results);
    *b = (sl_cascade_block){0};
}

void sl_cascade_block_page(const sl_cascade *c, sl_cascade_block *b, int32_t i, int32_t page)
{
    struct iovec *spans = b->spans + (size_t)i * (size_t)(c->n_spans + 1);
    sl_arena_spans(c->o.arena, page, spans);
    spans[c->n_spans] = (struct iovec){sl_cascade_block_label(c, b, i), c->label_bytes};
    b->pages[i] = (sl_tier_page){spans, c->n_spans + 1};
}

void sl_cascade_job_unlink(sl_cascade_job **list, sl_cascade_job *job)
{
    while (*list != job)
        list = &(*list)->next;
    *list = job->next;
}

void sl_cascade_job_free(sl_cascade_job *job)
{
    if (!job)
        return;
    sl_cascade_block_free(&job->block);
    free(job->keys);
    free(job->page);
    free(job->tenants);
    free(job->which);
    free(job->asked);
    free(job->answers);
    free(job->crc);
    free(job);
}

/* ---- what tiers report ---- */

static void on_evicted(void *ctx, const sl_key *keys, int32_t n)
{
    const sl_cascade_listener *l = ctx;
    if (l->c && !l->c->closing && l->c->o.calls.gone)
        l->c->o.calls.gone(l->c->o.calls.ctx, l->tier, keys, n);
}

sl_cascade_listener *sl_cascade_listen(sl_tier_opts *o)
{
    sl_cascade_listener *l = calloc(1, sizeof *l);
    o->evicted = l ? on_evicted : NULL;
    o->evicted_ctx = l;
    return l;
}

void sl_cascade_tier_close(sl_cascade_tier *t)
{
    sl_tier_close(t->tier);
    free(t->listener);
    *t = (sl_cascade_tier){0};
}

/* ---- creation and end ---- */

static sl_store_offer offer_of(sl_cascade_policy policy)
{
    switch (policy) {
    case SL_CASCADE_READ_ONLY:
        return SL_OFFER_NEVER;
    case SL_CASCADE_WRITE_SELECTIVE:
        return SL_OFFER_USED;
    default:
        return SL_OFFER_NEW;
    }
}

static sl_status add_tier(sl_cascade *c, int t)
{
    sl_cascade_slot *s = &c->tiers[t];
    struct epoll_event in = {.events = EPOLLIN};
    int number = sl_store_add_tier(c->o.store, offer_of(s->t.policy));
    SL_CHECK(number == t, "the store has tiers of another cascade");
    if (s->t.listener)
        *s->t.listener = (sl_cascade_listener){c, t};
    return epoll_ctl(c->epoll, EPOLL_CTL_ADD, sl_tier_fd(s->t.tier), &in) == 0 ? SL_OK : SL_ERR_NO_MEMORY;
}

static void init_limits(sl_cascade *c)
{
    int written = 0;
    for (int t = 0; t < c->n_tiers; t++)
        written += c->tiers[t].t.policy != SL_CASCADE_READ_ONLY;
    int32_t share = sl_arena_pages(c->o.arena) / WRITING_SHARE / (written ? written : 1);
    c->max_writing = share < 1 ? 1 : share; /* in addition to the bound by batches */
    size_t chunk = CHUNK_BYTES / c->page_bytes;
    chunk = chunk < CHUNK_PAGES_MIN ? CHUNK_PAGES_MIN : chunk > CHUNK_PAGES_MAX ? CHUNK_PAGES_MAX : chunk;
    c->chunk_pages = c->o.chunk_pages ? c->o.chunk_pages : (int32_t)chunk;
}

sl_status sl_cascade_create(const sl_cascade_opts *opts, const sl_cascade_tier *tiers, int n,
                            sl_cascade **out)
{
    const sl_geometry *g = sl_arena_geometry(opts->arena);
    SL_CHECK(n > 0 && n <= SL_CASCADE_TIERS, "%d tiers", n);
    sl_cascade *c = calloc(1, sizeof *c);
    if (!c) {
        for (int t = 0; t < n; t++)
            sl_cascade_tier_close(&(sl_cascade_tier){tiers[t].tier, tiers[t].listener, 0, 0});
        return SL_ERR_NO_MEMORY;
    }
    *c = (sl_cascade){.o = *opts,
                      .n_tiers = n,
                      .epoll = epoll_create1(EPOLL_CLOEXEC),
                      .n_layers = g->n_layers,
                      .n_spans = sl_arena_n_spans(opts->arena),
                      .page_bytes = (size_t)g->page_bytes,
                      .label_bytes = sl_cascade_label_bytes(g)};
    for (int t = 0; t < n; t++)
        c->tiers[t].t = tiers[t];
    sl_status st = c->epoll >= 0 ? SL_OK : SL_ERR_NO_MEMORY;
    for (int t = 0; t < n && st == SL_OK; t++)
        st = add_tier(c, t);
    if (st != SL_OK) {
        sl_cascade_destroy(c);
        return st;
    }
    init_limits(c);
    *out = c;
    return SL_OK;
}

void sl_cascade_destroy(sl_cascade *c)
{
    if (!c)
        return;
    SL_CHECK(!c->waiting, "%d requests wait", c->waiting);
    c->closing = true;
    for (int t = 0; t < c->n_tiers; t++)
        sl_cascade_tier_close(&c->tiers[t].t); /* uses the pages of loads and writes until it has closed */
    for (sl_cascade_load *l; (l = c->loads);) {
        c->loads = l->next;
        sl_cascade_load_free(l);
    }
    for (int t = 0; t < c->n_tiers; t++) {
        for (sl_cascade_job *b; (b = c->tiers[t].writes);) {
            c->tiers[t].writes = b->next;
            sl_cascade_write_free(b);
        }
    }
    if (c->epoll >= 0)
        close(c->epoll);
    free(c);
}

/* ---- turns ---- */

uint64_t sl_cascade_tick(sl_cascade *c, uint64_t now_ns)
{
    for (int t = 0; t < c->n_tiers; t++)
        sl_tier_poll(c->tiers[t].t.tier);
    for (int t = 0; t < c->n_tiers; t++)
        sl_cascade_writes_begin(c, t, now_ns);
    uint64_t due = sl_cascade_loads_tick(c, now_ns);
    return c->news ? now_ns : due;
}

int sl_cascade_fd(const sl_cascade *c)
{
    return c->epoll;
}

void sl_cascade_sums(sl_cascade *c, sl_cascade_job *job, const uint32_t *crc)
{
    SL_CHECK(job->c == c && job->state == WRITE_SUMS, "state %d", job->state);
    sl_cascade_write_sums(job, crc);
}

void sl_cascade_checked(sl_cascade *c, sl_cascade_job *job, const int32_t *damaged, int32_t n)
{
    SL_CHECK(job->c == c && job->state == CHUNK_CHECK, "state %d", job->state);
    sl_cascade_chunk_checked(job, damaged, n);
}

void sl_cascade_finish(sl_cascade *c)
{
    c->finishing = true;
}

bool sl_cascade_idle(const sl_cascade *c)
{
    int32_t page;
    for (int t = 0; t < c->n_tiers; t++) {
        const sl_cascade_slot *s = &c->tiers[t];
        bool all = c->finishing || s->t.policy != SL_CASCADE_WRITE_BACK;
        if (s->writes || (all && sl_store_offers(c->o.store, t, &page, 1)))
            return false;
    }
    return !c->loads;
}

/* ---- statistics ---- */

int sl_cascade_n_tiers(const sl_cascade *c)
{
    return c->n_tiers;
}

int32_t sl_cascade_waiting(const sl_cascade *c)
{
    return c->waiting;
}

void sl_cascade_stats_get(const sl_cascade *c, int tier, sl_cascade_stats *out)
{
    sl_store_tier_stats s;
    sl_store_tier_stats_get(c->o.store, tier, &s);
    *out = c->tiers[tier].st;
    out->lost[SL_LOST_PRESSURE] += s.evicted_unoffered;
    out->lost[SL_LOST_ADMISSION] += s.evicted_unused;
    for (const sl_cascade_load *l = c->loads; l; l = l->next) {
        bool asks = false;
        for (const sl_cascade_job *j = l->jobs; j; j = j->next) {
            asks |= j->tier == tier;
            out->loading += j->tier == tier ? j->count : 0;
        }
        for (const sl_cascade_waiter *w = l->waiters; asks && w; w = w->next)
            out->waiting++;
    }
}

sl_tier *sl_cascade_tier_at(const sl_cascade *c, int tier)
{
    return c->tiers[tier].t.tier;
}
