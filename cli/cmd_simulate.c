/*
 * `sluice simulate`: replays a trace of requests in virtual time (simulate/simulate.h) and prints what a cluster of these
 * sizes would do with it, or finds the cheapest sizes that reach a goodput.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/config_load.h"
#include "cli/sim_plan.h"
#include "cli/simulate_print.h"
#include "kvstore/page_key.h"
#include "kvstore/tier.h"

typedef struct flags {
    sl_cli_config_args config;
    const char *trace, *costs, *csv, *each, *write_trace, *preset;
    uint64_t generate, seed, host_bytes, disk_bytes, gpu_bytes;
    int32_t prefills, decodes, both, copies, requests, page_tokens, max_runs;
    double speed, length, ttft_ms, itl_ms, search;
    bool lru, shared;
} flags;

static bool parse(int argc, char **argv, flags *f, int *exit_code)
{
    const sl_arg args[] = {
        {"trace", SL_ARG_TEXT, &f->trace, "FILE", "Trace in Mooncake's format: one JSON object on each line.",
         0, 0, NULL},
        {"generate", SL_ARG_U64, &f->generate, "N", "Instead of --trace: a made-up trace of N requests.", 0,
         0, NULL},
        {"cluster", SL_ARG_TEXT, &f->config.file, "FILE",
         "YAML configuration of the cluster. Default: all defaults.", 0, 0, NULL},
        {"set", SL_ARG_LIST, &f->config.sets, "KEY=VALUE",
         "Set a key of the configuration. May be given several times.", 0, 0, NULL},
        {"costs", SL_ARG_TEXT, &f->costs, "FILE",
         "YAML file of measured costs, for instance simulate/costs/h200-v32.yaml.", 0, 0, NULL},
        {"prefill", SL_ARG_INT, &f->prefills, "N",
         "Number of prefill workers. Default: those of cluster.roles.", 1, 4000, NULL},
        {"decode", SL_ARG_INT, &f->decodes, "N", "Number of decode workers. Default: those of cluster.roles.",
         1, 4000, NULL},
        {"both", SL_ARG_INT, &f->both, "N",
         "Instead of --prefill and --decode: N workers of role both. Default: those of cluster.roles.", 1,
         4000, NULL},
        {"host-bytes", SL_ARG_BYTES, &f->host_bytes, "N",
         "Host store of each decode worker. Default: kvstore.bytes, which is also that of prefill workers.",
         0, 0, NULL},
        {"disk-bytes", SL_ARG_BYTES, &f->disk_bytes, "N",
         "Disk tier of each decode worker. Default: kvstore.disk.bytes if kvstore.disk.path is set.", 0, 0,
         NULL},
        {"gpu-bytes", SL_ARG_BYTES, &f->gpu_bytes, "N",
         "Device memory of a decode worker. Sizes for which `sluice plan` has no room are then refused, and not found by "
         "--search. The model is that of model.path, or --preset.",
         0, 0, NULL},
        {"preset", SL_ARG_TEXT, &f->preset, "NAME",
         "With --gpu-bytes: dimensions of a built-in model instead of model.path, for instance deepseek_v32.",
         0, 0, NULL},
        {"shared", SL_ARG_FLAG, &f->shared, NULL, "The decode workers also have the shared store of --costs.",
         0, 0, NULL},
        {"speed", SL_ARG_REAL, &f->speed, "X", "Divide all times of the trace by X. Default 1.", 1e-6, 1e6,
         NULL},
        {"copies", SL_ARG_INT, &f->copies, "N",
         "Replay the trace for N groups of users at once, each with prompts of its own and shifted in time. Default 1.",
         1, 100000, NULL},
        {"requests", SL_ARG_INT, &f->requests, "N", "Only the first N requests of the trace. Default: all.",
         1, 1 << 30, NULL},
        {"length", SL_ARG_REAL, &f->length, "X",
         "Multiply all lengths by X, blocks included: 0.125 makes a block of 64 tokens. Default 1.", 1e-3, 64,
         NULL},
        {"page-tokens", SL_ARG_INT, &f->page_tokens, "N",
         "Tokens of a simulated page, a multiple of 64. 512 is about eight times as fast as 64, and coarser. Default 64.",
         64, 1 << 20, NULL},
        {"ttft-ms", SL_ARG_REAL, &f->ttft_ms, "X", "Target of the time to the first token. Default 5000.", 0,
         1e9, NULL},
        {"itl-ms", SL_ARG_REAL, &f->itl_ms, "X",
         "Target of the mean time between tokens of a request. Default 100.", 0, 1e9, NULL},
        {"seed", SL_ARG_U64, &f->seed, "N", "Seed of --generate and of the shifts of --copies. Default 1.", 0,
         0, NULL},
        {"search", SL_ARG_REAL, &f->search, "X",
         "Find the cheapest sizes with a goodput of at least X (0 to 1), by the prices of --costs.", 0, 1,
         NULL},
        {"max-runs", SL_ARG_INT, &f->max_runs, "N", "With --search: at most N runs. Default 60.", 1, 100000,
         NULL},
        {"csv", SL_ARG_TEXT, &f->csv, "FILE", "Write one line for each run.", 0, 0, NULL},
        {"each", SL_ARG_TEXT, &f->each, "FILE", "Write one line for each request. Not with --search.", 0, 0,
         NULL},
        {"write-trace", SL_ARG_TEXT, &f->write_trace, "FILE",
         "Write the trace as it would be replayed, and do nothing else.", 0, 0, NULL},
        {"lru", SL_ARG_FLAG, &f->lru, NULL,
         "Print the hit rates of ideal LRU caches of several sizes, and do nothing else.", 0, 0, NULL},
    };
    return sl_args_ready("--trace FILE|--generate N --costs FILE [--cluster FILE] [flags]", args,
                         SL_COUNT(args), argc, argv, exit_code);
}

static bool check(const flags *f)
{
    if (!f->trace == !f->generate)
        fprintf(stderr, "sluice simulate: want one of --trace FILE and --generate N\n");
    else if (!f->costs && !f->lru && !f->write_trace)
        fprintf(stderr, "sluice simulate: --costs FILE is missing\n");
    else if (f->each && f->search > 0)
        fprintf(stderr, "sluice simulate: --each: want no --search next to it, which makes many runs\n");
    else if (f->page_tokens % SL_KEY_PAGE_TOKENS)
        fprintf(stderr, "sluice simulate: --page-tokens: want a multiple of %d\n", SL_KEY_PAGE_TOKENS);
    else if (f->generate > 1u << 24)
        fprintf(stderr, "sluice simulate: --generate: want at most %u\n", 1u << 24);
    else
        return true;
    return false;
}

static sl_status make_trace(const flags *f, sl_sim_trace *out, sl_err *err)
{
    sl_sim_trace whole;
    if (f->trace)
        SL_TRY(sl_sim_trace_load(f->trace, &whole, err));
    else if (sl_sim_trace_make(f->generate, f->seed, &whole) != SL_OK)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_sim_scale how = {.speed = f->speed, .copies = f->copies, .max_requests = f->requests, .seed = f->seed};
    sl_status st = sl_sim_trace_scale(&whole, &how, out, err);
    sl_sim_trace_free(&whole);
    return st;
}

/* The disk tier of the configuration. */
static uint64_t configured_disk(const sl_config *cfg)
{
    const sl_options *disk = sl_tier_disk_ops.options;
    return sl_config_uses(cfg, disk) ? (uint64_t)sl_options_number(disk, sl_config_part(cfg, disk), "bytes")
                                     : 0;
}

/* Workers of a role in cluster.roles. Without it: one, or one group. */
static int32_t count_roles(const sl_config *cfg, sl_role role)
{
    int32_t n = 0;
    for (int i = 0; i < cfg->cluster.roles.n; i++)
        n += cfg->cluster.roles.v[i] == role;
    return cfg->cluster.roles.n ? n : cfg->cluster.group[role].ranks;
}

/* The workers: those of the flags, otherwise those of the configuration. */
static sl_status choose_workers(const flags *f, const sl_config *cfg, sl_sim_opts *o, sl_err *err)
{
    int32_t both = cfg->cluster.roles.n ? count_roles(cfg, SL_ROLE_BOTH) : 0;
    o->both = f->both || (both && !f->prefills && !f->decodes);
    if (f->both && (f->prefills || f->decodes))
        return sl_fail(err, SL_ERR_INVALID,
                       "--both: workers of role both do the work of prefill and decode workers; want no "
                       "--prefill and no --decode next to it");
    if (o->both && !f->both && count_roles(cfg, SL_ROLE_DECODE))
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "cluster.roles: has workers of role both next to prefill and decode workers; choose by "
            "--both, or by --prefill and --decode, which of them to simulate");
    if (o->both) {
        o->decodes = f->both ? f->both : both;
        o->decode_ranks = cfg->cluster.group[SL_ROLE_BOTH].ranks;
        return SL_OK;
    }
    o->prefills = f->prefills ? f->prefills : count_roles(cfg, SL_ROLE_PREFILL);
    o->decodes = f->decodes ? f->decodes : count_roles(cfg, SL_ROLE_DECODE);
    o->prefill_ranks = cfg->cluster.group[SL_ROLE_PREFILL].ranks;
    o->decode_ranks = cfg->cluster.group[SL_ROLE_DECODE].ranks;
    return SL_OK;
}

static void print_lru(const sl_sim_trace *t)
{
    printf("blocks,hit_rate\n");
    for (uint64_t n = 1000; n < t->n_blocks; n = n % 5000 ? 5000 : n * 2)
        printf("%lu,%.4f\n", n, sl_sim_lru(t, n));
    printf("unlimited,%.4f\n", sl_sim_lru(t, 0));
}

static sl_status write_trace(const flags *f, const sl_sim_trace *t, sl_err *err)
{
    FILE *to = fopen(f->write_trace, "we");
    sl_status st = to ? sl_sim_trace_write(t, to) : SL_ERR_IO;
    if (to && fclose(to))
        st = SL_ERR_IO;
    return st == SL_OK ? SL_OK : sl_fail(err, SL_ERR_IO, "%s: %s", f->write_trace, strerror(errno));
}

static void tried(void *ctx, const sl_sim_opts *o, const sl_sim_result *r, double price, bool good)
{
    FILE *csv = ctx;
    printf(
        "%s prefill %d decode %d host %.4g GiB disk %.4g GiB: price %.5g, goodput %.4f, TTFT p99 %.0f ms, blocks %.1f %%\n",
        good ? "yes" : "no ", o->prefills, o->decodes, (double)o->host_bytes / (1u << 30),
        (double)o->disk_bytes / (1u << 30), price, r->goodput, r->ttft_ms.p99, 100 * r->block_hits);
    fflush(stdout);
    if (csv)
        sl_simulate_csv(csv, o, r);
}

static sl_status simulate(const flags *f, sl_sim_opts *o, FILE *csv, sl_err *err)
{
    static sl_sim_plan plan; /* large; this runs once per process */
    sl_sim_result r;
    if (f->gpu_bytes) {
        plan.preset = f->preset;
        plan.gpu_bytes = f->gpu_bytes;
        SL_TRY(sl_cli_sim_plan_init(&plan, o->cfg, o->trace, o->length, err));
        SL_TRY(sl_cli_sim_plan_fits(&plan, o, err));
    } else if (f->search > 0) {
        printf("without --gpu-bytes the sizes are not compared with the plan of a model\n");
    }
    if (csv)
        sl_simulate_csv_head(csv);
    if (f->search > 0) {
        sl_sim_search how = {.goodput = f->search, .max_runs = f->max_runs, .tried = tried, .ctx = csv};
        how.fits = f->gpu_bytes ? sl_cli_sim_plan_fits : NULL;
        how.fits_ctx = &plan;
        sl_sim_opts best;
        SL_TRY(sl_sim_search_run(o, &how, &best, &r, err));
        printf("\n");
        sl_simulate_print(stdout, &best, &r);
        return SL_OK;
    }
    SL_TRY(sl_simulate(o, &r, err));
    sl_simulate_print(stdout, o, &r);
    printf("simulated in %.2f s, %lu events\n", r.real_seconds, r.events);
    if (csv)
        sl_simulate_csv(csv, o, &r);
    return SL_OK;
}

/* NULL: no such file is wanted. */
static sl_status open_file(const char *path, FILE **out, sl_err *err)
{
    *out = path ? fopen(path, "we") : NULL;
    return !path || *out ? SL_OK : sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
}

static sl_status close_file(const char *path, FILE *file, sl_status st, sl_err *err)
{
    if (file && fclose(file) && st == SL_OK)
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    return st;
}

static sl_status run_with(const flags *f, const sl_sim_trace *trace, sl_err *err)
{
    static sl_config cfg; /* large; this runs once per process */
    static sl_sim_costs costs;
    SL_TRY(sl_cli_config_load(&f->config, &cfg, err));
    SL_TRY(sl_sim_costs_load(f->costs, &costs, err));
    sl_sim_opts o = {.cfg = &cfg,
                     .costs = &costs,
                     .trace = trace,
                     .host_bytes = f->host_bytes ? f->host_bytes : cfg.kvstore.bytes,
                     .disk_bytes = f->disk_bytes ? f->disk_bytes : configured_disk(&cfg),
                     .shared = f->shared,
                     .length = f->length,
                     .page_tokens = f->page_tokens,
                     .ttft_ms = f->ttft_ms,
                     .itl_ms = f->itl_ms};
    SL_TRY(choose_workers(f, &cfg, &o, err));
    FILE *csv = NULL, *each = NULL;
    sl_status st = open_file(f->csv, &csv, err);
    if (st == SL_OK)
        st = open_file(f->each, &each, err);
    o.each = each ? sl_simulate_each : NULL;
    o.each_ctx = each;
    if (each)
        sl_simulate_each_head(each);
    if (st == SL_OK)
        st = simulate(f, &o, csv, err);
    st = close_file(f->csv, csv, st, err);
    return close_file(f->each, each, st, err);
}

int sl_cmd_simulate(int argc, char **argv)
{
    flags f = {.speed = 1,
               .length = 1,
               .copies = 1,
               .page_tokens = SL_KEY_PAGE_TOKENS,
               .max_runs = 60,
               .seed = 1,
               .ttft_ms = 5000,
               .itl_ms = 100};
    sl_sim_trace trace;
    sl_err err = {""};
    int exit_code;
    if (!parse(argc, argv, &f, &exit_code))
        return exit_code;
    if (!check(&f))
        return SL_EXIT_USAGE;
    sl_log_init(SL_LOG_ERROR, false, "simulate");
    sl_status st = make_trace(&f, &trace, &err);
    if (st != SL_OK)
        return sl_args_fail("simulate", st, &err);
    if (f.write_trace)
        st = write_trace(&f, &trace, &err);
    else if (f.lru)
        print_lru(&trace);
    else
        st = run_with(&f, &trace, &err);
    sl_sim_trace_free(&trace);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail("simulate", st, &err);
}
