/* What a configuration would fail with at the start of a worker; see select.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "worker/identity.h"
#include "worker/setup_impl.h"

/* Whether the store holds a request: of model.max_context tokens if it is set, else one page of a prompt and one of an
 * answer. */
static sl_status check_store(const sl_config *cfg, const sl_geometry *g, int32_t *context, sl_err *err)
{
    const int64_t pages = (int64_t)(cfg->kvstore.bytes / (uint64_t)g->page_bytes);
    const int32_t least = cfg->model.max_context ? sl_pages_for(cfg->model.max_context) : 2;
    if (pages < least)
        return sl_fail(
            err, SL_ERR_INVALID,
            "kvstore.bytes: %.1f MiB hold %lld pages of %.2f MiB, which is 64 tokens; a request%s needs %d",
            (double)cfg->kvstore.bytes / 1048576, (long long)pages, (double)g->page_bytes / 1048576,
            cfg->model.max_context ? " of model.max_context tokens" : "", least);
    if (pages * SL_PAGE_TOKENS < *context)
        *context = (int32_t)(pages * SL_PAGE_TOKENS);
    return SL_OK;
}

static sl_status check_model(const sl_config *cfg, sl_model_config *mc, int32_t *context, sl_err *err)
{
    sl_dtype stored;
    sl_index_format index;
    sl_row_format rows;
    sl_setup_selection selected;
    sl_geometry g;
    sl_status st = sl_model_config_load(cfg->model.path, mc, err);
    if (st == SL_OK)
        st = sl_setup_stored(cfg, mc, &stored, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "model.path");
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
    SL_TRY(sl_setup_serves(&g, err));
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
