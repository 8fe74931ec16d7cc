/*
 * Runner: a table of the engine's functions that prefill and decode call, so that their protocols can be tested without
 * a model. sl_runner_for_engine() makes the one for production; tests/unit/worker/fake_runner.h has the test double.
 *
 * Semantics, errors and threads of each function are those of the function of the same name in engine/engine.h.
 */
#ifndef SL_WORKER_RUNNER_H
#define SL_WORKER_RUNNER_H

#include "engine/device.h"
#include "engine/engine.h"

typedef struct sl_runner {
    void *impl;
    int32_t vocab, n_layers, max_context, max_step_tokens;
    sl_status (*open)(void *impl, sl_residency r, const int32_t *pages, int32_t n_pages, int32_t n_cached,
                      void **seq, sl_err *err);
    sl_status (*add_pages)(void *impl, void *seq, const int32_t *pages, int32_t n_pages, sl_err *err);
    sl_status (*spill)(void *impl, void *seq, sl_err *err);
    void (*close)(void *impl, void *seq);
    int32_t (*len)(const void *seq);
    void (*seq_stats)(const void *impl, const void *seq, sl_layer_stats *out);
    /* items[i].seq is the sequence that open returned. */
    sl_status (*step)(void *impl, sl_step_item *items, int32_t n, const sl_step_hooks *hooks, sl_err *err);
    void (*stats)(const void *impl, sl_engine_stats *out);
    void (*layer_stats)(const void *impl, sl_layer_stats *out); /* [n_layers] */
    /* Either both are set or both are NULL (engine/device.h). */
    void (*device_layers)(const void *impl, sl_device_layer *out); /* [n_layers] */
    void (*device_pages)(const void *seq, int32_t *row_pages, int32_t *index_pages, int32_t n);
} sl_runner;

/* A runner over an engine and the config of its model; borrows both. */
sl_runner sl_runner_for_engine(sl_engine *e, const sl_model_config *cfg, const sl_engine_opts *opts);

#endif
