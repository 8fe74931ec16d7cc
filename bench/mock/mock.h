/*
 * Mock worker: a test double that exchanges the messages of base/msg.h as a prefill or decode worker does, without a
 * model. The router's unit tests (over loopback), `sluice bench router` and the tests with clients use it. It transfers
 * no rows, and computes each token as a function of the tokens before it.
 *
 * It counts what a decode worker counts (tickets, pages, writers in flight), so that a test can check that everything
 * was given back. In the prefill role it connects to the decode mock and sends COMMIT. By default the next token is a
 * hash of the whole history; a router that resumes a stream with wrong tokens therefore gets a different stream.
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
    uint32_t bits;
    const void *geometry;        /* encoded (kvstore/arena.h); NULL: that of a small cache */
    uint64_t instance;           /* instance number of the process; 0: random */
    uint32_t group, rank, ranks; /* as in HELLO */
    size_t geometry_len;
    uint32_t version; /* 0: the version of this build */
    uint32_t vocab, max_context, max_batch, total_pages;
    uint32_t heartbeat_ms;
    uint64_t clock; /* as whose clock it says when its steps end; 0: as that of this host */
    uint32_t reserve_us, prefill_us, step_us; /* duration of a reservation, a prefill, a decode step */
    int32_t token_lo, token_hi;               /* range of the computed tokens: lo <= id < hi */
    int32_t eos;                              /* end token; -1: none */
    uint32_t eos_every;    /* the hash selects the end token with a probability of 1 in eos_every; 0: never */
    const int32_t *script; /* if not NULL: the output tokens, repeated, instead of the computed ones */
    size_t n_script;
} sl_mock_opts;

/* Faults and delays that a test may set at any time. full, fail and fail_final count down to 0. */
typedef struct sl_mock_knobs {
    bool silent;      /* sends no message, not even heartbeats */
    bool hold;        /* accepts requests and never answers them; heartbeats are still sent */
    bool hold_commit; /* prefill: computes, but never sends COMMIT */
    uint32_t loading; /* decode: RESERVE is followed by LOADING of this number of pages, twice; 0: by none */
    uint32_t leaked;  /* decode: pages that no request has and that never come back */
    uint32_t full;    /* decode: number of next RESERVEs that are answered with FAILED (exhausted) */
    uint32_t fail;    /* number of next requests that are answered with FAILED, retryable */
    uint32_t fail_final; /* the same, not retryable */
    uint32_t retract_at; /* decode: sends RETRACTED once, after this number of output tokens */
    /* decode, with retract_at: RETRACTED says that rows were damaged after damage_at output tokens; 0: none were. wrong_at:
     * this output token, counted from 1, is wrong until then, and unlikely if off_logprob says so; 0: none is. */
    uint32_t damage_at, wrong_at;
    bool off_logprob;
    uint32_t die_at; /* decode: becomes silent after this number of output tokens in total */
    bool duplicate;  /* TOKENS, RESERVED, PREFILLED, DONE are sent twice */
    bool stale;      /* after each TOKENS, sends one of the previous attempt and one of an unknown request */
    uint32_t skip_token;    /* decode: the token with this number, counted from 1, is never sent */
    bool wrong_count;       /* decode: the next DONE reports one token too many */
    bool draining;          /* LOAD reports that the worker is draining */
    bool group_broken;      /* LOAD reports that the group of this rank is broken */
    uint32_t engine_age_ms; /* LOAD reports this time since the engine's last iteration */
    uint32_t checker_age_ms, copier_age_ms; /* and of these threads */
    uint64_t disk_rate, peer_rate;          /* LOAD reports these speeds; 0: none was measured */
    uint32_t prefill_rate;
} sl_mock_knobs;

typedef struct sl_mock_counts {
    uint64_t received[SL_MSG_TYPE_COUNT];
    uint32_t jobs;       /* requests that the mock has now */
    uint32_t pages_used; /* pages of these requests; an aborted one keeps them until its writer has drained */
    uint32_t waiting_drain;
    uint32_t commits_stale;
    uint64_t tokens;
    sl_msg_source source; /* of the last RESERVE or PREFETCH */
    uint64_t tenant;
    bool welcome, refused, refused_for_now, dead; /* refused_for_now: joining may be tried again */
    uint32_t worker_id;
    char refuse_reason[400];
} sl_mock_counts;

void sl_mock_opts_default(sl_mock_opts *o);
/* Begins to listen and to connect to the router. */
sl_status sl_mock_create(const sl_mock_opts *o, sl_mock **out, sl_err *err);
/* Does all work that is due. Returns the time in ms until the next work is due; the heartbeat bounds it. */
int sl_mock_step(sl_mock *m);
int sl_mock_fd(const sl_mock *m); /* becomes readable when a step is needed earlier; each step arms it */
/* Steps and sleeps until *stop is not 0 or the mock is dead. */
void sl_mock_run(sl_mock *m, const volatile int *stop);
sl_mock_knobs *sl_mock_knob(sl_mock *m);
const sl_mock_counts *sl_mock_count(const sl_mock *m);
/* Behaves as if the process was killed: sends nothing more, closes nothing. Later steps do nothing. */
void sl_mock_kill(sl_mock *m);
void sl_mock_destroy(sl_mock *m);

/* A byte-level tokenizer without merges: ids 0 to 255 are the bytes; 256 is <|begin|> and 257 <|end|>, both special. */
struct sl_tokenizer;
sl_status sl_mock_tokenizer(struct sl_tokenizer **out, sl_err *err);

/* The token that a mock with these options chooses after this history; tests compare streams with it. */
int32_t sl_mock_next_token(const sl_mock_opts *o, const int32_t *tokens, size_t n, size_t n_prompt);

#endif
