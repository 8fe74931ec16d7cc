/*
 * Conformance of a compute backend: every op in many shapes against the CPU backend (and the CPU backend
 * against the reference in double), batch independence bit by bit, and, with --perf, the time of each op
 * and its limit.
 *
 *   conformance --backend cpu|cuda [--op NAME] [--case TEXT] [--perf] [--large] [--csv FILE]
 *               [--threads N] [--bytes-per-s X --ops-per-s X --link-per-s X]
 *
 * --large: on the CPU, too, the cases that are there for kernels a GPU uses from some size on.
 * The last three give the rates of the machine; without them they come from the table below or are measured.
 * Exit code: 0 all passed, 1 something failed, 2 usage, 77 the backend cannot be opened (reason printed).
 * The limit of an op is max(bytes / memory rate, operations / compute rate, link bytes / link rate); ratio =
 * time / limit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/cpu/vec.h"
#include "tests/unit/kernels/cf.h"

static const cf_table *const tables[] = {
    &cf_streams_cases,  &cf_state_cases,  &cf_dense_cases,  &cf_expert_cases,  &cf_index_cases,
    &cf_cache_cases,    &cf_gather_cases, &cf_attn_cases,   &cf_gqa_cases,     &cf_bounds_cases,
    &cf_labels_cases,   &cf_block_cases,  &cf_window_cases, &cf_entries_cases, &cf_cluster_cases,
    &cf_retained_cases, &cf_sample_cases, &cf_prompt_cases, &cf_refusal_cases};

typedef struct rates {
    const char *device; /* part of sl_backend_describe() */
    double bytes, f32, bf16, fp8, link;
} rates;

/* Reached in practice by the best known kernels, not data-sheet peaks. */
static const rates known[] = {
    {"H200", 4.58e12, 50e12, 790e12, 1404e12, 55.4e9},
    {"H100", 3.0e12, 50e12, 700e12, 1300e12, 55.4e9},
};

typedef struct options {
    const char *backend, *op, *text, *csv;
    bool perf, large;
    int threads;
    rates r;
} options;

typedef struct totals {
    int passed, failed, refused;
} totals;

static void usage(void)
{
    fprintf(stderr, "usage: conformance --backend cpu|cuda [--op NAME] [--case TEXT] [--perf] [--large] "
                    "[--csv FILE]\n"
                    "                   [--threads N] [--bytes-per-s X] [--ops-per-s X] [--link-per-s X]\n");
}

static bool parse(int argc, char **argv, options *o)
{
    *o = (options){.backend = "cpu"};
    for (int i = 1; i < argc; i++) {
        const char *k = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(k, "--perf") == 0) {
            o->perf = true;
            continue;
        }
        if (strcmp(k, "--large") == 0) {
            o->large = true;
            continue;
        }
        if (!v)
            return false;
        i++;
        if (strcmp(k, "--backend") == 0)
            o->backend = v;
        else if (strcmp(k, "--op") == 0)
            o->op = v;
        else if (strcmp(k, "--case") == 0)
            o->text = v;
        else if (strcmp(k, "--csv") == 0)
            o->csv = v;
        else if (strcmp(k, "--threads") == 0)
            o->threads = (int)strtol(v, NULL, 10);
        else if (strcmp(k, "--bytes-per-s") == 0)
            o->r.bytes = strtod(v, NULL);
        else if (strcmp(k, "--ops-per-s") == 0)
            o->r.f32 = o->r.bf16 = o->r.fp8 = strtod(v, NULL);
        else if (strcmp(k, "--link-per-s") == 0)
            o->r.link = strtod(v, NULL);
        else
            return false;
    }
    return true;
}

/* The rates of a CPU are measured: a large copy, and fused multiply-adds from the first-level cache multiplied by
 * the number of threads. */
static rates measure_cpu(int threads)
{
    rates r = {.device = "measured"};
    size_t n = 64u << 20;
    uint8_t *a = malloc(n), *b = malloc(n);
    float x[8 * 256], w[8 * 256], out[64];
    double best_copy = 1e9, best_dot = 1e9;

    SL_CHECK(a && b, "out of memory");
    memset(a, 1, n);
    memset(b, 2, n);
    for (size_t i = 0; i < SL_COUNT(x); i++)
        x[i] = w[i] = 0.5f;
    for (int i = 0; i < 7; i++) {
        uint64_t start = sl_now_ns();
        sl_dot_job j = {.w = w,
                        .x = x,
                        .out = out,
                        .ld_w = 256,
                        .ld_x = 256,
                        .ld_out = 8,
                        .rows = 8,
                        .tokens = 8,
                        .n = 256};

        memcpy(i % 2 ? a : b, i % 2 ? b : a, n);
        best_copy = fmin(best_copy, (double)(sl_now_ns() - start));
        start = sl_now_ns();
        for (int k = 0; k < 200; k++)
            sl_vec_dots(&j);
        best_dot = fmin(best_dot, (double)(sl_now_ns() - start) / 200);
    }
    r.bytes = r.link = 2.0 * (double)n / best_copy * 1e9;
    r.f32 = r.bf16 = r.fp8 = 2.0 * 8 * 8 * 256 / best_dot * 1e9 * threads;
    free(a);
    free(b);
    return r;
}

static void fill_rates(options *o, sl_backend *be)
{
    rates r = {0};

    for (size_t i = 0; i < SL_COUNT(known); i++)
        if (strstr(sl_backend_describe(be), known[i].device) && !r.bytes)
            r = known[i];
    if (strcmp(o->backend, "cpu") == 0)
        r = measure_cpu(o->threads > 0 ? o->threads : 1);
    o->r.bytes = o->r.bytes > 0 ? o->r.bytes : r.bytes;
    o->r.f32 = o->r.f32 > 0 ? o->r.f32 : r.f32;
    o->r.bf16 = o->r.bf16 > 0 ? o->r.bf16 : r.bf16;
    o->r.fp8 = o->r.fp8 > 0 ? o->r.fp8 : r.fp8;
    o->r.link = o->r.link > 0 ? o->r.link : r.link;
}

static double limit_ns(const options *o, const cf_run *r)
{
    double rate = r->ops_dtype == SL_F8_E4M3 ? o->r.fp8
                  : r->ops_dtype == SL_BF16  ? o->r.bf16
                                             : o->r.f32,
           ns = 0;

    if (o->r.bytes > 0)
        ns = fmax(ns, r->bytes / o->r.bytes * 1e9);
    if (rate > 0)
        ns = fmax(ns, r->ops / rate * 1e9);
    if (o->r.link > 0)
        ns = fmax(ns, r->link_bytes / o->r.link * 1e9);
    return ns;
}

static bool wanted(const options *o, const cf_case *c)
{
    return (!o->op || strcmp(o->op, sl_op_name(c->op)) == 0) && (!o->text || strstr(c->name, o->text));
}

static void check_one(const cf_case *c, sl_backend *be, sl_backend *twin, sl_backend *memory, FILE *csv,
                      totals *n)
{
    char why[1024] = "";
    sl_status st = cf_check(c, be, twin, memory, why, sizeof(why));

    if (st == SL_OK)
        n->passed++;
    else if (st == SL_ERR_UNSUPPORTED)
        n->refused++;
    else
        n->failed++;
    if (st != SL_OK)
        printf("%s %s / %s: %s\n", st == SL_ERR_UNSUPPORTED ? "refused" : "FAILED ", sl_op_name(c->op),
               c->name, why);
    if (csv)
        fprintf(csv, "check,%s,%s,\"%s\",%s,,,,,,\n", sl_backend_name(be), sl_op_name(c->op), c->name,
                sl_status_name(st));
}

static void time_one(const options *o, const cf_case *c, sl_backend *be, FILE *csv, totals *n)
{
    cf_run r;

    cf_execute(&r, c, be, be, 0, c->a[0], true);
    if (r.st != SL_OK) {
        printf("%-13s %-46s %s: %s\n", sl_op_name(c->op), c->name, sl_status_name(r.st), r.err.text);
        n->failed += r.st != SL_ERR_UNSUPPORTED;
        n->refused += r.st == SL_ERR_UNSUPPORTED;
    } else {
        double limit = limit_ns(o, &r);

        n->passed++;
        printf("%-13s %-46s %10.1f us  limit %9.2f us  ratio %6.2f  (%.3g B, %.3g ops, %.3g link B)\n",
               sl_op_name(c->op), c->name, r.ns / 1e3, limit / 1e3, limit > 0 ? r.ns / limit : 0, r.bytes,
               r.ops, r.link_bytes);
        if (csv)
            fprintf(csv, "perf,%s,%s,\"%s\",ok,%.3f,%.3f,%.3f,%.0f,%.0f,%.0f\n", sl_backend_name(be),
                    sl_op_name(c->op), c->name, r.ns / 1e3, limit / 1e3, limit > 0 ? r.ns / limit : 0,
                    r.bytes, r.ops, r.link_bytes);
    }
    cf_release(&r);
}

/* Cases that on the CPU take minutes and run no code that smaller cases do not run. */
static bool too_large(const options *o, const cf_case *c)
{
    return (c->flags & CF_LARGE) != 0 && !o->perf && strcmp(o->backend, "cpu") == 0 && !o->large;
}

static void run_all(const options *o, sl_backend *be, sl_backend *cpu, FILE *csv, totals *n)
{
    for (size_t t = 0; t < SL_COUNT(tables); t++)
        for (size_t i = 0; i < tables[t]->count; i++) {
            const cf_case *c = &tables[t]->cases[i];

            if (!wanted(o, c) || too_large(o, c))
                continue;
            if (o->perf && c->flags & (CF_PERF | CF_PERF_ONLY))
                time_one(o, c, be, csv, n);
            else if (!o->perf && !(c->flags & CF_PERF_ONLY))
                check_one(c, be, strcmp(o->backend, "cpu") == 0 ? NULL : cpu, cpu, csv, n);
            fflush(stdout);
        }
}

int main(int argc, char **argv)
{
    options o;
    sl_err err = {0};
    sl_backend *be = NULL, *cpu = NULL;
    totals n = {0};
    FILE *csv = NULL;
    int rc = 0;

    if (!parse(argc, argv, &o)) {
        usage();
        return 2;
    }
    if (sl_backend_create(o.backend, &(sl_backend_opts){.threads = o.threads}, &be, &err) != SL_OK) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    if (sl_backend_create("cpu", &(sl_backend_opts){.threads = strcmp(o.backend, "cpu") ? 0 : 1}, &cpu,
                          &err) != SL_OK) {
        printf("skipped: %s\n", err.text);
        rc = 77;
        goto destroy_be;
    }
    if (o.csv && !(csv = fopen(o.csv, "w"))) {
        fprintf(stderr, "cannot write %s\n", o.csv);
        rc = 2;
        goto destroy_cpu;
    }
    if (csv)
        fprintf(csv, "kind,backend,op,case,status,us,limit_us,ratio,bytes,ops,link_bytes\n");
    printf("backend %s: %s\n", o.backend, sl_backend_describe(be));
    if (o.perf) {
        fill_rates(&o, be);
        printf("limits from %.3g B/s, %.3g f32, %.3g bf16, %.3g fp8 op/s, link %.3g B/s\n", o.r.bytes,
               o.r.f32, o.r.bf16, o.r.fp8, o.r.link);
    }
    run_all(&o, be, cpu, csv, &n);
    printf("conformance %s: %d passed, %d failed, %d refused\n", o.backend, n.passed, n.failed, n.refused);
    rc = n.failed || (n.passed == 0) ? 1 : 0;
    if (csv)
        fclose(csv);
destroy_cpu:
    sl_backend_destroy(cpu);
destroy_be:
    sl_backend_destroy(be);
    return rc;
}
