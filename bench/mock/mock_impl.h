/*
 * What the files of the mock worker share: its state, its jobs, and the functions that they call of each other. send.c
 * sends messages, jobs.c runs the steps of jobs when they are due, mock.c handles received messages and implements
 * mock.h. One thread.
 */
#ifndef SL_BENCH_MOCK_MOCK_IMPL_H
#define SL_BENCH_MOCK_MOCK_IMPL_H

#include "model/sampler.h"
#include "router/core/keyset.h"
#include "bench/mock/mock.h"

typedef enum {
    JOB_RESERVING,
    JOB_LANDING,
    JOB_DECODING,
    JOB_PREFILL,
    JOB_COMMITTING,
    JOB_DRAINING
} job_state;

/* A message that the transport borrows until it is sent. */
typedef struct outbuf {
    struct outbuf *next, **pprev;
    uint8_t *data;
} outbuf;

typedef struct peer {
    struct peer *next;
    sl_tp_ep *ep;
    char addr[128];
    bool up;
} peer;

typedef struct job {
    struct job *next;
    uint64_t rid;
    uint32_t attempt;
    job_state state;
    uint64_t ticket, due_ns;
    int32_t *tokens;
    size_t n, cap, n_prompt;
    sl_sampling sampling;
    uint32_t pages, prefill_worker;
    char decode_addr[128];
    sl_key *keys;
    size_t n_keys;
} job;

struct sl_mock {
    sl_mock_opts o;
    sl_mock_knobs k;
    sl_mock_counts c;
    sl_transport *tp;
    sl_tp_ep *router;
    bool router_up;
    char address[SL_TP_ADDRESS_MAX];
    peer *peers;
    job *jobs;
    sl_keyset *prefix;
    outbuf *out;
    uint64_t beat_ns, next_ticket, epoch, kv_sequence;
    uint32_t retracted;
};

/* send.c: the knobs decide whether a message to the router is sent once, twice or never. */
/* Frees the buffer of a message that is sent or will never be sent. */
void sl_mock_sent(void *cookie, sl_status st);
void sl_mock_send(sl_mock *m, sl_tp_ep *ep, const sl_msg *msg);
void sl_mock_send_router(sl_mock *m, const sl_msg *msg);
void sl_mock_send_hello(sl_mock *m);
void sl_mock_send_load(sl_mock *m);
void sl_mock_send_id(sl_mock *m, sl_msg_type type, uint64_t rid, uint32_t attempt);
void sl_mock_send_failed(sl_mock *m, uint64_t rid, uint32_t attempt, sl_status st, bool retryable);

/* jobs.c */
job *sl_mock_find_job(sl_mock *m, uint64_t rid, uint32_t attempt);
job *sl_mock_new_job(sl_mock *m, uint64_t rid, uint32_t attempt, const int32_t *tokens, size_t n,
                     size_t n_prompt, sl_blob sampling, sl_key seed);
/* Appends a token to the job and sends it; the next token is due one step later. */
void sl_mock_take_token(sl_mock *m, job *j, int32_t id, uint64_t now);
/* Called after each token: ends the job if the token was its last one, and then returns true. */
bool sl_mock_finish_if_done(sl_mock *m, job *j);
void sl_mock_end_job(sl_mock *m, job *j);
/* Sends COMMIT to the decode worker of a prefilled prompt; connects first if necessary. */
void sl_mock_commit(sl_mock *m, job *j);
void sl_mock_run_due(sl_mock *m, uint64_t now);

#endif
