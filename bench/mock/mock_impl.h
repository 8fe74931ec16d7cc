/*
 * What the files of the mock worker share: its state, and the functions that they call of each other. send.c sends messages,
 * decode.c drives the requests of a decode worker, jobs.c has those of a prefill worker, mock.c handles received messages and
 * implements mock.h. One thread.
 */
#ifndef SL_BENCH_MOCK_MOCK_IMPL_H
#define SL_BENCH_MOCK_MOCK_IMPL_H

#include "base/msg_batch.h"
#include "model/sampler.h"
#include "router/core/keyset.h"
#include "bench/mock/mock.h"
#include "decode/core/admission.h"
#include "decode/core/effects.h"

typedef enum { JOB_PREFILL, JOB_COMMITTING } job_state;

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

/* A prompt that a prefill worker computes. */
typedef struct job {
    struct job *next;
    uint64_t rid;
    uint32_t attempt;
    job_state state;
    uint64_t ticket, due_ns;
    int32_t *tokens;
    size_t n, n_prompt;
    uint32_t matched_pages;
    char decode_addr[128];
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
    job *jobs;    /* role prefill */
    sl_core core; /* of the other roles */
    sl_msg_batch gathered;
    bool gathers;
    uint64_t clock; /* of the host */
    bool stepping;  /* a token comes from a step, not from COMMIT */
    sl_keyset *prefix;
    outbuf *out;
    uint64_t beat_ns, epoch, kv_sequence;
    uint32_t retracted;
};

/* send.c: the knobs decide whether a message to the router is sent once, twice or never. */
/* Frees the buffer of a message that is sent or will never be sent. */
void sl_mock_sent(void *cookie, sl_status st);
void sl_mock_send(sl_mock *m, sl_tp_ep *ep, const sl_msg *msg);
void sl_mock_send_router(sl_mock *m, const sl_msg *msg);
/* on: what the router is told from now on is one message, which is sent when it is off again. */
void sl_mock_gather(sl_mock *m, bool on);
void sl_mock_send_hello(sl_mock *m);
void sl_mock_send_load(sl_mock *m);
void sl_mock_send_id(sl_mock *m, sl_msg_type type, uint64_t rid, uint32_t attempt);
void sl_mock_send_failed(sl_mock *m, uint64_t rid, uint32_t attempt, sl_status st, bool retryable);

/* decode.c */
sl_status sl_mock_tickets_open(sl_mock *m, sl_err *err);
void sl_mock_reserve(sl_mock *m, const sl_msg_reserve *r);
void sl_mock_committed(sl_mock *m, const sl_msg_commit *c);
void sl_mock_aborted(sl_mock *m, const sl_msg_abort *a);
void sl_mock_drained(sl_mock *m, const sl_msg_id *id);
/* Does what is due. */
void sl_mock_run_tickets(sl_mock *m, uint64_t now);
uint64_t sl_mock_tickets_due(const sl_mock *m);
void sl_mock_tickets_load(const sl_mock *m, sl_msg_load *out);

/* jobs.c */
void sl_mock_prefill(sl_mock *m, const sl_msg_prefill *p);
/* False: there is no such job. */
bool sl_mock_abort_job(sl_mock *m, uint64_t rid, uint32_t attempt);
void sl_mock_end_job(sl_mock *m, job *j);
/* The connection to a decode worker is there, or will not be: jobs that wait for it go on, or fail. */
void sl_mock_peer_changed(sl_mock *m, const peer *p);
void sl_mock_run_jobs(sl_mock *m, uint64_t now);

#endif
