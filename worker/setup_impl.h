/*
 * The parts of sl_parts_create, one file for each subject: setup_device.c (backend, NUMA node, network devices),
 * setup_model.c (formats, weights), setup_cache.c (host store, plan, engine), setup_core.c (address and options of the
 * worker core). setup.c calls them in this order; each needs those before it. Not for other rooms.
 */
#ifndef SL_WORKER_SETUP_IMPL_H
#define SL_WORKER_SETUP_IMPL_H

#include "base/log.h"
#include "worker/setup.h"

typedef struct sl_setup {
    const sl_config *cfg;
    const sl_worker_launch *launch;
    sl_role role;
    const char *comp; /* of the log */
    sl_parts *p;
    sl_model_config mc;  /* by sl_setup_model */
    sl_model_opts mo;    /* by sl_setup_model */
    sl_cache_dims cache; /* by sl_setup_cache */
} sl_setup;

/* Opens the backend; sets p->device. */
sl_status sl_setup_backend(sl_setup *s, sl_err *err);
/* Sets p->numa_node and p->devices, "auto" by the network devices of this host. */
void sl_setup_nics(sl_setup *s);
/* Decides the shape of the cache and checks what the configuration says of it against the checkpoint's configuration;
 * sl_setup_model() calls it before it loads weights. Sets s->cache and the algorithm of p->engine_opts. */
sl_status sl_setup_cache(sl_setup *s, sl_err *err);
/* Reads the checkpoint's configuration, decides the formats, loads the weights; sets s->mc, s->mo, p->model. */
sl_status sl_setup_model(sl_setup *s, sl_err *err);
/* The formats of the cache: as configured; "auto" is what the checkpoint, whose weights are stored as `stored`, asks
 * for. Together with the activations' type they are part of a worker's identity. */
sl_status sl_setup_formats(const sl_config *cfg, const sl_model_config *mc, sl_dtype stored,
                           sl_index_format *index, sl_row_format *row, sl_err *err);
static inline sl_dtype sl_setup_activations(sl_dtype stored)
{
    return stored == SL_F32 ? SL_F32 : SL_BF16;
}
/* The host store. Sets p->arena. */
sl_status sl_setup_arena(sl_setup *s, sl_err *err);
/* The engine, with what the device has left. Sets p->engine, p->engine_opts and p->runner. */
sl_status sl_setup_engine(sl_setup *s, sl_err *err);
/* Options of the worker core; strings point into s->p, the config and the launch. */
sl_status sl_setup_core(sl_setup *s, sl_worker_opts *out, sl_err *err);

#endif
