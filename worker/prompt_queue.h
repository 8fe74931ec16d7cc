/*
 * The prompt queue: which prompts of a worker compute now, and what the next step computes of each. Prefill workers, workers of
 * role both and the simulator have one.
 *
 * A prompt is a member of its owner's request. It has a place from begin to end; how many places there are is in order.h. In
 * each step the prompts that are ready share the tokens of a chunk, or fewer that fit into the bounds of time, at the pace that
 * earlier steps had (order.h, pace.h).
 *
 * The clock is the caller's. One thread. Ownership: prompts belong to the caller, who ends them before it frees them.
 */
#ifndef SL_WORKER_PROMPT_QUEUE_H
#define SL_WORKER_PROMPT_QUEUE_H

#include "worker/chunk.h"
#include "worker/order.h"
#include "worker/pace.h"

typedef struct sl_queued_prompt {
    /* the owner's */
    uint64_t arrived;   /* its place among others: smaller numbers are older */
    int32_t tokens;     /* of the whole prompt */
    int32_t stop;       /* no step goes beyond this token; 0: all */
    int32_t start, pos; /* tokens [start, pos) are computed; those before were there when it began */
    bool ready;         /* its next tokens can be computed now */
    void *owner;
    /* the queue's */
    struct sl_queued_prompt *next, *prev;
    bool here;
    int64_t passed; /* order.h */
    int32_t take;   /* its tokens in the step that was shared out last; 0: none */
} sl_queued_prompt;

typedef struct sl_prompt_queue_opts {
    int32_t chunk_tokens; /* most tokens of a step, > 0; a longer prompt is long */
    /* a step holds as many of them as chunk.h says; a prompt of more than SL_CHUNK_USUAL is long */
    bool automatic;
    int32_t max_prompts;               /* places, > 0 */
    double max_step_ns, short_step_ns; /* 0: no bound */
    int32_t min_step_tokens;           /* as in sl_order_limit; at least 1 is taken */
    int32_t unit;                      /* as in sl_order_limit */
    int32_t max_context;
    double guess_ns; /* of a token until one was measured, > 0 */
} sl_prompt_queue_opts;

/* May be zeroed; a queue that was not opened has no prompts. */
typedef struct sl_prompt_queue {
    sl_prompt_queue_opts o;
    sl_queued_prompt *first, *last; /* in order of arrival */
    int32_t n, n_long;
    sl_order_turn *turn; /* [max_prompts] */
    sl_order_bound bound;
    sl_chunk chunk;
    sl_pace pace;
    sl_pace_rate rate;
} sl_prompt_queue;

/* SL_ERR_NO_MEMORY; SL_ERR_INVALID: a unit is more than chunk_tokens. */
sl_status sl_prompt_queue_open(sl_prompt_queue *q, const sl_prompt_queue_opts *o, sl_err *err);
void sl_prompt_queue_close(sl_prompt_queue *q);

/* Whether a prompt of this number of tokens may begin. */
bool sl_prompt_queue_has_place(const sl_prompt_queue *q, int32_t tokens);
/* p gets a place; its fields of the owner are set. */
void sl_prompt_queue_begin(sl_prompt_queue *q, sl_queued_prompt *p);
/* p gives it back; one that has none is allowed. */
void sl_prompt_queue_end(sl_prompt_queue *q, sl_queued_prompt *p);

/*
 * Sets `take` of every prompt for the next step, and returns their sum: 0 when none is ready. max_ns: a further bound of the time;
 * 0: none. The caller walks the list from `first` on for the prompts of the step.
 */
int32_t sl_prompt_queue_share(sl_prompt_queue *q, double max_ns);
/* A step that computed part[0..n), n > 0, took `ns`. Returns the speed for the routers, in tokens per second. */
uint32_t sl_prompt_queue_measured(sl_prompt_queue *q, const sl_pace_part *part, int32_t n, double ns);

#endif
