/*
 * Mock worker: a test double that speaks base/msg.h as a prefill or a decode worker, without a model. Used by
 * the router's unit tests (over loopback), by `sluice bench router`, and by the client tests. It is not a
 * worker: no rows move, tokens come from a function of the tokens before them.
 *
 * It counts what a decode worker counts (tickets, pages, writers in flight), so that a test can ask
 * whether everything was given back; its prefill role really connects to the decode mock and sends COMMIT.
 * Because the default next token is a hash of the whole history, a router that resumes a stream with wrong
 * tokens gets another stream.
 *
 * Threads: create, step and destroy on one thread; knobs may be changed between steps.
 */
#ifndef SL_BENCH_MOCK_MOCK_H
#define SL_BENCH_MOCK_MOCK_H

#include "base/msg.h"
#include "transport/transport.h"

typedef struct sl_mock sl_mock;

typedef struct sl_mock_opts {
    const char *transport, *fabric, *router_address, *listen_host;
    const char *name, *model, *tag;
    sl_role role;
    sl_key fingerprint;
    const void *geometry; /* encoded (kvstore/arena.h); NULL: that of a small cache */
    uint64_t instance;    /* of the process; 0: random */
    size_t geometry_len;
    uint32_t version; /* 0 = this build's */
    uint32_t vocab, max_context, max_batch, total_pages;
    uint32_t heartbeat_ms;
    uint32_t reserve_us, prefill_us, step_us; /* duration of a reservation, a prefill, a decode step */
    int32_t token_lo, token_hi;               /* range of made-up tokens: lo <= id < hi */
    int32_t eos;           /* -1 none; produced when the history's hash says so (1 in eos_every) */
    uint32_t eos_every;    /* 0 never */
    const int32_t *script; /* fixed output instead, by output index, repeated */
    size_t n_script;
} sl_mock_opts;

/* Faults and delays a test may set at any time. Counters count down. */
typedef struct sl_mock_knobs {
    bool silent;         /* sends nothing at all, not even heartbeats */
    bool hold;           /* takes requests and never answers them; heartbeats go on */
    bool hold_commit;    /* prefill: does the work, never commits */
    uint32_t full;       /* decode: number of RESERVEs still to be answered with FAILED (exhausted) */
    uint32_t fail;       /* number of requests still to be answered with FAILED, retryable */
    uint32_t fail_final; /* the same, not retryable */
    uint32_t retract_at; /* decode: sends RETRACTED once, after this number of output tokens */
    uint32_t die_at;     /* decode: falls silent after this number of output tokens in total */
    bool duplicate;      /* TOKENS, RESERVED, PREFILLED, DONE are sent twice */
    bool stale; /* each TOKENS is followed by one of the attempt before, and one for an unknown request */
    uint32_t skip_token;    /* decode: the token with this number of a request is never sent */
    bool wrong_count;       /* decode: DONE tells one token too many, once */
    bool draining;          /* LOAD says draining */
    uint32_t engine_age_ms; /* LOAD says that the engine made its last turn this long ago */
} sl_mock_knobs;

typedef struct sl_mock_counts {
    uint64_t received[SL_MSG_TYPE_COUNT];
    uint32_t jobs;       /* requests held now */
    uint32_t pages_used; /* by requests held, and by aborted ones whose writer has not drained */
    uint32_t waiting_drain;
    uint32_t commits_stale;
    uint64_t tokens;
    bool welcome, refused, refused_for_now, dead; /* refused_for_now: it may try again */
    uint32_t worker_id;
    char refuse_reason[400];
} sl_mock_counts;

void sl_mock_opts_default(sl_mock_opts *o);
/* Listens, and starts connecting to the router. */
sl_status sl_mock_create(const sl_mock_opts *o, sl_mock **out, sl_err *err);
/* Does everything that is due; returns the time until something is due next, in ms (bounded by the
 * heartbeat). */
int sl_mock_step(sl_mock *m);
int sl_mock_fd(const sl_mock *m); /* readable when a step is due before that; armed by the step */
/* Steps and sleeps until *stop or the mock is dead. */
void sl_mock_run(sl_mock *m, const volatile int *stop);
sl_mock_knobs *sl_mock_knob(sl_mock *m);
const sl_mock_counts *sl_mock_count(const sl_mock *m);
/* As if the process was killed: no goodbye. Later steps do nothing. */
void sl_mock_kill(sl_mock *m);
void sl_mock_destroy(sl_mock *m);

/* A byte-level tokenizer without merges: ids 0..255 are the bytes, 256 is <|begin|>, 257 <|end|> (special).
 */
struct sl_tokenizer;
sl_status sl_mock_tokenizer(struct sl_tokenizer **out, sl_err *err);

/* The token the mocks choose after this history: what a test compares a stream with. */
int32_t sl_mock_next_token(const sl_mock_opts *o, const int32_t *tokens, size_t n, size_t n_prompt);

#endif
