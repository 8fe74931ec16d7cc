/*
 * Generations: what HTTP and gRPC ask of the router's core. A group is one client call; it has n_prompts x n
 * generations, indexed 0.. (prompt-major), each an independent stream of tokens with its own end.
 *
 * Flow: fill a sl_request_spec, sl_group_submit(), receive outputs through the sink, sl_group_release() once.
 * Releasing an unfinished group cancels it on all workers in the same loop turn. The sink is never called
 * after release, and never from inside sl_group_submit(). Loop thread only.
 */
#ifndef SL_ROUTER_GEN_H
#define SL_ROUTER_GEN_H

#include "base/msg.h"
#include "model/sampler.h"
#include "model/stop.h"
#include "model/tokenizer.h"

struct sl_router;
typedef struct sl_group sl_group;
typedef struct sl_request sl_request;

typedef struct sl_prompt {
    int32_t *ids;
    size_t n;
} sl_prompt;

/* Owned by the caller; sl_request_spec_free. sl_group_submit takes the prompts and lists over on success. */
typedef struct sl_request_spec {
    char id[96];     /* the client's or ours, for logs and answers */
    const char *api; /* "chat", "completions", "generate": label of metrics; static */
    sl_prompt *prompts;
    size_t n_prompts;
    uint32_t n; /* generations per prompt */
    sl_sampling sampling;
    bool has_max_tokens, has_seed;
    char *stops[SL_STOP_MAX];
    size_t n_stops;
    bool include_stop;   /* the matched stop string stays in the text */
    bool keep_special;   /* special tokens appear in the text */
    bool no_text;        /* nobody reads the text (token-id clients without stop strings) */
    uint32_t timeout_ms; /* 0 = the router's */
    uint64_t arrival_ns; /* when the client's bytes were complete; 0 = now */
} sl_request_spec;

void sl_request_spec_init(sl_request_spec *s);
void sl_request_spec_free(sl_request_spec *s);

typedef struct sl_output {
    uint32_t index;
    const sl_msg_token *tokens; /* new ones, borrowed */
    size_t n_tokens;
    const char *text; /* new text that is certain, borrowed, not NUL-terminated */
    size_t text_len;
    bool finished; /* nothing follows for this index */
    sl_finish finish;
    sl_status status;                                         /* when finish is ABORT or ERROR */
    const char *error;                                        /* never NULL then */
    int32_t matched_token;                                    /* stop token that ended it, or -1 */
    const char *matched_stop;                                 /* stop string that ended it, or NULL */
    uint32_t prompt_tokens, completion_tokens, cached_tokens; /* so far */
} sl_output;

typedef void sl_output_sink(void *arg, sl_group *group, const sl_output *out);

/*
 * Checks the request against the model and the limits and starts it. Errors, with the field in err: INVALID,
 * TOO_LARGE (longer than the context), EXHAUSTED (queue full), PEER (draining), UNSUPPORTED.
 */
sl_status sl_group_submit(struct sl_router *r, sl_request_spec *spec, sl_output_sink *sink, void *arg,
                          sl_group **out, sl_err *err);
void sl_group_release(sl_group *g);
/* The group with this client id, or NULL (for Abort). */
sl_group *sl_group_find(struct sl_router *r, const char *id);
/* Ends every unfinished generation with finish ABORT and status CANCELLED; the sink hears of it. */
void sl_group_abort(sl_group *g);
uint32_t sl_group_unfinished(const sl_group *g);

typedef enum {
    SL_REQUEST_QUEUED,
    SL_REQUEST_RESERVING,
    SL_REQUEST_PREFILLING,
    SL_REQUEST_DECODING,
    SL_REQUEST_FINISHED,
    SL_REQUEST_FAILED,
} sl_request_state;
const char *sl_request_state_name(sl_request_state s);

struct sl_group {
    sl_group *next, *prev;
    struct sl_router *r;
    char id[96];
    const char *api;
    sl_request **gens;
    uint32_t n_gens, n_per_prompt, unfinished;
    sl_output_sink *sink;
    void *arg;
    bool released;
    uint64_t start_ns;
};

struct sl_request {
    struct sl_router *r;
    sl_group *group;
    sl_request *hash_next;
    sl_request *q_next, *q_prev;
    bool in_queue, held; /* held: waits for its group's first prefill of the same prompt */
    uint32_t index;
    uint64_t rid;
    uint32_t attempt; /* counts placements, from 1 */
    sl_request_state state;

    int32_t *tokens; /* prompt, then produced */
    size_t n_prompt, n_tokens, cap;
    sl_key *keys; /* page keys of full pages; n_keys valid for key_seed */
    size_t n_keys, cap_keys;
    sl_key key_seed;
    sl_sampling sampling;
    sl_wr sampling_wire;

    uint32_t prefill, decode; /* worker ids of this attempt, 0 none */
    uint32_t avoid_prefill, avoid_decode;
    uint64_t ticket;
    bool prefill_sent, prefill_done; /* PREFILL went out; PREFILLED came back */
    uint64_t placed_tokens;          /* what this attempt added to the prefill worker's account */
    uint32_t retries, recoveries;
    uint64_t deadline_ns, stage_ns /* of the last step forward */, not_before_ns;
    uint64_t start_ns, first_token_ns, last_token_ns;
    uint32_t backoff;

    /* text */
    sl_detok detok;
    sl_stop *stop;
    char *stop_names[SL_STOP_MAX];
    size_t n_stops;
    bool keep_special, no_text, ended;
    bool led; /* its siblings were let go */
    int32_t matched_token;
    const char *matched_stop;
    uint32_t cached_tokens;
};

#endif
