/*
 * Cold times of the decode step's ops on one device, through the backend interface alone, compared with the
 * limit of the device and with the best public kernel. "Cold": the inputs of a call are in no cache.
 *
 *   cold [--backend cuda] [--device N] [--only OP[,OP...]] [--reps N] [--arena GIB] [--commit TEXT] [--tiny]
 *
 * Method: every call has inputs of its own (lists, pages, weights) in pools much larger than the L2, and the
 * L2 is overwritten before each replay. Calls are captured into two graphs, a short and a long one, which are
 * replayed alternately (--reps, at least 15, after two that do not count). The time of a call is the
 * difference of their medians over the difference of their lengths, which removes launch and wait of the
 * host. Calls of a graph follow each other as in a decode step, so a kernel may begin while the previous one
 * ends.
 *
 * CSV: op,shape,us,limit_us,to_limit,peer_us,to_peer,goal_us. limit_us is the larger of bytes over the
 * bandwidth and operations over the rate that were measured on an H200 (4.58 TB/s, bf16 790, fp8 1404
 * TFLOP/s, host link 55.4 GB/s); peers: the best public kernel on that machine, measured in the same way. A
 * case that could not run is a comment with the reason; every reason except a missing feature or too little
 * memory is a failure.
 *
 * --tiny --backend cpu: every case once, with small dimensions and without graphs, as a test of the program.
 * Exit code 77: no such backend here.
 */
#include "tests/bench/cold.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "kernels/synth.h"

enum { MAX_REPS = 99, WARM = 2 };

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int32_t n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* ---- measuring ---- */

static sl_status run_call(cold *c, const cold_call *k)
{
    switch (k->op) {
    case COLD_SIDE_BEGIN:
        SL_TRY(sl_event_record(c->be, c->forked, &c->err));
        sl_be_stream_use(c->be, SL_STREAM_SIDE);
        return sl_be_stream_wait(c->be, c->forked, &c->err);
    case COLD_SIDE_END:
        SL_TRY(sl_event_record(c->be, c->arrived, &c->err));
        sl_be_stream_use(c->be, SL_STREAM_MAIN);
        return SL_OK;
    case COLD_SIDE_WAIT:
        return sl_be_stream_wait(c->be, c->arrived, &c->err);
    default:
        return sl_be_run(c->be, (sl_op)k->op, k->params, &c->err);
    }
}

static void run_rounds(cold *c, int32_t rounds, int32_t of)
{
    int32_t n = c->n_calls / of * rounds;

    for (int32_t i = 0; i < n && c->st == SL_OK; i++)
        c->st = run_call(c, &c->calls[i]);
}

static void prepare(cold *c, int32_t rounds)
{
    if (c->prepare && c->st == SL_OK)
        c->prepare(c, rounds);
    if (c->st == SL_OK)
        c->st = sl_be_sync(c->be, &c->err);
}

static sl_graph *capture(cold *c, int32_t rounds, int32_t of)
{
    sl_graph *g = NULL;

    if (c->st == SL_OK)
        c->st = sl_be_capture_begin(c->be, &c->err);
    if (c->st != SL_OK)
        return NULL;
    run_rounds(c, rounds, of);
    sl_status st = sl_be_capture_end(c->be, &g, c->st == SL_OK ? &c->err : NULL);
    if (c->st == SL_OK)
        c->st = st;
    return g;
}

/* One replay with nothing of its inputs in the L2. */
static double replay(cold *c, sl_graph *g, int32_t rounds, int32_t r)
{
    double from;

    prepare(c, rounds);
    if (c->st == SL_OK)
        c->st = sl_be_fill(c->be, c->flush, (uint8_t)r, c->flush_bytes, &c->err);
    if (c->st == SL_OK)
        c->st = sl_be_sync(c->be, &c->err);
    from = now_us();
    if (c->st == SL_OK)
        c->st = sl_be_graph_launch(c->be, g, &c->err);
    if (c->st == SL_OK)
        c->st = sl_be_sync(c->be, &c->err);
    return now_us() - from;
}

double cold_time(cold *c, int32_t rounds)
{
    double t[2][MAX_REPS], us = -1, from;
    int32_t length[2] = {rounds / 4 < 1 ? 1 : rounds / 4, rounds};
    sl_graph *g[2] = {NULL, NULL};

    prepare(c, rounds);
    from = now_us();
    run_rounds(c, rounds, rounds); /* op by op: does the setup of first calls, and errors name their op */
    if (c->st == SL_OK)
        c->st = sl_be_sync(c->be, &c->err);
    if (c->st != SL_OK)
        return -1;
    if (!(sl_backend_caps(c->be) & SL_BE_GRAPHS))
        return (now_us() - from) / rounds;
    for (int k = 0; k < 2; k++)
        g[k] = capture(c, length[k], rounds);
    for (int32_t r = -WARM; r < c->o.reps && c->st == SL_OK; r++)
        for (int k = 0; k < 2; k++) {
            double one = replay(c, g[k], length[k], r);
            if (r >= 0)
                t[k][r] = one;
        }
    if (c->st == SL_OK)
        us = (median(t[1], c->o.reps) - median(t[0], c->o.reps)) / (length[1] - length[0]);
    for (int k = 0; k < 2; k++)
        if (g[k])
            sl_graph_destroy(g[k]);
    return us;
}

int32_t cold_rounds(const cold *c, double bytes, int32_t most)
{
    double n = 400e6 / bytes + 2;

    if (c->o.tiny)
        return 2;
    return n > most ? most : n < 4 ? 4 : (int32_t)n;
}

void cold_report(cold *c, const cold_shape *s, const char *op, const char *shape, double us, double bytes,
                 double ops, double ops_per_us, double link_bytes)
{
    double limit = bytes / COLD_HBM;

    if (c->st != SL_OK)
        return;
    if (c->o.tiny) { /* limits and peers are for the full sizes */
        printf("%s,\"%s\",%.2f,,,,,\n", op, shape, us);
        return;
    }
    if (ops > 0 && ops / ops_per_us > limit)
        limit = ops / ops_per_us;
    if (link_bytes / COLD_LINK > limit)
        limit = link_bytes / COLD_LINK;
    printf("%s,\"%s\",%.2f,%.2f,%.2f", op, shape, us, limit, us / limit);
    if (s->peer > 0)
        printf(",%.1f,%.2f", s->peer, us / s->peer);
    else
        printf(",,");
    if (s->goal > 0)
        printf(",%.1f\n", s->goal);
    else
        printf(",\n");
    fflush(stdout);
}

/* ---- inputs ---- */

static void *keep_alloc(cold *c, size_t bytes)
{
    void *p = NULL;

    if (c->st != SL_OK)
        return NULL;
    if (c->n_allocs == COLD_ALLOCS)
        c->st = sl_fail(&c->err, SL_ERR_EXHAUSTED, "more than %d buffers", COLD_ALLOCS);
    else
        c->st = sl_be_alloc(c->be, SL_MEM_DEVICE, bytes, &p, &c->err);
    if (c->st == SL_OK)
        c->allocs[c->n_allocs++] = p;
    return p;
}

void *cold_mem(cold *c, size_t bytes)
{
    return keep_alloc(c, bytes);
}

void *cold_put(cold *c, const void *host, size_t bytes)
{
    void *p = keep_alloc(c, bytes);

    if (c->st == SL_OK && host)
        c->st = sl_be_copy(c->be, p, host, bytes, &c->err);
    if (c->st == SL_OK)
        c->st = sl_be_sync(c->be, &c->err); /* after this the host memory may be freed */
    return p;
}

void *cold_random(cold *c, int64_t n, sl_dtype dtype, float mean, float spread)
{
    const int32_t cols = 1 << 16;
    uint8_t *p = keep_alloc(c, (size_t)((n + cols - 1) / cols * cols) * sl_dtype_size(dtype));
    sl_random_params r = {.out = p,
                          .rows = (int32_t)((n + cols - 1) / cols),
                          .cols = cols,
                          .dtype = dtype,
                          .mean = mean,
                          .spread = spread,
                          .seed = ++c->seed};

    if (c->st == SL_OK)
        c->st = sl_be_run(c->be, SL_OP_RANDOM, &r, &c->err);
    return p;
}

void cold_stripe(cold *c, uint8_t *to, int64_t pitch, int64_t n, const void *host, int64_t width,
                 int64_t rows)
{
    int32_t mark = c->n_allocs;
    const void *from = cold_put(c, host, (size_t)(width * rows));

    for (int64_t i = 0; i < n && c->st == SL_OK; i += rows)
        c->st = sl_be_copy_2d(c->be, to + i * pitch, (size_t)pitch, from, (size_t)width, (size_t)width,
                              (size_t)(n - i < rows ? n - i : rows), &c->err);
    if (c->st == SL_OK)
        c->st = sl_be_sync(c->be, &c->err);
    while (c->n_allocs > mark)
        sl_be_free(c->be, SL_MEM_DEVICE, c->allocs[--c->n_allocs]);
}

void *cold_host(cold *c, size_t bytes)
{
    void *p = c->st == SL_OK ? malloc(bytes) : NULL;

    if (c->st == SL_OK && !p)
        c->st = sl_fail(&c->err, SL_ERR_NO_MEMORY, "%zu bytes of host memory", bytes);
    return p;
}

uint32_t cold_below(cold *c, uint32_t n)
{
    c->seed++;
    return sl_synth_hash(17, c->seed) % n;
}

void *cold_keep(cold *c, const void *params, size_t bytes)
{
    void *at = c->keep + c->kept;

    if (c->st == SL_OK && c->kept + bytes > COLD_KEEP)
        c->st = sl_fail(&c->err, SL_ERR_EXHAUSTED, "parameters of a case");
    if (c->st != SL_OK)
        return c->keep;
    memcpy(at, params, bytes);
    c->kept += (bytes + 15) / 16 * 16;
    return at;
}

void cold_add(cold *c, int op, const void *params, size_t bytes)
{
    if (c->st == SL_OK && c->n_calls == COLD_CALLS)
        c->st = sl_fail(&c->err, SL_ERR_EXHAUSTED, "calls of a case");
    if (c->st == SL_OK)
        c->calls[c->n_calls++] = (cold_call){op, params ? cold_keep(c, params, bytes) : NULL};
}

const sl_seq_tables *cold_tables(cold *c, int32_t tokens, int32_t seqs, int32_t len, int32_t ld,
                                 const int32_t *pages)
{
    sl_seq_tables t = {.n_tokens = tokens, .n_seqs = seqs, .ld = ld};
    int32_t *h = cold_host(c, sizeof *h * 2 * (size_t)tokens), each = tokens / seqs, *none = NULL;

    for (int32_t i = 0; i < tokens && h; i++) {
        h[i] = i / each;
        h[tokens + i] = len - each + i % each;
    }
    t.token_seq = cold_put(c, h, sizeof *h * 2 * (size_t)tokens);
    t.token_pos = t.token_seq + tokens;
    free(h);
    h = cold_host(c, sizeof *h * (size_t)seqs);
    for (int32_t i = 0; i < seqs && h; i++)
        h[i] = i;
    t.hot_slot = cold_put(c, h, sizeof *h * (size_t)seqs);
    free(h);
    none = cold_put(c, pages, sizeof *pages * (size_t)seqs * (size_t)ld);
    t.host_pages = t.index_pages = t.row_pages = none;
    return cold_keep(c, &t, sizeof t);
}

/* Registering makes all pages resident; huge pages are used where the system has them. */
uint8_t *cold_arena(cold *c, size_t bytes)
{
    void *p;

    if (c->st != SL_OK || c->arena_bytes >= bytes)
        return c->arena;
    if (c->arena) {
        c->st = sl_fail(&c->err, SL_ERR_EXHAUSTED, "the arena has %zu bytes", c->arena_bytes);
        return NULL;
    }
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        c->st = sl_fail(&c->err, SL_ERR_NO_MEMORY, "%zu bytes of host memory", bytes);
        return NULL;
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    c->st = sl_be_host_register(c->be, p, bytes, &c->err);
    if (c->st != SL_OK) {
        munmap(p, bytes);
        return NULL;
    }
    c->arena = p;
    c->arena_bytes = bytes;
    return p;
}

/* ---- the program ---- */

static bool asked(const cold *c, const char *op)
{
    const char *at = c->o.only;
    size_t n = strlen(op);

    for (; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && memcmp(at, op, n) == 0)
            return true;
    return !c->o.only;
}

static void release(cold *c, int32_t mark)
{
    while (c->n_allocs > mark)
        sl_be_free(c->be, SL_MEM_DEVICE, c->allocs[--c->n_allocs]);
}

/* False if the case failed; a missing feature or too little memory is not a failure. */
static bool settle(cold *c, const char *op, const cold_shape *s)
{
    bool missing = c->st == SL_ERR_UNSUPPORTED || c->st == SL_ERR_DEVICE_MEMORY || c->st == SL_ERR_NO_MEMORY;

    if (c->st == SL_OK)
        return true;
    printf("# %s %d %d %d: not run: %s\n", op, s->a[0], s->a[1], s->a[2], c->err.text);
    fflush(stdout);
    c->st = SL_OK;
    return missing && !c->o.tiny;
}

static bool run_group(cold *c, const cold_group *g)
{
    bool ok = true;
    int32_t mark = c->n_allocs;

    if (g->setup)
        g->setup(c);
    if (c->st != SL_OK) {
        ok = settle(c, g->op, &g->shapes[0]);
        release(c, mark);
        return ok;
    }
    for (int32_t i = 0, shared = c->n_allocs; i < g->n; i++) {
        c->kept = 0;
        c->n_calls = 0;
        c->prepare = NULL;
        g->run(c, &g->shapes[i]);
        ok &= settle(c, g->op, &g->shapes[i]);
        release(c, shared);
    }
    release(c, mark);
    return ok;
}

/* The commit that tests/gpu/pack writes next to the programs. */
static void packed_commit(char *text, size_t cap)
{
    char path[1024];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 16);
    FILE *f;

    for (int up = 0; up < 2 && n > 0; up++)
        while (n > 0 && path[--n] != '/')
            ;
    if (n <= 0)
        return;
    memcpy(path + n, "/commit", sizeof "/commit");
    f = fopen(path, "r");
    if (!f)
        return;
    size_t got = fread(text, 1, cap - 1, f);
    fclose(f);
    text[got] = 0;
    while (got && text[got - 1] == '\n')
        text[--got] = 0;
    for (char *at = text; (at = strchr(at, '\n')) != NULL;)
        *at = ' ';
}

static void header(const cold *c, int argc, char **argv)
{
    struct utsname u;
    char commit[128] = "unknown";

    packed_commit(commit, sizeof commit);
    if (c->o.commit)
        snprintf(commit, sizeof commit, "%s", c->o.commit);
    printf("# command: cold");
    for (int i = 1; i < argc; i++)
        printf(" %s", argv[i]);
    printf("\n# commit: %s\n# machine: %s, %ld cpus, %.0f GiB%s%s\n", commit, sl_backend_describe(c->be),
           sysconf(_SC_NPROCESSORS_ONLN),
           (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30),
           uname(&u) == 0 ? ", Linux " : "", uname(&u) == 0 ? u.release : "");
    printf("op,shape,us,limit_us,to_limit,peer_us,to_peer,goal_us\n");
}

static bool parse(cold_options *o, int argc, char **argv)
{
    *o = (cold_options){.backend = "cuda", .reps = 15};
    for (int i = 1; i < argc; i++) {
        const char *k = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(k, "--tiny") == 0) {
            o->tiny = true;
            continue;
        }
        i++;
        if (v && strcmp(k, "--backend") == 0)
            o->backend = v;
        else if (v && strcmp(k, "--only") == 0)
            o->only = v;
        else if (v && strcmp(k, "--commit") == 0)
            o->commit = v;
        else if (v && strcmp(k, "--device") == 0)
            o->device = (int32_t)strtol(v, NULL, 10);
        else if (v && strcmp(k, "--reps") == 0)
            o->reps = (int32_t)strtol(v, NULL, 10);
        else if (v && strcmp(k, "--arena") == 0)
            o->arena_gib = (int32_t)strtol(v, NULL, 10);
        else
            return false;
    }
    return o->reps >= 1 && o->reps <= MAX_REPS && o->arena_gib >= 0 && o->arena_gib <= 4096;
}

static bool run_all(cold *c)
{
    const cold_group *const all[] = {cold_select_groups,     cold_rows_groups,   cold_dense_groups,
                                     cold_gqa_select_groups, cold_prompt_groups, cold_sample_groups};
    int32_t ran = 0;
    bool ok = true;

    for (size_t i = 0; i < SL_COUNT(all); i++)
        for (const cold_group *g = all[i]; g->op; g++)
            if (asked(c, g->op)) {
                double from = now_us();
                ok &= run_group(c, g);
                fprintf(stderr, "cold: %s: %.1f s\n", g->op, (now_us() - from) / 1e6);
                ran++;
            }
    if (ran == 0)
        fprintf(stderr, "cold: no op is called %s\n", c->o.only);
    return ok && ran;
}

int main(int argc, char **argv)
{
    static cold c;
    sl_backend_opts opts = {0};
    int rc = 1;

    if (!parse(&c.o, argc, argv)) {
        fprintf(stderr, "usage: cold [--backend NAME] [--device N] [--only OP,...] [--reps N] [--arena GIB] "
                        "[--commit TEXT] [--tiny]\n");
        return 2;
    }
    opts.device = c.o.device;
    c.st = sl_backend_create(c.o.backend, &opts, &c.be, &c.err);
    if (c.st != SL_OK) {
        fprintf(stderr, "cold: %s\n", c.err.text);
        return c.st == SL_ERR_UNSUPPORTED ? 77 : 1;
    }
    header(&c, argc, argv);
    c.flush_bytes = c.o.tiny ? 4096 : (size_t)256 << 20;
    c.flush = cold_mem(&c, c.flush_bytes);
    if (c.st == SL_OK)
        c.st = sl_event_create(c.be, &c.forked, &c.err);
    if (c.st == SL_OK)
        c.st = sl_event_create(c.be, &c.arrived, &c.err);
    if (c.st == SL_OK)
        rc = run_all(&c) ? 0 : 1;
    else
        fprintf(stderr, "cold: %s\n", c.err.text);
    sl_event_destroy(c.arrived);
    sl_event_destroy(c.forked);
    release(&c, 0);
    if (c.arena)
        sl_be_host_unregister(c.be, c.arena);
    sl_backend_destroy(c.be);
    if (c.arena)
        munmap(c.arena, c.arena_bytes);
    return rc;
}
