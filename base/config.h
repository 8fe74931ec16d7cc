/*
 * Configuration: one table of keys (base/config_table.c), and the options of the implementations that the program has bound
 * (base/options.h). Parsing, `--set key=value`, the dump of effective values, the commented reference file and the reference
 * page are all derived from these. A key of the program itself is a field here and a row there; a key of a sparse
 * algorithm, a tier, a policy or an event sink is in the file of its implementation alone.
 *
 *   sl_config_init(&cfg);                                   all defaults
 *   sl_config_load_file(&cfg, "cluster.yaml", &err);        YAML with nested maps; unknown keys are errors
 *   sl_config_set(&cfg, "decode.max_batch=32", &err);       once for each --set of the user
 *   sl_config_finish(&cfg, &err);                           derived values, and checks that concern several keys
 *
 * Errors name the file and line (or "--set"), the key and the reason, and for an unknown key the most similar known
 * one; the value of a secret is never shown. sl_config is a plain value (about 40 KiB): it has no threads and nothing
 * to free. After sl_config_finish() it is only read. After a failure it may have some of the new values.
 *
 * Bounds that depend on the checkpoint (hot_rows >= index_topk, max_context) are checked by the rooms that load it.
 */
#ifndef SL_BASE_CONFIG_H
#define SL_BASE_CONFIG_H

#include "base/log.h"
#include "base/msg.h"
#include "base/options.h"
#include "base/status.h"

enum {
    SL_CFG_PATH_BYTES = 1024,
    SL_CFG_NAME_BYTES = 256,
    SL_CFG_CHOICE_BYTES = SL_OPTION_CHOICE_BYTES,
    SL_CFG_MAX_RANKS = 1024,
    SL_CFG_MAX_ROUTERS = 16,
    SL_CFG_MAX_QUOTAS = 65, /* of 64 tenants and of the others */
    SL_CFG_MAX_TIERS = 8,
    SL_CFG_ITEM_BYTES = SL_OPTION_ITEM_BYTES,
    SL_CFG_MAX_LAYERS = 512,
    SL_CFG_MAX_ROWS = 256,     /* keys, those of all implementations among them */
    SL_CFG_PARTS_BYTES = 16384 /* values of all implementations */
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

typedef struct sl_config {
    struct {
        char path[SL_CFG_PATH_BYTES];
        /* if it is empty, sl_config_finish() sets the name of the directory of path */
        char served_name[SL_CFG_NAME_BYTES];
        sl_cfg_load load_format;
        sl_cfg_choice indexer;
        sl_cfg_choice row_format;
        int max_context; /* tokens; 0 = from the checkpoint */
        sl_cfg_drafts draft_tokens;
    } model;
    struct {
        sl_cfg_choice name;
        struct {
            int n, v[SL_CFG_MAX_RANKS];
        } devices;   /* sl_config_device() */
        int threads; /* 0 = all cores */
    } backend;
    struct {
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
    } sparse_attention;
    struct {
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
    } kvstore;
    struct {
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
    } cluster;
    struct {
        int chunk_tokens; /* 0 = auto */
        int max_step_ms;  /* -1 = auto; 0 = no bound */
        int max_requests;
    } prefill;
    struct {
        int max_batch;
        uint64_t device_bytes; /* 0 = auto */
    } decode;
    struct {
        int max_stall_ms; /* -1 = auto; 0 = no bound */
    } both;
    struct {
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
    } router;
    struct {
        sl_log_level level;
        bool json;
    } log;
    struct {
        char host[SL_CFG_NAME_BYTES];
        int port; /* 0 = off; workers use port + rank */
    } metrics;
    struct {
        int cached_tokens;                 /* 0 = none */
        char selection[SL_CFG_NAME_BYTES]; /* base/drawn.h */
    } bench;                               /* only with SL_CFG_LOAD_DUMMY */
    /* The options of implementations (sl_config_part), and by row of the table who has set the key: 0 not set, a line of
     * `file`, or --set. */
    _Alignas(16) unsigned char parts[SL_CFG_PARTS_BYTES];
    uint16_t given[SL_CFG_MAX_ROWS];
    char file[SL_CFG_NAME_BYTES];
} sl_config;

/*
 * Binds the configuration to the registries and the implementations of the program, for the whole process. Called once,
 * before other threads run and before the first sl_config_init(); NULL binds none. Both tables end with a NULL key or NULL,
 * and are borrowed. choices: an unknown name of a bound key is refused where it is read, with file, line, key and the known
 * names, and the reference page lists these names; a key that is not bound accepts any name, and the code that uses it
 * looks it up in any case. parts: the options of implementations, which become keys.
 */
void sl_config_bind(const sl_config_choice *choices, const sl_options *const *parts);
/*
 * How sparse_attention.plugin is loaded, as soon as it is read: the object's tables of options become keys, and its algorithms members of
 * the registries that are bound. Called as sl_config_bind(); the tables end with NULL. Without it the key is refused.
 */
typedef sl_status sl_config_plugin_fn(const char *path, const sl_options *const **parts, sl_err *err);
void sl_config_bind_plugin(sl_config_plugin_fn *load);
/* Loads an object without a configuration, for commands whose flags follow from the tables. */
sl_status sl_config_load_plugin(const char *path, sl_err *err);
/* The values of an implementation's options; NULL: it is not bound. */
const void *sl_config_part(const sl_config *cfg, const sl_options *part);
/* Whether the configuration uses this implementation: the seam's key names it, or the key that turns it on is set. */
bool sl_config_uses(const sl_config *cfg, const sl_options *part);
/* SL_ERR_INVALID names file, line and key: an option is set of an implementation that is not used, and of no other. Part of
 * sl_config_finish(). */
sl_status sl_config_check_read(const sl_config *cfg, sl_err *err);
/* The keys of a section that implementations have are read, whichever is used, from here on: sl_config_check_read() sees only what is set
 * later. */
void sl_config_forget_readers(sl_config *cfg, const char *section);
/* The options of all implementations that are used: what they check themselves, then sl_config_check_read(). Part of
 * sl_config_finish(). */
sl_status sl_config_finish_parts(sl_config *cfg, sl_err *err);
/* The first key of the table that is not a choice of the configuration, or else the first choice that is not in the
 * table; NULL: there is neither. */
const char *sl_config_unbound(const sl_config_choice *table);

/* Fills every key with its default. */
void sl_config_init(sl_config *cfg);
/* Applies a YAML file (at most 1 MiB). SL_ERR_NOT_FOUND / SL_ERR_IO for the file, SL_ERR_INVALID for its
 * content. */
sl_status sl_config_load_file(sl_config *cfg, const char *path, sl_err *err);
/* The same from memory; errors name the text `name`. */
sl_status sl_config_load_text(sl_config *cfg, const char *text, size_t n, const char *name, sl_err *err);
/* Applies one "key=value"; lists are comma-separated. */
sl_status sl_config_set(sl_config *cfg, const char *assignment, sl_err *err);
/* Sets derived values (served_name, api_key and secret from their files) and checks rules that concern several keys.
 * Called once, after all of the above. */
sl_status sl_config_finish(sl_config *cfg, sl_err *err);

/* The name of an enumeration's value as the YAML file has it ("hierarchical"). NULL: the key is no enumeration; the
 * value of a choice is already a name. */
const char *sl_config_enum_name(const char *key, int value);

/* Whether cluster.insecure names this. */
bool sl_config_insecure(const sl_config *cfg, sl_cfg_exposed whom);
/* The GPU that backend.devices gives to an MPI rank, or to a process without one (-1); -1: that of the local rank. */
int sl_config_device(const sl_config *cfg, int rank);
/* Hot rows of every layer; 0: sl_plan_default_hot_rows(), or sparse_attention.hot_rows is by layer. */
int sl_config_hot_rows(const sl_config *cfg);
bool sl_config_hot_by_layer(const sl_config *cfg);
/* Whether kvstore.required has this tier. */
bool sl_config_requires(const sl_config *cfg, const char *tier);
/* kvstore.load_timeout_ms, or what its 0 stands for. */
int sl_config_load_timeout_ms(const sl_config *cfg);
/* What follows from cluster.dead_after_ms: the interval of heartbeats, of which ten fit, but at least 5 ms. */
int sl_config_heartbeat_ms(const sl_config *cfg);
/* What follows from decode.max_batch: requests that may wait on a worker for a place in its batch, four times as many. */
int sl_config_max_waiting(const sl_config *cfg);
/* What follows from kvstore.bytes: a load from storage tiers reads 1/64 of them at a time, at most 32 MiB. */
uint64_t sl_config_load_chunk_bytes(const sl_config *cfg);

/* The effective values as YAML that can be loaded again, without the values of secrets. This text and those below are
 * malloc'ed; NULL: out of memory. */
char *sl_config_dump(const sl_config *cfg);
/* The commented reference file (configs/reference.yaml) and the reference page (docs/configuration.md). */
char *sl_config_reference_yaml(void);
char *sl_config_reference(void);

#endif
