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

#include "base/config_sections.h"
#include "base/options.h"
#include "base/status.h"

enum {
    SL_CFG_MAX_ROWS = 256,     /* keys, those of all implementations among them */
    SL_CFG_PARTS_BYTES = 16384 /* values of all implementations */
};

/* A member for each section, of the section's name. */
typedef struct sl_config {
    sl_cfg_model model;
    sl_cfg_backend backend;
    sl_cfg_sparse sparse_attention;
    sl_cfg_kvstore kvstore;
    sl_cfg_cluster cluster;
    sl_cfg_prefill prefill;
    sl_cfg_decode decode;
    sl_cfg_both both;
    sl_cfg_router router;
    sl_cfg_log log;
    sl_cfg_metrics metrics;
    sl_cfg_bench bench;
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
bool sl_config_insecure(const sl_cfg_cluster *c, sl_cfg_exposed whom);
/* The GPU that backend.devices gives to an MPI rank, or to a process without one (-1); -1: that of the local rank. */
int sl_config_device(const sl_cfg_backend *c, int rank);
/* Hot rows of every layer; 0: sl_plan_default_hot_rows(), or sparse_attention.hot_rows is by layer. */
int sl_config_hot_rows(const sl_cfg_sparse *c);
bool sl_config_hot_by_layer(const sl_cfg_sparse *c);
/* Whether kvstore.required has this tier. */
bool sl_config_requires(const sl_cfg_kvstore *c, const char *tier);
/* kvstore.load_timeout_ms, or what its 0 stands for. */
int sl_config_load_timeout_ms(const sl_config *cfg);
/* What follows from cluster.dead_after_ms: the interval of heartbeats, of which ten fit, but at least 5 ms. */
int sl_config_heartbeat_ms(const sl_cfg_cluster *c);
/* What follows from decode.max_batch: requests that may wait on a worker for a place in its batch, four times as many. */
int sl_config_max_waiting(const sl_cfg_decode *c);
/* What follows from kvstore.bytes: a load from storage tiers reads 1/64 of them at a time, at most 32 MiB. */
uint64_t sl_config_load_chunk_bytes(const sl_cfg_kvstore *c);

/* The effective values as YAML that can be loaded again, without the values of secrets. This text and those below are
 * malloc'ed; NULL: out of memory. */
char *sl_config_dump(const sl_config *cfg);
/* The commented reference file (configs/reference.yaml) and the reference page (docs/configuration.md). */
char *sl_config_reference_yaml(void);
char *sl_config_reference(void);

#endif
