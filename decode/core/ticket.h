/*
 * A ticket: one attempt of a request at a decode worker, from RESERVE until its pages are neither read nor written any more.
 *
 * The state machine is a step function. sl_ticket_step() takes a ticket and an event, changes only the ticket, and
 * returns a short list of effects. It sends nothing, touches no page and calls no other code; effects.c carries the effects out
 * through a table of functions, the world. So the worker (decode/run/), the simulator, the mock worker and the tests drive
 * the same machine.
 *
 *             ASKED    LOADING  LANDING   PROMPT    CHECKING   WAITING   RUNNING   CONFIRMING  QUARANTINE  ENDING
 * LOAD        LOADING  LOADING
 * GRANTED     lands    lands              PROMPT
 * REFUSED     gone !   gone !
 * COMMIT                        checks                                                         over
 * PAGES_ASK                     READ
 * STEP                                    busy                           busy
 * STEPPED                                 PROMPT                         RUNNING   CONFIRMING              free
 * SAVED                                                                  STATES    STATES                  STATES
 * COMPUTED                                checks
 * CHECKED                       LANDING   PROMPT    WAITING *  WAITING   RUNNING   over !      QUARANTINE  free
 * JOINED                                  PROMPT               RUNNING
 * TOKENS                                                                 RUNNING *
 * PATROL                                                                 VERIFY
 * RETRACT                                 over !               over !    over !
 * DAMAGED                       end !     over !    over !     over !    over !    over !
 * FAILED                        end !     over !    over !     over !    over !    over !
 * UNDONE                        end !     over !    over !     over !    over !    over !      QUARANTINE  free
 * ABORT                gone !   end       over !    over !     over !    confirms  over !      sooner
 * DRAINED                       LANDING                                                        over !
 * FENCED                                                                                       over !
 * LOST                 gone     end       over      over       over      over      over        sooner
 * DEADLINE                      end !                                                          FENCE
 *
 *   lands   -> LANDING, or -> PROMPT when no prefill worker is named: the worker computes the prompt itself. GRANTED again,
 *           before that has begun: it has other pages, more of which match
 *   checks  -> CHECKING until two answers are there: what arrived is right, and the matched pages are undamaged. Then -> WAITING *,
 *           at once when there is nothing to check, and the first token is told
 *   *       -> over when the stream is complete; -> CONFIRMING when it has full pages whose checksums are kept
 *   confirms   -> CONFIRMING if the client ended it and it has pages that were not published, else -> over !
 *   end     -> QUARANTINE, unless the writer has said that it writes no more: then over
 *   over    its sequence is closed as soon as no step computes it, and its pages are released as soon as in addition no job
 *           of the checker reads them. Until then it is ENDING, then GONE
 *   free    one of these has come back; after the last one -> GONE
 *   sooner  its writer's connection is closed soon, or at once
 *   !       the router or the writer is told
 *   An event in a state without an entry is dropped: sl_ticket_step() returns false. So the caller need not look whether a ticket
 *   ended while a step computed it; but STEPPED must come back for every STEP.
 *
 * Clean rounds. A page that is damaged while a request runs makes every row wrong that is computed from it, and these rows
 * get right checksums. So pages that are computed here are published only after a clean round: a verification of all full
 * pages that the request had, which began when the page was full. Whoever takes pages from the prefix tree (a storage tier,
 * another worker, the next request) therefore never gets such rows. `safe` is the number of tokens that the request had
 * when its last clean round began; RETRACTED carries it after damage, and the router repeats what follows. The patrol makes
 * the rounds while the request runs. At its end, in CONFIRMING, the last round is made before DONE is told, so that no
 * stream ends with tokens that no round has covered. Rows of the last page, which is not full, have no checksum.
 *
 * Quarantine. The pages of a ticket whose writer may still write are never free: only DRAINED of the writer, its COMMIT
 * (it flushes before it sends COMMIT) or a fence (its connection is closed by force) end the quarantine. When the router has
 * ended the attempt because the writer failed (ABORT with SL_ERR_PEER), the DRAINED that it sends is an assumption. Such a
 * DRAINED does not count while the writer has a connection here; the connection is closed instead. A deadline alone frees
 * nothing: at due_ns the effect FENCE asks for the fence, and asks again while there is no answer.
 *
 * Deadlines: LANDING has that of the request, QUARANTINE that of the fence. CHECKING needs none, because the checker always
 * answers. The other states have none here: the router watches them.
 *
 * Ownership: a ticket belongs to its table (tickets.h), which frees it at the end of a turn when it is GONE. Others know its number.
 * Threads: one.
 */
#ifndef SL_DECODE_CORE_TICKET_H
#define SL_DECODE_CORE_TICKET_H

#include "base/msg.h"
#include "model/sampler.h"

typedef enum {
    SL_TICKET_ASKED, /* RESERVE has come; it is answered in the same turn */
    SL_TICKET_LOADING,
    SL_TICKET_LANDING,
    SL_TICKET_PROMPT,
    SL_TICKET_CHECKING,
    SL_TICKET_WAITING,
    SL_TICKET_RUNNING,
    SL_TICKET_CONFIRMING, /* all its tokens are there, its pages are verified a last time */
    SL_TICKET_QUARANTINE,
    SL_TICKET_ENDING,
    SL_TICKET_GONE,
    SL_TICKET_STATES
} sl_ticket_state;
const char *sl_ticket_state_name(sl_ticket_state s);

/* A round of the patrol over the pages of a running request. */
typedef struct sl_ticket_round {
    int32_t at;  /* the next page that it verifies */
    uint64_t ns; /* when it verified one last */
    int32_t tokens, rows,
        pages; /* of the request when the round began: all, with rows, full ones. tokens 0: none has begun */
} sl_ticket_round;

typedef struct sl_ticket {
    /* the table's: in order of age, and by attempt and number */
    struct sl_ticket *next, *same_attempt, *same_number;
    sl_ticket_state state;
    uint64_t number;
    uint64_t order; /* in which tickets became WAITING */

    /* constant once it is ASKED */
    uint64_t rid;
    uint32_t attempt,
        router;      /* router: the session in which RESERVE came; rid and writer are that router's */
    uint32_t writer; /* the prefill worker that writes its pages; 0: none */
    int32_t n_prompt;
    uint64_t deadline_ns; /* of COMMIT, UINT64_MAX: none */
    uint64_t granted_ns;
    sl_sampling sampling; /* owned */

    const int32_t *tokens; /* prompt and produced: those of RESERVE, borrowed, until the first one is added */
    int32_t *own;          /* NULL: tokens are borrowed */
    int32_t n_tokens, cap;

    bool leased; /* it holds pages */
    bool begun;  /* PROMPT: its sequence is open */
    int32_t n_pages,
        matched;  /* of its tokens, that RESERVE was granted, and how many of them the prefix tree had */
    int32_t rows; /* tokens whose rows are in the pages */

    uint32_t jobs;  /* of the checker, which read the pages */
    uint32_t steps; /* that compute its sequence */
    bool closed;    /* its sequence was closed, because it is over */
    /* jobs that verify matched pages, or those that were computed here, before the first token */
    int32_t unverified;
    bool arrived;    /* what the writer shipped is right, or was computed here */
    bool drained;    /* its writer writes no more */
    uint64_t due_ns; /* LANDING, QUARANTINE; else UINT64_MAX */
    sl_status why;   /* QUARANTINE: why it has ended */

    sl_msg_token first;
    uint32_t cached_tokens;
    int32_t safe;      /* tokens that are known to be right */
    bool damaged;      /* it was retracted because a page that it holds is damaged */
    int32_t published; /* rows that were published */
    sl_ticket_round round;
    sl_finish finish; /* CONFIRMING: what DONE will say; NONE: the router does not wait for it */
    int32_t matched_stop;
} sl_ticket;

/* ---- events ---- */

typedef enum {
    SL_ON_LOAD,    /* its prefix continues in storage tiers: it waits for a load */
    SL_ON_GRANTED, /* granted: it has pages and a place. In PROMPT: it has other pages, of which more match */
    SL_ON_REFUSED, /* failed */
    SL_ON_COMMIT,  /* commit: the writer has written everything */
    SL_ON_PAGES_ASK, /* pages: the writer asks for the checksums of matched pages */
    SL_ON_STEP,      /* a step computes its sequence */
    SL_ON_STEPPED,   /* stepped: that step has ended */
    SL_ON_SAVED,     /* a step has copied its states into pages, of which STATES makes a snapshot */
    SL_ON_COMPUTED,  /* computed: the first token of a prompt, whose rows are complete */
    SL_ON_CHECKED,   /* checked: a job of the checker is back */
    SL_ON_JOINED,    /* its sequence is open, in the batch or to compute its prompt */
    SL_ON_TOKENS,    /* tokens that follow the rows */
    SL_ON_PATROL,    /* patrol: verify some of its pages */
    SL_ON_RETRACT, /* retract: it makes room, the router starts it again with the tokens that it has produced */
    SL_ON_DAMAGED,  /* it holds a page that is damaged */
    SL_ON_FAILED,   /* failed */
    SL_ON_UNDONE,   /* undone: an effect could not be carried out, there is no memory */
    SL_ON_ABORT,    /* abort: the router has ended the attempt */
    SL_ON_DRAINED,  /* drained: the writer writes no more, or the router says so */
    SL_ON_FENCED,   /* the writer's connection is closed by force */
    SL_ON_LOST,     /* the router's session has ended */
    SL_ON_DEADLINE, /* due_ns has passed */
    SL_ON_EVENTS
} sl_ticket_event_kind;

/* What the checker does with pages: an effect, and later CHECKED. */
typedef enum {
    SL_JOB_COMPARE, /* pages that have arrived, with the checksums of COMMIT */
    SL_JOB_VERIFY,  /* matched pages, with the checksums that are kept */
    SL_JOB_PATROL,  /* pages of a running request, likewise */
    SL_JOB_CONFIRM, /* all full pages of one that has all its tokens, likewise */
    SL_JOB_READ,    /* returns the checksums that are kept */
    SL_JOB_SEAL,    /* computes the checksums of pages that were computed here, and keeps them */
    SL_JOB_STATES,  /* makes a snapshot of its states complete, in pages that are not those of its tokens */
    SL_JOBS
} sl_ticket_job;

/* Pointers are borrowed until the effects of the step have been performed. */
typedef struct sl_ticket_event {
    sl_ticket_event_kind kind;
    uint64_t now_ns; /* ABORT, LOST, DEADLINE, PATROL, and what may fail in LANDING */
    union {
        struct {
            int32_t n_pages, matched;
            int32_t first, verify; /* of the matched pages, those to be verified: [first, first + verify) */
        } granted;
        struct {
            sl_status status;
            bool retryable;
            const char *why;
        } failed;
        const sl_msg_commit *commit; /* of its ticket and its writer, see sl_ticket_fits() */
        struct {
            int32_t first, n;
        } pages;
        struct {
            sl_status status; /* not SL_OK: the step failed, `why` says how */
            int32_t rows;     /* number of its tokens that have rows now */
            const char *why;
        } stepped;
        struct {
            sl_msg_token first;
            uint32_t cached_tokens;
        } computed;
        struct {
            sl_ticket_job job;
            size_t bad, of; /* COMPARE: wrong checksums */
            /* VERIFY, PATROL, CONFIRM: there were damaged pages; all that hold them have got DAMAGED */
            bool damaged;
        } checked;
        struct {
            const sl_msg_token *list;
            int32_t n; /* those after the end of the stream are dropped */
        } tokens;
        int32_t patrol_most; /* pages, > 0 */
        const char *retract_why;
        sl_ticket_job undone;
        sl_status abort_why;
        struct {
            bool direct;    /* the writer itself says so, else the router */
            bool connected; /* the writer has a connection here */
        } drained;
    };
} sl_ticket_event;

/* ---- effects ---- */

typedef enum {
    /* messages to the router: the first kinds */
    SL_DO_TELL_RESERVED,
    SL_DO_TELL_FAILED, /* failed */
    SL_DO_TELL_PREFILLED,
    SL_DO_TELL_TOKENS,    /* tokens */
    SL_DO_TELL_DONE,      /* done */
    SL_DO_TELL_RETRACTED, /* retract_why; ticket.damaged says whether only the safe tokens count */
    SL_DO_TELL_DRAINED,
    /* pages */
    SL_DO_CHECK,      /* check: give the checker a job. Can fail, then UNDONE follows */
    SL_DO_PUBLISH,    /* rows: full pages of the first `rows` tokens enter the prefix tree */
    SL_DO_ACCEPTED,   /* its prompt is complete and right: counted */
    SL_DO_QUARANTINE, /* its pages are kept, because its writer may still write: logged */
    SL_DO_FENCE,      /* close the connection of its writer, then FENCED */
    SL_DO_CLOSE,      /* its sequence, if it has one */
    SL_DO_LEAVE,      /* the load that it waits for */
    SL_DO_RELEASE,    /* its pages */
    SL_DO_FREE,       /* the last effect of every ticket: it is GONE */
    SL_DO_EFFECTS
} sl_ticket_effect_kind;

/* Pointers are borrowed from the event or from the ticket. */
typedef struct sl_ticket_effect {
    sl_ticket_effect_kind kind;
    sl_ticket *ticket;
    union {
        struct {
            sl_status status;
            bool retryable;
            const char *why;
        } failed;
        struct {
            int32_t first_index; /* of the stream: 0 is the first token after the prompt */
            const sl_msg_token *list;
            int32_t n;
        } tokens;
        struct {
            sl_finish finish;
            int32_t matched; /* the stop token, or -1 */
        } done;
        const char *retract_why;
        struct {
            sl_ticket_job job;
            int32_t first, n;            /* pages of the ticket */
            const sl_msg_commit *commit; /* COMPARE */
        } check;
        int32_t rows;
    };
} sl_ticket_effect;

enum { SL_TICKET_EFFECTS = 10 };

typedef struct sl_ticket_effects {
    sl_ticket_effect list[SL_TICKET_EFFECTS];
    int n;
} sl_ticket_effects;

/* What a step may know about its worker. Constant. */
typedef struct sl_ticket_env {
    int32_t layers;   /* of checksums in COMMIT, per page */
    int32_t snapshot; /* pages of a snapshot of states (kvstore/snapshot.h); 0: the model has none */
    int32_t vocab, max_context;
    bool compare; /* pages that arrive are compared with the checksums of COMMIT, or these are kept */
    bool seals;   /* checksums of full pages are kept */
    uint32_t quarantine_ms;
    /* Whether the token ends a stream with these parameters. NULL: none does. */
    bool (*is_stop)(const void *ctx, const sl_sampling *s, int32_t id);
    const void *ctx;
} sl_ticket_env;

/* False: the event has no entry for the state, or contradicts the ticket, and nothing was changed. */
bool sl_ticket_step(const sl_ticket_env *env, sl_ticket *t, const sl_ticket_event *ev,
                    sl_ticket_effects *out);

/* Queries. */
/* Whether a message of this writer about this number is for t. */
static inline bool sl_ticket_fits(const sl_ticket *t, uint64_t number, uint32_t writer)
{
    return t->number == number && t->writer == writer;
}

static inline int32_t sl_ticket_produced(const sl_ticket *t)
{
    return t->n_tokens - t->n_prompt;
}

/* Leading full pages whose checksums are kept. */
int32_t sl_ticket_sealed(const sl_ticket_env *env, const sl_ticket *t);
/* It has a place: it holds pages, or will release them. */
bool sl_ticket_has_place(const sl_ticket *t);

#endif
