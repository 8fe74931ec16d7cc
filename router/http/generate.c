/*
 * POST /v1/completions and /v1/chat/completions: a body is parsed and tokenized, its requests are submitted, their
 * outputs become the answer.
 *
 * What takes long runs on the thread pool: parsing a body, making a document, freeing what either of them built. The
 * memory of an answer is in the budget of bytes while it grows.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "router/http/gunzip.h"
#include "router/http/http_impl.h"

/* Documents that take less are made in the loop. */
enum { LOOP_DOCUMENT_BYTES = 64 << 10 };

/* ---- outputs ---- */

/* A document that is too long to be made in the loop. */
typedef struct document_job {
    sl_front_job job;      /* first: an sl_front_job pointer is a document_job pointer */
    http_req *q;           /* NULL: the client has gone */
    sl_oai_answer *answer; /* freed on the pool */
    char *text;
    uint64_t held; /* of the budget */
} document_job;

void sl_job_document(sl_front_job *f)
{
    document_job *d = (document_job *)f;
    d->text = sl_oai_answer_json(d->answer, &f->guard);
    sl_oai_answer_destroy(d->answer);
}

void sl_job_documented(sl_front_job *f, bool ran)
{
    document_job *d = (document_job *)f;
    http_req *q = d->q;
    if (!ran)
        sl_oai_answer_destroy(d->answer);
    if (q) {
        q->document = NULL;
        q->answer_held = d->held;
        d->held = 0;
        http_reply(q, 200, "application/json", d->text);
        sl_front_hold(d->job.r, &q->answer_held, q->reply_len);
        d->text = NULL;
        http_wake(q);
    }
    sl_front_hold(d->job.r, &d->held, 0);
    free(d->text);
    free(d);
}

/* The answer, which no output reaches any more, becomes the reply. */
static void make_document(http_req *q)
{
    sl_oai_answer *a = q->answer;
    document_job *d = sl_oai_answer_memory(a) > LOOP_DOCUMENT_BYTES ? calloc(1, sizeof *d) : NULL;
    if (!d) {
        http_reply(q, 200, "application/json", sl_oai_answer_json(a, NULL));
        return;
    }
    sl_front_job_init(q->h->r, &d->job, SL_JOB_HTTP_DOCUMENT);
    d->q = q;
    d->answer = a;
    d->held = q->answer_held;
    q->answer = NULL;
    q->answer_held = 0;
    q->document = d;
    sl_front_job_post(q->h->loop, &d->job);
}

void http_drop_document(http_req *q)
{
    if (q->document) {
        q->document->q = NULL; /* and no caller wants the text */
        sl_guard_stop(&q->document->job.guard);
    }
    q->document = NULL;
}

void sl_job_free_answer(sl_front_job *f)
{
    sl_oai_answer_destroy(sl_front_dropped(f));
}

void http_drop_answer(http_req *q)
{
    if (q->answer && q->heavy)
        sl_front_drop(q->h->r, q->h->loop, SL_JOB_FREE_ANSWER, q->answer);
    else
        sl_oai_answer_destroy(q->answer);
    q->answer = NULL;
}

/* Why the answer must end before its client has read it completely, or NULL. */
static const char *over_limit(http_req *q)
{
    size_t unread;
    sl_oai_answer_bytes(q->answer, &unread);
    if (unread > q->h->o->front.max_unread_bytes) {
        sl_router_stats_closed(q->h->stats, "http", "unread");
        return "the client does not read its stream (1/256 of router.max_request_bytes)";
    }
    return http_hold_answer(q) ? NULL : SL_FRONT_NO_ROOM;
}

static void on_output(void *arg, sl_group *g, const sl_output *o)
{
    (void)g;
    http_req *q = arg;
    sl_oai_answer *a = q->answer;
    sl_oai_answer_feed(a, o);
    const char *over = over_limit(q);
    if (over)
        sl_oai_answer_fail(a, SL_ERR_EXHAUSTED, over);
    bool done = sl_oai_answer_done(a), stream = sl_oai_answer_stream(a);
    if (done)
        http_let_go(q);
    if (done && !stream && !sl_oai_answer_status(a))
        make_document(q);
    if (done || stream)
        http_wake(q);
}

bool http_hold_answer(http_req *q)
{
    uint64_t bytes = q->answer ? sl_oai_answer_memory(q->answer) : 0;
    return bytes == q->answer_held || sl_front_hold(q->h->r, &q->answer_held, bytes);
}

/* ---- requests ---- */

typedef struct http_job {
    sl_front_job job; /* first: an sl_front_job pointer is an http_job pointer */
    uv_loop_t *loop;
    http_req *q; /* NULL: the client has gone */
    char client[SL_CLIENT_MAX];
    bool begun;  /* counted as a call of the client */
    bool read;   /* the body was parsed: out is to be freed */
    bool pool;   /* it runs on the pool, where a constraint may be compiled */
    bool gzip;   /* the body is still to be inflated */
    bool large;  /* it inflates to more than a body may have */
    size_t most; /* bytes of a body */
    sl_oai_env env;
    sl_oai_api api;
    char *reply; /* of an API that needs no worker */
    char *body;
    size_t len;
    uint64_t kept; /* what the tools of the request take, which its answer keeps */
    sl_oai_request out;
    sl_status st;
    sl_err err;
    uint64_t begin_ns;
} http_job;

static const char *header(const http_req *q, const char *name)
{
    return MHD_lookup_connection_value(q->c, MHD_HEADER_KIND, name);
}

static void submit(http_req *q, http_job *j)
{
    static const char *const prefixes[] = {[OAI_COMPLETIONS] = "cmpl",
                                           [OAI_CHAT] = "chatcmpl",
                                           [OAI_RESPONSES] = "resp",
                                           [OAI_MESSAGES] = "msg",
                                           [OAI_GENERATE] = "gen"};
    sl_router *r = q->h->r;
    sl_oai_request *p = &j->out;
    snprintf(q->id, sizeof q->id, "%s-%016lx%08lx", prefixes[p->api], sl_random_u64(),
             sl_random_u64() & 0xffffffffu);
    snprintf(p->spec.id, sizeof p->spec.id, "%s", q->given_id[0] ? q->given_id : q->id);
    p->spec.arrival_ns = q->arrival_ns;
    sl_trace_context_read(header(q, "traceparent"), header(q, "tracestate"), &p->spec.trace);
    memcpy(p->spec.client, q->caller.client, sizeof p->spec.client);
    p->spec.tenant = q->caller.tenant;
    uint32_t n = p->spec.n, choices = (uint32_t)(p->spec.n_prompts * n);
    sl_err err = {""};
    sl_status st = sl_front_hold_spec(r, &q->held, j->kept, &p->spec, &j->job.guard, &err);
    if (!st) /* checks everything before anything is made for each choice */
        st = sl_group_submit(r, &p->spec, on_output, q, &q->group, &err);
    q->retry_after_s = p->spec.retry_after_s;
    if (!st) {
        q->answer = sl_oai_answer_create(&q->h->env, p, q->id, (int64_t)time(NULL), choices, n);
        if (!q->answer)
            st = SL_ERR_NO_MEMORY;
        else if (!http_hold_answer(q)) /* what it shows of its prompts, for each choice */
            st = sl_fail(&err, SL_ERR_EXHAUSTED, SL_FRONT_NO_ROOM);
        if (st) {
            http_let_go(q);
            http_drop_answer(q);
        }
    }
    if (st) {
        sl_front_count_refused(r, p->spec.api, st);
        sl_log(SL_LOG_INFO, "http", "request_refused", "id=%s status=%s reason=\"%s\"", q->id,
               sl_status_name(st), err.text);
        http_reply_status(q, st, err.text);
    }
}

static sl_status inflate_body(http_job *j)
{
    char *body;
    size_t len;
    sl_status st = sl_gunzip(j->body, j->len, j->most, &j->job.guard, &body, &len, &j->err);
    j->large = st == SL_ERR_TOO_LARGE;
    SL_TRY(st);
    sl_guard_give(&j->job.guard, j->len);
    free(j->body);
    j->body = body;
    j->len = j->job.extra = len;
    j->gzip = false;
    return SL_OK;
}

void sl_job_http_request(sl_front_job *f)
{
    http_job *j = (http_job *)f;
    char field[96];
    if (j->gzip && (j->st = inflate_body(j)))
        return;
    if (j->api >= OAI_TOKENIZE) {
        free(j->reply);
        j->reply = NULL;
        j->st = sl_oai_reply(&j->env, j->api, j->body, j->len, &j->reply, &j->err);
        return;
    }
    if (!j->read) {
        j->st = sl_oai_parse(&j->env, j->api, j->body, j->len, &j->out, &j->err);
        j->read = !j->st;
        j->kept = j->read && j->out.tools ? sl_json_measure(j->body, j->len).bytes : 0;
    }
    if (j->st || !j->pool || !j->out.constraint)
        return;
    snprintf(field, sizeof field, "body.%s", j->out.constraint);
    f->extra += sl_front_constraint_cost(&j->out.spec.sampling);
    j->st = sl_front_check_constraint(f->r, &j->out.spec.sampling, field, &f->guard, &j->err);
}

static void free_job(http_job *j)
{
    if (j->read)
        sl_oai_request_free(&j->out);
    free(j->reply);
    free(j->body);
    sl_front_hold(j->job.r, &j->job.guard.held, 0);
    free(j);
}

void sl_job_free_http_request(sl_front_job *f)
{
    free_job(sl_front_dropped(f));
}

/* The status of a job that no caller waited for any more. */
static void set_stopped(http_job *j)
{
    static const struct {
        sl_status why;
        const char *text;
    } texts[] = {{SL_ERR_DEADLINE, "the request was not read within router.request_timeout_ms"},
                 {SL_ERR_PEER, "the server is shutting down"}};
    j->st = j->job.why;
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        if (texts[i].why == j->st)
            sl_fail(&j->err, j->st, "%s", texts[i].text);
    }
}

static void refuse(http_req *q, http_job *j)
{
    sl_front_count_refused(q->h->r, sl_oai_name(j->api), j->st);
    sl_log(SL_LOG_INFO, "http", "request_invalid", "path=%s status=%s reason=\"%s\"", q->path,
           sl_status_name(j->st), j->err.text);
    if (j->large)
        http_reply_error(q, 413, j->err.text, "invalid_request_error", "request_too_large");
    else
        http_reply_status(q, j->st, j->err.text);
}

/* The memory of the reply was taken while it was made; the request holds it now. */
static void reply(http_req *q, http_job *j)
{
    http_reply(q, 200, "application/json", j->reply);
    j->reply = NULL;
    q->answer_held = q->reply_len < j->job.guard.held ? q->reply_len : j->job.guard.held;
    j->job.guard.held -= q->answer_held; /* the rest, with the body, is given back by free_job() */
}

void sl_job_http_requested(sl_front_job *f, bool ran)
{
    http_job *j = (http_job *)f;
    http_req *q = j->q;
    sl_router *r = f->r;
    const char *before = sl_router_work(r, sl_oai_path(j->api));
    if (!ran || j->st == SL_ERR_CANCELLED)
        set_stopped(j);
    if (j->begun)
        sl_call_end(r, j->client, q && !j->st && j->api < OAI_TOKENIZE);
    if (q) {
        q->job = NULL;
        q->heavy |= j->len > SL_FRONT_POOL_BYTES;
        sl_histogram_observe(q->h->stats->requests.tokenize, (double)(sl_now_ns() - j->begin_ns) / 1e9);
        if (j->st)
            refuse(q, j);
        else if (j->api >= OAI_TOKENIZE)
            reply(q, j);
        else
            submit(q, j);
        http_wake(q);
    }
    if (j->len > SL_FRONT_POOL_BYTES)
        sl_front_drop(r, j->loop, SL_JOB_FREE_HTTP_REQUEST, j);
    else
        free_job(j);
    sl_router_work(r, before);
}

static http_job *new_job(http_req *q)
{
    sl_http *h = q->h;
    http_job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    sl_front_job_init(h->r, &j->job, SL_JOB_HTTP_REQUEST);
    j->loop = h->loop;
    j->q = q;
    memcpy(j->client, q->caller.client, sizeof j->client);
    j->env = h->env;
    j->env.guard = &j->job.guard;
    j->env.max_ids = sl_call_max_tokens(h->r);
    j->api = sl_oai_find(q->route->path);
    j->env.context = (int32_t)sl_call_max_tokens(h->r);
    j->gzip = q->gzip;
    j->most = h->o->front.max_body_bytes;
    j->len = q->body.len;
    j->body = sl_sb_take(&q->body);
    uint64_t part = q->held;
    sl_front_leave_part(h->r, q->caller.client, &part);
    j->job.guard.held = q->held; /* the body, which the job owns now */
    q->held = 0;
    j->begin_ns = q->arrival_ns = sl_now_ns();
    return j;
}

void http_generate(http_req *q)
{
    sl_http *h = q->h;
    http_job *j = q->body.bad ? NULL : new_job(q);
    if (!j) {
        http_reply_status(q, SL_ERR_NO_MEMORY, "out of memory");
        return;
    }
    q->heavy = j->len > SL_FRONT_POOL_BYTES;
    q->job = j;
    j->st = sl_call_begin(h->r, j->client, j->len, &q->retry_after_s, &j->err);
    j->begun = !j->st;
    j->pool = j->gzip || j->len > SL_FRONT_POOL_BYTES;
    j->job.unknown = j->gzip;
    if (!j->st && !j->pool) {
        sl_job_http_request(&j->job);
        j->pool = !j->st && j->out.constraint;
    }
    if (!j->st && j->pool) {
        uint64_t deadline = q->arrival_ns + h->o->request.timeout_ms * SL_MS;
        sl_err err = {""};
        sl_status st = sl_front_job_start(h->r, h->loop, &j->job, j->client, j->len, deadline, &err);
        if (!st)
            return; /* the job belongs to the pool, which may have changed it already */
        j->st = st;
        j->err = err;
    }
    sl_job_http_requested(&j->job, true);
}

void http_drop_job(http_req *q)
{
    http_job *j = q->job;
    q->job = NULL;
    if (!j)
        return;
    j->q = NULL;
    sl_front_job_cancel(&j->job, SL_ERR_CANCELLED);
}
