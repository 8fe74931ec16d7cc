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
    o->transport = "ucx";
    o->worker_host = "127.0.0.1";
    o->cluster_tag = "sluice";
    o->heartbeat_ms = 200;
    o->dead_after_ms = 2000;
    o->served_name = "sluice";
    o->chat_template = "auto";
    o->policy = "cache_aware";
    o->sources = o->prefetch = true;
    o->directory_bytes = 256u << 20;
    o->max_queue = 256;
    o->request_timeout_ms = 600000;
    o->stage_timeout_ms = 30000;
    o->drain_timeout_ms = 30000;
    o->retries = 3;
    o->host = "127.0.0.1";
    o->http_port = o->grpc_port = -1;
    o->max_body_bytes = 8u << 20;
    o->max_connections = 4096;
    o->max_request_bytes = 256u << 20;
    o->max_unread_bytes = 1u << 20;
    o->handshake_timeout_ms = 10000;
    o->receive_timeout_ms = 30000;
    o->idle_timeout_ms = 120000;
}

/* Of one stream: enough that a client may stop for a moment, and so little that 256 of them fit. */
static uint64_t unread_bytes(uint64_t max_request_bytes)
{
    uint64_t part = max_request_bytes / 256;
    return part < 64 << 10 ? 64 << 10 : part;
}

static void client_opts(const sl_cfg_router *c, sl_router_opts *o)
{
    o->host = c->host;
    o->http_port = c->http_port;
    o->grpc_port = c->grpc_port;
    o->api_key = c->api_key;
    o->keys_file = c->keys_file;
    o->tls_cert = c->tls_cert;
    o->tls_key = c->tls_key;
    o->tls_client_ca = c->tls_client_ca;
    o->max_body_bytes = c->max_body_bytes;
    o->max_request_bytes = c->max_request_bytes;
    o->max_unread_bytes = unread_bytes(c->max_request_bytes);
    o->max_connections = (uint32_t)c->max_connections;
    o->handshake_timeout_ms = (uint32_t)c->client_timeout_ms / 3;
    o->receive_timeout_ms = (uint32_t)c->client_timeout_ms;
    o->idle_timeout_ms = 4 * (uint32_t)c->client_timeout_ms;
    o->traces = c->traces;
}

void sl_router_opts_from_config(const sl_config *c, sl_router_opts *o)
{
    sl_router_opts_default(o);
    o->tls = c->cluster.tls;
    o->worker_host = c->cluster.router_host;
    o->secret = c->cluster.secret;
    o->encrypt = c->cluster.encrypt;
    o->worker_port = c->cluster.router_port;
    o->cluster_tag = c->cluster.tag;
    o->heartbeat_ms = (uint32_t)sl_config_heartbeat_ms(&c->cluster);
    o->dead_after_ms = (uint32_t)c->cluster.dead_after_ms;
    o->model_path = c->model.path;
    o->served_name = c->model.served_name;
    o->max_context = c->model.max_context;
    o->chat_template = c->router.chat_template;
    _Static_assert((int)SL_SHARE_ALL == SL_CFG_SHARE_ALL && (int)SL_SHARE_TENANT == SL_CFG_SHARE_TENANT &&
                       (int)SL_SHARE_NONE == SL_CFG_SHARE_NONE,
                   "the same modes");
    o->share = (sl_share)c->kvstore.share;
    o->parse_special = c->router.parse_special;
    o->policy = c->router.policy;
    const sl_policy *policy = sl_policy_find(c->router.policy);
    o->policy_options = policy ? sl_config_part(c, policy->options) : NULL;
    o->directory_bytes = c->router.directory_bytes;
    o->prefetch = c->kvstore.prefetch != SL_CFG_PREFETCH_OFF;
    o->sources = c->kvstore.workers.enabled;
    o->max_queue = (uint32_t)c->router.max_queue;
    o->request_timeout_ms = (uint32_t)c->router.request_timeout_ms;
    o->stage_timeout_ms = (uint32_t)c->router.stage_timeout_ms;
    o->drain_timeout_ms = (uint32_t)c->router.drain_timeout_ms;
    o->retries = (uint32_t)c->router.retries;
    o->max_output_tokens_default = c->router.max_output_tokens_default;
    client_opts(&c->router, o);
    o->signals = true;
}

sl_status sl_router_create(const sl_config *cfg, const sl_identity *identity, sl_router **out, sl_err *err)
{
    sl_router_opts o;
    if (cfg->kvstore.share == SL_CFG_SHARE_TENANT && !cfg->router.keys_file[0])
        return sl_fail(err, SL_ERR_INVALID,
                       "kvstore.share: tenant needs router.keys_file; without it all callers are one tenant");
    sl_router_opts_from_config(cfg, &o);
    o.identity = identity;
    return sl_router_create_opts(&o, out, err);
}
