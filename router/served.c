/*
 * The model as clients see it: tokenizer, tokens that end a sequence, context and names, from the checkpoint's files.
 */
#include "router/served.h"

#include <stdlib.h>
#include <string.h>

#include "model/model.h"

static void eos_from_tokenizer(sl_served_model *m)
{
    int32_t eos = sl_tokenizer_eos(m->tok);
    if (eos >= 0)
        m->eos[m->n_eos++] = eos;
}

static sl_status load_config(const char *path, sl_served_model *m, sl_err *err)
{
    sl_model_config *mc = calloc(1, sizeof *mc);
    if (!mc)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = sl_model_config_load(path, mc, err);
    if (!st) {
        for (int i = 0; i < mc->n_eos && m->n_eos < SL_COUNT(m->eos); i++)
            m->eos[m->n_eos++] = mc->eos_ids[i];
        if (!m->context || m->context > mc->max_context)
            m->context = mc->max_context;
        memcpy(m->model_type, mc->family, sizeof mc->family);
        memcpy(m->architecture, mc->architecture, sizeof mc->architecture);
    }
    free(mc);
    return st;
}

static sl_status load(sl_served_model *m, const sl_router_opts *o, sl_tokenizer **own, sl_err *err)
{
    m->context = o->model.max_context;
    if (o->model.tokenizer) {
        m->tok = o->model.tokenizer;
        eos_from_tokenizer(m);
        return SL_OK;
    }
    if (!o->model.path || !*o->model.path)
        return sl_fail(err, SL_ERR_INVALID, "model.path: is not set");
    sl_status st = sl_tokenizer_load(o->model.path, own, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "model.path");
    m->tok = *own;
    SL_TRY(load_config(o->model.path, m, err));
    if (!m->n_eos)
        eos_from_tokenizer(m);
    return SL_OK;
}

sl_status sl_served_model_load(sl_served_model *m, const sl_router_opts *o, sl_tokenizer **own, sl_err *err)
{
    SL_TRY(load(m, o, own, err));
    sl_grammars_opts g = {.tokenizer = m->tok,
                          .vocab = sl_tokenizer_vocab_size(m->tok),
                          .eos = m->eos,
                          .n_eos = m->n_eos,
                          .late = true};
    return sl_grammars_open(&g, &m->grammars, err);
}
