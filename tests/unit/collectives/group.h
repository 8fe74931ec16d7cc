/*
 * Runs a group of ranks as processes: forks them, carries the invitation between them through shared memory, and
 * collects what each says. A rank that has not ended after the limit has hung: it is killed, and the run fails.
 *
 * The parent opens no backend, so that ranks on GPUs can be forked. Threads: one, in the parent and in each rank.
 */
#ifndef SL_TESTS_KERNELS_COMM_GROUP_H
#define SL_TESTS_KERNELS_COMM_GROUP_H

#include <stdatomic.h>

#include "collectives/comm.h"

enum { CG_OK = 0, CG_FAILED = 1, CG_SKIPPED = 77 };

/* Shared by the parent and all ranks. */
typedef struct cg_shared {
    sl_comm_invite invite[2];         /* of the first and of a second group */
    _Atomic uint32_t invited[2];      /* the invitation is there */
    _Atomic uint32_t step[64];        /* for cases: how far a rank is */
    _Atomic int32_t gave_up;          /* ranks that have noticed the stop of the others */
    char why[SL_COMM_RANKS_MAX][512]; /* why a rank failed or was skipped */
} cg_shared;

typedef struct cg_rank {
    const char *backend;
    int32_t rank, ranks, group; /* group: 0, or 1 for a second group after the first one broke */
    sl_backend *be;
    sl_comm *c;
    sl_comm_opts opts;
    cg_shared *shared;
    bool failed;
} cg_rank;

/* What a rank runs. */
typedef void (*cg_fn)(cg_rank *r, const void *arg);

typedef struct cg_run {
    const char *backend;
    int32_t ranks;
    uint32_t deadline_ms, limit_ms; /* of the group; of the whole run */
    size_t window_bytes;
    bool library_only;
    const char *sockets_at; /* or NULL */
    uint64_t killed,
        stopped; /* bit r: rank r ends by SIGKILL; is stopped by itself and continued by the parent, when
                                 all others have called cg_gave_up(), after `stop_ms` at the latest */
    uint32_t stop_ms;
    bool unformed; /* fn founds or joins itself */
} cg_run;

/* CG_OK, CG_FAILED or CG_SKIPPED, with the reason in why. */
int cg_go(const cg_run *run, cg_fn fn, const void *arg, char *why, size_t cap);

/* Inside a rank: */
void cg_fail(cg_rank *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* This rank has noticed that another one stopped. */
void cg_gave_up(cg_rank *r);
/* Founds or joins the group and forms it; fails on an error. */
bool cg_form(cg_rank *r);
/* Founds or joins without forming. */
sl_status cg_enter(cg_rank *r, sl_err *err);
/* Fails unless st is SL_OK. */
bool cg_ok(cg_rank *r, sl_status st, const sl_err *err, const char *what);
/* Device memory with a copy of bytes at host (NULL: 0xa5), and reading it. */
void *cg_mem(cg_rank *r, const void *host, size_t bytes);
void cg_put(cg_rank *r, void *dst, const void *host, size_t bytes);
void cg_get(cg_rank *r, void *host, const void *src, size_t bytes);
void cg_free(cg_rank *r, void *p);
/* This rank gets the signal in its exchange-th sl_comm_all_to_all() from now (1: the next), when the other ranks wait there
 * for it. Once in a process. */
void cg_lose(cg_rank *r, int32_t exchange, int32_t sig);
uint32_t cg_hash(uint64_t a, uint64_t b);

#endif
