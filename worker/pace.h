/*
 * The pace of prefill: how long the worker takes to compute one token, which grows with the token's context. The
 * scheduler uses it to choose how many tokens fit into prefill.max_step_ms (order.h).
 *
 * The estimate is one number for every SL_PACE_SPAN tokens of context. A finished step corrects the numbers of the
 * contexts that it touched by the measured time divided by the estimated time, each in proportion to its share of the
 * estimated time: a few tokens of a short prompt in a step of long ones say nothing about short prompts. A context that
 * was never measured takes the number of the nearest smaller one, and grows in proportion to the context, which is the
 * fastest growth that an attention can have; so the first step there is too short rather than too long.
 *
 * The speed that the worker reports to the routers is another number, sl_pace_rate: the mean over the last steps, whatever
 * their contexts were.
 *
 * The clock is the caller's: all times are arguments. One thread. The caller frees it with sl_pace_free().
 */
#ifndef SL_WORKER_PACE_H
#define SL_WORKER_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { SL_PACE_SPAN = 128 };

typedef struct sl_pace_span {
    double token_ns; /* 0: not measured yet */
    double share;    /* of the estimated time of the step that is being accounted for; 0 between steps */
} sl_pace_span;

typedef struct sl_pace {
    int32_t n;
    sl_pace_span *span; /* [n], by context / SL_PACE_SPAN */
    double guess_ns;    /* for context 0 until it was measured */
    bool measured;      /* at least one step was */
} sl_pace;

/* Tokens [first, end) of one prompt, computed in one step. */
typedef struct sl_pace_part {
    int32_t first, end;
} sl_pace_part;

/* max_context: in tokens, > 0. guess_ns: time of a token of a short prompt until one was measured, > 0. */
sl_status sl_pace_init(sl_pace *p, int32_t max_context, double guess_ns, sl_err *err);
/* p may be zeroed. */
void sl_pace_free(sl_pace *p);

/* The estimated time in ns of one token whose context is `pos` tokens; > 0. */
double sl_pace_token_ns(const sl_pace *p, int32_t pos);

/* A step that computed part[0..n) took `ns`. */
void sl_pace_measured(sl_pace *p, const sl_pace_part *part, int32_t n, double ns);

/* Tokens and time of the last 32 steps or so: older ones count less. Zeroed at the beginning. */
typedef struct sl_pace_rate {
    double tokens, ns;
} sl_pace_rate;

/* A step that computed `tokens` tokens took `ns`. Returns the mean speed in tokens per second, at least 1. */
uint32_t sl_pace_rate_add(sl_pace_rate *r, double tokens, double ns);

#endif
