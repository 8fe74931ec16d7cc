/*
 * Traces: which requests come when, how long they are, and which blocks of their prompts are equal. The format is that
 * of Mooncake's published traces, one JSON object on each line:
 *
 *   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 49, …]}
 *
 * timestamp is in ms and does not decrease; hash_ids has one number for each block of 512 tokens of the prompt, the last
 * block may be shorter. Two prompts whose ids are equal up to a block have equal tokens up to there.
 *
 * A text that is not such a trace is refused with the name of the file, the line, the field and the reason.
 *
 * Ownership: a trace owns its arrays; sl_sim_trace_free(). Threads: any; a trace is only read after it was made.
 */
#ifndef SL_SIMULATE_TRACE_H
#define SL_SIMULATE_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum { SL_SIM_BLOCK_TOKENS = 512 };

typedef struct sl_sim_request {
    uint64_t arrival_ns;      /* from the beginning of the trace */
    int32_t input, output;    /* tokens, at least 1 each */
    uint32_t first, n_blocks; /* its blocks: ids[first .. first + n_blocks) */
} sl_sim_request;

typedef struct sl_sim_trace {
    size_t n;
    sl_sim_request *requests; /* [n], in the order of arrival */
    size_t n_ids;
    uint32_t *ids;     /* [n_ids] numbers of blocks, in the order of their first use from 0 */
    uint32_t n_blocks; /* different ones */
} sl_sim_trace;

/* Parses n bytes. name: of the file, for errors. SL_ERR_INVALID, SL_ERR_NO_MEMORY. Nothing is left after an error. */
sl_status sl_sim_trace_parse(const char *text, size_t n, const char *name, sl_sim_trace *out, sl_err *err);
sl_status sl_sim_trace_load(const char *path, sl_sim_trace *out, sl_err *err);
/* t may be zeroed. */
void sl_sim_trace_free(sl_sim_trace *t);
/* Writes the trace in the format above. SL_ERR_IO. */
sl_status sl_sim_trace_write(const sl_sim_trace *t, FILE *to);

/*
 * How a trace is changed before it is replayed. Times are divided by `speed`. copies: as many independent groups of users,
 * each of which sends the whole trace, with blocks of its own and shifted in time by a part of the trace; the load is `copies` times
 * as high. max_requests: only the first ones (0: all), before copying.
 */
typedef struct sl_sim_scale {
    double speed;
    int32_t copies;
    int64_t max_requests;
    uint64_t seed; /* of the shifts */
} sl_sim_scale;

/* SL_ERR_INVALID, SL_ERR_NO_MEMORY. */
sl_status sl_sim_trace_scale(const sl_sim_trace *t, const sl_sim_scale *how, sl_sim_trace *out, sl_err *err);

/*
 * A made-up trace with the statistics of Mooncake's conversation trace (lengths, rate, share of blocks that are used again
 * and how soon), for tests and for machines that do not have the published one. Equal arguments give equal traces.
 * SL_ERR_NO_MEMORY.
 */
sl_status sl_sim_trace_make(size_t n, uint64_t seed, sl_sim_trace *out);

#endif
