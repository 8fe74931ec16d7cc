/*
 * The cases of the benchmark. The router, the client and each mock worker have their own thread, so they delay each
 * other on a machine with fewer cores; the CSV contains the number of cores. The router's CPU time is that of its
 * thread alone.
 */
#include "bench/router/router.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/args.h"
#include "base/log.h"
#include "model/tokenizer.h"
#include "bench/page.h"
#include "bench/router/client.h"
#include "bench/mock/mock.h"
#include "router/router.h"

enum { WORKERS = 3 };

typedef struct options {
    int32_t requests, streams, tokens, step_us, prompt_tokens;
    const char *transport, *out;
    int32_t *prompt; /* [prompt_tokens] */
} options;

typedef struct cluster {
    sl_router *r;
    sl_tokenizer *tok;
    sl_mock_opts mo[WORKERS];
    pthread_t router_thread, worker_thread[WORKERS];
    volatile int stop;
    int failed; /* atomic */
} cluster;

typedef struct mock_arg {
    cluster *c;
    int i;
} mock_arg;

static void *run_mock(void *p)
{
    mock_arg *a = p;
    sl_mock *m;
    sl_err err = {""};
    if (sl_mock_create(&a->c->mo[a->i], &m, &err)) {
        fprintf(stderr, "bench router: mock worker: %s\n", err.text);
        __atomic_store_n(&a->c->failed, 1, __ATOMIC_SEQ_CST);
        free(a);
        return NULL;
    }
    sl_mock_run(m, &a->c->stop);
    sl_mock_destroy(m);
    free(a);
    return NULL;
}

typedef struct router_arg {
    sl_router_opts o;
    cluster *c;
    sl_err err;
    sl_status st;
    pthread_mutex_t lock;
    pthread_cond_t up;
    bool ready;
} router_arg;

static void *run_router(void *p)
{
    router_arg *a = p;
    sl_router *r = NULL;
    sl_status st = sl_router_create_opts(&a->o, &r, &a->err);
    pthread_mutex_lock(&a->lock);
    a->st = st;
    a->c->r = r;
    a->ready = true;
    pthread_cond_signal(&a->up);
    pthread_mutex_unlock(&a->lock);
    sl_err err = {""};
    if (!st)
        sl_router_run(r, &err);
    sl_router_destroy(r);
    return NULL;
}

static void stop(cluster *c)
{
    sl_router_stop(c->r);
    sl_router_stop(c->r);
    pthread_join(c->router_thread, NULL);
    __atomic_store_n(&c->stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(c->worker_thread[i], NULL);
    sl_tokenizer_destroy(c->tok);
}

static sl_status start(cluster *c, const options *o, uint32_t step_us, sl_err *err)
{
    memset(c, 0, sizeof *c);
    SL_TRY(sl_mock_tokenizer(&c->tok, err));
    static router_arg a; /* static, because the router's thread reads it after start() has returned */
    memset(&a, 0, sizeof a);
    a.c = c;
    pthread_mutex_init(&a.lock, NULL);
    pthread_cond_init(&a.up, NULL);
    sl_router_opts_default(&a.o);
    a.o.link.transport = o->transport;
    a.o.model.tokenizer = c->tok;
    a.o.front.http_port = a.o.front.grpc_port = 0;
    a.o.request.max_queue = 100000;
    pthread_create(&c->router_thread, NULL, run_router, &a);
    pthread_mutex_lock(&a.lock);
    while (!a.ready)
        pthread_cond_wait(&a.up, &a.lock);
    pthread_mutex_unlock(&a.lock);
    if (a.st) {
        pthread_join(c->router_thread, NULL);
        sl_tokenizer_destroy(c->tok);
        return sl_fail(err, a.st, "%s", a.err.text);
    }
    static const char *const names[WORKERS] = {"prefill/0", "decode/0", "decode/1"};
    for (int i = 0; i < WORKERS; i++) {
        sl_mock_opts_default(&c->mo[i]);
        c->mo[i].transport = o->transport;
        c->mo[i].router_address = sl_router_worker_address(c->r);
        c->mo[i].name = names[i];
        c->mo[i].role = i ? SL_ROLE_DECODE : SL_ROLE_PREFILL;
        c->mo[i].heartbeat_ms = 200;
        c->mo[i].max_batch = 1024;
        c->mo[i].total_pages = 1 << 20;
        c->mo[i].max_context = 1 << 17;
        c->mo[i].step_us = step_us;
        mock_arg *m = malloc(sizeof *m);
        *m = (mock_arg){c, i};
        pthread_create(&c->worker_thread[i], NULL, run_mock, m);
    }
    struct timespec half = {0, 500000000};
    nanosleep(&half, NULL); /* time for the workers to join */
    if (!__atomic_load_n(&c->failed, __ATOMIC_SEQ_CST))
        return SL_OK;
    stop(c);
    return sl_fail(err, SL_ERR_IO, "a mock worker could not start");
}

static double thread_seconds(pthread_t t)
{
    clockid_t id;
    struct timespec ts;
    if (pthread_getcpuclockid(t, &id) || clock_gettime(id, &ts))
        return 0;
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* How long tokens take from their arrival at the router, and from the mock's step, to the sockets: until now. */
typedef struct ways {
    sl_bench_histogram written, whole;
} ways;

static sl_status read_ways(const cluster *c, ways *out, sl_err *err)
{
    static const char name[] = "sluice_router_tokens_written_seconds";
    char *page = NULL;
    *out = (ways){0};
    SL_TRY(sl_bench_http("127.0.0.1", sl_router_http_port(c->r), "/metrics", NULL, &page, NULL, err));
    sl_bench_histogram_add(&out->written, page, name, "from=\"arrival\"");
    sl_bench_histogram_add(&out->whole, page, name, "from=\"step\"");
    free(page);
    return SL_OK;
}

static void print_way(FILE *csv, const sl_bench_histogram *from, const sl_bench_histogram *to)
{
    for (int i = 0; i < 2; i++) {
        double s = sl_bench_histogram_quantile(from, to, i ? 0.99 : 0.5);
        fprintf(csv, s < 0 ? "," : ",%.1f", 1e6 * s);
    }
}

static sl_status measure(FILE *csv, cluster *c, const options *o, const char *name, sl_bench_load l,
                         uint32_t max_tokens, uint32_t step_us, sl_err *err)
{
    sl_bench_load_result r;
    l.port = l.grpc ? sl_router_grpc_port(c->r) : sl_router_http_port(c->r);
    sl_bench_ask ask = {.prompt = o->prompt,
                        .prompt_tokens = (uint32_t)o->prompt_tokens,
                        .max_tokens = max_tokens,
                        .stream = step_us > 0};
    l.asks = &ask;
    l.n_asks = 1;
    sl_bench_load warm = l;
    warm.requests = l.concurrency;
    sl_status st = sl_bench_load_run(&warm, &r, err);
    sl_bench_load_result_free(&r);
    if (st)
        return st;
    fprintf(stderr, "bench router: %s over %s, %u requests…\n", name, l.grpc ? "grpc" : "http", l.requests);
    ways before, after;
    SL_TRY(read_ways(c, &before, err));
    double cpu = thread_seconds(c->router_thread);
    st = sl_bench_load_run(&l, &r, err);
    cpu = thread_seconds(c->router_thread) - cpu;
    double own = (double)step_us * (max_tokens - 1); /* the time that the mock workers need */
    if (!st)
        fprintf(csv, "%s,%s,%u,%u,%u,%.0f,%.1f,%.1f,%.1f,%.1f,%.0f,%.1f,%.1f,%.1f,%.2f,%.2f", name,
                l.grpc ? "grpc" : "http", l.concurrency, l.requests, max_tokens, l.requests / r.seconds,
                sl_bench_quantile(&r.latency, 0.5) - own, sl_bench_quantile(&r.latency, 0.99) - own,
                sl_bench_quantile(&r.first, 0.5), sl_bench_quantile(&r.first, 0.99),
                (double)r.tokens / r.seconds, sl_bench_quantile(&r.gap, 0.5), sl_bench_quantile(&r.gap, 0.99),
                cpu / l.requests * 1e6, 100.0 * cpu / r.seconds, cpu / (double)r.tokens * 1e6);
    sl_bench_load_result_free(&r);
    SL_TRY(st);
    SL_TRY(read_ways(c, &after, err));
    print_way(csv, &before.written, &after.written);
    print_way(csv, &before.whole, &after.whole);
    fprintf(csv, "\n");
    fflush(csv);
    return SL_OK;
}

/* One request at a time, then 64 concurrent requests; one token each. */
static sl_status run_short(FILE *csv, cluster *c, const options *o, sl_err *err)
{
    for (int grpc = 0; grpc < 2; grpc++) {
        sl_bench_load one = {.grpc = grpc, .concurrency = 1, .requests = o->requests};
        sl_bench_load many = {.grpc = grpc, .concurrency = 64, .requests = 4 * o->requests};
        SL_TRY(measure(csv, c, o, "latency", one, 1, 0, err));
        SL_TRY(measure(csv, c, o, "throughput", many, 1, 0, err));
    }
    return SL_OK;
}

static sl_status run_streams(FILE *csv, cluster *c, const options *o, sl_err *err)
{
    for (int grpc = 0; grpc < 2; grpc++) {
        sl_bench_load s = {.grpc = grpc, .concurrency = o->streams, .requests = o->streams};
        SL_TRY(measure(csv, c, o, "streams", s, o->tokens, o->step_us, err));
    }
    return SL_OK;
}

static sl_status run_cases(FILE *csv, const options *o, sl_err *err)
{
    cluster c;
    SL_TRY(start(&c, o, 0, err));
    sl_status st = run_short(csv, &c, o, err);
    stop(&c);
    SL_TRY(st);
    SL_TRY(start(&c, o, o->step_us, err));
    st = run_streams(csv, &c, o, err);
    stop(&c);
    return st;
}

static void machine_facts(FILE *csv, const options *o)
{
    char model[128] = "unknown", line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "model name : %127[^\n]", model) == 1)
            break;
    }
    if (f)
        fclose(f);
    fprintf(
        csv,
        "# cpu=\"%s\" cores=%ld transport=%s prompt_tokens=%u step_us=%u workers=mock(1 prefill, 2 decode)\n",
        model, sysconf(_SC_NPROCESSORS_ONLN), o->transport, o->prompt_tokens, o->step_us);
    fprintf(
        csv,
        "# added = measured time less the time that the mock workers need; it includes the overhead of client and "
        "mock workers, which run on the same machine\n");
    fprintf(
        csv,
        "case,api,concurrency,requests,tokens,requests_per_s,added_p50_us,added_p99_us,first_token_p50_us,"
        "first_token_p99_us,tokens_per_s,gap_p50_us,gap_p99_us,router_cpu_us_per_request,"
        "router_cpu_percent,router_cpu_us_per_token,written_p50_us,written_p99_us,whole_p50_us,whole_p99_us\n");
}

int sl_bench_router_main(int argc, char **argv)
{
    options o = {2000, 256, 100, 10000, 128, "loopback", NULL, NULL};
    const sl_arg args[] = {
        {"requests", SL_ARG_INT, &o.requests, "N",
         "Number of requests of the latency cases; the throughput cases have four times this number. Default 2000.",
         1, 1 << 24, NULL},
        {"streams", SL_ARG_INT, &o.streams, "N", "Number of concurrent streams. Default 256.", 1, 1024, NULL},
        {"tokens", SL_ARG_INT, &o.tokens, "N", "Number of tokens of each stream. Default 100.", 2, 1 << 24,
         NULL},
        {"step-us", SL_ARG_INT, &o.step_us, "N",
         "Microseconds between two tokens of a mock decode worker in the stream cases. Default 10000.", 1,
         1 << 30, NULL},
        {"prompt-tokens", SL_ARG_INT, &o.prompt_tokens, "N", "Number of tokens of each prompt. Default 128.",
         1, 1 << 24, NULL},
        {"transport", SL_ARG_TEXT, &o.transport, "NAME",
         "Transport between router and mock workers: loopback, the default, or ucx.", 0, 0, NULL},
        {"out", SL_ARG_TEXT, &o.out, "FILE", "Write the CSV to FILE instead of standard output.", 0, 0, NULL},
    };
    int exit_code;
    if (!sl_args_ready("[flags]", args, SL_COUNT(args), argc, argv, &exit_code))
        return exit_code;
    sl_log_init(SL_LOG_WARN, false, "bench");
    FILE *csv = o.out ? fopen(o.out, "we") : stdout;
    if (!csv) {
        fprintf(stderr, "bench router: cannot write %s\n", o.out);
        return 1;
    }
    machine_facts(csv, &o);
    sl_err err = {""};
    o.prompt = calloc((size_t)o.prompt_tokens, sizeof *o.prompt);
    for (int32_t i = 0; o.prompt && i < o.prompt_tokens; i++)
        o.prompt[i] = 65 + i % 26;
    sl_status st = o.prompt ? run_cases(csv, &o, &err) : sl_fail(&err, SL_ERR_NO_MEMORY, "out of memory");
    free(o.prompt);
    if (st)
        fprintf(stderr, "bench router: %s: %s\n", sl_status_name(st), err.text);
    if (o.out)
        fclose(csv);
    return st ? 1 : 0;
}
