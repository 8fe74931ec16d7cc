/*
 * Runs one request in one process: opens a checkpoint, prefills the prompt in chunks, then decodes, resident or
 * hierarchical. `sluice generate` uses it, and `sluice bench ttft` compares a cluster with it. It uses the same engine
 * and sampler as the workers, and nothing else, so its output is the reference for the output of a cluster.
 *
 * An sl_local_run owns everything in it, including prompt and tokenizer, until sl_local_run_close(). One thread.
 */
#ifndef SL_LOCAL_RUN_H
#define SL_LOCAL_RUN_H

#include "engine/choose.h"
#include "local/open.h"
#include "local/selection.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

/* An algorithm with its parameters and gates, as they were chosen for the model (engine/choose.h). */
typedef struct sl_local_chosen {
    const sl_algo_desc *algorithm;
    sl_select_options select;
    sl_gates gates; /* its dense layers are borrowed */
} sl_local_chosen;

/* The names are those of the registries; NULL or "auto": the checkpoint and the backend decide. */
enum { SL_LOCAL_DRAFTS_MAX = 4 };

/* As in sl_sampling; repetition 0 is 1, off. */
typedef struct sl_local_penalties {
    double presence, frequency, repetition;
} sl_local_penalties;

typedef struct sl_local_run_opts {
    const char *dir, *backend;
    const char *algorithm;
    const sl_local_selection *selection; /* the options of the algorithm; NULL: its defaults */
    const char *indexer, *row_format, *act, *layout, *policy;
    bool dummy;        /* random weights in place of those of dir */
    bool hierarchical; /* the prompt's rows leave the device after prefill */
    bool want_logits, ignore_eos;
    bool poison, count_tiles; /* see sl_engine_opts */
    /* tokens that the MTP layer drafts for a step, 0 to SL_LOCAL_DRAFTS_MAX; the output is the same */
    int32_t draft_tokens;
    int32_t max_new;                                           /* number of tokens to produce */
    int32_t chunk;                                             /* number of prompt tokens per step */
    int32_t hot_rows;                                          /* 0: sl_plan_default_hot_rows() */
    int32_t tail_rows, sink_tokens, recent_tokens, min_tokens; /* see sl_engine_opts */
    int32_t threads;
    int32_t top_k;
    double temperature, top_p, min_p;
    sl_local_penalties penalty;
    uint64_t seed;
    /* Not NULL: a backend and a model that are open (sl_local_borrow()), instead of dir and backend. */
    const sl_local *model;
    const sl_local_chosen *chosen; /* not NULL: instead of algorithm, selection and the gates above */
    int32_t max_context;  /* tokens of the longest prompt and its answer; 0: those of the first prompt */
    sl_coord_probe probe; /* see sparse/sparse.h; seen NULL: none */
} sl_local_run_opts;

typedef struct sl_local_run {
    sl_tokenizer *tok; /* NULL when the prompt was given as ids and the directory has no tokenizer */
    int32_t *prompt, *output;
    size_t n_prompt, n_output;
    float *prompt_logits;       /* [vocab_size]; NULL unless want_logits */
    bool stopped;               /* ended with an end token; else because of max_new */
    uint64_t steps;             /* of decode */
    uint64_t drafted, accepted; /* tokens that were drafted; that stood */
    sl_local local;
    sl_gates gates;
    sl_engine *engine;
    sl_sampler *sampler;
    sl_sampling sampling;
    sl_seq *seq;
    double prefill_s, decode_s;
    sl_engine_stats stats;
} sl_local_run;

/* Loads and opens what r->prompt needs. After a failure, sl_local_run_close() frees the parts that were opened. */
sl_status sl_local_run_open(sl_local_run *r, const sl_local_run_opts *o, sl_err *err);
/* Prefills, then decodes until an end token or max_new tokens. Call it once after opening and after each restart. */
sl_status sl_local_run_request(sl_local_run *r, const sl_local_run_opts *o, sl_err *err);
/* Instead of a request: prefills the prompt, then feeds these tokens whatever the model would choose; seen gets the logits,
 * [vocab_size], after each of them. */
sl_status sl_local_run_follow(sl_local_run *r, const sl_local_run_opts *o, const int32_t *tokens, int32_t n,
                              void (*seen)(void *ctx, int32_t i, const float *logits), void *ctx,
                              sl_err *err);
/* Discards the output and opens an empty sequence for the next prompt, which must have the same length unless
 * max_context is set. */
sl_status sl_local_run_restart(sl_local_run *r, sl_err *err);
void sl_local_run_close(sl_local_run *r);

#endif
