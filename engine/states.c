/* See states.h. */
#include "engine/states.h"

#include <stdlib.h>

#include "engine/blocks.h"
#include "kvstore/snapshot.h"
#include "sparse/load.h"

enum { UNKNOWN = -1 };

/* ---- memory ---- */

static int64_t state_bytes(const sl_engine *e, int32_t layer)
{
    return sl_geometry_class_of(&e->geo, layer)->state.bytes;
}

static uint8_t *state_of(const sl_seq *s, int32_t layer)
{
    const sl_layer_memory *m = &s->e->states->layers[layer];
    return m->state + s->row * m->state_stride;
}

static bool has_open_part(const sl_cache_plane *p)
{
    for (int32_t i = 0; i < p->n_parts; i++)
        if (p->role == SL_PLANE_BLOCKS && p->parts[i].per == SL_PER_OPEN_UNIT)
            return true;
    return false;
}

/* What the family says of open units of a layer that has plane p with a value of them. */
static sl_open_use open_of(const sl_geometry *g, const sl_cache_dims *cache, const sl_model_config *cfg,
                           int32_t l, int32_t p)
{
    const bool open = sl_geometry_has(g, l, p) && has_open_part(&g->shape.planes[p]);
    return open ? cache->classes[cfg->layer_class[l]].open : SL_OPEN_ADDED;
}

static int64_t segment_bytes(const sl_cache_plane *p)
{
    return p->heads * sl_cache_unit_bytes(p);
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + SL_STATE_ALIGN - 1) / SL_STATE_ALIGN * SL_STATE_ALIGN;
}

static int32_t versions_of(const sl_geometry *g, int32_t item_tokens)
{
    bool any = g->state_bytes > 0;
    for (int32_t p = 0; p < g->shape.n_planes; p++)
        any = any || has_open_part(&g->shape.planes[p]);
    return any && item_tokens > 1 ? item_tokens : 0;
}

/* Of one sequence, without versions, though with the places of open units if there are versions. */
static int64_t sequence_bytes(const sl_geometry *g, const sl_cache_dims *cache, const sl_model_config *cfg,
                              int32_t versions)
{
    int64_t bytes = 0;
    for (int32_t l = 0; l < cfg->n_layers; l++) {
        bytes += (int64_t)sl_geometry_state_device(g, l);
        for (int32_t p = 0; versions && p < g->shape.n_planes; p++)
            if (open_of(g, cache, cfg, l, p) == SL_OPEN_KEPT)
                bytes += aligned(segment_bytes(&g->shape.planes[p]));
    }
    return bytes;
}

int64_t sl_states_bytes(const sl_geometry *g, const sl_cache_dims *cache, const sl_model_config *cfg,
                        int32_t item_tokens)
{
    const int32_t versions = versions_of(g, item_tokens);
    return (1 + versions) * sequence_bytes(g, cache, cfg, versions);
}

int32_t sl_states_turns(const sl_geometry *g, int32_t item_tokens)
{
    const int32_t versions = versions_of(g, item_tokens);
    return versions ? versions + 1 : 0;
}

/* The planes of a class of blocks, in their order. Places of open units are taken from *at on. */
static void place_blocks(sl_engine *e, int32_t l, int64_t *at)
{
    sl_states *st = e->states;
    sl_layer_memory *m = &st->layers[l];
    bool first = true;
    for (int32_t p = 0; p < e->geo.shape.n_planes; p++) {
        const sl_algo_plane *q = &e->layers[l].planes[p];
        if (e->geo.shape.planes[p].role != SL_PLANE_BLOCKS || !sl_geometry_has(&e->geo, l, p))
            continue;
        const bool kept = st->versions && open_of(&e->geo, &e->cache, e->cfg, l, p) == SL_OPEN_KEPT;
        m->planes[m->n_planes++] =
            (sl_layer_plane){.device = q->device,
                             .device_stride = q->device_stride,
                             .host = q->host,
                             .open = kept ? st->base + *at : NULL,
                             .rows = first && e->blocks ? e->blocks->layers[l].rows : (sl_row_view){0}};
        first = false;
        *at += kept ? aligned(segment_bytes(&e->geo.shape.planes[p])) : 0;
    }
}

sl_status sl_states_init(sl_engine *e, sl_err *err)
{
    sl_states *st = calloc(1, sizeof *st);
    e->states = st;
    if (st)
        st->layers = calloc((size_t)e->cfg->n_layers, sizeof *st->layers);
    if (!st || !st->layers)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    st->versions = versions_of(&e->geo, e->item_tokens);
    st->bytes = sequence_bytes(&e->geo, &e->cache, e->cfg, st->versions);
    st->turns.stride = e->o.max_seqs * st->bytes;
    if (st->bytes > 0)
        SL_TRY(sl_dmem_objects(e->mem, SL_DPOOL_STATES, st->bytes, (1 + st->versions) * st->turns.stride,
                               &st->base, err));
    for (int32_t v = 1; st->bytes > 0 && v <= st->versions; v++)
        SL_TRY(sl_dmem_also(e->mem, SL_DPOOL_STATES, st->base + v * st->turns.stride, st->bytes, err));
    SL_TRY(sl_blocks_init(e, err));
    int64_t at = 0;
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        sl_layer_memory *m = &st->layers[l];
        m->state_stride = st->bytes;
        if (state_bytes(e, l) > 0)
            m->state = st->base + at, m->shape = &sl_geometry_class_of(&e->geo, l)->state;
        at += (int64_t)sl_geometry_state_device(&e->geo, l);
        place_blocks(e, l, &at);
    }
    return SL_OK;
}

void sl_states_fini(sl_engine *e)
{
    if (!e->states)
        return;
    sl_blocks_fini(e);
    sl_dmem_free_objects(e->mem, e->states->base);
    free(e->states->layers);
    free(e->states);
}

sl_status sl_states_memory(void *ctx, int32_t layer, sl_layer_memory *out, sl_err *err)
{
    const sl_engine *e = ctx;
    if (layer < 0 || layer >= e->cfg->n_layers)
        return sl_fail(err, SL_ERR_INTERNAL, "engine: layer %d of %d", layer, e->cfg->n_layers);
    *out = e->states->layers[layer];
    return SL_OK;
}

sl_status sl_states_load(sl_seq *s, int32_t first, int32_t end, sl_err *err)
{
    sl_engine *e = s->e;
    const int64_t at = (int64_t)s->row * e->ld + first;
    for (int32_t l = 0; l < e->cfg->n_layers; l++)
        for (int32_t p = 0; p < e->geo.shape.n_planes; p++)
            if (e->geo.shape.planes[p].role == SL_PLANE_BLOCKS && e->layers[l].planes[p].device)
                SL_TRY(sl_load_plane(e->be, &e->geo.shape.planes[p], &e->layers[l].planes[p],
                                     e->host.host_pages + at, e->host.index_pages + at, end - first, err));
    return sl_blocks_load(s, first, end, err);
}

sl_status sl_states_begin(sl_seq *s, sl_err *err)
{
    sl_engine *e = s->e;
    const bool zero = s->len == 0 || e->o.zero_states;
    s->state_len = zero ? s->len : UNKNOWN;
    s->kept = 0;
    for (int32_t l = 0; l < e->cfg->n_layers; l++)
        if (e->states->layers[l].state && (zero || e->o.poison))
            SL_TRY(sl_be_fill(e->be, state_of(s, l), zero ? 0 : 0xff, (size_t)state_bytes(e, l), err));
    return SL_OK;
}

sl_status sl_states_check(const sl_seq *s, sl_err *err)
{
    if (s->lost)
        return sl_fail(err, SL_ERR_INVALID, "the rows of the sequence are gone: it could not be spilled");
    if (s->e->geo.state_bytes == 0 || s->state_len == s->len)
        return SL_OK;
    if (s->state_len == UNKNOWN)
        return sl_fail(err, SL_ERR_INVALID,
                       "the states of a sequence of %d tokens are not known: they come from a snapshot, or "
                       "are computed from the first token on",
                       s->len);
    return sl_fail(err, SL_ERR_INVALID, "the states of a sequence of %d tokens stand for %d tokens", s->len,
                   s->state_len);
}

void sl_states_failed(sl_seq *s)
{
    s->state_len = UNKNOWN;
    s->kept = 0;
    sl_blocks_forget(s->e, s);
}

/* ---- versions ---- */

void sl_states_place(sl_engine *e, const sl_flight *f)
{
    sl_states *st = e->states;
    const int32_t per = f->p.shape.tokens ? f->p.shape.per : f->p.per;
    const bool all = per <= st->versions;
    st->turns.n = st->versions == 0 || per == 0 ? 0 : all ? per : st->versions + 1;
    st->turns.kept = all ? per : st->versions;
    st->turns.token_seq = e->in_dev.turns;
}

void sl_states_fill(const sl_engine *e, sl_flight *f)
{
    const sl_turns *u = &e->states->turns;
    const int32_t n = f->p.tokens;
    for (int32_t i = 0; i < u->n * n; i++)
        f->in.turns[i] = -1;
    for (int32_t t = 0, left = 0; u->n > 0 && t < n; t++, left--) {
        const int32_t seq = f->in.token_seq[t];
        for (left = left > 0 ? left : 0; t + left < n && f->in.token_seq[t + left] == seq;)
            left++;
        if (seq >= 0)
            f->in.turns[(left < u->n ? u->n - left : 0) * n + t] = seq;
    }
}

void sl_states_stepped(sl_seq *s, int32_t n)
{
    const int32_t versions = s->e->states->versions;
    s->state_len = s->kept_at = s->len;
    s->kept = n < versions ? n : versions;
}

sl_status sl_states_check_cut(const sl_seq *s, int32_t len, sl_err *err)
{
    const sl_engine *e = s->e;
    const int32_t versions = e->states->versions;
    if (versions == 0 || len >= s->len)
        return SL_OK; /* nothing to take back, or the coordinator refuses */
    for (int32_t l = 0; l < e->cfg->n_layers; l++)
        for (int32_t p = 0; p < e->geo.shape.n_planes; p++)
            if (open_of(&e->geo, &e->cache, e->cfg, l, p) == SL_OPEN_STAYS)
                return sl_fail(
                    err, SL_ERR_UNSUPPORTED,
                    "truncate: plane %s has a value of the open block, from which tokens cannot be "
                    "taken back",
                    e->geo.shape.planes[p].name);
    if (s->kept_at - len > s->kept)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "truncate: the states of a sequence of %d tokens are kept for the last %d tokens of a "
                       "step, of which it has %d: they are not known for %d tokens",
                       s->len, versions, s->kept - (s->kept_at - s->len), len);
    return SL_OK;
}

/* The open unit of plane p of a layer to what it was before token s->len, on the device and in the host page. */
static sl_status cut_unit(const sl_seq *s, const sl_cache_plane *p, const sl_layer_plane *m, int64_t version,
                          sl_err *err)
{
    const sl_engine *e = s->e;
    const int64_t entry = (int64_t)s->row * e->ld + s->len / SL_PAGE_TOKENS, bytes = segment_bytes(p);
    const int32_t unit = s->len % SL_PAGE_TOKENS / sl_cache_segment_tokens(p);
    uint8_t *device = m->device + e->host.index_pages[entry] * m->device_stride + unit * bytes;
    uint8_t *host =
        m->host.base + e->host.host_pages[entry] * m->host.page_stride + unit * m->host.row_stride;
    SL_TRY(sl_be_copy(e->be, device, m->open + version, (size_t)bytes, err));
    return sl_be_copy(e->be, host, m->open + version, (size_t)bytes, err);
}

static sl_status cut_units(const sl_seq *s, int64_t version, sl_err *err)
{
    const sl_engine *e = s->e;
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        const sl_layer_memory *m = &e->states->layers[l];
        for (int32_t p = 0, i = 0; i < m->n_planes; p++) {
            if (e->geo.shape.planes[p].role != SL_PLANE_BLOCKS || !sl_geometry_has(&e->geo, l, p))
                continue;
            if (m->planes[i].open)
                SL_TRY(cut_unit(s, &e->geo.shape.planes[p], &m->planes[i], version, err));
            i++;
        }
    }
    return SL_OK;
}

sl_status sl_states_cut(sl_seq *s, int32_t before, sl_err *err)
{
    const sl_states *st = s->e->states;
    if (st->versions == 0 || s->len == before)
        return SL_OK;
    uint8_t *state = st->base + s->row * st->bytes;
    const int64_t version = (s->kept_at - s->len) * st->turns.stride;
    s->state_len = UNKNOWN;
    SL_TRY(sl_be_copy(s->e->be, state, state + version, (size_t)st->bytes, err));
    SL_TRY(cut_units(s, version + s->row * st->bytes, err));
    s->state_len = s->len;
    return SL_OK;
}

/* ---- snapshots ---- */

int64_t sl_engine_state_bytes(const sl_engine *e)
{
    return e->geo.state_bytes;
}

static sl_status check_snapshot(const sl_seq *s, const int32_t *pages, sl_err *err)
{
    const sl_engine *e = s->e;
    if (e->geo.state_bytes == 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "snapshot: no layer of this model keeps a state");
    for (int32_t i = 0; i < sl_snapshot_pages(&e->geo); i++)
        if (pages[i] < 0 || pages[i] >= sl_arena_pages(e->arena))
            return sl_fail(err, SL_ERR_INVALID, "snapshot: host page %d is outside the arena of %d pages",
                           pages[i], sl_arena_pages(e->arena));
    return SL_OK;
}

/* All states of the sequence, to the pages or from them. version: 0, or bytes from the states to those of another place. */
static sl_status move_states(const sl_seq *s, const int32_t *pages, bool save, int64_t version, sl_err *err)
{
    sl_engine *e = s->e;
    int64_t at = SL_SNAPSHOT_HEADER;
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        uint8_t *state = e->states->layers[l].state ? state_of(s, l) + version : NULL;
        for (int64_t left = state_bytes(e, l); left > 0;) {
            uint8_t *run;
            int64_t n = sl_snapshot_run(e->arena, pages, at, &run);
            n = n < left ? n : left;
            SL_TRY(sl_be_copy(e->be, save ? run : state, save ? state : run, (size_t)n, err));
            at += n, state += n, left -= n;
        }
    }
    return SL_OK;
}

bool sl_engine_seq_keeps(const sl_engine *e, const sl_seq *s, int32_t tokens)
{
    if (e->geo.state_bytes == 0 || s->state_len != s->len || tokens < 0 || tokens > s->len)
        return false;
    return tokens == s->len || s->kept_at - tokens <= s->kept;
}

sl_status sl_states_check_save(const sl_step_item *it, sl_err *err)
{
    const sl_seq *s = it->seq;
    if (!it->save.pages)
        return SL_OK;
    SL_TRY(check_snapshot(s, it->save.pages, err));
    if (!sl_engine_seq_keeps(s->e, s, it->save.tokens))
        return sl_fail(err, SL_ERR_INVALID,
                       "step: the states after %d tokens of a sequence of %d tokens are not kept",
                       it->save.tokens, s->len);
    return SL_OK;
}

sl_status sl_states_save(const sl_flight *f, sl_err *err)
{
    for (int32_t i = 0; i < f->n_items; i++) {
        const sl_step_item *it = &f->items[i];
        if (!it->save.pages)
            continue;
        const sl_seq *s = it->seq;
        const int64_t back = it->save.tokens == s->len ? 0 : s->kept_at - it->save.tokens;
        SL_TRY(move_states(s, it->save.pages, true, back * s->e->states->turns.stride, err));
    }
    return SL_OK;
}

sl_status sl_engine_seq_save(sl_engine *e, const sl_seq *s, sl_key key, const int32_t *pages, sl_err *err)
{
    SL_CHECK(s->e == e && s->open, "sequence is not open in this engine");
    SL_TRY(check_snapshot(s, pages, err));
    SL_TRY(sl_states_check(s, err));
    SL_TRY(move_states(s, pages, true, 0, err));
    SL_TRY(sl_be_sync(e->be, err));
    sl_snapshot_seal(e->arena, pages, s->len, key);
    return SL_OK;
}

sl_status sl_engine_seq_restore(sl_engine *e, sl_seq *s, sl_key key, const int32_t *pages, sl_err *err)
{
    SL_CHECK(s->e == e && s->open, "sequence is not open in this engine");
    SL_TRY(check_snapshot(s, pages, err));
    SL_TRY(sl_snapshot_check(e->arena, pages, s->len, key, err));
    s->state_len = UNKNOWN;
    s->kept = 0;
    SL_TRY(move_states(s, pages, false, 0, err));
    SL_TRY(sl_be_sync(e->be, err));
    s->state_len = s->len;
    return SL_OK;
}
