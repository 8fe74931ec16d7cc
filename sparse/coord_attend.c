/*
 * One layer of a step: new index keys and rows are captured, the algorithm selects, missing rows are swapped in, and
 * attention runs over the selected rows. See sparse.h.
 *
 * Lists of the algorithm are kept for the whole step ([step tokens][lists][k]) because shared layers reuse them; lists
 * of dense layers are made slice by slice, since they are as long as the context. Resolve, gather and attention run per
 * slice in both cases, so that the physical lists stay within the workspace.
 */
#include "base/log.h"
#include "kernels/synth.h"
#include "sparse/coordinator_impl.h"

/* New index keys, to the device and to the host pages. */
static sl_status capture_keys(sl_coord *c, const sl_attn_call *call, sl_err *err)
{
    if (!call->has_indexer || call->again > 0)
        return SL_OK;
    const sl_algo_plane *p = &c->layers[call->layer].planes[c->index_plane];
    if (call->index.unit) {
        sl_pool_append_params pool = call->index.pool;
        pool.seqs = call->seqs;
        pool.base = p->device;
        pool.page_stride = p->device_stride;
        pool.host = p->host;
        return sl_be_run(c->be, SL_OP_POOL_APPEND, &pool, err);
    }
    sl_index_append_params k = call->index.key;
    k.seqs = call->seqs;
    k.index_base = p->device;
    k.index_page_stride = p->device_stride;
    k.host = p->host;
    return sl_be_run(c->be, SL_OP_INDEX_APPEND, &k, err);
}

sl_status sl_coord_capture_rows(sl_coord *c, const sl_attn_call *call, sl_err *err)
{
    return c->z.adaptor->append(c->be, &c->layers[call->layer], call, err);
}

sl_status sl_coord_make_queries(const sl_attn_call *call, sl_err *err)
{
    return call->queries ? call->queries(call->queries_ctx, err) : SL_OK;
}

/*
 * The call as an algorithm sees it, for lists of at most `width` tokens. A width that is a constant of the model is
 * the same in every step: attention may divide lists by it, and then a token's bits must not depend on the lengths
 * of other sequences.
 */
static sl_algo_call algo_call(sl_coord *c, const sl_attn_call *call, int32_t width)
{
    bool whole = c->in_prompt || c->is_dense[call->layer]; /* some lists are as long as the context */
    int32_t all = whole || !c->z.algo->constant_k ? c->tracker.max_pos + 1 : width;
    int32_t most = width < all ? width : all;
    sl_algo_call a = {
        .attn = call,
        .planes = c->layers[call->layer].planes,
        .rows = c->layers[call->layer].rows,
        .host_rows = c->layers[call->layer].host_rows,
        .max_pos = c->tracker.max_pos,
        .runs = c->runs,
        .n_runs = c->n_runs,
        .lists = c->z.lists,
        .block_log2 = c->z.block_log2,
        .k = sl_blocks_for(most, c->z.block_log2),
        .tiles = c->counted,
    };
    c->scores = (sl_algo_scores){0};
    a.scores = c->o.probe.seen ? &c->scores : NULL;
    const sl_gates *g = &c->o.gates;
    a.dense_below = g->min_tokens < most ? g->min_tokens : most;
    /* Otherwise the step is so short that everything is selected. */
    if (sl_forced_blocks(g->sink_tokens, g->recent_tokens, a.block_log2) <= a.k)
        a.sinks = g->sink_tokens, a.recent = g->recent_tokens;
    return a;
}

/* Benchmarks: other lists in place of the selected ones, which layers that share them read as well. The newest block
 * may be open, so it is not drawn from. */
static sl_status redraw(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t first,
                        int32_t n, int32_t *ids, sl_err *err)
{
    if (!c->o.draw || !c->z.by_keys || !sl_coord_selects(c, call->layer))
        return SL_OK;
    sl_seq_tables seqs = sl_seq_tables_slice(call->seqs, first, n);
    const int32_t topk = c->o.cache.index_topk;
    sl_draw_params p = {.ids = ids,
                        .seqs = &seqs,
                        .keep = c->draw.keep + call->layer,
                        .k = topk > 0 && topk < a->k ? topk : a->k,
                        .ld_ids = a->k,
                        .lists = a->lists,
                        .span = c->draw.span_tokens >> a->block_log2,
                        .from_pos = c->draw.span_tokens - 1,
                        .layer = call->layer,
                        .seed = c->draw.seed};
    return sl_be_run(c->be, SL_OP_DRAW, &p, err);
}

sl_status sl_coord_select_kept(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t first,
                               int32_t n, sl_err *err)
{
    if (!c->z.algo->keeps_lists)
        return SL_OK;
    if (sl_coord_selects(c, call->layer) && c->is_wanted[call->layer])
        SL_TRY(c->z.algo->retrieve(c->algo, a, first, n, c->ids + sl_coord_lists_at(a, first), err));
    return redraw(c, call, a, first, n, c->ids + sl_coord_lists_at(a, first), err);
}

static void show(const sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, const sl_selection *sel)
{
    const sl_coord_seen s = {.call = call,
                             .layer = &c->layers[call->layer],
                             .ids = sel->ids,
                             .first = sel->first,
                             .count = sel->count,
                             .lists = a->lists,
                             .k = sel->k,
                             .block_log2 = a->block_log2,
                             .scores = &c->scores,
                             .dense = c->is_dense[call->layer]};
    c->o.probe.seen(c->o.probe.ctx, &s);
}

static void set_skip(const sl_coord *c, const sl_algo *algo, const sl_algo_call *a, sl_selection *sel)
{
    if (c->tiles && algo == c->algo)
        sel->skip_factor = algo->desc->skip_factor(&c->o.cache), sel->skip_from = a->dense_below,
        sel->tiles = c->tiles;
}

/* Whether all tokens of the call attend to everything before them, in rows that are on the device: no list is needed. */
static bool reads_all(const sl_coord *c, const sl_attn_call *call, const sl_algo *algo)
{
    return (algo->desc->reads_all || (algo == c->algo && c->all_prompt)) && c->z.adaptor->attend_all &&
           (c->no_hot || c->layers[call->layer].resident) && !c->o.probe.seen && !c->o.draw;
}

/*
 * The end of a slice that begins at token `first` and has at most `fit` tokens: the tokens of a hierarchical sequence are
 * not divided, because they are resolved together. A graph is for all steps of its shape, so there every run counts.
 */
static int32_t slice_end(const sl_coord *c, int32_t first, int64_t fit, int32_t total)
{
    if (total - first <= fit)
        return total;
    const int32_t end = first + (int32_t)fit;
    if (c->tracker.shaped)
        return end - (end - first) % c->per;
    for (int32_t i = 0; i < c->n_runs; i++) {
        const sl_algo_run *run = &c->runs[i];
        if (run->hot && run->first < end && end < run->first + run->n)
            return run->first;
    }
    return end;
}

/* Resolve, swap-in and attention of tokens first .. end - 1, slice by slice. */
static sl_status attend_slices(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, bool kept,
                               int32_t first, int32_t end, sl_err *err)
{
    sl_algo *algo = c->is_dense[call->layer] ? c->dense : c->algo;
    const sl_adaptor *adaptor = c->z.adaptor;
    int64_t fit = c->z.slice / sl_coord_lists_at(a, 1);
    while (first < end) {
        int32_t n = slice_end(c, first, fit, end) - first;
        sl_selection sel = {.ids = c->slice_ids, .first = first, .count = n, .k = a->k};
        set_skip(c, algo, a, &sel);
        if (kept)
            sel.ids = c->ids + sl_coord_lists_at(a, first);
        else
            SL_TRY(algo->desc->retrieve(algo, a, first, n, c->slice_ids, err));
        if (!kept && algo == c->algo)
            SL_TRY(redraw(c, call, a, first, n, c->slice_ids, err));
        SL_TRY(adaptor->fetch(c->swapin, call, &sel, c->phys, false, &c->swap_ns, err));
        SL_TRY(adaptor->attend(c->be, c->swapin, &c->layers[call->layer], call, &sel, c->phys, err));
        if (c->o.probe.seen)
            show(c, call, a, &sel);
        first += n;
    }
    return SL_OK;
}

/* A step with tokens of prompts whose lists are of pages: resident sequences attend over these, hierarchical ones, which have no tokens
 * of prompts, over lists of tokens. Neighbours of one kind are attended together. */
static sl_status attend_pages(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, sl_err *err)
{
    const bool resident = c->layers[call->layer].resident;
    for (int32_t i = 0, next; i < c->n_runs; i = next) {
        const sl_algo_run *from = &c->runs[i];
        for (next = i + 1; next < c->n_runs && (resident || c->runs[next].hot == from->hot);)
            next++;
        const int32_t end = c->runs[next - 1].first + c->runs[next - 1].n;
        sl_selection sel = {.first = from->first, .count = end - from->first, .k = a->k};
        if (from->hot && !resident) {
            SL_TRY(attend_slices(c, call, a, false, from->first, end, err));
            continue;
        }
        SL_TRY(c->z.algo->prompt_lists(c->algo, a, sel.first, sel.count, &sel.prompt, err));
        SL_TRY(c->z.adaptor->attend_all(c->be, &c->layers[call->layer], call, &sel, err));
    }
    return SL_OK;
}

/* Attention of all tokens of the call. */
static sl_status attend_tokens(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, bool kept,
                               sl_err *err)
{
    sl_algo *algo = c->is_dense[call->layer] ? c->dense : c->algo;
    if (c->z.algo->prompt_lists && c->in_prompt && algo == c->algo)
        return attend_pages(c, call, a, err);
    if (kept || !reads_all(c, call, algo))
        return attend_slices(c, call, a, kept, 0, call->seqs->n_tokens, err);
    sl_selection sel = {.count = call->seqs->n_tokens, .k = a->k};
    set_skip(c, algo, a, &sel);
    return c->z.adaptor->attend_all(c->be, &c->layers[call->layer], call, &sel, err);
}

static sl_status check_call(const sl_coord *c, const sl_attn_call *call, sl_err *err)
{
    if (!c->tracker.in_step || call->seqs->n_tokens != c->tracker.step_tokens)
        return sl_fail(err, SL_ERR_INTERNAL, "attend: %d tokens, the step has %d", call->seqs->n_tokens,
                       c->tracker.in_step ? c->tracker.step_tokens : 0);
    if (call->layer < 0 || call->layer >= c->o.n_layers || c->layers[call->layer].absent ||
        call->has_indexer != c->layers[call->layer].has_indexer || call->kind != c->z.adaptor->kind)
        return sl_fail(err, SL_ERR_INTERNAL, "attend: layer %d is not as the coordinator knows it",
                       call->layer);
    return SL_OK;
}

/* Capture, queries, update and attention of a call that is not cut into groups. */
static sl_status attend_whole(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, bool kept,
                              sl_err *err)
{
    SL_TRY(sl_coord_capture_rows(c, call, err));
    SL_TRY(sl_coord_make_queries(call, err));
    if (c->z.algo->update)
        SL_TRY(c->z.algo->update(c->algo, a, err));
    SL_TRY(sl_coord_select_kept(c, call, a, 0, call->seqs->n_tokens, err));
    sl_algo_call all = c->is_dense[call->layer] ? algo_call(c, call, c->o.max_context) : *a;
    SL_TRY(attend_tokens(c, call, &all, kept, err));
    return kept ? sl_coord_fetch_ahead(c, call, a, 1, err) : SL_OK;
}

/* What a call leaves in the cache, without its attention. */
static sl_status append(sl_coord *c, const sl_attn_call *call, sl_err *err)
{
    sl_algo_call a = algo_call(
        c, call, c->in_prompt ? c->o.max_context : sl_coord_layer_width(&c->z, &c->o.gates, call->layer));
    SL_TRY(sl_coord_capture_rows(c, call, err));
    return c->z.algo->update ? c->z.algo->update(c->algo, &a, err) : SL_OK;
}

static sl_status attend(sl_coord *c, const sl_attn_call *call, sl_err *err)
{
    SL_TRY(capture_keys(c, call, err));
    bool kept = c->z.algo->keeps_lists && !c->is_dense[call->layer];
    if (call->rows_only)
        return append(c, call, err);
    sl_algo_call a = algo_call(
        c, call, c->in_prompt ? c->o.max_context : sl_coord_layer_width(&c->z, &c->o.gates, call->layer));
    int32_t groups = sl_coord_groups_of(c, call, &a);
    if (sl_coord_is_ahead(c, call->layer)) {
        SL_TRY(sl_coord_attend_ahead(c, call, &a, err));
    } else if (groups == 1) {
        SL_TRY(attend_whole(c, call, &a, kept, err));
    } else {
        if (c->z.algo->reads_rows)
            SL_TRY(sl_coord_capture_rows(c, call, err));
        if (c->z.algo->update)
            SL_TRY(c->z.algo->update(c->algo, &a, err));
        SL_TRY(sl_coord_attend_groups(c, call, &a, groups, err));
    }
    c->last_ids = kept ? c->ids : NULL;
    c->last_k = kept ? a.k : 0;
    return SL_OK;
}

sl_status sl_coord_attend(void *ctx, const sl_attn_call *call, sl_err *err)
{
    sl_coord *c = ctx;
    uint64_t t0 = sl_now_ns();
    SL_TRY(check_call(c, call, err));
    sl_attn_call mine = *call;
    sl_seq_tables tables = *call->seqs;
    if (c->layers[call->layer].resident) { /* its rows are paged like the index keys, for every sequence */
        tables.row_pages = tables.index_pages;
        tables.hot_slot = c->no_slots;
        mine.seqs = &tables;
    }
    sl_status st = attend(c, &mine, err);
    c->attend_ns += sl_now_ns() - t0;
    return st;
}

const int32_t *sl_coord_selection(const sl_coord *c, int32_t *ld)
{
    *ld = c->last_k;
    return c->last_ids;
}

bool sl_coord_again(const sl_coord *c)
{
    return c->last_ids && c->z.algo->again && c->z.algo->again(c->algo, c->tracker.step_tokens);
}
