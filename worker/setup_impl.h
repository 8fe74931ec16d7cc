/*
 * The parts of sl_parts_create, one file for each subject: setup_device.c (backend, NUMA node, network devices),
 * setup_group.c (the group of this rank), setup_model.c (weights), setup_cache.c (host store, plan, engine),
 * setup_tier.c (storage tiers), setup_bench.c (what benchmarks replace), setup_core.c (address and options of the
 * worker core). setup.c calls them in this order; each needs the results of those before it. Private to worker/.
 */
#ifndef SL_WORKER_SETUP_IMPL_H
#define SL_WORKER_SETUP_IMPL_H

#include "base/log.h"
#include "engine/plan.h"
#include "worker/pinning.h"
#include "worker/select.h"
#include "worker/setup.h"
#include "worker/wanted.h"

/* Phases of the start; names are those of the metric. Weights and pinning go on at the same time where device memory is not host
 * memory. */
typedef enum {
    SL_START_FINGERPRINT,
    SL_START_WEIGHTS,
    SL_START_PINNING,
    SL_START_ENGINE,
    SL_START_PHASES
} sl_start_phase;

typedef struct sl_setup {
    const sl_config *cfg;
    const sl_worker_launch *launch;
    sl_role role;
    const char *comp; /* of the log */
    sl_parts *p;
    sl_model_config mc;  /* set by sl_setup_model */
    sl_model_opts mo;    /* set by sl_setup_model */
    sl_cache_dims cache; /* set by sl_setup_cache */
    sl_pinning *pinning; /* begun by sl_setup_model, ended by sl_setup_arena or after a failure */
    double took_s[SL_START_PHASES];
} sl_setup;

/* Opens the backend; sets p->device. */
sl_status sl_setup_backend(sl_setup *s, sl_err *err);
/* Of a rank of a group: waits until all ranks are there and agree; sets p->group. Else it does nothing. */
sl_status sl_setup_group(sl_setup *s, sl_err *err);
/* The options of the links of this process: transport, secret, times. */
void sl_setup_links(const sl_setup *s, sl_worker_opts *out);
/* Most tokens of a sequence in a decode step: 1, and its drafts. */
int32_t sl_setup_item_tokens(const sl_config *cfg, sl_role role);
/* Most tokens of a step of this role, and most sequences that are open at once. */
int32_t sl_setup_step_tokens(const sl_setup *s);
int32_t sl_setup_seqs(const sl_setup *s);
/* Sets p->numa_node, that of the network cards, and logs which there are. */
void sl_setup_nics(sl_setup *s);
/*
 * Decides the shape of the cache, and checks the settings of the cache against the checkpoint's config. Called by
 * sl_setup_model() before it loads weights. Sets s->cache and the algorithm of p->engine_opts.
 */
sl_status sl_setup_cache(sl_setup *s, sl_err *err);
/* Reads the checkpoint's configuration, decides the formats, loads the weights; sets s->mc, s->mo, p->model. */
sl_status sl_setup_model(sl_setup *s, sl_err *err);
/* Begins to create and pin the host store, while the weights are loaded: needs what sl_setup_cache() has decided, and the
 * fingerprint in s->mo. */
sl_status sl_setup_pin(sl_setup *s, sl_err *err);
/* Waits until it is created. Sets p->arena. */
sl_status sl_setup_arena(sl_setup *s, sl_err *err);
/* The time of a phase: for sluice_start_seconds, and the line of the log at the end. */
void sl_setup_took(sl_setup *s, sl_start_phase phase, double seconds);
/* Whether a store of this many bytes holds a request: of `asked` tokens, or if that is 0 one of a few hundred, at most of the
 * checkpoint's context. SL_ERR_INVALID names kvstore.bytes. */
sl_status sl_setup_check_store(uint64_t bytes, const sl_geometry *g, int32_t max_context, int32_t asked,
                               sl_err *err);
/* Decode workers: reads what tenants may have in the host store and on disk. Sets p->quota and p->has_quota. */
sl_status sl_setup_quota(sl_setup *s, sl_err *err);
/* Decode workers: opens the storage tiers of the configuration in their order. Sets p->tiers and p->n_tiers. */
sl_status sl_setup_tiers(sl_setup *s, sl_err *err);
/* Creates the engine with the memory that is left on the device. Sets p->engine, p->engine_opts and p->runner. */
sl_status sl_setup_engine(sl_setup *s, sl_err *err);
/* Whether this worker can do what section bench of the configuration wants. */
sl_status sl_setup_check_bench(const sl_setup *s, sl_err *err);
/* bench.selection: sets p->drawn and the draw of p->engine_opts; does nothing when it is off. */
sl_status sl_setup_draw(sl_setup *s, const sl_plan *plan, sl_err *err);
/* Fills the options of the worker core; their strings point into s->p, the config and the launch. */
void sl_setup_core(sl_setup *s, sl_worker_opts *out);

#endif
