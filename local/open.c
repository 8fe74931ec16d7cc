/* See open.h: opens the backend, then the model, then the host store; the caller owns the engine. */
#include "local/open.h"

#include <stdlib.h>

#include "base/log.h"
#include "engine/choose.h"
#include "local/progress.h"

static void on_load(void *ctx, uint64_t done, uint64_t total)
{
    sl_local_progress_update(ctx, done, total, "bytes");
}

sl_status sl_local_open_backend(sl_local *l, const sl_local_opts *o, sl_err *err)
{
    sl_backend_opts bo = {.device = o->device, .threads = o->threads};
    return sl_backend_create(o->backend, &bo, &l->be, err);
}

sl_status sl_local_open_model(sl_local *l, const sl_local_opts *o, sl_err *err)
{
    sl_local_progress progress;
    sl_model_opts mo = {
        .index_format = l->checkpoint.index_format,
        .row_format = l->checkpoint.row_format,
        .max_tokens = o->max_tokens,
        .max_logit_rows = o->max_logit_rows,
        .max_context = o->max_context,
        .comm = o->comm,
        .dummy = l->checkpoint.dummy,
        .draft = l->checkpoint.cfg.n_draft > 0,
        .progress = on_load,
        .progress_ctx = &progress,
    };
    SL_TRY(sl_local_act_find(o->act, l->checkpoint.stored, &mo.act, err));
    sl_local_progress_begin(&progress, "loading");
    uint64_t t0 = sl_now_ns();
    sl_status st = o->synthetic
                       ? sl_model_synthetic(l->be, &l->checkpoint.cfg, &mo, o->synthetic, &l->model, err)
                       : sl_model_load(l->be, o->dir, &mo, &l->model, err);
    sl_local_progress_end(&progress);
    l->load_s = (double)(sl_now_ns() - t0) / 1e9;
    l->max_context = o->max_context;
    return st;
}

sl_status sl_local_open_store(sl_local *l, const sl_local_opts *o, sl_err *err)
{
    const sl_local_checkpoint *c = &l->checkpoint;
    sl_geometry g;
    sl_layout layout;
    l->n_pages = sl_pages_for(l->max_context);
    l->pages = calloc((size_t)l->n_pages, sizeof *l->pages);
    if (!l->pages)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a table of %d pages", l->n_pages);
    for (int32_t i = 0; i < l->n_pages; i++)
        l->pages[i] = i;
    SL_TRY(sl_choose_layout(o->layout, sl_backend_caps(l->be), &layout, err));
    l->algorithm = o->algorithm ? o->algorithm : c->cfg.index.blocks.tokens > 0 ? &sl_algo_msa : &sl_algo_dsa;
    sl_cache_dims cache = sl_engine_cache_dims(&c->cfg, c->row_format, c->index_format);
    cache.select = l->select = o->select;
    SL_TRY(
        sl_engine_geometry(&c->cfg, &cache, l->algorithm, layout, sl_model_fingerprint(l->model), &g, err));
    sl_arena_opts ao = {.bytes =
                            o->store_bytes ? o->store_bytes : (uint64_t)l->n_pages * (uint64_t)g.page_bytes,
                        .huge_pages = SL_AUTO,
                        .lock = SL_OFF,
                        .numa_node = -1};
    return sl_arena_create(&g, &ao, &l->arena, err);
}

sl_status sl_local_open(sl_local *l, const sl_local_opts *o, sl_err *err)
{
    SL_TRY(sl_local_open_backend(l, o, err));
    SL_TRY(sl_local_open_model(l, o, err));
    return sl_local_open_store(l, o, err);
}

void sl_local_borrow(sl_local *l, const sl_local *from, int32_t max_context)
{
    *l = (sl_local){.checkpoint = from->checkpoint,
                    .be = from->be,
                    .model = from->model,
                    .max_context = max_context,
                    .borrowed = true};
}

void sl_local_close_store(sl_local *l)
{
    sl_arena_destroy(l->arena);
    free(l->pages);
    l->arena = NULL;
    l->pages = NULL;
}

void sl_local_close_model(sl_local *l)
{
    sl_local_close_store(l);
    if (!l->borrowed)
        sl_model_destroy(l->model);
    l->model = NULL;
}

void sl_local_close(sl_local *l)
{
    sl_local_close_model(l);
    if (!l->borrowed)
        sl_backend_destroy(l->be);
    *l = (sl_local){0};
}

sl_status sl_local_engine(const sl_local *l, const sl_engine_opts *o, sl_engine **out, sl_err *err)
{
    sl_engine_opts eo = *o;
    eo.algorithm = l->algorithm;
    eo.select = l->select;
    eo.max_seqs = 1;
    eo.max_step_tokens = sl_model_get_opts(l->model)->max_tokens;
    eo.max_context = l->max_context;
    eo.index_pages = eo.row_pages = l->n_pages;
    return sl_engine_create(l->be, l->model, l->arena, &eo, out, err);
}

sl_status sl_local_seq_open(const sl_local *l, sl_engine *engine, sl_residency mode, int32_t context,
                            sl_seq **out, sl_err *err)
{
    return sl_engine_seq_open(engine, mode, l->pages, l->n_pages, context, NULL, out, err);
}
