/*
 * `sluice bench ttft`: the time that disaggregation adds to the time to the first token (TTFT). Every prompt is
 * computed twice, one time after the other: by the engine in this process ("single"), and by a real cluster of a
 * router, a prefill worker and a decode worker (three more processes, connected by UCX). Both use the same number of
 * compute threads.
 *
 *   column           meaning
 *   added            cluster - single: HTTP, router, reservation, shipping and COMMIT
 *   share_added      added / single
 *   exposed          the time from the last layer of the prompt to COMMIT, by the prefill worker's clock
 *   bytes_ms         the shipped bytes divided by the bandwidth of 1 MiB puts between two processes, measured here
 *   share_beyond     (cluster - single - bytes_ms) / single: the share without the time of the bytes. Most of that time
 *                    overlaps with computing, so share_added is the stricter of the two figures.
 *   outside          cluster - the time of the prefill worker's steps: everything except computing. It varies least on
 *                    a machine with other load, because it does not contain the time of computing.
 *   share_outside    outside / single
 *   share_of_minima  (fastest cluster - fastest single) / fastest single. Other load can only increase a time, so it
 *                    affects the minima least.
 *
 * Differences are computed for each pair of runs; the table has the medians of these differences.
 */
#include "bench/ttft/ttft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/args.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "bench/cluster.h"
#include "bench/page.h"
#include "bench/stats.h"
#include "local/run.h"

enum { MAX_LENGTHS = 16, MAX_REPEATS = 1000 };

typedef struct ttft_opts {
    const char *model, *lengths, *tls, *shipping, *backend, *store;
    const char *indexer, *rows; /* names of their registries, or "auto" */
    int prefill_device, decode_device;
    int32_t repeats, threads, chunk;
    int32_t n[MAX_LENGTHS];
    int n_lengths;
} ttft_opts;

typedef struct ttft_samples {
    double single[MAX_REPEATS], cluster[MAX_REPEATS], added[MAX_REPEATS], exposed[MAX_REPEATS],
        outside[MAX_REPEATS];
    double bytes;
} ttft_samples;

/* Bandwidth of puts of 1 MiB between two processes in bytes per second; runs `sluice bench transport`. */
static sl_status put_bandwidth(const ttft_opts *o, double *out, sl_err *err)
{
    char command[512], line[256], self[256];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    double mb_s = 0;
    if (n <= 0)
        return sl_fail(err, SL_ERR_IO, "cannot read /proc/self/exe");
    self[n] = '\0';
    snprintf(command, sizeof command,
             "'%s' bench transport --tests put_bw --sizes 1048576 --seconds 1 --tls %s", self, o->tls);
    FILE *f = popen(command, "re");
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "put_bw,%*[^,],%*[^,],%*[^,],%lf", &mb_s);
    if (f)
        pclose(f);
    if (mb_s <= 0)
        return sl_fail(err, SL_ERR_IO, "the transport benchmark printed no bandwidth: %s", command);
    *out = mb_s * 1e6;
    return SL_OK;
}

/* Makes a random prompt, which therefore shares no page with an earlier one. */
static void new_prompt(sl_local_run *g)
{
    for (size_t i = 0; i < g->n_prompt; i++)
        g->prompt[i] = 3 + (int32_t)(sl_random_u64() % (uint64_t)(g->local.checkpoint.cfg.vocab_size - 3));
}

static sl_status run_single(sl_local_run *g, const sl_local_run_opts *go, double *ms, sl_err *err)
{
    uint64_t t0 = sl_now_ns();
    SL_TRY(sl_local_run_restart(g, err));
    SL_TRY(sl_local_run_request(g, go, err));
    *ms = (double)(sl_now_ns() - t0) / 1e6;
    return SL_OK;
}

/* The cluster's answer, as JSON, must have the same text as the answer of this process. */
static sl_status check_answer(const sl_local_run *g, const char *text, sl_err *err)
{
    json_t *o;
    char *want;
    size_t n = 0;
    SL_TRY(sl_json_parse(text, strlen(text), "answer", &o, err));
    sl_status st = sl_tokenizer_decode(g->tok, g->output, g->n_output, true, &want, &n);
    if (st != SL_OK)
        goto drop_answer;
    const char *got =
        json_string_value(json_object_get(json_array_get(json_object_get(o, "choices"), 0), "text"));
    if (!got || strcmp(got, want) != 0)
        st = sl_fail(err, SL_ERR_CORRUPT, "the cluster answers \"%s\", one process \"%s\"",
                     got ? got : "nothing", want);
    free(want);
drop_answer:
    json_decref(o);
    return st;
}

/* Cumulative counters of the prefill worker. */
typedef struct ttft_counts {
    double bytes, exposed_s, compute_s;
} ttft_counts;

static sl_status prefill_counts(const sl_bench_cluster *c, ttft_counts *out, sl_err *err)
{
    char *page;
    SL_TRY(sl_bench_http("127.0.0.1", c->p[1].metrics_port, "/metrics", NULL, &page, NULL, err));
    out->bytes = sl_bench_metric(page, "sluice_transfer_bytes_total");
    out->exposed_s = sl_bench_metric(page, "sluice_transfer_exposed_seconds_sum");
    out->compute_s = sl_bench_metric(page, "sluice_prefill_chunk_seconds_sum");
    free(page);
    return SL_OK;
}

static char *request_body(const sl_local_run *g)
{
    sl_strbuf b = {0};
    sl_sb_str(&b, "{\"model\":\"bench\",\"max_tokens\":1,\"temperature\":0,\"ignore_eos\":true,\"prompt\":[");
    for (size_t i = 0; i < g->n_prompt; i++)
        sl_sb_printf(&b, "%s%d", i ? "," : "", g->prompt[i]);
    sl_sb_str(&b, "]}");
    return sl_sb_take(&b);
}

static sl_status run_cluster(const sl_bench_cluster *c, const sl_local_run *g, ttft_samples *s, int k,
                             sl_err *err)
{
    ttft_counts before, after;
    char *answer, *body = request_body(g);
    uint64_t ns = 0;
    if (!body)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = prefill_counts(c, &before, err);
    if (st != SL_OK)
        goto free_body;
    st = sl_bench_http("127.0.0.1", c->http_port, "/v1/completions", body, &answer, &ns, err);
    if (st != SL_OK)
        goto free_body;
    st = check_answer(g, answer, err);
    free(answer);
    if (st != SL_OK)
        goto free_body;
    const struct timespec moment = {0, 20000000};
    nanosleep(&moment, NULL); /* the answer may arrive before the prefill worker updates its counters */
    st = prefill_counts(c, &after, err);
    if (st != SL_OK)
        goto free_body;
    s->cluster[k] = (double)ns / 1e6;
    s->bytes = after.bytes - before.bytes;
    s->exposed[k] = (after.exposed_s - before.exposed_s) * 1e3;
    s->outside[k] = s->cluster[k] - (after.compute_s - before.compute_s) * 1e3;
free_body:
    free(body);
    return st;
}

static void print_row(const ttft_opts *o, int32_t n, ttft_samples *s, double bandwidth)
{
    size_t k = (size_t)o->repeats;
    double single = sl_bench_median(s->single, k), cluster = sl_bench_median(s->cluster, k);
    double added = sl_bench_median(s->added, k), exposed = sl_bench_median(s->exposed, k);
    double outside = sl_bench_median(s->outside, k), bytes_ms = s->bytes / bandwidth * 1e3;
    printf("%d,%d,%.2f,%.2f,%.2f,%.2f,%.2f,%.0f,%.2f,%.4f,%.4f,%.4f,%.4f\n", n, o->repeats, single, cluster,
           added, outside, exposed, s->bytes, bytes_ms, added / single, (added - bytes_ms) / single,
           outside / single, s->cluster[0] / s->single[0] - 1); /* sl_bench_median() sorted them */
    fflush(stdout);
}

/* Measures --repeats pairs of runs with prompts of g->n_prompt tokens. */
static sl_status run_pairs(const ttft_opts *o, const sl_bench_cluster *c, sl_local_run *g,
                           const sl_local_run_opts *go, ttft_samples *s, sl_err *err)
{
    SL_TRY(sl_local_run_open(g, go, err));
    for (int i = g->n_prompt <= 2048 ? -1 : 0; i < o->repeats; i++) { /* pair -1 is a warm-up */
        int k = i < 0 ? 0 : i;
        new_prompt(g);
        SL_TRY(run_single(g, go, &s->single[k], err)); /* its answer is compared with that of the cluster */
        SL_TRY(run_cluster(c, g, s, k, err));
        s->added[k] = s->cluster[k] - s->single[k];
    }
    return SL_OK;
}

static sl_status run_length(const ttft_opts *o, const sl_bench_cluster *c, int32_t n, double bandwidth,
                            sl_err *err)
{
    sl_local_run_opts go = {.dir = o->model,
                            .max_new = 1,
                            .top_p = 1,
                            .tail_rows = 64,
                            .chunk = o->chunk,
                            .algorithm = "dsa",
                            .backend = o->backend,
                            .indexer = o->indexer,
                            .row_format = o->rows,
                            .threads = o->threads,
                            .ignore_eos = true};
    sl_local_run g = {.n_prompt = (size_t)n};
    SL_TRY(sl_tokenizer_load(o->model, &g.tok, err));
    ttft_samples *s = calloc(1, sizeof *s);
    g.prompt = calloc((size_t)n, sizeof *g.prompt);
    sl_status st =
        s && g.prompt ? run_pairs(o, c, &g, &go, s, err) : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (st == SL_OK)
        print_row(o, n, s, bandwidth);
    sl_local_run_close(&g);
    free(s);
    return st;
}

static void print_head(const ttft_opts *o, double bandwidth)
{
    struct utsname u;
    uname(&u);
    printf("# kernel=%s cpus=%ld backend=%s devices=%d,%d model=%s threads=%d chunk=%d tls=%s shipping=%s "
           "put_1MiB_mb_per_s=%.0f\n",
           u.release, sysconf(_SC_NPROCESSORS_ONLN), o->backend, o->prefill_device, o->decode_device,
           o->model, o->threads, o->chunk, o->tls, o->shipping, bandwidth / 1e6);
    printf("prompt_tokens,pairs,single_ms,cluster_ms,added_ms,outside_ms,exposed_ms,shipped_bytes,"
           "bytes_ms,share_added,share_beyond,share_outside,share_of_minima\n");
}

static sl_status measure(const ttft_opts *o, sl_err *err)
{
    char threads[40], chunk[48], tls[80], shipping[64], backend[40], devices[2][48], store[64], row[48],
        index[48];
    static const sl_role roles[] = {SL_ROLE_ROUTER, SL_ROLE_PREFILL, SL_ROLE_DECODE};
    char model[1100];
    const char *settings[] = {model,
                              "log.level=warn",
                              threads,
                              chunk,
                              tls,
                              shipping,
                              backend,
                              devices[0],
                              devices[1],
                              store,
                              row,
                              index,
                              "model.served_name=bench",
                              "router.stage_timeout_ms=600000"};
    sl_bench_cluster c;
    double bandwidth = 0, again = 0;
    snprintf(model, sizeof model, "model.path=%.1024s", o->model);
    snprintf(threads, sizeof threads, "backend.threads=%d", o->threads);
    snprintf(chunk, sizeof chunk, "prefill.chunk_tokens=%d", o->chunk);
    snprintf(tls, sizeof tls, "cluster.tls=%.64s", o->tls);
    snprintf(shipping, sizeof shipping, "cluster.shipping=%.32s", o->shipping);
    snprintf(backend, sizeof backend, "backend.name=%.16s", o->backend);
    snprintf(devices[0], sizeof devices[0], "prefill:backend.devices=%d", o->prefill_device);
    snprintf(devices[1], sizeof devices[1], "decode:backend.devices=%d", o->decode_device);
    snprintf(store, sizeof store, "kvstore.bytes=%.32s", o->store);
    snprintf(row, sizeof row, "model.row_format=%.24s", o->rows);
    snprintf(index, sizeof index, "model.indexer=%.24s", o->indexer);
    SL_TRY(put_bandwidth(o, &bandwidth, err));
    SL_TRY(put_bandwidth(o, &again, err));
    bandwidth = again > bandwidth ? again : bandwidth; /* the larger one, so that bytes_ms is not too large */
    sl_bench_cluster_opts co = {.roles = roles,
                                .n_roles = SL_COUNT(roles),
                                .settings = settings,
                                .n = SL_COUNT(settings),
                                .ready_s = 120};
    SL_TRY(sl_bench_cluster_start(&co, &c, err));
    print_head(o, bandwidth);
    sl_status st = SL_OK;
    for (int i = 0; i < o->n_lengths && st == SL_OK; i++)
        st = run_length(o, &c, o->n[i], bandwidth, err);
    sl_bench_cluster_stop(&c);
    return st;
}

static sl_status parse_lengths(ttft_opts *o, sl_err *err)
{
    for (const char *p = o->lengths;; p++) {
        char *end;
        long v = strtol(p, &end, 10);
        if (end == p || v < 1 || v > 1 << 20 || (*end && *end != ',') || o->n_lengths == MAX_LENGTHS)
            return sl_fail(err, SL_ERR_INVALID, "--lengths: \"%.20s\" is not a list of up to %d lengths", p,
                           MAX_LENGTHS);
        o->n[o->n_lengths++] = (int32_t)v;
        p = end;
        if (!*p)
            return SL_OK;
    }
}

int sl_bench_ttft_main(int argc, char **argv)
{
    ttft_opts o = {.model = "models/tiny-v32",
                   .lengths = "512,2048",
                   .tls = "tcp",
                   .shipping = "staging",
                   .backend = "cpu",
                   .store = "256MiB",
                   .indexer = "auto",
                   .rows = "auto",
                   .repeats = 5,
                   .threads = 1,
                   .chunk = 512};
    const sl_arg args[] = {
        {"model", SL_ARG_TEXT, &o.model, "DIR",
         "Checkpoint directory with a tokenizer. Default models/tiny-v32.", 0, 0, NULL},
        {"lengths", SL_ARG_TEXT, &o.lengths, "N,N", "Lengths of the prompts in tokens. Default 512,2048.", 0,
         0, NULL},
        {"repeats", SL_ARG_INT, &o.repeats, "N", "Number of pairs of measurements per length. Default 5.", 1,
         MAX_REPEATS, NULL},
        {"threads", SL_ARG_INT, &o.threads, "N", "Number of compute threads of each process. Default 1.", 1,
         1024, NULL},
        {"chunk", SL_ARG_INT, &o.chunk, "N",
         "Number of prompt tokens that a prefill step computes. Default 512.", 1, 65536, NULL},
        {"tls", SL_ARG_TEXT, &o.tls, "NAMES", "UCX transports of the cluster. Default tcp.", 0, 0, NULL},
        {"shipping", SL_ARG_TEXT, &o.shipping, "NAME",
         "Value of cluster.shipping of the cluster, see the configuration reference. Default staging.", 0, 0,
         NULL},
        {"backend", SL_ARG_TEXT, &o.backend, "NAME", "Compute backend: cpu, the default, or cuda.", 0, 0,
         NULL},
        {"decode-device", SL_ARG_INT, &o.decode_device, "N",
         "GPU of the decode worker; the prefill worker and the single process use GPU 0. Default 0.", 0, 255,
         NULL},
        {"indexer", SL_ARG_AUTO, &o.indexer, "NAME", "Numeric convention of the indexer. Default auto.", 0, 0,
         sl_index_format_names()},
        {"row-format", SL_ARG_AUTO, &o.rows, "NAME", "Format of the KV cache's rows. Default auto.", 0, 0,
         sl_row_format_names()},
        {"store", SL_ARG_TEXT, &o.store, "SIZE", "Size of each worker's host store. Default 256MiB.", 0, 0,
         NULL},
    };
    sl_err err = {0};
    int exit_code;
    if (!sl_args_ready("[flags]", args, SL_COUNT(args), argc, argv, &exit_code))
        return exit_code;
    sl_log_init(SL_LOG_WARN, false, "bench");
    sl_status st = parse_lengths(&o, &err);
    if (st == SL_OK)
        st = measure(&o, &err);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail("bench ttft", st, &err);
}
