/* See checkpoint.h. */
#include "local/checkpoint.h"

#include <string.h>

#include "model/checkpoint.h"
#include "model/synthetic.h"

const char *const sl_local_act_names[] = {"f32", "bf16", NULL};

static sl_status choose_formats(sl_local_checkpoint *c, const char *indexer, const char *row_format,
                                sl_err *err)
{
    return sl_model_choose_formats(&c->cfg, c->stored, indexer, row_format, &c->index_format, &c->row_format,
                                   err);
}

sl_status sl_local_checkpoint_read(const char *dir, const char *indexer, const char *row_format,
                                   sl_local_checkpoint *out, sl_err *err)
{
    sl_local_checkpoint c = {.stored = SL_BF16};
    SL_TRY(sl_model_config_load(dir, &c.cfg, err));
    c.has_weights = sl_checkpoint_file_bytes(dir) > 0;
    if (c.has_weights)
        SL_TRY(sl_model_stored_dtype(dir, &c.stored, err));
    SL_TRY(choose_formats(&c, indexer, row_format, err));
    *out = c;
    return SL_OK;
}

sl_status sl_local_checkpoint_dummy(const char *dir, const char *indexer, const char *row_format,
                                    sl_local_checkpoint *out, sl_err *err)
{
    sl_local_checkpoint c = {.dummy = true};
    SL_TRY(sl_model_config_load(dir, &c.cfg, err));
    c.cfg.dir[0] = 0; /* its weights are not read */
    c.stored = sl_model_dummy_dtype(&c.cfg);
    SL_TRY(choose_formats(&c, indexer, row_format, err));
    *out = c;
    return SL_OK;
}

sl_status sl_local_checkpoint_preset(const char *name, const char *indexer, const char *row_format,
                                     sl_local_checkpoint *out, sl_err *err)
{
    sl_local_checkpoint c = {.stored = SL_F8_E4M3};
    SL_TRY(sl_synthetic_config(name, 0, &c.cfg, err));
    SL_TRY(choose_formats(&c, indexer, row_format, err));
    *out = c;
    return SL_OK;
}

sl_status sl_local_act_find(const char *name, sl_dtype stored, sl_dtype *out, sl_err *err)
{
    static const sl_dtype acts[] = {SL_F32, SL_BF16}; /* in the order of the names */
    if (!name || strcmp(name, "auto") == 0) {
        *out = sl_model_auto_act(stored);
        return SL_OK;
    }
    for (size_t i = 0; sl_local_act_names[i]; i++)
        if (strcmp(sl_local_act_names[i], name) == 0) {
            *out = acts[i];
            return SL_OK;
        }
    return sl_fail_unknown(err, "activations", name, sl_local_act_names);
}
