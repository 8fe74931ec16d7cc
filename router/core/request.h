/*
 * One request: a prompt, the tokens produced so far, and its state between the client and the workers.
 *
 * The state machine is a step function. sl_request_step() takes a request and an event, changes only the request, and
 * returns a short list of effects. It sends nothing, calls no sink and looks up no member; sl_request_env contains what
 * it must know about the router. effects.c carries the effects out.
 *
 *             QUEUED        RESERVING       PREFILLING      DECODING
 * PLACED      -> RESERVING
 * RESERVED                  -> PREFILLING
 * NO_ROOM                   -> QUEUED
 * PREFILLED                                 PREFILLING      DECODING
 * SCORES                                    PREFILLING
 * TOKENS                                    -> DECODING *%  DECODING *%
 * DONE                                      -> FINISHED     -> FINISHED
 * RETRACTED                                 -> QUEUED *     -> QUEUED *
 * FAILED                    retry $         retry $         retry $
 * LOST                      retry           retry           retry
 * STALLED                   retry           retry           retry
 * END         -> FAILED     -> FAILED       -> FAILED       -> FAILED
 *
 *   retry   -> QUEUED, or -> FAILED when router.retries is used up *; LOST while it ran alone -> FAILED
 *   $       -> FAILED when the worker says that the failure is final
 *   %       -> FAILED when a token that must be repeated differs from the one that was sent
 *   *       -> FINISHED when the stream is complete: a stop string or stop token matched, or all tokens are there
 *   An event in a state without an entry is dropped. RESERVED, SCORES, TOKENS and DONE that contradict what the request
 *   holds are a failure of the worker: retry. LOST of a prefill worker that has finished changes nothing.
 *
 * Attempts: every PLACED starts a new one (from 1); messages of workers contain its number. Within an attempt states
 * only move forward. When an attempt is left before its end, every worker that has not ended it is told: ABORT to the
 * decode worker, and to the prefill worker while it may still write. The decode worker keeps the landing pages until
 * it is told DRAINED. The router relays DRAINED when the prefill worker sends it; when no writer was started, or the writer
 * has finished, the router sends DRAINED of its own. For a writer that died there is no DRAINED: ABORT carries SL_ERR_PEER,
 * and the decode worker closes its own endpoint first.
 *
 * A query of death: DEATHS_ALONE workers of one role, one after the other, died while they computed the request. So it
 * is suspected of killing them, and so are the requests that were there with it. A suspect runs alone on its workers;
 * if one of that role dies again, the request is refused with INTERNAL and its id in the log. A request that gets
 * PROVEN_TOKENS past the place where the last worker died is not suspected any more: streams are deterministic, so the
 * same computation was repeated without harm.
 *
 * Recovery keeps prompt and produced tokens, so the next attempt continues at the same position with the same random
 * numbers. Tokens of TOKENS are compared with those already sent: a repeated or lost message can neither change a
 * stream nor leave a hole in it. After damage on the decode worker the next attempt starts before the tokens that may
 * be wrong, and these are compared as well; when one differs, the request ends with DATA_LOSS (repeat.c).
 *
 * Threads: the loop's thread only. Ownership: a request belongs to its group (group.c).
 */
#ifndef SL_ROUTER_CORE_REQUEST_H
#define SL_ROUTER_CORE_REQUEST_H

#include "base/strbuf.h"
#include "router/core.h"
#include "router/core/share.h"

typedef enum {
    SL_REQUEST_QUEUED,
    SL_REQUEST_RESERVING,
    SL_REQUEST_PREFILLING,
    SL_REQUEST_DECODING,
    SL_REQUEST_FINISHED,
    SL_REQUEST_FAILED,
} sl_request_state;
const char *sl_request_state_name(sl_request_state s);

/* Whether the attempt's prefill worker may write into the landing pages. */
typedef enum { SL_WRITER_NONE, SL_WRITER_ACTIVE, SL_WRITER_DONE } sl_writer;

/* Tokens to text: streaming detokenizer, then stop strings with hold-back (output.c). */
typedef struct sl_request_text {
    sl_detok detok;
    sl_stop *stop; /* NULL without stop strings */
    char *stop_names[SL_STOP_MAX];
    size_t n_stops;
    bool keep_special, none; /* none: no text is made */
    const char *matched;     /* stop string that ended the text, or NULL */
} sl_request_text;

typedef struct sl_request_list {
    struct sl_request *head, *tail;
} sl_request_list;

/* The page keys of its tokens (sl_request_update_keys()). */
typedef struct sl_request_keys {
    sl_share_domain domain; /* who shares its pages; constant, so attempts that start again find their own */
    sl_key *v;              /* of full pages; the first n are valid for the seed */
    size_t n, cap;
    sl_key fingerprint, seed; /* the seed of the domain for workers of this fingerprint */
} sl_request_keys;

/* The workers of this attempt, and what it is to them. PLACED sets it. */
typedef struct sl_request_attempt {
    uint32_t n;               /* attempts so far, this one included */
    uint32_t prefill, decode; /* member ids, 0 none */
    uint32_t source,
        source_pages; /* the member from which the decode worker may fetch leading pages, 0 none */
    uint64_t ticket;
    sl_writer writer;
    uint64_t placed_tokens;  /* tokens that it added to the account of the prefill member */
    uint64_t placed_context; /* the same of the decode member */
    uint64_t placed_ns;
} sl_request_attempt;

/* Pages that are loaded while it waits (prefetch.c). */
typedef struct sl_request_prefetch {
    uint32_t decode;  /* member to which it is announced, 0 none */
    uint32_t prefill; /* member that fetches its pages while they are loaded, 0 none */
    bool considered;  /* in this attempt */
} sl_request_prefetch;

/* Members that are set aside for it when no worker has room (aside.c). */
typedef struct sl_request_aside {
    uint32_t prefill, decode; /* 0 none */
    uint64_t since_ns;        /* the clock begins again when pages come back there */
    uint32_t pages;           /* the most pages that were free there since then */
    uint64_t refused_at;      /* placements of the router, counted from 1, at its first NO_ROOM; 0 none */
} sl_request_aside;

/* Workers that died while they computed it. */
typedef struct sl_request_deaths {
    uint32_t n;  /* one after the other, of one role */
    bool decode; /* these were decode workers, else prefill workers */
    uint32_t at; /* number of tokens that it had produced at the last death */
    bool alone;  /* suspected of causing them: placed on workers that have no other request */
} sl_request_deaths;

typedef struct sl_request_times {
    uint64_t start_ns, first_token_ns, last_token_ns, deadline_ns;
    uint64_t stage_ns; /* of the last step forward */
    uint64_t not_before_ns;
    uint32_t backoff_ms;
} sl_request_times;

typedef struct sl_request {
    sl_group *group;
    struct sl_request *hash_next;
    struct sl_request *q_next, *q_prev; /* in the queue (queue.c) */
    struct sl_request_list *list;       /* the list in which it waits, or NULL */
    bool held; /* queued, but waits for the first prefill of the same prompt in its group */
    bool led;  /* its siblings are no longer held */
    uint32_t index;
    uint64_t rid;
    sl_request_state state;

    int32_t *tokens; /* prompt, then produced */
    size_t n_prompt, n_tokens, cap;
    /* tokens[n_tokens..n_repeat) were sent, but must be produced again (repeat.c); else smaller */
    size_t n_repeat;
    uint32_t n_scored; /* tokens 1 .. n_scored of the prompt have log-probabilities, which were sent */
    float *logprobs;   /* of the produced tokens, if the client asked for them; else NULL */
    sl_sampling sampling;
    sl_wr sampling_wire;

    sl_request_keys keys;
    sl_request_attempt attempt;
    sl_request_prefetch prefetch;
    sl_request_aside aside;
    sl_request_deaths deaths;
    sl_request_times times;
    uint32_t avoid_prefill, avoid_decode; /* members of the attempt that failed, 0 none */
    uint32_t retries, recoveries;

    sl_request_text text;
    int32_t matched_token; /* stop token that ended it, or -1 */
    /* of the prompt, in the first attempt that was prefilled: later ones find what it computed */
    uint32_t cached_tokens;
    bool cached_known; /* there was one; attempts that were refused pages do not count */
} sl_request;

/* ---- events ---- */

typedef enum {
    SL_EVENT_PLACED,    /* placed: the queue chose the members */
    SL_EVENT_RESERVED,  /* reserved: the decode worker has landing pages */
    SL_EVENT_NO_ROOM,   /* the decode worker has none: not a failure, wait for room there or elsewhere */
    SL_EVENT_PREFILLED, /* prefilled: committed and drained */
    SL_EVENT_SCORES,    /* tokens: of the prompt, with their log-probabilities */
    SL_EVENT_TOKENS,    /* tokens */
    SL_EVENT_DONE,      /* done */
    SL_EVENT_RETRACTED, /* retracted: the decode worker gave the request back, to make room or because of damage */
    SL_EVENT_FAILED,  /* failed: a worker says so */
    SL_EVENT_LOST,    /* lost: a worker of the attempt is gone */
    SL_EVENT_STALLED, /* no progress for router.stage_timeout_ms */
    SL_EVENT_END,     /* end: cancelled, past its deadline, refused */
    SL_EVENT_COUNT,
} sl_request_event_kind;

/* Pointers are borrowed until the effects of the step have been performed. */
typedef struct sl_request_event {
    sl_request_event_kind kind;
    uint64_t now_ns;
    union {
        struct {
            uint32_t prefill, decode;
            uint64_t tokens; /* that the prefill member will probably compute */
        } placed;
        const sl_msg_reserved *reserved;
        const sl_msg_prefilled *prefilled;
        const sl_msg_tokens *tokens;
        const sl_msg_done *done;
        const sl_msg_retracted *retracted;
        struct {
            bool by_decode; /* else by the prefill worker */
            bool retryable;
            sl_status status;
            const char *reason;
        } failed;
        struct {
            bool decode; /* else the prefill worker */
            bool died;   /* it did not leave by its own decision */
        } lost;
        struct {
            sl_status status;
            const char *reason;
        } end;
    };
} sl_request_event;

/* ---- effects ---- */

typedef enum {
    SL_EFFECT_RESERVE, /* send RESERVE; the members' accounts grow */
    SL_EFFECT_PREFILL, /* prefill: send PREFILL */
    SL_EFFECT_SETTLE,  /* the prompt is in the prefill member's cache, its account shrinks */
    SL_EFFECT_BLOCK,   /* block: the decode member gets no request until then, or until it reports room */
    SL_EFFECT_LEAVE,   /* leave: tell the workers of the attempt; the members' accounts shrink */
    SL_EFFECT_REQUEUE, /* to the front of the queue */
    SL_EFFECT_FOLLOW,  /* the siblings with the same prompt may be placed */
    SL_EFFECT_EMIT,    /* emit: tokens and text for the sink */
    SL_EFFECT_END,     /* end: the last output for the sink */
    SL_EFFECT_COUNT,
} sl_effect_kind;

/* The workers that must get ABORT when an attempt is left: those that have not ended it themselves. */
enum { SL_TELL_PREFILL = 1, SL_TELL_DECODE = 2 };

/* Contains copies of the attempt's values, because the request may be in another attempt when it is performed. */
typedef struct sl_effect {
    sl_effect_kind kind;
    sl_request *request;
    uint32_t attempt, prefill, decode;
    union {
        struct {
            const uint32_t *pages; /* borrowed from the event */
            size_t n_pages;
            uint32_t matched_pages;
        } landing; /* PREFILL */
        struct {
            unsigned tell;
            sl_status why;
            sl_writer writer;
            uint64_t placed_tokens;
        } leave;
        uint64_t placed_tokens; /* SETTLE */
        uint64_t until_ns;      /* BLOCK */
        struct {
            const sl_msg_token *tokens; /* borrowed from the event */
            size_t n_tokens;
            bool scores;              /* they are of the prompt */
            size_t text_at, text_len; /* in the env's text */
        } emit;
        struct {
            sl_finish finish;
            sl_status status;
            const char *reason; /* borrowed from the event, or static; may be NULL */
            size_t text_at, text_len;
        } end;
    };
} sl_effect;

enum { SL_STEP_EFFECTS = 8 };

typedef struct sl_step {
    sl_effect list[SL_STEP_EFFECTS];
    size_t n;
} sl_step;

/* What a step may know about the router, and its scratch memory. */
typedef struct sl_request_env {
    const sl_served_model *model;
    uint32_t vocab;         /* of the workers */
    uint32_t retries;       /* attempts after a failure */
    sl_router_stats *stats; /* counters only */
    sl_strbuf *text;        /* effects append the text they carry */
    char *piece;            /* scratch: sl_detok_bound() bytes */
} sl_request_env;

/* False: the event has no entry for the state, and nothing was changed. */
bool sl_request_step(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out);

/* Queries. */
/* Tokens that the next attempt starts from, without the prompt. */
uint32_t sl_request_produced(const sl_request *q);
uint32_t sl_request_sent(const sl_request *q); /* tokens that the client was sent */
bool sl_request_over(const sl_request *q);     /* FINISHED or FAILED */
uint32_t sl_request_remaining_ms(const sl_request *q, uint64_t now);
/* Brings the seed and the page keys up to the tokens, for workers with this fingerprint. */
sl_status sl_request_update_keys(sl_request *q, sl_key fingerprint);

/* output.c: tokens to text. */
sl_status sl_output_init(sl_request *q, const sl_request_spec *spec, sl_err *err);
void sl_output_free(sl_request *q);
/* Appends the text of t[0..n) to env->text. *used: how many tokens count (those after a stop do not). *stopped: a stop
 * string ended the text. */
sl_status sl_output_tokens(const sl_request_env *env, sl_request *q, const sl_msg_token *t, size_t n,
                           size_t *used, bool *stopped);
/* At the end of a stream: appends the text that was held back to env->text. */
void sl_output_flush(const sl_request_env *env, sl_request *q);

#endif
