/*
 * The coordinator: one attend call per layer, capture -> select -> swap-in -> attend; see sparse.h.
 *
 * Lists of the algorithm are kept for the whole step ([step tokens][k]) because shared layers reuse them;
 * lists of dense layers are made slice by slice, since they are as long as the context. Resolve, gather and
 * attention run per slice in both cases, so that the physical lists stay within the workspace.
 */
#include "sparse/sparse.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/synth.h"
#include "sparse/adaptor.h"
#include "sparse/coord_plan.h"
#include "sparse/load.h"
#include "sparse/swapin.h"
#include "sparse/tracker.h"

/* With groups = 0: the smallest step that is cut into groups, and into how many (measured on an H200). WAVE: tokens of
 * 128 heads that one wave of the attention kernel computes there. */
enum { AUTO_TOKENS = 32, AUTO_GROUPS = 2, WAVE = 33 };

struct sl_coord {
    sl_backend *be;
    sl_coord_opts o;
    sl_coord_sizes z;
    bool lanes; /* the backend copies concurrently with ops */
    bool rows_free;
    sl_coord_layer *layers;
    bool *is_dense, *is_wanted; /* [n_layers]: attends to everything; its own selection is read by it or by a
                                   shared layer */
    bool *may_be_late;     /* [n_layers], sl_attend_seam.late of a step in groups: the layer has an indexer */
    sl_algo *algo, *dense; /* dense: for dense layers, NULL when there are none */
    sl_swapin *swapin;
    sl_tracker tracker;
    sl_coord_draw draw;
    int32_t *ids, *slice_ids, *phys; /* device */
    int32_t index_plane;             /* of the model's index keys; -1: none */
    int32_t *no_slots;               /* device [max_seqs] of -1: the hot slots of a resident layer */
    const int32_t *last_ids;         /* of the last attend */
    int32_t last_k;
    uint64_t attend_ns, swap_ns, device_bytes;
};

static sl_status device_alloc(sl_coord *c, int64_t entries, int32_t **out, sl_err *err)
{
    if (entries == 0)
        return SL_OK;
    sl_status st = sl_be_alloc(c->be, SL_MEM_DEVICE, (size_t)entries * 4, (void **)out, err);
    if (st == SL_OK)
        c->device_bytes += (uint64_t)entries * 4;
    return st;
}

/* Whether the layer makes a list of its own. */
static bool selects(const sl_coord *c, int32_t layer)
{
    return !c->z.algo->needs_indexer || c->layers[layer].has_indexer;
}

/* Marks dense layers, and the layers whose selection is read by them or by a layer that shares it. */
static void classify_layers(sl_coord *c)
{
    int32_t owner = -1;
    for (int32_t i = 0; i < c->o.gates.n_dense_layers; i++)
        c->is_dense[c->o.gates.dense_layers[i]] = true;
    for (int32_t l = 0; l < c->o.n_layers; l++) {
        c->may_be_late[l] = c->layers[l].has_indexer;
        if (selects(c, l))
            owner = l;
        if (!c->is_dense[l] && owner >= 0)
            c->is_wanted[owner] = true;
    }
}

static sl_status create_parts(sl_coord *c, sl_err *err)
{
    sl_coord_opts o = c->o;
    c->lanes = (sl_backend_caps(c->be) & SL_BE_ASYNC) != 0;
    o.layers = c->layers;
    if (o.groups == 0)
        o.groups = c->lanes ? AUTO_GROUPS : 1;
    sl_swapin_opts so = sl_coord_swapin_opts(&o, &c->z);
    sl_status st = sl_swapin_create(c->be, &so, &c->swapin, err);
    if (st == SL_OK)
        st = c->z.algo->create(c->be, &c->z.dims, &c->algo, err);
    if (st == SL_OK && c->o.gates.n_dense_layers > 0)
        st = sl_algo_dense.create(c->be, &c->z.dims, &c->dense, err);
    if (st == SL_OK)
        st = device_alloc(c, c->z.ids, &c->ids, err);
    if (st == SL_OK)
        st = device_alloc(c, c->z.slice, &c->slice_ids, err);
    if (st == SL_OK)
        st = device_alloc(c, c->z.slice, &c->phys, err);
    if (st == SL_OK)
        st = device_alloc(c, c->o.max_seqs, &c->no_slots, err);
    return st == SL_OK ? sl_be_fill(c->be, c->no_slots, 0xff, (size_t)c->o.max_seqs * 4, err) : st;
}

sl_status sl_coord_create(sl_backend *be, const sl_coord_opts *opts, sl_coord **out, sl_err *err)
{
    sl_coord_sizes z;
    sl_status st = sl_coord_check(opts, &z, err);
    if (st != SL_OK)
        return st;
    size_t n = (size_t)opts->n_layers;
    sl_coord *c = calloc(1, sizeof *c);
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "coordinator: out of memory");
    c->be = be, c->o = *opts, c->z = z;
    c->index_plane = sl_cache_find(&z.dims.shape, SL_PLANE_INDEX);
    if (opts->draw)
        c->draw = *opts->draw, c->o.draw = &c->draw;
    c->layers = calloc(n, sizeof *c->layers);
    c->is_dense = calloc(n, sizeof *c->is_dense);
    c->is_wanted = calloc(n, sizeof *c->is_wanted);
    c->may_be_late = calloc(n, sizeof *c->may_be_late);
    st = c->layers && c->is_dense && c->is_wanted && c->may_be_late
             ? sl_tracker_init(&c->tracker, opts->max_seqs, opts->max_context)
             : SL_ERR_NO_MEMORY;
    if (st != SL_OK) {
        sl_fail(err, st, "coordinator: out of memory");
        goto fail;
    }
    memcpy(c->layers, opts->layers, n * sizeof *c->layers);
    for (size_t l = 0; l < n; l++)
        if (opts->hot_slots == 0 || c->layers[l].resident)
            c->layers[l].rows.hot_rows = 0; /* tells the ops that there is no residency state */
    classify_layers(c);
    st = create_parts(c, err);
    if (st != SL_OK)
        goto fail;
    c->o.layers = c->layers, c->o.gates.dense_layers = NULL; /* the caller's arrays may go */
    *out = c;
    return SL_OK;
fail:
    sl_coord_destroy(c);
    return st;
}

void sl_coord_destroy(sl_coord *c)
{
    if (!c)
        return;
    sl_be_free(c->be, SL_MEM_DEVICE, c->no_slots);
    sl_be_free(c->be, SL_MEM_DEVICE, c->phys);
    sl_be_free(c->be, SL_MEM_DEVICE, c->slice_ids);
    sl_be_free(c->be, SL_MEM_DEVICE, c->ids);
    if (c->dense)
        c->dense->desc->destroy(c->dense);
    if (c->algo)
        c->algo->desc->destroy(c->algo);
    sl_swapin_destroy(c->swapin);
    sl_tracker_fini(&c->tracker);
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

/* ---- requests ---- */

/* construct: nothing of the request is on the device yet; otherwise only its residency changes. */
static sl_status load_layer(sl_coord *c, int32_t l, const sl_coord_request *r, bool construct, sl_err *err)
{
    const sl_coord_layer *layer = &c->layers[l];
    sl_status st = SL_OK;
    if (construct && c->z.algo->construct) {
        sl_algo_pages p = {.layer = l,
                           .planes = layer->planes,
                           .host_rows = layer->host_rows,
                           .host_pages = r->host_pages,
                           .device_pages = r->index_pages,
                           .n_pages = sl_pages_for(r->n_cached),
                           .n_tokens = r->n_cached};
        st = c->z.algo->construct(c->algo, &p, err);
    }
    if (st != SL_OK)
        return st;
    if (layer->resident)
        return construct ? sl_load_rows(c->be, layer, r->host_pages, r->index_pages, r->n_cached, err)
                         : SL_OK;
    if (r->hot_slot >= 0)
        return sl_load_tail(c->be, layer, r->host_pages, r->hot_slot, r->n_cached, err);
    return sl_load_rows(c->be, layer, r->host_pages, r->row_pages, r->n_cached, err);
}

static sl_status load_request(sl_coord *c, const sl_coord_request *r, bool construct, sl_err *err)
{
    sl_status st = SL_OK;
    if (r->hot_slot >= c->o.hot_slots)
        return sl_fail(err, SL_ERR_INVALID, "hot slot %d is outside 0..%d", r->hot_slot, c->o.hot_slots - 1);
    if (r->n_cached > 0 && !c->layers[0].host_rows.base)
        return sl_fail(err, SL_ERR_INVALID, "cached tokens without host pages");
    if (r->hot_slot >= 0)
        st = sl_swapin_reset(c->swapin, r->hot_slot, true, err);
    for (int32_t l = 0; l < c->o.n_layers && st == SL_OK && r->n_cached > 0; l++)
        st = load_layer(c, l, r, construct, err);
    return st;
}

sl_status sl_coord_request_begin(sl_coord *c, const sl_coord_request *r, sl_err *err)
{
    sl_status st = sl_tracker_begin(&c->tracker, r->seq, r->n_cached, r->hot_slot, err);
    if (st != SL_OK)
        return st;
    st = load_request(c, r, true, err);
    if (st != SL_OK)
        sl_tracker_end(&c->tracker, r->seq);
    return st;
}

sl_status sl_coord_request_spill(sl_coord *c, const sl_coord_request *r, sl_err *err)
{
    SL_CHECK(r->seq >= 0 && r->seq < c->tracker.n && c->tracker.rows[r->seq].open, "spill of row %d", r->seq);
    sl_track *t = &c->tracker.rows[r->seq];
    if (t->hot_slot >= 0 || r->hot_slot < 0)
        return sl_fail(err, SL_ERR_INVALID, "spill: sequence row %d is not resident", r->seq);
    if (r->n_cached != t->len)
        return sl_fail(err, SL_ERR_INVALID, "spill: %d tokens, the request has %d", r->n_cached, t->len);
    sl_status st = load_request(c, r, false, err);
    if (st == SL_OK)
        t->hot_slot = r->hot_slot;
    return st;
}

void sl_coord_request_end(sl_coord *c, int32_t seq)
{
    int32_t slot = c->tracker.rows[seq].hot_slot;
    sl_tracker_end(&c->tracker, seq);
    if (slot >= 0 && c->o.poison)
        (void)sl_swapin_reset(c->swapin, slot, true,
                              NULL); /* only makes stale rows NaN; begin resets again and reports */
}

/* ---- steps ---- */

sl_status sl_coord_step_begin(sl_coord *c, const sl_coord_run *runs, int32_t n_runs, sl_err *err)
{
    sl_status st = sl_tracker_step_begin(&c->tracker, runs, n_runs, c->o.max_step_tokens, err);
    if (st != SL_OK)
        return st;
    c->last_ids = NULL, c->last_k = 0;
    st = sl_swapin_step(c->swapin, err);
    if (st != SL_OK)
        sl_tracker_step_end(&c->tracker, false);
    return st;
}

void sl_coord_step_shape(sl_coord *c, int32_t tokens, int32_t context)
{
    SL_CHECK(c->tracker.in_step && tokens >= c->tracker.step_tokens && context > c->tracker.max_pos &&
                 tokens <= c->o.max_step_tokens && context <= c->o.max_context,
             "step of %d tokens up to %d padded to %d up to %d", c->tracker.step_tokens, c->tracker.max_pos,
             tokens, context);
    c->tracker.step_tokens = tokens;
    c->tracker.max_pos = context - 1;
    c->tracker.shaped = true;
}

void sl_coord_rows_free(sl_coord *c, bool on)
{
    c->rows_free = on;
    sl_swapin_rows_free(c->swapin, on);
}

void sl_coord_step_end(sl_coord *c)
{
    sl_tracker_step_end(&c->tracker, true);
}

void sl_coord_step_abort(sl_coord *c)
{
    /* Resolve may have promised rows that gather never brought. */
    for (int32_t i = 0; i < c->tracker.n_runs; i++) {
        int32_t slot = c->tracker.rows[c->tracker.runs[i].seq].hot_slot;
        if (slot >= 0)
            (void)sl_swapin_reset(c->swapin, slot, false, NULL);
    }
    sl_tracker_step_end(&c->tracker, false);
}

/* New index keys, to the device and to the host pages. */
static sl_status capture_keys(sl_coord *c, const sl_attn_call *call, sl_err *err)
{
    if (!call->has_indexer)
        return SL_OK;
    const sl_algo_plane *p = &c->layers[call->layer].planes[c->index_plane];
    sl_index_append_params k = call->index_k;
    k.seqs = call->seqs;
    k.index_base = p->device;
    k.index_page_stride = p->device_stride;
    k.host = p->host;
    return sl_be_run(c->be, SL_OP_INDEX_APPEND, &k, err);
}

/* New rows, to the device and to the host pages. */
static sl_status capture_rows(sl_coord *c, const sl_attn_call *call, sl_err *err)
{
    return c->z.adaptor->append(c->be, &c->layers[call->layer], call, err);
}

/* What attention needs and selection does not, where it was left for later. */
static sl_status make_queries(const sl_attn_call *call, sl_err *err)
{
    return call->queries ? call->queries(call->queries_ctx, err) : SL_OK;
}

/*
 * The call as an algorithm sees it, for lists of at most `width` ids. Where width is a constant of the model,
 * it is the same in every step: attention may cut lists by it, and then a token's bits must not depend on how
 * long other sequences are.
 */
static sl_algo_call algo_call(const sl_coord *c, const sl_attn_call *call, int32_t width)
{
    int32_t all = c->is_dense[call->layer] || !c->z.algo->constant_k ? c->tracker.max_pos + 1 : width;
    sl_algo_call a = {
        .attn = call,
        .planes = c->layers[call->layer].planes,
        .max_pos = c->tracker.max_pos,
        .k = width < all ? width : all,
    };
    const sl_gates *g = &c->o.gates;
    a.dense_below = g->min_tokens < a.k ? g->min_tokens : a.k;
    if (g->sink_tokens + g->recent_tokens <=
        a.k) /* otherwise the step is so short that everything is selected */
        a.sinks = g->sink_tokens, a.recent = g->recent_tokens;
    return a;
}

/* Benchmarks: other lists in place of the selected ones. */
static sl_status redraw(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t first,
                        int32_t n, sl_err *err)
{
    sl_seq_tables seqs = sl_seq_tables_slice(call->seqs, first, n);
    sl_draw_params p = {.ids = c->ids + (int64_t)first * a->k,
                        .seqs = &seqs,
                        .keep = c->draw.keep + call->layer,
                        .k = c->o.cache.index_topk < a->k ? c->o.cache.index_topk : a->k,
                        .ld_ids = a->k,
                        .span = c->draw.span_tokens,
                        .from_pos = c->draw.span_tokens - 1,
                        .layer = call->layer,
                        .seed = c->draw.seed};
    return sl_be_run(c->be, SL_OP_DRAW, &p, err);
}

/* Where lists are kept: makes those of tokens first .. first + n - 1, if the layer has its own. */
static sl_status select_kept(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t first,
                             int32_t n, sl_err *err)
{
    sl_status st = SL_OK;
    if (!c->z.algo->keeps_lists)
        return SL_OK;
    if (selects(c, call->layer) && c->is_wanted[call->layer])
        st = c->z.algo->retrieve(c->algo, a, first, n, c->ids + (int64_t)first * a->k, err);
    return st == SL_OK && c->o.draw ? redraw(c, call, a, first, n, err) : st;
}

/* Resolve, swap-in and attention, slice by slice. */
static sl_status attend_slices(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, bool kept,
                               sl_err *err)
{
    sl_algo *algo = c->is_dense[call->layer] ? c->dense : c->algo;
    int32_t total = call->seqs->n_tokens;
    int64_t fit = c->z.slice / a->k;
    for (int32_t first = 0; first < total;) {
        int32_t n = total - first < fit ? total - first : (int32_t)fit;
        sl_selection sel = {.ids = c->slice_ids, .first = first, .count = n, .k = a->k};
        sl_status st = SL_OK;
        if (kept)
            sel.ids = c->ids + (int64_t)first * a->k;
        else
            st = algo->desc->retrieve(algo, a, first, n, c->slice_ids, err);
        if (st == SL_OK)
            st = c->z.adaptor->fetch(c->swapin, call, &sel, c->phys, false, &c->swap_ns, err);
        if (st == SL_OK)
            st = c->z.adaptor->attend(c->be, c->swapin, &c->layers[call->layer], call, &sel, c->phys, err);
        if (st != SL_OK)
            return st;
        first += n;
    }
    return SL_OK;
}

/* Where group g begins. While the second of two groups attends, nothing else runs: it gets as many tokens as fill whole
 * waves of attention, if that is within an eighth of half of the tokens. */
static int32_t group_begin(int32_t total, int32_t g, int32_t groups)
{
    int32_t half = total / 2, waves = (half + WAVE / 2) / WAVE * WAVE, off = waves - half;
    if (groups == 2 && g == 1 && half >= WAVE - 1 && (off < 0 ? -off : off) * 8 <= half)
        return total - waves;
    return (int32_t)((int64_t)total * g / groups);
}

static sl_selection group_of(const sl_coord *c, const sl_algo_call *a, int32_t total, int32_t g,
                             int32_t groups)
{
    int32_t first = group_begin(total, g, groups), end = group_begin(total, g + 1, groups);
    return (sl_selection){
        .ids = c->ids + (int64_t)first * a->k, .first = first, .count = end - first, .k = a->k};
}

/* Groups of a step, so that each is worth a launch; 1: as a whole. */
static int32_t wanted_groups(const sl_coord *c, int32_t total)
{
    int32_t want = c->o.groups > 0                                    ? c->o.groups
                   : !c->lanes || c->rows_free || total < AUTO_TOKENS ? 1
                                                                      : AUTO_GROUPS;
    return total < want ? total : want;
}

sl_attend_seam sl_coord_seam(sl_coord *c)
{
    bool grouped = c->tracker.shaped && c->o.hot_slots > 0 && wanted_groups(c, c->tracker.step_tokens) > 1;
    return (sl_attend_seam){.attend = sl_coord_attend, .ctx = c, .late = grouped ? c->may_be_late : NULL};
}

static int32_t groups_of(const sl_coord *c, const sl_attn_call *call, const sl_algo_call *a)
{
    const int32_t total = call->seqs->n_tokens;
    int32_t n = wanted_groups(c, total);
    bool can = c->tracker.shaped && c->z.algo->groupable && !c->is_dense[call->layer] &&
               !c->layers[call->layer].resident && c->o.hot_slots > 0 && (int64_t)total * a->k <= c->z.slice;
    return can && n > 1 ? n : 1;
}

/*
 * Selects and fetches the rows group by group. New rows are appended after the first group's fetch: that op is short and
 * leaves multiprocessors to the gather that runs concurrently. Queries are made after the last group's fetch, so that
 * its rows are requested as early as possible.
 */
static sl_status fetch_groups(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t groups,
                              int32_t *begun, sl_err *err)
{
    sl_status st = SL_OK;
    for (*begun = 0; *begun < groups && st == SL_OK; (*begun)++) {
        sl_selection sel = group_of(c, a, call->seqs->n_tokens, *begun, groups);
        st = select_kept(c, call, a, sel.first, sel.count, err);
        if (st != SL_OK)
            return st;
        sl_swapin_group(c->swapin, *begun);
        st = c->z.adaptor->fetch(c->swapin, call, &sel, c->phys + (int64_t)sel.first * a->k, true,
                                 &c->swap_ns, err);
        if (*begun == 0 && st == SL_OK)
            st = capture_rows(c, call, err);
    }
    return st == SL_OK ? make_queries(call, err) : st;
}

/*
 * The step's tokens in groups: while the rows of one group are fetched, the next groups select and the previous ones
 * attend. Every token gets the same bits as in a step without groups.
 */
static sl_status attend_groups(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t groups,
                               sl_err *err)
{
    int32_t begun;
    sl_status st = fetch_groups(c, call, a, groups, &begun, err);
    for (int32_t g = 0; g < begun; g++) { /* all are waited for, also after an error */
        sl_selection sel = group_of(c, a, call->seqs->n_tokens, g, groups);
        sl_status wait = sl_swapin_wait(c->swapin, call->layer, g, st == SL_OK ? err : NULL);
        st = st == SL_OK ? wait : st;
        if (st == SL_OK)
            st = c->z.adaptor->attend(c->be, c->swapin, &c->layers[call->layer], call, &sel,
                                      c->phys + (int64_t)sel.first * a->k, err);
    }
    sl_swapin_group(c->swapin, -1);
    return st;
}

static sl_status check_call(const sl_coord *c, const sl_attn_call *call, sl_err *err)
{
    if (!c->tracker.in_step || call->seqs->n_tokens != c->tracker.step_tokens)
        return sl_fail(err, SL_ERR_INTERNAL, "attend: %d tokens, the step has %d", call->seqs->n_tokens,
                       c->tracker.in_step ? c->tracker.step_tokens : 0);
    if (call->layer < 0 || call->layer >= c->o.n_layers ||
        call->has_indexer != c->layers[call->layer].has_indexer || call->kind != c->z.adaptor->kind)
        return sl_fail(err, SL_ERR_INTERNAL, "attend: layer %d is not as the coordinator knows it",
                       call->layer);
    return SL_OK;
}

static sl_status attend(sl_coord *c, const sl_attn_call *call, sl_err *err)
{
    sl_status st = capture_keys(c, call, err);
    if (st != SL_OK)
        return st;
    bool dense = c->is_dense[call->layer], kept = c->z.algo->keeps_lists && !dense;
    sl_algo_call a = algo_call(c, call, c->z.width);
    int32_t groups = groups_of(c, call, &a);
    if (groups == 1)
        st = capture_rows(c, call, err);
    if (groups == 1 && st == SL_OK)
        st = make_queries(call, err);
    if (st == SL_OK && c->z.algo->update)
        st = c->z.algo->update(c->algo, &a, err);
    if (st == SL_OK && groups == 1)
        st = select_kept(c, call, &a, 0, call->seqs->n_tokens, err);
    if (st == SL_OK && groups > 1) {
        st = attend_groups(c, call, &a, groups, err);
    } else if (st == SL_OK) {
        sl_algo_call d = dense ? algo_call(c, call, c->o.max_context) : a;
        st = attend_slices(c, call, &d, kept, err);
    }
    c->last_ids = kept ? c->ids : NULL;
    c->last_k = kept ? a.k : 0;
    return st;
}

sl_status sl_coord_attend(void *ctx, const sl_attn_call *call, sl_err *err)
{
    sl_coord *c = ctx;
    uint64_t t0 = sl_now_ns();
    sl_status st = check_call(c, call, err);
    if (st != SL_OK)
        return st;
    sl_attn_call mine = *call;
    sl_seq_tables tables = *call->seqs;
    if (c->layers[call->layer].resident) { /* its rows are paged like the index keys, for every sequence */
        tables.row_pages = tables.index_pages;
        tables.hot_slot = c->no_slots;
        mine.seqs = &tables;
    }
    st = attend(c, &mine, err);
    c->attend_ns += sl_now_ns() - t0;
    return st;
}

const int32_t *sl_coord_selection(const sl_coord *c, int32_t *ld)
{
    *ld = c->last_k;
    return c->last_ids;
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

void sl_coord_times(const sl_coord *c, sl_coord_clock *out)
{
    *out = (sl_coord_clock){.attend_ns = c->attend_ns, .swap_ns = c->swap_ns, .exposed_ns = c->swap_ns};
    if (!c->lanes)
        return;
    out->attend_ns = 0;
    sl_swapin_times(c->swapin, &out->swap_ns, &out->exposed_ns);
}
