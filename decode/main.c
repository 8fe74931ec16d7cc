/* The decode process: creates its parts from the configuration, then serves. */
#include <string.h>

#include "base/log.h"
#include "decode/decode_impl.h"

sl_status sl_decode_main(const sl_config *cfg, const sl_worker_launch *launch, const volatile int *stop,
                         sl_err *err)
{
    sl_parts parts;
    SL_TRY(sl_parts_create(cfg, launch, SL_ROLE_DECODE, &parts, err));
    sl_cfg_mode mode = cfg->sparse_attention.mode;
    sl_decode_opts o = {.role = parts.role,
                        .residency = mode == SL_CFG_MODE_RESIDENT ? SL_RESIDENT : SL_HIERARCHICAL,
                        .row_pages = mode == SL_CFG_MODE_ADAPTIVE ? parts.engine_opts.row_pages : 0,
                        .max_batch = cfg->decode.max_batch,
                        .max_waiting = cfg->decode.max_waiting,
                        .shipping = parts.shipping,
                        .n_tiers = parts.n_tiers,
                        .prefetch = {.policy = cfg->kvstore.prefetch,
                                     .base_ms = (uint32_t)cfg->kvstore.prefetch_timeout_ms,
                                     .ms_per_1024 = (uint32_t)cfg->kvstore.prefetch_token_ms,
                                     .min_tokens = cfg->kvstore.prefetch_min_tokens,
                                     .budget = cfg->kvstore.prefetch_budget},
                        .load_chunk_bytes = cfg->kvstore.load_chunk_bytes,
                        .lend = cfg->kvstore.workers.enabled,
                        .pull = cfg->kvstore.workers.enabled,
                        .pull_timeout_ms = (uint32_t)sl_config_pull_timeout_ms(cfg),
                        .quarantine_ms = 2 * (uint32_t)cfg->cluster.dead_after_ms};
    sl_decode *d = NULL;
    sl_status st = sl_publish_open(cfg, launch, parts.metrics, &o.events, err);
    if (st != SL_OK)
        goto destroy;
    memcpy(o.tiers, parts.tiers, sizeof o.tiers);
    parts.n_tiers = 0; /* sl_decode_create() takes all over */
    st = sl_decode_create(&o, &d, err);
    if (st != SL_OK)
        goto destroy;
    st = sl_decode_run(d, stop, (uint32_t)cfg->router.drain_timeout_ms, err);
destroy:
    sl_log(SL_LOG_INFO, "decode", "stopped", "status=%s", sl_status_name(st));
    sl_decode_destroy(d); /* NULL if create failed */
    sl_parts_destroy(&parts);
    return st;
}
