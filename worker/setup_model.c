/* The model of a worker: its formats and its weights. See setup_impl.h. */
#include <stdio.h>

#include "kernels/cache.h"
#include "model/checkpoint.h"
#include "worker/chunk.h"
#include "worker/fit.h"
#include "worker/setup_impl.h"

enum { PROGRESS_LOG_S = 2 };

typedef struct loading {
    const char *comp;
    int32_t rank, ranks; /* of the group; 0 of 1 without one */
    uint64_t logged_ns;
} loading;

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    loading *l = ctx;
    uint64_t now = sl_now_ns();
    if (now - l->logged_ns < PROGRESS_LOG_S * 1000000000ull)
        return;
    l->logged_ns = now;
    sl_log(SL_LOG_INFO, l->comp, "loading", "rank=%d ranks=%d done_mib=%.0f total_mib=%.0f", l->rank,
           l->ranks, (double)done / 1048576, (double)total / 1048576);
}

/* Checks that the weights fit before they are read: loading takes minutes, and would fail only at its end. */
static sl_status check_weights(const sl_setup *s, sl_dtype stored, sl_err *err)
{
    uint64_t bytes = sl_checkpoint_file_bytes(s->cfg->model.path), free_bytes = 0, total = 0;
    char what[64] = "the checkpoint's weights";
    if (s->mo.dummy)
        snprintf(what, sizeof what, "the random weights");
    if (s->mo.ranks > 1) /* a rank loads only a part of them */
        snprintf(what, sizeof what, "the weights of rank %d of %d", s->mo.rank, s->mo.ranks);
    if (s->mo.dummy || s->mo.ranks > 1)
        SL_TRY(sl_model_placed_bytes(s->cfg->model.path, &s->mo, &bytes, err));
    SL_TRY(sl_be_memory(s->p->backend, &free_bytes, &total, err));
    return sl_setup_fit_weights(what, bytes, stored, free_bytes, total, sl_backend_describe(s->p->backend),
                                err);
}

int32_t sl_setup_item_tokens(const sl_config *cfg, sl_role role)
{
    const int32_t drafts = (int32_t)cfg->model.draft_tokens;
    return sl_role_does(role, SL_ROLE_DECODE)
               ? 1 + (drafts < SL_CFG_DRAFTS_AUTO ? drafts : SL_CFG_DRAFTS_AUTO - 1)
               : 1;
}

int32_t sl_setup_step_tokens(const sl_setup *s)
{
    bool host = (sl_backend_caps(s->p->backend) & SL_BE_UNIFIED) != 0;
    int32_t prompts = sl_chunk_most(s->cfg->prefill.chunk_tokens, host, s->launch->group_ranks);
    int32_t batch = s->cfg->decode.max_batch;
    return (sl_role_does(s->role, SL_ROLE_PREFILL) ? prompts : 0) +
           (sl_role_does(s->role, SL_ROLE_DECODE) ? batch * sl_setup_item_tokens(s->cfg, s->role) : 0);
}

int32_t sl_setup_seqs(const sl_setup *s)
{
    int32_t prompts = s->cfg->prefill.max_requests, batch = s->cfg->decode.max_batch;
    return (sl_role_does(s->role, SL_ROLE_PREFILL) ? prompts : 0) +
           (sl_role_does(s->role, SL_ROLE_DECODE) ? batch : 0);
}

/* Sets the sizes of the model's workspace to those of the largest step of this role. */
static void choose_sizes(sl_setup *s)
{
    s->mo.max_tokens = sl_setup_step_tokens(s);
    s->mo.max_logit_rows = sl_setup_seqs(s) * sl_setup_item_tokens(s->cfg, s->role);
    if (s->mo.max_logit_rows > s->mo.max_tokens)
        s->mo.max_logit_rows = s->mo.max_tokens;
}

/* Of a group that of all its ranks. It is known before the weights, so that the host store can be made meanwhile. */
static sl_status set_fingerprint(sl_setup *s, sl_err *err)
{
    uint64_t began = sl_now_ns();
    if (s->p->group)
        s->mo.fingerprint = sl_wgroup_fingerprint(s->p->group);
    else
        SL_TRY(sl_model_identify(s->cfg->model.path, &s->mo, &s->mo.fingerprint, err));
    sl_setup_took(s, SL_START_FINGERPRINT, (double)(sl_now_ns() - began) / 1e9);
    return SL_OK;
}

/*
 * The host store is pinned at the same time where the device has its own memory. Where weights are in host memory, too, whether the
 * store fits is known when they are there.
 */
static sl_status load(sl_setup *s, sl_err *err)
{
    const char *path = s->cfg->model.path;
    SL_TRY(set_fingerprint(s, err));
    if (!(sl_backend_caps(s->p->backend) & SL_BE_UNIFIED))
        SL_TRY(sl_setup_pin(s, err));
    uint64_t began = sl_now_ns();
    loading l = {
        .comp = s->comp, .rank = s->mo.rank, .ranks = s->mo.ranks > 1 ? s->mo.ranks : 1, .logged_ns = began};
    sl_model_opts mo = s->mo;
    mo.progress = on_progress;
    mo.progress_ctx = &l;
    SL_TRY(sl_model_load(s->p->backend, path, &mo, &s->p->model, err));
    double seconds = (double)(sl_now_ns() - began) / 1e9;
    sl_log(SL_LOG_INFO, s->comp, "model", "path=\"%s\" architecture=%s layers=%d weight_mib=%.1f load_s=%.2f",
           path, s->mc.architecture, s->mc.n_layers, (double)sl_model_weight_bytes(s->p->model) / 1048576,
           seconds);
    sl_setup_took(s, SL_START_WEIGHTS, seconds);
    return SL_OK;
}

sl_status sl_setup_model(sl_setup *s, sl_err *err)
{
    const char *path = s->cfg->model.path;
    sl_dtype stored;
    SL_TRY(sl_setup_config(s->cfg, &s->mc, err));
    s->mo.draft = s->mc.n_draft > 0;
    SL_TRY(sl_setup_stored(s->cfg, &s->mc, &stored, err));
    s->mo.dummy = s->cfg->model.load_format == SL_CFG_LOAD_DUMMY;
    if (s->mo.dummy)
        s->mc.dir[0] = 0; /* its weights are not read */
    if (s->mo.dummy)
        sl_log(
            SL_LOG_WARN, s->comp, "random_weights",
            "path=\"%s\" reason=\"model.load_format is dummy: no weights are read, answers have no meaning\"",
            path);
    SL_TRY(sl_setup_formats(s->cfg, &s->mc, stored, &s->mo.index_format, &s->mo.row_format, err));
    s->mo.act = sl_model_auto_act(stored);
    s->mo.rank = s->launch->group_ranks > 1 ? s->launch->group_rank : 0;
    s->mo.ranks = s->launch->group_ranks;
    choose_sizes(s);
    SL_TRY(sl_setup_cache(s, err));
    SL_TRY(check_weights(s, stored, err));
    return load(s, err);
}
