/*
 * Generate and Abort. A request's protobuf to a sl_request_spec, and outputs to chunks and completes.
 *
 * proto3 zeros are "not set" for everything except temperature, as the protocol's clients expect. What cannot
 * be done (guided decoding, images, embeddings, LoRA, hidden states) is refused by name, never ignored.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "router/grpc/rpc.h"
#include "sglang_scheduler.pb-c.h"

#define S(name) Sglang__Grpc__Scheduler__##name
#define D(name) sglang__grpc__scheduler__##name##__descriptor

/* Tokens of one index, kept for the final GenerateComplete and between chunks: what a slow reader has not taken waits
 * here as tokens, and goes out in fewer, larger chunks. */
typedef struct out_tokens {
    uint32_t *ids;
    float *logprobs;
    sl_msg_token *tops; /* only with top logprobs */
    size_t n, cap, sent;
    uint32_t prompt_tokens, completion_tokens, cached_tokens; /* so far */
    bool finished, completed;                                 /* completed: its GenerateComplete was sent */
    sl_finish finish;
    int32_t matched_token;
    char *matched_stop; /* owned */
} out_tokens;

struct parse_job;

/* One Generate call: `user` of its rpc_call. */
typedef struct generation {
    rpc_call *call;
    struct parse_job *job; /* while the request is read */
    sl_group *group;
    char *id;
    bool stream, logprobs;
    uint32_t top, interval, n, ended;
    out_tokens *out;
} generation;

/* ---- request ---- */

static sl_status refuse_unsupported(const S(GenerateRequest) * q, sl_err *err)
{
    const S(SamplingParams) *p = q->sampling_params;
    const char *what = NULL;
    if (p && p->constraint_case != SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS__CONSTRAINT__NOT_SET)
        what = "sampling_params.constraint";
    else if (q->mm_inputs &&
             (q->mm_inputs->n_image_urls || q->mm_inputs->n_video_urls || q->mm_inputs->n_audio_urls))
        what = "mm_inputs";
    else if (q->n_input_embeds)
        what = "input_embeds";
    else if (q->lora_id && *q->lora_id)
        what = "lora_id";
    else if (q->return_hidden_states)
        what = "return_hidden_states";
    else if (q->n_token_ids_logprob)
        what = "token_ids_logprob";
    else if (q->custom_logit_processor && *q->custom_logit_processor)
        what = "custom_logit_processor";
    return what ? sl_fail(err, SL_ERR_UNSUPPORTED, "%s: is not supported", what) : SL_OK;
}

static sl_status read_bias(const S(SamplingParams) * p, sl_sampling *s, sl_err *err)
{
    if (!p->n_logit_bias)
        return SL_OK;
    if (p->n_logit_bias > SL_BIAS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "logit_bias: %zu entries, at most %d", p->n_logit_bias,
                       SL_BIAS_MAX);
    sl_logit_bias *b = calloc(p->n_logit_bias, sizeof *b);
    if (!b)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = SL_OK;
    for (size_t i = 0; i < p->n_logit_bias && !st; i++) {
        char *end;
        long id = strtol(p->logit_bias[i]->key, &end, 10);
        if (!*p->logit_bias[i]->key || *end || id < 0 || id > INT32_MAX)
            st = sl_fail(err, SL_ERR_INVALID, "logit_bias: '%.20s' is no token id", p->logit_bias[i]->key);
        b[i] = (sl_logit_bias){(int32_t)id, p->logit_bias[i]->value};
    }
    if (!st)
        st = sl_sampling_set_bias(s, b, (uint32_t)p->n_logit_bias);
    free(b);
    return st;
}

static sl_status read_seed(const Google__Protobuf__Value *v, sl_request_spec *s, sl_err *err)
{
    if (!v || v->kind_case != GOOGLE__PROTOBUF__VALUE__KIND_NUMBER_VALUE || !(v->number_value >= 0) ||
        v->number_value > 9007199254740992.0)
        return sl_fail(err, SL_ERR_INVALID, "custom_params.seed: want a number from 0 to 2^53");
    s->has_seed = true;
    s->sampling.seed = (uint64_t)v->number_value;
    return SL_OK;
}

static sl_status read_salt(const Google__Protobuf__Value *v, sl_request_spec *s, sl_err *err)
{
    if (!v || v->kind_case != GOOGLE__PROTOBUF__VALUE__KIND_STRING_VALUE)
        return sl_fail(err, SL_ERR_INVALID, "custom_params.cache_salt: want a string");
    return sl_request_spec_set_salt(s, "custom_params.cache_salt", v->string_value, strlen(v->string_value),
                                    err);
}

static sl_status read_special(const Google__Protobuf__Value *v, sl_request_spec *s, sl_err *err)
{
    if (!v || v->kind_case != GOOGLE__PROTOBUF__VALUE__KIND_BOOL_VALUE)
        return sl_fail(err, SL_ERR_INVALID, "custom_params.parse_special: want true or false");
    s->parse_special = v->bool_value;
    return SL_OK;
}

/* What the protocol has no field for: clients of this server put it into custom_params. */
static sl_status read_custom(const Google__Protobuf__Struct *c, sl_request_spec *s, sl_err *err)
{
    static const struct {
        const char *name;
        sl_status (*read)(const Google__Protobuf__Value *v, sl_request_spec *s, sl_err *err);
    } params[] = {{"seed", read_seed}, {"cache_salt", read_salt}, {"parse_special", read_special}};
    for (size_t i = 0; c && i < c->n_fields; i++) {
        size_t k = 0;
        while (k < SL_COUNT(params) && strcmp(c->fields[i]->key, params[k].name))
            k++;
        if (k == SL_COUNT(params))
            return sl_fail(err, SL_ERR_UNSUPPORTED, "custom_params.%.60s: is unknown", c->fields[i]->key);
        SL_TRY(params[k].read(c->fields[i]->value, s, err));
    }
    return SL_OK;
}

static sl_status read_stops(const S(SamplingParams) * p, sl_request_spec *s, sl_err *err)
{
    if (p->n_stop > SL_STOP_MAX)
        return sl_fail(err, SL_ERR_INVALID, "stop: %zu strings, at most %d", p->n_stop, SL_STOP_MAX);
    for (size_t i = 0; i < p->n_stop; i++) {
        size_t n = strlen(p->stop[i]);
        if (!n || n > SL_STOP_LEN_MAX)
            return sl_fail(err, SL_ERR_INVALID, "stop: a stop string has 1 to %d bytes", SL_STOP_LEN_MAX);
        s->stops[i] = strdup(p->stop[i]);
        if (!s->stops[i])
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        s->n_stops++;
    }
    if (p->n_stop_token_ids > SL_STOP_IDS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "stop_token_ids: %zu entries, at most %d", p->n_stop_token_ids,
                       SL_STOP_IDS_MAX);
    if (!p->n_stop_token_ids)
        return SL_OK;
    return sl_sampling_set_stop_ids(&s->sampling, (const int32_t *)p->stop_token_ids,
                                    (uint32_t)p->n_stop_token_ids)
               ? sl_fail(err, SL_ERR_NO_MEMORY, "out of memory")
               : SL_OK;
}

static sl_status read_sampling(const S(SamplingParams) * p, sl_request_spec *s, sl_err *err)
{
    sl_sampling *o = &s->sampling;
    if (!p)
        return SL_OK;
    o->temperature = p->temperature;
    o->top_p = p->top_p == 0 ? 1 : p->top_p;
    o->top_k = p->top_k > 0 ? p->top_k : 0;
    o->min_p = p->min_p;
    o->frequency_penalty = p->frequency_penalty;
    o->presence_penalty = p->presence_penalty;
    o->repetition_penalty = p->repetition_penalty == 0 ? 1 : p->repetition_penalty;
    o->ignore_eos = p->ignore_eos;
    s->n = p->n ? p->n : 1;
    s->keep_special = !p->skip_special_tokens;
    s->include_stop = p->no_stop_trim;
    if (p->_max_new_tokens_case == SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS___MAX_NEW_TOKENS_MAX_NEW_TOKENS) {
        if (!p->max_new_tokens || p->max_new_tokens > INT32_MAX)
            return sl_fail(err, SL_ERR_INVALID, "max_new_tokens: must be at least 1");
        s->has_max_tokens = true;
        o->max_tokens = (int32_t)p->max_new_tokens;
    }
    if (p->min_new_tokens > (uint32_t)o->max_tokens)
        return sl_fail(err, SL_ERR_INVALID, "min_new_tokens: exceeds max_new_tokens");
    o->min_tokens = (int32_t)p->min_new_tokens;
    SL_TRY(read_stops(p, s, err));
    SL_TRY(read_bias(p, o, err));
    return read_custom(p->custom_params, s, err);
}

static sl_status read_prompt(sl_router *r, const S(TokenizedInput) * t, sl_request_spec *s, sl_err *err)
{
    s->prompts = calloc(1, sizeof *s->prompts);
    if (!s->prompts)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    s->n_prompts = 1;
    if (t && t->n_input_ids) {
        s->prompts->ids = malloc(t->n_input_ids * sizeof(int32_t));
        if (!s->prompts->ids)
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        s->prompts->n = t->n_input_ids;
        for (size_t i = 0; i < t->n_input_ids; i++)
            s->prompts->ids[i] = t->input_ids[i] > INT32_MAX ? -1 : (int32_t)t->input_ids[i];
        return SL_OK;
    }
    if (!t || !t->original_text || !*t->original_text)
        return sl_fail(err, SL_ERR_INVALID, "tokenized: input_ids is empty");
    const sl_tok_range all = {0, strlen(t->original_text)};
    return sl_tokenizer_encode_mixed(sl_router_model(r)->tok, t->original_text, all.end, SL_TOK_ADD_SPECIAL,
                                     &all, !s->parse_special, &s->prompts->ids, &s->prompts->n, err);
}

static sl_status read_request(sl_router *r, const S(GenerateRequest) * q, sl_request_spec *s, sl_err *err)
{
    if (q->request_id && strlen(q->request_id) >= sizeof s->id)
        return sl_fail(err, SL_ERR_INVALID, "request_id: longer than %zu bytes", sizeof s->id - 1);
    if (q->request_id && *q->request_id)
        snprintf(s->id, sizeof s->id, "%s", q->request_id);
    else
        snprintf(s->id, sizeof s->id, "gen-%016lx", sl_random_u64());
    if (q->top_logprobs_num < 0 || q->top_logprobs_num > SL_LOGPROBS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "top_logprobs_num: must be 0 to %d", SL_LOGPROBS_MAX);
    s->sampling.n_logprobs = q->return_logprob ? q->top_logprobs_num : -1;
    s->no_text = true;
    s->parse_special = sl_router_options(r)->parse_special;
    SL_TRY(refuse_unsupported(q, err));
    SL_TRY(read_sampling(q->sampling_params, s, err));
    return read_prompt(r, q->tokenized, s, err);
}

/* ---- responses ---- */

static bool keep_end(out_tokens *t, const sl_output *o)
{
    t->finished = true;
    t->finish = o->finish;
    t->matched_token = o->matched_token;
    t->matched_stop = o->matched_stop ? strdup(o->matched_stop) : NULL;
    return t->matched_stop || !o->matched_stop;
}

static bool keep(generation *g, const sl_output *o)
{
    out_tokens *t = &g->out[o->index];
    t->prompt_tokens = o->prompt_tokens;
    t->completion_tokens = o->completion_tokens;
    t->cached_tokens = o->cached_tokens;
    if (t->n + o->n_tokens > t->cap) {
        size_t cap = 2 * (t->n + o->n_tokens) + 32;
        uint32_t *ids = realloc(t->ids, cap * sizeof *ids);
        t->ids = ids ? ids : t->ids;
        float *lps = g->logprobs ? realloc(t->logprobs, cap * sizeof *lps) : t->logprobs;
        t->logprobs = lps ? lps : t->logprobs;
        sl_msg_token *tops = g->top ? realloc(t->tops, cap * sizeof *tops) : t->tops;
        t->tops = tops ? tops : t->tops;
        if (!ids || (g->logprobs && !lps) || (g->top && !tops))
            return false;
        t->cap = cap;
    }
    for (size_t i = 0; i < o->n_tokens; i++) {
        t->ids[t->n] = (uint32_t)o->tokens[i].id;
        if (g->logprobs)
            t->logprobs[t->n] = isfinite(o->tokens[i].logprob) ? o->tokens[i].logprob : -9999.0f;
        if (g->top)
            t->tops[t->n] = o->tokens[i];
        t->n++;
    }
    return !o->finished || keep_end(t, o);
}

/* OutputLogProbs of tokens [from, n) of an index; freed by free_logprobs. */
static S(OutputLogProbs) * make_logprobs(const generation *g, const out_tokens *t, size_t from)
{
    S(OutputLogProbs) *o = malloc(sizeof *o);
    if (!o)
        return NULL;
    sglang__grpc__scheduler__output_log_probs__init(o);
    o->n_token_logprobs = o->n_token_ids = t->n - from;
    o->token_logprobs = t->logprobs + from;
    o->token_ids = t->ids + from;
    if (!g->top)
        return o;
    o->top_logprobs = calloc(t->n - from + 1, sizeof *o->top_logprobs);
    S(TopLogProbs) *space = calloc(t->n - from + 1, sizeof *space);
    if (!o->top_logprobs || !space) {
        free(o->top_logprobs);
        free(space);
        free(o);
        return NULL;
    }
    o->top_logprobs[t->n - from] = space; /* kept after the last entry for free_logprobs */
    o->n_top_logprobs = t->n - from;
    for (size_t i = 0; i < o->n_top_logprobs; i++) {
        sl_msg_token *k = &t->tops[from + i];
        sglang__grpc__scheduler__top_log_probs__init(&space[i]);
        space[i].n_values = space[i].n_token_ids = k->n_top < g->top ? k->n_top : g->top;
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
    S(GenerateStreamChunk) c = SGLANG__GRPC__SCHEDULER__GENERATE_STREAM_CHUNK__INIT;
    c.n_token_ids = t->n - t->sent;
    c.token_ids = t->ids + t->sent;
    c.prompt_tokens = t->prompt_tokens;
    c.completion_tokens = t->completion_tokens;
    c.cached_tokens = t->cached_tokens;
    c.index = index;
    c.output_logprobs = g->logprobs ? make_logprobs(g, t, t->sent) : NULL;
    t->sent = t->n;
    S(GenerateResponse) r = SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__INIT;
    r.request_id = g->id;
    r.response_case = SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_CHUNK;
    r.chunk = &c;
    bool ok = rpc_send(g->call, &r.base);
    free_logprobs(c.output_logprobs);
    return ok;
}

static bool send_complete(generation *g, uint32_t index)
{
    out_tokens *t = &g->out[index];
    S(GenerateComplete) c = SGLANG__GRPC__SCHEDULER__GENERATE_COMPLETE__INIT;
    c.n_output_ids = t->n;
    c.output_ids = t->ids;
    c.finish_reason = rpc_text(t->finish == SL_FINISH_LENGTH  ? "length"
                               : t->finish == SL_FINISH_ABORT ? "abort"
                                                              : "stop");
    c.prompt_tokens = t->prompt_tokens;
    c.completion_tokens = t->completion_tokens;
    c.cached_tokens = t->cached_tokens;
    c.index = index;
    if (t->matched_stop) {
        c.matched_stop_case = SGLANG__GRPC__SCHEDULER__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR;
        c.matched_stop_str = rpc_text(t->matched_stop);
    } else if (t->matched_token >= 0) {
        c.matched_stop_case = SGLANG__GRPC__SCHEDULER__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID;
        c.matched_token_id = (uint32_t)t->matched_token;
    }
    c.output_logprobs = g->logprobs ? make_logprobs(g, t, 0) : NULL;
    S(GenerateResponse) r = SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__INIT;
    r.request_id = g->id;
    r.response_case = SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_COMPLETE;
    r.complete = &c;
    bool ok = rpc_send(g->call, &r.base);
    free_logprobs(c.output_logprobs);
    return ok;
}

static void let_go(generation *g)
{
    sl_group *grp = g->group;
    g->group = NULL;
    sl_group_release(grp);
}

static void end_call(generation *g, rpc_code code, const char *text)
{
    let_go(g);
    if (g->call->counted) {
        g->call->counted = false;
        g->call->g->generating--;
    }
    rpc_finish(g->call, code, text);
}

/* Sends what is due of one index. False when the call has ended. */
static bool send_due(generation *g, uint32_t index)
{
    out_tokens *t = &g->out[index];
    bool ok = true;
    if (g->stream && t->n > t->sent && (t->finished || t->n - t->sent >= g->interval))
        ok = send_chunk(g, index);
    if (ok && t->finished && !t->completed) {
        t->completed = true;
        g->ended++;
        ok = send_complete(g, index);
    }
    if (!ok)
        end_call(g, RPC_RESOURCE_EXHAUSTED, "the client does not read its stream");
    else if (g->ended == g->n)
        end_call(g, RPC_OK, NULL);
    return !g->call->finished;
}

/* The client has taken everything: more of what waits as tokens. */
void rpc_generate_more(rpc_call *c)
{
    generation *g = c->user;
    for (uint32_t i = 0; g && g->out && i < g->n && h2_stream_waiting(c->s) < RPC_ROOM_BYTES; i++) {
        if (!send_due(g, i))
            return;
    }
}

static void on_output(void *arg, sl_group *grp, const sl_output *o)
{
    (void)grp;
    generation *g = arg;
    if (g->call->finished)
        return;
    if (o->finished && o->finish == SL_FINISH_ERROR)
        end_call(g, rpc_code_of(o->status), o->error);
    else if (!keep(g, o))
        end_call(g, RPC_RESOURCE_EXHAUSTED, "out of memory");
    else if (h2_stream_waiting(g->call->s) < RPC_ROOM_BYTES)
        send_due(g, o->index);
}

/* ---- the call ---- */

/* Reading a request: unpacking and tokenizing, in the loop when it is short, else on the pool. */
typedef struct parse_job {
    sl_front_job job; /* first: an sl_front_job pointer is a parse_job pointer */
    sl_router *r;
    generation *g; /* NULL: the client has gone */
    char *body;    /* with the frame's head of 5 bytes */
    size_t n;      /* of the message */
    uint64_t held; /* of the budget */
    S(GenerateRequest) * q;
    sl_request_spec spec;
    sl_status st;
    sl_err err;
} parse_job;

static sl_status parse(parse_job *j)
{
    const uint8_t *data = (const uint8_t *)j->body + 5;
    uint64_t bytes;
    SL_TRY(rpc_scan(&D(generate_request), data, j->n, &bytes, &j->err));
    if (!sl_front_hold(j->r, &j->held, bytes))
        return sl_fail(&j->err, SL_ERR_EXHAUSTED, SL_FRONT_NO_ROOM);
    j->q = sglang__grpc__scheduler__generate_request__unpack(NULL, j->n, data);
    if (!j->q)
        return sl_fail(&j->err, SL_ERR_INVALID, "the request is no valid %s", D(generate_request).name);
    SL_TRY(read_request(j->r, j->q, &j->spec, &j->err));
    if (j->spec.n < 1 || j->spec.n > 128)
        return sl_fail(&j->err, SL_ERR_INVALID, "n: must be 1 to 128");
    return SL_OK;
}

static void run_parse(sl_front_job *f)
{
    parse_job *j = (parse_job *)f;
    j->st = parse(j);
}

static void free_parse(parse_job *j)
{
    sl_front_hold(j->r, &j->held, 0);
    sl_request_spec_free(&j->spec);
    if (j->q)
        protobuf_c_message_free_unpacked(&j->q->base, NULL);
    free(j->body);
    free(j);
}

static sl_status set_output(generation *g, const S(GenerateRequest) * q, const sl_request_spec *s)
{
    const S(SamplingParams) *p = q->sampling_params;
    g->id = strdup(s->id);
    g->out = calloc(s->n, sizeof *g->out);
    if (!g->id || !g->out)
        return SL_ERR_NO_MEMORY;
    g->stream = q->stream;
    g->logprobs = q->return_logprob;
    g->top = q->return_logprob ? (uint32_t)q->top_logprobs_num : 0;
    g->interval = p && p->_stream_interval_case && p->stream_interval > 1 ? (uint32_t)p->stream_interval : 1;
    g->n = s->n;
    return SL_OK;
}

static void set_deadline(const rpc_call *c, sl_request_spec *s)
{
    s->arrival_ns = c->arrival_ns;
    if (!c->deadline_ns)
        return;
    uint64_t now = sl_now_ns(), ms = c->deadline_ns > now ? (c->deadline_ns - now) / SL_MS + 1 : 1;
    s->timeout_ms = ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

static void submit(generation *g, parse_job *j)
{
    rpc_call *c = g->call;
    sl_request_spec *s = &j->spec;
    if (sl_group_find(c->r, s->id)) {
        sl_router_stats_request(c->g->stats, "generate", "invalid");
        end_call(g, RPC_ALREADY_EXISTS, "request_id: is in use");
        return;
    }
    set_deadline(c, s);
    memcpy(s->client, c->caller.client, sizeof s->client);
    s->tenant = c->caller.tenant;
    sl_status st = SL_OK;
    if (!sl_front_hold(c->r, &c->held, RPC_CALL_BYTES + sl_front_spec_bytes(s)))
        st = sl_fail(&j->err, SL_ERR_EXHAUSTED, SL_FRONT_NO_ROOM);
    if (!st)
        st = set_output(g, j->q, s);
    if (!st)
        st = sl_group_submit(c->r, s, on_output, g, &g->group, &j->err);
    c->retry_after_s = s->retry_after_s;
    if (st) {
        sl_front_count_refused(c->r, "generate", st);
        end_call(g, rpc_code_of(st), j->err.text);
    }
}

static void parsed(sl_front_job *f, bool ran)
{
    parse_job *j = (parse_job *)f;
    generation *g = j->g;
    if (!ran)
        j->st = SL_ERR_CANCELLED;
    if (g)
        g->job = NULL;
    if (g && !g->call->finished && j->st) {
        sl_front_count_refused(j->r, "generate", j->st);
        end_call(g, rpc_code_of(j->st), j->err.text);
    } else if (g && !g->call->finished) {
        submit(g, j);
    }
    free_parse(j);
}

void rpc_generate(rpc_call *c, const uint8_t *data, size_t n)
{
    (void)data; /* in c->in, which the job takes over */
    generation *g = calloc(1, sizeof *g);
    parse_job *j = calloc(1, sizeof *j);
    if (!g || !j) {
        free(g);
        free(j);
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    c->user = g;
    c->counted = true;
    c->g->generating++;
    g->call = c;
    g->job = j;
    j->g = g;
    j->r = c->r;
    j->body = sl_sb_take(&c->in);
    j->n = n;
    j->job.run = run_parse;
    j->job.done = parsed;
    sl_request_spec_init(&j->spec);
    if (n <= SL_FRONT_POOL_BYTES) {
        run_parse(&j->job);
        parsed(&j->job, true);
        return;
    }
    sl_err err = {""}; /* from here on the job belongs to the pool, unless it was refused */
    sl_status st = sl_front_job_start(c->r, c->g->loop, &j->job, n, &err);
    if (st) {
        j->st = st;
        j->err = err;
        parsed(&j->job, true);
    }
}

void rpc_generate_gone(rpc_call *c)
{
    generation *g = c->user;
    if (!g)
        return;
    c->user = NULL;
    if (g->job)
        g->job->g = NULL;
    if (!c->finished)
        sl_counter_add(c->g->stats->disconnects, 1);
    let_go(g);
    if (c->counted) {
        c->counted = false;
        c->g->generating--;
    }
    for (uint32_t i = 0; i < g->n; i++) {
        free(g->out[i].ids);
        free(g->out[i].logprobs);
        free(g->out[i].tops);
        free(g->out[i].matched_stop);
    }
    free(g->out);
    free(g->id);
    free(g);
}

void rpc_abort(rpc_call *c, const uint8_t *data, size_t n)
{
    S(AbortRequest) *q = rpc_unpack(c, &D(abort_request), data, n);
    if (!q)
        return;
    sl_group *grp = sl_group_find(c->r, q->request_id ? q->request_id : "");
    if (grp && !c->caller.admin && strcmp(sl_group_client(grp), c->caller.client))
        grp = NULL; /* another tenant's: it does not exist for this one */
    if (grp) {
        sl_log(SL_LOG_INFO, "grpc", "abort", "id=%s reason=\"%.100s\"", sl_group_id(grp),
               q->reason ? q->reason : "");
        sl_group_abort(grp);
    }
    S(AbortResponse) a = SGLANG__GRPC__SCHEDULER__ABORT_RESPONSE__INIT;
    a.success = grp != NULL;
    a.message = rpc_text(grp ? "aborted" : "no such request");
    rpc_answer(c, &a.base);
    protobuf_c_message_free_unpacked(&q->base, NULL);
}
