/*
 * The puts of `sluice bench ship`: a process that offers an arena, and one that puts spans into it. Internal
 * to cli/. Each object belongs to one thread.
 */
#ifndef SL_BENCH_SHIP_PUT_H
#define SL_BENCH_SHIP_PUT_H

#include "kvstore/arena.h"
#include "prefill/pieces.h"
#include "transport/transport.h"

/* What the one who puts must know of the other's arena; why is not empty when it could not be offered. */
typedef struct sl_bench_ship_target {
    char address[SL_TP_ADDRESS_MAX];
    uint8_t key[SL_TP_RKEY_MAX];
    size_t key_bytes;
    uint64_t base;
    char why[200];
} sl_bench_ship_target;

/* Offers the arena. NULL when it cannot be, then out->why says so. tls: UCX_TLS or NULL. */
sl_transport *sl_bench_ship_target_open(sl_arena *a, const char *tls, sl_bench_ship_target *out);
/* Until the descriptor is at its end. Destroys tp, which may be NULL. */
void sl_bench_ship_target_serve(sl_transport *tp, int until);

typedef struct sl_bench_ship_put sl_bench_ship_put;

sl_status sl_bench_ship_put_open(const sl_bench_ship_target *t, const char *tls, sl_bench_ship_put **out,
                                 sl_err *err);
void sl_bench_ship_put_close(sl_bench_ship_put *p);
sl_transport *sl_bench_ship_put_transport(sl_bench_ship_put *p);
/* Waits while too many puts are in flight. */
sl_status sl_bench_ship_put_post(sl_bench_ship_put *p, const sl_span *s, sl_tp_mem *mem, sl_err *err);
/* Waits until all posted bytes are in the other process's memory. */
sl_status sl_bench_ship_put_flush(sl_bench_ship_put *p, sl_err *err);
/* Lanes of the connection, for the head of the table. */
void sl_bench_ship_put_describe(const sl_bench_ship_put *p, char *text, size_t cap);

#endif
