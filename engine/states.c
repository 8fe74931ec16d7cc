/* See states.h. */
#include "engine/states.h"

#include <stdlib.h>

#include "kvstore/snapshot.h"
#include "sparse/load.h"

enum { UNKNOWN = -1 };

static int64_t state_bytes(const sl_engine *e, int32_t layer)
{
    return sl_geometry_class_of(&e->geo, layer)->state.bytes;
}

static uint8_t *state_of(const sl_seq *s, int32_t layer)
{
    const sl_layer_memory *m = &s->e->memory[layer];
    return m->state + s->row * m->state_stride;
}

/* The planes of a class of blocks, in their order. */
static void place_blocks(sl_engine *e, int32_t l, sl_layer_memory *m)
{
    for (int32_t p = 0; p < e->geo.shape.n_planes; p++) {
        const sl_algo_plane *q = &e->layers[l].planes[p];
        if (e->geo.shape.planes[p].role != SL_PLANE_BLOCKS || !sl_geometry_has(&e->geo, l, p))
            continue;
        m->planes[m->n_planes++] =
            (sl_layer_plane){.device = q->device, .device_stride = q->device_stride, .host = q->host};
    }
}

sl_status sl_states_init(sl_engine *e, sl_err *err)
{
    e->memory = calloc((size_t)e->cfg->n_layers, sizeof *e->memory);
    if (!e->memory)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        sl_layer_memory *m = &e->memory[l];
        place_blocks(e, l, m);
        if (state_bytes(e, l) == 0)
            continue;
        m->state_stride = (int64_t)sl_geometry_state_device(&e->geo, l);
        SL_TRY(sl_engine_alloc(e, (uint64_t)(e->o.max_seqs * m->state_stride), (void **)&m->state, err));
    }
    return SL_OK;
}

void sl_states_fini(sl_engine *e)
{
    for (int32_t l = 0; e->memory && l < e->cfg->n_layers; l++)
        sl_be_free(e->be, SL_MEM_DEVICE, e->memory[l].state);
    free(e->memory);
}

sl_status sl_states_memory(void *ctx, int32_t layer, sl_layer_memory *out, sl_err *err)
{
    const sl_engine *e = ctx;
    if (layer < 0 || layer >= e->cfg->n_layers)
        return sl_fail(err, SL_ERR_INTERNAL, "engine: layer %d of %d", layer, e->cfg->n_layers);
    *out = e->memory[layer];
    return SL_OK;
}

sl_status sl_states_load(sl_seq *s, int32_t first, int32_t end, sl_err *err)
{
    sl_engine *e = s->e;
    const int64_t at = (int64_t)s->row * e->ld + first;
    for (int32_t l = 0; l < e->cfg->n_layers; l++)
        for (int32_t p = 0; p < e->geo.shape.n_planes; p++)
            if (e->geo.shape.planes[p].role == SL_PLANE_BLOCKS && sl_geometry_has(&e->geo, l, p))
                SL_TRY(sl_load_plane(e->be, &e->geo.shape.planes[p], &e->layers[l].planes[p],
                                     e->host.host_pages + at, e->host.index_pages + at, end - first, err));
    return SL_OK;
}

sl_status sl_states_begin(sl_seq *s, sl_err *err)
{
    sl_engine *e = s->e;
    const bool zero = s->len == 0 || e->o.zero_states;
    s->state_len = zero ? s->len : UNKNOWN;
    for (int32_t l = 0; l < e->cfg->n_layers; l++)
        if (e->memory[l].state && (zero || e->o.poison))
            SL_TRY(sl_be_fill(e->be, state_of(s, l), zero ? 0 : 0xff, (size_t)state_bytes(e, l), err));
    return SL_OK;
}

sl_status sl_states_check(const sl_seq *s, sl_err *err)
{
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

static bool has_open_part(const sl_cache_plane *p)
{
    for (int32_t i = 0; i < p->n_parts; i++)
        if (p->role == SL_PLANE_BLOCKS && p->parts[i].per == SL_PER_OPEN_UNIT)
            return true;
    return false;
}

sl_status sl_states_cut(const sl_engine *e, sl_err *err)
{
    if (e->geo.state_bytes > 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "truncate: layers of this model keep a state, from which tokens cannot be taken back");
    for (int32_t p = 0; p < e->geo.shape.n_planes; p++)
        if (has_open_part(&e->geo.shape.planes[p]))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "truncate: plane %s has a value of the open block, from which tokens cannot be "
                           "taken back",
                           e->geo.shape.planes[p].name);
    return SL_OK;
}

void sl_states_stepped(sl_seq *s, bool failed)
{
    s->state_len = failed ? UNKNOWN : s->len;
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

/* All states of the sequence, to the pages or from them. */
static sl_status move_states(const sl_seq *s, const int32_t *pages, bool save, sl_err *err)
{
    sl_engine *e = s->e;
    int64_t at = SL_SNAPSHOT_HEADER;
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        uint8_t *state = e->memory[l].state ? state_of(s, l) : NULL;
        for (int64_t left = state_bytes(e, l); left > 0;) {
            uint8_t *run;
            int64_t n = sl_snapshot_run(e->arena, pages, at, &run);
            n = n < left ? n : left;
            SL_TRY(sl_be_copy(e->be, save ? run : state, save ? state : run, (size_t)n, err));
            at += n, state += n, left -= n;
        }
    }
    return sl_be_sync(e->be, err);
}

sl_status sl_engine_seq_save(sl_engine *e, const sl_seq *s, sl_key key, const int32_t *pages, sl_err *err)
{
    SL_CHECK(s->e == e && s->open, "sequence is not open in this engine");
    SL_TRY(check_snapshot(s, pages, err));
    SL_TRY(sl_states_check(s, err));
    SL_TRY(move_states(s, pages, true, err));
    sl_snapshot_seal(e->arena, pages, s->len, key);
    return SL_OK;
}

sl_status sl_engine_seq_restore(sl_engine *e, sl_seq *s, sl_key key, const int32_t *pages, sl_err *err)
{
    SL_CHECK(s->e == e && s->open, "sequence is not open in this engine");
    SL_TRY(check_snapshot(s, pages, err));
    SL_TRY(sl_snapshot_check(e->arena, pages, s->len, key, err));
    s->state_len = UNKNOWN;
    SL_TRY(move_states(s, pages, false, err));
    s->state_len = s->len;
    return SL_OK;
}
