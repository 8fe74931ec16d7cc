/* What the files of decode/run/ share. See run.h. */
#ifndef SL_DECODE_RUN_RUN_IMPL_H
#define SL_DECODE_RUN_RUN_IMPL_H

#include "base/log.h"
#include "decode/core/admission.h"
#include "decode/core/effects.h"
#include "decode/run/laps.h"
#include "decode/run/run.h"
#include "engine/random_pages.h"
#include "kvstore/snapshot.h"
#include "worker/constraint.h"
#include "worker/draft_state.h"
#include "worker/prompt_queue.h"
#include "worker/scores.h"
#include "worker/stall.h"
#include "worker/token.h"

enum { SL_RUN_WRITERS = 1024 };

/* Snapshots (states.c); NULL: the request has none, or not any more. */
typedef struct sl_run_states {
    sl_lease *prefix, *end, *kept;
    int32_t kept_tokens;
    bool kept_made; /* here; that of a writer is made when its pages are right */
} sl_run_states;

/* A snapshot among its generated tokens (answers.c). */
typedef enum {
    SL_ANSWER_NONE,    /* the place, if there is one, has nothing of use */
    SL_ANSWER_COPIED,  /* a step in flight copies the states */
    SL_ANSWER_CHECKED, /* the checker makes the record */
    SL_ANSWER_MADE,
} sl_answer_state;

typedef struct sl_run_answer {
    sl_lease *lease; /* NULL: it has no place */
    sl_answer_state state;
    int32_t pages;       /* of tokens, after which it is */
    int32_t saved, kept; /* the newest one, and the newest one in the tree, likewise */
} sl_run_answer;

/* A ticket with what the worker has for it. */
typedef struct sl_run_ticket {
    sl_ticket t;     /* first member */
    sl_wmsg *m;      /* RESERVE */
    sl_lease *lease; /* of its tokens */
    sl_run_states states;
    sl_run_answer answer;
    void *seq; /* NULL: none is open */
    int32_t seq_pages;
    sl_layer_stats stats;      /* of the sequence that was closed last */
    sl_constraint *constraint; /* NULL: none */
    bool resident;             /* residency.c has decided that all its rows are on the device */
    sl_draft_seen drafts;
    /* of its last token while no sequence is open; from COMMIT, or of a prompt that waits */
    sl_draft_state hidden;
    struct {
        uint64_t asked, committed, waiting; /* ns; 0: it was not */
    } at;                                   /* for JOINED */
    /* PROMPT */
    sl_queued_prompt prompt;
    uint64_t started_ns;
    bool filled; /* with what is declared as computed */
    sl_scores scores;
} sl_run_ticket;

static inline sl_run_ticket *sl_run_of(const sl_ticket *t)
{
    return (sl_run_ticket *)(uintptr_t)t;
}

/* A request in the step that is being computed. */
typedef struct sl_run_part {
    uint64_t number;
    int32_t first, end; /* a prompt's tokens [first, end); of a running request, the last token */
    bool saves;         /* the step copies the states before them */
} sl_run_part;

/* A step of the batch, from its beginning to its results. */
typedef struct sl_run_flight {
    sl_run_part *parts; /* [max_batch + max_requests] of the step; the next one likewise */
    sl_step_item *items;
    sl_step_sample *samples; /* 1 + drafts.most of each item */
    sl_scores_room scored;
    int32_t decoding, prompts; /* parts: first those of running requests */
    uint64_t began_ns;
    sl_status st; /* of a step that was computed at once */
} sl_run_flight;

/* Steps of one size in a row, and what the runner had moved before them. */
typedef struct sl_run_moved {
    sl_draft_cost *size; /* NULL: the last step had prompts */
    int32_t steps;
    bool known; /* what was moved before them */
    uint64_t tokens, bytes, waited_ns;
} sl_run_moved;

/* Of a worker. most 0: it drafts nothing. */
typedef struct sl_run_drafts {
    int32_t most;   /* drafts of a request in a step */
    bool automatic; /* fewer, or none, where they do not pay; else always as many */
    sl_draft_costs costs;
    sl_draft_cost *cost; /* of this step's size */
    double rows_ns;      /* sl_draft_rows_ns() of this step */
    sl_run_moved moved;
    sl_draft_item *items;      /* [max_batch] */
    struct sl_run_drafted *of; /* [max_batch]: by number of the item in the step */
    int32_t n_of;
    int32_t longest; /* drafts of a request in this step */
    uint64_t began_ns,
        took_ns; /* drafting for this step, in a group with the wait for the other ranks, and as a part of the step */
    struct sl_run_flight *flight;
    sl_step_drafts of_step;
    sl_step_hooks hooks;
} sl_run_drafts;

/* What the router of this session is told while messages are gathered. */
typedef struct sl_run_batch {
    uint32_t router;
    sl_msg_batch batch;
} sl_run_batch;

struct sl_run {
    sl_run_opts o;
    sl_worker_role *role;
    const sl_runner *runner;
    sl_arena *arena;
    const sl_geometry *geo;
    int32_t snapshot; /* pages of a snapshot; 0: the model has no states */
    bool verify_checksums;
    sl_worker *worker; /* NULL: the threads have not begun, or have ended */
    sl_pages *pages;
    sl_core core;

    sl_wmsg *m;                   /* the message that is being handled; NULL: something has taken it */
    const sl_pages_event *loaded; /* the load whose end is being handled; NULL: none */

    /* writers with a connection, as the transport thread has reported */
    sl_writer connected[SL_RUN_WRITERS];
    uint32_t n_connected;

    sl_run_flight flight[SL_STEPS_IN_FLIGHT]; /* in flight: n_flights from first_flight on */
    int32_t first_flight, n_flights, depth;   /* depth: most of them */
    bool settle;             /* the next step waits until none is in flight: room must be made */
    sl_prompt_queue prompts; /* role both */
    sl_random_pages random;  /* what is declared as computed; without units where nothing is */
    sl_stall stall;
    sl_run_drafts drafts;

    bool patrolling; /* a job of the patrol is at the checker */
    uint64_t patrol_ns;
    int64_t patrol_bytes; /* in one turn */

    sl_run_batch gathered[SL_WORKER_ROUTERS_MAX];
    bool gathers;     /* what routers are told is kept in `gathered` */
    sl_stamp stepped; /* when the step ended whose results are told */

    sl_laps laps;

    sl_run_stats st; /* what is counted since the beginning */
    struct {
        sl_histogram *step, *batch, *chunk;
        sl_gauge *draft_check, *draft_rows; /* NULL: nothing is drafted */
    } metrics;
};

/* requests.c */
/* Counts and logs a message that is dropped because its ticket does not exist or is in another state. */
void sl_run_stale(sl_run *r, const char *what, uint64_t rid, uint32_t attempt);

/* world.c */
sl_world sl_run_world(sl_run *r);
/* FAILED to the router, for an attempt that may have no ticket. */
void sl_run_tell_failed(sl_run *r, uint32_t router, uint64_t rid, uint32_t attempt, sl_status st,
                        bool retryable, const char *why);
/* Tells the router of a session; what is told between sl_run_gather(r, true) and (r, false) becomes one message for each router. */
void sl_run_tell(sl_run *r, uint32_t router, const sl_msg *m);
void sl_run_gather(sl_run *r, bool on);
void sl_run_tell_drained(sl_run *r, uint32_t router, uint64_t rid, uint32_t attempt);
/* The answer to PAGES_ASK. */
void sl_run_answer_pages(sl_run *r, const sl_wmsg *m, uint32_t *crc, size_t n);
void sl_run_close_seq(sl_run *r, sl_ticket *t);
/* A ticket that fails with a reason that has a detail. */
void sl_run_fail(sl_run *r, sl_ticket *t, sl_status st, const char *what, const char *detail);

/* checks.c */
void sl_run_patrol_rate(sl_run *r, uint64_t bytes_per_s); /* 0: the default */
uint64_t sl_run_patrol(sl_run *r, uint64_t now);
/* Rows will be written into the pages of the lease from page `first` on: what they had before counts no more. */
void sl_run_forget_sums(sl_run *r, const sl_lease *l, int32_t first);
/* Every request that holds this page gives way. dropped: pages that have left the tree already. */
void sl_run_damaged(sl_run *r, int32_t page, int32_t dropped);

/* After a step, before its tokens are used: every request whose rows were damaged when they were fetched gives way. */
void sl_run_fetched(sl_run *r);

/* Tokens of t, with those that the steps in flight choose. */
static inline int32_t sl_run_tokens(const sl_ticket *t)
{
    return t->n_tokens + (int32_t)t->steps;
}

/* growth.c */
/* Every running ticket gets the pages of its next row, or waits for them; some get those that they need soon. */
void sl_run_grow(sl_run *r);
/* Whether the steps in flight give t its last token, by the limits of its length. */
bool sl_run_ends_in_flight(const sl_run *r, const sl_ticket *t);

/* batch.c */
/* Whether a step can choose the next token of t: its constraint is ready, or keeps up with steps in flight. A constraint that has
 * failed ends t. */
bool sl_run_can_choose(sl_run *r, sl_ticket *t);
/* What is to be chosen for t in the item of this number, after which all its tokens are in its rows, and `ahead` more that the
 * steps in flight choose. */
sl_step_sample *sl_run_sample(sl_run_flight *f, const sl_ticket *t, int32_t item, int32_t ahead);
/* The token that the step has chosen. False: t has failed. */
bool sl_run_chosen(sl_run *r, sl_ticket *t, const sl_step_item *it, sl_msg_token *out);

/* Waits for the steps in flight and drops their results: the worker ends. */
void sl_run_settle(sl_run *r);

/* prompts.c: role both; without it they do nothing */
sl_status sl_prompts_open(sl_run *r, sl_err *err);
void sl_prompts_close(sl_run *r);
/* Begins prompts that wait, while there are places and device memory. */
void sl_prompts_admit(sl_run *r);
/* Puts the parts of the next step after those of the requests of the batch. */
void sl_prompts_collect(sl_run *r, sl_run_flight *f);
/* A step has ended, and its tickets were not told yet: makes the snapshots that are due. */
void sl_prompts_save(sl_run *r, const sl_run_flight *f);
/* The step begins: the next one may be submitted before it has ended. */
void sl_prompts_begun(sl_run *r, const sl_run_flight *f);
/* The step took `ns`; with parts of prompts or without. */
void sl_prompts_measure(sl_run *r, const sl_run_flight *f, uint64_t ns);
/* A part is computed. */
void sl_prompts_computed(sl_run *r, const sl_run_part *part, const sl_step_item *it);

/* states.c. Without states the first two and the two about lists are about the pages of the tokens, the others do nothing. */
/* Leading pages that t would share with the tree: those after which it can begin. */
int32_t sl_run_match(const sl_run *r, const sl_ticket *t);
/* Pages that t would be granted besides those. */
int32_t sl_run_missing(const sl_run *r, const sl_ticket *t);
/* Before the pages of the tokens are leased; n_match: as in sl_store_lease_part(). SL_ERR_EXHAUSTED, SL_ERR_NO_MEMORY: nothing is
 * held. */
sl_status sl_run_states_lease(sl_run *r, sl_ticket *t, int32_t *n_match);
void sl_run_states_release(sl_ticket *t);
/* The pages of t as RESERVED says them (sl_snapshot_places), the caller's to free. NULL: out of memory. */
int32_t *sl_run_states_list(const sl_run *r, const sl_ticket *t, int32_t *n);
/* A check of pages [first, first + n) of t, with the pages of snapshots that belong to them. NULL: out of memory. */
sl_check *sl_run_states_check(const sl_run *r, const sl_ticket *t, sl_ticket_job job, sl_check_what what,
                              int32_t first, int32_t n);
/* The pages of the first `rows` tokens have entered the tree. */
void sl_run_states_publish(sl_run *r, sl_ticket *t, int32_t rows);
/* A prompt that is computed here: where its next part ends at the latest, and a snapshot when it has come to n tokens. */
int32_t sl_run_states_stop(const sl_run *r, const sl_ticket *t, int32_t pos);
sl_status sl_run_states_save(sl_run *r, sl_ticket *t, int32_t n, sl_err *err);
/* The sequence was opened, with the matched pages of a prompt; to decode. SL_ERR_CORRUPT. */
sl_status sl_run_states_begin(sl_run *r, sl_ticket *t, sl_err *err);
sl_status sl_run_states_resume(sl_run *r, sl_ticket *t, sl_err *err);

/* answers.c. Without states they do nothing. */
/* t joins the batch. */
void sl_answers_begin(const sl_ticket *t);
/* Items of the next step that save states first. */
void sl_answers_put(sl_run *r, sl_run_flight *f);
/* That step was collected, and its tickets were not told yet. */
void sl_answers_stepped(sl_run *r, const sl_run_flight *f);
/* The job that makes the record; NULL: out of memory, and there will be no snapshot. It is back. */
sl_check *sl_answers_check(const sl_run *r, const sl_ticket *t);
void sl_answers_checked(sl_run *r, const sl_ticket *t);
/* The pages of the first `rows` tokens have entered the tree. The client is about to be told that t is done, and may ask for the next
 * turn at once; while effects are held, what was published is not in the tree yet. t releases its pages. */
void sl_answers_publish(sl_run *r, const sl_ticket *t, int32_t rows);
void sl_answers_done(sl_run *r, const sl_ticket *t);
void sl_answers_release(sl_run *r, const sl_ticket *t);
/* Pages that could be given back, and gives back those of one request; false: there are none. */
int32_t sl_answers_spare(const sl_run *r);
bool sl_answers_give(sl_run *r);

/* drafts.c */
sl_status sl_drafts_open(sl_run *r, sl_err *err);
void sl_drafts_close(sl_run *r);
/* Drafts for the running requests of the step, and puts the drafts into their items. Nothing is in flight. */
sl_status sl_drafts_make(sl_run *r, sl_run_flight *f, sl_err *err);
/* Of the step, after that; NULL: there are none. */
const sl_step_hooks *sl_drafts_hooks(sl_run *r);
/* The step took ns. */
void sl_drafts_measure(sl_run *r, const sl_run_flight *f, uint64_t ns);
/* After the step: how many tokens of item i of a running request stand, 1 or more; the others are taken back. 0: the first one
 * could not be chosen. */
int32_t sl_drafts_confirm(sl_run *r, sl_ticket *t, const sl_step_item *it);

/* residency.c */
/* t has its prompt's sequence, which is resident: it stays so while there is room, else it is spilled. Errors
 * as sl_residency_open(); it has no sequence then. */
sl_status sl_residency_adopt(sl_run *r, sl_ticket *t, sl_err *err);
/* Whether a request holds device memory, in whatever state (it runs, its prompt is computed, its pages are checked), or a step in flight
 * does: another request that finds none can wait for theirs. */
bool sl_residency_held(const sl_run *r);
/* Spills the longest resident request for the sake of a prompt; false: there is none. */
bool sl_residency_give(sl_run *r);
/* Opens the sequence of t, resident or with a hot buffer. Errors as the runner's open. May spill other tickets, and fail
 * those that cannot be spilled. */
sl_status sl_residency_open(sl_run *r, sl_ticket *t, sl_err *err);
/* The device has no page for t's next row. If t is resident, spills the longest resident request, which may be t, and
 * returns true. */
bool sl_residency_relieve(sl_run *r, const sl_ticket *t);

#endif
