/*
 * Loading of a model from its files: config, weights, what finish.c makes of them, and the fingerprint, in this order; and what is
 * known of a checkpoint without loading it.
 */
#include "model/model_impl.h"

#include <stdlib.h>
#include <string.h>

#include "model/dummy.h"

void sl_model_auto_formats(const sl_model_config *cfg, sl_dtype stored, sl_index_format *index,
                           sl_row_format *row)
{
    *index = stored == SL_F8_E4M3 ? SL_INDEX_OFFICIAL : SL_INDEX_PLAIN;
    *row = stored == SL_F8_E4M3 ? SL_ROW_MLA_FP8 : stored == SL_F32 ? SL_ROW_MLA_F32 : SL_ROW_MLA_BF16;
    if (cfg->index.blocks.tokens > 0 || cfg->index.unit > 0) /* scored by the keys as they are */
        *index = SL_INDEX_PLAIN;
    if (cfg->entries.window) { /* nothing is kept in 8 bits */
        *index = SL_INDEX_PLAIN;
        *row = stored == SL_F32 ? SL_ROW_GQA_F32 : SL_ROW_GQA_BF16;
    } else if (cfg->attn.n_kv_heads > 0)
        *row = stored == SL_F8_E4M3 ? SL_ROW_GQA_FP8 : stored == SL_F32 ? SL_ROW_GQA_F32 : SL_ROW_GQA_BF16;
}

sl_status sl_model_choose_formats(const sl_model_config *cfg, sl_dtype stored, const char *indexer,
                                  const char *row_format, sl_index_format *index, sl_row_format *row,
                                  sl_err *err)
{
    const sl_index_format_desc *i = sl_index_format_find(indexer);
    const sl_row_format_desc *r = sl_row_format_find(row_format);
    if (!i && indexer && strcmp(indexer, "auto") != 0)
        return sl_fail_unknown(err, "indexer", indexer, sl_index_format_names());
    if (!r && row_format && strcmp(row_format, "auto") != 0)
        return sl_fail_unknown(err, "row format", row_format, sl_row_format_names());
    sl_model_auto_formats(cfg, stored, index, row);
    if (i)
        *index = i->format;
    if (r)
        *row = r->format;
    return SL_OK;
}

sl_dtype sl_model_auto_act(sl_dtype stored)
{
    return stored == SL_F32 ? SL_F32 : SL_BF16;
}

sl_status sl_model_stored_dtype(const char *dir, sl_dtype *out, sl_err *err)
{
    uint64_t bytes[SL_ST_DTYPES] = {0};
    sl_checkpoint *ck = NULL;
    sl_status rc = SL_OK;
    SL_TRY(sl_checkpoint_open(dir, &ck, err));
    for (size_t i = 0; i < sl_checkpoint_count(ck); i++) {
        const sl_st_tensor *t = sl_checkpoint_at(ck, i)->t;
        bytes[t->dtype] += t->bytes / sl_st_dtype_bytes(t->dtype);
    }
    static const struct {
        sl_st_dtype st;
        sl_dtype dtype;
    } kinds[] = {
        {SL_ST_F32, SL_F32}, {SL_ST_BF16, SL_BF16}, {SL_ST_F16, SL_F16}, {SL_ST_F8_E4M3, SL_F8_E4M3}};
    size_t best = 0;
    for (size_t i = 1; i < SL_COUNT(kinds); i++)
        if (bytes[kinds[i].st] > bytes[kinds[best].st])
            best = i;
    if (bytes[kinds[best].st] == 0)
        rc = sl_fail(err, SL_ERR_INVALID, "%s: no tensor has a weight dtype (F32, BF16, F16, F8_E4M3)", dir);
    else
        *out = kinds[best].dtype;
    sl_checkpoint_close(ck);
    return rc;
}

/* The options that change the config. */
static sl_status apply_opts(sl_model_config *c, const sl_model_opts *o, sl_err *err)
{
    if (o->fp8_acts == SL_FP8_ACTS_OFF)
        c->fp8_acts = false;
    if (o->max_context && o->max_context < c->max_context)
        c->max_context = o->max_context;
    return o->draft && !c->n_draft ? sl_model_config_draft(c, err) : SL_OK;
}

static sl_status load_parts(sl_model *m, const char *dir, sl_err *err)
{
    SL_TRY(sl_model_config_load(dir, &m->config, err));
    SL_TRY(apply_opts(&m->config, &m->opts, err));
    m->family = sl_family_find(m->config.family);
    SL_TRY(sl_checkpoint_open(dir, &m->ck, err));
    SL_TRY(sl_weights_load(m->be, m->ck, m->family, &m->config, &m->opts, &m->weights, err));
    sl_status rc = sl_model_finish(m, err);
    return rc == SL_OK ? SL_OK : sl_fail_in(err, rc, "%s", dir);
}

sl_status sl_model_load(sl_backend *be, const char *dir, const sl_model_opts *opts, sl_model **out,
                        sl_err *err)
{
    SL_TRY(sl_model_check_opts(opts, err));
    if (opts->dummy)
        return sl_dummy_load(be, dir, opts, out, err);
    sl_model *m = calloc(1, sizeof *m);
    if (!m)
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: no memory", dir);
    m->be = be;
    m->opts = *opts;
    if (opts->comm)
        m->opts.rank = sl_comm_rank(opts->comm), m->opts.ranks = sl_comm_ranks(opts->comm);
    sl_status rc = load_parts(m, dir, err);
    if (rc != SL_OK)
        goto destroy_model;
    bool known = opts->fingerprint.lo | opts->fingerprint.hi;
    m->fingerprint = known ? opts->fingerprint : sl_fingerprint(m->ck, &m->config, opts);
    *out = m;
    return SL_OK;
destroy_model:
    sl_model_destroy(m);
    return rc;
}

/* A checkpoint of which the tensors were found, and not loaded. */
typedef struct view {
    sl_model_config *c;
    sl_checkpoint *ck;
    uint64_t bytes; /* that would be placed */
} view;

static void close_view(view *v)
{
    sl_checkpoint_close(v->ck);
    free(v->c);
}

static sl_status find_tensors(const char *dir, const sl_model_opts *opts, view *v, sl_err *err)
{
    SL_TRY(sl_model_config_load(dir, v->c, err));
    SL_TRY(sl_checkpoint_open(dir, &v->ck, err));
    sl_status st = apply_opts(v->c, opts, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "%s", dir);
    return sl_weights_find(v->ck, sl_family_find(v->c->family), v->c, opts, &v->bytes, err);
}

/* Without an error the caller closes it. */
static sl_status open_view(const char *dir, const sl_model_opts *opts, view *v, sl_err *err)
{
    *v = (view){.c = calloc(1, sizeof *v->c)};
    if (!v->c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: no memory", dir);
    sl_status rc = find_tensors(dir, opts, v, err);
    if (rc != SL_OK)
        close_view(v);
    return rc;
}

sl_status sl_model_identify(const char *dir, const sl_model_opts *opts, sl_key *out, sl_err *err)
{
    view v;
    if (opts->dummy)
        return sl_dummy_identify(dir, opts, out, NULL, err);
    SL_TRY(open_view(dir, opts, &v, err));
    *out = sl_fingerprint(v.ck, v.c, opts);
    close_view(&v);
    return SL_OK;
}

/* shares [ranks]: what each rank of a group loads. */
static void share_experts(const sl_model_config *c, int32_t ranks, sl_share_of_experts *shares)
{
    int32_t first[SL_COMM_RANKS_MAX + 1];
    sl_ep_split(c->moe.n_routed, ranks, first);
    for (int32_t r = 0; r < ranks; r++)
        shares[r] = (sl_share_of_experts){first[r], first[r + 1]};
}

sl_status sl_model_identify_rank(const char *dir, const sl_model_opts *opts, sl_key *out, sl_err *err)
{
    view v;
    sl_share_of_experts shares[SL_COMM_RANKS_MAX];
    SL_TRY(sl_model_check_rank(opts, err));
    if (opts->dummy)
        return sl_dummy_identify(dir, opts, out, NULL, err);
    SL_TRY(open_view(dir, opts, &v, err));
    share_experts(v.c, opts->ranks > 1 ? opts->ranks : 1, shares);
    sl_fingerprints(v.ck, v.c, opts, &shares[opts->rank], 1, out);
    close_view(&v);
    return SL_OK;
}

sl_status sl_model_identify_ranks(const char *dir, const sl_model_opts *opts, sl_key *out, sl_key *prints,
                                  sl_err *err)
{
    view v;
    int32_t ranks = opts->ranks > 1 ? opts->ranks : 1;
    sl_share_of_experts shares[1 + SL_COMM_RANKS_MAX];
    sl_key keys[1 + SL_COMM_RANKS_MAX];
    SL_TRY(sl_model_check_rank(opts, err));
    if (opts->dummy) {
        SL_TRY(sl_dummy_identify(dir, opts, out, NULL, err));
        for (int32_t r = 0; r < ranks; r++)
            prints[r] = *out;
        return SL_OK;
    }
    SL_TRY(open_view(dir, opts, &v, err));
    shares[0] = (sl_share_of_experts){0, v.c->moe.n_routed};
    share_experts(v.c, ranks, shares + 1);
    sl_fingerprints(v.ck, v.c, opts, shares, 1 + ranks, keys);
    close_view(&v);
    *out = keys[0];
    memcpy(prints, keys + 1, sizeof *prints * (size_t)ranks);
    return SL_OK;
}

sl_status sl_model_placed_bytes(const char *dir, const sl_model_opts *opts, uint64_t *out, sl_err *err)
{
    view v;
    sl_key fingerprint;
    if (opts->dummy)
        return sl_dummy_identify(dir, opts, &fingerprint, out, err);
    SL_TRY(open_view(dir, opts, &v, err));
    *out = v.bytes;
    close_view(&v);
    return SL_OK;
}
