/* Creation and destruction of the coordinator, and its counters. See sparse.h; the files of the coordinator are
 * listed in coordinator_impl.h. */
#include "sparse/coordinator_impl.h"

#include <stdlib.h>
#include <string.h>

static sl_status device_alloc(sl_coord *c, int64_t entries, int32_t **out, sl_err *err)
{
    if (entries == 0)
        return SL_OK;
    SL_TRY(sl_be_alloc(c->be, SL_MEM_DEVICE, (size_t)entries * 4, (void **)out, err));
    c->device_bytes += (uint64_t)entries * 4;
    return SL_OK;
}

/* Marks dense layers, and the layers whose selection is read by them or by a layer that shares it. */
static void classify_layers(sl_coord *c)
{
    int32_t owner = -1;
    for (int32_t l = 0; l < c->o.n_layers; l++) {
        c->is_dense[l] = sl_coord_is_dense(&c->o, l);
        c->may_be_late[l] = c->layers[l].has_indexer;
        c->shares[l] = sl_coord_shares(&c->o, &c->z, l);
        if (sl_coord_selects(c, l))
            owner = l;
        if (!c->is_dense[l] && !c->layers[l].absent && owner >= 0)
            c->is_wanted[owner] = true;
    }
}

/* Whether the backend can resolve the longest list of a hierarchical sequence. */
static sl_status check_resolve(const sl_coord *c, int32_t width, sl_err *err)
{
    for (int32_t l = 0; c->o.hot_slots > 0 && l < c->o.n_layers; l++) {
        sl_resolve_params p = {.rows = c->layers[l].rows, .k = width, .ld_ids = width, .policy = c->o.policy};
        if (!c->layers[l].resident)
            SL_TRY(sl_be_supports(c->be, SL_OP_RESOLVE, &p, err));
    }
    return SL_OK;
}

static sl_status create_parts(sl_coord *c, sl_err *err)
{
    sl_coord_opts o = c->o;
    c->async = (sl_backend_caps(c->be) & SL_BE_ASYNC) != 0;
    o.layers = c->layers;
    if (o.groups == 0)
        o.groups = c->async ? SL_COORD_AUTO_GROUPS : 1;
    sl_swapin_opts so = sl_coord_swapin_opts(&o, &c->z);
    SL_TRY(check_resolve(c, so.width, err));
    SL_TRY(sl_swapin_create(c->be, &so, &c->swapin, err));
    SL_TRY(c->z.algo->create(c->be, &c->z.dims, &c->algo, err));
    if (c->z.any_dense)
        SL_TRY(sl_algo_dense.create(c->be, &c->z.dims, &c->dense, err));
    SL_TRY(device_alloc(c, c->z.ids, &c->ids, err));
    SL_TRY(device_alloc(c, c->z.slice, &c->slice_ids, err));
    SL_TRY(device_alloc(c, c->z.slice, &c->phys, err));
    SL_TRY(device_alloc(c, c->z.ahead * c->z.ahead_room, &c->ahead.phys, err));
    c->ahead.owner = c->ahead.last = -1;
    SL_TRY(device_alloc(c, c->o.max_seqs, &c->no_slots, err));
    if (c->z.algo->action == SL_ACTION_KERNEL) {
        SL_TRY(device_alloc(c, 4, (int32_t **)(void *)&c->tiles, err));
        SL_TRY(sl_be_fill(c->be, c->tiles, 0, 2 * sizeof *c->tiles, err));
    }
    return sl_be_fill(c->be, c->no_slots, 0xff, (size_t)c->o.max_seqs * 4, err);
}

static sl_status create_layers(sl_coord *c, const sl_coord_opts *opts, sl_err *err)
{
    size_t n = (size_t)opts->n_layers;
    c->layers = calloc(n, sizeof *c->layers);
    c->is_dense = calloc(n, sizeof *c->is_dense);
    c->is_wanted = calloc(n, sizeof *c->is_wanted);
    c->may_be_late = calloc(n, sizeof *c->may_be_late);
    c->shares = calloc(n, sizeof *c->shares);
    c->runs = calloc((size_t)opts->max_seqs, sizeof *c->runs);
    if (!c->layers || !c->is_dense || !c->is_wanted || !c->may_be_late || !c->shares || !c->runs ||
        sl_tracker_init(&c->tracker, opts->max_seqs, opts->max_context, c->z.run) != SL_OK)
        return sl_fail(err, SL_ERR_NO_MEMORY, "coordinator: out of memory");
    memcpy(c->layers, opts->layers, n * sizeof *c->layers);
    for (size_t l = 0; l < n; l++) {
        c->layers[l].rows.heads = c->z.heads;
        c->layers[l].rows.block_log2 = c->z.block_log2;
        if (opts->hot_slots == 0 || c->layers[l].resident)
            c->layers[l].rows.hot_rows = 0; /* tells the ops that there is no residency state */
    }
    classify_layers(c);
    return SL_OK;
}

sl_status sl_coord_create(sl_backend *be, const sl_coord_opts *opts, sl_coord **out, sl_err *err)
{
    sl_coord_sizes z;
    SL_TRY(sl_coord_check(opts, &z, err));
    if (z.algo->host_only && !(sl_backend_caps(be) & SL_BE_UNIFIED))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "sparse algorithm %s: runs with backend.name cpu only so far, not with %s",
                       z.algo->name, sl_backend_name(be));
    if (opts->probe.seen && !(sl_backend_caps(be) & SL_BE_UNIFIED))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "coordinator: a probe reads device memory, which backend %s does not allow",
                       sl_backend_name(be));
    sl_coord *c = calloc(1, sizeof *c);
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "coordinator: out of memory");
    c->be = be, c->o = *opts, c->z = z;
    if (z.algo->prompt_lists && (opts->count_tiles || sl_backend_caps(be) & SL_BE_UNIFIED))
        c->counted = c->pages;
    c->index_plane = sl_cache_find(&z.dims.shape, SL_PLANE_INDEX);
    if (opts->draw)
        c->draw = *opts->draw, c->o.draw = &c->draw;
    sl_status st = create_layers(c, opts, err);
    if (st != SL_OK)
        goto destroy;
    st = create_parts(c, err);
    if (st != SL_OK)
        goto destroy;
    c->o.layers = c->layers, c->o.gates.dense_layers = NULL; /* the caller may free its arrays */
    *out = c;
    return SL_OK;
destroy:
    sl_coord_destroy(c);
    return st;
}

void sl_coord_destroy(sl_coord *c)
{
    if (!c)
        return;
    sl_be_free(c->be, SL_MEM_DEVICE, c->tiles);
    sl_be_free(c->be, SL_MEM_DEVICE, c->no_slots);
    sl_be_free(c->be, SL_MEM_DEVICE, c->ahead.phys);
    sl_be_free(c->be, SL_MEM_DEVICE, c->phys);
    sl_be_free(c->be, SL_MEM_DEVICE, c->slice_ids);
    sl_be_free(c->be, SL_MEM_DEVICE, c->ids);
    if (c->dense)
        c->dense->desc->destroy(c->dense);
    if (c->algo)
        c->algo->desc->destroy(c->algo);
    sl_swapin_destroy(c->swapin);
    sl_tracker_fini(&c->tracker);
    free(c->runs);
    free(c->shares);
    free(c->may_be_late);
    free(c->is_wanted);
    free(c->is_dense);
    free(c->layers);
    free(c);
}

uint64_t sl_coord_device_bytes(const sl_coord *c)
{
    return c->device_bytes + sl_swapin_device_bytes(c->swapin) + c->z.algo->device_bytes(&c->z.dims) +
           (c->dense ? sl_algo_dense.device_bytes(&c->z.dims) : 0);
}

/* ---- counters ---- */

sl_status sl_coord_counters_get(sl_coord *c, sl_coord_counters *layers, int32_t seq_row,
                                sl_coord_counters *seq, sl_err *err)
{
    int32_t slot = -1;
    if (seq && seq_row >= 0 && seq_row < c->tracker.n && c->tracker.rows[seq_row].open)
        slot = c->tracker.rows[seq_row].hot_slot;
    return sl_swapin_counters(c->swapin, layers, slot, seq, err);
}

sl_status sl_coord_counters_peek(sl_coord *c, sl_coord_counters *layers, sl_err *err)
{
    return sl_swapin_peek(c->swapin, layers, err);
}

sl_status sl_coord_tiles(sl_coord *c, uint64_t out[2], sl_err *err)
{
    out[0] = c->pages[0], out[1] = c->pages[1];
    if (!c->tiles)
        return SL_OK;
    SL_TRY(sl_be_copy(c->be, out, c->tiles, 2 * sizeof *out, err));
    return sl_be_sync(c->be, err);
}

void sl_coord_times(const sl_coord *c, sl_coord_clock *out)
{
    *out = (sl_coord_clock){.attend_ns = c->attend_ns, .swap_ns = c->swap_ns, .exposed_ns = c->swap_ns};
    if (!c->async)
        return;
    out->attend_ns = 0;
    sl_swapin_times(c->swapin, &out->swap_ns, &out->exposed_ns);
}
