/*
 * The cascade as a whole: creation and end, one turn, answers of the owner, statistics, and the memory of the pages of a
 * request to the tier. cascade_load.c and cascade_write.c move the pages.
 */
#include <stdlib.h>
#include <string.h>

#include "kvstore/cascade_impl.h"

enum { WRITING_SHARE = 8 }; /* at most one in this many pages is held for a write */

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

/* ---- creation and end ---- */

sl_status sl_cascade_create(const sl_cascade_opts *opts, sl_tier *tier, sl_cascade **out)
{
    const sl_geometry *g = sl_arena_geometry(opts->arena);
    sl_cascade *c = calloc(1, sizeof *c);
    if (!c) {
        sl_tier_close(tier);
        return SL_ERR_NO_MEMORY;
    }
    *c = (sl_cascade){.o = *opts,
                      .tier = tier,
                      .n_layers = g->n_layers,
                      .n_spans = sl_arena_n_spans(opts->arena),
                      .page_bytes = (size_t)g->page_bytes,
                      .label_bytes = sl_cascade_label_bytes(g)};
    int32_t share = sl_arena_pages(opts->arena) / WRITING_SHARE;
    c->max_writing = share < 1 ? 1 : share; /* in addition to the bound by batches */
    *out = c;
    return SL_OK;
}

void sl_cascade_destroy(sl_cascade *c)
{
    if (!c)
        return;
    SL_CHECK(!c->st.waiting, "%d requests wait", c->st.waiting);
    c->closing = true;
    sl_tier_close(c->tier);
    while (c->loads) {
        sl_cascade_job *l = c->loads;
        c->loads = l->next;
        sl_cascade_load_free(l);
    }
    while (c->writes) {
        sl_cascade_job *b = c->writes;
        c->writes = b->next;
        sl_cascade_write_free(b);
    }
    free(c);
}

/* ---- turns ---- */

uint64_t sl_cascade_tick(sl_cascade *c, uint64_t now_ns)
{
    sl_tier_poll(c->tier);
    sl_cascade_writes_begin(c, now_ns);
    return sl_cascade_loads_tick(c, now_ns);
}

int sl_cascade_fd(const sl_cascade *c)
{
    return sl_tier_fd(c->tier);
}

void sl_cascade_sums(sl_cascade *c, sl_cascade_job *job, const uint32_t *crc)
{
    SL_CHECK(job->c == c && job->state == WRITE_SUMS, "state %d", job->state);
    sl_cascade_write_sums(job, crc);
}

void sl_cascade_finish(sl_cascade *c)
{
    c->finishing = true;
}

bool sl_cascade_idle(const sl_cascade *c)
{
    int32_t page;
    bool all = c->finishing || c->o.policy == SL_CASCADE_WRITE_THROUGH;
    return !c->loads && !c->writes && !(all && sl_store_new_pages(c->o.store, &page, 1));
}

void sl_cascade_stats_get(const sl_cascade *c, sl_cascade_stats *out)
{
    sl_store_stats s;
    sl_store_stats_get(c->o.store, &s);
    *out = c->st;
    out->lost[SL_LOST_PRESSURE] = s.unoffered_evictions;
}

sl_tier *sl_cascade_tier(const sl_cascade *c)
{
    return c->tier;
}
