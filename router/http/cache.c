/*
 * POST /cache/pages, /cache/verify, /cache/drop, /cache/job: what administrators ask about the cache of one decode worker
 * (cache_query.h). The request waits until the worker has answered; a job continues in the worker, and is asked about again.
 */
#include <stdio.h>
#include <stdlib.h>

#include "router/http/cache_query.h"
#include "router/http/http_impl.h"

static void reply(http_req *q, json_t *o)
{
    http_reply(q, 200, "application/json", o ? json_dumps(o, JSON_COMPACT) : NULL);
    json_decref(o);
}

static void reply_failure(http_req *q, sl_status st, const char *why)
{
    if (st == SL_ERR_REFUSED)
        http_reply_error(q, 409, why, "invalid_request_error", "busy");
    else if (st == SL_ERR_NOT_FOUND)
        http_reply_error(q, 404, why, "invalid_request_error", "not_found");
    else
        http_reply_status(q, st, why);
}

static void on_answer(void *arg, const sl_cache_answer *a)
{
    http_req *q = arg;
    q->cache_call = NULL;
    if (a->status != SL_OK)
        reply_failure(q, a->status, a->reason);
    else
        reply(q, a->pages ? sl_cache_pages_json(q->worker, a->pages) : sl_cache_job_json(q->worker, a->job));
    http_wake(q);
}

static void ask(http_req *q, sl_cache_action action)
{
    sl_cache_query query;
    sl_err err = {0};
    sl_status st = sl_cache_query_read(action, q->body.data ? q->body.data : "", q->body.len, &query, &err);
    if (st == SL_OK)
        st = sl_cache_ask(q->h->r, query.worker, &query.ask, on_answer, q, &q->cache_call, &err);
    if (st != SL_OK)
        reply_failure(q, st, err.text);
    snprintf(q->worker, sizeof q->worker, "%s", query.worker);
}

void http_cache_pages(http_req *q)
{
    ask(q, SL_CACHE_LIST);
}

void http_cache_verify(http_req *q)
{
    ask(q, SL_CACHE_VERIFY);
}

void http_cache_drop(http_req *q)
{
    ask(q, SL_CACHE_DROP);
}

void http_cache_job(http_req *q)
{
    ask(q, SL_CACHE_STATUS);
}
