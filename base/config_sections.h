/*
 * The sections of the configuration file: one struct for each, with a member for each of its keys. The comment of a section names the
 * rooms to which it belongs. A function that needs one section takes a pointer to it, not the whole configuration. What a key means and
 * which values it may have is in its row of base/config_table.c. Plain values; base/config.h says how they are read.
 */
#ifndef SL_BASE_CONFIG_SECTIONS_H
#define SL_BASE_CONFIG_SECTIONS_H

#include "base/log.h"
#include "base/msg.h"
#include "base/options.h"

enum {
    SL_CFG_PATH_BYTES = 1024,
    SL_CFG_NAME_BYTES = 256,
    SL_CFG_CHOICE_BYTES = SL_OPTION_CHOICE_BYTES,
    SL_CFG_MAX_RANKS = 1024,
    SL_CFG_MAX_ROUTERS = 16,
    SL_CFG_MAX_QUOTAS = 65, /* of 64 tenants and of the others */
    SL_CFG_MAX_TIERS = 8,
    SL_CFG_ITEM_BYTES = SL_OPTION_ITEM_BYTES,
    SL_CFG_MAX_LAYERS = 512
};

/*
 * A choice is a key whose value is the name of one implementation: backend, row format, placement policy and others.
 * The names that exist are not known here but in the registry of the room that owns the choice. The program binds its
 * keys to those registries once, before the first configuration is initialised (sl_config_bind).
 */
typedef char sl_cfg_choice[SL_CFG_CHOICE_BYTES];

/* Enumerations of the configuration file. A value is the index of its name in the row of the table. */
/* A number of tokens, or as many as pay. */
typedef enum { SL_CFG_DRAFTS_NONE, SL_CFG_DRAFTS_AUTO = 5 } sl_cfg_drafts;
typedef enum { SL_CFG_LOAD_AUTO, SL_CFG_LOAD_DUMMY } sl_cfg_load;
typedef enum { SL_CFG_MODE_RESIDENT, SL_CFG_MODE_HIERARCHICAL, SL_CFG_MODE_ADAPTIVE } sl_cfg_mode;
typedef enum { SL_CFG_TRI_AUTO, SL_CFG_TRI_ON, SL_CFG_TRI_OFF } sl_cfg_tristate;
/* Whom processes serve beyond loopback without a secret or a key, if the configuration says so. */
typedef enum { SL_CFG_WORKERS, SL_CFG_CLIENTS, SL_CFG_EVENTS, SL_CFG_EXPOSED_COUNT } sl_cfg_exposed;
typedef sl_role sl_cfg_role;
typedef enum {
    SL_CFG_VERIFY_OFF,
    SL_CFG_VERIFY_SAMPLED,
    SL_CFG_VERIFY_ALWAYS,
    SL_CFG_VERIFY_ROWS,
} sl_cfg_verify;
typedef enum {
    SL_CFG_PREFETCH_BEST_EFFORT,
    SL_CFG_PREFETCH_TIMEOUT,
    SL_CFG_PREFETCH_WAIT_COMPLETE,
    SL_CFG_PREFETCH_OFF
} sl_cfg_prefetch;
typedef enum {
    SL_CFG_WRITE_THROUGH,
    SL_CFG_WRITE_SELECTIVE,
    SL_CFG_WRITE_SECOND,
    SL_CFG_WRITE_BACK
} sl_cfg_write;
/* The groups of workers of a role. */
typedef struct sl_cfg_group {
    int ranks;                       /* 1, or 0 before sl_config_finish(): every worker has all experts */
    char address[SL_CFG_ITEM_BYTES]; /* where rank 0 of group 0 listens */
} sl_cfg_group;
typedef enum { SL_CFG_SHARE_ALL, SL_CFG_SHARE_TENANT, SL_CFG_SHARE_NONE } sl_cfg_share;

/* Of worker/, which loads the model. Router, bench and cli read the path and the name. */
typedef struct sl_cfg_model {
    char path[SL_CFG_PATH_BYTES];
    /* if it is empty, sl_config_finish() sets the name of the directory of path */
    char served_name[SL_CFG_NAME_BYTES];
    sl_cfg_load load_format;
    sl_cfg_choice indexer;
    sl_cfg_choice row_format;
    int max_context; /* tokens; 0 = from the checkpoint */
    sl_cfg_drafts draft_tokens;
} sl_cfg_model;

/* Of worker/. cli/ reads it where it computes without a worker. */
typedef struct sl_cfg_backend {
    sl_cfg_choice name;
    struct {
        int n, v[SL_CFG_MAX_RANKS];
    } devices;   /* sl_config_device() */
    int threads; /* 0 = all cores */
} sl_cfg_backend;

/* Of worker/, which makes the options of sparse/ and engine/ from it. */
typedef struct sl_cfg_sparse {
    sl_cfg_choice algorithm;
    sl_cfg_mode mode;
    struct {
        int n;
        int v[SL_CFG_MAX_LAYERS];
    } hot_rows; /* sl_config_hot_rows(), and with several by layer: 0 = the default, -1 = all rows on the device */
    int tail_rows;
    int sink_tokens;
    int recent_tokens;
    struct {
        int n;
        int v[SL_CFG_MAX_LAYERS];
    } dense_layers;
    int min_tokens;
    char plugin[SL_CFG_PATH_BYTES]; /* empty: none */
} sl_cfg_sparse;

/* Of worker/ and decode/, which set up the store and its tiers. router/ reads what concerns its directory of pages. */
typedef struct sl_cfg_kvstore {
    uint64_t bytes;
    sl_cfg_choice layout;
    sl_cfg_tristate lock;
    sl_cfg_share share;
    sl_cfg_verify verify;
    uint64_t patrol_rate;
    sl_cfg_prefetch prefetch;
    int load_timeout_ms; /* 0 = sl_config_load_timeout_ms() */
    sl_cfg_write write;
    char prefix[64];
    struct {
        int n;
        char v[SL_CFG_MAX_QUOTAS][SL_CFG_ITEM_BYTES];
    } quotas;
    struct {
        int n;
        char v[SL_CFG_MAX_TIERS][SL_CFG_ITEM_BYTES];
    } required; /* sl_config_requires() */
    struct {
        bool enabled;
    } workers;
} sl_cfg_kvstore;

/* Of cli/, which starts processes by it, and of worker/ and router/, which find each other by it. */
typedef struct sl_cfg_cluster {
    struct {
        int n;
        sl_cfg_role v[SL_CFG_MAX_RANKS];
    } roles; /* by rank */
    sl_cfg_choice shipping;
    char router_host[SL_CFG_NAME_BYTES];
    int router_port; /* 0 = any free port */
    struct {
        int n;
        char v[SL_CFG_MAX_ROUTERS][SL_CFG_ITEM_BYTES];
    } routers; /* "host:port" of each; empty: router_host and router_port */
    char advertise_host[SL_CFG_NAME_BYTES];
    int listen_port; /* workers; 0 = any free port */
    int dead_after_ms;
    int connect_timeout_ms;
    char tls[SL_CFG_NAME_BYTES];
    char tag[SL_CFG_NAME_BYTES];
    char secret_file[SL_CFG_PATH_BYTES];
    char secret[SL_CFG_NAME_BYTES]; /* not a key: sl_config_finish() reads it from secret_file */
    bool encrypt;
    struct {
        int n;
        int v[SL_CFG_EXPOSED_COUNT];
    } insecure; /* of sl_cfg_exposed; sl_config_insecure() */
    struct {
        int n;
        char v[3][SL_CFG_ITEM_BYTES];
    } groups; /* as written; sl_config_finish() makes `group` from them */
    sl_cfg_group group[SL_ROLE_BOTH + 1];
} sl_cfg_cluster;

/* Of prefill/, and of decode/ for workers of role both. */
typedef struct sl_cfg_prefill {
    int chunk_tokens; /* 0 = auto */
    int max_step_ms;  /* -1 = auto; 0 = no bound */
    int max_requests;
} sl_cfg_prefill;

/* Of decode/. */
typedef struct sl_cfg_decode {
    int max_batch;
    uint64_t device_bytes; /* 0 = auto */
} sl_cfg_decode;

/* Of decode/, for workers of role both. */
typedef struct sl_cfg_both {
    int max_stall_ms; /* -1 = auto; 0 = no bound */
} sl_cfg_both;

/* Of router/. Workers read its deadlines. */
typedef struct sl_cfg_router {
    sl_cfg_choice policy;
    uint64_t directory_bytes;
    int max_queue;
    int request_timeout_ms;
    int stage_timeout_ms;
    int retries;
    int drain_timeout_ms;
    char host[SL_CFG_NAME_BYTES];
    int http_port;                   /* 0 = any free port */
    int grpc_port;                   /* 0 = any free port */
    char api_key[SL_CFG_NAME_BYTES]; /* secret; sl_config_finish() also reads it from api_key_file */
    char api_key_file[SL_CFG_PATH_BYTES];
    char keys_file[SL_CFG_PATH_BYTES];
    char tls_cert[SL_CFG_PATH_BYTES];
    char tls_key[SL_CFG_PATH_BYTES];
    char tls_client_ca[SL_CFG_PATH_BYTES];
    uint64_t max_body_bytes;
    uint64_t max_request_bytes;    /* of all requests in flight together */
    int max_output_tokens_default; /* 0 = the rest of the context */
    int max_connections;
    int client_timeout_ms;
    sl_cfg_choice chat_template;
    bool parse_special;
    char traces[SL_CFG_PATH_BYTES];
} sl_cfg_router;

/* Of cli/. */
typedef struct sl_cfg_log {
    sl_log_level level;
    bool json;
} sl_cfg_log;

/* Of worker/. */
typedef struct sl_cfg_metrics {
    char host[SL_CFG_NAME_BYTES];
    int port; /* 0 = off; workers use port + rank */
} sl_cfg_metrics;

/* Of worker/ and decode/; only with SL_CFG_LOAD_DUMMY. */
typedef struct sl_cfg_bench {
    int cached_tokens;                 /* 0 = none */
    char selection[SL_CFG_NAME_BYTES]; /* base/drawn.h */
} sl_cfg_bench;

#endif
