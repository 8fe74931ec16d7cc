/*
 * Measures how fast the rows of a prefilled chunk reach a decode worker's store by each path, compared with the link:
 * the rate of one large copy from the device into pinned memory, measured in the same run.
 *
 * A second process stands for the decode worker: it owns the arena and grants this process the right to write into it
 * (worker/direct.h), as a real decode worker does. Spans, batches and copies are those of the prefill worker. The bytes
 * that arrived are compared with those that were sent.
 *
 *   path      from            by                   into                   corresponds to
 *   device    device pages    the copy engine      the other's arena      cluster.shipping direct
 *   staging   device pages    the copy engine      the own pinned arena   first half of cluster.shipping staging
 *   put       the own arena   puts                 the other's arena      second half of cluster.shipping staging
 *   gpu       device pages    puts                 the other's arena      cluster.shipping gpu
 *   host      the own arena   this CPU's memcpy    the other's arena      shipping of pages found in the prefix cache
 *
 * The column "pages" says whether the landing pages are consecutive, as in an empty store, or scattered. Every path
 * waits after each layer until its rows have arrived.
 */
#include "bench/ship/ship.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "bench/ship/put.h"
#include "base/args.h"
#include "prefill/copier.h"

enum { PAGE = SL_PAGE_TOKENS, LINK_BYTES = 64 << 20 };

typedef struct ship_opts {
    const char *backend, *tls;
    int32_t device, tokens, layers, repeats;
} ship_opts;

typedef struct ship {
    const ship_opts *o;
    sl_geometry geo;
    int32_t n_pages; /* of the chunk; the arenas have twice this number */
    pid_t child;
    int hold; /* the child ends when this is closed */
    sl_direct *there;
    sl_backend *be;
    sl_arena *own;
    sl_device_layer *dev;
    uint8_t *rows, *keys;
    int32_t *own_pages;
    uint32_t *pages;
    double link;
    sl_bench_ship_put *put;
    sl_bench_ship_target target;
    sl_tp_mem *own_mem, *rows_mem, *keys_mem; /* rows_mem is NULL if puts from the device are not possible */
} ship;

/* The message that the other process writes into the pipe when it is ready. */
typedef struct hello {
    size_t n; /* bytes of desc; 0 if the process could not share its memory */
    uint8_t desc[SL_DIRECT_DESC_MAX];
    sl_bench_ship_target target;
} hello;

static sl_status make_arena(const ship *s, bool shared, sl_arena **out, sl_err *err)
{
    sl_arena_opts o = {.bytes = (uint64_t)(2 * s->n_pages * s->geo.page_bytes),
                       .lock = SL_OFF,
                       .numa_node = -1,
                       .shared = shared};
    return sl_arena_create(&s->geo, &o, out, err);
}

/* The main function of the other process, which prints nothing. */
static void owner(const ship *s, int out, int until)
{
    sl_arena *a = NULL;
    sl_direct_host *h = NULL;
    sl_transport *tp = NULL;
    hello me = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (make_arena(s, true, &a, NULL) == SL_OK &&
        sl_direct_host_create(sl_arena_fd(a), sl_arena_bytes(a), &h, NULL) == SL_OK)
        (void)sl_direct_grant(h, (uint32_t)getppid(), me.desc, &me.n, NULL);
    if (me.n)
        tp = sl_bench_ship_target_open(a, s->o->tls, &me.target);
    if (write(out, &me, sizeof me) == (ssize_t)sizeof me)
        sl_bench_ship_target_serve(tp, until);
    _exit(0);
}

static sl_status start_owner(ship *s, sl_err *err)
{
    int up[2], down[2];
    hello it;
    if (pipe(up) != 0 || pipe(down) != 0)
        return sl_fail(err, SL_ERR_IO, "cannot create a pipe");
    s->child = fork();
    if (s->child == 0) {
        close(down[1]);
        owner(s, up[1], down[0]);
    }
    close(up[1]);
    close(down[0]);
    s->hold = down[1];
    ssize_t got = read(up[0], &it, sizeof it);
    close(up[0]);
    if (got != (ssize_t)sizeof it || !it.n)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "the second process cannot share its memory here");
    s->target = it.target;
    return sl_direct_attach(it.desc, it.n, (uint64_t)(2 * s->n_pages * s->geo.page_bytes), &s->there, err);
}

static sl_status make_device(ship *s, sl_err *err)
{
    int64_t row_page = PAGE * sl_geometry_row_bytes(&s->geo), key_page = sl_geometry_index_bytes(&s->geo);
    size_t rows = (size_t)(s->o->layers * s->n_pages * row_page);
    size_t keys = (size_t)(s->o->layers * s->n_pages * key_page);
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, rows, (void **)&s->rows, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, keys, (void **)&s->keys, err));
    s->dev = calloc((size_t)s->o->layers, sizeof *s->dev);
    if (!s->dev)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t l = 0; l < s->o->layers; l++) {
        sl_host_plane *plane = s->dev[l].planes;
        int32_t index = sl_cache_find(&s->geo.shape, SL_PLANE_INDEX);
        plane[SL_CACHE_ROWS] =
            (sl_host_plane){s->rows + l * s->n_pages * row_page, row_page, sl_geometry_row_bytes(&s->geo)};
        plane[index] = (sl_host_plane){s->keys + l * s->n_pages * key_page, key_page, key_page};
        SL_TRY(sl_be_fill(s->be, plane[SL_CACHE_ROWS].base, (uint8_t)(l + 1), (size_t)(s->n_pages * row_page),
                          err));
        SL_TRY(
            sl_be_fill(s->be, plane[index].base, (uint8_t)(l + 101), (size_t)(s->n_pages * key_page), err));
    }
    return SL_OK;
}

/*
 * Opens the connection and registers the memory that puts read from. Device memory is left out where UCX cannot
 * register it; the path "gpu" is then not measured.
 */
static sl_status open_puts(ship *s, sl_err *err)
{
    int64_t pages = s->o->layers * s->n_pages;
    SL_TRY(sl_be_use_thread(s->be, err));
    SL_TRY(sl_bench_ship_put_open(&s->target, s->o->tls, &s->put, err));
    sl_transport *tp = sl_bench_ship_put_transport(s->put);
    SL_TRY(sl_tp_mem_register(tp, sl_arena_base(s->own), sl_arena_bytes(s->own), SL_TP_HOST, SL_TP_LOCAL,
                              &s->own_mem, err));
    if (sl_backend_caps(s->be) & SL_BE_UNIFIED)
        return SL_OK;
    sl_err why = {0};
    if (sl_tp_mem_register(tp, s->rows, (size_t)(pages * PAGE * sl_geometry_row_bytes(&s->geo)), SL_TP_DEVICE,
                           SL_TP_LOCAL, &s->rows_mem, &why) != SL_OK) {
        printf("# the path gpu is not available: %s\n", why.text);
        return SL_OK;
    }
    return sl_tp_mem_register(tp, s->keys, (size_t)(pages * sl_geometry_index_bytes(&s->geo)), SL_TP_DEVICE,
                              SL_TP_LOCAL, &s->keys_mem, err);
}

/* close_all() undoes what this opened, also after a failure. */
static sl_status open_all(ship *s, sl_err *err)
{
    sl_backend_opts bo = {.device = s->o->device, .threads = 1};
    s->own_pages = calloc((size_t)s->n_pages, sizeof *s->own_pages);
    s->pages = calloc((size_t)s->n_pages, sizeof *s->pages);
    if (!s->own_pages || !s->pages)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < s->n_pages; i++)
        s->own_pages[i] = i;
    SL_TRY(start_owner(s, err));
    SL_TRY(sl_backend_create(s->o->backend, &bo, &s->be, err));
    SL_TRY(make_arena(s, false, &s->own, err));
    SL_TRY(sl_be_host_register(s->be, sl_arena_base(s->own), sl_arena_bytes(s->own), err));
    SL_TRY(sl_be_host_register(s->be, sl_direct_base(s->there), sl_direct_bytes(s->there), err));
    SL_TRY(make_device(s, err));
    SL_TRY(open_puts(s, err));
    return sl_be_sync(s->be, err);
}

static void close_all(ship *s)
{
    sl_bench_ship_put_close(s->put); /* before the memory that is registered with it */
    if (s->be) {
        sl_be_free(s->be, SL_MEM_DEVICE, s->rows);
        sl_be_free(s->be, SL_MEM_DEVICE, s->keys);
        if (s->there)
            sl_be_host_unregister(s->be, sl_direct_base(s->there));
        if (s->own)
            sl_be_host_unregister(s->be, sl_arena_base(s->own));
    }
    sl_direct_detach(s->there);
    sl_arena_destroy(s->own);
    sl_backend_destroy(s->be);
    free(s->dev);
    free(s->own_pages);
    free(s->pages);
    if (s->child > 0) {
        close(s->hold);
        waitpid(s->child, NULL, 0);
    }
}

/* ---- measuring ---- */

static sl_status measure_link(ship *s, sl_err *err)
{
    size_t rows = (size_t)(s->o->layers * s->n_pages * PAGE * sl_geometry_row_bytes(&s->geo)), n = LINK_BYTES;
    n = n < rows ? n : rows;
    n = n < sl_arena_bytes(s->own) ? n : (size_t)sl_arena_bytes(s->own);
    for (int i = 0; i < 8; i++) {
        uint64_t t0 = sl_now_ns();
        SL_TRY(sl_be_copy(s->be, sl_arena_base(s->own), s->rows, n, err));
        SL_TRY(sl_be_sync(s->be, err));
        double rate = (double)n / (double)(sl_now_ns() - t0);
        s->link = rate > s->link ? rate : s->link;
    }
    return SL_OK;
}

typedef enum { BY_DEVICE, BY_STAGING, BY_PUT, BY_GPU, BY_HOST } path;

/* Ships one layer of the chunk and waits until it has arrived. */
static sl_status ship_layer(ship *s, path by, int32_t layer, sl_copier_mail *m, sl_err *err)
{
    /* bytes of one layer's rows */
    int64_t row_pool = (int64_t)s->n_pages * PAGE * sl_geometry_row_bytes(&s->geo);
    bool to_own = by == BY_STAGING, puts = by == BY_PUT || by == BY_GPU;
    uint8_t *there = to_own ? sl_arena_base(s->own) : sl_direct_base(s->there);
    sl_page_map map = {.local = &s->geo,
                       .remote = &s->geo,
                       .local_base = sl_arena_base(s->own),
                       .remote_base = puts ? s->target.base : (uint64_t)(uintptr_t)there,
                       .local_n = 2 * s->n_pages,
                       .remote_n = 2 * s->n_pages,
                       .lpages = s->own_pages,
                       .rpages = s->pages,
                       .dev = by == BY_HOST || by == BY_PUT ? NULL : s->dev,
                       .dev_rows = s->own_pages,
                       .dev_index = s->own_pages};
    sl_pieces it;
    sl_span span;
    m->n = 0;
    sl_pieces_init(&it, &map, layer, 0, s->n_pages * PAGE);
    while (sl_pieces_next(&it, &span)) {
        uint8_t *dst = (uint8_t *)(uintptr_t)span.remote;
        if (puts) {
            bool row = (uintptr_t)span.local - (uintptr_t)s->rows < (uintptr_t)(s->o->layers * row_pool);
            sl_tp_mem *from_device = row ? s->rows_mem : s->keys_mem;
            SL_TRY(sl_bench_ship_put_post(s->put, &span, by == BY_PUT ? s->own_mem : from_device, err));
        } else if (by == BY_HOST) {
            memcpy(dst, span.local, (size_t)span.bytes);
        } else if (!sl_copier_add(m, &span, dst)) { /* the list is full: run it and begin the next */
            SL_TRY(sl_copier_enqueue(s->be, m, err));
            m->n = 0;
            (void)sl_copier_add(m, &span, dst);
        }
    }
    if (puts)
        return sl_bench_ship_put_flush(s->put, err);
    SL_TRY(sl_copier_enqueue(s->be, m, err));
    return by == BY_HOST ? SL_OK : sl_be_sync(s->be, err);
}

static sl_status check_arrived(const ship *s, uint8_t *base, sl_err *err)
{
    for (int32_t l = 0; l < s->o->layers; l++) {
        sl_host_plane r = sl_geometry_plane(&s->geo, base, 2 * s->n_pages, l, SL_CACHE_ROWS);
        sl_host_plane x = sl_geometry_index_plane(&s->geo, base, 2 * s->n_pages, l);
        for (int32_t p = 0; p < s->n_pages; p++) {
            const uint8_t *row = r.base + s->pages[p] * r.page_stride,
                          *key = x.base + s->pages[p] * x.page_stride;
            int64_t wrong = 0;
            for (int64_t i = 0; i < PAGE * sl_geometry_row_bytes(&s->geo); i++)
                wrong += row[i] != (uint8_t)(l + 1);
            for (int64_t i = 0; i < sl_geometry_index_bytes(&s->geo); i++)
                wrong += key[i] != (uint8_t)(l + 101);
            if (wrong)
                return sl_fail(err, SL_ERR_CORRUPT, "layer %d, page %d: %ld bytes are wrong", l, p,
                               (long)wrong);
        }
    }
    return SL_OK;
}

/* Ships the chunk --repeats times. *best: the largest rate, in bytes per nanosecond. */
static sl_status repeat_path(ship *s, path by, sl_copier_mail *m, double *best, sl_err *err)
{
    uint8_t *base = by == BY_STAGING ? sl_arena_base(s->own) : sl_direct_base(s->there);
    double bytes = (double)s->n_pages * (double)s->geo.page_bytes;
    for (int r = 0; r < s->o->repeats; r++) {
        memset(base, 0, (size_t)(2 * s->n_pages * s->geo.page_bytes));
        uint64_t t0 = sl_now_ns();
        for (int32_t l = 0; l < s->o->layers; l++)
            SL_TRY(ship_layer(s, by, l, m, err));
        double rate = bytes / (double)(sl_now_ns() - t0);
        *best = rate > *best ? rate : *best;
        SL_TRY(check_arrived(s, base, err));
    }
    return SL_OK;
}

static sl_status run_path(ship *s, path by, bool scattered, sl_err *err)
{
    static const char *const names[] = {"device", "staging", "put", "gpu", "host"};
    double bytes = (double)s->n_pages * (double)s->geo.page_bytes, best = 0;
    sl_copier_mail *m = calloc(1, sizeof *m);
    if (!m)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < s->n_pages; i++) /* an odd multiplier permutes when n_pages is a power of two */
        s->pages[i] = (uint32_t)(scattered ? 2 * ((i * 37 + 11) % s->n_pages) + 1 : i);
    sl_status st = repeat_path(s, by, m, &best, err);
    free(m);
    SL_TRY(st);
    printf("%s,%s,%.0f,%.3f,%.2f,%.3f\n", names[by], scattered ? "scattered" : "in_a_row", bytes,
           bytes / best / 1e6, best, best / s->link);
    fflush(stdout);
    return SL_OK;
}

static sl_status measure(ship *s, sl_err *err)
{
    struct utsname u;
    char transports[256];
    uname(&u);
    SL_TRY(measure_link(s, err));
    printf("# kernel=%s cpus=%ld device=\"%s\" tokens=%d layers=%d row_bytes=%ld index_block_bytes=%ld "
           "link_gb_per_s=%.2f\n",
           u.release, sysconf(_SC_NPROCESSORS_ONLN), sl_backend_describe(s->be), s->n_pages * PAGE,
           s->o->layers, (long)sl_geometry_row_bytes(&s->geo), (long)sl_geometry_index_bytes(&s->geo),
           s->link);
    sl_bench_ship_put_describe(s->put, transports, sizeof transports);
    printf("# puts: %s\n", transports);
    printf("path,pages,bytes,ms,gb_per_s,ratio_to_link\n");
    /* The consecutive staging run comes before put and host, because it leaves the right rows in the own arena. */
    static const struct {
        path by;
        bool scattered;
    } runs[] = {{BY_DEVICE, false}, {BY_DEVICE, true}, {BY_STAGING, true}, {BY_STAGING, false},
                {BY_PUT, false},    {BY_PUT, true},    {BY_GPU, false},    {BY_GPU, true},
                {BY_HOST, false},   {BY_HOST, true}};
    for (size_t i = 0; i < SL_COUNT(runs); i++)
        if (runs[i].by != BY_GPU || s->rows_mem)
            SL_TRY(run_path(s, runs[i].by, runs[i].scattered, err));
    return SL_OK;
}

/* The pages of V3.2: fp8 rows and official index keys in every layer. */
static sl_status make_geometry(int32_t layers, sl_geometry *out, sl_err *err)
{
    bool has_indexer[SL_GEOMETRY_MAX_LAYERS];
    memset(has_indexer, 1, sizeof has_indexer);
    sl_cache_dims dims = {.rows = sl_row_format_of(SL_ROW_MLA_FP8),
                          .index_format = SL_INDEX_OFFICIAL,
                          .latent = 512,
                          .rope = 64,
                          .index_dim = 128};
    sl_cache_shape shape;
    sl_geometry_opts go = {.shape = &shape, .n_layers = layers, .has_indexer = has_indexer};
    SL_TRY(sl_cache_shape_make(&dims, &shape, err));
    return sl_geometry_make(&go, out, err);
}

static sl_status run(ship *s, sl_err *err)
{
    SL_TRY(make_geometry(s->o->layers, &s->geo, err));
    SL_TRY(open_all(s, err));
    return measure(s, err);
}

int sl_bench_ship_main(int argc, char **argv)
{
    ship_opts o = {.backend = "cpu", .tokens = 4096, .layers = 61, .repeats = 5};
    const sl_arg args[] = {
        {"backend", SL_ARG_TEXT, &o.backend, "NAME", "Compute backend: cpu, the default, or cuda.", 0, 0,
         NULL},
        {"device", SL_ARG_INT, &o.device, "N", "Number of the GPU. Default 0.", 0, 255, NULL},
        {"tokens", SL_ARG_INT, &o.tokens, "N", "Tokens of the chunk. Default 4096.", PAGE, 1 << 20, NULL},
        {"layers", SL_ARG_INT, &o.layers, "N", "Layers of the model. Default 61.", 1, 100, NULL},
        {"tls", SL_ARG_TEXT, &o.tls, "LIST",
         "Transports that UCX may use for the puts. Default: UCX chooses.", 0, 0, NULL},
        {"repeats", SL_ARG_INT, &o.repeats, "N",
         "Number of repetitions, of which the fastest is reported. Default 5.", 1, 1000, NULL},
    };
    int exit_code;
    if (!sl_args_ready("[flags]", args, SL_COUNT(args), argc, argv, &exit_code))
        return exit_code;
    sl_log_init(SL_LOG_WARN, false, "bench");
    sl_err err = {0};
    ship s = {.o = &o, .n_pages = o.tokens / PAGE};
    sl_status st = run(&s, &err);
    close_all(&s);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail("bench ship", st, &err);
}
