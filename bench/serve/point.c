/* One number of streams with one kind of sampling: the client runs on its own thread, the measurement on the caller's. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "bench/serve/serve.h"

enum { LOOK_MS = 2, START_S = 300, END_S = 60 };

typedef struct client {
    sl_bench_load load;
    sl_bench_watch watch;
    sl_bench_load_result *result;
    sl_status st;
    sl_err err;
    _Atomic bool done;
} client;

static void *run_client(void *p)
{
    client *c = p;
    c->st = sl_bench_load_run(&c->load, c->result, &c->err);
    c->done = true;
    return NULL;
}

static void nap(void)
{
    struct timespec t = {0, LOOK_MS * 1000000};
    nanosleep(&t, NULL);
}

static sl_status measure(const serve_flags *f, const serve_target *t, client *c, serve_row *row, sl_err *err)
{
    uint64_t until = sl_now_ns() + START_S * 1000000000ull;
    while (c->watch.streaming < c->load.concurrency && !c->done && sl_now_ns() < until)
        nap();
    if (c->done)
        return c->st != SL_OK ? sl_fail(err, c->st, "%s", c->err.text)
                              : sl_fail(err, SL_ERR_TIMEOUT,
                                        "the streams ended before all %u ran at the same time: "
                                        "raise --tokens",
                                        c->load.concurrency);
    if (c->watch.streaming < c->load.concurrency)
        return sl_fail(err, SL_ERR_TIMEOUT, "only %u of %u streams ran at the same time", c->watch.streaming,
                       c->load.concurrency);
    SL_TRY(serve_facts_get(t, &row->from, err));
    c->watch.measuring = true;
    until = sl_now_ns() + (uint64_t)(f->seconds * 1e9);
    while (!c->watch.ended && !c->done && sl_now_ns() < until)
        nap();
    c->watch.measuring = false;
    row->all = !c->watch.ended;
    SL_TRY(serve_facts_get(t, &row->to, err));
    return row->to.steps > row->from.steps
               ? SL_OK
               : sl_fail(err, SL_ERR_INTERNAL,
                         "the workers made no step during the measurement: raise --tokens");
}

static sl_status check_whole(const client *c, sl_err *err)
{
    uint64_t want = 0;
    for (uint32_t i = 0; i < c->load.n_asks; i++)
        want += c->load.asks[i].max_tokens;
    if (c->result->complete != want)
        return sl_fail(err, SL_ERR_INTERNAL, "the answers have %lu tokens, %lu were asked for",
                       (unsigned long)c->result->complete, (unsigned long)want);
    if (c->load.grpc && c->result->tokens != want)
        return sl_fail(err, SL_ERR_INTERNAL, "%lu tokens arrived, %lu were asked for",
                       (unsigned long)c->result->tokens, (unsigned long)want);
    return SL_OK;
}

/* The next point begins with a cluster that has nothing to do. */
static sl_status wait_idle(const serve_target *t, sl_err *err)
{
    serve_facts now = {.running = 1};
    uint64_t until = sl_now_ns() + END_S * 1000000000ull;
    while (now.running > 0 && sl_now_ns() < until) {
        SL_TRY(serve_facts_get(t, &now, err));
        nap();
    }
    return now.running > 0 ? sl_fail(err, SL_ERR_TIMEOUT, "the streams have not ended after %d s", END_S)
                           : SL_OK;
}

sl_status serve_point(const serve_flags *f, const serve_target *t, int32_t *const *prompts,
                      const int32_t *lengths, int32_t n, int mode, serve_row *row, sl_err *err)
{
    pthread_t thread;
    bool grpc = strcmp(f->api, "grpc") == 0;
    sl_bench_ask *asks = calloc((size_t)n, sizeof *asks);
    client c = {.load = {.grpc = grpc,
                         .host = t->host,
                         .port = grpc ? t->grpc_port : t->http_port,
                         .concurrency = (uint32_t)n,
                         .requests = (uint32_t)n,
                         .asks = asks,
                         .n_asks = (uint32_t)n},
                .result = &row->load};
    row->streams = n, row->prompt = lengths[0], row->mode = serve_mode_names[mode], row->api = f->api;
    if (!asks)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < n; i++) {
        serve_mode_set(f, mode, &asks[i]);
        asks[i].model = t->model;
        asks[i].prompt = prompts[i];
        asks[i].prompt_tokens = (uint32_t)lengths[i];
        asks[i].max_tokens = (uint32_t)f->tokens;
        asks[i].stream = true;
    }
    c.load.watch = &c.watch;
    if (pthread_create(&thread, NULL, run_client, &c) != 0) {
        free(asks);
        return sl_fail(err, SL_ERR_NO_MEMORY, "cannot start a thread");
    }
    sl_status st = measure(f, t, &c, row, err);
    c.watch.stop = !f->whole || st != SL_OK;
    pthread_join(thread, NULL);
    if (st == SL_OK && c.st != SL_OK)
        st = sl_fail(err, c.st, "%s", c.err.text);
    if (st == SL_OK && f->whole)
        st = check_whole(&c, err);
    free(asks);
    sl_status idle = wait_idle(t, st == SL_OK ? err : NULL);
    return st == SL_OK ? idle : st;
}

/* ---- results ---- */

static double mean(const sl_bench_samples *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->v[i];
    return s->n ? sum / (double)s->n : 0;
}

/* p50 and p99 of each as text in ms, empty for what was not observed. */
static void ways(const serve_row *r, char text[6][16])
{
    const sl_bench_histogram *from[] = {&r->from.sent, &r->from.written, &r->from.whole},
                             *to[] = {&r->to.sent, &r->to.written, &r->to.whole};
    for (int i = 0; i < 6; i++) {
        double s = sl_bench_histogram_quantile(from[i / 2], to[i / 2], i % 2 ? 0.99 : 0.5);
        snprintf(text[i], sizeof text[i], s < 0 ? "" : "%.3f", 1e3 * s);
    }
}

double serve_tokens_s(const serve_row *r)
{
    return (r->to.tokens - r->from.tokens) / ((double)(r->to.after_ns - r->from.before_ns) / 1e9);
}

/* The columns of drafts, which end the row. */
static void print_drafts(FILE *out, bool csv, const serve_row *r)
{
    const double steps = r->to.steps - r->from.steps, items = r->to.items - r->from.items,
                 drafted = r->to.drafted - r->from.drafted;
    const double tokens = items > 0 ? (r->to.tokens - r->from.tokens) / items : 0,
                 stood = drafted > 0 ? (r->to.accepted - r->from.accepted) / drafted : 0,
                 ms = 1e3 * (r->to.draft_s - r->from.draft_s) / steps,
                 over = r->plain > 0 ? serve_tokens_s(r) / r->plain : 1;
    fprintf(out,
            csv ? ",%s,%.3f,%.3f,%.4f,%.3f\n"
                : "  drafts %s: %.3f tokens a step, %.3f stood, %.3f ms, %.3f of the first\n",
            r->drafts, tokens, stood, ms, over);
}

void serve_print_head(FILE *out, bool csv, bool drafts)
{
    if (csv)
        fprintf(
            out,
            "streams,prompt,mode,api,ttft_p50_ms,ttft_p99_ms,itl_mean_ms,itl_p50_ms,itl_p99_ms,tokens_per_s,"
            "served_ms,engine_ms,ratio,idle_share,router_us,router_cores,worker_cores,steps,all_ran,"
            "sent_p50_ms,sent_p99_ms,written_p50_ms,written_p99_ms,whole_p50_ms,whole_p99_ms%s\n",
            drafts ? ",drafts,tokens_a_step,accepted,draft_ms,over_plain" : "");
    else
        fprintf(out, "%7s %7s %-11s %9s %9s %9s %9s %9s %10s %9s %9s %7s %6s %9s %7s %7s %8s %8s %8s\n",
                "streams", "prompt", "mode", "ttft p50", "p99 ms", "itl mean", "p50 ms", "p99 ms", "tokens/s",
                "served ms", "engine ms", "ratio", "idle", "router us", "cores", "workers", "sent p99",
                "written", "whole");
}

void serve_print_row(FILE *out, bool csv, const serve_row *r)
{
    const sl_bench_load_result *l = &r->load;
    double took = (double)(r->to.after_ns - r->from.before_ns) / 1e9, steps = r->to.steps - r->from.steps;
    double tokens = r->to.tokens - r->from.tokens;
    double served = 1e3 * took * r->to.decoders / steps,
           engine = 1e3 * (r->to.step_s - r->from.step_s + r->to.draft_s - r->from.draft_s) / steps;
    double router = r->to.router_cpu_s - r->from.router_cpu_s,
           worker = r->to.worker_cpu_s - r->from.worker_cpu_s;
    char idle[24] = "", way[6][16];
    ways(r, way);
    if (r->from.idle_s >= 0 && r->to.idle_s >= 0)
        snprintf(idle, sizeof idle, "%.4f", (r->to.idle_s - r->from.idle_s) / (took * r->to.decoders));
    double ms[] = {sl_bench_quantile(&l->first, 0.5) / 1e3, sl_bench_quantile(&l->first, 0.99) / 1e3,
                   mean(&l->gap) / 1e3, sl_bench_quantile(&l->gap, 0.5) / 1e3,
                   sl_bench_quantile(&l->gap, 0.99) / 1e3};
    double router_us = tokens > 0 ? 1e6 * router / tokens : 0;
    if (csv)
        fprintf(
            out,
            "%d,%d,%s,%s,%.3f,%.3f,%.4f,%.4f,%.4f,%.1f,%.4f,%.4f,%.4f,%s,%.2f,%.3f,%.3f,%.0f,%d,%s,%s,%s,%s,%s,%s%s",
            r->streams, r->prompt, r->mode, r->api, ms[0], ms[1], ms[2], ms[3], ms[4], tokens / took, served,
            engine, served / engine, idle, router_us, router / took, worker / took, steps, (int)r->all,
            way[0], way[1], way[2], way[3], way[4], way[5], r->drafts ? "" : "\n");
    else
        fprintf(
            out,
            "%7d %7d %-11s %9.1f %9.1f %9.3f %9.3f %9.3f %10.1f %9.3f %9.3f %7.3f %6s %9.2f %7.3f %7.3f %8s %8s %8s%s%s",
            r->streams, r->prompt, r->mode, ms[0], ms[1], ms[2], ms[3], ms[4], tokens / took, served, engine,
            served / engine, idle[0] ? idle : "-", router_us, router / took, worker / took, way[1], way[3],
            way[5], r->all ? "" : "  (a stream ended: raise --tokens)", r->drafts ? "" : "\n");
    if (r->drafts)
        print_drafts(out, csv, r);
    fflush(out);
}
