/*
 * The interface between collectives/comm.c and the implementations of collectives. Every backend that has
 * collectives has one const sl_comm_desc in the table of comm.c, by its name; its instance struct begins with an sl_comm.
 *
 * collectives/comm.c does what is the same for all: it checks options, parameters and what of the invitation is equal
 * on all ranks, answers collectives of 0 bytes, and refuses calls before
 * sl_comm_form(). Slots may rely on it. Threads and lifetime: as comm.h promises.
 */
#ifndef SL_COLLECTIVES_COMM_IMPL_H
#define SL_COLLECTIVES_COMM_IMPL_H

#include "collectives/comm.h"

typedef struct sl_comm_desc sl_comm_desc;
struct sl_comm_desc {
    const char *name; /* "shared memory", "sockets", "NCCL" */
    /* The implementation for ranks on several hosts (sl_comm_opts.sockets_at); NULL: this one is for both. */
    const sl_comm_desc *between_hosts;
    /* Fills `own` of the invitation. */
    sl_status (*found)(sl_backend *be, const sl_comm_opts *opts, uint8_t *own, sl_comm **out, sl_err *err);
    /* `refusal` is NULL, or why this rank does not fit: then the implementation tells the other ranks if it can, and
     * does not join (it returns SL_ERR_REFUSED and leaves err alone). */
    sl_status (*join)(sl_backend *be, const sl_comm_opts *opts, const uint8_t *own, const char *refusal,
                      sl_comm **out, sl_err *err);
    sl_status (*form)(sl_comm *c, sl_err *err);
    void (*destroy)(sl_comm *c);
    void (*abort)(sl_comm *c); /* any thread */
    sl_status (*state)(sl_comm *c, sl_err *err);
    sl_status (*barrier)(sl_comm *c, sl_err *err);
    sl_status (*all_gather)(sl_comm *c, const void *src, void *dst, size_t bytes, sl_err *err);
    /* NULL: an all_gather, and the wait for its end */
    sl_status (*agree)(sl_comm *c, const void *src, void *dst, size_t bytes, sl_err *err);
    sl_status (*broadcast)(sl_comm *c, void *buf, size_t bytes, int32_t root, sl_err *err);
    sl_status (*all_to_all)(sl_comm *c, const sl_comm_rows *rows, sl_err *err);
    /* NULL, both: there is no such memory */
    sl_status (*memory)(sl_comm *c, size_t bytes, void **out, sl_err *err);
    void *(*at)(const sl_comm *c, const void *own, int32_t rank);
    /* Version of the library that moves the bytes, which must be equal on all ranks: 0 if there is none. An error: it
     * cannot be loaded, or does not fit this build. */
    sl_status (*library)(uint32_t *version, sl_err *err);
};

extern const sl_comm_desc sl_comm_shared_memory; /* of the backend cpu: cpu/memory.c */
#ifdef SL_NCCL
extern const sl_comm_desc sl_comm_nccl; /* of the backend cuda: cuda/nccl.c */
#endif

#define SL_COMM_OWN_BYTES 256 /* of an invitation, for the implementation */

/* Base of every instance. found and join of the implementation leave it to collectives/comm.c. */
struct sl_comm {
    const sl_comm_desc *desc;
    sl_backend *be;
    sl_comm_opts opts;
    bool formed;
    int32_t lost; /* or -1 */
    sl_comm_stats stats;
    char describe[64];
    /* of sl_comm_all_to_all_begin(), where the backend has a side stream: rows are made, rows have arrived */
    sl_event *made, *arrived;
    bool open; /* begun on the side stream */
};

#endif
