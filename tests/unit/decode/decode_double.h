/*
 * A decode worker without threads, for tests of tickets and of the batch. The test plays the parts of the router, the
 * writer, the checker and the clock, and calls the functions that the engine thread would call.
 *
 * Test doubles are the worker core (messages that the worker sends are kept in said[], fences are counted), the checker
 * thread (jobs stay in its mailbox until the test answers them) and the runner (tests/unit/worker/fake_runner.h).
 * Tickets, batch, residency, store and sampler are the real ones. A process can have one such worker at a time, because
 * the functions of the core find it in a global variable.
 */
#ifndef SL_TEST_DECODE_DOUBLE_H
#define SL_TEST_DECODE_DOUBLE_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "decode/decode_impl.h"
#include "decode/run/run_impl.h"
#include "tests/unit/worker/fake_runner.h"

enum {
    DD_VOCAB = 31,
    DD_WRITER = 5,
    DD_SAID = 512,
    DD_LAYERS = 2,
    DD_ROUTER = 1,
    DD_READER = 6,
    DD_LEASED = 8
};

/* A message that the worker has sent: the fields that tests look at. */
typedef struct dd_said {
    sl_msg_type type;
    uint32_t router; /* the session that was told; 0: a peer was */
    uint64_t rid, ticket;
    uint32_t attempt, matched, first_index, produced;
    sl_status status;
    bool retryable;
    uint8_t finish;
    size_t n;                 /* pages of RESERVED and LEASE, checksums of PAGES_CRC */
    int32_t pages[DD_LEASED]; /* of LEASE, of which `matched` is the load of the owner and rid the lease */
} dd_said;

typedef struct dd_opts {
    int pages, max_batch, max_waiting, max_seqs, max_context;
    bool no_verify;
    bool tier;      /* a memory tier below the store, written through */
    bool local;     /* it says that its pages survive the process */
    int load_chunk; /* pages of a chunk of a load; 0: the default */
    int chunk, prompts,
        stall_ms;   /* role both: prefill.chunk_tokens, prefill.max_requests, both.max_stall_ms; 0: decode */
    int tier_pages; /* its capacity; 0: more than a test stores */
    bool overlaps;  /* steps are in flight */
    int drafts;     /* as draft_tokens of sl_run_opts; not 0: the runner drafts */
    bool noise;     /* what is always wrong */
    uint64_t row_bytes, row_wait_ns; /* as of the fake runner */
    /* kvstore.verify; off by default, then no job but those of COMMIT and PAGES_ASK is posted */
    sl_cfg_verify verify;
} dd_opts;

typedef struct decode_double {
    sl_decode *d;
    sl_arena *arena;
    fake_runner *fake;
    sl_runner runner;
    dd_said said[DD_SAID];
    int batches;      /* calls with messages that were gathered */
    uint32_t jobs;    /* of the checker, when the last of them was made */
    int available;    /* pages of the store at that time */
    sl_stamp since;   /* of the last one that was sent as a batch */
    int n_said, seen; /* the test has not yet read said[seen..n_said) */
    int n_joined;     /* how often requests joined the batch, which traces are told */
    int fences;
    sl_writer fenced; /* of the last fence */
    int reader_fences;
    uint32_t fenced_reader; /* connection of the last fence of a reader */
    uint32_t router;        /* the session in which messages come from now on: DD_ROUTER at first */
    sl_status fail_step, fail_submit, fail_open; /* of the next call, once */
    sl_blob hidden;                              /* of the COMMITs that follow */
    int32_t bad_page; /* of which the next step fetches damaged rows, plus 1; 0: of none */
    /* the last answers to CACHE_ASK; their blobs point into `listed` and `damaged` */
    sl_msg_cache_job job;
    sl_msg_cache_pages list;
    uint8_t listed[SL_CACHE_PAGES_MAX * SL_CACHE_PAGE_BYTES];
    sl_key damaged[SL_CACHE_DAMAGED_MAX];
} decode_double;

dd_opts dd_defaults(void);
void dd_open(decode_double *x, const dd_opts *o);
/* Every page must be free or cached, no ticket left. */
void dd_close(decode_double *x);

/* The next message said must be of this type, about (rid, 1), and to x->router if it is said to a router. */
const dd_said *dd_expect(decode_double *x, sl_msg_type type, uint64_t rid);
void dd_silent(const decode_double *x);
/* Of x->router; NULL: there is none, or it is gone. */
sl_ticket *dd_ticket(const decode_double *x, uint64_t rid);
/* Its pages. */
const sl_lease *dd_lease(const decode_double *x, uint64_t rid);
int dd_running(const decode_double *x);
/* What requests have counted. */
sl_run_stats dd_counts(const decode_double *x);
int dd_tickets(const decode_double *x);
/* Pages that are neither free nor cached. */
int dd_held(const decode_double *x);

/* Messages of the router; attempt 1. The prompt is a function of seed. */
static const sl_key dd_seed = {3, 3}; /* of the page keys of every request */
void dd_reserve(decode_double *x, uint64_t rid, int n_tokens, int max_tokens, int seed, uint32_t deadline_ms);
/* The same without a prefill worker: the worker computes the prompt itself. */
void dd_reserve_own(decode_double *x, uint64_t rid, int n_tokens, int max_tokens, int seed);
/* The same prompt as dd_reserve()'s. */
void dd_prefetch(decode_double *x, uint64_t rid, int n_tokens, int seed);
void dd_abort(decode_double *x, uint64_t rid, sl_status why);
void dd_drained_relayed(decode_double *x, uint64_t rid);
/* Messages of a writer. */
void dd_drained(decode_double *x, uint64_t rid, uint32_t writer);
void dd_commit(decode_double *x, uint64_t rid, uint32_t writer, int n_tokens_off);
void dd_pages_ask(decode_double *x, uint64_t rid, uint32_t first, uint32_t count);
/* Messages of a reader: pages [first, first + n) of the prompt of this seed, in a domain. */
void dd_lease_ask(decode_double *x, uint64_t id, uint32_t ep_serial, sl_key domain, int seed, int first,
                  int n, uint32_t ms);
/* The same of a writer, and the answer may wait for a load. */
void dd_lease_wait(decode_double *x, uint64_t id, uint32_t ep_serial, int seed, int first, int n);
void dd_lease_end(decode_double *x, uint64_t id, uint32_t ep_serial);
void dd_lease_damaged(decode_double *x, uint64_t id, uint32_t ep_serial, uint32_t first, uint32_t count);
/* CACHE_ASK of the router; the answer is in x->job or x->list, and in said[] with the number of the question as rid. */
void dd_cache_ask(decode_double *x, const sl_msg_cache_ask *q);
/* An answer of the checker. Takes k. */
void dd_answer(decode_double *x, sl_check *k);
/* The checker's answer to its oldest job, with `bad` wrong checksums. False: it has no job. */
bool dd_checked(decode_double *x, size_t bad);

/* The checker's real work on its oldest job, and the answer. False: it has none. */
bool dd_check_one(decode_double *x);
/* The same for all jobs that wait; how many. */
int dd_check(decode_double *x);

/* One turn of the pages at this time; when the next one is due. */
uint64_t dd_tick(decode_double *x, uint64_t now_ns);
sl_pages_stats dd_stats(const decode_double *x);
/* Damaged pages that were found. */
uint64_t dd_damaged(const decode_double *x);
/* Mail of the transport thread. */
void dd_reader_gone(decode_double *x, uint32_t ep_serial);
void dd_router_up(decode_double *x, uint32_t session);
void dd_router_down(decode_double *x, uint32_t session);
/* KV_RESYNC. */
void dd_resync(decode_double *x, uint32_t session);

/* Turns of the cascade and of the checker until nothing waits and nothing is in flight. */
void dd_settle(decode_double *x);

/* RESERVE, COMMIT and checked: the ticket waits for a slot, and its first token has been said. */
void dd_verified(decode_double *x, uint64_t rid, int n_tokens, int max_tokens, int seed);
/* Admits and computes one step. */
sl_status dd_step(decode_double *x, bool *worked);

#endif
