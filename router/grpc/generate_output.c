/*
 * Outputs of a Generate call: tokens are kept until their client takes them; chunks while it streams, a
 * GenerateComplete at the end of each index, the first of which also has the log-probabilities of the prompt. A long
 * one is packed on the thread pool and sent in parts. What is kept and packed is in the budget of bytes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "router/grpc/generate.h"
#include "sglang_scheduler.pb-c.h"

#define S(name) Sglang__Grpc__Scheduler__##name

enum {
    CHUNK_TOKENS = 512,         /* at most, in one chunk */
    LOOP_PACK_BYTES = 128 << 10 /* tokens that take less are packed in the loop */
};

static bool keep_end(out_tokens *t, const sl_output *o)
{
    t->finished = true;
    t->finish = o->finish;
    t->matched_token = o->matched_token;
    t->matched_stop = o->matched_stop ? strdup(o->matched_stop) : NULL;
    return t->matched_stop || !o->matched_stop;
}

static size_t token_bytes(bool logprobs, uint32_t top)
{
    return sizeof(uint32_t) + (logprobs ? sizeof(float) : 0) + (top ? sizeof(sl_msg_token) : 0);
}

/* What a list takes of the budget for each token: twice, because a message with the same contents is made. */
static size_t out_bytes(const generation *g)
{
    return 2 * token_bytes(g->logprobs, g->top);
}

size_t generate_score_bytes(uint32_t top)
{
    return 2 * token_bytes(true, top) + sizeof(S(InputTokenLogProb)) + sizeof(void *) +
           (top ? sizeof(S(TopLogProbs)) + sizeof(void *) : 0);
}

/* Grows the arrays of a list, of which each token takes `bytes`. */
static sl_status grow(generation *g, token_list *t, size_t n, size_t bytes)
{
    size_t cap = 2 * n + 32;
    if (!sl_front_hold(g->call->r, &g->held, g->held + (cap - t->cap) * bytes))
        return SL_ERR_EXHAUSTED;
    uint32_t *ids = realloc(t->ids, cap * sizeof *ids);
    t->ids = ids ? ids : t->ids;
    float *lps = g->logprobs ? realloc(t->logprobs, cap * sizeof *lps) : t->logprobs;
    t->logprobs = lps ? lps : t->logprobs;
    sl_msg_token *tops = g->top ? realloc(t->tops, cap * sizeof *tops) : t->tops;
    t->tops = tops ? tops : t->tops;
    if (!ids || (g->logprobs && !lps) || (g->top && !tops))
        return SL_ERR_NO_MEMORY;
    t->cap = cap;
    return SL_OK;
}

static sl_status keep(generation *g, token_list *t, const sl_msg_token *tokens, size_t n, size_t bytes)
{
    if (t->n + n > t->cap)
        SL_TRY(grow(g, t, t->n + n, bytes));
    for (size_t i = 0; i < n; i++) {
        t->ids[t->n] = (uint32_t)tokens[i].id;
        if (g->logprobs)
            t->logprobs[t->n] = isfinite(tokens[i].logprob) ? tokens[i].logprob : -9999.0f;
        if (g->top)
            t->tops[t->n] = tokens[i];
        t->n++;
    }
    return SL_OK;
}

/* They come in the order of the prompt, from its second token on. */
static sl_status keep_scores(generation *g, out_tokens *t, const sl_output *o)
{
    const size_t before = g->first_scored > 1 + t->scored ? g->first_scored - 1 - t->scored : 0;
    t->scored += o->n_scores;
    if (!g->first_scored || before >= o->n_scores)
        return SL_OK;
    return keep(g, &t->prompt, o->scores + before, o->n_scores - before, generate_score_bytes(g->top));
}

sl_status generate_keep(generation *g, const sl_output *o)
{
    out_tokens *t = &g->out[o->index];
    t->prompt_tokens = o->prompt_tokens;
    t->completion_tokens = o->completion_tokens;
    t->cached_tokens = o->cached_tokens;
    SL_TRY(keep_scores(g, t, o));
    SL_TRY(keep(g, &t->out, o->tokens, o->n_tokens, out_bytes(g)));
    return !o->finished || keep_end(t, o) ? SL_OK : SL_ERR_NO_MEMORY;
}

/* The best ones at tokens [from, to) of a list; freed by free_tops. NULL: none are wanted, or there is no memory. */
static S(TopLogProbs) * *make_tops(const token_list *t, uint32_t top, size_t from, size_t to)
{
    if (!top)
        return NULL;
    S(TopLogProbs) **list = calloc(to - from + 1, sizeof *list);
    S(TopLogProbs) *space = calloc(to - from + 1, sizeof *space);
    if (!list || !space) {
        free(list);
        free(space);
        return NULL;
    }
    list[to - from] = space; /* kept after the last entry for free_tops */
    for (size_t i = 0; i < to - from; i++) {
        sl_msg_token *k = &t->tops[from + i];
        sglang__grpc__scheduler__top_log_probs__init(&space[i]);
        space[i].n_values = space[i].n_token_ids = k->n_top < top ? k->n_top : top;
        space[i].values = k->top_logprobs;
        space[i].token_ids = (uint32_t *)k->top_ids;
        list[i] = &space[i];
    }
    return list;
}

static void free_tops(S(TopLogProbs) * *list, size_t n)
{
    if (list)
        free(list[n]);
    free(list);
}

/* OutputLogProbs of tokens [from, to) of a list; freed by free_logprobs. NULL: there is no memory. */
static S(OutputLogProbs) * make_logprobs(const token_list *t, uint32_t top, size_t from, size_t to)
{
    S(OutputLogProbs) *o = malloc(sizeof *o);
    if (!o)
        return NULL;
    sglang__grpc__scheduler__output_log_probs__init(o);
    o->n_token_logprobs = o->n_token_ids = to - from;
    o->token_logprobs = t->logprobs + from;
    o->token_ids = t->ids + from;
    o->top_logprobs = make_tops(t, top, from, to);
    o->n_top_logprobs = o->top_logprobs ? to - from : 0;
    if (!top || o->top_logprobs)
        return o;
    free(o);
    return NULL;
}

static void free_logprobs(S(OutputLogProbs) * o)
{
    if (o)
        free_tops(o->top_logprobs, o->n_top_logprobs);
    free(o);
}

static void free_input(S(InputLogProbs) * o)
{
    if (o && o->token_logprobs)
        free(o->token_logprobs[o->n_token_logprobs]);
    if (o) {
        free(o->token_logprobs);
        free_tops(o->top_logprobs, o->n_top_logprobs);
    }
    free(o);
}

/* InputLogProbs of a list; freed by free_input. NULL: there is no memory. */
static S(InputLogProbs) * make_input(const token_list *t, uint32_t top)
{
    S(InputLogProbs) *o = malloc(sizeof *o);
    S(InputTokenLogProb) *space = calloc(t->n + 1, sizeof *space);
    S(InputTokenLogProb) **list = calloc(t->n + 1, sizeof *list);
    if (!o || !space || !list) {
        free(o);
        free(space);
        free(list);
        return NULL;
    }
    sglang__grpc__scheduler__input_log_probs__init(o);
    for (size_t i = 0; i < t->n; i++) {
        sglang__grpc__scheduler__input_token_log_prob__init(&space[i]);
        space[i]._value_case = SGLANG__GRPC__SCHEDULER__INPUT_TOKEN_LOG_PROB___VALUE_VALUE;
        space[i].value = t->logprobs[i];
        list[i] = &space[i];
    }
    list[t->n] = space; /* kept after the last entry for free_input */
    o->token_logprobs = list;
    o->n_token_logprobs = o->n_token_ids = t->n;
    o->token_ids = t->ids;
    o->top_logprobs = make_tops(t, top, 0, t->n);
    o->n_top_logprobs = o->top_logprobs ? t->n : 0;
    if (!top || o->top_logprobs)
        return o;
    free_input(o);
    return NULL;
}

static bool send_chunk(generation *g, uint32_t index)
{
    out_tokens *t = &g->out[index];
    size_t n = t->out.n - t->sent < CHUNK_TOKENS ? t->out.n - t->sent : CHUNK_TOKENS, to = t->sent + n;
    S(GenerateStreamChunk) c = SGLANG__GRPC__SCHEDULER__GENERATE_STREAM_CHUNK__INIT;
    c.n_token_ids = n;
    c.token_ids = t->out.ids + t->sent;
    c.prompt_tokens = t->prompt_tokens;
    c.completion_tokens = t->completion_tokens - (uint32_t)(t->out.n - to);
    c.cached_tokens = t->cached_tokens;
    c.index = index;
    c.output_logprobs = g->logprobs ? make_logprobs(&t->out, g->top, t->sent, to) : NULL;
    t->sent = to;
    S(GenerateResponse) r = SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__INIT;
    r.request_id = g->id;
    r.response_case = SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_CHUNK;
    r.chunk = &c;
    bool ok = rpc_send(g->call, &r.base);
    free_logprobs(c.output_logprobs);
    return ok;
}

/* ---- GenerateComplete ---- */

/* Owns the tokens of its index from the moment that it is made. */
typedef struct pack_job {
    sl_front_job job; /* first: an sl_front_job pointer is a pack_job pointer */
    generation *g;    /* NULL: the call is gone */
    char *id;
    out_tokens t;
    uint32_t index, top;
    bool logprobs;
    bool working;   /* the pool has it */
    uint8_t *bytes; /* the frame, when it is packed */
    size_t n, sent;
    uint64_t held; /* of the budget */
} pack_job;

static void free_list(token_list *t)
{
    free(t->ids);
    free(t->logprobs);
    free(t->tops);
}

static void free_tokens(out_tokens *t)
{
    free_list(&t->out);
    free_list(&t->prompt);
    free(t->matched_stop);
}

static void free_pack(pack_job *j)
{
    sl_front_hold(j->job.r, &j->held, 0);
    free_tokens(&j->t);
    free(j->bytes);
    free(j->id);
    free(j);
}

static void pack(pack_job *j)
{
    out_tokens *t = &j->t;
    S(GenerateComplete) c = SGLANG__GRPC__SCHEDULER__GENERATE_COMPLETE__INIT;
    c.n_output_ids = t->out.n;
    c.output_ids = t->out.ids;
    c.finish_reason = rpc_text(sl_finish_name(t->finish));
    c.prompt_tokens = t->prompt_tokens;
    c.completion_tokens = t->completion_tokens;
    c.cached_tokens = t->cached_tokens;
    c.index = j->index;
    if (t->matched_stop) {
        c.matched_stop_case = SGLANG__GRPC__SCHEDULER__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR;
        c.matched_stop_str = rpc_text(t->matched_stop);
    } else if (t->matched_token >= 0) {
        c.matched_stop_case = SGLANG__GRPC__SCHEDULER__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID;
        c.matched_token_id = (uint32_t)t->matched_token;
    }
    c.output_logprobs = j->logprobs ? make_logprobs(&t->out, j->top, 0, t->out.n) : NULL;
    c.input_logprobs = t->prompt.n ? make_input(&t->prompt, j->top) : NULL;
    S(GenerateResponse) r = SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__INIT;
    r.request_id = j->id;
    r.response_case = SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_COMPLETE;
    r.complete = &c;
    if ((c.output_logprobs || !j->logprobs) && (c.input_logprobs || !t->prompt.n))
        j->bytes = rpc_pack(&r.base, &j->n);
    free_logprobs(c.output_logprobs);
    free_input(c.input_logprobs);
}

/* Sends a part of a packed message; false when nothing more can be sent now. */
static bool send_packed(generation *g)
{
    pack_job *j = g->pack;
    while (j->sent < j->n && h2_stream_waiting(g->call->s) < RPC_ROOM_BYTES) {
        size_t n = j->n - j->sent < RPC_ROOM_BYTES ? j->n - j->sent : RPC_ROOM_BYTES;
        if (!rpc_send_bytes(g->call, j->bytes + j->sent, n))
            return false;
        j->sent += n;
    }
    if (j->sent < j->n)
        return false;
    g->pack = NULL;
    g->ended++;
    free_pack(j);
    return true;
}

void sl_job_complete(sl_front_job *f)
{
    pack((pack_job *)f);
}

void sl_job_completed(sl_front_job *f, bool ran)
{
    pack_job *j = (pack_job *)f;
    (void)ran;
    j->working = false;
    if (!j->g)
        free_pack(j);
    else if (!j->bytes)
        generate_end(j->g, RPC_RESOURCE_EXHAUSTED, "out of memory");
    else
        rpc_generate_more(j->g->call);
}

/* Makes the GenerateComplete of an index, in the loop when it is short. False when nothing more can be sent now. */
static bool complete(generation *g, uint32_t index)
{
    pack_job *j = calloc(1, sizeof *j);
    if (!j) {
        generate_end(g, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return false;
    }
    out_tokens *t = &g->out[index];
    sl_front_job_init(g->call->r, &j->job, SL_JOB_GRPC_COMPLETE);
    j->g = g;
    j->id = strdup(g->id);
    j->index = index;
    j->top = g->top;
    j->logprobs = g->logprobs;
    j->t = *t;
    j->held = t->out.cap * out_bytes(g) + t->prompt.cap * generate_score_bytes(g->top);
    g->held -= j->held;
    *t = (out_tokens){.finished = true, .completed = true};
    g->pack = j;
    if (j->t.out.n * out_bytes(g) + j->t.prompt.n * generate_score_bytes(g->top) > 2 * LOOP_PACK_BYTES) {
        j->working = true;
        sl_front_job_post(g->call->g->loop, &j->job);
        return false;
    }
    pack(j);
    if (j->bytes)
        return send_packed(g);
    generate_end(g, RPC_RESOURCE_EXHAUSTED, "out of memory");
    return false;
}

/* ---- both ---- */

bool generate_send(generation *g, uint32_t index)
{
    if (g->pack && (g->pack->working || !send_packed(g)))
        return false;
    out_tokens *t = &g->out[index];
    bool ok = true;
    while (ok && g->stream && t->out.n > t->sent && (t->finished || t->out.n - t->sent >= g->interval) &&
           h2_stream_waiting(g->call->s) < RPC_ROOM_BYTES)
        ok = send_chunk(g, index);
    if (ok && t->finished && !t->completed && (!g->stream || t->sent == t->out.n))
        ok = complete(g, index);
    if (ok && g->ended == g->n)
        generate_end(g, RPC_OK, NULL);
    return ok && !g->call->finished;
}

void generate_free_outputs(generation *g)
{
    for (uint32_t i = 0; g->out && i < g->n; i++)
        free_tokens(&g->out[i]);
    free(g->out);
    sl_front_hold(g->call->r, &g->held, 0);
    if (g->pack && g->pack->working)
        g->pack->g = NULL; /* its job frees it */
    else if (g->pack)
        free_pack(g->pack);
}
