/*
 * The prefill worker's data. Every field belongs to the engine thread or to the transport thread, or one of them sets
 * it before it posts a mail and the field is only read after that mail.
 *
 * A job is one PREFILL, or one PREFETCH (prefetch.c). The mails about a job:
 *
 *     mail            to          meaning
 *     NEW             engine      a new job
 *     START           transport   the job has its pages
 *     CHUNK           engine      some of the pages that are pulled have arrived (the mail is not a node of the job)
 *     PULLED          engine      no other CHUNK follows, and no get is in flight
 *     LAYER           transport   a step has computed a layer (posted for the step)
 *     FINISH, FAIL    transport   the prompt is computed, or the prefetch is of no more use; the job has failed
 *     STOP            engine      do not compute any further
 *     END             engine      nothing accesses the job's pages any more
 *     RELEASE         transport   the last mail: the job may be freed
 *
 * Each but CHUNK is posted at most once per job, so the job contains their nodes.
 */
#ifndef SL_PREFILL_PREFILL_IMPL_H
#define SL_PREFILL_PREFILL_IMPL_H

#include "base/log.h"
#include "kvstore/snapshot.h"
#include "prefill/copier.h"
#include "prefill/past.h"
#include "prefill/metrics.h"
#include "worker/constraint.h"
#include "worker/direct.h"
#include "worker/draft_state.h"
#include "worker/page_read.h"
#include "worker/prompt_queue.h"
#include "worker/remote.h"
#include "worker/scores.h"
#include "prefill/prefill.h"
#include "prefill/shipment.h"

enum {
    /* transport -> engine */
    PM_NEW = 1,
    PM_PULLED,
    PM_STOP,
    PM_END,
    /* engine -> transport */
    PM_START,
    PM_FINISH,
    PM_FAIL,
    PM_RELEASE,
    SL_JOB_MAILS, /* a job has one of each of these */
    /* transport -> engine */
    PM_STEP_BACK = SL_JOB_MAILS,
    PM_FLUSH_CACHE, /* sl_wmsg */
    PM_CHUNK,       /* sl_pull_chunk */
    /* checker -> engine */
    PM_CHECKED, /* sl_check */
    /* copier -> transport */
    PM_COPIED, /* sl_copier_mail */
    /* engine -> transport */
    PM_LAYER,
    PM_STEP_DONE,
};

/* Tag of the checker's jobs whose owner is a chunk; those of jobs have 0. */
enum { CHECK_CHUNK = 1 };

typedef enum { JOB_QUEUED, JOB_PULLING, JOB_READY, JOB_RUNNING, JOB_FINISHED, JOB_STOPPED } job_state;

typedef struct sl_job_mail {
    sl_wmail mail;
    sl_prefill_job *job;
} sl_job_mail;

/* peer.h */
struct sl_decode_peer {
    sl_decode_peer *next;
    sl_remote remote;
    const sl_ship_path *path; /* NULL before UP */
    struct {                  /* used by path_direct.c only */
        sl_direct *map;       /* the mapped arena of the peer; NULL on other paths */
        bool registered;      /* the map is registered with the device, so the copier may write there */
        int32_t batches;      /* mails for this peer that the copier holds */
    } direct;
};

/* Pages [first, end) of a request or a prefetch, which arrive together. It belongs to the shipment until its mail is posted; the
 * mail's receiver frees it. */
struct sl_pull_chunk {
    sl_wmail mail;
    sl_prefill_job *job;
    sl_pull_chunk *next; /* of the shipment */
    sl_page_read read;   /* its gets that are not posted */
    uint32_t in_flight;  /* its gets that have not completed */
    int32_t first, end;
    uint32_t crc
        []; /* [end - first][layers], which the decode worker keeps for them; set before the mail is posted */
};

/* A snapshot that this worker makes. */
typedef struct sl_prefill_saved {
    int32_t tokens; /* after which */
    bool made;
    sl_lease *lease; /* its pages */
} sl_prefill_saved;

typedef struct sl_prefill_states {
    sl_lease *prefix; /* of the snapshot after which the prompt begins, if it is one of this worker's; NULL */
    sl_prefill_saved *list; /* [n] */
    int32_t n;
    bool pulled;   /* the snapshot of the decode worker is here */
    bool verified; /* the prompt was verified: others may use its snapshots */
} sl_prefill_states;

/* What a computed prompt gives to COMMIT. */
typedef struct sl_prefill_result {
    sl_msg_token first;
    uint32_t cached_tokens;
    sl_draft_state hidden; /* of the prompt's last token */
    uint64_t queue_us, compute_us;
} sl_prefill_result;

/* Why a request ends without one. */
typedef struct sl_prefill_failure {
    sl_status status;
    bool retryable;
    char reason[300];
} sl_prefill_failure;

struct sl_prefill_job {
    /* constant */
    bool prefetch; /* its message was PREFETCH, and is changed to a PREFILL of these pages without a ticket */
    sl_wmsg *m;
    const sl_msg_prefill *msg;
    uint64_t rid, arrived_ns, deadline_ns;
    uint32_t attempt;
    uint32_t router;                /* the session in which PREFILL came; rid is that router's */
    sl_snapshot_places at;          /* what is where in the lists of pages */
    sl_job_mail mail[SL_JOB_MAILS]; /* by sl_job_mail_of() */

    /* set by the engine; read by the transport thread after START */
    int32_t *own_pages;            /* [at.n] */
    int32_t *dev_rows, *dev_index; /* device pages, set before the first LAYER; NULL: not known */
    int32_t own_matched, pull_end; /* pages [own_matched, pull_end) are to be pulled (none if equal) */
    sl_key *keys;                  /* of a prefetch: [pull_end] */
    sl_prefill_result result;      /* set before FINISH */
    sl_scores scores;              /* opened by the engine, which closes it after END */
    sl_prefill_failure failure;    /* set before FAIL */

    /* engine thread only */
    struct {
        sl_prefill_job *next, *prev;
        job_state state;
        sl_sampling sampling;
        sl_constraint *constraint; /* NULL: none */
        sl_lease *lease;
        void *seq;         /* may be opened before the job runs: see device.c */
        int32_t seq_pages; /* host pages that it was given */
        sl_queued_prompt prompt;
        uint64_t started_ns;
        int checks;     /* number of checks that the checker holds; they read the own pages */
        int unverified; /* verifications in flight, of matched pages and of the whole prompt: FINISH waits */
        bool ended;     /* END arrived while the checker held checks */
        int32_t sealed; /* number of own pages, from the first on, whose checksums are kept */
        int32_t have;   /* PULLING: number of pages, from the first on, that are here and were compared */
        int comparing;  /* chunks that the checker compares */
        bool all_here;  /* PULLED has come */
        sl_prefill_states states;
    } engine;

    /* set by the transport thread; read by the engine after PULLED */
    bool pull_ok;     /* all pages that were to be pulled have arrived */
    sl_shipment ship; /* transport thread only */
};

/* The mail of this kind about a job, PM_NEW to PM_RELEASE. */
static inline sl_wmail *sl_job_mail_of(sl_prefill_job *j, int kind)
{
    return &j->mail[kind].mail;
}

typedef struct sl_prefill_step sl_prefill_step;

typedef struct sl_layer_mail {
    sl_wmail mail;
    sl_prefill_step *step;
    int32_t layer;
} sl_layer_mail;

enum { SL_STEP_PROMPTS = 1024 };

/* What one engine step computes. It is posted to the transport thread layer by layer, and comes back for reuse. */
struct sl_prefill_step {
    sl_prefill_step *next;
    int32_t n;
    struct {
        sl_prefill_job *job;
        int32_t first, end;
    } item[SL_STEP_PROMPTS];
    sl_wmail done;
    sl_layer_mail layer[];
};

struct sl_prefill {
    sl_prefill_opts o;
    const sl_geometry *geo;
    sl_worker *worker;
    sl_worker_role role; /* the part that decode has, too; role.h groups its fields by thread */

    /* engine thread */
    sl_prefill_job *jobs, *jobs_tail; /* FIFO; without prefetches */
    sl_prefill_job *prefetches;
    int32_t n_jobs;
    uint64_t arrivals;
    sl_prompt_queue queue;      /* of the jobs that have a place */
    struct sl_step_room *steps; /* steps.h */
    uint64_t reused, pulled;    /* tokens */
    uint64_t damaged;           /* pages */

    /* transport thread */
    sl_prefill_job *ships;
    sl_ship_list runnable;
    sl_decode_peer *peers, *closed_peers; /* closed_peers: the copier still holds mails for them */
    sl_device_layer *dev_layers;          /* [n_layers]; NULL: rows are not read from the device. Constant */
    sl_worker_range *dev_memory;          /* the memory of dev_layers, if puts read it. Constant */
    int n_dev_memory;
    sl_copier *copier;            /* NULL: no rows are copied from the device. Constant */
    sl_copier_mail *free_batches; /* for reuse */
    int64_t direct_left; /* bytes that the transport thread may still copy in this iteration of its loop */
    sl_past past;
    uint64_t last_lease; /* the number of the last LEASE_ASK */

    sl_prefill_metrics c;
};

/* chunk.c, engine thread: pages that have arrived */
/* Takes c. */
void sl_prefill_chunk(sl_prefill *p, sl_pull_chunk *c);
/* Takes k, whose tag is CHECK_CHUNK. */
void sl_prefill_chunk_checked(sl_prefill *p, sl_check *k);
/* PULLED of a request. */
void sl_prefill_pulled(sl_prefill *p, sl_prefill_job *j);

/* device.c, engine thread: sequences that are opened while pages arrive */
/* Opens the sequence of a request whose pages arrive; without room on the device nothing happens. */
void sl_prefill_open_early(sl_prefill *p, sl_prefill_job *j);
/* Moves pages before `end` to the device: of a request that has a sequence, or of a prefetch, whose sequence grows by them. What
 * fails here is done again, and reported, when the request opens its sequence. */
void sl_prefill_move_early(sl_prefill *p, sl_prefill_job *j, int32_t end);
/* Opens the sequence with all pages of the request, whose first `pos` tokens are in them, or completes the one that it has.
 * SL_ERR_EXHAUSTED: the device has no room; the request then holds no sequence. */
sl_status sl_prefill_open(sl_prefill *p, sl_prefill_job *j, sl_err *err);
void sl_prefill_close_seq(sl_prefill *p, sl_prefill_job *j);

/* Pages of a snapshot; 0: no layer keeps a state. */
static inline int32_t sl_prefill_snapshot(const sl_prefill *p)
{
    return sl_snapshot_pages(p->geo);
}

/* states.c, engine thread. Without states they do nothing. */
/* Before the pages of the tokens are leased: pins the snapshot after which the prompt can begin, takes pages for those that it makes,
 * and says how many tokens may match (n_match of sl_store_lease_part()), of those that may be shared. SL_ERR_EXHAUSTED,
 * SL_ERR_NO_MEMORY: nothing is held. */
sl_status sl_prefill_states_lease(sl_prefill *p, sl_prefill_job *j, int32_t shared, int32_t *n_match);
/* Puts the pages of snapshots into own_pages. */
void sl_prefill_states_place(const sl_prefill *p, sl_prefill_job *j);
/* Where the next chunk ends at the latest. */
int32_t sl_prefill_states_stop(const sl_prefill *p, const sl_prefill_job *j);
/* All that is pulled is here: the prompt begins after it if a snapshot has come with it, else as sl_prefill_states_own() says. */
void sl_prefill_states_pulled(const sl_prefill *p, sl_prefill_job *j);
/* What was pulled is not used: the prompt begins after the own pages. */
void sl_prefill_states_own(const sl_prefill *p, sl_prefill_job *j);
/* The sequence was opened with prompt.pos tokens. SL_ERR_CORRUPT: the snapshot is damaged; an own one has left the tree. */
sl_status sl_prefill_states_restore(sl_prefill *p, sl_prefill_job *j, sl_err *err);
/* A step has ended, after which the sequence has prompt.pos tokens: makes a snapshot if one is due. */
sl_status sl_prefill_states_save(sl_prefill *p, sl_prefill_job *j, sl_err *err);
/* Nothing reads the job's pages any more: its snapshots enter the tree, if the prompt was verified, and its leases of them end. */
void sl_prefill_states_end(sl_prefill *p, sl_prefill_job *j);
void sl_prefill_states_release(sl_prefill_job *j);

/* schedule.c, engine thread */
/* Opens the queue of prompts. SL_ERR_NO_MEMORY. */
sl_status sl_schedule_open(sl_prefill *p, sl_err *err);
void sl_schedule_close(sl_prefill *p);
void sl_schedule_mail(sl_prefill *p, sl_wmail *m);
void sl_schedule_admit(sl_prefill *p);
/* Handles a job that comes back from the checker. */
void sl_schedule_checked(sl_prefill *p, sl_check *k);
/* The rows of the first n_tokens tokens are complete: keeps the checksums of the pages that have become full. False: the request has
 * failed. */
bool sl_schedule_seal(sl_prefill *p, sl_prefill_job *j, int32_t n_tokens);
/* These pages may be used by others. */
void sl_schedule_public(sl_prefill *p, sl_prefill_job *j, int32_t n_tokens);
/* Both. False: the request has failed. */
bool sl_schedule_publish(sl_prefill *p, sl_prefill_job *j, int32_t n_tokens);
/* The prompt is computed, and its first token chosen: FINISH when its pages are verified. */
void sl_schedule_computed(sl_prefill *p, sl_prefill_job *j);
void sl_schedule_fail(sl_prefill *p, sl_prefill_job *j, sl_status st, bool retryable, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* The last check of a job that has ended is back. */
void sl_schedule_check_back(sl_prefill *p, sl_prefill_job *j);

/* prefetch.c, engine thread */
/* NEW, PULLED, STOP or END of a prefetch. */
void sl_prefill_prefetch_mail(sl_prefill *p, sl_prefill_job *j, int kind);
/* A chunk of the prefetch was compared, and its pages were found right; or the prefetch ends, because they were not. */
void sl_prefill_prefetch_compared(sl_prefill *p, sl_prefill_job *j);
void sl_prefill_prefetch_failed(sl_prefill *p, sl_prefill_job *j);
/* Ends the job if END has come and the last check is back. */
void sl_prefill_prefetch_let_go(sl_prefill *p, sl_prefill_job *j);
/* Whether pages for j, a request that has not begun, are still arriving. */
bool sl_prefill_prefetch_awaited(const sl_prefill *p, const sl_prefill_job *j);
/* Unpins the pages that were fetched for j, which leases them at once. Pages [*first, *end) of its prompt have been compared with
 * their checksums while they were pinned; equal: none. */
void sl_prefill_prefetch_use(sl_prefill *p, const sl_prefill_job *j, int32_t *first, int32_t *end);
/* Gives the sequence that was opened for j's prefetch to j, if it is of the same pages, which j has leased; else it is closed. */
void sl_prefill_prefetch_give_seq(sl_prefill *p, sl_prefill_job *j);
/* Closes all sequences of prefetches, because a request needs the device's memory. False: there is none. */
bool sl_prefill_prefetch_yield(sl_prefill *p);
/* Ends the newest prefetch that has pages, because a request has found none; when its pages are back the request tries again. */
void sl_prefill_prefetch_make_room(sl_prefill *p);
/* j has begun or ended. */
void sl_prefill_prefetch_end(sl_prefill *p, const sl_prefill_job *j);
/* The worker drains: ends all. */
void sl_prefill_prefetch_drain(sl_prefill *p);

/* report.c, engine thread */
void sl_prefill_load_publish(sl_prefill *p);

#endif
