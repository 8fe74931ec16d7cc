/*
 * A router with mock workers in one process, for client tests without a model: real HTTP and gRPC servers,
 * made-up tokens. Prints one JSON line with the ports, then obeys lines on stdin: "kill N" (worker N
 * vanishes), "add decode|prefill". SIGTERM drains.
 *
 *   mock_cluster [--prefill N] [--decode N] [--step-us N] [--prefill-us N] [--api-key KEY] [--tls-cert F
 * --tls-key F]
 *                [--max-queue N] [--max-batch N] [--idle-timeout S] [--eos-every N] [--max-body N]
 *                [--transport loopback|ucx]
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "model/tokenizer.h"
#include "bench/mock/mock.h"
#include "router/router.h"

enum { MAX_WORKERS = 96 };

typedef struct worker {
    pthread_t thread;
    sl_mock_opts o;
    char name[32];
    volatile int stop;
    atomic_int kill;
} worker;

static worker workers[MAX_WORKERS];
static int n_workers;
static sl_mock_opts base;

static void *run_worker(void *arg)
{
    worker *w = arg;
    sl_mock *m;
    sl_err err = {""};
    if (sl_mock_create(&w->o, &m, &err)) {
        fprintf(stderr, "mock_cluster: %s\n", err.text);
        exit(1);
    }
    sl_mock_run(m, &w->stop);
    if (atomic_load(&w->kill))
        sl_mock_kill(m);
    sl_mock_destroy(m);
    return NULL;
}

static void add(sl_role role)
{
    if (n_workers == MAX_WORKERS)
        return;
    worker *w = &workers[n_workers];
    w->o = base;
    w->o.role = role;
    snprintf(w->name, sizeof w->name, "%s/%d", sl_role_name(role), n_workers);
    w->o.name = w->name;
    pthread_create(&w->thread, NULL, run_worker, w);
    n_workers++;
}

static void *read_commands(void *arg)
{
    (void)arg;
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        int n;
        if (sscanf(line, "kill %d", &n) == 1 && n >= 0 && n < n_workers) {
            atomic_store(&workers[n].kill, 1);
            __atomic_store_n(&workers[n].stop, 1, __ATOMIC_SEQ_CST);
        } else if (!strncmp(line, "add decode", 10)) {
            add(SL_ROLE_DECODE);
        } else if (!strncmp(line, "add prefill", 11)) {
            add(SL_ROLE_PREFILL);
        }
    }
    return NULL;
}

typedef struct options {
    int prefill, decode;
} options;

static bool parse(int argc, char **argv, sl_router_opts *o, options *p)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *k = argv[i], *v = argv[i + 1];
        long n = strtol(v, NULL, 10);
        if (!strcmp(k, "--prefill"))
            p->prefill = (int)n;
        else if (!strcmp(k, "--decode"))
            p->decode = (int)n;
        else if (!strcmp(k, "--step-us"))
            base.step_us = (uint32_t)n;
        else if (!strcmp(k, "--prefill-us"))
            base.prefill_us = (uint32_t)n;
        else if (!strcmp(k, "--max-batch"))
            base.max_batch = (uint32_t)n;
        else if (!strcmp(k, "--eos-every"))
            base.eos_every = (uint32_t)n;
        else if (!strcmp(k, "--api-key"))
            o->front.api_key = v;
        else if (!strcmp(k, "--tls-cert"))
            o->front.tls_cert = v;
        else if (!strcmp(k, "--tls-key"))
            o->front.tls_key = v;
        else if (!strcmp(k, "--max-queue"))
            o->request.max_queue = (uint32_t)n;
        else if (!strcmp(k, "--idle-timeout"))
            o->front.handshake_timeout_ms = o->front.receive_timeout_ms = o->front.idle_timeout_ms =
                (uint32_t)n * 1000;
        else if (!strcmp(k, "--transport"))
            base.transport = o->link.transport = v;
        else if (!strcmp(k, "--max-body"))
            o->front.max_body_bytes = (uint64_t)n;
        else
            return false;
    }
    return argc % 2 == 1;
}

int main(int argc, char **argv)
{
    sl_router_opts o;
    options p = {1, 2};
    sl_router_opts_default(&o);
    sl_mock_opts_default(&base);
    base.step_us = 2000;
    o.link.transport = "loopback";
    o.front.http_port = o.front.grpc_port = 0;
    o.signals = true;
    if (!parse(argc, argv, &o, &p)) {
        fprintf(stderr, "mock_cluster: bad arguments\n");
        return 2;
    }
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_INFO : SL_LOG_ERROR, false, "router");
    sl_err err = {""};
    sl_tokenizer *tok = NULL;
    sl_router *r = NULL;
    if (sl_mock_tokenizer(&tok, &err) || (o.model.tokenizer = tok, sl_router_create_opts(&o, &r, &err))) {
        fprintf(stderr, "mock_cluster: %s\n", err.text);
        return 1;
    }
    base.router_address = sl_router_worker_address(r);
    for (int i = 0; i < p.prefill; i++)
        add(SL_ROLE_PREFILL);
    for (int i = 0; i < p.decode; i++)
        add(SL_ROLE_DECODE);
    pthread_t t;
    pthread_create(&t, NULL, read_commands, NULL);
    pthread_detach(t);
    printf("{\"http\": %d, \"grpc\": %d}\n", sl_router_http_port(r), sl_router_grpc_port(r));
    fflush(stdout);
    sl_status st = sl_router_run(r, &err);
    for (int i = 0; i < n_workers; i++) {
        __atomic_store_n(&workers[i].stop, 1, __ATOMIC_SEQ_CST);
        pthread_join(workers[i].thread, NULL);
    }
    sl_router_destroy(r);
    sl_tokenizer_destroy(tok);
    return st ? 1 : 0;
}
