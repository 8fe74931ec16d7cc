/*
 * The puts of `sluice bench ship`: one process offers an arena, another puts spans into it. Private to this folder.
 * Each object belongs to one thread.
 */
#ifndef SL_BENCH_SHIP_PUT_H
#define SL_BENCH_SHIP_PUT_H

#include "kvstore/arena.h"
#include "worker/pieces.h"
#include "transport/transport.h"

/* What the process that puts must know about the arena. If `why` is not empty, it says why there is no offer. */
typedef struct sl_bench_ship_target {
    char address[SL_TP_ADDRESS_MAX];
    uint8_t key[SL_TP_RKEY_MAX];
    size_t key_bytes;
    uint64_t base;
    char why[200];
} sl_bench_ship_target;

/* Offers the arena. On failure returns NULL and writes the reason to out->why. tls: value of UCX_TLS, or NULL. */
sl_transport *sl_bench_ship_target_open(sl_arena *a, const char *tls, sl_bench_ship_target *out);
/* Makes progress until the other end of the pipe `until` is closed, then destroys tp, which may be NULL. */
void sl_bench_ship_target_serve(sl_transport *tp, int until);

typedef struct sl_bench_ship_put sl_bench_ship_put;

sl_status sl_bench_ship_put_open(const sl_bench_ship_target *t, const char *tls, sl_bench_ship_put **out,
                                 sl_err *err);
void sl_bench_ship_put_close(sl_bench_ship_put *p);
sl_transport *sl_bench_ship_put_transport(sl_bench_ship_put *p);
/* Posts the put of one span; waits while the window of puts in flight is full. */
sl_status sl_bench_ship_put_post(sl_bench_ship_put *p, const sl_span *s, sl_tp_mem *mem, sl_err *err);
/* Returns when all posted bytes are in the memory of the other process. */
sl_status sl_bench_ship_put_flush(sl_bench_ship_put *p, sl_err *err);
/* Writes the transports that the connection uses to text, for the head of the table. */
void sl_bench_ship_put_describe(const sl_bench_ship_put *p, char *text, size_t cap);

#endif
