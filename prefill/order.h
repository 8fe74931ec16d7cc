/*
 * The order of prompts: which prompts a step computes, and how many tokens of each. A pure function of the tokens
 * that the prompts still need.
 *
 * Shortest remaining first, so that a short prompt gets its first token after a step or two, however many long ones there
 * are. Two rules more:
 *
 *   Short steps    A step in which a prompt ends is filled with tokens of other prompts up to half a chunk only. The first
 *                  token of the prompt that ends does not wait for a whole chunk of the others.
 *   Ageing         A prompt that gets nothing counts the tokens that younger prompts get. From SL_PREFILL_PASSED_CHUNKS
 *                  chunks on it is aged. Aged prompts share half of every step, the oldest first, until they end, so
 *                  that no prompt waits without limit.
 *
 * The tokens a model yields do not depend on how prompts share steps (docs/architecture.md, Why the bits agree).
 */
#ifndef SL_PREFILL_ORDER_H
#define SL_PREFILL_ORDER_H

#include <stdint.h>

enum { SL_PREFILL_PASSED_CHUNKS = 8 };

typedef struct sl_prefill_turn {
    int32_t left;   /* tokens still to be computed, > 0 */
    int64_t passed; /* tokens that younger prompts got while it got none; updated */
    int32_t take;   /* out: tokens in this step, 0..left */
} sl_prefill_turn;

/* t[0..n) in order of arrival. Shares out at most `chunk` tokens (> 0), whole pages where a prompt does not end. Returns
 * the tokens of the step, > 0 when n > 0. */
int32_t sl_prefill_order(sl_prefill_turn *t, int32_t n, int32_t chunk);

#endif
