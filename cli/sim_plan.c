/* See sim_plan.h. */
#include "cli/sim_plan.h"

#include "engine/choose.h"
#include "model/sizes.h"
#include "worker/select.h"

static sl_status read_model(sl_sim_plan *p, const sl_config *cfg, sl_err *err)
{
    const char *rows = cfg->model.row_format, *indexer = cfg->model.indexer;
    if (!p->preset) {
        sl_status st = sl_local_checkpoint_read(cfg->model.path, indexer, rows, &p->model, err);
        return st ? sl_fail_in(err, st, "model.path") : SL_OK;
    }
    return sl_local_checkpoint_preset(p->preset, indexer, rows, &p->model, err);
}

static int32_t longest_of(const sl_sim_trace *t, double length)
{
    int64_t most = 0;
    for (size_t i = 0; i < t->n; i++) {
        int64_t n = (int64_t)t->requests[i].input + t->requests[i].output;
        most = n > most ? n : most;
    }
    double scaled = (double)most * length;
    return scaled < INT32_MAX ? (int32_t)scaled : INT32_MAX;
}

static sl_status make(sl_sim_plan *p, uint64_t host_bytes, sl_plan *out, sl_err *err)
{
    p->in.host_bytes = host_bytes;
    p->group.host_bytes = host_bytes;
    return p->group.ranks > 1 ? sl_plan_group_make(&p->group, &p->in, out, err)
                              : sl_plan_make(&p->in, out, err);
}

/* Whether the pools of an engine for decode.max_batch requests of this length fit, as at the start of a worker. */
static sl_status check_device(sl_sim_plan *p, const sl_config *cfg, const sl_plan *plan, sl_err *err)
{
    sl_engine_opts pools = {0};
    const sl_residency mode =
        cfg->sparse_attention.mode == SL_CFG_MODE_RESIDENT ? SL_RESIDENT : SL_HIERARCHICAL;
    sl_status st = sl_plan_pools(plan, mode, cfg->decode.max_batch, p->longest, &pools, err);
    return st ? sl_fail_in(err, st, "--gpu-bytes, with decode.max_batch %d and requests of %d tokens",
                           cfg->decode.max_batch, p->longest)
              : SL_OK;
}

sl_status sl_cli_sim_plan_init(sl_sim_plan *p, const sl_config *cfg, const sl_sim_trace *trace, double length,
                               sl_err *err)
{
    sl_setup_selection selected;
    sl_weight_bytes w;
    sl_plan plan;
    SL_TRY(read_model(p, cfg, err));
    SL_TRY(sl_setup_select(cfg, &p->model.cfg, &selected, err));
    p->longest = longest_of(trace, length);
    if (p->longest > p->model.cfg.max_context)
        p->longest = p->model.cfg.max_context;
    p->in =
        (sl_plan_in){.cfg = &p->model.cfg,
                     .cache = sl_engine_cache_dims(&p->model.cfg, p->model.row_format, p->model.index_format),
                     .algorithm = selected.algorithm,
                     .gates = selected.gates,
                     .hot_rows = sl_config_hot_rows(&cfg->sparse_attention),
                     .tail_rows = cfg->sparse_attention.tail_rows,
                     .max_context = p->longest,
                     .max_step_tokens = cfg->decode.max_batch,
                     .max_seqs = cfg->decode.max_batch,
                     .gpu_bytes = p->gpu_bytes,
                     .reserve_bytes = p->gpu_bytes / 16};
    p->in.cache.select = selected.select;
    p->group = (sl_plan_group){.ranks = cfg->cluster.group[SL_ROLE_DECODE].ranks,
                               .ranks_per_host = 1,
                               .stored = p->model.has_weights || !p->model.cfg.fp8_acts ? p->model.stored
                                                                                        : SL_F8_E4M3,
                               .given_weights = UINT64_MAX};
    SL_TRY(sl_local_act_find(NULL, p->group.stored, &p->group.act, err));
    sl_model_weight_sizes(&p->model.cfg, p->group.stored, p->group.act, &w);
    p->in.weight_bytes = w.replicated + (uint64_t)p->model.cfg.moe.n_routed * w.expert;
    SL_TRY(make(p, UINT64_MAX / 4, &plan, err));
    return check_device(p, cfg, &plan, err);
}

sl_status sl_cli_sim_plan_fits(void *ctx, const sl_sim_opts *o, sl_err *err)
{
    sl_sim_plan *p = ctx;
    sl_plan plan;
    const uint64_t host = o->host_bytes ? o->host_bytes : o->cfg->kvstore.bytes;
    SL_TRY(make(p, host, &plan, err));
    if (plan.host_pages >= sl_pages_for(p->longest))
        return SL_OK;
    return sl_fail(err, SL_ERR_INVALID,
                   "the plan refuses a host store of %.2f GiB: a request of %d tokens takes %.2f GiB",
                   (double)host / (1 << 30), p->longest,
                   (double)sl_pages_for(p->longest) * (double)plan.page_bytes / (1 << 30));
}
