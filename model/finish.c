/*
 * What follows the weights of a model, whether they were loaded or made: rope tables, workspace, and whether the backend can run it.
 * Also its end, and what is known of a model that is there.
 */
#include <stdlib.h>

#include "model/model_impl.h"
#include "model/rope.h"

#define ROPE_PIECE 65536 /* positions computed at a time */

sl_status sl_model_check_rank(const sl_model_opts *o, sl_err *err)
{
    if (o->ranks < 0 || o->ranks > SL_COMM_RANKS_MAX || o->rank < 0 || (o->rank && o->rank >= o->ranks))
        return sl_fail(err, SL_ERR_INVALID, "rank %d of %d: a group has 1 to %d ranks", o->rank, o->ranks,
                       SL_COMM_RANKS_MAX);
    return SL_OK;
}

sl_status sl_model_check_opts(const sl_model_opts *o, sl_err *err)
{
    if (o->act != SL_F32 && o->act != SL_BF16)
        return sl_fail(err, SL_ERR_INVALID, "activations: only f32 and bf16 are possible");
    if (o->max_tokens < 1 || o->max_tokens > 1 << 20)
        return sl_fail(err, SL_ERR_INVALID, "max_tokens: %d is not within 1 and %d", o->max_tokens, 1 << 20);
    if (o->max_logit_rows < 0 || o->max_logit_rows > o->max_tokens)
        return sl_fail(err, SL_ERR_INVALID, "max_logit_rows: %d is not within 0 and max_tokens",
                       o->max_logit_rows);
    if (o->max_context < 0)
        return sl_fail(err, SL_ERR_INVALID, "max_context: %d is negative", o->max_context);
    return sl_model_check_rank(o, err);
}

static sl_status load_table(sl_model *m, const sl_model_config *c, float **out, sl_err *err)
{
    size_t row = (size_t)c->attn.qk_rope_head_dim * sizeof(float);
    int32_t piece = c->max_context < ROPE_PIECE ? c->max_context : ROPE_PIECE;
    if (row == 0) /* nothing is rotated */
        return SL_OK;
    sl_status rc = sl_be_alloc(m->be, SL_MEM_DEVICE, row * (size_t)c->max_context, (void **)out, err);
    if (rc != SL_OK)
        return sl_fail_in(err, rc, "rope table for max_context %d", c->max_context);
    float *tmp = malloc(row * (size_t)piece);
    if (!tmp)
        return sl_fail(err, SL_ERR_NO_MEMORY, "no memory for a rope table");
    for (int32_t at = 0; rc == SL_OK && at < c->max_context; at += piece) {
        int32_t n = c->max_context - at < piece ? c->max_context - at : piece;
        sl_rope_table(c, at, n, tmp);
        rc = sl_be_copy(m->be, (uint8_t *)*out + row * (size_t)at, tmp, row * (size_t)n, err);
        if (rc == SL_OK)
            rc = sl_be_sync(m->be, err);
    }
    free(tmp);
    return rc;
}

/* The tables of rotary embeddings: one, or two. */
static sl_status load_rope(sl_model *m, sl_err *err)
{
    SL_TRY(load_table(m, &m->config, &m->cos_sin, err));
    if (!m->config.entries.window)
        return SL_OK;
    sl_model_config *second = malloc(sizeof *second);
    if (!second)
        return sl_fail(err, SL_ERR_NO_MEMORY, "no memory for a rope table");
    *second = m->config;
    second->rope = m->config.entries.rope;
    sl_status rc = load_table(m, second, &m->cos_sin_2, err);
    free(second);
    return rc;
}

sl_status sl_model_finish(sl_model *m, sl_err *err)
{
    SL_TRY(sl_model_check_opts(&m->opts, err));
    SL_TRY(load_rope(m, err));
    SL_TRY(sl_workspace_create(m->be, m->family, &m->config, &m->opts, &m->ws, err));
    sl_status rc = sl_model_ask(m, err);
    return rc == SL_OK ? SL_OK : sl_fail_in(err, rc, "the %s backend cannot run it", sl_backend_name(m->be));
}

void sl_model_destroy(sl_model *m)
{
    if (!m)
        return;
    sl_workspace_free(m->be, &m->ws);
    if (m->cos_sin)
        sl_be_free(m->be, SL_MEM_DEVICE, m->cos_sin);
    if (m->cos_sin_2)
        sl_be_free(m->be, SL_MEM_DEVICE, m->cos_sin_2);
    sl_weights_free(&m->weights);
    sl_checkpoint_close(m->ck);
    free(m);
}

sl_ep_load sl_model_expert_load(const sl_model *m)
{
    return m->expert_load;
}

void sl_model_set_comm(sl_model *m, sl_comm *comm)
{
    SL_CHECK(!comm || (sl_comm_rank(comm) == m->weights.rank && sl_comm_ranks(comm) == m->weights.ranks),
             "a model of rank %d of %d gets another group", m->weights.rank, m->weights.ranks);
    m->opts.comm = comm;
    m->arrives_of = NULL;
}

const sl_model_config *sl_model_get_config(const sl_model *m)
{
    return &m->config;
}

const sl_model_opts *sl_model_get_opts(const sl_model *m)
{
    return &m->opts;
}

sl_key sl_model_fingerprint(const sl_model *m)
{
    return m->fingerprint;
}

uint64_t sl_model_weight_bytes(const sl_model *m)
{
    return m->weights.bytes;
}
