/*
 * Transport benchmark: one side measures, the other serves; both spin on progress, because that is what a
 * loaded worker's transport thread does. A window of puts is kept in flight and re-posted from the
 * completions; the clock stops when the flush says that everything is in the peer's memory. The latency test
 * writes memory and polls it on both sides, as ucx_perftest's ucp_put_lat does, so that the two compare.
 */
#include "bench/transport/transport.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "bench/transport/transport_impl.h"

/* ---- both sides ---- */

void sl_bench_fail(sl_tp_bench *b, sl_status st)
{
    if (b->status == SL_OK)
        b->status = st;
}

void sl_bench_done(void *cookie, sl_status st)
{
    if (st != SL_OK)
        sl_bench_fail(cookie, st);
}

static void on_connected(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    sl_tp_bench *b = arg;
    b->ep = ep;
    if (st == SL_OK) {
        b->up = true;
        return;
    }
    fprintf(stderr, "bench: cannot connect: %s\n", why);
    sl_bench_fail(b, st);
}

static void on_failed(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    sl_tp_bench *b = arg;
    (void)ep;
    (void)why;
    b->quit = true;
    sl_bench_fail(b, st);
}

static void on_accepted(void *arg, sl_tp_ep *ep, const char *peer)
{
    sl_tp_bench *b = arg;
    (void)peer;
    b->ep = ep;
}

/* Sends our arena's key; the other side answers in kind or is satisfied. */
void sl_bench_send_key(sl_tp_bench *b, uint16_t id)
{
    uint8_t *key = malloc(SL_TP_RKEY_MAX);
    size_t n = 0;
    sl_status st = key ? sl_tp_rkey_pack(b->mem, key, SL_TP_RKEY_MAX, &n) : SL_ERR_NO_MEMORY;
    if (st == SL_OK)
        st = sl_tp_send_owned(b->ep, id, key, n);
    else
        free(key);
    if (st != SL_OK)
        sl_bench_fail(b, st);
}

static void on_message(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes,
                       const void *data, size_t bytes)
{
    sl_tp_bench *b = arg;
    sl_err err = {0};
    uint64_t size;
    if (id == AM_HELLO || id == AM_KEY) {
        sl_status st = sl_tp_rkey_unpack(ep, data, bytes, &b->rkey, &err);
        if (st != SL_OK)
            sl_bench_fail(b, st);
        else if (id == AM_HELLO)
            sl_bench_send_key(b, AM_KEY);
    } else if (id == AM_PONG_START && header_bytes == sizeof size) {
        memcpy(&size, header, sizeof size);
        b->pong_size = size > 0 && size <= b->bytes / 2 ? size : 0;
        b->pong_seq = 0;
        sl_tp_send(ep, AM_BACK, NULL, 0, NULL, 0, NULL, NULL);
    } else if (id == AM_ECHO) {
        void *copy = malloc(bytes + 1);
        if (copy && bytes)
            memcpy(copy, data, bytes);
        sl_bench_fail(b, sl_tp_send_owned(ep, AM_BACK, copy, bytes));
    } else if (id == AM_BACK) {
        b->echoes++;
    } else if (id == AM_QUIT) {
        b->quit = true;
    }
}

sl_status sl_bench_open(sl_tp_bench *b, sl_err *err)
{
    sl_tp_options o = b->args->tp;
    size_t largest = 1;
    for (int i = 0; i < b->args->n_sizes; i++)
        largest = b->args->sizes[i] > largest ? b->args->sizes[i] : largest;
    b->bytes = largest * (size_t)(b->args->window > 2 ? b->args->window : 2) + CONTROL_BYTES;
    o.events =
        (sl_tp_events){.arg = b, .accepted = on_accepted, .connected = on_connected, .failed = on_failed};
    void *p = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return sl_fail(err, SL_ERR_NO_MEMORY, "no memory for %zu bytes", b->bytes);
    b->arena = p;
    memset(b->arena, 0, b->bytes);
    sl_status st = sl_transport_create(b->args->transport, &o, &b->tp, err);
    for (uint16_t id = AM_HELLO; id <= AM_QUIT && st == SL_OK; id++)
        st = sl_tp_handle(b->tp, id, on_message, b);
    if (st == SL_OK)
        st = sl_tp_mem_register(b->tp, b->arena, b->bytes, SL_TP_HOST,
                                SL_TP_LOCAL | SL_TP_REMOTE_READ | SL_TP_REMOTE_WRITE, &b->mem, err);
    return st;
}

void sl_bench_close(sl_tp_bench *b)
{
    sl_tp_destroy(b->tp);
    if (b->arena)
        munmap(b->arena, b->bytes);
}

volatile uint8_t *sl_bench_mailbox(const sl_tp_bench *b, size_t size)
{
    return b->arena + size - 1;
}

static void pong(sl_tp_bench *b)
{
    uint8_t want = (uint8_t)(b->pong_seq + 1);
    if (!b->pong_size || *sl_bench_mailbox(b, b->pong_size) != want)
        return;
    b->pong_seq = want;
    uint8_t *from = b->arena + b->bytes / 2;
    from[b->pong_size - 1] = want;
    sl_bench_fail(b, sl_tp_put(b->ep, from, b->mem, b->pong_size, b->rkey->base, b->rkey, sl_bench_done, b));
}

static int serve(const sl_bench_args *args, int fd)
{
    sl_tp_bench b = {.args = args};
    char address[SL_TP_ADDRESS_MAX];
    sl_err err = {0};
    sl_status st = sl_bench_open(&b, &err);
    if (st == SL_OK)
        st = sl_tp_listen(b.tp, args->listen, 0, address, sizeof address, &err);
    if (st != SL_OK) {
        fprintf(stderr, "bench: %s: %s\n", sl_status_name(st), err.text);
        sl_bench_close(&b);
        return 1;
    }
    dprintf(fd, "%s\n", address);
    if (fd > 2)
        close(fd);
    while (!b.quit) {
        sl_tp_progress(b.tp);
        pong(&b);
    }
    sl_bench_close(&b);
    return 0;
}

/* ---- command line ---- */

static bool parse_sizes(sl_bench_args *a, const char *text)
{
    a->n_sizes = 0;
    while (*text && a->n_sizes < MAX_SIZES) {
        char *end;
        unsigned long long v = strtoull(text, &end, 10);
        if (*end == 'k' || *end == 'm')
            v <<= *end++ == 'k' ? 10 : 20;
        if (end == text || v == 0 || v > SL_TP_AM_MAX || (*end && *end != ','))
            return false;
        a->sizes[a->n_sizes++] = (size_t)v;
        text = end + (*end == ',');
    }
    return a->n_sizes > 0;
}

static int usage(int argc, char **argv)
{
    bool asked = argc == 2 && strcmp(argv[1], "--help") == 0;
    fprintf(
        asked ? stdout : stderr,
        "usage: sluice %s [--transport ucx] [--tls LIST] [--devices LIST] [--sockaddr LIST] [--extra N=V;…]\n"
        "       [--tests put_bw,get_bw,put_lat,am_lat] [--sizes 8,4k,64k,1m] [--window N] [--seconds S]\n"
        "       [--serve [--host H]] [--connect HOST:PORT] [--progress]\n"
        "Measures between this process and a child, or a peer started with --serve (same --sizes and "
        "--window).\n",
        argv[0]);
    return asked ? 0 : 2;
}

static bool parse_args(int argc, char **argv, sl_bench_args *a)
{
    static const struct option options[] = {
        {"transport", 1, NULL, 't'}, {"tls", 1, NULL, 'T'},    {"devices", 1, NULL, 'd'},
        {"sockaddr", 1, NULL, 'a'},  {"extra", 1, NULL, 'x'},  {"tests", 1, NULL, 'n'},
        {"sizes", 1, NULL, 's'},     {"window", 1, NULL, 'w'}, {"seconds", 1, NULL, 'S'},
        {"serve", 0, NULL, 'L'},     {"host", 1, NULL, 'H'},   {"connect", 1, NULL, 'c'},
        {"progress", 0, NULL, 'p'},  {NULL, 0, NULL, 0},
    };
    bool ok = true;
    optind = 1;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 't':
            a->transport = optarg;
            break;
        case 'T':
            a->tp.tls = optarg;
            break;
        case 'd':
            a->tp.net_devices = optarg;
            break;
        case 'a':
            a->tp.sockaddr_priority = optarg;
            break;
        case 'x':
            a->tp.extra = optarg;
            break;
        case 'n':
            a->tests = optarg;
            break;
        case 's':
            ok = parse_sizes(a, optarg);
            break;
        case 'w':
            a->window = (int)strtol(optarg, NULL, 10);
            break;
        case 'S':
            a->seconds = strtod(optarg, NULL);
            break;
        case 'L':
            a->serve = true;
            break;
        case 'H':
            a->listen = optarg;
            break;
        case 'c':
            a->connect = optarg;
            break;
        case 'p':
            a->progress = 1;
            break;
        default:
            ok = false;
        }
    }
    return ok && optind == argc && a->window > 0 && a->window <= 4096 && a->seconds > 0;
}

/* The child serves and ends with its parent. */
static int spawn_and_measure(const sl_bench_args *a)
{
    int fds[2], status = 0;
    char address[SL_TP_ADDRESS_MAX] = "";
    if (pipe(fds) != 0)
        return 1;
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(serve(a, fds[1]));
    }
    close(fds[1]);
    FILE *f = fdopen(fds[0], "r");
    bool got = pid > 0 && f && fgets(address, sizeof address, f);
    if (f)
        fclose(f);
    address[strcspn(address, "\n")] = 0;
    int rc = got ? sl_bench_measure(a, address) : 1;
    if (pid > 0) {
        if (rc != 0)
            kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    return rc;
}

int sl_bench_transport_main(int argc, char **argv)
{
    sl_bench_args a = {.name = argv[0],
                       .transport = "ucx",
                       .tests = "put_bw,get_bw,put_lat,am_lat",
                       .tp = sl_tp_options_default(),
                       .window = 16,
                       .seconds = 1};
    parse_sizes(&a, "8,4k,42k,64k,1m,4m");
    if ((argc == 2 && strcmp(argv[1], "--help") == 0) || !parse_args(argc, argv, &a))
        return usage(argc, argv);
    if (!sl_transport_find(a.transport) || !sl_transport_find(a.transport)->caps.cross_process) {
        fprintf(stderr, "bench: transport \"%s\" does not reach other processes\n", a.transport);
        return 2;
    }
    if (a.serve)
        return serve(&a, 1);
    if (a.connect)
        return sl_bench_measure(&a, a.connect);
    a.listen = a.listen ? a.listen : "127.0.0.1";
    return spawn_and_measure(&a);
}
