/*
 * Options from the configuration, and their defaults. The only file of the router that knows the config
 * table.
 */
#include <string.h>

#include "base/config.h"
#include "router/policies/policy.h"
#include "router/router.h"

void sl_router_opts_default(sl_router_opts *o)
{
    memset(o, 0, sizeof *o);
    o->link.transport = "ucx";
    o->link.host = "127.0.0.1";
    o->link.cluster_tag = "sluice";
    o->link.heartbeat_ms = 200;
    o->link.dead_after_ms = 2000;
    o->model.served_name = "sluice";
    o->model.chat_template = "auto";
    o->placement.policy = "cache_aware";
    o->placement.sources = o->placement.prefetch = true;
    o->placement.directory_bytes = 256u << 20;
    o->request.max_queue = 256;
    o->request.timeout_ms = 600000;
    o->request.stage_timeout_ms = 30000;
    o->drain_timeout_ms = 30000;
    o->request.retries = 3;
    o->front.host = "127.0.0.1";
    o->front.http_port = o->front.grpc_port = -1;
    o->front.max_body_bytes = 8u << 20;
    o->front.max_connections = 4096;
    o->front.max_request_bytes = 256u << 20;
    o->front.max_unread_bytes = 1u << 20;
    o->front.handshake_timeout_ms = 10000;
    o->front.receive_timeout_ms = 30000;
    o->front.idle_timeout_ms = 120000;
}

/* Of one stream: enough that a client may stop for a moment, and so little that 256 of them fit. */
static uint64_t unread_bytes(uint64_t max_request_bytes)
{
    uint64_t part = max_request_bytes / 256;
    return part < 64 << 10 ? 64 << 10 : part;
}

static sl_router_link_opts link_opts(const sl_cfg_cluster *c, sl_router_link_opts o)
{
    o.tls = c->tls;
    o.host = c->router_host;
    o.port = c->router_port;
    o.secret = c->secret;
    o.encrypt = c->encrypt;
    o.cluster_tag = c->tag;
    o.heartbeat_ms = (uint32_t)sl_config_heartbeat_ms(c);
    o.dead_after_ms = (uint32_t)c->dead_after_ms;
    return o;
}

static sl_router_placement_opts placement_opts(const sl_config *c)
{
    _Static_assert((int)SL_SHARE_ALL == SL_CFG_SHARE_ALL && (int)SL_SHARE_TENANT == SL_CFG_SHARE_TENANT &&
                       (int)SL_SHARE_NONE == SL_CFG_SHARE_NONE,
                   "the same modes");
    const sl_policy *policy = sl_policy_find(c->router.policy);
    return (sl_router_placement_opts){.policy = c->router.policy,
                                      .policy_options = policy ? sl_config_part(c, policy->options) : NULL,
                                      .share = (sl_share)c->kvstore.share,
                                      .sources = c->kvstore.workers.enabled,
                                      .prefetch = c->kvstore.prefetch != SL_CFG_PREFETCH_OFF,
                                      .directory_bytes = c->router.directory_bytes};
}

static sl_router_request_opts request_opts(const sl_cfg_router *c)
{
    return (sl_router_request_opts){.max_queue = (uint32_t)c->max_queue,
                                    .timeout_ms = (uint32_t)c->request_timeout_ms,
                                    .stage_timeout_ms = (uint32_t)c->stage_timeout_ms,
                                    .retries = (uint32_t)c->retries,
                                    .max_output_tokens_default = c->max_output_tokens_default};
}

static sl_router_front_opts front_opts(const sl_cfg_router *c)
{
    return (sl_router_front_opts){.host = c->host,
                                  .http_port = c->http_port,
                                  .grpc_port = c->grpc_port,
                                  .api_key = c->api_key,
                                  .keys_file = c->keys_file,
                                  .tls_cert = c->tls_cert,
                                  .tls_key = c->tls_key,
                                  .tls_client_ca = c->tls_client_ca,
                                  .max_body_bytes = c->max_body_bytes,
                                  .max_request_bytes = c->max_request_bytes,
                                  .max_unread_bytes = unread_bytes(c->max_request_bytes),
                                  .max_connections = (uint32_t)c->max_connections,
                                  .handshake_timeout_ms = (uint32_t)c->client_timeout_ms / 3,
                                  .receive_timeout_ms = (uint32_t)c->client_timeout_ms,
                                  .idle_timeout_ms = 4 * (uint32_t)c->client_timeout_ms};
}

void sl_router_opts_from_config(const sl_config *c, sl_router_opts *o)
{
    sl_router_opts_default(o);
    o->link = link_opts(&c->cluster, o->link);
    o->model = (sl_router_model_opts){.path = c->model.path,
                                      .served_name = c->model.served_name,
                                      .max_context = c->model.max_context,
                                      .parse_special = c->router.parse_special,
                                      .chat_template = c->router.chat_template};
    o->placement = placement_opts(c);
    o->request = request_opts(&c->router);
    o->front = front_opts(&c->router);
    o->drain_timeout_ms = (uint32_t)c->router.drain_timeout_ms;
    o->traces = c->router.traces;
    o->signals = true;
}

sl_status sl_router_create(const sl_config *cfg, const sl_identity *identity, sl_router **out, sl_err *err)
{
    sl_router_opts o;
    if (cfg->kvstore.share == SL_CFG_SHARE_TENANT && !cfg->router.keys_file[0])
        return sl_fail(err, SL_ERR_INVALID,
                       "kvstore.share: tenant needs router.keys_file; without it all callers are one tenant");
    sl_router_opts_from_config(cfg, &o);
    o.model.identity = identity;
    return sl_router_create_opts(&o, out, err);
}
