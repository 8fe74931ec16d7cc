/*
 * Chunks: how many prompt tokens a step may hold when prefill.chunk_tokens is auto. Facts in, a number out; the clock is the
 * caller's. One thread.
 *
 *   somebody waits   another prompt has a place, a request decodes in the same steps, or short prompts have arrived lately; or one
 *                    of these was so in one of the last SL_CHUNK_QUIET_STEPS steps: a step holds what fits into its time (order.h), however many tokens that are
 *   otherwise        the number of tokens that computes the most tokens a second. It begins with SL_CHUNK_USUAL, and the double
 *                    is tried: it stays if it is faster than the step before it by 2 %, and is tried again after SL_CHUNK_HOLD
 *                    steps if not. Only neighbouring steps are compared, because a token takes longer with a longer context.
 *                    A step still ends within SL_CHUNK_QUIET_TIMES its time, for which a prompt that arrives may have to wait
 */
#ifndef SL_WORKER_CHUNK_H
#define SL_WORKER_CHUNK_H

#include "worker/order.h"

enum {
    SL_CHUNK_USUAL = 512,
    SL_CHUNK_MOST = 2048,
    SL_CHUNK_QUIET_STEPS = 8,
    SL_CHUNK_QUIET_TIMES = 4,
    SL_CHUNK_HOLD = 64
};

/* The largest step of a worker, for which it has memory: chunk_tokens, or if that is 0 (auto) SL_CHUNK_MOST; SL_CHUNK_USUAL where
 * more gains nothing (host: the backend computes on CPUs) or where buffers of a group grow with it. */
int32_t sl_chunk_most(int32_t chunk_tokens, bool host, int32_t group_ranks);

typedef struct sl_chunk {
    int32_t most;   /* tokens of a step, > 0 */
    bool automatic; /* else every step may hold `most` */
    /* the rest is zeroed at the beginning */
    int32_t size;  /* of a step while no request waits; 0: SL_CHUNK_USUAL */
    int32_t quiet; /* steps since a request waited, at most SL_CHUNK_QUIET_STEPS */
    int32_t hold;  /* steps until the double is tried again */
    bool trying;   /* size is the double of what was measured */
    double speed;  /* tokens per ns of the step before, of `size` or when trying of its half; 0: none */
} sl_chunk;

/* Sets tokens and, when no request waits, the time of the next step; limit->ns is what a step may take. waits: see above, for this
 * step alone. */
void sl_chunk_next(sl_chunk *c, bool waits, sl_order_limit *limit);
/* The step of `tokens` tokens took `ns`. */
void sl_chunk_measured(sl_chunk *c, int32_t tokens, double ns);

#endif
