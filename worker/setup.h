/*
 * Makes the parts of a worker from a complete configuration: backend, model, arena, engine, exporter, and the options
 * of its role. The main functions of prefill and decode call it. It logs the device, the plan, the arena, the NUMA node
 * and the network devices.
 *
 * sl_parts owns everything that was made; sl_parts_destroy() frees it in reverse order. One thread: the one that later
 * runs the engine.
 */
#ifndef SL_WORKER_SETUP_H
#define SL_WORKER_SETUP_H

#include "base/config.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "kvstore/cascade.h"
#include "worker/identity.h"
#include "worker/role.h"
#include "worker/shipping.h"

/* The values that only the launcher of the process knows. */
typedef struct sl_worker_launch {
    const char *routers[SL_WORKER_ROUTERS_MAX]; /* "host:port" each */
    int n_routers;
    const char *name; /* "decode/2": unique in the cluster */
    int rank;         /* of the process in the cluster: metrics port = metrics.port + rank */
    int index;        /* of the worker in its role, the same after a restart; -1: it has none */
    int local_rank;   /* rank on this host: chooses the device when backend.devices names none; -1: unknown */
    /* Of a rank of a group; ranks 0 or 1: the worker is no such rank. group: its number among those of the role. */
    int group, group_rank, group_ranks;
    const volatile int *stop; /* set by a signal; read while the group gets complete; may be NULL */
} sl_worker_launch;

typedef struct sl_parts {
    sl_backend *backend;
    sl_worker_identity identity; /* of a rank of a group */
    char formats[64];            /* their names, of a rank of a group */
    sl_wgroup *group;            /* or NULL */
    sl_model *model;
    sl_arena *arena;
    sl_row_sums *row_sums; /* of roles that decode, with kvstore.verify rows; else NULL */
    uint32_t *drawn;       /* device: sl_coord_draw.keep of bench.selection; NULL: the model selects */
    sl_coord_draw draw;    /* of engine_opts */
    sl_engine *engine;
    sl_engine_opts engine_opts;
    /* of engine_opts.row_pages: of the role both, for prompts that are being computed */
    int64_t prompt_pages;
    int32_t dense_layers[SL_CFG_MAX_LAYERS], hot_rows_layer[SL_CFG_MAX_LAYERS]; /* of engine_opts */
    sl_runner runner;
    sl_metrics *metrics;
    struct sl_exporter *exporter;
    sl_worker_role_opts role; /* for the role's create; points into this struct, the config and the launch */
    sl_cascade_tier tiers[SL_CASCADE_TIERS]; /* of roles that decode, the cheapest first */
    int n_tiers;                             /* 0: none, or their owner is the role now */
    sl_quota_opts quota;                     /* of the decode role */
    bool has_quota;
    sl_worker_ages disk_ages;    /* the disk tier adds to it */
    const sl_shipping *shipping; /* NULL: auto */
    int numa_node, device;       /* number of the backend's device */
    char name[64], metrics_address[128], listen_host[128];
} sl_parts;

/*
 * role: of a worker. *out must not move afterwards. After a failure there is nothing to destroy.
 */
sl_status sl_parts_create(const sl_config *cfg, const sl_worker_launch *launch, sl_role role, sl_parts *out,
                          sl_err *err);
/* Closes the exporter. The first thing that a worker does at its end: what follows may take seconds, when much memory is
 * pinned, and the next process wants the port. */
void sl_parts_stop_listening(sl_parts *p);
void sl_parts_destroy(sl_parts *p);

#endif
