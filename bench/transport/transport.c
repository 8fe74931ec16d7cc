/*
 * Transport benchmark: one process measures, the other serves. Both call progress in a loop without waiting, as the
 * transport thread of a loaded worker does. In the bandwidth tests a window of operations is in flight, and every
 * completion posts the next one; the clock stops when the flush reports that all bytes are in the peer's memory. In the
 * latency test of puts, both sides write into the other's memory and poll their own, as the test ucp_put_lat of
 * ucx_perftest does, so that the figures of both programs can be compared.
 */
#include "bench/transport/transport.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/args.h"
#include "base/log.h"
#include "bench/transport/transport_impl.h"

/* ---- both sides ---- */

void sl_bench_tp_fail(sl_bench_tp *b, sl_status st)
{
    if (b->status == SL_OK)
        b->status = st;
}

void sl_bench_tp_done(void *cookie, sl_status st)
{
    if (st != SL_OK)
        sl_bench_tp_fail(cookie, st);
}

static void on_connected(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    sl_bench_tp *b = arg;
    b->ep = ep;
    if (st == SL_OK) {
        b->up = true;
        return;
    }
    fprintf(stderr, "bench: cannot connect: %s\n", why);
    sl_bench_tp_fail(b, st);
}

static void on_failed(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    sl_bench_tp *b = arg;
    (void)ep;
    (void)why;
    b->quit = true;
    sl_bench_tp_fail(b, st);
}

static void on_accepted(void *arg, sl_tp_ep *ep, const char *peer)
{
    sl_bench_tp *b = arg;
    (void)peer;
    b->ep = ep;
}

void sl_bench_tp_send_key(sl_bench_tp *b, uint16_t id)
{
    uint8_t *key = malloc(SL_TP_RKEY_MAX);
    size_t n = 0;
    sl_status st = key ? sl_tp_rkey_pack(b->mem, key, SL_TP_RKEY_MAX, &n) : SL_ERR_NO_MEMORY;
    if (st != SL_OK) {
        free(key);
        sl_bench_tp_fail(b, st);
        return;
    }
    sl_bench_tp_fail(b, sl_tp_send_owned(b->ep, id, key, n)); /* this frees the key */
}

static void on_message(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes,
                       const void *data, size_t bytes)
{
    sl_bench_tp *b = arg;
    sl_err err = {0};
    uint64_t size;
    if (id == AM_HELLO || id == AM_KEY) {
        sl_status st = sl_tp_rkey_unpack(ep, data, bytes, &b->rkey, &err);
        if (st != SL_OK)
            sl_bench_tp_fail(b, st);
        else if (id == AM_HELLO)
            sl_bench_tp_send_key(b, AM_KEY);
    } else if (id == AM_PONG_START && header_bytes == sizeof size) {
        memcpy(&size, header, sizeof size);
        b->pong_size = size > 0 && size <= b->bytes / 2 ? size : 0;
        b->pong_seq = 0;
        sl_tp_send(ep, AM_BACK, NULL, 0, NULL, 0, NULL, NULL);
    } else if (id == AM_ECHO) {
        void *copy = malloc(bytes + 1);
        if (copy && bytes)
            memcpy(copy, data, bytes);
        sl_bench_tp_fail(b, sl_tp_send_owned(ep, AM_BACK, copy, bytes));
    } else if (id == AM_BACK) {
        b->echoes++;
    } else if (id == AM_QUIT) {
        b->quit = true;
    }
}

sl_status sl_bench_tp_open(sl_bench_tp *b, sl_err *err)
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
        return sl_fail(err, SL_ERR_NO_MEMORY, "cannot allocate %zu bytes", b->bytes);
    b->arena = p;
    memset(b->arena, 0, b->bytes);
    SL_TRY(sl_transport_create(b->args->transport, &o, &b->tp, err));
    for (uint16_t id = AM_HELLO; id <= AM_QUIT; id++)
        SL_TRY(sl_tp_handle(b->tp, id, on_message, b));
    return sl_tp_mem_register(b->tp, b->arena, b->bytes, SL_TP_HOST,
                              SL_TP_LOCAL | SL_TP_REMOTE_READ | SL_TP_REMOTE_WRITE, &b->mem, err);
}

void sl_bench_tp_close(sl_bench_tp *b)
{
    sl_tp_destroy(b->tp);
    if (b->arena)
        munmap(b->arena, b->bytes);
}

volatile uint8_t *sl_bench_tp_mailbox(const sl_bench_tp *b, size_t size)
{
    return b->arena + size - 1;
}

static void pong(sl_bench_tp *b)
{
    uint8_t want = (uint8_t)(b->pong_seq + 1);
    if (!b->pong_size || *sl_bench_tp_mailbox(b, b->pong_size) != want)
        return;
    b->pong_seq = want;
    uint8_t *from = b->arena + b->bytes / 2;
    from[b->pong_size - 1] = want;
    sl_bench_tp_fail(
        b, sl_tp_put(b->ep, from, b->mem, b->pong_size, b->rkey->base, b->rkey, sl_bench_tp_done, b));
}

static sl_status open_listener(sl_bench_tp *b, char *address, size_t cap, sl_err *err)
{
    SL_TRY(sl_bench_tp_open(b, err));
    return sl_tp_listen(b->tp, b->args->listen, 0, address, cap, err);
}

static int serve(const sl_bench_tp_args *args, int fd)
{
    sl_bench_tp b = {.args = args};
    char address[SL_TP_ADDRESS_MAX];
    sl_err err = {0};
    sl_status st = open_listener(&b, address, sizeof address, &err);
    if (st != SL_OK) {
        fprintf(stderr, "bench: %s: %s\n", sl_status_name(st), err.text);
        sl_bench_tp_close(&b);
        return 1;
    }
    dprintf(fd, "%s\n", address);
    if (fd > 2)
        close(fd);
    while (!b.quit) {
        sl_tp_progress(b.tp);
        pong(&b);
    }
    sl_bench_tp_close(&b);
    return 0;
}

/* ---- command line ---- */

static bool parse_sizes(sl_bench_tp_args *a, const char *text)
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

static sl_args_result parse_args(int argc, char **argv, sl_bench_tp_args *a)
{
    const char *sizes = "8,4k,42k,64k,1m,4m";
    const sl_arg args[] = {
        {"transport", SL_ARG_TEXT, &a->transport, "NAME", "Transport to measure. Default ucx.", 0, 0, NULL},
        {"tls", SL_ARG_TEXT, &a->tp.tls, "LIST",
         "UCX transports that may be used (UCX_TLS). Default: UCX chooses.", 0, 0, NULL},
        {"devices", SL_ARG_TEXT, &a->tp.net_devices, "LIST",
         "Network devices that UCX may use. Default: UCX chooses.", 0, 0, NULL},
        {"sockaddr", SL_ARG_TEXT, &a->tp.sockaddr_priority, "LIST",
         "Ways to connect, in the order in which UCX tries them. Default: UCX chooses.", 0, 0, NULL},
        {"extra", SL_ARG_TEXT, &a->tp.extra, "N=V;...", "Further settings of UCX.", 0, 0, NULL},
        {"tests", SL_ARG_TEXT, &a->tests, "LIST",
         "Tests to run. Default: all, which are put_bw,get_bw,put_lat,am_lat.", 0, 0, NULL},
        {"sizes", SL_ARG_TEXT, &sizes, "LIST",
         "Sizes in bytes; the suffixes k and m mean KiB and MiB. Default 8,4k,42k,64k,1m,4m.", 0, 0, NULL},
        {"window", SL_ARG_INT, &a->window, "N",
         "Number of operations in flight in the bandwidth tests. Default 16.", 1, 4096, NULL},
        {"seconds", SL_ARG_REAL, &a->seconds, "S", "Duration of each measurement. Default 1.", 0.001, 86400,
         NULL},
        {"serve", SL_ARG_FLAG, &a->serve, NULL,
         "Serve as the peer that another process connects to, and print the address. Both processes need the same "
         "--sizes and --window.",
         0, 0, NULL},
        {"host", SL_ARG_TEXT, &a->listen, "HOST", "With --serve: address to listen at. Default 127.0.0.1.", 0,
         0, NULL},
        {"connect", SL_ARG_TEXT, &a->connect, "HOST:PORT",
         "Measure against a peer started with --serve. Default: a child process of this one.", 0, 0, NULL},
        {"progress", SL_ARG_FLAG, &a->progress, NULL, "Show on standard error what is being measured.", 0, 0,
         NULL},
    };
    sl_args_result result = sl_args_parse("[flags]", args, SL_COUNT(args), argc, argv);
    if (result == SL_ARGS_RUN && !parse_sizes(a, sizes)) {
        fprintf(stderr, "sluice bench transport: --sizes %s is not a list such as 8,4k,1m\n", sizes);
        return SL_ARGS_WRONG;
    }
    return result;
}

/* Measures against a child process, which ends with this one. */
static int spawn_and_measure(const sl_bench_tp_args *a)
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
    int rc = got ? sl_bench_tp_measure(a, address) : 1;
    if (pid > 0) {
        if (rc != 0)
            kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    return rc;
}

int sl_bench_transport_main(int argc, char **argv)
{
    sl_bench_tp_args a = {.name = argv[0],
                          .transport = "ucx",
                          .tests = "put_bw,get_bw,put_lat,am_lat",
                          .tp = sl_tp_options_default(),
                          .window = 16,
                          .seconds = 1};
    switch (parse_args(argc, argv, &a)) {
    case SL_ARGS_HELP:
        return SL_EXIT_OK;
    case SL_ARGS_WRONG:
        return SL_EXIT_USAGE;
    case SL_ARGS_RUN:
        break;
    }
    if (!sl_transport_find(a.transport) || !sl_transport_find(a.transport)->caps.cross_process) {
        fprintf(stderr, "bench: transport \"%s\" does not reach other processes\n", a.transport);
        return 2;
    }
    if (a.serve)
        return serve(&a, 1);
    if (a.connect)
        return sl_bench_tp_measure(&a, a.connect);
    a.listen = a.listen ? a.listen : "127.0.0.1";
    return spawn_and_measure(&a);
}
