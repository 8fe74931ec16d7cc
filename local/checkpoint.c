/* See checkpoint.h. */
#include "local/checkpoint.h"

#include <string.h>

#include "model/checkpoint.h"

const char *const sl_local_act_names[] = {"f32", "bf16", NULL};

static bool is_auto(const char *name)
{
    return !name || strcmp(name, "auto") == 0;
}

sl_status sl_local_checkpoint_read(const char *dir, const char *indexer, const char *row_format,
                                   sl_local_checkpoint *out, sl_err *err)
{
    const sl_index_format_desc *index = sl_index_format_find(indexer);
    const sl_row_format_desc *rows = sl_row_format_find(row_format);
    sl_local_checkpoint c = {.stored = SL_BF16};
    if (!index && !is_auto(indexer))
        return sl_fail_unknown(err, "indexer", indexer, sl_index_format_names());
    if (!rows && !is_auto(row_format))
        return sl_fail_unknown(err, "row format", row_format, sl_row_format_names());
    SL_TRY(sl_model_config_load(dir, &c.cfg, err));
    c.has_weights = sl_checkpoint_file_bytes(dir) > 0;
    if (c.has_weights)
        SL_TRY(sl_model_stored_dtype(dir, &c.stored, err));
    sl_model_auto_formats(&c.cfg, c.stored, &c.index_format, &c.row_format);
    if (index)
        c.index_format = index->format;
    if (rows)
        c.row_format = rows->format;
    *out = c;
    return SL_OK;
}

sl_status sl_local_act_find(const char *name, sl_dtype stored, sl_dtype *out, sl_err *err)
{
    if (is_auto(name))
        *out = stored == SL_F32 ? SL_F32 : SL_BF16;
    else if (strcmp(name, "f32") == 0)
        *out = SL_F32;
    else if (strcmp(name, "bf16") == 0)
        *out = SL_BF16;
    else
        return sl_fail_unknown(err, "activations", name, sl_local_act_names);
    return SL_OK;
}
