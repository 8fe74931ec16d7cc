/* The life of a request: it begins with its cached pages, may be spilled from resident to hierarchical, and ends. See
 * sparse.h. */
#include "sparse/coordinator_impl.h"
#include "sparse/load.h"

/* The algorithm's metadata of the pages that are cached. */
static sl_status construct_layer(const sl_coord *c, int32_t l, const sl_coord_request *r, sl_err *err)
{
    const sl_coord_layer *layer = &c->layers[l];
    if (!c->z.algo->construct)
        return SL_OK;
    sl_algo_pages p = {.layer = l,
                       .planes = layer->planes,
                       .host_rows = layer->host_rows,
                       .host_pages = r->host_pages,
                       .device_pages = r->index_pages,
                       .n_pages = sl_pages_for(r->n_cached),
                       .n_tokens = r->n_cached};
    return c->z.algo->construct(c->algo, &p, err);
}

/* construct: nothing of the request is on the device yet; otherwise only its residency changes. */
static sl_status load_layer(sl_coord *c, int32_t l, const sl_coord_request *r, bool construct, sl_err *err)
{
    const sl_coord_layer *layer = &c->layers[l];
    if (layer->absent)
        return SL_OK;
    if (construct)
        SL_TRY(construct_layer(c, l, r, err));
    if (layer->resident)
        return construct ? sl_load_rows(c->be, layer, r->host_pages, r->index_pages, r->n_cached, err)
                         : SL_OK;
    if (r->hot_slot >= 0)
        return sl_load_tail(c->be, layer, r->host_pages, r->hot_slot, r->n_cached, err);
    return sl_load_rows(c->be, layer, r->host_pages, r->row_pages, r->n_cached, err);
}

static sl_status load_request(sl_coord *c, const sl_coord_request *r, bool construct, sl_err *err)
{
    if (r->hot_slot >= c->o.hot_slots)
        return sl_fail(err, SL_ERR_INVALID, "hot slot %d is outside 0..%d", r->hot_slot, c->o.hot_slots - 1);
    for (int32_t l = 0; l < c->o.n_layers && r->n_cached > 0; l++)
        if (!c->layers[l].absent && !c->layers[l].host_rows.base)
            return sl_fail(err, SL_ERR_INVALID, "cached tokens without host pages");
    if (r->hot_slot >= 0)
        SL_TRY(sl_swapin_reset(c->swapin, r->hot_slot, true, err));
    for (int32_t l = 0; l < c->o.n_layers && r->n_cached > 0; l++)
        SL_TRY(load_layer(c, l, r, construct, err));
    return SL_OK;
}

sl_status sl_coord_request_begin(sl_coord *c, const sl_coord_request *r, sl_err *err)
{
    SL_TRY(sl_tracker_begin(&c->tracker, r->seq, r->n_cached, r->hot_slot, err));
    sl_status st = load_request(c, r, true, err);
    if (st != SL_OK)
        sl_tracker_end(&c->tracker, r->seq);
    return st;
}

sl_status sl_coord_request_prompt(sl_coord *c, const sl_coord_request *r, int32_t tokens, sl_err *err)
{
    SL_CHECK(r->seq >= 0 && r->seq < c->tracker.n && c->tracker.rows[r->seq].open, "prompt of row %d",
             r->seq);
    sl_track *t = &c->tracker.rows[r->seq];
    if (!c->z.algo->prompt)
        return SL_OK;
    if (tokens < 1 || tokens > c->o.max_context || r->n_cached != t->len)
        return sl_fail(err, SL_ERR_INVALID, "prompt of %d tokens, %d cached of %d, at most %d fit", tokens,
                       r->n_cached, t->len, c->o.max_context);
    for (int32_t l = 0; l < c->o.n_layers; l++) {
        if (c->layers[l].absent)
            continue;
        sl_algo_prompt p = {.layer = l,
                            .seq = r->seq,
                            .tokens = tokens,
                            .n_cached = r->n_cached,
                            .planes = c->layers[l].planes,
                            .host_pages = r->host_pages,
                            .index_pages = r->index_pages,
                            .rows = c->layers[l].rows,
                            .host_rows = c->layers[l].host_rows};
        SL_TRY(c->z.algo->prompt(c->algo, &p, err));
    }
    t->prompt = tokens;
    return SL_OK;
}

sl_status sl_coord_request_spill(sl_coord *c, const sl_coord_request *r, sl_err *err)
{
    SL_CHECK(r->seq >= 0 && r->seq < c->tracker.n && c->tracker.rows[r->seq].open, "spill of row %d", r->seq);
    sl_track *t = &c->tracker.rows[r->seq];
    if (t->hot_slot >= 0 || r->hot_slot < 0)
        return sl_fail(err, SL_ERR_INVALID, "spill: sequence row %d is not resident", r->seq);
    if (r->n_cached != t->len)
        return sl_fail(err, SL_ERR_INVALID, "spill: %d tokens, the request has %d", r->n_cached, t->len);
    SL_TRY(load_request(c, r, false, err));
    t->hot_slot = r->hot_slot;
    if (t->before < t->len - (c->z.run - 1)) /* no more of the tail is unused */
        t->before = t->len - (c->z.run - 1);
    return SL_OK;
}

/* The part of a resident request from page `first` on, as if it were a request of its own. Its pages are loaded by what is in
 * them alone, so their places in the request do not matter. */
static sl_coord_request rest_of(const sl_coord_request *r, int32_t first)
{
    sl_coord_request rest = *r;
    rest.n_cached -= first * SL_PAGE_TOKENS;
    rest.host_pages += first;
    rest.index_pages += first;
    rest.row_pages += first;
    return rest;
}

sl_status sl_coord_request_load(sl_coord *c, const sl_coord_request *r, sl_err *err)
{
    SL_CHECK(r->seq >= 0 && r->seq < c->tracker.n && c->tracker.rows[r->seq].open, "load of row %d", r->seq);
    sl_track *t = &c->tracker.rows[r->seq];
    if (t->hot_slot >= 0 || r->hot_slot >= 0)
        return sl_fail(err, SL_ERR_INVALID, "load: sequence row %d is not resident", r->seq);
    if (t->len % SL_PAGE_TOKENS || r->n_cached < t->len || r->n_cached > c->tracker.max_context)
        return sl_fail(err, SL_ERR_INVALID, "load: %d tokens after the %d that the request has", r->n_cached,
                       t->len);
    sl_coord_request rest = rest_of(r, t->len / SL_PAGE_TOKENS);
    SL_TRY(load_request(c, &rest, true, err));
    t->len = t->before = r->n_cached;
    return SL_OK;
}

sl_status sl_coord_request_truncate(sl_coord *c, int32_t seq, int32_t len, sl_err *err)
{
    SL_CHECK(seq >= 0 && seq < c->tracker.n && c->tracker.rows[seq].open, "truncation of row %d", seq);
    const sl_track *t = &c->tracker.rows[seq];
    if (len == t->len)
        return SL_OK;
    if (!c->z.dims.truncates)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "truncate: the steps of this engine are made for one token of a sequence");
    if (c->z.algo->prompt && len < t->prompt)
        return sl_fail(
            err, SL_ERR_INVALID,
            "sparse algorithm %s: a prompt of %d tokens cannot be cut to %d, its end is selected by",
            c->z.algo->name, t->prompt, len);
    return sl_tracker_truncate(&c->tracker, seq, len, err);
}

void sl_coord_request_end(sl_coord *c, int32_t seq)
{
    int32_t slot = c->tracker.rows[seq].hot_slot;
    sl_tracker_end(&c->tracker, seq);
    /* It only fills stale rows with NaN; if it fails, the next begin resets the slot again and reports the failure. */
    if (slot >= 0 && c->o.poison)
        (void)sl_swapin_reset(c->swapin, slot, true, NULL);
}
