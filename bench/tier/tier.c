/* See tier.h. A number of requests is kept in flight, each with the pages of one batch, as a loaded host store does. */
#include "bench/tier/tier.h"

#include <errno.h>
#include <ftw.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/args.h"
#include "base/log.h"
#include "bench/list.h"
#include "bench/stats.h"
#include "kvstore/disk_format.h"
#include "kvstore/tier.h"

enum { IN_FLIGHT = 4, BATCH = 16, MAX_REPEATS = 15 };

typedef struct options {
    const char *directory, *pages, *tier, *address, *library;
    uint64_t bytes;
    int32_t depth, repeats;
} options;

typedef struct job {
    sl_tier_req req;
    sl_key keys[BATCH];
    sl_tier_page pages[BATCH];
    struct iovec spans[BATCH];
    sl_status results[BATCH];
    uint8_t *memory; /* [BATCH][page_bytes] */
    int32_t first;
    bool idle;
} job;

typedef struct bench {
    options o;
    char dir[400], tier_file[500], plain_file[500];
    size_t page_bytes;
    int32_t count; /* pages */
    sl_tier *tier;
    job jobs[IN_FLIGHT];
    int32_t bad;
    sl_err err;
} bench;

/* The number of a page is written at its beginning, middle and end, so that one in the wrong place is found. */
static uint8_t *mark_at(uint8_t *page, size_t n, int i)
{
    return page + (n - sizeof(int32_t)) / 2 * (size_t)i;
}

static void mark(uint8_t *page, size_t n, int32_t number)
{
    for (int i = 0; i < 3; i++)
        memcpy(mark_at(page, n, i), &number, sizeof number);
}

static bool is_right(uint8_t *page, size_t n, int32_t number)
{
    bool right = true;
    for (int i = 0; i < 3; i++)
        right = right && memcmp(mark_at(page, n, i), &number, sizeof number) == 0;
    return right;
}

static void on_done(sl_tier_req *req, sl_status st)
{
    bench *b = req->cookie;
    for (int i = 0; i < IN_FLIGHT; i++) {
        job *j = &b->jobs[i];
        if (&j->req != req)
            continue;
        for (int32_t k = 0; k < req->n; k++)
            b->bad += st != SL_OK || req->results[k] != SL_OK ||
                      (req->op == SL_TIER_GET &&
                       !is_right(j->memory + (size_t)k * b->page_bytes, b->page_bytes, j->first + k));
        j->idle = true;
    }
}

static void submit(bench *b, job *j, sl_tier_op op, int32_t first)
{
    int32_t n = b->count - first < BATCH ? b->count - first : BATCH;
    j->first = first;
    j->idle = false;
    for (int32_t k = 0; k < n; k++) {
        int32_t number = first + k;
        uint8_t *page = j->memory + (size_t)k * b->page_bytes;
        j->keys[k] = sl_hash_chain((sl_key){1, 1}, &number, sizeof number);
        j->spans[k] = (struct iovec){page, b->page_bytes};
        j->pages[k] = (sl_tier_page){&j->spans[k], 1};
        if (op == SL_TIER_SET)
            mark(page, b->page_bytes, number);
    }
    j->req = (sl_tier_req){.op = op, .n = n, .keys = j->keys, .pages = j->pages, .results = j->results};
    j->req.done = on_done, j->req.cookie = b;
    sl_tier_submit(b->tier, &j->req);
}

static int32_t busy(const bench *b)
{
    int32_t n = 0;
    for (int i = 0; i < IN_FLIGHT; i++)
        n += !b->jobs[i].idle;
    return n;
}

/* MiB/s of all pages. */
static double transfer(bench *b, sl_tier_op op)
{
    uint64_t t = sl_now_ns();
    for (int32_t next = 0; next < b->count || busy(b);) {
        for (int i = 0; i < IN_FLIGHT && next < b->count; i++)
            if (b->jobs[i].idle) {
                submit(b, &b->jobs[i], op, next);
                next += BATCH;
            }
        struct pollfd p = {.fd = sl_tier_fd(b->tier), .events = POLLIN};
        poll(&p, 1, 10000);
        sl_tier_poll(b->tier);
    }
    return (double)b->page_bytes * b->count / 1048576.0 * 1e9 / (double)(sl_now_ns() - t);
}

static sl_status open_tier(bench *b)
{
    sl_disk_store s = {.page_bytes = b->page_bytes, .slots_per_segment = 1};
    uint64_t segment = sl_disk_slot_bytes(&s) * 64 + SL_DISK_BLOCK;
    uint64_t segments = ((uint64_t)b->count + 63) / 64 + 1;
    return sl_tier_open(&sl_tier_disk_ops,
                        &(sl_tier_opts){.page_bytes = b->page_bytes,
                                        .capacity_bytes = SL_DISK_BLOCK + segments * segment,
                                        .segment_bytes = segment,
                                        .queue_depth = b->o.depth,
                                        .directory = b->dir,
                                        .fingerprint = {1, 1}},
                        &b->tier, &b->err);
}

static bool is(const bench *b, const char *tier)
{
    return strcmp(b->o.tier, tier) == 0;
}

static sl_status open_redis(bench *b)
{
    const sl_tier_ops *ops = sl_tier_find("redis");
    sl_tier_values v;
    if (!ops)
        return sl_fail(&b->err, SL_ERR_UNSUPPORTED, "this build has no tier \"redis\"");
    sl_options_default(ops->options, v.bytes);
    SL_TRY(sl_options_set(ops->options, v.bytes, "address", b->o.address, &b->err));
    return sl_tier_open(ops,
                        &(sl_tier_opts){.page_bytes = b->page_bytes,
                                        .queue_depth = b->o.depth,
                                        .options = &v,
                                        .prefix = "sluice-bench",

                                        .fingerprint = {1, 1}},
                        &b->tier, &b->err);
}

static sl_status open_nixl(bench *b)
{
    const sl_options *table = sl_tier_nixl_ops.options;
    sl_tier_values v;
    sl_options_default(table, v.bytes);
    SL_TRY(sl_options_set(table, v.bytes, "library", b->o.library, &b->err));
    SL_TRY(sl_options_set(table, v.bytes, "backend", "POSIX", &b->err));
    return sl_tier_open(&sl_tier_nixl_ops,
                        &(sl_tier_opts){.page_bytes = b->page_bytes,
                                        .capacity_bytes = 2 * b->o.bytes + ((uint64_t)1 << 30),
                                        .queue_depth = b->o.depth,
                                        .directory = b->dir,
                                        .options = &v,
                                        .prefix = "bench",
                                        .fingerprint = {1, 1}},
                        &b->tier, &b->err);
}

typedef struct sample {
    double tier, plain, fio;
} sample;

/* One repeat of a shared store: writes, then reads, of the tier and of its plain loop. */
static sl_status repeat_shared(bench *b, sample *write, sample *read)
{
    bool redis = is(b, "redis");
    SL_TRY(redis ? open_redis(b) : open_nixl(b));
    write->tier = transfer(b, SL_TIER_SET);
    read->tier = transfer(b, SL_TIER_GET);
    transfer(b, SL_TIER_REMOVE); /* so that the next repeat writes again */
    sl_tier_close(b->tier);
    if (redis) {
        write->plain = sl_bench_tier_redis(b->o.address, false, b->page_bytes, b->count, b->o.depth);
        read->plain = sl_bench_tier_redis(b->o.address, true, b->page_bytes, b->count, b->o.depth);
    } else {
        write->plain = sl_bench_tier_files(b->dir, false, b->page_bytes, b->count, b->o.depth);
        read->plain = sl_bench_tier_files(b->dir, true, b->page_bytes, b->count, b->o.depth);
        sl_bench_tier_files_remove(b->dir, b->count);
    }
    if (b->bad)
        return sl_fail(&b->err, SL_ERR_CORRUPT, "%d pages were not stored or not read back", b->bad);
    if (write->plain < 0 || read->plain < 0)
        return sl_fail(&b->err, SL_ERR_IO, "the plain loop failed");
    return SL_OK;
}

/* One repeat: writes, then reads, of each of the three. */
static sl_status repeat(bench *b, sample *write, sample *read)
{
    size_t block = sl_disk_slot_bytes(&(sl_disk_store){.page_bytes = b->page_bytes});
    SL_TRY(open_tier(b));
    write->tier = transfer(b, SL_TIER_SET);
    read->tier = transfer(b, SL_TIER_GET);
    sl_tier_close(b->tier);
    unlink(b->tier_file);
    write->plain = sl_bench_tier_plain(b->plain_file, false, block, b->count, b->o.depth);
    read->plain = sl_bench_tier_plain(b->plain_file, true, block, b->count, b->o.depth);
    unlink(b->plain_file);
    write->fio = sl_bench_tier_fio(b->plain_file, false, block, b->count, b->o.depth);
    read->fio = sl_bench_tier_fio(b->plain_file, true, block, b->count, b->o.depth);
    unlink(b->plain_file);
    if (b->bad)
        return sl_fail(&b->err, SL_ERR_CORRUPT, "%d pages were not stored or not read back", b->bad);
    return SL_OK;
}

static double median(const sample *s, int n, size_t member)
{
    double v[MAX_REPEATS];
    for (int i = 0; i < n; i++)
        memcpy(&v[i], (const char *)&s[i] + member, sizeof v[i]);
    double m = sl_bench_median(v, (size_t)n);
    return m > 0 ? m : 0;
}

static void print(const bench *b, const char *direction, const sample *s)
{
    int n = b->o.repeats;
    if (!is(b, "disk")) {
        double shared = median(s, n, offsetof(sample, tier)), other = median(s, n, offsetof(sample, plain));
        printf("%zu,%s,%d,%.0f,%.0f,%.2f\n", b->page_bytes, direction, b->o.depth, shared, other,
               other > 0 ? shared / other : 0);
        fflush(stdout);
        return;
    }
    double tier = median(s, n, offsetof(sample, tier)), plain = median(s, n, offsetof(sample, plain)),
           fio = median(s, n, offsetof(sample, fio));
    printf("%zu,%s,%d,%.0f,%.0f,%.0f,%.2f,%.2f\n", b->page_bytes, direction, b->o.depth, tier, plain, fio,
           plain > 0 ? tier / plain : 0, fio > 0 ? tier / fio : 0);
    fflush(stdout);
}

static sl_status measure(bench *b)
{
    sample write[MAX_REPEATS], read[MAX_REPEATS];
    sl_status st = SL_OK;
    b->count = (int32_t)(b->o.bytes / b->page_bytes);
    for (int i = 0; i < IN_FLIGHT; i++) {
        b->jobs[i].idle = true;
        b->jobs[i].memory = malloc(BATCH * b->page_bytes);
        if (b->jobs[i].memory)
            memset(b->jobs[i].memory, 0x5a, BATCH * b->page_bytes);
        else
            st = sl_fail(&b->err, SL_ERR_NO_MEMORY, "out of memory");
    }
    for (int r = 0; st == SL_OK && r < b->o.repeats; r++)
        st = is(b, "disk") ? repeat(b, &write[r], &read[r]) : repeat_shared(b, &write[r], &read[r]);
    for (int i = 0; i < IN_FLIGHT; i++)
        free(b->jobs[i].memory);
    SL_TRY(st);
    print(b, "write", write);
    print(b, "read", read);
    return SL_OK;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    remove(path);
    return 0;
}

static int run(bench *b, const sl_bench_list *pages)
{
    snprintf(b->dir, sizeof b->dir, "%s/sluice-bench-XXXXXX", b->o.directory);
    if (!mkdtemp(b->dir)) {
        fprintf(stderr, "sluice bench tier: --directory %s: %s\n", b->o.directory, strerror(errno));
        return SL_EXIT_FAILED;
    }
    snprintf(b->tier_file, sizeof b->tier_file, "%s/pages.sluice", b->dir);
    snprintf(b->plain_file, sizeof b->plain_file, "%s/plain", b->dir);
    printf("page_bytes,direction,depth,tier_mib_s,plain_mib_s,%s\n",
           is(b, "disk") ? "fio_mib_s,tier_to_plain,tier_to_fio" : "tier_to_plain");
    sl_status st = SL_OK;
    for (int i = 0; i < pages->n && st == SL_OK; i++) {
        b->page_bytes = (size_t)pages->v[i] << 10;
        st = measure(b);
    }
    nftw(b->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (st == SL_OK)
        return SL_EXIT_OK;
    sl_args_fail("bench tier", st, &b->err);
    return st == SL_ERR_UNSUPPORTED ? 77 : SL_EXIT_FAILED;
}

int sl_bench_tier_main(int argc, char **argv)
{
    static bench b;
    sl_bench_list pages;
    options *o = &b.o;
    *o = (options){.directory = ".",
                   .tier = "disk",
                   .address = "localhost:6379",
                   .library = "libnixl_capi.so",
                   .pages = "256,1024,3072",
                   .bytes = (uint64_t)2 << 30,
                   .depth = 16,
                   .repeats = 3};
    const sl_arg args[] = {
        {"directory", SL_ARG_TEXT, &o->directory, "DIR",
         "A directory on the disk to measure. Default: this one.", 0, 0, NULL},
        {"tier", SL_ARG_TEXT, &o->tier, "NAME", "disk, redis or nixl. Default disk.", 0, 0, NULL},
        {"address", SL_ARG_TEXT, &o->address, "ADDRESS",
         "redis: its server, HOST:PORT or unix:PATH, whose maxmemory is more than --bytes. Default localhost:6379.",
         0, 0, NULL},
        {"library", SL_ARG_TEXT, &o->library, "FILE", "nixl: NIXL's C library. Default libnixl_capi.so.", 0,
         0, NULL},
        {"page-kib", SL_ARG_TEXT, &o->pages, "LIST", "Page sizes in KiB. Default 256,1024,3072.", 0, 0, NULL},
        {"bytes", SL_ARG_BYTES, &o->bytes, "SIZE", "Bytes of pages that are written and read. Default 2G.", 0,
         0, NULL},
        {"depth", SL_ARG_INT, &o->depth, "N", "Operations in flight. Default 16.", 1, 64, NULL},
        {"repeats", SL_ARG_INT, &o->repeats, "N", "Repeats, of which the median is printed. Default 3.", 1,
         MAX_REPEATS, NULL},
    };
    int exit_code;
    if (!sl_args_ready("[flags]", args, SL_COUNT(args), argc, argv, &exit_code))
        return exit_code;
    if (!is(&b, "disk") && !is(&b, "redis") && !is(&b, "nixl")) {
        fprintf(stderr, "sluice bench tier: --tier %s: want disk, redis or nixl\n", o->tier);
        return SL_EXIT_USAGE;
    }
    if (!sl_bench_list_flag("bench tier", "page-kib", o->pages, NULL, 1, &pages))
        return SL_EXIT_USAGE;
    if (sl_bench_list_most(&pages) > 1 << 16 || o->bytes < (uint64_t)sl_bench_list_most(&pages) << 10) {
        fprintf(stderr,
                "sluice bench tier: --page-kib %s: pages have at most 65536 KiB and at most --bytes\n",
                o->pages);
        return SL_EXIT_USAGE;
    }
    return run(&b, &pages);
}
