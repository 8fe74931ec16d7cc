/*
 * Generate and Abort: the life of a call. Its request is read in the loop when it is short, else on the thread pool.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "router/grpc/generate.h"
#include "sglang_scheduler.pb-c.h"

#define S(name) Sglang__Grpc__Scheduler__##name

#define D(name) sglang__grpc__scheduler__##name##__descriptor

static void let_go(generation *g)
{
    sl_group *grp = g->group;
    g->group = NULL;
    sl_group_release(grp);
}

void generate_end(generation *g, rpc_code code, const char *text)
{
    let_go(g);
    if (g->call->counted) {
        g->call->counted = false;
        g->call->g->generating--;
    }
    rpc_finish(g->call, code, text);
}

/* The client has taken all bytes: sends more of the tokens that wait. */
void rpc_generate_more(rpc_call *c)
{
    generation *g = c->user;
    for (uint32_t i = 0; g && g->out && i < g->n && h2_stream_waiting(c->s) < RPC_ROOM_BYTES; i++) {
        if (!generate_send(g, i))
            return;
    }
}

static void on_output(void *arg, sl_group *grp, const sl_output *o)
{
    (void)grp;
    generation *g = arg;
    if (g->call->finished)
        return;
    sl_status st = SL_OK;
    if (o->finished && o->finish == SL_FINISH_ERROR)
        generate_end(g, rpc_code_of(o->status), o->error);
    else if ((st = generate_keep(g, o)))
        generate_end(g, RPC_RESOURCE_EXHAUSTED, st == SL_ERR_EXHAUSTED ? SL_FRONT_NO_ROOM : "out of memory");
    else if (h2_stream_waiting(g->call->s) < RPC_ROOM_BYTES)
        generate_send(g, o->index);
}

/* ---- the call ---- */

/* Reading a request: unpacking and tokenizing, in the loop when it is short, else on the pool. */
typedef struct parse_job {
    sl_front_job job; /* first: an sl_front_job pointer is a parse_job pointer */
    uv_loop_t *loop;
    generation *g; /* NULL: the client has gone */
    char client[SL_CLIENT_MAX];
    bool begun; /* counted as a call of the client */
    bool read;  /* the message was parsed */
    bool pool;  /* it runs on the pool, where a constraint may be compiled */
    size_t max_tokens;
    char *body; /* with the frame's head of 5 bytes */
    size_t n;   /* of the message */
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
    SL_TRY(sl_guard_take(&j->job.guard, bytes, &j->err));
    j->q = sglang__grpc__scheduler__generate_request__unpack(NULL, j->n, data);
    if (!j->q)
        return sl_fail(&j->err, SL_ERR_INVALID, "the request is no valid %s", D(generate_request).name);
    SL_TRY(generate_read(j->job.r, j->q, &j->spec, j->max_tokens, &j->job.guard, &j->err));
    if (j->spec.n < 1 || j->spec.n > 128)
        return sl_fail(&j->err, SL_ERR_INVALID, "n: must be 1 to 128");
    return SL_OK;
}

void sl_job_grpc_request(sl_front_job *f)
{
    parse_job *j = (parse_job *)f;
    if (!j->read)
        j->st = parse(j);
    j->read = true;
    if (j->st || !j->pool || !j->spec.sampling.constraint)
        return;
    f->extra = sl_front_constraint_cost(&j->spec.sampling);
    j->st =
        sl_front_check_constraint(f->r, &j->spec.sampling, "sampling_params.constraint", &f->guard, &j->err);
}

static void free_parse(parse_job *j)
{
    sl_request_spec_free(&j->spec);
    if (j->q)
        protobuf_c_message_free_unpacked(&j->q->base, NULL);
    free(j->body);
    sl_front_hold(j->job.r, &j->job.guard.held, 0);
    free(j);
}

void sl_job_free_grpc_request(sl_front_job *f)
{
    free_parse(sl_front_dropped(f));
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
    g->first_scored = s->sampling.prompt_logprobs ? (uint32_t)q->logprob_start_len : 0;
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
    if (sl_group_find(c->r, c->caller.client, s->id)) {
        sl_router_stats_request(c->g->stats, "generate", "invalid");
        generate_end(g, RPC_ALREADY_EXISTS, "request_id: is in use");
        return;
    }
    set_deadline(c, s);
    const h2_headers *h = h2_stream_headers(c->s);
    sl_trace_context_read(h->traceparent, h->tracestate, &s->trace);
    memcpy(s->client, c->caller.client, sizeof s->client);
    s->tenant = c->caller.tenant;
    sl_status st = sl_front_hold_spec(c->r, &c->held, RPC_CALL_BYTES, s, &j->job.guard, &j->err);
    if (!st)
        st = set_output(g, j->q, s);
    if (!st)
        st = sl_group_submit(c->r, s, on_output, g, &g->group, &j->err);
    c->retry_after_s = s->retry_after_s;
    if (st) {
        sl_front_count_refused(c->r, "generate", st);
        generate_end(g, rpc_code_of(st), j->err.text);
    }
}

void sl_job_grpc_requested(sl_front_job *f, bool ran)
{
    parse_job *j = (parse_job *)f;
    generation *g = j->g;
    if (!ran || j->st == SL_ERR_CANCELLED) {
        j->st = f->why;
        sl_fail(&j->err, j->st, "%s",
                f->why == SL_ERR_PEER ? "the server is shutting down" : "not read in time");
    }
    bool wanted = g && !g->call->finished;
    if (j->begun)
        sl_call_end(f->r, j->client, wanted && !j->st);
    if (g)
        g->job = NULL;
    if (wanted && j->st) {
        sl_front_count_refused(f->r, "generate", j->st);
        generate_end(g, rpc_code_of(j->st), j->err.text);
    } else if (wanted) {
        submit(g, j);
    }
    if (j->n > SL_FRONT_POOL_BYTES)
        sl_front_drop(f->r, j->loop, SL_JOB_FREE_GRPC_REQUEST, j);
    else
        free_parse(j);
}

/* The job owns the bytes of the message, and what they take of the budget. */
static void take_message(rpc_call *c, parse_job *j, size_t n)
{
    j->loop = c->g->loop;
    j->body = sl_sb_take(&c->in);
    j->n = n;
    memcpy(j->client, c->caller.client, sizeof j->client);
    j->max_tokens = sl_call_max_tokens(c->r);
    sl_front_job_init(c->r, &j->job, SL_JOB_GRPC_REQUEST);
    if (c->held > RPC_CALL_BYTES) {
        j->job.guard.held = c->held - RPC_CALL_BYTES;
        c->held = RPC_CALL_BYTES;
    }
    sl_request_spec_init(&j->spec);
}

static uint64_t deadline_of(const rpc_call *c)
{
    uint64_t ours = c->arrival_ns + c->g->o->request.timeout_ms * SL_MS;
    return c->deadline_ns && c->deadline_ns < ours ? c->deadline_ns : ours;
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
    take_message(c, j, n);
    j->st = sl_call_begin(c->r, j->client, n, &c->retry_after_s, &j->err);
    j->begun = !j->st;
    j->pool = n > SL_FRONT_POOL_BYTES;
    if (!j->st && !j->pool) {
        sl_job_grpc_request(&j->job);
        j->pool = !j->st && j->spec.sampling.constraint;
    }
    if (!j->st && j->pool) {
        sl_err err = {""};
        sl_status st = sl_front_job_start(c->r, c->g->loop, &j->job, j->client, n, deadline_of(c), &err);
        if (!st)
            return; /* the job belongs to the pool, which may have changed it already */
        j->st = st;
        j->err = err;
    }
    sl_job_grpc_requested(&j->job, true);
}

void rpc_generate_gone(rpc_call *c)
{
    generation *g = c->user;
    if (!g)
        return;
    c->user = NULL;
    parse_job *j = g->job;
    g->job = NULL;
    if (j) {
        j->g = NULL;
        sl_front_job_cancel(&j->job, SL_ERR_CANCELLED);
    }
    if (!c->finished)
        sl_counter_add(c->g->stats->fronts.disconnects, 1);
    let_go(g);
    if (c->counted) {
        c->counted = false;
        c->g->generating--;
    }
    generate_free_outputs(g);
    free(g->id);
    free(g);
}

void rpc_abort(rpc_call *c, const uint8_t *data, size_t n)
{
    S(AbortRequest) *q = rpc_unpack(c, &D(abort_request), data, n);
    if (!q)
        return;
    const char *id = q->request_id ? q->request_id : "";
    sl_group *grp = sl_group_find(c->r, c->caller.client, id);
    if (!grp && c->caller.admin) /* those of others exist for admins only */
        grp = sl_group_find(c->r, NULL, id);
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
