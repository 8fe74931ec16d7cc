/*
 * Outputs of a Generate call: tokens are kept until their client takes them; chunks while it streams, a
 * GenerateComplete at the end of each index. A long GenerateComplete is packed on the thread pool and sent in parts.
 * What is kept and packed is in the budget of bytes.
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

static size_t token_bytes(const generation *g)
{
    return sizeof(uint32_t) + (g->logprobs ? sizeof(float) : 0) + (g->top ? sizeof(sl_msg_token) : 0);
}

/* Grows the arrays of t. They count twice in the budget, because a message with the same contents is made of them. */
static sl_status grow(generation *g, out_tokens *t, size_t n)
{
    size_t cap = 2 * n + 32;
    if (!sl_front_hold(g->call->r, &g->held, g->held + 2 * (cap - t->cap) * token_bytes(g)))
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

sl_status generate_keep(generation *g, const sl_output *o)
{
    out_tokens *t = &g->out[o->index];
    t->prompt_tokens = o->prompt_tokens;
    t->completion_tokens = o->completion_tokens;
    t->cached_tokens = o->cached_tokens;
    if (t->n + o->n_tokens > t->cap)
        SL_TRY(grow(g, t, t->n + o->n_tokens));
    for (size_t i = 0; i < o->n_tokens; i++) {
        t->ids[t->n] = (uint32_t)o->tokens[i].id;
        if (g->logprobs)
            t->logprobs[t->n] = isfinite(o->tokens[i].logprob) ? o->tokens[i].logprob : -9999.0f;
        if (g->top)
            t->tops[t->n] = o->tokens[i];
        t->n++;
    }
    return !o->finished || keep_end(t, o) ? SL_OK : SL_ERR_NO_MEMORY;
}

/* OutputLogProbs of tokens [from, to) of an index; freed by free_logprobs. */
static S(OutputLogProbs) * make_logprobs(const out_tokens *t, uint32_t top, size_t from, size_t to)
{
    S(OutputLogProbs) *o = malloc(sizeof *o);
    if (!o)
        return NULL;
    sglang__grpc__scheduler__output_log_probs__init(o);
    o->n_token_logprobs = o->n_token_ids = to - from;
    o->token_logprobs = t->logprobs + from;
    o->token_ids = t->ids + from;
    if (!top)
        return o;
    o->top_logprobs = calloc(to - from + 1, sizeof *o->top_logprobs);
    S(TopLogProbs) *space = calloc(to - from + 1, sizeof *space);
    if (!o->top_logprobs || !space) {
        free(o->top_logprobs);
        free(space);
        free(o);
        return NULL;
    }
    o->top_logprobs[to - from] = space; /* kept after the last entry for free_logprobs */
    o->n_top_logprobs = to - from;
    for (size_t i = 0; i < o->n_top_logprobs; i++) {
        sl_msg_token *k = &t->tops[from + i];
        sglang__grpc__scheduler__top_log_probs__init(&space[i]);
        space[i].n_values = space[i].n_token_ids = k->n_top < top ? k->n_top : top;
        space[i].values = k->top_logprobs;
        space[i].token_ids = (uint32_t *)k->top_ids;
        o->top_logprobs[i] = &space[i];
    }
    return o;
}

static void free_logprobs(S(OutputLogProbs) * o)
{
    if (!o)
        return;
    if (o->top_logprobs) {
        free(o->top_logprobs[o->n_top_logprobs]);
        free(o->top_logprobs);
    }
    free(o);
}

static bool send_chunk(generation *g, uint32_t index)
{
    out_tokens *t = &g->out[index];
    size_t n = t->n - t->sent < CHUNK_TOKENS ? t->n - t->sent : CHUNK_TOKENS, to = t->sent + n;
    S(GenerateStreamChunk) c = SGLANG__GRPC__SCHEDULER__GENERATE_STREAM_CHUNK__INIT;
    c.n_token_ids = n;
    c.token_ids = t->ids + t->sent;
    c.prompt_tokens = t->prompt_tokens;
    c.completion_tokens = t->completion_tokens - (uint32_t)(t->n - to);
    c.cached_tokens = t->cached_tokens;
    c.index = index;
    c.output_logprobs = g->logprobs ? make_logprobs(t, g->top, t->sent, to) : NULL;
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

static void free_tokens(out_tokens *t)
{
    free(t->ids);
    free(t->logprobs);
    free(t->tops);
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
    c.n_output_ids = t->n;
    c.output_ids = t->ids;
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
    c.output_logprobs = j->logprobs ? make_logprobs(t, j->top, 0, t->n) : NULL;
    S(GenerateResponse) r = SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__INIT;
    r.request_id = j->id;
    r.response_case = SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_COMPLETE;
    r.complete = &c;
    j->bytes = rpc_pack(&r.base, &j->n);
    free_logprobs(c.output_logprobs);
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
    j->held = 2 * t->cap * token_bytes(g);
    g->held -= j->held;
    *t = (out_tokens){.finished = true, .completed = true};
    g->pack = j;
    if (j->t.n * token_bytes(g) > LOOP_PACK_BYTES) {
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
    while (ok && g->stream && t->n > t->sent && (t->finished || t->n - t->sent >= g->interval) &&
           h2_stream_waiting(g->call->s) < RPC_ROOM_BYTES)
        ok = send_chunk(g, index);
    if (ok && t->finished && !t->completed && (!g->stream || t->sent == t->n))
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
