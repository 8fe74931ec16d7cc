/* See simulate_print.h. */
#include "cli/simulate_print.h"

static const double GIB = 1u << 30;

static double host_gib(const sl_sim_opts *o)
{
    return (double)(o->host_bytes ? o->host_bytes : o->cfg->kvstore.bytes) / GIB;
}

static double prompt_tokens(const sl_sim_result *r)
{
    return r->tokens_host + r->tokens_disk + r->tokens_shared + r->tokens_prefill_cache + r->tokens_computed;
}

static void print_percentiles(FILE *to, const char *name, const sl_sim_percentiles *p)
{
    fprintf(to, "%-12s %10.1f %10.1f %10.1f %10.1f %10.1f\n", name, p->mean, p->p50, p->p90, p->p99, p->max);
}

static void print_share(FILE *to, const char *name, double part, double all)
{
    fprintf(to, "  %-28s %6.2f %%\n", name, all > 0 ? 100 * part / all : 0);
}

static void print_ranks(FILE *to, int32_t ranks)
{
    if (ranks > 1)
        fprintf(to, " in groups of %d", ranks);
}

static void print_workers(FILE *to, const sl_sim_opts *o)
{
    if (o->both) {
        fprintf(to, "%d workers of role both", o->decodes);
    } else {
        fprintf(to, "%d prefill", o->prefills);
        print_ranks(to, o->prefill_ranks);
        fprintf(to, " and %d decode workers", o->decodes);
    }
    print_ranks(to, o->decode_ranks);
}

void sl_simulate_print(FILE *to, const sl_sim_opts *o, const sl_sim_result *r)
{
    double all = prompt_tokens(r);
    print_workers(to, o);
    fprintf(to, ", host store %.4g GiB and disk %.4g GiB for each%s%s\n", host_gib(o),
            (double)o->disk_bytes / GIB, o->both ? "" : " decode worker", o->shared ? ", shared store" : "");
    fprintf(to, "%lu requests in %.1f s: %lu finished, %lu refused, %lu failed, %lu retracted\n", r->requests,
            r->seconds, r->finished, r->refused, r->failed, r->retracted);
    fprintf(to, "\n%-12s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99", "max");
    print_percentiles(to, "TTFT", &r->ttft_ms);
    print_percentiles(to, "ITL", &r->itl_ms);
    print_percentiles(to, "TPOT", &r->tpot_ms);
    fprintf(to, "\ngoodput (TTFT <= %.4g ms, ITL <= %.4g ms)  %.2f %%\n", o->ttft_ms, o->itl_ms,
            100 * r->goodput);
    fprintf(to, "\nprompt tokens\n");
    print_share(to, "from host memory", r->tokens_host, all);
    print_share(to, "from disk", r->tokens_disk, all);
    print_share(to, "from the shared store", r->tokens_shared, all);
    print_share(to, "from the prefill worker", r->tokens_prefill_cache, all);
    print_share(to, "computed", r->tokens_computed, all);
    fprintf(to, "blocks found %.2f %%; ideal LRU of all host stores %.2f %%; without limit %.2f %%\n",
            100 * r->block_hits, 100 * r->block_hits_lru, 100 * r->block_hits_max);
    fprintf(to, "\nutilisation  prefill %.2f  decode %.2f (batch %.1f)  link %.3f  disk %.3f  shared %.3f\n",
            r->prefill_busy, r->decode_busy, r->batch, r->link_busy, r->disk_busy, r->shared_busy);
    fprintf(to, "disk         %lu pages, %lu evictions, %.1f GiB written\n", r->disk_pages, r->disk_evictions,
            r->disk_written_bytes / GIB);
    fprintf(to, "price        %.4g\n", sl_sim_price(o));
}

void sl_simulate_csv_head(FILE *to)
{
    fputs(
        "prefill,decode,host_gib,disk_gib,shared,requests,finished,refused,failed,retracted,seconds,ttft_mean_ms,ttft_p50_ms,"
        "ttft_p90_ms,ttft_p99_ms,itl_mean_ms,itl_p50_ms,itl_p90_ms,itl_p99_ms,goodput,host_share,disk_share,shared_share,"
        "prefill_cache_share,computed_share,block_hits,block_hits_lru,block_hits_max,prefill_busy,decode_busy,link_busy,"
        "disk_busy,shared_busy,batch,disk_written_gib,price,tpot_mean_ms,tpot_p50_ms,tpot_p99_ms,both,prefill_ranks,"
        "decode_ranks\n",
        to);
}

static int32_t ranks(int32_t n)
{
    return n > 1 ? n : 1;
}

void sl_simulate_csv(FILE *to, const sl_sim_opts *o, const sl_sim_result *r)
{
    double all = prompt_tokens(r);
    double part = all > 0 ? 1 / all : 0;
    fprintf(to, "%d,%d,%.6g,%.6g,%d,%lu,%lu,%lu,%lu,%lu,%.3f,", o->prefills, o->decodes, host_gib(o),
            (double)o->disk_bytes / GIB, o->shared, r->requests, r->finished, r->refused, r->failed,
            r->retracted, r->seconds);
    fprintf(to, "%.3f,%.3f,%.3f,%.3f,%.4f,%.4f,%.4f,%.4f,%.5f,", r->ttft_ms.mean, r->ttft_ms.p50,
            r->ttft_ms.p90, r->ttft_ms.p99, r->itl_ms.mean, r->itl_ms.p50, r->itl_ms.p90, r->itl_ms.p99,
            r->goodput);
    fprintf(to, "%.5f,%.5f,%.5f,%.5f,%.5f,%.5f,%.5f,%.5f,", r->tokens_host * part, r->tokens_disk * part,
            r->tokens_shared * part, r->tokens_prefill_cache * part, r->tokens_computed * part, r->block_hits,
            r->block_hits_lru, r->block_hits_max);
    fprintf(to, "%.4f,%.4f,%.4f,%.4f,%.4f,%.2f,%.3f,%.6g,", r->prefill_busy, r->decode_busy, r->link_busy,
            r->disk_busy, r->shared_busy, r->batch, r->disk_written_bytes / GIB, sl_sim_price(o));
    fprintf(to, "%.4f,%.4f,%.4f,%d,%d,%d\n", r->tpot_ms.mean, r->tpot_ms.p50, r->tpot_ms.p99, o->both,
            ranks(o->prefill_ranks), ranks(o->decode_ranks));
}

void sl_simulate_each_head(FILE *to)
{
    fputs("request,finished,cached_tokens,ttft_ms,tpot_ms\n", to);
}

void sl_simulate_each(void *ctx, const sl_sim_each *e)
{
    fprintf(ctx, "%zu,%d,%.0f,%.3f,%.4f\n", e->request, e->ok, e->cached_tokens, e->ttft_ms, e->tpot_ms);
}
