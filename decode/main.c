/* The decode process: creates its parts from the configuration, then serves. */
#include <string.h>

#include "base/log.h"
#include "decode/decode_impl.h"
#include "decode/pages/publish.h"
#include "worker/chunk.h"
#include "worker/stall.h"

/* How a worker of this role shares its steps out among prompts. */
static sl_prompt_opts prompts_of(const sl_config *cfg, const sl_worker_launch *launch, sl_role role,
                                 bool host)
{
    if (!sl_role_does(role, SL_ROLE_PREFILL))
        return (sl_prompt_opts){0};
    int32_t chunk = sl_chunk_most(cfg->prefill.chunk_tokens, host, launch->group_ranks);
    sl_order_steps steps = sl_order_steps_for(cfg->prefill.max_step_ms, chunk, host);
    sl_prompt_opts o = {.chunk_tokens = chunk,
                        .automatic = !cfg->prefill.chunk_tokens,
                        .max_requests = cfg->prefill.max_requests,
                        .max_step_ms = steps.max_ms,
                        .short_step_ms = steps.short_ms,
                        .min_step_tokens = steps.min_tokens,
                        .max_stall_ms = sl_stall_bound_ms(cfg->both.max_stall_ms, host),
                        .declared = cfg->bench.cached_tokens};
    sl_log(SL_LOG_INFO, sl_role_name(role), "steps",
           "chunk_tokens=%d max_step_ms=%d short_step_ms=%d min_step_tokens=%d max_stall_ms=%d",
           o.chunk_tokens, o.max_step_ms, o.short_step_ms, o.min_step_tokens, o.max_stall_ms);
    return o;
}

sl_status sl_decode_main(const sl_config *cfg, const sl_worker_launch *launch, sl_role role,
                         const volatile int *stop, sl_err *err)
{
    sl_parts parts;
    SL_TRY(sl_parts_create(cfg, launch, role, &parts, err));
    sl_cfg_mode mode = cfg->sparse_attention.mode;
    bool host = (sl_backend_caps(parts.backend) & SL_BE_UNIFIED) != 0;
    sl_decode_opts o = {
        .role = parts.role,
        .prompts = prompts_of(cfg, launch, role, host),
        .residency = mode == SL_CFG_MODE_RESIDENT ? SL_RESIDENT : SL_HIERARCHICAL,
        .row_pages = mode == SL_CFG_MODE_ADAPTIVE ? parts.engine_opts.row_pages - parts.prompt_pages : 0,
        .max_batch = cfg->decode.max_batch,
        .draft_tokens = cfg->model.draft_tokens == SL_CFG_DRAFTS_AUTO ? -1 : (int32_t)cfg->model.draft_tokens,
        .max_waiting = sl_config_max_waiting(&cfg->decode),
        .shipping = parts.shipping,
        .pages = {.n_tiers = parts.n_tiers,
                  .prefetch = {.policy = cfg->kvstore.prefetch == SL_CFG_PREFETCH_OFF
                                             ? SL_CFG_PREFETCH_WAIT_COMPLETE
                                             : cfg->kvstore.prefetch,
                               .base_ms = 100,
                               .ms_per_1024 = 25,
                               .min_tokens = SL_PAGE_TOKENS,
                               .budget = 0.25},
                  .load_chunk_bytes = sl_config_load_chunk_bytes(&cfg->kvstore),
                  .lend = cfg->kvstore.workers.enabled,
                  .pull = cfg->kvstore.workers.enabled,
                  .pull_timeout_ms = (uint32_t)sl_config_load_timeout_ms(cfg)},
        .quarantine_ms = 2 * (uint32_t)cfg->cluster.dead_after_ms};
    sl_decode *d = NULL;
    sl_status st = sl_drawn_parse(cfg->bench.selection, &o.drawn, err);
    if (st == SL_OK)
        st = sl_publish_open(cfg, launch, parts.metrics, &o.pages.events, err);
    if (st != SL_OK)
        goto destroy;
    memcpy(o.pages.tiers, parts.tiers, sizeof o.pages.tiers);
    parts.n_tiers = 0; /* sl_decode_create() takes all over */
    st = sl_decode_create(&o, &d, err);
    if (st != SL_OK)
        goto destroy;
    st = sl_decode_run(d, stop, (uint32_t)cfg->router.drain_timeout_ms, err);
destroy:
    sl_parts_stop_listening(&parts);
    sl_log(SL_LOG_INFO, sl_role_name(role), "stopped", "status=%s", sl_status_name(st));
    sl_decode_destroy(d); /* NULL if create failed */
    sl_parts_destroy(&parts);
    return st;
}
