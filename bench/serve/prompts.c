/* Prompts alone (--tokens 1): every answer is one token, so while prompts wait the workers compute nothing else; see serve.h. */
#include <stdlib.h>
#include <string.h>

#include "bench/serve/serve.h"

sl_status serve_prompts(const serve_flags *f, const serve_target *t, int32_t *const *prompts,
                        const int32_t *lengths, int32_t n, serve_row *row, sl_err *err)
{
    const bool grpc = strcmp(f->api, "grpc") == 0;
    sl_bench_ask *asks = calloc((size_t)n, sizeof *asks);
    const sl_bench_load load = {.grpc = grpc,
                                .host = t->host,
                                .port = grpc ? t->grpc_port : t->http_port,
                                .concurrency = (uint32_t)n,
                                .requests = (uint32_t)n,
                                .asks = asks,
                                .n_asks = (uint32_t)n};
    *row = (serve_row){.streams = n, .prompt = lengths[0], .mode = "prompts", .api = f->api};
    if (!asks)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < n; i++)
        asks[i] = (sl_bench_ask){.model = t->model,
                                 .prompt = prompts[i],
                                 .prompt_tokens = (uint32_t)lengths[i],
                                 .max_tokens = 1,
                                 .stream = true};
    sl_status st = serve_facts_get(t, &row->from, err);
    if (st == SL_OK)
        st = sl_bench_load_run(&load, &row->load, err);
    if (st == SL_OK)
        st = serve_facts_get(t, &row->to, err);
    free(asks);
    if (st == SL_OK && row->to.chunks <= row->from.chunks)
        return sl_fail(err, SL_ERR_INTERNAL, "no prompt was computed: all were in the cache");
    return st;
}

void serve_print_prompts_head(FILE *out, bool csv)
{
    if (csv)
        fprintf(
            out,
            "prompts,prompt,api,ttft_p50_ms,ttft_p99_ms,seconds,prompt_tokens,tokens_per_s,chunks,chunk_tokens,"
            "chunk_tokens_per_s,ratio,router_cores,worker_cores\n");
    else
        fprintf(out, "%7s %7s %9s %9s %10s %8s %8s %12s %7s %7s %7s\n", "prompts", "tokens", "ttft p50",
                "p99 ms", "tokens/s", "chunks", "tokens", "own tokens/s", "ratio", "router", "workers");
}

void serve_print_prompts(FILE *out, bool csv, const serve_row *r)
{
    const double took = (double)(r->to.after_ns - r->from.before_ns) / 1e9,
                 tokens = r->to.prompt_tokens - r->from.prompt_tokens, chunks = r->to.chunks - r->from.chunks,
                 chunk_s = r->to.chunk_s - r->from.chunk_s,
                 router = (r->to.router_cpu_s - r->from.router_cpu_s) / took,
                 worker = (r->to.worker_cpu_s - r->from.worker_cpu_s) / took,
                 p50 = sl_bench_quantile(&r->load.first, 0.5) / 1e3,
                 p99 = sl_bench_quantile(&r->load.first, 0.99) / 1e3;
    if (csv)
        fprintf(out, "%d,%d,%s,%.1f,%.1f,%.3f,%.0f,%.1f,%.0f,%.1f,%.1f,%.4f,%.3f,%.3f\n", r->streams,
                r->prompt, r->api, p50, p99, took, tokens, tokens / took, chunks, tokens / chunks,
                tokens / chunk_s, chunk_s / took, router, worker);
    else
        fprintf(out, "%7d %7d %9.1f %9.1f %10.1f %8.0f %8.1f %12.1f %7.3f %7.3f %7.3f\n", r->streams,
                r->prompt, p50, p99, tokens / took, chunks, tokens / chunks, tokens / chunk_s, chunk_s / took,
                router, worker);
    fflush(out);
}
