/*
 * Router: the one process clients talk to. Tokenizes, places requests on workers, streams tokens back, and
 * recovers requests whose worker died. One libuv loop on one thread runs everything: the transport (through
 * its event fd), HTTP, gRPC, timers. Only tokenization of large inputs leaves that thread (libuv's pool).
 *
 * Threads: create, run and destroy on the same thread (the transport belongs to it); sl_router_stop from any
 * thread or signal handler. Lifetime: the options' strings and tokenizer are borrowed until destroy.
 *
 * It does not: compute, hold KV pages, know of GPUs, or remember anything across a restart (in-flight
 * requests of a router that dies are lost; workers come back to the next one).
 */
#ifndef SL_ROUTER_ROUTER_H
#define SL_ROUTER_ROUTER_H

#include "base/msg.h"
#include "kvstore/domain.h"

struct sl_config;
struct sl_tokenizer;
typedef struct sl_router sl_router;

/* Towards workers. */
typedef struct sl_router_link_opts {
    const char *transport;    /* "ucx", "loopback" */
    const char *tls, *fabric; /* see transport/transport.h; NULL = default */
    const char *host;         /* listen address for workers */
    int port;                 /* 0 = any */
    const char *secret;       /* of the cluster, as in sl_tp_options; NULL or "": none */
    bool encrypt;             /* messages of workers, as in sl_tp_options */
    const char *cluster_tag;
    uint32_t heartbeat_ms, dead_after_ms;
} sl_router_link_opts;

/* What is served. */
typedef struct sl_router_model_opts {
    const char *path;               /* checkpoint directory: tokenizer.json, config.json */
    const char *served_name;        /* name in /v1/models and HELLO */
    struct sl_tokenizer *tokenizer; /* instead of that of path (borrowed); then config.json is not read */
    int32_t max_context;            /* 0 = from the checkpoint, else from the workers */
    bool parse_special;             /* by default, text of clients may spell special tokens */
    const char *chat_template;      /* "auto", or a name of sl_chat_format_names() */
    /* What workers must be: fingerprint and page geometry (of which the layout does not count). NULL: what the first
     * worker is. Borrowed while the router is created. */
    const sl_identity *identity;
} sl_router_model_opts;

/* Where requests go. */
typedef struct sl_router_placement_opts {
    const char *policy;
    const void *policy_options; /* values of the policy's options, read by create; NULL: its defaults */
    sl_share share;
    bool sources;  /* decode workers fetch pages from each other: RESERVE names one that has them */
    bool prefetch; /* announce waiting requests to decode workers */
    uint64_t directory_bytes; /* memory of core/directory.h */
} sl_router_placement_opts;

/* Bounds of a request. */
typedef struct sl_router_request_opts {
    uint32_t max_queue;
    uint32_t timeout_ms, stage_timeout_ms;
    uint32_t retries;
    int32_t max_output_tokens_default; /* 0 = what is left of the context */
} sl_router_request_opts;

/* Towards clients. */
typedef struct sl_router_front_opts {
    const char *host;               /* of both APIs */
    int http_port, grpc_port;       /* -1 = off, 0 = any */
    const char *api_key;            /* NULL or "" = none */
    const char *keys_file;          /* of tenants (core/tenants.h); NULL or "" = none */
    const char *tls_cert, *tls_key; /* PEM files; NULL or "" = plain */
    const char *tls_client_ca;      /* PEM file; NULL or "" = clients need no certificate */
    uint64_t max_body_bytes;
    uint64_t max_request_bytes; /* of all requests in flight, and what they become */
    uint64_t max_unread_bytes;  /* of one stream whose client does not read */
    uint32_t max_connections;   /* of each protocol; lowered to what the descriptors allow */
    uint32_t handshake_timeout_ms, receive_timeout_ms, idle_timeout_ms;
} sl_router_front_opts;

/* Everything the router needs, without the config file. sl_router_opts_default() gives usable values. */
typedef struct sl_router_opts {
    sl_router_link_opts link;
    sl_router_model_opts model;
    sl_router_placement_opts placement;
    sl_router_request_opts request;
    sl_router_front_opts front;
    uint32_t drain_timeout_ms;
    const char *traces; /* where traces go (trace/traces.h); NULL or "": nowhere */
    bool signals;       /* SIGTERM and SIGINT drain, a second one stops at once */
} sl_router_opts;

void sl_router_opts_default(sl_router_opts *o);
/* Fills o from the configuration; strings are borrowed from cfg. */
void sl_router_opts_from_config(const struct sl_config *cfg, sl_router_opts *o);

/* Loads the tokenizer and listens for workers, HTTP and gRPC. Errors: INVALID (option), IO (address in use,
 * files), and the tokenizer's and transport's. */
sl_status sl_router_create_opts(const sl_router_opts *o, sl_router **out, sl_err *err);
/* The same from the configuration; signals on. cfg must outlive the router. identity as in sl_router_model_opts. */
sl_status sl_router_create(const struct sl_config *cfg, const sl_identity *identity, sl_router **out,
                           sl_err *err);
/* Address workers connect to ("host:port"), for the launcher's broadcast. */
const char *sl_router_worker_address(const sl_router *r);
/* Real ports, -1 when off. */
int sl_router_http_port(const sl_router *r);
int sl_router_grpc_port(const sl_router *r);
/* Serves until stopped and drained. SL_OK after a drain, SL_ERR_DEADLINE when the drain ran out of time. */
sl_status sl_router_run(sl_router *r, sl_err *err);
/* First call: drain (health says no, new requests are refused, running ones finish until drain_timeout_ms,
 * workers are told to drain). Second call: stop now. */
void sl_router_stop(sl_router *r);
void sl_router_destroy(sl_router *r);

#endif
