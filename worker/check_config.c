/* What a configuration would fail with at the start of a worker; see select.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "kvstore/snapshot.h"
#include "worker/identity.h"
#include "worker/setup_impl.h"

/* Fewer tokens than this are not a context that anybody wants: a store that holds fewer is a mistake in its size. */
enum { LEAST_TOKENS = 512 };

sl_status sl_setup_check_store(uint64_t bytes, const sl_geometry *g, int32_t max_context, int32_t asked,
                               sl_err *err)
{
    const int64_t pages = (int64_t)(bytes / (uint64_t)g->page_bytes);
    const int32_t tokens = asked ? asked : max_context < LEAST_TOKENS ? max_context : LEAST_TOKENS;
    const sl_snapshot_places at = sl_snapshot_place(sl_snapshot_pages(g), tokens, 0);
    if (pages >= at.n)
        return SL_OK;
    return sl_fail(
        err, SL_ERR_INVALID,
        "kvstore.bytes: %.1f MiB hold %lld pages of %.2f MiB, which is 64 tokens; a request of %s%d tokens "
        "needs %d%s",
        (double)bytes / 1048576, (long long)pages, (double)g->page_bytes / 1048576,
        asked ? "model.max_context, " : "", tokens, at.n,
        at.end >= 0 ? ", with the snapshots of its states" : "");
}

/* *context is lowered to what the store holds. */
static sl_status check_store(const sl_config *cfg, const sl_geometry *g, int32_t *context, sl_err *err)
{
    const int64_t pages = (int64_t)(cfg->kvstore.bytes / (uint64_t)g->page_bytes),
                  tokens = (pages - 2 * sl_snapshot_pages(g)) * SL_PAGE_TOKENS;
    SL_TRY(sl_setup_check_store(cfg->kvstore.bytes, g, *context, cfg->model.max_context ? *context : 0, err));
    if (tokens < *context)
        *context = (int32_t)tokens;
    return SL_OK;
}

static sl_status check_model(const sl_config *cfg, sl_model_config *mc, int32_t *context, sl_err *err)
{
    sl_dtype stored;
    sl_index_format index;
    sl_row_format rows;
    sl_setup_selection selected;
    sl_geometry g;
    SL_TRY(sl_setup_config(cfg, mc, err));
    sl_status st = sl_setup_stored(cfg, mc, &stored, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "model.path");
    if (cfg->model.load_format == SL_CFG_LOAD_DUMMY)
        mc->dir[0] = 0; /* its weights are not read */
    SL_TRY(sl_setup_formats(cfg, mc, stored, &index, &rows, err));
    SL_TRY(sl_setup_select(cfg, mc, &selected, err));
    *context = cfg->model.max_context && cfg->model.max_context < mc->max_context ? cfg->model.max_context
                                                                                  : mc->max_context;
    sl_plan_in in = {.cfg = mc,
                     .cache = sl_engine_cache_dims(mc, rows, index),
                     .algorithm = selected.algorithm,
                     .gates = selected.gates,
                     .tail_rows = cfg->sparse_attention.tail_rows,
                     .max_step_tokens = cfg->decode.max_batch,
                     .max_seqs = cfg->decode.max_batch};
    in.cache.select = selected.select;
    SL_TRY(sl_algo_serves(selected.algorithm, &in.cache, err));
    SL_TRY(sl_engine_geometry(mc, &in.cache, selected.algorithm, SL_LAYOUT_PAGE_FIRST, (sl_key){0}, &g, err));
    SL_TRY(check_store(cfg, &g, context, err));
    return cfg->sparse_attention.mode == SL_CFG_MODE_RESIDENT ? SL_OK : sl_setup_check_hot(cfg, mc, &in, err);
}

sl_status sl_worker_check_config(const sl_config *cfg, int32_t *context, sl_err *err)
{
    if (!cfg->model.path[0])
        return sl_fail(err, SL_ERR_INVALID, "model.path: is not set");
    sl_model_config *mc = calloc(1, sizeof *mc);
    if (!mc)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = check_model(cfg, mc, context, err);
    free(mc);
    return st;
}
