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
    sl_router *r;
    uv_loop_t *loop;
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
    SL_TRY(generate_read(j->r, j->q, &j->spec, &j->err));
    if (j->spec.n < 1 || j->spec.n > 128)
        return sl_fail(&j->err, SL_ERR_INVALID, "n: must be 1 to 128");
    return SL_OK;
}

static void run_parse(sl_front_job *f)
{
    parse_job *j = (parse_job *)f;
    j->st = parse(j);
}

static void free_parse(void *job)
{
    parse_job *j = job;
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
        generate_end(g, RPC_ALREADY_EXISTS, "request_id: is in use");
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
        generate_end(g, rpc_code_of(st), j->err.text);
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
        generate_end(g, rpc_code_of(j->st), j->err.text);
    } else if (g && !g->call->finished) {
        submit(g, j);
    }
    sl_front_hold(j->r, &j->held, 0);
    if (j->n > SL_FRONT_POOL_BYTES)
        sl_front_drop(j->r, j->loop, free_parse, j);
    else
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
    j->loop = c->g->loop;
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
    generate_free_outputs(g);
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
