/*
 * `sluice bench serve`: what clients of a real cluster are served, and the engine's own step in the same seconds. It starts the
 * cluster that a configuration describes, as processes of this host, or uses one that runs (--url), and drives it over gRPC or
 * HTTP with n streams, for one kind of sampling after the other.
 *
 *   column             meaning
 *   ttft_*             from the request to its first token, in ms; all streams begin at once
 *   itl_*              between two tokens of a stream while all streams run, in ms; tokens that arrive together divide the time
 *   served_ms          the time between two steps: seconds of the measurement, by the steps that the decode workers made in them
 *   engine_ms          the mean of sluice_decode_step_seconds in the same time: a step from its inputs to the chosen tokens; with drafting
 *   ratio              served_ms / engine_ms
 *   idle_share         of the device between steps (sluice_decode_idle_seconds_total); empty when the workers do not count it
 *   tokens_per_s       by the decode workers' counter
 *   router_us          processor time of the router for one token, in microseconds; *_cores: processor seconds a second
 *   sent_*             from the end of a step to its tokens being given to the worker's transport, in ms, by
 *                      sluice_decode_tokens_sent_seconds; written_*: from their arrival at the router to the sockets of all clients;
 *                      whole_*: from the end of the step to those sockets, empty where the router and the workers do not share a host
 *
 * With --tokens 1 prompts alone are measured, from the first request to the last answer, and the columns are others: tokens_per_s is
 * what is served, by the workers' counters; chunk_tokens_per_s divides by the time of the steps alone
 * (sluice_prefill_chunk_seconds), of one worker; ratio: the share of the time in which such a step ran.
 *
 * With --drafts 0,1,3 one cluster after the other is started, whose workers draft that many tokens for each step, and further columns are
 *
 *   drafts             model.draft_tokens, 0 to 4 or auto
 *   tokens_a_step      tokens of a request in a step; accepted: drafts of the first place that stood, over those that were made
 *   draft_ms           drafting for a step, which is part of engine_ms
 *   over_plain         tokens_per_s over that of the first cluster, which is 0 drafts in the usual list, with the same streams and sampling
 *
 * Random weights confirm no drafts: with --draft-accept it is drawn from a fixed seed how many stand, and the streams mean nothing.
 *
 * The measurement begins when every stream has a token, and ends after --seconds or when a stream ends.
 */
#ifndef SL_BENCH_SERVE_SERVE_H
#define SL_BENCH_SERVE_SERVE_H

#include <stdio.h>

#include "base/config.h"
#include "bench/cluster.h"
#include "bench/list.h"
#include "bench/page.h"
#include "bench/router/client.h"

/* Returns a process exit code: 0, 1 (failed) or 2 (usage). Call it before a transport exists in this process: it forks. */
int sl_bench_serve_main(int argc, char **argv);

/* ---- private to this folder ---- */

enum { SERVE_SET_MAX = 64, SERVE_WORKERS = 32 };

typedef struct serve_flags {
    const char *config, *url, *api, *streams_list, *modes_list, *prompts, *selection, *csv, *drafts_list,
        *accept;
    const char *sets[SERVE_SET_MAX];
    int n_sets;
    int32_t prompt, tokens, ready_s, grpc_port;
    double seconds;
    bool cached, shared, whole;
    sl_bench_list streams, modes; /* modes: numbers of serve_mode_names */
    /* numbers of serve_draft_names; n 0: as the configuration says, and no columns for them */
    sl_bench_list drafts;
    sl_bench_ask own; /* the sampling of mode "own" */
} serve_flags;

/* The kinds of sampling, NULL-terminated; the last one is "own". */
extern const char *const serve_mode_names[];
/* Values of model.draft_tokens, NULL-terminated. */
extern const char *const serve_draft_names[];
/* Sets the sampling of an ask. */
void serve_mode_set(const serve_flags *f, int mode, sl_bench_ask *a);
/* False: the benchmark ends at once with *exit_code. */
bool serve_flags_parse(serve_flags *f, int argc, char **argv, int *exit_code);
/* Tokens of every prompt that count as cached, in whole pages; 0 without --cached. */
int32_t serve_cached(const serve_flags *f);

/* The cluster that is measured. */
typedef struct serve_target {
    char host[128], model[128];
    int http_port, grpc_port;
} serve_target;

/* What the processes have counted until now, of all decode workers together. */
typedef struct serve_facts {
    uint64_t before_ns,
        after_ns; /* around the reading: a measurement counts both, so a ratio is never too small */
    int decoders;
    double running, tokens, steps, step_s;
    double items, drafted, accepted, draft_s; /* drafted, accepted: of the first place */
    double prompt_tokens, chunks, chunk_s;    /* of prompts: computed, steps with some, their time */
    double idle_s;                            /* < 0: not counted */
    double router_cpu_s, worker_cpu_s;
    sl_bench_histogram sent, written, whole; /* of tokens */
} serve_facts;

/* Reads the pages of the router and of all its workers. */
sl_status serve_facts_get(const serve_target *t, serve_facts *out, sl_err *err);
/* The name under which the model is served. */
sl_status serve_model(serve_target *t, sl_err *err);

typedef struct serve_row {
    int32_t streams, prompt;
    const char *mode, *api;
    sl_bench_load_result load;
    serve_facts from, to; /* the measurement */
    bool all;             /* all streams ran until its end */
    const char *drafts;   /* NULL: no columns for them */
    double plain;         /* tokens_per_s of the first cluster; 0: this is it */
} serve_row;

/* Drives n streams: prompts[i] is that of stream i. The caller frees row->load, also after a failure. */
sl_status serve_point(const serve_flags *f, const serve_target *t, int32_t *const *prompts,
                      const int32_t *lengths, int32_t n, int mode, serve_row *row, sl_err *err);
/* The same for prompts alone; prompts that are in the cache already are an error. */
sl_status serve_prompts(const serve_flags *f, const serve_target *t, int32_t *const *prompts,
                        const int32_t *lengths, int32_t n, serve_row *row, sl_err *err);
void serve_print_prompts_head(FILE *out, bool csv);
void serve_print_prompts(FILE *out, bool csv, const serve_row *r);
double serve_tokens_s(const serve_row *r);
/* A head, and a row: as CSV, or (csv false) for people. */
void serve_print_head(FILE *out, bool csv, bool drafts);
void serve_print_row(FILE *out, bool csv, const serve_row *r);

#endif
