/* See exporter.h. The queue is under a lock; everything else belongs to the thread. */
#include "router/trace/exporter.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "router/trace/otlp.h"
#include "router/trace/post.h"

enum {
    BATCH_TRACES = 256,
    BATCH_BYTES = 1 << 20,
    GATHER_MS = 500, /* a batch waits so long for more */
    TRIES = 5,
    FIRST_PAUSE_MS = 500,
    LAST_MS = 2000, /* of close */
    GRACE_MS = 1000 /* after that the thread is in the resolver, and abandoned */
};
static const uint64_t MS = 1000000;

struct sl_exporter {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* of the monotonic clock */
    sl_trace *ring[SL_EXPORTER_WAITING];
    size_t at, n, bytes;
    bool stop, ended;
    bool abandoned;   /* its counters are gone */
    uint64_t stop_ns; /* atomic: when the thread gives up; 0: it does not stop */
    pthread_t thread;

    sl_trace_url url;
    char model[128];
    sl_counter *exported, *dropped, *failed;
    bool refused; /* the last batch was not taken: logged */
};

/* ---- the queue ---- */

/* Waits until then, or until something changes. */
static void wait_until(sl_exporter *e, uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    pthread_cond_timedwait(&e->changed, &e->lock, &t);
}

/* Takes the traces of a batch; 0: it stops. */
static size_t take(sl_exporter *e, sl_trace **batch)
{
    size_t n = 0, bytes = 0;
    pthread_mutex_lock(&e->lock);
    while (!e->n && !e->stop)
        pthread_cond_wait(&e->changed, &e->lock);
    for (uint64_t until = sl_now_ns() + GATHER_MS * MS;
         e->n < BATCH_TRACES && !e->stop && sl_now_ns() < until;)
        wait_until(e, until);
    while (e->n && n < BATCH_TRACES && bytes < BATCH_BYTES) {
        sl_trace *t = batch[n++] = e->ring[e->at];
        e->at = (e->at + 1) % SL_EXPORTER_WAITING;
        e->n--;
        bytes += sl_trace_bytes(t);
        e->bytes -= sl_trace_bytes(t);
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

void sl_trace_exporter_post(sl_exporter *e, sl_trace *t)
{
    size_t bytes = sl_trace_bytes(t);
    pthread_mutex_lock(&e->lock);
    bool fits = e->n < SL_EXPORTER_WAITING && e->bytes + bytes <= SL_EXPORTER_BYTES;
    if (fits) {
        sl_trace_ref(t);
        e->ring[(e->at + e->n++) % SL_EXPORTER_WAITING] = t;
        e->bytes += bytes;
        pthread_cond_signal(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    if (!fits)
        sl_counter_add(e->dropped, t->n);
    sl_counter_add(e->dropped, t->dropped);
}

/* ---- the thread ---- */

/* False: the exporter stops, and its time is over. */
static bool pause_for(sl_exporter *e, uint64_t ms)
{
    uint64_t until = sl_now_ns() + ms * MS;
    pthread_mutex_lock(&e->lock);
    while (!e->stop && sl_now_ns() < until)
        wait_until(e, until);
    bool go_on = !e->stop || sl_now_ns() < e->stop_ns;
    pthread_mutex_unlock(&e->lock);
    return go_on;
}

/* Says it once when it begins, and once when it ends. */
static void tell(sl_exporter *e, bool ok, const char *why)
{
    if (ok == !e->refused)
        return;
    e->refused = !ok;
    if (ok)
        sl_log(SL_LOG_INFO, "router", "traces_taken", "host=%s port=%s", e->url.host, e->url.port);
    else
        sl_log(SL_LOG_WARN, "router", "traces_refused", "host=%s port=%s path=%s reason=\"%s\"", e->url.host,
               e->url.port, e->url.path, why);
}

/* Whether the collector has taken the bytes in the end. */
static bool send_bytes(sl_exporter *e, const sl_strbuf *body)
{
    sl_err err = {""};
    bool again = true;
    uint64_t pause = FIRST_PAUSE_MS;
    for (int i = 0; i < TRIES && again; i++, pause *= 2) {
        if (i && !pause_for(e, pause))
            return false;
        const sl_post_limit limit = {sl_now_ns() + SL_TRACE_POST_MS * MS, &e->stop_ns};
        sl_status st = sl_trace_post(&e->url, body->data, body->len, &limit, &again, &err);
        tell(e, !st, err.text);
        if (!st)
            return true;
    }
    return false;
}

static bool time_is_over(const sl_exporter *e)
{
    uint64_t stop_ns = __atomic_load_n(&e->stop_ns, __ATOMIC_ACQUIRE);
    return stop_ns && sl_now_ns() >= stop_ns;
}

/* When the exporter's time is over, what still waits is only counted: to write it could take longer than close() waits. */
static void send_batch(sl_exporter *e, sl_trace **batch, size_t n)
{
    const bool late = time_is_over(e);
    sl_strbuf body = {0};
    uint64_t spans = 0;
    for (size_t i = 0; i < n; i++) {
        if (!late)
            sl_otlp_add(&body, batch[i], e->model);
        spans += batch[i]->n;
        sl_trace_unref(batch[i]);
    }
    bool ok = !late && !body.bad && send_bytes(e, &body);
    sl_sb_free(&body);
    pthread_mutex_lock(&e->lock);
    if (!e->abandoned)
        sl_counter_add(ok ? e->exported : e->failed, spans);
    pthread_mutex_unlock(&e->lock);
}

static void *run(void *arg)
{
    sl_exporter *e = arg;
    sl_trace *batch[BATCH_TRACES];
    for (size_t n; (n = take(e, batch));)
        send_batch(e, batch, n);
    pthread_mutex_lock(&e->lock);
    e->ended = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- life ---- */

static void destroy(sl_exporter *e)
{
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

sl_status sl_trace_exporter_create(const char *url, const char *model, sl_metrics *metrics, sl_exporter **out,
                                   sl_err *err)
{
    sl_exporter *e = calloc(1, sizeof *e);
    pthread_condattr_t attr;
    if (!e)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = sl_trace_url_read(url, &e->url, err);
    if (st) {
        free(e);
        return st;
    }
    snprintf(e->model, sizeof e->model, "%s", model);
    e->exported = sl_metrics_counter(metrics, "sluice_trace_spans_total", SL_LABELS("exported"));
    e->dropped = sl_metrics_counter(metrics, "sluice_trace_spans_total", SL_LABELS("dropped"));
    e->failed = sl_metrics_counter(metrics, "sluice_trace_spans_total", SL_LABELS("failed"));
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&e->thread, NULL, run, e)) {
        destroy(e);
        return sl_fail(err, SL_ERR_NO_MEMORY, "cannot make a thread");
    }
    *out = e;
    return SL_OK;
}

void sl_trace_exporter_close(sl_exporter *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    const uint64_t stop_ns = sl_now_ns() + LAST_MS * MS, late = stop_ns + GRACE_MS * MS;
    __atomic_store_n(&e->stop_ns, stop_ns, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&e->changed);
    while (!e->ended && sl_now_ns() < late)
        wait_until(e, late);
    bool ended = e->ended;
    e->abandoned = !ended;
    pthread_mutex_unlock(&e->lock);
    if (!ended) {
        sl_log(SL_LOG_WARN, "router", "exporter_abandoned", "host=%s", e->url.host);
        pthread_detach(e->thread);
        return;
    }
    pthread_join(e->thread, NULL);
    destroy(e);
}
