/*
 * See calibrate.h. Queries and keys are observed where a sparse algorithm sees them: the engine runs `dense` with an
 * update function that adds up what it is shown and changes nothing.
 */
#include "local/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/choose.h"
#include "kernels/gqa.h"
#include "local/open.h"
#include "local/progress.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"
#include "sparse/budgets.h"

const char *const sl_calibrate_types[] = {"qk", "k", NULL};

enum { MAX_TEXT = 1 << 30 };

typedef struct calibration {
    sl_algo_desc desc; /* dense, which observes */
    const sl_calibrate_opts *o;
    sl_local local;
    sl_engine *engine;
    int32_t *tokens;
    size_t n_tokens;
    double *sums;      /* [n_layers][kv_heads][head_dim] */
    float *key;        /* [head_dim] */
    sl_curves *curves; /* of budgets */
    bool before_rope;
} calibration;

/* ---- observing ---- */

/* An algorithm's create has no argument of its own: the calibration whose engine is being created. */
static _Thread_local calibration *creating;

static sl_status observed_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    SL_TRY(sl_algo_dense.create(be, d, out, err));
    (*out)->desc = &creating->desc; /* the first member of the calibration */
    return SL_OK;
}

/* Adds |q_c * k_c| for the query heads of the group, the first of which is at q. */
static void add_products(const float *q, const float *k, int32_t group, int32_t dim, double *sums)
{
    for (int32_t h = 0; h < group; h++)
        for (int32_t i = 0; i < dim; i++)
            sums[i] += fabs((double)q[h * dim + i] * (double)k[i]);
}

static void add_key(const float *k, const float *bias, int32_t dim, double *sums)
{
    for (int32_t i = 0; i < dim; i++)
        sums[i] += fabs((double)k[i] + (bias ? (double)bias[i] : 0));
}

/* The row of the step's token t, of one token and all KV heads, in the host pages. */
static const uint8_t *row_of(const sl_algo_call *call, int32_t t)
{
    const sl_seq_tables *s = call->attn->seqs;
    const int32_t pos = s->token_pos[t];
    const int32_t page = s->host_pages[(int64_t)s->token_seq[t] * s->ld + pos / SL_PAGE_TOKENS];
    return call->host_rows.base + page * call->host_rows.page_stride +
           pos % SL_PAGE_TOKENS * call->host_rows.row_stride;
}

static sl_status observe(sl_algo *a, const sl_algo_call *call, sl_err *err)
{
    calibration *c = (calibration *)(uintptr_t)a->desc;
    const sl_attn_gqa *g = &call->attn->gqa;
    const int32_t kv = g->attn.kv_heads, dim = g->attn.dim, group = g->attn.heads / kv;
    (void)err;
    if (c->curves) {
        sl_curves_add(c->curves, call);
        return SL_OK;
    }
    for (int32_t t = 0; t < call->attn->seqs->n_tokens; t++)
        for (int32_t h = 0; h < kv; h++) {
            double *sums = c->sums + ((int64_t)call->attn->layer * kv + h) * dim;
            if (c->before_rope) {
                add_key(g->kv.k + ((int64_t)t * kv + h) * dim,
                        g->kv.key.bias ? g->kv.key.bias + h * dim : NULL, dim, sums);
                continue;
            }
            sl_gqa_key_decode(g->attn.format, kv, dim, row_of(call, t), h, c->key);
            add_products(g->attn.q + ((int64_t)t * g->attn.heads + (int64_t)h * group) * dim, c->key, group,
                         dim, sums);
        }
    return SL_OK;
}

/* ---- running ---- */

static sl_status read_text(calibration *c, sl_err *err)
{
    const sl_calibrate_opts *o = c->o;
    sl_tokenizer *tok = NULL;
    char *text = NULL;
    size_t n = 0;
    SL_TRY(sl_read_file(o->text_path, MAX_TEXT, &text, &n, err));
    sl_status st = sl_tokenizer_load(o->dir, &tok, err);
    if (st == SL_OK)
        st = sl_tokenizer_encode(tok, text, n, 0, &c->tokens, &c->n_tokens, err);
    sl_tokenizer_destroy(tok);
    free(text);
    SL_TRY(st);
    if ((int64_t)c->n_tokens > o->max_tokens)
        c->n_tokens = (size_t)o->max_tokens;
    if (c->n_tokens < (size_t)o->block_tokens)
        return sl_fail(err, SL_ERR_INVALID, "%s: %zu tokens are too few to calibrate on, a block has %d",
                       o->text_path, c->n_tokens, o->block_tokens);
    return SL_OK;
}

static sl_status open_model(calibration *c, sl_err *err)
{
    const sl_calibrate_opts *o = c->o;
    sl_local_checkpoint *m = &c->local.checkpoint;
    SL_TRY(sl_local_checkpoint_read(o->dir, NULL, o->row_format, m, err));
    if (m->cfg.attn.n_kv_heads < 1)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: a model of family %s has no KV heads, whose keys are calibrated", o->dir,
                       m->cfg.family);
    if (o->block_tokens > m->cfg.max_context)
        return sl_fail(err, SL_ERR_INVALID, "blocks of %d tokens exceed the model's context of %d",
                       o->block_tokens, m->cfg.max_context);
    SL_TRY(read_text(c, err)); /* before the weights are loaded */
    c->desc = sl_algo_dense;
    c->desc.name = "calibration";
    c->desc.host_only = true;
    c->desc.create = observed_create;
    c->desc.update = observe;
    sl_local_opts lo = {.dir = o->dir,
                        .backend = "cpu",
                        .act = o->act,
                        .algorithm = &c->desc,
                        .threads = o->threads,
                        .max_tokens = o->block_tokens,
                        .max_logit_rows = 1,
                        .max_context = o->block_tokens};
    SL_TRY(sl_local_open(&c->local, &lo, err));
    const size_t dim = (size_t)m->cfg.attn.v_head_dim;
    c->sums = calloc((size_t)m->cfg.n_layers * (size_t)m->cfg.attn.n_kv_heads * dim, sizeof *c->sums);
    c->key = calloc(dim, sizeof *c->key);
    if (!c->sums || !c->key)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (!o->type)
        SL_TRY(sl_curves_new(m->cfg.n_layers, m->cfg.attn.n_kv_heads, m->cfg.attn.v_head_dim, o->block_tokens,
                             &c->curves, err));
    creating = c;
    sl_status st = sl_local_engine(&c->local, &(sl_engine_opts){.tail_rows = 1}, &c->engine, err);
    creating = NULL;
    return st;
}

static sl_status run_block(calibration *c, int64_t at, sl_err *err)
{
    sl_seq *seq = NULL;
    SL_TRY(sl_local_seq_open(&c->local, c->engine, SL_RESIDENT, 0, &seq, err));
    sl_step_item item = {.seq = seq, .tokens = c->tokens + at, .n_tokens = c->o->block_tokens};
    sl_status st = sl_engine_step(c->engine, &item, 1, NULL, err);
    sl_engine_seq_close(c->engine, seq);
    return st;
}

static sl_status run_text(calibration *c, sl_calibrate_result *out, sl_err *err)
{
    const int32_t block = c->o->block_tokens;
    const int64_t all = (int64_t)c->n_tokens / block * block;
    sl_local_progress p;
    sl_status st = SL_OK;
    sl_local_progress_begin(&p, "calibrating");
    for (int64_t at = 0; at < all && st == SL_OK; at += block) {
        st = run_block(c, at, err);
        sl_local_progress_update(&p, (uint64_t)(at + block), (uint64_t)all, "tokens");
    }
    sl_local_progress_end(&p);
    out->tokens = all;
    return st;
}

static const char *base_name(const char *dir)
{
    const char *slash = strrchr(dir, '/');
    return slash && slash[1] ? slash + 1 : dir;
}

static sl_status write_budgets(calibration *c, const sl_algo_model *of, sl_err *err)
{
    const sl_calibrate_opts *o = c->o;
    float *share = calloc((size_t)of->n_layers * (size_t)of->kv_heads, sizeof *share);
    if (!share)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_curves_shares(c->curves, (sl_budgets_method)o->method, o->budget, o->retrieval, share);
    sl_status st =
        sl_budgets_write(o->output, of, base_name(o->dir), sl_budgets_methods[o->method], share, err);
    free(share);
    return st;
}

static sl_status calibrate(calibration *c, sl_calibrate_result *out, sl_err *err)
{
    SL_TRY(open_model(c, err));
    SL_TRY(run_text(c, out, err));
    const sl_algo_model of = sl_choose_model(&c->local.checkpoint.cfg);
    out->n_layers = of.n_layers, out->kv_heads = of.kv_heads, out->head_dim = of.head_dim;
    if (c->curves)
        return write_budgets(c, &of, err);
    return sl_channels_write(c->o->output, &of, base_name(c->o->dir), c->o->type, out->tokens, c->sums, err);
}

sl_status sl_calibrate(const sl_calibrate_opts *o, sl_calibrate_result *out, sl_err *err)
{
    calibration *c = calloc(1, sizeof *c);
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    c->o = o;
    c->before_rope = o->type && strcmp(o->type, "k") == 0;
    sl_status st = calibrate(c, out, err);
    sl_engine_destroy(c->engine);
    sl_local_close(&c->local);
    sl_curves_free(c->curves);
    free(c->key);
    free(c->sums);
    free(c->tokens);
    free(c);
    return st;
}
