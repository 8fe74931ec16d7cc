/* Sequences and the device pages they hold; see engine.h. Everything is allocated at create: opening and growing a
 * sequence moves numbers between lists, and with a pool gives memory to what has the numbers. */
#include "engine/blocks.h"
#include "engine/draft.h"
#include "engine/engine_impl.h"
#include "engine/states.h"

#include <stdlib.h>
#include <string.h>

sl_status sl_seqs_init(sl_engine *e, sl_err *err)
{
    int32_t n = e->o.max_seqs;
    e->seqs = calloc((size_t)n, sizeof *e->seqs);
    if (!e->seqs)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    SL_TRY(sl_dmem_numbers(e->mem, SL_DPOOL_STATES, n, err));
    SL_TRY(sl_dmem_numbers(e->mem, SL_DPOOL_INDEX, (int32_t)e->o.index_pages, err));
    SL_TRY(sl_dmem_numbers(e->mem, SL_DPOOL_ROWS, (int32_t)e->o.row_pages, err));
    SL_TRY(sl_dmem_numbers(e->mem, SL_DPOOL_HOT, e->o.max_hot_seqs, err));
    for (int32_t i = 0; i < n; i++) {
        e->seqs[i].e = e;
        e->seqs[i].row = i;
    }
    return SL_OK;
}

void sl_seqs_fini(sl_engine *e)
{
    for (int32_t i = 0; e->seqs && i < e->o.max_seqs; i++)
        SL_CHECK(!e->seqs[i].open, "engine destroyed with sequence %d open", i);
    free(e->seqs);
}

sl_status sl_tables_make(sl_engine *e, sl_mem_kind kind, sl_tables *t, sl_err *err)
{
    size_t per = (size_t)e->o.max_seqs * (size_t)e->ld, total = 3 * per + (size_t)e->o.max_seqs;
    int32_t *base;
    SL_TRY(sl_dmem_alloc_in(e->mem, kind, total * 4, (void **)&base, err));
    *t = (sl_tables){.host_pages = base,
                     .index_pages = base + per,
                     .row_pages = base + 2 * per,
                     .hot_slot = base + 3 * per};
    if (kind == SL_MEM_HOST)
        memset(base, 0xff, total * 4);
    return SL_OK;
}

static int32_t *entries(int32_t *table, const sl_seq *s)
{
    return table + (int64_t)s->row * s->e->ld;
}

static void mark_dirty(sl_seq *s, int32_t from, int32_t to)
{
    if (s->dirty_from >= s->dirty_to) {
        s->dirty_from = from, s->dirty_to = to;
        return;
    }
    s->dirty_from = from < s->dirty_from ? from : s->dirty_from;
    s->dirty_to = to > s->dirty_to ? to : s->dirty_to;
}

/* Entries of a table at `from`, at the same place of the stage, if there is one. */
static sl_status upload(sl_engine *e, int32_t *dev, const int32_t *host, int32_t *stage, int64_t from,
                        int32_t n, sl_err *err)
{
    if (stage)
        memcpy(stage + from, host + from, (size_t)n * 4);
    return sl_be_copy(e->be, dev + from, (stage ? stage : host) + from, (size_t)n * 4, err);
}

sl_status sl_engine_seq_upload(sl_seq *s, sl_tables *stage, sl_err *err)
{
    sl_engine *e = s->e;
    int32_t n = s->dirty_to - s->dirty_from;
    int64_t from = (int64_t)s->row * e->ld + s->dirty_from;
    const sl_tables *h = &e->host, *d = &e->dev;
    if (n > 0) {
        SL_TRY(upload(e, d->host_pages, h->host_pages, stage->host_pages, from, n, err));
        SL_TRY(upload(e, d->index_pages, h->index_pages, stage->index_pages, from, n, err));
        SL_TRY(upload(e, d->row_pages, h->row_pages, stage->row_pages, from, n, err));
    }
    if (s->dirty_slot)
        SL_TRY(upload(e, d->hot_slot, h->hot_slot, stage->hot_slot, s->row, 1, err));
    s->dirty_from = s->dirty_to = 0;
    s->dirty_slot = false;
    return SL_OK;
}

static sl_status check_pages(const sl_engine *e, const int32_t *pages, int32_t have, int32_t n, sl_err *err)
{
    if (n < 0 || have + n > e->ld)
        return sl_fail(err, SL_ERR_TOO_LARGE, "sequence of %d pages, at most %d fit max_context %d", have + n,
                       e->ld, e->o.max_context);
    for (int32_t i = 0; i < n; i++)
        if (pages[i] < 0 || pages[i] >= sl_arena_pages(e->arena))
            return sl_fail(err, SL_ERR_INVALID, "host page %d is outside the arena of %d pages", pages[i],
                           sl_arena_pages(e->arena));
    return SL_OK;
}

/* Index pages that a request of n pages has; prompt 0: it is not known yet. */
static int32_t index_pages_of(const sl_engine *e, int32_t prompt, int32_t n)
{
    if (!e->few_index || n == 0)
        return n;
    return prompt ? sl_pages_for(e->o.algorithm->state_tokens(&e->cache, prompt, n * SL_PAGE_TOKENS)) : 0;
}

/* index: more index pages; n: more row pages, if the request is resident. */
static sl_status check_room(const sl_engine *e, int32_t index, int32_t n, bool resident, sl_err *err)
{
    if (index > sl_dmem_n_free(e->mem, SL_DPOOL_INDEX))
        return sl_fail(err, SL_ERR_EXHAUSTED, "%d index pages needed on the device, %d of %d are free", index,
                       sl_dmem_n_free(e->mem, SL_DPOOL_INDEX), sl_dmem_n(e->mem, SL_DPOOL_INDEX));
    if (resident && n > sl_dmem_n_free(e->mem, SL_DPOOL_ROWS))
        return sl_fail(err, SL_ERR_EXHAUSTED, "%d row pages needed on the device, %d of %d are free", n,
                       sl_dmem_n_free(e->mem, SL_DPOOL_ROWS), sl_dmem_n(e->mem, SL_DPOOL_ROWS));
    return SL_OK;
}

/* Takes index pages until there are n; the numbers are free. */
static sl_status take_index(sl_seq *s, int32_t n, sl_err *err)
{
    int32_t *index = entries(s->e->host.index_pages, s);
    if (n <= s->n_index)
        return SL_OK;
    SL_TRY(sl_dmem_take(s->e->mem, SL_DPOOL_INDEX, index + s->n_index, n - s->n_index, err));
    mark_dirty(s, s->n_index, n);
    s->n_index = n;
    return SL_OK;
}

/* Takes device pages for n more host pages; the numbers are free. */
static sl_status append_pages(sl_seq *s, const int32_t *pages, int32_t n, sl_err *err)
{
    sl_engine *e = s->e;
    const int64_t at = (int64_t)s->row * e->ld + s->n_pages;
    int32_t *rows = e->host.row_pages + at;
    const bool resident = s->hot_slot < 0;
    if (n == 0)
        return SL_OK;
    memset(rows, 0xff, (size_t)n * sizeof *rows);
    memset(e->host.index_pages + at, 0xff, (size_t)n * sizeof *rows);
    if (resident)
        SL_TRY(sl_dmem_take(e->mem, SL_DPOOL_ROWS, rows, n, err));
    sl_status st = take_index(s, index_pages_of(e, s->prompt, s->n_pages + n), err);
    if (st != SL_OK) {
        if (resident)
            sl_dmem_give(e->mem, SL_DPOOL_ROWS, rows, n);
        return st;
    }
    memcpy(e->host.host_pages + at, pages, (size_t)n * sizeof *pages);
    mark_dirty(s, s->n_pages, s->n_pages + n);
    s->n_pages += n;
    return SL_OK;
}

/* Testing: fills freed pages with NaN, so that a later read is noticed. */
static void poison_page(sl_engine *e, int32_t index_page, int32_t row_page)
{
    int64_t rows = sl_cache_page_bytes(&e->geo.shape.planes[SL_CACHE_ROWS]);
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        sl_coord_layer *y = &e->layers[l];
        if (row_page >= 0 && !y->resident)
            (void)sl_be_fill(e->be, y->rows.base + row_page * rows, 0xff, (size_t)rows, NULL);
        if (index_page >= 0 && y->resident && !y->absent)
            (void)sl_be_fill(e->be, y->rows.base + index_page * rows, 0xff, (size_t)rows, NULL);
        for (int32_t p = 0; p < SL_ALGO_PLANES && index_page >= 0; p++) {
            const sl_algo_plane *q = &y->planes[p];
            if (q->device)
                (void)sl_be_fill(e->be, q->device + index_page * q->device_stride, 0xff,
                                 (size_t)q->device_stride, NULL);
        }
    }
}

/* Of a sequence that was resident. */
static void release_rows(sl_seq *s)
{
    sl_engine *e = s->e;
    int32_t *rows = entries(e->host.row_pages, s);
    for (int32_t i = 0; e->o.poison && i < s->n_pages; i++)
        poison_page(e, -1, rows[i]);
    sl_dmem_give(e->mem, SL_DPOOL_ROWS, rows, s->n_pages);
}

static void release_all(sl_seq *s)
{
    sl_engine *e = s->e;
    int32_t *host = entries(e->host.host_pages, s), *index = entries(e->host.index_pages, s), row = s->row;
    if (s->hot_slot < 0)
        release_rows(s);
    for (int32_t i = 0; e->o.poison && i < s->n_index; i++)
        poison_page(e, index[i], -1);
    sl_dmem_give(e->mem, SL_DPOOL_INDEX, index, s->n_index);
    memset(host, 0xff, (size_t)s->n_pages * sizeof *host);
    if (s->hot_slot >= 0)
        sl_dmem_give(e->mem, SL_DPOOL_HOT, &s->hot_slot, 1);
    sl_dmem_give(e->mem, SL_DPOOL_STATES, &row, 1);
    s->open = false;
}

static sl_coord_request request_of(const sl_seq *s)
{
    sl_engine *e = s->e;
    return (sl_coord_request){
        .seq = s->row,
        .hot_slot = s->hot_slot,
        .n_cached = s->len,
        .host_pages = entries(e->host.host_pages, s),
        .index_pages = entries(e->host.index_pages, s),
        .row_pages = entries(e->host.row_pages, s),
    };
}

static sl_status check_open(const sl_engine *e, sl_residency r, const int32_t *pages, int32_t n_pages,
                            int32_t n_cached, sl_err *err)
{
    SL_TRY(check_pages(e, pages, 0, n_pages, err));
    if (n_cached < 0 || n_cached > e->o.max_context || n_cached > n_pages * SL_PAGE_TOKENS)
        return sl_fail(err, SL_ERR_INVALID, "%d cached tokens in %d pages", n_cached, n_pages);
    if (sl_dmem_n_free(e->mem, SL_DPOOL_STATES) == 0)
        return sl_fail(err, SL_ERR_EXHAUSTED, "all %d sequences are open", e->o.max_seqs);
    if (r == SL_HIERARCHICAL && sl_dmem_n_free(e->mem, SL_DPOOL_HOT) == 0)
        return sl_fail(err, SL_ERR_EXHAUSTED, "all %d hot slots are in use", e->o.max_hot_seqs);
    return check_room(e, index_pages_of(e, 0, n_pages), n_pages, r == SL_RESIDENT, err);
}

sl_status sl_engine_seq_open(sl_engine *e, sl_residency residency, const int32_t *pages, int32_t n_pages,
                             int32_t n_cached, void *user, sl_seq **out, sl_err *err)
{
    int32_t row;
    SL_TRY(check_open(e, residency, pages, n_pages, n_cached, err));
    SL_TRY(sl_dmem_take(e->mem, SL_DPOOL_STATES, &row, 1, err));
    sl_seq *s = &e->seqs[row];
    s->list.bytes = 0;
    s->chosen_in = 0, s->chosen_at = -1, s->flights = 0;
    s->open = true, s->len = n_cached, s->n_pages = s->n_index = s->prompt = 0, s->user = user;
    s->hot_slot = -1, s->lost = false;
    s->dirty_from = s->dirty_to = 0;
    sl_drafts_begin(s);
    sl_status st =
        residency == SL_HIERARCHICAL ? sl_dmem_take(e->mem, SL_DPOOL_HOT, &s->hot_slot, 1, err) : SL_OK;
    if (st == SL_OK)
        st = append_pages(s, pages, n_pages, err);
    if (st != SL_OK)
        goto release;
    mark_dirty(s, 0, e->ld); /* the device's row still holds the entries of the sequence before */
    e->host.hot_slot[s->row] = s->hot_slot;
    s->dirty_slot = true;
    sl_coord_request r = request_of(s);
    st = sl_coord_request_begin(e->coord, &r, err);
    if (st != SL_OK)
        goto release;
    st = sl_states_begin(s, err);
    if (st == SL_OK)
        st = sl_states_load(s, 0, sl_pages_for(n_cached), err);
    if (st != SL_OK)
        goto end_request;
    *out = s;
    return SL_OK;
end_request:
    sl_coord_request_end(e->coord, s->row);
release:
    release_all(s);
    return st;
}

sl_status sl_engine_seq_prompt(sl_engine *e, sl_seq *s, int32_t tokens, sl_err *err)
{
    SL_CHECK(s->e == e && s->open, "sequence is not open in this engine");
    const int32_t index = index_pages_of(e, tokens > 0 ? tokens : 0, s->n_pages);
    SL_TRY(check_room(e, index - s->n_index, 0, false, err));
    SL_TRY(take_index(s, index, err));
    s->prompt = tokens > 0 ? tokens : 0;
    sl_coord_request r = request_of(s);
    return sl_coord_request_prompt(e->coord, &r, tokens, err);
}

int32_t sl_engine_prompt_window(const sl_engine *e)
{
    return e->o.algorithm->prompt ? e->o.algorithm->prompt_window(&e->cache) : 0;
}

int32_t sl_engine_prompt_unit(const sl_engine *e)
{
    return e->o.algorithm->prompt_lists ? SL_PAGE_TOKENS : 1;
}

int32_t sl_engine_prompt_chunk(const sl_engine *e, int32_t chunk, int32_t tokens)
{
    return chunk < tokens ? chunk - chunk % sl_engine_prompt_unit(e) : chunk;
}

sl_status sl_engine_seq_add_pages(sl_engine *e, sl_seq *s, const int32_t *pages, int32_t n_pages, sl_err *err)
{
    SL_CHECK(s->e == e && s->open, "sequence is not open in this engine");
    SL_TRY(check_pages(e, pages, s->n_pages, n_pages, err));
    const int32_t index = index_pages_of(e, s->prompt, s->n_pages + n_pages);
    SL_TRY(check_room(e, index - s->n_index, n_pages, s->hot_slot < 0, err));
    return append_pages(s, pages, n_pages, err);
}

sl_status sl_engine_seq_load(sl_engine *e, sl_seq *s, int32_t n_cached, sl_err *err)
{
    SL_CHECK(s->e == e && s->open, "sequence is not open in this engine");
    if (n_cached > sl_engine_seq_capacity(s))
        return sl_fail(err, SL_ERR_INVALID, "%d cached tokens in %d pages", n_cached, s->n_pages);
    sl_coord_request r = request_of(s);
    r.n_cached = n_cached;
    SL_TRY(sl_states_load(s, s->len / SL_PAGE_TOKENS, sl_pages_for(n_cached), err));
    SL_TRY(sl_coord_request_load(e->coord, &r, err));
    s->len = n_cached;
    return SL_OK;
}

/* The rows after a hot slot was taken, which may have their memory. */
static void put_rows(sl_seq *s)
{
    if (sl_dmem_pool(s->e->mem))
        sl_dmem_give_numbers(s->e->mem, SL_DPOOL_ROWS, entries(s->e->host.row_pages, s), s->n_pages);
    else
        release_rows(s);
}

sl_status sl_engine_seq_spill(sl_engine *e, sl_seq *s, sl_err *err)
{
    SL_CHECK(s->e == e && s->open, "sequence is not open in this engine");
    if (s->hot_slot >= 0)
        return sl_fail(err, SL_ERR_INVALID, "the sequence is hierarchical already");
    if (sl_dmem_n_free(e->mem, SL_DPOOL_HOT) == 0)
        return sl_fail(err, SL_ERR_EXHAUSTED, "all %d hot slots are in use", e->o.max_hot_seqs);
    /* also from the memory of the sequence's own rows, which no further step reads */
    SL_TRY(sl_dmem_exchange(e->mem, SL_DPOOL_HOT, &s->hot_slot, SL_DPOOL_ROWS, entries(e->host.row_pages, s),
                            s->n_pages, err));
    sl_coord_request r = request_of(s);
    sl_status st = sl_blocks_load(s, 0, sl_pages_for(s->len), err);
    if (st == SL_OK)
        st = sl_coord_request_spill(e->coord, &r, err);
    s->lost = st != SL_OK && sl_dmem_pool(e->mem);
    if (st != SL_OK && !s->lost) {
        sl_dmem_give(e->mem, SL_DPOOL_HOT, &s->hot_slot, 1);
        return st;
    }
    put_rows(s);
    mark_dirty(s, 0, s->n_pages);
    e->host.hot_slot[s->row] = s->hot_slot;
    s->dirty_slot = true;
    return st;
}

sl_status sl_engine_seq_truncate(sl_engine *e, sl_seq *s, int32_t len, sl_err *err)
{
    SL_CHECK(s->e == e && s->open, "sequence is not open in this engine");
    if (s->flights > 0)
        return sl_fail(err, SL_ERR_INVALID, "truncate: the sequence is in a step that was not collected");
    SL_TRY(sl_states_check_cut(s, len, err));
    SL_TRY(sl_coord_request_truncate(e->coord, s->row, len, err));
    const int32_t before = s->len;
    s->len = len;
    return sl_states_cut(s, before, err);
}

void sl_engine_seq_close(sl_engine *e, sl_seq *s)
{
    if (!s)
        return;
    SL_CHECK(s->e == e && s->open, "sequence is not open in this engine");
    SL_CHECK(s->flights == 0, "the sequence is in %d steps that were not collected", s->flights);
    sl_coord_request_end(e->coord, s->row);
    s->list.bytes = 0;
    release_all(s);
}

int64_t sl_engine_row_room(const sl_engine *e)
{
    return sl_dmem_room(e->mem, SL_DPOOL_ROWS);
}

int32_t sl_engine_spill_pages(const sl_engine *e)
{
    const sl_dpool *pool = sl_dmem_pool(e->mem);
    const uint64_t page = pool ? sl_dpool_object_bytes(pool, SL_DPOOL_ROWS) : 0;
    return page == 0 ? 0 : (int32_t)((sl_dpool_object_bytes(pool, SL_DPOOL_HOT) + page - 1) / page);
}

int32_t sl_engine_seq_len(const sl_seq *s)
{
    return s->len;
}

int32_t sl_engine_seq_capacity(const sl_seq *s)
{
    int32_t n = s->n_pages * SL_PAGE_TOKENS;
    return n < s->e->o.max_context ? n : s->e->o.max_context;
}

void *sl_engine_seq_user(const sl_seq *s)
{
    return s->user;
}

void sl_engine_seq_stats(const sl_engine *e, const sl_seq *s, sl_layer_stats *out)
{
    sl_coord_counters c = {0};
    (void)sl_coord_counters_get(e->coord, NULL, s->row, &c, NULL);
    *out = (sl_layer_stats){.hits = c.hits,
                            .misses = c.misses,
                            .tail_hits = c.tail_hits,
                            .evictions = c.evictions,
                            .swap_bytes = c.misses * (uint64_t)sl_geometry_row_bytes(&e->geo)};
}
