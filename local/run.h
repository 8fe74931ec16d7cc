/*
 * One request in one process: the machinery behind `sluice generate`. Opens backend, model, arena and engine, and
 * runs the request.
 */
#ifndef SL_LOCAL_RUN_H
#define SL_LOCAL_RUN_H

#include "local/checkpoint.h"
#include "engine/engine.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

typedef struct sl_generate_opts {
    const char *dir, *algorithm, *backend_name;
    int32_t max_new, top_k, hot_rows, tail_rows, chunk, sinks, recent, min_tokens, threads;
    int mode, policy, indexer, rows, act, layout, backend; /* indices of the flags' choices */
    bool want_logits, json, ignore_eos, poison;
    double temperature, top_p, min_p;
    uint64_t seed;
} sl_generate_opts;

typedef struct sl_gen {
    sl_tokenizer *tok; /* NULL when the directory has none and ids were given */
    int32_t *prompt, *output;
    size_t n_prompt, n_output;
    float *prompt_logits; /* [vocab_size], when wanted */
    bool stopped;         /* at an end token; else at max_new */
    sl_cli_model m;
    sl_backend *be;
    sl_model *model;
    sl_arena *arena;
    sl_engine *engine;
    sl_sampler *sampler;
    sl_sampling sampling;
    sl_seq *seq;
    double load_s, prefill_s, decode_s;
    sl_engine_stats stats;
} sl_gen;

/* Loads everything for g->prompt. On failure sl_gen_close still frees what there is. */
sl_status sl_gen_open(sl_gen *g, const sl_generate_opts *o, sl_err *err);
sl_status sl_gen_run(sl_gen *g, const sl_generate_opts *o, sl_err *err);
void sl_gen_close(sl_gen *g);

#endif
