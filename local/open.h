/*
 * A whole model in this process: opens backend, model, host store and engine for `sluice generate`, `sluice verify` and
 * the benchmarks, without cluster, transport or worker.
 *
 * An sl_local owns what it opened until sl_local_close(), which may also be called after a step of the opening failed.
 * Engines belong to the caller, who destroys them first. One thread: the one that runs the engine.
 */
#ifndef SL_LOCAL_OPEN_H
#define SL_LOCAL_OPEN_H

#include "engine/engine.h"
#include "local/checkpoint.h"
#include "model/synthetic.h"

typedef struct sl_local_opts {
    const char *dir; /* of the checkpoint; not used with synthetic */
    /* Not NULL: random weights for l->checkpoint.cfg instead of the weights of dir. */
    const sl_synthetic_opts *synthetic;
    const char *backend;           /* a name of sl_backend_names() */
    const char *act;               /* dtype of the activations, see sl_local_act_find() */
    const sl_algo_desc *algorithm; /* whose planes the store has; NULL: dsa */
    sl_select_options select;      /* its parameters */
    const char *layout;            /* of the host store, see sl_choose_layout() */
    int32_t threads;               /* of the cpu backend; 0: all cores */
    int32_t max_tokens;            /* largest number of tokens of one step */
    int32_t max_logit_rows;        /* largest number of logit rows of one step */
    int32_t max_context;           /* tokens of the longest sequence */
    uint64_t store_bytes; /* size of the host store; 0: pages for one sequence of max_context tokens */
    int device;           /* of the backend */
    sl_comm *comm;        /* the formed group of the model, or NULL; outlives the model */
} sl_local_opts;

typedef struct sl_local {
    sl_local_checkpoint checkpoint;
    sl_backend *be;
    sl_model *model;
    sl_arena *arena;
    const sl_algo_desc *algorithm; /* of the store and of its engines */
    sl_select_options select;
    int32_t *pages, n_pages; /* 0, 1, 2, ...: the page numbers of a sequence that has the whole store */
    int32_t max_context;
    double load_s; /* seconds that loading or making the model took */
    bool borrowed; /* backend and model belong to another sl_local, see sl_local_borrow() */
} sl_local;

/*
 * Runs the three steps below. The caller has filled l->checkpoint before: by sl_local_checkpoint_read(), or for a
 * synthetic model by sl_synthetic_config() and by setting the formats.
 */
sl_status sl_local_open(sl_local *l, const sl_local_opts *o, sl_err *err);
/*
 * Takes checkpoint, backend and model of `from`, which must outlive l; only the third step is left to do. max_context:
 * tokens of the longest sequence, at most that of `from`. For commands that run one model with several stores.
 */
void sl_local_borrow(sl_local *l, const sl_local *from, int32_t max_context);
/* The single steps, in this order, for callers that repeat the later ones. Loading shows its progress on stderr. */
sl_status sl_local_open_backend(sl_local *l, const sl_local_opts *o, sl_err *err);
sl_status sl_local_open_model(sl_local *l, const sl_local_opts *o, sl_err *err);
sl_status sl_local_open_store(sl_local *l, const sl_local_opts *o, sl_err *err);
/* Frees the store; a store for another algorithm can be opened then. */
void sl_local_close_store(sl_local *l);
/* Frees the store and the model; the backend stays open. */
void sl_local_close_model(sl_local *l);
void sl_local_close(sl_local *l);

/*
 * Creates an engine for one sequence of max_context tokens, with device pages for the whole sequence. o: the other
 * options of the engine (hot_rows, policy, gates, ...); the algorithm is that of the store.
 */
sl_status sl_local_engine(const sl_local *l, const sl_engine_opts *o, sl_engine **out, sl_err *err);
/* Opens a sequence of that engine on all pages; context: tokens whose rows the pages already hold. */
sl_status sl_local_seq_open(const sl_local *l, sl_engine *engine, sl_residency mode, int32_t context,
                            sl_seq **out, sl_err *err);

#endif
