/*
 * Inside Generate: the call (generate.c), its request (generate_request.c) and its outputs (generate_output.c).
 * Loop thread only, except generate_read().
 */
#ifndef SL_ROUTER_GRPC_GENERATE_H
#define SL_ROUTER_GRPC_GENERATE_H

#include "router/grpc/rpc.h"

struct Sglang__Grpc__Scheduler__GenerateRequest; /* of the generated header, which only .c files include */

typedef struct token_list {
    uint32_t *ids;
    float *logprobs;
    sl_msg_token *tops; /* only with top logprobs */
    size_t n, cap;
} token_list;

/* Tokens of one index, kept for the final GenerateComplete and between chunks: what a slow reader has not taken waits
 * here as tokens, and goes out in fewer, larger chunks. */
typedef struct out_tokens {
    token_list out, prompt; /* prompt: those whose log-probabilities are wanted */
    size_t sent, scored;    /* of out; of the whole prompt, without its first token */
    uint32_t prompt_tokens, completion_tokens, cached_tokens; /* so far */
    bool finished, completed;                                 /* completed: its GenerateComplete was made */
    sl_finish finish;
    int32_t matched_token;
    char *matched_stop; /* owned */
} out_tokens;

struct parse_job;
struct pack_job;

/* One Generate call: `user` of its rpc_call. */
typedef struct generation {
    rpc_call *call;
    struct parse_job *job; /* while the request is read */
    sl_group *group;
    char *id;
    bool stream, logprobs;
    uint32_t top, interval, n, ended;
    uint32_t first_scored; /* the first token of the prompt whose log-probability is wanted; 0: of none */
    out_tokens *out;
    uint64_t held;         /* of the budget, for the outputs */
    struct pack_job *pack; /* a long GenerateComplete, being packed or sent; nothing else is sent meanwhile */
} generation;

/* Reads everything of q into s, which was initialised. max_tokens: of the prompt, 0 = any number. Any thread. Errors:
 * INVALID, UNSUPPORTED, NO_MEMORY, and those of the tokenizer. */
sl_status generate_read(sl_router *r, const struct Sglang__Grpc__Scheduler__GenerateRequest *q,
                        sl_request_spec *s, size_t max_tokens, sl_guard *guard, sl_err *err);

/* What the log-probabilities of a prompt take of the budget for each token, each with `top` others. */
size_t generate_score_bytes(uint32_t top);
/* Keeps the tokens of an output, and those of the prompt. EXHAUSTED: the budget of bytes; NO_MEMORY. */
sl_status generate_keep(generation *g, const sl_output *o);
/* Sends the chunks and the GenerateComplete of one index that are due; ends the call after the last index. False when
 * nothing more can be sent now. */
bool generate_send(generation *g, uint32_t index);
/* Frees the outputs; the call is gone. */
void generate_free_outputs(generation *g);
/* Ends the call. */
void generate_end(generation *g, rpc_code code, const char *text);

#endif
