/*
 * Implementation of swapin.h, which uses only the backend interface. The first failure is kept in bench.st; after it,
 * the helpers alloc(), put() and run() do nothing, so that their callers test the status once at the end.
 */
#include "bench/swapin/swapin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/log.h"
#include "kernels/backend.h"
#include "kernels/cache.h"
#include "kernels/rowsum.h"

#define COLD_BYTES ((size_t)96 << 20)

typedef struct options {
    const char *backend, *csv;
    int32_t threads, requests, tokens, k, hot_rows, row_bytes, fresh, steps;
} options;

typedef struct bench {
    options o;
    sl_backend *be;
    sl_err err;
    sl_status st;
    sl_seq_tables seqs;
    sl_resolve_params resolve;
    sl_gather_params gather, checked; /* checked: the same rows, compared with their checksums */
    int32_t *ids;                     /* on the host: the selection of this step */
    int32_t *host_dst;                /* the miss list, copied to the host */
    int64_t *host_src;
    uint8_t *copy; /* destination of the plain copy */
    void *allocs[32];
    sl_mem_kind kinds[32];
    int n_allocs;
    uint32_t step;
    uint64_t random;
    uint8_t *cold; /* only with unified backends: a buffer larger than the CPU caches */
} bench;

typedef struct result {
    double resolve_ns, gather_ns, checked_ns, copy_ns, misses;
} result;

static uint64_t next_random(bench *b)
{
    b->random ^= b->random << 13;
    b->random ^= b->random >> 7;
    b->random ^= b->random << 17;
    return b->random;
}

static void *alloc(bench *b, sl_mem_kind kind, size_t bytes)
{
    void *p = NULL;

    if (b->st != SL_OK)
        return NULL;
    b->st = sl_be_alloc(b->be, kind, bytes, &p, &b->err);
    if (b->st != SL_OK)
        return NULL;
    b->kinds[b->n_allocs] = kind;
    b->allocs[b->n_allocs++] = p;
    return p;
}

static sl_status copy_now(bench *b, void *dst, const void *src, size_t bytes)
{
    SL_TRY(b->st);
    SL_TRY(sl_be_copy(b->be, dst, src, bytes, &b->err));
    return sl_be_sync(b->be, &b->err);
}

static sl_status run_now(bench *b, sl_op op, const void *params)
{
    SL_TRY(b->st);
    SL_TRY(sl_be_run(b->be, op, params, &b->err));
    return sl_be_sync(b->be, &b->err);
}

static void put(bench *b, const void *dst, const void *src, size_t bytes)
{
    b->st = copy_now(b, (void *)(uintptr_t)dst, src, bytes);
}

static void run(bench *b, sl_op op, const void *params)
{
    b->st = run_now(b, op, params);
}

static int32_t pages_of(const bench *b)
{
    return sl_pages_for(b->o.tokens);
}

/* Each request has one token, at its last position. The pages of the requests are interleaved in the arena. */
static void make_tables(bench *b)
{
    int32_t n = b->o.requests, ld = pages_of(b), *v = calloc((size_t)n * (size_t)ld, 4);

    if (!v) {
        b->st = sl_fail(&b->err, SL_ERR_NO_MEMORY, "out of memory");
        return;
    }
    b->seqs = (sl_seq_tables){.n_tokens = n, .n_seqs = n, .ld = ld};
    b->seqs.host_pages = alloc(b, SL_MEM_DEVICE, 4 * (size_t)n * (size_t)ld);
    b->seqs.token_seq = alloc(b, SL_MEM_DEVICE, 4 * (size_t)n);
    b->seqs.token_pos = alloc(b, SL_MEM_DEVICE, 4 * (size_t)n);
    for (int64_t i = 0; i < (int64_t)n * ld; i++)
        v[i] = (int32_t)(i % ld * n + i / ld);
    put(b, b->seqs.host_pages, v, 4 * (size_t)n * (size_t)ld);
    for (int32_t i = 0; i < n; i++)
        v[i] = i;
    put(b, b->seqs.token_seq, v, 4 * (size_t)n);
    b->seqs.hot_slot = b->seqs.token_seq;
    /* hierarchical requests do not read these */
    b->seqs.row_pages = b->seqs.index_pages = b->seqs.host_pages;
    for (int32_t i = 0; i < n; i++)
        v[i] = b->o.tokens - 1;
    put(b, b->seqs.token_pos, v, 4 * (size_t)n);
    free(v);
}

/* Checksums of all rows of the arena, which is filled. */
static void make_checks(bench *b)
{
    size_t rows = (size_t)b->o.requests * (size_t)pages_of(b) * SL_PAGE_TOKENS, row = (size_t)b->o.row_bytes,
           parts = (size_t)sl_rowsum_parts(b->o.row_bytes),
           marks = sl_row_marks_bytes((int64_t)rows / SL_PAGE_TOKENS);
    uint32_t *sums = alloc(b, SL_MEM_HOST, rows * parts * 4), *any = alloc(b, SL_MEM_HOST, 4);
    uint32_t *pages = alloc(b, SL_MEM_DEVICE, marks);
    if (b->st != SL_OK)
        return;
    for (size_t i = 0; i < rows * parts; i++) {
        size_t at = i % parts * SL_ROWSUM_PART, n = row - at;
        sums[i] =
            sl_rowsum(b->gather.host.base + i / parts * row + at, n < SL_ROWSUM_PART ? n : SL_ROWSUM_PART);
    }
    *any = 0;
    b->st = sl_be_fill(b->be, pages, 0, marks, &b->err);
    b->checked = b->gather;
    b->checked.check = (sl_row_check){sums, pages, any};
}

static void make_buffers(bench *b)
{
    size_t slots = (size_t)b->o.requests, rows = (size_t)b->o.hot_rows, row = (size_t)b->o.row_bytes;
    size_t list = slots * (size_t)b->o.k, pages = slots * (size_t)pages_of(b);
    sl_resolve_params *p = &b->resolve;

    p->rows =
        (sl_row_view){.row_bytes = b->o.row_bytes, .hot_rows = b->o.hot_rows, .tail_rows = SL_PAGE_TOKENS};
    p->rows.base = alloc(b, SL_MEM_DEVICE, slots * (rows + SL_PAGE_TOKENS) * row);
    p->hot.max_tokens = b->o.tokens;
    p->hot.slot_of = alloc(b, SL_MEM_DEVICE, 2 * slots * (size_t)b->o.tokens);
    p->hot.token_of = alloc(b, SL_MEM_DEVICE, 4 * slots * rows);
    p->hot.stamp = alloc(b, SL_MEM_DEVICE, 4 * slots * rows);
    p->hot.prev = alloc(b, SL_MEM_DEVICE, 2 * slots * (rows + 1));
    p->hot.next = alloc(b, SL_MEM_DEVICE, 2 * slots * (rows + 1));
    p->hot.cursor = alloc(b, SL_MEM_DEVICE, 4 * slots);
    p->hot.counters = alloc(b, SL_MEM_DEVICE, 16 * slots);
    p->ids = alloc(b, SL_MEM_DEVICE, 4 * list);
    p->phys = alloc(b, SL_MEM_DEVICE, 4 * list);
    p->miss_src = alloc(b, SL_MEM_DEVICE, 8 * list);
    p->miss_dst = alloc(b, SL_MEM_DEVICE, 4 * list);
    p->miss_count = alloc(b, SL_MEM_DEVICE, 4);
    p->step = alloc(b, SL_MEM_DEVICE, 4);
    p->miss_cap = (int32_t)list;
    p->k = p->ld_ids = b->o.k;
    p->seqs = &b->seqs;
    b->gather = (sl_gather_params){.rows = p->rows, .miss_src = p->miss_src, .miss_dst = p->miss_dst};
    b->gather.miss_count = p->miss_count;
    b->gather.miss_cap = p->miss_cap;
    b->gather.host.row_stride = b->o.row_bytes;
    b->gather.host.page_stride = (int64_t)b->o.row_bytes * SL_PAGE_TOKENS;
    b->gather.host.base = alloc(b, SL_MEM_HOST, pages * SL_PAGE_TOKENS * row);
    b->copy = alloc(b, SL_MEM_DEVICE, list * row);
    if (b->st == SL_OK && sl_backend_caps(b->be) & SL_BE_UNIFIED) {
        b->cold = alloc(b, SL_MEM_HOST, COLD_BYTES);
        if (b->cold)
            memset(b->cold, 0, COLD_BYTES);
    }
    b->ids = alloc(b, SL_MEM_HOST, 4 * list);
    b->host_dst = alloc(b, SL_MEM_HOST, 4 * list);
    b->host_src = alloc(b, SL_MEM_HOST, 8 * list);
    if (b->st != SL_OK)
        return;
    for (size_t i = 0; i < pages * SL_PAGE_TOKENS; i++)
        memset(b->gather.host.base + i * row, (int)(i * 31 % 251), row);
    make_checks(b);
}

/* Selects one id in each of k equal spans of a request; `fresh` per cent of the spans select a new one. */
static void choose(bench *b, bool all)
{
    int32_t span = (b->o.tokens - SL_PAGE_TOKENS) / b->o.k;

    for (int64_t i = 0; i < (int64_t)b->o.requests * b->o.k; i++)
        if (all || (int32_t)(next_random(b) % 100) < b->o.fresh)
            b->ids[i] = (int32_t)(i % b->o.k) * span + (int32_t)(next_random(b) % (uint64_t)span);
    put(b, b->resolve.ids, b->ids, 4 * (size_t)b->o.requests * (size_t)b->o.k);
}

static double plain_copy(bench *b, int32_t count)
{
    size_t row = (size_t)b->o.row_bytes;
    uint64_t start = sl_now_ns();

    if (sl_backend_caps(b->be) & SL_BE_UNIFIED)
        for (int32_t i = 0; i < count; i++)
            memcpy(b->copy + (size_t)i * row, b->gather.host.base + (size_t)b->host_src[i] * row, row);
    else
        put(b, b->copy, b->gather.host.base, (size_t)count * row);
    return (double)(sl_now_ns() - start);
}

/* Evicts the rows from the CPU caches, so that both ways of fetching them begin without cached rows. */
static void make_cold(bench *b)
{
    if (b->cold)
        for (size_t i = 0; i < COLD_BYTES; i += 64)
            b->cold[i]++;
}

static void step(bench *b, result *r)
{
    int32_t count = 0;
    uint64_t t0, t1, t2;

    choose(b, b->step == 0);
    b->step++;
    put(b, b->resolve.step, &b->step, 4);
    make_cold(b);
    t0 = sl_now_ns();
    run(b, SL_OP_RESOLVE, &b->resolve);
    t1 = sl_now_ns();
    run(b, SL_OP_GATHER, &b->gather);
    t2 = sl_now_ns();
    put(b, &count, b->resolve.miss_count, 4);
    put(b, b->host_src, b->resolve.miss_src, 8 * (size_t)count);
    if (b->st != SL_OK || b->step <= 3) /* the first steps fill the hot buffers and are not timed */
        return;
    r->resolve_ns += (double)(t1 - t0);
    r->gather_ns += (double)(t2 - t1);
    make_cold(b);
    t1 = sl_now_ns();
    run(b, SL_OP_GATHER, &b->checked);
    r->checked_ns += (double)(sl_now_ns() - t1);
    make_cold(b);
    r->copy_ns += plain_copy(b, count);
    r->misses += count;
}

/* Compares the rows that the last step gathered with their source. */
static void verify(bench *b)
{
    int32_t count = 0;
    size_t row = (size_t)b->o.row_bytes;
    uint8_t *got = malloc(row);

    if (b->st == SL_OK && *b->checked.check.any)
        b->st = sl_fail(&b->err, SL_ERR_CORRUPT, "rows differ from their checksums");

    put(b, &count, b->resolve.miss_count, 4);
    put(b, b->host_dst, b->resolve.miss_dst, 4 * (size_t)count);
    for (int32_t i = 0; got && b->st == SL_OK && i < count; i++) {
        put(b, got, b->gather.rows.base + (size_t)b->host_dst[i] * row, row);
        if (b->st == SL_OK && memcmp(got, b->gather.host.base + (size_t)b->host_src[i] * row, row) != 0)
            b->st = sl_fail(&b->err, SL_ERR_CORRUPT, "row %d of the miss list did not arrive", i);
    }
    free(got);
}

static void measure(bench *b, sl_evict_policy policy, FILE *out)
{
    sl_hot_reset_params reset = {b->resolve.hot, -1, b->o.requests, b->o.hot_rows};
    result r = {0};
    int32_t timed = b->o.steps - 3;

    b->resolve.policy = policy;
    b->step = 0;
    run(b, SL_OP_HOT_RESET, &reset);
    for (int32_t i = 0; i < b->o.steps && b->st == SL_OK; i++)
        step(b, &r);
    verify(b);
    if (b->st != SL_OK)
        return;
    fprintf(out, "%s,%s,%d,%d,%d,%d,%d,%.0f,%.1f,%.1f,%.1f,%.1f,%.0f,%.2f\n", sl_backend_name(b->be),
            sl_evict_policy_name(policy), b->o.requests, b->o.tokens, b->o.k, b->o.hot_rows, b->o.row_bytes,
            r.misses / timed, r.resolve_ns / timed / 1e3, r.gather_ns / timed / 1e3,
            r.checked_ns / timed / 1e3, r.copy_ns / timed / 1e3,
            r.misses * 1e9 / (r.resolve_ns + r.gather_ns), (r.resolve_ns + r.gather_ns) / r.copy_ns);
}

static int run_bench(bench *b, FILE *out)
{
    make_tables(b);
    make_buffers(b);
    if (b->st == SL_OK) {
        fprintf(out, "backend,policy,requests,tokens,k,hot_rows,row_bytes,misses_per_step,"
                     "resolve_us,gather_us,checked_us,copy_us,rows_per_s,ratio\n");
        measure(b, SL_EVICT_LRU, out);
        measure(b, SL_EVICT_CLOCK, out);
    }
    if (b->st != SL_OK)
        fprintf(stderr, "bench swapin: %s: %s\n", sl_status_name(b->st), b->err.text);
    while (b->n_allocs > 0) {
        b->n_allocs--;
        sl_be_free(b->be, b->kinds[b->n_allocs], b->allocs[b->n_allocs]);
    }
    return b->st == SL_OK ? 0 : 1;
}

int sl_bench_swapin_main(int argc, char **argv)
{
    bench b = {.random = 88172645463325252u};
    FILE *out = stdout;
    int rc = 1;

    options *o = &b.o;
    *o = (options){.backend = "cpu",
                   .requests = 8,
                   .tokens = 65536,
                   .k = 2048,
                   .hot_rows = 6144,
                   .row_bytes = 656,
                   .fresh = 30,
                   .steps = 40};
    const sl_arg args[] = {
        {"backend", SL_ARG_TEXT, &o->backend, "NAME", "Compute backend: cpu, the default, or cuda.", 0, 0,
         NULL},
        {"threads", SL_ARG_INT, &o->threads, "N",
         "Number of threads of the cpu backend; 0, the default, uses all cores.", 0, 256, NULL},
        {"requests", SL_ARG_INT, &o->requests, "N",
         "Number of hierarchical requests in the batch. Default 8.", 1, 4096, NULL},
        {"tokens", SL_ARG_INT, &o->tokens, "N",
         "Number of tokens of each request; at least k + 64. Default 65536.", 128, 1 << 20, NULL},
        {"k", SL_ARG_INT, &o->k, "N", "Number of rows selected per request and step. Default 2048.", 1, 16384,
         NULL},
        {"hot-rows", SL_ARG_INT, &o->hot_rows, "N",
         "Number of rows of the hot buffer; at least k. Default 6144.", 1, SL_HOT_ROWS_MAX, NULL},
        {"row-bytes", SL_ARG_INT, &o->row_bytes, "N", "Bytes of a row. Default 656.", 1, 65536, NULL},
        {"fresh", SL_ARG_INT, &o->fresh, "PERCENT",
         "Share of the selection that is new in each step. Default 30.", 0, 100, NULL},
        {"steps", SL_ARG_INT, &o->steps, "N",
         "Number of steps, of which the first three are not timed. Default 40.", 4, 1000000, NULL},
        {"csv", SL_ARG_TEXT, &o->csv, "FILE", "Write the CSV to FILE instead of standard output.", 0, 0,
         NULL},
    };
    int exit_code;
    if (!sl_args_ready("[flags]", args, SL_COUNT(args), argc, argv, &exit_code))
        return exit_code;
    if (o->hot_rows < o->k || (o->tokens - SL_PAGE_TOKENS) / o->k < 1) {
        fprintf(stderr,
                "sluice bench swapin: --hot-rows must be at least --k, and --tokens at least --k + %d\n",
                SL_PAGE_TOKENS);
        return SL_EXIT_USAGE;
    }
    if (sl_backend_create(b.o.backend, &(sl_backend_opts){.threads = b.o.threads}, &b.be, &b.err) != SL_OK) {
        fprintf(stderr, "bench swapin: %s\n", b.err.text);
        return 77;
    }
    if (b.o.csv)
        out = fopen(b.o.csv, "w");
    if (out)
        rc = run_bench(&b, out);
    else
        fprintf(stderr, "bench swapin: cannot write %s\n", b.o.csv);
    if (out && out != stdout && fclose(out) != 0)
        rc = 1;
    sl_backend_destroy(b.be);
    return rc;
}
