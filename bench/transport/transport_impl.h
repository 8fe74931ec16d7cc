/*
 * Transport benchmark, what its two files share: transport.c has the code of both sides, the serving side and the
 * command line, measure.c the measuring side.
 */
#ifndef SL_BENCH_TRANSPORT_TRANSPORT_IMPL_H
#define SL_BENCH_TRANSPORT_TRANSPORT_IMPL_H

#include "transport/transport.h"

enum { AM_HELLO = 1, AM_KEY = 2, AM_PONG_START = 3, AM_ECHO = 4, AM_BACK = 5, AM_QUIT = 6 };
enum { MAX_SIZES = 64, MAX_SAMPLES = 1 << 16, CONTROL_BYTES = 64 };

typedef struct sl_bench_tp_args {
    const char *name, *transport, *tests, *connect, *listen;
    sl_tp_options tp;
    size_t sizes[MAX_SIZES];
    int32_t n_sizes, window;
    double seconds;
    bool serve, progress;
} sl_bench_tp_args;

typedef struct sl_bench_tp {
    const sl_bench_tp_args *args;
    sl_transport *tp;
    sl_tp_ep *ep;
    /* Bandwidth tests: window x size bytes. Latency tests: the first half receives, the second half is sent from. */
    uint8_t *arena;
    size_t bytes;
    sl_tp_mem *mem;
    sl_tp_rkey *rkey; /* the key of the peer's arena */
    sl_status status; /* first failure */
    bool up, quit, stop, flushed;
    uint64_t completed, in_flight, echoes;
    size_t size; /* bytes of an operation in the running test */
    bool get;
    size_t pong_size;
    uint8_t pong_seq;
} sl_bench_tp;

/* Records the first failure. */
void sl_bench_tp_fail(sl_bench_tp *b, sl_status st);
/* Completion callback of operations of which only a failure matters. cookie: the sl_bench_tp. */
void sl_bench_tp_done(void *cookie, sl_status st);
/* Sends the key of the arena as message id. The receiver of AM_HELLO answers with its own key in AM_KEY. */
void sl_bench_tp_send_key(sl_bench_tp *b, uint16_t id);
sl_status sl_bench_tp_open(sl_bench_tp *b, sl_err *err);
void sl_bench_tp_close(sl_bench_tp *b);
/* The byte that a put of `size` bytes by the peer writes last: polling it shows that the put has arrived. */
volatile uint8_t *sl_bench_tp_mailbox(const sl_bench_tp *b, size_t size);
/* The measuring side: connects, runs every test and prints the results. Returns an exit code. */
int sl_bench_tp_measure(const sl_bench_tp_args *args, const char *address);

#endif
