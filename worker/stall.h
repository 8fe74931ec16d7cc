/*
 * Stall: how long the prompt tokens of a step hold the requests back that decode in the same step (role both).
 *
 * The time of a step is divided into two parts: that of the tokens that are decoded, which is estimated from the steps
 * without prompt tokens, and the rest, which the prompt tokens have caused. The rest is the bound's measure and what the
 * pace of prompts (worker/pace.h) is corrected by; so a large batch does not make prompts look slow. Pure functions; the
 * clock is the caller's. One thread.
 */
#ifndef SL_WORKER_STALL_H
#define SL_WORKER_STALL_H

#include <stdbool.h>
#include <stdint.h>

/* Zeroed at the beginning. */
typedef struct sl_stall {
    /* of a token that is decoded; the mean of about the last 32 steps without prompt tokens; 0: none yet */
    double token_ns;
} sl_stall;

/* both.max_stall_ms (-1: chosen by the backend) in milliseconds; 0: no bound. host: as in sl_order_steps_for(). */
int32_t sl_stall_bound_ms(int32_t max_stall_ms, bool host);

/* A step decoded `decoding` > 0 tokens in `ns`, without prompt tokens. */
void sl_stall_decoded(sl_stall *s, int32_t decoding, double ns);

/* The part of a step of `ns` that its prompt tokens have caused, at least a tenth: the estimate of the other part may be old. */
double sl_stall_of_prompts(const sl_stall *s, int32_t decoding, double ns);

/* The time that the prompt tokens of the next step may take, in ns; 0: no bound. bound_ms 0: no bound. */
double sl_stall_max_ns(int32_t bound_ms, int32_t decoding);

#endif
