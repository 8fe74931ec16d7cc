/*
 * The order of prompts: which prompts a step computes, and how many tokens of each. A pure function of the tokens
 * that the prompts still need and of the time that a token of each takes.
 *
 * The prompt with the fewest remaining tokens comes first, so that a short prompt gets its first token after one or two
 * steps, however many long prompts there are. There are three further rules:
 *
 *   Bounded time   A prompt that arrives waits for the running step, so a step gets only the tokens that fit into a
 *                  time. A prompt gets at least min_tokens in its first place of the step, even if they take longer.
 *   Short steps    A step in which a prompt ends is filled with tokens of other prompts only up to half a step, so
 *                  that the first token of the prompt that ends does not wait for a whole step of the others.
 *   Ageing         A prompt that gets no tokens in a step counts the tokens that younger prompts get. It is aged when
 *                  the count reaches SL_ORDER_PASSED_CHUNKS chunks. Aged prompts share half of a step, the oldest
 *                  first, until they end, so that no prompt waits without limit. The other half is for the shortest.
 *                  A step that may compute a short prompt defers this half, but never two steps in a row.
 *
 * The output of the model does not depend on how prompts share steps (docs/architecture.md, Why the bits agree).
 */
#ifndef SL_WORKER_ORDER_H
#define SL_WORKER_ORDER_H

#include <stdbool.h>
#include <stdint.h>

enum { SL_ORDER_PASSED_CHUNKS = 8 };

typedef struct sl_order_turn {
    int32_t left;    /* tokens still to be computed, > 0 */
    double token_ns; /* the time that one of its next tokens takes (pace.h); 0: no time */
    int64_t passed;  /* in and out: tokens that younger prompts got while this one got none */
    int32_t take;    /* out: its tokens in this step, 0..left */
} sl_order_turn;

/*
 * The time that steps may take: a shorter one while short prompts arrive, because only they gain from short steps, and a
 * step of few tokens costs a GPU nearly as much as a longer one.
 */
enum { SL_ORDER_SHORT_TOKENS = 128, SL_ORDER_SHORT_STEPS = 32 };

typedef struct sl_order_bound {
    double ns, short_ns; /* 0: no bound */
    int32_t steps;       /* how many steps more may take only short_ns */
    bool deferred;       /* the last step has deferred the half of the aged prompts */
} sl_order_bound;

/* What one step may hold. */
typedef struct sl_order_limit {
    int32_t tokens;     /* > 0 */
    double ns;          /* time; 0: no limit */
    int32_t min_tokens; /* 1..tokens: what a step computes of a prompt even if it takes longer than ns */
    /* 0, or a prompt that does not end in the step gets a multiple of this number of tokens; at most `tokens` */
    int32_t unit;
    bool defer_aged; /* the aged prompts get no half of this step */
    /* of younger ones after which a prompt is aged; 0: SL_ORDER_PASSED_CHUNKS times `tokens` */
    int32_t aged_tokens;
} sl_order_limit;

/*
 * Sets the time of the next step, and whether it defers the half of the aged prompts. short_prompt: the step may compute a
 * prompt of at most SL_ORDER_SHORT_TOKENS tokens in all.
 */
void sl_order_bound_next(sl_order_bound *b, bool short_prompt, sl_order_limit *limit);

/*
 * t[0..n) in order of arrival. Distributes at most `limit` of tokens and time; a prompt that does not end in the step
 * gets whole pages, or less than a page; with `unit` whole units, one even if min_tokens are fewer. Returns the number of tokens of the
 * step, which is > 0 if n > 0.
 */
int32_t sl_order_prompts(sl_order_turn *t, int32_t n, const sl_order_limit *limit);

/*
 * The bounds of steps from prefill.max_step_ms (-1: chosen by the backend; 0: none) and prefill.chunk_tokens. host: the backend
 * computes on CPUs. On a GPU a step of 64 tokens reads nearly all weights: fewer tokens are hardly faster. On CPUs the
 * time grows with the tokens, from a few tokens on.
 *
 * The times make the first token of a short prompt come within three times of alone when long prompts are there: on
 * average it waits for half a step and is computed in another half. On an H200 64 tokens of V3.2 alone take 48 ms, so
 * 100 ms give 2 * 50 + 5 ms or 2.2 times, at the cost of a fifth of the throughput of long prompts, which is 3,700
 * tokens/s with 200 ms (by docs/bench/h200-prefill.csv, not measured in a cluster).
 */
typedef struct sl_order_steps {
    int32_t max_ms, short_ms; /* 0: no bound */
    int32_t min_tokens;
} sl_order_steps;

sl_order_steps sl_order_steps_for(int32_t max_step_ms, int32_t chunk_tokens, bool host);

/* Whether a further prompt may begin, if n_active of at most max prompts are computed now, of which n_long are longer than
 * one chunk: one of the places is only for prompts of at most one chunk, so that long prompts cannot use all places. */
static inline bool sl_order_has_place(int32_t n_active, int32_t n_long, bool is_long, int32_t max)
{
    return n_active < max && (!is_long || max == 1 || n_long < max - 1);
}

#endif
