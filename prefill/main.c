/* The main function of a prefill worker: makes the parts from the configuration, then serves. */
#include "prefill/prefill.h"

#include "base/log.h"
#include "worker/chunk.h"

/* The time of a step and its fewest tokens, by backend. */
static void bound_steps(sl_prefill_opts *o, bool host)
{
    sl_order_steps s = sl_order_steps_for(o->max_step_ms, o->chunk_tokens, host);
    o->max_step_ms = s.max_ms;
    o->short_step_ms = s.short_ms;
    o->min_step_tokens = s.min_tokens;
    sl_log(SL_LOG_INFO, "prefill", "steps",
           "chunk_tokens=%d max_step_ms=%d short_step_ms=%d min_step_tokens=%d", o->chunk_tokens,
           o->max_step_ms, o->short_step_ms, o->min_step_tokens);
}

sl_status sl_prefill_main(const sl_config *cfg, const sl_worker_launch *launch, const volatile int *stop,
                          sl_err *err)
{
    sl_parts parts;
    SL_TRY(sl_parts_create(cfg, launch, SL_ROLE_PREFILL, &parts, err));
    bool host = (sl_backend_caps(parts.backend) & SL_BE_UNIFIED) != 0;
    sl_prefill_opts o = {.role = parts.role,
                         .chunk_tokens = sl_chunk_most(cfg->prefill.chunk_tokens, host, launch->group_ranks),
                         .automatic = !cfg->prefill.chunk_tokens,
                         .max_step_ms = cfg->prefill.max_step_ms,
                         .max_requests = cfg->prefill.max_requests,
                         .pull_chunk_bytes = sl_config_load_chunk_bytes(&cfg->kvstore),
                         .shipping = parts.shipping,
                         .backend = sl_backend_name(parts.backend),
                         .backend_opts = {.device = parts.device, .threads = 1},
                         .drain_ms = (uint32_t)cfg->cluster.dead_after_ms};
    bound_steps(&o, host);
    sl_prefill *p = NULL;
    sl_status st = sl_prefill_create(&o, &p, err);
    if (st != SL_OK)
        goto destroy;
    st = sl_prefill_run(p, stop, (uint32_t)cfg->router.drain_timeout_ms, err);
destroy:
    sl_parts_stop_listening(&parts);
    sl_log(SL_LOG_INFO, "prefill", "stopped", "status=%s", sl_status_name(st));
    sl_prefill_destroy(p); /* NULL if create failed */
    sl_parts_destroy(&parts);
    return st;
}
