/*
 * The driver of the load generator: slots, the loop, and the times of requests and tokens; see client_impl.h for the
 * other files.
 */
#include "bench/router/client.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/router/client_impl.h"
#include "bench/stats.h"

static void add(sl_bench_samples *s, double us)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 1024;
        double *v = realloc(s->v, cap * sizeof *v);
        if (!v)
            return;
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = us;
}

double sl_bench_quantile(const sl_bench_samples *s, double q)
{
    if (!s->n)
        return 0;
    size_t i = (size_t)(q * (double)(s->n - 1) + 0.5);
    return s->v[i];
}

void sl_bench_load_result_free(sl_bench_load_result *r)
{
    free(r->latency.v);
    free(r->first.v);
    free(r->gap.v);
    memset(r, 0, sizeof *r);
}

/* ---- the life of a request ---- */

void sl_client_begin(client_slot *s)
{
    s->busy = true;
    s->begin_ns = s->last_ns = sl_now_ns();
    s->tokens = s->counted = 0;
    s->failed = false;
    s->d->started++;
}

void sl_client_tokens(client_slot *s, uint32_t n)
{
    uint64_t now = sl_now_ns();
    sl_bench_load_result *r = s->d->r;
    sl_bench_watch *w = s->d->l->watch;
    double us = (double)(now - s->last_ns) / 1e3;
    if (!s->tokens)
        add(&r->first, us);
    if (!s->tokens && w)
        w->streaming++;
    for (uint32_t i = 0; s->tokens && i < n && (!w || w->measuring); i++)
        add(&r->gap, us / n);
    s->last_ns = now;
    s->tokens += n;
    r->tokens += n;
}

void sl_client_end(client_slot *s, bool ok)
{
    client_driver *d = s->d;
    s->busy = false;
    d->ended++;
    d->r->errors += !ok;
    d->r->complete += s->counted;
    add(&d->r->latency, (double)(sl_now_ns() - s->begin_ns) / 1e3);
    if (d->l->watch)
        d->l->watch->ended++;
    if (d->ended == d->l->requests)
        uv_stop(&d->loop);
}

void sl_client_give_up(client_driver *d, sl_status st)
{
    if (!d->st)
        d->st = st;
    uv_stop(&d->loop);
}

void sl_client_alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf)
{
    (void)h;
    (void)hint;
    static _Thread_local char space[65536];
    *buf = uv_buf_init(space, sizeof space);
}

static void on_written(uv_write_t *w, int status)
{
    (void)status;
    free(w);
}

/* The copy is in the same allocation as the write request, which on_written() frees. */
void sl_client_write(uv_tcp_t *t, const void *data, size_t n)
{
    uv_write_t *w = malloc(sizeof *w + n);
    if (!w)
        return;
    memcpy(w + 1, data, n);
    uv_buf_t b = uv_buf_init((char *)(w + 1), (unsigned)n);
    if (uv_write(w, (uv_stream_t *)t, &b, 1, on_written))
        free(w);
}

void sl_client_connect(client_driver *d, uv_tcp_t *tcp, void *data, uv_connect_cb cb)
{
    uv_tcp_init(&d->loop, tcp);
    tcp->data = data;
    uv_connect_t *c = calloc(1, sizeof *c);
    if (!c) {
        sl_client_give_up(d, SL_ERR_NO_MEMORY);
        return;
    }
    c->data = data;
    if (uv_tcp_connect(c, tcp, (struct sockaddr *)&d->address, cb)) {
        free(c);
        sl_client_give_up(d, SL_ERR_PEER);
    }
}

/* ---- run ---- */

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

static void look(uv_timer_t *t)
{
    client_driver *d = t->data;
    if (d->l->watch->stop)
        uv_stop(&d->loop);
}

static sl_status find_router(client_driver *d, sl_err *err)
{
    char port[8];
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};
    const char *host = d->l->host ? d->l->host : "127.0.0.1";
    snprintf(port, sizeof port, "%d", d->l->port);
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return sl_fail(err, SL_ERR_NOT_FOUND, "%s has no address", host);
    memcpy(&d->address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return SL_OK;
}

static sl_status make_slots(client_driver *d, sl_err *err)
{
    const sl_bench_load *l = d->l;
    for (uint32_t i = 0; i < l->concurrency; i++) {
        client_slot *s = &d->slots[i];
        s->d = d;
        s->ask = &l->asks[i % l->n_asks];
        if (l->grpc)
            sl_client_grpc_body(s);
        else
            sl_client_http_body(s);
        if (!s->body)
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    return SL_OK;
}

static void run_loop(client_driver *d)
{
    uv_timer_init(&d->loop, &d->timer);
    d->timer.data = d;
    if (d->l->watch)
        uv_timer_start(&d->timer, look, 5, 5);
    if (d->l->grpc)
        sl_client_grpc_start(d);
    else
        sl_client_http_start(d);
    if (!d->st)
        uv_run(&d->loop, UV_RUN_DEFAULT);
}

static void free_slots(client_driver *d)
{
    for (uint32_t i = 0; i < d->l->concurrency; i++) {
        sl_sb_free(&d->slots[i].in);
        sl_sb_free(&d->slots[i].message);
        free(d->slots[i].body);
    }
    free(d->slots);
}

sl_status sl_bench_load_run(const sl_bench_load *l, sl_bench_load_result *out, sl_err *err)
{
    client_driver d = {.l = l, .r = out};
    memset(out, 0, sizeof *out);
    SL_TRY(find_router(&d, err));
    d.slots = calloc(l->concurrency, sizeof *d.slots);
    if (!d.slots || uv_loop_init(&d.loop)) {
        free(d.slots);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    sl_status st = make_slots(&d, err);
    uint64_t t0 = sl_now_ns();
    if (st == SL_OK)
        run_loop(&d);
    out->seconds = (double)(sl_now_ns() - t0) / 1e9;
    uv_walk(&d.loop, close_handle, NULL);
    uv_run(&d.loop, UV_RUN_DEFAULT);
    uv_loop_close(&d.loop);
    nghttp2_session_del(d.h2);
    free_slots(&d);
    sl_bench_sort(out->latency.v, out->latency.n);
    sl_bench_sort(out->first.v, out->first.n);
    sl_bench_sort(out->gap.v, out->gap.n);
    if (st == SL_OK && !d.st && out->errors)
        return sl_fail(err, SL_ERR_INTERNAL, "%lu of %u requests failed%s%.200s", out->errors, l->requests,
                       out->why[0] ? ": " : "", out->why);
    return d.st ? sl_fail(err, d.st, "a connection to the router failed") : st;
}
