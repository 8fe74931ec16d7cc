/* See dummy.h. */
#include "model/dummy.h"

#include <stdlib.h>

#include "model/model_impl.h"
#include "model/synthetic.h"

/* Part of the fingerprint. Another seed makes other weights; nothing needs two of them. */
static const sl_synthetic_opts synth = {.ranks = 1, .seed = 0x736c756963650001};

sl_dtype sl_model_dummy_dtype(const sl_model_config *cfg)
{
    return cfg->quant.f8_acts ? SL_F8_E4M3 : SL_BF16;
}

/* The config of the directory, which the caller frees. */
static sl_status read_config(const char *dir, const sl_model_opts *opts, sl_model_config **out, sl_err *err)
{
    if (opts->fp8_acts == SL_FP8_ACTS_OFF)
        return sl_fail(err, SL_ERR_INVALID, "%s: random weights with fp8_acts off", dir);
    sl_model_config *c = calloc(1, sizeof *c);
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: no memory", dir);
    sl_status rc = sl_model_config_load(dir, c, err);
    if (rc == SL_OK && opts->draft)
        rc = sl_model_config_draft(c, err);
    c->dir[0] = 0;
    if (rc != SL_OK)
        free(c);
    else
        *out = c;
    return rc;
}

sl_status sl_dummy_identify(const char *dir, const sl_model_opts *opts, sl_key *out, uint64_t *bytes,
                            sl_err *err)
{
    sl_model_config *c = NULL;
    uint64_t all = 0;
    SL_TRY(read_config(dir, opts, &c, err));
    sl_status rc = sl_synthetic_bytes(c, opts, &synth, &all, err);
    if (rc != SL_OK)
        goto free_config;
    *out = sl_fingerprint_dummy(c, opts, synth.seed);
    if (bytes)
        *bytes = all;
free_config:
    free(c);
    return rc == SL_OK ? SL_OK : sl_fail_in(err, rc, "%s", dir);
}

sl_status sl_dummy_load(sl_backend *be, const char *dir, const sl_model_opts *opts, sl_model **out,
                        sl_err *err)
{
    sl_model_config *c = NULL;
    SL_TRY(read_config(dir, opts, &c, err));
    sl_status rc = sl_model_synthetic(be, c, opts, &synth, out, err);
    if (rc == SL_OK)
        (*out)->fingerprint = sl_fingerprint_dummy(c, opts, synth.seed);
    free(c);
    return rc == SL_OK ? SL_OK : sl_fail_in(err, rc, "%s", dir);
}
