/*
 * The order of prompts: which prompts a step computes, and how many tokens of each. A pure function of the tokens
 * that the prompts still need.
 *
 * The prompt with the fewest remaining tokens comes first, so that a short prompt gets its first token after one or two
 * steps, however many long prompts there are. There are two further rules:
 *
 *   Short steps    A step in which a prompt ends is filled with tokens of other prompts only up to half a chunk, so
 *                  that the first token of the prompt that ends does not wait for a whole chunk of the others.
 *   Ageing         A prompt that gets no tokens in a step counts the tokens that younger prompts get. It is aged when
 *                  the count reaches SL_PREFILL_PASSED_CHUNKS chunks. Aged prompts share half of every step, the oldest
 *                  first, until they end, so that no prompt waits without limit.
 *
 * The output of the model does not depend on how prompts share steps (docs/architecture.md, Why the bits agree).
 */
#ifndef SL_PREFILL_ORDER_H
#define SL_PREFILL_ORDER_H

#include <stdint.h>

enum { SL_PREFILL_PASSED_CHUNKS = 8 };

typedef struct sl_prefill_turn {
    int32_t left;   /* tokens still to be computed, > 0 */
    int64_t passed; /* in and out: tokens that younger prompts got while this one got none */
    int32_t take;   /* out: its tokens in this step, 0..left */
} sl_prefill_turn;

/*
 * t[0..n) in order of arrival. Distributes at most `chunk` tokens (> 0); a prompt that does not end in the step gets
 * whole pages. Returns the number of tokens of the step, which is > 0 if n > 0.
 */
int32_t sl_prefill_order(sl_prefill_turn *t, int32_t n, int32_t chunk);

#endif
