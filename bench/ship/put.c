/* See put.h. */
#include "bench/ship/put.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WINDOW = 256 }; /* puts in flight; the same number as in the prefill worker */

struct sl_bench_ship_put {
    sl_transport *tp;
    sl_tp_ep *ep;
    sl_tp_rkey *key;
    uint32_t in_flight;
    sl_status status; /* first failure */
    bool connected;
};

/* ---- the process that offers its arena ---- */

static void on_accepted(void *arg, sl_tp_ep *ep, const char *address)
{
    (void)arg;
    (void)ep;
    (void)address;
}

static void on_gone(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    (void)arg;
    (void)st;
    (void)why;
    sl_tp_close(ep, SL_TP_CLOSE_FORCE);
}

/* *tp: created first; the caller destroys it, also after a failure. */
static sl_status offer(sl_arena *a, const char *tls, sl_transport **tp, sl_bench_ship_target *out,
                       sl_err *err)
{
    sl_tp_options o = sl_tp_options_default();
    sl_tp_mem *mem;
    o.tls = tls;
    o.events = (sl_tp_events){.accepted = on_accepted, .failed = on_gone};
    SL_TRY(sl_transport_create("ucx", &o, tp, err));
    SL_TRY(sl_tp_mem_register(*tp, sl_arena_base(a), sl_arena_bytes(a), SL_TP_HOST, SL_TP_REMOTE_WRITE, &mem,
                              err));
    SL_TRY(sl_tp_rkey_pack(mem, out->key, sizeof out->key, &out->key_bytes));
    SL_TRY(sl_tp_listen(*tp, "127.0.0.1", 0, out->address, sizeof out->address, err));
    out->base = (uintptr_t)sl_arena_base(a);
    return SL_OK;
}

sl_transport *sl_bench_ship_target_open(sl_arena *a, const char *tls, sl_bench_ship_target *out)
{
    sl_transport *tp = NULL;
    sl_err err = {0};
    sl_status st = offer(a, tls, &tp, out, &err);
    if (st == SL_OK)
        return tp;
    snprintf(out->why, sizeof out->why, "%.199s", err.text[0] ? err.text : sl_status_name(st));
    sl_tp_destroy(tp);
    return NULL;
}

void sl_bench_ship_target_serve(sl_transport *tp, int until)
{
    struct pollfd p[2] = {{.fd = until, .events = POLLIN},
                          {.fd = tp ? sl_tp_event_fd(tp) : -1, .events = POLLIN}};
    while (!p[0].revents) {
        while (tp && sl_tp_progress(tp) > 0)
            ;
        if (tp && sl_tp_arm(tp) != SL_OK)
            continue;
        (void)poll(p, 2, 500);
    }
    sl_tp_destroy(tp);
}

/* ---- the process that puts ---- */

static void on_connected(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    sl_bench_ship_put *p = arg;
    (void)ep;
    (void)why;
    p->connected = true;
    p->status = st;
}

static void on_failed(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    (void)ep;
    (void)why;
    ((sl_bench_ship_put *)arg)->status = st;
}

static sl_status connect_to(sl_bench_ship_put *p, const sl_bench_ship_target *t, const char *tls, sl_err *err)
{
    sl_tp_options o = sl_tp_options_default();
    o.tls = tls;
    o.events = (sl_tp_events){.arg = p, .connected = on_connected, .failed = on_failed};
    SL_TRY(sl_transport_create("ucx", &o, &p->tp, err));
    SL_TRY(sl_tp_connect(p->tp, t->address, &p->ep, err));
    while (!p->connected)
        sl_tp_progress(p->tp);
    if (p->status != SL_OK)
        return sl_fail(err, p->status, "cannot connect to %s", t->address);
    return sl_tp_rkey_unpack(p->ep, t->key, t->key_bytes, &p->key, err);
}

sl_status sl_bench_ship_put_open(const sl_bench_ship_target *t, const char *tls, sl_bench_ship_put **out,
                                 sl_err *err)
{
    if (t->why[0])
        return sl_fail(err, SL_ERR_UNSUPPORTED, "the other process cannot offer its arena: %s", t->why);
    sl_bench_ship_put *p = calloc(1, sizeof *p);
    if (!p)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = connect_to(p, t, tls, err);
    if (st != SL_OK) {
        sl_bench_ship_put_close(p);
        return st;
    }
    *out = p;
    return SL_OK;
}

void sl_bench_ship_put_close(sl_bench_ship_put *p)
{
    if (p)
        sl_tp_destroy(p->tp);
    free(p);
}

sl_transport *sl_bench_ship_put_transport(sl_bench_ship_put *p)
{
    return p->tp;
}

void sl_bench_ship_put_describe(const sl_bench_ship_put *p, char *text, size_t cap)
{
    sl_tp_ep_query(p->ep, text, cap);
}

static void on_done(void *cookie, sl_status st)
{
    sl_bench_ship_put *p = cookie;
    p->in_flight--;
    if (st != SL_OK && p->status == SL_OK)
        p->status = st;
}

/* The status of a call, or else the first failure of the connection, described in err. */
static sl_status outcome(const sl_bench_ship_put *p, sl_status st, sl_err *err)
{
    st = st != SL_OK ? st : p->status;
    return st == SL_OK ? SL_OK : sl_fail(err, st, "the connection to the other process failed");
}

sl_status sl_bench_ship_put_post(sl_bench_ship_put *p, const sl_span *s, sl_tp_mem *mem, sl_err *err)
{
    sl_status st = SL_AGAIN;
    while (st == SL_AGAIN && p->status == SL_OK) {
        if (p->in_flight < WINDOW)
            st = sl_tp_put(p->ep, s->local, mem, (size_t)s->bytes, s->remote, p->key, on_done, p);
        if (st == SL_AGAIN)
            sl_tp_progress(p->tp);
    }
    p->in_flight += st == SL_OK;
    return outcome(p, st, err);
}

sl_status sl_bench_ship_put_flush(sl_bench_ship_put *p, sl_err *err)
{
    sl_status st = sl_tp_flush(p->ep, on_done, p);
    p->in_flight += st == SL_OK;
    while (st == SL_OK && p->in_flight && p->status == SL_OK)
        sl_tp_progress(p->tp);
    return outcome(p, st, err);
}
