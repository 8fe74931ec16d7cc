/* Transport benchmark, the measuring side; transport.c says what is measured and how. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/log.h"
#include "bench/stats.h"
#include "bench/transport/transport_impl.h"

typedef struct bench_result {
    uint64_t ops;
    double seconds, p50_us;
} bench_result;

static bool wait_for(sl_bench_tp *b, const bool *flag)
{
    while (!*flag && b->status == SL_OK)
        sl_tp_progress(b->tp);
    return b->status == SL_OK;
}

static bool wait_count(sl_bench_tp *b, const uint64_t *count, uint64_t want)
{
    while (*count < want && b->status == SL_OK)
        sl_tp_progress(b->tp);
    return b->status == SL_OK;
}

typedef struct bench_slot {
    sl_bench_tp *b;
    size_t offset;
} bench_slot;

static void post_slot(bench_slot *slot);

static void on_slot(void *cookie, sl_status st)
{
    bench_slot *slot = cookie;
    sl_bench_tp *b = slot->b;
    b->in_flight--;
    b->completed++;
    if (st != SL_OK)
        sl_bench_tp_fail(b, st);
    else if (!b->stop)
        post_slot(slot);
}

static void post_slot(bench_slot *slot)
{
    sl_bench_tp *b = slot->b;
    sl_status st = b->get ? sl_tp_get(b->ep, b->arena + slot->offset, b->mem, b->size,
                                      b->rkey->base + slot->offset, b->rkey, on_slot, slot)
                          : sl_tp_put(b->ep, b->arena + slot->offset, b->mem, b->size,
                                      b->rkey->base + slot->offset, b->rkey, on_slot, slot);
    if (st == SL_OK)
        b->in_flight++;
    else
        sl_bench_tp_fail(b, st);
}

static void on_flushed(void *cookie, sl_status st)
{
    sl_bench_tp *b = cookie;
    b->flushed = true;
    if (st != SL_OK)
        sl_bench_tp_fail(b, st);
}

/* Keeps the window full of operations for the given time, then flushes. */
static void stream(sl_bench_tp *b, size_t size, bool get, double seconds, bench_result *out)
{
    int window = b->args->window;
    bench_slot *slots = calloc((size_t)window, sizeof *slots);
    if (!slots) {
        sl_bench_tp_fail(b, SL_ERR_NO_MEMORY);
        return;
    }
    b->size = size;
    b->get = get;
    b->stop = b->flushed = false;
    b->completed = 0;
    uint64_t t0 = sl_now_ns(), until = t0 + (uint64_t)(seconds * 1e9);
    for (int i = 0; i < window; i++) {
        slots[i] = (bench_slot){.b = b, .offset = (size_t)i * size};
        post_slot(&slots[i]);
    }
    while (b->status == SL_OK && sl_now_ns() < until)
        for (int i = 0; i < 64; i++)
            sl_tp_progress(b->tp);
    b->stop = true;
    while (b->in_flight > 0 && b->status == SL_OK)
        sl_tp_progress(b->tp);
    sl_status st = b->status == SL_OK ? sl_tp_flush(b->ep, on_flushed, b) : b->status;
    if (st != SL_OK)
        sl_bench_tp_fail(b, st);
    wait_for(b, &b->flushed);
    *out = (bench_result){.ops = b->completed, .seconds = (double)(sl_now_ns() - t0) / 1e9};
    free(slots);
}

/* One exchange: a put to the peer and the peer's put back. */
static bool put_round(sl_bench_tp *b, size_t size, uint8_t seq)
{
    uint8_t *from = b->arena + b->bytes / 2;
    from[size - 1] = seq;
    sl_status st = sl_tp_put(b->ep, from, b->mem, size, b->rkey->base, b->rkey, sl_bench_tp_done, b);
    if (st != SL_OK)
        sl_bench_tp_fail(b, st);
    while (*sl_bench_tp_mailbox(b, size) != seq && b->status == SL_OK)
        sl_tp_progress(b->tp);
    return b->status == SL_OK;
}

static bool echo_round(sl_bench_tp *b, size_t size)
{
    uint64_t want = b->echoes + 1;
    sl_status st = sl_tp_send(b->ep, AM_ECHO, NULL, 0, b->arena, size, sl_bench_tp_done, b);
    if (st != SL_OK)
        sl_bench_tp_fail(b, st);
    return wait_count(b, &b->echoes, want);
}

static void ping(sl_bench_tp *b, size_t size, bool put, double seconds, bench_result *out)
{
    double *samples = malloc(MAX_SAMPLES * sizeof *samples);
    uint64_t n = 0, start = size, before = b->echoes;
    uint8_t seq = 0;
    if (!samples) {
        sl_bench_tp_fail(b, SL_ERR_NO_MEMORY);
        return;
    }
    memset(b->arena, 0, b->bytes);
    if (put) {
        sl_bench_tp_fail(b, sl_tp_send(b->ep, AM_PONG_START, &start, sizeof start, NULL, 0, NULL, NULL));
        wait_count(b, &b->echoes, before + 1);
    }
    uint64_t t0 = sl_now_ns(), now = t0, until = t0 + (uint64_t)(seconds * 1e9);
    while (b->status == SL_OK && now < until) {
        if (!(put ? put_round(b, size, ++seq) : echo_round(b, size)))
            break;
        uint64_t end = sl_now_ns();
        if (n < MAX_SAMPLES)
            samples[n] = (double)(end - now) / 2e3;
        now = end;
        n++;
    }
    *out = (bench_result){.ops = n, .seconds = (double)(now - t0) / 1e9};
    out->p50_us = sl_bench_median(samples, n < MAX_SAMPLES ? n : MAX_SAMPLES);
    free(samples);
}

static bool wanted(const sl_bench_tp_args *args, const char *test)
{
    size_t n = strlen(test);
    for (const char *at = args->tests; (at = strstr(at, test)); at++)
        if ((at == args->tests || at[-1] == ',') && (at[n] == ',' || !at[n]))
            return true;
    return false;
}

static void run_test(sl_bench_tp *b, const char *test, size_t size)
{
    bool latency = strstr(test, "_lat") != NULL, put = strncmp(test, "put", 3) == 0;
    bench_result warm, r = {0};
    if (b->status != SL_OK || !wanted(b->args, test))
        return;
    for (int round = 0; round < 2; round++) {
        double seconds = round ? b->args->seconds : b->args->seconds / 10;
        if (latency)
            ping(b, size, put, seconds, round ? &r : &warm);
        else
            stream(b, size, !put, seconds, round ? &r : &warm);
    }
    if (b->status != SL_OK)
        return;
    double mb_s = (double)r.ops * (double)size / r.seconds / 1e6;
    double avg = r.seconds * 1e6 / (double)(r.ops ? r.ops : 1) / (latency ? 2 : 1);
    printf("%s,%zu,%llu,%.3f,%.1f,%.3f,%.3f\n", test, size, (unsigned long long)r.ops, r.seconds, mb_s, avg,
           r.p50_us);
    fflush(stdout);
    if (b->args->progress)
        fprintf(stderr, "bench: %s %zu done\n", test, size);
}

static void print_facts(const sl_bench_tp *b)
{
    struct utsname u;
    sl_tp_info info;
    char ep[256];
    uname(&u);
    sl_tp_query(b->tp, &info);
    sl_tp_ep_query(b->ep, ep, sizeof ep);
    printf("# kernel=%s cpus=%ld transport=%s version=%s window=%d\n# %s\n", u.release,
           sysconf(_SC_NPROCESSORS_ONLN), info.name, info.version, b->args->window, ep);
    printf("test,bytes,ops,seconds,mb_per_s,avg_us,p50_us\n");
}

static sl_status open_connection(sl_bench_tp *b, const char *address, sl_err *err)
{
    sl_tp_ep *ep;
    SL_TRY(sl_bench_tp_open(b, err));
    return sl_tp_connect(b->tp, address, &ep, err);
}

int sl_bench_tp_measure(const sl_bench_tp_args *args, const char *address)
{
    static const char *const tests[] = {"put_bw", "get_bw", "put_lat", "am_lat"};
    sl_bench_tp b = {.args = args};
    sl_err err = {0};
    sl_status st = open_connection(&b, address, &err);
    if (st != SL_OK) {
        fprintf(stderr, "bench: %s: %s\n", sl_status_name(st), err.text);
        sl_bench_tp_close(&b);
        return 1;
    }
    if (wait_for(&b, &b.up))
        sl_bench_tp_send_key(&b, AM_HELLO);
    while (!b.rkey && b.status == SL_OK)
        sl_tp_progress(b.tp);
    if (b.status == SL_OK)
        print_facts(&b);
    for (size_t t = 0; t < SL_COUNT(tests); t++)
        for (int i = 0; i < args->n_sizes; i++)
            run_test(&b, tests[t], args->sizes[i]);
    st = b.status;
    if (st == SL_OK)
        sl_tp_send(b.ep, AM_QUIT, NULL, 0, NULL, 0, NULL, NULL);
    for (uint64_t until = sl_now_ns() + 100000000u; sl_now_ns() < until && !b.quit;)
        sl_tp_progress(b.tp);
    sl_bench_tp_close(&b);
    if (st != SL_OK)
        fprintf(stderr, "bench: the measurement failed: %s\n", sl_status_name(st));
    return st == SL_OK ? 0 : 1;
}
