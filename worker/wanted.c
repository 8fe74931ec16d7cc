/* See wanted.h. */
#include "worker/wanted.h"

sl_status sl_setup_stored(const sl_config *cfg, const sl_model_config *mc, sl_dtype *out, sl_err *err)
{
    if (cfg->model.load_format != SL_CFG_LOAD_DUMMY)
        return sl_model_stored_dtype(cfg->model.path, out, err);
    *out = sl_model_dummy_dtype(mc);
    return SL_OK;
}

sl_status sl_setup_formats(const sl_config *cfg, const sl_model_config *mc, sl_dtype stored,
                           sl_index_format *index, sl_row_format *row, sl_err *err)
{
    sl_status st =
        sl_model_choose_formats(mc, stored, cfg->model.indexer, cfg->model.row_format, index, row, err);
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, "model");
}

sl_status sl_setup_config(const sl_config *cfg, sl_model_config *out, sl_err *err)
{
    sl_status st = sl_model_config_load(cfg->model.path, out, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "model.path");
    st = cfg->model.draft_tokens == SL_CFG_DRAFTS_NONE ? SL_OK : sl_model_config_draft(out, err);
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, "model.draft_tokens");
}
